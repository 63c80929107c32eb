//! Object files: parsed, adjusted and loaded in one step. What remains are maps and programs; the object itself is gone.

use crate::{Map, Program, check, last_error, log, text_of};
use libbpf_sys::{
    bpf_map, bpf_map__fd, bpf_map__name, bpf_map__set_max_entries, bpf_map__set_pin_path, bpf_object,
    bpf_object__close, bpf_object__find_map_by_name, bpf_object__load, bpf_object__next_map, bpf_object__next_program,
    bpf_object__open_mem, bpf_program__fd, bpf_program__name,
};
use rustix::io::{Errno, Result};
use std::ffi::{CString, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};

/// How a map is to differ from what its object says.
#[derive(Debug, Clone)]
pub struct MapSetting {
    /// Its name in the object.
    pub name: CString,
    /// Room for elements; `None`: as the object says.
    pub max_entries: Option<u32>,
    /// A map that is pinned here is used, and must be of the same kind; where there is none the new one is pinned.
    pub pin: Option<CString>,
}

/// Everything of an object that lives on.
#[derive(Debug)]
pub struct Loaded {
    /// Maps by their names in the object.
    pub maps: Vec<(String, Map)>,
    /// Programs by the names of their functions.
    pub programs: Vec<(String, Program)>,
}

/// Loads the object whose file has these bytes. The text is what libbpf and the verifier had to say.
///
/// # Errors
/// `NOENT`: a setting is of a map that is not in it; else what libbpf or the kernel says. Pins that were made stay.
pub fn load(file: Vec<u8>, settings: &[MapSetting]) -> (Result<Loaded>, String) {
    let (result, mut text) = log::captured(|| Object::open(file).and_then(|object| object.load(settings)));
    let missing = |setting: &&MapSetting| matches!(&result, Err(Error::NoMap(name)) if *name == setting.name);
    if let Some(setting) = settings.iter().find(missing) {
        text = format!("the object has no map {}", setting.name.to_string_lossy());
    }
    (result.map_err(Error::errno), text)
}

enum Error {
    NoMap(CString),
    Refused(Errno),
}

impl Error {
    fn errno(self) -> Errno {
        match self {
            Self::NoMap(_) => Errno::NOENT,
            Self::Refused(errno) => errno,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

struct Object {
    object: NonNull<bpf_object>,
    /// libbpf points into it while it opens, and libelf may turn it to this machine's byte order in place.
    _file: Vec<u8>,
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: made by libbpf, and closed once.
        unsafe { bpf_object__close(self.object.as_ptr()) };
    }
}

impl Object {
    fn open(mut file: Vec<u8>) -> std::result::Result<Self, Error> {
        let (start, length) = (file.as_mut_ptr(), file.len() as u64);
        // SAFETY: the bytes are ours alone, and they live as long as the object.
        let object = unsafe { bpf_object__open_mem(start.cast(), length, null()) };
        let object = NonNull::new(object).ok_or_else(last_error)?;
        Ok(Self { object, _file: file })
    }

    fn load(self, settings: &[MapSetting]) -> std::result::Result<Loaded, Error> {
        for setting in settings {
            self.adjust(setting)?;
        }
        // SAFETY: the object is open, and nothing else uses it.
        check(unsafe { bpf_object__load(self.object.as_ptr()) })?;
        Ok(Loaded { maps: self.maps()?, programs: self.programs()? })
    }

    fn adjust(&self, setting: &MapSetting) -> std::result::Result<(), Error> {
        // SAFETY: the object is open and the name is a text.
        let map = unsafe { bpf_object__find_map_by_name(self.object.as_ptr(), setting.name.as_ptr()) };
        if map.is_null() {
            return Err(Error::NoMap(setting.name.clone()));
        }
        if let Some(count) = setting.max_entries {
            // SAFETY: the map belongs to the open object.
            check(unsafe { bpf_map__set_max_entries(map, count) })?;
        }
        if let Some(path) = &setting.pin {
            // SAFETY: the map belongs to the open object; the path is copied.
            check(unsafe { bpf_map__set_pin_path(map, path.as_ptr()) })?;
        }
        Ok(())
    }

    fn maps(&self) -> Result<Vec<(String, Map)>> {
        let mut found = Vec::new();
        let mut map: *mut bpf_map = null_mut();
        loop {
            // SAFETY: the object is open, and the map is null or one of its maps.
            map = unsafe { bpf_object__next_map(self.object.as_ptr(), map) };
            if map.is_null() {
                return Ok(found);
            }
            // SAFETY: one of the object's maps; its name lives as long as it.
            let (descriptor, name) = unsafe { (bpf_map__fd(map), text_of(bpf_map__name(map))) };
            // Maps that this kernel cannot have, and that libbpf did without, have no descriptor.
            if descriptor >= 0 {
                // SAFETY: loaded, so the descriptor is open as long as the object.
                found.push((name, Map::new(unsafe { duplicate(descriptor) }?)?));
            }
        }
    }

    fn programs(&self) -> Result<Vec<(String, Program)>> {
        let mut found = Vec::new();
        let mut program = null_mut();
        loop {
            // SAFETY: the object is open, and the program is null or one of its programs.
            program = unsafe { bpf_object__next_program(self.object.as_ptr(), program) };
            if program.is_null() {
                return Ok(found);
            }
            // SAFETY: one of the object's programs; its name lives as long as it.
            let (descriptor, name) = unsafe { (bpf_program__fd(program), text_of(bpf_program__name(program))) };
            if descriptor >= 0 {
                // SAFETY: loaded, so the descriptor is open as long as the object.
                found.push((name, Program::new(unsafe { duplicate(descriptor) }?)));
            }
        }
    }
}

/// # Safety
/// The descriptor is open during the call.
unsafe fn duplicate(descriptor: c_int) -> Result<OwnedFd> {
    // SAFETY: the caller promises that it is open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::io::fcntl_dupfd_cloexec(descriptor, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(file: &[u8]) -> (Errno, String) {
        let (result, text) = load(file.to_vec(), &[]);
        (result.unwrap_err(), text)
    }

    #[test]
    fn what_is_no_object_is_refused_with_a_reason() {
        assert_eq!(refused(b"").0, Errno::INVAL);
        for file in [&b"\x7fELF"[..], &[0; 64], &[0xff; 4096], b"#!/bin/sh\n"] {
            let (_, text) = refused(file);
            assert!(!text.is_empty(), "{file:?}");
        }
    }

    #[test]
    fn this_very_program_is_an_elf_file_and_no_object() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert!(load(program, &[]).0.is_err());
    }
}
