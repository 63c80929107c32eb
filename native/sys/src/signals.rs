//! Requests to end that come as signals, read from a descriptor instead of interrupting threads; and a signal that is none.

use rustix::io::{Errno, Result, read};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// SIGTERM and SIGINT, taken from whoever would be ended by them. Ready for reading when one has come.
pub struct EndSignals(OwnedFd);

impl EndSignals {
    /// Blocks both on this thread and those that it will start, and opens the descriptor.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take() -> Result<Self> {
        // SAFETY: an all-zero signal set is a valid argument for sigemptyset, which initialises it.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid, owned signal set in all calls.
        let fd = unsafe {
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        // SAFETY: the descriptor is new and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whether one has come since this was last asked.
    pub fn have_come(&self) -> bool {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let mut come = false;
        while matches!(read(&self.0, &mut info), Ok(bytes) if bytes > 0) {
            come = true;
        }
        come
    }
}

/// From now on, a write beyond the limit of file sizes is an error to this process, and does not end it.
pub fn survive_file_limit() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_and_ends_nothing() {
        std::thread::spawn(|| {
            let signals = EndSignals::take().expect("a descriptor");
            assert!(!signals.have_come());
            // SAFETY: the signal is blocked on this thread, at which it is sent.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
            assert!(signals.have_come());
            assert!(!signals.have_come());
        })
        .join()
        .expect("a thread that goes on");
    }
}
