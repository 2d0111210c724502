//! What cannot be carried is refused, counted, and comes in when there is room again.

use scoutline_abi::api::Answer;
use scoutline_abi::layout::slot_option;
use scoutline_sched::Weight;

use super::classes::class;
use super::policies::asking;
use super::*;
use crate::scheduling::Asks;

/// A connection to port 80 that is not admitted at the server.
fn refused(pair: &mut Pair, reason: &str) -> u32 {
    let before = pair.server.class_row("web", pair.now).drops.get(reason).copied().unwrap_or(0);
    let all_before = pair.server.counter("paths-refused", pair.now);
    let slot = pair.connect(80);
    pair.until("a refusal", |pair| {
        pair.server.class_row("web", pair.now).drops.get(reason).is_some_and(|&count| count > before)
    });
    let more = pair.server.class_row("web", pair.now).drops[reason] - before;
    assert_eq!(pair.server.counter("paths-refused", pair.now) - all_before, more);
    assert_eq!(pair.client.state(slot) & slot_state::CONNECTED, 0);
    slot
}

#[test]
fn deadlines_beyond_the_share_are_refused() {
    // A fifth of the CPU is EDF's; each connection takes 9 % of the CPU.
    let edf = Asks::Deadline { within_us: 10_000, budget_us: 900 };
    let mut pair = Pair::new(41, WireConfig::default());
    let now = pair.now;
    pair.server.change(vec![asking("web", 80, edf)], now);
    let (_, first, accepted) = pair.established(80);
    pair.connect(80);
    pair.until("the second", |pair| pair.server.class_row("web", pair.now).connections == 2);
    let third = refused(&mut pair, "cpu-limit");
    let row = pair.server.class_row("web", pair.now);
    assert!((row.promised_percent - 18.0).abs() < 1e-9, "{row:?}");
    let Answer::Stat(stat) = pair.server.core.answer_query(&Request::Stat, pair.now) else { panic!() };
    let policy = stat.policies.iter().find(|policy| policy.name == "edf").unwrap();
    assert!((policy.share_percent - 20.0).abs() < 1e-9 && (policy.promised_percent - 18.0).abs() < 1e-9);
    // When one goes, the next one that asks gets its place.
    pair.client.request(first, slot_request::CLOSE);
    pair.server.request(accepted, slot_request::ABORT);
    pair.until("the third, by asking again", |pair| pair.client.state(third) & slot_state::CONNECTED != 0);

    // A change of the class keeps those that are there, and counts them anew.
    let now = pair.now;
    let more = Asks::Deadline { within_us: 10_000, budget_us: 1_100 };
    pair.server.change(vec![asking("web", 80, more)], now);
    assert_eq!(pair.server.class_row("web", now).connections, 2);
    assert!((pair.server.class_row("web", now).promised_percent - 22.0).abs() < 1e-9);
    pair.server.change(vec![asking("web", 80, Asks::Weight(Weight::default()))], now);
    assert!(pair.server.class_row("web", now).promised_percent.abs() < 1e-9);
    pair.server.change(Vec::new(), now);
    assert!(pair.server.core.promises.all().iter().all(|(_, given)| *given == 0));
}

#[test]
fn shares_beyond_the_policy_or_the_class_are_refused() {
    let rate =
        |percent: u64, important| Asks::Rate { rate: Weight::new(percent * 100), important, job: None };
    let mut pair = Pair::new(42, WireConfig::default());
    let now = pair.now;
    pair.server.change(vec![asking("web", 80, rate(15, true))], now);
    pair.established(80);
    refused(&mut pair, "cpu-limit");
    let now = pair.now;
    // Best effort promises nothing.
    pair.server.change(vec![asking("web", 80, rate(15, false))], now);
    pair.until("all", |pair| pair.server.class_row("web", pair.now).connections == 2);
    let now = pair.now;
    let mut limited = asking("web", 80, rate(4, true));
    limited.cpu_limit = Some(100_000);
    pair.server.change(vec![limited], now);
    refused(&mut pair, "cpu-limit");
    assert!((pair.server.class_row("web", pair.now).promised_percent - 8.0).abs() < 1e-9);
}

