//! File operations and manifests through workers.

use crate::Case;
use crate::fixture::Sandbox;
use serde_bytes::ByteBuf;
use wire::file_request::*;
use wire::message::FileEnd;
use wire::request::*;
use wire::{ErrorCode, Fault};

pub const CASES: &[Case] = &[
    ("a file is written, read and owned by the sandbox", write_and_read),
    ("links and special files are refused", links_and_special_files),
    ("an upload that is cut off leaves the old content", cut_upload),
    ("a manifest lists, and a delta follows edits", manifests),
    ("a sandbox that shut itself out of its workspace is let in again", shut_out),
    ("files are listed, archived and removed inside only", file_operations),
    ("changes are watched until the directory goes", watches),
    ("a killed worker interrupts its operation only", killed_worker),
];

impl Sandbox {
    pub fn write(&self, path: &str, content: &[u8]) -> Result<u64, Fault> {
        let mut connection = self.connect();
        let request = WriteFileRequest { path: ByteBuf::from(path), mode: 0o640, parents: true, max: 64 << 20 };
        connection.start("write-file", &request);
        connection.send_content(content);
        connection.finish::<FileEnd>().map(|(end, _)| end.size)
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        let mut connection = self.connect();
        connection.start("read-file", &ReadFileRequest { path: ByteBuf::from(path), max: 64 << 20 });
        connection.finish::<FileEnd>().map(|(_, [content, _])| content)
    }

    pub fn manifest(&self, base: Option<ByteBuf>) -> Result<(ManifestSummary, Vec<u8>), Fault> {
        let mut connection = self.connect();
        let paths = vec![ByteBuf::from("/")];
        connection.start("manifest", &ManifestRequest { paths, files_max: 1000, listing_max: 1 << 20, base });
        connection.finish().map(|(summary, [listing, _])| (summary, listing))
    }
}

fn write_and_read() {
    let sandbox = Sandbox::new();
    let content: Vec<u8> = (0..900_000u32).map(|byte| byte as u8).collect();
    assert_eq!(sandbox.write("/deep/er/file", &content).unwrap(), content.len() as u64);
    assert_eq!(sandbox.read("/deep/er/file").unwrap(), content);
    let uid = sandbox.place.config["sandbox_uid"].to_string();
    assert_eq!(sandbox.output("stat -c '%u %a' deep/er/file deep"), format!("{uid} 640\n{uid} 755"));
    assert_eq!(sandbox.read("/none").unwrap_err().code, ErrorCode::NotFound);
}

fn links_and_special_files() {
    let sandbox = Sandbox::new();
    sandbox.output("ln -s /etc/passwd link; ln -s / dir; mkfifo fifo; mkdir d; ln -s ../../.. d/up");
    for path in ["/link", "/dir/etc/passwd", "/d/up/etc/passwd"] {
        assert_eq!(sandbox.read(path).unwrap_err().code, ErrorCode::Symlink, "{path}");
        assert!(sandbox.write(path, b"x").is_err(), "{path}");
    }
    assert_eq!(sandbox.read("/fifo").unwrap_err().code, ErrorCode::NotRegular);
    assert_eq!(sandbox.read("/d").unwrap_err().code, ErrorCode::NotRegular);
    for path in ["relative", "/a/../../etc/passwd", "/nul\0"] {
        assert_eq!(sandbox.read(path).unwrap_err().code, ErrorCode::BadArgument, "{path:?}");
    }
}

fn cut_upload() {
    let sandbox = Sandbox::new();
    sandbox.write("/file", b"old").unwrap();
    let mut connection = sandbox.connect();
    let request = WriteFileRequest { path: ByteBuf::from("/file"), mode: 0o640, parents: true, max: 64 << 20 };
    connection.start("write-file", &request);
    drop(connection);
    assert_eq!(sandbox.read("/file").unwrap(), b"old");
    assert_eq!(sandbox.output("ls -A"), "file", "nothing is left beside it");
}

fn manifests() {
    let sandbox = Sandbox::new();
    sandbox.output("mkdir a; echo 1 > a/one; echo 2 > a/two; ln -s one a/link");
    let (whole, listing) = sandbox.manifest(None).unwrap();
    assert_eq!((whole.files, whole.entries, whole.delta), (2, 5, false));
    assert!(!listing.is_empty());
    sandbox.output("echo 3 > a/two; rm a/link");
    let (delta, changes) = sandbox.manifest(Some(whole.digest.clone())).unwrap();
    assert!(delta.delta && delta.unchanged == 1 && changes.len() < listing.len());
    let unknown = ByteBuf::from([7; 32]);
    assert!(!sandbox.manifest(Some(unknown)).unwrap().0.delta);
}

