//! Things that outlive one job, named by integers. A handle holds a generation, so a stale one is an error and never
//! somebody else's thing.

use rustix::io::{Errno, Result};
use std::sync::{Arc, Mutex, MutexGuard};

const INDEX_BITS: u32 = 16;
const GENERATION_MAX: u32 = (1 << (31 - INDEX_BITS)) - 1;

struct Slot<Thing> {
    generation: u32,
    thing: Option<Arc<Thing>>,
}

/// Things by handle.
pub struct Handles<Thing> {
    slots: Mutex<Vec<Slot<Thing>>>,
}

impl<Thing> Handles<Thing> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { slots: Mutex::new(Vec::new()) }
    }

    /// Takes a thing and names it. `MFILE`: the table is full.
    pub fn insert(&self, thing: Thing) -> Result<u32> {
        let mut slots = self.lock();
        let free = slots.iter().position(|slot| slot.thing.is_none() && slot.generation < GENERATION_MAX);
        let index = match free {
            Some(index) => index,
            None if slots.len() < 1 << INDEX_BITS => {
                slots.push(Slot { generation: 0, thing: None });
                slots.len() - 1
            }
            None => return Err(Errno::MFILE),
        };
        let slot = &mut slots[index];
        slot.generation += 1;
        slot.thing = Some(Arc::new(thing));
        Ok((slot.generation << INDEX_BITS) | index as u32)
    }

    /// The thing, which lives at least as long as what is returned. `BADF`: unknown or stale.
    pub fn get(&self, handle: u32) -> Result<Arc<Thing>> {
        let slots = self.lock();
        let slot = slots.get(index_of(handle)).filter(|slot| slot.generation == handle >> INDEX_BITS);
        slot.and_then(|slot| slot.thing.clone()).ok_or(Errno::BADF)
    }

    /// Forgets the thing; the handle is stale from then on. `BADF`: unknown or stale.
    pub fn remove(&self, handle: u32) -> Result<Arc<Thing>> {
        let mut slots = self.lock();
        let slot = slots.get_mut(index_of(handle)).filter(|slot| slot.generation == handle >> INDEX_BITS);
        slot.and_then(|slot| slot.thing.take()).ok_or(Errno::BADF)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot<Thing>>> {
        self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn index_of(handle: u32) -> usize {
    (handle & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_is_refused_even_when_its_slot_is_used_again() {
        let handles = Handles::new();
        let first = handles.insert("first").unwrap();
        let held = handles.get(first).unwrap();
        handles.remove(first).unwrap();
        let second = handles.insert("second").unwrap();

        assert_ne!(first, second);
        assert_eq!(*held, "first");
        assert_eq!(handles.get(first).unwrap_err(), Errno::BADF);
        assert_eq!(handles.remove(first).unwrap_err(), Errno::BADF);
        assert_eq!(*handles.get(second).unwrap(), "second");
        assert!(handles.remove(second).is_ok());
        assert_eq!(handles.get(u32::MAX).unwrap_err(), Errno::BADF);
    }
}
