//! The control socket and the boot configuration: lines of a client who may say anything, to a service that can boot
//! machines. The service sees only a folder made for it, so that no path does harm.

use super::memory_file;
use crate::script::Script;
use fluxvm_hypervisor::{BootConfig, Control, Service, Stopper};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, chroot, getrlimit, setrlimit};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

/// A request that is not answered by then never is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Address space: a machine of many TiB would keep the host's kernel busy.
const ADDRESSES_MAX: u64 = 16 << 30;
const LINES_MAX: u32 = 12;
/// A line that is too long, and what comes after it.
const LONG_LINE_BYTES: usize = 70_000;
/// Files that come with one request.
const FILES_MAX: usize = 6;
/// With more the service hangs up.
const FILES_TAKEN: usize = 4;
const FILES: [&str; 4] = ["kernel", "disk", "dev", "initrd"];

/// What clients say, before it is damaged.
const LINES: [&str; 28] = [
    r#"{"action":"ping"}"#,
    r#"{"action":"metrics"}"#,
    r#"{"action":"pause"}"#,
    r#"{"action":"resume"}"#,
    r#"{"action":"power_button"}"#,
    r#"{"action":"shutdown"}"#,
    r#"{"action":"balloon"}"#,
    r#"{"action":"balloon","balloon_mib":64}"#,
    r#"{"action":"snapshot_save","path":"/a"}"#,
    r#"{"action":"snapshot_restore","path":"/a"}"#,
    r#"{"action":"snapshot_save"}"#,
    r#"{"action":"snapshot_save"}"#,
    r#"{"action":"snapshot_restore"}"#,
    r#"{"action":"snapshot_restore"}"#,
    r#"{"action":"checkpoint"}"#,
    r#"{"action":"revert"}"#,
    r#"{"action":"commit"}"#,
    r#"{"action":"migrate_export","path":"/b"}"#,
    r#"{"action":"migrate_import","path":"/b"}"#,
    r#"{"action":"hotplug_cpu","add":1}"#,
    r#"{"action":"hotplug_disk","path":"/disk"}"#,
    r#"{"action":"limit_disk","blk_mbit_limit":0,"blk_ops_limit":9}"#,
    r#"{"action":"boot","kernel":"/kernel","memory_mib":16,"vcpus":1}"#,
    r#"{"action":"boot","kernel":"/kernel","memory_mib":16,"vcpus":1}"#,
    r#"{"action":"boot","kernel":"/kernel","memory_mib":16,"vcpus":1,"max_vcpus":2,"rootfs":"/disk","rootfs_layer":"/c"}"#,
    r#"{"action":"boot","kernel":"/kernel","memory_mib":16,"vcpus":1,"rootfs":"/disk","rootfs_layer":"/c",
        "rootfs_bytes":65536,"vsock_uds":"/v","console":"/d","initrd":"/initrd","kernel_args":"quiet","serial_uds":"/s",
        "hvc_uds":"/h"}"#,
    r#"{"action":"boot","kernel":"/kernel","memory_mib":17,"vcpus":1,"rootfs":"/disk","rootfs_format":"raw","pmem":["/disk"],
        "data_disks":[{"path":"/disk","read_only":true}],"config_disk":"/disk","blk_ops_limit":3,"tap":"x","tap_queues":2,"mac":"2:0:0:0:0:1"}"#,
    r#"{"action":"boot","kernel":"/kernel","memory_mib":16,"vcpus":1,"restore":"/a","ram":"/disk","net_pps_limit":1,
        "jail":{"uid":1,"gid":1,"directory":"/","sockets":"/","limits":{"threads":9}}}"#,
];

/// Confining a thread is for the administrator.
pub fn missing() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("root, to confine the service to a folder")
}

/// A service on a thread of its own, and who talks to it.
struct Talk {
    folder: tempfile::TempDir,
    reader: BufReader<UnixStream>,
    stopper: Stopper,
    thread: JoinHandle<()>,
}

thread_local! {
    static TALK: RefCell<Option<Talk>> = const { RefCell::new(None) };
}

