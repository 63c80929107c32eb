//! The command line and environment of VM mode.

use service::Authority;
use std::net::SocketAddr;
use std::path::PathBuf;
use wire::limits::{PORT, TOKEN_MAX};

const TOKEN_FILE_DEFAULT: &str = "/etc/fluxvm-guest-agent.token";
/// Set to one of `TRUE_WORDS` it admits any caller where there is no token file.
const ALLOW_INSECURE: &str = "FLUXVM_AGENT_ALLOW_INSECURE";
const TRUE_WORDS: [&str; 4] = ["1", "true", "yes", "on"];

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Vsock(u32),
    Unix(PathBuf),
    Tcp(SocketAddr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub address: Address,
    pub token_file: PathBuf,
    /// What file operations see as `/`.
    pub root: PathBuf,
}

impl Options {
    /// The message says which argument makes no sense.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options =
            Self { address: Address::Vsock(PORT), token_file: TOKEN_FILE_DEFAULT.into(), root: "/".into() };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} is unknown or needs a value"))?;
            match name.as_str() {
                "--port" => options.address = Address::Vsock(value.parse().map_err(|_| format!("no port: {value}"))?),
                "--unix" => options.address = Address::Unix(value.into()),
                "--tcp" => options.address = Address::Tcp(loopback(value)?),
                "--token-file" => options.token_file = value.into(),
                "--root" => options.root = value.into(),
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        Ok(options)
    }

    /// Who may ask, settled once.
    pub fn authority(&self) -> Authority {
        use std::io::Read;
        let mut token = Vec::new();
        let read = std::fs::File::open(&self.token_file)
            .and_then(|file| file.take(TOKEN_MAX as u64 + 1).read_to_end(&mut token));
        match read {
            Ok(count) if count > TOKEN_MAX => refuse_all("the token file is too long"),
            Ok(_) => Authority::token(&token),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && insecure_allowed() => Authority::Anyone,
            Err(error) => refuse_all(&format!("{}: {error}", self.token_file.display())),
        }
    }
}

fn insecure_allowed() -> bool {
    std::env::var(ALLOW_INSECURE).is_ok_and(|value| TRUE_WORDS.contains(&value.as_str()))
}

fn refuse_all(why: &str) -> Authority {
    eprintln!("fluxvm-guest-agent: refusing every request: {why}");
    Authority::Nobody
}

fn loopback(value: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = value.parse().map_err(|_| format!("no address: {value}"))?;
    if address.ip().is_loopback() { Ok(address) } else { Err(format!("not a loopback address: {value}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        Options::parse(&arguments.iter().map(|argument| argument.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn addresses() {
        assert_eq!(parse(&[]).unwrap().address, Address::Vsock(17777));
        assert_eq!(parse(&["--unix", "/a"]).unwrap().address, Address::Unix("/a".into()));
        assert!(parse(&["--tcp", "127.0.0.1:1"]).is_ok());
        for bad in [&["--tcp", "0.0.0.0:1"][..], &["--tcp", "x"], &["--port", "x"], &["--unix"], &["--fly", "1"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
