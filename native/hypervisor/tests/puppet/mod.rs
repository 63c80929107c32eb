//! The first thread of another process as a puppet: it waits in a system call, and is made to do others.

use std::ptr::null_mut;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned this.
    Returned(i64),
    /// It ended the process by this signal.
    Killed(i32),
}

/// Holds the thread until it is dropped; then it goes on with what it did.
pub struct Puppet {
    pid: i32,
    before: libc::user_regs_struct,
    /// Where the next text goes, below the thread's stack.
    room: u64,
    is_dead: bool,
}

const WORD_BYTES: usize = 8;
/// Below what a function may use without moving the pointer.
const BELOW_STACK: u64 = 4096;
/// The instruction of a system call has so many bytes.
const INSTRUCTION_BYTES: u64 = 2;

impl Puppet {
    /// Stops the thread once it waits in a system call.
    pub fn take(pid: u32) -> Self {
        let pid = i32::try_from(pid).unwrap();
        loop {
            // SAFETY: attaching to another process touches no memory of this one.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_ATTACH, pid, 0, 0) }, 0, "attached");
            wait(pid);
            // SAFETY: an all-zero set of registers is a value of that type.
            let mut before: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel writes one set of registers.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut before) }, 0, "registers");
            if before.orig_rax.cast_signed() >= 0 {
                return Self { pid, before, room: before.rsp - BELOW_STACK, is_dead: false };
            }
            // SAFETY: lets the other process go on.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, null_mut::<u8>()) };
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Puts a text into the thread's memory and tells where.
    pub fn text(&mut self, text: &str) -> u64 {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize((bytes.len() / WORD_BYTES + 1) * WORD_BYTES, 0);
        self.room = (self.room - bytes.len() as u64) & !(WORD_BYTES as u64 - 1);
        for (at, word) in (self.room..).step_by(WORD_BYTES).zip(bytes.as_chunks::<WORD_BYTES>().0) {
            let word = i64::from_ne_bytes(*word);
            // SAFETY: the memory is the other process's.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.pid, at, word) }, 0, "written");
        }
        self.room
    }

    /// Makes the thread do a call.
    pub fn call(&mut self, call: libc::c_long, arguments: [u64; 6]) -> Outcome {
        let mut registers = self.before;
        registers.rip -= INSTRUCTION_BYTES;
        // Not to be started again.
        registers.orig_rax = u64::MAX;
        registers.rax = call.cast_unsigned();
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
        self.set(&registers);
        // SAFETY: lets the other process go on for one instruction.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) }, 0, "a step");
        let status = wait(self.pid);
        if libc::WIFSIGNALED(status) {
            self.is_dead = true;
            return Outcome::Killed(libc::WTERMSIG(status));
        }
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP, "{status:#x}");
        // SAFETY: as in `take`.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut registers) }, 0, "registers");
        Outcome::Returned(registers.rax.cast_signed())
    }

    fn set(&self, registers: &libc::user_regs_struct) {
        // SAFETY: the kernel reads one set of registers.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const *registers) }, 0, "set");
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        if !self.is_dead {
            self.set(&self.before);
            // SAFETY: lets the other process go on.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, self.pid, 0, null_mut::<u8>()) };
        }
    }
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the kernel writes one status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }, pid, "waited for");
    status
}
