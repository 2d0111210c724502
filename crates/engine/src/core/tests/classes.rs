//! Classes that change while paths live.

use std::sync::mpsc::{Receiver, channel};

use scoutline_abi::api::{Answer, ClassRow, PathRow};
use scoutline_sched::Level;

use super::*;
use crate::settings::ClassSettings;

pub(super) fn class(name: &str, change: impl FnOnce(&mut ClassSettings)) -> ClassSettings {
    let mut class = ClassSettings::new(name);
    change(&mut class);
    class
}

/// A class of a priority for one of our ports.
fn port(name: &str, port: u16, priority: u8) -> ClassSettings {
    class(name, |class| {
        class.local_ports = vec![port..=port];
        class.level = Level::Priority(priority);
        class.listen_level = Level::Priority(priority);
    })
}

impl Host {
    /// Asks for a change without letting anything of it happen but the first step.
    fn begin(&mut self, classes: Vec<ClassSettings>, now: Time) -> Receiver<Answer> {
        let (done, answer) = channel();
        self.core.obey(Command::SetClasses(classes, done), now);
        answer
    }

    pub(super) fn change(&mut self, classes: Vec<ClassSettings>, now: Time) {
        let answer = self.begin(classes, now);
        self.settle(now);
        assert!(matches!(answer.try_recv(), Ok(Answer::Done)), "the answer follows the last path");
    }

    pub(super) fn rows(&self, now: Time) -> Vec<PathRow> {
        match self.core.answer_query(&Request::Ps, now) {
            Answer::Paths { paths } => paths,
            other => panic!("{other:?}"),
        }
    }

    /// Class and priority of the paths that are in this state.
    fn classes_in(&self, state: &str, now: Time) -> Vec<(String, Option<u8>)> {
        let rows = self.rows(now).into_iter().filter(|row| row.state.as_deref() == Some(state));
        rows.map(|row| (row.class, row.priority)).collect()
    }

    pub(super) fn class_row(&self, name: &str, now: Time) -> ClassRow {
        let Answer::Stat(stat) = self.core.answer_query(&Request::Stat, now) else { panic!("no stat") };
        stat.classes.into_iter().find(|class| class.name == name).unwrap_or_else(|| panic!("no class {name}"))
    }

    /// What `stat` says of the engine under this name.
    pub(super) fn counter(&self, name: &str, now: Time) -> u64 {
        let Answer::Stat(stat) = self.core.answer_query(&Request::Stat, now) else { panic!("no stat") };
        stat.engine[name]
    }

    /// Names of classes that have a listen path.
    fn listened(&self, now: Time) -> Vec<String> {
        let mut names: Vec<String> =
            self.classes_in("LISTEN", now).into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }
}

fn of(name: &str, priority: u8) -> Vec<(String, Option<u8>)> {
    vec![(name.to_owned(), Some(priority))]
}

#[test]
fn a_connection_changes_its_class_and_loses_nothing() {
    let mut pair = Pair::new(11, hard_wire());
    let (_, client, server) = pair.established(80);
    let sent = pattern(300_000, 1);
    let (mut at, mut got) = (0, Vec::new());
    let names = ["one", "two", "three"];
    let mut round = 0;
    pair.until("the transfer", |pair| {
        at += pair.client.write(client, &sent[at..]);
        got.extend(pair.server.read(server, 5_000));
        // At every step another class, now above, now below Linux's level.
        round += 1;
        let (name, priority) = (names[round % 3], round as u8 % 4);
        let now = pair.now;
        pair.server.change(vec![port("never", 81, 9), port(name, 80, priority)], now);
        assert_eq!(pair.server.classes_in("ESTABLISHED", now), of(name, priority));
        assert_eq!(pair.server.slot(server).urgent.load(Ordering::Relaxed), u16::from(priority > 0));
        assert_eq!(pair.server.listened(now), [name], "a listen path for what can match");
        got.len() == sent.len()
    });
    assert!(got == sent, "the streams differ");
    assert!(round > 50);
    let now = pair.now;
    let path = pair.server.rows(now).into_iter().find(|row| row.state.as_deref() == Some("ESTABLISHED"));
    assert!(path.unwrap().bytes_in > sent.len() as u64, "its account is that of its whole life");
    let system = pair.server.rows(now).into_iter().filter(|row| row.program.is_none());
    assert!(system.map(|row| (row.class, row.priority)).all(|(class, _)| class == "default"));
}

