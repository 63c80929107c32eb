//! One connection between a host socket and a guest socket as a state machine without input or output: what each packet
//! of the guest and each change at the host's end leads to, and which packets the guest is still owed. The owner of the
//! sockets does what the reactions say.

use super::credit::Credit;
use super::packet::{Header, Operation, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The host asked; the guest has not answered.
    Requested,
    /// Both ends may talk, as far as they have not ended a direction.
    Established,
    /// The host's end is gone; the guest may still read what it was sent.
    Left,
}

/// What the owner of the sockets has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    Keep,
    /// The guest accepted: tell the host's end.
    Accepted,
    /// Write the payload to the host's end.
    Deliver,
    /// The guest ended directions; see [`Connection::guest_ended`].
    Ended,
    /// Forget the connection after writing what is held for the host; the guest is owed a reset.
    Close,
    /// Forget the connection at once; the guest knows.
    Drop,
    /// Forget the connection at once; the guest broke the rules and is owed a reset.
    Refuse,
}

/// What a packet means where it matters to the table.
#[derive(Clone, Copy)]
enum Event {
    Response,
    Reset,
    Shutdown,
    Data,
    Credit,
    Other,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Connection {
    phase: Phase,
    /// Flow control of both directions.
    pub credit: Credit,
    /// Shutdown flags that the guest has sent.
    guest_ended: u32,
    /// Shutdown flags that the host's end stands for.
    host_ended: u32,
    owed: Owed,
}

/// Packets that the guest is owed. Each is owed at most once, so this never grows.
#[derive(Debug, Default)]
struct Owed {
    request: bool,
    response: bool,
    shutdown: bool,
    credit_update: bool,
    credit_request: bool,
}

impl Connection {
    /// A connection that the host asks for.
    pub fn requested() -> Self {
        let owed = Owed { request: true, ..Owed::default() };
        Self { phase: Phase::Requested, credit: Credit::default(), guest_ended: 0, host_ended: 0, owed }
    }

    /// A connection that the guest asked for and the host's end accepted.
    pub fn accepted(request: &Header) -> Self {
        let owed = Owed { response: true, ..Owed::default() };
        let mut credit = Credit::default();
        credit.learn(request.buffer_bytes, request.forwarded_bytes);
        Self { phase: Phase::Established, credit, guest_ended: 0, host_ended: 0, owed }
    }

    /// Where the connection is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Shutdown flags that the guest has sent so far.
    pub fn guest_ended(&self) -> u32 {
        self.guest_ended
    }

    /// Takes a packet of the guest.
    pub fn receive(&mut self, header: &Header) -> Reaction {
        self.credit.learn(header.buffer_bytes, header.forwarded_bytes);
        match (self.phase, event_of(header)) {
            (_, Event::Reset) => Reaction::Drop,
            (_, Event::Credit) => self.owe_credit(header),
            (Phase::Requested, Event::Response) => self.establish(),
            (Phase::Established, Event::Data) => self.take_data(header),
            (Phase::Established | Phase::Left, Event::Shutdown) => self.end_guest(header.flags),
            _ => Reaction::Refuse,
        }
    }

    fn establish(&mut self) -> Reaction {
        self.phase = Phase::Established;
        Reaction::Accepted
    }

    fn owe_credit(&mut self, header: &Header) -> Reaction {
        self.owed.credit_update |= header.operation == Operation::CreditRequest.number();
        Reaction::Keep
    }

    fn take_data(&mut self, header: &Header) -> Reaction {
        if self.guest_ended & SHUTDOWN_SEND != 0 || !self.credit.received(header.payload_bytes) {
            return Reaction::Refuse;
        }
        Reaction::Deliver
    }

    fn end_guest(&mut self, flags: u32) -> Reaction {
        self.guest_ended |= flags & SHUTDOWN_BOTH;
        if self.guest_ended == SHUTDOWN_BOTH { Reaction::Close } else { Reaction::Ended }
    }

    /// The host's end will send no more; it may still read.
    pub fn host_finished_sending(&mut self) {
        self.end_host(SHUTDOWN_SEND);
    }

