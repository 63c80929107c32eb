//! All targets, one file each.

mod balloon;
mod block;
mod boot;
mod console;
mod control;
mod disk;
mod net;
mod platform;
mod pmem;
mod queue;
mod rng;
mod state;
mod transport;
mod vsock;

use crate::Target;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;

/// Every target; the order is the one of a campaign.
pub const ALL: [Target; 14] = [
    Target { name: "queue", missing: nothing, run: queue::run },
    Target { name: "transport", missing: nothing, run: transport::run },
    Target { name: "block", missing: nothing, run: block::run },
    Target { name: "net", missing: net::missing, run: net::run },
    Target { name: "vsock", missing: nothing, run: vsock::run },
    Target { name: "rng", missing: nothing, run: rng::run },
    Target { name: "balloon", missing: nothing, run: balloon::run },
    Target { name: "console", missing: nothing, run: console::run },
    Target { name: "pmem", missing: nothing, run: pmem::run },
    Target { name: "platform", missing: platform::missing, run: platform::run },
    Target { name: "boot", missing: nothing, run: boot::run },
    Target { name: "state", missing: state::missing, run: state::run },
    Target { name: "disk", missing: nothing, run: disk::run },
    Target { name: "control", missing: control::missing, run: control::run },
];

fn nothing() -> Option<&'static str> {
    None
}

/// A file in memory.
fn memory_file(bytes: u64) -> File {
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"));
    file.set_len(bytes).expect("memory");
    file
}
