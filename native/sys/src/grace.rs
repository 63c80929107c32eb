//! Waiting until nobody is any longer in the middle of what began before.

use rustix::io::{Errno, Result};

const MEMBARRIER_GLOBAL: libc::c_int = 1;

/// Returns once every processor has been through a point where it held nothing of the kernel's that was found before the
/// call: every packet that was being judged then has been judged. Takes milliseconds.
pub fn wait_for_readers() -> Result<()> {
    // SAFETY: the call takes numbers only.
    let status = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0_u32, 0_i32) };
    if status == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_ends() {
        super::wait_for_readers().unwrap();
    }
}
