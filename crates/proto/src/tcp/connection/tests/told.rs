//! What is told of a connection, as TCP_INFO has it.

use super::*;

/// An acknowledgment of everything up to `unit`.
fn acknowledge(connection: &mut Connection, unit: u32, now: Time) {
    connection.on_segment(&segment(1, unit, Flags::ACK), 0, now);
}

fn send_all(connection: &mut Connection, now: Time) {
    while connection.poll_transmit(now).is_some() {}
}

#[test]
fn segments_with_data_are_those_of_the_wire() {
    let mut connection = established();
    connection.on_written(4_500);
    let transmit = connection.poll_transmit(ms(2)).unwrap();
    assert_eq!(transmit.payload, Some(0..4_500), "one packet");
    connection.on_arrived(2_500, Some(1_000));
    connection.on_segment(&segment(1, 1, Flags::ACK), 2_500, ms(3));
    connection.on_arrived(10, None);
    connection.on_segment(&segment(2_501, 1, Flags::ACK), 10, ms(3));
    connection.on_arrived(0, None);
    acknowledge(&mut connection, 4_501, ms(4));
    let info = connection.info();
    assert_eq!((info.data_segments, info.merged_segments), ((4, 5), (2, 4)));
    assert_eq!(info.retransmits, 0);
}

#[test]
fn what_goes_again_counts_by_segments() {
    let mut connection = established();
    connection.on_written(3_000);
    send_all(&mut connection, ms(2));
    let due = connection.next_timeout().unwrap();
    connection.on_timeout(due);
    send_all(&mut connection, due);
    let info = connection.info();
    assert_eq!(info.retransmits, u32::try_from(info.retransmitted.div_ceil(1_000)).unwrap());
    assert_eq!(info.data_segments.1, 3 + info.retransmits);
}

#[test]
fn the_rate_of_delivery_is_that_of_round_trips() {
    let mut connection = syn_sent(plain());
    connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(10));
    expect(&mut connection, ms(10), Flags::ACK, 1, 1);
    assert_eq!((connection.info().delivery_rate, connection.info().app_limited), (0, true));
    // A window of 10,000 bytes each 10 ms, and always more to send.
    connection.on_written(60_000);
    let (mut unit, mut now) = (1, 10);
    for _ in 0..3 {
        send_all(&mut connection, ms(now));
        now += 10;
        unit += connection.info().unacked as u32;
        acknowledge(&mut connection, unit, ms(now));
    }
    // Slow start: 10,000, 20,000 and what is left of the ring.
    let info = connection.info();
    assert_eq!((info.delivery_rate, info.app_limited), (3_000_000, false), "{unit}");
    // A byte now and then tells nothing of the path, and less than is known.
    send_all(&mut connection, ms(now));
    for _ in 0..3 {
        connection.on_written(u64::from(unit));
        send_all(&mut connection, ms(now));
        now += 10;
        unit += 1;
        acknowledge(&mut connection, unit, ms(now));
        send_all(&mut connection, ms(now));
    }
    let info = connection.info();
    assert_eq!((info.delivery_rate, info.app_limited), (3_000_000, false));
}

#[test]
fn a_full_ring_is_what_a_program_waits_for() {
    let limits = |connection: &Connection, now: Time| {
        let chronograph = connection.chronograph();
        let all = [chronograph.busy(now), chronograph.window_limited(now), chronograph.ring_limited(now)];
        // Counted in ticks of 1.05 ms.
        all.map(|time| (time.as_millis() + 2) / 10)
    };
    let mut connection = established();
    connection.set_ring(5_000);
    connection.on_written(5_000);
    send_all(&mut connection, ms(10));
    assert_eq!(limits(&connection, ms(50)), [4, 0, 4], "all is sent, and the ring is full");
    acknowledge(&mut connection, 2_001, ms(110));
    assert_eq!(limits(&connection, ms(150)), [14, 0, 10], "there is room");
    acknowledge(&mut connection, 5_001, ms(160));
    assert_eq!(limits(&connection, ms(500)), [15, 0, 10]);
    // A window that is too small comes before: the ring does not matter while there is something to send.
    let mut small = segment(1, 5_001, Flags::ACK);
    small.window = 1_000;
    connection.on_segment(&small, 0, ms(510));
    connection.on_written(10_000);
    send_all(&mut connection, ms(520));
    assert_eq!(limits(&connection, ms(620)), [25, 10, 10]);
}

#[test]
fn reordering_is_counted_and_the_programs_rate_told() {
    let config = Config { selective_ack: true, ..plain() };
    let mut connection = syn_sent(config);
    let mut syn_ack = segment(0, 1, SYN_ACK);
    syn_ack.options.sack_permitted = true;
    connection.on_segment(&syn_ack, 0, ms(20));
    connection.on_written(6_000);
    send_all(&mut connection, ms(20));
    for (left, right) in [(2_001, 3_001), (1_001, 2_001), (5_001, 6_001), (4_001, 5_001)] {
        let mut told = segment(1, 1, Flags::ACK);
        assert!(told.options.sack.push(ISS.wrapping_add(left), ISS.wrapping_add(right)));
        connection.on_segment(&told, 0, ms(41));
    }
    assert_eq!(connection.info().reorderings, 2);
    let tuning = scoutline_path::Tuning { max_pacing_rate: 77_000, ..Default::default() };
    connection.tune(&tuning, ms(42));
    assert_eq!(connection.info().pacing_rate, Some(77_000));
}

#[test]
fn a_route_says_what_is_told_and_with_what_one_begins() {
    let said = Config {
        mss: 1_000,
        advertised_mss: Some(700),
        initial_window: Some(3),
        initial_receive_window: Some(4),
        ..plain()
    };
    let mut connection = Connection::connect(said, ISS, 0, ms(0));
    let syn = connection.poll_transmit(ms(0)).unwrap().header;
    assert_eq!((syn.options.mss, syn.window), (Some(700), 2_800));
    connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(1));
    expect(&mut connection, ms(1), Flags::ACK, 1, 1);
    connection.on_written(9_000);
    assert_eq!(connection.poll_transmit(ms(1)).unwrap().payload, Some(0..3_000));
    quiet(&mut connection, ms(1));
    assert_eq!(connection.info().advertised_mss, 700);
    acknowledge(&mut connection, 3_001, ms(2));
    send_all(&mut connection, ms(2));
    acknowledge(&mut connection, 9_001, ms(3));
    assert!(connection.info().cwnd > 3_000);
    // RFC 5681 §4.1: after a rest it begins anew.
    connection.on_written(20_000);
    assert_eq!(connection.poll_transmit(ms(2_000)).unwrap().payload, Some(9_000..12_000));
}
