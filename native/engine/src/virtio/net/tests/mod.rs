//! The device on real tap devices in namespaces of their own: frames, offloads, limits, several queues, and drivers that
//! break rules.

mod lab;
mod vhost;

use super::features::*;
use super::{Net, PAIRS_MAX};
use crate::virtio::FEATURE_VERSION_1;
use crate::virtio::limiter::{Limits, Rate};
use crate::virtio::testing::{EVENT_INDEX, Piece, TestGuest, rounds, torment};
use fluxvm_sys::tap::Tap;
use lab::frames::{checksum_is_right, datagram, datagram_payload, segment, segment_payload};
use lab::{Driver, FrameHeader, GUEST_MAC, config, in_lab, ip, tap};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Everything that one queue pair can have.
const FULL: u64 = EVENT_INDEX | ALWAYS;
const BUFFER_BYTES: u32 = 4096;

fn host_socket() -> UdpSocket {
    let socket = UdpSocket::bind("10.9.0.1:7000").expect("the host's address");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    socket.connect("10.9.0.2:5000").expect("the guest's address");
    socket
}

#[test]
fn the_configuration_says_address_link_pairs_and_mtu() {
    in_lab(|| {
        let mut given = config(vec![tap("tap0")]);
        given.mtu_bytes = Some(1400);
        let guest = TestGuest::new(Box::new(Net::new(given).expect("a device")));
        let mut expected = GUEST_MAC.to_vec();
        expected.extend([1, 0, 1, 0, 0x78, 0x05]);
        assert_eq!(guest.config::<12>(0).to_vec(), expected);
        assert_eq!(guest.offered() & (MTU | MULTIQUEUE | CONTROL_QUEUE), MTU);
    });
}

#[test]
fn wrong_set_ups_are_refused() {
    in_lab(|| {
        assert!(Net::new(config(Vec::new())).is_err());
        let mut group = config(vec![tap("tap0")]);
        group.mac = [1, 0, 0, 0, 0, 1];
        assert!(Net::new(group).is_err());
        let mut tiny = config(vec![Tap::attach("tap1", false).expect("a tap device")]);
        tiny.mtu_bytes = Some(67);
        assert!(Net::new(tiny).is_err());
        let many = (0..=PAIRS_MAX).map(|_| Tap::attach("tap2", true).expect("a queue")).collect();
        assert!(Net::new(config(many)).is_err());
        let _queue = Tap::attach("tap3", true).expect("a queue");
        assert!(Tap::attach("tap3", false).is_err(), "it was made with several queues");
        assert!(Tap::attach("a-name-that-is-too-long", false).is_err());
        let file = std::fs::File::open("/dev/net/tun").expect("the device");
        assert!(Tap::adopt(file.into()).is_err(), "nothing is attached");
    });
}

#[test]
fn a_datagram_reaches_the_guest_with_the_checksum_that_it_chose() {
    for (features, partial) in [(FULL, true), (FEATURE_VERSION_1 | MAC, false)] {
        in_lab(move || {
            let mut driver = Driver::new(config(vec![tap("tap0")]), features, 64, BUFFER_BYTES);
            host_socket().send(b"hello guest").expect("sent");
            let (header, frame) = driver.frame().expect("a frame");
            assert_eq!(datagram_payload(&frame), b"hello guest");
            assert_eq!(header.buffers, 1);
            assert_eq!(header.flags & 1 == 1, partial);
            assert_eq!(checksum_is_right(&frame), !partial);
        });
    }
}

#[test]
fn a_datagram_with_an_unfinished_checksum_reaches_the_host() {
    in_lab(|| {
        let mut driver = Driver::new(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        let (header, frame) = datagram(7000, b"hello host");
        driver.send(header, &frame);
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).expect("the datagram");
        assert_eq!(&bytes[..count], b"hello host");
    });
}

/// Two devices on one bridge; the second takes no long segments and, unless `plain`, only whole checksums.
fn two_guests(second: u64) -> (Driver, Driver) {
    let taps: Vec<Tap> = ["tap0", "tap1"].map(|name| Tap::attach(name, false).expect("a tap device")).into();
    ip("link add bridge type bridge");
    ip("link set bridge up");
    for name in ["tap0", "tap1"] {
        ip(&format!("link set {name} master bridge"));
        ip(&format!("link set {name} up"));
    }
    let mut taps = taps.into_iter();
    let mut next = |features, bytes| Driver::new(config(vec![taps.next().expect("two taps")]), features, 128, bytes);
    (next(FULL, BUFFER_BYTES), next(second, BUFFER_BYTES))
}

