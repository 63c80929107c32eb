//! An interactive shell on a terminal of its own.

use super::{oom, terminal};
use service::Shell;
use std::process::Stdio;
use tokio::process::Command;
use tokio::task::spawn_local;
use wire::execution::TerminalSize;
use wire::{ErrorCode, Fault};

const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// Starts a login shell on a fresh terminal of `cols` × `rows`. Error `SPAWN_FAILED`.
pub fn open(cols: u16, rows: u16) -> Result<Shell, Fault> {
    let failed = |error: std::io::Error| Fault::new(ErrorCode::SpawnFailed, format!("cannot open a shell: {error}"));
    let (master, name) = terminal::open(TerminalSize { cols, rows }).map_err(|errno| failed(errno.into()))?;
    let program = SHELLS.into_iter().find(|path| std::path::Path::new(path).exists()).unwrap_or(SHELLS[1]);
    let program_name = program.rsplit('/').next().unwrap_or(program);
    let mut command = Command::new(program);
    command.arg0(format!("-{program_name}")).current_dir(home()).env("TERM", "xterm-256color").env("HOME", home());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    terminal::give(&mut command, name);
    let mut child = command.spawn().map_err(failed)?;
    if let Some(process) = child.id() {
        oom::expose(process);
    }
    // A task of its own waits for it, so that a session that is given up leaves no zombie.
    let waiting = spawn_local(async move { child.wait().await });
    let ended = Box::pin(async {
        // How a shell ended is of no interest to version 1.
        let _ = waiting.await;
    });
    Ok(Shell { master, ended })
}

fn home() -> &'static str {
    if std::path::Path::new("/root").is_dir() { "/root" } else { "/" }
}
