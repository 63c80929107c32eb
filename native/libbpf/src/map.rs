//! Maps: elements by raw bytes. A map knows how long its keys and values are, so no call reads or writes beyond a buffer.

use crate::{check, last_error, log, name_of, owned};
use libbpf_sys::{
    BPF_MAP_TYPE_LRU_PERCPU_HASH, BPF_MAP_TYPE_PERCPU_ARRAY, BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE,
    BPF_MAP_TYPE_PERCPU_HASH, bpf_map_batch_opts, bpf_map_create, bpf_map_create_opts, bpf_map_delete_elem,
    bpf_map_get_info_by_fd, bpf_map_info, bpf_map_lookup_batch, bpf_map_lookup_elem_flags, bpf_map_update_batch,
    bpf_map_update_elem, libbpf_num_possible_cpus,
};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;

/// Values of each processor are aligned to this.
const PROCESSOR_ALIGNMENT: usize = 8;
/// The kernel's own position in a hash is this long, whatever the keys are.
const POSITION_MIN_BYTES: usize = 4;

/// What does not change in the life of a map.
#[derive(Debug, Clone)]
pub struct MapFacts {
    /// The kernel's number of it.
    pub id: u32,
    /// `BPF_MAP_TYPE_*`.
    pub kind: u32,
    /// Length of a key.
    pub key_bytes: usize,
    /// Length of a value of one processor.
    pub value_bytes: usize,
    /// Length of a value as it is read and written: of all possible processors where each has its own.
    pub element_bytes: usize,
    /// Room for elements.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
    /// At most 15 characters of it.
    pub name: String,
}

/// How much of a map was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Elements that were written to the buffers.
    pub count: usize,
    /// There are no more.
    pub end: bool,
}

/// An open map.
#[derive(Debug)]
pub struct Map {
    descriptor: OwnedFd,
    facts: MapFacts,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Map {
    /// Takes the descriptor of a map.
    pub fn new(descriptor: OwnedFd) -> Result<Self> {
        let facts = facts_of(&descriptor)?;
        Ok(Self { descriptor, facts })
    }

    /// Makes a map that is in no object.
    pub fn create(
        kind: u32,
        name: &CStr,
        key_bytes: u32,
        value_bytes: u32,
        max_entries: u32,
        flags: u32,
    ) -> Result<Self> {
        let options =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as u64, map_flags: flags, ..Default::default() };
        let create = || {
            // SAFETY: the name is a text, the options know their size, and both live during the call.
            owned(unsafe {
                bpf_map_create(kind, name.as_ptr(), key_bytes, value_bytes, max_entries, &raw const options)
            })
        };
        Self::new(log::captured(create).0?)
    }

    /// What does not change.
    pub fn facts(&self) -> &MapFacts {
        &self.facts
    }

    /// Memory of the kernel that it takes now, as the kernel counts it.
    pub fn memory_bytes(&self) -> Result<u64> {
        let path = format!("/proc/self/fdinfo/{}", self.descriptor.as_raw_fd());
        let text = std::fs::read_to_string(path).map_err(|_| Errno::IO)?;
        let line = text.lines().find_map(|line| line.strip_prefix("memlock:")).ok_or(Errno::OPNOTSUPP)?;
        line.trim().parse().map_err(|_| Errno::IO)
    }

    /// Reads one element. `NOENT`: there is none with this key.
    pub fn lookup(&self, key: &[u8], value: &mut [u8], flags: u32) -> Result<()> {
        self.expect(key, value.len())?;
        let (descriptor, flags) = (self.descriptor.as_raw_fd(), u64::from(flags));
        // SAFETY: key and value are as long as the kernel takes them for.
        let status =
            unsafe { bpf_map_lookup_elem_flags(descriptor, key.as_ptr().cast(), value.as_mut_ptr().cast(), flags) };
        check(status).map(drop)
    }

