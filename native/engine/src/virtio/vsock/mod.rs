//! virtio-vsock: connections between programs of the host and of the guest, both ways, over unix sockets. A program of
//! the host connects to the device's socket and writes `CONNECT PORT`; a program of the guest that connects to port P of
//! the host reaches what listens at the socket's path + `_P`.

mod connection;
mod credit;
mod device;
mod greeting;
mod host_end;
mod muxer;
mod packet;
mod sockets;
#[cfg(test)]
mod tests;

pub use device::Vsock;
