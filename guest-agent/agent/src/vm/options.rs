//! The command line and environment of VM mode.

use super::config_disk::Config;
use service::Authority;
use std::net::SocketAddr;
use std::path::PathBuf;
use wire::limits::TOKEN_MAX;

const TOKEN_FILE_DEFAULT: &str = "/etc/fluxvm-guest-agent.token";
/// Set to one of `TRUE_WORDS` it admits any caller where there is no token file.
const ALLOW_INSECURE: &str = "FLUXVM_AGENT_ALLOW_INSECURE";
const TRUE_WORDS: [&str; 4] = ["1", "true", "yes", "on"];

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On everything that leads to this machine's host.
    Machine,
    Vsock(u32),
    Unix(PathBuf),
    Tcp(SocketAddr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub address: Address,
    /// The usual one when not named; then a token of the config disk goes before it.
    pub token_file: Option<PathBuf>,
    /// What file operations see as `/`.
    pub root: PathBuf,
}

impl Options {
    /// The message says which argument makes no sense.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self { address: Address::Machine, token_file: None, root: "/".into() };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} is unknown or needs a value"))?;
            match name.as_str() {
                "--port" => options.address = Address::Vsock(value.parse().map_err(|_| format!("no port: {value}"))?),
                "--unix" => options.address = Address::Unix(value.into()),
                "--tcp" => options.address = Address::Tcp(loopback(value)?),
                "--token-file" => options.token_file = Some(value.into()),
                "--root" => options.root = value.into(),
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        Ok(options)
    }

    /// Whether this is the machine's own service, to be reached from its host.
    pub fn owns_machine(&self) -> bool {
        matches!(self.address, Address::Machine | Address::Vsock(_))
    }

    /// Who may ask, settled once.
    pub fn authority(&self, config: Option<&Config>) -> Authority {
        use std::io::Read;
        let token = config.and_then(|config| config.token.as_deref());
        if let (None, Some(token)) = (&self.token_file, token) {
            return if token.len() > TOKEN_MAX {
                refuse_all("the token is too long")
            } else {
                Authority::token(token.as_bytes())
            };
        }
        let token_file = self.token_file.clone().unwrap_or(TOKEN_FILE_DEFAULT.into());
        let mut token = Vec::new();
        let read =
            std::fs::File::open(&token_file).and_then(|file| file.take(TOKEN_MAX as u64 + 1).read_to_end(&mut token));
        match read {
            Ok(count) if count > TOKEN_MAX => refuse_all("the token file is too long"),
            Ok(_) => Authority::token(&token),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && insecure_allowed() => Authority::Anyone,
            Err(error) => refuse_all(&format!("{}: {error}", token_file.display())),
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
        assert_eq!(parse(&[]).unwrap().address, Address::Machine);
        assert_eq!(parse(&["--port", "1"]).unwrap().address, Address::Vsock(1));
        assert_eq!(parse(&["--unix", "/a"]).unwrap().address, Address::Unix("/a".into()));
        assert!(parse(&["--tcp", "127.0.0.1:1"]).is_ok());
        for bad in [&["--tcp", "0.0.0.0:1"][..], &["--tcp", "x"], &["--port", "x"], &["--unix"], &["--fly", "1"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
