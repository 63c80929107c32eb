//! The launcher: one process that checks and plans, makes the sandbox's init, gives up its own rights and goes on
//! as the supervisor. Nothing is left of a launch that failed.

use crate::cgroup::{self, Memberships};
use crate::config::LaunchConfig;
use crate::confine::{Launcher, during, namespace_flags, rights, seccomp, terminals, workspace_inside};
use crate::control::{self, FromInit};
use crate::init::{self, Setting};
use crate::limits::*;
use crate::plan::Plan;
use crate::probe::Facts;
use crate::report::{ExitRecordPlace, Failure, FailureCode, LaunchReport, Ready, boot_id, start_ticks};
use crate::supervisor::{self, Inheritance};
use crate::sys::packet;
use crate::sys::process::{self, Forked};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Pid, Uid, chown, getegid, geteuid};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Where the agent hands the token over.
const TOKEN_DESCRIPTOR: i32 = 3;

/// Launches a sandbox as standard input says, reports on standard output, and serves until it has ended. Gives
/// the exit status of the process.
pub fn run() -> i32 {
    match launch() {
        Ok(inheritance) => supervisor::serve(inheritance),
        Err(failure) => {
            report(&LaunchReport::Failed(failure));
            1
        }
    }
}

fn launch() -> Result<Inheritance, Failure> {
    // Taken before anything else can get its number, and read only once init has been forked without it.
    let token = process::adopt_descriptor(TOKEN_DESCRIPTOR)
        .map_err(|error| Failure::new(FailureCode::BadConfig, format!("no token on descriptor 3: {error}")))?;
    // The agent may already have made this process a session leader.
    let _ = nix::unistd::setsid();
    umask(Mode::from_bits_truncate(0o077));
    raise_descriptor_limit();
    let bad_config = |message| Failure::new(FailureCode::BadConfig, format!("launch configuration: {message}"));
    let config = LaunchConfig::read(io::stdin().lock()).map_err(bad_config)?;
    let plan = planned(&config)?;
    let (groups, listener) = prepare(&config).map_err(Failure::launch)?;
    let launcher = Launcher { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    let (own, theirs) = packet::pair().map_err(|error| Failure::launch(during("making the control pair")(error)))?;
    let terminals = new_terminals(&config, &plan);
    let setting = Setting { config, plan, groups, launcher };
    let init = match process::fork_into_namespaces(namespace_flags(&setting.plan)) {
        Ok(Forked::Child) => init::run(setting, terminals.ok(), theirs),
        Ok(Forked::Parent(pid)) => pid,
        Err(error) => return Err(Failure::launch(during("making the namespaces")(error))),
    };
    drop(theirs);
    let Setting { config, plan, .. } = setting;
    settle(config, plan, init, terminals, own, listener, token).inspect_err(|_| {
        // Its control pair is closed by now, which ends it.
        let _ = nix::sys::wait::waitpid(init, None);
    })
}

/// Each running command has half a dozen descriptors here. Without the right to more, the supervisor makes do and
/// refuses commands beyond it.
fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(DESCRIPTORS_MAX)), hard);
    }
}

/// The plan for this host, or all that stands against it in one message.
fn planned(config: &LaunchConfig) -> Result<Plan, Failure> {
    let facts = Facts::of_this_host().map_err(|error| Failure::launch(during("probing the host")(error)))?;
    let plan = Plan::new(config, &facts);
    match plan.refusal(config.best_effort) {
        Some(message) => Err(Failure::new(FailureCode::ConfinementUnavailable, message)),
        None => Ok(plan),
    }
}

/// Opens what needs the launcher's rights.
fn prepare(config: &LaunchConfig) -> Result<(Memberships, UnixListener), String> {
    let groups = match &config.cgroup {
        Some(paths) => Memberships::open(paths).map_err(during("opening the control groups"))?,
        None => Memberships::default(),
    };
    if let (Some(paths), Some(supervisor), Some(sandbox)) = (&config.cgroup, config.supervisor_uid, config.sandbox_uid)
        && let Some(work) = &paths.work_v2
    {
        cgroup::delegate(work, supervisor, sandbox).map_err(during("delegating the control group"))?;
    }
    Ok((groups, listen(config)?))
}

/// The sandbox's terminals, which init mounts where they belong, or why it has none.
fn new_terminals(config: &LaunchConfig, plan: &Plan) -> Result<OwnedFd, String> {
    if !plan.namespaces {
        let remedy = "allow user namespaces or run the agent as root, and ask for isolation";
        return Err(format!("they need a mount namespace: {remedy}"));
    }
    let made = if plan.user_namespace { terminals::make_unprivileged() } else { terminals::make(config.sandbox_uid) };
    made.map_err(during("this host refuses to make a devpts"))
}

