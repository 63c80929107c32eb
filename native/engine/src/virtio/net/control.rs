//! Commands of the control queue. The only one that is known chooses how many queue pairs are in use.

use crate::virtio::{Chain, DeviceError, GuestRam, Queue};

const MULTIQUEUE_CLASS: u8 = 4;
const SET_PAIRS: u8 = 0;
const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

/// Class, command, and the number of pairs.
const SET_PAIRS_BYTES: usize = 4;

/// Answers all commands in the queue; `set_pairs` says whether so many pairs can be used.
///
/// # Errors
/// When the driver broke the rules.
pub fn answer(
    memory: &GuestRam,
    queue: &mut Queue,
    chain: &mut Chain,
    mut set_pairs: impl FnMut(u16) -> bool,
) -> Result<(), DeviceError> {
    while queue.pop(memory, chain)? {
        let mut command = [0; SET_PAIRS_BYTES];
        let known = chain.readable_bytes() >= SET_PAIRS_BYTES as u64;
        if known {
            chain.read(memory, 0, &mut command)?;
        }
        let [class, number, low, high] = command;
        let accepted =
            known && (class, number) == (MULTIQUEUE_CLASS, SET_PAIRS) && set_pairs(u16::from_le_bytes([low, high]));
        chain.write(memory, 0, &[if accepted { ACCEPTED } else { REFUSED }])?;
        queue.add_used(memory, chain.head(), 1)?;
    }
    Ok(())
}
