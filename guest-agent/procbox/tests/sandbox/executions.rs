//! Executions in a process sandbox: what outlives connections, and what a hostile command cannot reach.

use crate::Case;
use crate::client::{Connection, Heard};
use crate::fixture::{Place, Sandbox};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::ErrorCode;
use wire::execution::*;
use wire::limits::*;
use wire::message::Empty;

pub const CASES: &[Case] = &[
    ("an execution outlives its connections", outlives_connections),
    ("64 executions at once are whole", many_at_once),
    ("a timeout of an execution kills its control group", timeouts),
    ("what an execution leaves behind goes on and is told", daemons),
    ("kill -9 -1 inside leaves other executions' output", kill_everything),
    ("a flood does not grow the supervisor beyond its rings", floods),
    ("executions end as GONE with their sandbox", sandbox_ends),
];

pub fn shell(id: &str, command: &str) -> ExecutionStartRequest {
    ExecutionStartRequest { id: id.into(), command: Some(command.into()), ring_max: RING_MAX, ..Default::default() }
}

pub fn from(id: &str, stdout: u64, stderr: u64) -> ExecutionOffsets {
    ExecutionOffsets { id: id.into(), stdout, stderr }
}

pub fn start(connection: &mut Connection, request: &ExecutionStartRequest) -> Result<ExecutionState, wire::Fault> {
    connection.start_another("execution-start", request);
    connection.finish::<ExecutionStartEnd>().map(|(end, _)| end.execution)
}

pub fn follow(
    connection: &mut Connection,
    from: &ExecutionOffsets,
) -> Result<(ExecutionState, [Vec<u8>; 2]), wire::Fault> {
    connection.start_another("execution-attach", from);
    connection.finish::<ExecutionEnd>().map(|(end, channels)| (end.execution, channels))
}

pub fn state(connection: &mut Connection, id: &str) -> ExecutionState {
    connection.start_another("execution-list", &Empty {});
    let (list, _) = connection.finish::<ExecutionListEnd>().unwrap();
    list.executions.into_iter().find(|state| state.id == id).unwrap_or_else(|| panic!("no {id}"))
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        sleep(Duration::from_millis(5));
    }
}

fn numbers(count: u32) -> Vec<u8> {
    (1..=count).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

fn outlives_connections() {
    let sandbox = Sandbox::new();
    let request = ExecutionStartRequest { block: true, ..shell("a", "seq 1 1500000; exit 3") };
    let begun = start(&mut sandbox.connect(), &request).unwrap();
    assert!(begun.pid > 0 && !begun.tty && begun.stdin.closed);
    let (mut seen, mut rounds) = (Vec::new(), 0);
    let end = 'cuts: loop {
        let mut connection = sandbox.connect();
        connection.start("execution-attach", &from("a", seen.len() as u64, 0));
        let target = seen.len() + 600_000 + rounds * 77_777;
        rounds += 1;
        while seen.len() < target {
            match connection.hear().unwrap() {
                Heard::Data(_, content) => seen.extend(content),
                Heard::End(payload) => break 'cuts rmp_serde::from_slice::<ExecutionEnd>(&payload).unwrap(),
                Heard::Failed(fault) => panic!("{fault}"),
                Heard::Event => (),
            }
        }
        drop(connection);
        let mut other = sandbox.connect();
        other.start("execution-ack", &from("a", seen.len() as u64, 0));
        other.finish::<Empty>().unwrap();
    };
    assert!(rounds > 5 && seen == numbers(1_500_000), "{rounds} {}", seen.len());
    assert_eq!(end.execution.status.exit_code, Some(3));
}

