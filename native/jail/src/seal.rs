//! The filter of system calls on all threads. Two layers, of which the stricter answer counts: what is not listed kills the
//! process; what a library tries and can do without is refused.

use crate::calls::{ALLOWED, NAMING, REFUSED, Rule, conditional};
use crate::{JailError, arch};
use rustix::process::getpid;
use seccompiler::{SeccompAction, SeccompFilter, SeccompRule, apply_filter_all_threads};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Whether a sealed process may name files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// No: all files reach it as descriptors.
    Refused,
    /// Those in its directory, which is all that it sees.
    InDirectory,
}

/// Limits every thread of this process to what a running machine needs. No thread can be started afterwards.
///
/// # Errors
/// When the kernel refuses, or a thread has a filter of its own.
pub fn seal(names: Names) -> Result<(), JailError> {
    let naming = if names == Names::InDirectory { [&NAMING[..], &arch::NAMING].concat() } else { Vec::new() };
    let refused = [&REFUSED[..], &arch::REFUSED].concat();
    let allowed = [&ALLOWED[..], &arch::ALLOWED].concat();
    // This order: the second layer lets no third be added.
    let first = refused.iter().filter(|call| !naming.contains(call)).map(|call| (*call, Vec::new())).collect();
    install(first, SeccompAction::Allow, SeccompAction::Errno(libc::EACCES as u32))?;
    let mut allowed: Rules = allowed.iter().chain(&refused).chain(&naming).map(|call| (*call, Vec::new())).collect();
    for Rule { call, conditions } in conditional(getpid()).map_err(failed)? {
        let rule = SeccompRule::new(conditions).map_err(failed)?;
        allowed.entry(call).or_default().push(rule);
    }
    install(allowed, SeccompAction::KillProcess, SeccompAction::Allow)
}

fn install(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<(), JailError> {
    let filter = SeccompFilter::new(rules, otherwise, matched, arch::TARGET).map_err(failed)?;
    let program: seccompiler::BpfProgram = filter.try_into().map_err(failed)?;
    apply_filter_all_threads(&program).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> JailError {
    JailError::Filter(error.to_string())
}
