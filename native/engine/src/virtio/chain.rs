//! One request of a driver: the buffers of a chain of descriptors, each known to lie in guest memory, and the bytes in them.

use super::{GuestRam, QueueError};
use std::ops::Deref;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, VolatileSlice};

/// The most descriptors that one chain may have, in the queue or in a table of its own.
pub const CHAIN_DESCRIPTORS_MAX: usize = 1024;

const DESCRIPTOR_BYTES: u32 = size_of::<Descriptor>() as u32;

/// A piece of guest memory that a chain names; it is in guest memory, in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where it begins.
    pub address: GuestAddress,
    /// Its length in bytes, never zero.
    pub bytes: u32,
}

/// One request of the driver. Made once and used again, so that taking a chain allocates nothing.
#[derive(Default)]
pub struct Chain {
    head: u16,
    readable: Buffers,
    writable: Buffers,
}

impl Chain {
    /// The descriptor that stands for the chain in the used ring.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// What the driver wrote for the device.
    pub fn readable(&self) -> &Buffers {
        &self.readable
    }

    /// Where the device may write.
    pub fn writable(&self) -> &Buffers {
        &self.writable
    }

    /// Bytes in all readable buffers.
    pub fn readable_bytes(&self) -> u64 {
        self.readable.bytes()
    }

    /// Bytes in all writable buffers.
    pub fn writable_bytes(&self) -> u64 {
        self.writable.bytes()
    }

    /// Copies exactly `data.len()` readable bytes, from `skip` bytes on.
    ///
    /// # Errors
    /// [`QueueError::Buffer`] when there are fewer.
    pub fn read(&self, memory: &GuestRam, skip: u64, data: &mut [u8]) -> Result<(), QueueError> {
        let mut done = 0;
        for slice in self.readable.pieces(skip, data.len() as u64) {
            let end = done + slice.bytes as usize;
            memory.read_slice(&mut data[done..end], slice.address).map_err(|_| QueueError::Buffer)?;
            done = end;
        }
        if done == data.len() { Ok(()) } else { Err(QueueError::Buffer) }
    }

    /// Copies all of `data` into the writable buffers, from `skip` bytes on.
    ///
    /// # Errors
    /// [`QueueError::Buffer`] when there is less room.
    pub fn write(&self, memory: &GuestRam, skip: u64, data: &[u8]) -> Result<(), QueueError> {
        let mut done = 0;
        for slice in self.writable.pieces(skip, data.len() as u64) {
            let end = done + slice.bytes as usize;
            memory.write_slice(&data[done..end], slice.address).map_err(|_| QueueError::Buffer)?;
            done = end;
        }
        if done == data.len() { Ok(()) } else { Err(QueueError::Buffer) }
    }

    /// Makes it the chain that begins at descriptor `head` of a table of `size`. The table is the driver's, who may change
    /// it at any time.
    ///
    /// # Errors
    /// [`QueueError`] for one that breaks the rules.
    pub(super) fn read_from(&mut self, memory: &GuestRam, table: u64, size: u16, head: u16) -> Result<(), QueueError> {
        self.head = head;
        self.readable.0.clear();
        self.writable.0.clear();
        let (mut table, mut size, mut index) = (GuestAddress(table), u32::from(size), u32::from(head));
        let mut is_own_table = false;
        // Of a table no descriptor is used twice.
        let mut left = size;
        let mut count = 0;
        let mut all_bytes = 0_u32;
        loop {
            if left == 0 || index >= size {
                return Err(QueueError::Chain);
            }
            left -= 1;
            let place = table.0.checked_add(u64::from(index * DESCRIPTOR_BYTES)).ok_or(QueueError::Chain)?;
            let descriptor: Descriptor = memory.read_obj(GuestAddress(place)).map_err(|_| QueueError::Chain)?;
            let buffer = Buffer { address: descriptor.addr(), bytes: descriptor.len() };
            if descriptor.refers_to_indirect_table() {
                let fits = buffer.bytes.is_multiple_of(DESCRIPTOR_BYTES)
                    && buffer.bytes / DESCRIPTOR_BYTES <= u32::from(u16::MAX);
                if is_own_table || !fits {
                    return Err(QueueError::Chain);
                }
                (table, size, index) = (buffer.address, buffer.bytes / DESCRIPTOR_BYTES, 0);
                (is_own_table, left) = (true, size);
                continue;
            }
            count += 1;
            all_bytes = all_bytes.checked_add(buffer.bytes).ok_or(QueueError::Chain)?;
            if count > CHAIN_DESCRIPTORS_MAX {
                return Err(QueueError::Chain);
            }
            if buffer.bytes > 0 {
                // A buffer in two regions would lie across the hole, where there is nothing.
                memory.get_slice(buffer.address, buffer.bytes as usize).map_err(|_| QueueError::Buffer)?;
                self.add(buffer, descriptor.is_write_only())?;
            }
            if !descriptor.has_next() {
                return Ok(());
            }
            index = u32::from(descriptor.next());
        }
    }

    /// Adds a buffer behind those of its kind.
    ///
    /// # Errors
    /// [`QueueError::Order`] for one to be read after one to be written.
    fn add(&mut self, buffer: Buffer, writable: bool) -> Result<(), QueueError> {
        if writable {
            self.writable.0.push(buffer);
        } else if self.writable.is_empty() {
            self.readable.0.push(buffer);
        } else {
            return Err(QueueError::Order);
        }
        Ok(())
    }
}

/// The buffers of one direction, in order.
#[derive(Default)]
pub struct Buffers(Vec<Buffer>);

impl Buffers {
    /// Bytes in all of them.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|buffer| u64::from(buffer.bytes)).sum()
    }

    /// The parts that cover the bytes from `skip` on, at most `limit` of them.
    pub fn pieces(&self, skip: u64, limit: u64) -> impl Iterator<Item = Buffer> {
        Pieces { buffers: self.0.iter(), skip, left: limit }
    }

    /// The bytes from `skip` on, at most `limit` of them, as guest memory for a system call; added to `slices`.
    ///
    /// # Errors
    /// Never for a chain that a queue gave.
    pub fn slices<'m>(
        &self,
        memory: &'m GuestRam,
        skip: u64,
        limit: u64,
        slices: &mut Vec<VolatileSlice<'m>>,
    ) -> Result<(), QueueError> {
        for piece in self.pieces(skip, limit) {
            slices.push(memory.get_slice(piece.address, piece.bytes as usize).map_err(|_| QueueError::Buffer)?);
        }
        Ok(())
    }
}

impl Deref for Buffers {
    type Target = [Buffer];

    fn deref(&self) -> &[Buffer] {
        &self.0
    }
}

/// The parts of buffers that a range of their bytes covers.
struct Pieces<'a> {
    buffers: std::slice::Iter<'a, Buffer>,
    skip: u64,
    left: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Buffer;

    fn next(&mut self) -> Option<Buffer> {
        while self.left > 0 {
            let buffer = self.buffers.next()?;
            let bytes = u64::from(buffer.bytes);
            if self.skip >= bytes {
                self.skip -= bytes;
                continue;
            }
            let taken = (bytes - self.skip).min(self.left);
            let address = GuestAddress(buffer.address.0 + self.skip);
            self.skip = 0;
            self.left -= taken;
            return Some(Buffer { address, bytes: taken as u32 });
        }
        None
    }
}
