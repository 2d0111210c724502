use super::*;

const ANY: Address = Address::UNSPECIFIED_V4;
const A: Address = Address::from_v4(std::net::Ipv4Addr::new(10, 0, 0, 1));

const ALONE: Sharing = Sharing { port: false, address: false };
const BY_PORT: Sharing = Sharing { port: true, address: false };
const BY_ADDRESS: Sharing = Sharing { port: false, address: true };

struct ByRemote;

impl Classifier for ByRemote {
    fn rank(&self, class: ClassIndex, key: &FlowKey, tos: u8) -> Option<u32> {
        // The class of the peer's number; class 100, before all others, takes what is marked.
        (class == key.remote.low_bits() & 0xff || class == 100 && tos != 0).then_some(u32::from(class != 100))
    }
}

fn path(index: u32) -> PathId {
    PathId { index, generation: 0 }
}

#[test]
fn reservations_conflict_as_bind_does() {
    let bindings = Bindings::new(Rc::new(OneClass), 1);
    let (any, at) = (Endpoint::new(ANY, 80), Endpoint::new(A, 80));
    bindings.reserve(any, ALONE).unwrap();
    assert_eq!(bindings.reserve(at, ALONE), Err(CreateError::InUse));
    bindings.release(any, ALONE);
    bindings.reserve(at, BY_PORT).unwrap();
    bindings.reserve(at, BY_PORT).unwrap();
    assert_eq!(bindings.reserve(any, ALONE), Err(CreateError::InUse));
    bindings.release(at, BY_PORT);
    assert!(bindings.is_reserved(80));
    bindings.release(at, BY_PORT);
    assert!(!bindings.is_reserved(80));
    // The families have ports of their own.
    bindings.reserve(any, ALONE).unwrap();
    let any6 = Endpoint::new(Address::UNSPECIFIED_V6, 80);
    bindings.reserve(any6, ALONE).unwrap();
    assert_eq!(bindings.reserve("[2001:db8::1]:80".parse().unwrap(), ALONE), Err(CreateError::InUse));
    bindings.release(any6, ALONE);
    bindings.release(any, ALONE);
    assert!(!bindings.is_reserved(80));
    bindings.release(at, ALONE);
}

#[test]
fn who_says_reuse_address_shares_until_somebody_listens() {
    let bindings = Bindings::new(Rc::new(OneClass), 1);
    let (any, at) = (Endpoint::new(ANY, 20), Endpoint::new(A, 20));
    let in_use = Err(CreateError::InUse);
    bindings.reserve(at, BY_ADDRESS).unwrap();
    bindings.reserve(at, BY_ADDRESS).unwrap();
    assert_eq!(bindings.reserve(at, ALONE), in_use);
    assert_eq!(bindings.reserve(any, BY_PORT), in_use);
    bindings.begin_listening(at, BY_ADDRESS).unwrap();
    assert_eq!(bindings.reserve(any, BY_ADDRESS), in_use, "somebody listens");
    assert_eq!(bindings.begin_listening(at, BY_ADDRESS), in_use, "the other holder, too late");
    bindings.end_listening(at);
    bindings.release(at, BY_ADDRESS);
    bindings.reserve(any, BY_ADDRESS).unwrap();
    bindings.begin_listening(any, BY_ADDRESS).unwrap();
    bindings.release(at, BY_ADDRESS);
    bindings.end_listening(any);
    bindings.release(any, BY_ADDRESS);
    assert!(!bindings.is_reserved(20));
}

#[test]
fn each_pair_of_holders_shares_in_its_own_way() {
    let bindings = Bindings::new(Rc::new(OneClass), 1);
    let at = Endpoint::new(A, 20);
    let in_use = Err(CreateError::InUse);
    const BOTH: Sharing = Sharing { port: true, address: true };
    bindings.reserve(at, BY_ADDRESS).unwrap();
    assert_eq!(bindings.reserve(at, BY_PORT), in_use);
    bindings.reserve(at, BOTH).unwrap();
    bindings.share(at, BOTH, BY_PORT);
    assert_eq!(bindings.reserve(at, BY_ADDRESS), in_use);
    bindings.reserve(at, BOTH).unwrap();
    bindings.share(at, BY_ADDRESS, ALONE);
    assert_eq!(bindings.reserve(at, BOTH), in_use, "one of them shares no more");
    for sharing in [ALONE, BY_PORT, BOTH] {
        bindings.release(at, sharing);
    }
    assert!(!bindings.is_reserved(20));
}

