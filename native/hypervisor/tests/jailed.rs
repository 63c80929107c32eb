//! The program in its jail: a machine lives there as it does outside, and what is asked for by paths of the host is found.

#[allow(dead_code, reason = "other tests use the rest")]
mod lab;

use fluxvm_sys::namespaces::own_network;
use lab::{Driven, Hypervisor, Lab, OK, PAUSED, RUNNING, can_jail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_guest_runs_and_ends_in_the_jail() {
    if !can_jail() {
        return;
    }
    for (letter, status) in [('h', 0), ('r', 20), ('f', 21)] {
        let lab = Lab::new();
        let mut config = lab.jailed_config(letter);
        // It is only put into memory.
        config["initrd"] = json!(lab.path("disk"));
        let mut hypervisor = Hypervisor::boot(&lab, &config);
        let (ended, said) = hypervisor.ended();
        assert_eq!(ended.code(), Some(status), "{letter}: {said}");
        assert_eq!(lab.left(), ["volume/layer"], "{letter}");
    }
}

#[test]
fn a_request_to_end_leaves_no_socket() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('i'));
    hypervisor.wait_running();
    assert!(UnixStream::connect(lab.path("sockets/vsock")).is_ok());
    kill_process(Pid::from_child(&hypervisor.process), Signal::TERM).unwrap();
    let (ended, said) = hypervisor.ended();
    assert!(ended.success(), "{ended}: {said}");
    assert_eq!(lab.left(), ["volume/layer"]);
}

#[test]
fn the_guest_writes_to_its_layer_and_finds_it_again() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let image = fs::read(lab.path("disk")).unwrap();
    let mut config = lab.jailed_config('d');
    config["rootfs_bytes"] = json!(4 << 20);
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(3, b'x');
    guest.write_disk(8000, b'y');
    assert_eq!((guest.read_disk(3), guest.read_disk(2), guest.read_disk(8000)), (b'x', b'1', b'y'));
    let mut hypervisor = hypervisor.after_power_cut();
    let mut guest = Driven::new(&lab);
    assert_eq!((guest.read_disk(3), guest.read_disk(2), guest.read_disk(8000)), (b'x', b'1', b'y'));
    assert_eq!(guest.read_disk(4000), 0, "beyond the image");
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
    assert!(image == fs::read(lab.path("disk")).unwrap(), "the image was written");
}

#[test]
fn what_an_image_has_lost_under_its_machine_cannot_be_read_and_the_rest_can() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut hypervisor = Hypervisor::boot(&lab, &lab.jailed_config('d'));
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    guest.write_disk(1000, b'x');
    let image = fs::File::options().write(true).open(lab.path("disk")).unwrap();
    image.set_len(4096).unwrap();
    assert_eq!([1, 7, 8, 1500].map(|sector| guest.try_read_disk(sector)), [Some(b'1'), Some(b'1'), None, None]);
    assert_eq!(guest.read_disk(1000), b'x', "what it wrote itself");
    // A part of a cluster that can no longer be read.
    assert!(!guest.try_write_disk(1501, b'y'));
    image.set_len(lab::DISK_BYTES).unwrap();
    assert_eq!(guest.read_disk(1500), 0);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn disks_are_found_in_order_and_written_where_that_is_said() {
    if !can_jail() {
        return;
    }
    const READ_ONLY: u32 = 1 << 5;
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, sectors: usize| {
        fs::write(folder.path().join(name), vec![0; sectors * 512]).unwrap();
        json!(folder.path().join(name))
    };
    let mut config = lab.jailed_config('d');
    config["config_disk"] = file("config", 3);
    config["data_disks"] = json!([{ "path": file("seed", 5), "read_only": true }, { "path": file("data", 7) }]);
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    let found = [0, 1, 2, 3].map(|window| {
        let base = 0xFEB0_0000 + 0x1000 * window;
        (guest.read(base + 8), guest.read(base + 0x100), guest.read(base + 0x10) & READ_ONLY != 0)
    });
    assert_eq!(found, [(2, 2048, false), (2, 3, true), (2, 5, true), (2, 7, false)]);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn a_disk_does_as_many_operations_as_it_may() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut config = lab.jailed_config('d');
    config["blk_ops_limit"] = json!(2);
    let hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    let began = Instant::now();
    for sector in 0..6 {
        assert_eq!(guest.read_disk(sector), b'1');
    }
    assert!(began.elapsed() > Duration::from_millis(1800), "four of six had to wait half a second each");
    assert_eq!(hypervisor.act("shutdown"), OK);
}

