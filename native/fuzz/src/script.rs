//! Reads the bytes of an input as choices. Every input means something, small changes of it mean small changes of the
//! story, and at its end all choices are the plainest.

/// Numbers at which code likes to be wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x1_0000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x1_0000_0000,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 0xFFF,
    u64::MAX,
];

/// What is left of an input.
pub struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    /// The whole input.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// The choice of the next step; nothing at the end of the story.
    pub fn step(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    /// Two bytes, little endian as all numbers.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below a limit, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        let number = match limit {
            0..=0x100 => u64::from(self.u8()),
            0x101..=0x1_0000 => u64::from(self.u16()),
            0x1_0001..=0x1_0000_0000 => u64::from(self.u32()),
            _ => self.u64(),
        };
        number % limit
    }

    /// True for one of so many bytes, and not at the end.
    pub fn one_in(&mut self, chances: u8) -> bool {
        self.u8() % chances == chances - 1
    }

    /// One of several.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A number that is small, at an edge, near one, or any.
    pub fn number(&mut self) -> u64 {
        match self.u8() {
            small @ 0..=0x7F => u64::from(small),
            edge @ 0x80..=0xBF => EDGES[usize::from(edge) % EDGES.len()],
            near @ 0xC0..=0xDF => EDGES[usize::from(near) % EDGES.len()].wrapping_sub(u64::from(self.u8())),
            0xE0..=0xEF => u64::from(self.u32()),
            _ => self.u64(),
        }
    }

    /// At most so many bytes of the input; their number is chosen by a byte.
    pub fn bytes(&mut self, max: u8) -> Vec<u8> {
        let count = usize::from(self.u8().min(max)).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken.to_vec()
    }

    /// All that is left.
    pub fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Damages bytes in a few places: some are replaced, put in between, taken out, or cut off.
    pub fn edit(&mut self, bytes: &mut Vec<u8>, edits_max: u64) {
        for _ in 0..self.below(edits_max + 1) {
            let place = self.below(bytes.len().clamp(1, 0x1_0000) as u64) as usize;
            match self.u8() % 8 {
                0 => overwrite(bytes, place, &[self.u8()]),
                1 => {
                    let number = self.number() as u16;
                    overwrite(bytes, place, &number.to_le_bytes());
                }
                2 => {
                    let number = self.number() as u32;
                    overwrite(bytes, place, &number.to_le_bytes());
                }
                3 => {
                    let number = self.number();
                    overwrite(bytes, place, &number.to_le_bytes());
                }
                4 => {
                    // Formats of disks have their numbers the other way round.
                    let number = self.number();
                    overwrite(bytes, place, &number.to_be_bytes());
                }
                5 => {
                    let text = self.bytes(32);
                    overwrite(bytes, place, &text);
                }
                6 => bytes.truncate(place),
                _ => {
                    let text = self.bytes(32);
                    let place = place.min(bytes.len());
                    bytes.splice(place..place, text);
                }
            }
        }
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.u8())
    }
}

fn overwrite(bytes: &mut [u8], place: usize, with: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(place).zip(with) {
        *to = *from;
    }
}
