//! The two-level bitmap by itself; what several threads make of it: `loom.rs`.

use std::sync::atomic::AtomicU64;

use scoutline_ring::{Bitmap, bitmap_words, summary_words};

fn memory(bits: usize) -> (Vec<AtomicU64>, Vec<AtomicU64>) {
    let zeros = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
    (zeros(summary_words(bits)), zeros(bitmap_words(bits)))
}

#[test]
fn drain_takes_each_mark_once() {
    let (summary, words) = memory(8192);
    let map = Bitmap::new(&summary, &words);
    for index in [0, 63, 64, 4095, 4096, 8191, 64] {
        map.set(index);
    }
    map.set(8192); // out of range: ignored
    let mut seen = Vec::new();
    map.drain(|index| seen.push(index));
    assert_eq!(seen, [0, 63, 64, 4095, 4096, 8191]);
    assert!(map.is_empty());
    map.drain(|_| panic!("nothing is left"));
}

#[test]
fn visit_goes_round_and_keeps_marks() {
    let (summary, words) = memory(256);
    let map = Bitmap::new(&summary, &words);
    for index in [3, 70, 130] {
        map.set(index);
    }
    let mut seen = Vec::new();
    map.visit(71, |index| {
        seen.push(index);
        true
    });
    assert_eq!(seen, [130, 3, 70]);
    assert!(map.clear(70) && !map.clear(70));
    seen.clear();
    map.visit(0, |index| {
        seen.push(index);
        false
    });
    assert_eq!(seen, [3]);
}
