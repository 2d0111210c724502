//! While a flood is held back at the interface, what passes beside it follows the classes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use scoutline_device::Policing;
use scoutline_device::packet::Important;
use scoutline_sched::Level;

use super::classes::class;
use super::*;
use crate::settings::Forward;

/// Rules that a device was told, one entry for each time.
type Told = Rc<RefCell<Vec<Option<Vec<Important>>>>>;

/// A device that only notes what it is to let pass, and says how much has arrived.
struct Noting {
    facts: DeviceFacts,
    arrived: Rc<Cell<u64>>,
    lost: Rc<Cell<u64>>,
    told: Told,
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
        self.told.borrow_mut().push(policing.map(|policing| policing.exempt.to_vec()));
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
    let noting = Noting { facts, arrived: Rc::clone(&arrived), lost, told: its };
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
        rules.map(|rules| rules.iter().filter_map(|rule| Some(*rule.local_port.as_ref()?.start())).collect())
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
        let noting = Noting { facts, arrived, lost: Rc::clone(&lost), told: Rc::clone(&told) };
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
