//! Assembles and installs classic BPF programs that judge system calls. Written by hand because a rule must see
//! the raw call number: the x32 call table shares the architecture word and would slip past a plain deny list.

use super::check;
use std::collections::BTreeMap;
use std::io;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const AHEAD: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
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

/// So many calls are looked for one after the other.
const SEQUENCE_MAX: usize = 8;

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
    /// A program that allows every native call but those refused; of several refusals of a call the first that fits
    /// decides. Calls of a foreign table fail with ENOSYS.
    pub fn refusing(refusals: &[Refusal]) -> Self {
        let mut code = vec![
            statement(LOAD_WORD, OFFSET_ARCHITECTURE),
            jump(IF_EQUAL, ARCHITECTURE, 1, 0),
            refuse_with(libc::ENOSYS),
            statement(LOAD_WORD, OFFSET_NUMBER),
            jump(IF_AT_LEAST, FOREIGN_NUMBERS, 0, 1),
            refuse_with(libc::ENOSYS),
        ];
        let mut calls: BTreeMap<u32, Vec<Refusal>> = BTreeMap::new();
        for refusal in refusals {
            calls.entry(refusal.call as u32).or_default().push(*refusal);
        }
        code.extend(search(&calls.into_iter().collect::<Vec<_>>()));
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

/// A call and its refusals.
type Call = (u32, Vec<Refusal>);

/// Judges the number in the accumulator; `calls` are in the order of their numbers. It is found by halves: whenever a
/// program is installed, which is for each command, the kernel walks through it with every number there is.
fn search(calls: &[Call]) -> Vec<libc::sock_filter> {
    if calls.len() <= SEQUENCE_MAX {
        return judge(calls);
    }
    let (low, high) = calls.split_at(calls.len() / 2);
    let below = search(low);
    let mut code = vec![jump(IF_AT_LEAST, high[0].0, 0, 1), statement(AHEAD, below.len() as u32)];
    code.extend(below);
    code.extend(search(high));
    code
}

/// Compares the number in the accumulator with those of `calls`, and allows all others.
fn judge(calls: &[Call]) -> Vec<libc::sock_filter> {
    let mut code = Vec::new();
    let mut plain: BTreeMap<libc::c_int, Vec<u32>> = BTreeMap::new();
    for (number, refusals) in calls {
        if let Refusal { when: When::Always, errno, .. } = refusals[0] {
            plain.entry(errno).or_default().push(*number);
            continue;
        }
        let block = block(refusals);
        code.push(jump(IF_EQUAL, *number, 0, distance(block.len())));
        code.extend(block);
    }
    for (errno, numbers) in plain {
        // A match jumps over the comparisons that are left, and the last mismatch over the verdict.
        for (index, number) in numbers.iter().enumerate() {
            let left = numbers.len() - 1 - index;
            code.push(jump(IF_EQUAL, *number, distance(left), u8::from(left == 0)));
        }
        code.push(refuse_with(errno));
    }
    code.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    code
}

/// The verdict on a call that is refused or not by its arguments.
fn block(refusals: &[Refusal]) -> Vec<libc::sock_filter> {
    let mut code = Vec::new();
    for refusal in refusals {
        let (argument, test): (u32, Vec<libc::sock_filter>) = match refusal.when {
            When::Always => {
                code.push(refuse_with(refusal.errno));
                return code;
            }
            When::AnyBit(argument, bits) => (argument, vec![jump(IF_ANY_BIT, bits, 0, 1)]),
            When::Equal(argument, u32::MAX, value) => (argument, vec![jump(IF_EQUAL, value, 0, 1)]),
            When::Equal(argument, mask, value) => (argument, vec![statement(AND, mask), jump(IF_EQUAL, value, 0, 1)]),
            When::NoneOf(argument, values) => {
                // A match jumps over the comparisons that are left and the verdict.
                let left = (1..=values.len()).rev();
                let tests = values.iter().zip(left).map(|(value, left)| jump(IF_EQUAL, *value, distance(left), 0));
                (argument, tests.collect())
            }
        };
        code.push(statement(LOAD_WORD, argument_offset(argument)));
        code.extend(test);
        code.push(refuse_with(refusal.errno));
    }
    code.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    code
}

/// How far a comparison jumps.
fn distance(instructions: usize) -> u8 {
    u8::try_from(instructions).expect("a call has few refusals")
}

fn argument_offset(argument: u32) -> u32 {
    let low_half = if cfg!(target_endian = "little") { 0 } else { 4 };
    OFFSET_ARGUMENTS + 8 * argument + low_half
}

fn refuse_with(errno: libc::c_int) -> libc::sock_filter {
    statement(RETURN, libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA))
}

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a call meets: an errno, or 0 where it is allowed. Stands for the kernel's own interpreter.
    fn verdict(filter: &Filter, architecture: u32, number: u32, arguments: [u32; 6]) -> i32 {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let libc::sock_filter { code, jt, jf, k } = filter.0[at];
            at += 1;
            let branch = |is: bool| usize::from(if is { jt } else { jf });
            match code {
                LOAD_WORD => {
                    accumulator = match k {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCHITECTURE => architecture,
                        _ => arguments[((k - OFFSET_ARGUMENTS) / 8) as usize],
                    }
                }
                AND => accumulator &= k,
                IF_EQUAL => at += branch(accumulator == k),
                IF_AT_LEAST => at += branch(accumulator >= k),
                IF_ANY_BIT => at += branch(accumulator & k != 0),
                AHEAD => at += k as usize,
                RETURN if k == libc::SECCOMP_RET_ALLOW => return 0,
                RETURN => return (k & libc::SECCOMP_RET_DATA) as i32,
                _ => panic!("instruction {code}"),
            }
        }
    }

    /// The same, told from the refusals themselves.
    fn expected(refusals: &[Refusal], number: u32, arguments: [u32; 6]) -> i32 {
        let fits = |refusal: &&Refusal| {
            let argument = |index: u32| arguments[index as usize];
            refusal.call as u32 == number
                && match refusal.when {
                    When::Always => true,
                    When::AnyBit(index, bits) => argument(index) & bits != 0,
                    When::Equal(index, mask, value) => argument(index) & mask == value,
                    When::NoneOf(index, values) => !values.contains(&argument(index)),
                }
        };
        refusals.iter().find(fits).map_or(0, |refusal| refusal.errno)
    }

    /// Numbers that follow from `seed`, each as good as any other.
    fn numbers(mut seed: u64) -> impl FnMut(u32) -> u32 {
        move |below| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32 % below
        }
    }

    #[test]
    fn every_call_meets_what_its_refusals_say() {
        const FEW: &[u32] = &[1, 5, 7];
        for seed in 0..200 {
            let mut any = numbers(seed);
            let refusals: Vec<Refusal> = (0..any(120))
                .map(|_| {
                    let when = match any(6) {
                        0 => When::AnyBit(any(6), any(8)),
                        1 => When::Equal(any(6), u32::MAX, any(8)),
                        2 => When::Equal(any(6), any(8), any(8)),
                        3 => When::NoneOf(any(6), FEW),
                        _ => When::Always,
                    };
                    Refusal { call: any(90).into(), when, errno: 1 + any(3) as i32 }
                })
                .collect();
            let filter = Filter::refusing(&refusals);
            for number in 0..100 {
                for _ in 0..20 {
                    let arguments = std::array::from_fn(|_| any(10));
                    let found = verdict(&filter, ARCHITECTURE, number, arguments);
                    assert_eq!(found, expected(&refusals, number, arguments), "{number} {arguments:?} {refusals:?}");
                }
            }
        }
    }

    #[test]
    fn foreign_calls_are_absent() {
        let filter = Filter::refusing(&[]);
        assert_eq!(verdict(&filter, ARCHITECTURE, 1, [0; 6]), 0);
        assert_eq!(verdict(&filter, ARCHITECTURE ^ 1, 1, [0; 6]), libc::ENOSYS);
        assert_eq!(verdict(&filter, ARCHITECTURE, FOREIGN_NUMBERS + 1, [0; 6]), libc::ENOSYS);
    }
}