impl Talk {
    fn new() -> Self {
        let limit = Rlimit { current: Some(ADDRESSES_MAX), maximum: getrlimit(Resource::As).maximum };
        setrlimit(Resource::As, limit).expect("a limit");
        let folder = tempfile::tempdir().expect("a folder");
        furnish(folder.path());
        let (near, far) = UnixStream::pair().expect("a socket pair");
        near.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let root = folder.path().to_owned();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            confine(&root);
            let service = Service::start(Control { streams: vec![far], ..Control::default() }).expect("a service");
            sender.send(service.stopper()).expect("somebody waits");
            service.serve();
        });
        let stopper = receiver.recv().expect("a service");
        Self { folder, reader: BufReader::new(near), stopper, thread }
    }

    /// Says something, with files that come along, and reads the answer to each line. False: the service has hung up.
    fn say(&mut self, text: &[u8], files: &[File]) -> bool {
        let stream = self.reader.get_mut();
        let descriptors: Vec<_> = files.iter().map(File::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(along.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for all");
        }
        // A service that has ended is noticed by the answer that does not come.
        if let Ok(sent) = sendmsg(&*stream, &[IoSlice::new(text)], &mut along, SendFlags::NOSIGNAL) {
            let _ = stream.write_all(&text[sent..]);
        }
        text.iter().filter(|byte| **byte == b'\n').all(|_| self.answer().is_some())
    }

    fn answer(&mut self) -> Option<serde_json::Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => {
                let answer: serde_json::Value = serde_json::from_str(&line).expect("answers are JSON");
                assert!(answer["status"].is_string(), "an answer without a status: {line}");
                Some(answer)
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("the service does not answer: {error}"),
        }
    }

    /// Whether no machine was made, so that the next input finds what this one did.
    fn is_fresh(&mut self) -> bool {
        let _ = self.reader.get_mut().write_all(b"{\"action\":\"metrics\"}\n");
        let fresh = self.answer().is_some_and(|answer| answer["lifecycle"] == "created");
        fresh && std::fs::read_dir(self.folder.path()).is_ok_and(|files| files.count() == FILES.len())
    }

    fn end(self) {
        self.stopper.stop();
        self.thread.join().expect("a service ends in order");
    }
}

/// What the service finds.
fn furnish(root: &Path) {
    let mut kernel = vec![0; 2 * 512 + 1024];
    kernel[0x1F1] = 1;
    kernel[0x202..0x208].copy_from_slice(b"HdrS\x0F\x02");
    kernel[0x211] = 1;
    kernel[0x214..0x218].copy_from_slice(&0x10_0000_u32.to_le_bytes());
    kernel[0x22C..0x230].copy_from_slice(&0x7FFF_FFFF_u32.to_le_bytes());
    kernel[0x236] = 1;
    kernel[2 * 512 + 0x200..2 * 512 + 0x203].copy_from_slice(&[0xF4, 0xEB, 0xFD]);
    for (name, bytes) in [("kernel", &kernel[..]), ("disk", &[0; 16384]), ("initrd", &[7; 64])] {
        File::create(root.join(name)).and_then(|file| file.write_all_at(bytes, 0)).expect("a file");
    }
    std::fs::create_dir(root.join("dev")).expect("a folder");
    File::create(root.join("dev/kvm")).expect("a file");
}

/// Leaves the calling thread, and those that it starts, with the folder alone.
fn confine(root: &Path) {
    let own = UnshareFlags::FS | UnshareFlags::NEWNS | UnshareFlags::NEWNET;
    // SAFETY: descriptors and memory stay shared; nothing here relies on threads sharing root and current folder.
    unsafe { unshare_unsafe(own) }.expect("root");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("root");
    // Where the host has no KVM, all machines are refused.
    let _ = mount_bind("/dev/kvm", root.join("dev/kvm"));
    chroot(root).expect("root");
    std::env::set_current_dir("/").expect("a folder");
}

/// Changes some bytes of a file that a service may have written.
fn damage(file: &File, script: &mut Script<'_>) {
    let mut bytes = vec![0; file.metadata().expect("a file").len().min(0x1_0000) as usize];
    file.read_exact_at(&mut bytes, 0).expect("a file");
    script.edit(&mut bytes, 3);
    file.write_all_at(&bytes, 0).expect("a file");
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    TALK.with_borrow_mut(|kept| {
        let mut talk = kept.take().unwrap_or_else(Talk::new);
        let mut may_end = false;
        let files: Vec<File> = (0..FILES_MAX).map(|_| memory_file(0)).collect();
        for _ in 0..LINES_MAX {
            let Some(kind) = script.step() else { break };
            let along = &files[..usize::from([0, 0, 0, 3, 4, 4, 1, FILES_MAX as u8][usize::from(script.u8() % 8)])];
            if script.one_in(4) {
                damage(&files[script.below(4) as usize], &mut script);
            }
            let mut line = match kind {
                0..=0xDF => LINES[usize::from(kind) % LINES.len()].replace('\n', "").into_bytes(),
                0xE0..=0xEF => script.bytes(255),
                0xF0..=0xFE => [b"{\"action\":\"", &*script.bytes(32), b"\"}"].concat(),
                0xFF => vec![script.u8(); LONG_LINE_BYTES],
            };
            script.edit(&mut line, 3);
            let _ = BootConfig::parse(&line);
            line.push(b'\n');
            may_end |= along.len() > FILES_TAKEN;
            may_end |= line.len() > LONG_LINE_BYTES || line.windows(8).any(|word| word == b"shutdown");
            if !talk.say(&line, along) {
                assert!(may_end, "the service hung up after {:?}", String::from_utf8_lossy(&line));
                return talk.end();
            }
        }
        if !may_end && talk.is_fresh() { *kept = Some(talk) } else { talk.end() }
    });
}
