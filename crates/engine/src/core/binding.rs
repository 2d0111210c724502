//! Which local ports sockets have: what BIND reserves, and which port is chosen for who names none.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{slot_flag, slot_kind, slot_state};
use scoutline_base::{Address, Endpoint, Time};
use scoutline_proto::bindings::{EPHEMERAL, Sharing};
use scoutline_wire::ipv4::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

use super::Core;
use super::calls::Errno;
use super::paths::flow_key;
use crate::socket::SocketEnd;

/// Connections that are looked at for a port that none of them has: some hundred microseconds.
const MAX_LOOKED_AT: usize = 1 << 16;
/// SO_REUSEADDR, SO_REUSEPORT and IPV6_V6ONLY among the bits of BIND's third argument.
const REUSE_ADDRESS: u64 = 1;
const REUSE_PORT: u64 = 2;
pub(super) const V6_ONLY: u64 = 4;

impl Core {
    /// Reserves a local port on every net that the address covers.
    pub(super) fn bind(
        &mut self,
        end: &Rc<SocketEnd>,
        local: Endpoint,
        sharing: Sharing,
        now: Time,
    ) -> Result<i32, Errno> {
        self.bind_from(end, local, sharing, end.program.facts.first_port, now)
    }

    /// The same, for who may have ports from this one on.
    pub(super) fn bind_from(
        &mut self,
        end: &Rc<SocketEnd>,
        mut local: Endpoint,
        sharing: Sharing,
        first_port: u16,
        now: Time,
    ) -> Result<i32, Errno> {
        if end.bound.get().is_some() {
            return Err(libc::EINVAL);
        }
        let protocol = protocol_of(end);
        if protocol == TCP && self.is_for_many(local.address) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let nets: Vec<usize> = self.places_of(end, local).into_iter().map(|(net, _)| net).collect();
        if nets.is_empty() {
            return Err(libc::EADDRNOTAVAIL);
        }
        if (1..first_port).contains(&local.port) {
            return Err(libc::EACCES);
        }
        // Who may have a port is decided in one place: the shim goes there.
        if local.port != 0 && !self.several.has_port(local.port) {
            return Err(libc::EINVAL);
        }
        if local.port == 0 {
            local.port = self.free_port(end, &nets, local.address, None, now).ok_or(libc::EADDRINUSE)?;
        }
        let places = self.places_of(end, local);
        for (done, &(net, place)) in places.iter().enumerate() {
            if self.bindings(net, protocol).reserve(place, sharing).is_err() {
                for &(net, place) in &places[..done] {
                    self.bindings(net, protocol).release(place, sharing);
                }
                return Err(libc::EADDRINUSE);
            }
        }
        end.sharing.set(sharing);
        for (net, place) in places {
            end.keep_port(Rc::clone(self.bindings(net, protocol)), place);
        }
        end.bind_to(protocol, local);
        if protocol == UDP
            && let Err(errno) = self.connect_datagram(end, None, 0, now)
        {
            end.release_port();
            end.clear_state(slot_state::BOUND);
            return Err(errno);
        }
        Ok(0)
    }

    /// Where a socket bound to `local` takes packets: on which nets, and at which addresses there.
    pub(super) fn places_of(&self, end: &SocketEnd, local: Endpoint) -> Vec<(usize, Endpoint)> {
        let at = |net: usize| end.places(local).map(move |place| (net, place));
        let device = end.tuning.get().device;
        let is_its = |net: usize| device == 0 || self.nets[net].device.facts().index == device;
        let nets = (0..self.nets.len()).filter(|&net| is_its(net));
        nets.flat_map(at).filter(|&(net, place)| self.covers(net, place)).collect()
    }

    fn bindings(&self, net: usize, protocol: u8) -> &Rc<scoutline_proto::Bindings> {
        if protocol == TCP { &self.nets[net].tcp } else { &self.nets[net].udp }
    }

