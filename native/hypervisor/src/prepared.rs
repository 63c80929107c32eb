//! A described machine whose files are open: all that needs names or rights outside of the jail is done here, and what is
//! left can be done inside.

use crate::config::{BootConfig, ConfigError, DiskFormat, JailConfig, opening};
use crate::files;
use crate::logs;
use crate::paths::Paths;
use crate::snapshot_files::SnapshotFiles;
use fluxvm_engine::virtio::disk::{Disk, DiskError, DiskImage, ImageFormat};
use fluxvm_jail::{Jail, JailError, Limits, Logs, enter};
use fluxvm_sys::Errno;
use fluxvm_sys::process;
use fluxvm_sys::tap::Tap;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// Connections of the guest, and some more.
const DESCRIPTORS: u64 = 4096;
/// Threads of the kernel's rings and of the program itself.
const THREADS_BESIDE_VCPUS: u64 = 64;
/// As of an image. The map of such a layer has 4 GiB.
const LAYERED_BYTES_MAX: u64 = 1 << 46;
/// What a layer or a snapshot has beside its data: less than one part of a thousand, and a few pages.
const FILE_OVERHEAD: u64 = 1024;
const FILE_OVERHEAD_BYTES: u64 = 16 * MIB;

/// The file of the disk that the guest boots from.
pub(crate) struct RootFile {
    /// Open for writing only where there is no layer.
    pub(crate) file: File,
    /// Size of the disk in the eyes of the guest.
    pub(crate) bytes: u64,
    format: DiskFormat,
    has_layer: bool,
}

/// See the head of this file.
pub struct Prepared {
    pub(crate) config: BootConfig,
    pub(crate) paths: Paths,
    pub(crate) is_jailed: bool,
    pub(crate) kvm: File,
    pub(crate) kernel: File,
    pub(crate) initrd: Option<File>,
    pub(crate) ram: File,
    pub(crate) root: Option<RootFile>,
    pub(crate) config_disk: Option<File>,
    pub(crate) data_disks: Vec<File>,
    pub(crate) pmem: Vec<File>,
    /// Queues of the one tap device.
    pub(crate) taps: Vec<Tap>,
    pub(crate) console: Option<File>,
    /// What the process outside of the jail writes.
    logs: Logs,
    /// One for each queue, or why there is none.
    pub(crate) vhost: io::Result<Vec<File>>,
    /// The snapshot to begin from.
    pub(crate) restore: Option<SnapshotFiles>,
    /// Which pages of its memory this process has written, where the host says.
    pub(crate) page_map: Option<File>,
}

impl Prepared {
    /// Opens all that the configuration names. Nothing is left behind when that fails.
    ///
    /// # Errors
    /// [`ConfigError`] of the first thing that is wrong.
    pub fn open(config: BootConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let mut read = OpenOptions::new();
        read.read(true);
        let mut write = OpenOptions::new();
        write.read(true).write(true);
        let open_optional = |field, path: &Option<_>, options| path.as_deref().map(|path| open(field, path, options));
        let disks = config.data_disks.iter();
        let mut prepared = Self {
            kvm: write.open("/dev/kvm").map_err(fluxvm_engine::error::Error::OpenKvm)?,
            kernel: open("kernel", &config.kernel, &read)?,
            initrd: open_optional("initrd", &config.initrd, &read).transpose()?,
            ram: open_ram(&config, &write)?,
            root: config.rootfs.as_deref().map(|path| RootFile::open(&config, path)).transpose()?,
            config_disk: open_optional("config_disk", &config.config_disk, &read).transpose()?,
            data_disks: disks
                .map(|disk| open("data_disks", &disk.path, if disk.read_only { &read } else { &write }))
                .collect::<Result<_, _>>()?,
            pmem: config.pmem.iter().map(|path| open("pmem", path, &read)).collect::<Result<_, _>>()?,
            taps: open_taps(&config)?,
            vhost: (0..config.tap_queues_made()).map(|_| write.open("/dev/vhost-net")).collect(),
            restore: config.restore.as_deref().map(|path| open_snapshot(path, config.rootfs.is_some())).transpose()?,
            console: None,
            logs: Logs::default(),
            page_map: File::open("/proc/self/pagemap").ok(),
            paths: Paths::default(),
            is_jailed: false,
            config,
        };
        // Last, because opening them makes them.
        (prepared.console, prepared.logs) = logs::open(&prepared.config)?;
        Ok(prepared)
    }

