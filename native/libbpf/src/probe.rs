//! What this kernel can, found out by asking it.

use crate::{Direction, programs};
use libbpf_sys::{BPF_PROG_TYPE_SCHED_CLS, bpf_insn, bpf_prog_load};
use rustix::io::{Errno, Result};

/// `lo`, in every network namespace.
const LOOPBACK: u32 = 1;
/// `r0 = 0`.
const MOVE: u8 = 0xb7;
/// Returns `r0`.
const EXIT: u8 = 0x95;

/// Loads the smallest program there is and lets it go. An error says why none can be loaded: `PERM`, `NOSYS`.
pub fn can_load() -> Result<()> {
    let instruction = |code: u8| bpf_insn { code, ..Default::default() };
    let instructions = [instruction(MOVE), instruction(EXIT)];
    let (name, licence) = (c"probe".as_ptr(), c"GPL".as_ptr());
    // SAFETY: both names are texts, and the count is that of the instructions.
    let descriptor = unsafe {
        bpf_prog_load(
            BPF_PROG_TYPE_SCHED_CLS,
            name,
            licence,
            instructions.as_ptr(),
            instructions.len() as u64,
            std::ptr::null_mut(),
        )
    };
    crate::owned(descriptor).map(drop)
}

/// Whether programs can be attached by TCX.
pub fn has_tcx() -> Result<bool> {
    match programs(LOOPBACK, Direction::Ingress) {
        Ok(_) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error),
    }
}
