//! The device: its queue pairs, each with a queue of the tap, what was negotiated, and when the taps are watched.

use super::control;
use super::datapath::Datapath;
use super::features::{self, ALWAYS, CONTROL_QUEUE, MERGEABLE_BUFFERS, MTU, MULTIQUEUE};
use super::receive::{HEADER_BYTES, Receiver, Shape, Stopped};
use super::transmit::Transmitter;
use super::vhost::Vhost;
use crate::virtio::limiter::{Limits, RateLimiter};
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, Events, GuestRam, Interest, Readiness, StateError, StateReader,
    StateWriter, VirtioDevice, read_space,
};
use fluxvm_sys::tap::Tap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The most queue pairs of one device.
pub const PAIRS_MAX: usize = 8;

const QUEUE_SIZE: u16 = 256;
const CONTROL_QUEUE_SIZE: u16 = 64;
const STATE_VERSION: u32 = 1;
const LINK_UP: u16 = 1;
const MTU_BYTES_DEFAULT: u16 = 1500;
/// What IPv4 asks of every link.
const MTU_BYTES_MIN: u16 = 68;

/// Events below this are of the tap of that pair.
const RECEIVE_LIMITER: u32 = 0x100;
const TRANSMIT_LIMITER: u32 = 0x101;
/// From here on: the kernel cannot go on with that pair.
const BROKEN: u32 = 0x200;

/// How a device is made.
pub struct NetConfig {
    /// One queue of the tap device for each pair, 1 to [`PAIRS_MAX`].
    pub taps: Vec<Tap>,
    /// The guest's address.
    pub mac: [u8; 6],
    /// The longest payload of a frame in bytes, when the guest is to be told; else 1500.
    pub mtu_bytes: Option<u16>,
    /// Limits of what the guest gets.
    pub receive_limits: Limits,
    /// Limits of what the guest sends.
    pub transmit_limits: Limits,
}

struct Pair {
    tap: Tap,
    receiver: Receiver,
    transmitter: Transmitter,
    vhost: Option<Vhost>,
    watched: bool,
    gone: bool,
}

/// A network device.
pub struct Net {
    pairs: Vec<Pair>,
    queue_sizes: Vec<u16>,
    mac: [u8; 6],
    mtu_bytes: Option<u16>,
    receive_limiter: RateLimiter,
    transmit_limiter: RateLimiter,
    control_chain: Chain,
    /// Pairs that the driver uses.
    active_pairs: u16,
    is_limited: bool,
    datapath: Datapath,
}

