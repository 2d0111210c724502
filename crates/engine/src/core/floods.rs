//! Packets that nobody wants, and what is done when they are too many (see [`crate::flood`]).

use scoutline_base::Time;
use scoutline_path::{DropReason, FlowKey, Message};

use super::Core;
use super::paths::is_syn;
use crate::flood::{Change, Seen, Unwanted};

impl Core {
    /// A packet of no flow that we know: perhaps it is to be answered (a reset, port unreachable).
    pub(super) fn on_stray(&mut self, net: usize, key: &FlowKey, message: Message, now: Time) {
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

    /// Begins and ends to hold floods back at the interfaces.
    pub(super) fn look_for_floods(&mut self, now: Time) {
        for index in 0..self.nets.len() {
            let forwards = self.forwards(index);
            let net = &mut self.nets[index];
            if !net.flood.is_due(now) {
                continue;
            }
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
    }
}
