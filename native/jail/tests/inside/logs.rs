//! Logs of a jail: what a process in it does with them, and what is seen of that in their files.

use crate::outside::{command, inner_of, lab, started};
use crate::{LOG_BYTES, LOGS};
use fluxvm_jail::{DIRECTORY, LogFile, Logs};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Write, stdout};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LAST_WORDS: &str = "the last words";
/// Of all that is printed.
const PRINTED: &str = "printed";
const CONSOLE: &str = "console";
const FULL_PIPE_BYTES: u64 = 256 << 10;
const FLOOD_BYTES: usize = 1 << 30;

/// The logs in a directory, and what one is written by.
pub fn open(directory: &Path, bytes_max: u64) -> (Logs, File) {
    let mut logs = Logs::default();
    logs.add_printed(file(directory, PRINTED, bytes_max)).expect("a pipe");
    let console = logs.add(file(directory, CONSOLE, bytes_max)).expect("a pipe");
    (logs, console)
}

fn file(directory: &Path, name: &str, bytes_max: u64) -> LogFile {
    let path = directory.join(name);
    LogFile {
        file: File::options().read(true).append(true).create(true).open(&path).expect("a log"),
        earlier: File::create(path.with_extension("1")).expect("a log"),
        bytes_max,
    }
}

/// What is done inside.
pub fn act(case: &str, mut console: &File) {
    match case {
        "logs: flood" => {
            write_all(&stdout(), &[b'x'; 1 << 20]);
            write_all(console, &[b'y'; 1 << 20]);
            let piece = vec![b'z'; 1 << 20];
            for _ in 0..FLOOD_BYTES / piece.len() {
                // Most of it finds no room.
                let _ = (console.write(&piece), stdout().write(&piece));
            }
            write_all(console, LAST_WORDS.as_bytes());
            wait_for_room(&stdout());
            panic!("{LAST_WORDS}");
        }
        "logs: much" => {
            write_all(console, &much());
            std::process::exit(7);
        }
        "logs: nobody reads" => {
            write_all(console, b"!");
            let directory = Path::new(DIRECTORY);
            while !directory.join("go").exists() {
                sleep(Duration::from_millis(5));
            }
            for _ in 0..1024 {
                let _ = (console.write(&[b'y'; 1024]), stdout().write(&[b'x'; 1024]));
            }
            File::create(directory.join("done")).expect("its own directory");
        }
        "logs: one who closes them" => {
            write_all(console, b"!");
            for descriptor in [1, 2, console.as_raw_fd()] {
                // SAFETY: nobody uses them afterwards: this process only sleeps, and is killed.
                unsafe { libc::close(descriptor) };
            }
            sleep(PATIENCE);
        }
        _ => {
            write_all(console, b"!");
            sleep(PATIENCE);
        }
    }
}

/// A megabyte of which each piece is another.
fn much() -> Vec<u8> {
    (0..1 << 20).map(|at| (at % 251) as u8).collect()
}

fn write_all(to: &impl AsFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        wait_for_room(to);
        bytes = &bytes[rustix::io::write(to, bytes).unwrap_or(0)..];
    }
}

fn wait_for_room(to: &impl AsFd) {
    poll(&mut [PollFd::new(to, PollFlags::OUT)], None).expect("waited");
}

/// Starts a case and waits until it has said something.
fn start(case: &str, directory: &Path, logs: &Path) -> Child {
    let outer = started(command(case, directory).env(LOGS, logs));
    wait("first word", || fs::read(logs.join(CONSOLE)).is_ok_and(|found| !found.is_empty()));
    outer
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "no {what}");
        sleep(Duration::from_millis(5));
    }
}

fn end(mut outer: Child) {
    outer.kill().expect("killed");
    outer.wait().expect("ended");
}

pub fn a_flood_stays_within_the_bound() -> Result<(), String> {
    const BYTES_MAX: u64 = 100_000;
    let (directory, logs) = (lab(), tempfile::tempdir().expect("a directory"));
    fs::write(logs.path().join(CONSOLE), vec![b'o'; 150_000]).expect("an older log");
    let mut command = command("logs: flood", directory.path());
    let ended = started(command.env(LOGS, logs.path()).env(LOG_BYTES, BYTES_MAX.to_string()))
        .wait_with_output()
        .expect("ended");
    for name in ["console", "console.1", "printed", "printed.1"] {
        let found = fs::metadata(logs.path().join(name)).expect("a log");
        if found.len() > BYTES_MAX || found.len() == 0 {
            return Err(format!("{name} has {} bytes", found.len()));
        }
    }
    let tail = |name| String::from_utf8_lossy(&fs::read(logs.path().join(name)).expect("a log")).into_owned();
    let is_said = tail(CONSOLE).ends_with(LAST_WORDS) && tail(PRINTED).contains(LAST_WORDS);
    if is_said && ended.status.code() == Some(101) && ended.stderr.is_empty() {
        Ok(())
    } else {
        Err(format!("{ended:?}"))
    }
}

