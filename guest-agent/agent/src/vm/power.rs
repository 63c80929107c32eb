//! Stopping the guest: first its commands, then the machine or, where the machine is not ours, this process.

use super::command::Running;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

const POLL: Duration = Duration::from_millis(20);
const GRACE_MAX: Duration = Duration::from_secs(60);
/// How long the guest's own init may take to bring the machine down.
const INIT_PATIENCE: Duration = Duration::from_secs(20);
const POWEROFF: &str = "/sbin/poweroff";

/// Ends what runs, with SIGTERM and after `grace_ms` with SIGKILL, then switches off. Does not return.
pub async fn stop(running: Rc<Running>, grace_ms: u64, owns_machine: bool) {
    let deadline = Instant::now() + Duration::from_millis(grace_ms).min(GRACE_MAX);
    running.signal_all(libc::SIGTERM);
    while !running.is_empty() && Instant::now() < deadline {
        sleep(POLL).await;
    }
    running.signal_all(libc::SIGKILL);
    if owns_machine {
        switch_off().await;
    }
    std::process::exit(0);
}

/// Asks init, which knows what to stop and unmount; then does without it.
async fn switch_off() {
    if init_is_ours() {
        // SAFETY: takes no pointer.
        unsafe { libc::kill(1, libc::SIGUSR2) };
        sleep(INIT_PATIENCE).await;
    }
    let asked = Command::new(POWEROFF).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    if asked.is_ok_and(|status| status.success()) {
        sleep(INIT_PATIENCE).await;
    }
    // SAFETY: neither call takes a pointer.
    unsafe {
        libc::sync();
        libc::reboot(libc::LINUX_REBOOT_CMD_POWER_OFF);
    }
    eprintln!("fluxvm-guest-agent: cannot switch off: {}", std::io::Error::last_os_error());
}

fn init_is_ours() -> bool {
    let program = |process: &str| std::fs::read_link(format!("/proc/{process}/exe")).ok();
    program("1").is_some() && program("1") == program("self")
}
