//! While a flood is held back at the interface, what passes beside it follows the classes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use scoutline_device::Policing;
use scoutline_device::packet::Important;
use scoutline_path::{DropReason, Facts, Message};
use scoutline_ring::Block;
use scoutline_sched::Level;

use super::classes::class;
use super::datagrams::bound;
use super::*;
use crate::settings::Forward;

/// Rules that a device was told, and whether it is to hold back SYNs only; one entry for each time.
type Told = Rc<RefCell<Vec<Option<(Vec<Important>, bool)>>>>;

/// Frames that a device was to hold back, until when and for whom.
type Held = Rc<RefCell<Vec<(Vec<u8>, Time, u64)>>>;

/// A device that only notes what it is to let pass and to hold back, and says how much has arrived.
struct Noting {
    facts: DeviceFacts,
    arrived: Rc<Cell<u64>>,
    lost: Rc<Cell<u64>>,
    told: Told,
    held: Held,
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
    let (arrived, told) = (Rc::new(Cell::new(0)), Told::default());
    let server = &mut pair.server;
    let important = |name, port: u16| {
        class(name, |class| {
            class.level = Level::Priority(3);
            class.local_ports = vec![port..=port];
        })
    };
    let mut now = pair.now;
    server.change(vec![important("one", 80)], now);
    let facts = server.core.nets[0].device.facts().clone();
    let (lost, its) = (Rc::default(), Rc::clone(&told));
    let noting = Noting { facts, arrived: Rc::clone(&arrived), lost, told: its, held: Held::default() };
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
        let (lost, told) = (Rc::default(), Told::default());
        let facts = core.nets[0].device.facts().clone();
        let (arrived, its) = (Rc::new(Cell::new(10_000)), Rc::clone(&told));
        core.nets[0].device = Box::new(Noting { facts, arrived, lost, told: its, held: Held::default() });
        core.nets[0].unwanted.all += 10_000;
        core.nets[0].unwanted.syns += if of_syns { 10_000 } else { 0 };
        core.look_for_floods(pair.now + Duration::from_millis(10));
        assert_eq!(*told.borrow(), [Some((Vec::new(), of_syns))]);
    }
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
        let (arrived, lost, told) = (Rc::default(), Rc::<Cell<u64>>::default(), Told::default());
        let facts = core.nets[0].device.facts().clone();
        let noting =
            Noting { facts, arrived, lost: Rc::clone(&lost), told: Rc::clone(&told), held: Held::default() };
        core.nets[0].device = Box::new(noting);
        lost.set(10_000);
        core.look_for_floods(pair.now + Duration::from_millis(10));
        assert_eq!(told.borrow().is_empty(), forwards, "at a million packets a second");
        if forwards {
            core.nets[0].unwanted.all += 10_000;
            core.look_for_floods(pair.now + Duration::from_millis(20));
            assert!(!told.borrow().is_empty(), "what it has no path for is one there, too");
        }
    }
}

/// A datagram from 10.0.0.9 to a port of this host, as its device brings it.
fn datagram(link: [u8; 6], port: u16) -> Message {
    let mut bytes = link.to_vec();
    bytes.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    bytes.extend([0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 17, 0x26, 0xb5, 10, 0, 0, 9, 10, 0, 0, 1]);
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
    let facts = server.core.nets[0].device.facts().clone();
    let (link, held) = (facts.link_address, Held::default());
    let (arrived, lost, told) = (Rc::default(), Rc::default(), Told::default());
    server.core.nets[0].device = Box::new(Noting { facts, arrived, lost, told, held: Rc::clone(&held) });
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