    /// Where a socket that has no port is to be bound: at the address that its program has given it, if it is one of ours.
    pub(super) fn unbound(&self, end: &SocketEnd) -> Endpoint {
        let said = Endpoint::new(end.shared().local_address.load(), 0);
        let is_ours = !said.address.is_unspecified() && !self.places_of(end, said).is_empty();
        if is_ours { said } else { anywhere(end) }
    }

    /// An ephemeral port that is free on these nets for flows to `remote` (any peer if `None`).
    pub(super) fn free_port(
        &mut self,
        end: &SocketEnd,
        nets: &[usize],
        local: Address,
        remote: Option<Endpoint>,
        now: Time,
    ) -> Option<u16> {
        let protocol = protocol_of(end);
        let range = range_of(end.shared().port_range().load(Ordering::Relaxed));
        let towards = remote.unwrap_or_else(|| {
            // No peer yet: a random one keeps the ports of different sockets apart.
            let random = self.random.next_u32();
            Endpoint::new(std::net::Ipv4Addr::from_bits(random), EPHEMERAL.0)
        });
        // Whose peer is not known yet may meet any connection there, also one in TIME-WAIT: as Linux, a port without.
        let busy = (protocol == TCP && remote.is_none()).then(|| self.ports_of_connections()).flatten();
        let is_busy = |port: u16| {
            busy.as_ref().is_some_and(|ports| ports[usize::from(port) / 64] >> (port % 64) & 1 != 0)
        };
        let in_use = |port| {
            let at = Endpoint::new(local, port);
            let here = |&net: &usize| {
                let before = self.flows.lookup(&flow_key(net, protocol, at, towards));
                self.bindings(net, protocol).is_reserved(port)
                    || !self.several.has_port(port)
                    || before.is_some_and(|before| !self.may_follow(net, before, now))
            };
            // A connection from an end to itself would be a simultaneous open of one.
            !range.contains(&port) || at == towards || nets.iter().any(here)
        };
        let bindings = self.bindings(*nets.first()?, protocol);
        let without = bindings.ephemeral(local, towards, |port| is_busy(port) || in_use(port));
        // All are: then one that may be shared.
        without.or_else(|| bindings.ephemeral(local, towards, in_use))
    }

    /// Local ports of connections, a bit each; `None` where there are so many that looking at all would take long.
    fn ports_of_connections(&self) -> Option<Vec<u64>> {
        if self.flows.len() > MAX_LOOKED_AT {
            return None;
        }
        let mut ports = vec![0; 1 << 10];
        for (key, _) in self.flows.iter().filter(|(key, _)| key.protocol == TCP) {
            ports[usize::from(key.local_port) / 64] |= 1 << (key.local_port % 64);
        }
        Some(ports)
    }
}

/// What a socket that is bound to nothing takes: every address of its family.
pub(super) fn anywhere(end: &SocketEnd) -> Endpoint {
    let inet6 = end.shared().flags.load(Ordering::Acquire) & slot_flag::INET6 != 0;
    Endpoint::new(if inet6 { Address::UNSPECIFIED_V6 } else { Address::UNSPECIFIED_V4 }, 0)
}

/// The ports that may be chosen (IP_LOCAL_PORT_RANGE): either end counts where it lies among those that all choose from, as
/// in Linux's `inet_sk_get_local_port_range`.
fn range_of(said: u32) -> std::ops::RangeInclusive<u16> {
    let all = EPHEMERAL.0..=EPHEMERAL.1;
    let or = |said: u16, usual| if all.contains(&said) { said } else { usual };
    or(said as u16, EPHEMERAL.0)..=or((said >> 16) as u16, EPHEMERAL.1)
}

/// SO_REUSEADDR and SO_REUSEPORT as BIND has them.
pub(super) fn sharing_by(bits: u64) -> Sharing {
    Sharing { port: bits & REUSE_PORT != 0, address: bits & REUSE_ADDRESS != 0 }
}

fn protocol_of(end: &SocketEnd) -> u8 {
    if end.kind == slot_kind::STREAM { TCP } else { UDP }
}
