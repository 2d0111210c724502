//! An interface that several engines drive by `xdp`: whose packets come where, that none is starved by another, how they
//! send, what they want of the program together, and that each may go before the other.

#![allow(unsafe_code)] // setns for the tests

mod support;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use scoutline_base::spread::engine_of_flow;
use scoutline_base::{DeviceId, Time};
use scoutline_device::{Partner, Policing, packet, xdp};
use scoutline_path::{Burst, Checksum, Facts, Message};
use scoutline_ring::Block;
use support::{
    Namespace, SOON, arriving, datagram, flow_frame, followed, frame, monotonic, pull, send, super_segment,
    veth_with_queues,
};

/// Ports of the one and the other of two engines.
const PORTS: [u16; 2] = [8000, 8001];

fn open_one(
    namespace: &Namespace,
    config: &xdp::Config,
    spread: &xdp::Spread,
    engine: usize,
) -> (xdp::XdpPartner, Vec<String>) {
    let config = xdp::Config { spread: Some(spread.of_engine(engine)), ..config.clone() };
    let (partner, notices) = namespace.enter(|| xdp::open(DeviceId(1), &config)).expect("opens");
    (partner, notices.into_iter().map(|notice| notice.0).collect())
}

fn open(
    namespace: &Namespace,
    config: &xdp::Config,
    engines: usize,
) -> (Vec<xdp::XdpPartner>, Vec<Vec<String>>) {
    let spread = xdp::Spread::new(engines);
    (0..engines).map(|engine| open_one(namespace, config, &spread, engine)).unzip()
}

/// Short rings, and no zero-copy, which a veth has not.
fn config() -> xdp::Config {
    xdp::Config { zero_copy: false, ring_frames: 128, ..xdp::Config::new("right") }
}

/// Two hosts with so many queues between them, `left` driven by `packet`, and `right` by so many engines.
struct Bed {
    _left: Namespace,
    right: Namespace,
    one: packet::PacketPartner,
    engines: Vec<xdp::XdpPartner>,
    notices: Vec<Vec<String>>,
}

impl Bed {
    fn new(queues: usize, engines: usize, config: &xdp::Config) -> Bed {
        let (left, right) = veth_with_queues(queues);
        let (engines, notices) = open(&right, config, engines);
        let (one, _) = left.enter(|| packet::open(DeviceId(1), &packet::Config::new("left"))).expect("opens");
        Bed { _left: left, right, one, engines, notices }
    }

    /// So many datagrams to the port of this engine: how many arrive.
    fn arriving(&mut self, engine: usize, count: u64) -> u64 {
        let message = |number: u64| datagram(1000 + (number % 100) as u16, PORTS[engine]);
        arriving(&mut self.one, &mut self.engines[engine], count, message)
    }

    fn has_program(&self) -> bool {
        self.right.ip(&["link", "show", "right"]).contains("xdp")
    }
}

/// Sends it, and says which of them has it.
fn who_gets(one: &mut packet::PacketPartner, engines: &mut [xdp::XdpPartner], bytes: &[u8]) -> usize {
    let (len, facts) = (bytes.len() as u32, Facts { checksum: Checksum::Complete, ..Facts::default() });
    send(one, Message::received(Block::from_bytes(bytes.into()), 0..len, facts));
    let start = Instant::now();
    loop {
        for (number, engine) in engines.iter_mut().enumerate() {
            let mut burst = Burst::new();
            if engine.pull(&mut burst, 8, Time::ZERO).expect("pulls") > 0 {
                assert_eq!(burst[0].bytes(), bytes);
                return number;
            }
        }
        assert!(start.elapsed() < SOON, "it is lost: {bytes:?}");
    }
}

