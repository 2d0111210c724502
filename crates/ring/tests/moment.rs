//! From when on a mark rings an engine that is away.

use std::sync::atomic::AtomicU64;

use scoutline_ring::Moment;

#[test]
fn one_ring_is_enough_for_a_turn() {
    let word = AtomicU64::new(0);
    let moment = Moment(&word);
    assert_eq!(moment.look(), None);
    moment.publish(100);
    assert_eq!(moment.look(), Some(100));
    assert!(moment.claim(100));
    assert_eq!(moment.look(), None);
    assert!(!moment.claim(100));
}

#[test]
fn the_moment_of_another_turn_is_nobodys() {
    let word = AtomicU64::new(100);
    let moment = Moment(&word);
    let seen = moment.look().unwrap();
    moment.publish(200);
    assert!(!moment.claim(seen));
    assert_eq!(moment.look(), Some(200));
}
