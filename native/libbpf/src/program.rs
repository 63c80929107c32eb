//! Programs: what the kernel knows of them, and test runs on packets that nobody sent.

use crate::{check, name_of, owned};
use libbpf_sys::{
    bpf_prog_get_fd_by_id, bpf_prog_get_info_by_fd, bpf_prog_info, bpf_prog_test_run_opts, bpf_test_run_opts,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;

/// Size of `struct __sk_buff`.
pub const CONTEXT_BYTES: usize = 192;
/// A signal ends a test run early; then it is begun again, this often.
const INTERRUPTIONS_MAX: u32 = 16;

/// What the kernel knows of a program.
#[derive(Debug, Clone)]
pub struct ProgramFacts {
    /// The kernel's number of it.
    pub id: u32,
    /// `BPF_PROG_TYPE_*`.
    pub kind: u32,
    /// Digest of its instructions.
    pub tag: [u8; 8],
    /// Runs and the time in them; counted only while the kernel's `bpf_stats_enabled` is on.
    pub run_count: u64,
    /// See `run_count`.
    pub run_time_ns: u64,
    /// Instructions that the verifier walked.
    pub verified_instructions: u32,
    /// Length of the translated program.
    pub jited_bytes: u32,
    /// At most 15 characters of it.
    pub name: String,
}

/// How a test run ended.
#[derive(Debug, Clone, Copy)]
pub struct TestRun {
    /// What the program returned in the last run.
    pub verdict: u32,
    /// Average of one run.
    pub duration_ns: u32,
    /// Length of the packet afterwards.
    pub output_bytes: usize,
}

/// An open program.
#[derive(Debug)]
pub struct Program {
    descriptor: OwnedFd,
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Program {
    /// Takes the descriptor of a program.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// The loaded program with this number. `NOENT`: there is none.
    pub fn by_id(id: u32) -> Result<Self> {
        // SAFETY: the call takes a number.
        owned(unsafe { bpf_prog_get_fd_by_id(id) }).map(Self::new)
    }

    /// What the kernel knows of it now.
    pub fn facts(&self) -> Result<ProgramFacts> {
        let mut info = bpf_prog_info::default();
        let mut length = size_of::<bpf_prog_info>() as u32;
        // SAFETY: the structure has this length, and it asks for none of the lists that it could point at.
        check(unsafe { bpf_prog_get_info_by_fd(self.descriptor.as_raw_fd(), &raw mut info, &raw mut length) })?;
        Ok(ProgramFacts {
            id: info.id,
            kind: info.type_,
            tag: info.tag,
            run_count: info.run_cnt,
            run_time_ns: info.run_time_ns,
            verified_instructions: info.verified_insns,
            jited_bytes: info.jited_prog_len,
            name: name_of(&info.name),
        })
    }

    /// Runs it `repeat` times on one packet. The context is a `struct __sk_buff`, read before and written after, or empty.
    /// `NOSPC`: the packet became longer than `output`.
    pub fn test_run(&self, input: &[u8], output: &mut [u8], context: &mut [u8], repeat: u32) -> Result<TestRun> {
        if !matches!(context.len(), 0 | CONTEXT_BYTES) {
            return Err(Errno::INVAL);
        }
        let context_bytes = context.len() as u32;
        let context = if context.is_empty() { null_mut() } else { context.as_mut_ptr() };
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| Errno::INVAL);
        let mut run = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as u64,
            data_in: input.as_ptr().cast(),
            data_size_in: length(input.len())?,
            data_out: if output.is_empty() { null_mut() } else { output.as_mut_ptr().cast() },
            data_size_out: length(output.len())?,
            ctx_in: context.cast_const().cast(),
            ctx_out: context.cast(),
            ctx_size_in: context_bytes,
            ctx_size_out: context_bytes,
            repeat: i32::try_from(repeat).map_err(|_| Errno::INVAL)?,
            ..Default::default()
        };
        for _ in 0..INTERRUPTIONS_MAX {
            // SAFETY: all buffers have the lengths that are said, and live during the call; the kernel has read the context
            // before it writes it.
            match check(unsafe { bpf_prog_test_run_opts(self.descriptor.as_raw_fd(), &raw mut run) }) {
                Err(Errno::INTR) => {
                    (run.data_size_out, run.ctx_size_out) = (length(output.len())?, context_bytes);
                }
                Err(error) => return Err(error),
                Ok(_) => {
                    return Ok(TestRun {
                        verdict: run.retval,
                        duration_ns: run.duration,
                        output_bytes: run.data_size_out as usize,
                    });
                }
            }
        }
        Err(Errno::INTR)
    }
}