/// By whichever queue, a packet goes to the engine that the rule names; what has no ports to the first.
#[test]
fn flows_are_spread_as_the_rule_says() {
    for (queues, engines) in [(1, 2), (2, 2), (3, 3), (4, 2)] {
        let mut bed = Bed::new(queues, engines, &xdp::Config { bell: true, ..config() });
        let mut hits = vec![0; engines];
        let peers: [IpAddr; 3] =
            ["10.9.0.1", "2001:db8::1", "192.168.77.3"].map(|peer| peer.parse().unwrap());
        for (number, peer) in (0u16..60).zip(peers.into_iter().cycle()) {
            for stream in [false, true] {
                for local in [80, 8000 + number, 32_768 + 131 * number] {
                    let port = 1024 + 311 * number;
                    let expected = engine_of_flow(stream, peer, port, local, engines);
                    let bytes = flow_frame(stream, peer, (port, local), false);
                    let came = who_gets(&mut bed.one, &mut bed.engines, &bytes);
                    let what = format!("{peer} {port} to {local}, stream {stream}");
                    assert_eq!(came, expected, "{what}, {engines} engines, {queues} queues");
                    hits[came] += 1;
                }
            }
        }
        let odd = flow_frame(false, peers[0], (5000, 8001), true);
        assert_eq!(who_gets(&mut bed.one, &mut bed.engines, &odd), 0, "a fragment");
        let other = frame(60, 1).bytes().to_vec();
        assert_eq!(who_gets(&mut bed.one, &mut bed.engines, &other), 0, "another protocol");
        assert!(hits.iter().all(|&hits| hits > 360 / engines / 2), "{hits:?}");
    }
}

/// One of them holds all that it may and does not pull, with its ring full: the other one gets all that is its own, many
/// times the chunks that there are.
#[test]
fn who_holds_and_sleeps_starves_nobody() {
    for (busy, idle) in [(0, 1), (1, 0)] {
        for queues in [1, 2] {
            let mut bed = Bed::new(queues, 2, &config());
            let mut held = Burst::new();
            while !bed.engines[idle].pressed() {
                send(&mut bed.one, datagram(1000 + held.len() as u16, PORTS[idle]));
                held.extend(pull(&mut bed.engines[idle], 1));
            }
            assert!(bed.engines[busy].counters().rx_packets == 0 && !bed.engines[busy].pressed());
            let start = Instant::now();
            while bed.engines[idle].counters().rx_ring_drops < 100 {
                send(&mut bed.one, datagram(1000, PORTS[idle]));
                send(&mut bed.one, datagram(1001, PORTS[idle]));
                assert!(start.elapsed() < SOON, "its rings are never full");
            }
            assert_eq!(bed.arriving(busy, 5000), 5000, "{queues} queues");
            let counters = bed.engines[busy].counters();
            assert_eq!((counters.rx_ring_drops, counters.rx_relief_copies), (0, 0), "{queues} queues");
            // And what the idle one has is still its own.
            let fill = |message: &Message| u16::from_be_bytes([message.bytes()[34], message.bytes()[35]]);
            assert!(held.iter().zip(1000..).all(|(message, port)| fill(message) == port));
        }
    }
}

/// Says that it is done, also when a test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Engines on threads of their own take and give back chunks at the same time, and hold some for a while: no chunk is
/// lost, and no packet. More wait in the fill rings than can come while the thread that is at them does not run.
#[test]
fn both_give_chunks_back_at_the_same_time() {
    const PACKETS: u64 = 40_000;
    const KEPT: usize = 300;
    let config = xdp::Config { ring_frames: 1024, ..config() };
    let (left, right) = veth_with_queues(2);
    let (came, done) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let (spread, ready) = (xdp::Spread::new(2), channel());
    std::thread::scope(|scope| {
        for engine in 0..2 {
            let (right, config, spread) = (&right, &config, &spread);
            let (came, done, tell) = (&came[engine], &done, ready.0.clone());
            scope.spawn(move || {
                let (mut partner, _) = open_one(right, config, spread, engine);
                tell.send(()).expect("somebody waits");
                let mut kept = VecDeque::new();
                while !done.load(Ordering::Acquire) {
                    let mut burst = Burst::new();
                    let taken = partner.pull(&mut burst, 64, Time::ZERO).expect("pulls");
                    assert!(
                        burst.iter().all(|message| message.bytes()[36..38] == PORTS[engine].to_be_bytes()),
                        "all are of its own flows"
                    );
                    kept.extend(burst);
                    kept.drain(..kept.len().saturating_sub(KEPT));
                    came.fetch_add(taken as u64, Ordering::AcqRel);
                }
                assert_eq!(partner.counters().rx_ring_drops, 0);
                assert_eq!(kept.len(), KEPT);
            });
            ready.1.recv().expect("it opens");
        }
        let _done = Done(&done);
        let (mut one, _) =
            left.enter(|| packet::open(DeviceId(1), &packet::Config::new("left"))).expect("opens");
        let arrived = || came.iter().map(|came| came.load(Ordering::Acquire)).sum::<u64>();
        let start = Instant::now();
        for number in 0..PACKETS {
            while number - arrived() >= 64 {
                assert!(start.elapsed() < 2 * SOON, "{} of {number}", arrived());
                std::thread::yield_now();
            }
            send(&mut one, datagram(1000 + (number % 7) as u16, PORTS[number as usize % 2]));
        }
        while arrived() < PACKETS {
            assert!(start.elapsed() < 2 * SOON, "{} of all", arrived());
            std::thread::yield_now();
        }
    });
}

