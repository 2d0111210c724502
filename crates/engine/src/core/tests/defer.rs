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

#[test]
fn the_end_of_the_listening_socket_ends_those_that_wait() {
    let (mut pair, listener, client) = deferring();
    pair.server.request(listener, slot_request::CLOSE);
    pair.until("gone", |pair| pair.server.socket_paths() == 0);
    pair.client.write(client, b"hello");
    pair.until("reset", |pair| pair.client.state(client) & slot_state::FAILED != 0);
}