impl Net {
    /// A device on these taps.
    ///
    /// # Errors
    /// `InvalidInput` for a wrong number of taps, a multicast address or an MTU below 68; or what the taps and the host
    /// say.
    pub fn new(config: NetConfig) -> io::Result<Self> {
        let NetConfig { taps, mac, mtu_bytes, receive_limits, transmit_limits } = config;
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if taps.is_empty() || taps.len() > PAIRS_MAX {
            return refuse("a network device has 1 to 8 queue pairs");
        }
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return refuse("a network device has an address of its own, not one of a group");
        }
        if mtu_bytes.is_some_and(|bytes| bytes < MTU_BYTES_MIN) {
            return refuse("an MTU is at least 68 bytes");
        }
        for (index, tap) in taps.iter().enumerate() {
            tap.set_header(HEADER_BYTES as usize)?;
            if index > 0 {
                // Until the driver asks for it. A queue that is off already is what is wanted.
                let _ = tap.set_enabled(false);
            }
        }
        let mut queue_sizes = vec![QUEUE_SIZE; taps.len() * 2];
        if taps.len() > 1 {
            queue_sizes.push(CONTROL_QUEUE_SIZE);
        }
        let pair = |tap| Pair {
            tap,
            receiver: Receiver::default(),
            transmitter: Transmitter::default(),
            vhost: None,
            watched: false,
            gone: false,
        };
        let is_limited = [receive_limits, transmit_limits].iter().any(|limits| *limits != Limits::default());
        Ok(Self {
            pairs: taps.into_iter().map(pair).collect(),
            queue_sizes,
            mac,
            mtu_bytes,
            receive_limiter: RateLimiter::new(receive_limits)?,
            transmit_limiter: RateLimiter::new(transmit_limits)?,
            control_chain: Chain::default(),
            active_pairs: 1,
            is_limited,
            datapath: Datapath::default(),
        })
    }

    /// Lets the host's kernel move the frames, once a driver runs whose guest has this memory. `devices` are descriptors of
    /// `/dev/vhost-net`, one for each tap, or why there are none. Where the kernel cannot, all stays as it is and
    /// [`Self::datapath`] says why.
    pub fn use_vhost(&mut self, devices: io::Result<Vec<File>>, memory: &Arc<GuestRam>) {
        if self.is_limited {
            return self.datapath.refuse("the kernel knows no limits");
        }
        let devices = match devices {
            Ok(devices) if devices.len() == self.pairs.len() => devices,
            Ok(_) => return self.datapath.refuse("each tap needs a descriptor of /dev/vhost-net"),
            Err(error) => return self.datapath.refuse(format_args!("/dev/vhost-net cannot be opened: {error}")),
        };
        for (pair, device) in self.pairs.iter_mut().zip(devices) {
            match Vhost::new(device, Arc::clone(memory), &pair.tap) {
                Ok(vhost) => pair.vhost = Some(vhost),
                Err(error) => return self.give_up_vhost(error),
            }
        }
    }

    /// Who moves the frames.
    pub fn datapath(&self) -> Datapath {
        self.datapath.clone()
    }

    fn give_up_vhost(&mut self, why: impl std::fmt::Display) {
        self.pairs.iter_mut().for_each(|pair| pair.vhost = None);
        self.datapath.refuse(why);
    }

    /// Whether the kernel has this pair, which is handed to it at the first notification after a start or a pause: then
    /// both queues are set up and the guest runs.
    fn kernel_has(&mut self, context: &mut DeviceContext<'_>, index: usize) -> Result<bool, DeviceError> {
        let Some(vhost) = &mut self.pairs[index].vhost else { return Ok(false) };
        if vhost.runs() {
            return Ok(true);
        }
        match vhost.start(context, index * 2) {
            Ok(()) => {
                let _ = context.events.watch(vhost.broken(), BROKEN + index as u32, Interest::READ);
                self.datapath.set_in_kernel(true);
                Ok(true)
            }
            Err(error) => {
                self.stop_kernel(context)?;
                self.give_up_vhost(error);
                Ok(false)
            }
        }
    }

    fn stop_kernel(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            if let Some(vhost) = pair.vhost.as_mut().filter(|vhost| vhost.runs()) {
                let _ = context.events.unwatch(vhost.broken());
                vhost.stop(context, index * 2)?;
            }
        }
        Ok(())
    }

    fn shape(&self, features: u64) -> Shape {
        let mergeable = features & MERGEABLE_BUFFERS != 0;
        Shape::new(mergeable, features::takes_segments(features), self.mtu_bytes.unwrap_or(MTU_BYTES_DEFAULT))
    }

    fn receive(&mut self, context: &mut DeviceContext<'_>, index: usize) -> Result<(), DeviceError> {
        let shape = self.shape(context.features);
        let pair = &mut self.pairs[index];
        if pair.gone || index >= usize::from(self.active_pairs) {
            return Ok(());
        }
        let queue = &mut context.queues[index * 2];
        let limiter = &mut self.receive_limiter;
        let stopped = pair.receiver.run(context.memory, queue, &pair.tap, shape, limiter)?;
        pair.gone = stopped == Stopped::Gone;
        Ok(pair.watch(context.events, index, stopped == Stopped::Tap)?)
    }

    fn transmit(&mut self, context: &mut DeviceContext<'_>, index: usize) -> Result<(), DeviceError> {
        let pair = &mut self.pairs[index];
        let queue = &mut context.queues[index * 2 + 1];
        pair.transmitter.run(context.memory, queue, &pair.tap, &mut self.transmit_limiter)
    }

    fn control(&mut self, context: &mut DeviceContext<'_>, index: usize) -> Result<(), DeviceError> {
        let before = self.active_pairs;
        let Self { pairs, control_chain, active_pairs, .. } = self;
        let several = context.features & MULTIQUEUE != 0;
        control::answer(context.memory, &mut context.queues[index], control_chain, |wanted| {
            several && use_pairs(pairs, active_pairs, wanted)
        })?;
        for index in usize::from(before)..usize::from(self.active_pairs) {
            self.receive(context, index)?;
        }
        for index in usize::from(self.active_pairs)..usize::from(before) {
            self.pairs[index].watch(context.events, index, false)?;
        }
        Ok(())
    }

    /// Where the control queue lies: behind the pairs that the driver knows.
    fn control_queue(&self, features: u64) -> usize {
        if features & MULTIQUEUE != 0 { self.pairs.len() * 2 } else { 2 }
    }
}