#[test]
fn images_outside_of_the_jail_are_memory_of_the_guest() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut config = lab.jailed_config('d');
    config["pmem"] = json!([lab.path("disk"), lab.path("kernel")]);
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let mut guest = Driven::new(&lab);
    // Behind the disk: a device of this kind, at 4 GiB, in whole large pages; and another behind it.
    let second = 0xFEB0_1000;
    assert_eq!(guest.read(second + 8), 27);
    assert_eq!([0x100, 0x104, 0x108].map(|register| guest.read(second + register)), [0, 1, 2 << 20]);
    assert_eq!((guest.read(second + 0x1008), guest.read(second + 0x1104)), (27, 1));
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
}

#[test]
fn a_virtio_console_is_there_where_it_is_asked_for_and_takes_one_program_at_a_time() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let mut config = lab.jailed_config('d');
    config["hvc_uds"] = json!(lab.path("sockets/hvc"));
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let guest = Driven::new(&lab);
    let mut at = 0x7_0000;
    let mut tell = |what: u32, register: u32, value: u32| {
        // Behind disk and vsock.
        for (offset, word) in [(4, 0xFEB0_2000 + register), (8, value), (0, what)] {
            guest.put(at + offset, &word.to_le_bytes());
        }
        hypervisor.wait("answer of the guest", || guest.word(at) == 0x8000_0000);
        at += 16;
        guest.word(at - 4)
    };
    assert_eq!(tell(2, 8, 0), 3, "a console");
    for (register, value) in [(0x70, 0), (0x70, 3), (0x24, 1), (0x20, 1), (0x24, 0), (0x20, 0), (0x70, 11)] {
        tell(1, register, value);
    }
    for queue in [0, 1] {
        let rings = 0x6_8000 + queue * 0x3000;
        for (register, value) in
            [(0x30, queue), (0x38, 8), (0x80, rings), (0x90, rings + 0x1000), (0xA0, rings + 0x2000), (0x44, 1)]
        {
            tell(1, register, value);
        }
    }
    tell(1, 0x70, 15);
    let mut first = UnixStream::connect(lab.path("sockets/hvc")).unwrap();
    let mut second = UnixStream::connect(lab.path("sockets/hvc")).unwrap();
    for client in [&first, &second] {
        client.set_read_timeout(Some(lab::PATIENCE)).unwrap();
    }
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "somebody is there already");
    // One buffer in the queue of what is printed.
    guest.put(0x6_F000, b"login: ");
    guest.put(0x6_B000, &[0x6_F000_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat());
    guest.put(0x6_C002, &1_u16.to_le_bytes());
    tell(1, 0x50, 1);
    let mut text = [0; 7];
    first.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"login: ");
    assert_eq!(fs::metadata(lab.path("sockets/hvc")).unwrap().permissions().mode() & 0o777, 0o600);
    let snapshot = lab.path("volume/snapshot");
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
    assert_eq!(hypervisor.act("shutdown"), OK);
    assert!(hypervisor.ended().0.success());
    assert!(!lab.left().iter().any(|name| name.starts_with("sockets/")), "{:?}", lab.left());

    // Without it nothing is there, and a place that is taken is left alone.
    fs::remove_file(lab.path("volume/layer")).unwrap();
    fs::write(lab.path("sockets/hvc"), "somebody's").unwrap();
    let mut config = lab.jailed_config('d');
    config["hvc_uds"] = json!(lab.path("sockets/hvc"));
    let (ended, said) = Hypervisor::boot(&lab, &config).ended();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.contains("hvc_uds: ") && said.contains("in use"), "{said}");
    assert_eq!(fs::read(lab.path("sockets/hvc")).unwrap(), b"somebody's");
}

