//! The device: pages come in, and go back to the host in as few calls as they allow.

use super::control::{BalloonControl, PAGE_BYTES, Statistics};
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, GuestRam, Interest, Readiness, StateError, StateReader, StateWriter,
    VirtioDevice, read_space,
};
use fluxvm_sys::guest_vm::Mapping;
use fluxvm_sys::reclaim;
use std::io;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use vm_memory::{GuestAddress, GuestMemoryBackend};

const QUEUE_SIZES: [u16; 4] = [128, 128, 16, 32];
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
/// The first queue that is there only when its feature is.
const OPTIONAL: usize = 2;

const FEATURE_STATISTICS: u64 = 1 << 1;
const FEATURE_DEFLATE_WHEN_SHORT: u64 = 1 << 2;
const FEATURE_REPORTING: u64 = 1 << 5;

/// Page numbers in one request.
const PAGES_MAX: u64 = 1024;
const STATISTIC_BYTES: u64 = 10;
const STATISTICS_MAX: u64 = 32;
const STATE_VERSION: u32 = 1;
const SPACE_BYTES: usize = 8;
/// Where the driver writes how many pages the balloon has.
const ACTUAL_OFFSET: u64 = 4;

/// The balloon.
pub struct Balloon {
    control: BalloonControl,
    chain: Chain,
    pages: Vec<u32>,
    /// A chain of statistics that the guest wants back when it shall fill it again.
    kept: Option<u16>,
}

impl Balloon {
    /// A balloon in a guest with `memory_bytes` of RAM, which is mapped as told.
    ///
    /// # Errors
    /// When the host has no descriptors left.
    pub fn new(memory_bytes: u64, mapping: Mapping) -> io::Result<Self> {
        let control = BalloonControl::new(memory_bytes, mapping)?;
        Ok(Self { control, chain: Chain::default(), pages: Vec::new(), kept: None })
    }

    /// The handle by which the machine's control uses the balloon.
    pub fn control(&self) -> BalloonControl {
        self.control.clone()
    }

    fn inflate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while context.queues[INFLATE].pop(context.memory, &mut self.chain)? {
            self.read_pages(context)?;
            self.pages.sort_unstable();
            release_pages(context.memory, &self.pages, self.control.mapping());
            context.queues[INFLATE].add_used(context.memory, self.chain.head(), 0)?;
        }
        Ok(())
    }

    /// Pages that go back to the guest need nothing: they are filled when it touches them.
    fn deflate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while context.queues[DEFLATE].pop(context.memory, &mut self.chain)? {
            self.read_pages(context)?;
            context.queues[DEFLATE].add_used(context.memory, self.chain.head(), 0)?;
        }
        Ok(())
    }

    fn read_pages(&mut self, context: &DeviceContext<'_>) -> Result<(), DeviceError> {
        let bytes = self.chain.readable_bytes();
        if !bytes.is_multiple_of(4) || bytes / 4 > PAGES_MAX {
            return Err(DeviceError::Driver("a list of pages is torn or too long"));
        }
        let mut list = vec![0; bytes as usize];
        self.chain.read(context.memory, 0, &mut list)?;
        self.pages.clear();
        let (numbers, _) = list.as_chunks::<4>();
        self.pages.extend(numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        Ok(())
    }

    /// Buffers of this queue are themselves the memory that is not used; the guest waits for them before it uses them.
    fn report(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        while context.queues[queue].pop(context.memory, &mut self.chain)? {
            for buffer in self.chain.writable().iter() {
                let begin = buffer.address.0.next_multiple_of(PAGE_BYTES);
                let end = (buffer.address.0 + u64::from(buffer.bytes)) / PAGE_BYTES * PAGE_BYTES;
                if begin < end {
                    release(context.memory, begin..end, self.control.mapping());
                }
            }
            context.queues[queue].add_used(context.memory, self.chain.head(), 0)?;
        }
        Ok(())
    }

    fn take_statistics(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while context.queues[OPTIONAL].pop(context.memory, &mut self.chain)? {
            let entries = self.chain.readable_bytes() / STATISTIC_BYTES;
            let mut statistics = Statistics::default();
            for place in 0..entries.min(STATISTICS_MAX) {
                let mut entry = [0; STATISTIC_BYTES as usize];
                self.chain.read(context.memory, place * STATISTIC_BYTES, &mut entry)?;
                note(&mut statistics, &entry);
            }
            *self.control.shared.statistics.lock().unwrap_or_else(PoisonError::into_inner) = statistics;
            // A driver has one buffer for this; one that offers more gets the earlier ones back.
            if let Some(earlier) = self.kept.replace(self.chain.head()) {
                context.queues[OPTIONAL].add_used(context.memory, earlier, 0)?;
            }
        }
        self.give_statistics_back(context)
    }

    fn give_statistics_back(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        let wanted = &self.control.shared.statistics_wanted;
        if let Some(head) = self.kept.take_if(|_| wanted.swap(false, Ordering::AcqRel)) {
            context.queues[OPTIONAL].add_used(context.memory, head, 0)?;
        }
        Ok(())
    }
}

