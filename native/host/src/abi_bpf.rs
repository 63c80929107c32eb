//! The C face of BPF: elements of maps, facts, test runs, and objects on their way to being loaded. Every function returns 0
//! or a small non-negative value, or a negative errno, and keeps nothing that is passed in.
#![allow(unsafe_code)]

use crate::abi::guard;
use crate::bpf::{self, HeldMap, HeldProgram};
use rustix::io::{Errno, Result};

/// Bound on what one call reads or writes, so that the event loop soon goes on.
const ELEMENTS_MAX_BYTES: usize = 1 << 20;
/// Bound on a name or a path.
const TEXT_MAX_BYTES: usize = 4096;
/// Bound on one packet of a test run.
const PACKET_MAX_BYTES: usize = 128 << 10;
/// Bound on the runs of one call: about two milliseconds of a program that does much.
const REPEAT_MAX: u32 = 10_000;
/// Bound on an object; `bpf::new_object` has its own.
const OBJECT_MAX_BYTES: usize = 1 << 30;
const NAME_BYTES: usize = 16;

/// # Safety
/// `start` must be valid for reading `length` bytes as long as the result is used.
unsafe fn readable<'a>(start: *const u8, length: usize, max: usize) -> Result<&'a [u8]> {
    match length {
        0 => Ok(&[]),
        _ if start.is_null() || length > max => Err(Errno::INVAL),
        // SAFETY: not null, and the caller promises this many bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, length) }),
    }
}

/// # Safety
/// `start` must be valid for writing `length` bytes that nothing else uses as long as the result is used.
unsafe fn writable<'a>(start: *mut u8, length: usize, max: usize) -> Result<&'a mut [u8]> {
    match length {
        0 => Ok(&mut []),
        _ if start.is_null() || length > max => Err(Errno::INVAL),
        // SAFETY: not null, and the caller promises this many bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(start, length) }),
    }
}

/// Copies a file into a new object, to be adjusted and loaded; returns its handle.
///
/// # Safety
/// `file` must be valid for reading `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_object_new(file: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise.
    guard(|| handle(bpf::new_object(unsafe { readable(file, length, OBJECT_MAX_BYTES) }?)?))
}

/// Says how a map of an object is to differ: its room (0: as it is) and its pin (empty: none).
///
/// # Safety
/// `name` and `pin` must be valid for reading their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_object_adjust(
    object: u32,
    name: *const u8,
    name_length: usize,
    max_entries: u32,
    pin: *const u8,
    pin_length: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { readable(name, name_length, TEXT_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let pin = unsafe { readable(pin, pin_length, TEXT_MAX_BYTES) }?;
        bpf::adjust_map(object, name, max_entries, pin).map(|()| 0)
    })
}

/// Writes what was said while an object was loaded, as much as fits; returns how much.
///
/// # Safety
/// `out` must be valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_object_text(object: u32, out: *mut u8, length: usize) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { writable(out, length, ELEMENTS_MAX_BYTES) }?;
        Ok(put(out, bpf::text(object)?.as_bytes()))
    })
}

/// Gives the next map of a loaded object a handle and writes its name; returns the handle, 0 when there are no more.
///
/// # Safety
/// `name` must be valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_object_take_map(object: u32, name: *mut u8, length: usize) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { writable(name, length, TEXT_MAX_BYTES) }?;
        taken(bpf::take_map(object)?, out)
    })
}

/// The same of programs.
///
/// # Safety
/// `name` must be valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_object_take_program(object: u32, name: *mut u8, length: usize) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { writable(name, length, TEXT_MAX_BYTES) }?;
        taken(bpf::take_program(object)?, out)
    })
}

/// Writes id, type, lengths of key, value and element, room and flags as 32 bits each, four bytes of nothing, and the name.
///
/// # Safety
/// `out` must be valid for writing 48 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_facts(map: u32, out: *mut u8) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { writable(out, 32 + NAME_BYTES, 32 + NAME_BYTES) }?;
        let map = HeldMap::by(map)?;
        let facts = map.facts();
        let bytes = |length: usize| u32::try_from(length).map_err(|_| Errno::OVERFLOW);
        let [key, value, element] = [bytes(facts.key_bytes)?, bytes(facts.value_bytes)?, bytes(facts.element_bytes)?];
        let words = [facts.id, facts.kind, key, value, element, facts.max_entries, facts.flags, 0];
        out.fill(0);
        put(out, words.map(u32::to_le_bytes).as_flattened());
        put(&mut out[32..], facts.name.as_bytes());
        Ok(0)
    })
}

/// Reads one element. `NOENT`: there is none.
///
/// # Safety
/// `key` must be valid for reading, `value` for writing their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_lookup(
    map: u32,
    key: *const u8,
    key_length: usize,
    value: *mut u8,
    value_length: usize,
    flags: u32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let key = unsafe { readable(key, key_length, ELEMENTS_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let value = unsafe { writable(value, value_length, ELEMENTS_MAX_BYTES) }?;
        HeldMap::by(map)?.lookup(key, value, flags).map(|()| 0)
    })
}

/// Writes one element.
///
/// # Safety
/// `key` and `value` must be valid for reading their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_update(
    map: u32,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
    flags: u32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let key = unsafe { readable(key, key_length, ELEMENTS_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let value = unsafe { readable(value, value_length, ELEMENTS_MAX_BYTES) }?;
        HeldMap::by(map)?.update(key, value, flags).map(|()| 0)
    })
}

