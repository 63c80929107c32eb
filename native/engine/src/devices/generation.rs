//! The generation of the machine: a random number in guest memory that is another one each time the machine was put back to
//! a saved state, and an interrupt that says so. A guest that listens draws no random numbers twice.

use crate::arch::layout::GENERATION;
use crate::error::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use vm_memory::{Bytes, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// The length of the number, as guests know it.
pub const BYTES: usize = 16;

/// See the head of this file.
pub struct Generation {
    memory: GuestMemoryMmap,
    line: EventFd,
}

impl Generation {
    /// Writes the first number. `line` is an edge on the interrupt line of general ACPI events.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when there is no memory at its place.
    pub fn new(memory: GuestMemoryMmap, line: EventFd) -> Result<Self> {
        let generation = Self { memory, line };
        generation.write()?;
        Ok(generation)
    }

    /// Writes another number and tells the guest. The guest must rest and have the memory that it will go on with.
    ///
    /// # Errors
    /// As [`Generation::new`].
    pub fn renew(&self) -> Result<()> {
        self.write()?;
        self.line.write(1).map_err(|error| Error::Device("generation", error.into()))
    }

    fn write(&self) -> Result<()> {
        let mut number = [0; BYTES];
        // So few bytes come whole, once the host has randomness at all.
        getrandom(&mut number, GetRandomFlags::empty())
            .map_err(|errno| Error::Device("generation", io::Error::from(errno).into()))?;
        self.memory.write_slice(&number, GENERATION).map_err(|_| Error::NoRoom("the generation of the machine"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::GuestAddress;
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    #[test]
    fn each_number_is_another_one_and_only_those_after_the_first_are_told() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let line = EventFd::new(EFD_NONBLOCK).unwrap();
        let generation = Generation::new(memory.clone(), line.try_clone().unwrap()).unwrap();
        let number = || memory.read_obj::<u128>(GENERATION).unwrap();
        let first = number();
        assert_ne!(first, 0);
        assert!(line.read().is_err());
        generation.renew().unwrap();
        assert_ne!(number(), first);
        assert_eq!(line.read().unwrap(), 1);
    }

    #[test]
    fn without_memory_at_its_place_there_is_none() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4096)]).unwrap();
        let line = EventFd::new(EFD_NONBLOCK).unwrap();
        assert!(matches!(Generation::new(memory, line), Err(Error::NoRoom(_))));
    }
}
