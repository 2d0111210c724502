//! Loss recovery with SACK: RACK-TLP, DSACK both ways, F-RTO, undo.

use scoutline_wire::tcp::SackBlocks;

use super::*;
use crate::tcp::recovery::Phase;

/// With SACK, without timestamps: a SYN at 0 ms, answered at 20.
fn selective() -> Connection {
    let config = Config { timestamps: false, min_rto: Duration::from_millis(200), ..Config::default() };
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.sack_permitted = true;
    connection.on_segment(&syn, 0, ms(20));
    expect(&mut connection, ms(20), Flags::ACK, 1, 1);
    connection
}

fn blocks(base: u32, blocks: &[(u32, u32)]) -> SackBlocks {
    let mut sack = SackBlocks::default();
    for (left, right) in blocks {
        sack.push(base.wrapping_add(*left), base.wrapping_add(*right));
    }
    sack
}

/// An acknowledgment of the peer's with these blocks.
fn answer(acknowledgment: u32, sack: &[(u32, u32)]) -> Header {
    let mut header = segment(1, acknowledgment, Flags::ACK);
    header.options.sack = blocks(ISS, sack);
    header
}

/// The blocks of the next acknowledgment of ours.
fn told(connection: &mut Connection, now: Time) -> Vec<(u32, u32)> {
    let header = connection.poll_transmit(now).expect("an acknowledgment").header;
    let relative = |number: u32| number.wrapping_sub(PEER);
    header.options.sack.as_slice().iter().map(|&(left, right)| (relative(left), relative(right))).collect()
}

fn payload(connection: &mut Connection, now: Time) -> Option<std::ops::Range<u64>> {
    connection.poll_transmit(now).and_then(|transmit| transmit.payload)
}

/// Ten segments, one each millisecond from 20 on.
fn ten_sent() -> Connection {
    let mut connection = selective();
    for number in 1..=10 {
        connection.on_written(number * 1000);
        assert!(payload(&mut connection, ms(19 + number)).is_some());
    }
    connection
}

/// RFC 2883 §4.1.1: a duplicate below the acknowledgment is reported once, and first.
#[test]
fn what_comes_twice_is_reported_first_and_once() {
    let mut connection = selective();
    connection.on_segment(&segment(1, 1, Flags::ACK), 3_000, ms(30));
    while connection.poll_transmit(ms(30)).is_some() {}
    connection.on_segment(&segment(1_001, 1, Flags::ACK), 1_000, ms(31));
    assert_eq!(told(&mut connection, ms(31)), [(1_001, 2_001)]);
    connection.on_segment(&segment(5_001, 1, Flags::ACK), 1_000, ms(32));
    assert_eq!(told(&mut connection, ms(32)), [(5_001, 6_001)], "once");
    // §4.1.2: with a gap above, both.
    connection.on_segment(&segment(1, 1, Flags::ACK), 500, ms(33));
    assert_eq!(told(&mut connection, ms(33)), [(1, 501), (5_001, 6_001)]);
}

/// RFC 2883 §4: an acknowledgment reports one duplicate; a peer that undoes what it did counts them all (RFC 3708).
#[test]
fn each_of_several_duplicates_in_a_burst_is_reported() {
    let mut connection = selective();
    connection.on_segment(&segment(1, 1, Flags::ACK), 9_000, ms(30));
    while connection.poll_transmit(ms(30)).is_some() {}
    for start in [1, 1_001, 5_001, 8_001] {
        connection.on_segment(&segment(start, 1, Flags::ACK), 1_000, ms(31));
    }
    assert_eq!(told(&mut connection, ms(31)), [(1, 2_001)], "what follows is told with it");
    assert_eq!(told(&mut connection, ms(31)), [(5_001, 6_001)]);
    assert_eq!(told(&mut connection, ms(31)), [(8_001, 9_001)]);
    assert!(connection.poll_transmit(ms(31)).is_none());
    // Ahead of a gap, too; and not without end.
    connection.on_segment(&segment(20_001, 1, Flags::ACK), 5_000, ms(32));
    while connection.poll_transmit(ms(32)).is_some() {}
    for again in 0..100 {
        connection.on_segment(&segment(20_001 + 2_000 * (again % 3), 1, Flags::ACK), 500, ms(33));
    }
    for report in 0..8 {
        let start = 20_001 + 2_000 * (report % 3);
        assert_eq!(told(&mut connection, ms(33)), [(start, start + 500), (20_001, 25_001)]);
    }
    assert!(connection.poll_transmit(ms(33)).is_none());
}

