//! One connection against literal segments, state by state.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::Tuning;
use scoutline_wire::tcp::{Flags, Header, Options};

use super::{Connection, State};
use crate::tcp::{Config, Deliver, Drop, Events, Keepalive, Transmit};

mod bursts;
mod ecn;
mod fast_open;
mod loss;
mod mtu;
mod pacing;
mod spacing;
mod time_wait;
mod told;

const ISS: u32 = u32::MAX - 5;
const PEER: u32 = u32::MAX - 2_000;
const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);
const RST_ACK: Flags = Flags::RST.union(Flags::ACK);

fn plain() -> Config {
    Config {
        timestamps: false,
        window_scaling: false,
        selective_ack: false,
        receive_buffer: 60_000,
        receive_buffer_max: 0,
        ..Config::default()
    }
}

fn ms(millis: u64) -> Time {
    Time::from_millis(millis)
}

/// A segment of the peer: `sequence` and `acknowledgment` count from the two initial numbers.
fn segment(sequence: u32, acknowledgment: u32, flags: Flags) -> Header {
    Header {
        sequence: PEER.wrapping_add(sequence),
        acknowledgment: ISS.wrapping_add(acknowledgment),
        flags,
        window: 50_000,
        options: Options { mss: flags.contains(Flags::SYN).then_some(1000), ..Options::default() },
        ..Header::default()
    }
}

fn syn_sent(config: Config) -> Connection {
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    let syn = connection.poll_transmit(ms(0)).unwrap().header;
    assert_eq!((syn.sequence, syn.flags), (ISS, Flags::SYN));
    assert_eq!(connection.poll_transmit(ms(0)), None);
    connection
}

fn established_with(config: Config) -> Connection {
    let mut connection = syn_sent(config);
    let input = connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(1));
    assert_eq!((input.events, connection.state()), (Events::CONNECTED, State::Established));
    expect(&mut connection, ms(1), Flags::ACK, 1, 1);
    connection
}

fn established() -> Connection {
    established_with(plain())
}

fn syn_received() -> Connection {
    let mut connection = Connection::accept(plain(), ISS, 0, &segment(0, 0, Flags::SYN), ms(0));
    let transmit = connection.poll_transmit(ms(0)).unwrap();
    assert_eq!(transmit.header.flags, SYN_ACK);
    assert_eq!(transmit.header.acknowledgment, PEER.wrapping_add(1));
    connection
}

/// The next transmit has these flags (PSH aside) and numbers, counted from the initial ones.
#[track_caller]
fn expect(
    connection: &mut Connection,
    now: Time,
    flags: Flags,
    sequence: u32,
    acknowledgment: u32,
) -> Transmit {
    let transmit = connection.poll_transmit(now).expect("something to send");
    let header = &transmit.header;
    assert_eq!(header.flags.difference(Flags::PSH), flags);
    assert_eq!(header.sequence.wrapping_sub(ISS), sequence, "sequence");
    if flags.contains(Flags::ACK) {
        assert_eq!(header.acknowledgment.wrapping_sub(PEER), acknowledgment, "acknowledgment");
    }
    transmit
}

#[track_caller]
fn quiet(connection: &mut Connection, now: Time) {
    assert_eq!(connection.poll_transmit(now), None);
}

#[test]
fn syn_sent_refuses_bad_acknowledgments_and_takes_resets_that_answer_the_syn() {
    let mut connection = syn_sent(plain());
    let input = connection.on_segment(&segment(0, 7, SYN_ACK), 0, ms(1));
    assert_eq!(input.drop, Some(Drop::BadAck));
    expect(&mut connection, ms(1), Flags::RST, 7, 0);
    assert_eq!(connection.on_segment(&segment(0, 0, Flags::RST), 0, ms(1)).drop, Some(Drop::BadReset));
    let input = connection.on_segment(&segment(0, 1, RST_ACK), 0, ms(1));
    assert_eq!(input.events, Events::REFUSED | Events::CLOSED);
    assert_eq!((connection.state(), connection.next_timeout()), (State::Closed, None));
}

#[test]
fn syn_goes_six_times_more_and_then_times_out() {
    let mut connection = syn_sent(plain());
    let mut sent = 0;
    let events = loop {
        let now = connection.next_timeout().unwrap();
        let events = connection.on_timeout(now);
        if !events.is_empty() {
            break events;
        }
        assert!(expect(&mut connection, now, Flags::SYN, 0, 0).retransmission);
        quiet(&mut connection, now);
        sent += 1;
    };
    assert_eq!((events, sent), (Events::TIMED_OUT | Events::CLOSED, 6));
}

#[test]
fn only_a_hard_icmp_error_in_syn_sent_ends_the_connection() {
    let mut connection = syn_sent(plain());
    assert_eq!(connection.on_unreachable(false, ms(1)), Events::empty());
    assert!(connection.info().soft_error);
    assert_eq!(connection.on_unreachable(true, ms(1)), Events::REFUSED | Events::CLOSED);
    assert_eq!(established().on_unreachable(true, ms(1)), Events::empty());
}

