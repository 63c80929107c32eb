//! What TypeScript has of BPF, by handle: objects on their way into the kernel, maps, programs and attachments.

use crate::handles::Handles;
use fluxvm_libbpf::{Link, Loaded, Map, MapSetting, Pinned, Program, load, open_pinned, pin};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bound on the file of one object.
const OBJECT_MAX_BYTES: usize = 16 << 20;
/// Bound on the maps of one object that are adjusted.
const SETTINGS_MAX: usize = 256;

enum Resource {
    Object(Mutex<Object>),
    Map(Map),
    Program(Program),
    Link(Link),
}

/// An object file and what became of it.
#[derive(Default)]
struct Object {
    file: Vec<u8>,
    settings: Vec<MapSetting>,
    loaded: Option<Loaded>,
    text: String,
}

static RESOURCES: Handles<Resource> = Handles::new();

/// A map that stays open while this is held.
pub struct HeldMap(Arc<Resource>);

/// A program that stays open while this is held.
pub struct HeldProgram(Arc<Resource>);

/// An attachment that stays open while this is held.
pub struct HeldLink(Arc<Resource>);

macro_rules! held {
    ($held:ident, $kind:ident) => {
        impl $held {
            /// What a handle names. `BADF`: it is stale, or names something of another kind.
            pub fn by(handle: u32) -> Result<Self> {
                let resource = RESOURCES.get(handle)?;
                if matches!(*resource, Resource::$kind(_)) { Ok(Self(resource)) } else { Err(Errno::BADF) }
            }
        }

        impl std::ops::Deref for $held {
            type Target = $kind;

            fn deref(&self) -> &$kind {
                match &*self.0 {
                    Resource::$kind(thing) => thing,
                    _ => unreachable!("checked when it was made"),
                }
            }
        }
    };
}

held!(HeldMap, Map);
held!(HeldProgram, Program);
held!(HeldLink, Link);

/// Keeps a copy of an object's file, to be adjusted and loaded. `INVAL`: empty; `FBIG`: too long.
pub fn new_object(file: &[u8]) -> Result<u32> {
    match file.len() {
        0 => Err(Errno::INVAL),
        1..=OBJECT_MAX_BYTES => {
            let object = Object { file: file.to_vec(), ..Object::default() };
            RESOURCES.insert(Resource::Object(Mutex::new(object)))
        }
        _ => Err(Errno::FBIG),
    }
}

/// Says how a map of an object that is not loaded yet is to differ; 0 entries and an empty pin leave it as it is.
pub fn adjust_map(object: u32, name: &[u8], max_entries: u32, pin: &[u8]) -> Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
    let setting = MapSetting {
        name: text(name)?,
        max_entries: (max_entries > 0).then_some(max_entries),
        pin: if pin.is_empty() { None } else { Some(text(pin)?) },
    };
    with_object(object, |object| {
        if object.file.is_empty() || object.settings.len() >= SETTINGS_MAX {
            return Err(Errno::INVAL);
        }
        object.settings.push(setting);
        Ok(())
    })
}

/// Loads an object, once. Returns 0 or the errno; `text` then says more.
pub fn load_object(handle: u32) -> Result<u32> {
    let (file, settings) = with_object(handle, |object| {
        if object.file.is_empty() {
            Err(Errno::INVAL)
        } else {
            Ok((take(&mut object.file), take(&mut object.settings)))
        }
    })?;
    let (result, text) = load(file, &settings);
    let errno = result.as_ref().err().map_or(0, |error| error.raw_os_error().unsigned_abs());
    with_object(handle, |object| {
        (object.loaded, object.text) = (result.ok(), text);
        Ok(errno)
    })
}

/// What libbpf and the verifier said while an object was loaded.
pub fn text(object: u32) -> Result<String> {
    with_object(object, |object| Ok(object.text.clone()))
}

/// The next map of a loaded object, which from then on has a handle of its own. `None`: there are no more.
pub fn take_map(object: u32) -> Result<Option<(String, u32)>> {
    named(with_object(object, |object| Ok(object.loaded.as_mut().and_then(|loaded| loaded.maps.pop())))?, Resource::Map)
}

/// The next program of a loaded object, likewise.
pub fn take_program(object: u32) -> Result<Option<(String, u32)>> {
    let program = with_object(object, |object| Ok(object.loaded.as_mut().and_then(|loaded| loaded.programs.pop())))?;
    named(program, Resource::Program)
}

fn named<Thing>(taken: Option<(String, Thing)>, wrap: fn(Thing) -> Resource) -> Result<Option<(String, u32)>> {
    taken.map(|(name, thing)| Ok((name, RESOURCES.insert(wrap(thing))?))).transpose()
}

/// Gives a map a handle.
pub fn add_map(map: Map) -> Result<u32> {
    RESOURCES.insert(Resource::Map(map))
}

/// Gives a program a handle.
pub fn add_program(program: Program) -> Result<u32> {
    RESOURCES.insert(Resource::Program(program))
}

/// Gives an attachment a handle.
pub fn add_link(link: Link) -> Result<u32> {
    RESOURCES.insert(Resource::Link(link))
}

/// Closes what a handle names, whatever it is.
pub fn close(handle: u32) -> Result<()> {
    RESOURCES.remove(handle).map(drop)
}

/// Pins a map, a program or an attachment.
pub fn pin_at(handle: u32, path: &CStr) -> Result<()> {
    match &*RESOURCES.get(handle)? {
        Resource::Map(map) => pin(map.as_fd(), path),
        Resource::Program(program) => pin(program.as_fd(), path),
        Resource::Link(link) => pin(link.as_fd(), path),
        Resource::Object(_) => Err(Errno::BADF),
    }
}

/// Opens a pin: a handle, and 0 for a map, 1 for a program, 2 for an attachment.
pub fn open_pin(path: &CStr) -> Result<(u32, u32)> {
    match open_pinned(path)? {
        Pinned::Map(map) => Ok((add_map(map)?, 0)),
        Pinned::Program(program) => Ok((add_program(program)?, 1)),
        Pinned::Link(link) => Ok((add_link(link)?, 2)),
    }
}

fn with_object<T>(handle: u32, action: impl FnOnce(&mut Object) -> Result<T>) -> Result<T> {
    match &*RESOURCES.get(handle)? {
        Resource::Object(object) => action(&mut lock(object)),
        _ => Err(Errno::BADF),
    }
}

fn lock(object: &Mutex<Object>) -> MutexGuard<'_, Object> {
    object.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn take<T: Default>(from: &mut T) -> T {
    std::mem::take(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_loaded_once_and_says_why_it_was_not() {
        let object = new_object(b"no object at all").unwrap();
        adjust_map(object, b"map", 1, b"").unwrap();
        assert_eq!(adjust_map(object, b"m\0ap", 1, b""), Err(Errno::INVAL));
        assert_ne!(load_object(object).unwrap(), 0);
        assert!(!text(object).unwrap().is_empty());
        assert_eq!(load_object(object), Err(Errno::INVAL));
        assert_eq!(take_map(object).unwrap(), None);
        assert!(HeldMap::by(object).is_err());
        close(object).unwrap();
        assert_eq!(text(object), Err(Errno::BADF));
    }

    #[test]
    fn a_file_of_no_or_too_many_bytes_is_refused() {
        assert_eq!(new_object(b""), Err(Errno::INVAL));
        assert_eq!(new_object(&vec![0; OBJECT_MAX_BYTES + 1]), Err(Errno::FBIG));
    }
}
