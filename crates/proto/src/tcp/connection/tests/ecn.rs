//! ECN on one connection (RFC 3168 §6.1).

use super::*;
use crate::tcp::ecn::Policy;

const ECN_SYN: Flags = Flags::SYN.union(Flags::ECE).union(Flags::CWR);
const ECE_ACK: Flags = Flags::ACK.union(Flags::ECE);

fn offering() -> Connection {
    offering_with(false)
}

fn offering_with(sack: bool) -> Connection {
    let config = Config { ecn: Policy::Offer, selective_ack: sack, ..plain() };
    let mut connection = Connection::connect(config, ISS, 0, ms(0));
    assert_eq!(connection.poll_transmit(ms(0)).unwrap().header.flags, ECN_SYN);
    let mut answer = segment(0, 1, SYN_ACK | Flags::ECE);
    answer.options.sack_permitted = sack;
    connection.on_segment(&answer, 0, ms(1));
    assert!(connection.info().ecn);
    expect(&mut connection, ms(1), Flags::ACK, 1, 1);
    connection
}

#[test]
fn an_offer_is_accepted_and_one_of_accurate_ecn_falls_back() {
    // Accurate ECN sets the same two bits, and a third that nobody else looks at (RFC 9768 §3.1.1).
    let mut connection = Connection::accept(plain(), ISS, 0, &segment(0, 0, ECN_SYN), ms(0));
    let answer = connection.poll_transmit(ms(0)).unwrap();
    assert_eq!(answer.header.flags, SYN_ACK | Flags::ECE);
    assert!(!answer.ecn_capable, "§6.1.1: no SYN is");
    connection.on_segment(&segment(1, 1, Flags::ACK), 0, ms(1));
    assert!(connection.info().ecn);
    let config = Config { ecn: Policy::Off, ..plain() };
    let mut connection = Connection::accept(config, ISS, 0, &segment(0, 0, ECN_SYN), ms(0));
    assert_eq!(connection.poll_transmit(ms(0)).unwrap().header.flags, SYN_ACK);
}

/// §6.1.1.1
#[test]
fn an_offer_that_gets_no_answer_is_not_made_again() {
    let mut connection = Connection::connect(Config { ecn: Policy::Offer, ..plain() }, ISS, 0, ms(0));
    connection.poll_transmit(ms(0)).unwrap();
    let at = connection.next_timeout().unwrap();
    connection.on_timeout(at);
    assert_eq!(connection.poll_transmit(at).unwrap().header.flags, Flags::SYN);
    connection.on_segment(&segment(0, 1, SYN_ACK | Flags::ECE), 0, at);
    assert!(!connection.info().ecn);
}

#[test]
fn an_echo_reduces_the_window_once_and_is_answered_by_new_data() {
    let mut connection = offering();
    connection.on_written(60_000);
    let first = connection.poll_transmit(ms(2)).unwrap();
    assert!(first.ecn_capable);
    assert_eq!(first.payload, Some(0..10_000));
    connection.on_segment(&segment(1, 5_001, ECE_ACK), 0, ms(12));
    // Seven tenths of what was outstanding (RFC 9438 §4.6); then the growth of this acknowledgment.
    assert_eq!(connection.info().ssthresh, 7_000);
    assert_eq!((connection.info().retransmits, connection.info().lost), (0, 0));
    let next = connection.poll_transmit(ms(12)).unwrap();
    assert_eq!(next.payload, Some(10_000..11_000), "on a segment of its own");
    assert_eq!(next.header.flags.difference(Flags::PSH), Flags::ACK | Flags::CWR);
    assert_eq!((connection.info().reducing, connection.info().cwnd), (true, 7_000));
    connection.on_segment(&segment(1, 10_001, ECE_ACK), 0, ms(13));
    assert_eq!(connection.info().ssthresh, 7_000, "once for a window of data");
    let next = connection.poll_transmit(ms(13)).unwrap();
    assert!(!next.header.flags.contains(Flags::CWR));
    connection.on_segment(&segment(1, 11_001, ECE_ACK), 0, ms(23));
    assert!(connection.info().ssthresh < 7_000, "sent after the response");
}

/// RFC 9937: seven are sent for ten that arrive, from the first on. Before, nothing was until three had arrived.
#[test]
fn the_window_shrinks_in_proportion_to_what_arrives() {
    for sack in [true, false] {
        let mut connection = offering_with(sack);
        connection.on_written(60_000);
        assert_eq!(connection.poll_transmit(ms(2)).unwrap().payload, Some(0..10_000));
        let mut sent = 0;
        for (arrived, expected) in (1..).zip([1, 1, 2, 2, 2, 3, 4, 5, 6, 7]) {
            connection.on_segment(&segment(1, 1 + arrived * 1_000, ECE_ACK), 0, ms(12));
            while let Some(next) = connection.poll_transmit(ms(12)) {
                sent += next.payload.map_or(0, |range| range.end - range.start);
            }
            assert_eq!(sent, expected * 1_000, "after {arrived}");
        }
        connection.on_segment(&segment(1, 11_001, Flags::ACK), 0, ms(22));
        assert!(!connection.info().reducing);
        assert_eq!(connection.info().cwnd / 1_000, 7);
    }
}

#[test]
fn what_goes_again_and_what_bears_no_data_is_not_capable() {
    let mut connection = offering();
    connection.on_segment(&segment(1, 1, Flags::ACK), 2_000, ms(2));
    assert!(!connection.poll_transmit(ms(2)).unwrap().ecn_capable);
    connection.on_written(1_000);
    assert!(connection.poll_transmit(ms(2)).unwrap().ecn_capable);
    let at = connection.next_timeout().unwrap();
    connection.on_timeout(at);
    let again = connection.poll_transmit(at).unwrap();
    assert!(again.retransmission && !again.ecn_capable);
}

#[test]
fn a_mark_is_told_at_once_and_until_it_is_heard() {
    let mut connection = offering();
    let flags = |connection: &mut Connection, now| connection.poll_transmit(now).unwrap().header.flags;
    connection.on_segment(&segment(1, 1, Flags::ACK), 100, ms(2));
    connection.on_congestion_experienced();
    assert_eq!(flags(&mut connection, ms(2)), ECE_ACK);
    connection.on_segment(&segment(101, 1, Flags::ACK), 2_000, ms(3));
    assert_eq!(flags(&mut connection, ms(3)), ECE_ACK);
    connection.on_segment(&segment(2_101, 1, Flags::ACK | Flags::CWR), 1_000, ms(4));
    assert_eq!(flags(&mut connection, ms(4)), Flags::ACK);
    // Marked again itself.
    connection.on_segment(&segment(3_101, 1, Flags::ACK | Flags::CWR), 1_000, ms(5));
    connection.on_congestion_experienced();
    assert_eq!(flags(&mut connection, ms(5)), ECE_ACK);
}
