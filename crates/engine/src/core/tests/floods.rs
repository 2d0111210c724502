//! While a flood is held back at the interface, what passes beside it follows the classes.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;

use scoutline_device::packet::Important;
use scoutline_device::{KnownAs, Peer, Policing};
use scoutline_path::{DropReason, Facts, Message, Name, Path};
use scoutline_ring::Block;
use scoutline_sched::Level;

use super::classes::class;
use super::datagrams::{bound, join, received};
use super::*;
use crate::settings::{ClassSettings, Forward};

/// The client of a pair.
const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Rules that a device was told, and whether it is to hold back SYNs only; one entry for each time.
type Told = Rc<RefCell<Vec<Option<(Vec<Important>, bool)>>>>;

/// Frames that a device was to hold back, until when and for whom.
type Held = Rc<RefCell<Vec<(Vec<u8>, Time, u64)>>>;

/// A device that only notes what it is to let pass and to hold back, and says how much has arrived.
pub(super) struct Noting {
    facts: DeviceFacts,
    arrived: Rc<Cell<u64>>,
    lost: Rc<Cell<u64>>,
    told: Told,
    held: Held,
    /// It takes nothing.
    pub(super) is_down: Rc<Cell<bool>>,
}

impl Noting {
    /// In the place of a core's device.
    pub(super) fn of(core: &Core) -> Noting {
        let facts = core.nets[0].device.facts().clone();
        let (arrived, lost, told) = (Rc::default(), Rc::default(), Told::default());
        Noting { facts, arrived, lost, told, held: Held::default(), is_down: Rc::default() }
    }
}

impl Partner for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }
    fn pull(&mut self, _burst: &mut Burst, _limit: usize, _now: Time) -> Result<usize, DeviceError> {
        Ok(0)
    }
    fn has_input(&self) -> bool {
        false
    }
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        if self.is_down.get() {
            return Err(DeviceError::Down { name: "noting".into() });
        }
        Ok(burst.drain(..).count())
    }
    fn room(&self) -> usize {
        64
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn police(&mut self, policing: Option<Policing<'_>>) {
        let told = policing.map(|policing| (policing.exempt.to_vec(), policing.only_syns));
        self.told.borrow_mut().push(told);
    }
    fn hold_back(&mut self, frame: &[u8], until: Time, owner: u64) {
        self.held.borrow_mut().push((frame.to_vec(), until, owner));
    }
    fn tell_held_back(&mut self, _now: Time, each: &mut dyn FnMut(u64, u64)) {
        for (_, _, owner) in self.held.borrow_mut().drain(..) {
            each(owner, 10);
        }
    }
    fn counters(&self) -> DeviceCounters {
        let (rx_packets, rx_ring_drops) = (self.arrived.get(), self.lost.get());
        DeviceCounters { rx_packets, rx_ring_drops, ..DeviceCounters::default() }
    }
}

#[test]
fn classes_that_change_during_a_flood_change_what_passes() {
    let mut pair = Pair::new(61, WireConfig::default());
    let server = &mut pair.server;
    let important = |name, port: u16| {
        class(name, |class| {
            class.level = Level::Priority(3);
            class.local_ports = vec![port..=port];
        })
    };
    let mut now = pair.now;
    server.change(vec![important("one", 80)], now);
    let noting = Noting::of(&server.core);
    let (arrived, told) = (Rc::clone(&noting.arrived), Rc::clone(&noting.told));
    server.core.nets[0].device = Box::new(noting);
    let mut look = |server: &mut Host, packets: u64| {
        now += Duration::from_millis(10);
        arrived.set(arrived.get() + packets);
        server.core.nets[0].unwanted.all += packets;
        server.core.look_for_floods(now);
        now
    };
    let ports = |at: usize| -> Option<Vec<u16>> {
        let rules = told.borrow()[at].clone();
        rules.map(|(rules, _)| {
            rules.iter().filter_map(|rule| Some(*rule.local_port.as_ref()?.start())).collect()
        })
    };
    let now = look(server, 10_000);
    server.change(vec![important("one", 80), important("two", 443)], now);
    let now = look(server, 10_000);
    server.change(vec![important("two", 443)], now);
    assert_eq!((ports(0), ports(1), ports(2)), (Some(vec![80]), Some(vec![80, 443]), Some(vec![443])));
    for _ in 0..110 {
        look(server, 0);
    }
    assert_eq!((told.borrow().len(), ports(3)), (4, None), "it is over");
}

#[test]
fn of_a_flood_of_syns_nothing_else_is_held_back() {
    for of_syns in [false, true] {
        let mut pair = Pair::new(63, WireConfig::default());
        let core = &mut pair.server.core;
        let noting = Noting::of(core);
        noting.arrived.set(10_000);
        let told = Rc::clone(&noting.told);
        core.nets[0].device = Box::new(noting);
        core.nets[0].unwanted.all += 10_000;
        core.nets[0].unwanted.syns += if of_syns { 10_000 } else { 0 };
        core.look_for_floods(pair.now + Duration::from_millis(10));
        assert_eq!(*told.borrow(), [Some((Vec::new(), of_syns))]);
    }
}

