//! TCP_DEFER_ACCEPT (tcp(7)): a connection is accepted when it has something to say.

use scoutline_abi::layout::slot_option;

use super::*;

const WAIT_S: u64 = 3;

/// A listening socket that defers, and a connection to it whose client believes it to be there.
fn deferring() -> (Pair, u32, u32) {
    let mut pair = Pair::new(31, WireConfig::default());
    let listener = pair.listen(80);
    let now = pair.now;
    assert_eq!(
        pair.server.call(call_op::OPTION, listener, [slot_option::DEFER_ACCEPT, WAIT_S, 0, 0], now),
        0
    );
    let client = pair.connect(80);
    pair.until("connected", |pair| pair.client.state(client) & slot_state::CONNECTED != 0);
    let (client_host, server_host) = (&mut pair.client, &mut pair.server);
    server_host.settle(now + Duration::from_millis(1));
    client_host.settle(now + Duration::from_millis(1));
    assert_eq!(pair.server.accept(listener), None, "it has said nothing");
    (pair, listener, client)
}

#[test]
fn data_ends_the_wait() {
    let (mut pair, listener, client) = deferring();
    pair.client.write(client, b"hello");
    let mut accepted = None;
    let begun = pair.now;
    pair.until("accept", |pair| {
        accepted = pair.server.accept(listener);
        accepted.is_some()
    });
    assert!(pair.now < begun + Duration::from_secs(1), "at once, not by time");
    assert_eq!(pair.server.read(accepted.unwrap(), 10), b"hello");
}

#[test]
fn time_ends_the_wait() {
    let (mut pair, listener, client) = deferring();
    let begun = pair.now;
    let mut accepted = None;
    pair.until("accept", |pair| {
        accepted = pair.server.accept(listener);
        accepted.is_some()
    });
    let waited = pair.now.since(begun);
    assert!(waited >= Duration::from_secs(WAIT_S - 1), "{waited:?}");
    pair.client.write(client, b"late");
    pair.until("data", |pair| pair.server.read(accepted.unwrap(), 10) == b"late");
}

#[test]
fn who_leaves_meanwhile_leaves_nothing() {
    let (mut pair, listener, client) = deferring();
    pair.client.request(client, slot_request::ABORT);
    pair.until("gone", |pair| pair.server.socket_paths() == 1);
    assert_eq!(pair.server.accept(listener), None);
    let program = pair.server.core.programs.values().next().unwrap();
    assert_eq!(program.ends().len(), 1, "only the listening socket");
}

/// Data that has come out of order has a socket already, which nobody will ever accept.
#[test]
fn a_gap_in_the_data_of_who_is_never_accepted_leaves_nothing() {
    let mut gaps = 0;
    for seed in 0..30 {
        let delay = Duration::from_millis(5);
        let config = WireConfig { delay, jitter: delay, reorder: 0.5, ..WireConfig::default() };
        let mut pair = Pair::new(seed, config);
        let listener = pair.listen(80);
        let now = pair.now;
        let defer = [slot_option::DEFER_ACCEPT, WAIT_S, 0, 0];
        assert_eq!(pair.server.call(call_op::OPTION, listener, defer, now), 0);
        let client = pair.connect(80);
        pair.until("connected", |pair| pair.client.state(client) & slot_state::CONNECTED != 0);
        pair.client.write(client, &[7; 6_000]);
        let ends = |pair: &Pair| pair.server.core.programs.values().next().unwrap().ends().len();
        let mut accepted = None;
        pair.until("data", |pair| {
            accepted = pair.server.accept(listener);
            accepted.is_some() || ends(pair) == 2
        });
        if accepted.is_none() {
            gaps += 1;
            pair.server.request(listener, slot_request::CLOSE);
            pair.until("gone", |pair| pair.server.socket_paths() == 0);
            assert_eq!(ends(&pair), 0, "seed {seed}");
        }
    }
    assert!(gaps > 0, "the wire reorders");
}

#[test]
fn the_end_of_the_listening_socket_ends_those_that_wait() {
    let (mut pair, listener, client) = deferring();
    pair.server.request(listener, slot_request::CLOSE);
    pair.until("gone", |pair| pair.server.socket_paths() == 0);
    pair.client.write(client, b"hello");
    pair.until("reset", |pair| pair.client.state(client) & slot_state::FAILED != 0);
}

/// A set that watches the listening socket.
const SET: u32 = 3;

/// A connection that stands, of which nobody was told yet; and the listening socket.
fn held() -> (Pair, u32, u32) {
    let mut pair = Pair::new(33, WireConfig::default());
    let listener = pair.listen(80);
    let slot = pair.server.slot(listener);
    slot.sets[0].fetch_or(1 << SET, Ordering::SeqCst);
    slot.sets_summary.fetch_or(1, Ordering::SeqCst);
    pair.server.core.early.is_on.set(true);
    let client = pair.connect(80);
    pair.until("accepted", |pair| !pair.server.core.early.is_empty());
    assert!(!is_told(&pair));
    (pair, listener, client)
}

fn is_told(pair: &Pair) -> bool {
    let region = &pair.server.region;
    !region.ready(region.set(SET).unwrap()).is_empty()
}

#[test]
fn who_accepts_is_told_with_the_first_words() {
    let (mut pair, listener, client) = held();
    pair.client.write(client, b"hello");
    pair.until("word of it", |pair| is_told(pair));
    assert!(pair.server.core.early.is_empty());
    let accepted = pair.server.accept(listener).unwrap();
    assert_eq!(pair.server.read(accepted, 10), b"hello");
}

#[test]
fn who_accepts_is_told_by_and_by_of_a_client_that_says_nothing() {
    let (pair, listener, _) = held();
    assert!(!pair.server.core.early.end_patience(Time::ZERO) && !is_told(&pair), "it came later");
    let later = crate::clock::now() + Duration::from_millis(1);
    assert!(pair.server.core.early.end_patience(later) && is_told(&pair));
    assert!(pair.server.accept(listener).is_some());
}

#[test]
fn a_listener_may_go_before_anybody_is_told() {
    let (mut pair, listener, _) = held();
    pair.server.request(listener, slot_request::CLOSE);
    pair.until("gone", |pair| pair.server.socket_paths() == 0);
    pair.server.core.early.tell_all();
    assert!(pair.server.core.early.is_empty());
}

#[test]
fn a_program_may_go_before_anybody_is_told() {
    let (mut pair, ..) = held();
    let now = pair.now;
    pair.server.core.obey(Command::RemoveRegion(RegionId(1)), now);
    pair.server.core.early.tell_all();
    assert!(pair.server.core.early.is_empty());
}

#[test]
fn one_clients_words_say_nothing_of_another() {
    let (mut pair, _, client) = held();
    let other = pair.connect(80);
    pair.until("both", |pair| pair.server.core.early.len() == 2);
    pair.client.write(client, b"hello");
    pair.until("word of it", |pair| pair.server.core.early.len() == 1);
    pair.client.write(other, b"hello");
    pair.until("word of the other", |pair| pair.server.core.early.is_empty());
}

#[test]
fn who_is_accepted_meanwhile_is_not_told_of() {
    let (pair, listener, _) = held();
    assert!(pair.server.accept(listener).is_some());
    pair.server.core.early.tell_all();
    assert!(!is_told(&pair));
}