    /// Enters the jail that the configuration describes, if it describes one, with what is open here, the standard
    /// descriptors and `keep`. Returns in the process inside, see [`enter`].
    ///
    /// # Errors
    /// [`JailError`]; the process must then end.
    ///
    /// # Safety
    /// Nobody may use a descriptor that is not kept, nor close it again.
    #[allow(unsafe_code, reason = "closing descriptors that others may use")]
    pub unsafe fn enter_jail(&mut self, keep: &[BorrowedFd<'_>]) -> Result<(), JailError> {
        let Some(description) = &self.config.jail else { return Ok(()) };
        let jail = self.jail(description);
        let logs = take(&mut self.logs);
        let mut descriptors = self.descriptors();
        descriptors.extend(keep);
        // SAFETY: those of this structure are kept, and who calls answers for the others.
        let page_map = unsafe { enter(&jail, &descriptors, logs)? };
        // The one from before is of the process outside, and is not kept; it must not be closed, either.
        std::mem::forget(std::mem::replace(&mut self.page_map, page_map));
        self.paths = Paths::in_jail(description);
        self.is_jailed = true;
        Ok(())
    }

    /// Where the process sees a file of the host, if it does.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<PathBuf> {
        self.paths.find("path", path).ok()
    }

    fn jail(&self, description: &JailConfig) -> Jail {
        let disk_bytes = self.root.iter().map(|root| root.bytes).max().unwrap_or(0);
        let data_bytes = self.data_disks.iter().filter_map(|file| file.metadata().ok()).map(|found| found.len()).max();
        let file_bytes = disk_bytes.max(data_bytes.unwrap_or(0)).max(self.config.memory_mib * MIB);
        let given = description.limits;
        let limits = Limits {
            descriptors: given.descriptors.unwrap_or(DESCRIPTORS),
            threads: given.threads.unwrap_or(u64::from(self.config.vcpus_made()) + THREADS_BESIDE_VCPUS),
            file_bytes: given.file_bytes.unwrap_or(file_bytes + file_bytes / FILE_OVERHEAD + FILE_OVERHEAD_BYTES),
        };
        let JailConfig { uid, gid, directory, sockets, cgroup, .. } = description.clone();
        Jail { uid, gid, directory, sockets, cgroup, limits }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Self {
            kvm, kernel, initrd, ram, root, config_disk, data_disks, pmem, taps, console, vhost, restore, ..
        } = self;
        let files = [kvm, kernel, ram]
            .into_iter()
            .chain(initrd)
            .chain(config_disk)
            .chain(data_disks)
            .chain(pmem)
            .chain(console);
        let files = files.chain(vhost.iter().flatten()).chain(restore.iter().flat_map(SnapshotFiles::open_files));
        let files = files.chain(root.iter().map(|root| &root.file)).map(AsFd::as_fd);
        files.chain(taps.iter().map(AsFd::as_fd)).collect()
    }
}

impl RootFile {
    fn open(config: &BootConfig, path: &Path) -> Result<Self, ConfigError> {
        let has_layer = config.rootfs_layer.is_some();
        let file = open("rootfs", path, OpenOptions::new().read(true).write(!has_layer))?;
        let mut root = Self { file, bytes: 0, format: config.rootfs_format, has_layer };
        root.bytes = root.open_disk().map_err(device("rootfs"))?.bytes();
        if let Some(bytes) = config.rootfs_bytes {
            if bytes < root.bytes {
                return Err(ConfigError::Field("rootfs_bytes", "must not be less than what the image has"));
            }
            root.bytes = bytes;
        }
        if has_layer && root.bytes > LAYERED_BYTES_MAX {
            return Err(ConfigError::Field("rootfs_bytes", "a disk with a layer has 64 TiB at most"));
        }
        Ok(root)
    }

