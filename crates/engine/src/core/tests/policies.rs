//! Classes of every policy: who gets how much of the engine, and when deadlines are.

use scoutline_sched::{Level, Weight};

use super::classes::class;
use super::*;
use crate::clock;
use crate::scheduling::{Asks, JobAsks};
use crate::settings::ClassSettings;

const CLIENT: u64 = 0xffff_0a00_0002;

/// A class for one of our ports.
pub(super) fn asking(name: &str, port: u16, asks: Asks) -> ClassSettings {
    class(name, |class| {
        class.local_ports = vec![port..=port];
        (class.asks, class.listen_asks) = (asks, asks);
    })
}

fn weight(weight: u64) -> Asks {
    Asks::Weight(Weight::new(weight))
}

fn deadline(within_us: u32) -> Asks {
    Asks::Deadline { within_us, budget_us: 0 }
}

fn rate(percent: u64, important: bool, job: Option<JobAsks>) -> Asks {
    Asks::Rate { rate: Weight::new(percent * 100), important, job }
}

impl Pair {
    /// A datagram socket of the server at this port, connected to nobody in particular at the client's.
    fn datagrams(&mut self, port: u64) -> u32 {
        let now = self.now;
        let slot = self.server.open(slot_kind::DATAGRAM, now);
        assert_eq!(self.server.call(call_op::BIND, slot, [0, port, 0, 0], now), 0);
        assert_eq!(self.server.call(call_op::CONNECT, slot, [CLIENT, port, 0, 0], now), 0);
        slot
    }

    fn path_at(&self, port: u16) -> scoutline_base::PathId {
        let local = |path: &scoutline_path::Path| path.attributes.address(scoutline_path::Name::Local);
        let found = self.server.core.paths.iter().find(|path| local(path).is_some_and(|l| l.port == port));
        found.expect("a path at this port").id()
    }

    /// Sends a datagram from the client to a port of the server; it is on the wire afterwards.
    fn ask_from(&mut self, client: u32) {
        send(&self.client, client);
        let now = self.now;
        self.client.settle(now);
    }
}

/// A small datagram to the connected peer; false when the ring has no room for it.
fn send(host: &Host, slot: u32) -> bool {
    let mut bytes =
        Record { len: 16, address: scoutline_base::Address::default(), port: 0, ..Record::default() }
            .to_bytes()
            .to_vec();
    bytes.extend([7; 16]);
    bytes.resize(Record::ring_len(16) as usize, 0);
    let shared = host.slot(slot);
    let used = shared.send_tail.load(Ordering::Relaxed) - shared.send_head.load(Ordering::Acquire);
    let fits = u64::from(shared.send_size.load(Ordering::Acquire)) - used >= bytes.len() as u64;
    if fits {
        assert_eq!(host.write(slot, &bytes), bytes.len());
    }
    fits
}

/// Sockets that always have something to send share the engine as their classes say.
fn shares_of(classes: Vec<ClassSettings>, ports: &[u64]) -> Vec<f64> {
    const RUNS: u32 = 900;
    let mut pair = Pair::new(31, WireConfig::default());
    let now = pair.now;
    // What comes before costs nothing.
    clock::pretended::start(now, Duration::ZERO);
    pair.server.change(classes, now);
    let slots: Vec<u32> = ports.iter().map(|&port| pair.datagrams(port)).collect();
    assert!(send(&pair.server, slots[0]));
    pair.until("the neighbours know each other", |pair| {
        pair.client.core.unowned.all_drops().count() > 0 || pair.server.core.counters.pushed > 1
    });
    clock::pretended::start(pair.now, Duration::from_micros(10));
    for _ in 0..RUNS {
        for &slot in &slots {
            while send(&pair.server, slot) {}
        }
        let now = clock::now();
        pair.server.core.listen_to_programs(now);
        let decision = pair.server.core.schedule.dequeue(now).expect("they have work");
        if let Entry::Path(id) = decision.entry {
            pair.server.core.run_path(id, &decision, now);
        }
        pair.server.core.flush_all(now);
    }
    let costs: Vec<f64> = ports
        .iter()
        .map(|&port| pair.server.core.paths.get(pair.path_at(port as u16)).unwrap().account.cpu_ns as f64)
        .collect();
    let all: f64 = costs.iter().sum();
    costs.iter().map(|cost| cost / all).collect()
}

