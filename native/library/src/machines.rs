//! The machines of this process by number. A number is never used again, so a stale one is an error and nothing else.

use fluxvm_hypervisor::Stopper;
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Far more than a host has memory for.
const MACHINES_MAX: usize = 4096;

struct Machines {
    next: i32,
    /// By number, what ends each of them.
    stoppers: BTreeMap<i32, Stopper>,
}

static MACHINES: Mutex<Machines> = Mutex::new(Machines { next: 1, stoppers: BTreeMap::new() });

/// A number for a machine, until this is dropped.
pub struct Number(i32);

impl Number {
    /// The next one. `MFILE`: too many machines; `OVERFLOW`: there are no numbers left.
    pub fn take(stopper: Stopper) -> Result<Self> {
        let mut machines = locked();
        if machines.stoppers.len() >= MACHINES_MAX {
            return Err(Errno::MFILE);
        }
        let number = machines.next;
        machines.next = number.checked_add(1).ok_or(Errno::OVERFLOW)?;
        machines.stoppers.insert(number, stopper);
        Ok(Self(number))
    }

    /// As the caller knows it.
    pub fn get(&self) -> i32 {
        self.0
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        locked().stoppers.remove(&self.0);
    }
}

/// Asks a machine to end; its threads do that on their own time. `BADF`: there is none with this number, or no more.
pub fn stop(number: i32) -> Result<()> {
    let stopper = locked().stoppers.get(&number).cloned().ok_or(Errno::BADF)?;
    stopper.stop();
    Ok(())
}

/// Each change of the table is one step, so it is whole also when somebody panicked.
fn locked() -> MutexGuard<'static, Machines> {
    MACHINES.lock().unwrap_or_else(PoisonError::into_inner)
}
