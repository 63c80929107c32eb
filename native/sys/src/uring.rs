//! A ring of the kernel for file I/O straight into and out of guest memory. It is restricted when it is made: it reads,
//! writes and syncs files and can be told to do nothing else. Guest memory stays mapped until the kernel is done with it.

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::{Errno, Result};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

type Memory = Arc<GuestMemoryMmap<()>>;

/// What to do with buffers in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into memory.
    Read,
    /// From memory to the file.
    Write,
}

/// What was asked for, until it is done. Kept at one place: the kernel reads the vectors when it likes.
#[derive(Default)]
struct Slot {
    tag: u64,
    file: Option<Arc<File>>,
    offset: u64,
    direction: Option<Direction>,
    vectors: Vec<libc::iovec>,
    /// Vectors before this one are done.
    first: usize,
    memory: Option<Memory>,
}

/// The ring. Dropping it waits for what is in flight, so that memory outlives its use.
pub struct Ring {
    ring: IoUring,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Told to the kernel, or about to be.
    in_flight: usize,
    /// In the queue, not yet told.
    queued: usize,
}

// SAFETY: vectors point into guest memory, which every thread may reach, and the ring is used through `&mut` only.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for so many operations at once, a power of two.
    ///
    /// # Errors
    /// When the kernel has no rings, does not allow them, or lacks an operation.
    pub fn new(operations: u32) -> Result<Self> {
        let ring = IoUring::builder().setup_r_disabled().build(operations).map_err(errno)?;
        let submitter = ring.submitter();
        let mut probe = Probe::new();
        submitter.register_probe(&mut probe).map_err(errno)?;
        let codes = [opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE];
        if codes.iter().any(|code| !probe.is_supported(*code)) {
            return Err(Errno::OPNOTSUPP);
        }
        submitter.register_restrictions(&mut codes.map(Restriction::sqe_op)).map_err(errno)?;
        submitter.register_enable_rings().map_err(errno)?;
        let slots = (0..operations).map(|_| Slot::default()).collect();
        Ok(Self { ring, slots, free: (0..operations).collect(), in_flight: 0, queued: 0 })
    }

    /// How many operations have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether another operation may be queued.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Queues a read or write of all buffers at an offset of a file. `tag` comes back with the result.
    ///
    /// # Errors
    /// `AGAIN` without room, `FAULT` when a buffer is not in memory, `INVAL` without buffers.
    pub fn transfer(
        &mut self,
        tag: u64,
        direction: Direction,
        file: &Arc<File>,
        offset: u64,
        memory: &Memory,
        buffers: impl Iterator<Item = (GuestAddress, usize)>,
    ) -> Result<()> {
        let index = *self.free.last().ok_or(Errno::AGAIN)?;
        let slot = &mut self.slots[index as usize];
        slot.vectors.clear();
        for (address, bytes) in buffers {
            let slice = memory.get_slice(address, bytes).map_err(|_| Errno::FAULT)?;
            slot.vectors.push(libc::iovec { iov_base: slice.ptr_guard_mut().as_ptr().cast(), iov_len: bytes });
        }
        if slot.vectors.is_empty() {
            return Err(Errno::INVAL);
        }
        slot.memory = Some(memory.clone());
        slot.file = Some(file.clone());
        (slot.tag, slot.offset, slot.direction, slot.first) = (tag, offset, Some(direction), 0);
        self.start(index)
    }

    /// Queues a sync of the data of a file.
    ///
    /// # Errors
    /// `AGAIN` without room.
    pub fn sync(&mut self, tag: u64, file: &Arc<File>) -> Result<()> {
        let index = *self.free.last().ok_or(Errno::AGAIN)?;
        let slot = &mut self.slots[index as usize];
        slot.file = Some(file.clone());
        (slot.tag, slot.direction) = (tag, None);
        self.start(index)
    }

    /// Tells the kernel what was queued.
    ///
    /// # Errors
    /// What the kernel says; a live ring has no reason to.
    pub fn submit(&mut self) -> Result<()> {
        while self.queued > 0 {
            match self.ring.submit() {
                Ok(told) => self.queued -= told.min(self.queued),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => (),
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    }

    /// Tells the kernel what was queued and waits until something ends.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn wait(&mut self) -> Result<()> {
        self.submit()?;
        if self.in_flight == 0 {
            return Ok(());
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => (),
                Err(error) => return Err(errno(error)),
            }
        }
    }

    /// Takes what has ended: tags and results. An operation that the kernel did in part is continued.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn reap(&mut self, ended: &mut Vec<(u64, Result<()>)>) -> Result<()> {
        loop {
            let Some(entry) = self.ring.completion().next() else { return self.submit() };
            let index = entry.user_data() as u32;
            let slot = &mut self.slots[index as usize];
            let result = match usize::try_from(entry.result()) {
                Ok(_) if slot.direction.is_none() => Ok(true),
                Ok(0) => Err(Errno::IO),
                Ok(bytes) => Ok(slot.advance(bytes)),
                Err(_) => match Errno::from_raw_os_error(-entry.result()) {
                    Errno::INTR | Errno::AGAIN => Ok(false),
                    error => Err(error),
                },
            };
            self.in_flight -= 1;
            if result == Ok(false) {
                self.restart(index)?;
                continue;
            }
            slot.memory = None;
            slot.file = None;
            ended.push((slot.tag, result.map(drop)));
            self.free.push(index);
        }
    }

    /// Takes the last free slot, which the caller filled, and queues its operation.
    fn start(&mut self, index: u32) -> Result<()> {
        self.restart(index)?;
        self.free.pop();
        Ok(())
    }

    fn restart(&mut self, index: u32) -> Result<()> {
        let entry = self.slots[index as usize].entry().user_data(u64::from(index));
        // SAFETY: the file, the vectors and the memory that they describe are kept in the slot, at the same place, until the
        // operation has ended.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit()?;
            // SAFETY: as above.
            unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno::BUSY)?;
        }
        self.in_flight += 1;
        self.queued += 1;
        Ok(())
    }
}

