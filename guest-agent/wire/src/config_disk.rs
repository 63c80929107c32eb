//! The layout of a config disk: magic, version and length of the payload, then the payload, a JSON object.

/// Bytes before the payload.
pub const HEADER_SIZE: usize = 16;
/// Bytes of the payload.
pub const PAYLOAD_MAX: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"FLUXVMCD";
const VERSION: u32 = 1;

/// How many bytes of payload follow; `None` for a disk of another kind, version or length.
pub fn payload_size(header: &[u8; HEADER_SIZE]) -> Option<usize> {
    let field = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let size = field(12) as usize;
    (header.starts_with(MAGIC) && field(8) == VERSION && size <= PAYLOAD_MAX).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(magic: &[u8; 8], version: u32, size: u32) -> [u8; HEADER_SIZE] {
        [&magic[..], &version.to_be_bytes(), &size.to_be_bytes()].concat().try_into().unwrap()
    }

    #[test]
    fn only_what_is_known_is_taken() {
        assert_eq!(payload_size(&header(MAGIC, 1, 7)), Some(7));
        assert_eq!(payload_size(&header(MAGIC, 1, 64 << 10)), Some(64 << 10));
        assert_eq!(payload_size(&header(MAGIC, 1, (64 << 10) + 1)), None);
        assert_eq!(payload_size(&header(MAGIC, 2, 7)), None);
        assert_eq!(payload_size(&header(b"FLUXVMCE", 1, 7)), None);
    }
}
