//! TCP ports inside a guest: the arguments of the operations on them and their answers. Fields are those of PROTOCOL.md.

use crate::fault::Fault;
use serde::{Deserialize, Serialize};

/// One port of the guest's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRequest {
    pub port: u16,
}

/// Wait until something listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortWaitRequest {
    pub port: u16,
    /// 0 = look once.
    pub timeout_ms: u64,
}

/// Error `BAD_ARGUMENT` for 0, which is no port that anything can listen on.
pub fn check_port(port: u16) -> Result<u16, Fault> {
    if port == 0 {
        return Err(Fault::bad_argument("a port is from 1 to 65535"));
    }
    Ok(port)
}

/// A socket that listens; END of `port-wait`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListeningPort {
    pub port: u16,
    /// What it is bound to, in the usual notation.
    pub address: String,
    /// Name of a process that has it, where the guest can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// END of `port-list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortListEnd {
    /// By port, then address.
    pub ports: Vec<ListeningPort>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zero_is_no_port() {
        assert!(check_port(0).is_err());
        assert_eq!((check_port(1), check_port(u16::MAX)), (Ok(1), Ok(u16::MAX)));
    }
}
