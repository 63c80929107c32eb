//! The few devices besides virtio: the serial port and the generation of the machine. Those of a PC alone lie with their
//! architecture.

pub mod generation;
pub mod serial;
