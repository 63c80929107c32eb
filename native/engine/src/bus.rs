//! Who answers at an address: ports and memory-mapped registers, each device behind its own lock so that vCPUs that talk to
//! different devices do not wait for each other.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A device with registers. Offsets are from the start of the range it was put at; data has 1 to 8 bytes, and for string
/// instructions on ports a multiple of the width.
pub trait BusDevice: Send {
    /// The guest reads registers: fills all of `data`.
    fn read(&mut self, offset: u64, data: &mut [u8]);
    /// The guest writes registers.
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// A device that the bus and somebody else know.
pub type SharedDevice = Arc<Mutex<dyn BusDevice>>;

/// What an address without a device reads as.
const NOTHING: u8 = 0xFF;

struct Entry {
    bytes: u64,
    device: SharedDevice,
}

/// Ranges of one address space and their devices. Complete before the first vCPU runs, so it needs no lock of its own.
#[derive(Default)]
pub struct Bus {
    entries: BTreeMap<u64, Entry>,
}

impl Bus {
    /// Puts a device at a range.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] when another device has a part of it.
    pub fn insert(&mut self, start: u64, bytes: u64, device: SharedDevice) -> Result<()> {
        let end = start.checked_add(bytes).ok_or(Error::AddressTaken(start))?;
        if let Some((other, entry)) = self.entries.range(..end).next_back()
            && other + entry.bytes > start
        {
            return Err(Error::AddressTaken(start.max(*other)));
        }
        self.entries.insert(start, Entry { bytes, device });
        Ok(())
    }

    /// Reads from whoever is at the address; where nobody is, all bits are set.
    pub fn read(&self, address: u64, data: &mut [u8]) {
        match self.find(address) {
            Some((offset, device)) => {
                device.lock().unwrap_or_else(PoisonError::into_inner).read(offset, data);
            }
            None => data.fill(NOTHING),
        }
    }

    /// Writes to whoever is at the address; where nobody is, nothing happens.
    pub fn write(&self, address: u64, data: &[u8]) {
        if let Some((offset, device)) = self.find(address) {
            device.lock().unwrap_or_else(PoisonError::into_inner).write(offset, data);
        }
    }

    fn find(&self, address: u64) -> Option<(u64, &SharedDevice)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        let offset = address - start;
        (offset < entry.bytes).then_some((offset, &entry.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Register(u8);

    impl BusDevice for Register {
        fn read(&mut self, offset: u64, data: &mut [u8]) {
            data.fill(self.0 + offset as u8);
        }

        fn write(&mut self, _: u64, data: &[u8]) {
            self.0 = data[0];
        }
    }

    fn bus() -> Bus {
        let mut bus = Bus::default();
        bus.insert(0x10, 4, Arc::new(Mutex::new(Register(1)))).unwrap();
        bus.insert(0x14, 4, Arc::new(Mutex::new(Register(100)))).unwrap();
        bus
    }

    fn byte(bus: &Bus, address: u64) -> u8 {
        let mut data = [0];
        bus.read(address, &mut data);
        data[0]
    }

    #[test]
    fn an_access_reaches_the_device_of_its_range_only() {
        let bus = bus();
        assert_eq!([0xF, 0x10, 0x13, 0x14, 0x17, 0x18].map(|address| byte(&bus, address)), [255, 1, 4, 100, 103, 255]);
        bus.write(0x12, &[50]);
        bus.write(0x18, &[60]);
        assert_eq!((byte(&bus, 0x10), byte(&bus, 0x14)), (50, 100));
    }

    #[test]
    fn ranges_that_overlap_are_refused() {
        for (start, bytes) in [(0x10, 1), (0x0F, 2), (0x17, 1), (0x00, 0x40), (u64::MAX, 2)] {
            let refused = bus().insert(start, bytes, Arc::new(Mutex::new(Register(0))));
            assert!(matches!(refused, Err(Error::AddressTaken(_))), "{start:#x}");
        }
    }
}
