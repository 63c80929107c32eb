//! The state of the transport as bytes: registers, queues, and the device's own state inside.

use super::queue::Queue;
use super::state::{StateError, StateReader, StateWriter};
use super::status;
use super::transport::{Inner, Selected};
use virtio_queue::QueueState;

const VERSION: u32 = 1;

pub(super) fn save(inner: &Inner, state: &mut StateWriter) {
    state.u32(VERSION);
    state.u32(inner.device.kind() as u32);
    state.u32(inner.status);
    state.u64(inner.features);
    state.u32(inner.interrupt.reasons());
    state.u32(inner.interrupt.generation());
    state.u32(inner.selected.device_features);
    state.u32(inner.selected.driver_features);
    state.u32(inner.selected.queue);
    state.u32(inner.queues.len() as u32);
    for queue in &inner.queues {
        let queue = queue.state();
        state.u16(queue.size);
        state.u8(u8::from(queue.ready));
        state.u8(u8::from(queue.event_idx_enabled));
        state.u16(queue.next_avail);
        state.u16(queue.next_used);
        state.u64(queue.desc_table);
        state.u64(queue.avail_ring);
        state.u64(queue.used_ring);
    }
    let mut device = StateWriter::new();
    inner.device.save(&mut device);
    state.blob(&device.finish());
}

pub(super) fn load(inner: &mut Inner, state: &mut StateReader<'_>) -> Result<(), StateError> {
    state.version(VERSION)?;
    if state.u32()? != inner.device.kind() as u32 {
        return Err(StateError::Value("another kind of device"));
    }
    let device_status = state.u32()?;
    let features = state.u64()?;
    let reasons = state.u32()?;
    let generation = state.u32()?;
    let selected = Selected { device_features: state.u32()?, driver_features: state.u32()?, queue: state.u32()? };
    if state.u32()? as usize != inner.queues.len() {
        return Err(StateError::Value("another number of queues"));
    }
    let queues = inner.queues.iter().map(|queue| read_queue(inner, queue, state)).collect::<Result<Vec<_>, _>>()?;
    let device = state.blob()?;
    state.end()?;
    if !status::is_possible(device_status) {
        return Err(StateError::Value("status"));
    }
    let negotiated = device_status & status::FEATURES_OK != 0;
    if negotiated && !inner.may_negotiate(features) {
        return Err(StateError::Value("features that this device does not have"));
    }
    inner.reset();
    let mut device = StateReader::new(device);
    let loaded = inner.device.load(&mut device).and_then(|()| device.end());
    if loaded.is_err() || !status::runs(device_status) {
        // What it knows now is of a driver that does not run; the next one must not meet it.
        inner.reset_device();
    }
    loaded?;
    inner.status = device_status;
    inner.features = features;
    inner.selected = selected;
    inner.queues = queues;
    inner.interrupt.restore(reasons, generation);
    if status::runs(device_status) {
        inner.activate();
    }
    Ok(())
}

fn read_queue(inner: &Inner, queue: &Queue, state: &mut StateReader<'_>) -> Result<Queue, StateError> {
    let queue = QueueState {
        max_size: queue.size_max(),
        size: state.u16()?,
        ready: state.u8()? == 1,
        event_idx_enabled: state.u8()? == 1,
        next_avail: state.u16()?,
        next_used: state.u16()?,
        desc_table: state.u64()?,
        avail_ring: state.u64()?,
        used_ring: state.u64()?,
    };
    Queue::from_state(queue, &inner.memory).ok_or(StateError::Value("a queue that no driver could have set up"))
}
