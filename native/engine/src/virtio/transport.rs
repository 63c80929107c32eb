//! The registers of one virtio-mmio device, and the calls into it. Whoever calls, a virtual CPU or the reactor, holds the
//! device alone; after each call the queues are settled: notifications turned on or off, and the guest interrupted.

use super::device::{DeviceContext, DeviceError, QUEUE_TOKENS, VirtioDevice};
use super::persist;
use super::queue::Queue;
use super::reactor::{EventHandler, Events, Reactor, Readiness};
use super::state::{StateError, StateReader, StateWriter};
use super::status::{self, FAILED, NEEDS_RESET, Step};
use super::{FEATURE_EVENT_INDEX, FEATURE_INDIRECT_DESCRIPTORS, FEATURE_VERSION_1, GuestRam, Interrupt};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_bindings::virtio_mmio as register;
use virtio_queue::QueueT;
use vmm_sys_util::eventfd::EventFd;

/// The size of a device's window, in bytes.
pub const MMIO_BYTES: u64 = 0x200;
/// Where the driver writes the number of a queue to notify; the place for `KVM_IOEVENTFD`.
pub const QUEUE_NOTIFY: u64 = register::VIRTIO_MMIO_QUEUE_NOTIFY as u64;

/// Where the driver acknowledges an interrupt.
pub const INTERRUPT_ACKNOWLEDGE: u64 = register::VIRTIO_MMIO_INTERRUPT_ACK as u64;

/// "virt", little endian.
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "FLUX", little endian.
const VENDOR: u32 = 0x5855_4C46;
const CONFIGURATION: u64 = register::VIRTIO_MMIO_CONFIG as u64;
/// No shared memory regions: their length reads as all ones.
const SHARED_MEMORY: std::ops::RangeInclusive<u64> = 0xB0..=0xBC;
const CONFIGURATION_ACCESS_BYTES_MAX: usize = 8;

/// A device in its window of guest addresses.
pub struct VirtioMmio {
    notify: Arc<[EventFd]>,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) device: Box<dyn VirtioDevice>,
    pub(super) memory: Arc<GuestRam>,
    pub(super) queues: Vec<Queue>,
    pub(super) interrupt: Interrupt,
    pub(super) status: u32,
    pub(super) features: u64,
    pub(super) selected: Selected,
    notify: Arc<[EventFd]>,
    events: Events,
    active: bool,
    fault: Option<String>,
}

/// What the guest selected for its next accesses.
#[derive(Clone, Copy, Default)]
pub(super) struct Selected {
    pub(super) device_features: u32,
    pub(super) driver_features: u32,
    pub(super) queue: u32,
}