    /// Writes one element. Flags: 0 any, 1 `EXIST` when it is there, 2 `NOENT` when it is not, 4 under its lock.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.expect(key, value.len())?;
        let (descriptor, flags) = (self.descriptor.as_raw_fd(), u64::from(flags));
        // SAFETY: key and value are as long as the kernel takes them for.
        let status = unsafe { bpf_map_update_elem(descriptor, key.as_ptr().cast(), value.as_ptr().cast(), flags) };
        check(status).map(drop)
    }

    /// Removes one element. `NOENT`: there is none with this key.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.expect(key, self.facts.element_bytes)?;
        // SAFETY: the key is as long as the kernel takes it for.
        check(unsafe { bpf_map_delete_elem(self.descriptor.as_raw_fd(), key.as_ptr().cast()) }).map(drop)
    }

    /// Writes all elements in turn; at the first that fails the ones before it stay.
    pub fn update_batch(&self, keys: &[u8], values: &[u8], flags: u32) -> Result<()> {
        let mut count = self.count(keys, values.len())?;
        if count == 0 {
            return Ok(());
        }
        let options = batch_options(flags);
        // SAFETY: both buffers have room for as many elements as the count says.
        let status = unsafe {
            bpf_map_update_batch(
                self.descriptor.as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &raw mut count,
                &raw const options,
            )
        };
        check(status).map(drop)
    }

    /// Removes all that are there of these; returns how many were.
    pub fn delete_batch(&self, keys: &[u8]) -> Result<usize> {
        let count = keys.len().checked_div(self.facts.key_bytes).ok_or(Errno::INVAL)?;
        if count * self.facts.key_bytes != keys.len() {
            return Err(Errno::INVAL);
        }
        keys.chunks_exact(self.facts.key_bytes).try_fold(0, |removed, key| match self.delete(key) {
            Ok(()) => Ok(removed + 1),
            Err(Errno::NOENT) => Ok(removed),
            Err(error) => Err(error),
        })
    }

    /// Reads as many elements as fit, from where `position` says; `first`: from the beginning. A map that changes meanwhile
    /// may show an element twice or not at all. `NOSPC`: not even the next part of a hash fits.
    pub fn read_batch(&self, position: &mut [u8], first: bool, keys: &mut [u8], values: &mut [u8]) -> Result<Page> {
        let mut count = self.count(keys, values.len())?;
        if position.len() < self.facts.key_bytes.max(POSITION_MIN_BYTES) || count == 0 {
            return Err(Errno::INVAL);
        }
        let options = batch_options(0);
        let from = if first { null_mut() } else { position.as_mut_ptr() };
        // SAFETY: both buffers have room for as many elements as the count says, and the position for the longest that any
        // map has; the kernel reads it before it writes it.
        let status = unsafe {
            bpf_map_lookup_batch(
                self.descriptor.as_raw_fd(),
                from.cast(),
                position.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                &raw const options,
            )
        };
        match check(status) {
            Ok(_) => Ok(Page { count: count as usize, end: false }),
            Err(Errno::NOENT) => Ok(Page { count: count as usize, end: true }),
            Err(error) => Err(error),
        }
    }

    fn expect(&self, key: &[u8], value_bytes: usize) -> Result<()> {
        let fits = key.len() == self.facts.key_bytes && value_bytes == self.facts.element_bytes;
        if fits { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn count(&self, keys: &[u8], values_bytes: usize) -> Result<u32> {
        let count = keys.len().checked_div(self.facts.key_bytes).ok_or(Errno::INVAL)?;
        let fits = count * self.facts.key_bytes == keys.len()
            && count.checked_mul(self.facts.element_bytes) == Some(values_bytes);
        if fits { u32::try_from(count).map_err(|_| Errno::INVAL) } else { Err(Errno::INVAL) }
    }
}

fn batch_options(flags: u32) -> bpf_map_batch_opts {
    bpf_map_batch_opts { sz: size_of::<bpf_map_batch_opts>() as u64, elem_flags: u64::from(flags), flags: 0 }
}

fn facts_of(descriptor: &OwnedFd) -> Result<MapFacts> {
    let mut info = bpf_map_info::default();
    let mut length = size_of::<bpf_map_info>() as u32;
    // SAFETY: the structure has this length, and the kernel writes no more.
    check(unsafe { bpf_map_get_info_by_fd(descriptor.as_raw_fd(), &raw mut info, &raw mut length) })?;
    let value_bytes = info.value_size as usize;
    let each_processor = matches!(
        info.type_,
        BPF_MAP_TYPE_PERCPU_HASH
            | BPF_MAP_TYPE_PERCPU_ARRAY
            | BPF_MAP_TYPE_LRU_PERCPU_HASH
            | BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE
    );
    let element_bytes =
        if each_processor { value_bytes.next_multiple_of(PROCESSOR_ALIGNMENT) * processors()? } else { value_bytes };
    Ok(MapFacts {
        id: info.id,
        kind: info.type_,
        key_bytes: info.key_size as usize,
        value_bytes,
        element_bytes,
        max_entries: info.max_entries,
        flags: info.map_flags,
        name: name_of(&info.name),
    })
}

fn processors() -> Result<usize> {
    // SAFETY: the call takes nothing; it reads a file of sysfs once.
    let count = check(unsafe { libbpf_num_possible_cpus() })?;
    usize::try_from(count).ok().filter(|&count| count > 0).ok_or_else(last_error)
}
