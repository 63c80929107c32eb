//! One machine on threads of this process: its own thread does what the control socket asks and tells its beginning and end
//! by records. Whatever happens there, a panic included, ends in a record or in the end of the socket, never in the caller.

use crate::layout::{EndReason, RecordKind, Started, encode};
use crate::machines::Number;
use fluxvm_hypervisor::{BootConfig, Control, End, Prepared, Service};
use fluxvm_sys::threads::with_signals_blocked;
use rustix::io::{Errno, Result};
use rustix::net::{SendFlags, send};
use std::error::Error;
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;

/// Errors have causes below causes only so far.
const CAUSES_MAX: usize = 8;
const NOWHERE: &str = "/dev/null";

/// Starts a machine and returns at once: it is made on a thread of its own. The two descriptors are the caller's.
///
/// # Errors
/// When this process has no threads, descriptors or numbers left.
pub fn start(config: Vec<u8>) -> Result<Started> {
    start_with(Box::new(move |service| {
        let mut config = BootConfig::parse(&config)?;
        // The standard output is that of the program around us.
        config.console.get_or_insert_with(|| NOWHERE.into());
        Ok(service.boot(Prepared::open(config)?)?)
    }))
}

type Boot = Box<dyn FnOnce(&mut Service) -> std::result::Result<(), Box<dyn Error>> + Send>;

fn start_with(boot: Boot) -> Result<Started> {
    let (control, controlled) = UnixStream::pair().map_err(errno)?;
    let (events, told) = UnixStream::pair().map_err(errno)?;
    for caller in [&control, &events] {
        caller.set_nonblocking(true).map_err(errno)?;
    }
    let begin = || {
        let service = Service::start(Control { streams: vec![controlled], ..Control::default() })?;
        let number = Number::take(service.stopper())?;
        let handle = number.get();
        let body = move || run(service, number, boot, &told);
        Builder::new().name("machine".to_owned()).spawn(body)?;
        Ok(handle)
    };
    let handle = with_signals_blocked(begin).map_err(errno)?;
    Ok(Started { handle, control: control.into_raw_fd(), events: events.into_raw_fd() })
}

/// The whole life of a machine. Its number is given back before the last word, so that whoever hears that may rely on it.
fn run(mut service: Service, number: Number, boot: Boot, told: &UnixStream) {
    let life = AssertUnwindSafe(move || match boot(&mut service) {
        Ok(()) => {
            tell(told, RecordKind::Started, 0, "");
            Ok(service.serve())
        }
        Err(error) => Err(error),
    });
    let ended = catch_unwind(life);
    drop(number);
    let (reason, text) = match ended {
        Ok(Err(error)) => return tell(told, RecordKind::Started, -number_of(&*error).raw_os_error(), &words(&*error)),
        Ok(Ok(None)) => (EndReason::Stopped, "the host ended it".to_owned()),
        Ok(Ok(Some(end))) => (reason(&end), end.to_string()),
        Err(_) => (EndReason::Failed, "the engine panicked".to_owned()),
    };
    tell(told, RecordKind::Ended, reason as i32, &text);
}

fn reason(end: &End) -> EndReason {
    match end {
        End::PowerOff => EndReason::PowerOff,
        End::Reset => EndReason::Reset,
        End::Crash(_) => EndReason::Crash,
    }
}

