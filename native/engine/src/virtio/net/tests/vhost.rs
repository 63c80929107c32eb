//! The datapath of the host's kernel: the same frames without anybody here, handed back for a pause and when it breaks; and what
//! happens where there is none.

use super::lab::frames::{checksum_is_right, datagram, datagram_payload};
use super::lab::{Driver, config, in_lab, tap, vhost_descriptors, vhost_device};
use super::{BUFFER_BYTES, FULL, Net, host_socket};
use crate::virtio::FEATURE_VERSION_1;
use crate::virtio::limiter::{Limits, Rate};
use crate::virtio::net::features::MAC;
use crate::virtio::testing::{TestGuest, rounds, torment};
use std::net::UdpSocket;

/// Runs a test whose frames the kernel moves; says so and does nothing where the host's kernel cannot.
fn in_kernel_lab(test: impl FnOnce() + Send + 'static) {
    if vhost_descriptors().is_err() {
        return eprintln!("missing host capability: /dev/vhost-net");
    }
    in_lab(test);
}

fn exchange(driver: &mut Driver, socket: &UdpSocket, text: &[u8]) {
    socket.send(text).expect("sent");
    assert_eq!(datagram_payload(&driver.frame().expect("a frame").1), text);
    let (header, frame) = datagram(7000, text);
    driver.send(header, &frame);
    let mut bytes = [0; 64];
    let count = socket.recv(&mut bytes).expect("the datagram");
    assert_eq!(&bytes[..count], text);
    assert_eq!(driver.machine.mmio.fault(), None);
}

#[test]
fn frames_go_both_ways_with_and_without_features_and_interrupt_the_guest() {
    for features in [FULL, FEATURE_VERSION_1 | MAC] {
        in_kernel_lab(move || {
            let (mut driver, datapath) = Driver::over_vhost(config(vec![tap("tap0")]), features, 64, BUFFER_BYTES);
            let socket = host_socket();
            exchange(&mut driver, &socket, b"hello");
            assert_eq!((datapath.word(), datapath.why_not()), ("vhost-net", None));
            driver.machine.interrupts();
            socket.send(b"again").expect("sent");
            let mut interrupts = 0;
            driver.machine.until("an interrupt", |machine| {
                interrupts += machine.interrupts();
                interrupts > 0
            });
            assert_eq!(driver.machine.get(0x60) & 1, 1, "the guest is told why");
            let (_, frame) = driver.frame().expect("a frame");
            assert_eq!(checksum_is_right(&frame), features != FULL);
        });
    }
}

#[test]
fn a_pause_takes_the_queues_back_and_a_loaded_state_hands_them_over_again() {
    in_kernel_lab(|| {
        let (mut driver, datapath) = Driver::over_vhost(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        for round in 0..4 {
            exchange(&mut driver, &socket, b"before");
            driver.machine.quiesce();
            let state = driver.machine.mmio.save();
            socket.send(b"during").expect("sent");
            assert!(driver.any_frame().is_none(), "the kernel still works");
            if round % 2 == 1 {
                driver.machine.mmio.load(&state).expect("its own state");
            }
            driver.machine.reactor.resume();
            assert_eq!(datapath.word(), "vhost-net");
            assert_eq!(datagram_payload(&driver.frame().expect("a frame").1), b"during");
        }
        exchange(&mut driver, &socket, b"after");
    });
}

#[test]
fn a_state_goes_on_in_another_machine_with_the_kernel_and_without() {
    for in_kernel in [true, false] {
        in_kernel_lab(move || {
            let (memory, device) = vhost_device(config(vec![tap("tap0")]));
            let mut guest = TestGuest::with_memory(memory.clone(), Box::new(device));
            guest.start(FULL);
            let room = guest.room(BUFFER_BYTES);
            guest.push(0, &[room]);
            guest.kick(0);
            guest.until("the kernel to begin", |guest| guest.get(0x60) & 1 == 1);
            let mut device = Net::new(config(vec![tap("tap1")])).expect("a device");
            let datapath = device.datapath();
            if in_kernel {
                device.use_vhost(vhost_descriptors(), &memory);
            }
            let mut guest = guest.restored(Box::new(device));
            let (_, frame) = datagram(7000, b"on the way");
            let frame = guest.give(&[&[0; 12][..], &frame].concat());
            guest.request(1, &[frame]);
            assert_eq!(guest.mmio.fault(), None);
            assert_eq!(datapath.word() == "vhost-net", in_kernel);
        });
    }
}

#[test]
fn a_reset_takes_the_queues_back_and_a_new_driver_hands_them_over() {
    in_kernel_lab(|| {
        let (driver, datapath) = Driver::over_vhost(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        let mut machine = driver.machine;
        for _ in 0..3 {
            machine.until("the kernel to begin", |_| datapath.word() == "vhost-net");
            machine.set(0x70, 0);
            assert_eq!((datapath.word(), machine.get(0x60)), ("userspace", 0));
            machine.start(FULL);
            machine.kick(0);
        }
    });
}

#[test]
fn buffers_that_make_no_sense_break_the_device_until_a_reset() {
    in_kernel_lab(|| {
        let (mut driver, _) = Driver::over_vhost(config(vec![tap("tap0")]), FULL, 16, BUFFER_BYTES);
        let socket = host_socket();
        exchange(&mut driver, &socket, b"before");
        let table = driver.machine.queues[1].descriptors;
        let head = driver.machine.queues[1].size - 1;
        driver.machine.describe(table, head, u64::MAX - 4095, 64, 0, 0);
        driver.machine.offer(1, head);
        driver.machine.kick(1);
        driver.machine.wait_broken();
        driver.machine.start(FULL);
        assert_eq!(driver.machine.mmio.fault(), None);
    });
}

#[test]
fn limits_keep_the_frames_here() {
    in_lab(|| {
        let mut given = config(vec![tap("tap0")]);
        let rate = Some(Rate { per_second: 1000, burst: 1000 });
        given.receive_limits = Limits { bytes: None, operations: rate };
        let (mut driver, datapath) = Driver::over_vhost(given, FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        exchange(&mut driver, &socket, b"hello");
        assert_eq!((datapath.word(), datapath.why_not().as_deref()), ("userspace", Some("the kernel knows no limits")));
    });
}

#[test]
fn a_kernel_without_it_leaves_the_frames_here_and_the_device_says_so() {
    in_lab(|| {
        if vhost_descriptors().is_ok() {
            return;
        }
        let (mut driver, datapath) = Driver::over_vhost(config(vec![tap("tap0")]), FULL, 64, BUFFER_BYTES);
        let socket = host_socket();
        exchange(&mut driver, &socket, b"hello");
        assert_eq!(datapath.word(), "userspace");
        assert!(datapath.why_not().is_some_and(|why| why.starts_with("/dev/vhost-net cannot be opened: ")));
    });
}

#[test]
fn nonsense_of_all_kinds_harms_only_the_guest_that_makes_it() {
    in_kernel_lab(|| {
        let (memory, device) = vhost_device(config(vec![tap("tap0")]));
        let mut guest = TestGuest::with_memory(memory, Box::new(device));
        guest.start(FULL);
        torment(&mut guest, 2, rounds(2000));
    });
}
