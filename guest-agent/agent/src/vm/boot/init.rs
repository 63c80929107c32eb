//! Init of a machine that has no other: mounts what programs expect, keeps the service running, takes every process that
//! nobody waits for, and brings the machine down in order.

use super::{loopback, mounts, power_button, say};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const HOSTNAME: &str = "/etc/hostname";
/// What a root brings up its network cards with, if it has any use for them.
const NETWORK: &str = "/etc/fluxvm/network";
const NETWORK_WAIT: Duration = Duration::from_secs(6);
/// Those that stand for hardware have a `device`.
const INTERFACES: &str = "/sys/class/net";
/// How long processes may take to end before they are killed.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
/// Between an end of the service and its next start.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// How the machine is to end. Which signal means what is as in other small inits, so that their tools work here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    PowerOff,
    Reboot,
    Halt,
}

const SIGNALS: [(libc::c_int, Ending); 5] = [
    (libc::SIGUSR2, Ending::PowerOff),
    (libc::SIGPWR, Ending::PowerOff),
    (libc::SIGTERM, Ending::Reboot),
    // Ctrl-Alt-Del, as the kernel passes it on.
    (libc::SIGINT, Ending::Reboot),
    (libc::SIGUSR1, Ending::Halt),
];

/// Does not return while the machine runs.
pub fn run() -> i32 {
    let signals = block_signals();
    // SAFETY: takes no pointer; from here on Ctrl-Alt-Del is a signal to this process.
    unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_CAD_OFF) };
    mounts::mount_all();
    name_machine();
    if let Err(error) = loopback::bring_up() {
        say(&format!("no loopback interface: {error}"));
    }
    bring_up_network();
    let mut service = start_service();
    power_button::watch(|| signal(std::process::id() as libc::pid_t, libc::SIGPWR));
    loop {
        let received = wait_for_signal(&signals);
        if let Some((_, ending)) = SIGNALS.iter().find(|(number, _)| *number == received) {
            end(*ending);
        }
        if reap(service) {
            std::thread::sleep(RESTART_PAUSE);
            say("the service has ended and is started again");
            service = start_service();
        }
    }
}

/// Every signal that is waited for is kept until it is; the others cannot reach the first process.
fn block_signals() -> libc::sigset_t {
    // SAFETY: an empty set is made before it is used, and both calls get valid pointers to it.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGCHLD);
        for (number, _) in SIGNALS {
            libc::sigaddset(&mut signals, number);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    }
}

/// For the service and all that it runs: what is blocked is inherited.
fn unblock_signals() -> std::io::Result<()> {
    // SAFETY: an empty set is made before it is used.
    let status = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
    };
    if status < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn wait_for_signal(signals: &libc::sigset_t) -> libc::c_int {
    // SAFETY: the set is valid, and nothing is to be written about the signal.
    unsafe { libc::sigwaitinfo(signals, std::ptr::null_mut()) }
}

fn name_machine() {
    let Ok(name) = std::fs::read_to_string(HOSTNAME) else { return };
    if let Err(why) = crate::vm::identity::name_machine(name.trim()) {
        say(&format!("{HOSTNAME}: {why}"));
    }
}

/// Its process id; 0 when it cannot be started, which no process has.
fn start_service() -> libc::pid_t {
    // By its own name, which the process list shows.
    let program = std::env::current_exe().unwrap_or("/proc/self/exe".into());
    let mut command = Command::new(program);
    command.arg0("fluxvm-guest-agent").arg("vm");
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(unblock_signals) };
    match command.spawn() {
        Ok(child) => child.id() as libc::pid_t,
        Err(error) => {
            say(&format!("cannot start the service: {error}"));
            0
        }
    }
}

/// A host that hears from the guest agent may count on the guest's addresses: the program ends when there are any, and is
/// not waited for longer than `NETWORK_WAIT`. Without a card there is nothing to run.
fn bring_up_network() {
    if !has_network_card() {
        return;
    }
    let mut command = Command::new(NETWORK);
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(unblock_signals) };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => return say(&format!("{NETWORK}: {error}")),
    };
    let started = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && started.elapsed() < NETWORK_WAIT {
        std::thread::sleep(POLL);
    }
}

fn has_network_card() -> bool {
    let Ok(interfaces) = std::fs::read_dir(INTERFACES) else { return false };
    interfaces.flatten().any(|interface| interface.path().join("device").exists())
}

/// Takes every process that has ended; whether the one with this id was among them.
fn reap(service: libc::pid_t) -> bool {
    let mut found = false;
    loop {
        // SAFETY: no status is asked for.
        let ended = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        if ended <= 0 {
            return found;
        }
        found |= ended == service;
    }
}

/// Asks everything to end, ends what does not, writes everything out and leaves.
fn end(ending: Ending) -> ! {
    let started = Instant::now();
    signal(-1, libc::SIGTERM);
    // What is stopped hears nothing else.
    signal(-1, libc::SIGCONT);
    while others_run() && started.elapsed() < GRACE {
        std::thread::sleep(POLL);
    }
    signal(-1, libc::SIGKILL);
    while others_run() && started.elapsed() < 2 * GRACE {
        std::thread::sleep(POLL);
    }
    // SAFETY: takes nothing.
    unsafe { libc::sync() };
    // What was held open for writing is closed by now, so the root can be left clean.
    let _ = rustix::mount::mount_remount("/", rustix::mount::MountFlags::RDONLY, "");
    let command = match ending {
        Ending::PowerOff => libc::LINUX_REBOOT_CMD_POWER_OFF,
        Ending::Reboot => libc::LINUX_REBOOT_CMD_RESTART,
        Ending::Halt => libc::LINUX_REBOOT_CMD_HALT,
    };
    // SAFETY: takes no pointer.
    unsafe { libc::reboot(command) };
    say(&format!("the machine does not end: {}", std::io::Error::last_os_error()));
    loop {
        std::thread::park();
    }
}

/// Whether this process has children left; everything without a parent is its child.
fn others_run() -> bool {
    reap(0);
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) != -1 }
}

fn signal(process: libc::pid_t, number: libc::c_int) {
    // SAFETY: takes no pointer; -1 is everything but this process.
    unsafe { libc::kill(process, number) };
}
