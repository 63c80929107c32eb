//! What the tests of devices share: a driver that keeps the rules, one that breaks them, and a device for the transport.

mod echo;
mod guest;
mod hostile;

pub(crate) use echo::Echo;
pub(crate) use guest::{EVENT_INDEX, PLAIN, Piece, TestGuest};
pub(crate) use hostile::{Dice, rounds, torment};
