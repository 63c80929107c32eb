//! The device as a driver sees it: where the image lies, requests that make sense and others, and a restore.

use super::Pmem;
use crate::memory::Image;
use crate::virtio::testing::{TestGuest, rounds, torment};
use std::fs::File;

fn image(bytes: u64) -> Image {
    let file: File = tempfile::tempfile().expect("a file");
    file.set_len(bytes).expect("its length");
    Image::map_all(&[file], 64 << 20).expect("an image").remove(0)
}

fn device(bytes: u64) -> Box<Pmem> {
    Box::new(Pmem::new(&image(bytes)))
}

#[test]
fn the_configuration_says_where_the_image_lies() {
    let guest = TestGuest::new(device(3 << 20));
    assert_eq!(u64::from_le_bytes(guest.config(0)), 4 << 30);
    assert_eq!(u64::from_le_bytes(guest.config(8)), 4 << 20);
    assert_eq!(guest.config::<4>(16), [0; 4]);
}

#[test]
fn a_flush_is_done_and_anything_else_fails() {
    let mut guest = TestGuest::running(device(4096));
    for (request, answer) in [(&[0, 0, 0, 0][..], 0), (&[1, 0, 0, 0], u32::MAX), (&[0, 0], u32::MAX)] {
        let request = guest.give(request);
        let room = guest.room(4);
        assert_eq!(guest.request(0, &[request, room]), 4);
        assert_eq!(guest.bytes(room), answer.to_le_bytes());
    }
}

#[test]
fn a_request_without_room_for_an_answer_breaks_the_device() {
    let mut guest = TestGuest::running(device(4096));
    let request = guest.give(&[0; 4]);
    guest.push(0, &[request]);
    guest.kick(0);
    assert!(guest.wait_broken().contains("no room for an answer"));
}

#[test]
fn a_state_is_loaded_with_an_image_of_the_same_length_only() {
    let mut guest = TestGuest::running(device(4096)).restored(device(8192));
    let request = guest.give(&[0; 4]);
    let room = guest.room(4);
    assert_eq!(guest.request(0, &[request, room]), 4);
    guest.quiesce();
    let state = guest.mmio.save();
    let other = TestGuest::new(device(3 << 20));
    other.quiesce();
    assert!(other.mmio.load(&state).is_err());
}

#[test]
fn nonsense_of_all_kinds_breaks_nothing_for_an_honest_driver() {
    torment(&mut TestGuest::running(device(4096)), 3, rounds(2000));
}
