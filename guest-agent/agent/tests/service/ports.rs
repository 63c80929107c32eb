//! TCP ports of the machine: what listens, waiting, and connections to the loopback.

use crate::host::Agent;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::frame::Kind;
use wire::limits::CREDIT_INITIAL;
use wire::message::*;
use wire::port::*;

fn listener(address: &str) -> (TcpListener, u16) {
    let listener = TcpListener::bind(address).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Takes one connection and hands it to `serve` on a thread.
fn serving(listener: TcpListener, serve: impl FnOnce(TcpStream) + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || serve(listener.accept().unwrap().0))
}

#[test]
fn sockets_that_listen_are_listed() {
    let agent = Agent::start();
    let mut connection = agent.open();
    assert!(connection.welcome.as_ref().unwrap().features.contains(&"ports".to_owned()));
    let (_held, port) = listener("127.0.0.2:0");
    let listed: PortListEnd = connection.run("port-list", &Empty {}).unwrap().end();
    let found = listed.ports.iter().find(|it| it.port == port).unwrap();
    assert_eq!(found.address, "127.0.0.2");
    assert!(found.process.is_some());
    assert!(listed.ports.is_sorted_by_key(|it| it.port));
}

#[test]
fn a_wait_sees_a_listener_that_is_not_disturbed() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let (held, port) = listener("[::1]:0");
    let found: ListeningPort = connection.run("port-wait", &PortWaitRequest { port, timeout_ms: 5_000 }).unwrap().end();
    assert_eq!((found.port, found.address.as_str()), (port, "::1"));
    held.set_nonblocking(true).unwrap();
    assert!(held.accept().is_err(), "the listener saw a connection");
    drop(held);
    let began = Instant::now();
    let failed = connection.run("port-wait", &PortWaitRequest { port, timeout_ms: 200 }).unwrap_err();
    assert_eq!(failed.code, ErrorCode::TimedOut);
    assert!(began.elapsed() >= Duration::from_millis(200));
    let waiting = connection.start("port-wait", &PortWaitRequest { port, timeout_ms: 60_000 });
    connection.send(waiting, Kind::Cancel, &Empty {});
    assert_eq!(connection.finish(waiting).unwrap_err().code, ErrorCode::Cancelled);
}

#[test]
fn a_connection_carries_both_directions_to_their_ends() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let (held, port) = listener("127.0.0.1:0");
    let server = serving(held, |mut stream| {
        stream.write_all(b"greeting").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"late words");
    });
    let id = connection.start("port-connect", &PortRequest { port });
    let mut kinds = Vec::new();
    loop {
        let (_, kind, payload) = connection.frame().unwrap();
        kinds.push(kind);
        if kind == Kind::Data && wire::frame::decode::<Data<'_>>(&payload).unwrap().eof {
            break;
        }
    }
    assert_eq!(kinds[0], Kind::Event);
    connection.send_data(id, b"late ", false);
    connection.send_data(id, b"words", true);
    connection.finish(id).unwrap();
    server.join().unwrap();
}

#[test]
fn credit_is_the_servers_back_pressure() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let (held, port) = listener("127.0.0.1:0");
    let (full, is_full) = std::sync::mpsc::channel();
    let server = serving(held, move |mut stream| {
        stream.set_nonblocking(true).unwrap();
        let (mut written, mut quiet) = (0u64, 0);
        // Until nothing was taken for a while.
        while quiet < 20 {
            match stream.write(&[7; 1 << 16]) {
                Ok(count) => (written, quiet) = (written + count as u64, 0),
                Err(_) => quiet += 1,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!((CREDIT_INITIAL..32 << 20).contains(&written), "{written} bytes were taken without credit");
        full.send(()).unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    });
    let id = connection.start("port-connect", &PortRequest { port });
    is_full.recv_timeout(Duration::from_secs(60)).unwrap();
    connection.send_data(id, b"", true);
    let outcome = connection.finish(id).unwrap();
    assert!(outcome.out.len() as u64 > CREDIT_INITIAL);
    server.join().unwrap();
}

#[test]
fn nothing_there_and_nonsense_are_refused() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let (held, port) = listener("127.0.0.1:0");
    drop(held);
    let mut code = |port: u32| {
        let arguments = std::collections::BTreeMap::from([("port", port)]);
        connection.run("port-connect", &arguments).unwrap_err().code
    };
    assert_eq!(code(port.into()), ErrorCode::Refused);
    assert_eq!(code(0), ErrorCode::BadArgument);
    assert_eq!(code(65_536), ErrorCode::BadArgument);
}

#[test]
fn a_connection_that_the_host_cancels_is_reset() {
    let agent = Agent::start();
    let mut connection = agent.open();
    let (held, port) = listener("127.0.0.1:0");
    let server = serving(held, |mut stream| {
        let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
    let id = connection.start("port-connect", &PortRequest { port });
    assert_eq!(connection.frame().unwrap().1, Kind::Event);
    connection.send(id, Kind::Cancel, &Empty {});
    assert_eq!(connection.finish(id).unwrap_err().code, ErrorCode::Cancelled);
    server.join().unwrap();
}