/// Ready to read while something has ended and was not taken. So what ends at once, and is taken by whoever asked for it,
/// wakes nobody.
impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while self.in_flight > 0 {
            if self.wait().and_then(|()| self.reap(&mut ended)).is_err() {
                // A ring that cannot be waited for must not let memory go that the kernel may still write.
                Box::leak(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

impl Slot {
    fn entry(&self) -> squeue::Entry {
        let file = types::Fd(self.file.as_ref().map_or(-1, |file| file.as_raw_fd()));
        let vectors = &self.vectors[self.first.min(self.vectors.len())..];
        match self.direction {
            Some(Direction::Read) => {
                opcode::Readv::new(file, vectors.as_ptr(), vectors.len() as u32).offset(self.offset).build()
            }
            Some(Direction::Write) => {
                opcode::Writev::new(file, vectors.as_ptr(), vectors.len() as u32).offset(self.offset).build()
            }
            None => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Notes that so many bytes are done, and tells whether that is all.
    fn advance(&mut self, bytes: usize) -> bool {
        self.offset += bytes as u64;
        let mut left = bytes;
        while let Some(vector) = self.vectors.get_mut(self.first) {
            if left < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(left);
                vector.iov_len -= left;
                return false;
            }
            left -= vector.iov_len;
            self.first += 1;
        }
        true
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use vm_memory::Bytes;
    use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

    fn file() -> Arc<File> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("fluxvm-uring-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("its name");
        Arc::new(file)
    }

    fn memory() -> Memory {
        Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).expect("memory"))
    }

    /// A ring, or nothing where the kernel does not allow one; the engine then does without.
    fn ring(operations: u32) -> Option<Ring> {
        let ring = Ring::new(operations);
        if let Err(error) = &ring {
            eprintln!("skipped: no io_uring on this host ({error})");
        }
        ring.ok()
    }

    fn finish(ring: &mut Ring) -> Vec<(u64, Result<()>)> {
        let mut ended = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait().expect("waited");
            ring.reap(&mut ended).expect("reaped");
        }
        ended.sort_by_key(|(tag, _)| *tag);
        ended
    }

    #[test]
    fn what_is_written_is_read_back_in_other_pieces() {
        let Some(mut ring) = ring(8) else { return };
        let (memory, file) = (memory(), file());
        let data: Vec<u8> = (0..10_000_u32).map(|number| (number % 253) as u8).collect();
        memory.write_slice(&data, GuestAddress(100)).expect("in memory");
        let pieces = [(GuestAddress(100), 1000), (GuestAddress(1100), 9000)];
        ring.transfer(1, Direction::Write, &file, 512, &memory, pieces.into_iter()).expect("queued");
        assert_eq!(finish(&mut ring), [(1, Ok(()))]);
        ring.sync(2, &file).expect("queued");
        let pieces = (0..10).map(|place| (GuestAddress(0x8000 + place * 0x1000), 1000));
        ring.transfer(3, Direction::Read, &file, 512, &memory, pieces).expect("queued");
        assert_eq!(finish(&mut ring), [(2, Ok(())), (3, Ok(()))]);
        for place in 0..10_usize {
            let mut back = vec![0; 1000];
            memory.read_slice(&mut back, GuestAddress(0x8000 + place as u64 * 0x1000)).expect("in memory");
            assert_eq!(back, data[place * 1000..][..1000]);
        }
    }

    #[test]
    fn the_end_of_the_file_and_a_wrong_descriptor_are_errors() {
        let Some(mut ring) = ring(4) else { return };
        let (memory, file) = (memory(), file());
        file.set_len(1000).expect("a size");
        let piece = || std::iter::once((GuestAddress(0), 1001));
        ring.transfer(1, Direction::Read, &file, 0, &memory, piece()).expect("queued");
        let directory = Arc::new(File::open("/").expect("a directory"));
        ring.transfer(2, Direction::Write, &directory, 0, &memory, piece()).expect("queued");
        assert_eq!(finish(&mut ring), [(1, Err(Errno::IO)), (2, Err(Errno::BADF))]);
    }

    #[test]
    fn buffers_outside_of_memory_and_more_than_fits_are_refused() {
        let Some(mut ring) = ring(2) else { return };
        let (memory, file) = (memory(), file());
        let outside = std::iter::once((GuestAddress((1 << 20) - 8), 16));
        assert_eq!(ring.transfer(1, Direction::Write, &file, 0, &memory, outside), Err(Errno::FAULT));
        assert_eq!(ring.transfer(1, Direction::Write, &file, 0, &memory, std::iter::empty()), Err(Errno::INVAL));
        ring.sync(1, &file).expect("queued");
        ring.sync(2, &file).expect("queued");
        assert!(!ring.has_room());
        assert_eq!(ring.sync(3, &file), Err(Errno::AGAIN));
        assert_eq!(finish(&mut ring).len(), 2);
        assert!(ring.has_room());
    }

    #[test]
    fn an_operation_done_in_part_goes_on_where_it_stopped() {
        let mut bytes = [0_u8; 100];
        let base = bytes.as_mut_ptr();
        let vector = |offset, len| libc::iovec { iov_base: base.wrapping_byte_add(offset).cast(), iov_len: len };
        let mut slot =
            Slot { vectors: vec![vector(0, 10), vector(10, 20), vector(30, 5)], offset: 7, ..Slot::default() };
        assert!(!slot.advance(15));
        assert_eq!((slot.first, slot.vectors[1].iov_len, slot.offset), (1, 15, 22));
        assert!(!slot.advance(15));
        assert_eq!(slot.first, 2);
        assert!(slot.advance(5));
    }

    #[test]
    fn who_watches_the_ring_is_told_of_a_read_that_waited_for_the_disk_and_not_of_what_was_taken() {
        let Some(mut ring) = ring(64) else { return };
        let epoll = Epoll::new().expect("an epoll");
        epoll.ctl(ControlOperation::Add, ring.as_raw_fd(), EpollEvent::new(EventSet::IN, 0)).expect("watched");
        let told = |wait_ms| loop {
            // What ends on this thread while it sleeps interrupts the sleep.
            match epoll.wait(wait_ms, &mut [EpollEvent::default()]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => (),
                count => return count.expect("waited") > 0,
            }
        };
        let (memory, file) = (memory(), file());
        file.write_all_at(&vec![7; 64 << 12], 0).expect("written");
        file.sync_all().expect("synced");
        for round in 0..20 {
            rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
            // Far enough apart that none is read ahead.
            let offset = (round * 3 % 64) << 12;
            let piece = std::iter::once((GuestAddress(0), 4096));
            ring.transfer(round, Direction::Read, &file, offset, &memory, piece).expect("queued");
            ring.submit().expect("submitted");
            assert!(told(10_000), "round {round}");
            let mut ended = Vec::new();
            ring.reap(&mut ended).expect("reaped");
            assert_eq!(ended, [(round, Ok(()))]);
            assert!(!told(0), "round {round}");
        }
    }

    #[test]
    fn the_ring_does_nothing_but_what_it_is_for() {
        let Some(mut ring) = ring(4) else { return };
        let entry = opcode::Nop::new().build().user_data(0);
        // SAFETY: the operation names no memory.
        unsafe { ring.ring.submission().push(&entry) }.expect("room");
        ring.ring.submit_and_wait(1).expect("submitted");
        let result = ring.ring.completion().next().expect("an answer").result();
        assert_eq!(Errno::from_raw_os_error(-result), Errno::ACCESS);
        let event = std::fs::File::open("/dev/null").expect("a descriptor");
        assert!(ring.ring.submitter().register_eventfd(event.as_raw_fd()).is_err(), "nothing is registered afterwards");
    }
}
