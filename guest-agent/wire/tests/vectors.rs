//! The test vectors that the host's side runs too.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use wire::entry::{Entry, Item, Items, encode_difference};
use wire::execution::*;
use wire::frame::{HEADER_SIZE, Kind, decode, encode, output_prefix, parse};
use wire::message::*;
use wire::port::*;
use wire::preamble::Scanner;
use wire::request::*;
use wire::{ErrorCode, Fault, v1};

fn cases(file: &str) -> Vec<Value> {
    let path = format!("{}/../vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let cases = serde_json::from_str::<Value>(&text).unwrap()["cases"].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or_else(|| panic!("{field} in {case}"))
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn frames() {
    for case in cases("frames") {
        let received = bytes(text(&case, "hex"));
        let mut rest = received.as_slice();
        let mut frames = Vec::new();
        let outcome = loop {
            match parse(rest) {
                Ok(Some((frame, size))) => {
                    frames.push((u64::from(frame.stream), frame.kind as u64, hex(frame.payload)));
                    rest = &rest[size..];
                }
                Ok(None) => break Ok(rest.len() as u64),
                Err(fault) => break Err(fault.code),
            }
        };
        if case["error"].is_string() {
            assert_eq!(outcome, Err(ErrorCode::Protocol), "{case}");
            continue;
        }
        let expected = case["frames"].as_array().unwrap().iter();
        let expected: Vec<_> = expected
            .map(|frame| {
                (frame["stream"].as_u64().unwrap(), frame["kind"].as_u64().unwrap(), text(frame, "payload_hex").into())
            })
            .collect();
        assert_eq!((frames, outcome), (expected, Ok(case["rest"].as_u64().unwrap())), "{case}");
    }
}

#[test]
fn preambles() {
    for case in cases("preamble") {
        let mut scanner = Scanner::default();
        let found = bytes(text(&case, "hex")).into_iter().filter_map(|byte| scanner.push(byte));
        let found: Vec<Value> = found.map(|nonce| String::from_utf8(nonce.0.to_vec()).unwrap().into()).collect();
        assert_eq!(Value::from(found), case["nonces"], "{case}");
    }
}

/// What a payload says as a value, and the bytes that encoding it again gives.
fn again<T: DeserializeOwned + Serialize>(payload: &[u8]) -> Result<(Value, Vec<u8>), Fault> {
    let message: T = decode(payload)?;
    let value = serde_json::to_value(&message).unwrap();
    Ok((value, encode(1, Kind::Event, &message)[HEADER_SIZE..].to_vec()))
}

fn data_again(payload: &[u8]) -> Result<(Value, Vec<u8>), Fault> {
    let data: Data<'_> = decode(payload)?;
    data.check()?;
    Ok((serde_json::to_value(data).unwrap(), encode(1, Kind::Data, &data)[HEADER_SIZE..].to_vec()))
}

fn output_again(payload: &[u8]) -> Result<(Value, Vec<u8>), Fault> {
    let output: Output<'_> = decode(payload)?;
    let prefix = output_prefix(1, output.channel, output.offset, output.content.len());
    let long_form = [&prefix[HEADER_SIZE..], output.content].concat();
    assert_eq!(decode::<Output<'_>>(&long_form)?, output);
    Ok((serde_json::to_value(output).unwrap(), encode(1, Kind::Data, &output)[HEADER_SIZE..].to_vec()))
}

/// Vectors write bytes and large integers in a form that every JSON reader keeps.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(map) if map.contains_key("hex") => bytes(text(value, "hex")).into(),
        Value::Object(map) if map.contains_key("int") => text(value, "int").parse::<u64>().unwrap().into(),
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

#[test]
fn messages() {
    for case in cases("messages") {
        let payload = bytes(text(&case, "payload_hex"));
        let outcome = match text(&case, "message") {
            "hello" => again::<Hello>(&payload),
            "welcome" => again::<Welcome>(&payload),
            "credit" => again::<CreditGrant>(&payload),
            "beat" => again::<Beat>(&payload),
            "data" => data_again(&payload),
            "event" => again::<Event>(&payload),
            "exec-end" => again::<ExecEnd>(&payload),
            "file-end" => again::<FileEnd>(&payload),
            "manifest-end" => again::<ManifestSummary>(&payload),
            "error" => again::<Failure>(&payload),
            "output" => output_again(&payload),
            "execution-start" => again::<ExecutionStartRequest>(&payload),
            "execution-offsets" => again::<ExecutionOffsets>(&payload),
            "execution-mode" => again::<ExecutionModeRequest>(&payload),
            "execution-stdin" => again::<ExecutionStdinRequest>(&payload),
            "execution-stdin-end" => again::<ExecutionStdinEnd>(&payload),
            "execution-signal" => again::<ExecutionSignalRequest>(&payload),
            "execution-resize" => again::<ExecutionResizeRequest>(&payload),
            "execution-end" => again::<ExecutionEnd>(&payload),
            "execution-start-end" => again::<ExecutionStartEnd>(&payload),
            "execution-list-end" => again::<ExecutionListEnd>(&payload),
            "execution-event" => again::<ExecutionEvent>(&payload),
            "port" => again::<PortRequest>(&payload),
            "port-wait" => again::<PortWaitRequest>(&payload),
            "set-clock" => again::<SetClockRequest>(&payload),
            "port-wait-end" => again::<ListeningPort>(&payload),
            "port-list-end" => again::<PortListEnd>(&payload),
            "exec" => again::<ExecRequest>(&payload),
            "signal" => again::<SignalRequest>(&payload),
            "read-file" => again::<ReadFileRequest>(&payload),
            "write-file" => again::<WriteFileRequest>(&payload),
            "manifest" => again::<ManifestRequest>(&payload),
            other => panic!("no message {other}"),
        };
        if case["error"].is_string() {
            assert_eq!(outcome.map_err(|fault| fault.code), Err(ErrorCode::Protocol), "{case}");
            continue;
        }
        let (value, encoded) = outcome.unwrap_or_else(|fault| panic!("{case}: {fault}"));
        if case["canonical"] == true {
            assert_eq!(value, plain(&case["value"]), "{case}");
            assert_eq!(hex(&encoded), text(&case, "payload_hex"), "{case}");
        } else {
            for (name, expected) in value.as_object().unwrap() {
                assert_eq!(expected, &plain(&case["value"][name]), "{case}");
            }
        }
    }
}

fn state(entry: &Entry<'_>) -> Value {
    serde_json::json!({
        "kind": entry.kind as u8, "fingerprint_hex": hex(entry.fingerprint), "size": entry.size.to_string(),
        "mode": entry.mode, "uid": entry.uid, "gid": entry.gid,
    })
}

#[test]
fn manifests() {
    for case in cases("manifest") {
        let listing = bytes(text(&case, "hex"));
        let items: Result<Vec<_>, _> = Items::new(&listing).collect();
        if case["error"].is_string() {
            assert_eq!(items.map_err(|fault| fault.code), Err(ErrorCode::Protocol), "{case}");
            continue;
        }
        let items = items.unwrap();
        let mut encoded = Vec::new();
        let mut found = Vec::new();
        for (item, its_bytes) in &items {
            let before = encoded.len();
            found.push(match item {
                Item::Present(entry) => {
                    entry.encode(&mut encoded);
                    let mut fields = state(entry);
                    fields["path_hex"] = hex(entry.path).into();
                    fields
                }
                Item::Different { path, now, before } => {
                    encode_difference(path, now.as_ref(), before.as_ref(), &mut encoded);
                    let [now, before] = [now, before].map(|side| side.as_ref().map(state));
                    serde_json::json!({ "path_hex": hex(path), "now": now, "before": before })
                }
            });
            assert_eq!(&encoded[before..], *its_bytes, "{case}");
        }
        assert_eq!(Value::from(found), case["items"], "{case}");
        assert_eq!(encoded, listing, "{case}");
    }
}

#[test]
fn version_1_lines() {
    for case in cases("v1") {
        let outcome = v1::request(text(&case, "line").as_bytes());
        if case["error"] == true {
            assert!(outcome.is_err(), "{case}");
            continue;
        }
        let asked = match outcome.unwrap_or_else(|fault| panic!("{case}: {fault}")) {
            v1::Request::Exec(exec) => serde_json::to_value(exec.into_request(1)).unwrap(),
            _ => Value::Null,
        };
        for (name, expected) in case["request"].as_object().unwrap().iter().filter(|(name, _)| *name != "op") {
            assert_eq!(&asked[name], expected, "{case}");
        }
    }
}