/// Removes one element. `NOENT`: there is none.
///
/// # Safety
/// `key` must be valid for reading its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_delete(map: u32, key: *const u8, key_length: usize) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let key = unsafe { readable(key, key_length, ELEMENTS_MAX_BYTES) }?;
        HeldMap::by(map)?.delete(key).map(|()| 0)
    })
}

/// Writes elements in turn; at the first that fails the ones before it stay.
///
/// # Safety
/// `keys` and `values` must be valid for reading their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_update_batch(
    map: u32,
    keys: *const u8,
    keys_length: usize,
    values: *const u8,
    values_length: usize,
    flags: u32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let keys = unsafe { readable(keys, keys_length, ELEMENTS_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let values = unsafe { readable(values, values_length, ELEMENTS_MAX_BYTES) }?;
        HeldMap::by(map)?.update_batch(keys, values, flags).map(|()| 0)
    })
}

/// Removes all that are there of these; returns how many were.
///
/// # Safety
/// `keys` must be valid for reading its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_delete_batch(map: u32, keys: *const u8, keys_length: usize) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let keys = unsafe { readable(keys, keys_length, ELEMENTS_MAX_BYTES) }?;
        handle(HeldMap::by(map)?.delete_batch(keys)?)
    })
}

/// Reads as many elements as fit, from `position` on; with `first` from the beginning. `out[0]` is how many; returns 1 when
/// there are no more, else 0.
///
/// # Safety
/// All buffers must be valid for writing their lengths, `out` for one `u32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_map_read_batch(
    map: u32,
    position: *mut u8,
    position_length: usize,
    first: u32,
    keys: *mut u8,
    keys_length: usize,
    values: *mut u8,
    values_length: usize,
    out: *mut u32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise, of four buffers that are apart.
        let position = unsafe { writable(position, position_length, TEXT_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let keys = unsafe { writable(keys, keys_length, ELEMENTS_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let values = unsafe { writable(values, values_length, ELEMENTS_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let out = unsafe { out.as_mut() }.ok_or(Errno::FAULT)?;
        let page = HeldMap::by(map)?.read_batch(position, first != 0, keys, values)?;
        *out = u32::try_from(page.count).map_err(|_| Errno::OVERFLOW)?;
        Ok(i32::from(page.end))
    })
}

/// Writes id and type (32 bits each), tag (8 bytes), runs and their nanoseconds (64 bits each), verified instructions and
/// translated bytes (32 bits each), and the name.
///
/// # Safety
/// `out` must be valid for writing 56 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_program_facts(program: u32, out: *mut u8) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { writable(out, 40 + NAME_BYTES, 40 + NAME_BYTES) }?;
        let facts = HeldProgram::by(program)?.facts()?;
        out.fill(0);
        put(out, [facts.id, facts.kind].map(u32::to_le_bytes).as_flattened());
        put(&mut out[8..], &facts.tag);
        put(&mut out[16..], [facts.run_count, facts.run_time_ns].map(u64::to_le_bytes).as_flattened());
        put(&mut out[32..], [facts.verified_instructions, facts.jited_bytes].map(u32::to_le_bytes).as_flattened());
        put(&mut out[40..], facts.name.as_bytes());
        Ok(0)
    })
}

/// Runs a program `repeat` times on a packet. `context` is a `struct __sk_buff` or empty. `out`: what the program returned,
/// nanoseconds of one run, length of the packet afterwards.
///
/// # Safety
/// `input` must be valid for reading, the other buffers for writing their lengths, `out` for three `u32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fluxvm_host_bpf_test_run(
    program: u32,
    input: *const u8,
    input_length: usize,
    output: *mut u8,
    output_length: usize,
    context: *mut u8,
    context_length: usize,
    repeat: u32,
    out: *mut u32,
) -> i32 {
    guard(|| {
        if out.is_null() || repeat > REPEAT_MAX {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise, of four buffers that are apart.
        let input = unsafe { readable(input, input_length, PACKET_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let output = unsafe { writable(output, output_length, PACKET_MAX_BYTES) }?;
        // SAFETY: the caller's promise.
        let context = unsafe { writable(context, context_length, TEXT_MAX_BYTES) }?;
        let run = HeldProgram::by(program)?.test_run(input, output, context, repeat)?;
        let length = u32::try_from(run.output_bytes).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: not null, and the caller promises room for three.
        let out = unsafe { std::slice::from_raw_parts_mut(out, 3) };
        out.copy_from_slice(&[run.verdict, run.duration_ns, length]);
        Ok(0)
    })
}

fn taken(next: Option<(String, u32)>, out: &mut [u8]) -> Result<i32> {
    let Some((name, number)) = next else { return Ok(0) };
    // A name that does not fit would be another name.
    if name.len() >= out.len() {
        bpf::close(number)?;
        return Err(Errno::NAMETOOLONG);
    }
    out.fill(0);
    put(out, name.as_bytes());
    handle(number)
}

fn handle<Number: TryInto<i32>>(number: Number) -> Result<i32> {
    number.try_into().map_err(|_| Errno::OVERFLOW)
}

/// Copies as much as fits; returns how much.
fn put(out: &mut [u8], bytes: &[u8]) -> i32 {
    let length = bytes.len().min(out.len());
    out[..length].copy_from_slice(&bytes[..length]);
    length as i32
}
