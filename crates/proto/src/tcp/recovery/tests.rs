// Lists of ranges of sequence numbers, often of one.
#![allow(clippy::single_range_in_vec_init)]

use super::*;

const SEGMENT: u32 = 1000;
const RTT: Duration = Duration::from_millis(100);
const TIMES: Times = Times { least: RTT, smoothed: RTT, echo_age: None };

fn ms(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn reno() -> Recovery {
    Recovery::default()
}

/// With SACK, and so many segments outstanding that were sent at 1 ms.
fn selective(segments: u64) -> Recovery {
    let mut recovery = Recovery::default();
    recovery.set_selective();
    recovery.on_sent(1..1 + segments * 1_000, ms(1));
    recovery
}

/// Blocks come; what was found lost is dealt with as the connection does.
fn sack(recovery: &mut Recovery, blocks: &[Range<u64>], una: u64, max: u64, now: Time) -> Option<Time> {
    let mut delivered = Delivered::default();
    for block in blocks {
        recovery.on_block(block.clone(), &mut delivered);
    }
    recovery.advance(una, &mut delivered);
    let (_, again_at) = recovery.detect(&delivered, una, SEGMENT, &TIMES, now);
    if recovery.should_enter() {
        recovery.enter(una, max);
    }
    recovery.reduce(delivered.units, 7_000, SEGMENT, true);
    again_at
}

#[test]
fn third_duplicate_enters_and_head_is_sent_once_per_partial_acknowledgment() {
    let mut recovery = reno();
    let (una, max) = (1, 10_001);
    assert!(!recovery.on_duplicate(una, max, SEGMENT, true));
    assert_eq!(recovery.in_flight(una, max, SEGMENT), 9_000, "limited transmit");
    assert!(!recovery.on_duplicate(una, max, SEGMENT, true));
    assert!(recovery.on_duplicate(una, max, SEGMENT, true));
    recovery.enter(una, max);
    assert_eq!(recovery.next_lost(una, max, SEGMENT, 9_999), Some(1..1_001));
    recovery.on_retransmitted(1..1_001, Time::ZERO, 0);
    assert_eq!(recovery.next_lost(una, max, SEGMENT, 9_999), None);
    assert_eq!(recovery.on_acknowledged(3_001, 3_000, SEGMENT), Progress::Partial);
    assert_eq!(recovery.next_lost(3_001, max, SEGMENT, 9_999), Some(3_001..4_001));
    assert_eq!(recovery.on_acknowledged(10_001, 7_000, SEGMENT), Progress::Recovered);
    assert!(recovery.is_quiet());
}

#[test]
fn few_segments_need_fewer_duplicates_when_nothing_more_comes() {
    let mut recovery = reno();
    assert!(!recovery.on_duplicate(1, 2_001, SEGMENT, true));
    let mut recovery = reno();
    assert!(recovery.on_duplicate(1, 2_001, SEGMENT, false), "two segments: one duplicate");
}

#[test]
fn sack_finds_every_hole_and_counts_the_pipe() {
    let mut recovery = selective(10);
    let max = 10_001;
    let again_at = sack(&mut recovery, &[2_001..3_001], 1, max, ms(101));
    assert_eq!((recovery.phase(), again_at), (Phase::Open, Some(ms(126))), "a fourth of a round trip");
    assert_eq!(recovery.in_flight(1, max, SEGMENT), 9_000, "limited transmit (RFC 3042)");
    // RFC 6675 §4: more than two segments above are evidence.
    sack(&mut recovery, &[5_001..8_001], 1, max, ms(102));
    assert_eq!(recovery.phase(), Phase::Fast);
    assert_eq!(recovery.lost(), 4_000, "each hole, and nothing above the highest");
    assert_eq!(recovery.in_flight(1, max, SEGMENT), 2_000);
    assert_eq!(recovery.next_lost(1, max, SEGMENT, 65_000), Some(1..2_001));
    recovery.on_retransmitted(1..2_001, ms(102), 0);
    assert_eq!(recovery.in_flight(1, max, SEGMENT), 4_000);
    assert_eq!(recovery.next_lost(1, max, SEGMENT, 1_000), Some(3_001..4_001));
    recovery.on_retransmitted(3_001..5_001, ms(102), 0);
    assert_eq!(recovery.next_lost(1, max, SEGMENT, 65_000), None);
    assert_eq!(recovery.in_flight(1, max, SEGMENT), 6_000);
    // The repairs arrive: what was sent before them and has not, is lost.
    sack(&mut recovery, &[], 8_001, max, ms(202));
    assert_eq!(recovery.on_acknowledged(8_001, 8_000, SEGMENT), Progress::Partial);
    assert_eq!(recovery.next_lost(8_001, max, SEGMENT, 65_000), Some(8_001..10_001));
}

#[test]
fn what_was_sent_again_stays_so_into_the_next_recovery() {
    let mut recovery = selective(6);
    sack(&mut recovery, &[2_001..6_001], 1, 6_001, ms(101));
    recovery.on_sent(6_001..11_001, ms(102));
    // Beyond the point, 7,001 is lost too and repaired with the rest.
    recovery.on_retransmitted(1..2_001, ms(110), 500);
    sack(&mut recovery, &[8_001..11_001], 1, 11_001, ms(202));
    recovery.on_retransmitted(6_001..8_001, ms(202), 600);
    assert!(!recovery.is_spurious(ms(210), Some(500), None));
    sack(&mut recovery, &[], 6_001, 11_001, ms(210));
    assert_eq!(recovery.on_acknowledged(6_001, 6_000, SEGMENT), Progress::Recovered);
    assert!(!recovery.should_enter(), "it is repaired already");
    assert_eq!(recovery.next_lost(6_001, 11_001, SEGMENT, 9_999), None);
}

#[test]
fn eifel_undoes_and_raises_the_threshold() {
    let mut recovery = reno();
    for _ in 0..5 {
        recovery.on_duplicate(1, 10_001, SEGMENT, true);
    }
    recovery.enter(1, 10_001);
    recovery.on_retransmitted(1..1_001, Time::from_millis(10), 500);
    assert!(recovery.is_spurious(Time::from_millis(11), Some(499), None));
    recovery.undo(SEGMENT);
    assert_eq!((recovery.phase(), recovery.threshold()), (Phase::Open, 6));
    assert!(!recovery.is_spurious(Time::from_millis(12), Some(1), None), "asked once");

    recovery.enter(1, 10_001);
    assert!(recovery.is_spurious(Time::from_millis(10), None, None), "before anything was sent again");
    recovery.undo(SEGMENT);
    recovery.enter(1, 10_001);
    recovery.on_retransmitted(1..1_001, Time::from_millis(10), 500);
    let least = Some(Duration::from_millis(4));
    assert!(recovery.is_spurious(Time::from_millis(11), Some(500), least), "sooner than a round trip");
    recovery.undo(SEGMENT);
    recovery.enter(1, 10_001);
    recovery.on_retransmitted(1..1_001, Time::from_millis(10), 500);
    assert!(!recovery.is_spurious(Time::from_millis(15), Some(500), least));
    assert!(!recovery.is_spurious(Time::from_millis(15), Some(400), least));
}

/// RFC 3708 §2: the peer got each retransmission twice.
#[test]
fn duplicates_of_all_that_was_sent_again_mean_that_nothing_was_lost() {
    let mut recovery = selective(10);
    sack(&mut recovery, &[2_001..6_001], 1, 10_001, ms(101));
    recovery.on_retransmitted(1..2_001, ms(101), 0);
    assert!(!recovery.on_duplicate_block(&(1..1_001), 6_001, 10_001, false));
    assert!(recovery.on_duplicate_block(&(1_001..2_001), 6_001, 10_001, false));
    recovery.undo(SEGMENT);
    assert!(recovery.reorderings() > 0, "which is what it was");
    assert!(!recovery.on_duplicate_block(&(1_001..2_001), 6_001, 10_001, false), "once");
    // What was duplicated on the way, below where the episode began, says nothing.
    let mut recovery = selective(10);
    sack(&mut recovery, &[5_001..9_001], 2_001, 10_001, ms(101));
    recovery.on_retransmitted(2_001..3_001, ms(101), 0);
    assert!(!recovery.on_duplicate_block(&(1..2_001), 2_001, 10_001, false));
}

#[test]
fn a_timeout_without_sack_ignores_duplicates_until_its_point() {
    let mut recovery = reno();
    recovery.on_timeout(1, 10_001, 10_001, SEGMENT, &TIMES, ms(300));
    assert_eq!(recovery.phase(), Phase::Loss);
    for _ in 0..9 {
        assert!(!recovery.on_duplicate(1, 10_001, SEGMENT, true));
    }
    assert_eq!(recovery.on_acknowledged(5_001, 5_000, SEGMENT), Progress::Normal);
    assert_eq!(recovery.phase(), Phase::Loss);
    assert_eq!(recovery.on_acknowledged(10_001, 5_000, SEGMENT), Progress::Normal);
    assert_eq!(recovery.phase(), Phase::Open);
}

/// RFC 8985 §6.3
#[test]
fn a_timeout_with_sack_keeps_what_is_known_and_what_is_young() {
    let mut recovery = selective(6);
    sack(&mut recovery, &[1_001..2_001], 1, 6_001, ms(101));
    recovery.on_sent(6_001..8_001, ms(290));
    recovery.on_timeout(1, 8_001, 8_001, SEGMENT, &TIMES, ms(301));
    assert_eq!((recovery.sacked(), recovery.lost()), (1_000, 5_000));
    assert_eq!(recovery.in_flight(1, 8_001, SEGMENT), 2_000);
    assert_eq!(recovery.next_lost(1, 8_001, SEGMENT, 9_999), Some(1..1_001));
}

/// RFC 2018 §8: it may drop what it has reported, and it has, when the first that is missing is what it reported.
#[test]
fn a_timeout_forgets_what_the_peer_has_given_up() {
    let mut recovery = selective(6);
    sack(&mut recovery, &[1_001..4_001], 1, 6_001, ms(101));
    recovery.on_retransmitted(1..1_001, ms(101), 0);
    let mut delivered = Delivered::default();
    recovery.advance(1_001, &mut delivered);
    recovery.on_acknowledged(1_001, 1_000, SEGMENT);
    recovery.on_timeout(1_001, 6_001, 6_001, SEGMENT, &TIMES, ms(501));
    assert_eq!((recovery.sacked(), recovery.lost()), (0, 5_000));
    assert_eq!(recovery.next_lost(1_001, 6_001, SEGMENT, 9_999), Some(1_001..6_001));
}

/// Where reordering was seen it is older, but never than that of the repair before, nor by more than half a round trip.
#[test]
fn the_timestamp_of_what_goes_again_never_goes_back() {
    let ms = Duration::from_millis;
    let times = Times { least: ms(40), smoothed: ms(100), echo_age: None };
    let mut recovery = Recovery::default();
    recovery.set_selective();
    recovery.begin(1);
    assert_eq!(recovery.timestamp_again(1_000, &times), 1_000);
    recovery.on_retransmitted(1..2, Time::from_millis(1_000), 1_000);
    recovery.rack.set_reordering();
    assert_eq!(recovery.timestamp_again(1_005, &times), 1_000);
    assert_eq!(recovery.timestamp_again(1_100, &times), 1_090, "a fourth of the least round trip");
    recovery.on_retransmitted(2..3, Time::from_millis(1_100), 1_090);
    (1..9).for_each(|round| recovery.rack.on_duplicate(100 * round, 100 * round + 50));
    assert_eq!(recovery.timestamp_again(1_105, &times), 1_090);
    assert_eq!(recovery.timestamp_again(1_200, &times), 1_180, "a half, at most");
    let months = 1_090u32.wrapping_add(3 << 30);
    assert_eq!(recovery.timestamp_again(months, &times), months - 20, "what was told long ago is no matter");
}
