//! The header of a vsock packet (virtio 1.2, section 5.10.6): its words, and its form in guest memory. Every field of a
//! header that the guest sends is a claim; nothing here believes one.

/// Bytes of a header in front of each payload.
pub const HEADER_BYTES: usize = 44;

/// The context id of the host; guests address everything to it.
pub const HOST_CID: u64 = 2;

/// The only type of socket that this device offers.
pub const TYPE_STREAM: u16 = 1;

/// Flag of a shutdown: the sender will not receive any more.
pub const SHUTDOWN_RECEIVE: u32 = 1;
/// Flag of a shutdown: the sender will not send any more.
pub const SHUTDOWN_SEND: u32 = 2;
/// Both flags of a shutdown: the sender has closed the connection.
pub const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// What a packet asks for or tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks for a connection.
    Request,
    /// Accepts a connection.
    Response,
    /// There is no such connection (any more).
    Reset,
    /// One or both directions end.
    Shutdown,
    /// Carries bytes.
    Data,
    /// Tells how much the sender can take.
    CreditUpdate,
    /// Asks for a credit update.
    CreditRequest,
}

const OPERATIONS: [(u16, Operation); 7] = [
    (1, Operation::Request),
    (2, Operation::Response),
    (3, Operation::Reset),
    (4, Operation::Shutdown),
    (5, Operation::Data),
    (6, Operation::CreditUpdate),
    (7, Operation::CreditRequest),
];

impl Operation {
    /// The operation of that number; `None` for one that nobody defined.
    pub fn from_number(number: u16) -> Option<Self> {
        OPERATIONS.iter().find(|(known, _)| *known == number).map(|(_, operation)| *operation)
    }

    /// The number that stands for this operation in a header.
    pub fn number(self) -> u16 {
        OPERATIONS.iter().find(|(_, known)| *known == self).map_or(0, |(number, _)| *number)
    }
}

/// The two ports that name a connection; the context ids are always those of this host and this guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The port at the host's end.
    pub host: u32,
    /// The port at the guest's end.
    pub guest: u32,
}

/// A header as it lies in guest memory, field by field. `operation` stays a number until someone asks what it means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Context id of the sender.
    pub source_cid: u64,
    /// Context id of the receiver.
    pub destination_cid: u64,
    /// Port of the sender.
    pub source_port: u32,
    /// Port of the receiver.
    pub destination_port: u32,
    /// Bytes of payload after the header.
    pub payload_bytes: u32,
    /// Type of socket.
    pub socket_type: u16,
    /// Number of an [`Operation`].
    pub operation: u16,
    /// Flags of a shutdown.
    pub flags: u32,
    /// Bytes that the sender can hold for this connection.
    pub buffer_bytes: u32,
    /// Bytes that the sender has passed on to its application so far, modulo 2^32.
    pub forwarded_bytes: u32,
}

impl Header {
    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            source_cid: u64::from_le_bytes(field(bytes, 0)),
            destination_cid: u64::from_le_bytes(field(bytes, 8)),
            source_port: u32::from_le_bytes(field(bytes, 16)),
            destination_port: u32::from_le_bytes(field(bytes, 20)),
            payload_bytes: u32::from_le_bytes(field(bytes, 24)),
            socket_type: u16::from_le_bytes(field(bytes, 28)),
            operation: u16::from_le_bytes(field(bytes, 30)),
            flags: u32::from_le_bytes(field(bytes, 32)),
            buffer_bytes: u32::from_le_bytes(field(bytes, 36)),
            forwarded_bytes: u32::from_le_bytes(field(bytes, 40)),
        }
    }

    /// Writes a header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.source_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.destination_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.source_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.destination_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.socket_type.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.operation.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buffer_bytes.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.forwarded_bytes.to_le_bytes());
        bytes
    }

    /// The connection that a packet from the guest belongs to.
    pub fn ports_from_guest(&self) -> Ports {
        Ports { host: self.destination_port, guest: self.source_port }
    }

    /// The answer to a packet that belongs to no connection.
    pub fn reset_of(&self) -> Self {
        Self {
            source_cid: self.destination_cid,
            destination_cid: self.source_cid,
            source_port: self.destination_port,
            destination_port: self.source_port,
            socket_type: self.socket_type,
            operation: Operation::Reset.number(),
            ..Self::default()
        }
    }
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], offset: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[offset + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        let header = Header {
            source_cid: 3,
            destination_cid: HOST_CID,
            source_port: 0x0102_0304,
            destination_port: 1024,
            payload_bytes: 65536,
            socket_type: TYPE_STREAM,
            operation: Operation::Data.number(),
            flags: SHUTDOWN_BOTH,
            buffer_bytes: 262_144,
            forwarded_bytes: u32::MAX,
        };
        assert_eq!(Header::decode(&header.encode()), header);
    }

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let bytes: [u8; HEADER_BYTES] = std::array::from_fn(|index| index as u8);
        let header = Header::decode(&bytes);
        assert_eq!(header.destination_cid, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(header.payload_bytes, 0x1b1a_1918);
        assert_eq!((header.socket_type, header.operation), (0x1d1c, 0x1f1e));
        assert_eq!(header.forwarded_bytes, 0x2b2a_2928);
    }

    #[test]
    fn operations_have_the_numbers_of_the_specification_and_others_mean_nothing() {
        assert_eq!(Operation::from_number(5), Some(Operation::Data));
        for number in 1..=7 {
            assert_eq!(Operation::from_number(number).map(Operation::number), Some(number));
        }
        assert_eq!((Operation::from_number(0), Operation::from_number(8)), (None, None));
    }
}
