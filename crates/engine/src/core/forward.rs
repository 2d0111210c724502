//! Forwarding from one device to another: one cut-through path for each pair of devices and class (DESIGN.md §4, §5).
//!
//! ```text
//!   classify: not for us ─► which device leads there? ─► class by its rules ─► path (from, to, class) ─► queue
//!   run:      ETH (from) ─► FORWARD ─► ETH (to) ─► class queues of `to`
//! ```
//! Paths are made when they are first needed. There is no state for each flow, so nobody can fill a table by sending
//! packets of many. A class's rules see the packet's source as the peer and its destination as our end; conditions on
//! programs never hold. What a class's queue at the outgoing device does not take yet waits in the path's own queue,
//! which is bounded in time when the device has a rate.

use scoutline_base::{DeviceId, PathId, Time};
use scoutline_path::{Attributes, Body, Burst, DropReason, FlowKey, Message, Name, NewPath, Value};
use scoutline_proto::bindings::ClassIndex;
use scoutline_proto::eth::{ANY_IP, EthStage};
use scoutline_proto::forward::{ForwardStage, OutStage};
use scoutline_sched::Level;
use scoutline_sched::transmit::Flow;
use scoutline_wire::ethernet;

use super::Core;

/// How much of the outgoing link's time may wait in one path's queue: what routers are usually given (tc-tbf(8):
/// `latency 50ms`).
const QUEUE_TIME: std::time::Duration = std::time::Duration::from_millis(50);
/// And at least so many bytes: some super-segments.
const QUEUE_LEAST: u64 = 256 << 10;
/// Which path passes packets of a class from one device to another.
pub(super) type Direction = (u16, u16, ClassIndex);

impl Core {
    /// True when packets that come on this device may be for others.
    pub(super) fn forwards(&self, net: usize) -> bool {
        self.settings.forwards.iter().any(|forward| usize::from(forward.from.0) == net)
    }

    /// A packet that is not for us: passes it on.
    ///
    /// # Errors
    /// The packet, when it is not to be passed on.
    #[allow(clippy::result_large_err)] // as Path::offer
    pub(super) fn forward(
        &mut self,
        net: usize,
        key: &FlowKey,
        message: Message,
        now: Time,
    ) -> Result<(), Message> {
        let bytes = message.bytes();
        let link = self.nets[net].interface().link_address.get();
        // Only what the link brought to us alone (RFC 1812 §5.3.4), and only IP.
        let ours = bytes.get(..6) == Some(&link[..]) && key.protocol != 0;
        let Some(to) = self.way(net, key).filter(|_| ours) else { return Err(message) };
        let tos = tos_of(bytes);
        let class = self.policy.class_for(key, tos, None);
        match self.forward_path(net, to, class) {
            Some(id) => _ = self.offer(id, message, now),
            None => self.unowned.on_drop(DropReason::Refused),
        }
        Ok(())
    }

    /// The device that leads to the destination: the one that knows the way best, else the first, which will tell the
    /// sender that there is no way.
    fn way(&self, net: usize, key: &FlowKey) -> Option<usize> {
        let ways = || {
            let from_here =
                self.settings.forwards.iter().filter(move |forward| usize::from(forward.from.0) == net);
            from_here.map(|forward| usize::from(forward.to.0))
        };
        // Of equal ones the first.
        let known = ways().rev().filter_map(|to| Some((self.nets[to].interface().way(key.local)?.1, to)));
        known.max_by_key(|&(rank, _)| rank).map(|(_, to)| to).or_else(|| ways().next())
    }

    fn forward_path(&mut self, from: usize, to: usize, class: ClassIndex) -> Option<PathId> {
        let direction = (from as u16, to as u16, class);
        if let Some(&id) = self.forwarders.get(&direction) {
            return Some(id);
        }
        let interface = |net: usize| self.nets[net].interface().clone();
        let stands = self.policy.class(class).settings.stands();
        let merges = self.nets[to].device.facts().offload.segmentation;
        let names = [from, to].map(|net| self.nets[net].device.name().to_owned());
        let attributes = Attributes::new()
            .with(Name::PathName, Value::Text(format!("forward {} {}", names[0], names[1]).into()))
            .with(Name::Class, Value::Number(u64::from(class)))
            .with(Name::Device, Value::Device(DeviceId(from as u16)));
        let stages: Vec<Box<dyn scoutline_path::Stage>> = vec![
            Box::new(EthStage::new(interface(from), ANY_IP as u16)),
            Box::new(ForwardStage::new(interface(from), interface(to), merges)),
            Box::new(OutStage::new(interface(to))),
        ];
        let mut limits = self.limits_of(class);
        if let Some(rate) = self.nets[to].transmit.rate() {
            limits.queue_bytes = rate.bytes_in(QUEUE_TIME).max(QUEUE_LEAST).min(limits.queue_bytes);
        }
        self.make_place();
        let admitted = self.paths.budget().admit();
        let made = admitted.and_then(|()| self.paths.insert(NewPath { stages, attributes }, limits));
        let Ok(id) = made else {
            self.counters.paths_refused += 1;
            return None;
        };
        self.take_in(id, from, (class, stands));
        self.extras[id.index].to = Some(to as u16);
        self.count_background(to, Level::default(), stands.level);
        self.forwarders.insert(direction, id);
        Some(id)
    }

    /// A forwarding path ends: with the classes it was made for. What waits in it is classified again.
    pub(super) fn end_forward_path(&mut self, id: PathId, now: Time) {
        let waiting = self.destroy_but_queued(id);
        self.classify_queued(waiting, now);
    }

    /// Gives each device what a forwarding path made for it: packets to the one, ICMP errors and questions for
    /// neighbours to whichever.
    pub(super) fn emit_forwarded(&mut self, to: usize, flow: Option<&Flow>, made: &mut Burst) {
        let mut others = Burst::new();
        let mut onward = Burst::new();
        for message in made.drain(..) {
            let there = usize::from(message.facts.device.0) == to && !matches!(message.body, Body::Empty);
            if there { onward.push(message) } else { others.push(message) }
        }
        self.emit(to, flow, &mut onward);
        for message in others {
            let net = usize::from(message.facts.device.0);
            self.emit_unowned(net, &mut vec![message]);
        }
    }

    /// How many packets of a forwarding path's queue there is room for at its outgoing device.
    pub(super) fn fitting(&self, id: PathId, bytes: u64) -> usize {
        self.paths.get(id).map_or(0, |path| path.queue().fitting(bytes)).max(1)
    }
}

/// Type of service, or traffic class, of the packet in a frame.
fn tos_of(frame: &[u8]) -> Option<u8> {
    let &[first, second, ..] = frame.get(ethernet::HEADER_LEN..)? else { return None };
    Some(if first >> 4 == 6 { first << 4 | second >> 4 } else { second })
}