    /// The disk as it is without its layer, in its own size.
    fn open_disk(&self) -> Result<Disk, DiskError> {
        let file = self.file.try_clone()?;
        let format = match self.format {
            DiskFormat::Raw if !self.has_layer => return Disk::open(file, false),
            DiskFormat::Raw => ImageFormat::Raw,
            DiskFormat::Qcow2 => ImageFormat::Qcow2,
        };
        Disk::open_images(vec![DiskImage { file, format }])
    }

    /// The disk as it is without its layer, in the size that the guest will see.
    ///
    /// # Errors
    /// [`DiskError`].
    pub(crate) fn disk(&self) -> Result<Disk, DiskError> {
        let mut disk = self.open_disk()?;
        disk.grow(self.bytes)?;
        Ok(disk)
    }
}

/// Opens a file and says which field named it when that fails.
pub(crate) fn open(field: &'static str, path: &Path, options: &OpenOptions) -> Result<File, ConfigError> {
    files::open(path, options).map_err(opening(field, path))
}

fn open_snapshot(path: &Path, has_disk: bool) -> Result<SnapshotFiles, ConfigError> {
    let paths = SnapshotFiles::At(path.to_owned()).paths(has_disk);
    let files = paths.into_iter().map(|path| open("restore", &path, OpenOptions::new().read(true)));
    files.collect::<Result<_, _>>().map(SnapshotFiles::Passed)
}

fn open_ram(config: &BootConfig, options: &OpenOptions) -> Result<File, ConfigError> {
    let bytes = config.memory_mib.checked_mul(MIB).ok_or(ConfigError::Field("memory_mib", "is too large"))?;
    let Some(path) = &config.ram else {
        let memory = memfd_create("guest-memory", MemfdFlags::CLOEXEC);
        let memory = File::from(memory.map_err(|errno| ConfigError::Memory(errno.into()))?);
        memory.set_len(bytes).map_err(ConfigError::Memory)?;
        return Ok(memory);
    };
    let memory = open("ram", path, options)?;
    if memory.metadata().map_err(ConfigError::Memory)?.len() != bytes {
        return Err(ConfigError::Field("ram", "the file must have exactly the size that memory_mib says"));
    }
    Ok(memory)
}

/// Attaches to a tap device that exists: attaching alone would make one that leads nowhere.
fn open_taps(config: &BootConfig) -> Result<Vec<Tap>, ConfigError> {
    let Some(name) = config.tap.as_deref() else { return adopt_taps(&config.tap_descriptors) };
    let queues = config.tap_queues_made();
    let attached = socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .and_then(|socket| name_to_index(socket, name))
        .and_then(|_| (0..queues).map(|_| Tap::attach(name, queues > 1)).collect());
    attached.map_err(|errno| {
        let why = match errno {
            Errno::NODEV => "there is no network device of that name",
            Errno::INVAL => {
                "it is no tap device, or was made with several queues where tap_queues is 1, or the other way round"
            }
            Errno::BUSY => "another program is attached to it",
            _ => return ConfigError::Device("tap", Box::new(io::Error::from(errno))),
        };
        ConfigError::Field("tap", why)
    })
}

/// Whoever opened these keeps its own.
fn adopt_taps(descriptors: &[RawFd]) -> Result<Vec<Tap>, ConfigError> {
    let adopt = |descriptor: &RawFd| process::duplicate(*descriptor).and_then(Tap::adopt);
    let adopted = descriptors.iter().map(adopt).collect::<rustix::io::Result<_>>();
    adopted.map_err(|_| ConfigError::Field("tap_descriptors", "one of them is no open queue of a tap device"))
}

/// For `map_err`: the device that a field describes cannot be made.
pub(crate) fn device<E: std::error::Error + Send + Sync + 'static>(
    field: &'static str,
) -> impl FnOnce(E) -> ConfigError {
    move |error| ConfigError::Device(field, Box::new(error))
}
