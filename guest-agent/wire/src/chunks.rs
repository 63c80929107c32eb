//! How a file's content travels through a pipe to its writer: u32 big-endian length and that many bytes, again
//! and again; length 0 says that the content is complete. So a pipe that was cut is never taken for a short file.

use crate::limits::DATA_MAX;
use std::io::{Error, ErrorKind, Read, Result};

/// The bytes that commit an upload.
pub const COMMIT: [u8; 4] = [0; 4];

/// What stands before a chunk of `size` bytes (1 … 1 MiB).
pub fn prefix(size: usize) -> [u8; 4] {
    assert!((1..=DATA_MAX).contains(&size), "a chunk of {size} bytes");
    (size as u32).to_be_bytes()
}

/// The content inside chunks. Reading gives `Ok(0)` only after the commit; an end before it is
/// `UnexpectedEof`, a chunk beyond the limit `InvalidData`.
#[derive(Debug)]
pub struct ChunkReader<R> {
    inner: R,
    left: usize,
    complete: bool,
}

impl<R: Read> ChunkReader<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, left: 0, complete: false }
    }
}

impl<R: Read> Read for ChunkReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.complete || buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            let mut length = [0; 4];
            self.inner.read_exact(&mut length)?;
            self.left = u32::from_be_bytes(length) as usize;
            self.complete = self.left == 0;
            if self.left > DATA_MAX {
                return Err(Error::new(ErrorKind::InvalidData, "a chunk beyond the limit"));
            }
        }
        let size = self.left.min(buffer.len());
        let count = self.inner.read(&mut buffer[..size])?;
        if count == 0 && size > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(bytes: &[u8]) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        ChunkReader::new(bytes).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn only_a_commit_ends_the_content() {
        assert_eq!(content(b"\0\0\0\x02ab\0\0\0\x01c\0\0\0\0").unwrap(), b"abc");
        assert_eq!(content(b"\0\0\0\0ignored").unwrap(), b"");
        for cut in [&b""[..], b"\0\0", b"\0\0\0\x02a", b"\0\0\0\x01a", b"\0\0\0\x01a\0\0"] {
            assert_eq!(content(cut).unwrap_err().kind(), ErrorKind::UnexpectedEof, "{cut:?}");
        }
        assert_eq!(content(b"\0\x10\0\x01a").unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