    /// The host's end is gone and everything that it sent has been passed on.
    pub fn host_left(&mut self) {
        self.end_host(SHUTDOWN_BOTH);
        self.phase = Phase::Left;
    }

    fn end_host(&mut self, flags: u32) {
        self.owed.shutdown |= self.host_ended | flags != self.host_ended;
        self.host_ended |= flags;
    }

    /// Bytes of the host that the guest can be sent now.
    pub fn allowance(&self) -> u32 {
        if self.guest_reads() { self.credit.allowance() } else { 0 }
    }

    /// Whether bytes of the host wait for nothing but credit.
    pub fn starved(&self) -> bool {
        self.guest_reads() && self.credit.allowance() == 0
    }

    fn guest_reads(&self) -> bool {
        self.phase == Phase::Established
            && self.host_ended & SHUTDOWN_SEND == 0
            && self.guest_ended & SHUTDOWN_RECEIVE == 0
    }

    /// Whether the guest has heard of the connection.
    pub fn known_to_guest(&self) -> bool {
        !self.owed.request
    }

    /// The host has bytes for which the guest has no space: the guest is asked to tell when it has.
    pub fn ask_for_credit(&mut self) {
        self.owed.credit_request = true;
    }

    /// The packet without payload that the guest is owed next; it is owed no more.
    pub fn next_owed(&mut self) -> Option<(Operation, u32)> {
        let owed = &mut self.owed;
        let operation = if std::mem::take(&mut owed.request) {
            Operation::Request
        } else if std::mem::take(&mut owed.response) {
            Operation::Response
        } else if std::mem::take(&mut owed.shutdown) {
            Operation::Shutdown
        } else if std::mem::take(&mut owed.credit_request) {
            Operation::CreditRequest
        } else if std::mem::take(&mut owed.credit_update) || self.update_due() {
            Operation::CreditUpdate
        } else {
            return None;
        };
        Some((operation, if operation == Operation::Shutdown { self.host_ended } else { 0 }))
    }

    /// Whether the guest is owed a packet without payload.
    pub fn owes(&self) -> bool {
        let owed = &self.owed;
        owed.request || owed.response || owed.shutdown || owed.credit_update || owed.credit_request || self.update_due()
    }

