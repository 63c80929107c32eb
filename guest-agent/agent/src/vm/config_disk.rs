//! The config disk: a small read-only disk that the host makes for this machine alone. It carries what must not be in a
//! shared image, on a command line or in a log: the token, a seed of random numbers, the machine's name,
//! the folders that the host shares with it.

use super::identity;
use super::shared_folders::SharedFolder;
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use wire::config_disk::{HEADER_SIZE, PAYLOAD_MAX, payload_size};

const DISKS: &str = "/sys/class/block";
/// Sectors of the largest disk that is looked at, 512 bytes each.
const SECTORS_MAX: u64 = ((HEADER_SIZE + PAYLOAD_MAX) as u64).next_multiple_of(4096) / 512;

/// What the host says. Unknown keys are a newer host's.
#[derive(Default, Deserialize)]
pub struct Config {
    pub token: Option<String>,
    pub hostname: Option<String>,
    pub entropy_base64: Option<String>,
    #[serde(default)]
    pub shared_folders: Vec<SharedFolder>,
}

impl Config {
    /// The config of this machine, if it has such a disk. One that makes no sense is said and passed over.
    pub fn find() -> Option<Self> {
        let mut names: Vec<_> = std::fs::read_dir(DISKS).ok()?.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        names.iter().find_map(|name| {
            let facts = Path::new(DISKS).join(name);
            // A disk that can be written is no disk of the host's; nobody in here shall be able to make one.
            let read_only = number(&facts.join("ro")) == Some(1);
            let small = number(&facts.join("size")).is_some_and(|sectors| (1..=SECTORS_MAX).contains(&sectors));
            (read_only && small).then(|| read(&Path::new("/dev").join(name)))?
        })
    }

    /// Mixes the host's random numbers into the kernel's, and counts them as random.
    pub fn seed(&self) {
        if let Some(seed) = &self.entropy_base64
            && let Err(why) = identity::reseed(Some(seed))
        {
            eprintln!("fluxvm-guest-agent: the host's random numbers are not used: {why}");
        }
    }

    /// Gives the running machine its name; no file remembers it.
    pub fn name_machine(&self) {
        if let Some(name) = &self.hostname
            && let Err(why) = identity::name_machine(name)
        {
            eprintln!("fluxvm-guest-agent: the host's name for this machine is not used: {why}");
        }
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read(disk: &Path) -> Option<Config> {
    let mut file = File::open(disk).ok()?;
    let mut header = [0; HEADER_SIZE];
    file.read_exact(&mut header).ok()?;
    let mut payload = vec![0; payload_size(&header)?];
    let config = file.read_exact(&mut payload).map_err(|error| error.to_string()).and_then(|()| {
        // The message of the parser would quote the payload.
        serde_json::from_slice(&payload).map_err(|_| "not what a host writes".to_string())
    });
    config.inspect_err(|why| eprintln!("fluxvm-guest-agent: config disk {}: {why}", disk.display())).ok()
}
