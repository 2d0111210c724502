//! Groups and everybody: who gets a datagram that is for more than one socket, and which groups sockets are in.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{Call, membership, slot_kind};
use scoutline_base::{Address, Time};
use scoutline_path::{Body, DropReason, FlowKey, Message, Path};
use scoutline_ring::Block;
use scoutline_wire::ipv4::PROTOCOL_UDP;

use super::Core;
use crate::several::Said;
use crate::socket::{DatagramStage, SocketEnd};

impl Core {
    /// A datagram that came for a group or everybody: each path that takes it has a copy. Which groups its socket is in
    /// the path's end looks at.
    pub(super) fn offer_to_group(&mut self, net: usize, key: &FlowKey, message: Message, now: Time) {
        let paths = self.nets[net].udp.group_listeners(key);
        let Some((last, others)) = paths.split_last() else {
            return self.drop_unowned(net, DropReason::NoPath);
        };
        for &id in others {
            self.offer(id, copy(&message), now);
        }
        self.offer(*last, message, now);
    }

    /// A datagram that went out to a group or everybody: sockets of this machine get it as it is, past the stages that
    /// deal with what comes off a wire.
    pub(super) fn loop_back(&mut self, net: usize, message: &Message) {
        self.loop_here(net, message);
        self.several.give_all(|| Said::Looped {
            net,
            bytes: message.bytes().into(),
            facts: message.facts.clone(),
        });
    }

    /// The same among the sockets of this engine.
    pub(super) fn loop_here(&mut self, net: usize, message: &Message) {
        let facts = &message.facts;
        let (Some(remote), Some(local), Some(ports)) = (facts.source, facts.destination, facts.ports) else {
            return;
        };
        let key = FlowKey {
            remote,
            local,
            remote_port: ports.0,
            local_port: ports.1,
            device: facts.device,
            protocol: PROTOCOL_UDP,
        };
        for id in self.nets[net].udp.group_listeners(&key) {
            if let Some(stage) = self.paths.get(id).and_then(Path::stage::<DatagramStage>) {
                stage.receive_looped(message);
            }
        }
    }

    /// MEMBERSHIP: a socket joins or leaves a group, or has a filter of sources.
    pub(super) fn change_membership(&mut self, end: &Rc<SocketEnd>, call: &Call) -> Result<i32, i32> {
        let word = |index: usize| call.arguments[index].load(Ordering::Relaxed);
        let (group, source) =
            (Address::from_words([word(0), word(1)]), Address::from_words([word(2), word(3)]));
        let more = call.more.load(Ordering::Relaxed);
        let (what, caller, number) = (more & 0xff, (more >> 8) as u32 & 0xff_ffff, (more >> 32) as u32);
        if end.kind != slot_kind::DATAGRAM {
            return Err(libc::EPROTO);
        }
        if !group.is_multicast() {
            return Err(libc::EINVAL);
        }
        let speaks = |net: &super::Net| net.interface().takes_for_many(group);
        let there = |net: &&super::Net| speaks(net) && (number == 0 || net.device.facts().index == number);
        let net = self.nets.iter().find(there).ok_or(libc::ENODEV)?;
        let (interface, number) = (net.interface(), net.device.facts().index);
        let by = (end.slot, call.process.load(Ordering::Relaxed), caller);
        let named = &end.program.named_sources;
        match what {
            membership::FIRST_OF_FILTER | membership::NEXT_OF_FILTER => {
                named.borrow_mut().name(what == membership::FIRST_OF_FILTER, by, source)?;
            }
            membership::FILTER_INCLUDES | membership::FILTER_EXCLUDES => {
                let sources = named.borrow_mut().take(by, word(3))?;
                end.memberships.filter(what == membership::FILTER_EXCLUDES, sources, number, group)?;
            }
            membership::FILTER => {
                let (said, source) = end.memberships.tell_filter(number, group, word(3))?;
                for (to, from) in call.arguments.iter().zip(source.map_or([0; 2], Address::words)) {
                    to.store(from, Ordering::Relaxed);
                }
                return Ok(said.cast_signed());
            }
            _ => end.memberships.change(what, (interface, number), group, source)?,
        }
        Ok(0)
    }
}

fn copy(message: &Message) -> Message {
    let bytes = message.bytes();
    let body = Body::block(Block::from_bytes(bytes.into()), 0..bytes.len() as u32);
    Message { body, facts: message.facts.clone(), ..Message::default() }
}
