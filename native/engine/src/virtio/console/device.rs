//! Two queues: what the guest reads and what it writes.

use super::client::{Client, Tail};
use super::log::LogFile;
use crate::virtio::{
    Chain, DeviceContext, DeviceError, DeviceKind, Interest, Readiness, StateError, StateReader, StateWriter,
    VirtioDevice,
};
use rustix::io::Errno;
use std::io;
use std::os::unix::net::UnixListener;

const QUEUE_SIZES: [u16; 2] = [64, 64];
const TO_GUEST: usize = 0;
const FROM_GUEST: usize = 1;
/// The most of one request that is looked at; no driver sends more.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
const PIECE_BYTES: usize = 4096;
const STATE_VERSION: u32 = 1;

/// Tokens of watched descriptors.
const LISTENER: u32 = 0;
const CLIENT: u32 = 1;

/// Where a console leads to; both, one or nothing.
#[derive(Default)]
pub struct ConsoleOptions {
    /// Keeps the latest of what the guest wrote.
    pub log: Option<LogFile>,
    /// Takes one connection at a time; it begins with the latest of what the guest wrote before.
    pub listener: Option<UnixListener>,
}

/// The device.
pub struct Console {
    log: Option<LogFile>,
    listener: Option<UnixListener>,
    client: Option<Client>,
    /// What the client is watched for.
    watched: Interest,
    tail: Tail,
    chain: Chain,
    buffer: Box<[u8; PIECE_BYTES]>,
}

impl Console {
    /// A console.
    ///
    /// # Errors
    /// When the listener cannot be made not to wait.
    pub fn new(options: ConsoleOptions) -> io::Result<Self> {
        if let Some(listener) = &options.listener {
            listener.set_nonblocking(true)?;
        }
        Ok(Self {
            log: options.log,
            listener: options.listener,
            client: None,
            watched: Interest::default(),
            tail: Tail::default(),
            chain: Chain::default(),
            buffer: Box::new([0; PIECE_BYTES]),
        })
    }

    fn take_output(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while context.queues[FROM_GUEST].pop(context.memory, &mut self.chain)? {
            let bytes = self.chain.readable_bytes().min(REQUEST_BYTES_MAX);
            let mut done = 0;
            while done < bytes {
                let piece = (bytes - done).min(PIECE_BYTES as u64);
                let text = &mut self.buffer[..piece as usize];
                self.chain.read(context.memory, done, text)?;
                self.tail.add(text);
                // A log that cannot be written must not stop the guest.
                let _ = self.log.as_mut().map(|log| log.append(text));
                if self.client.as_mut().is_some_and(|client| client.send(text).is_err()) {
                    self.hang_up(context);
                }
                done += piece;
            }
            context.queues[FROM_GUEST].add_used(context.memory, self.chain.head(), 0)?;
        }
        Ok(())
    }

    fn give_input(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        while let Some(client) = self.client.as_mut().filter(|client| !client.ended) {
            if !context.queues[TO_GUEST].pop(context.memory, &mut self.chain)? {
                break;
            }
            let room = self.chain.writable_bytes().min(PIECE_BYTES as u64) as usize;
            let received = client.receive(&mut self.buffer[..room]);
            match received {
                Ok(0) if room > 0 => {
                    context.queues[TO_GUEST].unpop();
                    break;
                }
                Ok(bytes) => {
                    self.chain.write(context.memory, 0, &self.buffer[..bytes])?;
                    context.queues[TO_GUEST].add_used(context.memory, self.chain.head(), bytes as u32)?;
                }
                Err(_) => {
                    context.queues[TO_GUEST].unpop();
                    self.hang_up(context);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // Without descriptors the same connection would be reported for ever: nobody else is let in any more.
            Err(error)
                if matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::MFILE | Errno::NFILE)) =>
            {
                return Ok(context.events.unwatch(listener)?);
            }
            // It is gone already.
            Err(_) => return Ok(()),
        };
        // Whoever comes second finds the line taken.
        if self.client.is_some() {
            return Ok(());
        }
        let client = Client::new(stream, &self.tail).and_then(|mut client| client.catch_up().map(|()| client));
        if let Ok(client) = client {
            context.events.watch(&client, CLIENT, Interest::default())?;
            self.watched = Interest::default();
            self.client = Some(client);
        }
        Ok(())
    }

    fn hang_up(&mut self, context: &mut DeviceContext<'_>) {
        if let Some(client) = self.client.take() {
            let _ = context.events.unwatch(&client);
        }
    }

    /// Watches the client for what can be done about it: reading when the guest has room, writing when something waits.
    fn watch(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        let Some(client) = &self.client else { return Ok(()) };
        let readable = !client.ended && !context.queues[TO_GUEST].is_empty(context.memory)?;
        let wanted = Interest { readable, writable: client.is_behind() };
        if wanted != self.watched {
            context.events.change(client, CLIENT, wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }
}

impl VirtioDevice for Console {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Console
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn activate(&mut self, context: &mut DeviceContext<'_>) -> Result<(), DeviceError> {
        if let Some(listener) = &self.listener {
            context.events.watch(listener, LISTENER, Interest::READ)?;
        }
        if let Some(client) = &self.client {
            context.events.watch(client, CLIENT, Interest::default())?;
            self.watched = Interest::default();
        }
        Ok(())
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        if let Some(listener) = &self.listener {
            let _ = context.events.unwatch(listener);
        }
        // The client stays: a guest that reboots is the same machine.
        if let Some(client) = &self.client {
            let _ = context.events.unwatch(client);
        }
    }

    fn process_queue(&mut self, context: &mut DeviceContext<'_>, queue: usize) -> Result<(), DeviceError> {
        if queue == FROM_GUEST {
            self.take_output(context)?;
        } else {
            self.give_input(context)?;
        }
        self.watch(context)
    }

    fn process_event(
        &mut self,
        context: &mut DeviceContext<'_>,
        token: u32,
        readiness: Readiness,
    ) -> Result<(), DeviceError> {
        if token == LISTENER {
            self.accept(context)?;
        } else {
            if readiness.writable && self.client.as_mut().is_some_and(|client| client.catch_up().is_err()) {
                self.hang_up(context);
            }
            self.give_input(context)?;
            if readiness.hung_up {
                self.hang_up(context);
            }
        }
        self.watch(context)
    }

    fn save(&self, state: &mut StateWriter) {
        state.u32(STATE_VERSION);
    }

    fn load(&mut self, state: &mut StateReader<'_>) -> Result<(), StateError> {
        state.version(STATE_VERSION)
    }
}
