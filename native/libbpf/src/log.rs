//! What libbpf and the verifier say, for the error that it explains. libbpf has one printer per process and calls it on the
//! thread that is at work, so each thread keeps its own text, and what nobody listens to is dropped.

use libbpf_sys::{__va_list_tag, LIBBPF_DEBUG, libbpf_print_level, libbpf_set_print};
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::sync::Once;

/// Of a longer text the end is kept: a verifier says last what it did not like.
const KEPT_MAX_BYTES: usize = 48 << 10;
/// As much as libbpf asks the verifier for at most.
const MESSAGE_MAX_BYTES: usize = 16 << 20;

static INSTALLED: Once = Once::new();

thread_local! {
    static TEXT: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, arguments: *mut __va_list_tag) -> c_int;
}

/// Runs `action` and returns, with its result, what libbpf said on this thread meanwhile.
pub fn captured<T>(action: impl FnOnce() -> T) -> (T, String) {
    INSTALLED.call_once(|| {
        // SAFETY: the printer is a function of this library, which is never unloaded.
        unsafe { libbpf_set_print(Some(print)) };
    });
    TEXT.set(Some(Vec::new()));
    let result = action();
    let text = TEXT.take().unwrap_or_default();
    (result, String::from_utf8_lossy(&text).trim_end().to_owned())
}

unsafe extern "C" fn print(level: libbpf_print_level, format: *const c_char, arguments: *mut __va_list_tag) -> c_int {
    if level >= LIBBPF_DEBUG || format.is_null() || arguments.is_null() {
        return 0;
    }
    let listening = TEXT.try_with(|text| text.try_borrow().is_ok_and(|text| text.is_some()));
    if listening != Ok(true) {
        return 0;
    }
    // SAFETY: libbpf passes its arguments; a copy of this structure is how they are walked a second time on x86-64.
    let mut first = unsafe { *arguments };
    // SAFETY: without room the call only measures; format and arguments belong together.
    let length = unsafe { vsnprintf(std::ptr::null_mut(), 0, format, &raw mut first) };
    let Ok(length) = usize::try_from(length) else { return 0 };
    let mut message = vec![0_u8; length.min(MESSAGE_MAX_BYTES) + 1];
    // SAFETY: the buffer has this size, and the arguments have not been walked yet.
    unsafe { vsnprintf(message.as_mut_ptr().cast(), message.len(), format, arguments) };
    message.pop();
    keep(&message);
    0
}

fn keep(message: &[u8]) {
    let _ = TEXT.try_with(|text| {
        let Ok(mut text) = text.try_borrow_mut() else { return };
        let Some(text) = text.as_mut() else { return };
        text.extend_from_slice(&message[message.len().saturating_sub(KEPT_MAX_BYTES)..]);
        let surplus = text.len().saturating_sub(KEPT_MAX_BYTES);
        text.drain(..surplus);
    });
}
