//! A burst over a long path is told in parts.

use super::*;

const LEN: u32 = 1000;

/// Over a round trip of this long, past the acknowledgments that go at once, with the sequence number that comes next.
fn receiving(round_trip: u64) -> (Connection, u32) {
    let mut connection = syn_sent(plain());
    connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(round_trip));
    expect(&mut connection, ms(round_trip), Flags::ACK, 1, 1);
    let mut next = 1;
    while connection.receive.quick > 0 {
        next = burst(&mut connection, next, 1, ms(round_trip));
        while connection.poll_transmit(ms(round_trip)).is_some() {}
    }
    (connection, next)
}

fn burst(connection: &mut Connection, from: u32, segments: u32, now: Time) -> u32 {
    for at in 0..segments {
        connection.on_segment(&segment(from + at * LEN, 1, Flags::ACK), LEN, now);
    }
    from + segments * LEN
}

/// Acknowledgments until nothing is owed, each with its time in milliseconds and what it tells of after `from`.
fn told(connection: &mut Connection, from: u32, mut now: Time) -> Vec<(u64, u32)> {
    let mut told = Vec::new();
    let mut edge = 0;
    loop {
        while let Some(transmit) = connection.poll_transmit(now) {
            let header = transmit.header;
            let to = header.acknowledgment.wrapping_sub(PEER.wrapping_add(from));
            assert!(to + u32::from(header.window) >= edge, "the window's edge never moves left");
            edge = to + u32::from(header.window);
            told.push((now.as_nanos() / 1_000_000, to));
        }
        let Some(next) = connection.next_timeout() else { return told };
        now = next;
        connection.on_timeout(now);
    }
}

#[test]
fn a_burst_over_a_long_path_is_told_in_parts_within_a_quarter_of_its_round_trip() {
    let (mut connection, next) = receiving(40);
    burst(&mut connection, next, 20, ms(100));
    let parts: Vec<(u64, u32)> = (0..10).map(|part| (100 + part, (part as u32 + 1) * 2 * LEN)).collect();
    assert_eq!(told(&mut connection, next, ms(100)), parts);
}

#[test]
fn few_segments_and_a_short_path_are_told_at_once() {
    let (mut connection, next) = receiving(40);
    burst(&mut connection, next, 7, ms(100));
    assert_eq!(told(&mut connection, next, ms(100)), [(100, 7 * LEN)]);
    let (mut connection, next) = receiving(9);
    burst(&mut connection, next, 20, ms(100));
    assert_eq!(told(&mut connection, next, ms(100)), [(100, 20 * LEN)]);
}

#[test]
fn what_comes_while_a_burst_is_told_is_told_by_its_end() {
    let (mut connection, next) = receiving(40);
    let then = burst(&mut connection, next, 10, ms(100));
    assert!(connection.poll_transmit(ms(100)).is_some());
    burst(&mut connection, then, 10, ms(100));
    assert_eq!(connection.poll_transmit(ms(100)), None, "not before its time");
    connection.on_timeout(ms(101));
    let told = told(&mut connection, next, ms(101));
    assert_eq!(told.last(), Some(&(109, 20 * LEN)));
    assert!(told.is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1), "{told:?}");
}

#[test]
fn a_gap_and_the_end_are_told_at_once() {
    let (mut connection, next) = receiving(40);
    let then = burst(&mut connection, next, 20, ms(100));
    assert!(connection.poll_transmit(ms(100)).is_some());
    burst(&mut connection, then + LEN, 1, ms(100));
    assert_eq!(told(&mut connection, next, ms(100))[0], (100, 20 * LEN));

    let (mut connection, next) = receiving(40);
    let then = burst(&mut connection, next, 20, ms(100));
    assert!(connection.poll_transmit(ms(100)).is_some());
    connection.on_segment(&segment(then, 1, FIN_ACK), 0, ms(100));
    assert_eq!(told(&mut connection, next, ms(100))[0], (100, 20 * LEN + 1));
}

#[test]
fn data_of_ours_tells_of_everything() {
    let (mut connection, next) = receiving(40);
    let then = burst(&mut connection, next, 20, ms(100));
    assert!(connection.poll_transmit(ms(100)).is_some());
    connection.on_written(10);
    expect(&mut connection, ms(100), Flags::ACK, 1, then);
    assert_eq!(connection.poll_transmit(ms(100)), None);
}