#[test]
fn listen_paths_come_and_go_with_classes() {
    let mut pair = Pair::new(12, WireConfig::default());
    let listener = pair.listen(80);
    let now = pair.now;
    assert_eq!(pair.server.listened(now), ["default"]);
    let near = |name| class(name, |class| class.sources = vec![([10, 0, 0, 0].into(), 24)]);
    pair.server.change(vec![near("near"), port("else", 443, 1)], now);
    assert_eq!(pair.server.listened(now), ["default", "near"]);
    pair.server.change(vec![port("web", 80, 1), near("near")], now);
    assert_eq!(pair.server.listened(now), ["web"], "what stands behind it cannot be reached");
    pair.server.change(vec![near("near"), port("web", 80, 1)], now);
    assert_eq!(pair.server.listened(now), ["near", "web"]);
    // A second socket is opened under the rules of then.
    pair.listen(443);
    assert_eq!(pair.server.listened(now), ["default", "near", "near", "web"]);
    pair.server.request(listener, slot_request::CLOSE);
    pair.server.settle(now);
    assert_eq!(pair.server.listened(now), ["default", "near"]);
}

#[test]
fn a_syn_that_waits_for_a_class_that_goes_is_answered() {
    let mut pair = Pair::new(13, WireConfig::default());
    let listener = pair.listen(80);
    let now = pair.now;
    pair.server.change(vec![class("near", |class| class.sources = vec![([10, 0, 0, 0].into(), 24)])], now);
    let _warm = pair.connect(80);
    pair.until("the neighbours know each other", |pair| pair.server.accept(listener).is_some());
    let client = pair.connect(80);
    let begin = pair.now;
    pair.client.settle(begin);
    // It lies in the queue of the listen path of "near", and in no step further.
    let mut now = begin;
    while pair.server.core.schedule.is_idle() {
        now += Duration::from_micros(1);
        pair.server.core.pull(now);
        assert!(now.since(begin) < Duration::from_secs(1));
    }
    let answer = pair.server.begin(vec![port("web", 80, 1)], now);
    while pair.server.core.sweep(now) {}
    assert!(answer.try_recv().is_ok());
    assert_eq!(pair.server.listened(now), ["web"]);
    pair.now = now;
    pair.until("accept", |pair| pair.client.state(client) & slot_state::CONNECTED != 0);
    assert!(pair.now.since(begin) < Duration::from_millis(500), "not by asking again");
    pair.until("accept", |pair| pair.server.accept(listener).is_some());
    assert_eq!(pair.server.classes_in("ESTABLISHED", pair.now), [of("web", 1), of("web", 1)].concat());
}

#[test]
fn marks_leave_and_classify() {
    let mut pair = Pair::new(14, WireConfig::default());
    let now = pair.now;
    pair.client.change(vec![class("out", |class| class.mark = Some(46))], now);
    let ef = || class("ef", |class| class.dscps = vec![46]);
    pair.server.change(vec![ef(), port("rest", 80, 1)], now);
    let (_, client, server) = pair.established(80);
    let now = pair.now;
    assert_eq!(pair.server.classes_in("ESTABLISHED", now), of("ef", 0));
    // What counts is the first packet, also when the rules are new.
    pair.client.change(Vec::new(), now);
    pair.client.write(client, b"unmarked");
    pair.until("data", |pair| !pair.server.read(server, 100).is_empty());
    let now = pair.now;
    pair.server.change(vec![class("best effort", |class| class.dscps = vec![0]), ef()], now);
    assert_eq!(pair.server.classes_in("ESTABLISHED", now), of("ef", 0));
    pair.connect(80);
    pair.until("the second", |pair| pair.server.classes_in("ESTABLISHED", pair.now).len() == 2);
    let mut classes = pair.server.classes_in("ESTABLISHED", pair.now);
    classes.sort();
    assert_eq!(classes, [of("best effort", 0), of("ef", 0)].concat());
}

