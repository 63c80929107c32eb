//! How version 2 travels over a byte device that knows no connections: one byte value marks a beginning and occurs nowhere
//! else, since where content has it, it is written as two others.

/// Begins a connection. Neither this byte nor the next is part of any UTF-8 text, so text is sent as it is.
pub const MARK: u8 = 0xc1;
/// Before one of the two following, it stands for a byte of content.
const ESCAPE: u8 = 0xfe;
const ESCAPED_MARK: u8 = 0x01;
const ESCAPED_ESCAPE: u8 = 0x02;

/// Appends `content` as it is sent.
pub fn encode(content: &[u8], out: &mut Vec<u8>) {
    let mut rest = content;
    while let Some(at) = rest.iter().position(|byte| matches!(*byte, MARK | ESCAPE)) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(&[ESCAPE, if rest[at] == MARK { ESCAPED_MARK } else { ESCAPED_ESCAPE }]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Where decoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// At the end of what was there, or of the room.
    Data,
    /// Behind a mark: what was decoded before belongs to what is over now.
    Marked,
    /// At something that no sender writes; only a mark makes sense after it.
    Broken,
}

/// How far a call came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub read: usize,
    pub written: usize,
}

/// Turns what was sent into content again; an escape may be cut between two calls.
#[derive(Debug, Default)]
pub struct Decoder {
    escaped: bool,
}

impl Decoder {
    /// Decodes from `sent` into `out` until one of them ends, or a mark or a break comes.
    pub fn decode(&mut self, sent: &[u8], out: &mut [u8]) -> (Count, Step) {
        let mut count = Count::default();
        while count.read < sent.len() && count.written < out.len() {
            let byte = sent[count.read];
            let content = match (self.escaped, byte) {
                (_, MARK) => {
                    self.escaped = false;
                    count.read += 1;
                    return (count, Step::Marked);
                }
                (true, ESCAPED_MARK) => MARK,
                (true, ESCAPED_ESCAPE) => ESCAPE,
                (true, _) => {
                    self.escaped = false;
                    return (count, Step::Broken);
                }
                (false, ESCAPE) => {
                    self.escaped = true;
                    count.read += 1;
                    continue;
                }
                (false, byte) => byte,
            };
            self.escaped = false;
            out[count.written] = content;
            count.read += 1;
            count.written += 1;
        }
        (count, Step::Data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_all(sent: &[u8], step_size: usize) -> (Vec<u8>, Step) {
        let (mut decoder, mut content) = (Decoder::default(), Vec::new());
        for piece in sent.chunks(step_size) {
            let mut at = 0;
            while at < piece.len() {
                let mut out = [0; 3];
                let (count, step) = decoder.decode(&piece[at..], &mut out);
                content.extend_from_slice(&out[..count.written]);
                at += count.read;
                if step != Step::Data {
                    return (content, step);
                }
            }
        }
        (content, Step::Data)
    }

    #[test]
    fn everything_comes_back_whatever_the_pieces() {
        let content: Vec<u8> = (0..=255).chain([MARK, MARK, ESCAPE, ESCAPE, MARK, ESCAPE]).collect();
        let mut sent = Vec::new();
        encode(&content, &mut sent);
        assert!(!sent.contains(&MARK));
        for step_size in 1..10 {
            assert_eq!(decode_all(&sent, step_size), (content.clone(), Step::Data), "{step_size}");
        }
    }

    #[test]
    fn a_mark_ends_what_is_under_way_even_within_an_escape() {
        assert_eq!(decode_all(&[7, MARK, 8], 9), (vec![7], Step::Marked));
        assert_eq!(decode_all(&[7, ESCAPE, MARK, 1], 9), (vec![7], Step::Marked));
        assert_eq!(decode_all(&[7, ESCAPE, 3], 9), (vec![7], Step::Broken));
    }
}