fn many_at_once() {
    const COUNT: u32 = 64;
    let sandbox = Sandbox::of(Place::new().with(|config| config["limits"]["max_processes"] = 512.into()));
    sandbox.place.set_process_limit(512);
    let mut connection = sandbox.connect();
    for number in 0..COUNT {
        let command = format!("seq 1 {}; echo {number} >&2", 130_000 + number);
        start(&mut connection, &ExecutionStartRequest { block: true, ..shell(&number.to_string(), &command) }).unwrap();
    }
    // Nobody reads for a while or confirms anything, and all together stay within what is kept without holding up.
    sleep(Duration::from_millis(500));
    let followers: Vec<_> = (0..COUNT)
        .map(|number| {
            let mut connection = sandbox.connect();
            std::thread::spawn(move || {
                let (end, [out, err]) = follow(&mut connection, &from(&number.to_string(), 0, 0)).unwrap();
                assert!(out == numbers(130_000 + number) && err == format!("{number}\n").as_bytes());
                assert_eq!(end.status.exit_code, Some(0));
            })
        })
        .collect();
    followers.into_iter().for_each(|follower| follower.join().unwrap());
}

fn timeouts() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    let command = "trap '' TERM HUP; (setsid sh -c 'sleep 61' &); echo on; sleep 61";
    start(&mut connection, &ExecutionStartRequest { timeout_ms: 300, ..shell("a", command) }).unwrap();
    let (end, [out, _]) = follow(&mut connection, &from("a", 0, 0)).unwrap();
    assert!(end.status.timed_out && out == b"on\n", "{end:?}");
    assert_eq!(sandbox.output("ps -e -o comm= | grep -c sleep || true"), "0");
}

fn daemons() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    start(&mut connection, &shell("a", "(sleep 0.6; echo late) & echo early; exit 6")).unwrap();
    connection.start_another("execution-attach", &from("a", 0, 0));
    while !matches!(connection.hear().unwrap(), Heard::Event) {}
    let told = state(&mut sandbox.connect(), "a");
    assert_eq!((told.output_open, told.status.exit_code), (true, Some(6)));
    let (end, _) = connection.finish::<ExecutionEnd>().unwrap();
    assert!(!end.execution.output_open && end.execution.stdout.end == 11);
    start(&mut connection, &shell("b", "sleep 60 >/dev/null 2>&1 &")).unwrap();
    follow(&mut connection, &from("b", 0, 0)).unwrap();
    assert_eq!(sandbox.output("ps -e -o args= | grep -c 'sleep 6[0]' || true"), "1", "it is left alone");
}

fn kill_everything() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    start(&mut connection, &shell("victim", "echo before; sleep 60")).unwrap();
    wait_until("it has written", || state(&mut connection, "victim").stdout.end == 7);
    start(&mut connection, &shell("killer", "kill -9 -1; echo survived")).unwrap();
    let (end, [out, _]) = follow(&mut connection, &from("victim", 0, 0)).unwrap();
    assert_eq!((end.status.signal, out.as_slice()), (Some(9), &b"before\n"[..]));
    start(&mut connection, &shell("after", "echo fine")).unwrap();
    assert_eq!(follow(&mut connection, &from("after", 0, 0)).unwrap().1[0], b"fine\n");
}

fn floods() {
    let sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    for number in 0..4 {
        start(&mut connection, &shell(&number.to_string(), "timeout 2 cat /dev/zero")).unwrap();
    }
    wait_until("all have ended", || (0..4).all(|it| state(&mut connection, &it.to_string()).exited_at_ms.is_some()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.pid("supervisor_pid"))).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB for four rings of 8 MiB");
    let told = state(&mut connection, "0");
    assert!(told.stdout.end > 64 << 20 && told.stdout.end - told.stdout.base == RING_MAX, "{told:?}");
    connection.start_another("execution-forget", &ExecutionForgetRequest { id: "0".into() });
    connection.finish::<Empty>().unwrap();
    assert_eq!(follow(&mut connection, &from("0", 0, 0)).unwrap_err().code, ErrorCode::NotFound);
}

fn sandbox_ends() {
    let mut sandbox = Sandbox::new();
    let mut connection = sandbox.connect();
    start(&mut connection, &shell("a", "echo on; sleep 60")).unwrap();
    connection.start_another("execution-attach", &from("a", 0, 0));
    assert!(matches!(connection.hear().unwrap(), Heard::Data(1, _)));
    sandbox.signal("init_pid", libc::SIGKILL);
    assert_eq!(connection.finish::<ExecutionEnd>().unwrap_err().code, ErrorCode::Gone);
    sandbox.wait().unwrap();
}