/// RFC 2018 §4: a burst with more holes than an acknowledgment has blocks makes several, so that each range is told.
#[test]
fn a_burst_with_many_holes_is_told_whole() {
    let mut connection = selective();
    let ranges: Vec<(u32, u32)> = (1..=10).map(|n| (2_000 * n + 1, 2_000 * n + 1_001)).collect();
    for &(start, _) in &ranges {
        connection.on_segment(&segment(start, 1, Flags::ACK), 1_000, ms(30));
    }
    let mut all = Vec::new();
    for _ in 0..2 {
        let blocks = told(&mut connection, ms(30));
        assert_eq!(blocks.len(), 4);
        all.extend(blocks);
    }
    let last = told(&mut connection, ms(30));
    assert_eq!(last[..2], [ranges[1], ranges[0]], "the newest of the rest first");
    all.extend(last);
    assert_eq!(all[..4], [ranges[9], ranges[8], ranges[7], ranges[6]]);
    assert!(ranges.iter().all(|range| all.contains(range)), "{all:?}");
    assert!(connection.poll_transmit(ms(30)).is_none(), "and no more");
}

/// A tail loss probe that was not needed is no sign of reordering: losses are found as soon as before.
#[test]
fn a_probe_that_came_twice_does_not_widen_the_reordering_window() {
    let mut connection = ten_sent();
    // The last of ten is sent again as a probe, and then all of it is acknowledged, and it came twice.
    let at = connection.next_timeout().unwrap();
    connection.on_timeout(at);
    assert_eq!(payload(&mut connection, at), Some(9_000..10_000), "the probe");
    connection.on_segment(&answer(10_001, &[(9_001, 10_001)]), 0, at + Duration::from_millis(5));
    assert_eq!(connection.info().duplicates, 1);
    assert_eq!(connection.recovery.rack_multiplier(), 1);
}

/// RFC 2883 §4.2: only the part that is a duplicate; §4.1.4: within a block, followed by that block.
#[test]
fn part_of_a_segment_and_part_of_a_block_may_be_duplicates() {
    let mut connection = selective();
    connection.on_segment(&segment(1, 1, Flags::ACK), 1_000, ms(30));
    while connection.poll_transmit(ms(30)).is_some() {}
    connection.on_segment(&segment(501, 1, Flags::ACK), 1_000, ms(31));
    assert_eq!(told(&mut connection, ms(31)), [(501, 1_001)]);
    connection.on_segment(&segment(3_001, 1, Flags::ACK), 2_000, ms(32));
    connection.on_segment(&segment(6_001, 1, Flags::ACK), 1_000, ms(32));
    assert_eq!(told(&mut connection, ms(32)), [(6_001, 7_001), (3_001, 5_001)]);
    connection.on_segment(&segment(3_501, 1, Flags::ACK), 1_000, ms(33));
    assert_eq!(told(&mut connection, ms(33)), [(3_501, 4_501), (3_001, 5_001), (6_001, 7_001)]);
}

