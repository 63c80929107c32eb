//! All connections of one guest: the listening socket, the sockets of the host's ends behind one epoll descriptor, and
//! the order in which the guest gets what it is owed. Knows nothing of queues; the device moves packets in and out.

use super::connection::{Connection, Phase, Reaction};
use super::greeting::{self, Greeting};
use super::host_end::{HostEnd, Read};
use super::packet::{HOST_CID, Header, Operation, Ports, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM};
use super::sockets::{Sockets, Token};
use fluxvm_sys::Errno;
use rustix::event::epoll::EventFlags;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use vm_memory::VolatileSlice;
use vm_memory::bitmap::BitmapSlice;

/// Sockets of one guest in every state; a program that asks for more is refused.
pub const CONNECTIONS_MAX: usize = 1024;

/// Resets without a connection that may wait for the guest; the guest's packets wait while so many do.
const RESETS_MAX: usize = 256;

/// Bytes held in all for programs that read slowly; the connection that would hold more is ended. It is the credit of
/// many connections, so that only a guest that opens them for this gets there.
pub const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Ports at the host's end of connections that the host asks for begin here, above what programs listen on.
const HOST_PORTS_BEGIN: u32 = 1 << 30;

/// What the guest gets next.
#[derive(Debug)]
pub enum Outgoing {
    /// A packet without payload.
    Packet(Header),
    /// Bytes of this connection, at most so many.
    Bytes(Token, u32),
}

/// One connection with its socket, which is `None` once the host's end has left.
struct Peer {
    ports: Ports,
    connection: Connection,
    end: Option<HostEnd>,
    /// Whether it stands in the line of those that have something for the guest.
    in_line: bool,
    /// The guest has been asked for credit since it last had some.
    credit_asked: bool,
}

/// The connections of one guest.
pub struct Muxer {
    guest_cid: u64,
    sockets: Sockets,
    peers: HashMap<Token, Peer>,
    tokens: HashMap<Ports, Token>,
    /// Accepted sockets whose greeting has not arrived.
    greeting: HashMap<Token, UnixStream>,
    /// Ends of connections that the guest has closed, with bytes that their readers have not taken.
    draining: HashMap<Token, HostEnd>,
    line: VecDeque<Token>,
    resets: VecDeque<Header>,
    next_host_port: u32,
}

impl Muxer {
    /// Listens at `path` for programs of the host; programs of the guest reach what listens at `path` + `_PORT`.
    ///
    /// # Errors
    /// What making, binding or watching the socket says.
    pub fn listen(guest_cid: u64, path: &Path) -> io::Result<Self> {
        Ok(Self {
            guest_cid,
            sockets: Sockets::listen(path)?,
            peers: HashMap::new(),
            tokens: HashMap::new(),
            greeting: HashMap::new(),
            draining: HashMap::new(),
            line: VecDeque::new(),
            resets: VecDeque::new(),
            next_host_port: HOST_PORTS_BEGIN,
        })
    }

    /// Sockets in every state.
    pub fn connections(&self) -> usize {
        self.peers.len() + self.greeting.len() + self.draining.len()
    }

    /// Whether packets of the guest can be taken; false while too many answers wait for it.
    pub fn takes_packets(&self) -> bool {
        self.resets.len() < RESETS_MAX
    }

    /// Whether the guest is to get anything.
    pub fn has_outgoing(&self) -> bool {
        !self.resets.is_empty() || !self.line.is_empty()
    }

    /// Ends all connections without a word to the guest, which learns of it otherwise. The listening socket stays.
    pub fn reset(&mut self) {
        self.peers.clear();
        self.tokens.clear();
        self.greeting.clear();
        self.draining.clear();
        self.line.clear();
        self.resets.clear();
        self.accept_waiting();
    }

    // What happens on the host.

