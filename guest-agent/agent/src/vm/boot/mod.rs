//! The guest agent as the first process of a machine: of the initrd, where it finds the root, and of the root, where it is
//! init.

mod command_line;
mod init;
mod initrd;
mod loopback;
mod modules;
mod mounts;
mod power_button;
mod root;

/// What this process has to do, when the kernel has started it as the first one under one of init's names.
pub fn role() -> Option<fn() -> i32> {
    if std::process::id() != 1 {
        return None;
    }
    match std::env::args().next().as_deref() {
        Some(initrd::PATH) => Some(initrd::run),
        Some(name) if name.rsplit('/').next() == Some("init") => Some(init::run),
        _ => None,
    }
}

/// Says something on the console, with the program's name before it.
fn say(message: &str) {
    eprintln!("fluxvm-guest-agent: {message}");
}
