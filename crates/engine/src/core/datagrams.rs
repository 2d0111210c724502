//! The paths of a datagram socket: one with a peer, or for all peers one on each device (ARCHITECTURE.md, "A path has one
//! family").

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{disconnect, slot_kind, slot_request, slot_state};
use scoutline_base::{Address, Endpoint, PathId, Time};
use scoutline_path::{Attributes, DropReason, Name, Value};
use scoutline_proto::bindings::ClassIndex;
use scoutline_proto::ip6::DUAL;
use scoutline_sched::{Decision, Entry, Level, Quantum};
use scoutline_wire::ipv4::PROTOCOL_UDP as UDP;

use super::Core;
use super::calls::{Errno, errno_of, socket_attributes};
use super::paths::{flow_key, socket_of};
use crate::program::Program;
use crate::scheduling::{Asks, Stands};
use crate::socket::{SIDE, Sizes, SocketEnd, set_addresses};
use crate::wishes::Granted;

/// Closed sockets that are remembered until they have ended.
const MOST_CLOSED: usize = 64;

impl Core {
    /// Gives a bound datagram socket the path for this peer, or for all.
    pub(super) fn connect_datagram(
        &mut self,
        end: &Rc<SocketEnd>,
        remote: Option<Endpoint>,
        scope: u32,
        now: Time,
    ) -> Result<(), Errno> {
        let Some((_, bound)) = end.bound.get() else { return Err(libc::EINVAL) };
        let net = match remote {
            Some(remote) => self.routing.towards_by(remote.address, scope, end.tuning.get().device)?,
            None => self.places_of(end, bound).first().ok_or(libc::EADDRNOTAVAIL)?.0,
        };
        let address = match remote {
            Some(remote) => self.source_towards(net, bound.address, remote.address),
            // Without IPv6 on that net there is only IPv4.
            None if !self.covers(net, bound) => Some(Address::UNSPECIFIED_V4),
            None if self.is_for_many(bound.address) => Some(bound.address.unspecified()),
            None => Some(bound.address),
        };
        let address = address.ok_or(libc::EADDRNOTAVAIL)?;
        if remote.is_some_and(|remote| remote.address.is_v4() != address.is_v4()) {
            return Err(libc::ENETUNREACH);
        }
        let local = Endpoint::new(address, bound.port);
        let key = remote.map(|remote| flow_key(net, UDP, local, remote));
        let taken = key.and_then(|key| self.flows.lookup(&key));
        if taken.is_some_and(|by| Some(by) != end.path.get()) {
            return Err(libc::EADDRINUSE);
        }
        let about = key.unwrap_or_else(|| self.place_key(net, UDP, bound));
        let ruled = self.policy.class(self.policy.class_for(&about, None, Some(&end.program.facts)));
        let Granted { class, stands, .. } = self.granted(ruled, end);
        // What it was promised for the path that it has stands against the one that it asks for.
        let has = end.path.get().and_then(|old| self.booked(old));
        let admitted = if end.receive_size() == 0 {
            self.admit(&class, stands.asks)
        } else if end.fits(&class.memory) {
            self.promises.admit(&class, stands.asks, has)
        } else {
            Err(DropReason::MemoryLimit)
        };
        self.refuse(admitted, class.number)?;
        let had_no_room = end.send_size() == 0;
        if !end.ensure_rings(Sizes::configured(&self.settings).datagram(), &class.memory) {
            return Err(libc::ENOBUFS);
        }
        if had_no_room {
            end.signal(); // it is writable: an epoll may have had it before
        }
        let mut attributes = socket_attributes(end, UDP, local, remote);
        if remote.is_none() && end.places(local).count() > 1 {
            attributes.set(Name::Other(DUAL), Value::Number(1));
        }
        let id = self.exchange_datagram_path(end, net, attributes, (class.number, stands))?;
        end.move_charge(&class.memory);
        end.shared().scope.store(self.nets[net].device.facts().index, Ordering::Relaxed);
        end.set_mtu(self.mtu_towards(net, remote.map(|remote| remote.address), now));
        self.note_origin(id, None, &end.program.facts);
        if let Some(key) = key {
            self.bind_flow(id, key);
            return Ok(());
        }
        // What it is bound to may be a group, which its path cannot send from.
        end.shared().local_address.store(bound.address);
        self.listen_for_datagrams(end, net, bound, (class.number, id));
        self.make_side_paths(end, net, bound)
    }

    /// A datagram socket has no peer any more, and gives up of [`disconnect`] what is said.
    pub(super) fn disconnect_datagram(
        &mut self,
        end: &Rc<SocketEnd>,
        gives_up: u64,
        now: Time,
    ) -> Result<(), Errno> {
        let Some((_, bound)) = end.bound.get() else { return Ok(()) };
        if gives_up & disconnect::PORT == 0 {
            return self.connect_datagram(end, None, 0, now);
        }
        if let Some(id) = end.path.get() {
            self.destroy(id);
        }
        end.release_port();
        end.clear_state(slot_state::CONNECTED | slot_state::BOUND);
        let address =
            if gives_up & disconnect::ADDRESS == 0 { bound.address } else { bound.address.unspecified() };
        set_addresses(end, Endpoint::new(address, 0), Endpoint::default());
        Ok(())
    }