/// Lets the tap use so many of its queues. False: there are not so many, or the tap refuses.
fn use_pairs(pairs: &[Pair], active: &mut u16, wanted: u16) -> bool {
    if wanted == 0 || usize::from(wanted) > pairs.len() {
        return false;
    }
    let enable = |range: std::ops::Range<u16>, enabled| {
        range.into_iter().all(|index| pairs[usize::from(index)].tap.set_enabled(enabled).is_ok())
    };
    let done = enable(*active..wanted, true) && enable(wanted..*active, false);
    if done {
        *active = wanted;
    }
    done
}

impl Pair {
    fn watch(&mut self, events: &Events, index: usize, wanted: bool) -> io::Result<()> {
        if wanted == self.watched {
            return Ok(());
        }
        self.watched = wanted;
        let tap = self.tap.as_fd();
        if wanted { events.watch(&tap, index as u32, Interest::READ) } else { events.unwatch(&tap) }
    }
}

impl VirtioDevice for Net {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Net
    }

    fn queue_sizes(&self) -> &[u16] {
        &self.queue_sizes
    }

    fn features(&self) -> u64 {
        let mtu = if self.mtu_bytes.is_some() { MTU } else { 0 };
        let several = if self.pairs.len() > 1 { MULTIQUEUE | CONTROL_QUEUE } else { 0 };
        ALWAYS | mtu | several
    }

    fn accepts(&self, features: u64) -> bool {
        features::agree(features)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.mac);
        space[6..8].copy_from_slice(&LINK_UP.to_le_bytes());
        space[8..10].copy_from_slice(&(self.pairs.len() as u16).to_le_bytes());
        space[10..].copy_from_slice(&self.mtu_bytes.unwrap_or(0).to_le_bytes());
        read_space(&space, offset, data);
    }

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        let offloads = features::tap_offloads(context.features);
        for pair in &self.pairs {
            pair.tap.set_offloads(offloads).map_err(io::Error::from)?;
        }
        context.events.watch(&self.receive_limiter, RECEIVE_LIMITER, Interest::READ)?;
        Ok(context.events.watch(&self.transmit_limiter, TRANSMIT_LIMITER, Interest::READ)?)
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        if let Err(error) = self.stop_kernel(context) {
            // Closing its descriptor is what it cannot refuse.
            self.give_up_vhost(error);
        }
        self.datapath.set_in_kernel(false);
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            pair.receiver.forget();
            let _ = pair.watch(context.events, index, false);
        }
        for limiter in [&mut self.receive_limiter, &mut self.transmit_limiter] {
            // Not watched when activating failed.
            let _ = context.events.unwatch(&*limiter);
            let _ = limiter.disarm();
        }
        use_pairs(&self.pairs, &mut self.active_pairs, 1);
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        if context.features & CONTROL_QUEUE != 0 && queue == self.control_queue(context.features) {
            return self.control(context, queue);
        }
        match (self.pairs.len() > queue / 2, queue % 2) {
            (false, _) => Ok(()),
            _ if self.kernel_has(context, queue / 2)? => Ok(()),
            (true, 0) => self.receive(context, queue / 2),
            (true, _) => self.transmit(context, queue / 2),
        }
    }

    fn process_event(
        &mut self,
        context: &mut DeviceContext<'_>,
        token: u32,
        _readiness: Readiness,
    ) -> Result<(), DeviceError> {
        match token {
            RECEIVE_LIMITER => {
                self.receive_limiter.woken()?;
                (0..self.pairs.len()).try_for_each(|index| self.receive(context, index))
            }
            TRANSMIT_LIMITER => {
                self.transmit_limiter.woken()?;
                (0..self.pairs.len()).try_for_each(|index| self.transmit(context, index))
            }
            BROKEN.. => {
                self.stop_kernel(context)?;
                Err(DeviceError::Driver("the kernel cannot use the rings or the buffers"))
            }
            index if (index as usize) < self.pairs.len() => self.receive(context, index as usize),
            _ => Ok(()),
        }
    }

    fn quiesce(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        self.stop_kernel(context)?;
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            pair.receiver.put_back(context.memory, &mut context.queues[index * 2])?;
        }
        Ok(())
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
        state.u16(self.active_pairs);
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)?;
        let active_pairs = state.u16()?;
        if !use_pairs(&self.pairs, &mut self.active_pairs, active_pairs) {
            return Err(StateError::Value("a number of queue pairs that this device does not have"));
        }
        Ok(())
    }
}
