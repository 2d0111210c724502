//! What crosses between engines, on this one's side (see [`crate::several`]).

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{engine_of, slot_kind, slot_request, slot_state};
use scoutline_base::Time;
use scoutline_path::{Body, Facts, FlowKey, Message};
use scoutline_proto::bindings::Sharing;
use scoutline_ring::Block;
use scoutline_wire::ipv4::PROTOCOL_TCP as TCP;

use super::Core;
use crate::program::Program;
use crate::several::{Packet, Said, Shadow, is_for_all};
use crate::socket::{Sizes, SocketEnd, queue_accepted};

/// Packets of no known flow that wait for what other engines may have said of it: more are looked at as they are.
const MOST_STRAYS: usize = 256;

/// A packet that found no path.
pub(super) struct Stray {
    net: usize,
    message: Message,
}

impl Core {
    /// A packet of no known flow, before modules are asked: `None` if it is another engine's.
    pub(super) fn keep_own(
        &mut self,
        net: usize,
        key: Option<&FlowKey>,
        message: Message,
    ) -> Option<Message> {
        if !self.several.is_several() || self.looks_again || self.nets[net].interface().is_own_link() {
            return Some(message);
        }
        let Some(key) = key else {
            if self.several.is_first() && is_for_all(message.bytes()) {
                let packet = packet_of(net, &message);
                self.several.tell_all(|| Said::Packet(packet.clone()));
            }
            return Some(message);
        };
        match self.elsewhere.get(key).copied().or_else(|| self.several.other_of(key)) {
            Some(engine) => {
                self.hand_over(net, &message, engine);
                None
            }
            None => Some(message),
        }
    }

    /// A packet that no path takes: `None` if another engine may have one, or may have said so by the next turn.
    pub(super) fn keep_stray(&mut self, net: usize, key: &FlowKey, message: Message) -> Option<Message> {
        if !self.several.is_several() || self.looks_again {
            return Some(message);
        }
        if self.nets[net].interface().is_own_link()
            && let Some(engine) = self.several.other_of(key)
        {
            self.hand_over(net, &message, engine);
            return None;
        }
        if self.strays.len() >= MOST_STRAYS {
            return Some(message);
        }
        self.strays.push(Stray { net, message });
        None
    }

    /// There are packets to look at again.
    pub(super) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Looks again at what found no path, after what other engines have said meanwhile.
    pub(crate) fn look_again(&mut self, now: Time) {
        if self.strays.is_empty() {
            return;
        }
        self.looks_again = true;
        for Stray { net, message } in std::mem::take(&mut self.strays) {
            self.classify(net, message, now);
        }
        self.looks_again = false;
    }

    fn hand_over(&mut self, net: usize, message: &Message, engine: usize) {
        self.counters.handed_over += 1;
        self.several.tell(engine, Said::Packet(packet_of(net, message)));
    }

    /// Another engine says something.
    pub(super) fn on_said(&mut self, said: Said, now: Time) {
        match said {
            Said::Packet(Packet { net, bytes, checksum, segmentation }) => {
                if net >= self.nets.len() {
                    return;
                }
                let facts = Facts { arrival: now, checksum, segmentation, ..Facts::default() };
                let range = 0..bytes.len() as u32;
                // It is ours, or nobody's.
                self.looks_again = true;
                self.classify(net, Message::received(Block::from_bytes(bytes), range, facts), now);
                self.looks_again = false;
            }
            Said::Looped { net, bytes, facts } => {
                if net < self.nets.len() {
                    let range = 0..bytes.len() as u32;
                    self.loop_here(net, &Message::received(Block::from_bytes(bytes), range, facts));
                }
            }
            Said::Told { net, key, control } => self.notify(net, &key, control, now),
            Said::Listens(shadow) => self.listen_beside(&shadow, now),
            Said::Unlistens { region, slot } => {
                if let Some(end) = self.programs.get(&region).and_then(|program| program.end(slot)) {
                    self.close_listener(&end, now);
                }
            }
            Said::Accepted { region, listener, slot, standing } => {
                let end = self.programs.get(&region).and_then(|program| program.end(listener));
                if !end.is_some_and(|end| queue_accepted(&end, slot, standing)) {
                    let engine = engine_of(slot, self.several.count());
                    self.several.tell(engine, Said::Orphaned { region, listener, slot });
                }
            }
            Said::Stands { region, listener, standing } => {
                if let Some(end) = self.programs.get(&region).and_then(|program| program.end(listener))
                    && standing.importance() > end.shared().importance.load(Ordering::Relaxed)
                {
                    end.stand(standing);
                    end.signal_at(standing.duty());
                }
            }
            Said::Orphaned { region, listener, slot } => {
                if let Some(program) = self.programs.get(&region).cloned() {
                    self.end_orphan(&program, listener, slot, now);
                }
            }
            Said::Elsewhere { key, engine } => match engine {
                Some(engine) => _ = self.elsewhere.insert(key, engine),
                None => _ = self.elsewhere.remove(&key),
            },
        }
    }

