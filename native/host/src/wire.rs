//! Reads job arguments: a fixed part of packed little-endian fields, then the texts that the fixed part points at.
//! The bytes come from our own TypeScript, but every offset and length is checked all the same.

use crate::layout::TEXT_MAX_BYTES;
use rustix::io::{Errno, Result};
use std::ffi::CString;

/// The arguments of one job.
pub struct Arguments<'a> {
    bytes: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// `INVAL`: shorter than the fixed part.
    pub fn new(bytes: &'a [u8], fixed_bytes: usize) -> Result<Self> {
        if bytes.len() < fixed_bytes { Err(Errno::INVAL) } else { Ok(Self { bytes }) }
    }

    /// The 32-bit field at `at`.
    pub fn u32(&self, at: usize) -> Result<u32> {
        self.field(at).map(u32::from_le_bytes)
    }

    /// The 64-bit field at `at`.
    pub fn u64(&self, at: usize) -> Result<u64> {
        self.field(at).map(u64::from_le_bytes)
    }

    /// The text that the field at `at` points at. `INVAL`: out of bounds, too long or with a NUL inside.
    pub fn text(&self, at: usize) -> Result<CString> {
        let start = self.u32(at)? as usize;
        let length = self.u32(at + 4)? as usize;
        if length > TEXT_MAX_BYTES {
            return Err(Errno::INVAL);
        }
        let text = self.bytes.get(start..).and_then(|rest| rest.get(..length)).ok_or(Errno::INVAL)?;
        CString::new(text).map_err(|_| Errno::INVAL)
    }

    fn field<const SIZE: usize>(&self, at: usize) -> Result<[u8; SIZE]> {
        let field = self.bytes.get(at..).and_then(|rest| rest.get(..SIZE)).ok_or(Errno::INVAL)?;
        field.try_into().map_err(|_| Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_offsets_and_texts_are_refused() {
        let pointing = |start: u32, length: u32| {
            let mut bytes = [start.to_le_bytes(), length.to_le_bytes()].concat();
            bytes.extend(b"ab\0c");
            bytes
        };
        let read = |bytes: &[u8]| Arguments::new(bytes, 8).and_then(|arguments| arguments.text(0));

        assert_eq!(read(&pointing(8, 2)), Ok(CString::new("ab").unwrap()));
        assert_eq!(read(&pointing(8, 4)), Err(Errno::INVAL));
        assert_eq!(read(&pointing(8, 5)), Err(Errno::INVAL));
        assert_eq!(read(&pointing(u32::MAX, 1)), Err(Errno::INVAL));
        assert_eq!(read(&pointing(8, u32::MAX)), Err(Errno::INVAL));
        assert_eq!(read(&[0; 7]), Err(Errno::INVAL));
    }
}
