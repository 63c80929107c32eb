//! Assembles and installs classic BPF programs that judge system calls. Written by hand because a rule must see
//! the raw call number: the x32 call table shares the architecture word and would slip past a plain deny list.

use super::check;
use std::io;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// First number of the x32 table; no native call comes near it.
const FOREIGN_NUMBERS: u32 = 0x4000_0000;

/// When a call is refused, looking at the low 32 bits of an argument.
#[derive(Clone, Copy, Debug)]
pub enum When {
    Always,
    /// Argument `.0` has any bit of `.1`.
    AnyBit(u32, u32),
    /// Argument `.0`, masked with `.1`, equals `.2`.
    Equal(u32, u32, u32),
    /// Argument `.0` is none of `.1`.
    NoneOf(u32, &'static [u32]),
}

/// Refuse `call` with `errno`.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    pub call: libc::c_long,
    pub when: When,
    pub errno: libc::c_int,
}

/// A program ready to install.
#[derive(Clone, Debug)]
pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// A program that allows every native call but those refused. Calls of a foreign table fail with ENOSYS.
    pub fn refusing(refusals: &[Refusal]) -> Self {
        let mut code = vec![
            statement(LOAD_WORD, OFFSET_ARCHITECTURE),
            jump(IF_EQUAL, ARCHITECTURE, 1, 0),
            statement(RETURN, refuse_with(libc::ENOSYS)),
            statement(LOAD_WORD, OFFSET_NUMBER),
            jump(IF_AT_LEAST, FOREIGN_NUMBERS, 0, 1),
            statement(RETURN, refuse_with(libc::ENOSYS)),
        ];
        for refusal in refusals {
            append(&mut code, refusal);
        }
        code.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
        Self(code)
    }

    /// Installs the program on this thread for ever. Needs no_new_privs.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` describes the vector, which outlives the call; the kernel only reads it.
        check(unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program as *const libc::sock_fprog)
        })?;
        Ok(())
    }
}

/// Whether the kernel takes seccomp programs that answer with an error number.
pub fn available() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: `action` is a whole u32 during the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &action as *const u32) })?;
    Ok(())
}

/// Each block starts and ends with the call number in the accumulator.
fn append(code: &mut Vec<libc::sock_filter>, refusal: &Refusal) {
    let number = refusal.call as u32;
    let verdict = statement(RETURN, refuse_with(refusal.errno));
    let (argument, test): (u32, Vec<libc::sock_filter>) = match refusal.when {
        When::Always => {
            code.extend([jump(IF_EQUAL, number, 0, 1), verdict]);
            return;
        }
        When::AnyBit(argument, bits) => (argument, vec![jump(IF_ANY_BIT, bits, 0, 1)]),
        When::Equal(argument, mask, value) => (argument, vec![statement(AND, mask), jump(IF_EQUAL, value, 0, 1)]),
        When::NoneOf(argument, values) => {
            // A match jumps over the comparisons that are left and the verdict.
            let left = (1..=values.len() as u8).rev();
            (argument, values.iter().zip(left).map(|(value, left)| jump(IF_EQUAL, *value, left, 0)).collect())
        }
    };
    let block_length = test.len() as u8 + 3;
    code.push(jump(IF_EQUAL, number, 0, block_length));
    code.push(statement(LOAD_WORD, argument_offset(argument)));
    code.extend(test);
    code.push(verdict);
    code.push(statement(LOAD_WORD, OFFSET_NUMBER));
}

fn argument_offset(argument: u32) -> u32 {
    let low_half = if cfg!(target_endian = "little") { 0 } else { 4 };
    OFFSET_ARGUMENTS + 8 * argument + low_half
}

fn refuse_with(errno: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA)
}

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
