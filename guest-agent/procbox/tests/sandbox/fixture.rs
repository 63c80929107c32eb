//! A sandbox for a test: its directories, control groups, launcher and client, all gone when it is dropped.

use crate::client::{Connection, Outcome, shell};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::Fault;
use wire::request::*;

pub const TOKEN: &str = "a secret of the test";

/// The users of a run's sandboxes begin here; another run at the same time has others.
fn uid_base() -> u32 {
    610_000 + std::process::id() % 2000 * 200
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// This program, where every user may run it.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let copy = std::env::temp_dir().join(format!("procbox-test-{}", std::process::id()));
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        copy
    })
}

/// Directories and control groups of one sandbox, before it is launched.
pub struct Place {
    pub directory: PathBuf,
    pub config: Value,
    groups: Vec<PathBuf>,
    /// The launcher's user.
    uid: u32,
    /// `cgroup.procs` of the group that the launcher is started in.
    start_in: Option<PathBuf>,
}

impl Place {
    /// For a launcher that is root, with control groups.
    pub fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let sandbox_uid = uid_base() + 2 * number;
        let mut place = Self::bare(number, 0, sandbox_uid);
        place.config["sandbox_uid"] = sandbox_uid.into();
        place.config["supervisor_uid"] = (sandbox_uid + 1).into();
        place.make_groups(number);
        place
    }

    /// For a launcher that is the ordinary user `uid`, without control groups.
    pub fn of_user(uid: u32) -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut place = Self::bare(number, uid, uid);
        place.config["limits"]["address_space"] = true.into();
        place
    }

    /// As [`Self::of_user`], with a version 2 group that is delegated to the user.
    pub fn of_user_with_groups(uid: u32) -> Self {
        let mut place = Self::of_user(uid);
        place.make_groups(COUNT.fetch_add(1, Ordering::Relaxed));
        let work = PathBuf::from(place.config["cgroup"]["work_v2"].as_str().unwrap());
        let base = work.parent().unwrap();
        let start_in = base.join("launcher");
        fs::create_dir(&start_in).unwrap();
        let init = base.join("init");
        for group in [base, &work, &init, &start_in] {
            for path in [group.to_owned(), group.join("cgroup.procs")] {
                chown(path, Some(uid), Some(uid)).unwrap();
            }
        }
        place.config["cgroup"] = json!({"init_procs": [init.join("cgroup.procs")], "work_v2": work, "work_v1": []});
        place.start_in = Some(start_in.join("cgroup.procs"));
        place
    }

    fn bare(number: u32, uid: u32, workspace_uid: u32) -> Self {
        let directory = std::env::temp_dir().join(format!("procbox-test-{}-{number}", std::process::id()));
        let (workspace, run) = (directory.join("files"), directory.join("run"));
        for made in [&directory, &workspace, &run] {
            fs::create_dir(made).unwrap();
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        for private in [&workspace, &run] {
            fs::set_permissions(private, fs::Permissions::from_mode(0o700)).unwrap();
        }
        chown(&workspace, Some(workspace_uid), Some(workspace_uid)).unwrap();
        chown(&run, Some(uid), Some(uid)).unwrap();
        let config = json!({
            "id": format!("test-{number}"), "socket": run.join("agent.sock"), "peer_uid": 0,
            "workspace": workspace, "mount_at": "/workspace", "isolation": "strict", "best_effort": false,
            "max_abi": null, "sandbox_uid": null, "supervisor_uid": null,
            "read_paths": ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/passwd", "/etc/ld.so.cache",
                           "/etc/alternatives", "/dev/urandom"],
            "write_paths": ["/dev/null"], "net_ports": [],
            "limits": {"memory_mib": 256, "address_space": false, "max_processes": 64, "cpu_seconds": null,
                       "file_size_max_bytes": null, "open_files": 256},
            "cgroup": null, "exit_record": run.join("exit.json"),
        });
        Self { directory, config, groups: Vec::new(), uid, start_in: None }
    }

    fn make_groups(&mut self, number: u32) {
        let name = format!("procbox-test-{}-{number}", std::process::id());
        let mut make = |parent: &Path, leaf: &str| {
            let path = parent.join(&name);
            fs::create_dir_all(path.join(leaf)).unwrap();
            if !self.groups.contains(&path) {
                self.groups.push(path.clone());
            }
            path.join(leaf)
        };
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let (mut init, mut v2, mut v1) = (Vec::new(), None, Vec::new());
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (mount, kind) = (Path::new(fields[1]), fields[2]);
            let bound = |name: &str| fields[3].split(',').any(|option| option == name);
            if kind != "cgroup2" && !(kind == "cgroup" && (bound("memory") || bound("pids"))) {
                continue;
            }
            init.push(make(mount, "init").join("cgroup.procs"));
            let work = make(mount, "work");
            if kind == "cgroup2" {
                v2 = Some(work.clone());
            } else {
                v1.push(work.clone());
            }
            let bytes = (256 << 20).to_string();
            for (file, value) in [("memory.limit_in_bytes", bytes.as_str()), ("memory.max", &bytes), ("pids.max", "64")]
            {
                if work.join(file).exists() {
                    fs::write(work.join(file), value).unwrap();
                }
            }
        }
        self.config["cgroup"] = json!({"init_procs": init, "work_v2": v2, "work_v1": v1});
    }

    /// Takes the version 2 hierarchy away, as on a host that has only version 1.
    pub fn without_v2(mut self) -> Self {
        let v2 = self.config["cgroup"]["work_v2"].take();
        let v2 = PathBuf::from(v2.as_str().unwrap());
        let init = v2.parent().unwrap().join("init/cgroup.procs");
        let procs = self.config["cgroup"]["init_procs"].as_array_mut().unwrap();
        procs.retain(|path| Path::new(path.as_str().unwrap()) != init);
        self
    }

    /// Leaves init where the launcher is in the version 1 hierarchies.
    pub fn without_v1_init(self) -> Self {
        self.with(|config| {
            let v1: Vec<Value> = config["cgroup"]["work_v1"].as_array().unwrap().clone();
            let is_v1 = |procs: &Value| {
                let group = Path::new(procs.as_str().unwrap()).parent().unwrap().with_file_name("work");
                v1.iter().any(|work| Path::new(work.as_str().unwrap()) == group)
            };
            config["cgroup"]["init_procs"].as_array_mut().unwrap().retain(|procs| !is_v1(procs));
        })
    }

    pub fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.config);
        self
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// Changes how many processes commands may have together.
    pub fn set_process_limit(&self, count: u32) {
        let limits = self.groups.iter().map(|group| group.join("work/pids.max")).filter(|limit| limit.exists());
        limits.for_each(|limit| fs::write(limit, count.to_string()).unwrap());
    }

    /// Whether any control group of the sandbox has a process.
    pub fn group_populated(&self) -> bool {
        fn populated(group: &Path) -> bool {
            let own = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            let children = fs::read_dir(group).into_iter().flatten().flatten().map(|child| child.path());
            !own.is_empty() || children.filter(|child| child.is_dir()).any(|child| populated(&child))
        }
        self.groups.iter().any(|group| populated(group))
    }

    /// Starts a launcher and reads its report.
    pub fn launch(self) -> Result<Sandbox, Box<(Self, Value)>> {
        let (token_reader, token_writer) = nix::unistd::pipe().unwrap();
        fs::File::from(token_writer).write_all(TOKEN.as_bytes()).unwrap();
        let mut child = launcher("procbox", self.uid, Some(token_reader), self.start_in.as_deref());
        child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no report but {line:?}"));
        if report["ok"] != true {
            child.wait().unwrap();
            return Err(Box::new((self, report)));
        }
        Ok(Sandbox { place: self, child, report })
    }

    /// What `procbox-plan` says.
    pub fn plan(&self) -> Value {
        let mut child = launcher("procbox-plan", self.uid, None, None);
        child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes()).unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for group in &self.groups {
            remove_group(group);
        }
        fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn launcher(mode: &str, uid: u32, token: Option<OwnedFd>, start_in: Option<&Path>) -> Child {
    let mut command = Command::new(program());
    command.arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    if uid != 0 {
        command.uid(uid).gid(uid);
    }
    let mut group = start_in.map(|procs| OpenOptions::new().write(true).open(procs).unwrap());
    if let Some(token) = token {
        // SAFETY: a write and a dup2 are all that happens between fork and execve, and they may.
        unsafe {
            command.pre_exec(move || {
                if let Some(group) = &mut group {
                    group.write_all(b"0")?;
                }
                let moved = libc::dup2(token.as_raw_fd(), 3);
                if moved == 3 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        };
    }
    command.spawn().unwrap()
}

fn remove_group(group: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for child in fs::read_dir(group).into_iter().flatten().flatten() {
        if child.file_type().unwrap().is_dir() {
            remove_group(&child.path());
        }
    }
    while let Err(error) = fs::remove_dir(group) {
        assert!(Instant::now() < deadline, "{} stays: {error}", group.display());
        sleep(Duration::from_millis(5));
    }
}

/// A running sandbox.
pub struct Sandbox {
    pub place: Place,
    child: Child,
    pub report: Value,
}

impl Sandbox {
    pub fn new() -> Self {
        Self::of(Place::new())
    }

    pub fn of(place: Place) -> Self {
        place.launch().unwrap_or_else(|failed| panic!("{}", failed.1))
    }

    pub fn connect(&self) -> Connection {
        Connection::open(&self.place.directory.join("run/agent.sock"), TOKEN).unwrap()
    }

    pub fn exec(&self, request: ExecRequest) -> Result<Outcome, Fault> {
        let mut connection = self.connect();
        connection.start("exec", &request);
        connection.finish_exec()
    }

    /// Runs a shell command to its end.
    pub fn run(&self, command: &str) -> Outcome {
        self.exec(shell(command)).unwrap()
    }

    /// What a shell command prints, without the last newline; it must succeed.
    pub fn output(&self, command: &str) -> String {
        let outcome = self.run(command);
        assert_eq!(outcome.status.exit_code, Some(0), "{command}: {outcome:?}");
        outcome.stdout.trim_end().to_owned()
    }

    pub fn pid(&self, of: &str) -> i32 {
        self.report[of].as_i64().unwrap() as i32
    }

    pub fn signal(&self, of: &str, signal: i32) {
        // SAFETY: plain integers.
        assert_eq!(unsafe { libc::kill(self.pid(of), signal) }, 0);
    }

    /// Waits for the supervisor's end and gives the exit record, if there is one.
    pub fn wait(&mut self) -> Option<Value> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the supervisor does not end");
            sleep(Duration::from_millis(5));
        }
        let text = fs::read_to_string(self.place.directory.join("run/exit.json")).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    /// Living processes of the host that run as this sandbox's user.
    pub fn processes(&self) -> Vec<i32> {
        let uid = self.place.config["sandbox_uid"].as_u64().unwrap_or(u64::MAX);
        let pids =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let owned = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name))?;
                line.split_whitespace().nth(1).map(str::to_owned)
            };
            // A zombie is dead; who inherited it takes its time to say so.
            field("Uid:") == Some(uid.to_string()) && field("State:").as_deref() != Some("Z")
        };
        pids.filter(owned).collect()
    }

    /// Waits until no process of the sandbox is left.
    pub fn assert_no_processes(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.processes().is_empty() {
            assert!(Instant::now() < deadline, "left: {:?}", self.processes());
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its end is init's, and init's that of all others.
        self.assert_no_processes();
    }
}