/// What a device was told of connections, in order.
type Acquainted = Rc<RefCell<Vec<(Peer, Option<KnownAs>)>>>;

/// A device that notes whom it knows.
struct Knowing(Box<dyn Partner>, Acquainted);

impl Partner for Knowing {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn facts(&self) -> &DeviceFacts {
        self.0.facts()
    }
    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        self.0.pull(burst, limit, now)
    }
    fn has_input(&self) -> bool {
        self.0.has_input()
    }
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.0.push(burst)
    }
    fn room(&self) -> usize {
        self.0.room()
    }
    fn poll_fd(&self) -> Option<RawFd> {
        self.0.poll_fd()
    }
    fn next_event(&self) -> Option<Time> {
        self.0.next_event()
    }
    fn know(&mut self, peer: &Peer, known: Option<KnownAs>) {
        self.1.borrow_mut().push((*peer, known));
    }
    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// A device hears of a connection when its handshake is complete and not before, of each change of its level, whatever
/// caused that, and of its end.
#[test]
fn devices_know_connections_that_stand() {
    let mut pair = Pair::new(65, WireConfig::default());
    let known = Acquainted::default();
    let nothing = Box::new(Noting::of(&pair.server.core));
    let net = &mut pair.server.core.nets[0];
    let wire = std::mem::replace(&mut net.device, nothing);
    net.device = Box::new(Knowing(wire, Rc::clone(&known)));
    // The last step of the handshake has not come yet.
    let (listener, half_open) = (pair.listen(80), pair.connect(80));
    pair.client.settle(pair.now);
    pair.server.settle(pair.now);
    assert!(known.borrow().is_empty(), "a SYN is nobody's yet");
    let mut accepted = None;
    pair.until("accept", |pair| {
        accepted = accepted.or_else(|| pair.server.accept(listener));
        accepted.is_some() && pair.client.state(half_open) & slot_state::CONNECTED != 0
    });
    let (peer, first) = known.borrow()[0];
    assert_eq!((peer.source, peer.local_port, first), (CLIENT_ADDRESS.into(), 80, Some(KnownAs::Standing)));
    let important = class("one", |class| {
        class.level = Level::Priority(3);
        class.local_ports = vec![80..=80];
    });
    pair.server.change(vec![important], pair.now);
    pair.server.settle(pair.now);
    pair.server.change(Vec::new(), pair.now);
    pair.server.settle(pair.now);
    let end = pair.server.core.programs[&RegionId(1)].end(accepted.unwrap()).unwrap();
    let id = end.path.get().unwrap();
    pair.server.core.destroy(id);
    let expected = [Some(KnownAs::Standing), Some(KnownAs::Important), Some(KnownAs::Standing), None];
    assert_eq!(*known.borrow(), expected.map(|known| (peer, known)));
}

/// A host that forwards gets more than it can pass on, and goes on passing on what it can.
#[test]
fn what_a_router_has_no_room_for_is_no_flood() {
    for forwards in [false, true] {
        let mut pair = Pair::new(62, WireConfig::default());
        let core = &mut pair.server.core;
        if forwards {
            core.settings.forwards.push(Forward { from: DeviceId(0), to: DeviceId(0) });
        }
        let noting = Noting::of(core);
        let (lost, told) = (Rc::clone(&noting.lost), Rc::clone(&noting.told));
        core.nets[0].device = Box::new(noting);
        // Nobody has looked at any of them: that tells after a while only.
        for look in 1..=3 {
            lost.set(look * 10_000);
            core.look_for_floods(pair.now + Duration::from_millis(10 * look));
        }
        assert_eq!(told.borrow().is_empty(), forwards, "at a million packets a second");
        if forwards {
            core.nets[0].unwanted.all += 10_000;
            core.look_for_floods(pair.now + Duration::from_millis(40));
            assert!(!told.borrow().is_empty(), "what it has no path for is one there, too");
        }
    }
}

/// A datagram from 10.0.0.9 to a port of this host, as its device brings it.
fn datagram(link: [u8; 6], port: u16) -> Message {
    datagram_to(link, [10, 0, 0, 1], port)
}

pub(super) fn datagram_to(link: [u8; 6], to: [u8; 4], port: u16) -> Message {
    let mut bytes = link.to_vec();
    bytes.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    let mut header = [0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9, to[0], to[1], to[2], to[3]];
    let sum: u32 = header.as_chunks::<2>().0.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(header);
    bytes.extend([0x10, 0]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 26, 0, 0]);
    bytes.resize(60, 7);
    Message::received(Block::from_bytes(bytes.into()), 0..60, Facts::default())
}