#[test]
fn connections_beyond_the_limit_are_refused_and_counted() {
    let limited = |limit| vec![class("limited", |class| class.connections = Some(limit))];
    let mut pair = Pair::new(15, WireConfig::default());
    let now = pair.now;
    pair.server.change(limited(2), now);
    let (_, first, accepted) = pair.established(80);
    let _second = pair.connect(80);
    pair.until("the second", |pair| pair.server.class_row("limited", pair.now).connections == 2);
    let third = pair.connect(80);
    let asked = pair.now;
    pair.until("a refusal", |pair| !pair.server.class_row("limited", pair.now).drops.is_empty());
    let row = pair.server.class_row("limited", pair.now);
    assert_eq!((row.drops["connection-limit"], row.drops.len(), row.connections), (1, 1, 2));
    let listening = pair.server.rows(pair.now).into_iter().find(|row| row.state.as_deref() == Some("LISTEN"));
    assert_eq!(listening.unwrap().drops["connection-limit"], 1, "at the path that would have answered");
    assert_eq!(pair.client.state(third) & slot_state::CONNECTED, 0);
    // TIME-WAIT is no connection: the server's end closes first.
    pair.server.request(accepted, slot_request::CLOSE);
    pair.client.request(first, slot_request::CLOSE);
    pair.until("the third, by asking again", |pair| pair.client.state(third) & slot_state::CONNECTED != 0);
    assert!(pair.now.since(asked) < Duration::from_secs(8));
    assert_eq!(pair.server.classes_in("TIME-WAIT", pair.now).len(), 1);

    // A limit that comes later counts those that are there; none of them is lost.
    let now = pair.now;
    pair.client.change(limited(1), now);
    assert_eq!(pair.client.class_row("limited", now).connections, 2);
    let fourth = pair.client.open(slot_kind::STREAM, now);
    let connect = [SERVER, 80, 0, 0];
    assert_eq!(pair.client.call(call_op::CONNECT, fourth, connect, now), -libc::ENOBUFS);
    assert_eq!(pair.client.class_row("limited", now).drops["connection-limit"], 1);
    assert_eq!(pair.client.classes_in("ESTABLISHED", now).len(), 2);
    pair.client.change(limited(3), now);
    assert_eq!(pair.client.call(call_op::CONNECT, fourth, connect, now), 0, "the socket can be tried again");
}

#[test]
fn memory_is_charged_to_the_class_of_now() {
    let mut pair = Pair::new(16, WireConfig::default());
    let (_, client, accepted) = pair.established(80);
    let now = pair.now;
    let rings = u64::from(RINGS) * 2;
    pair.server.change(vec![class("small", |class| class.memory = Some(1000))], now);
    let small = pair.server.core.policy.class(pair.server.core.policy.classes()[0].number);
    assert_eq!(small.memory.buffer_bytes(), rings, "kept, though it is beyond the limit");
    let second = pair.connect(80);
    pair.until("no more", |pair| pair.client.state(second) & slot_state::FAILED != 0);
    let now = pair.now;
    pair.server.change(Vec::new(), now);
    assert_eq!(small.memory.buffer_bytes(), 0);
    assert_eq!(pair.server.core.policy.class(0).memory.buffer_bytes(), rings);
    pair.client.request(client, slot_request::ABORT);
    pair.server.request(accepted, slot_request::CLOSE);
    pair.until("it returns", |pair| pair.server.core.policy.class(0).memory.buffer_bytes() == 0);
}

#[test]
fn many_paths_are_classified_in_pieces() {
    const SOCKETS: u64 = 600;
    let mut pair = Pair::new(17, WireConfig::default());
    let now = pair.now;
    for socket in 0..SOCKETS {
        let slot = pair.server.open(slot_kind::DATAGRAM, now);
        assert_eq!(pair.server.call(call_op::BIND, slot, [0, 10_000 + socket, 0, 0], now), 0);
    }
    let low = || class("low", |class| class.local_ports = vec![0..=10_299]);
    let answer = pair.server.begin(vec![low()], now);
    let in_low = |pair: &Pair| pair.server.core.paths.iter().filter(|path| path.class() != 0).count();
    let (mut turns, mut before) = (0, 0);
    while pair.server.core.sweep(now) {
        turns += 1;
        assert!(in_low(&pair) - before <= 150, "a bounded piece a turn");
        assert!(answer.try_recv().is_err(), "not before the end");
        before = in_low(&pair);
        if turns == 2 {
            // What comes during the sweep is of the new rules at once.
            let slot = pair.server.open(slot_kind::DATAGRAM, now);
            assert_eq!(pair.server.call(call_op::BIND, slot, [0, 9_000, 0, 0], now), 0);
        }
    }
    assert!(turns >= 4, "{turns}");
    assert!(answer.try_recv().is_ok());
    assert_eq!(pair.server.class_row("low", now).paths, 301);

    // A change during a sweep starts it anew; both are answered, and nothing is left of what was between.
    let first = pair.server.begin(vec![port("between", 10_001, 5)], now);
    assert!(pair.server.core.sweep(now));
    let second = pair.server.begin(vec![low(), port("high", 10_500, 2)], now);
    while pair.server.core.sweep(now) {}
    assert!(first.try_recv().is_ok() && second.try_recv().is_ok());
    assert_eq!(pair.server.class_row("low", now).paths, 301);
    assert_eq!(pair.server.class_row("high", now).paths, 1);
    assert_eq!(pair.server.core.policy.leaving(), 0);
}

