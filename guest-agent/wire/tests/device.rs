//! The cases of the coding for byte devices, which the host's side runs too.

use serde::Deserialize;
use wire::device::{Decoder, Step, encode};

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    content_hex: String,
    sent_hex: String,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn vectors() {
    let vectors: Vectors = serde_json::from_str(include_str!("../../vectors/device.json")).unwrap();
    for Case { name, content_hex, sent_hex } in vectors.cases {
        let (content, sent) = (bytes(&content_hex), bytes(&sent_hex));
        let mut encoded = Vec::new();
        encode(&content, &mut encoded);
        assert_eq!(encoded, sent, "{name}");
        let mut decoded = vec![0; content.len()];
        let (count, step) = Decoder::default().decode(&sent, &mut decoded);
        assert_eq!((decoded, count.read, step), (content, sent.len(), Step::Data), "{name}");
    }
}
