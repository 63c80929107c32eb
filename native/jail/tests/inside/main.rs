//! What the jail promises, tried from inside: this program runs itself in a jail for each case and looks at how it ends.
//! Needs root; without it the missing capability is named and nothing is tried.

mod cases;
mod logs;
mod outside;
mod refused;

use fluxvm_jail::{Jail, Limits, Logs, enter};
use fluxvm_sys::signals::EndSignals;
use outside::{
    cgroup_is_joined, ends_together, namespaces_differ, request_to_end_is_passed_on, run_case, status_is_passed_on,
    threads_are_refused,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::geteuid;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode};

const UID: u32 = 993_111;
const GID: u32 = 993_222;
/// Names the cgroup to join.
const CGROUP: &str = "FLUXVM_TEST_CGROUP";
/// Names the directory of logs, if there are any.
const LOGS: &str = "FLUXVM_TEST_LOGS";
/// Says how long they may be; otherwise it is of no interest.
const LOG_BYTES: &str = "FLUXVM_TEST_LOG_BYTES";
const FILE_BYTES: u64 = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, case, directory] = &arguments[..]
        && flag == "--inside"
    {
        return inside(case, Path::new(directory));
    }
    if !geteuid().is_root()
        || Command::new("unshare").args(["-Ur", "true"]).status().is_ok_and(|status| !status.success())
    {
        eprintln!("missing host capability: root that may make namespaces of all kinds");
        println!("{}", summary(0, 0, 1));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    let mut check = |name: &str, result: Result<(), String>| {
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        match result {
            Ok(()) => passed += 1,
            Err(why) => {
                println!("    {why}");
                failed += 1;
            }
        }
    };
    for (name, ends) in cases::all() {
        check(&name, run_case(&name, ends));
    }
    check("namespaces are its own", namespaces_differ());
    check("a kernel without time namespaces is good enough", outside::clocks_can_be_shared());
    check("the status of the inner process is passed on", status_is_passed_on());
    check("both processes are in the cgroup", cgroup_is_joined());
    check("the inner process ends with the outer one", ends_together());
    check("a request to end is passed on", request_to_end_is_passed_on());
    check("a process with threads is refused", threads_are_refused());
    check(
        "logs: a flood of them stays within the bound, and the last words are there",
        logs::a_flood_stays_within_the_bound(),
    );
    check("logs: what was said is there in order", logs::what_was_said_is_in_order());
    check("logs: a full disk ends nothing", logs::a_full_disk_ends_nothing());
    check("logs: nobody waits for the outer process", logs::nobody_waits_for_the_outer_process());
    check("logs: where nothing is said, nobody wakes", logs::nothing_said_wakes_nobody());
    check("logs: their files are open outside alone", logs::files_are_open_outside_alone());
    println!("\n{}", summary(passed, failed, 0));
    ExitCode::from(u8::from(failed > 0))
}

/// The last line, as Cargo's own tests end: whoever counts tests reads it.
fn summary(passed: usize, failed: usize, ignored: usize) -> String {
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    format!("test result: {outcome}. {passed} passed; {failed} failed; {ignored} ignored")
}

/// What a process does that was started to be in a jail.
fn inside(case: &str, directory: &Path) -> ExitCode {
    if case == "threads" {
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)));
    }
    if std::env::var_os(outside::WITHOUT_CLOCKS).is_some() {
        outside::refuse_clocks();
    }
    let limits = Limits { descriptors: 64, threads: 32, file_bytes: FILE_BYTES };
    let cgroup = std::env::var_os(CGROUP).map(Into::into);
    let sockets = directory.join("sockets");
    let jail = Jail { uid: UID, gid: GID, directory: directory.to_owned(), sockets, cgroup, limits };
    let logs = std::env::var_os(LOGS).map(|logs| {
        let bytes_max = std::env::var(LOG_BYTES).map_or(u64::MAX, |bytes| bytes.parse().expect("a number"));
        logs::open(Path::new(&logs), bytes_max)
    });
    let (logs, console) = logs.map_or_else(|| (Logs::default(), None), |(logs, console)| (logs, Some(console)));
    let keep: Vec<_> = console.iter().map(AsFd::as_fd).collect();
    let _secret = std::fs::File::open("/etc/passwd").expect("a file that is not kept");
    // SAFETY: nothing but the standard descriptors and the console is used afterwards; the file above is leaked.
    if let Err(error) = unsafe { enter(&jail, &keep, logs) } {
        eprintln!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        return ExitCode::from(3);
    }
    std::mem::forget(_secret);
    if let Some(console) = console {
        logs::act(case, &console);
        return ExitCode::SUCCESS;
    }
    match case {
        "wait" => {
            print!("!");
            std::io::stdout().flush().expect("written");
            std::thread::sleep(std::time::Duration::from_secs(60));
            ExitCode::SUCCESS
        }
        "exit 7" => ExitCode::from(7),
        "wait for a request to end" => {
            let signals = EndSignals::take().expect("signals");
            print!("!");
            std::io::stdout().flush().expect("written");
            poll(&mut [PollFd::new(&signals, PollFlags::IN)], None).expect("waited");
            ExitCode::from(if signals.have_come() { 8 } else { 9 })
        }
        _ => {
            cases::act(case);
            ExitCode::SUCCESS
        }
    }
}