fn killed_worker() {
    let sandbox = Sandbox::new();
    let (whole, _) = sandbox.manifest(None).unwrap();
    // A kill may come before the operation has reached a worker, which then is a new one and succeeds: once more then.
    let interrupted = (0..20).any(|_| {
        sandbox.write("/file", b"old").unwrap();
        let mut connection = sandbox.connect();
        let path = ByteBuf::from("/file");
        connection.start("write-file", &WriteFileRequest { path, mode: 0o600, parents: true, max: 9 });
        kill_workers(&sandbox);
        connection.send_content(b"new");
        match connection.finish::<FileEnd>() {
            Err(fault) => {
                assert_eq!(fault.code, ErrorCode::Interrupted);
                true
            }
            Ok(_) => false,
        }
    });
    assert!(interrupted, "no kill met a worker at work");
    assert_eq!(sandbox.read("/file").unwrap(), b"old");
    let (after, _) = sandbox.manifest(Some(whole.digest)).unwrap();
    assert!(!after.delta, "a new worker holds no listing");
    assert_eq!(sandbox.output("echo here"), "here");
}

/// Kills everything but init, from the host: inside, where Landlock scopes signals, no command could.
fn kill_workers(sandbox: &Sandbox) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while sandbox.processes().len() > 1 && std::time::Instant::now() < deadline {
        for pid in sandbox.processes().into_iter().filter(|pid| *pid != sandbox.pid("init_pid")) {
            // SAFETY: plain integers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

fn shut_out() {
    let sandbox = Sandbox::new();
    sandbox.write("/file", b"before").unwrap();
    let shut = || assert_eq!(sandbox.output("chmod 0 .; cat file 2>/dev/null || echo shut"), "shut");
    shut();
    assert_eq!(sandbox.read("/file").unwrap(), b"before");
    shut();
    sandbox.write("/file", b"after").unwrap();
    shut();
    assert_eq!(sandbox.manifest(None).unwrap().0.files, 1);
    shut();
    assert_eq!(sandbox.output("cat file"), "after");
}

fn file_operations() {
    let sandbox = Sandbox::new();
    sandbox.output("mkdir -p d/e; echo content > d/f; ln -s /etc/passwd d/l; ln -s / d/root");
    let path = |text: &str| PathRequest { path: ByteBuf::from(text) };
    let run = |op: &str, arguments: &dyn Fn(&mut crate::client::Connection)| {
        let mut connection = sandbox.connect();
        arguments(&mut connection);
        connection.finish::<FileSummary>().map_err(|fault| (op.to_string(), fault.code))
    };
    let with_path = |op: &str, text: &str| run(op, &|connection| connection.start(op, &path(text)));
    assert_eq!(with_path("list", "/d").unwrap().0.entries, 4);
    assert_eq!(with_path("stat", "/d/l").unwrap().0.entries, 1);
    assert_eq!(with_path("stat", "/d/root/etc").unwrap_err().1, ErrorCode::Symlink);
    assert_eq!(with_path("list", "/d/f").unwrap_err().1, ErrorCode::NotDirectory);
    let (_, [archive, _]) = with_path("archive-read", "/d").unwrap();
    let mut connection = sandbox.connect();
    connection.start("archive-write", &path("/copy"));
    connection.send_content(&archive);
    assert_eq!(connection.finish::<FileSummary>().unwrap_err().code, ErrorCode::BadArgument, "its links lead out");
    sandbox.output("rm d/l d/root");
    let (_, [archive, _]) = with_path("archive-read", "/d").unwrap();
    let mut connection = sandbox.connect();
    connection.start("archive-write", &path("/copy2"));
    connection.send_content(&archive);
    connection.finish::<FileSummary>().unwrap();
    assert_eq!(sandbox.output("diff -r d copy2 && stat -c %u copy2"), sandbox.place.config["sandbox_uid"].to_string());
    let mut connection = sandbox.connect();
    let request = WriteStreamRequest { path: ByteBuf::from("/w/f"), mode: None, parents: true, offset: None };
    connection.start("write-stream", &request);
    connection.send_content(b"streamed");
    assert_eq!(connection.finish::<FileSummary>().unwrap().0.size, 8);
    assert_eq!(sandbox.output("cat w/f; stat -c %a w/f"), "streamed644");
    let remove = RemoveRequest { path: ByteBuf::from("/d"), recursive: true };
    assert_eq!(run("remove", &|connection| connection.start("remove", &remove)).unwrap().0.entries, 3);
}

fn watches() {
    let sandbox = Sandbox::new();
    sandbox.output("mkdir d");
    let mut connection = sandbox.connect();
    connection.start("watch", &WatchRequest { path: ByteBuf::from("/d"), recursive: true });
    std::thread::sleep(std::time::Duration::from_millis(300));
    sandbox.output("mkdir d/e; echo > d/e/f; sleep 0.2; rm -r d");
    let (summary, [changes, _]) = connection.finish::<FileSummary>().unwrap();
    assert!(summary.entries >= 4);
    assert!(changes.windows(6).any(|window| window == b"/d/e/f"));
    // The worker of a watch that nobody wants any more does the next job.
    for _ in 0..40 {
        let mut connection = sandbox.connect();
        connection.start("watch", &WatchRequest { path: ByteBuf::from("/"), recursive: true });
        drop(connection);
    }
    assert_eq!(sandbox.output("echo here"), "here");
}
