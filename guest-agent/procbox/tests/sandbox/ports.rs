//! TCP ports of a sandbox: what is listed, waiting, and connections to its loopback and nowhere else. This program is
//! bound into the sandbox and is the server there.

use crate::Case;
use crate::client::{Connection, Heard, shell};
use crate::fixture::{Place, Sandbox, program};
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use wire::execution::ExecutionStartRequest;
use wire::frame::Kind;
use wire::limits::PORT_CONNECTIONS_MAX;
use wire::message::{CHANNEL_IN, Data, Empty};
use wire::port::*;
use wire::{ErrorCode, Fault};

/// An ordinary user.
const NOBODY: u32 = 65534;

/// Prints how many connections to port 8000 there are, once there are none, or in the end.
const NO_CONNECTIONS: &str = "for i in $(seq 100); do n=$(grep -cE ' 0100007F:1F40 .* (01|05|08) ' /proc/net/tcp); \
                              [ $n = 0 ] && break; sleep 0.1; done; echo $n";

pub const CASES: &[Case] = &[
    ("a connection to a port carries both directions, each to its own end", both_directions),
    ("listening sockets are listed and waited for without a connection", listed_and_waited_for),
    ("a port that nobody listens on is refused, and so is one of the host", refused),
    ("a connection that breaks is told from one that ends", broken),
    ("a connection that the host drops is reset for the server", dropped),
    ("a server that is slow to hear gets everything", slow),
    ("a connection that the host gives up is gone, whatever the server does", given_up),
    ("connections have a bound, and one that is given up makes room", bounded),
    ("a port worker that is killed is replaced", worker_killed),
    ("an ordinary user's sandbox has ports", || both_directions_in(&served(Place::of_user(NOBODY)))),
    ("on the host's network only what the sandbox itself listens on is reached", shared_network),
];

fn served(place: Place) -> Sandbox {
    Sandbox::of(place.with(|config| {
        config["read_paths"].as_array_mut().unwrap().push(program().to_str().unwrap().into());
    }))
}

/// Starts a server inside, which runs until the sandbox ends, and waits until it listens.
fn serve(sandbox: &Sandbox, kind: &str, address: &str) {
    let request = ExecutionStartRequest {
        id: format!("{kind}-{}", address.rsplit(':').next().unwrap()),
        command: Some(format!("'{}' serve {kind} {address}", program().display())),
        ring_max: 1 << 16,
        ..Default::default()
    };
    let mut connection = sandbox.connect();
    connection.start("execution-start", &request);
    connection.finish::<wire::execution::ExecutionStartEnd>().unwrap();
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    wait(sandbox, port, 10_000).unwrap();
}

/// Inside: serves one address for ever.
pub fn serve_inside(arguments: &[String]) {
    let listener = TcpListener::bind(&arguments[1]).unwrap();
    let mut held = Vec::new();
    for stream in listener.incoming() {
        let (stream, kind) = (stream.unwrap(), arguments[0].clone());
        match kind.as_str() {
            "deaf" => held.push(stream),
            _ => drop(std::thread::spawn(move || answer(stream, &kind))),
        }
    }
}

fn answer(mut stream: TcpStream, kind: &str) {
    match kind {
        "echo" => {
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
        "reset" => {
            stream.read_exact(&mut [0]).unwrap();
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (value, size) = ((&raw const linger).cast(), size_of::<libc::linger>() as u32);
            // SAFETY: `value` points to a whole structure of that size.
            unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size) };
        }
        "tell" => {
            let told = match std::io::copy(&mut stream, &mut std::io::sink()) {
                Ok(count) => format!("end after {count}\n"),
                Err(error) => format!("{:?}\n", error.kind()),
            };
            std::fs::File::options()
                .append(true)
                .create(true)
                .open("told")
                .unwrap()
                .write_all(told.as_bytes())
                .unwrap();
        }
        // Says all it has to say, and is slow to hear.
        "slow" => {
            stream.shutdown(Shutdown::Write).unwrap();
            std::thread::sleep(Duration::from_millis(2_500));
            answer(stream, "tell");
        }
        // Hears everything and says nothing.
        "mute" => {
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
            std::thread::sleep(Duration::from_secs(600));
        }
        other => panic!("no server {other}"),
    }
}

fn ask<T: Serialize, E: serde::de::DeserializeOwned>(sandbox: &Sandbox, op: &str, arguments: &T) -> Result<E, Fault> {
    let mut connection = sandbox.connect();
    connection.start(op, arguments);
    connection.finish::<E>().map(|(end, _)| end)
}

fn list(sandbox: &Sandbox) -> Vec<ListeningPort> {
    ask::<_, PortListEnd>(sandbox, "port-list", &Empty {}).unwrap().ports
}

