//! A folder with a kernel of our own, a disk, and the program that runs it.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[path = "../../../engine/tests/guest/image.rs"]
mod image;

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const DISK_BYTES: u64 = 1 << 20;
pub const MEMORY_MIB: u64 = 64;
/// The user of the jail.
pub const ID: u32 = 993_444;

pub const OK: &str = r#"{"status":"ok"}"#;
pub const PAUSED: &str = r#"{"status":"state","lifecycle":"paused"}"#;
pub const RUNNING: &str = r#"{"status":"state","lifecycle":"running"}"#;

/// A folder; nothing of it is left when it is dropped.
pub struct Lab {
    folder: TempDir,
}

impl Lab {
    /// A kernel and a disk full of ones, and two directories for a jail.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lab = Self { folder };
        let mut kernel = image::kernel();
        io::Seek::rewind(&mut kernel).unwrap();
        io::copy(&mut kernel, &mut File::create(lab.path("kernel")).unwrap()).unwrap();
        fs::write(lab.path("disk"), vec![b'1'; DISK_BYTES as usize]).unwrap();
        for name in ["volume", "sockets"] {
            fs::create_dir(lab.path(name)).unwrap();
            fs::set_permissions(lab.path(name), fs::Permissions::from_mode(0o700)).unwrap();
            if rustix::process::geteuid().is_root() {
                chown(lab.path(name), Some(ID), Some(ID)).unwrap();
            }
        }
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration of a guest that does what the letter says, with a disk.
    pub fn config(&self, letter: char) -> Value {
        json!({
            "kernel": self.path("kernel"), "rootfs": self.path("disk"), "console": self.path("console"),
            "vsock_uds": self.path("sockets/vsock"), "memory_mib": MEMORY_MIB, "vcpus": 2,
            "kernel_args": letter.to_string(), "engine": "kvm",
        })
    }

    /// The same with a layer over the disk, in the jail, with RAM in a file by which the test looks into the guest.
    pub fn jailed_config(&self, letter: char) -> Value {
        let mut config = self.config(letter);
        self.new_ram();
        config["ram"] = json!(self.path("ram"));
        config["rootfs_layer"] = json!(self.path("volume/layer"));
        config["jail"] = json!({
            "uid": ID, "gid": ID, "directory": self.path("volume"), "sockets": self.path("sockets"),
        });
        config
    }

    /// The memory of a guest that has not begun; whoever has the file before keeps that.
    pub fn new_ram(&self) {
        let _ = fs::remove_file(self.path("ram"));
        File::create(self.path("ram")).unwrap().set_len(MEMORY_MIB << 20).unwrap();
    }

    /// All files but those that were there before, and logs.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        collect(self.folder.path(), self.folder.path(), &mut left);
        left.retain(|name| !["kernel", "disk", "config", "ram", "console", "console.1"].contains(&name.as_str()));
        left.sort();
        left
    }
}

fn collect(root: &Path, directory: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => collect(root, &entry.path(), names),
            false => names.push(entry.path().strip_prefix(root).unwrap().to_string_lossy().into_owned()),
        }
    }
}

/// The program. Only a test that failed leaves it running, and then it is ended here.
pub struct Hypervisor<'a> {
    pub lab: &'a Lab,
    pub process: Child,
}

impl<'a> Hypervisor<'a> {
    /// Without a machine.
    pub fn start(lab: &'a Lab) -> Self {
        Self::with(lab, &[])
    }

    /// With a machine from its beginning.
    pub fn boot(lab: &'a Lab, config: &Value) -> Self {
        fs::write(lab.path("config"), config.to_string()).unwrap();
        Self::with_config(lab)
    }

    /// With what the file of the configuration says.
    pub fn with_config(lab: &'a Lab) -> Self {
        let path = lab.path("config");
        Self::with(lab, &["--boot-config", path.to_str().unwrap()])
    }

