//! What a kernel expects of every PC: the keyboard controller (only its reset), the real-time clock, and the ACPI registers
//! for power.

pub mod keyboard;
pub mod power;
pub mod rtc;
