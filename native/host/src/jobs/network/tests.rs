//! Ways between namespaces of the test's own: nothing here is made in the network of the host.

use super::*;
use fluxvm_sys::namespaces::UnshareFlags;
use rustix::mount::{MountPropagationFlags, mount_change};
use std::path::Path;

const GROUP: u32 = 0x466c_7578;
const LABELLED: u64 = 1;
const UP: u64 = 2;

/// Runs a test in a network and mount namespace of its own, with a directory for pins.
fn in_own_host(test: impl FnOnce(&Path) + Send + 'static) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    place::on_own_thread(move || {
        namespaces::leave(UnshareFlags::NEWNET | UnshareFlags::NEWNS)?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        test(&path);
        Ok(())
    })
    .unwrap();
    // Where pins are is a mount in the test's namespace, and nothing that could be removed there.
    directory.close().unwrap();
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn pin_in(directory: &Path) -> CString {
    c(directory.join("netns/eph-a").to_str().unwrap())
}

fn way(directory: &Path, bridge: &str, label: &str) -> Way {
    Way {
        namespace: pin_in(directory),
        link: c("vha"),
        inner: c("vna"),
        bridge: c(bridge),
        tap: c(if bridge.is_empty() { "" } else { "tapa" }),
        label: c(label),
        group: GROUP,
        host_address: Ipv4Addr::new(169, 254, 1, 17).to_bits(),
        inner_address: Ipv4Addr::new(169, 254, 1, 18).to_bits(),
        guest_address: Ipv4Addr::new(169, 254, 1, 19).to_bits(),
        bridge_address: Ipv4Addr::new(169, 254, 0, 1).to_bits(),
        prefix_length: 28,
        owner: 4711,
        queues: 1,
    }
}

fn inside<T: Send + 'static>(directory: &Path, look: impl FnOnce(&mut Netlink) -> Result<T> + Send + 'static) -> T {
    place::inside(&pin_in(directory), || look(&mut Netlink::open()?)).unwrap()
}

#[test]
fn a_way_is_made_whole_and_down_and_removed_without_a_trace() {
    in_own_host(|directory| {
        let before = Netlink::open().unwrap().link("vha").unwrap();
        assert!(before.is_none());
        let index = make(way(directory, "bra", "fluxvm:one")).unwrap();

        assert_eq!(facts(c"vha", c"fluxvm:one"), Ok([u64::from(index), u64::from(GROUP), LABELLED, 0]));
        assert!(has_address(Ipv4Addr::new(169, 254, 1, 17).to_bits()).unwrap());
        for name in ["vna", "bra", "tapa", "lo"] {
            assert!(inside(directory, move |netlink| netlink.link(name)).is_some_and(|link| link.is_up), "{name}");
        }
        assert!(inside(directory, |netlink| netlink.link("vha")).is_none());
        assert!(inside(directory, |netlink| netlink.has_address(Ipv4Addr::new(169, 254, 0, 1))));
        assert!(!inside(directory, |netlink| netlink.has_address(Ipv4Addr::new(169, 254, 1, 19))));

        raise(c"vha", c"fluxvm:one").unwrap();
        assert_eq!(facts(c"vha", c"").unwrap()[2], UP);
        assert_eq!(remove(&pin_in(directory), c"vha", c"fluxvm:one", GROUP), Ok(1));
        assert_eq!(remove(&pin_in(directory), c"vha", c"fluxvm:one", GROUP), Ok(0));
        assert!(Netlink::open().unwrap().link("vha").unwrap().is_none());
        assert!(!directory.join("netns/eph-a").exists());
    });
}

#[test]
fn a_process_has_its_address_in_the_namespace_itself() {
    in_own_host(|directory| {
        make(way(directory, "", "fluxvm:one")).unwrap();

        assert!(inside(directory, |netlink| netlink.has_address(Ipv4Addr::new(169, 254, 1, 19))));
        assert!(inside(directory, |netlink| netlink.link("tapa")).is_none());
        remove(&pin_in(directory), c"vha", c"fluxvm:one", GROUP).unwrap();
    });
}