pub fn what_was_said_is_in_order() -> Result<(), String> {
    let (directory, logs) = (lab(), tempfile::tempdir().expect("a directory"));
    let ended = started(command("logs: much", directory.path()).env(LOGS, logs.path())).wait();
    let log = fs::read(logs.path().join(CONSOLE)).expect("a log");
    if log == much() && ended.is_ok_and(|status| status.code() == Some(7)) {
        Ok(())
    } else {
        Err(log.len().to_string())
    }
}

pub fn a_full_disk_ends_nothing() -> Result<(), String> {
    let (directory, logs) = (lab(), tempfile::tempdir().expect("a directory"));
    mount("disk", logs.path(), "tmpfs", MountFlags::empty(), Some(c"size=64k")).expect("a small disk");
    let mut said = Vec::new();
    // Bounds for which there is no room: of one log, and of one and what was in it before.
    for bytes_max in ["1000000", "40000"] {
        let mut outer = command("logs: much", directory.path());
        let mut outer = started(outer.env(LOGS, logs.path()).env(LOG_BYTES, bytes_max));
        let status = outer.wait().expect("ended");
        let log = fs::read(logs.path().join(CONSOLE)).expect("a log");
        said.push((status.code(), log.is_empty(), much().ends_with(&log)));
    }
    unmount(logs.path(), UnmountFlags::DETACH).expect("it was mounted");
    if said == [(Some(7), false, false), (Some(7), false, true)] { Ok(()) } else { Err(format!("{said:?}")) }
}

pub fn nobody_waits_for_the_outer_process() -> Result<(), String> {
    let (directory, logs) = (lab(), tempfile::tempdir().expect("a directory"));
    let mut outer = start("logs: nobody reads", directory.path(), logs.path());
    let pid = Pid::from_child(&outer);
    kill_process(pid, Signal::STOP).expect("sent");
    File::create(directory.path().join("go")).expect("a sign");
    wait("end of its writes", || directory.path().join("done").exists());
    kill_process(pid, Signal::CONT).expect("sent");
    let status = outer.wait().expect("ended");
    let [console, printed] = [CONSOLE, PRINTED].map(|name| fs::metadata(logs.path().join(name)).expect("a log").len());
    // What was in the pipes is there.
    let is_there = console > FULL_PIPE_BYTES / 2 && console <= FULL_PIPE_BYTES + 1 && printed > FULL_PIPE_BYTES / 2;
    if status.success() && is_there { Ok(()) } else { Err(format!("{status:?}: {console}, {printed} bytes")) }
}

/// Neither who says nothing nor who can say nothing any more.
pub fn nothing_said_wakes_nobody() -> Result<(), String> {
    for case in ["logs: silence", "logs: one who closes them"] {
        let (directory, logs) = (lab(), tempfile::tempdir().expect("a directory"));
        let outer = start(case, directory.path(), logs.path());
        let switches = || {
            let status = fs::read_to_string(format!("/proc/{}/status", outer.id())).expect("its status");
            status.lines().filter(|line| line.contains("ctxt_switches")).collect::<String>()
        };
        // It has something to do for a moment: what was just said, and what was closed.
        wait("rest", || {
            let now = switches();
            sleep(Duration::from_millis(300));
            now == switches()
        });
        let before = switches();
        sleep(Duration::from_secs(1));
        let after = switches();
        end(outer);
        if before != after {
            return Err(format!("{case}: {before}, {after}"));
        }
    }
    Ok(())
}

pub fn files_are_open_outside_alone() -> Result<(), String> {
    let (directory, logs) = (lab(), tempfile::tempdir().expect("a directory"));
    let outer = start("logs: silence", directory.path(), logs.path());
    let open = |pid: &str| -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
        let targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        let mut names: Vec<_> = targets.map(|target| target.to_string_lossy().into_owned()).collect();
        names.retain(|name| name.starts_with('/') && !name.starts_with("/proc/"));
        names.sort();
        names
    };
    let (inside, outside) = (open(&inner_of(outer.id())), open(&outer.id().to_string()));
    end(outer);
    let files = ["console", "console.1", "printed", "printed.1"].map(|name| logs.path().join(name));
    if inside.is_empty() && outside.iter().map(Path::new).eq(&files) {
        Ok(())
    } else {
        Err(format!("inside {inside:?}, outside {outside:?}"))
    }
}
