//! `fluxvm-hypervisor`: one virtual machine in one process, booted from a configuration and driven over a control socket.

mod config;
mod devices;

use config::BootConfig;
use fluxvm_engine::machine::Machine;
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::channel;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fluxvm-hypervisor: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage")?;
    let config: BootConfig = serde_json::from_slice(&std::fs::read(path)?)?;
    let (ends, ended) = channel();
    let (config, _balloon) = config.open()?;
    let mut machine = Machine::new(config, ends)?;
    machine.start()?;
    let end = ended.recv()?;
    machine.stop();
    eprintln!("{end}");
    Ok(ExitCode::SUCCESS)
}
