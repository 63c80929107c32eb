//! The few devices of a PC that a kernel expects besides virtio: serial port, keyboard controller (only its reset),
//! real-time clock and the ACPI registers for power.

pub mod keyboard;
pub mod power;
pub mod rtc;
pub mod serial;
