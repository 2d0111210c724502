//! What a program asks for a socket: lower always, higher with permission, live.

use std::sync::mpsc::channel;

use scoutline_abi::api::{Answer, PathRow};
use scoutline_abi::layout::{CLASS_NAME_LEN, slot_option};
use scoutline_sched::{Level, Weight};

use super::*;
use crate::scheduling::Asks;
use crate::settings::{ClassSettings, PermissionSettings};

fn class(name: &str, level: Level, port: u16) -> ClassSettings {
    ClassSettings { level, listen_level: level, local_ports: vec![port..=port], ..ClassSettings::new(name) }
}

fn rules() -> Vec<ClassSettings> {
    vec![
        class("web", Level::Priority(2), 80),
        class("top", Level::Priority(9), 1),
        class("low", Level::Priority(1), 1),
        class("backup", Level::Idle, 1),
    ]
}

impl Host {
    fn rule(&mut self, classes: Vec<ClassSettings>, permissions: Vec<PermissionSettings>, now: Time) {
        let (done, answer) = channel();
        self.core.obey(Command::SetPermissions(permissions), now);
        self.core.obey(Command::SetClasses(classes, done), now);
        self.settle(now);
        assert!(matches!(answer.try_recv(), Ok(Answer::Done)));
    }

    fn wish(&mut self, slot: u32, option: u64, value: u64, now: Time) -> i32 {
        self.call(call_op::OPTION, slot, [option, value, 0, 0], now)
    }

    fn wish_class(&mut self, slot: u32, name: &str, now: Time) -> i32 {
        let mut bytes = [0; CLASS_NAME_LEN];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
        self.call(call_op::SET_CLASS, slot, [word(0), word(1), word(2), word(3)], now)
    }

    fn told(&mut self, slot: u32, option: u64, now: Time) -> i32 {
        self.call(call_op::GET_OPTION, slot, [option, 0, 0, 0], now)
    }

