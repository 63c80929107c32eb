//! Version 1: one line each way.

use crate::host::{Agent, TOKEN, wait_until};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn exec(agent: &Agent, command: &str) -> Value {
    agent.call(json!({"op": "exec", "command": command}))
}

fn is_error(answer: &Value, part: &str) {
    assert_eq!(answer["result"], "error", "{answer}");
    assert!(answer["message"].as_str().unwrap().contains(part), "{answer}");
}

#[test]
fn only_the_token_opens() {
    let agent = Agent::start();
    assert_eq!(agent.call(json!({"op": "ping"})), json!({"result": "pong"}));
    for request in
        [r#"{"op":"ping"}"#, r#"{"op":"ping","token":"wrong"}"#, r#"{"op":"ping","token":null}"#, r#"{"op":"fly"}"#]
    {
        let answer = agent.call_raw(format!("{request}\n").as_bytes());
        assert!(answer["message"].as_str().unwrap().starts_with("unauthorized:"), "{answer}");
    }
    assert!(!format!("{:?}", agent.call_raw(b"{\"op\":\"ping\",\"token\":7}\n")).contains(TOKEN));
}

#[test]
fn without_a_token_file_everything_is_refused() {
    let agent = Agent::start_with(None, &[]);
    let answer = agent.call(json!({"op": "ping"}));
    assert!(answer["message"].as_str().unwrap().starts_with("unauthorized:"), "{answer}");
    drop(agent);
    let agent = Agent::start_with(None, &[("FLUXVM_AGENT_ALLOW_INSECURE", "TRUE")]);
    assert_eq!(agent.call(json!({"op": "ping"}))["result"], "error");
    drop(agent);
    let agent = Agent::start_with(None, &[("FLUXVM_AGENT_ALLOW_INSECURE", "yes")]);
    assert_eq!(agent.call(json!({"op": "ping"}))["result"], "pong");
    drop(agent);
    let agent = Agent::start_with(Some(" "), &[("FLUXVM_AGENT_ALLOW_INSECURE", "1")]);
    assert_eq!(agent.call_raw(b"{\"op\":\"ping\",\"token\":\"\"}\n")["result"], "error");
}

#[test]
fn commands_and_how_they_end() {
    let agent = Agent::start();
    let answer = exec(&agent, "echo out; echo err >&2; exit 3");
    assert_eq!(answer, json!({"result": "exec", "exit_code": 3, "stdout": "out\n", "stderr": "err\n"}));
    assert_eq!(exec(&agent, "kill -TERM $$")["exit_code"], 143);
    let words = agent.call(json!({"op": "exec", "argv": ["printf", "%s|", "a b", "$HOME", ""]}));
    assert_eq!(words["stdout"], "a b|$HOME||");
    let answer = agent.call(json!({"op": "exec", "command": "echo $A; pwd", "env": {"A": "ü"}, "cwd": "/tmp"}));
    assert_eq!(answer["stdout"], "ü\n/tmp\n");
    assert_eq!(exec(&agent, "printf '\\377'")["stdout"], "\u{fffd}");
    assert_eq!(exec(&agent, "env | grep -c FLUXVM_")["stdout"], "0\n");
    for (program, exit_code) in [("/no/such/program", 127), ("/etc", 126)] {
        let answer = agent.call(json!({"op": "exec", "argv": [program]}));
        assert_eq!((&answer["result"], &answer["exit_code"]), (&json!("exec"), &json!(exit_code)), "{answer}");
        assert!(answer["stderr"].as_str().unwrap().starts_with(program), "{answer}");
    }
    is_error(&agent.call(json!({"op": "exec", "command": "id", "cwd": "/no/such"})), "cwd");
    is_error(&agent.call(json!({"op": "exec", "command": "id", "argv": ["id"]})), "exactly one");
}

#[test]
fn a_command_longer_than_an_argument() {
    let agent = Agent::start();
    let answer = exec(&agent, &format!("echo '{}' | wc -c; echo $0 | cut -c1-5", "x".repeat(900_000)));
    assert_eq!(answer["stdout"], "900001\n/proc\n", "{answer}");
    is_error(&exec(&agent, &"x".repeat((1 << 20) + 1)), "too long");
}

#[test]
fn a_time_limit_kills_whatever_ignores_it() {
    let agent = Agent::start();
    let command = "trap '' TERM HUP INT; (trap '' TERM; sleep 100) & echo $!; wait; sleep 100";
    let started = Instant::now();
    let answer = agent.call(json!({"op": "exec", "command": command, "timeout_seconds": 1}));
    assert_eq!(answer["exit_code"], 124);
    assert!(started.elapsed() < Duration::from_secs(5));
    let child = answer["stdout"].as_str().unwrap().trim();
    wait_until("its child is gone too", || !is_alive(child));
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn what_stays_in_the_background_holds_nobody_and_lives() {
    let agent = Agent::start();
    let started = Instant::now();
    let answer = exec(&agent, "setsid sleep 60 & echo $!");
    assert_eq!(answer["exit_code"], 0);
    assert!(started.elapsed() < Duration::from_secs(5));
    let daemon = answer["stdout"].as_str().unwrap().trim();
    assert!(is_alive(daemon));
    exec(&agent, &format!("kill {daemon}"));
}

#[test]
fn closed_pipes_do_not_end_a_command() {
    let agent = Agent::start();
    let answer = exec(&agent, "exec >&- 2>&-; sleep 0.3; exit 7");
    assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(7), &json!("")));
}

