//! The control socket: a unix socket for its owner only, a few connections at a time, one request a line. A bad line gets an
//! error and the connection stays.

use crate::protocol::{LINE_BYTES_MAX, Reply, Request};
use crate::session::Session;
use rustix::process::umask;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// More than the agent and somebody who looks nobody needs.
const CONNECTIONS_MAX: usize = 16;

/// The socket; dropping it removes it from the file system.
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes the socket and serves the session on threads of their own. A request to shut down is told to `shutdowns` once it
/// has been answered.
///
/// # Errors
/// What making the socket or a thread says.
pub fn serve(path: &Path, session: Arc<Mutex<Session>>, shutdowns: Sender<()>) -> io::Result<ControlSocket> {
    let before = umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    let (listener, socket) = (listener?, ControlSocket { path: path.to_owned() });
    let open = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let (session, shutdowns, slot) = (Arc::clone(&session), shutdowns.clone(), Slot::take(&open));
            let body = move || {
                let _slot = slot;
                // A connection that breaks concerns only who made it.
                let _ = answer_all(&stream, &session, &shutdowns);
            };
            if open.load(Ordering::Relaxed) <= CONNECTIONS_MAX {
                let _ = std::thread::Builder::new().name("control".to_owned()).spawn(body);
            }
        }
    };
    std::thread::Builder::new().name("accept".to_owned()).spawn(accept)?;
    Ok(socket)
}

/// A place among the connections.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer_all(stream: &UnixStream, session: &Mutex<Session>, shutdowns: &Sender<()>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let length = reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        if length > LINE_BYTES_MAX {
            send(stream, &Reply::Error { message: "the request is longer than 64 KiB".to_owned() })?;
            return Ok(());
        }
        let request = serde_json::from_slice(&line);
        let is_shutdown = matches!(request, Ok(Request::Shutdown));
        let reply = match request {
            Ok(Request::Ping) => Reply::OK,
            Ok(request) => session.lock().unwrap_or_else(PoisonError::into_inner).handle(request),
            Err(error) => Reply::Error { message: format!("no request: {error}") },
        };
        let sent = send(stream, &reply);
        if is_shutdown {
            let _ = shutdowns.send(());
        }
        sent?;
    }
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Client {
        reader: BufReader<UnixStream>,
    }

    impl Client {
        fn ask(&mut self, line: &[u8]) -> String {
            self.send(&[line, b"\n"].concat())
        }

        fn send(&mut self, bytes: &[u8]) -> String {
            self.reader.get_mut().write_all(bytes).unwrap();
            let mut reply = String::new();
            self.reader.read_line(&mut reply).unwrap();
            reply
        }
    }

    #[test]
    fn requests_are_answered_in_order_and_nonsense_does_not_end_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let (session, _ends) = Session::new();
        let (sender, shutdowns) = std::sync::mpsc::channel();
        let socket = serve(&path, Arc::new(Mutex::new(session)), sender).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut client = Client { reader: BufReader::new(UnixStream::connect(&path).unwrap()) };
        assert_eq!(client.ask(br#"{"action":"ping"}"#), "{\"status\":\"ok\"}\n");
        assert!(client.ask(b"nonsense").starts_with(r#"{"status":"error""#));
        assert!(client.ask(br#"{"action":"pause"}"#).contains("there is no machine yet"));
        assert!(client.ask(br#"{"action":"metrics"}"#).contains(r#""lifecycle":"created""#));
        let kernel = folder.path().join("kernel");
        let boot = format!(r#"{{"action":"boot","kernel":{kernel:?},"memory_mib":64,"vcpus":1}}"#);
        let refused = client.ask(boot.as_bytes());
        assert!(refused.contains("kernel cannot be opened: No such file"), "{refused}");
        assert_eq!(client.ask(br#"{"action":"shutdown"}"#), "{\"status\":\"ok\"}\n");
        shutdowns.recv().unwrap();
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        // No end of line: the answer comes as soon as the limit is passed.
        assert!(client.send(&long).contains("longer than 64 KiB"));
        drop(socket);
        assert!(!path.exists());
    }
}