#[test]
fn checksums_and_segments_are_finished_for_a_guest_that_takes_neither() {
    in_lab(|| {
        let (mut from, mut to) = two_guests(FEATURE_VERSION_1 | MAC | MERGEABLE_BUFFERS);
        let payload: Vec<u8> = (0..60_000u32).map(|place| (place ^ (place >> 8)) as u8).collect();
        let (header, frame) = segment(&payload);
        from.send(header, &frame);
        let mut received: Vec<u8> = Vec::new();
        let mut frames = 0;
        while received.len() < payload.len() {
            let (header, frame) = to.frame().expect("a part of the segment");
            assert_eq!((header.flags & 1, header.segmentation), (0, 0));
            assert!(frame.len() <= 1514, "{} bytes", frame.len());
            assert!(checksum_is_right(&frame));
            let (sequence, part) = segment_payload(&frame);
            assert_eq!(sequence as usize, 1000 + received.len());
            received.extend(part);
            frames += 1;
        }
        assert!(received == payload);
        assert!(frames >= 60_000 / 1448);
    });
}

#[test]
fn a_long_segment_stays_whole_for_a_guest_that_takes_it_over_many_buffers() {
    in_lab(|| {
        let (mut from, mut to) = two_guests(FULL);
        let payload: Vec<u8> = (0..60_000u32).map(|place| ((place * 7) ^ (place >> 8)) as u8).collect();
        let (header, frame) = segment(&payload);
        from.send(header, &frame);
        let (header, whole) = to.frame().expect("the segment");
        assert_eq!(usize::from(header.buffers), (frame.len() + 12).div_ceil(BUFFER_BYTES as usize));
        assert_eq!((header.flags & 1, header.segmentation, header.segment_bytes), (1, 1, 1448));
        assert!(segment_payload(&whole).1 == payload);
    });
}

#[test]
fn a_frame_without_room_is_dropped_and_the_next_one_comes() {
    in_lab(|| {
        // Buffers shorter than a frame, and no merging: the driver's own mistake.
        let mut driver = Driver::new(config(vec![tap("tap0")]), FEATURE_VERSION_1 | MAC, 16, 256);
        let socket = host_socket();
        socket.send(&[1; 1000]).expect("sent");
        socket.send(b"short").expect("sent");
        let (_, frame) = driver.frame().expect("the short one");
        assert_eq!(datagram_payload(&frame), b"short");
    });
}

#[test]
fn few_buffers_in_all_still_carry_what_fits() {
    in_lab(|| {
        let device = Net::new(config(vec![tap("tap0")])).expect("a device");
        let mut guest = TestGuest::running_with(Box::new(device), FULL);
        let buffers: Vec<Piece> = (0..256).map(|_| guest.room(64)).collect();
        for buffer in &buffers {
            guest.push(0, &[*buffer]);
        }
        guest.kick(0);
        host_socket().send(&[7; 500]).expect("sent");
        // The frame spans buffers of 64 bytes; what the kernel sends by itself may come before.
        guest.until("a frame", |guest| guest.used(0).is_some());
        assert_eq!(guest.mmio.fault(), None);
    });
}

#[test]
fn frames_wait_for_buffers_and_come_when_there_are_some() {
    in_lab(|| {
        let mut driver = Driver::new(config(vec![tap("tap0")]), FEATURE_VERSION_1 | MAC, 0, 0);
        let socket = host_socket();
        socket.send(b"patient").expect("sent");
        assert!(driver.any_frame().is_none());
        for _ in 0..32 {
            let buffer = driver.machine.room(2048);
            driver.offer(buffer);
        }
        driver.machine.kick(0);
        assert_eq!(datagram_payload(&driver.frame().expect("the frame").1), b"patient");
    });
}

