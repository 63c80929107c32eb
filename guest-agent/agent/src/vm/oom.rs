//! Out of memory: the kernel shall end something else than the guest agent, and none of its commands shall have that right.

use std::sync::atomic::{AtomicBool, Ordering};

/// Of -1000 (never) to 1000; what is left says that even this process may go before the machine does.
const SERVICE_SCORE: &str = "-900";
const COMMAND_SCORE: &str = "0";

static PROTECTED: AtomicBool = AtomicBool::new(false);

/// Makes this process one of the last to go. Without the right to do so it stays as it is.
pub fn protect() {
    let done = std::fs::write("/proc/self/oom_score_adj", SERVICE_SCORE).is_ok();
    PROTECTED.store(done, Ordering::Relaxed);
}

/// Takes from a process that has just been started what it has inherited.
pub fn expose(process: u32) {
    if PROTECTED.load(Ordering::Relaxed) {
        // One that has ended already has nothing to lose.
        let _ = std::fs::write(format!("/proc/{process}/oom_score_adj"), COMMAND_SCORE);
    }
}
