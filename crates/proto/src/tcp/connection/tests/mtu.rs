//! The size of segments: black holes, and larger ones tried again.

use scoutline_wire::tcp::SackBlocks;

use super::*;

const FULL: u64 = 1460;

/// With SACK, without timestamps, segments of 1460 bytes; a round trip of 20 ms.
fn long() -> Connection {
    let config = Config { timestamps: false, send_buffer: 1 << 20, ..Config::default() };
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.sack_permitted = true;
    syn.options.mss = Some(FULL as u16);
    connection.on_segment(&syn, 0, ms(20));
    expect(&mut connection, ms(20), Flags::ACK, 1, 1);
    connection
}

fn answer(connection: &mut Connection, position: u64, sack: &[(u64, u64)], now: Time) {
    let mut header = segment(1, 1 + position as u32, Flags::ACK);
    let mut blocks = SackBlocks::default();
    for (left, right) in sack {
        blocks.push(ISS.wrapping_add(1 + *left as u32), ISS.wrapping_add(1 + *right as u32));
    }
    header.options.sack = blocks;
    connection.on_segment(&header, 0, now);
}

/// What leaves at `now`: range, and the size of its packets.
fn sent(connection: &mut Connection, now: Time) -> Vec<(std::ops::Range<u64>, u16)> {
    let mut all = Vec::new();
    while let Some(transmit) = connection.poll_transmit(now) {
        all.extend(transmit.payload.map(|payload| (payload, transmit.segment_size)));
    }
    all
}

/// Lets the retransmission timer expire so often; when that was.
fn expire(connection: &mut Connection, times: u32) -> Time {
    let mut now = Time::ZERO;
    let mut before = connection.info().backoff;
    let mut left = times;
    while left > 0 {
        now = connection.next_timeout().expect("a timer");
        connection.on_timeout(now);
        sent(connection, now);
        let backoff = connection.info().backoff;
        left -= u32::from(backoff > before);
        before = backoff;
    }
    now
}

/// After a black hole, all acknowledged, with data to send.
fn found() -> (Connection, Time) {
    let mut connection = long();
    connection.on_written(4 * FULL);
    assert_eq!(sent(&mut connection, ms(20)), [(0..4 * FULL, FULL as u16)]);
    expire(&mut connection, 3);
    assert_eq!(connection.info().snd_mss, FULL as u16, "three may be chance");
    let now = expire(&mut connection, 1);
    assert_eq!(connection.info().snd_mss, 730);
    answer(&mut connection, 4 * FULL, &[], now + Duration::from_millis(20));
    (connection, now + Duration::from_millis(20))
}

/// RFC 8899 §4.3: what is lost again and again may be too long, and goes in shorter pieces.
#[test]
fn what_never_arrives_goes_in_shorter_segments() {
    let mut connection = long();
    connection.on_written(FULL);
    sent(&mut connection, ms(20));
    expire(&mut connection, 3);
    let now = connection.next_timeout().unwrap();
    connection.on_timeout(now);
    assert_eq!(sent(&mut connection, now), [(0..730, 730), (730..FULL, 730)], "in two packets");
    expire(&mut connection, 1);
    assert_eq!(connection.info().snd_mss, 512, "the least");
    // Small ones that are lost say nothing of the size.
    let mut connection = long();
    connection.on_written(100);
    sent(&mut connection, ms(20));
    expire(&mut connection, 5);
    assert_eq!(connection.info().snd_mss, FULL as u16);
}

/// It was an outage: the first probe brings the size back.
#[test]
fn a_probe_that_arrives_makes_its_size_that_of_all() {
    let (mut connection, mut now) = found();
    let mut position = 4 * FULL;
    // Too little for its loss to be found soon: no probe.
    connection.on_written(position + FULL);
    assert!(sent(&mut connection, now).iter().all(|(_, size)| *size == 730));
    position += FULL;
    answer(&mut connection, position, &[], now);
    for _ in 0..10 {
        // The window after the time-out is small.
        connection.on_written(position + 100 * FULL);
        let all = sent(&mut connection, now);
        let probe = all.iter().find(|(_, size)| *size == FULL as u16).cloned();
        position = all.last().unwrap().0.end;
        now += Duration::from_millis(20);
        if let Some((range, _)) = probe {
            assert_eq!(range.end - range.start, FULL, "one packet");
            answer(&mut connection, range.end, &[], now);
            assert_eq!(connection.info().snd_mss, FULL as u16);
            assert!(sent(&mut connection, now).iter().all(|(_, size)| *size == FULL as u16));
            return;
        }
        answer(&mut connection, position, &[], now);
    }
    panic!("no probe");
}

/// RFC 4821 §7.6: a probe that is lost is no congestion, goes again in small segments, and the next is half-way.
#[test]
fn a_probe_that_is_lost_reduces_nothing_and_the_next_is_smaller() {
    let (mut connection, mut now) = found();
    let mut position = 4 * FULL;
    let mut sizes = Vec::new();
    for _ in 0..40 {
        connection.on_written(position + 60 * FULL);
        let all = sent(&mut connection, now);
        position = all.last().unwrap().0.end;
        now += Duration::from_millis(20);
        // A path of 1300 bytes.
        let lost =
            all.iter().find(|(range, size)| range.end - range.start == u64::from(*size) && *size > 1300);
        if let Some((range, size)) = lost.cloned() {
            sizes.push(size);
            let before = connection.info();
            answer(&mut connection, range.start, &[(range.end, position)], now);
            let info = connection.info();
            assert_eq!(info.ssthresh, before.ssthresh, "no reduction for {size}");
            let repaired = sent(&mut connection, now);
            assert_eq!(repaired[0].0.start, range.start, "again at once");
            assert!(repaired[0].1 <= 1300);
            position = position.max(repaired.last().unwrap().0.end);
            now += Duration::from_millis(20);
        }
        answer(&mut connection, position, &[], now);
        now += Duration::from_millis(500);
    }
    // Between these 1095, 1277 and 1299 arrive; then the search is fine enough.
    assert_eq!(sizes, [1460, 1368, 1322]);
    assert_eq!(connection.info().snd_mss, 1299);
}

/// RFC 1191 §6.3, RFC 8201 §4: ten minutes after a router told of a small link, the path may be another.
#[test]
fn after_ten_minutes_the_full_size_is_tried() {
    let mut connection = long();
    connection.on_written(10 * FULL);
    sent(&mut connection, ms(20));
    connection.on_too_long(1000, ISS.wrapping_add(1), ms(30));
    assert_eq!(connection.info().snd_mss, 960);
    let repaired = sent(&mut connection, ms(30));
    assert!(repaired.iter().all(|(_, size)| *size == 960), "{repaired:?}");
    answer(&mut connection, 10 * FULL, &[], ms(50));
    let probes = |connection: &mut Connection, position: &mut u64, now: Time| {
        connection.on_written(*position + 40 * FULL);
        let all = sent(connection, now);
        *position = all.last().unwrap().0.end;
        answer(connection, *position, &[], now + Duration::from_millis(20));
        all.iter().any(|(_, size)| *size == FULL as u16)
    };
    let mut position = 10 * FULL;
    for second in 1..600 {
        assert!(!probes(&mut connection, &mut position, ms(1_000 * second)), "after {second} s");
    }
    assert!(probes(&mut connection, &mut position, ms(600_100)));
    assert_eq!(connection.info().snd_mss, FULL as u16);
}
