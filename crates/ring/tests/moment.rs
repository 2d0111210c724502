//! From when on a mark rings an engine that is away.

use std::sync::atomic::AtomicU64;

use scoutline_ring::Moment;

#[test]
fn one_ring_is_enough_for_a_turn() {
    let word = AtomicU64::new(0);
    let moment = Moment(&word);
    assert!(!moment.claim(0, || unreachable!("there is none")));
    moment.publish(100);
    assert!(!moment.claim(0, || 99));
    assert!(!moment.claim(50, || 149));
    assert!(moment.claim(50, || 150));
    assert!(!moment.claim(0, || 1_000));
    moment.publish(u64::MAX);
    assert!(!moment.claim(u64::MAX, || u64::MAX - 1), "a program may write anything");
}
