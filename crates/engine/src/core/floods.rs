//! Packets that nobody wants, and what is done when they are too many (see [`crate::flood`]).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use scoutline_base::{Address, PathId, Time};
use scoutline_device::{KnownAs, Peer};
use scoutline_path::{DropReason, FlowKey, Message};

use super::Core;
use super::paths::is_syn;
use crate::flood::{Change, Seen, Unwanted};

/// How long a path without room holds its flow back at the device: its queue takes longer than this for each packet in it,
/// so it does not run empty meanwhile. A long queue is looked at again before that.
pub(super) const SERVED_IN: Duration = Duration::from_nanos(200);
pub(super) const LONGEST_QUEUE: u32 = 256;

impl Core {
    /// A packet of no flow that we know: perhaps it is to be answered (a reset, port unreachable).
    pub(super) fn on_stray(&mut self, net: usize, key: &FlowKey, message: Message, now: Time) {
        if let Some(message) = self.keep_stray(net, key, message) {
            self.refuse_stray(net, key, message, now);
        }
    }

    /// A packet that is nobody's.
    pub(super) fn refuse_stray(&mut self, net: usize, key: &FlowKey, message: Message, now: Time) {
        match self.nets[net].interface().stray_path(key) {
            Some(id) => {
                let is_syn = is_syn(message.bytes());
                if self.offer(id, message, now) {
                    self.nets[net].unwanted.count(is_syn);
                }
            }
            None => self.drop_unowned(net, DropReason::NoPath),
        }
    }

    /// Drops a packet that belongs to no path.
    pub(super) fn drop_unowned(&mut self, net: usize, reason: DropReason) {
        self.nets[net].unwanted.count(false);
        self.unowned.on_drop(reason);
    }

    /// The path has no room: what comes of this frame's flow until then is dropped by the device, if it can. Not what is for
    /// a group or everybody: each who listens has a copy, and one that does not read would take it from all others.
    pub(super) fn hold_back(&mut self, net: usize, id: PathId, frame: &[u8], until: Time) {
        let net = &mut self.nets[net];
        let is_for_many = |to: Address| to.is_multicast() || net.modules.interface.is_everybody(to);
        if !destination_of(frame).is_some_and(is_for_many) {
            net.device.hold_back(frame, until, owner_of(id));
        }
    }

    /// Tells its device of a connection that stands, or that is important by now, by a request perhaps: a flood takes
    /// nothing from it, and its peer may come back.
    pub(super) fn make_known(&mut self, id: PathId) {
        let extra = &mut self.extras[id.index];
        let Some(peer) = extra.flow.as_ref().map(peer_of) else { return };
        extra.known = true;
        let is_important = extra.level > self.settings.linux_level;
        let known = if is_important { KnownAs::Important } else { KnownAs::Standing };
        self.nets[usize::from(extra.net)].device.know(&peer, Some(known));
    }

    /// The connection ends.
    pub(super) fn forget_known(&mut self, id: PathId) {
        let extra = &mut self.extras[id.index];
        if let (true, Some(flow)) = (std::mem::take(&mut extra.known), &extra.flow) {
            self.nets[usize::from(extra.net)].device.know(&peer_of(flow), None);
        }
    }

    /// Accounts what devices dropped for paths without room.
    pub(crate) fn count_held_back(&mut self, now: Time) {
        let Core { nets, paths, unowned, .. } = self;
        for net in nets {
            net.device.tell_held_back(now, &mut |owner, dropped| {
                // What came for a path that has gone since belongs to nobody.
                let account = paths.get_mut(path_of(owner)).map_or(&mut *unowned, |path| &mut path.account);
                account.on_drops(DropReason::HeldBack, dropped);
            });
        }
    }

    /// Begins and ends to hold floods back at the interfaces.
    pub(super) fn look_for_floods(&mut self, now: Time) {
        let mut due = false;
        for index in 0..self.nets.len() {
            let forwards = self.forwards(index);
            let net = &mut self.nets[index];
            if !net.flood.is_due(now) {
                continue;
            }
            due = true;
            let counters = net.device.counters();
            // What was lost for want of room in the ring says nothing of a host that forwards: more can always come than it
            // can pass on, and to hold that back would leave a hundredth of it.
            let lost = if forwards { 0 } else { counters.rx_ring_drops };
            // Nearly all of them are forged, and whose is not comes again.
            let crowded_out = net.modules.tcp.crowded_out();
            let Unwanted { all, syns } = net.unwanted;
            let seen = Seen {
                arrived: counters.rx_packets + lost,
                lost,
                unwanted: Unwanted { all: all + crowded_out, syns: syns + crowded_out },
                held_back: counters.rx_policed,
            };
            match net.flood.look(seen, now) {
                // What is no more important than Linux has to share what is let through.
                Some(Change::Begin(flood)) => {
                    let exempt = self.policy.important(self.settings.linux_level);
                    net.device.police(Some(flood.policing(&exempt)));
                }
                Some(Change::End) => net.device.police(None),
                None => {}
            }
            if let Some(news) = net.device.news() {
                eprintln!("scoutline: {}", news.0);
            }
        }
        if due {
            self.count_held_back(now);
        }
    }
}

fn peer_of(flow: &FlowKey) -> Peer {
    let FlowKey { remote, remote_port, local_port, .. } = *flow;
    Peer { source: remote.to_ip(), source_port: remote_port, local_port }
}

/// Whom a frame is for. Looked up here, for a packet whose queue is full has not been through the stages that tell.
fn destination_of(frame: &[u8]) -> Option<Address> {
    match frame.get(12..14)? {
        [0x08, 0x00] => Some(Ipv4Addr::from(*frame.get(30..)?.first_chunk::<4>()?).into()),
        [0x86, 0xdd] => Some(Ipv6Addr::from(*frame.get(38..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// The number by which a device knows a path.
fn owner_of(id: PathId) -> u64 {
    u64::from(id.index) << 32 | u64::from(id.generation)
}

fn path_of(owner: u64) -> PathId {
    PathId { index: (owner >> 32) as u32, generation: owner as u32 }
}
