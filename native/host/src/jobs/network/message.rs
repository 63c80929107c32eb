//! Messages of route netlink: a header, a part of fixed size that says what they are about, and attributes, of which some
//! hold attributes themselves. Numbers are the machine's own; everything begins at a multiple of four bytes.

use libc::{AF_INET, AF_UNSPEC, NLM_F_REQUEST, RTM_GETADDR, RTM_NEWADDR, RTM_NEWLINK};
use rustix::io::{Errno, Result};

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// `struct ifinfomsg` and `struct ifaddrmsg`.
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
/// Said beside the kind of an attribute that holds others.
const NESTED: u16 = 1 << 15;

/// What is asked of the kernel.
pub struct Request {
    kind: u16,
    /// The fixed part, and the attributes behind it.
    pub attributes: Attributes,
}

/// A fixed part or none, and attributes.
#[derive(Default)]
pub struct Attributes(Vec<u8>);

impl Request {
    /// A request with this fixed part.
    pub fn new(kind: u16, fixed: &[u8]) -> Self {
        Self { kind, attributes: Attributes(fixed.to_vec()) }
    }

    /// About the link of that number, or one that its attributes name; of `flags` those in `changed` become what they are.
    pub fn of_link(kind: u16, index: u32, flags: u32, changed: u32) -> Self {
        let mut request = Self::new(kind, &[]);
        request.attributes.link_header(index, flags, changed);
        request
    }

    /// About addresses of the fourth version of IP.
    pub fn of_address(kind: u16, index: u32, prefix: u8) -> Self {
        let [a, b, c, d] = index.to_ne_bytes();
        Self::new(kind, &[AF_INET as u8, prefix, 0, 0, a, b, c, d])
    }

    /// The whole message.
    pub fn encode(self, flags: i32, sequence: u32) -> Vec<u8> {
        let Attributes(body) = self.attributes;
        let flags = (NLM_F_REQUEST | flags) as u16;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The kernel knows whose socket it is.
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(body);
        bytes
    }
}

impl Attributes {
    /// The fixed part of what is about a link.
    pub fn link_header(&mut self, index: u32, flags: u32, changed: u32) {
        self.0.extend([AF_UNSPEC as u8, 0, 0, 0]);
        for number in [index, flags, changed] {
            self.0.extend(number.to_ne_bytes());
        }
    }

    /// A number.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// A text, ended as in C.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// Attributes within one.
    pub fn nest(&mut self, kind: u16, describe: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        describe(&mut inner);
        self.bytes(kind | NESTED, &inner.0);
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// What the kernel says.
pub struct Message {
    /// Its kind, `RTM_*` or `NLMSG_*`.
    pub kind: u16,
    /// That of the request that it answers.
    pub sequence: u32,
    body: Vec<u8>,
}

impl Message {
    /// The messages of one piece. `PROTO`: it holds something else.
    pub fn all_in(mut piece: &[u8]) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        while !piece.is_empty() {
            let length = u32_at(piece, 0)? as usize;
            let body = piece.get(HEADER_BYTES..length).ok_or(Errno::PROTO)?;
            all.push(Self { kind: u16_at(piece, 4)?, sequence: u32_at(piece, 8)?, body: body.to_vec() });
            piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(all)
    }

    /// Of a message that says how a request ended: what it failed with.
    pub fn error(&self) -> Result<()> {
        match u32_at(&self.body, 0)?.cast_signed() {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code.saturating_neg())),
        }
    }

    /// Number and flags of the link that it is about. `PROTO`: it is about something else.
    pub fn link_header(&self) -> Result<(u32, u32)> {
        if self.kind != RTM_NEWLINK {
            return Err(Errno::PROTO);
        }
        Ok((u32_at(&self.body, 4)?, u32_at(&self.body, 8)?))
    }

    /// The first attribute of that kind.
    pub fn attribute(&self, wanted: u16) -> Option<&[u8]> {
        let fixed = match self.kind {
            RTM_NEWLINK => LINK_BYTES,
            RTM_NEWADDR | RTM_GETADDR => ADDRESS_BYTES,
            _ => return None,
        };
        find(self.body.get(fixed..)?, wanted)
    }
}

/// The first attribute of that kind among these, of a message or within another attribute.
pub fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (usize::from(u16_at(attributes, 0).ok()?), u16_at(attributes, 2).ok()?);
        let value = attributes.get(ATTRIBUTE_BYTES..length)?;
        if kind & !NESTED == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    bytes.get(at..at + 2).and_then(|found| found.try_into().ok()).map(u16::from_ne_bytes).ok_or(Errno::PROTO)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    bytes.get(at..at + 4).and_then(|found| found.try_into().ok()).map(u32::from_ne_bytes).ok_or(Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{IFLA_GROUP, IFLA_IFNAME};

    #[test]
    fn attributes_are_found_behind_others_and_what_is_cut_short_is_nothing() {
        let mut request = Request::of_link(RTM_NEWLINK, 7, 1, 1);
        request.attributes.text(IFLA_IFNAME, "vha");
        request.attributes.u32(IFLA_GROUP, 9);
        let bytes = request.encode(0, 3);
        let [message] = &Message::all_in(&bytes).unwrap()[..] else { panic!("one message") };

        assert_eq!((message.sequence, message.link_header()), (3, Ok((7, 1))));
        assert_eq!(message.attribute(IFLA_IFNAME), Some(&b"vha\0"[..]));
        assert_eq!(message.attribute(IFLA_GROUP), Some(&9_u32.to_ne_bytes()[..]));
        assert_eq!(message.attribute(libc::IFLA_IFALIAS), None);
        for length in 1..bytes.len() {
            assert!(Message::all_in(&bytes[..length]).is_err(), "{length}");
        }
        for byte in 0..bytes.len() {
            let mut hostile = bytes.clone();
            hostile[byte] = 0xff;
            for message in Message::all_in(&hostile).unwrap_or_default() {
                assert!(message.attribute(99).is_none_or(|value| value.len() < bytes.len()));
            }
        }
    }
}
