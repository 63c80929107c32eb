//! `relay SOCKET PROGRAM ARGUMENTS…`: the guest's half of the bare relay that streams of output are measured beside. Each
//! connection to the socket gets what a process of the program's writes, in the runtime of the guest agent and without
//! anything of it. Says when it is ready.

use std::env::args;
use std::io;
use std::process::{Command, Stdio};
use tokio::io::{BufReader, copy_buf};
use tokio::net::UnixListener;
use tokio::net::unix::pipe;

/// What is read at once: what a pipe holds.
const BLOCK_SIZE: usize = 64 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = args().skip(1).collect();
    let [socket, program, rest @ ..] = arguments.as_slice() else {
        return Err(io::Error::other("relay SOCKET PROGRAM ARGUMENTS…"));
    };
    let listener = UnixListener::bind(socket)?;
    println!("ready");
    loop {
        let (mut connection, _) = listener.accept().await?;
        let mut process = Command::new(program).args(rest).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().expect("it was piped");
        let output = pipe::Receiver::from_owned_fd(output.into())?;
        // A reader that has left is its own affair.
        let _ = copy_buf(&mut BufReader::with_capacity(BLOCK_SIZE, output), &mut connection).await;
        drop(connection);
        process.wait()?;
    }
}
