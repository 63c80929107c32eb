//! One connection from its first byte to its end: which version it speaks, and handing it on.

use crate::authority::Authority;
use crate::executions::Executions;
use crate::guest::Guest;
use crate::{v1, v2};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::Semaphore;
use wire::limits::{EXECUTIONS_MAX, PORT_CONNECTIONS_MAX, PORT_WAITS_MAX};
use wire::preamble::Scanner;
use wire::{ErrorCode, Fault};

/// How long a caller may take to say who it is.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one guest to any number of connections.
pub struct Server<G> {
    pub(crate) guest: G,
    pub(crate) authority: Authority,
    pub(crate) executions: Executions,
    /// What every connection of version 2 is welcomed with: the same for all, and made before the first one waits for it.
    pub(crate) welcome: Vec<u8>,
    running: Cell<usize>,
    /// Connections to ports, and waits for ports, that there may be.
    pub(crate) port_connections: Semaphore,
    pub(crate) port_waits: Semaphore,
}

impl<G: Guest> Server<G> {
    pub fn new(guest: G, authority: Authority) -> Rc<Self> {
        let executions = Executions::new(guest.output_kept_max());
        let welcome = v2::welcome(&guest);
        Rc::new(Self {
            welcome,
            guest,
            authority,
            executions,
            running: Cell::new(0),
            port_connections: Semaphore::new(PORT_CONNECTIONS_MAX),
            port_waits: Semaphore::new(PORT_WAITS_MAX),
        })
    }

    /// To be called when the guest is about to stop: sessions on terminals are told first.
    pub fn hang_up(&self) {
        self.executions.hang_up();
    }

    /// Serves `stream` until it ends. What its requests started goes on. Must run inside a `LocalSet`.
    pub async fn serve(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let (mut reader, writer) = tokio::io::split(stream);
        let first = tokio::time::timeout(HANDSHAKE_TIMEOUT, reader.read_u8()).await;
        let Ok(Ok(first)) = first else { return };
        if first == b'{' {
            v1::serve(self, reader, writer).await;
            return;
        }
        let mut scanner = Scanner::default();
        scanner.push(first);
        let scan = async {
            loop {
                if let Some(nonce) = scanner.push(reader.read_u8().await?) {
                    return std::io::Result::Ok(nonce);
                }
            }
        };
        if let Ok(Ok(nonce)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, scan).await {
            v2::serve(self, nonce, reader, writer).await;
        }
    }

    /// The right to run one more command, given back when dropped. Error `LIMIT`.
    pub(crate) fn execution_slot(self: &Rc<Self>) -> Result<ExecutionSlot<G>, Fault> {
        let running = self.running.get();
        if running >= EXECUTIONS_MAX {
            return Err(Fault::new(ErrorCode::Limit, format!("{EXECUTIONS_MAX} commands are running")));
        }
        self.running.set(running + 1);
        Ok(ExecutionSlot { server: self.clone() })
    }
}

pub(crate) struct ExecutionSlot<G> {
    server: Rc<Server<G>>,
}

impl<G> Drop for ExecutionSlot<G> {
    fn drop(&mut self) {
        self.server.running.set(self.server.running.get() - 1);
    }
}
