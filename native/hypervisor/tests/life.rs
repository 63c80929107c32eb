//! The program from outside, with a guest of our own on this host's KVM: its control socket, snapshots, and how it ends.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../engine/tests/guest/image.rs"]
mod image;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const DISK_BYTES: usize = 1 << 20;

struct Hypervisor {
    folder: TempDir,
    process: Child,
}

impl Hypervisor {
    /// Starts the program in a folder with a kernel and a disk.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        io::copy(&mut &rewound(image::kernel()), &mut File::create(folder.path().join("kernel")).unwrap()).unwrap();
        fs::write(folder.path().join("disk"), vec![b'1'; DISK_BYTES]).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fluxvm-hypervisor"));
        command.arg("--api-sock").arg(folder.path().join("api.sock")).stderr(Stdio::null());
        let hypervisor = Self { process: command.spawn().unwrap(), folder };
        hypervisor.wait(|| UnixStream::connect(hypervisor.path("api.sock")).is_ok());
        hypervisor
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.path("api.sock")).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        reply.trim_end().to_owned()
    }

    /// Boots a guest that does what the letter says.
    fn boot(&self, letter: char) -> String {
        let (kernel, disk) = (self.path("kernel"), self.path("disk"));
        let (console, vsock) = (self.path("console"), self.path("vsock"));
        self.ask(
            &format!(
                r#"{{"action":"boot","kernel":{kernel:?},"rootfs":{disk:?},"console":{console:?},"vsock_uds":{vsock:?},
            "memory_mib":64,"vcpus":2,"kernel_args":"{letter}","engine":"kvm"}}"#
            )
            .replace('\n', " "),
        )
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.path("console")).unwrap_or_default()
    }

    fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the program goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait(&self, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < PATIENCE, "nothing happens; printed {:?}", self.printed());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        // Only a test that failed leaves it running.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn rewound(mut file: File) -> File {
    io::Seek::rewind(&mut file).unwrap();
    file
}

fn can_run() -> bool {
    let can = File::options().read(true).write(true).open("/dev/kvm").is_ok();
    if !can {
        eprintln!("missing capability: /dev/kvm");
    }
    can
}

const OK: &str = r#"{"status":"ok"}"#;
const PAUSED: &str = r#"{"status":"state","lifecycle":"paused"}"#;
const RUNNING: &str = r#"{"status":"state","lifecycle":"running"}"#;

#[test]
fn the_status_tells_how_the_guest_ended() {
    if !can_run() {
        return;
    }
    for (letter, status) in [('h', 0), ('r', 20), ('f', 21)] {
        let mut hypervisor = Hypervisor::start();
        assert_eq!(hypervisor.boot(letter), OK);
        assert_eq!(hypervisor.ended().code(), Some(status), "{letter}");
        assert!(!hypervisor.path("api.sock").exists() && !hypervisor.path("vsock").exists());
    }
}

#[test]
fn a_machine_lives_by_requests() {
    if !can_run() {
        return;
    }
    let mut hypervisor = Hypervisor::start();
    assert!(hypervisor.ask(r#"{"action":"resume"}"#).contains("there is no machine yet"));
    assert_eq!(hypervisor.boot('s'), OK);
    hypervisor.wait(|| hypervisor.printed() == "2");
    assert!(hypervisor.boot('s').contains("there is a machine already, and it is running"));
    for _ in 0..3 {
        assert_eq!(hypervisor.ask(r#"{"action":"pause"}"#), PAUSED);
        assert_eq!(hypervisor.ask(r#"{"action":"pause"}"#), PAUSED);
        assert_eq!(hypervisor.ask(r#"{"action":"resume"}"#), RUNNING);
    }
    let metrics = r#"{"status":"metrics","memory_mib":64,"vcpus":2,"lifecycle":"running"}"#;
    assert_eq!(hypervisor.ask(r#"{"action":"metrics"}"#), metrics);
    assert!(hypervisor.ask(r#"{"action":"balloon"}"#).contains(r#"\"memory_mib\":64"#));
    assert_eq!(hypervisor.ask(r#"{"action":"shutdown"}"#), OK);
    assert!(hypervisor.ended().success());
}

#[test]
fn a_restore_puts_memory_and_disk_back_and_only_reads_the_snapshot() {
    if !can_run() {
        return;
    }
    let mut hypervisor = Hypervisor::start();
    assert_eq!(hypervisor.boot('m'), OK);
    let snapshot = hypervisor.path("snapshot");
    let save = format!(r#"{{"action":"snapshot_save","path":{snapshot:?}}}"#);
    let restore = format!(r#"{{"action":"snapshot_restore","path":{snapshot:?}}}"#);
    assert!(hypervisor.ask(&restore).contains("cannot be used"));
    assert_eq!(hypervisor.ask(&save), OK);
    assert_eq!(hypervisor.ask(r#"{"action":"pause"}"#), PAUSED, "it ran before, so it does afterwards");
    assert!(hypervisor.ask(&save).contains("exists already"));
    let files = ["", ".mem", ".vmstate", ".rootfs"].map(|end| hypervisor.path(&format!("snapshot{end}")));
    let contents = || files.iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect::<BTreeMap<_, _>>();
    let before = contents();
    for _ in 0..3 {
        fs::write(hypervisor.path("disk"), vec![b'2'; DISK_BYTES]).unwrap();
        assert_eq!(hypervisor.ask(&restore), OK);
        assert_eq!(fs::read(hypervisor.path("disk")).unwrap(), vec![b'1'; DISK_BYTES]);
        assert_eq!(hypervisor.ask(r#"{"action":"resume"}"#), RUNNING);
        assert_eq!(hypervisor.ask(r#"{"action":"pause"}"#), PAUSED);
    }
    assert!(before == contents(), "the snapshot was written");

    // What is wrong with a snapshot is found before anything is changed.
    for file in &files[1..] {
        let whole = fs::read(file).unwrap();
        fs::write(file, &whole[..whole.len() / 2]).unwrap();
        let refused = hypervisor.ask(&restore);
        assert!(refused.contains("error") && !refused.contains("half-way"), "{refused}");
        fs::write(file, whole).unwrap();
    }
    assert_eq!(hypervisor.ask(r#"{"action":"resume"}"#), RUNNING);
    assert_eq!(hypervisor.ask(r#"{"action":"shutdown"}"#), OK);
    assert!(hypervisor.ended().success());
}
