//! Data with the SYN on one connection (RFC 7413 §4.2); most of it is in the packet scripts of `fast_open`.

use scoutline_wire::tcp::FastOpen;

use super::*;
use crate::tcp::fast_open::Start;

fn cookie() -> Option<FastOpen> {
    FastOpen::cookie(&[1, 2, 3, 4])
}

fn client(waits: bool) -> Connection {
    let start = Start { option: cookie(), room: 900, waits };
    Connection::connect_fast(plain(), ISS, 0, &start, ms(0))
}

fn begun(payload_len: u32) -> Connection {
    let mut connection = Connection::accept(plain(), ISS, 0, &segment(0, 0, Flags::SYN), ms(0));
    let input = connection.begin_fast(payload_len);
    assert!(input.events.contains(Events::CONNECTED));
    connection
}

#[test]
fn a_syn_waits_for_data_or_for_the_end() {
    let mut connection = client(true);
    quiet(&mut connection, ms(0));
    assert_eq!(connection.next_timeout(), None, "nothing is under way");
    connection.on_written(2_000);
    let syn = connection.poll_transmit(ms(5)).unwrap();
    assert_eq!((syn.payload, syn.header.options.fast_open), (Some(0..900), cookie()));
    assert!(u64::from(syn.segment_size) >= 900, "it leaves as one segment");
    quiet(&mut connection, ms(5));

    let mut connection = client(true);
    connection.shutdown();
    assert_eq!(connection.poll_transmit(ms(5)).unwrap().payload, None);
    assert_eq!(client(true).close(ms(5)), Events::CLOSED);
}

#[test]
fn what_a_syn_ack_takes_of_the_data_is_sent_and_the_rest_is_new() {
    let mut connection = client(false);
    connection.on_written(1_500);
    connection.poll_transmit(ms(0)).unwrap();
    assert_eq!(connection.info().unacked, 1, "the data are a gamble");
    let input = connection.on_segment(&segment(0, 901, SYN_ACK), 0, ms(20));
    assert!(input.events.contains(Events::CONNECTED | Events::ACKNOWLEDGED));
    assert_eq!((connection.acknowledged(), connection.info().syn_data), (900, true));
    let outcome = connection.take_fast_open_outcome().unwrap();
    assert!(outcome.is_taken && !outcome.is_lost && outcome.mss == 1000);
    let rest = expect(&mut connection, ms(20), Flags::ACK, 901, 1);
    assert_eq!((rest.payload, rest.retransmission), (Some(900..1_500), false));
    assert_eq!(connection.take_fast_open_outcome(), None, "told once");
}

#[test]
fn an_unsolicited_cookie_is_not_learnt() {
    let start = Start { option: None, room: 900, waits: false };
    let mut connection = Connection::connect_fast(plain(), ISS, 0, &start, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let mut answer = segment(0, 1, SYN_ACK);
    answer.options.fast_open = cookie();
    connection.on_segment(&answer, 0, ms(1));
    assert_eq!(connection.take_fast_open_outcome().unwrap().cookie, None);
}

#[test]
fn data_of_crossing_syns_are_not_taken() {
    // RFC 9293 §3.5, figure 8: the peer's SYN meets ours.
    let mut connection = client(false);
    connection.on_written(100);
    connection.poll_transmit(ms(0)).unwrap();
    let input = connection.on_segment(&segment(0, 0, Flags::SYN), 300, ms(1));
    assert_eq!((input.deliver, connection.state()), (None, State::SynReceived));
    let answer = expect(&mut connection, ms(1), SYN_ACK, 0, 1);
    assert_eq!((answer.payload, answer.header.options.fast_open), (None, None));
    quiet(&mut connection, ms(1));
    connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(2));
    assert_eq!(connection.state(), State::Established);
    expect(&mut connection, ms(2), Flags::ACK, 1, 1);
}

#[test]
fn no_more_is_taken_with_a_syn_than_the_ring_holds() {
    let config = Config { receive_buffer: 500, ..plain() };
    let mut connection = Connection::accept(config, ISS, 0, &segment(0, 0, Flags::SYN), ms(0));
    let input = connection.begin_fast(900);
    assert_eq!(input.deliver.map(|deliver| (deliver.position, deliver.len)), Some((0, 500)));
    let answer = expect(&mut connection, ms(0), SYN_ACK, 0, 501);
    assert_eq!(answer.header.window, 0);
}