/// Whether its queue is full or its program's buffer, a path without room has its device drop what comes next, and what
/// that has dropped is the path's.
#[test]
fn a_path_without_room_is_held_back_at_its_device() {
    let mut pair = Pair::new(63, WireConfig::default());
    let now = pair.now;
    let server = &mut pair.server;
    bound(server, 53, now);
    let noting = Noting::of(&server.core);
    let (link, held) = (noting.facts.link_address, Rc::clone(&noting.held));
    server.core.nets[0].device = Box::new(noting);
    let queue = server.core.settings.queue_packets;
    for _ in 0..queue {
        server.core.classify(0, datagram(link, 53), now);
    }
    assert!(held.borrow().is_empty(), "they all wait");
    server.core.classify(0, datagram(link, 53), now);
    let (frame, until, owner) = held.borrow()[0].clone();
    assert_eq!(frame, datagram(link, 53).bytes());
    assert!(until > now && until <= now + Duration::from_millis(1), "{until:?}");
    let drops = |server: &mut Host, reason| {
        server.core.count_held_back(now);
        let mut paths = server.core.paths.iter();
        paths.find(|path| path.account.drops(DropReason::QueueFull) > 0).unwrap().account.drops(reason)
    };
    assert_eq!(drops(server, DropReason::HeldBack), 10);
    server.settle(now);
    // The program reads nothing.
    while held.borrow().is_empty() {
        server.core.classify(0, datagram(link, 53), now);
        server.settle(now);
    }
    let (frame, until, its) = held.borrow()[0].clone();
    assert_eq!((frame.as_slice(), its), (datagram(link, 53).bytes(), owner));
    assert!(until > now && until <= now + Duration::from_millis(1), "{until:?}");
    assert_eq!(drops(server, DropReason::ReceiveBufferFull), 1);
}

/// A program that does not read loses its own copy of what goes to many, and nobody else's: the device is not asked to
/// drop the flow, neither for a full queue nor for a full buffer.
#[test]
fn what_is_for_many_is_never_held_back() {
    let group = [239, 1, 2, 3];
    for (link, to) in [([1, 0, 0x5e, 1, 2, 3], group), ([0xff; 6], [255; 4]), ([0xff; 6], [10, 0, 0, 255])] {
        let mut pair = Pair::new(64, WireConfig::default());
        let now = pair.now;
        let server = &mut pair.server;
        let [reads, _unread] = [0; 2].map(|_| {
            let slot = bound(server, 53, now);
            assert_eq!(join(server, slot, now), 0);
            slot
        });
        let noting = Noting::of(&server.core);
        let held = Rc::clone(&noting.held);
        server.core.nets[0].device = Box::new(noting);
        let drops = |server: &Host, reason| -> u32 {
            server.core.paths.iter().map(|path| path.account.drops(reason)).sum()
        };
        let queue = server.core.settings.queue_packets;
        for _ in 0..=queue {
            server.core.classify(0, datagram_to(link, to, 53), now);
        }
        assert_eq!(drops(server, DropReason::QueueFull), 2, "both queues are full");
        assert!(held.borrow().is_empty());
        server.settle(now);
        assert_eq!(received(server, reads).len(), queue as usize, "{to:?}");
        while drops(server, DropReason::ReceiveBufferFull) == 0 {
            server.core.classify(0, datagram_to(link, to, 53), now);
            server.settle(now);
            assert_eq!(received(server, reads).len(), 1, "who reads has each");
        }
        assert!(held.borrow().is_empty(), "{to:?}");
    }
}

/// As many clients as may wait to be accepted can come in one burst, whatever other paths hold; a class has its say.
#[test]
fn a_listen_path_holds_a_burst_of_its_backlog() {
    let mut pair = Pair::new(65, WireConfig::default());
    let (now, server) = (pair.now, &mut pair.server);
    let usual = server.core.settings.queue_packets;
    let limits = |server: &Host| {
        let listens = |path: &&Path| path.attributes.number(Name::Listen).is_some();
        let limits = server.core.paths.iter().filter(listens).map(|path| path.queue().limit_packets());
        limits.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let slot = server.open(slot_kind::STREAM, now);
    assert_eq!(server.call(call_op::BIND, slot, [0, 80, 0, 0], now), 0);
    assert_eq!(server.call(call_op::LISTEN, slot, [5, 0, 0, 0], now), 0);
    assert_eq!(limits(server), [usual]);
    assert_eq!(server.call(call_op::LISTEN, slot, [1000, 0, 0, 0], now), 0);
    assert_eq!(limits(server), [1001]);
    server.change(vec![class("web", |class| class.local_ports = vec![80..=80])], now);
    assert_eq!(limits(server), [1001]);
    let few =
        |class: &mut ClassSettings| (class.local_ports, class.queue_packets) = (vec![80..=80], Some(64));
    server.change(vec![class("web", few)], now);
    assert!(limits(server).contains(&64), "{:?}", limits(server));
}