fn wait(sandbox: &Sandbox, port: u16, timeout_ms: u64) -> Result<ListeningPort, Fault> {
    ask(sandbox, "port-wait", &PortWaitRequest { port, timeout_ms })
}

/// Connects; the bytes are still to come.
fn connect(sandbox: &Sandbox, port: u16) -> Result<Connection, Fault> {
    let mut connection = sandbox.connect();
    connection.start("port-connect", &PortRequest { port });
    match connection.hear()? {
        Heard::Event => Ok(connection),
        Heard::Failed(fault) => Err(fault),
        Heard::Data(..) | Heard::End(_) => panic!("bytes before the connection was made"),
    }
}

fn send(connection: &mut Connection, content: &[u8]) {
    let data = Data { channel: CHANNEL_IN, content: serde_bytes::Bytes::new(content), eof: false };
    connection.send_on_current(Kind::Data, &data);
}

fn code<T>(result: Result<T, Fault>) -> ErrorCode {
    result.err().expect("an error").code
}

fn both_directions() {
    both_directions_in(&served(Place::new()));
}

fn both_directions_in(sandbox: &Sandbox) {
    for address in ["127.0.0.1:80", "0.0.0.0:8001", "[::1]:8002", "[::]:8003"] {
        serve(sandbox, "echo", address);
        let mut connection = connect(sandbox, address.rsplit(':').next().unwrap().parse().unwrap()).unwrap();
        let content: Vec<u8> = (0..900_000u32).flat_map(u32::to_le_bytes).take(900_000).collect();
        send(&mut connection, &content[..5]);
        // The answer comes while this direction is open.
        let Heard::Data(1, first) = connection.hear().unwrap() else { panic!("no answer") };
        connection.send_content(&content[5..]);
        let (_, [rest, _]) = connection.finish::<Empty>().unwrap();
        assert!([first, rest].concat() == content, "{address}");
    }
}

fn listed_and_waited_for() {
    let sandbox = served(Place::new());
    assert_eq!(list(&sandbox), []);
    assert_eq!(code(wait(&sandbox, 8000, 200)), ErrorCode::TimedOut);
    assert_eq!(code(wait(&sandbox, 0, 200)), ErrorCode::BadArgument);
    let later = format!("sleep 0.3; exec '{}' serve tell 127.0.0.3:8000", program().display());
    let mut running = sandbox.connect();
    running.start("exec", &shell(&later));
    let began = Instant::now();
    let found = wait(&sandbox, 8000, 10_000).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    assert_eq!((found.port, found.address.as_str()), (8000, "127.0.0.3"));
    serve(&sandbox, "tell", "[::]:900");
    let datagrams = "bash -c 'exec 3<>/dev/udp/127.0.0.1/9; sleep 5' >/dev/null 2>&1 &";
    sandbox.exec(wire::request::ExecRequest { kill_group: false, ..shell(datagrams) }).unwrap();
    let listed: Vec<_> = list(&sandbox).into_iter().map(|it| (it.port, it.address, it.process.is_some())).collect();
    assert_eq!(listed, [(900, "::".to_owned(), true), (8000, "127.0.0.3".to_owned(), true)]);
    assert_eq!(sandbox.output("cat told 2>/dev/null || echo nobody came"), "nobody came");
}

fn refused() {
    let sandbox = served(Place::new());
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    assert_eq!(code(connect(&sandbox, port)), ErrorCode::Refused);
    assert_eq!(code(connect(&sandbox, 1)), ErrorCode::Refused);
    assert_eq!(code(connect(&sandbox, 0)), ErrorCode::BadArgument);
    host.set_nonblocking(true).unwrap();
    assert!(host.accept().is_err(), "the host's socket saw a connection");
    assert!(list(&sandbox).is_empty());
}

fn broken() {
    let sandbox = served(Place::new());
    serve(&sandbox, "reset", "127.0.0.1:8000");
    let mut connection = connect(&sandbox, 8000).unwrap();
    send(&mut connection, b"x");
    assert_eq!(code(connection.finish::<Empty>()), ErrorCode::Broken);
}

fn dropped() {
    let sandbox = served(Place::new());
    serve(&sandbox, "tell", "127.0.0.1:8000");
    let told = |expected: &str| {
        let script = format!("for i in $(seq 100); do grep -qx '{expected}' told && break; sleep 0.05; done; cat told");
        assert_eq!(sandbox.output(&script).lines().last(), Some(expected));
    };
    let mut ended = connect(&sandbox, 8000).unwrap();
    ended.send_content(b"four");
    ended.finish::<Empty>().unwrap();
    told("end after 4");
    let mut cancelled = connect(&sandbox, 8000).unwrap();
    cancelled.send_on_current(Kind::Cancel, &Empty {});
    assert_eq!(code(cancelled.finish::<Empty>()), ErrorCode::Cancelled);
    told("ConnectionReset");
    sandbox.output("rm told");
    drop(connect(&sandbox, 8000).unwrap());
    told("ConnectionReset");
}

