//! How much leaves as one, and what PSH marks.

use super::*;

/// An open connection whose round trip is `rtt_ms`, with this much to send.
fn writing(rtt_ms: u64, bytes: u64) -> Connection {
    let mut connection = syn_sent(plain());
    connection.on_segment(&segment(0, 1, SYN_ACK), 0, ms(rtt_ms));
    expect(&mut connection, ms(rtt_ms), Flags::ACK, 1, 1);
    connection.on_written(bytes);
    connection
}

fn sizes(connection: &mut Connection, now: Time) -> Vec<u64> {
    let transmits = std::iter::from_fn(|| connection.poll_transmit(now));
    transmits.filter_map(|transmit| transmit.payload).map(|range| range.end - range.start).collect()
}

/// So that two acknowledgments clock out what follows; where the round trip is short it costs and brings nothing.
#[test]
fn a_window_leaves_in_two_on_long_paths_only() {
    assert_eq!(sizes(&mut writing(20, 26_000), ms(20)), [5_000, 5_000]);
    assert_eq!(sizes(&mut writing(1, 26_000), ms(1)), [10_000]);
}

/// MSG_MORE and TCP_CORK hold back alike, but with MSG_MORE PSH would say that nothing follows.
#[test]
fn what_more_shall_follow_is_not_pushed() {
    let pushes = |connection: &mut Connection| {
        let transmit = connection.poll_transmit(ms(1)).expect("something to send");
        transmit.header.flags.contains(Flags::PSH)
    };
    assert!(pushes(&mut writing(1, 1_000)));
    for by_call in [true, false] {
        let mut held = writing(1, 1_000);
        held.set_held(Some(500), by_call, by_call);
        assert_eq!(pushes(&mut held), !by_call, "a full segment goes");
        let mut released = writing(1, 500);
        released.set_held(Some(0), by_call, by_call);
        quiet(&mut released, ms(1));
        released.set_held(None, false, false);
        assert_eq!(pushes(&mut released), !by_call);
        let mut followed = writing(1, 500);
        followed.set_held(Some(0), by_call, by_call);
        followed.set_held(None, false, false);
        followed.on_written(600);
        assert!(pushes(&mut followed), "what followed was the end");
    }
}

/// As in Linux: MSG_MORE binds its call, TCP_CORK the socket.
#[test]
fn an_acknowledgment_lets_go_what_a_call_held_back_and_no_cork() {
    for by_call in [true, false] {
        let mut connection = writing(1, 1_000);
        connection.set_held(Some(1_000), by_call, by_call);
        connection.on_written(1_300);
        assert_eq!(sizes(&mut connection, ms(1)), [1_000]);
        connection.on_segment(&segment(1, 1_001, Flags::ACK), 0, ms(2));
        assert_eq!(sizes(&mut connection, ms(2)), if by_call { vec![300] } else { vec![] });
        connection.on_written(1_500);
        assert_eq!(sizes(&mut connection, ms(2)), [] as [u64; 0], "what is written later waits again");
    }
}

#[test]
fn what_the_timer_sends_is_pushed() {
    let mut held = writing(1, 500);
    held.set_held(Some(0), true, true);
    quiet(&mut held, ms(1));
    let due = held.next_timeout().expect("it waits for no longer than 200 ms");
    held.on_timeout(due);
    let transmit = held.poll_transmit(due).expect("something to send");
    assert!(transmit.header.flags.contains(Flags::PSH));
}
