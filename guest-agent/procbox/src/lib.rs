//! Process sandboxes. The launcher ([`run`]) plans, forks the sandbox's init into its namespaces and becomes the
//! supervisor, which serves the guest-agent protocol to the agent; init forks the spawner, the parent of commands,
//! and the workers, which do file operations. Everything but the supervisor runs with the sandbox's own rights.

mod cgroup;
mod config;
mod confine;
mod control;
mod helper;
mod init;
mod launch;
mod limits;
mod minder;
mod plan;
mod port_worker;
mod probe;
mod report;
mod share;
mod spawner;
mod supervisor;
mod sys;
mod worker;
mod workspace;

use serde::Serialize;

/// `procbox`: launches a sandbox and serves it. Gives the exit status. Must be called with a single thread.
pub fn run() -> i32 {
    launch::run()
}

/// `helper`: becomes a helper program of the host, confined. Gives the exit status when it could not. Must be called
/// with a single thread.
pub fn helper() -> i32 {
    helper::run()
}

/// `procbox-probe`: prints what this host can enforce, as JSON. Gives the exit status.
pub fn probe() -> i32 {
    match probe::Facts::of_this_host() {
        Ok(facts) => print(&facts),
        Err(error) => complain(&format!("probing the host: {error}")),
    }
}

/// `procbox-plan`: prints the gaps and notes of the launch configuration on standard input. Gives the exit status.
pub fn plan() -> i32 {
    #[derive(Serialize)]
    struct Answer {
        /// What stands against a launch.
        gaps: Vec<String>,
        notes: Vec<String>,
    }
    let config = match config::LaunchConfig::read(std::io::stdin().lock()) {
        Ok(config) => config,
        Err(message) => return complain(&format!("launch configuration: {message}")),
    };
    match probe::Facts::of_this_host() {
        Ok(facts) => {
            let plan = plan::Plan::new(&config, &facts);
            let gaps = plan.refusals.into_iter().chain(plan.gaps).collect();
            print(&Answer { gaps, notes: plan.notes })
        }
        Err(error) => complain(&format!("probing the host: {error}")),
    }
}

fn print<T: Serialize>(value: &T) -> i32 {
    println!("{}", serde_json::to_string(value).expect("facts have nothing that JSON lacks"));
    0
}

fn complain(message: &str) -> i32 {
    eprintln!("{message}");
    1
}