#[track_caller]
fn assert_near(shares: &[f64], expected: &[f64]) {
    for (share, expected) in shares.iter().zip(expected) {
        assert!((share - expected).abs() < 0.02, "{shares:.3?}");
    }
}

#[test]
fn weights_divide_the_engine() {
    let shares = shares_of(
        vec![asking("heavy", 1000, weight(300)), asking("light", 2000, weight(100))],
        &[1000, 2000],
    );
    assert_near(&shares, &[0.75, 0.25]);
}

/// The weight is the class's: three connections have no more of the engine than one.
#[test]
fn weights_are_of_classes() {
    let mut many = asking("many", 1000, weight(100));
    many.local_ports = vec![1000..=1002];
    let shares = shares_of(vec![many, asking("one", 2000, weight(100))], &[1000, 1001, 1002, 2000]);
    assert_near(&shares, &[1.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0, 0.5]);
}

#[test]
fn policies_divide_the_engine() {
    let classes = vec![
        class("fixed", |class| {
            class.local_ports = vec![1000..=1000];
            class.level = Level::Priority(5);
        }),
        asking("edf", 2000, deadline(2_000)),
        asking("wfq", 3000, weight(1)),
        asking("bert", 4000, rate(1, false, None)),
    ];
    let shares = shares_of(classes, &[1000, 2000, 3000, 4000]);
    assert_near(&shares, &[0.4, 0.2, 0.2, 0.2]);
}

#[test]
fn important_rates_are_of_the_cpu() {
    let classes = vec![
        asking("reserved", 1000, rate(15, true, None)),
        asking("rest", 2000, rate(5, false, None)),
        asking("wfq", 3000, weight(1)),
    ];
    let shares = shares_of(classes, &[1000, 2000, 3000]);
    // BERT has a fifth of five, here half of all that is asked for; of that 15 parts in 20.
    assert_near(&shares, &[0.375, 0.125, 0.5]);
}