/// More packets than there are chunks to send leave from each, whole and in order: by a queue of its own, or without one by
/// a packet socket, which is said with what helps.
#[test]
fn all_engines_send() {
    for (queues, engines) in [(1, 2), (2, 2), (2, 3)] {
        let mut bed = Bed::new(queues, engines, &config());
        let notices: Vec<_> = bed.notices.concat();
        if queues < engines {
            assert!(notices[0].contains("by a packet socket"), "{notices:?}");
            assert!(notices[0].contains(&format!("`ethtool -L right combined {engines}`")), "{notices:?}");
        }
        assert_eq!(notices.len(), usize::from(queues < engines), "{notices:?}");
        for (number, engine) in bed.engines.iter_mut().enumerate() {
            let message = |count: u64| frame(60 + count as usize % 1400, number as u8);
            assert_eq!(arriving(engine, &mut bed.one, 3000, message), 3000, "engine {number} of {engines}");
            let in_order = || (0..30).map(|count| frame(70 + count, number as u8));
            assert_eq!(engine.push(&mut in_order().collect()).expect("pushes"), 30);
            let got = pull(&mut bed.one, 30);
            assert!(got.iter().zip(in_order()).all(|(got, sent)| got.bytes() == sent.bytes()));
            let whole = engine.facts().offload.segmentation;
            assert_eq!(whole, queues == 1 || number >= queues, "engine {number} of {engines}");
            send(engine, super_segment(20));
            let got = pull(&mut bed.one, if whole { 1 } else { 20 });
            let bytes: usize = got.iter().map(|message| message.bytes().len() - 42).sum();
            assert_eq!(bytes, 2000);
            let counters = engine.counters();
            assert_eq!((counters.tx_packets, counters.tx_malformed + counters.tx_too_large), (3031, 0));
        }
    }
}

/// Whoever goes first: the other one goes on receiving and sending, what was lent stays, and with the last all goes.
#[test]
fn each_may_go_before_the_other() {
    let mut bed = Bed::new(2, 2, &config());
    for first in [0, 1] {
        assert!(bed.has_program());
        send(&mut bed.one, datagram(77, PORTS[first]));
        let lent = pull(&mut bed.engines[first], 1);
        let last = 1 - first;
        let gone = bed.engines.remove(first);
        drop(gone);
        let message = |number: u64| datagram(1000 + (number % 100) as u16, PORTS[last]);
        assert_eq!(arriving(&mut bed.one, &mut bed.engines[0], 3000, message), 3000);
        // What was its own comes to nobody.
        send(&mut bed.one, datagram(1, PORTS[first]));
        assert_eq!(arriving(&mut bed.one, &mut bed.engines[0], 10, message), 10);
        assert_eq!(arriving(&mut bed.engines[0], &mut bed.one, 3000, |_| frame(100, 3)), 3000);
        assert_eq!(lent[0].bytes(), datagram(77, PORTS[first]).bytes());
        bed.engines.clear();
        assert!(!bed.has_program());
        drop(lent);
        (bed.engines, _) = open(&bed.right, &config(), 2);
    }
}

/// The first one opens for all: another that comes before it is told.
#[test]
fn the_first_engine_opens() {
    let (_left, right) = veth_with_queues(1);
    let spread = xdp::Spread::new(2).of_engine(1);
    let config = xdp::Config { spread: Some(spread), ..config() };
    let error =
        right.enter(|| xdp::open(DeviceId(1), &config)).map(|_| ()).expect_err("nobody has opened it");
    assert!(error.to_string().contains("first engine"), "{error}");
}

