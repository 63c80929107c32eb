//! `fluxvm-hypervisor`: one virtual machine in one process, booted from a configuration and driven over a control socket.

use fluxvm_hypervisor::{BootConfig, CONFIG_BYTES_MAX, Control, End, PlacedSocket, Prepared, Service};
use fluxvm_sys::signals::EndSignals;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write, stderr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
        let mut said = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            said = format!("{said}: {error}");
            cause = error.source();
        }
        say(&said);
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
    let mut prepared = arguments.config.as_deref().map(prepare).transpose()?;
    let signals = EndSignals::take()?;
    let mut socket = arguments.socket.as_deref().map(PlacedSocket::bind).transpose()?;
    if let Some(prepared) = &mut prepared {
        let keep: Vec<_> = socket.iter().map(PlacedSocket::as_fd).chain([signals.as_fd()]).collect();
        // SAFETY: this process has opened nothing else that it still uses.
        unsafe { prepared.enter_jail(&keep)? };
    }
    if let (Some(socket), Some(prepared)) = (&mut socket, &prepared) {
        socket.moved(|path| prepared.find(path));
    }
    let listener = socket.as_ref().map(PlacedSocket::listener).transpose()?;
    let mut service = Service::start(Control { listener, streams: Vec::new(), signals: Some(signals) })?;
    if let Some(prepared) = prepared {
        service.boot(prepared)?;
    }
    let Some(end) = service.serve() else { return Ok(ExitCode::SUCCESS) };
    say(&end.to_string());
    Ok(match end {
        End::PowerOff => ExitCode::SUCCESS,
        End::Reset => ExitCode::from(STATUS_RESET),
        End::Crash(_) => ExitCode::from(STATUS_CRASH),
    })
}

/// A log that has no room must not make this another end.
fn say(text: &str) {
    let _ = writeln!(stderr(), "fluxvm-hypervisor: {text}");
}

fn prepare(path: &Path) -> Result<Prepared, Box<dyn Error>> {
    let mut bytes = Vec::new();
    let file =
        File::open(path).map_err(|error| format!("the boot configuration {path:?} cannot be opened: {error}"))?;
    // One more than there may be, so that too many are seen.
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(Prepared::open(BootConfig::parse(&bytes)?)?)
}