#[test]
fn of_those_who_take_all_the_last_does() {
    let bindings = Bindings::new(Rc::new(OneClass), 1);
    let at = Endpoint::new(A, 20);
    let key = FlowKey { local: A, local_port: 20, ..FlowKey::default() };
    let taker = || bindings.listener(&key, 0);
    bindings.listen_alone(at, 0, path(1));
    bindings.listen_alone(at, 0, path(2));
    assert_eq!(taker(), Some(path(2)));
    bindings.set_class(path(1), 3);
    bindings.set_class(path(1), 0);
    assert_eq!(taker(), Some(path(1)));
    bindings.listen(at, 0, path(3));
    assert_eq!(taker(), Some(path(3)));
    assert_eq!(bindings.group_listeners(&key).len(), 3);
    bindings.unlisten(path(3));
    assert_eq!(taker(), Some(path(1)));
    bindings.unlisten(path(1));
    bindings.unlisten(path(2));
    assert_eq!(taker(), None);
}

#[test]
fn who_took_all_may_come_to_share() {
    let bindings = Bindings::new(Rc::new(OneClass), 1);
    bindings.listen_alone(Endpoint::new(A, 20), 0, path(1));
    bindings.share_listener(path(1));
    bindings.listen(Endpoint::new(A, 20), 0, path(2));
    let taker = |port| {
        let key = FlowKey { local: A, local_port: 20, remote_port: port, ..FlowKey::default() };
        bindings.listener(&key, 0)
    };
    for index in [1, 2] {
        assert!((0..100).any(|port| taker(port) == Some(path(index))), "{index} has nothing");
    }
}