    /// Makes a path in the place of those that a datagram socket has. If it cannot be made, they and what the program
    /// is told of them stay.
    fn exchange_datagram_path(
        &mut self,
        end: &Rc<SocketEnd>,
        net: usize,
        attributes: Attributes,
        place: (ClassIndex, Stands),
    ) -> Result<PathId, Errno> {
        let slot = end.shared();
        let was_connected = slot.state.load(Ordering::Relaxed) & slot_state::CONNECTED;
        let [local, remote] =
            [(&slot.local_address, &slot.local_port), (&slot.remote_address, &slot.remote_port)]
                .map(|(address, port)| Endpoint::new(address.load(), port.load(Ordering::Relaxed) as u16));
        end.clear_state(slot_state::CONNECTED);
        let made = self.make_path(net, "SOCKET", attributes, place);
        let id = made.map_err(|error| {
            set_addresses(end, local, remote);
            end.clear_state(slot_state::CONNECTED);
            end.add_state(was_connected);
            errno_of(&error)
        })?;
        // With it go those on the other devices.
        if let Some(old) = end.path.get() {
            self.destroy(old);
        }
        end.path.set(Some(id));
        Ok(id)
    }

    fn listen_for_datagrams(
        &self,
        end: &SocketEnd,
        net: usize,
        bound: Endpoint,
        (class, id): (ClassIndex, PathId),
    ) {
        for (_, place) in self.places_of(end, bound).into_iter().filter(|(at, _)| *at == net) {
            if end.sharing.get().port {
                self.nets[net].udp.listen(place, class, id);
            } else {
                self.nets[net].udp.listen_alone(place, class, id);
            }
        }
    }

    /// A datagram socket without a peer has a path on every net that its address is on; `first` has one already, which
    /// reads the socket's ring and hands on what leaves elsewhere.
    fn make_side_paths(&mut self, end: &Rc<SocketEnd>, first: usize, bound: Endpoint) -> Result<(), Errno> {
        let mut nets: Vec<usize> = self.places_of(end, bound).into_iter().map(|(net, _)| net).collect();
        nets.dedup();
        for net in nets.into_iter().filter(|&net| net != first) {
            let (class, id) = self.make_side_path(end, net, bound)?;
            self.listen_for_datagrams(end, net, bound, (class, id));
        }
        Ok(())
    }

    /// A path for what a datagram socket sends by another device than its first path's.
    pub(super) fn make_side_path(
        &mut self,
        end: &Rc<SocketEnd>,
        net: usize,
        bound: Endpoint,
    ) -> Result<(ClassIndex, PathId), Errno> {
        let about = self.place_key(net, UDP, bound);
        let ruled = self.policy.class(self.policy.class_for(&about, None, Some(&end.program.facts)));
        let Granted { class, stands, .. } = self.granted(ruled, end);
        // What is promised is promised to the first.
        let stands = Stands { asks: Asks::Level, ..stands };
        let local = if self.is_for_many(bound.address) {
            Endpoint::new(bound.address.unspecified(), bound.port)
        } else if self.covers(net, bound) {
            bound
        } else if bound.address.is_unspecified() {
            Endpoint::new(Address::UNSPECIFIED_V4, bound.port)
        } else {
            Endpoint::new(bound.address.unspecified(), bound.port)
        };
        let mut attributes =
            socket_attributes(end, UDP, local, None).with(Name::Other(SIDE), Value::Number(1));
        if end.places(local).count() > 1 {
            attributes.set(Name::Other(DUAL), Value::Number(1));
        }
        let made = self.make_path(net, "SOCKET", attributes, (class.number, stands));
        let id = made.map_err(|error| errno_of(&error))?;
        end.side_paths.borrow_mut().push(id);
        self.note_origin(id, None, &end.program.facts);
        Ok((class.number, id))
    }

    /// What programs have closed in these moments gives its ports back before somebody is told that they are taken. False: there
    /// was nothing of that kind.
    pub(super) fn finish_closed(&mut self, now: Time) -> bool {
        let programs: Vec<Rc<Program>> = self.programs.values().cloned().collect();
        let mut has_any = false;
        for program in programs {
            program.take_dirty(|slot| {
                has_any = true;
                self.counters.doorbells += 1;
                self.on_dirty(&program, slot, now);
            });
        }
        for id in std::mem::take(&mut self.closed_datagrams) {
            has_any = true;
            let level = self.extras.get(id.index).map_or(Level::Idle, |extra| extra.level);
            self.run_path(id, &Decision { entry: Entry::Path(id), level, quantum: Quantum::PATH }, now);
            self.let_port_go(id);
        }
        has_any
    }

    /// A datagram socket that is closed, and has more to send than leaves at once, goes on without its port: as on Linux
    /// nothing comes there any more, and another one may have it.
    fn let_port_go(&mut self, id: PathId) {
        let Some(end) = self.paths.get(id).and_then(socket_of) else { return };
        for id in std::iter::once(id).chain(end.side_paths.borrow().iter().copied()) {
            let extra = &mut self.extras[id.index];
            self.nets[extra.net as usize].udp.unlisten(id);
            if let Some(key) = extra.flow.take_if(|key| self.flows.lookup(key) == Some(id)) {
                self.flows.remove(&key);
                self.tell_elsewhere(&key, None);
            }
        }
        end.release_port();
    }

    /// Remembers a socket that was marked, if it was closed.
    pub(super) fn note_closed(&mut self, end: &SocketEnd, id: PathId) {
        if end.kind != slot_kind::DATAGRAM {
            return;
        }
        if end.shared().requests.load(Ordering::Acquire) & (slot_request::CLOSE | slot_request::ABORT) == 0 {
            return;
        }
        if self.closed_datagrams.len() == MOST_CLOSED {
            self.closed_datagrams.retain(|&id| self.paths.get(id).is_some());
        }
        if self.closed_datagrams.len() < MOST_CLOSED {
            self.closed_datagrams.push(id);
        }
    }
}