#[test]
fn what_is_of_the_same_sandbox_gives_way_and_what_is_not_stays() {
    in_own_host(|directory| {
        make(way(directory, "bra", "fluxvm:one")).unwrap();
        make(way(directory, "bra", "fluxvm:one")).unwrap();

        assert_eq!(make(way(directory, "bra", "fluxvm:other")), Err(Errno::EXIST));
        assert_eq!(remove(&pin_in(directory), c"", c"fluxvm:other", GROUP), Err(Errno::EXIST));
        assert_eq!(raise(c"vha", c"fluxvm:other"), Err(Errno::EXIST));
        assert_eq!(facts(c"vha", c"fluxvm:one").unwrap()[2], LABELLED);
        assert_eq!(raise(c"vhb", c""), Err(Errno::NODEV));
        remove(&pin_in(directory), c"vha", c"fluxvm:one", GROUP).unwrap();
    });
}

#[test]
fn a_link_without_a_label_is_removed_only_when_it_has_our_group() {
    in_own_host(|directory| {
        let mut here = Netlink::open().unwrap();
        here.make_bridge(&NewLink { name: "vha", group: 0, mac: None }).unwrap();
        assert_eq!(remove(c"", c"vha", c"fluxvm:one", GROUP), Err(Errno::EXIST));
        // What is there already keeps a way from being made, and nothing else of it is left.
        assert_eq!(make(way(directory, "bra", "fluxvm:one")), Err(Errno::EXIST));
        assert!(!directory.join("netns/eph-a").exists());

        set_group(c"vha", GROUP).unwrap();
        assert_eq!(remove(c"", c"vha", c"fluxvm:one", GROUP), Ok(1));
    });
}

#[test]
fn a_pin_that_was_cut_short_is_removed() {
    in_own_host(|directory| {
        let pin = pin_in(directory);
        fs::create_dir(directory.join("netns")).unwrap();
        fs::write(directory.join("netns/eph-a"), "").unwrap();

        assert_eq!(remove(&pin, c"", c"fluxvm:one", GROUP), Ok(0));
        assert!(!directory.join("netns/eph-a").exists());
    });
}

#[test]
fn a_tap_joins_a_bridge_and_is_opened_queue_by_queue() {
    in_own_host(|_| {
        let mut here = Netlink::open().unwrap();
        here.make_bridge(&NewLink { name: "vmbr7", group: 0, mac: None }).unwrap();
        let new = Beside { link: c("ephb"), label: c("fluxvm:two"), group: GROUP, lower: c("vmbr7") };
        make_tap(&new, NO_OWNER, 2).unwrap();

        assert_eq!(facts(c"ephb", c"fluxvm:two").unwrap()[1..], [u64::from(GROUP), LABELLED, 2]);
        assert_eq!(facts(c"vmbr7", c"").unwrap()[3], 1);
        let queues = [(); 2].map(|()| open_tap(c"", c"ephb", true).unwrap());
        assert_eq!(open_tap(c"", c"ephc", false), Err(Errno::NODEV));
        for queue in queues {
            // SAFETY: each descriptor is this test's own.
            #[allow(unsafe_code, reason = "descriptors cross the boundary as numbers")]
            drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(queue) });
        }
        assert_eq!(remove(c"", c"ephb", c"fluxvm:two", GROUP), Ok(1));
        let elsewhere = Beside { lower: c("vmbr8"), ..new };
        assert_eq!(make_tap(&elsewhere, NO_OWNER, 1), Err(Errno::NODEV));
        assert!(here.link("ephb").unwrap().is_none());
    });
}

#[test]
fn a_macvtap_lies_on_a_link_with_the_address_of_its_guest() {
    in_own_host(|_| {
        let mut here = Netlink::open().unwrap();
        here.make_pair(&NewLink { name: "up0", group: 0, mac: None }, &NewLink { name: "up1", group: 0, mac: None })
            .unwrap();
        let new = Beside { link: c("ephm"), label: c("fluxvm:two"), group: GROUP, lower: c("up0") };
        let made = make_macvtap(&new, 0x02_fc_00_00_00_07);
        if made == Err(Errno::OPNOTSUPP) {
            // A kernel without macvtap refuses it before anything is there.
            assert!(here.link("ephm").unwrap().is_none());
            return;
        }
        let [index, _, state, kind] = facts(c"ephm", c"fluxvm:two").unwrap();
        assert_eq!((u64::from(made.unwrap()), state, kind), (index, LABELLED, 3));
        assert_eq!(remove(c"", c"ephm", c"fluxvm:two", GROUP), Ok(1));
    });
}