fn listen(config: &LaunchConfig) -> Result<UnixListener, String> {
    let path = &config.socket;
    let failed = |what: &str| during(format!("{what} {}", path.display()));
    // A supervisor that was killed leaves its socket behind.
    if fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
        fs::remove_file(path).map_err(failed("removing"))?;
    }
    let listener = UnixListener::bind(path).map_err(failed("listening on"))?;
    if let Some(supervisor) = config.supervisor_uid {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let (owner, group) = (Some(Uid::from_raw(supervisor)), Some(Gid::from_raw(supervisor)));
        chown(directory, owner, group).map_err(|error| failed("giving away the directory of")(error.into()))?;
        chown(path, Some(Uid::from_raw(config.peer_uid)), None).map_err(|error| failed("giving away")(error.into()))?;
    }
    Ok(listener)
}

/// Waits for init, takes the token, gives up rights and reports.
fn settle(
    config: LaunchConfig,
    plan: Plan,
    init: Pid,
    terminals: Result<OwnedFd, String>,
    control: OwnedFd,
    listener: UnixListener,
    token: OwnedFd,
) -> Result<Inheritance, Failure> {
    await_init(&control).map_err(Failure::launch)?;
    let token = read_token(token).map_err(|error| Failure::launch(during("reading the token")(error)))?;
    let ready = ready(&config, &plan, init).map_err(|error| Failure::launch(during("identifying processes")(error)))?;
    let exit_record = ExitRecordPlace::open(&config.exit_record).map_err(|error| unusable_record(&config, error))?;
    let groups: Vec<u32> = config.sandbox_uid.into_iter().collect();
    rights::give_up(config.supervisor_uid, &groups).map_err(Failure::launch)?;
    process::hide_from_peers().map_err(|error| Failure::launch(during("hiding the supervisor")(error)))?;
    exit_record.check().map_err(|error| unusable_record(&config, error))?;
    let inheritance = supervisor::inherit(&config, init, terminals, control, listener, token, exit_record)
        .map_err(|error| Failure::launch(during("preparing the supervisor")(error)))?;
    seccomp::for_supervisor()
        .install()
        .map_err(|error| Failure::launch(during("installing the supervisor's seccomp filter")(error)))?;
    report(&LaunchReport::Ready(Box::new(ready)));
    detach_standard_streams().map_err(Failure::launch)?;
    Ok(inheritance)
}

fn unusable_record(config: &LaunchConfig, error: io::Error) -> Failure {
    let path = config.exit_record.display();
    Failure::new(FailureCode::BadConfig, format!("exit_record: supervisor_uid cannot write {path}: {error}"))
}

fn await_init(control: &OwnedFd) -> Result<(), String> {
    let timeout = PollTimeout::try_from(LAUNCH_MS_MAX).unwrap_or(PollTimeout::MAX);
    let mut watched = [PollFd::new(control.as_fd(), PollFlags::POLLIN)];
    if poll(&mut watched, timeout).map_err(during("waiting for init"))? == 0 {
        return Err(format!("init was not ready within {LAUNCH_MS_MAX} ms"));
    }
    let body = packet::receive_body(control.as_fd()).map_err(during("hearing from init"))?;
    match body.map(|body| control::decode(&body)) {
        Some(Ok(FromInit::Up)) => Ok(()),
        Some(Ok(FromInit::Failed { message })) => Err(message),
        Some(Ok(other)) => Err(format!("init said {other:?} before it was ready")),
        Some(Err(error)) => Err(format!("init said something unreadable: {error}")),
        None => Err("init ended before it was ready".into()),
    }
}

fn read_token(descriptor: OwnedFd) -> io::Result<Vec<u8>> {
    let mut token = Vec::new();
    File::from(descriptor).take(wire::limits::TOKEN_MAX as u64 + 1).read_to_end(&mut token)?;
    if token.trim_ascii().is_empty() || token.len() > wire::limits::TOKEN_MAX {
        return Err(io::Error::other(format!("1 to {} bytes are needed", wire::limits::TOKEN_MAX)));
    }
    Ok(token)
}

fn ready(config: &LaunchConfig, plan: &Plan, init: Pid) -> io::Result<Ready> {
    let own = std::process::id() as i32;
    Ok(Ready {
        ok: true,
        supervisor_pid: own,
        supervisor_start: start_ticks(own)?,
        init_pid: init.as_raw(),
        init_start: start_ticks(init.as_raw())?,
        boot_id: boot_id()?,
        workspace: workspace_inside(config, plan).to_string_lossy().into_owned(),
        enforcement: plan.enforcement(config),
    })
}

/// One line. The agent may be gone already; the sandbox then waits for the next agent.
fn report(report: &LaunchReport) {
    let mut line = serde_json::to_vec(report).expect("a report has nothing that JSON lacks");
    line.push(b'\n');
    let _ = io::stdout().lock().write_all(&line);
}

/// Points the standard streams at `/dev/null`, so that no pipe to the agent remains.
pub fn detach_standard_streams() -> Result<(), String> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(during("opening /dev/null"))?;
    for target in 0..=2 {
        if null.as_raw_fd() != target {
            process::duplicate_to(null.as_fd(), target).map_err(during("detaching standard streams"))?;
        }
    }
    Ok(())
}
