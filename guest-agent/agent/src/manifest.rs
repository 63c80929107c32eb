//! `fluxvm-guest-agent manifest DIR…`: manifests of directories of this machine, timed, for measurements.

use files::{Links, Manifests, Root};
use rustix::fs::{Mode, OFlags, open};
use serde_bytes::ByteBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use wire::Fault;
use wire::request::ManifestRequest;

/// Walks each directory twice, the second time for a delta, and prints what came out and how long it took. With
/// `--wait` a line on standard input stands between the two. Exit status 1 when a walk failed.
pub fn run(arguments: &[String]) -> i32 {
    let wait = arguments.first().is_some_and(|argument| argument == "--wait");
    let directories = &arguments[usize::from(wait)..];
    if directories.is_empty() {
        eprintln!("usage: fluxvm-guest-agent manifest [--wait] DIR…");
        return 2;
    }
    for directory in directories {
        if let Err(fault) = measure(directory, wait) {
            eprintln!("{directory}: {fault}");
            return 1;
        }
    }
    0
}

fn measure(directory: &str, wait: bool) -> Result<(), Fault> {
    let opened = open(directory, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Fault::bad_argument(errno.to_string()))?;
    let mut manifests = Manifests::new(Root::new(opened, Links::Refuse), Manifests::threads_default());
    let mut base = None;
    for round in ["first", "second"] {
        if wait && base.is_some() {
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        let request =
            ManifestRequest { paths: vec![ByteBuf::from("/")], files_max: u64::MAX, listing_max: 1 << 30, base };
        let mut bytes = Vec::new();
        let started = Instant::now();
        let summary = manifests.run(&request, &AtomicBool::new(false), &mut bytes)?;
        let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
        let digest: String = summary.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let report = manifests.report();
        println!(
            "{directory} {round}: {milliseconds:.1} ms, {} files, {} entries, {} hashed, {} bytes sent, delta {}, {digest}",
            summary.files,
            summary.entries,
            report.hashed,
            bytes.len(),
            summary.delta,
        );
        base = Some(summary.digest);
    }
    Ok(())
}
