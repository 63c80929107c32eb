//! The first serial port (16550): what the guest prints goes to a writer, what the host types goes through [`SerialPort::enqueue`].
//! Its interrupts, also the one for an empty transmitter, go through an event that KVM turns into an edge.

use crate::bus::BusDevice;
use crate::virtio::{StateError, StateReader, StateWriter};
use std::io::{self, Write};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

/// Eight registers of one byte.
pub const PORTS: u64 = 8;

struct Line(EventFd);

impl Trigger for Line {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// A writer that takes everything: a host that cannot take the output does not stop the guest.
struct Output(Box<dyn Write + Send>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// The port.
pub struct SerialPort {
    serial: Serial<Line, NoEvents, Output>,
}

/// More input than that waits nowhere.
const INPUT_BYTES_MAX: usize = 64;

/// Adds a port's state as bytes.
pub fn save(port: &SerialState, state: &mut StateWriter) {
    for register in [
        port.baud_divisor_low,
        port.baud_divisor_high,
        port.interrupt_enable,
        port.interrupt_identification,
        port.line_control,
        port.line_status,
        port.modem_control,
        port.modem_status,
        port.scratch,
    ] {
        state.u8(register);
    }
    state.blob(&port.in_buffer);
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// [`StateError`] when the bytes cannot be such a state.
pub fn load(state: &mut StateReader<'_>) -> Result<SerialState, StateError> {
    let port = SerialState {
        baud_divisor_low: state.u8()?,
        baud_divisor_high: state.u8()?,
        interrupt_enable: state.u8()?,
        interrupt_identification: state.u8()?,
        line_control: state.u8()?,
        line_status: state.u8()?,
        modem_control: state.u8()?,
        modem_status: state.u8()?,
        scratch: state.u8()?,
        in_buffer: state.blob()?.to_vec(),
    };
    if port.in_buffer.len() > INPUT_BYTES_MAX {
        return Err(StateError::Value("input of the serial port"));
    }
    Ok(port)
}

impl SerialPort {
    /// A port that prints to `output` and signals `line`.
    pub fn new(line: EventFd, output: impl Write + Send + 'static) -> Self {
        Self { serial: Serial::new(Line(line), Output(Box::new(output))) }
    }

    /// Gives bytes to the guest and tells how many found room.
    ///
    /// # Errors
    /// When the interrupt cannot be signalled.
    pub fn enqueue(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.serial.fifo_capacity().min(bytes.len());
        self.serial.enqueue_raw_bytes(&bytes[..room]).map_err(|error| io::Error::other(format!("{error:?}")))
    }

    /// All registers and what waits to be read, for a saved state.
    #[must_use]
    pub fn state(&self) -> SerialState {
        self.serial.state()
    }

    /// Puts back what [`SerialPort::state`] gave, with its interrupts.
    ///
    /// # Errors
    /// When the interrupt cannot be signalled.
    pub fn set_state(&mut self, state: &SerialState) -> io::Result<()> {
        let line = Line(self.serial.interrupt_evt().0.try_clone()?);
        let output = std::mem::replace(self.serial.writer_mut(), Output(Box::new(io::sink())));
        let restored = Serial::from_state(state, line, NoEvents, output);
        self.serial = restored.map_err(|error| io::Error::other(format!("{error:?}")))?;
        Ok(())
    }
}

impl BusDevice for SerialPort {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        for byte in data {
            *byte = self.serial.read(offset as u8);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for byte in data {
            // The only failure left is that of signalling, and a lost interrupt is all that a guest could be told.
            let _ = self.serial.write(offset as u8, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    const INTERRUPT_ENABLE: u64 = 1;
    const INTERRUPT_IDENTIFICATION: u64 = 2;
    const TRANSMITTER_EMPTY: u8 = 2;

    #[test]
    fn an_empty_transmitter_interrupts_and_says_so() {
        let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let sink = Sink::default();
        let mut port = SerialPort::new(line.try_clone().unwrap(), sink.clone());
        let mut why = [0];
        for text in ["", "ab"] {
            port.write(INTERRUPT_ENABLE, &[TRANSMITTER_EMPTY]);
            port.write(0, text.as_bytes());
            assert!(line.read().is_ok());
            port.read(INTERRUPT_IDENTIFICATION, &mut why);
            assert_eq!(why[0] & 7, TRANSMITTER_EMPTY);
        }
        assert_eq!(*sink.0.lock().unwrap(), b"ab");
    }

    #[test]
    fn input_waits_for_the_guest_and_does_not_go_beyond_the_queue() {
        let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let mut port = SerialPort::new(line, Sink::default());
        let taken = port.enqueue(&[7; 1000]).unwrap();
        assert!(taken > 0 && taken < 1000);
        assert_eq!(port.enqueue(&[8]).unwrap(), 0);
        let mut data = [0];
        port.read(0, &mut data);
        assert_eq!(data, [7]);
    }

    #[test]
    fn a_port_goes_on_from_its_saved_state() {
        let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let mut first = SerialPort::new(line.try_clone().unwrap(), Sink::default());
        first.write(7, &[9]);
        first.write(INTERRUPT_ENABLE, &[1]);
        first.enqueue(b"xy").unwrap();
        let mut bytes = StateWriter::new();
        save(&first.state(), &mut bytes);
        let bytes = bytes.finish();
        let sink = Sink::default();
        let mut second = SerialPort::new(line, sink.clone());
        second.set_state(&load(&mut StateReader::new(&bytes)).unwrap()).unwrap();
        let mut data = [0; 2];
        second.read(0, &mut data);
        assert_eq!(&data, b"xy");
        second.read(7, &mut data[..1]);
        assert_eq!(data[0], 9);
        second.write(0, b"z");
        assert_eq!(*sink.0.lock().unwrap(), b"z", "the output is still there");
        assert!((0..bytes.len()).all(|length| load(&mut StateReader::new(&bytes[..length])).is_err()));
    }

    #[test]
    fn output_that_cannot_be_written_does_not_hold_the_guest() {
        let mut port = SerialPort::new(EventFd::new(libc::EFD_NONBLOCK).unwrap(), Broken);
        port.write(0, &[1]);
        let mut status = [0];
        port.read(5, &mut status);
        assert_eq!(status[0] & 0x60, 0x60, "the transmitter is empty");
    }
}
