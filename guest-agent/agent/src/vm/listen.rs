//! Where connections come from: AF_VSOCK in a virtual machine, a unix or loopback socket elsewhere.

use super::options::Address;
use service::{Guest, Server};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio_vsock::{VMADDR_CID_ANY, VMADDR_CID_HOST, VsockAddr, VsockListener};
use wire::limits::PORT;

/// Connections served at a time; the next wait to be accepted.
const CONNECTIONS_MAX: usize = 128;
/// How long to wait when accepting fails, for lack of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub enum Listener {
    Vsock(VsockListener),
    Unix(UnixListener),
    Tcp(TcpListener),
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Listener {
    /// A unix socket is open to its owner only and takes the place of one that nobody serves any more.
    pub fn bind(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Machine => Self::bind(&Address::Vsock(PORT))?,
            Address::Vsock(port) => Self::Vsock(VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, *port))?),
            Address::Unix(path) => Self::Unix(bind_unix(path)?),
            Address::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Self::Tcp(TcpListener::from_std(listener)?)
            }
        })
    }

    /// Serves every connection, for ever.
    pub async fn serve<G: Guest>(self, server: Rc<Server<G>>) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            match self.accept().await {
                Ok(Some(stream)) => {
                    let server = server.clone();
                    spawn_local(async move {
                        server.serve(stream).await;
                        drop(slot);
                    });
                }
                Ok(None) => {}
                Err(error) => {
                    eprintln!("fluxvm-guest-agent: cannot accept: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The next connection; `None` for one that nobody but the host may make.
    async fn accept(&self) -> io::Result<Option<Box<dyn Stream>>> {
        Ok(match self {
            Self::Vsock(listener) => {
                let (stream, peer) = listener.accept().await?;
                (peer.cid() == VMADDR_CID_HOST).then(|| Box::new(stream) as Box<dyn Stream>)
            }
            Self::Unix(listener) => Some(Box::new(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                stream.set_nodelay(true)?;
                Some(Box::new(stream))
            }
        })
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}