#[test]
fn syn_received_repeats_its_answer_and_resets_a_bad_acknowledgment() {
    let mut connection = syn_received();
    connection.on_segment(&segment(0, 0, Flags::SYN), 0, ms(5));
    expect(&mut connection, ms(5), SYN_ACK, 0, 1);
    assert_eq!(connection.on_segment(&segment(1, 9, Flags::ACK), 0, ms(5)).drop, Some(Drop::BadAck));
    expect(&mut connection, ms(5), Flags::RST, 9, 0);
    let input = connection.on_segment(&segment(1, 1, Flags::ACK), 100, ms(6));
    assert_eq!(input.events, Events::CONNECTED | Events::READABLE);
    assert_eq!(input.deliver, Some(Deliver { position: 0, skip: 0, len: 100, in_order_to: 100 }));
    assert_eq!(connection.state(), State::Established);
}

#[test]
fn syn_received_is_reset_exactly_in_sequence() {
    let mut connection = syn_received();
    assert_eq!(connection.on_segment(&segment(2, 0, Flags::RST), 0, ms(1)).drop, Some(Drop::BadReset));
    let input = connection.on_segment(&segment(1, 0, Flags::RST), 0, ms(1));
    assert_eq!(input.events, Events::RESET | Events::CLOSED);
}

#[test]
fn simultaneous_open_meets_in_established() {
    let mut connection = syn_sent(plain());
    assert_eq!(connection.on_segment(&segment(0, 0, Flags::SYN), 0, ms(1)).events, Events::empty());
    assert_eq!(connection.state(), State::SynReceived);
    expect(&mut connection, ms(1), SYN_ACK, 0, 1);
    // RFC 9293 figure 8: the peer's SYN-ACK comes.
    let input = connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(2));
    assert_eq!((input.events, connection.state()), (Events::CONNECTED, State::Established));
}

#[test]
fn super_segments_leave_in_whole_segments_with_the_size_to_cut() {
    let mut connection = established();
    connection.on_written(3_500);
    let transmit = expect(&mut connection, ms(2), Flags::ACK, 1, 1);
    assert_eq!((transmit.payload, transmit.segment_size), (Some(0..3_500), 1000));
    assert!(transmit.header.flags.contains(Flags::PSH));
    connection.on_written(3_600);
    quiet(&mut connection, ms(2)); // Nagle: 500 bytes of the last are less than a segment.
    connection.set_nodelay(true);
    assert_eq!(expect(&mut connection, ms(2), Flags::ACK, 3_501, 1).payload, Some(3_500..3_600));
    let input = connection.on_segment(&segment(1, 3_601, Flags::ACK), 0, ms(3));
    assert_eq!(input.events, Events::ACKNOWLEDGED);
    assert_eq!((connection.acknowledged(), connection.next_timeout()), (3_600, None));
    connection.on_written(10);
    connection.on_written(u64::MAX);
    assert_eq!(connection.info().unsent, 256 * 1024, "never more than the ring");
}

#[test]
fn initial_window_is_ten_segments_and_slow_start_doubles() {
    let mut connection = established();
    connection.on_written(100_000);
    assert_eq!(expect(&mut connection, ms(2), Flags::ACK, 1, 1).payload, Some(0..10_000));
    quiet(&mut connection, ms(2));
    connection.on_segment(&segment(1, 10_001, Flags::ACK), 0, ms(3));
    assert_eq!(expect(&mut connection, ms(3), Flags::ACK, 10_001, 1).payload, Some(10_000..30_000));
}

#[test]
fn acknowledgments_are_delayed_unless_two_segments_wait() {
    let mut connection = established();
    // Past the quick ones at the start.
    for piece in 0..20 {
        connection.on_segment(&segment(1 + piece * 1000, 1, Flags::ACK), 1000, ms(2));
        while connection.poll_transmit(ms(2)).is_some() {}
        connection.on_consumed(u64::MAX);
    }
    // Nothing has answered the peer, who may wait with the next small one.
    connection.on_segment(&segment(20_001, 1, Flags::ACK), 495, ms(3));
    expect(&mut connection, ms(3), Flags::ACK, 1, 20_496);
    connection.on_segment(&segment(20_496, 1, Flags::ACK), 5, ms(3));
    expect(&mut connection, ms(3), Flags::ACK, 1, 20_501);
    connection.on_written(5);
    assert!(connection.poll_transmit(ms(3)).is_some_and(|sent| sent.payload.is_some()));
    // Now something has; until it is missed.
    let at = 20_501;
    connection.on_segment(&segment(at, 6, Flags::ACK), 500, ms(3));
    quiet(&mut connection, ms(3));
    assert_eq!(connection.next_timeout(), Some(ms(43)));
    connection.on_timeout(ms(43));
    expect(&mut connection, ms(43), Flags::ACK, 6, at + 500);
    connection.on_segment(&segment(at + 500, 6, Flags::ACK), 10, ms(44));
    expect(&mut connection, ms(44), Flags::ACK, 6, at + 510);
    let at = at + 10;
    connection.on_segment(&segment(at + 500, 6, Flags::ACK), 1000, ms(50));
    quiet(&mut connection, ms(50));
    connection.on_segment(&segment(at + 1500, 6, Flags::ACK), 1000, ms(50));
    expect(&mut connection, ms(50), Flags::ACK, 6, at + 2500);
    // A super-segment is many.
    connection.on_segment(&segment(at + 2500, 6, Flags::ACK), 9_000, ms(51));
    expect(&mut connection, ms(51), Flags::ACK, 6, at + 11_500);
    // An answer carries the acknowledgment.
    connection.receive.quick = 1;
    connection.on_segment(&segment(at + 11_500, 6, Flags::ACK), 10, ms(52));
    connection.on_written(10);
    expect(&mut connection, ms(52), Flags::ACK, 6, at + 11_510);
    quiet(&mut connection, ms(52));
}