    fn with(lab: &'a Lab, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fluxvm-hypervisor"));
        command.arg("--api-sock").arg(lab.path("sockets/control")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { process: command.spawn().unwrap(), lab }
    }

    /// Ends the program and its guest at once, and boots the same configuration again with other memory, as a host does after
    /// a power cut.
    pub fn after_power_cut(mut self) -> Self {
        self.process.kill().unwrap();
        self.ended();
        self.lab.new_ram();
        let again = Self::with_config(self.lab);
        again.wait_running();
        again
    }

    pub fn connect(&self) -> UnixStream {
        let mut stream = None;
        self.wait("a socket", || {
            stream = UnixStream::connect(self.lab.path("sockets/control")).ok();
            stream.is_some()
        });
        stream.unwrap()
    }

    pub fn ask(&self, request: &Value) -> String {
        let mut stream = self.connect();
        writeln!(stream, "{request}").unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        reply.trim_end().to_owned()
    }

    /// Asks with open files.
    pub fn ask_with(&self, request: &Value, files: &[File]) -> String {
        let stream = self.connect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let line = format!("{request}\n");
        let sent = sendmsg(&stream, &[IoSlice::new(line.as_bytes())], &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Ok(line.len()));
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        reply.trim_end().to_owned()
    }

    pub fn act(&self, action: &str) -> String {
        self.ask(&json!({ "action": action }))
    }

    pub fn act_at(&self, action: &str, path: &Path) -> String {
        self.ask(&json!({ "action": action, "path": path }))
    }

    /// Boots by a request with a configuration.
    pub fn boot_now(&self, config: &Value) -> String {
        let mut request = config.clone();
        request["action"] = json!("boot");
        self.ask(&request)
    }

    pub fn wait_running(&self) {
        self.wait("a machine that runs", || self.act("metrics").contains(r#""lifecycle":"running""#));
    }

    /// Bytes of the layer of a checkpoint, which is thrown away or merged, of a machine in the jail.
    pub fn trial_bytes(&self) -> u64 {
        let outer = self.process.id();
        let inner = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
        let open = fs::read_dir(format!("/proc/{}/fd", inner.trim())).unwrap().flatten().map(|entry| entry.path());
        let is_trial = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("layer.unfinished"))
        };
        let trial = open.into_iter().find(is_trial).expect("a layer without a name");
        fs::metadata(trial).unwrap().blocks() * 512
    }

    pub fn printed(&self) -> String {
        fs::read_to_string(self.lab.path("console")).unwrap_or_default()
    }

    /// Waits until the guest has printed that.
    pub fn wait_printed(&self, text: &str) {
        self.wait(text, || self.printed() == text);
    }

    /// Waits for the end; also gives what was said about it.
    pub fn ended(&mut self) -> (ExitStatus, String) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                let mut said = String::new();
                self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                return (status, said);
            }
            assert!(began.elapsed() < PATIENCE, "the program goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < PATIENCE, "no {what}; the guest printed {:?}", self.printed());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Hypervisor<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A guest that does what the test puts into its memory, which is a file.
pub struct Driven {
    ram: File,
    next: u64,
}

impl Driven {
    pub fn new(lab: &Lab) -> Self {
        Self { ram: File::options().read(true).write(true).open(lab.path("ram")).unwrap(), next: 0x7_0000 }
    }

    pub fn word(&self, address: u64) -> u32 {
        let mut bytes = [0; 4];
        self.ram.read_exact_at(&mut bytes, address).unwrap();
        u32::from_le_bytes(bytes)
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.ram.write_all_at(bytes, address).unwrap();
    }

    fn run(&mut self, what: u32, address: u32, value: u32) -> u32 {
        let at = self.next;
        self.next += 16;
        for (offset, word) in [(4, address), (8, value), (0, what)] {
            self.put(at + offset, &word.to_le_bytes());
        }
        let began = Instant::now();
        while self.word(at) != 0x8000_0000 {
            assert!(began.elapsed() < PATIENCE, "the guest does nothing");
            std::thread::sleep(Duration::from_micros(200));
        }
        self.word(at + 12)
    }

    /// What the guest reads at an address.
    pub fn read(&mut self, address: u32) -> u32 {
        self.run(2, address, 0)
    }

    /// Writes 512 bytes of a letter to a sector of the first disk, and flushes.
    pub fn write_disk(&mut self, sector: u64, letter: u8) {
        self.bring_up_disk();
        self.write_beside(sector, letter);
    }

    /// The same, once and without reading back: whether the device says that it is on the disk.
    pub fn try_write_disk(&mut self, sector: u64, letter: u8) -> bool {
        self.bring_up_disk();
        self.put(0x6_5000, &[letter; 512]);
        self.disk_request(1, sector, 0x6_5000, false) == 0 && self.disk_request(4, 0, 0x6_5000, false) == 0
    }

    /// Begins to write, on the side, while the other requests of the disk go on.
    pub fn begin_write(&mut self, sector: u64, letter: u8) {
        self.bring_up_disk();
        self.put(0x6_5200, &[letter; 512]);
        self.offer(ASIDE, 1, sector, 0x6_5200, false);
        self.run(1, NOTIFY, 0);
    }

    /// What the device says of it: nothing, or whether it is written.
    pub fn begun(&self) -> Option<bool> {
        let status = self.word(ASIDE.status()).to_le_bytes()[0];
        (status != 0xFF).then_some(status == 0)
    }

    /// Writes as [`Self::write_disk`], to a disk that is up.
    pub fn write_beside(&mut self, sector: u64, letter: u8) {
        self.put(0x6_5000, &[letter; 512]);
        assert_eq!(self.disk_request(1, sector, 0x6_5000, false), 0, "the write failed");
        assert_eq!(self.disk_request(4, 0, 0x6_5000, false), 0, "the flush failed");
    }

    /// Reads the first byte of a sector of a disk that is up.
    pub fn read_beside(&mut self, sector: u64) -> u8 {
        assert_eq!(self.disk_request(0, sector, 0x6_6000, true), 0, "the read failed");
        self.word(0x6_6000).to_le_bytes()[0]
    }

    pub fn read_disk(&mut self, sector: u64) -> u8 {
        self.try_read_disk(sector).expect("the read failed")
    }

    /// The first byte of a sector, unless the device says that it cannot be read.
    pub fn try_read_disk(&mut self, sector: u64) -> Option<u8> {
        self.bring_up_disk();
        let is_read = self.disk_request(0, sector, 0x6_6000, true) == 0;
        is_read.then(|| self.word(0x6_6000).to_le_bytes()[0])
    }

    /// The device in the first window, with one queue of eight at 0x60000.
    fn bring_up_disk(&mut self) {
        const BASE: u32 = 0xFEB0_0000;
        self.put(0x6_0000, &[0; 0x3000]);
        for (register, value) in [
            (0x70, 0),
            (0x70, 1),
            (0x70, 3),
            (0x24, 1),
            (0x20, 1),
            (0x24, 0),
            (0x20, 1 << 9),
            (0x70, 11),
            (0x30, 0),
            (0x38, 8),
            (0x80, 0x6_0000),
            (0x84, 0),
            (0x90, 0x6_1000),
            (0x94, 0),
            (0xA0, 0x6_2000),
            (0xA4, 0),
            (0x44, 1),
            (0x70, 15),
        ] {
            self.run(1, BASE + register, value);
        }
        assert_eq!(self.run(2, BASE + 0x70, 0), 15, "the device is not ready");
    }

    fn disk_request(&mut self, kind: u32, sector: u64, data: u64, is_read: bool) -> u8 {
        let used = self.word(0x6_2000) >> 16;
        self.offer(FIRST, kind, sector, data, is_read);
        self.run(1, NOTIFY, 0);
        let began = Instant::now();
        while self.word(0x6_2000) >> 16 == used {
            assert!(began.elapsed() < PATIENCE, "the disk does not answer");
            std::thread::sleep(Duration::from_micros(200));
        }
        self.word(FIRST.status()).to_le_bytes()[0]
    }

    /// Has a paused guest write to the disk, which it knows already, as the next that it does.
    pub fn stage_write(&mut self, sector: u64, letter: u8) {
        self.put(0x6_5000, &[letter; 512]);
        self.offer(FIRST, 1, sector, 0x6_5000, false);
        for (offset, word) in [(4, NOTIFY), (8, 0), (0, 1)] {
            self.put(self.next + offset, &word.to_le_bytes());
        }
    }

    /// Whether it has begun to.
    pub fn staged_is_done(&self) -> bool {
        self.word(self.next) == 0x8000_0000
    }

    /// The next thing is another.
    pub fn skip_staged(&mut self) {
        self.next += 16;
    }

    /// A paused guest is not to write.
    pub fn unstage(&mut self) {
        assert!(!self.staged_is_done());
        self.put(self.next, &[0; 16]);
        let available = (self.word(0x6_1000) >> 16) as u16;
        self.put(0x6_1002, &(available - 1).to_le_bytes());
    }

    fn offer(&self, place: Place, kind: u32, sector: u64, data: u64, is_read: bool) {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.put(place.header(), &header);
        self.put(place.status(), &[0xFF]);
        let data_flags = NEXT | if is_read { WRITE } else { 0 };
        let mut buffers = vec![(place.header(), 16u32, NEXT)];
        if kind != 4 {
            buffers.push((data, 512, data_flags));
        }
        buffers.push((place.status(), 1, WRITE));
        for (index, (address, bytes, flags)) in (place.0..).zip(&buffers) {
            let mut descriptor = address.to_le_bytes().to_vec();
            descriptor.extend(bytes.to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            descriptor.extend((index + 1).to_le_bytes());
            self.put(0x6_0000 + 16 * u64::from(index), &descriptor);
        }
        let available = (self.word(0x6_1000) >> 16) as u16;
        self.put(0x6_1004 + 2 * u64::from(available % 8), &place.0.to_le_bytes());
        self.put(0x6_1002, &(available + 1).to_le_bytes());
    }
}

/// The first of the descriptors of a request, of which two can be under way.
#[derive(Clone, Copy)]
struct Place(u16);

const FIRST: Place = Place(0);
const ASIDE: Place = Place(4);

impl Place {
    fn header(self) -> u64 {
        0x6_4000 + 0x200 * u64::from(self.0)
    }

    fn status(self) -> u64 {
        self.header() + 0x100
    }
}

/// Where a driver tells the first device that there is something in a queue.
const NOTIFY: u32 = 0xFEB0_0050;

/// Whether there is a KVM; names it when it is missing.
pub fn can_run() -> bool {
    let can = File::options().read(true).write(true).open("/dev/kvm").is_ok();
    if !can {
        eprintln!("missing capability: /dev/kvm");
    }
    can
}

/// Whether there can be a jail; names what is missing.
pub fn can_jail() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("missing capability: root");
    }
    can_run() && is_root
}
