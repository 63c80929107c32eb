//! The power button, as the host presses it: a key of an input device.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

const DEVICES: &str = "/dev/input";
const KEY_POWER: usize = 116;
const EVENT_KEY: u16 = 1;
const PRESSED: i32 = 1;
/// struct input_event: a time of 16 bytes, type, code, value.
const EVENT_SIZE: usize = 24;
/// EVIOCGBIT(EV_KEY, 96): which keys a device has.
const KEY_BITS_SIZE: usize = 96;
const EVIOCGBIT_KEY: libc::Ioctl = 0x8060_4521;

/// Calls `pressed` from a thread of its own whenever the button of some device is pressed.
pub fn watch(pressed: fn()) {
    for entry in std::fs::read_dir(DEVICES).into_iter().flatten().flatten() {
        let is_event = entry.file_name().to_string_lossy().starts_with("event");
        if is_event && let Some(device) = open_button(&entry.path()) {
            std::thread::spawn(move || listen(device, pressed));
        }
    }
}

fn open_button(path: &Path) -> Option<File> {
    let device = File::open(path).ok()?;
    let mut keys = [0u8; KEY_BITS_SIZE];
    // SAFETY: this request writes at most the 96 bytes that its number names, all of which `keys` has.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), EVIOCGBIT_KEY, keys.as_mut_ptr()) };
    (status >= 0 && keys[KEY_POWER / 8] & 1 << (KEY_POWER % 8) != 0).then_some(device)
}

fn listen(mut device: File, pressed: fn()) {
    let mut event = [0; EVENT_SIZE];
    while device.read_exact(&mut event).is_ok() {
        let kind = u16::from_ne_bytes([event[16], event[17]]);
        let code = u16::from_ne_bytes([event[18], event[19]]);
        let value = i32::from_ne_bytes([event[20], event[21], event[22], event[23]]);
        if (kind, usize::from(code), value) == (EVENT_KEY, KEY_POWER, PRESSED) {
            pressed();
        }
    }
}