#[test]
fn deadlines_count_from_the_arrival_of_what_waits() {
    let mut pair = Pair::new(32, WireConfig { delay: Duration::from_micros(100), ..WireConfig::default() });
    let now = pair.now;
    clock::pretended::start(now, Duration::ZERO);
    pair.server
        .change(vec![asking("soon", 1000, deadline(1_000)), asking("late", 2000, deadline(5_000))], now);
    let (_soon, late) = (pair.datagrams(1000), pair.datagrams(2000));
    let clients: Vec<u32> = [1000, 2000]
        .into_iter()
        .map(|port| {
            let slot = pair.client.open(slot_kind::DATAGRAM, now);
            assert_eq!(pair.client.call(call_op::BIND, slot, [0, port, 0, 0], now), 0);
            assert_eq!(pair.client.call(call_op::CONNECT, slot, [SERVER, port, 0, 0], now), 0);
            slot
        })
        .collect();
    pair.ask_from(clients[1]);
    pair.until("the neighbours know each other", |pair| !pair.server.read(late, 100).is_empty());
    let (soon_path, late_path) = (pair.path_at(1000), pair.path_at(2000));
    let due = |pair: &Pair, path| pair.server.core.schedule.edf().deadline(Entry::Path(path));

    let start = pair.now;
    pair.ask_from(clients[1]);
    let first = start + Duration::from_micros(100);
    pair.server.core.pull(first);
    assert_eq!(due(&pair, late_path), Some(first + Duration::from_millis(5)));
    // A second one behind it changes nothing.
    pair.now = start + Duration::from_micros(500);
    pair.ask_from(clients[1]);
    let second = pair.now + Duration::from_micros(100);
    pair.server.core.pull(second);
    assert_eq!(due(&pair, late_path), Some(first + Duration::from_millis(5)));
    // What came later and is due earlier runs first.
    pair.now = start + Duration::from_millis(3);
    pair.ask_from(clients[0]);
    let third = pair.now + Duration::from_micros(100);
    pair.server.core.pull(third);
    assert_eq!(due(&pair, soon_path), Some(third + Duration::from_millis(1)));
    clock::pretended::start(third, Duration::from_micros(10));
    let mut decision = pair.server.core.schedule.dequeue(third).unwrap();
    assert_eq!(decision.entry, Entry::Path(soon_path));
    pair.server.core.run_path(soon_path, &decision, third);
    // A run that does not take all leaves the deadline of what is left.
    decision = pair.server.core.schedule.dequeue(third).unwrap();
    assert_eq!(decision.entry, Entry::Path(late_path));
    decision.quantum.packets = 1;
    pair.server.core.run_path(late_path, &decision, third);
    assert_eq!(due(&pair, late_path), Some(second + Duration::from_millis(5)));
    let decision = pair.server.core.schedule.dequeue(third).unwrap();
    pair.server.core.run_path(late_path, &decision, third);
    assert!(pair.server.core.schedule.is_idle());
    assert_eq!(pair.server.core.schedule.edf().missed(), 0);

    // What the program wants counts from when it said so, however often it says it.
    for at in [10_000, 11_000] {
        assert!(send(&pair.server, late));
        pair.server.core.listen_to_programs(start + Duration::from_micros(at));
    }
    assert_eq!(due(&pair, late_path), Some(start + Duration::from_millis(15)));
    let decision = pair.server.core.schedule.dequeue(start + Duration::from_millis(11)).unwrap();
    pair.server.core.run_path(late_path, &decision, start + Duration::from_millis(11));
    assert!(send(&pair.server, late));
    pair.server.core.listen_to_programs(start + Duration::from_millis(12));
    assert_eq!(due(&pair, late_path), Some(start + Duration::from_millis(17)), "other work");
}

/// Through every policy and back while data moves, on a bad wire.
#[test]
fn a_connection_changes_its_policy_and_loses_nothing() {
    let job = Some(JobAsks { within_us: 5_000, budget_us: 200 });
    let all = [
        ("priority", Asks::Level, false),
        ("edf", deadline(2_000), true),
        ("wfq", weight(7), false),
        ("bert", rate(3, true, job), true),
        ("bert", rate(3, false, None), false),
    ];
    let mut pair = Pair::new(33, hard_wire());
    let (listener, client, server) = pair.established(80);
    let sent = pattern(200_000, 1);
    let (mut at, mut got) = (0, Vec::new());
    let mut round = 0;
    pair.until("the transfer", |pair| {
        at += pair.server.write(server, &sent[at..]);
        got.extend(pair.client.read(client, 5_000));
        let (policy, asks, urgent) = all[round % all.len()];
        round += 1;
        let now = pair.now;
        pair.server.change(vec![asking("changing", 80, asks)], now);
        let rows = pair.server.rows(now);
        for row in rows.iter().filter(|row| row.class == "changing") {
            assert_eq!(row.scheduling.policy, policy, "{row:?}");
            assert_eq!(row.priority.is_some(), policy == "priority");
        }
        assert_eq!(rows.iter().filter(|row| row.class == "changing").count(), 2, "and its listen path");
        assert_eq!(pair.server.slot(server).urgent.load(Ordering::Relaxed), u16::from(urgent));
        got.len() == sent.len()
    });
    assert!(got == sent, "the streams differ");
    assert!(round > 50, "{round}");
    // A listen path of each policy answers.
    for (_, asks, _) in all {
        let now = pair.now;
        pair.server.change(vec![asking("changing", 80, asks)], now);
        pair.connect(80);
        pair.until("accept", |pair| pair.server.accept(listener).is_some());
    }
}
