use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use scoutline_base::DeviceId;
use scoutline_path::FlowKey;
use scoutline_proto::Classifier;

use super::ClassPolicy;
use crate::settings::{ClassSettings, ProgramFacts};

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

fn class(name: &str, change: impl FnOnce(&mut ClassSettings)) -> ClassSettings {
    let mut class = ClassSettings::new(name);
    change(&mut class);
    class
}

fn key() -> FlowKey {
    FlowKey {
        remote: PEER.into(),
        local: OURS.into(),
        remote_port: 4000,
        local_port: 80,
        ..FlowKey::default()
    }
}

fn nginx() -> ProgramFacts {
    let cgroups = vec!["/system.slice/nginx.service".to_owned(), "/web/one".to_owned()];
    ProgramFacts { name: "nginx".to_owned(), user: Some(33), cgroups, ..ProgramFacts::default() }
}

/// Whether a class with one condition takes a flow.
fn takes(condition: impl FnOnce(&mut ClassSettings), key: &FlowKey, tos: Option<u8>) -> bool {
    let policy = ClassPolicy::new(vec![class("one", condition)]);
    let taken = policy.class(policy.class_for(key, tos, Some(&nginx()))).settings.name == "one";
    // Whoever listens there has a path for the class, and demultiplexing chooses it, in just these cases.
    if let Some(tos) = tos {
        let at = policy.classes_at(key, &nginx());
        let ranks = at.iter().filter_map(|&number| Some((policy.rank(number, key, tos)?, number)));
        let chosen = ranks.min().map(|(_, number)| policy.class(number).settings.name.clone());
        assert_eq!(chosen.as_deref() == Some("one"), taken);
    }
    taken
}

#[test]
fn source_and_destination() {
    for (network, expected) in
        [((PEER, 32), true), ((OURS, 32), false), ((OURS, 24), true), ((OURS, 0), true)]
    {
        assert_eq!(takes(|class| class.sources = vec![network], &key(), Some(0)), expected, "{network:?}");
    }
    for (network, expected) in [((OURS, 32), true), ((PEER, 32), false), ((PEER, 24), true)] {
        assert_eq!(
            takes(|class| class.destinations = vec![network], &key(), Some(0)),
            expected,
            "{network:?}"
        );
    }
    assert!(takes(|class| class.sources = vec![(OURS, 32), (PEER, 32)], &key(), Some(0)), "of one kind, any");
}

#[test]
fn ports_of_both_ends() {
    assert!(takes(|class| class.local_ports = vec![22..=22, 79..=81], &key(), Some(0)));
    assert!(!takes(|class| class.local_ports = vec![81..=90], &key(), Some(0)));
    assert!(takes(|class| class.remote_ports = vec![4000..=4000], &key(), Some(0)));
    assert!(!takes(|class| class.remote_ports = vec![80..=80], &key(), Some(0)));
}

#[test]
fn dscp_of_the_first_packet() {
    let ef = |class: &mut ClassSettings| class.dscps = vec![46];
    assert!(takes(ef, &key(), Some(46 << 2 | 0b11)), "ECN does not count");
    assert!(!takes(ef, &key(), Some(0)));
    assert!(!takes(ef, &key(), None), "no packet has come");
    assert!(takes(|class| class.dscps = vec![0], &key(), Some(1)));
}

#[test]
fn interface() {
    assert!(takes(|class| class.interfaces = vec![DeviceId(1), DeviceId(0)], &key(), Some(0)));
    assert!(!takes(|class| class.interfaces = vec![DeviceId(1)], &key(), Some(0)));
}

#[test]
fn program_user_and_cgroup() {
    assert!(takes(|class| class.programs = vec!["redis".into(), "nginx".into()], &key(), Some(0)));
    assert!(!takes(|class| class.programs = vec!["redis".into()], &key(), Some(0)));
    assert!(takes(|class| class.users = vec![0, 33], &key(), Some(0)));
    assert!(!takes(|class| class.users = vec![0], &key(), Some(0)));
    for (group, expected) in [
        ("/system.slice/nginx.service", true),
        ("/system.slice", true),
        ("/system.slice/", true),
        ("/web", true),
        ("/we", false),
        ("/system.slice/nginx.service/worker", false),
    ] {
        assert_eq!(takes(|class| class.cgroups = vec![group.into()], &key(), Some(0)), expected, "{group}");
    }
    let policy = ClassPolicy::new(vec![class("one", |class| class.users = vec![0])]);
    assert_eq!(policy.class_for(&key(), None, None), 1, "nobody knows the program");
}