    /// Resets a connection that waits in the queue of this listening socket, unless a program has taken it.
    pub(super) fn end_orphan(&mut self, program: &Rc<Program>, listener: u32, slot: u32, now: Time) {
        let Some(orphan) = program.end(slot) else {
            if self.several.is_several() && !program.serves(slot) {
                let engine = engine_of(slot, self.several.count());
                self.several.tell(engine, Said::Orphaned { region: program.id, listener, slot });
            }
            return;
        };
        let shared = orphan.shared();
        let waiting = shared.references.load(Ordering::Acquire) == 0
            && shared.state.load(Ordering::Acquire) & slot_state::CONNECTED != 0
            && orphan.listener.get() == Some(listener)
            // Accepted and closed: its listener was another one, with the same slot, or it goes in the same turn.
            && shared.requests.load(Ordering::Acquire) & slot_request::CLOSE == 0
            && !orphan.closed.get();
        if waiting && slot != listener {
            self.abort_end(&orphan, now);
        }
    }

    /// The engine to which the rule gives this flow's packets hands them on to that one, or no longer.
    pub(super) fn tell_elsewhere(&self, net: usize, key: &FlowKey, engine: Option<usize>) {
        if let Some(other) = self.several.other_of(key)
            && !self.nets[net].interface().is_own_link()
        {
            self.several.tell(other, Said::Elsewhere { key: *key, engine });
        }
    }

    /// The other engines listen for this socket too, as it is now.
    pub(super) fn tell_listens(&self, end: &SocketEnd) {
        let Some((_, local)) = end.bound.get().filter(|_| self.several.is_several() && !end.is_shadow) else {
            return;
        };
        self.several.tell_all(|| {
            Said::Listens(Box::new(Shadow {
                region: end.program.id,
                slot: end.slot,
                local,
                v6_only: end.v6_only.get(),
                sharing: end.sharing.get(),
                backlog: end.backlog.get(),
                no_delay: end.no_delay.get(),
                keep_alive: end.keep_alive.get(),
                tuning: end.tuning.get(),
                headers: end.headers.get(),
                defer_accept: end.defer_accept.get(),
                wishes: end.wishes.borrow().as_deref().cloned(),
                fast_open: end
                    .fast_open
                    .get()
                    .map(|queue| (queue.limit.get(), queue.needs_no_cookie.get(), queue.keys.get())),
            }))
        });
    }

    /// They listen no more.
    pub(super) fn tell_unlistens(&self, end: &SocketEnd) {
        if self.several.is_several() && !end.is_shadow {
            self.several.tell_all(|| Said::Unlistens { region: end.program.id, slot: end.slot });
        }
    }

    /// A socket of another engine listens: here stands its shadow, or comes to.
    fn listen_beside(&mut self, shadow: &Shadow, now: Time) {
        let Some(program) = self.programs.get(&shadow.region).cloned() else { return };
        let found = program.end(shadow.slot).filter(|end| end.is_shadow);
        let is_new = found.is_none();
        let end = found.unwrap_or_else(|| SocketEnd::shadow(&program, shadow.slot, slot_kind::STREAM));
        end.v6_only.set(shadow.v6_only);
        end.sharing.set(shadow.sharing);
        end.backlog.set(shadow.backlog);
        end.no_delay.set(shadow.no_delay);
        end.keep_alive.set(shadow.keep_alive);
        end.tuning.set(shadow.tuning);
        end.headers.set(shadow.headers);
        end.defer_accept.set(shadow.defer_accept);
        end.wishes.replace(shadow.wishes.clone().map(Box::new));
        if let Some((limit, needs_no_cookie, keys)) = shadow.fast_open {
            let queue = end.fast_open.get_or_init(Rc::default);
            queue.limit.set(limit);
            queue.needs_no_cookie.set(needs_no_cookie);
            queue.keys.set(keys);
        }
        if !is_new {
            self.tune_listening(&end);
            self.place_listener(&end, now);
            return;
        }
        end.first_of_accepted.set(end.begin_with(Sizes::configured(&self.settings)));
        // Who has the port is decided where the socket is: here it is shared with whoever else was allowed it there.
        for (net, place) in self.places_of(&end, shadow.local) {
            let shared = Sharing { port: true, address: true };
            if self.nets[net].tcp.reserve(place, shared).is_ok() {
                end.keep_port(Rc::clone(&self.nets[net].tcp), place);
            }
        }
        end.bound.set(Some((TCP, shadow.local)));
        end.sharing.set(Sharing { port: true, address: true });
        let _ = end.begin_listening();
        for (net, class, place) in self.listened_classes(&end, shadow.local) {
            if self.make_listen_path(&end, net, class, place).is_err() {
                // Without a path here what comes is refused here: the same as with one socket too many.
                self.close_listener(&end, now);
                return;
            }
        }
    }
}

fn packet_of(net: usize, message: &Message) -> Packet {
    let bytes = match &message.body {
        Body::Block { block, range } => block[range.start as usize..range.end as usize].into(),
        _ => Box::default(),
    };
    Packet { net, bytes, checksum: message.facts.checksum, segmentation: message.facts.segmentation }
}
