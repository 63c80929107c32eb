//! The sockets that listen, as `/proc/self/net/tcp` and `tcp6` have them. The kernel lists those first, so reading stops
//! where the connections begin, however many there are.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{ErrorCode, Fault};

const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// Bytes of one table that are read; a line has at most 180 or so.
const TABLE_BYTES_MAX: u64 = 16 << 20;
/// The state of a socket that listens, as the tables write it.
const LISTENS: &str = "0A";

/// A socket that listens for TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub address: IpAddr,
    pub port: u16,
    /// Of the socket, as descriptors name it.
    pub inode: u64,
}

impl Listener {
    /// Whether a connection to a loopback address can reach it.
    pub fn takes_loopback(&self) -> bool {
        let address = self.address.to_canonical();
        address.is_unspecified() || address.is_loopback()
    }
}

/// Every socket that listens. Error `CAPABILITY` where this process has no tables to read.
pub fn all() -> Result<Vec<Listener>, Fault> {
    select(|_| true)
}

/// Those on one port. Error `CAPABILITY`.
pub fn on_port(port: u16) -> Result<Vec<Listener>, Fault> {
    select(|listener| listener.port == port)
}

fn select(is_wanted: impl Fn(&Listener) -> bool) -> Result<Vec<Listener>, Fault> {
    let mut listeners = Vec::new();
    for (number, path) in TABLES.into_iter().enumerate() {
        match File::open(path) {
            Ok(table) => read(table, &is_wanted, &mut listeners).map_err(unreadable)?,
            // A kernel without IPv6 has no second table.
            Err(error) if number > 0 && error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(unreadable(error)),
        }
    }
    Ok(listeners)
}

fn unreadable(error: io::Error) -> Fault {
    Fault::new(ErrorCode::Capability, format!("the sandbox cannot read its table of sockets: {error}"))
}

fn read(table: impl Read, is_wanted: impl Fn(&Listener) -> bool, found: &mut Vec<Listener>) -> io::Result<()> {
    for line in BufReader::new(table.take(TABLE_BYTES_MAX)).lines().skip(1) {
        match listener(&line?) {
            Some(listener) if is_wanted(&listener) => found.push(listener),
            Some(_) => (),
            None => break,
        }
    }
    Ok(())
}

/// `sl local remote state queues timer retransmits uid timeout inode …`; none for what does not listen.
fn listener(line: &str) -> Option<Listener> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let (_remote, state) = (fields.next()?, fields.next()?);
    if state != LISTENS {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    Some(Listener { address: self::address(address)?, port: u16::from_str_radix(port, 16).ok()?, inode })
}

/// The kernel writes an address as words in the machine's own byte order.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000 100 0 0 10 0
   2: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1 0000 20 4 30 10 -1
   3: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4714 1 0000 100 0 0 10 0
";

    fn listeners(table: &str) -> Vec<(String, u16, u64)> {
        let mut found = Vec::new();
        read(table.as_bytes(), |_| true, &mut found).unwrap();
        found.iter().map(|it| (it.address.to_string(), it.port, it.inode)).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listeners_stand_before_connections() {
        assert_eq!(listeners(TABLE), [("127.0.0.1".to_owned(), 8080, 4711), ("0.0.0.0".to_owned(), 22, 4712)]);
        let six = TABLE.replace("0100007F:1F90 00000000", "00000000000000000000000001000000:1F90 00000000");
        assert_eq!(listeners(&six)[0], ("::1".to_owned(), 8080, 4711));
        assert_eq!(listeners("header\n"), []);
        assert_eq!(listeners("header\n 0: nonsense\n"), []);
    }

    #[test]
    fn what_the_loopback_reaches() {
        let reaches = |text: &str| Listener { address: text.parse().unwrap(), port: 1, inode: 1 }.takes_loopback();
        for address in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1"] {
            assert!(reaches(address), "{address}");
        }
        for address in ["10.0.0.1", "fe80::1", "::ffff:10.0.0.1"] {
            assert!(!reaches(address), "{address}");
        }
    }

    #[test]
    fn the_kernel_tells_of_a_socket_of_ours() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = on_port(port).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].address, found[0].port), (IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        drop(socket);
        assert_eq!(on_port(port).unwrap(), []);
    }
}
