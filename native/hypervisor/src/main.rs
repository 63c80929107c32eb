//! `fluxvm-hypervisor`: one virtual machine in one process, booted from a configuration and driven over a control socket.

mod config;
mod control;
mod devices;
mod protocol;
mod session;
mod snapshot;

use config::{BootConfig, CONFIG_BYTES_MAX, open};
use fluxvm_engine::vcpu::End;
use session::Session;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

const USAGE: &str = "\
usage: fluxvm-hypervisor [--api-sock PATH] [--boot-config FILE]

Runs one virtual machine until it ends. Needs at least one of:
  --api-sock PATH     takes requests there, one JSON object a line
  --boot-config FILE  boots the machine that the JSON file describes

Ends with 0 when the guest turned itself off or the host ended it, 20 when the guest asked for a reset, 21 when it crashed,
1 when it could not be booted, 2 when this text was needed.
";
const STATUS_RESET: u8 = 20;
const STATUS_CRASH: u8 = 21;
const STATUS_USAGE: u8 = 2;

struct Arguments {
    socket: Option<PathBuf>,
    config: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprint!("{USAGE}");
        return ExitCode::from(STATUS_USAGE);
    };
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("fluxvm-hypervisor: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            eprintln!("  because: {error}");
            cause = error.source();
        }
        ExitCode::FAILURE
    })
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments { socket: None, config: None };
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--api-sock" => &mut arguments.socket,
            "--boot-config" => &mut arguments.config,
            _ => return None,
        };
        *place = Some(PathBuf::from(words.next()?));
    }
    (arguments.socket.is_some() || arguments.config.is_some()).then_some(arguments)
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let (session, ends) = Session::new();
    let session = Arc::new(Mutex::new(session));
    let (shutdown, shutdowns) = channel();
    let _socket = match &arguments.socket {
        Some(path) => Some(control::serve(path, Arc::clone(&session), shutdown.clone())?),
        None => None,
    };
    if let Some(path) = &arguments.config {
        let config = read_config(path)?;
        session.lock().unwrap_or_else(PoisonError::into_inner).boot(config)?;
    }
    let end = wait(ends, shutdowns, shutdown);
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    // Here rather than at the end of the process, which does not wait for the threads of the control socket.
    session.close();
    let Some(end) = end else { return Ok(ExitCode::SUCCESS) };
    eprintln!("fluxvm-hypervisor: {end}");
    Ok(match end {
        End::PowerOff => ExitCode::SUCCESS,
        End::Reset => ExitCode::from(STATUS_RESET),
        End::Crash(_) => ExitCode::from(STATUS_CRASH),
    })
}

/// Waits for the end of the guest, or for nothing when the host asks first.
fn wait(ends: Receiver<End>, shutdowns: Receiver<()>, shutdown: std::sync::mpsc::Sender<()>) -> Option<End> {
    let end = Arc::new(Mutex::new(None));
    let told = Arc::clone(&end);
    std::thread::spawn(move || {
        if let Ok(end) = ends.recv() {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
            let _ = shutdown.send(());
        }
    });
    let _ = shutdowns.recv();
    end.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn read_config(path: &Path) -> Result<BootConfig, Box<dyn Error>> {
    let mut bytes = Vec::new();
    let file = open("the boot configuration", path, OpenOptions::new().read(true))?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err("the boot configuration is larger than 64 KiB".into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}
