//! TIME-WAIT (RFC 9293 §3.10.7.4, RFC 1337, RFC 6191).

use super::*;

/// Ten bytes sent, closed, and the peer's FIN at its first number: in TIME-WAIT at 4 ms. The peer's next number is 2.
fn waiting(config: Config) -> Connection {
    let timestamps = config.timestamps;
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut answer = segment(0, 1, SYN_ACK);
    answer.options.timestamps = timestamps.then_some((1_000, 0));
    connection.on_segment(&answer, 0, ms(1));
    expect(&mut connection, ms(1), Flags::ACK, 1, 1);
    connection.on_written(10);
    connection.shutdown();
    expect(&mut connection, ms(2), FIN_ACK, 1, 1);
    let mut last = segment(1, 12, FIN_ACK);
    last.options.timestamps = timestamps.then_some((1_003, 2));
    assert!(connection.on_segment(&last, 0, ms(4)).events.contains(Events::TIME_WAIT));
    expect(&mut connection, ms(4), Flags::ACK, 12, 2);
    connection
}

fn syn(sequence: u32, timestamp: Option<u32>) -> Header {
    let mut header = segment(sequence, 0, Flags::SYN);
    header.options.timestamps = timestamp.map(|value| (value, 0));
    header
}

/// Our last acknowledgment was lost.
#[test]
fn a_fin_is_acknowledged_again_and_begins_the_wait_again() {
    let mut connection = waiting(plain());
    assert_eq!(connection.next_timeout(), Some(ms(60_004)));
    connection.on_segment(&segment(1, 12, FIN_ACK), 0, ms(1_000));
    expect(&mut connection, ms(1_000), Flags::ACK, 12, 2);
    assert_eq!(connection.in_time_wait_for(ms(1_500)), Some(Duration::from_millis(500)));
    assert_eq!(connection.on_timeout(ms(60_004)), Events::empty());
    assert_eq!(connection.on_timeout(ms(61_000)), Events::CLOSED);
}

/// RFC 1337 §3, F1: else an old duplicate could be taken for a new connection's.
#[test]
fn a_reset_does_not_end_it() {
    let mut connection = waiting(plain());
    for flags in [Flags::RST, RST_ACK] {
        assert_eq!(connection.on_segment(&segment(2, 12, flags), 0, ms(10)).drop, Some(Drop::BadReset));
    }
    assert_eq!(connection.state(), State::TimeWait);
    quiet(&mut connection, ms(10));
}

#[test]
fn old_segments_are_acknowledged_and_change_nothing() {
    let mut connection = waiting(plain());
    assert_eq!(connection.on_segment(&segment(1, 5, Flags::ACK), 100, ms(10)).drop, Some(Drop::Duplicate));
    expect(&mut connection, ms(10), Flags::ACK, 12, 2);
    assert_eq!(connection.on_segment(&segment(2, 12, Flags::ACK), 0, ms(11)).drop, Some(Drop::Duplicate));
    quiet(&mut connection, ms(11));
    assert_eq!(connection.next_timeout(), Some(ms(60_004)), "no reason to wait longer");
}

/// RFC 1122 §4.2.2.13 (a): without timestamps a SYN is newer whose number is.
#[test]
fn a_syn_beyond_the_last_number_gives_way() {
    let mut connection = waiting(plain());
    assert_eq!(connection.on_segment(&syn(3, None), 0, ms(10)).events, Events::NEW_SYN);
    for old in [2, 1, 0] {
        let input = connection.on_segment(&syn(old, None), 0, ms(20));
        assert_eq!((input.events, input.drop), (Events::empty(), Some(Drop::UnexpectedSyn)), "{old}");
    }
    expect(&mut connection, ms(20), Flags::ACK, 12, 2);
}

/// RFC 6191 §2: by timestamps, whatever the numbers; by numbers where those are equal.
#[test]
fn a_syn_with_a_later_timestamp_gives_way() {
    let with_timestamps = || waiting(Config { timestamps: true, ..plain() });
    for (sequence, timestamp, gives_way) in
        [(0, Some(1_004), true), (3, Some(1_003), true), (1, Some(1_003), false), (500, Some(1_002), false)]
    {
        let input = with_timestamps().on_segment(&syn(sequence, timestamp), 0, ms(10));
        assert_eq!(input.events == Events::NEW_SYN, gives_way, "{sequence} {timestamp:?}");
    }
    assert_eq!(with_timestamps().on_segment(&syn(3, None), 0, ms(10)).events, Events::NEW_SYN);
}

/// Whoever follows at once begins beyond every number that an old segment can bear, and a window beyond.
#[test]
fn a_successor_begins_behind_every_number_of_this_one() {
    let connection = waiting(plain());
    assert_eq!(connection.next_initial().wrapping_sub(ISS), 12 + 65_535 + 2);
    assert_eq!(established().in_time_wait_for(ms(10)), None);
}
