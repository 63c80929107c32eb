//! The device itself: packets from queue to muxer and back, and the event that tells a restored guest that its
//! connections are gone.

use super::muxer::{Muxer, Outgoing};
use super::packet::{HEADER_BYTES, Header};
use super::sockets::Token;
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, GuestRam, Interest, Queue, Readiness, StateError, StateReader,
    StateWriter, VirtioDevice, read_space,
};
use fluxvm_sys::guest_io::SLICES_MAX;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Largest sizes of the queues: to the guest, from the guest, events.
const QUEUE_SIZES: [u16; 3] = [256, 256, 16];

const SOCKETS_TOKEN: u32 = 0;
const STATE_VERSION: u32 = 1;

/// The event that says that all connections are gone, little endian.
const TRANSPORT_RESET: [u8; 4] = [0; 4];

/// Buffers of the guest that one read of the host may fill.
const CHAINS_AT_ONCE: usize = 64;

/// Context ids of guests: 0, 1 and 2 mean something else, and a driver knows only 32 bits.
const GUEST_CIDS: std::ops::Range<u64> = 3..u32::MAX as u64;

/// A vsock device.
pub struct Vsock {
    guest_cid: u64,
    muxer: Muxer,
    /// The guest has to be told that its connections are gone.
    reset_due: bool,
    chains: Vec<Chain>,
}