#[test]
fn the_first_rule_wins_and_different_kinds_must_all_hold() {
    let preferred = class("preferred", |class| {
        class.sources = vec![(PEER, 32)];
        class.local_ports = vec![80..=80];
    });
    let web = class("web", |class| class.local_ports = vec![80..=80, 8000..=8100]);
    let policy = ClassPolicy::new(vec![preferred, web]);
    let of = |remote: IpAddr, local_port| {
        let remote = remote.into();
        let number = policy.class_for(&FlowKey { remote, local_port, ..key() }, Some(0), Some(&nginx()));
        policy.class(number).settings.name.clone()
    };
    assert_eq!(of(PEER, 80), "preferred");
    assert_eq!(of(PEER, 8100), "web");
    assert_eq!(of(OURS, 80), "web");
    assert_eq!(of(OURS, 22), "default");
}

#[test]
fn networks_of_either_family() {
    let of = |remote: &str| FlowKey { remote: remote.parse().unwrap(), ..key() };
    let near = (IpAddr::V6("2001:db8::".parse().unwrap()), 32);
    let takes = |network: (IpAddr, u8), remote: &str| {
        takes(|class| class.sources = vec![network], &of(remote), Some(0))
    };
    assert!(takes(near, "2001:db8:9::1") && !takes(near, "2001:db9::1") && !takes(near, "10.0.0.3"));
    assert!(takes((IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0), "10.0.0.3"), "without a prefix it is everybody");
    assert!(takes((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), "2001:db8::1"));
    assert!(!takes((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 1), "::1"));
}

#[test]
fn only_classes_that_can_match_are_listened_for() {
    let policy = ClassPolicy::new(vec![
        class("redis", |class| class.programs = vec!["redis".into()]),
        class("near", |class| class.sources = vec![(OURS, 24)]),
        class("other port", |class| class.local_ports = vec![81..=81]),
        class("marked", |class| class.dscps = vec![46]),
        class("web", |class| {
            class.local_ports = vec![80..=80];
            class.sources = vec![(OURS, 0)];
        }),
        class("never", |class| class.remote_ports = vec![1..=9]),
    ]);
    let names = |key: &FlowKey| -> Vec<String> {
        let numbers = policy.classes_at(key, &nginx());
        numbers.iter().map(|&number| policy.class(number).settings.name.clone()).collect()
    };
    assert_eq!(names(&key()), ["near", "marked", "web"]);
    let elsewhere = FlowKey { local_port: 443, ..key() };
    assert_eq!(names(&elsewhere), ["near", "marked", "never", "default"]);
}

#[test]
fn numbers_stay_when_classes_come_move_and_go() {
    let port = |name: &str, port: u16| class(name, |class| class.local_ports = vec![port..=port]);
    let policy = ClassPolicy::new(vec![port("a", 1), port("b", 2)]);
    let number = |name: &str| {
        policy.classes().iter().find(|class| class.settings.name == name).map(|class| class.number)
    };
    let (a, b, last) = (number("a"), number("b"), number("default"));
    policy.class(b.unwrap()).memory.take_over(100);
    let seat = policy.class(a.unwrap()).seat();

    policy.replace(vec![port("c", 3), port("b", 22), class("rest", |_| ())]);
    assert_eq!(number("b"), b);
    assert_eq!(policy.class(b.unwrap()).memory.buffer_bytes(), 100);
    assert_eq!((number("a"), number("default")), (None, None));
    let c = number("c").unwrap();
    assert!(Some(c) != a && Some(c) != last, "numbers of leaving classes are not given away");
    assert_eq!(policy.class(a.unwrap()).settings.name, "a", "whoever is in it still finds it");
    assert_eq!(policy.rank(a.unwrap(), &FlowKey { local_port: 1, ..key() }, 0), None, "it takes nothing");
    assert_eq!(policy.last().settings.name, "rest");

    policy.replace(vec![port("a", 1)]);
    assert_eq!(number("a"), a, "back before it was forgotten");
    assert_eq!(policy.class(a.unwrap()).connections(), 1);
    drop(seat);
    assert_eq!(policy.class(a.unwrap()).connections(), 0);
    assert_eq!(number("default"), last);

    let gone = policy.forget_leaving();
    assert_eq!(gone.len(), 3, "b, c and rest");
    assert!(gone.contains(&b.unwrap()) && gone.contains(&c));
    assert_eq!(policy.leaving(), 0);
    policy.replace(vec![port("a", 1), port("d", 4)]);
    assert!(gone.contains(&number("d").unwrap()), "numbers are used anew");
}

#[test]
fn a_full_class() {
    let limited = |limit| class("limited", |class| class.connections = limit);
    let policy = ClassPolicy::new(vec![limited(Some(2))]);
    let seats = [policy.class(0).seat(), policy.class(0).seat()];
    assert!(policy.class(0).is_full());
    policy.replace(vec![limited(Some(3))]);
    assert!(!policy.class(0).is_full());
    policy.replace(vec![limited(Some(1))]);
    assert!(policy.class(0).is_full());
    drop(seats);
    assert!(!policy.class(0).is_full());
    policy.replace(vec![limited(None)]);
    let _many: Vec<_> = (0..1000).map(|_| policy.class(0).seat()).collect();
    assert!(!policy.class(0).is_full());
    let _: Rc<_> = policy.class(0);
}
