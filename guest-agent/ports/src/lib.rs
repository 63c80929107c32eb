//! The TCP ports of the network that this process is in, with this process's rights: what listens, from the kernel's own
//! tables and without a probe; waiting for that; and connections to the loopback and nothing else.

#![forbid(unsafe_code)]

mod connection;
mod owners;
mod table;

pub use connection::Connection;
use owners::Owners;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use table::Listener;
use wire::limits::PORTS_LISTED_MAX;
use wire::port::ListeningPort;
use wire::{ErrorCode, Fault};

/// Where a connection is tried, in this order.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// How long a look at the tables is put off while nothing listens: from the first …
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// … to the last.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Which sockets of the network count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The network is the sandbox's own: all.
    Own,
    /// Others use it too: those of processes that this process can see, which must be those of the sandbox.
    Shared,
}

impl Network {
    /// All sockets that listen. Errors `CAPABILITY`, `LIMIT`.
    pub async fn list(self) -> Result<Vec<ListeningPort>, Fault> {
        off_the_loop(move || {
            let listeners = table::all()?;
            let owners = Owners::of(&inodes(&listeners));
            let mut ports: Vec<_> = listeners
                .iter()
                .filter(|listener| self == Self::Own || owners.has(listener.inode))
                .map(|listener| told(listener, &owners))
                .collect();
            ports.sort();
            ports.dedup();
            if ports.len() > PORTS_LISTED_MAX {
                return Err(Fault::new(ErrorCode::Limit, format!("more than {PORTS_LISTED_MAX} sockets listen")));
            }
            Ok(ports)
        })
        .await
    }

    /// Ready when something listens on `port` and a connection to the loopback would reach it. Error `CAPABILITY`.
    pub async fn wait(self, port: u16) -> Result<ListeningPort, Fault> {
        let mut pause = PAUSE_MIN;
        loop {
            if let Some(found) = off_the_loop(move || self.find(port)).await? {
                return Ok(found);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Connects to `port` of the loopback. Errors `REFUSED` when nothing of the sandbox listens there, `TIMED_OUT` when
    /// what listens takes no connection, `CAPABILITY`.
    pub async fn connect(self, port: u16) -> Result<Connection, Fault> {
        if self == Self::Shared {
            off_the_loop(move || self.check_reachable(port)).await?;
        }
        let mut fault = refused(port);
        for address in LOOPBACK {
            match Connection::open(address, port).await {
                Ok(connection) => return Ok(connection),
                Err(ErrorCode::TimedOut) => {
                    fault = Fault::new(ErrorCode::TimedOut, format!("port {port} took no connection in time"));
                }
                Err(_) => (),
            }
        }
        Err(fault)
    }

    fn find(self, port: u16) -> Result<Option<ListeningPort>, Fault> {
        let listeners = table::on_port(port)?;
        let owners = Owners::of(&inodes(&listeners));
        let is_it =
            |listener: &&Listener| listener.takes_loopback() && (self == Self::Own || owners.has(listener.inode));
        Ok(listeners.iter().find(is_it).map(|listener| told(listener, &owners)))
    }

    /// On a shared network a connection must not reach a socket of somebody else, which a more exact address or a shared
    /// port could lead to: so a port on which anybody else listens is refused as well.
    fn check_reachable(self, port: u16) -> Result<(), Fault> {
        let listeners = table::on_port(port)?;
        let owners = Owners::of(&inodes(&listeners));
        let are_own = listeners.iter().all(|listener| owners.has(listener.inode));
        if listeners.is_empty() || !are_own { Err(refused(port)) } else { Ok(()) }
    }
}

fn inodes(listeners: &[Listener]) -> Vec<u64> {
    listeners.iter().map(|listener| listener.inode).collect()
}

fn told(listener: &Listener, owners: &Owners) -> ListeningPort {
    let Listener { address, port, inode } = *listener;
    ListeningPort { port, address: address.to_string(), process: owners.name(inode) }
}

fn refused(port: u16) -> Fault {
    Fault::new(ErrorCode::Refused, format!("nothing of the sandbox listens on port {port} of the loopback"))
}

/// Reading the kernel's tables takes as long as others make them.
async fn off_the_loop<T: Send + 'static>(look: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|_| {
        Err(Fault::new(ErrorCode::Internal, "looking at the sockets failed inside the guest agent"))
    })
}