#[test]
fn what_a_removed_class_has_cost_is_not_lost() {
    let mut pair = Pair::new(18, WireConfig::default());
    let now = pair.now;
    pair.server.change(vec![port("web", 80, 1)], now);
    let (_, client, _) = pair.established(80);
    pair.client.request(client, slot_request::ABORT);
    pair.until("gone", |pair| pair.server.classes_in("ESTABLISHED", pair.now).is_empty());
    let now = pair.now;
    let spent = pair.server.class_row("web", now).packets_in;
    assert!(spent >= 2);
    let before = pair.server.class_row("default", now).packets_in;
    pair.server.change(Vec::new(), now);
    assert_eq!(pair.server.class_row("default", now).packets_in, before + spent);
    pair.server.change(vec![port("other", 80, 1)], now);
    assert_eq!(pair.server.class_row("other", now).packets_in, 0, "its number was used before");
}

/// The congestion control of the one connection, if it is not the ordinary one.
fn congestion(host: &Host, now: Time) -> Option<String> {
    let rows = host.rows(now);
    let mut rows = rows.iter().filter(|row| row.state.as_deref() == Some("ESTABLISHED"));
    let row = rows.next().expect("a connection");
    assert!(rows.next().is_none(), "one connection");
    row.details.get("congestion").cloned()
}

#[test]
fn a_class_that_becomes_idle_and_busy_again_changes_how_its_connections_yield() {
    let mut pair = Pair::new(20, hard_wire());
    let (_, client, server) = pair.established(80);
    let sent = pattern(200_000, 2);
    let (mut at, mut got, mut round) = (0, Vec::new(), 0);
    pair.until("the transfer", |pair| {
        at += pair.server.write(server, &sent[at..]);
        got.extend(pair.client.read(client, 5_000));
        round += 1;
        let idle = class("web", |class| {
            class.local_ports = vec![80..=80];
            class.level = if round % 8 < 4 { Level::Idle } else { Level::Priority(1) };
        });
        let now = pair.now;
        pair.server.change(vec![idle], now);
        let expected = if round % 8 < 4 { "ledbat++" } else { "cubic" };
        assert_eq!(congestion(&pair.server, now).as_deref(), Some(expected));
        got.len() == sent.len()
    });
    assert!(got == sent, "the streams differ");
    assert!(round > 20);
}

#[test]
fn paths_of_a_background_program_are_idle_whatever_their_class() {
    let mut pair = Pair::in_background(21, WireConfig::default());
    let now = pair.now;
    pair.server.change(vec![port("important", 80, 5)], now);
    pair.established(80);
    let now = pair.now;
    let idle = |name: &str| vec![(name.to_owned(), None)];
    assert_eq!(pair.server.classes_in("LISTEN", now), idle("important"));
    assert_eq!(pair.server.classes_in("ESTABLISHED", now), idle("important"));
    assert_eq!(pair.client.classes_in("ESTABLISHED", now), idle("default"), "one that it opened itself");
    for host in [&pair.client, &pair.server] {
        assert_eq!(congestion(host, now).as_deref(), Some("ledbat++"));
    }
    pair.server.change(vec![port("vital", 80, 9)], now);
    assert_eq!(pair.server.classes_in("LISTEN", now), idle("vital"));
    assert_eq!(pair.server.classes_in("ESTABLISHED", now), idle("vital"));
    assert_eq!(congestion(&pair.server, now).as_deref(), Some("ledbat++"));
}
