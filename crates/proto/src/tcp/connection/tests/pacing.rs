//! Pacing for the path's length.

use super::*;
use crate::tcp::Pacing;

/// Segments of 1000 bytes, and a handshake that took so long.
fn after(handshake_ms: u64) -> Connection {
    let config = Config { pacing: Pacing::LongPaths, send_buffer: 1 << 20, ..Config::default() };
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.window_scale = Some(4);
    connection.on_segment(&syn, 0, ms(handshake_ms));
    while connection.poll_transmit(ms(handshake_ms)).is_some() {}
    connection.on_written(1 << 20);
    connection
}

/// Bytes that leave at this time.
fn sent(connection: &mut Connection, now: Time) -> u64 {
    let mut bytes = 0;
    while let Some(transmit) = connection.poll_transmit(now) {
        bytes += transmit.payload.map_or(0, |payload| payload.end - payload.start);
    }
    bytes
}

#[test]
fn small_windows_go_at_once_and_large_ones_in_bursts() {
    let mut connection = after(20);
    assert_eq!(sent(&mut connection, ms(20)), 10_000, "the initial window");
    connection.on_segment(&segment(1, 10_001, Flags::ACK), 0, ms(40));
    let burst = sent(&mut connection, ms(40));
    // 20 segments in 20 ms, twice as fast because the window may double, and 4 ms that it is late.
    assert!((2_000..=10_000).contains(&burst), "{burst}");
    let mut total = burst;
    while total < 20_000 {
        let now = connection.next_timeout().expect("a timer");
        assert!(now <= ms(60), "{total} until {now:?}");
        connection.on_timeout(now);
        total += sent(&mut connection, now);
    }
    assert_eq!(total, 20_000, "all of the window within the round trip");
}

#[test]
fn a_short_path_is_not_paced() {
    let mut connection = after(2);
    sent(&mut connection, ms(2));
    connection.on_segment(&segment(1, 10_001, Flags::ACK), 0, ms(4));
    assert_eq!(sent(&mut connection, ms(4)), 20_000);
}

/// A handshake may take long because a machine is busy.
#[test]
fn a_path_that_proves_short_is_paced_no_longer() {
    let mut connection = after(20);
    sent(&mut connection, ms(20));
    connection.on_segment(&segment(1, 10_001, Flags::ACK), 0, ms(21));
    assert_eq!(sent(&mut connection, ms(21)), 20_000);
}