    /// Takes in what has happened on the sockets. Never waits.
    ///
    /// # Errors
    /// What waiting on the epoll descriptor says.
    pub fn poll_sockets(&mut self) -> io::Result<()> {
        for (token, flags) in self.sockets.ready()? {
            if token == Sockets::LISTENER {
                self.accept();
            } else if self.greeting.contains_key(&token) {
                self.greet(token);
            } else if self.peers.contains_key(&token) {
                self.peer_ready(token, flags);
            } else if self.draining.contains_key(&token) {
                self.drain(token);
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        while let Some(stream) = self.sockets.accept() {
            if self.connections() >= CONNECTIONS_MAX {
                continue;
            }
            if let Ok(token) = self.sockets.watch(stream.as_fd()) {
                self.greeting.insert(token, stream);
                self.greet(token);
            }
        }
    }

    /// A descriptor is free again, perhaps for a program that waits.
    fn accept_waiting(&mut self) {
        if self.sockets.must_accept_again() {
            self.accept();
        }
    }

    fn greet(&mut self, token: Token) {
        let Some(stream) = self.greeting.remove(&token) else { return };
        match greeting::take(&stream) {
            Greeting::Unfinished if !super::sockets::hung_up(&stream) => {
                self.greeting.insert(token, stream);
            }
            Greeting::Unfinished | Greeting::Wrong => {}
            Greeting::Port(guest) => {
                let ports = Ports { host: self.free_host_port(guest), guest };
                self.admit(token, ports, Connection::requested(), stream);
            }
        }
    }

    fn free_host_port(&mut self, guest: u32) -> u32 {
        loop {
            let host = self.next_host_port;
            self.next_host_port = host.checked_add(1).unwrap_or(HOST_PORTS_BEGIN);
            if !self.tokens.contains_key(&Ports { host, guest }) {
                return host;
            }
        }
    }

    fn admit(&mut self, token: Token, ports: Ports, connection: Connection, stream: UnixStream) {
        let end = Some(HostEnd::new(stream));
        self.peers.insert(token, Peer { ports, connection, end, in_line: false, credit_asked: false });
        self.tokens.insert(ports, token);
        self.line_up(token);
    }

    fn peer_ready(&mut self, token: Token, flags: EventFlags) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let Some(end) = peer.end.as_mut() else { return };
        end.hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
        end.ending |= end.hung_up || flags.contains(EventFlags::RDHUP);
        end.readable |= end.ending || flags.contains(EventFlags::IN);
        if flags.contains(EventFlags::OUT) && end.held_bytes() > 0 {
            let flushed = end.flush();
            self.forwarded(token, flushed);
        }
        self.notice_host_end(token);
        self.line_up(token);
    }

    /// Notices the end of the host's side where no read does: the guest has no credit, has not answered, or reads no more.
    fn notice_host_end(&mut self, token: Token) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let Some(end) = peer.end.as_mut() else { return };
        if !end.readable || peer.connection.allowance() > 0 {
            return;
        }
        let unread = peer.connection.guest_ended() & SHUTDOWN_RECEIVE != 0;
        let found = if end.hung_up && (unread || peer.connection.phase() == Phase::Requested) {
            Read::Gone
        } else {
            end.peek()
        };
        self.host_read(token, &found);
    }

    fn drain(&mut self, token: Token) {
        let Some(end) = self.draining.get_mut(&token) else { return };
        if end.flush().is_err() || end.held_bytes() == 0 {
            self.draining.remove(&token);
            self.accept_waiting();
        }
    }

    // What the guest sends.

    /// Takes a packet of the guest whose payload lies in `payload`, which has exactly the bytes that the header names.
    pub fn receive<B: BitmapSlice>(&mut self, header: &Header, payload: &[VolatileSlice<'_, B>]) {
        if header.source_cid != self.guest_cid {
            return;
        }
        let addressed = header.destination_cid == HOST_CID && header.socket_type == TYPE_STREAM;
        match self.tokens.get(&header.ports_from_guest()) {
            Some(token) if addressed => self.receive_for(*token, header, payload),
            _ if addressed && header.operation == Operation::Request.number() => self.connect(header),
            _ => self.refuse(header),
        }
    }

    /// Answers a packet that makes no sense. A reset is never answered by a reset.
    pub fn refuse(&mut self, header: &Header) {
        if header.source_cid == self.guest_cid && header.operation != Operation::Reset.number() {
            self.resets.push_back(header.reset_of());
        }
    }

    fn receive_for<B: BitmapSlice>(&mut self, token: Token, header: &Header, payload: &[VolatileSlice<'_, B>]) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let reaction = peer.connection.receive(header);
        peer.credit_asked &= peer.connection.allowance() == 0;
        match reaction {
            Reaction::Keep => {}
            Reaction::Accepted => self.tell_accepted(token),
            Reaction::Deliver => self.deliver(token, payload),
            Reaction::Ended => self.end_directions(token),
            Reaction::Close => self.close(token),
            Reaction::Drop => self.drop_peer(token),
            Reaction::Refuse => self.drop_with_reset(token),
        }
        self.line_up(token);
    }

    fn connect(&mut self, request: &Header) {
        let ports = request.ports_from_guest();
        if self.connections() >= CONNECTIONS_MAX {
            return self.refuse(request);
        }
        match self.sockets.connect(ports.host) {
            Ok((token, stream)) => self.admit(token, ports, Connection::accepted(request), stream),
            Err(_) => self.refuse(request),
        }
    }

    fn tell_accepted(&mut self, token: Token) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let answer = greeting::answer(peer.ports.host);
        if peer.end.as_mut().is_none_or(|end| end.greet(&answer).is_err()) {
            self.drop_with_reset(token);
        }
    }

    fn deliver<B: BitmapSlice>(&mut self, token: Token, payload: &[VolatileSlice<'_, B>]) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let Some(end) = peer.end.as_mut() else { return };
        let written = end.write(payload);
        let holds = end.held_bytes() > 0;
        self.forwarded(token, written);
        if holds && self.held_bytes() > HELD_BYTES_MAX {
            self.drop_with_reset(token);
        }
    }

    fn held_bytes(&self) -> usize {
        let ends = self.peers.values().filter_map(|peer| peer.end.as_ref());
        ends.chain(self.draining.values()).map(HostEnd::held_bytes).sum()
    }

    /// The host's end took so many bytes, or failed to. Room to write is watched for exactly while bytes are held.
    fn forwarded(&mut self, token: Token, taken: Result<usize, Errno>) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let Some(end) = peer.end.as_mut() else { return };
        let Ok(bytes) = taken else { return self.drop_with_reset(token) };
        peer.connection.credit.forwarded(bytes as u32);
        let holds = end.held_bytes() > 0;
        if holds != end.room_watched {
            end.room_watched = holds;
            if self.sockets.watch_room(token, end.as_fd(), holds).is_err() {
                self.drop_with_reset(token);
            }
        }
    }

    fn end_directions(&mut self, token: Token) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let ended = peer.connection.guest_ended();
        let Some(end) = peer.end.as_mut() else { return };
        if ended & SHUTDOWN_SEND != 0 {
            end.finish_writing();
        }
        if ended & SHUTDOWN_RECEIVE != 0 {
            end.finish_reading();
        }
    }