    fn told_class(&mut self, slot: u32, now: Time) -> String {
        let len = self.told(slot, slot_option::CLASS, now) as usize;
        let words = self.region.call(0).unwrap().arguments.iter();
        let bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn row_in(&self, state: Option<&str>, now: Time) -> PathRow {
        let Answer::Paths { paths } = self.core.answer_query(&Request::Ps, now) else { panic!("ps") };
        let found = paths.into_iter().filter(|row| row.program.is_some());
        found
            .into_iter()
            .find(|row| row.state.as_deref() == state)
            .unwrap_or_else(|| panic!("none {state:?}"))
    }

    fn place(&self, state: &str, now: Time) -> (String, Option<u8>) {
        let row = self.row_in(Some(state), now);
        (row.class, row.priority)
    }
}

fn at(class: &str, priority: u8) -> (String, Option<u8>) {
    (class.to_owned(), Some(priority))
}

const PRIORITY: u64 = slot_option::PRIORITY;
const BACKGROUND: u64 = slot_option::BACKGROUND;
const DEADLINE: u64 = slot_option::DEADLINE;
const WEIGHT: u64 = slot_option::WEIGHT;
const EXTEND: u64 = slot_option::EXTEND;
const AS_CLASS: u64 = slot_option::AS_CLASS;

#[test]
fn a_connection_lowers_itself_and_rises_with_permission() {
    let mut pair = Pair::new(1, WireConfig::default());
    let now = pair.now;
    pair.server.rule(rules(), Vec::new(), now);
    let (_, _, socket) = pair.established(80);
    let now = pair.now;
    let server = &mut pair.server;
    let place = |server: &Host| server.place("ESTABLISHED", now);
    assert_eq!(server.told(socket, PRIORITY, now), 2);
    assert_eq!(server.wish(socket, PRIORITY, 1, now), 0);
    assert_eq!((place(server), server.told(socket, PRIORITY, now)), (at("web", 1), 1));
    assert_eq!(server.slot(socket).importance.load(Ordering::Relaxed), 2);
    assert_eq!(server.wish(socket, PRIORITY, 3, now), -libc::EPERM);
    assert_eq!(place(server), at("web", 1), "it stays");
    assert_eq!(server.wish(socket, BACKGROUND, 1, now), 0);
    assert_eq!(place(server), ("web".to_owned(), None));
    assert_eq!(server.told(socket, PRIORITY, now), slot_option::NO_PRIORITY);
    assert_eq!(server.told(socket, BACKGROUND, now), 1);
    assert_eq!(server.wish(socket, BACKGROUND, 0, now), 0);
    assert_eq!(place(server), at("web", 1));
    assert_eq!(server.wish(socket, PRIORITY, AS_CLASS, now), 0);
    assert_eq!(place(server), at("web", 2));

    assert_eq!(server.wish_class(socket, "top", now), -libc::EPERM);
    assert_eq!(server.wish_class(socket, "none", now), -libc::ENOENT);
    assert_eq!(server.wish_class(socket, "low", now), 0);
    assert_eq!((place(server), server.told_class(socket, now)), (at("low", 1), "low".to_owned()));
    assert_eq!(server.wish(socket, PRIORITY, 2, now), -libc::EPERM, "it would rise there");
    assert_eq!((server.wish(socket, EXTEND, 0, now), server.told(socket, EXTEND, now)), (0, 0));
    for (option, value) in [(PRIORITY, 64), (BACKGROUND, 2), (BACKGROUND, AS_CLASS), (EXTEND, 2)] {
        assert_eq!(server.wish(socket, option, value, now), -libc::EINVAL);
    }

    // Permission comes, and goes again: what was granted goes with it.
    let permission =
        PermissionSettings { priority: Some(5), classes: vec!["top".into()], ..Default::default() };
    server.rule(rules(), vec![permission], now);
    assert_eq!(place(server), at("low", 1));
    assert_eq!(
        (server.wish(socket, PRIORITY, 6, now), server.wish(socket, PRIORITY, 5, now)),
        (-libc::EPERM, 0)
    );
    assert_eq!(place(server), at("low", 5));
    assert_eq!(server.wish_class(socket, "top", now), 0);
    assert_eq!(place(server), at("top", 5), "lower than the class has by itself");
    server.rule(rules(), Vec::new(), now);
    assert_eq!(place(server), at("web", 2), "neither class nor priority are allowed any more");
    assert_eq!(server.wish_class(socket, "", now), 0);
    assert_eq!(server.told_class(socket, now), "web");
}

#[test]
fn connections_have_what_was_asked_for_their_listener() {
    let mut pair = Pair::new(2, WireConfig::default());
    let now = pair.now;
    pair.server.rule(rules(), Vec::new(), now);
    let listener = pair.listen(80);
    let server = &mut pair.server;
    assert_eq!(server.place("LISTEN", now), at("web", 2));
    assert_eq!((server.wish(listener, PRIORITY, 1, now), server.place("LISTEN", now)), (0, at("web", 1)));
    assert_eq!(server.wish(listener, EXTEND, 0, now), 0);
    let client = pair.connect(80);
    let mut accepted = None;
    pair.until("accept", |pair| {
        accepted = accepted.or_else(|| pair.server.accept(listener));
        accepted.is_some() && pair.client.state(client) & slot_state::CONNECTED != 0
    });
    let (now, accepted) = (pair.now, accepted.unwrap());
    let server = &mut pair.server;
    assert_eq!(server.place("ESTABLISHED", now), at("web", 1));
    assert_eq!(server.told(accepted, EXTEND, now), 0);
    // The connection has its own from here on.
    assert_eq!(server.wish(listener, BACKGROUND, 1, now), 0);
    assert_eq!(server.place("LISTEN", now), ("web".to_owned(), None));
    assert_eq!(server.place("ESTABLISHED", now), at("web", 1));
    // Rules change under both.
    server.rule(vec![class("other", Level::Priority(7), 80)], Vec::new(), now);
    assert_eq!(server.place("LISTEN", now), ("other".to_owned(), None));
    assert_eq!(server.place("ESTABLISHED", now), at("other", 1));
}

#[test]
fn wishes_before_bind_and_of_datagrams_and_of_who_connects() {
    let mut pair = Pair::new(3, WireConfig::default());
    let now = pair.now;
    pair.server.rule(rules(), Vec::new(), now);
    pair.listen(80);
    let client = &mut pair.client;
    client.rule(rules(), Vec::new(), now);
    let socket = client.open(slot_kind::STREAM, now);
    assert_eq!(client.wish(socket, PRIORITY, 1, now), -libc::EPERM, "nothing gives it more than 0");
    assert_eq!((client.wish(socket, BACKGROUND, 1, now), client.told(socket, BACKGROUND, now)), (0, 1));
    assert_eq!(client.call(call_op::CONNECT, socket, [SERVER, 80, 0, 0], now), 0);
    pair.until("connected", |pair| pair.client.state(socket) & slot_state::CONNECTED != 0);
    let now = pair.now;
    assert_eq!(pair.client.place("ESTABLISHED", now), ("default".to_owned(), None));
    let client = &mut pair.client;
    let datagram = client.open(slot_kind::DATAGRAM, now);
    assert_eq!(client.call(call_op::BIND, datagram, [0, 80, 0, 0], now), 0);
    assert_eq!(client.told_class(datagram, now), "web");
    assert_eq!(client.wish(datagram, PRIORITY, 0, now), 0);
    let row = client.row_in(None, now);
    assert_eq!((row.class, row.priority), at("web", 0));
    assert_eq!(client.wish_class(datagram, "backup", now), 0);
    client.rule(rules(), Vec::new(), now);
    let row = client.row_in(None, now);
    assert_eq!((row.class, row.priority), ("backup".to_owned(), None), "a priority would be a rise there");
}

#[test]
fn requests_and_wishes_together() {
    let mut fast = ClassSettings { level: Level::Priority(5), ..ClassSettings::new("fast") };
    fast.request.paths = vec!["/fast".into()];
    let mut pair = Pair::new(4, WireConfig::default());
    let now = pair.now;
    pair.server.rule(vec![fast, class("web", Level::Priority(2), 80)], Vec::new(), now);
    let (_, client, socket) = pair.established(80);
    let now = pair.now;
    assert_eq!(pair.server.wish(socket, PRIORITY, 1, now), 0);
    for (path, class) in [("/fast", "fast"), ("/", "web"), ("/fast", "fast")] {
        pair.client.write(client, format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
        pair.until("the request", |pair| !pair.server.read(socket, 1_000).is_empty());
        assert_eq!(
            pair.server.place("ESTABLISHED", pair.now),
            at(class, 1),
            "never above what was asked for"
        );
        pair.server.write(socket, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        pair.until("the answer", |pair| !pair.client.read(client, 1_000).is_empty());
    }
    let now = pair.now;
    assert_eq!(pair.server.wish(socket, PRIORITY, AS_CLASS, now), 0);
    assert_eq!(pair.server.place("ESTABLISHED", now), at("fast", 5));
}

/// So many connections to port 80 of the server; its sockets.
pub(super) fn connections(pair: &mut Pair, count: usize) -> Vec<(u32, u32)> {
    let listener = pair.listen(80);
    let mut all = Vec::new();
    for _ in 0..count {
        let client = pair.connect(80);
        let mut accepted = None;
        pair.until("accept", |pair| {
            accepted = accepted.or_else(|| pair.server.accept(listener));
            accepted.is_some() && pair.client.state(client) & slot_state::CONNECTED != 0
        });
        all.push((client, accepted.unwrap()));
    }
    all
}

/// 9 % of the CPU, of the 20 that are EDF's.
pub(super) const EDF: Asks = Asks::Deadline { within_us: 10_000, budget_us: 900 };

#[test]
fn a_class_that_cannot_carry_one_more_refuses_who_asks_for_it() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let rings = u64::from(RINGS) * 2;
    let mut classes = rules();
    classes.push(ClassSettings { asks: EDF, ..class("video", Level::default(), 1) });
    classes.push(ClassSettings { memory: Some(rings), ..class("small", Level::default(), 1) });
    classes.push(ClassSettings { connections: Some(1), ..class("one", Level::default(), 1) });
    let named = ["video", "small", "one", "web"].map(str::to_owned).to_vec();
    let permission = PermissionSettings { classes: named, ..Default::default() };
    pair.server.rule(classes, vec![permission], now);
    let slots: Vec<u32> = connections(&mut pair, 3).into_iter().map(|(_, slot)| slot).collect();
    let now = pair.now;
    let server = &mut pair.server;
    let promised = |server: &Host| server.class_row("video", now).promised_percent.round() as u64;
    for &slot in &slots[..2] {
        assert_eq!(server.wish_class(slot, "video", now), 0);
    }
    assert_eq!(server.wish_class(slots[2], "video", now), -libc::ENOBUFS);
    assert_eq!(server.told_class(slots[2], now), "web", "it stays");
    assert_eq!((promised(server), server.class_row("video", now).drops["cpu-limit"]), (18, 1));
    // Who is there already asks for more or less of other things.
    assert_eq!(server.wish(slots[0], EXTEND, 0, now), 0);
    assert_eq!(server.wish_class(slots[0], "video", now), 0);
    // Background promises nothing; what is given back by it has to be admitted again.
    assert_eq!((server.wish(slots[0], BACKGROUND, 1, now), promised(server)), (0, 9));
    assert_eq!((server.wish_class(slots[2], "video", now), promised(server)), (0, 18));
    assert_eq!(server.wish(slots[0], BACKGROUND, 0, now), -libc::ENOBUFS);
    assert_eq!(server.told(slots[0], BACKGROUND, now), 1);
    for name in ["small", "one"] {
        assert_eq!(server.wish_class(slots[0], name, now), 0);
        assert_eq!(server.wish_class(slots[1], name, now), -libc::ENOBUFS, "{name}");
        assert_eq!(server.told_class(slots[1], now), "video");
    }
    assert_eq!(server.class_row("small", now).drops["memory-limit"], 1);
    assert_eq!(server.class_row("one", now).drops["connection-limit"], 1);
    assert_eq!(server.wish_class(slots[1], "small", now), 0, "the first has left it");
    assert_eq!(promised(server), 9);
}

#[test]
fn deadlines_and_weights_are_asked_for() {
    let weight = |weight| Asks::Weight(Weight::new(weight));
    let mut pair = Pair::new(6, WireConfig::default());
    let now = pair.now;
    let mut classes = rules();
    classes.push(ClassSettings { asks: EDF, ..class("video", Level::default(), 1) });
    classes.push(ClassSettings { asks: weight(300), ..class("bulk", Level::default(), 1) });
    let named = ["video", "bulk"].map(str::to_owned).to_vec();
    let into = PermissionSettings { classes: named, ..Default::default() };
    pair.server.rule(classes.clone(), vec![into.clone()], now);
    let (_, _, socket) = pair.established(80);
    let now = pair.now;
    let server = &mut pair.server;
    let has = |server: &mut Host| {
        let row = server.row_in(Some("ESTABLISHED"), now);
        let told = (server.told(socket, DEADLINE, now), server.told(socket, WEIGHT, now));
        (row.scheduling.policy.clone(), told.0, told.1)
    };
    // Neither EDF nor a share of WFQ is its own.
    assert_eq!(server.wish(socket, DEADLINE, 10_000, now), -libc::EPERM);
    assert_eq!(server.wish(socket, WEIGHT, 1, now), -libc::EPERM);
    assert_eq!(has(server), ("priority".into(), 0, 0));
    for (option, value) in [(DEADLINE, 99), (DEADLINE, 60_000_001), (WEIGHT, 0), (WEIGHT, 10_001)] {
        assert_eq!(server.wish(socket, option, value, now), -libc::EINVAL);
    }
    // In a class of that kind, later and less are.
    assert_eq!(server.wish_class(socket, "video", now), 0);
    assert_eq!(has(server), ("edf".into(), 10_000, 0));
    assert_eq!(server.wish(socket, DEADLINE, 9_999, now), -libc::EPERM);
    assert_eq!((server.wish(socket, DEADLINE, 20_000, now), has(server)), (0, ("edf".into(), 20_000, 0)));
    assert_eq!(server.class_row("video", now).promised_percent.round() as u64, 5, "4.5 %");
    assert_eq!(server.wish(socket, WEIGHT, 1, now), -libc::EPERM);
    assert_eq!(server.wish(socket, WEIGHT, AS_CLASS, now), 0);
    assert_eq!(has(server), ("edf".into(), 20_000, 0), "that was not asked for");
    assert_eq!((server.wish(socket, DEADLINE, AS_CLASS, now), has(server)), (0, ("edf".into(), 10_000, 0)));
    assert_eq!(server.wish_class(socket, "bulk", now), 0);
    assert_eq!(server.wish(socket, WEIGHT, 301, now), -libc::EPERM);
    assert_eq!((server.wish(socket, WEIGHT, 40, now), has(server)), (0, ("wfq".into(), 0, 40)));

    // With permission, from any class.
    let most = PermissionSettings {
        deadline_us: Some(1_000),
        weight: Some(Weight::new(500)),
        classes: into.classes.clone(),
        ..Default::default()
    };
    server.rule(classes.clone(), vec![most], now);
    assert_eq!(server.wish_class(socket, "", now), 0);
    assert_eq!((server.wish(socket, WEIGHT, 500, now), has(server)), (0, ("wfq".into(), 0, 500)));
    assert_eq!(server.wish(socket, WEIGHT, 501, now), -libc::EPERM);
    assert_eq!(server.wish(socket, DEADLINE, 999, now), -libc::EPERM);
    assert_eq!((server.wish(socket, DEADLINE, 1_000, now), has(server)), (0, ("edf".into(), 1_000, 0)));
    assert_eq!(server.slot(socket).urgent.load(Ordering::Relaxed), 1, "a deadline is above Linux");
    // In the class with a budget a shorter one is a greater promise: 30 %, and the policy has 20.
    assert_eq!(server.wish(socket, DEADLINE, AS_CLASS, now), 0);
    assert_eq!(server.wish_class(socket, "video", now), 0);
    assert_eq!(server.wish(socket, DEADLINE, 3_000, now), -libc::ENOBUFS);
    assert_eq!((server.wish(socket, DEADLINE, 4_500, now), has(server)), (0, ("edf".into(), 4_500, 0)));
    // What was granted goes with the permission.
    server.rule(classes, vec![into], now);
    assert_eq!(has(server), ("edf".into(), 10_000, 0));
    assert_eq!(server.wish(socket, PRIORITY, 0, now), 0);
    assert_eq!(has(server), ("priority".into(), 0, 0), "the last one counts");
}

/// With classes that are all alike, a device has nothing to decide, until a program asks for something else.
#[test]
fn levels_that_programs_ask_for_count_at_devices_and_doorbells() {
    let mut pair = Pair::new(9, WireConfig::default());
    let now = pair.now;
    let permission = PermissionSettings { priority: Some(5), ..Default::default() };
    pair.server.rule(Vec::new(), vec![permission], now);
    let (_, client, socket) = pair.established(80);
    let now = pair.now;
    let server = &mut pair.server;
    let seen = |server: &Host| {
        let core = &server.core;
        (core.nets[0].transmit.is_direct(), core.highest_level(), core.apart.highest())
    };
    let alike = (true, Level::Priority(0), Level::Idle);
    assert_eq!(seen(server), alike);
    assert_eq!(server.wish(socket, PRIORITY, 5, now), 0);
    assert_eq!(seen(server), (false, Level::Priority(5), Level::Priority(5)));
    assert!(!server.core.all_important_ring(), "the device knows nothing of it");
    assert_eq!(server.wish(socket, PRIORITY, AS_CLASS, now), 0);
    assert_eq!(seen(server), alike);
    assert_eq!(server.wish(socket, PRIORITY, 2, now), 0);
    assert_eq!(seen(server), (false, Level::Priority(2), Level::Priority(2)));
    // Where the class itself stands so, there is nothing apart.
    server.rule(vec![class("web", Level::Priority(2), 80)], Vec::new(), now);
    assert_eq!(server.core.apart.highest(), Level::Idle);
    let permission = PermissionSettings { priority: Some(5), ..Default::default() };
    server.rule(Vec::new(), vec![permission], now);
    assert_eq!(seen(server), (false, Level::Priority(2), Level::Priority(2)));
    server.request(socket, slot_request::ABORT);
    pair.client.request(client, slot_request::CLOSE);
    pair.until("it is gone", |pair| seen(&pair.server) == alike);
}
