//! The line with which a program on the host asks for a port of the guest: `CONNECT 1024\n`. The line is taken off the
//! socket to the byte, since what follows it is already meant for the guest.

use rustix::net::{RecvFlags, recv};
use std::os::unix::net::UnixStream;

/// The longest line that is waited for: the word, a space, ten digits and the end of the line, with room for `\r`.
const LINE_BYTES_MAX: usize = 32;

/// What the socket has said so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The line has not ended.
    Unfinished,
    /// The guest's port that is asked for.
    Port(u32),
    /// Not a greeting, or the socket has ended.
    Wrong,
}

/// Looks at what has arrived and takes the line off the socket once it is whole. Never waits.
pub fn take(socket: &UnixStream) -> Greeting {
    let mut seen = [0; LINE_BYTES_MAX];
    let count = match recv(socket, &mut seen[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => return Greeting::Wrong,
        Ok((count, _)) => count.min(LINE_BYTES_MAX),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Greeting::Unfinished,
        Err(_) => return Greeting::Wrong,
    };
    let Some(end) = seen[..count].iter().position(|byte| *byte == b'\n') else {
        return if count == LINE_BYTES_MAX { Greeting::Wrong } else { Greeting::Unfinished };
    };
    let line_bytes = end + 1;
    match recv(socket, &mut [0; LINE_BYTES_MAX][..line_bytes], RecvFlags::DONTWAIT) {
        Ok((taken, _)) if taken == line_bytes => parse(&seen[..end]),
        _ => Greeting::Wrong,
    }
}

fn parse(line: &[u8]) -> Greeting {
    let port = std::str::from_utf8(line).ok().and_then(|line| {
        let (word, port) = line.trim_end_matches('\r').split_once(' ')?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if word.eq_ignore_ascii_case("connect") && digits { port.parse().ok() } else { None }
    });
    port.map_or(Greeting::Wrong, Greeting::Port)
}

/// The answer once the guest has accepted: the port at the host's end.
pub fn answer(host_port: u32) -> String {
    format!("OK {host_port}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn greeting_of(bytes: &[u8]) -> Greeting {
        let (mut near, far) = UnixStream::pair().expect("a socket pair");
        near.write_all(bytes).expect("room");
        take(&far)
    }

    #[test]
    fn the_line_is_taken_and_nothing_after_it() {
        let (mut near, mut far) = UnixStream::pair().expect("a socket pair");
        near.write_all(b"CONNECT 10").expect("room");
        assert_eq!(take(&far), Greeting::Unfinished);
        near.write_all(b"24\nhello").expect("room");
        assert_eq!(take(&far), Greeting::Port(1024));
        let mut rest = [0; 5];
        far.read_exact(&mut rest).expect("what followed");
        assert_eq!(&rest, b"hello");
    }

    #[test]
    fn other_lines_are_refused() {
        assert_eq!(greeting_of(b"connect 4294967295\r\n"), Greeting::Port(u32::MAX));
        let wrong: [&[u8]; 8] = [
            b"CONNECT 4294967296\n",
            b"CONNECT\n",
            b"CONNECT \n",
            b"CONNECT +5\n",
            b"CONNECT 5 6\n",
            b"GET / HTTP/1.1\n",
            b"\xff\xfe\n",
            b"CONNECT 0000000000000000000000001\n",
        ];
        for line in wrong {
            assert_eq!(greeting_of(line), Greeting::Wrong, "{line:?}");
        }
    }

    #[test]
    fn a_socket_that_ends_before_its_line_is_refused() {
        let (mut near, far) = UnixStream::pair().expect("a socket pair");
        near.write_all(b"CONN").expect("room");
        assert_eq!(take(&far), Greeting::Unfinished);
        drop(near);
        // What has arrived still lies there; the end shows as a hang-up, which the owner watches for.
        assert_eq!(take(&far), Greeting::Unfinished);
        let (near, far) = UnixStream::pair().expect("a socket pair");
        drop(near);
        assert_eq!(take(&far), Greeting::Wrong);
    }
}
