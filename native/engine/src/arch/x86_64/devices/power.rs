//! The ACPI fixed hardware: the power button that the host presses, and the register with which the guest turns itself off.
//! Ports from the start: event status (2 bytes), event enable (2), control (2).

use crate::bus::BusDevice;

/// Six bytes of ports.
pub const PORTS: u64 = 6;
const STATUS: u64 = 0;
const ENABLE: u64 = 2;
const CONTROL: u64 = 4;

/// Event: the power button was pressed.
const POWER_BUTTON: u16 = 1 << 8;
/// Control: ACPI mode is on, always.
const SCI_ENABLED: u16 = 1;
/// Control: go to sleep now.
const SLEEP: u16 = 1 << 13;
const SLEEP_TYPE_SHIFT: u32 = 10;
const SLEEP_TYPE_MASK: u16 = 7;
/// The type that the tables name for "off".
pub const SLEEP_TYPE_OFF: u16 = 5;

/// The registers, with the interrupt line and what is to happen when the guest turns itself off.
pub struct Power {
    status: u16,
    enable: u16,
    interrupt: Box<dyn FnMut(bool) + Send>,
    off: Box<dyn FnMut() + Send>,
}

impl Power {
    /// `interrupt` sets the level of the line; `off` is called from the thread of the vCPU that asks.
    pub fn new(interrupt: impl FnMut(bool) + Send + 'static, off: impl FnMut() + Send + 'static) -> Self {
        Self { status: 0, enable: 0, interrupt: Box::new(interrupt), off: Box::new(off) }
    }

    /// Presses the power button. A guest that has not enabled it yet sees it once it does.
    pub fn press(&mut self) {
        self.status |= POWER_BUTTON;
        self.update_interrupt();
    }

    /// Status and enable register, for a saved state.
    #[must_use]
    pub fn registers(&self) -> [u16; 2] {
        [self.status, self.enable]
    }

    /// Puts back what [`Power::registers`] gave.
    pub fn set_registers(&mut self, [status, enable]: [u16; 2]) {
        (self.status, self.enable) = (status & POWER_BUTTON, enable);
        self.update_interrupt();
    }

    fn update_interrupt(&mut self) {
        (self.interrupt)(self.status & self.enable != 0);
    }

    fn read_byte(&self, port: u64) -> u8 {
        let register = match port & !1 {
            STATUS => self.status,
            ENABLE => self.enable,
            _ => SCI_ENABLED,
        };
        register.to_le_bytes()[(port & 1) as usize]
    }

    fn write_byte(&mut self, port: u64, value: u8) {
        let shift = 8 * (port & 1) as u32;
        let value = u16::from(value) << shift;
        match port & !1 {
            STATUS => self.status &= !value,
            ENABLE => self.enable = self.enable & !(0xFF << shift) | value,
            // Both the type and the command lie in the upper byte.
            CONTROL if value & SLEEP != 0 && value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK == SLEEP_TYPE_OFF => {
                (self.off)()
            }
            _ => (),
        }
    }
}

impl BusDevice for Power {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        for (port, byte) in (offset..PORTS).zip(data) {
            *byte = self.read_byte(port);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (port, byte) in (offset..PORTS).zip(data) {
            self.write_byte(port, *byte);
        }
        self.update_interrupt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn power() -> (Power, Arc<AtomicBool>, Arc<AtomicBool>) {
        let (line, off) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (set_line, set_off) = (Arc::clone(&line), Arc::clone(&off));
        let power = Power::new(
            move |level| set_line.store(level, Ordering::Relaxed),
            move || set_off.store(true, Ordering::Relaxed),
        );
        (power, line, off)
    }

    #[test]
    fn the_button_holds_the_line_from_when_it_is_enabled_until_it_is_acknowledged() {
        let (mut power, line, _) = power();
        power.press();
        assert!(!line.load(Ordering::Relaxed));
        power.write(ENABLE, &POWER_BUTTON.to_le_bytes());
        assert!(line.load(Ordering::Relaxed));
        let mut status = [0; 2];
        power.read(STATUS, &mut status);
        assert_eq!(u16::from_le_bytes(status), POWER_BUTTON);
        power.write(STATUS, &(!POWER_BUTTON).to_le_bytes());
        assert!(line.load(Ordering::Relaxed));
        power.write(STATUS, &POWER_BUTTON.to_le_bytes());
        assert!(!line.load(Ordering::Relaxed));
    }

    #[test]
    fn the_guest_is_off_only_after_the_type_for_off_with_the_command() {
        let (mut power, _, off) = power();
        for other in [SLEEP_TYPE_OFF << SLEEP_TYPE_SHIFT, SLEEP | 1 << SLEEP_TYPE_SHIFT, SCI_ENABLED] {
            power.write(CONTROL, &other.to_le_bytes());
            assert!(!off.load(Ordering::Relaxed));
        }
        power.write(CONTROL, &(SLEEP | SLEEP_TYPE_OFF << SLEEP_TYPE_SHIFT | SCI_ENABLED).to_le_bytes());
        assert!(off.load(Ordering::Relaxed));
    }

    #[test]
    fn registers_put_back_raise_the_line_again() {
        let (mut first, ..) = power();
        first.write(ENABLE, &POWER_BUTTON.to_le_bytes());
        first.press();
        let (mut second, line, _) = power();
        second.set_registers(first.registers());
        assert!(line.load(Ordering::Relaxed));
    }
}