impl VirtioMmio {
    /// Puts a device behind the transport and lets the reactor drive it. `line` is bound to the interrupt of the window.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn new(
        reactor: &Reactor,
        memory: Arc<GuestRam>,
        device: Box<dyn VirtioDevice>,
        line: EventFd,
    ) -> io::Result<Arc<Self>> {
        reactor.register(|events| {
            let queues: Vec<Queue> = device.queue_sizes().iter().map(|size| Queue::new(*size)).collect();
            let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            let notify = queues.iter().map(|_| EventFd::new(flags.bits() as i32)).collect::<io::Result<Vec<_>>>()?;
            let notify: Arc<[EventFd]> = notify.into();
            for (queue, event) in notify.iter().enumerate() {
                events.watch_writes(event, QUEUE_TOKENS + queue as u32)?;
            }
            let inner = Inner {
                device,
                memory,
                queues,
                interrupt: Interrupt::new(line),
                status: 0,
                features: 0,
                selected: Selected::default(),
                notify: Arc::clone(&notify),
                events,
                active: false,
                fault: None,
            };
            Ok(Arc::new(Self { notify, inner: Mutex::new(inner) }))
        })
    }

    /// One event per queue, to be bound to a write of the queue's number, 32 bits wide, at [`QUEUE_NOTIFY`].
    pub fn notify_events(&self) -> &[EventFd] {
        &self.notify
    }

    /// Why the device stopped working, since the last reset.
    pub fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// A read by the guest, from an offset into the window. What cannot be read is zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let inner = self.lock();
        if offset >= CONFIGURATION {
            if data.len() <= CONFIGURATION_ACCESS_BYTES_MAX && offset < MMIO_BYTES {
                inner.device.read_config(offset - CONFIGURATION, data);
            }
        } else if data.len() == size_of::<u32>() && offset.is_multiple_of(4) {
            data.copy_from_slice(&inner.read_register(offset).to_le_bytes());
        }
    }

    /// A write by the guest. What cannot be written is ignored.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if offset >= CONFIGURATION {
            if data.len() <= CONFIGURATION_ACCESS_BYTES_MAX && offset < MMIO_BYTES {
                self.lock().write_configuration(offset - CONFIGURATION, data);
            }
            return;
        }
        let Ok(bytes) = <[u8; 4]>::try_from(data) else { return };
        let value = u32::from_le_bytes(bytes);
        if offset == QUEUE_NOTIFY {
            if let Some(event) = self.notify.get(value as usize) {
                let _ = event.write(1);
            }
            return;
        }
        self.lock().write_register(offset, value);
    }

    /// The state of the registers, the queues and the device. The reactor must stand still.
    pub fn save(&self) -> Vec<u8> {
        let mut state = StateWriter::new();
        persist::save(&self.lock(), &mut state);
        state.finish()
    }

    /// Goes back to a state that [`Self::save`] gave, of this device or one that was made alike. The reactor must stand
    /// still; when it goes on, every queue is looked at and the guest is interrupted, so that nothing waits for ever.
    ///
    /// # Errors
    /// When the bytes, which anyone may have written, make no sense; the device is then reset at worst.
    pub fn load(&self, bytes: &[u8]) -> Result<(), StateError> {
        let mut state = StateReader::new(bytes);
        persist::load(&mut self.lock(), &mut state)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A device that panicked is reset or gone with its machine; its neighbours must not hang on it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process_queue(&self, inner: &mut Inner, queue: usize) {
        if inner.queues[queue].is_outside() {
            return;
        }
        self.call(inner, |device, context| {
            context.queues[queue].disable_notification(context.memory)?;
            device.process_queue(context, queue)
        });
    }

    /// Calls the device, and comes back later to queues that have more than one turn allows.
    fn call(
        &self,
        inner: &mut Inner,
        action: impl FnOnce(&mut dyn VirtioDevice, &mut DeviceContext<'_>) -> Result<(), DeviceError>,
    ) {
        if !inner.active || !status::runs(inner.status) {
            return;
        }
        inner.call(action);
        for (queue, event) in inner.queues.iter().zip(self.notify.iter()) {
            if queue.is_ready() && queue.turn_is_over() {
                let _ = event.write(1);
            }
        }
    }
}

impl EventHandler for VirtioMmio {
    fn handle(&self, token: u32, readiness: Readiness) {
        let mut inner = self.lock();
        let queue = token.wrapping_sub(QUEUE_TOKENS) as usize;
        if queue < self.notify.len() {
            self.process_queue(&mut inner, queue);
        } else {
            self.call(&mut inner, |device, context| device.process_event(context, token, readiness));
        }
    }

    fn quiesce(&self) -> Result<(), String> {
        let mut inner = self.lock();
        if !inner.active {
            return Ok(());
        }
        // What is still available waits: nothing new begins when I/O that ends here is given back.
        inner.queues.iter_mut().for_each(Queue::end_turn);
        match inner.with_device(|device, context| device.quiesce(context)) {
            Ok(()) => inner.settle(),
            Err(error @ DeviceError::Host(_)) => return Err(error.to_string()),
            // A driver that broke the rules does not keep its machine from resting.
            Err(error) => inner.break_down(&error),
        }
        Ok(())
    }

    fn resume(&self) {
        let mut inner = self.lock();
        self.call(&mut inner, |device, context| device.resume(context));
        for queue in 0..self.notify.len() {
            self.process_queue(&mut inner, queue);
        }
        if inner.active {
            let _ = inner.interrupt.queues_used();
        }
    }
}

impl Inner {
    /// Calls an active device and settles its queues; an error stops the device until the driver resets it.
    fn call(&mut self, action: impl FnOnce(&mut dyn VirtioDevice, &mut DeviceContext<'_>) -> Result<(), DeviceError>) {
        self.queues.iter_mut().for_each(Queue::begin_turn);
        match self.with_device(action) {
            Ok(()) => self.settle(),
            Err(error) => self.break_down(&error),
        }
    }

    fn with_device<T>(&mut self, action: impl FnOnce(&mut dyn VirtioDevice, &mut DeviceContext<'_>) -> T) -> T {
        let mut context = DeviceContext {
            memory: &self.memory,
            queues: &mut self.queues,
            features: self.features,
            events: &self.events,
            interrupt: &self.interrupt,
            notify: &self.notify,
        };
        action(self.device.as_mut(), &mut context)
    }

    /// Asks for notifications where the device saw the end of a queue, lets it look again where something came in between,
    /// and interrupts the guest once for all that was given back.
    fn settle(&mut self) {
        for queue in 0..self.queues.len() {
            if let Err(error) = self.settle_queue(queue) {
                return self.break_down(&error);
            }
        }
        let memory = self.memory.clone();
        let wanted = self.queues.iter_mut().filter(|queue| queue.is_ready() && !queue.is_outside()).try_fold(
            false,
            |wanted, queue| {
                // Each queue remembers that it was asked, so that all of them are.
                queue.takes_interrupt(&memory).map(|takes| wanted | takes)
            },
        );
        match wanted {
            Ok(true) => drop(self.interrupt.queues_used()),
            Ok(false) => (),
            Err(error) => self.break_down(&error.into()),
        }
    }

    fn settle_queue(&mut self, queue: usize) -> Result<(), DeviceError> {
        let memory = self.memory.clone();
        while self.queues[queue].is_drained() && self.queues[queue].enable_notification(&memory)? {
            self.queues[queue].look_again();
            self.with_device(|device, context| device.process_queue(context, queue))?;
        }
        Ok(())
    }

    fn break_down(&mut self, error: &DeviceError) {
        self.fault.get_or_insert_with(|| error.to_string());
        self.status |= NEEDS_RESET;
        // Nobody looks at what it watches any more, so that the reactor would be told of it for ever.
        self.deactivate();
        let _ = self.interrupt.configuration_changed();
    }

    fn deactivate(&mut self) {
        if std::mem::take(&mut self.active) {
            self.reset_device();
        }
    }

    pub(super) fn reset_device(&mut self) {
        self.with_device(|device, context| device.reset(context));
    }

    /// Starts the device with what the driver set up.
    pub(super) fn activate(&mut self) {
        let features = self.features;
        self.queues.iter_mut().for_each(|queue| queue.start(features));
        self.active = true;
        if let Err(error) = self.with_device(|device, context| device.activate(context)) {
            self.break_down(&error);
        }
    }

    /// Back to what a new device is.
    pub(super) fn reset(&mut self) {
        self.deactivate();
        self.queues.iter_mut().for_each(Queue::reset);
        self.interrupt.restore(0, self.interrupt.generation());
        self.status = 0;
        self.features = 0;
        self.selected = Selected::default();
        self.fault = None;
    }

    /// All features that a driver may choose from.
    pub(super) fn offered(&self) -> u64 {
        self.device.features() | FEATURE_VERSION_1 | FEATURE_EVENT_INDEX | FEATURE_INDIRECT_DESCRIPTORS
    }

    /// Whether a device of this kind can work with these features.
    pub(super) fn may_negotiate(&self, features: u64) -> bool {
        features & !self.offered() == 0 && features & FEATURE_VERSION_1 != 0 && self.device.accepts(features)
    }

    fn read_register(&self, offset: u64) -> u32 {
        let queue = self.queues.get(self.selected.queue as usize);
        match offset as u32 {
            register::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            register::VIRTIO_MMIO_VERSION => VERSION,
            register::VIRTIO_MMIO_DEVICE_ID => self.device.kind() as u32,
            register::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            register::VIRTIO_MMIO_DEVICE_FEATURES => half(self.offered(), self.selected.device_features),
            register::VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |queue| u32::from(queue.size_max())),
            register::VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |queue| u32::from(queue.is_ready())),
            register::VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt.reasons(),
            register::VIRTIO_MMIO_STATUS => self.status,
            register::VIRTIO_MMIO_CONFIG_GENERATION => self.interrupt.generation(),
            _ if SHARED_MEMORY.contains(&offset) => u32::MAX,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        match offset as u32 {
            register::VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.selected.device_features = value,
            register::VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.selected.driver_features = value,
            register::VIRTIO_MMIO_DRIVER_FEATURES => self.choose_features(value),
            register::VIRTIO_MMIO_QUEUE_SEL => self.selected.queue = value,
            register::VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt.acknowledge(value),
            register::VIRTIO_MMIO_STATUS => self.write_status(value),
            _ => self.write_queue_register(offset as u32, value),
        }
    }

    fn write_queue_register(&mut self, offset: u32, value: u32) {
        if !status::sets_up_queues(self.status) {
            return;
        }
        let Some(queue) = self.queues.get_mut(self.selected.queue as usize) else { return };
        if offset == register::VIRTIO_MMIO_QUEUE_READY {
            return queue.set_ready(&self.memory, value & 1 == 1);
        }
        if queue.is_ready() {
            return;
        }
        let ring = queue.ring();
        match offset {
            // A size that cannot be is one that a guest never gets past "ready" with, so it changes nothing.
            register::VIRTIO_MMIO_QUEUE_NUM => ring.set_size(u16::try_from(value).unwrap_or(0)),
            register::VIRTIO_MMIO_QUEUE_DESC_LOW => ring.set_desc_table_address(Some(value), None),
            register::VIRTIO_MMIO_QUEUE_DESC_HIGH => ring.set_desc_table_address(None, Some(value)),
            register::VIRTIO_MMIO_QUEUE_AVAIL_LOW => ring.set_avail_ring_address(Some(value), None),
            register::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => ring.set_avail_ring_address(None, Some(value)),
            register::VIRTIO_MMIO_QUEUE_USED_LOW => ring.set_used_ring_address(Some(value), None),
            register::VIRTIO_MMIO_QUEUE_USED_HIGH => ring.set_used_ring_address(None, Some(value)),
            _ => (),
        }
    }

    fn choose_features(&mut self, value: u32) {
        if !status::chooses_features(self.status) {
            return;
        }
        let shift = match self.selected.driver_features {
            0 => 0,
            1 => 32,
            _ => return,
        };
        self.features = self.features & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
    }

    fn write_status(&mut self, value: u32) {
        match status::step(self.status, value) {
            Step::Ignore => (),
            Step::Reset => self.reset(),
            Step::Fail => self.status |= FAILED,
            Step::Accept => self.status = value,
            Step::Negotiate => {
                if self.may_negotiate(self.features) {
                    self.status = value;
                }
            }
            Step::Activate => {
                self.status = value;
                self.activate();
            }
        }
    }

    fn write_configuration(&mut self, offset: u64, data: &[u8]) {
        if self.status & status::DRIVER != 0 {
            self.device.write_config(offset, data);
        }
    }
}

/// The low or the high half of the features; other selections have none.
fn half(features: u64, selected: u32) -> u32 {
    match selected {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}
