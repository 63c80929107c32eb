//! Version 2 frames: a length, a stream id, a kind and a msgpack map. Parsing never allocates and never trusts
//! a length that has not been checked against the limits.

use crate::fault::Fault;
use crate::limits::{DATA_MAX, FRAME_LENGTH_MAX, FRAME_LENGTH_MIN, PAYLOAD_DEPTH_MAX};
use serde::{Deserialize, Serialize};

/// Bytes before the payload: length, stream id, kind.
pub const HEADER_SIZE: usize = 9;
/// Bytes before the content of a DATA frame made by [`data_prefix`].
pub const DATA_PREFIX_SIZE: usize = HEADER_SIZE + 11;
/// Bytes before the content of a DATA frame made by [`output_prefix`].
pub const OUTPUT_PREFIX_SIZE: usize = DATA_PREFIX_SIZE + 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Open = 3,
    Event = 4,
    Data = 5,
    Credit = 6,
    End = 7,
    Error = 8,
    Cancel = 9,
    Ping = 10,
    Pong = 11,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::*;
        [Hello, Welcome, Open, Event, Data, Credit, End, Error, Cancel, Ping, Pong]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame<'a> {
    pub stream: u32,
    pub kind: Kind,
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The payload as a message of its kind. Error `PROTOCOL`.
    pub fn message<T: Deserialize<'a>>(&self) -> Result<T, Fault> {
        decode(self.payload)
    }
}

/// Takes the first frame of `bytes`: the frame and how many bytes it took, or `None` when it is not there yet.
/// Error `PROTOCOL` as soon as what is there cannot become a frame.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Fault> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if !(FRAME_LENGTH_MIN..=FRAME_LENGTH_MAX).contains(&length) {
        return Err(Fault::protocol(format!("a frame of {length} bytes")));
    }
    let Some(header) = bytes.first_chunk::<HEADER_SIZE>() else { return Ok(None) };
    let [_, _, _, _, stream @ .., kind] = *header;
    let kind_known = Kind::from_byte(kind).ok_or_else(|| Fault::protocol(format!("unknown frame kind {kind}")))?;
    let size = 4 + length;
    let Some(payload) = bytes.get(HEADER_SIZE..size) else { return Ok(None) };
    Ok(Some((Frame { stream: u32::from_be_bytes(stream), kind: kind_known, payload }, size)))
}

/// A whole frame around `message`.
pub fn encode<T: Serialize>(stream: u32, kind: Kind, message: &T) -> Vec<u8> {
    let mut frame = vec![0; HEADER_SIZE];
    let mut serializer = rmp_serde::Serializer::new(&mut frame).with_struct_map();
    message.serialize(&mut serializer).expect("protocol messages have string keys and known lengths");
    let length = frame.len() - 4;
    assert!(length <= FRAME_LENGTH_MAX, "a {kind:?} frame beyond the limit");
    frame[..HEADER_SIZE].copy_from_slice(&header(stream, kind, length));
    frame
}

/// What stands before `content_size` bytes of content in a DATA frame, so that content can be read straight
/// into the buffer that is sent.
pub fn data_prefix(stream: u32, channel: u8, content_size: usize) -> [u8; DATA_PREFIX_SIZE] {
    assert!(channel < 0x80 && content_size <= DATA_MAX, "a DATA frame beyond the limit");
    let mut prefix = [0; DATA_PREFIX_SIZE];
    let length = DATA_PREFIX_SIZE - 4 + content_size;
    prefix[..HEADER_SIZE].copy_from_slice(&header(stream, Kind::Data, length));
    // {"c": channel, "d": bin32 of content_size}
    prefix[HEADER_SIZE..HEADER_SIZE + 7].copy_from_slice(&[0x82, 0xa1, b'c', channel, 0xa1, b'd', 0xc6]);
    prefix[HEADER_SIZE + 7..].copy_from_slice(&(content_size as u32).to_be_bytes());
    prefix
}

/// As [`data_prefix`], with the absolute offset of the content.
pub fn output_prefix(stream: u32, channel: u8, offset: u64, content_size: usize) -> [u8; OUTPUT_PREFIX_SIZE] {
    assert!(channel < 0x80 && content_size <= DATA_MAX, "a DATA frame beyond the limit");
    let mut prefix = [0; OUTPUT_PREFIX_SIZE];
    let length = OUTPUT_PREFIX_SIZE - 4 + content_size;
    prefix[..HEADER_SIZE].copy_from_slice(&header(stream, Kind::Data, length));
    // {"c": channel, "o": uint64 offset, "d": bin32 of content_size}
    let fields = &mut prefix[HEADER_SIZE..];
    fields[..7].copy_from_slice(&[0x83, 0xa1, b'c', channel, 0xa1, b'o', 0xcf]);
    fields[7..15].copy_from_slice(&offset.to_be_bytes());
    fields[15..18].copy_from_slice(&[0xa1, b'd', 0xc6]);
    fields[18..].copy_from_slice(&(content_size as u32).to_be_bytes());
    prefix
}

fn header(stream: u32, kind: Kind, length: usize) -> [u8; HEADER_SIZE] {
    let mut header = [0; HEADER_SIZE];
    header[..4].copy_from_slice(&(length as u32).to_be_bytes());
    header[4..8].copy_from_slice(&stream.to_be_bytes());
    header[8] = kind as u8;
    header
}

/// One msgpack map as a message, with nothing after it. Unknown keys are ignored. Error `PROTOCOL`.
pub fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Fault> {
    if !matches!(payload.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return Err(Fault::protocol("a payload that is not a map"));
    }
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(payload);
    deserializer.set_max_depth(PAYLOAD_DEPTH_MAX);
    T::deserialize(&mut deserializer).map_err(|error| Fault::protocol(format!("malformed payload: {}", reason(&error))))
}

/// Why a payload did not decode, without the values it holds.
fn reason(error: &rmp_serde::decode::Error) -> String {
    use rmp_serde::decode::Error::*;
    match error {
        Syntax(text) if text.starts_with("missing field") || text.starts_with("duplicate field") => text.clone(),
        Syntax(_) | TypeMismatch(_) | OutOfRange => "a field of the wrong type".into(),
        DepthLimitExceeded => "nested too deeply".into(),
        _ => "it ends early or is not msgpack".into(),
    }
}
