//! A new identity for a guest that was cloned with its memory: host name, machine id, random numbers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use files::Root;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_bytes::ByteBuf;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use wire::request::{IdentityReport, ResetIdentityRequest, WriteFileRequest};

const HOSTNAME_MAX: usize = 64;
const ENTROPY_MAX: usize = 512;
const DBUS_MACHINE_ID: &str = "var/lib/dbus/machine-id";
/// Linux's ioctl numbers for /dev/random: add bytes and credit them, and use them at once.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// Does what `request` asks for, as far as it can.
pub fn reset(root: &Root, root_path: &Path, request: &ResetIdentityRequest) -> IdentityReport {
    let mut report = IdentityReport::default();
    let mut note = |what: &str, done: Result<(), String>| match done {
        Ok(()) => report.applied.push(what.into()),
        Err(why) => report.failures.push(format!("{what}: {why}")),
    };
    if let Some(hostname) = &request.hostname {
        note("hostname", set_hostname(root, hostname));
    }
    if request.regenerate_machine_id {
        note("machine-id", regenerate_machine_id(root, root_path));
    }
    if request.reseed_entropy || request.entropy_base64.is_some() {
        note("entropy", reseed(request.entropy_base64.as_deref()));
    }
    report
}

/// 32 random hex digits.
pub fn random_hex() -> Result<String, Errno> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn set_hostname(root: &Root, hostname: &str) -> Result<(), String> {
    name_machine(hostname)?;
    write(root, "/etc/hostname", &format!("{hostname}\n"), 0o644)
}

/// Gives the running machine its name, which no file remembers.
pub fn name_machine(hostname: &str) -> Result<(), String> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let edges = hostname.starts_with(['-', '.']) || hostname.ends_with(['-', '.']);
    if hostname.is_empty() || hostname.len() > HOSTNAME_MAX || edges || !hostname.bytes().all(valid) {
        return Err("not a host name".into());
    }
    rustix::system::sethostname(hostname.as_bytes()).map_err(|errno| errno.to_string())
}

fn regenerate_machine_id(root: &Root, root_path: &Path) -> Result<(), String> {
    let id = random_hex().map_err(|errno| errno.to_string())?;
    write(root, "/etc/machine-id", &format!("{id}\n"), 0o444)?;
    // Usually a link to the other; where it is a file of its own it must say the same.
    let own = root_path.join(DBUS_MACHINE_ID).symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    if own { write(root, &format!("/{DBUS_MACHINE_ID}"), &format!("{id}\n"), 0o444) } else { Ok(()) }
}

fn write(root: &Root, path: &str, content: &str, mode: u32) -> Result<(), String> {
    let request = WriteFileRequest { path: ByteBuf::from(path), mode, parents: false, max: content.len() as u64 };
    files::write_file(root, &request, &mut content.as_bytes()).map(|_| ()).map_err(|fault| fault.message)
}

/// Mixes random numbers of the host, if there are any, into the kernel's, and has them used at once.
pub fn reseed(entropy_base64: Option<&str>) -> Result<(), String> {
    let random = OpenOptions::new().write(true).open("/dev/random").map_err(|error| error.to_string())?;
    if let Some(text) = entropy_base64 {
        let entropy = BASE64.decode(text).map_err(|_| "entropy_base64 is not base64".to_string())?;
        if entropy.is_empty() || entropy.len() > ENTROPY_MAX {
            return Err(format!("entropy of {} bytes; 1 to {ENTROPY_MAX} are taken", entropy.len()));
        }
        add_entropy(&random, &entropy).map_err(|error| error.to_string())?;
    }
    // SAFETY: this ioctl takes no argument.
    let status = unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG) };
    if status < 0 { Err(std::io::Error::last_os_error().to_string()) } else { Ok(()) }
}

fn add_entropy(random: &File, entropy: &[u8]) -> std::io::Result<()> {
    // struct rand_pool_info: bits to credit, bytes that follow, the bytes.
    let mut pool = Vec::with_capacity(8 + entropy.len());
    pool.extend_from_slice(&(entropy.len() as i32 * 8).to_ne_bytes());
    pool.extend_from_slice(&(entropy.len() as i32).to_ne_bytes());
    pool.extend_from_slice(entropy);
    // SAFETY: the kernel reads two integers and as many bytes as the second says, all of which `pool` holds.
    let status = unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, pool.as_ptr()) };
    if status < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
