//! The service of a virtual machine: one guest for whoever reaches its port and knows its token.

pub mod boot;
mod channels;
mod clock;
mod command;
mod config_disk;
mod guest;
mod identity;
mod listen;
mod oom;
mod options;
mod ports;
mod power;
mod serial_port;
mod shared_folders;
mod shell;
mod terminal;

use crate::STATUS_USAGE;
use config_disk::Config;
use guest::VmGuest;
use options::Options;
use service::Server;

/// Threads for file operations; each upload in progress holds one.
const FILE_THREADS_MAX: usize = 256;

/// Serves until the guest stops. Exit status 2 for bad arguments, 1 when it cannot listen.
pub fn run(arguments: &[String]) -> i32 {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("fluxvm-guest-agent: {message}\n{}", crate::USAGE);
            return STATUS_USAGE;
        }
    };
    match serve(options) {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("fluxvm-guest-agent: {message}");
            1
        }
    }
}

fn serve(options: Options) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(FILE_THREADS_MAX)
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut guest = VmGuest::new(&options)?;
        let config = if options.owns_machine() { Config::find() } else { None };
        if options.owns_machine() {
            oom::protect();
        }
        if let Some(config) = &config {
            config.seed();
            config.name_machine();
            guest.has_shared_folders = shared_folders::mount_all(&config.shared_folders);
        }
        let server = Server::new(guest, options.authority(config.as_ref()));
        drop(config);
        channels::serve(&options.address, server).await
    })
}