#[test]
fn programs_are_told_and_refusals_counted() {
    let edf = Asks::Deadline { within_us: 1_000, budget_us: 150 };
    let mut pair = Pair::new(43, WireConfig::default());
    let now = pair.now;
    let out = |asks| {
        class("out", |class| {
            class.remote_ports = vec![80..=80];
            class.asks = asks;
        })
    };
    pair.client.change(vec![out(edf)], now);
    pair.connect(80);
    let slot = pair.client.open(slot_kind::STREAM, now);
    let connect = [SERVER, 80, 0, 0];
    assert_eq!(pair.client.call(call_op::CONNECT, slot, connect, now), -libc::ENOBUFS);
    let datagrams = pair.client.open(slot_kind::DATAGRAM, now);
    assert_eq!(pair.client.call(call_op::BIND, datagrams, [0, 5000, 0, 0], now), 0);
    assert_eq!(pair.client.call(call_op::CONNECT, datagrams, connect, now), -libc::ENOBUFS);
    assert_eq!(pair.client.class_row("out", now).drops["cpu-limit"], 2);
    assert_eq!(pair.client.counter("paths-refused", now), 2);
    let paths = pair.client.socket_paths();
    assert_eq!(pair.client.call(call_op::CONNECT, datagrams, connect, now), -libc::ENOBUFS);
    assert_eq!(pair.client.socket_paths(), paths, "who is refused keeps the path that it has");
    let end = pair.client.core.programs.values().next().unwrap().end(datagrams).unwrap();
    assert!(end.path.get().is_some_and(|id| pair.client.core.paths.get(id).is_some()), "and can be reached");
    pair.client.change(vec![out(Asks::Level)], now);
    assert_eq!(pair.client.call(call_op::CONNECT, slot, connect, now), 0, "the socket can be tried again");
    assert_eq!(pair.client.call(call_op::CONNECT, datagrams, connect, now), 0);
}

#[test]
fn memory_of_a_policy_is_that_of_its_classes_together() {
    let rings = u64::from(RINGS) * 2;
    let mut pair = Pair::new(44, WireConfig::default());
    let now = pair.now;
    let web = |asks| vec![asking("web", 80, asks), asking("other", 81, asks)];
    let weight = Asks::Weight(Weight::default());
    pair.server.core.policy_memory.all()[2].set_limits(u32::MAX, 2 * rings);
    pair.server.change(web(weight), now);
    pair.established(81);
    pair.established(80);
    let third = refused(&mut pair, "memory-limit");
    assert_eq!(pair.server.class_row("web", pair.now).memory_bytes, rings);
    let now = pair.now;
    // Elsewhere there is room, and what they hold goes with them.
    pair.server.change(web(Asks::Level), now);
    let held = |pair: &Pair, policy: usize| pair.server.core.policy_memory.all()[policy].buffer_bytes();
    assert_eq!((held(&pair, 0), held(&pair, 2)), (2 * rings, 0));
    pair.until("the third, by asking again", |pair| held(pair, 0) == 3 * rings);
    assert_ne!(pair.client.state(third) & slot_state::CONNECTED, 0);
}

/// Queues of connections and of errors are memory as other rings are.
#[test]
fn queues_are_charged_too() {
    const QUEUE: u64 = 16 << 10;
    let mut pair = Pair::new(47, WireConfig::default());
    let now = pair.now;
    let host = &mut pair.server;
    let held = |host: &Host| host.core.paths.budget().buffer_bytes();
    assert_eq!(held(host), 0);
    host.core.paths.budget().set_limits(u32::MAX, 2 * QUEUE);
    let listen = |host: &mut Host, port| {
        let slot = host.open(slot_kind::STREAM, now);
        assert_eq!(host.call(call_op::BIND, slot, [0, port, 0, 0], now), 0);
        (slot, host.call(call_op::LISTEN, slot, [16, 0, 0, 0], now))
    };
    let (first, listens) = listen(host, 80);
    assert_eq!((listens, held(host)), (0, QUEUE));
    let errors = host.open(slot_kind::DATAGRAM, now);
    let queue_errors =
        |host: &mut Host, slot| host.call(call_op::OPTION, slot, [slot_option::QUEUE_ERRORS, 1, 0, 0], now);
    assert_eq!(queue_errors(host, errors), 0);
    assert_eq!((queue_errors(host, errors), held(host)), (0, 2 * QUEUE), "once");
    let other = host.open(slot_kind::DATAGRAM, now);
    assert_eq!(queue_errors(host, other), -libc::ENOBUFS);
    let (_, refused) = listen(host, 81);
    assert_eq!(refused, -libc::ENOBUFS);
    for slot in [first, errors] {
        host.request(slot, slot_request::CLOSE);
    }
    host.settle(now);
    assert_eq!(held(host), 0, "and come back");
}
