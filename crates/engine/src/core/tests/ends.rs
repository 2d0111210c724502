//! How sockets end when their programs cannot say more: exit, `exec`, a listener that goes or is shut down.

use scoutline_path::Path;
use scoutline_proto::tcp::TcpStage;

use super::*;

/// Holds an accepted connection, as the shim does.
pub(super) fn hold(pair: &Pair, slot: u32) {
    pair.server.slot(slot).references.fetch_add(1, Ordering::AcqRel);
    let holds = pair.server.region.holds(0).unwrap();
    holds[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
}

/// True once the client has got so many bytes and then an orderly end.
fn got_and_ended(pair: &Pair, client: u32, got: &mut usize, expected: usize) -> bool {
    *got += pair.client.read(client, usize::MAX).len();
    assert_eq!(pair.client.state(client) & slot_state::FAILED, 0, "reset after {got} bytes");
    *got == expected && pair.client.state(client) & slot_state::PEER_FINISHED != 0
}

#[test]
fn what_a_program_closed_before_it_ended_is_still_sent() {
    let mut pair = Pair::new(11, WireConfig { delay: Duration::from_millis(20), ..WireConfig::default() });
    let (listener, client, server) = pair.established(80);
    hold(&pair, server);
    let expected = pair.server.write(server, &pattern(RINGS as usize, 1));
    pair.server.request(server, slot_request::CLOSE);
    pair.server.request(listener, slot_request::CLOSE);
    // Before the engine has looked at either.
    let now = pair.now;
    pair.server.core.obey(Command::RemoveRegion(RegionId(1)), now);
    let mut got = 0;
    pair.until("all of it", |pair| got_and_ended(pair, client, &mut got, expected));
    pair.client.request(client, slot_request::CLOSE);
    pair.until("gone", |pair| pair.server.socket_paths() == 0);
}

#[test]
fn a_process_that_is_gone_has_closed_what_it_held() {
    let mut pair = Pair::new(12, WireConfig::default());
    let (_, client, server) = pair.established(80);
    hold(&pair, server);
    let expected = pair.server.write(server, b"last words");
    let program = pair.server.core.programs.values().next().unwrap().clone();
    let now = pair.now;
    pair.server.core.on_process_gone(&program, 0, now);
    let mut got = 0;
    pair.until("the end", |pair| got_and_ended(pair, client, &mut got, expected));
}

#[test]
fn a_process_that_is_gone_resets_where_it_would_not_linger() {
    let mut pair = Pair::new(12, WireConfig::default());
    let (_, client, server) = pair.established(80);
    hold(&pair, server);
    pair.server.slot(server).linger_plus_one.store(1, Ordering::Release);
    let program = pair.server.core.programs.values().next().unwrap().clone();
    let now = pair.now;
    pair.server.core.on_process_gone(&program, 0, now);
    pair.until("reset", |pair| pair.client.state(client) & slot_state::FAILED != 0);
    assert_eq!(pair.client.slot(client).error.load(Ordering::Relaxed), libc::ECONNRESET);
}

#[test]
fn a_listener_in_the_place_of_another_resets_none_of_its_connections() {
    let mut pair = Pair::new(13, WireConfig::default());
    let (first, client, server) = pair.established(80);
    hold(&pair, server);
    pair.server.request(first, slot_request::CLOSE);
    let now = pair.now;
    pair.server.core.listen_to_programs(now);
    let second = pair.listen(81);
    assert_eq!(first, second, "the test is about the same slot");
    let expected = pair.server.write(server, b"last words");
    pair.server.slot(server).references.store(0, Ordering::Release);
    pair.server.request(server, slot_request::CLOSE);
    pair.server.request(second, slot_request::CLOSE);
    let mut got = 0;
    pair.until("the end", |pair| got_and_ended(pair, client, &mut got, expected));
}

/// A connection in TIME-WAIT is a path without a socket, whoever has opened it: slot and rings are free for another one.
#[test]
fn who_closes_first_keeps_no_socket() {
    let mut pair = Pair::new(16, WireConfig::default());
    let (_, client, server) = pair.established(80);
    pair.client.write(client, b"question");
    pair.until("the question", |pair| pair.server.read(server, usize::MAX) == b"question");
    pair.client.request(client, slot_request::CLOSE);
    pair.server.request(server, slot_request::CLOSE);
    pair.until("the end", |pair| pair.client.slot(client).kind.load(Ordering::Acquire) == slot_kind::FREE);
    assert_eq!(pair.client.socket_paths(), 1, "it is in TIME-WAIT");
    let program = pair.client.core.programs.values().next().unwrap();
    assert_eq!(program.ring_bytes(), 0);
}

/// Of the only connection of a host.
fn next_initial(host: &Host) -> u32 {
    let stages = host.core.paths.iter().filter_map(Path::stage::<TcpStage>);
    let mut connections = stages.filter_map(TcpStage::connection);
    let next = connections.next().unwrap().next_initial();
    assert!(connections.next().is_none());
    next
}

/// Who has chosen both ends may connect them again at once, behind all numbers of the connection before.
#[test]
fn a_connection_follows_one_in_time_wait() {
    let mut pair = Pair::new(17, WireConfig::default());
    let listener = pair.listen(80);
    let settle = |pair: &mut Pair| {
        for _ in 0..20 {
            pair.client.settle(pair.now);
            pair.server.settle(pair.now);
            pair.now += Duration::from_micros(10);
        }
    };
    let connect = |pair: &mut Pair| {
        let client = pair.client.open(slot_kind::STREAM, pair.now);
        // With SO_REUSEADDR.
        assert_eq!(pair.client.call(call_op::BIND, client, [0, 40_000, 1, 0], pair.now), 0);
        (client, pair.client.call(call_op::CONNECT, client, [SERVER, 80, 0, 0], pair.now))
    };
    let (client, made) = connect(&mut pair);
    assert_eq!(made, 0);
    settle(&mut pair);
    let server = pair.server.accept(listener).unwrap();
    pair.client.request(client, slot_request::CLOSE);
    settle(&mut pair);
    pair.server.request(server, slot_request::CLOSE);
    settle(&mut pair);
    assert_eq!(pair.client.socket_paths(), 1, "it is in TIME-WAIT");
    let next = next_initial(&pair.client);
    // It holds its port, with those who share it.
    let alone = pair.client.open(slot_kind::STREAM, pair.now);
    let bound = pair.client.call(call_op::BIND, alone, [0, 40_000, 0, 0], pair.now);
    assert_eq!(bound, -libc::EADDRINUSE);
    pair.now += Duration::from_millis(10);
    let (client, made) = connect(&mut pair);
    assert_eq!(made, 0);
    settle(&mut pair);
    assert_eq!(pair.client.socket_paths(), 1, "the one before has gone");
    // RFC 6191 §2: behind all numbers of the one before, and its own SYN.
    assert_eq!(next_initial(&pair.client).wrapping_sub(next), 65_537 + 1);
    let server = pair.server.accept(listener).unwrap();
    pair.client.write(client, b"once more");
    settle(&mut pair);
    assert_eq!(pair.server.read(server, usize::MAX), b"once more");
}

/// Who opens connections and has them closed takes no place from others.
#[test]
fn connections_in_time_wait_make_room() {
    let (client, server) = wire(15, WireConfig::default());
    let mut pair = Pair {
        client: Host::new([10, 0, 0, 2], client, RINGS),
        server: Host::with([10, 0, 0, 1], server, RINGS, |settings| settings.max_paths = 30),
        now: Time::from_millis(1),
    };
    // Going to the next event would end TIME-WAIT.
    let settle = |pair: &mut Pair| {
        for _ in 0..10 {
            pair.client.settle(pair.now);
            pair.server.settle(pair.now);
            pair.now += Duration::from_micros(10);
        }
    };
    let listener = pair.listen(80);
    for round in 0..60 {
        let client = pair.connect(80);
        settle(&mut pair);
        let server = pair.server.accept(listener);
        pair.server
            .request(server.unwrap_or_else(|| panic!("refused in round {round}")), slot_request::CLOSE);
        settle(&mut pair);
        pair.client.request(client, slot_request::CLOSE);
        settle(&mut pair);
        assert_eq!(pair.client.socket_paths(), 0);
    }
    assert_eq!(pair.server.core.counters.paths_refused, 0);
    assert!(pair.server.socket_paths() > 10, "they wait as long as there is room");
}

#[test]
fn a_listener_that_is_shut_down_refuses_and_may_listen_again() {
    let mut pair = Pair::new(14, WireConfig::default());
    let listener = pair.listen(80);
    let waiting = pair.connect(80);
    pair.until("it waits", |pair| pair.server.slot(listener).receive_tail.load(Ordering::Acquire) == 1);
    pair.server.request(listener, slot_request::SHUTDOWN_READ);
    pair.until("reset", |pair| pair.client.state(waiting) & slot_state::FAILED != 0);
    assert_eq!(pair.server.state(listener) & slot_state::LISTENING, 0);
    let late = pair.connect(80);
    pair.until("refused", |pair| pair.client.state(late) & slot_state::FAILED != 0);
    assert_eq!(pair.client.slot(late).error.load(Ordering::Relaxed), libc::ECONNREFUSED);

    pair.server.slot(listener).requests.store(0, Ordering::Release);
    let now = pair.now;
    assert_eq!(pair.server.call(call_op::LISTEN, listener, [16, 0, 0, 0], now), 0);
    assert_eq!(pair.server.accept(listener), None, "what waited before is gone");
    let client = pair.connect(80);
    pair.until("accept", |pair| pair.server.accept(listener).is_some());
    assert_eq!(pair.client.state(client) & slot_state::FAILED, 0);
}

/// RFC 2525 §2.17, SO_LINGER: the close is a reset, and what was written before it goes first.
#[test]
fn an_answer_goes_before_the_reset_of_a_question_that_nobody_read() {
    for how in [slot_request::CLOSE, slot_request::ABORT] {
        let mut pair = Pair::new(14, WireConfig::default());
        let (_, client, server) = pair.established(80);
        hold(&pair, server);
        pair.client.write(client, b"question");
        let arrived = |pair: &mut Pair| pair.server.slot(server).receive_tail.load(Ordering::Acquire) == 8;
        pair.until("unread", arrived);
        // One look of the engine at both.
        pair.server.write(server, b"answer");
        pair.server.slot(server).references.store(0, Ordering::Release);
        pair.server.request(server, how);
        pair.until("a reset", |pair| pair.client.state(client) & slot_state::FAILED != 0);
        assert_eq!(pair.client.read(client, usize::MAX), b"answer");
        assert!(
            pair.server.core.programs.values().next().unwrap().end(server).is_none(),
            "its memory comes back"
        );
    }
}

/// A server that closes in two steps sleeps next, for its peer's end.
#[test]
fn who_begins_to_wait_behind_a_shutdown_is_not_woken_by_it() {
    const SET: u32 = 3;
    let mut pair = Pair::new(14, WireConfig::default());
    let (_, client, server) = pair.established(80);
    let is_told = |pair: &Pair| {
        let region = &pair.server.region;
        !region.ready(region.set(SET).unwrap()).is_empty()
    };
    pair.server.request(server, slot_request::SHUTDOWN);
    let slot = pair.server.slot(server);
    slot.sets[0].fetch_or(1 << SET, Ordering::SeqCst);
    slot.sets_summary.fetch_or(1, Ordering::SeqCst);
    pair.until("the end", |pair| pair.client.state(client) & slot_state::PEER_FINISHED != 0);
    assert!(!is_told(&pair));
    pair.server.request(server, slot_request::WAKE);
    pair.until("word of it", |pair| is_told(pair));
}
