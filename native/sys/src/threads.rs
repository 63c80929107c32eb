//! Signal masks and stacks of native threads. The JavaScript engine suspends its own threads with signals, and the agent handles
//! termination signals on its main thread; a native thread must receive none of them.

/// The stack of a thread of a virtual machine. The usual 2 MiB are just as large as a huge page, which a host that has them
/// everywhere then takes for each thread.
pub const STACK_BYTES: usize = 512 << 10;

/// Blocks every signal on the calling thread; threads that it starts inherit this.
pub fn block_all_signals() {
    // SAFETY: an all-zero signal set is a valid argument for sigfillset, which initialises it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid, owned signal set.
    unsafe { libc::sigfillset(&mut set) };
    // SAFETY: `set` is initialised and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Blocks every signal while `action` runs and restores the caller's mask afterwards, so that a thread started inside
/// never runs a handler, not even before its own first instruction.
pub fn with_signals_blocked<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero signal sets are valid arguments for the calls below, which initialise them.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: `all` is a valid, owned signal set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: both sets are valid and owned by this frame.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
    let result = action();
    // SAFETY: `before` was filled in by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result
}

/// Blocks every signal but one on the calling thread.
pub fn admit_only(signal: i32) {
    // SAFETY: an all-zero signal set is a valid argument for sigfillset, which initialises it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid, owned signal set.
    unsafe { libc::sigfillset(&mut set) };
    // SAFETY: `set` is initialised; a number that is no signal changes nothing.
    unsafe { libc::sigdelset(&mut set, signal) };
    // SAFETY: `set` is initialised and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}