#[test]
fn listeners_of_a_class_share_its_flows() {
    let bindings = Bindings::new(Rc::new(ByRemote), 1);
    let key = |port, last| FlowKey {
        local: A,
        local_port: 80,
        remote: std::net::Ipv4Addr::new(10, 0, 0, last).into(),
        remote_port: port,
        ..FlowKey::default()
    };
    for (class, index) in [(2, 1), (2, 2), (2, 3), (0, 4)] {
        bindings.listen(Endpoint::new(ANY, 80), class, path(index));
    }
    let mut counts = [0; 5];
    for port in 0..3000 {
        let chosen = bindings.listener(&key(port, 2), 0).unwrap();
        assert_eq!(bindings.listener(&key(port, 2), 0), Some(chosen), "a flow keeps its listener");
        counts[chosen.index as usize] += 1;
    }
    assert_eq!((counts[0], counts[4]), (0, 0));
    assert!(counts[1..4].iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    assert_eq!(bindings.listener(&key(5, 0), 0), Some(path(4)));
    bindings.unlisten(path(1));
    bindings.unlisten(path(2));
    assert!((0..100).all(|port| bindings.listener(&key(port, 2), 0) == Some(path(3))));
}

#[test]
fn of_listeners_that_share_the_preferred_ones_take_all() {
    let bindings = Bindings::new(Rc::new(ByRemote), 1);
    let key = |port| FlowKey { local: A, local_port: 80, remote_port: port, ..FlowKey::default() };
    (1..=4).for_each(|index| bindings.listen(Endpoint::new(ANY, 80), 2, path(index)));
    let taking = || {
        let taking: BTreeSet<u32> =
            (0..300).map(|port| bindings.listener(&key(port), 0).unwrap().index).collect();
        taking.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(taking(), [1, 2, 3, 4]);
    let before: Vec<_> = (0..300).map(|port| bindings.listener(&key(port), 0)).collect();
    bindings.prefer(path(2), true);
    bindings.prefer(path(4), true);
    assert_eq!(taking(), [2, 4]);
    let stays = |(port, before): (u16, &Option<PathId>)| {
        !matches!(before, Some(PathId { index: 2 | 4, .. })) || bindings.listener(&key(port), 0) == *before
    };
    assert!((0..).zip(&before).all(stays), "whom the hash had chosen it still has");
    // In another class, too; and one that ends is not preferred any more.
    (1..=4).for_each(|index| bindings.set_class(path(index), 3));
    bindings.unlisten(path(2));
    assert_eq!(taking(), [4]);
    bindings.prefer(path(4), false);
    bindings.prefer(path(9), true);
    assert_eq!(taking(), [1, 3, 4], "who does not listen is none of them");
    // Elsewhere nobody is preferred; and who was before it shared still is.
    bindings.listen_alone(Endpoint::new(ANY, 81), 3, path(5));
    bindings.prefer(path(5), true);
    assert!(bindings.state.borrow().listeners[&(80, ANY)].iter().all(|at| at.preferred.is_empty()));
    bindings.share_listener(path(5));
    bindings.listen(Endpoint::new(ANY, 81), 3, path(6));
    let at_81 = |port| bindings.listener(&FlowKey { local_port: 81, ..key(port) }, 0);
    assert!((0..100).all(|port| at_81(port) == Some(path(5))));
}

/// Counts what it is asked.
#[derive(Default)]
struct Counting(std::cell::Cell<u32>);

impl Classifier for Counting {
    fn rank(&self, class: ClassIndex, _key: &FlowKey, _tos: u8) -> Option<u32> {
        self.0.set(self.0.get() + 1);
        Some(class)
    }
}

#[test]
fn a_thousand_who_share_a_port_cost_a_packet_no_more_than_one() {
    let counting = Rc::new(Counting::default());
    let bindings = Bindings::new(Rc::<Counting>::clone(&counting), 1);
    for index in 0..2000 {
        bindings.listen(Endpoint::new(ANY, 80), index % 2, path(index));
    }
    let key = FlowKey { local: A, local_port: 80, ..FlowKey::default() };
    assert!(bindings.listener(&key, 0).is_some_and(|path| path.index % 2 == 0));
    assert_eq!(counting.0.get(), 2, "once for each class");
}

#[test]
fn a_listener_per_class_the_address_first() {
    let bindings = Bindings::new(Rc::new(ByRemote), 1);
    let key = |last| FlowKey {
        local: A,
        local_port: 80,
        remote: std::net::Ipv4Addr::new(10, 0, 0, last).into(),
        ..FlowKey::default()
    };
    assert_eq!(bindings.listener(&key(0), 0), None);
    bindings.listen(Endpoint::new(ANY, 80), 0, path(1));
    bindings.listen(Endpoint::new(ANY, 80), 2, path(2));
    assert_eq!(bindings.listener(&key(0), 0), Some(path(1)));
    assert_eq!(bindings.listener(&key(2), 0), Some(path(2)));
    assert_eq!(bindings.listener(&key(9), 0), Some(path(1)), "an unserved class takes the first");
    bindings.listen(Endpoint::new(A, 80), 0, path(3));
    assert_eq!(bindings.listener(&key(2), 0), Some(path(3)));
    bindings.unlisten(path(3));
    bindings.unlisten(path(1));
    assert_eq!(bindings.listener(&key(0), 0), Some(path(2)));
    bindings.listen(Endpoint::new(ANY, 80), 100, path(4));
    assert_eq!(bindings.listener(&key(2), 0), Some(path(2)));
    assert_eq!(bindings.listener(&key(2), 4), Some(path(4)), "by the octet");
    bindings.set_class(path(4), 5);
    assert_eq!(bindings.listener(&key(2), 4), Some(path(2)));
    assert_eq!(bindings.listener(&key(5), 0), Some(path(4)));
    bindings.unlisten(path(4));
    bindings.unlisten(path(2));
    assert_eq!(bindings.listener(&key(0), 0), None);
}

#[test]
fn ephemeral_ports_are_free_and_run_out() {
    let bindings = Bindings::new(Rc::new(OneClass), 7);
    let remote = Endpoint::new(A, 80);
    let mut taken = std::collections::BTreeSet::new();
    for _ in 0..=(EPHEMERAL.1 - EPHEMERAL.0) {
        let port = bindings.ephemeral(A, remote, |port| taken.contains(&port)).unwrap();
        assert!((EPHEMERAL.0..=EPHEMERAL.1).contains(&port));
        assert!(taken.insert(port), "{port} twice");
    }
    assert_eq!(bindings.ephemeral(A, remote, |port| taken.contains(&port)), None);
    for free in (EPHEMERAL.0..EPHEMERAL.1).step_by(997) {
        let found = bindings.ephemeral(A, remote, |port| port != free);
        assert_eq!(found, Some(free), "wherever the search begins");
    }
}