impl Vsock {
    /// A device for the guest with this context id, that programs of the host reach through the unix socket at `path`.
    ///
    /// # Errors
    /// `InvalidInput` for a context id that no guest can have; `EEXIST` when something else lies at `path`,
    /// `ENAMETOOLONG` when the path leaves no room for a port, or what making the socket says.
    pub fn new(guest_cid: u64, path: &Path) -> io::Result<Self> {
        if !GUEST_CIDS.contains(&guest_cid) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a guest's context id is 3 to 4294967294"));
        }
        let chains = (0..CHAINS_AT_ONCE).map(|_| Chain::default()).collect();
        Ok(Self { guest_cid, muxer: Muxer::listen(guest_cid, path)?, reset_due: false, chains })
    }

    /// Moves packets both ways until neither way goes on.
    fn run(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        let memory: &GuestRam = context.memory;
        let [to_guest, from_guest, events] = context.queues else {
            return Err(DeviceError::Driver("a vsock device has three queues"));
        };
        self.tell_reset(memory, events)?;
        loop {
            let taken = self.take_packets(memory, from_guest)?;
            let given = self.give_packets(memory, to_guest)?;
            if !taken && !given {
                return Ok(());
            }
        }
    }

    fn tell_reset(&mut self, memory: &GuestRam, queue: &mut Queue) -> Result<(), DeviceError> {
        let chain = &mut self.chains[0];
        if self.reset_due && queue.pop(memory, chain)? {
            chain.write(memory, 0, &TRANSPORT_RESET)?;
            queue.add_used(memory, chain.head(), TRANSPORT_RESET.len() as u32)?;
            self.reset_due = false;
        }
        Ok(())
    }

    fn take_packets(&mut self, memory: &GuestRam, queue: &mut Queue) -> Result<bool, DeviceError> {
        let mut taken = false;
        while self.muxer.takes_packets() && queue.pop(memory, &mut self.chains[0])? {
            taken = true;
            self.take_packet(memory)?;
            queue.add_used(memory, self.chains[0].head(), 0)?;
        }
        Ok(taken)
    }

    fn take_packet(&mut self, memory: &GuestRam) -> Result<(), DeviceError> {
        let chain = &self.chains[0];
        let Some(room) = chain.readable_bytes().checked_sub(HEADER_BYTES as u64) else { return Ok(()) };
        let mut bytes = [0; HEADER_BYTES];
        chain.read(memory, 0, &mut bytes)?;
        let header = Header::decode(&bytes);
        if u64::from(header.payload_bytes) > room {
            self.muxer.refuse(&header);
            return Ok(());
        }
        let mut payload = Vec::new();
        chain.readable().slices(memory, HEADER_BYTES as u64, header.payload_bytes.into(), &mut payload)?;
        self.muxer.receive(&header, &payload);
        Ok(())
    }

    fn give_packets(&mut self, memory: &GuestRam, queue: &mut Queue) -> Result<bool, DeviceError> {
        let mut given = false;
        while self.muxer.has_outgoing() && queue.pop(memory, &mut self.chains[0])? {
            match self.muxer.next_outgoing() {
                None => queue.unpop(),
                Some(Outgoing::Packet(header)) => {
                    let chain = &self.chains[0];
                    chain.write(memory, 0, &header.encode())?;
                    queue.add_used(memory, chain.head(), HEADER_BYTES as u32)?;
                    given = true;
                }
                Some(Outgoing::Bytes(token, limit)) => given |= self.give_bytes(memory, queue, token, limit)?,
            }
        }
        Ok(given)
    }

    /// Fills as many buffers of the guest as one read of the host's end does; the first has been taken already.
    fn give_bytes(
        &mut self,
        memory: &GuestRam,
        queue: &mut Queue,
        token: Token,
        limit: u32,
    ) -> Result<bool, DeviceError> {
        let mut slices = Vec::with_capacity(CHAINS_AT_ONCE);
        let mut rooms = [0; CHAINS_AT_ONCE];
        let mut count = 0;
        let mut left = u64::from(limit);
        loop {
            let chain = &self.chains[count];
            rooms[count] = room_for_bytes(chain)?.min(left);
            chain.writable().slices(memory, HEADER_BYTES as u64, rooms[count], &mut slices)?;
            left -= rooms[count];
            count += 1;
            let full = left == 0 || count == CHAINS_AT_ONCE || slices.len() >= SLICES_MAX;
            if full || !queue.pop(memory, &mut self.chains[count])? {
                break;
            }
        }
        let (bytes, header) = self.muxer.read(token, &slices);
        self.hand_over(memory, queue, &rooms[..count], bytes.into(), &header)
    }

    /// Gives the buffers back that so many bytes have filled, each with its header, and puts back the others.
    fn hand_over(
        &mut self,
        memory: &GuestRam,
        queue: &mut Queue,
        rooms: &[u64],
        bytes: u64,
        header: &Header,
    ) -> Result<bool, DeviceError> {
        let mut used = [(0, 0); CHAINS_AT_ONCE];
        let mut count = 0;
        let mut left = bytes;
        for (chain, room) in self.chains.iter().zip(rooms) {
            if left == 0 {
                queue.unpop();
                continue;
            }
            let payload_bytes = left.min(*room) as u32;
            left -= u64::from(payload_bytes);
            chain.write(memory, 0, &Header { payload_bytes, ..*header }.encode())?;
            used[count] = (chain.head(), HEADER_BYTES as u32 + payload_bytes);
            count += 1;
        }
        queue.add_used_together(memory, &used[..count])?;
        Ok(count > 0)
    }
}

fn room_for_bytes(chain: &Chain) -> Result<u64, DeviceError> {
    let room = chain.writable_bytes().saturating_sub(HEADER_BYTES as u64);
    if room == 0 { Err(DeviceError::Driver("a buffer for packets has no room for any byte")) } else { Ok(room) }
}

impl VirtioDevice for Vsock {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Vsock
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_space(&self.guest_cid.to_le_bytes(), offset, data);
    }

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(context.events.watch(&self.muxer.as_fd(), SOCKETS_TOKEN, Interest::READ)?)
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        // Not watched when activating failed.
        let _ = context.events.unwatch(&self.muxer.as_fd());
        self.reset_due = false;
        self.muxer.reset();
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, _queue: usize) -> Result<(), DeviceError> {
        self.run(context)
    }

    fn process_event(
        &mut self,
        context: &mut DeviceContext<'_>,
        _token: u32,
        _readiness: Readiness,
    ) -> Result<(), DeviceError> {
        self.muxer.poll_sockets()?;
        self.run(context)
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
    }

    /// Connections are not part of a state: their other ends have gone on. The guest is told that they are gone.
    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)?;
        self.reset_due = true;
        Ok(())
    }
}