/// RFC 8985 §6.2 step 5: one later segment, a fourth of a round trip, and nobody had to count to three.
#[test]
fn the_reordering_timer_finds_a_loss_that_too_few_duplicates_tell() {
    let mut connection = ten_sent();
    connection.on_segment(&answer(1, &[(1_001, 2_001)]), 0, ms(41));
    quiet(&mut connection, ms(41));
    let at = connection.next_timeout().unwrap();
    // Sent at 20, the other took 20 ms, and 5 more for reordering.
    assert_eq!(at, ms(45));
    connection.on_timeout(at);
    assert_eq!(payload(&mut connection, at), Some(0..1_000));
    assert_eq!(connection.info().phase, Phase::Fast);
}

#[test]
fn reordering_within_that_time_costs_nothing() {
    let mut connection = ten_sent();
    connection.on_segment(&answer(1, &[(1_001, 2_001)]), 0, ms(41));
    connection.on_segment(&answer(2_001, &[]), 0, ms(42));
    assert_eq!((connection.info().phase, connection.info().ssthresh), (Phase::Open, u32::MAX));
    // From now on three duplicates are no evidence, for there is reordering (§6.2 step 4).
    connection.on_segment(&answer(2_001, &[(3_001, 7_001)]), 0, ms(46));
    assert_eq!(connection.info().phase, Phase::Open);
    connection.on_segment(&answer(7_001, &[]), 0, ms(47));
    assert_eq!(connection.info().ssthresh, u32::MAX);
}

/// Without RACK only a time-out finds that (RFC 6675 §5 sends nothing twice).
#[test]
fn a_retransmission_that_is_lost_goes_again_without_a_time_out() {
    let mut connection = ten_sent();
    connection.on_segment(&answer(1, &[(1_001, 5_001)]), 0, ms(44));
    assert_eq!(payload(&mut connection, ms(44)), Some(0..1_000));
    connection.on_written(40_000);
    let mut new = Vec::new();
    for (now, to) in [(45, 6_001), (46, 7_001), (47, 8_001), (48, 9_001), (49, 10_001)] {
        connection.on_segment(&answer(1, &[(1_001, to)]), 0, ms(now));
        new.extend(payload(&mut connection, ms(now)));
    }
    let sent = new.first().cloned().expect("RFC 6937 lets some new data go");
    assert!(sent.start >= 10_000);
    // The first of the new ones arrives, sent after the retransmission.
    connection.on_segment(&answer(1, &[(1_001, sent.end as u32 + 1)]), 0, ms(68));
    let at = connection.next_timeout().filter(|at| *at < ms(100)).unwrap_or(ms(68));
    connection.on_timeout(at);
    assert_eq!(payload(&mut connection, at), Some(0..1_000), "for the second time");
}

/// RFC 3708: DSACK for all that was sent again, and the window returns.
#[test]
fn dsack_undoes_a_recovery_in_vain() {
    let mut connection = ten_sent();
    let window = connection.info().cwnd;
    connection.on_segment(&answer(1, &[(2_001, 6_001)]), 0, ms(45));
    assert_eq!(payload(&mut connection, ms(45)), Some(0..2_000));
    assert!(connection.info().ssthresh < window);
    // Late, but all originals arrive: too late for Eifel's shortcut, and there are no timestamps.
    connection.on_segment(&answer(10_001, &[]), 0, ms(64));
    connection.on_segment(&answer(10_001, &[(1, 1_001)]), 0, ms(65));
    assert!(connection.info().cwnd < window);
    connection.on_segment(&answer(10_001, &[(1_001, 2_001)]), 0, ms(66));
    assert!(connection.info().cwnd >= window, "{}", connection.info().cwnd);
    assert_eq!(connection.info().ssthresh, u32::MAX);
}

