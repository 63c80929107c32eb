//! The built guest agent in VM mode, driven through a unix socket as the host drives it.

mod executions;
mod file_streams;
mod host;
mod ports;
mod shell;
mod terminals;
mod version1;
mod version2;
