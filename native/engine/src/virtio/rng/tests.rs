//! The entropy device as its driver sees it.

use super::Rng;
use crate::virtio::limiter::{Limits, Rate};
use crate::virtio::testing::{TestGuest, rounds, torment};
use std::time::{Duration, Instant};

fn rng() -> Box<Rng> {
    Box::new(Rng::new(Limits::default()).expect("a device"))
}

#[test]
fn every_request_gets_other_bytes() {
    let mut guest = TestGuest::running(rng());
    let (first, second) = (guest.room(64), guest.room(64));
    assert_eq!(guest.request(0, &[first]), 64);
    assert_eq!(guest.request(0, &[second]), 64);
    assert_ne!(guest.bytes(first), vec![0; 64]);
    assert_ne!(guest.bytes(first), guest.bytes(second));
}

#[test]
fn a_large_request_gets_a_part() {
    let mut guest = TestGuest::running(rng());
    let room = guest.room(1 << 20);
    assert_eq!(guest.request(0, &[room]), 4096);
    assert_eq!(guest.bytes(room)[4096..], vec![0; (1 << 20) - 4096]);
}

#[test]
fn requests_over_the_limit_wait_and_are_served() {
    let rate = Rate { per_second: 40_000, burst: 4096 };
    let device = Rng::new(Limits { bytes: Some(rate), operations: None }).expect("a device");
    let mut guest = TestGuest::running(Box::new(device));
    let room = guest.room(4096);
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(guest.request(0, &[room]), 4096);
    }
    assert!(began.elapsed() > Duration::from_millis(190), "two of three had to wait 102 ms each");
}

#[test]
fn data_for_the_device_is_a_fault_of_the_driver() {
    let mut guest = TestGuest::running(rng());
    let data = guest.give(b"entropy for you");
    guest.push(0, &[data]);
    guest.kick(0);
    assert_eq!(guest.wait_broken(), "driver: a request for randomness carries data");
}

#[test]
fn it_goes_on_after_a_restore() {
    let mut guest = TestGuest::running(rng()).restored(rng());
    let room = guest.room(32);
    assert_eq!(guest.request(0, &[room]), 32);
}

#[test]
fn a_hostile_driver_gets_nowhere() {
    let mut guest = TestGuest::running(rng());
    torment(&mut guest, 11, rounds(1500));
    let room = guest.room(32);
    assert_eq!(guest.request(0, &[room]), 32);
}
