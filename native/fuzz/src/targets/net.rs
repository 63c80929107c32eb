//! The network device on real taps in a network of its own, with one and with two queue pairs, and a host that sends.

use crate::guest::Guest;
use crate::script::Script;
use crate::story::{self, Direction, Subject};
use fluxvm_engine::virtio::VirtioDevice;
use fluxvm_engine::virtio::limiter::{Limits, Rate};
use fluxvm_engine::virtio::net::{Net, NetConfig};
use fluxvm_sys::namespaces::own_network;
use fluxvm_sys::tap::Tap;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::OnceLock;

const HEADER_BYTES: usize = 12;
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Link, IPv4 and UDP headers in front of a datagram.
const DATAGRAM_OVERHEAD_BYTES: u32 = 14 + 20 + 8;

/// The host's side: taps that outlive the devices, and a program that sends.
struct Lab {
    single: Vec<Tap>,
    several: Vec<Tap>,
    socket: UdpSocket,
}

thread_local! {
    static LAB: Lab = Lab::new();
}

impl Lab {
    fn new() -> Self {
        own_network().expect("a network");
        let single = vec![Tap::attach("one", false).expect("a tap")];
        let several = (0..2).map(|_| Tap::attach("two", true).expect("a tap")).collect();
        for (name, network) in [("one", 1), ("two", 2)] {
            ip(&format!("link set {name} addrgenmode none address 02:00:00:00:00:01 up"));
            ip(&format!("addr add 10.9.{network}.1/24 dev {name}"));
            ip(&format!("neigh replace 10.9.{network}.2 lladdr 02:00:00:00:00:02 dev {name}"));
        }
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        Self { single, several, socket }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// Taps in a network of one's own are for the administrator.
pub fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<bool> = OnceLock::new();
    let missing = *MISSING.get_or_init(|| {
        let probe = || own_network().is_ok() && Tap::attach("probe", false).is_ok();
        !std::thread::spawn(probe).join().unwrap_or(false)
    });
    missing.then_some("tap devices (/dev/net/tun) in a network namespace, which need root")
}

struct Card {
    kind: u8,
}

impl Card {
    fn has_several(&self) -> bool {
        self.kind & 1 != 0
    }

    fn send(&self, bytes: usize) {
        let network = if self.has_several() { 2 } else { 1 };
        // A tap whose queue is full loses what is sent.
        let _ = LAB.with(|lab| lab.socket.send_to(&vec![7; bytes], format!("10.9.{network}.2:9")));
    }
}

impl Subject for Card {
    fn device(&mut self) -> Box<dyn VirtioDevice> {
        let taps = LAB.with(|lab| {
            let taps = if self.has_several() { &lab.several } else { &lab.single };
            let twin = |tap: &Tap| {
                // Frames of an earlier story.
                while rustix::io::read(tap.as_fd(), &mut [0; 4096]).is_ok() {}
                Tap::adopt(tap.as_fd().try_clone_to_owned().expect("a descriptor")).expect("a tap")
            };
            taps.iter().map(twin).collect()
        });
        let rate = Some(Rate { per_second: 1 << 24, burst: 4096 });
        let limits = if self.kind & 6 == 6 { Limits { bytes: rate, operations: None } } else { Limits::default() };
        let mtu_bytes = (self.kind & 8 != 0).then_some(1400);
        let (receive_limits, transmit_limits) = (limits, limits);
        let config = NetConfig { taps, mac: GUEST_MAC, mtu_bytes, receive_limits, transmit_limits };
        Box::new(Net::new(config).expect("a device"))
    }

    fn direction(&self, queue: usize) -> Direction {
        match (queue, queue % 2) {
            (4, _) => Direction::Both,
            (_, 0) => Direction::ToGuest,
            _ => Direction::FromGuest,
        }
    }

    fn request(&mut self, queue: usize, script: &mut Script<'_>) -> Vec<u8> {
        if queue == 4 {
            let pairs = if script.one_in(4) { script.u16() } else { 1 + script.below(2) as u16 };
            let mut command = vec![4, 0];
            command.extend(pairs.to_le_bytes());
            if script.one_in(4) {
                script.edit(&mut command, 2);
            }
            return command;
        }
        let mut frame = vec![0; HEADER_BYTES];
        frame.extend([0xFF; 6]);
        frame.extend([2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0]);
        let payload = if script.one_in(4) { vec![3; script.below(2000) as usize] } else { script.bytes(60) };
        frame.extend(payload);
        script.edit(&mut frame, 3);
        frame
    }

    fn host(&mut self, script: &mut Script<'_>, guest: &mut Guest) {
        match script.below(4) {
            0 => {
                for _ in 0..if guest.queues() > 0 { script.below(24) } else { 0 } {
                    let room = guest.room(4096);
                    guest.push(0, &[room], false);
                }
                guest.kick(0);
            }
            1 => self.send(script.below(0x2000) as usize),
            _ => {
                for _ in 0..script.below(6) {
                    self.send(script.u8().into());
                }
            }
        }
    }

    fn check(&mut self, guest: &mut Guest) {
        let mut frame = vec![0; HEADER_BYTES];
        frame.extend([0xFF; 6]);
        frame.extend([2, 0, 0, 0, 0, 2, 0x88, 0xB5]);
        frame.resize(HEADER_BYTES + 60, 0);
        let frame = guest.give(&frame);
        assert_eq!(guest.request(1, &[frame]), 0);
        for _ in 0..40 {
            let room = guest.room(4096);
            guest.push(0, &[room], false);
        }
        guest.kick(0);
        guest.settle();
        let wanted = HEADER_BYTES as u32 + DATAGRAM_OVERHEAD_BYTES + 5;
        let mut looks = 0_u32;
        guest.until("a datagram of the host", |guest| {
            // Again and again: a tap that is full of what was sent before loses it.
            if looks.is_multiple_of(64) {
                self.send(5);
            }
            looks += 1;
            let (_, bytes) = guest.used(0)?;
            if bytes == wanted {
                return Some(());
            }
            // Others may come before it; the device waits for room for the longest.
            let room = guest.room(4096);
            guest.push(0, &[room], false);
            guest.kick(0);
            None
        });
    }
}

/// Runs one input: its first byte says how the device is made.
pub fn run(input: &[u8]) {
    let Some((kind, story)) = input.split_first() else { return };
    story::tell(story, &mut Card { kind: *kind });
}