    /// The guest has closed: it is free of the connection at once, and what is held still reaches its reader.
    fn close(&mut self, token: Token) {
        let end = self.peers.get_mut(&token).and_then(|peer| peer.end.take());
        self.drop_with_reset(token);
        if let Some(end) = end.filter(|end| end.held_bytes() > 0) {
            self.draining.insert(token, end);
        }
    }

    fn drop_peer(&mut self, token: Token) {
        if let Some(peer) = self.peers.remove(&token) {
            self.tokens.remove(&peer.ports);
            drop(peer);
            self.accept_waiting();
        }
    }

    fn drop_with_reset(&mut self, token: Token) {
        if let Some(peer) = self.peers.get(&token) {
            if peer.connection.known_to_guest() {
                self.resets.push_back(self.header(peer.ports, Operation::Reset));
            }
            self.drop_peer(token);
        }
    }

    // What the guest gets.

    /// What the guest gets next; the caller has room for it. Packets are then no longer owed.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        if let Some(reset) = self.resets.pop_front() {
            return Some(Outgoing::Packet(reset));
        }
        while let Some(token) = self.line.pop_front() {
            let Some(peer) = self.peers.get_mut(&token) else { continue };
            peer.in_line = false;
            if let Some((operation, flags)) = peer.connection.next_owed() {
                let ports = peer.ports;
                let (buffer_bytes, forwarded_bytes) = peer.connection.credit.announce();
                self.line_up(token);
                let header = Header { flags, buffer_bytes, forwarded_bytes, ..self.header(ports, operation) };
                return Some(Outgoing::Packet(header));
            }
            let allowance = peer.connection.allowance();
            if let Some(end) = peer.end.as_ref().filter(|end| end.readable && allowance > 0) {
                return Some(Outgoing::Bytes(token, allowance.min(end.appetite_bytes())));
            }
        }
        None
    }

    /// Reads bytes of the host straight into the guest's buffers; the slices hold no more than the allowance. Returns how
    /// many, and the header that goes in front of them but for its length. Zero: there is nothing to read, and what
    /// follows from that has been noted.
    pub fn read<B: BitmapSlice>(&mut self, token: Token, slices: &[VolatileSlice<'_, B>]) -> (u32, Header) {
        let nothing = (0, Header::default());
        let Some(peer) = self.peers.get_mut(&token) else { return nothing };
        let Some(end) = peer.end.as_mut() else { return nothing };
        let found = end.read(slices);
        let bytes = if let Read::Bytes(bytes) = found { bytes as u32 } else { 0 };
        peer.connection.credit.sent(bytes);
        let (buffer_bytes, forwarded_bytes) = peer.connection.credit.announce();
        let ports = peer.ports;
        self.host_read(token, &found);
        self.line_up(token);
        (bytes, Header { buffer_bytes, forwarded_bytes, ..self.header(ports, Operation::Data) })
    }

    fn host_read(&mut self, token: Token, found: &Read) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        match found {
            Read::Bytes(_) | Read::Nothing => {}
            Read::Finished if peer.connection.phase() == Phase::Requested => {}
            Read::Finished => peer.connection.host_finished_sending(),
            Read::Gone if peer.connection.phase() == Phase::Requested => self.drop_with_reset(token),
            Read::Gone => {
                peer.end = None;
                peer.connection.host_left();
            }
        }
    }

    /// Puts a connection into the line if it has something for the guest; asks for credit if only that is missing.
    pub fn line_up(&mut self, token: Token) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let readable = peer.end.as_ref().is_some_and(|end| end.readable);
        let starved = readable && peer.connection.starved();
        if starved && !peer.credit_asked {
            peer.credit_asked = true;
            peer.connection.ask_for_credit();
        }
        let has_something = peer.connection.owes() || (readable && peer.connection.allowance() > 0);
        if has_something && !peer.in_line {
            peer.in_line = true;
            self.line.push_back(token);
        }
    }

    fn header(&self, ports: Ports, operation: Operation) -> Header {
        Header {
            source_cid: HOST_CID,
            destination_cid: self.guest_cid,
            source_port: ports.host,
            destination_port: ports.guest,
            socket_type: TYPE_STREAM,
            operation: operation.number(),
            ..Header::default()
        }
    }
}

impl AsFd for Muxer {
    /// Readable when [`Muxer::poll_sockets`] has something to take in.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