#[test]
fn the_first_acknowledgment_is_no_duplicate_and_ends_what_was_special() {
    let mut connection = begun(100);
    expect(&mut connection, ms(0), SYN_ACK, 0, 101);
    connection.on_written(300);
    expect(&mut connection, ms(1), Flags::ACK, 1, 101);
    let input = connection.on_segment(&segment(101, 1, Flags::ACK), 0, ms(20));
    assert!(!input.events.contains(Events::CONNECTED), "told before");
    assert_eq!(connection.state(), State::Established);
    quiet(&mut connection, ms(20));
    assert!(connection.next_timeout().is_some(), "what is outstanding has a timer");
    connection.on_segment(&segment(101, 301, Flags::ACK), 0, ms(40));
    assert!(connection.is_acknowledged_all());
}

#[test]
fn data_behind_a_syn_ack_that_went_twice_give_no_sample_for_it() {
    let mut connection = begun(100);
    expect(&mut connection, ms(0), SYN_ACK, 0, 101);
    let again = connection.next_timeout().unwrap();
    connection.on_timeout(again);
    expect(&mut connection, again, SYN_ACK, 0, 101);
    connection.on_written(300);
    let written = again + Duration::from_millis(100);
    expect(&mut connection, written, Flags::ACK, 1, 101);
    // RFC 6298 §5.7 and Karn: which SYN-ACK it answers nobody knows.
    let answered = written + Duration::from_millis(1);
    connection.on_segment(&segment(101, 1, Flags::ACK), 0, answered);
    assert_eq!((connection.rtt.smoothed(), connection.rtt.rto()), (None, Duration::from_secs(3)));
    // The data went once: they give one.
    let acknowledged = written + Duration::from_millis(50);
    connection.on_segment(&segment(101, 301, Flags::ACK), 0, acknowledged);
    assert_eq!(connection.rtt.smoothed(), Some(Duration::from_millis(50)));
}

#[test]
fn a_reset_or_silence_ends_what_was_begun() {
    let mut connection = begun(100);
    expect(&mut connection, ms(0), SYN_ACK, 0, 101);
    let input = connection.on_segment(&segment(101, 0, Flags::RST), 0, ms(1));
    assert_eq!(input.events, Events::RESET | Events::CLOSED);

    let mut connection = begun(100);
    connection.on_written(10);
    let (mut syn_acks, mut events) = (0, Events::empty());
    while let Some(at) = connection.next_timeout().or(Some(ms(0)).filter(|_| syn_acks == 0)) {
        events |= connection.on_timeout(at);
        while let Some(transmit) = connection.poll_transmit(at) {
            syn_acks += u32::from(transmit.header.flags == SYN_ACK);
        }
    }
    assert_eq!((syn_acks, events), (7, Events::TIMED_OUT | Events::CLOSED));
}

/// The SYN-ACK's time is over, and before it goes again its acknowledgment comes. The data behind it stood twice in the
/// scoreboard then, and what was lost of it went again without end (found by fuzzing).
#[test]
fn data_behind_a_syn_ack_do_not_go_anew_when_that_is_acknowledged_late() {
    let config = Config { selective_ack: true, ..plain() };
    let mut syn = segment(0, 0, Flags::SYN);
    syn.options.sack_permitted = true;
    let mut connection = Connection::accept(config, ISS, 0, &syn, ms(0));
    connection.begin_fast(10);
    connection.poll_transmit(ms(0)).unwrap();
    connection.on_written(3_000);
    while connection.poll_transmit(ms(1)).is_some() {}
    assert_eq!(connection.info().unacked, 3_001);
    let due = connection.next_timeout().unwrap();
    connection.on_timeout(due);
    connection.on_segment(&segment(11, 1, Flags::ACK), 0, due);
    quiet(&mut connection, due);
    assert_eq!(connection.info().unacked, 3_000);
    // It is outstanding, and lost when its own time is over.
    let due = connection.next_timeout().unwrap();
    connection.on_timeout(due);
    let again: Vec<_> = std::iter::from_fn(|| connection.poll_transmit(due)).take(20).collect();
    assert!(!again.is_empty() && again.len() < 20, "{} segments go again", again.len());
}