#[test]
fn out_of_order_data_is_delivered_at_its_position_and_acknowledged_at_once() {
    let mut connection = established();
    let input = connection.on_segment(&segment(1_001, 1, Flags::ACK), 500, ms(2));
    assert_eq!(input.deliver, Some(Deliver { position: 1000, skip: 0, len: 500, in_order_to: 0 }));
    assert_eq!(input.events, Events::empty());
    let input = connection.on_segment(&segment(1_201, 1, Flags::ACK), 100, ms(2));
    assert_eq!((input.deliver, input.drop), (None, Some(Drop::Duplicate)));
    // Without SACK the peer counts: one each.
    expect(&mut connection, ms(2), Flags::ACK, 1, 1);
    expect(&mut connection, ms(2), Flags::ACK, 1, 1);
    quiet(&mut connection, ms(2));
    let input = connection.on_segment(&segment(1, 1, Flags::ACK), 1_100, ms(2));
    assert_eq!(input.deliver, Some(Deliver { position: 0, skip: 0, len: 1_100, in_order_to: 1_500 }));
    assert_eq!(input.events, Events::READABLE);
    expect(&mut connection, ms(2), Flags::ACK, 1, 1_501);
    let input = connection.on_segment(&segment(1_001, 1, Flags::ACK), 800, ms(2));
    assert_eq!(input.deliver, Some(Deliver { position: 1_500, skip: 500, len: 300, in_order_to: 1_800 }));
    let input = connection.on_segment(&segment(1, 1, Flags::ACK), 800, ms(2));
    assert_eq!(input.drop, Some(Drop::Duplicate));
}

