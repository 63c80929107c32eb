//! Device state as bytes: little endian numbers and blobs with a length. A reader trusts nothing.

use thiserror::Error;

/// The longest blob inside a state, in bytes.
const BLOB_BYTES_MAX: usize = 1 << 20;

/// Why a state cannot be loaded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StateError {
    /// It ends too early.
    #[error("the state of the device is cut short")]
    Short,
    /// It goes on after its end.
    #[error("the state of the device is too long")]
    Long,
    /// It was written by another version.
    #[error("the state of the device has version {found}, wanted {wanted}")]
    Version {
        /// What the state says.
        found: u32,
        /// What this build reads.
        wanted: u32,
    },
    /// A value cannot be.
    #[error("the state of the device is wrong: {0}")]
    Value(&'static str),
}

/// Collects a state.
#[derive(Default)]
pub struct StateWriter {
    bytes: Vec<u8>,
}

impl StateWriter {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Adds two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds bytes and how many there are.
    pub fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
    }

    /// The whole state.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads a state that anyone may have written.
pub struct StateReader<'a> {
    bytes: &'a [u8],
}

impl<'a> StateReader<'a> {
    /// Reads from the start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes a byte.
    ///
    /// # Errors
    /// When nothing is left, as for all numbers.
    pub fn u8(&mut self) -> Result<u8, StateError> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes two bytes.
    ///
    /// # Errors
    /// As [`Self::u8`].
    pub fn u16(&mut self) -> Result<u16, StateError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Takes four bytes.
    ///
    /// # Errors
    /// As [`Self::u8`].
    pub fn u32(&mut self) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes eight bytes.
    ///
    /// # Errors
    /// As [`Self::u8`].
    pub fn u64(&mut self) -> Result<u64, StateError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes bytes with their length.
    ///
    /// # Errors
    /// When there are fewer than said, or more than a state may hold.
    pub fn blob(&mut self) -> Result<&'a [u8], StateError> {
        let len = self.u32()? as usize;
        if len > BLOB_BYTES_MAX {
            return Err(StateError::Long);
        }
        self.take(len)
    }

    /// Takes a version and compares it.
    ///
    /// # Errors
    /// When it is another one.
    pub fn version(&mut self, wanted: u32) -> Result<(), StateError> {
        let found = self.u32()?;
        if found == wanted { Ok(()) } else { Err(StateError::Version { found, wanted }) }
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// When something is.
    pub fn end(&self) -> Result<(), StateError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(StateError::Long) }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], StateError> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(StateError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let mut writer = StateWriter::new();
        writer.u32(7);
        writer.u8(1);
        writer.u16(2);
        writer.u64(u64::MAX);
        writer.blob(b"abc");
        let bytes = writer.finish();
        let mut reader = StateReader::new(&bytes);
        assert_eq!(reader.version(7), Ok(()));
        assert_eq!((reader.u8(), reader.u16(), reader.u64()), (Ok(1), Ok(2), Ok(u64::MAX)));
        assert_eq!(reader.blob(), Ok(&b"abc"[..]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_wrong_state_is_refused() {
        assert_eq!(StateReader::new(&[1, 0, 0]).u32(), Err(StateError::Short));
        assert_eq!(StateReader::new(&[9, 0, 0, 0, 1]).blob(), Err(StateError::Short));
        assert_eq!(StateReader::new(&[0xFF; 8]).blob(), Err(StateError::Long));
        assert_eq!(StateReader::new(&[1]).end(), Err(StateError::Long));
        let other = StateReader::new(&[2, 0, 0, 0]).version(1);
        assert_eq!(other, Err(StateError::Version { found: 2, wanted: 1 }));
    }
}
