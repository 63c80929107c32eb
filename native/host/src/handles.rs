//! Things that outlive one job, named by integers. A handle holds a generation, so a stale one is an error and never
//! somebody else's descriptor.

use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

const INDEX_BITS: u32 = 16;
const GENERATION_MAX: u32 = (1 << (31 - INDEX_BITS)) - 1;

struct Slot {
    generation: u32,
    descriptor: Option<OwnedFd>,
}

/// Descriptors by handle.
pub struct Handles {
    slots: Mutex<Vec<Slot>>,
}

impl Handles {
    /// An empty table.
    pub const fn new() -> Self {
        Self { slots: Mutex::new(Vec::new()) }
    }

    /// Takes a descriptor and names it. `MFILE`: the table is full.
    pub fn insert(&self, descriptor: OwnedFd) -> Result<u32> {
        let mut slots = self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let free = slots.iter().position(|slot| slot.descriptor.is_none() && slot.generation < GENERATION_MAX);
        let index = match free {
            Some(index) => index,
            None if slots.len() < 1 << INDEX_BITS => {
                slots.push(Slot { generation: 0, descriptor: None });
                slots.len() - 1
            }
            None => return Err(Errno::MFILE),
        };
        let slot = &mut slots[index];
        slot.generation += 1;
        slot.descriptor = Some(descriptor);
        Ok((slot.generation << INDEX_BITS) | index as u32)
    }

    /// Gives the descriptor back; the handle is stale from then on. `BADF`: unknown or stale.
    pub fn remove(&self, handle: u32) -> Result<OwnedFd> {
        let mut slots = self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let index = (handle & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = slots.get_mut(index).filter(|slot| slot.generation == handle >> INDEX_BITS).ok_or(Errno::BADF)?;
        slot.descriptor.take().ok_or(Errno::BADF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_stale_handle_is_refused_even_when_its_slot_is_used_again() {
        let handles = Handles::new();
        let open = || OwnedFd::from(File::open("/dev/null").unwrap());
        let first = handles.insert(open()).unwrap();
        handles.remove(first).unwrap();
        let second = handles.insert(open()).unwrap();

        assert_ne!(first, second);
        assert_eq!(handles.remove(first).unwrap_err(), Errno::BADF);
        assert!(handles.remove(second).is_ok());
        assert_eq!(handles.remove(u32::MAX).unwrap_err(), Errno::BADF);
    }
}
