//! What is seen of a ring's queue, whatever stands in it. The ring is a file in memory: both are mapped alike.
#![allow(unsafe_code)] // makes that file

#[path = "../src/rings/queue.rs"]
#[allow(dead_code)]
mod queue;

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;

use queue::{Answer, ENTRY_LEN, OFF_ENTRIES, OFF_QUEUE, Said, Shape, View};

const SHAPE: Shape = Shape { count: 4, head: 0, tail: 4, array: Some(8), long: false };
const ARRAY: usize = 8;

struct Ring {
    file: File,
    view: View,
}

impl Ring {
    /// The descriptors of its entries are 100, 101, …
    fn new(shape: Shape) -> Ring {
        // SAFETY: a terminated name; a fresh descriptor of ours.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(OFF_ENTRIES as u64 + 4096).unwrap();
        let view = View::map(file.as_raw_fd(), shape).expect("a mapping");
        let ring = Ring { file, view };
        let stride = if shape.long { 2 * ENTRY_LEN } else { ENTRY_LEN };
        for index in 0..shape.count {
            ring.set_entry(index as usize * stride + 4, index + 100);
        }
        ring
    }

    fn set(&self, offset: usize, value: u32) {
        self.file.write_all_at(&value.to_ne_bytes(), OFF_QUEUE as u64 + offset as u64).unwrap();
    }

    fn set_entry(&self, offset: usize, value: u32) {
        self.file.write_all_at(&value.to_ne_bytes(), OFF_ENTRIES as u64 + offset as u64).unwrap();
    }

    fn set_array(&self, indices: [u32; 4]) {
        for (place, index) in indices.into_iter().enumerate() {
            self.set(ARRAY + 4 * place, index);
        }
    }

    /// The descriptors of what waits.
    fn waiting(&self) -> Vec<c_int> {
        let mut found = Vec::new();
        self.view.each_waiting(u32::MAX, |said| {
            found.push(said.fd);
            None
        });
        found
    }
}

#[test]
fn what_waits_is_seen_in_the_order_of_the_array() {
    let ring = Ring::new(SHAPE);
    assert_eq!(ring.waiting(), []);
    ring.set_array([2, 0, 3, 1]);
    ring.set(0, u32::MAX); // the counters wrap
    ring.set(4, 2);
    assert_eq!(ring.waiting(), [101, 102, 100]);
}

#[test]
fn without_an_array_entries_stand_in_order_and_may_be_long() {
    for long in [false, true] {
        let ring = Ring::new(Shape { array: None, long, ..SHAPE });
        ring.set(0, 3);
        ring.set(4, 5);
        assert_eq!(ring.waiting(), [103, 100]);
    }
}

#[test]
fn words_that_cannot_be_lead_nowhere() {
    let ring = Ring::new(SHAPE);
    ring.set(4, u32::MAX);
    ring.set_array([4, u32::MAX, 1, 1 << 30]);
    assert_eq!(ring.waiting(), [101]);
    ring.set(0, 7);
    ring.set(4, 6); // behind the head
    assert_eq!(ring.waiting(), [101]);
}

/// What a call does not submit may still change.
#[test]
fn no_more_is_looked_at_than_is_submitted() {
    let ring = Ring::new(Shape { array: None, ..SHAPE });
    ring.set(4, 3);
    for (most, seen) in [(0, 0), (2, 2), (3, 3), (9, 3)] {
        let mut found = 0;
        let told = ring.view.each_waiting(most, |_| {
            found += 1;
            None
        });
        assert_eq!([told, found], [seen; 2]);
    }
}

#[test]
fn a_shape_that_cannot_be_is_none() {
    let ring = Ring::new(SHAPE);
    assert!(View::map(ring.file.as_raw_fd(), Shape { count: 0, ..SHAPE }).is_none());
    assert!(View::map(ring.file.as_raw_fd(), Shape { count: 3, ..SHAPE }).is_none());
}

#[test]
fn an_entry_is_read_as_linux_lays_it_out() {
    let ring = Ring::new(Shape { array: None, ..SHAPE });
    for offset in (0..ENTRY_LEN).step_by(4) {
        ring.set_entry(offset, offset as u32 | 0x0100);
    }
    // IOSQE_FIXED_FILE, IOSQE_BUFFER_SELECT and IOSQE_ASYNC, and flags of its own.
    ring.set_entry(0, 0x2233_3100);
    ring.set(4, 1);
    let mut found = Vec::new();
    ring.view.each_waiting(u32::MAX, |said| {
        found.push(said);
        Some(Answer::Result(-libc::EEXIST))
    });
    let said = Said {
        operation: 0,
        flags: 0x31,
        own_flags: 0x2233,
        fd: 0x104,
        offset: 0x010c_0000_0108,
        address: 0x0114_0000_0110,
        len: 0x118,
        operation_flags: 0x11c,
        user_data: 0x0124_0000_0120,
        other: 0x12c,
    };
    assert_eq!(found, [said]);
    // What is done says its result, and what its operation alone may have is not kept.
    found.clear();
    ring.view.each_waiting(u32::MAX, |said| {
        found.push(said);
        None
    });
    let answer = Said {
        flags: 1 << 4,
        own_flags: 0,
        fd: -1,
        len: (-libc::EEXIST).cast_unsigned(),
        operation_flags: 1,
        ..said
    };
    assert_eq!(found, [answer]);
    // Or nothing, which is not told.
    ring.view.each_waiting(u32::MAX, |_| Some(Answer::Nothing));
    found.clear();
    ring.view.each_waiting(u32::MAX, |said| {
        found.push(said);
        None
    });
    let nothing = Said { flags: 1 << 4 | 1 << 6, len: 0, operation_flags: 0, ..answer };
    assert_eq!(found, [nothing]);
    // Or it goes elsewhere.
    let place: *const std::ffi::c_void = std::ptr::without_provenance(0x1122_3344_5566_7788);
    ring.view.each_waiting(u32::MAX, |_| Some(Answer::To(77, place, 0x99)));
    found.clear();
    ring.view.each_waiting(u32::MAX, |said| {
        found.push(said);
        None
    });
    let redirected = Said { fd: 77, offset: 0x99, address: 0x1122_3344_5566_7788, ..nothing };
    assert_eq!(found, [redirected]);
}
