//! A TCP connection to the loopback. Each direction ends by itself; a connection that is dropped before both have ended
//! is reset, so that the server never takes what was cut for complete.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use wire::limits::PORT_CONNECT_MS_MAX;
use wire::{ErrorCode, Fault};

/// Bytes that are read at once.
const READ_SIZE: usize = 32 << 10;
/// Bytes that the kernel keeps for each direction, at this end: their memory is not the sandbox's.
const SOCKET_BUFFER_SIZE: u32 = 128 << 10;

pub struct Connection {
    stream: TcpStream,
    /// The server has sent its last.
    is_read: Cell<bool>,
    /// Nothing more goes to the server.
    is_written: Cell<bool>,
}

impl Connection {
    /// Errors `REFUSED`, `TIMED_OUT`.
    pub async fn open(address: IpAddr, port: u16) -> Result<Self, ErrorCode> {
        let connecting = async {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_recv_buffer_size(SOCKET_BUFFER_SIZE)?;
            socket.set_send_buffer_size(SOCKET_BUFFER_SIZE)?;
            socket.set_nodelay(true)?;
            socket.connect(SocketAddr::new(address, port)).await
        };
        match timeout(Duration::from_millis(PORT_CONNECT_MS_MAX), connecting).await {
            Ok(Ok(stream)) => Ok(Self { stream, is_read: Cell::default(), is_written: Cell::default() }),
            Ok(Err(_)) => Err(ErrorCode::Refused),
            Err(_) => Err(ErrorCode::TimedOut),
        }
    }

    /// The next bytes from the server, none after its last. Error `BROKEN`.
    pub async fn read(&self) -> Result<Vec<u8>, Fault> {
        loop {
            self.stream.readable().await.map_err(broken)?;
            let mut bytes = Vec::with_capacity(READ_SIZE);
            match self.stream.try_read_buf(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                Err(error) => return Err(broken(error)),
                Ok(count) => {
                    self.is_read.set(count == 0);
                    return Ok(bytes);
                }
            }
        }
    }

    /// Returns when the kernel has all of `bytes`. Error `BROKEN`.
    pub async fn write(&self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            self.stream.writable().await.map_err(broken)?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                Err(error) => return Err(broken(error)),
                Ok(count) => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    /// Nothing more goes to the server, which reads its end. Error `BROKEN`.
    pub fn end(&self) -> Result<(), Fault> {
        rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write).map_err(|errno| broken(errno.into()))?;
        self.is_written.set(true);
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !(self.is_read.get() && self.is_written.get()) {
            // One that cannot be reset is broken already.
            let _ = self.stream.set_zero_linger();
        }
    }
}

fn broken(error: io::Error) -> Fault {
    Fault::new(ErrorCode::Broken, format!("the connection broke off: {error}"))
}
