//! Tap devices: attaching a queue, the header in front of each frame, and what work the kernel may leave to the reader.

use crate::ioctl::{READ, WRITE, request_number, with_integer, with_structure};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const GROUP: u32 = b'T' as u32;
const SET_INTERFACE: libc::Ioctl = request_number(WRITE, GROUP, 202, size_of::<libc::c_int>());
const SET_PERSISTENT: libc::Ioctl = request_number(WRITE, GROUP, 203, size_of::<libc::c_int>());
const SET_OWNER: libc::Ioctl = request_number(WRITE, GROUP, 204, size_of::<libc::c_int>());
const SET_OFFLOAD: libc::Ioctl = request_number(WRITE, GROUP, 208, size_of::<libc::c_uint>());
const GET_INTERFACE: libc::Ioctl = request_number(READ, GROUP, 210, size_of::<libc::c_uint>());
const SET_HEADER_SIZE: libc::Ioctl = request_number(WRITE, GROUP, 216, size_of::<libc::c_int>());
const SET_QUEUE: libc::Ioctl = request_number(WRITE, GROUP, 217, size_of::<libc::c_int>());
const SET_LITTLE_ENDIAN: libc::Ioctl = request_number(WRITE, GROUP, 220, size_of::<libc::c_int>());

const IFF_TAP: u32 = 0x0002;
const IFF_NO_PI: u32 = 0x1000;
const IFF_VNET_HDR: u32 = 0x4000;
const IFF_MULTI_QUEUE: u32 = 0x0100;
const IFF_ATTACH_QUEUE: u32 = 0x0200;
const IFF_DETACH_QUEUE: u32 = 0x0400;

/// The reader finishes checksums.
pub const OFFLOAD_CHECKSUM: u32 = 0x01;
/// The reader takes TCP segments over IPv4 that are longer than the link allows.
pub const OFFLOAD_TSO4: u32 = 0x02;
/// The same over IPv6.
pub const OFFLOAD_TSO6: u32 = 0x04;
/// Such segments may carry congestion marks.
pub const OFFLOAD_TSO_ECN: u32 = 0x08;

/// One queue of a tap device, without blocking, with a virtio header in front of each frame.
pub struct Tap {
    file: OwnedFd,
}

impl Tap {
    /// Attaches to the tap device of that name in this network namespace, making it when there is none. `multiqueue` must
    /// be what the device was made with.
    ///
    /// # Errors
    /// `NAMETOOLONG`, `PERM` without the right to the device, `BUSY` when another program has it, `INVAL` when it is
    /// no tap device or was made differently, or what opening `/dev/net/tun` says.
    pub fn attach(name: &str, multiqueue: bool) -> Result<Self> {
        Self::attach_through("/dev/net/tun", name, multiqueue)
    }

    /// Attaches to a macvtap, whose queues are opened through a device file of its own.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_macvtap(device: &str, name: &str, multiqueue: bool) -> Result<Self> {
        Self::attach_through(device, name, multiqueue)
    }

    fn attach_through(device: &str, name: &str, multiqueue: bool) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(device, flags, Mode::empty())?;
        let queue_flag = if multiqueue { IFF_MULTI_QUEUE } else { 0 };
        let mut request = request(IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | queue_flag);
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(Errno::NAMETOOLONG);
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: TUNSETIFF reads and writes one interface request.
        unsafe { with_structure(file.as_fd(), SET_INTERFACE, &mut request)? };
        Ok(Self { file })
    }

    /// Keeps the device when its last queue is closed, for `owner` to attach to without other rights.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn keep(&self, owner: Option<u32>) -> Result<()> {
        if let Some(owner) = owner {
            with_integer(self.file.as_fd(), SET_OWNER, u64::from(owner))?;
        }
        with_integer(self.file.as_fd(), SET_PERSISTENT, 1).map(drop)
    }

    /// Takes over a descriptor that someone else has attached.
    ///
    /// # Errors
    /// `INVAL` when it is no tap queue with a virtio header in front of each frame, or what the kernel says about it.
    pub fn adopt(file: OwnedFd) -> Result<Self> {
        let mut found = request(0);
        // SAFETY: TUNGETIFF writes one interface request.
        unsafe { with_structure(file.as_fd(), GET_INTERFACE, &mut found)? };
        // SAFETY: TUNGETIFF has filled in the flags.
        let flags = u32::from(unsafe { found.ifr_ifru.ifru_flags }.cast_unsigned());
        let wanted = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        if flags & wanted != wanted {
            return Err(Errno::INVAL);
        }
        rustix::io::ioctl_fionbio(&file, true)?;
        Ok(Self { file })
    }

    /// Sets the length of the header in front of each frame, in bytes, and that its numbers are little endian.
    ///
    /// # Errors
    /// `INVAL` when the kernel wants a longer header.
    pub fn set_header(&self, bytes: usize) -> Result<()> {
        let mut bytes = libc::c_int::try_from(bytes).map_err(|_| Errno::INVAL)?;
        // SAFETY: TUNSETVNETHDRSZ reads one integer.
        unsafe { with_structure(self.file.as_fd(), SET_HEADER_SIZE, &mut bytes)? };
        let mut yes: libc::c_int = 1;
        // SAFETY: TUNSETVNETLE reads one integer.
        unsafe { with_structure(self.file.as_fd(), SET_LITTLE_ENDIAN, &mut yes)? };
        Ok(())
    }

    /// Sets which work the kernel may leave to the reader, `OFFLOAD_*`.
    ///
    /// # Errors
    /// `INVAL` for work that this kernel does not know.
    pub fn set_offloads(&self, offloads: u32) -> Result<()> {
        let request = SET_OFFLOAD;
        with_integer(self.file.as_fd(), request, u64::from(offloads)).map(|_| ())
    }

    /// Whether this queue of a device with several gets frames.
    ///
    /// # Errors
    /// `INVAL` when the device has one queue only, or it already is as asked for.
    pub fn set_enabled(&self, enabled: bool) -> Result<()> {
        let mut request = request(if enabled { IFF_ATTACH_QUEUE } else { IFF_DETACH_QUEUE });
        // SAFETY: TUNSETQUEUE reads one interface request.
        unsafe { with_structure(self.file.as_fd(), SET_QUEUE, &mut request)? };
        Ok(())
    }
}

impl From<Tap> for OwnedFd {
    fn from(tap: Tap) -> Self {
        tap.file
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn request(flags: u32) -> libc::ifreq {
    // SAFETY: an interface request is plain data whose bytes may all be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    request
}
