//! Version 1 shells.

use crate::host::{Agent, TOKEN, wait_until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

struct Terminal {
    stream: UnixStream,
    seen: String,
}

impl Terminal {
    fn open(agent: &Agent, more: &[u8]) -> Self {
        let mut stream = agent.stream();
        let request = format!("{{\"op\":\"open-shell\",\"cols\":91,\"rows\":17,\"token\":\"{TOKEN}\"}}\n");
        stream.write_all(&[request.as_bytes(), more].concat()).unwrap();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        assert_eq!(line, b"{\"result\":\"shell-opened\"}\n");
        Self { stream, seen: String::new() }
    }

    fn type_in(&mut self, text: &str) {
        self.stream.write_all(&data(text)).unwrap();
    }

    fn wait_for(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(text) {
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the session is over; seen: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        self.seen.clear();
    }

    fn wait_for_the_end(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
    }
}

fn data(text: &str) -> Vec<u8> {
    [&[0][..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn a_terminal_of_its_own_that_can_be_resized() {
    let agent = Agent::start();
    // What is typed may travel together with the request.
    let mut terminal = Terminal::open(&agent, &data("stty size; tty; echo $((40 + 2))th\n"));
    terminal.wait_for("17 91");
    terminal.type_in("echo x > /dev/tty && echo controlling; echo 4''3rd\n");
    terminal.wait_for("controlling");
    terminal.stream.write_all(&[1, 0, 100, 0, 40]).unwrap();
    terminal.type_in("stty size\n");
    terminal.wait_for("40 100");
    terminal.type_in("sleep 100\n");
    terminal.type_in("\u{3}");
    terminal.type_in("echo still''here\n");
    terminal.wait_for("stillhere");
    terminal.type_in("exit\n");
    terminal.wait_for_the_end();
}

#[test]
fn closing_hangs_up() {
    let agent = Agent::start();
    let mut terminal = Terminal::open(&agent, b"");
    terminal.type_in("echo pid-$$-\n");
    terminal.wait_for("pid-");
    terminal.wait_for("-");
    drop(terminal);
    let shells = || children(agent.child.id());
    wait_until("the shell is gone", || shells() == 0);
}

fn children(pid: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().split_whitespace().count()
}

#[test]
fn frames_out_of_form_end_the_session() {
    let agent = Agent::start();
    for bad in [&[2u8][..], &[0, 0, 16, 0, 1]] {
        let mut terminal = Terminal::open(&agent, bad);
        terminal.wait_for_the_end();
    }
    let mut terminal = Terminal::open(&agent, &[0, 0, 0, 0, 5, b'x']);
    terminal.stream.shutdown(std::net::Shutdown::Write).unwrap();
    terminal.wait_for_the_end();
}