#[test]
fn sack_blocks_name_the_latest_first() {
    let mut connection = Connection::connect(Config::default(), ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options =
        Options { mss: Some(1000), sack_permitted: true, timestamps: Some((50, 0)), ..Options::default() };
    connection.on_segment(&syn, 0, ms(1));
    while connection.poll_transmit(ms(1)).is_some() {}
    let with = |sequence: u32| {
        let mut header = segment(sequence, 1, Flags::ACK);
        header.options.timestamps = Some((51, 0));
        header
    };
    for at in [2_001, 4_001, 6_001, 8_001, 4_101] {
        assert!(connection.on_segment(&with(at), 100, ms(2)).deliver.is_some());
    }
    let mut blocks = || -> Vec<(u32, u32)> {
        let sack = expect(&mut connection, ms(2), Flags::ACK, 1, 1).header.options.sack;
        let relative = |number: u32| number.wrapping_sub(PEER);
        sack.as_slice().iter().map(|&(left, right)| (relative(left), relative(right))).collect()
    };
    assert_eq!(blocks(), [(4_001, 4_201), (8_001, 8_101), (6_001, 6_101)]);
    assert_eq!(blocks(), [(2_001, 2_101), (4_001, 4_201), (8_001, 8_101)], "what had no place");
    quiet(&mut connection, ms(2));
}

/// Behind a gap the first three segments are acknowledged at once, then every fourth, or what came in a moment together, and
/// what fills it at once again; without SACK each is.
#[test]
fn acknowledgments_of_a_long_gap_are_merged() {
    for (sack, merges) in [(true, true), (false, false)] {
        let config = Config { selective_ack: sack, timestamps: false, ..plain() };
        let mut connection = Connection::connect(config, ISS, 0, ms(0));
        connection.poll_transmit(ms(0)).unwrap();
        let mut syn = segment(0, 1, SYN_ACK);
        syn.options.sack_permitted = sack;
        connection.on_segment(&syn, 0, ms(40));
        while connection.poll_transmit(ms(40)).is_some() {}
        connection.receive.quick = 0; // the start is over
        let now = ms(50);
        let mut acknowledged_at_once = |at: u32, now: Time| {
            connection.on_segment(&segment(at, 1, Flags::ACK), 1_000, now);
            let transmit = connection.poll_transmit(now);
            assert!(connection.poll_transmit(now).is_none());
            transmit.map(|transmit| transmit.header)
        };
        for number in 1..=3 {
            assert!(acknowledged_at_once(number * 1_000 + 1, now).is_some(), "the {number}. one");
        }
        let later =
            [4, 5, 6].map(|number| acknowledged_at_once(number * 1_000 + 1, now + Duration::from_micros(9)));
        assert!(later.iter().all(|ack| ack.is_none() == merges), "{later:?}");
        if merges {
            let due = connection.next_timeout().unwrap();
            assert_eq!(due, now + Duration::from_micros(59));
            connection.on_timeout(due);
            let header = expect(&mut connection, due, Flags::ACK, 1, 1).header;
            let block = header.options.sack.as_slice()[0];
            assert_eq!((block.0.wrapping_sub(PEER), block.1.wrapping_sub(PEER)), (1_001, 7_001));
            quiet(&mut connection, due);
        }
        for number in 7..=10 {
            connection.on_segment(&segment(number * 1_000 + 1, 1, Flags::ACK), 1_000, ms(51));
            assert_eq!(
                connection.poll_transmit(ms(51)).is_some(),
                !merges || number == 10,
                "the {number}. one"
            );
        }
        connection.on_segment(&segment(1, 1, Flags::ACK), 1_000, ms(60));
        expect(&mut connection, ms(60), Flags::ACK, 1, 11_001);
        // The peer sees at once how long its segments take now.
        for number in 11..=13 {
            connection.on_segment(&segment(number * 1_000 + 1, 1, Flags::ACK), 1_000, ms(61));
            expect(&mut connection, ms(61), Flags::ACK, 1, number * 1_000 + 1_001);
        }
    }
}

/// So it is when all come in one burst.
#[test]
fn each_of_the_first_behind_a_gap_is_told_also_of_a_burst() {
    let config = Config { selective_ack: true, timestamps: false, ..plain() };
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.sack_permitted = true;
    connection.on_segment(&syn, 0, ms(40));
    while connection.poll_transmit(ms(40)).is_some() {}
    connection.receive.quick = 0;
    let mut told = |at: u32| -> Option<(u32, u32)> {
        connection.on_segment(&segment(at, 1, Flags::ACK), 1_000, ms(50));
        let header = connection.poll_told(ms(50))?.header;
        assert!(connection.poll_told(ms(50)).is_none(), "one for each");
        let first = header.options.sack.as_slice().first().copied().unwrap_or_default();
        Some((header.acknowledgment.wrapping_sub(PEER), first.1.wrapping_sub(PEER)))
    };
    let behind: Vec<_> = (1..=6).map(|number| told(number * 1_000 + 1)).collect();
    assert_eq!(behind[..3], [Some((1, 2_001)), Some((1, 3_001)), Some((1, 4_001))]);
    assert_eq!(behind[3..], [None, None, None], "the others wait together");
    assert_eq!(told(1).map(|(acknowledged, _)| acknowledged), Some(7_001), "what fills the gap");
    assert_eq!(told(7_001), None, "in order again");
}

#[test]
fn a_tail_probe_finds_the_loss_before_the_time_out() {
    let config = Config { timestamps: false, ..Config::default() };
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.sack_permitted = true;
    connection.on_segment(&syn, 0, ms(1));
    expect(&mut connection, ms(1), Flags::ACK, 1, 1);
    connection.on_written(5_000);
    connection.poll_transmit(ms(1)).unwrap();
    let at = connection.next_timeout().unwrap();
    assert_eq!(at, ms(6));
    connection.on_timeout(at);
    let transmit = expect(&mut connection, at, Flags::ACK, 4_001, 1);
    assert_eq!((transmit.payload, transmit.retransmission), (Some(4_000..5_000), true));
    quiet(&mut connection, at);
    assert!(connection.next_timeout().unwrap() > ms(200), "one probe, then the time-out");
    let mut answer = segment(1, 1, Flags::ACK);
    answer.options.sack.push(ISS.wrapping_add(4_001), ISS.wrapping_add(5_001));
    connection.on_segment(&answer, 0, ms(12));
    // RFC 9937: as much as was delivered.
    assert_eq!(expect(&mut connection, ms(12), Flags::ACK, 1, 1).payload, Some(0..1_000));
    connection.on_segment(&segment(1, 5_001, Flags::ACK), 0, ms(13));
    assert_eq!(connection.next_timeout(), None);
}

#[test]
fn nothing_beyond_the_window_is_taken_and_the_window_reopens_in_large_steps() {
    let config = Config { receive_buffer: 4_000, ..plain() };
    let mut connection = established_with(config);
    let input = connection.on_segment(&segment(1, 1, Flags::ACK), 5_000, ms(2));
    assert_eq!(input.deliver.unwrap().len, 4_000);
    assert_eq!(expect(&mut connection, ms(2), Flags::ACK, 1, 4_001).header.window, 0);
    // A probe is answered, and its acknowledgment counts.
    let input = connection.on_segment(&segment(4_001, 1, Flags::ACK), 1, ms(3));
    assert_eq!((input.deliver, input.drop), (None, Some(Drop::OutOfWindow)));
    expect(&mut connection, ms(3), Flags::ACK, 1, 4_001);
    connection.on_consumed(500);
    quiet(&mut connection, ms(4));
    connection.on_consumed(u64::MAX);
    assert_eq!(expect(&mut connection, ms(4), Flags::ACK, 1, 4_001).header.window, 4_000);
    let input = connection.on_segment(&segment(8_001, 1, Flags::ACK), 10, ms(5));
    assert_eq!(input.drop, Some(Drop::OutOfWindow));
}

/// Programs tell of what they take by quarters of their ring. A peer whose segments are long against the window waits for half
/// of it, and nothing but our word or its timer ends that.
#[test]
fn room_is_told_of_where_segments_are_as_long_as_windows() {
    let mut connection = established_with(Config { receive_buffer: 4_000, ..plain() });
    connection.on_segment(&segment(1, 1, Flags::ACK), 2_400, ms(2));
    assert_eq!(expect(&mut connection, ms(2), Flags::ACK, 1, 2_401).header.window, 1_600);
    connection.on_consumed(900);
    quiet(&mut connection, ms(3));
    connection.on_consumed(1_400); // of 2,400, which it has taken
    assert_eq!(expect(&mut connection, ms(4), Flags::ACK, 1, 2_401).header.window, 3_000);
}

/// An acknowledgment that was made to tell of room tells of some, in the unit that the field has.
#[test]
fn room_that_the_window_field_cannot_say_is_not_told_of() {
    let config =
        Config { receive_buffer: 4_000, receive_buffer_max: 16 << 20, window_scaling: true, ..plain() };
    let mut connection = syn_sent(config);
    let mut answer = segment(0, 1, SYN_ACK);
    answer.options.window_scale = Some(0);
    connection.on_segment(&answer, 0, ms(1));
    expect(&mut connection, ms(1), Flags::ACK, 1, 1);
    connection.on_segment(&segment(1, 1, Flags::ACK), 2_400, ms(2));
    let mut told = expect(&mut connection, ms(2), Flags::ACK, 1, 2_401).header.window;
    let before = told;
    for taken in 1..=2_400 {
        connection.on_consumed(taken);
        if let Some(transmit) = connection.poll_transmit(ms(3)) {
            assert!(transmit.header.window > told, "{told} twice, with {taken} taken");
            told = transmit.header.window;
        }
    }
    assert!(told > before);
}

/// It tells of a large ring even less.
#[test]
fn a_ring_that_grows_is_told_of() {
    let mut connection = established_with(Config { receive_buffer: 4_000, ..plain() });
    connection.on_segment(&segment(1, 1, Flags::ACK), 3_000, ms(2));
    assert_eq!(expect(&mut connection, ms(2), Flags::ACK, 1, 3_001).header.window, 1_000);
    connection.set_receive_buffer(16_000);
    assert_eq!(expect(&mut connection, ms(3), Flags::ACK, 1, 3_001).header.window, 13_000);
    connection.set_receive_buffer(17_000);
    quiet(&mut connection, ms(4));
}

#[test]
fn a_smaller_buffer_takes_no_window_back_and_bounds_what_waits_from_then_on() {
    let config = Config { receive_buffer: 8_000, ..plain() };
    let mut connection = established_with(config);
    connection.tune(&Tuning { receive_most: 3_000, ..Tuning::default() }, ms(2));
    let input = connection.on_segment(&segment(1, 1, Flags::ACK), 8_000, ms(2));
    assert_eq!(input.deliver.unwrap().len, 8_000, "it was offered before");
    assert_eq!(expect(&mut connection, ms(2), Flags::ACK, 1, 8_001).header.window, 0);
    connection.on_consumed(5_000);
    quiet(&mut connection, ms(3));
    connection.on_consumed(8_000);
    assert_eq!(expect(&mut connection, ms(4), Flags::ACK, 1, 8_001).header.window, 3_000);
    let input = connection.on_segment(&segment(8_001, 1, Flags::ACK), 8_000, ms(5));
    assert_eq!(input.deliver.unwrap().len, 3_000);
}

#[test]
fn third_duplicate_retransmits_the_head_at_once() {
    let mut connection = established();
    connection.on_written(10_000);
    connection.poll_transmit(ms(2)).unwrap();
    for _ in 0..3 {
        quiet(&mut connection, ms(3));
        connection.on_segment(&segment(1, 1, Flags::ACK), 0, ms(3));
    }
    let transmit = expect(&mut connection, ms(3), Flags::ACK, 1, 1);
    assert_eq!((transmit.payload, transmit.retransmission), (Some(0..1_000), true));
    quiet(&mut connection, ms(3));
    let info = connection.info();
    assert_eq!((info.ssthresh, info.cwnd), (7_000, 7_000));
    connection.on_segment(&segment(1, 10_001, Flags::ACK), 0, ms(4));
    assert_eq!(connection.info().unacked, 0);
}

#[test]
fn a_timeout_goes_back_with_one_segment_and_doubles() {
    let mut connection = established();
    connection.on_written(10_000);
    connection.poll_transmit(ms(2)).unwrap();
    let first = connection.next_timeout().unwrap();
    assert!(first >= ms(202), "{first:?}");
    assert_eq!(connection.on_timeout(first), Events::empty());
    let transmit = expect(&mut connection, first, Flags::ACK, 1, 1);
    assert_eq!((transmit.payload, transmit.retransmission), (Some(0..1_000), true));
    quiet(&mut connection, first);
    let second = connection.next_timeout().unwrap();
    assert!(second.since(first) > (first.since(ms(2)) * 2).checked_sub(Duration::from_millis(1)).unwrap());
    let mut tries = 1;
    while connection.state() != State::Closed {
        let now = connection.next_timeout().unwrap();
        connection.on_timeout(now);
        tries += u32::from(connection.poll_transmit(now).is_some());
    }
    assert_eq!(tries, 15);
}

#[test]
fn user_timeout_and_keepalive_end_a_silent_connection() {
    let config = Config { user_timeout: Some(Duration::from_secs(3)), ..plain() };
    let mut connection = established_with(config);
    connection.on_written(10);
    connection.poll_transmit(ms(10)).unwrap();
    let mut events = Events::empty();
    while !events.contains(Events::CLOSED) {
        let now = connection.next_timeout().unwrap();
        assert!(now <= ms(3_010));
        events = connection.on_timeout(now);
        if events.contains(Events::CLOSED) {
            assert_eq!(now, ms(3_010));
            assert_eq!(events, Events::TIMED_OUT | Events::CLOSED);
            quiet(&mut connection, now); // RFC 9293 §3.10.8
        } else {
            connection.poll_transmit(now);
        }
    }

    let second = Duration::from_secs(1);
    let keepalive = Keepalive { idle: 10 * second, interval: second, count: 2 };
    let mut connection = established_with(Config { keepalive: Some(keepalive), ..plain() });
    let probe_at = ms(10_001);
    assert_eq!(connection.next_timeout(), Some(probe_at));
    connection.on_timeout(probe_at);
    expect(&mut connection, probe_at, Flags::ACK, 0, 1);
    connection.on_segment(&segment(1, 1, Flags::ACK), 0, ms(10_002));
    let mut events = Events::empty();
    let mut probes = 0;
    while events.is_empty() {
        let now = connection.next_timeout().unwrap();
        events = connection.on_timeout(now);
        probes += u32::from(connection.poll_transmit(now).is_some_and(|it| it.header.flags == Flags::ACK));
    }
    assert_eq!((events, probes), (Events::TIMED_OUT | Events::CLOSED, 2));
}

/// What a program says is not what the shim would have let through.
#[test]
fn keepalive_without_a_pause_ends_its_timer() {
    let mut connection = established();
    connection.on_written(10);
    connection.poll_transmit(ms(10)).unwrap();
    let none = Duration::ZERO;
    connection.set_keepalive(Some(Keepalive { idle: none, interval: none, count: 3 }), ms(10));
    let now = ms(1_010);
    connection.on_timeout(now);
    assert!(connection.next_timeout().unwrap() > now);
}

#[test]
fn a_closed_connection_gives_up_on_a_window_that_stays_closed() {
    let mut connection = established();
    connection.on_written(10);
    connection.poll_transmit(ms(10)).unwrap();
    let closed = Header { window: 0, ..segment(1, 11, Flags::ACK) };
    connection.on_segment(&closed, 0, ms(20));
    connection.on_written(20);
    connection.close(ms(20));
    assert_eq!(connection.poll_transmit(ms(20)), None);
    let mut probes = 0;
    while connection.state() != State::Closed {
        assert!(probes < 20, "for ever");
        let now = connection.next_timeout().unwrap();
        connection.on_timeout(now);
        while connection.poll_transmit(now).is_some() {
            probes += 1;
        }
        // It is there, and answers.
        connection.on_segment(&closed, 0, now);
    }
    assert_eq!(probes, 8 + 1, "and a reset");
}

#[test]
fn resets_and_syns_in_the_window_are_challenged_within_a_limit() {
    let mut connection = established();
    for round in 0..20 {
        let header = if round % 2 == 0 { segment(50, 1, Flags::RST) } else { segment(50, 1, Flags::SYN) };
        assert!(connection.on_segment(&header, 0, ms(10)).drop.is_some());
        if round < 5 {
            expect(&mut connection, ms(10), Flags::ACK, 1, 1);
        } else {
            quiet(&mut connection, ms(10));
        }
    }
    assert_eq!(connection.on_segment(&segment(1, 2, Flags::ACK), 0, ms(1_000)).drop, Some(Drop::BadAck));
    expect(&mut connection, ms(1_000), Flags::ACK, 1, 1);
    assert_eq!(
        connection.on_segment(&segment(1, 0, Flags::RST), 0, ms(1_001)).events,
        Events::RESET | Events::CLOSED
    );
}

#[test]
fn old_timestamps_are_refused_and_missing_ones_too() {
    let mut connection = Connection::connect(Config::default(), ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.timestamps = Some((100, 0));
    connection.on_segment(&syn, 0, ms(1));
    while connection.poll_transmit(ms(1)).is_some() {}
    let mut data = segment(1, 1, Flags::ACK);
    assert_eq!(connection.on_segment(&data, 10, ms(2)).drop, Some(Drop::MissingTimestamp));
    data.options.timestamps = Some((99, 0));
    assert_eq!(connection.on_segment(&data, 10, ms(2)).drop, Some(Drop::Paws));
    data.options.timestamps = Some((100, 0));
    assert!(connection.on_segment(&data, 10, ms(2)).deliver.is_some());
}

/// RFC 2883: who sent it a second time learns that this was in vain.
#[test]
fn of_old_data_that_came_before_the_peer_is_told() {
    let mut connection = Connection::connect(Config::default(), ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut syn = segment(0, 1, SYN_ACK);
    syn.options.timestamps = Some((100, 0));
    syn.options.sack_permitted = true;
    connection.on_segment(&syn, 0, ms(1));
    let mut data = segment(1, 1, Flags::ACK);
    data.options.timestamps = Some((100, 0));
    assert!(connection.on_segment(&data, 10, ms(2)).deliver.is_some());
    while connection.poll_transmit(ms(300)).is_some() {}
    data.options.timestamps = Some((99, 0));
    assert_eq!(connection.on_segment(&data, 10, ms(301)).drop, Some(Drop::Paws));
    let told = connection.poll_transmit(ms(301)).unwrap().header;
    let begin = data.sequence;
    assert_eq!(told.options.sack.as_slice(), [(begin, begin + 10)]);
    // Of another turn of the sequence space.
    data.sequence = data.sequence.wrapping_sub(1 << 30);
    assert_eq!(connection.on_segment(&data, 10, ms(302)).drop, Some(Drop::Paws));
    assert!(connection.poll_transmit(ms(302)).unwrap().header.options.sack.is_empty());
}

#[test]
fn active_close_passes_both_fin_waits_and_time_wait() {
    let mut connection = established();
    connection.on_written(10);
    connection.shutdown();
    assert_eq!(connection.state(), State::FinWait1);
    expect(&mut connection, ms(2), FIN_ACK, 1, 1);
    quiet(&mut connection, ms(2));
    connection.on_segment(&segment(1, 12, Flags::ACK), 0, ms(3));
    assert_eq!((connection.state(), connection.acknowledged()), (State::FinWait2, 10));
    assert_eq!(connection.next_timeout(), None, "half closed for as long as the peer likes");
    let input = connection.on_segment(&segment(1, 12, FIN_ACK), 20, ms(4));
    assert_eq!(input.events, Events::READABLE | Events::PEER_FINISHED | Events::TIME_WAIT);
    expect(&mut connection, ms(4), Flags::ACK, 12, 22);
    assert_eq!(connection.next_timeout(), Some(ms(60_004)));
    assert_eq!(connection.on_timeout(ms(60_004)), Events::CLOSED);
}

#[test]
fn passive_close_ends_with_last_ack() {
    let mut connection = established();
    assert_eq!(connection.on_segment(&segment(1, 1, FIN_ACK), 0, ms(2)).events, Events::PEER_FINISHED);
    expect(&mut connection, ms(2), Flags::ACK, 1, 2);
    assert_eq!(connection.state(), State::CloseWait);
    connection.on_written(5);
    expect(&mut connection, ms(3), Flags::ACK, 1, 2);
    connection.close(ms(3));
    assert_eq!(connection.state(), State::LastAck);
    expect(&mut connection, ms(3), FIN_ACK, 6, 2);
    assert_eq!(
        connection.on_segment(&segment(2, 7, Flags::ACK), 0, ms(4)).events,
        Events::ACKNOWLEDGED | Events::CLOSED
    );
    assert_eq!(connection.next_timeout(), None);
}

#[test]
fn fins_that_cross_meet_in_closing() {
    let mut connection = established();
    connection.shutdown();
    expect(&mut connection, ms(2), FIN_ACK, 1, 1);
    connection.on_segment(&segment(1, 1, FIN_ACK), 0, ms(2));
    assert_eq!(connection.state(), State::Closing);
    expect(&mut connection, ms(2), Flags::ACK, 2, 2);
    let input = connection.on_segment(&segment(2, 2, Flags::ACK), 0, ms(3));
    assert_eq!((input.events, connection.state()), (Events::TIME_WAIT, State::TimeWait));
}

#[test]
fn a_fin_ahead_of_its_data_waits() {
    let mut connection = established();
    let input = connection.on_segment(&segment(101, 1, FIN_ACK), 50, ms(2));
    assert_eq!((input.events, connection.state()), (Events::empty(), State::Established));
    let input = connection.on_segment(&segment(1, 1, Flags::ACK), 100, ms(2));
    assert_eq!(input.events, Events::READABLE | Events::PEER_FINISHED);
    assert_eq!((connection.state(), connection.receive_position()), (State::CloseWait, 150));
    assert!(connection.is_peer_finished());
}

#[test]
fn closing_with_unread_or_later_data_resets() {
    let mut connection = established();
    connection.on_segment(&segment(1, 1, Flags::ACK), 100, ms(2));
    assert_eq!(connection.close(ms(2)), Events::CLOSED);
    expect(&mut connection, ms(2), RST_ACK, 1, 101);

    let mut connection = established();
    assert_eq!(connection.close(ms(2)), Events::empty());
    expect(&mut connection, ms(2), FIN_ACK, 1, 1);
    let input = connection.on_segment(&segment(1, 2, Flags::ACK), 100, ms(3));
    assert_eq!(input.drop, Some(Drop::NoReceiver));
    assert!(input.events.contains(Events::CLOSED));
    expect(&mut connection, ms(3), Flags::RST, 2, 0);
    quiet(&mut connection, ms(3));
}

#[test]
fn an_orphan_leaves_fin_wait_2_after_a_minute() {
    let mut connection = established();
    connection.close(ms(2));
    expect(&mut connection, ms(2), FIN_ACK, 1, 1);
    connection.on_segment(&segment(1, 2, Flags::ACK), 0, ms(3));
    assert_eq!(connection.next_timeout(), Some(ms(60_003)));
    assert_eq!(connection.on_timeout(ms(60_003)), Events::CLOSED);
}

#[test]
fn abort_resets_once() {
    let mut connection = established();
    connection.on_written(100);
    connection.poll_transmit(ms(2)).unwrap();
    assert_eq!(connection.abort(), Events::CLOSED);
    expect(&mut connection, ms(2), RST_ACK, 101, 1);
    quiet(&mut connection, ms(2));
    assert_eq!(connection.on_segment(&segment(1, 1, Flags::ACK), 5, ms(3)).drop, Some(Drop::Closed));
    let mut connection = syn_sent(plain());
    connection.abort();
    quiet(&mut connection, ms(2));
}

#[test]
fn a_zero_window_is_probed_and_all_goes_again_when_it_opens() {
    let mut connection = established();
    let mut closed = segment(1, 1, Flags::ACK);
    closed.window = 0;
    connection.on_segment(&closed, 0, ms(2));
    while connection.poll_transmit(ms(2)).is_some() {}
    connection.on_written(5_000);
    quiet(&mut connection, ms(3));
    let at = connection.next_timeout().unwrap();
    connection.on_timeout(at);
    assert_eq!(expect(&mut connection, at, Flags::ACK, 1, 1).payload, Some(0..1));
    // The peer sends while its own window is closed: our acknowledgment must lie within it, not at SND.NXT.
    let mut data = segment(1, 1, Flags::ACK);
    data.window = 0;
    connection.on_segment(&data, 2_000, at);
    expect(&mut connection, at, Flags::ACK, 1, 2_001);
    let mut open = segment(2_001, 1, Flags::ACK);
    open.window = 3_000;
    connection.on_segment(&open, 0, at);
    assert_eq!(expect(&mut connection, at, Flags::ACK, 1, 2_001).payload, Some(0..3_000));
}

/// Found by the simulation (seed 285): data of the peer is lost, what it sends later is seen, and its retransmission
/// acknowledges ours with a smaller window.
#[test]
fn a_new_acknowledgment_tells_the_window_whatever_its_sequence_number() {
    let mut connection = established();
    connection.on_written(1_000);
    expect(&mut connection, ms(2), Flags::ACK, 1, 1);
    // 1..2_001 is lost on the way here.
    connection.on_segment(&segment(2_001, 1, Flags::ACK), 0, ms(3));
    let mut again = segment(1, 1_001, Flags::ACK);
    again.window = 300;
    connection.on_segment(&again, 1_000, ms(4));
    connection.on_written(21_000);
    while let Some(transmit) = connection.poll_transmit(ms(4)) {
        let end = transmit.payload.map_or(0, |payload| payload.end);
        assert!(end <= 1_300, "{end} is beyond the window");
    }
}

#[test]
fn silly_windows_are_avoided_and_overridden() {
    let mut connection = established();
    let mut small = segment(1, 1, Flags::ACK);
    small.window = 300;
    connection.on_segment(&small, 0, ms(2));
    while connection.poll_transmit(ms(2)).is_some() {}
    connection.on_written(5_000);
    quiet(&mut connection, ms(3));
    let at = connection.next_timeout().unwrap();
    connection.on_timeout(at);
    assert_eq!(expect(&mut connection, at, Flags::ACK, 1, 1).payload, Some(0..300));
}
