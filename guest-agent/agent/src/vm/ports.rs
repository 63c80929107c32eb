//! The TCP ports of the machine: all of its sockets are the sandbox's own.

use ports::{Connection, Network};
use service::{BorrowingFuture, LocalFuture, PortConnection, Ports};
use wire::Fault;
use wire::port::ListeningPort;

pub struct MachinePorts;

impl Ports for MachinePorts {
    fn list(&self) -> LocalFuture<Result<Vec<ListeningPort>, Fault>> {
        Box::pin(Network::Own.list())
    }

    fn wait(&self, port: u16) -> LocalFuture<Result<ListeningPort, Fault>> {
        Box::pin(Network::Own.wait(port))
    }

    fn connect(&self, port: u16) -> LocalFuture<Result<Box<dyn PortConnection>, Fault>> {
        Box::pin(async move {
            let connection = Network::Own.connect(port).await?;
            Ok(Box::new(Direct(connection)) as Box<dyn PortConnection>)
        })
    }
}

struct Direct(Connection);

impl PortConnection for Direct {
    fn read(&self) -> BorrowingFuture<'_, Result<Vec<u8>, Fault>> {
        Box::pin(self.0.read())
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> BorrowingFuture<'a, Result<(), Fault>> {
        Box::pin(self.0.write(bytes))
    }

    fn end(&self) -> BorrowingFuture<'_, Result<(), Fault>> {
        Box::pin(std::future::ready(self.0.end()))
    }

    /// The kernel delivers what it has.
    fn finish(&self) -> BorrowingFuture<'_, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