/// A flood that one of them has is held back for all, until none has one: it is over there, or its engine has gone.
#[test]
fn a_flood_of_one_is_held_back_for_all() {
    let mut bed = Bed::new(1, 2, &config());
    let policing = || Some(Policing { exempt: &[], only_syns: false });
    let flow = |bed: &mut Bed, engine: usize| {
        let (one, to) = (&mut bed.one, &mut bed.engines[engine]);
        arriving_or_policed(one, to, PORTS[engine])
    };
    bed.engines[1].police(policing());
    followed(&mut bed.engines[1]);
    assert!(bed.engines[0].news().expect("says so").0.contains("is held back"));
    assert!(bed.engines[1].news().is_none(), "said once");
    assert!(flow(&mut bed, 1) < 2000 && flow(&mut bed, 0) < 2000, "all came");
    let [policed, same] = [0, 1].map(|engine: usize| bed.engines[engine].counters().rx_policed);
    assert!(policed == same && policed > 0, "each sees what is held back: {policed} and {same}");
    bed.engines[0].police(policing());
    bed.engines[1].police(None);
    followed(&mut bed.engines[0]);
    assert!(flow(&mut bed, 1) < 2000, "the other one has a flood");
    bed.engines.remove(0);
    followed(&mut bed.engines[0]);
    assert!(bed.engines[0].news().expect("says so").0.contains("over"));
    let (one, to) = (&mut bed.one, &mut bed.engines[0]);
    assert_eq!(arriving_or_policed(one, to, PORTS[1]), 2000);
}

/// 2,000 datagrams of one flow: how many arrive.
fn arriving_or_policed(one: &mut packet::PacketPartner, to: &mut xdp::XdpPartner, port: u16) -> u64 {
    arriving(one, to, 2000, |_| datagram(1, port))
}

/// A flow that one holds back is its own, and told to it alone; the other one's of the same number are not touched.
#[test]
fn each_holds_its_own_flows_back() {
    let mut bed = Bed::new(1, 2, &config());
    bed.engines[1].hold_back(datagram(5, PORTS[1]).bytes(), monotonic(), 7);
    followed(&mut bed.engines[1]);
    let (start, mut dropped) = (Instant::now(), 0);
    // On a busy machine the moment may be over before the packet is there.
    while dropped == 0 {
        let until = monotonic() + Duration::from_millis(100);
        bed.engines[1].hold_back(datagram(5, PORTS[1]).bytes(), until, 7);
        // To the other engine's table this says nothing.
        bed.engines[0].hold_back(datagram(5, PORTS[1]).bytes(), until, 8);
        let held = |bed: &Bed| bed.engines[0].counters().rx_held_back;
        let before = held(&bed);
        send(&mut bed.one, datagram(5, PORTS[1]));
        let mut burst = Burst::new();
        while burst.is_empty() && held(&bed) == before {
            bed.engines[1].pull(&mut burst, 8, Time::ZERO).expect("pulls");
            assert!(start.elapsed() < SOON, "never held back");
        }
        dropped = held(&bed) - before;
    }
    assert_eq!(bed.arriving(0, 100), 100);
    let mut told = [Vec::new(), Vec::new()];
    for (engine, told) in bed.engines.iter_mut().zip(&mut told) {
        engine.tell_held_back(monotonic(), &mut |owner, dropped| told.push((owner, dropped)));
    }
    assert_eq!(told, [vec![], vec![(7, dropped)]]);
    assert_eq!(
        bed.engines[1].counters().rx_held_back,
        0,
        "what is of the whole interface the first one says"
    );
}

/// What is important has a ring and a bell of its own in each engine.
#[test]
fn each_has_a_bell() {
    let mut bed = Bed::new(2, 2, &xdp::Config { bell: true, ..config() });
    let source = "10.9.0.1".parse().unwrap();
    let important = packet::Important { source, prefix_len: 32, local_port: Some(PORTS[0]..=PORTS[1]) };
    bed.engines[0].ring_for(&[important]).expect("takes the rules");
    followed(&mut bed.engines[0]);
    let rings = |engine: &xdp::XdpPartner, wait_ms| {
        let mut poll = libc::pollfd { fd: engine.bell_fd().expect("one"), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
    };
    for (engine, other) in [(1, 0), (0, 1)] {
        send(&mut bed.one, datagram(1, PORTS[engine]));
        assert!(rings(&bed.engines[engine], 5000) && !rings(&bed.engines[other], 0));
        pull(&mut bed.engines[engine], 1);
        assert_eq!(bed.engines[engine].counters().rx_important, 1);
        send(&mut bed.one, datagram(1, PORTS[engine] + 100));
        pull(&mut bed.engines[engine], 1);
        assert_eq!(bed.engines[engine].counters().rx_important, 1, "another port");
    }
}