fn note(statistics: &mut Statistics, entry: &[u8; STATISTIC_BYTES as usize]) {
    let [tag_low, tag_high, value @ ..] = *entry;
    let value = Some(u64::from_le_bytes(value));
    match u16::from_le_bytes([tag_low, tag_high]) {
        2 => statistics.major_faults = value,
        4 => statistics.free = value,
        5 => statistics.total = value,
        6 => statistics.available = value,
        7 => statistics.caches = value,
        _ => (),
    }
}

/// Releases sorted page numbers in runs; numbers that are not in memory are the guest's own nonsense.
fn release_pages(memory: &GuestRam, pages: &[u32], mapping: Mapping) {
    let mut run: Option<Range<u64>> = None;
    for page in pages {
        let begin = u64::from(*page) * PAGE_BYTES;
        match run.as_mut() {
            Some(run) if begin <= run.end => run.end = run.end.max(begin + PAGE_BYTES),
            _ => {
                if let Some(done) = run.replace(begin..begin + PAGE_BYTES) {
                    release(memory, done, mapping);
                }
            }
        }
    }
    if let Some(last) = run {
        release(memory, last, mapping);
    }
}

/// Memory that the host cannot take back stays with the guest: that costs the host, not the guest.
fn release(memory: &GuestRam, range: Range<u64>, mapping: Mapping) {
    for slice in memory.get_slices(GuestAddress(range.start), (range.end - range.start) as usize).map_while(Result::ok)
    {
        let _ = reclaim::release(&slice, mapping);
    }
}

impl VirtioDevice for Balloon {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Balloon
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        FEATURE_STATISTICS | FEATURE_DEFLATE_WHEN_SHORT | FEATURE_REPORTING
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let mut space = [0; SPACE_BYTES];
        space[..4].copy_from_slice(&self.control.shared.target_pages.load(Ordering::Acquire).to_le_bytes());
        space[4..].copy_from_slice(&self.control.shared.actual_pages.load(Ordering::Acquire).to_le_bytes());
        read_space(&space, offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        if let (ACTUAL_OFFSET, Ok(pages)) = (offset, data.try_into()) {
            self.control.shared.actual_pages.store(u32::from_le_bytes(pages), Ordering::Release);
        }
    }

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        Ok(context.events.watch(&self.control, 0, Interest::READ)?)
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        let _ = context.events.unwatch(&self.control);
        self.kept = None;
        // A driver that starts over has all of its memory.
        self.control.shared.actual_pages.store(0, Ordering::Release);
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        // Drivers number queues without those whose feature was not agreed on.
        let statistics = context.features & FEATURE_STATISTICS != 0;
        let reporting = context.features & FEATURE_REPORTING != 0;
        match queue {
            INFLATE => self.inflate(context),
            DEFLATE => self.deflate(context),
            OPTIONAL if statistics => self.take_statistics(context),
            _ if reporting && queue == OPTIONAL + usize::from(statistics) => self.report(context, queue),
            _ => Ok(()),
        }
    }

    fn process_event(&mut self, context: &mut DeviceContext<'_>, _: u32, _: Readiness) -> Result<(), DeviceError> {
        let _ = self.control.shared.event.read();
        if context.features & FEATURE_STATISTICS != 0 {
            self.give_statistics_back(context)?;
        }
        if self.control.target_bytes() / PAGE_BYTES
            != u64::from(self.control.shared.actual_pages.load(Ordering::Acquire))
        {
            context.interrupt.configuration_changed()?;
        }
        Ok(())
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
        state.u32(self.control.shared.target_pages.load(Ordering::Acquire));
        state.u32(self.control.shared.actual_pages.load(Ordering::Acquire));
        state.u32(self.kept.map_or(u32::MAX, u32::from));
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)?;
        let (target, actual, kept) = (state.u32()?, state.u32()?, state.u32()?);
        let bytes = u64::from(target) * PAGE_BYTES;
        let kept = match kept {
            u32::MAX => None,
            head if head < u32::from(QUEUE_SIZES[OPTIONAL]) => Some(head as u16),
            _ => return Err(StateError::Value("a chain that the queue of statistics does not have")),
        };
        self.control.set_target(bytes).map_err(|_| StateError::Value("a balloon larger than the guest"))?;
        self.control.shared.actual_pages.store(actual, Ordering::Release);
        self.kept = kept;
        Ok(())
    }
}
