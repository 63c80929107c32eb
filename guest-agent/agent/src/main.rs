//! The program inside every sandbox. Its first argument says which part it plays: the service of a virtual
//! machine, the launcher, supervisor and init of a process sandbox, or the launcher of a helper program.

mod manifest;
mod vm;

/// Program and version, as WELCOME and `version` say it.
const NAME: &str = concat!("fluxvm-guest-agent/", env!("CARGO_PKG_VERSION"));

const USAGE: &str = "\
usage: fluxvm-guest-agent [vm] [--port N | --unix PATH | --tcp 127.0.0.1:PORT] [--token-file PATH] [--root DIR]
       fluxvm-guest-agent procbox | procbox-probe | procbox-plan | helper
       fluxvm-guest-agent manifest [--wait] DIR…
       fluxvm-guest-agent version";

/// Exit status of a command line that makes no sense.
const STATUS_USAGE: i32 = 2;

fn main() {
    if let Some(first_process) = vm::boot::role() {
        std::process::exit(first_process());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mode, rest) = match arguments.split_first() {
        Some((mode, rest)) if !mode.starts_with("--") => (mode.as_str(), rest),
        _ => ("vm", arguments.as_slice()),
    };
    let status = match mode {
        "vm" => vm::run(rest),
        "procbox" => procbox::run(),
        "procbox-probe" => procbox::probe(),
        "procbox-plan" => procbox::plan(),
        "helper" => procbox::helper(),
        "manifest" => manifest::run(rest),
        "version" => {
            println!("{NAME}");
            0
        }
        _ => {
            eprintln!("{USAGE}");
            STATUS_USAGE
        }
    };
    std::process::exit(status);
}