/// RFC 8985 §7.4.2
#[test]
fn a_probe_that_repaired_a_loss_reduces_the_window_and_one_in_vain_does_not() {
    for in_vain in [false, true] {
        let mut connection = selective();
        connection.on_written(5_000);
        payload(&mut connection, ms(20)).unwrap();
        let at = connection.next_timeout().unwrap();
        assert_eq!(at, ms(60), "two round trips");
        connection.on_timeout(at);
        assert_eq!(payload(&mut connection, at), Some(4_000..5_000));
        let window = connection.info().cwnd;
        connection.on_segment(&answer(5_001, &[]), 0, ms(80));
        if in_vain {
            connection.on_segment(&answer(5_001, &[(4_001, 5_001)]), 0, ms(81));
        }
        connection.on_written(6_000);
        payload(&mut connection, ms(90)).unwrap();
        connection.on_segment(&answer(6_001, &[]), 0, ms(110));
        let reduced = connection.info().ssthresh <= window;
        assert_eq!(reduced, !in_vain);
    }
}

/// RFC 5682 §3.1: the peer was only slow. An original that arrives after the time-out says so.
#[test]
fn a_spurious_time_out_is_undone_with_sack() {
    let mut connection = ten_sent();
    let window = connection.info().cwnd;
    let mut at = connection.next_timeout().unwrap();
    connection.on_timeout(at); // the tail probe
    while payload(&mut connection, at).is_some() {}
    at = connection.next_timeout().unwrap();
    connection.on_timeout(at);
    assert_eq!(payload(&mut connection, at), Some(0..1_000));
    assert_eq!((connection.info().cwnd, connection.info().phase), (1_000, Phase::Loss));
    let later = at + Duration::from_millis(20);
    connection.on_segment(&answer(2_001, &[]), 0, later);
    assert_eq!(connection.info().phase, Phase::Open);
    assert!(connection.info().cwnd >= window);
    assert_eq!(connection.info().retransmits, 2, "the probe, and one");
}

/// RFC 5682 §2.1
#[test]
fn a_spurious_time_out_is_undone_without_sack_by_the_second_advance() {
    for spurious in [true, false] {
        let mut connection = established();
        connection.on_written(20_000);
        assert_eq!(payload(&mut connection, ms(2)), Some(0..10_000));
        let at = connection.next_timeout().unwrap();
        connection.on_timeout(at);
        assert_eq!(payload(&mut connection, at), Some(0..1_000));
        let later = at + Duration::from_millis(5);
        connection.on_segment(&segment(1, 1_001, Flags::ACK), 0, later);
        assert_eq!(payload(&mut connection, later), Some(10_000..12_000), "step 2b: new data");
        let later = later + Duration::from_millis(1);
        if spurious {
            connection.on_segment(&segment(1, 3_001, Flags::ACK), 0, later);
            assert_eq!(connection.info().phase, Phase::Open);
            assert!(connection.info().cwnd >= 10_000);
            assert_eq!(connection.info().retransmits, 1);
        } else {
            connection.on_segment(&segment(1, 1_001, Flags::ACK), 0, later);
            assert_eq!(connection.info().phase, Phase::Loss);
            assert_eq!(payload(&mut connection, later).map(|range| range.start), Some(1_000), "step 3a");
        }
    }
}

/// RFC 2018 §8: it dropped what it had reported.
#[test]
fn a_peer_that_reneges_gets_all_of_it_again() {
    let mut connection = ten_sent();
    connection.on_segment(&answer(1, &[(1_001, 10_001)]), 0, ms(45));
    assert_eq!(payload(&mut connection, ms(45)), Some(0..1_000));
    connection.on_segment(&answer(1_001, &[]), 0, ms(65));
    quiet(&mut connection, ms(65));
    let mut at = connection.next_timeout().unwrap();
    let mut again = Vec::new();
    for _ in 0..100 {
        connection.on_timeout(at);
        while let Some(range) = payload(&mut connection, at) {
            again.push(range.clone());
            connection.on_segment(&answer(range.end as u32 + 1, &[]), 0, at + Duration::from_millis(1));
        }
        let Some(next) = connection.next_timeout() else { break };
        at = next;
    }
    assert_eq!(again.first().map(|range| range.start), Some(1_000));
    assert_eq!(again.last().map(|range| range.end), Some(10_000));
    assert_eq!(connection.info().unacked, 0);
}
