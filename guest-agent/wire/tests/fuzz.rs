//! Hostile bytes: parsers must answer, never panic, and agree with themselves however the bytes are cut.

use proptest::collection::vec;
use proptest::prelude::*;
use wire::entry::Items;
use wire::execution::*;
use wire::frame::{Kind, data_prefix, decode, encode, parse};
use wire::message::*;
use wire::preamble::{Nonce, Scanner};
use wire::request::*;
use wire::v1;

/// Bytes that look like frames often enough to get past the first check.
fn frame_like() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![0u32..40, any::<u32>()];
    let frame = (field, any::<u32>(), any::<u8>().prop_map(|byte| byte % 14), payload_like());
    vec(frame, 0..4).prop_map(|frames| {
        let bytes = frames.into_iter().map(|(length, stream, kind, payload)| {
            let length = if length % 3 == 0 { length } else { payload.len() as u32 + 5 };
            [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind], &payload].concat()
        });
        bytes.flatten().collect()
    })
}

/// Bytes rich in msgpack markers.
fn payload_like() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        0x80u8..0xa8,
        Just(0xc4),
        Just(0xdf),
        Just(0xdd),
        Just(b'c'),
        Just(b'd'),
        Just(b'n'),
        Just(b't')
    ];
    vec(byte, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frame_parser(bytes in prop_oneof![frame_like(), vec(any::<u8>(), 0..100)]) {
        let whole = parse(&bytes);
        for end in 0..=bytes.len() {
            match (parse(&bytes[..end]), &whole) {
                (Ok(Some((frame, size))), Ok(Some((expected, expected_size)))) => {
                    prop_assert_eq!(frame, *expected);
                    prop_assert_eq!(size, *expected_size);
                }
                (Ok(None), _) => {}
                (Err(_), Err(_)) => {}
                (part, whole) => prop_assert!(false, "{part:?} became {whole:?}"),
            }
        }
    }

    #[test]
    fn payloads(bytes in payload_like()) {
        let _ = decode::<Data>(&bytes);
        let _ = decode::<Hello>(&bytes);
        let _ = decode::<CreditGrant>(&bytes);
        let _ = decode::<Event>(&bytes);
        let _ = decode::<ExecRequest>(&bytes).map(|request| request.program().map(|_| ()));
        let _ = decode::<ManifestRequest>(&bytes);
        let _ = decode::<WriteFileRequest>(&bytes);
        let _ = decode::<ExecutionStartRequest>(&bytes).map(|request| request.check());
        let _ = decode::<ExecutionStdinRequest>(&bytes).map(|request| request.end());
        let _ = decode::<ExecutionListEnd>(&bytes);
    }

    #[test]
    fn listings(bytes in vec(prop_oneof![any::<u8>(), Just(0x97), Just(0x93), Just(0x96), Just(0xc0), Just(0xc4), Just(1)], 0..80)) {
        let mut taken = 0;
        for item in Items::new(&bytes) {
            let Ok((_, item)) = item else { break };
            taken += item.len();
        }
        prop_assert!(taken <= bytes.len());
    }

    #[test]
    fn lines(bytes in prop_oneof![vec(any::<u8>(), 0..100), "\\{\"op\":\"[a-z-]{0,12}\"(,\"[a-z_]{0,9}\":[0-9\"\\[{]{0,4}){0,3}\\}?".prop_map(String::into_bytes)]) {
        let _ = v1::token(&bytes);
        let _ = v1::request(&bytes);
    }

    #[test]
    fn a_preamble_is_found_behind_anything(noise in vec(prop_oneof![any::<u8>(), Just(b'F'), Just(b'0')], 0..100)) {
        let nonce = Nonce(*b"00112233445566778899aabbccddeeff");
        let mut scanner = Scanner::default();
        let found: Vec<Nonce> = noise.iter().chain(&nonce.line()).filter_map(|byte| scanner.push(*byte)).collect();
        prop_assert_eq!(found.last(), Some(&nonce));
    }

    #[test]
    fn data_frames_made_in_either_way_say_the_same(stream in 1u32.., channel in 0u8..3, content in vec(any::<u8>(), 0..300)) {
        let fast = [&data_prefix(stream, channel, content.len())[..], &content].concat();
        let slow = encode(stream, Kind::Data, &Data { channel, content: serde_bytes::Bytes::new(&content), eof: false });
        let (fast, fast_size) = parse(&fast).unwrap().unwrap();
        let (slow, _) = parse(&slow).unwrap().unwrap();
        prop_assert_eq!((fast.stream, fast.kind), (slow.stream, slow.kind));
        prop_assert_eq!(fast.message::<Data>().unwrap(), slow.message::<Data>().unwrap());
        prop_assert_eq!(fast_size, content.len() + wire::frame::DATA_PREFIX_SIZE);
    }
}