/// A few records fit into the socket, so this never waits; a caller that is gone needs no record.
fn tell(told: &UnixStream, kind: RecordKind, status: i32, text: &str) {
    let _ = send(told, &encode(kind, status, text), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// The error with its causes.
fn words(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The first system error among the causes; what has none is a configuration that makes no sense.
fn number_of(error: &(dyn Error + 'static)) -> Errno {
    let system = causes(error).find_map(|error| error.downcast_ref::<io::Error>().and_then(Errno::from_io_error));
    system.unwrap_or(Errno::INVAL)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (**error).source()).take(CAUSES_MAX)
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a caller has descriptors by number")]
mod tests {
    use super::*;
    use crate::layout::RECORD_BYTES;
    use crate::machines;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::fd::{FromRawFd, OwnedFd};

    struct Caller {
        handle: i32,
        control: UnixStream,
        events: UnixStream,
    }

    impl Caller {
        fn of(started: Started) -> Self {
            let socket = |number| {
                // SAFETY: the descriptor was made for the caller, who is this.
                let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(number) });
                socket.set_nonblocking(false).unwrap();
                socket
            };
            Self { handle: started.handle, control: socket(started.control), events: socket(started.events) }
        }

        /// Kind, status and text of the next record; nothing at the end.
        fn hear(&mut self) -> Option<(u32, i32, String)> {
            let mut record = [0; RECORD_BYTES];
            self.events.read_exact(&mut record).ok()?;
            let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
            let text = String::from_utf8(record[16..16 + word(8) as usize].to_vec()).unwrap();
            Some((word(0), word(4).cast_signed(), text))
        }
    }

    #[test]
    fn a_machine_that_cannot_be_made_is_one_record_and_leaves_nothing() {
        let config = br#"{"kernel":"/none/kernel","memory_mib":64,"vcpus":1}"#;
        let mut caller = Caller::of(start(config.to_vec()).unwrap());
        let (kind, status, text) = caller.hear().unwrap();
        assert_eq!((kind, status), (RecordKind::Started as u32, -Errno::NOENT.raw_os_error()));
        assert!(text.starts_with("kernel: /none/kernel cannot be opened: No such file"), "{text}");
        assert_eq!(caller.hear(), None);
        assert_eq!(machines::stop(caller.handle), Err(Errno::BADF));
        assert_eq!(caller.control.read(&mut [0]).unwrap(), 0, "the control socket ends, too");
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_invalid() {
        let wrong: [&[u8]; 3] = [b"", b"{}", br#"{"kernel":"k","memory_mib":64,"vcpus":1,"jail":{"uid":1}}"#];
        for config in wrong {
            let mut caller = Caller::of(start(config.to_vec()).unwrap());
            let (kind, status, text) = caller.hear().unwrap();
            assert_eq!((kind, status), (RecordKind::Started as u32, -Errno::INVAL.raw_os_error()), "{text}");
            assert!(!text.is_empty());
        }
    }

    #[test]
    fn a_panic_is_the_end_of_the_machine_and_of_nothing_else() {
        let mut caller = Caller::of(start_with(Box::new(|_| panic!("on purpose"))).unwrap());
        let (kind, status, text) = caller.hear().unwrap();
        assert_eq!((kind, status), (RecordKind::Ended as u32, EndReason::Failed as i32));
        assert_eq!(text, "the engine panicked");
        assert_eq!(caller.hear(), None);
        assert_eq!(caller.control.read(&mut [0]).unwrap(), 0);
        assert_eq!(machines::stop(caller.handle), Err(Errno::BADF));
    }

    #[test]
    fn the_control_socket_is_served_and_the_number_ends_the_machine() {
        let mut caller = Caller::of(start_with(Box::new(|_| Ok(()))).unwrap());
        assert_eq!(caller.hear(), Some((RecordKind::Started as u32, 0, String::new())));
        caller.control.write_all(b"{\"action\":\"ping\"}\n").unwrap();
        let mut reply = String::new();
        BufReader::new(&caller.control).read_line(&mut reply).unwrap();
        assert_eq!(reply, "{\"status\":\"ok\"}\n");
        assert_eq!(machines::stop(caller.handle), Ok(()));
        let (kind, status, _) = caller.hear().unwrap();
        assert_eq!((kind, status), (RecordKind::Ended as u32, EndReason::Stopped as i32));
        assert_eq!(machines::stop(caller.handle), Err(Errno::BADF));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let record = encode(RecordKind::Ended, 4, &"é".repeat(RECORD_BYTES));
        let bytes = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
        assert_eq!(bytes, crate::layout::TEXT_BYTES_MAX);
        assert!(std::str::from_utf8(&record[16..16 + bytes]).is_ok());
        let odd = encode(RecordKind::Ended, 4, &format!("x{}", "é".repeat(RECORD_BYTES)));
        assert!(
            std::str::from_utf8(&odd[16..16 + u32::from_le_bytes(odd[8..12].try_into().unwrap()) as usize]).is_ok()
        );
    }
}