fn slow() {
    let sandbox = served(Place::new());
    serve(&sandbox, "slow", "127.0.0.1:8000");
    let mut connection = connect(&sandbox, 8000).unwrap();
    // More than the server's kernel takes, so that it lies with the worker while the server does not read.
    let size = 900 << 10;
    connection.send_content(&vec![7; size]);
    connection.finish::<Empty>().unwrap();
    assert_eq!(sandbox.output("cat told"), format!("end after {size}"));
}

fn given_up() {
    let sandbox = served(Place::new());
    serve(&sandbox, "mute", "127.0.0.1:8000");
    let mut connection = connect(&sandbox, 8000).unwrap();
    connection.send_content(b"the last word");
    std::thread::sleep(Duration::from_millis(100));
    drop(connection);
    assert_eq!(sandbox.output(NO_CONNECTIONS), "0");
}

fn bounded() {
    let sandbox = served(Place::new().with(|config| config["limits"]["open_files"] = 1024.into()));
    serve(&sandbox, "deaf", "127.0.0.1:8000");
    serve(&sandbox, "echo", "127.0.0.1:8001");
    let mut connection = sandbox.connect();
    for stream in 1..=PORT_CONNECTIONS_MAX as u32 {
        connection.open_on(stream, "port-connect", &PortRequest { port: 8000 });
        assert!(matches!(connection.hear().unwrap(), Heard::Event), "connection {stream}");
    }
    assert_eq!(code(connect(&sandbox, 8001)), ErrorCode::Limit);
    // More than the sockets on the way hold, so that the worker is stuck in writing.
    connection.send_content(&[7; 1 << 20]);
    drop(connection);
    let until = Instant::now() + Duration::from_secs(10);
    let mut again = loop {
        match connect(&sandbox, 8001) {
            Ok(connection) => break connection,
            Err(fault) => assert!(fault.code == ErrorCode::Limit && Instant::now() < until, "{fault}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    again.send_content(b"x");
    assert_eq!(again.finish::<Empty>().unwrap().1[0], b"x");
    // The worker has let go of them too.
    assert_eq!(sandbox.output(NO_CONNECTIONS), "0");
}

fn worker_killed() {
    let sandbox = served(Place::new());
    serve(&sandbox, "echo", "127.0.0.1:8000");
    let before = sandbox.processes();
    let mut connection = connect(&sandbox, 8000).unwrap();
    let workers: Vec<i32> = sandbox.processes().into_iter().filter(|pid| !before.contains(pid)).collect();
    // It was started by the wait already unless it was killed since.
    for pid in before.iter().chain(&workers) {
        let name = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let sockets = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0);
        if name.is_empty() && sockets > 8 {
            // SAFETY: plain integers.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
    }
    assert_eq!(code(connection.finish::<Empty>()), ErrorCode::Interrupted);
    serve(&sandbox, "echo", "127.0.0.1:8001");
    let mut connection = connect(&sandbox, 8001).unwrap();
    connection.send_content(b"again");
    assert_eq!(connection.finish::<Empty>().unwrap().1[0], b"again");
}

fn shared_network() {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // Landlock of a newer version lets nobody listen on the host's network.
    let sandbox = served(Place::of_user(NOBODY).with(|config| {
        config["net_ports"] = vec![port].into();
        config["max_abi"] = 3.into();
        config["best_effort"] = true.into();
    }));
    assert_eq!(sandbox.report["enforcement"]["network_isolated"], false);
    serve(&sandbox, "echo", &format!("127.0.0.1:{own}"));
    let ports: Vec<u16> = list(&sandbox).into_iter().map(|it| it.port).collect();
    assert_eq!(ports, [own]);
    let mut connection = connect(&sandbox, own).unwrap();
    connection.send_content(b"mine");
    assert_eq!(connection.finish::<Empty>().unwrap().1[0], b"mine");
    assert_eq!(code(connect(&sandbox, port)), ErrorCode::Refused);
    assert_eq!(code(wait(&sandbox, port, 100)), ErrorCode::TimedOut);
    // An address that the host's own socket is more exact for does not lead there either.
    serve(&sandbox, "echo", &format!("127.0.0.2:{port}"));
    assert_eq!(code(connect(&sandbox, port)), ErrorCode::Refused);
    host.set_nonblocking(true).unwrap();
    assert!(host.accept().is_err(), "the host's socket saw a connection");
}