#[test]
fn limits_hold_frames_back_and_lose_none() {
    in_lab(|| {
        let mut given = config(vec![tap("tap0")]);
        let rate = Some(Rate { per_second: 20, burst: 1 });
        given.receive_limits = Limits { bytes: None, operations: rate };
        given.transmit_limits = Limits { bytes: None, operations: rate };
        let mut driver = Driver::new(given, FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        let begin = Instant::now();
        for number in 0..6u8 {
            socket.send(&[number]).expect("sent");
        }
        for number in 0..6u8 {
            assert_eq!(datagram_payload(&driver.frame().expect("a frame").1), [number]);
        }
        assert!(begin.elapsed() > Duration::from_millis(200), "{:?}", begin.elapsed());
        let begin = Instant::now();
        for number in 0..6u8 {
            let (header, frame) = datagram(7000, &[number]);
            driver.send(header, &frame);
            assert_eq!(socket.recv(&mut [0; 8]).expect("the datagram"), 1);
        }
        assert!(begin.elapsed() > Duration::from_millis(200), "{:?}", begin.elapsed());
    });
}

#[test]
fn a_pause_gives_all_buffers_back_and_a_loaded_state_goes_on_where_it_was() {
    in_lab(|| {
        let mut driver = Driver::new(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        socket.send(b"before").expect("sent");
        assert_eq!(datagram_payload(&driver.frame().expect("a frame").1), b"before");
        driver.machine.quiesce();
        socket.send(b"during").expect("sent");
        assert!(driver.any_frame().is_none());
        let state = driver.machine.mmio.save();
        driver.machine.mmio.load(&state).expect("its own state");
        driver.machine.reactor.resume();
        assert_eq!(datagram_payload(&driver.frame().expect("a frame").1), b"during");
        let (header, frame) = datagram(7000, b"after");
        driver.send(header, &frame);
        let mut bytes = [0; 8];
        assert_eq!(socket.recv(&mut bytes).expect("the datagram"), 5);
        assert_eq!(driver.machine.mmio.fault(), None);
    });
}

#[test]
fn a_wrong_state_is_refused() {
    in_lab(|| {
        let driver = Driver::new(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        driver.machine.quiesce();
        let state = driver.machine.mmio.save();
        for pairs in [0, 2, 200] {
            let mut other = state.clone();
            let place = other.len() - 2;
            other[place] = pairs;
            assert!(driver.machine.mmio.load(&other).is_err(), "{pairs} pairs");
        }
        assert!(driver.machine.mmio.load(&state).is_ok());
    });
}

#[test]
fn a_driver_chooses_how_many_pairs_it_uses() {
    in_lab(|| {
        let taps: Vec<Tap> = (0..2).map(|_| Tap::attach("tap0", true).expect("a queue")).collect();
        let device = Net::new(config(taps)).expect("a device");
        let mut guest = TestGuest::running_with(Box::new(device), u64::MAX);
        assert_eq!(guest.queues.len(), 5);
        let commands = [([4, 0, 2, 0], 0), ([4, 0, 3, 0], 1), ([4, 0, 0, 0], 1), ([4, 1, 1, 0], 1), ([1, 0, 1, 0], 1)];
        for (command, answer) in commands {
            let command = guest.give(&command);
            let room = guest.room(1);
            assert_eq!(guest.request(4, &[command, room]), 1);
            assert_eq!(guest.bytes(room), [answer], "{command:?}");
        }
        let short = guest.give(&[4, 0]);
        let room = guest.room(1);
        guest.request(4, &[short, room]);
        assert_eq!(guest.bytes(room), [1]);
        guest.quiesce();
        let state = guest.mmio.save();
        guest.mmio.load(&state).expect("its own state, with two pairs");
        guest.reactor.resume();
        assert_eq!(guest.mmio.fault(), None);
    });
}

#[test]
fn frames_that_make_no_sense_are_dropped() {
    in_lab(|| {
        let mut driver = Driver::new(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        let (good, frame) = datagram(7000, b"good");
        let wrong = [
            (FrameHeader { checksum_start: 60_000, ..good }, &frame[..]),
            (FrameHeader { segmentation: 99, segment_bytes: 1, ..good }, &frame[..]),
            (FrameHeader { segmentation: 1, segment_bytes: 0, ..good }, &frame[..]),
            (good, &frame[..13]),
            (good, &frame[..0]),
            (good, &[0; 70_000][..]),
        ];
        for (header, frame) in wrong {
            driver.send(header, frame);
        }
        driver.send(good, &frame);
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).expect("the good one");
        assert_eq!(&bytes[..count], b"good");
        assert_eq!(driver.machine.mmio.fault(), None);
    });
}

#[test]
fn a_buffer_without_room_for_a_header_stops_the_device_until_a_reset() {
    in_lab(|| {
        let mut driver = Driver::new(config(vec![tap("tap0")]), FULL, 0, 0);
        let small = driver.machine.room(11);
        driver.offer(small);
        driver.machine.kick(0);
        driver.machine.wait_broken();
    });
}

#[test]
fn a_tap_that_is_removed_loses_frames_and_nothing_else() {
    in_lab(|| {
        let mut driver = Driver::new(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        ip("link delete tap0");
        let (header, frame) = datagram(7000, b"lost");
        driver.send(header, &frame);
        assert!(driver.frame().is_none());
        assert_eq!(driver.machine.mmio.fault(), None);
    });
}

#[test]
fn nonsense_of_all_kinds_breaks_nothing_for_an_honest_driver() {
    in_lab(|| {
        let taps: Vec<Tap> = (0..2).map(|_| Tap::attach("tap0", true).expect("a queue")).collect();
        ip("link set tap0 up");
        let device = Net::new(config(taps)).expect("a device");
        let mut guest = TestGuest::running(Box::new(device));
        torment(&mut guest, 1, rounds(3000));
    });
}
