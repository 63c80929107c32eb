//! Drives whole process sandboxes through their sockets, as the agent does. Started with `procbox`, this program
//! is the launcher. The cases need root; those for an ordinary user become one.

mod client;
mod confinement;
mod endings;
mod escapes;
mod executions;
mod files;
mod fixture;
mod networks;
mod ports;
mod running;
mod terminals;
mod unprivileged;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// One promise and the code that checks it.
pub type Case = (&'static str, fn());

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("procbox") => std::process::exit(procbox::run()),
        Some("procbox-plan") => std::process::exit(procbox::plan()),
        Some("procbox-probe") => std::process::exit(procbox::probe()),
        Some("attempt") => return escapes::attempt(&arguments[1..]),
        Some("serve") => return ports::serve_inside(&arguments[1..]),
        Some("--measure") => {
            running::measure();
            return std::fs::remove_file(fixture::program()).unwrap();
        }
        _ => (),
    }
    assert!(nix::unistd::geteuid().is_root(), "these tests make control groups and change users: run them as root");
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let groups = [
        running::CASES,
        executions::CASES,
        terminals::CASES,
        files::CASES,
        ports::CASES,
        networks::CASES,
        endings::CASES,
        confinement::CASES,
        escapes::CASES,
        unprivileged::CASES,
    ];
    let wanted = |case: &&Case| filter.is_none_or(|filter| case.0.contains(filter.as_str()));
    let cases: Vec<&Case> = groups.iter().copied().flatten().filter(wanted).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        cases.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    println!("running {} tests", cases.len());
    let mut failed = Vec::new();
    for (name, run) in &cases {
        let began = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(run)).is_ok();
        let outcome = if passed { "ok" } else { "FAILED" };
        println!("test {name} ... {outcome} ({} ms)", began.elapsed().as_millis());
        if !passed {
            failed.push(*name);
        }
    }
    std::fs::remove_file(fixture::program()).unwrap();
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    let (count, bad) = (cases.len(), failed.len());
    println!("\ntest result: {word}. {} passed; {bad} failed; 0 ignored; 0 measured; 0 filtered out", count - bad);
    std::process::exit(if failed.is_empty() { 0 } else { 101 });
}