    fn update_due(&self) -> bool {
        self.phase == Phase::Established && self.guest_ended & SHUTDOWN_SEND == 0 && self.credit.update_due()
    }
}

fn event_of(header: &Header) -> Event {
    match Operation::from_number(header.operation) {
        Some(Operation::Response) => Event::Response,
        Some(Operation::Reset) => Event::Reset,
        Some(Operation::Shutdown) => Event::Shutdown,
        Some(Operation::Data) => Event::Data,
        Some(Operation::CreditUpdate | Operation::CreditRequest) => Event::Credit,
        Some(Operation::Request) | None => Event::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::credit::HOST_BUFFER_BYTES;
    use super::*;

    fn packet(operation: Operation) -> Header {
        Header { operation: operation.number(), buffer_bytes: 1000, ..Header::default() }
    }

    fn data(bytes: u32) -> Header {
        Header { payload_bytes: bytes, ..packet(Operation::Data) }
    }

    fn shutdown(flags: u32) -> Header {
        Header { flags, ..packet(Operation::Shutdown) }
    }

    fn established() -> Connection {
        let mut connection = Connection::requested();
        assert_eq!(connection.next_owed(), Some((Operation::Request, 0)));
        assert_eq!(connection.receive(&packet(Operation::Response)), Reaction::Accepted);
        connection
    }

    #[test]
    fn every_packet_has_one_reaction_in_every_phase() {
        use Operation::*;
        use Reaction::*;
        type Row = (fn() -> Connection, [(Operation, Reaction); 7]);
        let phases: [Row; 3] = [
            (
                Connection::requested,
                [
                    (Request, Refuse),
                    (Response, Accepted),
                    (Reset, Drop),
                    (Shutdown, Refuse),
                    (Data, Refuse),
                    (CreditUpdate, Keep),
                    (CreditRequest, Keep),
                ],
            ),
            (
                established,
                [
                    (Request, Refuse),
                    (Response, Refuse),
                    (Reset, Drop),
                    (Shutdown, Ended),
                    (Data, Deliver),
                    (CreditUpdate, Keep),
                    (CreditRequest, Keep),
                ],
            ),
            (
                || {
                    let mut connection = established();
                    connection.host_left();
                    connection
                },
                [
                    (Request, Refuse),
                    (Response, Refuse),
                    (Reset, Drop),
                    (Shutdown, Ended),
                    (Data, Refuse),
                    (CreditUpdate, Keep),
                    (CreditRequest, Keep),
                ],
            ),
        ];
        for (start, table) in phases {
            for (operation, reaction) in table {
                let mut connection = start();
                let phase = connection.phase();
                assert_eq!(connection.receive(&packet(operation)), reaction, "{operation:?} in {phase:?}");
            }
        }
        let mut connection = established();
        assert_eq!(connection.receive(&Header { operation: 99, ..Header::default() }), Reaction::Refuse);
    }

    #[test]
    fn both_directions_of_the_guest_end_a_connection_together_or_one_after_the_other() {
        assert_eq!(established().receive(&shutdown(SHUTDOWN_BOTH)), Reaction::Close);
        let mut connection = established();
        assert_eq!(connection.receive(&shutdown(SHUTDOWN_SEND)), Reaction::Ended);
        assert_eq!(connection.guest_ended(), SHUTDOWN_SEND);
        assert_eq!(connection.allowance(), 1000, "the guest still reads");
        assert_eq!(connection.receive(&data(1)), Reaction::Refuse, "it said that it would not send");
        assert_eq!(connection.receive(&shutdown(SHUTDOWN_RECEIVE)), Reaction::Close);
    }

    #[test]
    fn a_guest_that_reads_no_more_is_sent_no_more() {
        let mut connection = established();
        connection.receive(&shutdown(SHUTDOWN_RECEIVE));
        assert_eq!(connection.allowance(), 0);
        assert_eq!(connection.receive(&data(1)), Reaction::Deliver);
    }

    #[test]
    fn a_guest_that_sends_more_than_its_credit_is_refused() {
        let mut connection = established();
        assert_eq!(connection.receive(&data(HOST_BUFFER_BYTES)), Reaction::Deliver);
        assert_eq!(connection.receive(&data(1)), Reaction::Refuse);
    }

    #[test]
    fn the_end_of_the_host_is_told_once_and_again_when_more_has_ended() {
        let mut connection = established();
        connection.host_finished_sending();
        connection.host_finished_sending();
        assert_eq!(connection.next_owed(), Some((Operation::Shutdown, SHUTDOWN_SEND)));
        assert_eq!(connection.next_owed(), None);
        assert_eq!(connection.allowance(), 0);
        assert_eq!(connection.receive(&data(5)), Reaction::Deliver, "the host still reads");
        connection.host_left();
        assert_eq!(connection.next_owed(), Some((Operation::Shutdown, SHUTDOWN_BOTH)));
        assert!(!connection.owes());
    }

    #[test]
    fn a_request_for_credit_is_answered_and_one_is_made_when_asked_for() {
        let mut connection = established();
        connection.receive(&packet(Operation::CreditRequest));
        assert_eq!(connection.next_owed(), Some((Operation::CreditUpdate, 0)));
        connection.ask_for_credit();
        assert_eq!(connection.next_owed(), Some((Operation::CreditRequest, 0)));
        assert_eq!(connection.next_owed(), None);
    }

    #[test]
    fn an_accepted_guest_has_its_answer_before_anything_else() {
        let mut connection = Connection::accepted(&packet(Operation::Request));
        assert_eq!(connection.allowance(), 1000);
        connection.host_left();
        assert_eq!(connection.next_owed(), Some((Operation::Response, 0)));
        assert_eq!(connection.next_owed(), Some((Operation::Shutdown, SHUTDOWN_BOTH)));
    }
}