#[test]
fn a_gibibyte_of_output_keeps_its_head() {
    let agent = Agent::start();
    let answer = exec(&agent, "head -c 1G /dev/zero; echo end >&2");
    assert_eq!(answer["stdout"].as_str().unwrap().len(), 16 << 20);
    assert_eq!((&answer["exit_code"], &answer["stderr"]), (&json!(0), &json!("end\n")));
}

#[test]
fn files() {
    let agent = Agent::start();
    let content: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
    let put =
        |path: &str, content: &str| agent.call(json!({"op": "put-file", "path": path, "content_base64": content}));
    assert_eq!(put("/a/b/file", &BASE64.encode(&content)), json!({"result": "file-written"}));
    let answer = agent.call(json!({"op": "get-file", "path": "/a/b/file"}));
    assert_eq!((&answer["result"], &answer["mode"]), (&json!("file-content"), &json!(0o644)));
    assert_eq!(BASE64.decode(answer["content_base64"].as_str().unwrap()).unwrap(), content);
    is_error(&put("/a/b", ""), "a directory");
    is_error(&put("relative", ""), "not an absolute path");
    is_error(&put("/x", "%"), "not base64");
    is_error(&agent.call(json!({"op": "get-file", "path": "/none"})), "No such file");
    is_error(&agent.call(json!({"op": "get-file", "path": "/a"})), "not a regular file");
}

#[test]
fn lines_that_are_too_long_or_never_end() {
    let agent = Agent::start();
    let mut stream = agent.stream();
    let chunk = vec![b'x'; 1 << 20];
    stream.write_all(b"{").unwrap();
    for _ in 0..97 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    // Not even an answer is sure to arrive at one who does not stop sending.
    assert!(answer.is_empty() || answer.contains("too long"), "{answer}");
    let unfinished = agent.stream();
    (&unfinished).write_all(b"{\"op\":").unwrap();
    assert_eq!(agent.call(json!({"op": "ping"}))["result"], "pong");
}

#[test]
fn neither_version() {
    let agent = Agent::start();
    let mut stream = agent.stream();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"");
}

#[test]
fn identity_reports_what_it_did() {
    let agent = Agent::start();
    std::fs::create_dir(agent.directory.join("root/etc")).unwrap();
    let request = json!({"op": "reset-identity", "hostname": "-not a name", "regenerate_machine_id": true});
    let answer = agent.call(request);
    assert_eq!(answer["applied"], json!(["machine-id"]));
    assert_eq!(answer["failures"], json!(["hostname: not a host name"]));
    let id = std::fs::read_to_string(agent.directory.join("root/etc/machine-id")).unwrap();
    assert!(id.len() == 33 && id.trim().bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    let answer = agent.call(json!({"op": "reset-identity", "entropy_base64": BASE64.encode([7; 32])}));
    let done = if rustix::process::geteuid().is_root() { "applied" } else { "failures" };
    assert_eq!(answer[done].as_array().unwrap().len(), 1, "{answer}");
}

#[test]
fn shutdown_ends_commands_and_the_agent() {
    let mut agent = Agent::start();
    let mut running = agent.stream();
    let request = json!({"op": "exec", "command": "echo $$ > /proc/self/fd/1; exec sleep 100", "token": TOKEN});
    running.write_all(format!("{request}\n").as_bytes()).unwrap();
    assert_eq!(agent.call(json!({"op": "shutdown"})), json!({"result": "shutting-down"}));
    assert!(agent.child.wait().unwrap().success());
}
