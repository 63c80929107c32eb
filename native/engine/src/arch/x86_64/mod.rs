//! x86-64: what a PC has to look like for a kernel to boot on it.

pub mod acpi;
pub mod boot;
pub mod cpuid;
mod devices;
pub mod interrupts;
pub mod layout;
pub mod mp_table;
pub mod msr;
pub mod platform;
pub mod processors;
pub mod registers;
pub mod state;
mod tables;

pub use tables::write_tables;
