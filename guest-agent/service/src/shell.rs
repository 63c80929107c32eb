//! A version 1 shell session: frames from the host to the terminal, raw bytes back.

use crate::guest::Shell;
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use wire::limits::V1_SHELL_FRAME_MAX;

const TAG_DATA: u8 = 0;
const TAG_RESIZE: u8 = 1;
/// How long the shell's last words are waited for; what it left in the background may hold the terminal open.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Serves `shell` until it ends or the host does. `rest` is what the host sent behind its request line.
pub async fn serve(shell: Shell, rest: Vec<u8>, reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin) {
    let Shell { master, ended } = shell;
    let Ok((mut screen, mut keys)) = ends(&master) else { return };
    let mut output = std::pin::pin!(tokio::io::copy(&mut screen, &mut writer));
    tokio::select! {
        _ = &mut output => {}
        _ = take_input(&master, &mut keys, rest.as_slice().chain(reader)) => {}
        _ = ended => {
            let _ = tokio::time::timeout(LAST_WORDS, &mut output).await;
        }
    }
}

/// The master as something to read from and something to write to. It is no pipe, but polls like one.
fn ends(master: &OwnedFd) -> io::Result<(pipe::Receiver, pipe::Sender)> {
    let screen = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
    let keys = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
    Ok((screen, keys))
}

/// Ends at a clean close, an unknown tag, an oversize frame or an end inside a frame.
async fn take_input(master: &OwnedFd, keys: &mut pipe::Sender, mut reader: impl AsyncRead + Unpin) -> io::Result<()> {
    let mut content = Vec::new();
    loop {
        match reader.read_u8().await? {
            TAG_DATA => {
                let length = reader.read_u32().await? as usize;
                if length > V1_SHELL_FRAME_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                content.resize(length, 0);
                reader.read_exact(&mut content).await?;
                keys.write_all(&content).await?;
            }
            TAG_RESIZE => {
                let (cols, rows) = (reader.read_u16().await?, reader.read_u16().await?);
                tcsetwinsize(master, Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 })?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