#[test]
fn a_network_card_has_as_many_queues_as_its_tap_is_given() {
    if !can_jail() {
        return;
    }
    let test = || {
        if own_network().is_err() {
            return eprintln!("missing host capability: network namespaces");
        }
        let made = Command::new("ip").args("tuntap add dev tap0 mode tap multi_queue vnet_hdr".split(' ')).status();
        if !made.is_ok_and(|status| status.success()) {
            return eprintln!("missing host capability: tap devices with several queues");
        }
        const SEVERAL: u32 = 1 << 22 | 1 << 17;
        for queues in [3, 8] {
            let lab = Lab::new();
            let mut config = lab.jailed_config('d');
            config["tap"] = json!("tap0");
            config["tap_queues"] = json!(queues);
            let mut hypervisor = Hypervisor::boot(&lab, &config);
            hypervisor.wait_running();
            let mut guest = Driven::new(&lab);
            // Behind the disk: a network card, with several queues and a queue to choose how many are used.
            let card = 0xFEB0_1000;
            assert_eq!(guest.read(card + 8), 1);
            assert_eq!(guest.read(card + 0x10) & SEVERAL, SEVERAL);
            assert_eq!(guest.read(card + 0x108) & 0xFFFF, queues);
            assert!(hypervisor.act("metrics").contains(r#""net_datapath":"userspace""#));
            assert_eq!(hypervisor.act("shutdown"), OK);
            assert!(hypervisor.ended().0.success());
        }
        let lab = Lab::new();
        let mut config = lab.jailed_config('d');
        config["tap"] = json!("tap0");
        config["tap_queues"] = json!(2);
        config["net_pps_limit"] = json!(100);
        let hypervisor = Hypervisor::boot(&lab, &config);
        hypervisor.wait_running();
        assert!(hypervisor.act("metrics").contains(r#""net_datapath_reason":"the kernel knows no limits""#));
        drop(hypervisor);
        let lab = Lab::new();
        let mut config = lab.jailed_config('d');
        config["tap"] = json!("tap0");
        let (ended, said) = Hypervisor::boot(&lab, &config).ended();
        assert_eq!(ended.code(), Some(1), "{said}");
        assert!(said.contains("tap: it is no tap device, or was made with several queues"), "{said}");
    };
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn snapshots_are_taken_and_used_in_place_and_at_the_start() {
    if !can_jail() {
        return;
    }
    let lab = Lab::new();
    let config = lab.jailed_config('m');
    let snapshot = lab.path("volume/snapshot");
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    let guest = Driven::new(&lab);
    guest.put(0x5_0020, b"a");
    hypervisor.wait_printed("a");
    assert_eq!(hypervisor.act_at("snapshot_save", &snapshot), OK);
    let files = ["", ".mem", ".vmstate", ".rootfs"].map(|end| lab.path(&format!("volume/snapshot{end}")));
    let contents = || files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>();
    let before = contents();
    guest.put(0x5_0020, b"b");
    hypervisor.wait_printed("ab");
    for round in 1..4 {
        assert_eq!(hypervisor.act_at("snapshot_restore", &snapshot), OK);
        // It had printed "a" when it was saved, and so does not again.
        assert_eq!(hypervisor.act("pause"), PAUSED, "{round}");
        assert_eq!(hypervisor.act("resume"), RUNNING, "{round}");
    }
    assert_eq!(hypervisor.printed(), "ab");
    for outside in ["/etc/passwd", "/vm/snapshot", lab.path("volume/../disk").to_str().unwrap()] {
        assert!(hypervisor.act_at("snapshot_restore", outside.as_ref()).contains("lies neither in"), "{outside}");
    }
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
    assert!(before == contents(), "the snapshot was written");

    // As a new process, whose memory is another file and whose layer is gone.
    fs::remove_file(lab.path("volume/layer")).unwrap();
    fs::remove_file(lab.path("console")).unwrap();
    let mut config = lab.jailed_config('m');
    config["restore"] = json!(snapshot);
    let mut hypervisor = Hypervisor::boot(&lab, &config);
    hypervisor.wait_running();
    assert_eq!(hypervisor.act_at("snapshot_save", &lab.path("volume/second")), OK);
    let letter = fs::read(lab.path("volume/second.mem")).unwrap()[0x5_0020];
    assert_eq!((hypervisor.printed().as_str(), letter), ("", b'a'));
    assert_eq!(hypervisor.act("shutdown"), OK);
    hypervisor.ended();
    assert!(before == contents(), "the snapshot was written");
}
