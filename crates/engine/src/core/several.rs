//! What crosses between engines, on this one's side (see [`crate::several`]).

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{engine_of, slot_kind, slot_request, slot_state};
use scoutline_base::{Endpoint, Time};
use scoutline_path::{Body, DropReason, Facts, FlowKey, Message};
use scoutline_proto::bindings::Sharing;
use scoutline_ring::Block;
use scoutline_wire::ipv4::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

use super::Core;
use crate::program::Program;
use crate::several::{Listener, Packet, Said, Shadow, is_for_all};
use crate::socket::{Sizes, SocketEnd, queue_accepted};

/// Packets of no known flow that wait for what other engines may have said of it: more are looked at as they are.
const MOST_STRAYS: usize = 256;

/// How often a packet has been looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Look {
    /// It has just come by a device.
    #[default]
    First,
    /// It found no path then. By now it may have one here, or be known for another engine's.
    Again,
    /// Another engine has given it: it is ours, or nobody's.
    Given,
}

/// A packet that found no path.
pub(super) struct Stray {
    net: usize,
    message: Message,
    /// See [`Several::given`](crate::several::Several::given), when it came.
    behind: u64,
}

impl Core {
    /// A packet of no known flow, before modules are asked: `None` if it is another engine's.
    pub(super) fn keep_own(
        &mut self,
        net: usize,
        key: Option<&FlowKey>,
        message: Message,
    ) -> Option<Message> {
        if !self.several.is_several() || self.nets[net].interface().is_own_link() {
            return Some(message);
        }
        let Some(key) = key else {
            if self.look == Look::First && self.several.is_first() && is_for_all(message.bytes()) {
                let packet = packet_of(net, &message);
                self.several.give_all(|| Said::Packet(packet.clone()));
            }
            return Some(message);
        };
        self.keep_unless_others(net, key, message)
    }

    /// The same once modules have read the headers of a packet that is of no common kind.
    pub(super) fn keep_unless_others(
        &mut self,
        net: usize,
        key: &FlowKey,
        message: Message,
    ) -> Option<Message> {
        let has_ports = matches!(key.protocol, TCP | UDP);
        match self.whose(key).filter(|_| has_ports && self.look != Look::Given) {
            Some(engine) => {
                self.hand_over(net, &message, engine);
                None
            }
            None => Some(message),
        }
    }

    /// The other engine that has this flow, or would.
    pub(super) fn whose(&self, key: &FlowKey) -> Option<usize> {
        self.elsewhere.get(key).copied().or_else(|| self.several.other_of(key))
    }

    /// A packet that no path takes: `None` if another engine may have one, or may have said so by the next turn.
    pub(super) fn keep_stray(&mut self, net: usize, key: &FlowKey, message: Message) -> Option<Message> {
        if !self.several.is_several() || self.look == Look::Given {
            return Some(message);
        }
        if self.nets[net].interface().is_own_link() && self.whose(key).is_some() {
            return self.keep_unless_others(net, key, message);
        }
        if self.look == Look::Again || self.strays.len() >= MOST_STRAYS {
            return Some(message);
        }
        self.strays.push(Stray { net, message, behind: self.several.given() });
        None
    }

    /// There are packets to look at again.
    pub(crate) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Looks again at what found no path, after what other engines had said until it came; `all`: nothing that they have
    /// said is left. Else it has been heard once a packet was taken that was given later.
    pub(crate) fn look_again(&mut self, all: bool, now: Time) {
        if self.strays.is_empty() {
            return;
        }
        let taken = self.several.taken();
        let heard = self.strays.partition_point(|stray| all || taken > stray.behind);
        let rest = self.strays.split_off(heard);
        self.look = Look::Again;
        for Stray { net, message, .. } in std::mem::replace(&mut self.strays, rest) {
            self.classify(net, message, now);
        }
        self.look = Look::First;
    }

    fn hand_over(&mut self, net: usize, message: &Message, engine: usize) {
        if self.several.give(engine, Said::Packet(packet_of(net, message))) {
            self.counters.handed_over += 1;
        } else {
            self.unowned.on_drop(DropReason::QueueFull);
        }
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
                self.look = Look::Given;
                self.classify(net, Message::received(Block::from_bytes(bytes), range, facts), now);
                self.look = Look::First;
            }
            Said::Looped { net, bytes, facts } => {
                if net < self.nets.len() {
                    let range = 0..bytes.len() as u32;
                    self.loop_here(net, &Message::received(Block::from_bytes(bytes), range, facts));
                }
            }
            Said::Told { net, key, control } => self.notify(net, &key, control, now),
            Said::Listens(shadow) => self.listen_beside(&shadow, now),
            Said::Unlistens(listener) => {
                if let Some(end) = self.listening(listener) {
                    self.close_listener(&end, now);
                }
            }
            Said::Accepted { listener, slot, standing } => {
                if !self.listening(listener).is_some_and(|end| queue_accepted(&end, slot, standing)) {
                    self.several
                        .tell(engine_of(slot, self.several.count()), Said::Orphaned { listener, slot });
                }
            }
            Said::Stands { listener, slot, standing } => {
                if let Some(end) = self.listening(listener)
                    && standing.importance() > end.shared().importance.load(Ordering::Relaxed).into()
                {
                    end.stand(standing);
                    end.signal_waiting(slot, standing.duty());
                }
            }
            Said::Orphaned { listener, slot } => {
                if let Some(program) = self.programs.get(&listener.region).cloned() {
                    self.end_orphan(&program, listener, slot, now);
                }
            }
            Said::Elsewhere { key, engine } => match engine {
                Some(engine) => _ = self.elsewhere.insert(key, engine),
                None => _ = self.elsewhere.remove(&key),
            },
        }
    }

    /// The socket that listens so, or its shadow.
    fn listening(&self, listener: Listener) -> Option<Rc<SocketEnd>> {
        let end = self.programs.get(&listener.region)?.end(listener.slot)?;
        (!end.listen_paths.is_empty() && end.as_listener() == listener).then_some(end)
    }

    /// Resets a connection that waits in the queue of this listening socket, unless a program has taken it.
    pub(super) fn end_orphan(&mut self, program: &Rc<Program>, listener: Listener, slot: u32, now: Time) {
        if !program.serves(slot) {
            self.several.tell(engine_of(slot, self.several.count()), Said::Orphaned { listener, slot });
            return;
        }
        let Some(orphan) = program.end(slot) else { return };
        let shared = orphan.shared();
        let waiting = shared.references.load(Ordering::Acquire) == 0
            && shared.state.load(Ordering::Acquire) & slot_state::CONNECTED != 0
            && orphan.listener() == Some(listener.slot)
            && orphan.listening_number.get() == listener.listening
            // Accepted and closed: it goes in the same turn.
            && shared.requests.load(Ordering::Acquire) & slot_request::CLOSE == 0
            && !orphan.closed.get();
        if waiting && slot != listener.slot {
            self.abort_end(&orphan, now);
        }
    }

    /// The engine to which the rule gives this flow's packets hands them on to that one, or no longer.
    pub(super) fn tell_elsewhere(&self, key: &FlowKey, engine: Option<usize>) {
        if let Some(other) = self.several.other_of(key) {
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
                of: end.as_listener(),
                local,
                v6_only: end.v6_only.get(),
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
            self.several.tell_all(|| Said::Unlistens(end.as_listener()));
        }
    }

    /// A socket of another engine listens: here stands its shadow, or comes to.
    fn listen_beside(&mut self, shadow: &Shadow, now: Time) {
        let Listener { region, slot, listening } = shadow.of;
        let Some(program) = self.programs.get(&region).cloned() else { return };
        let found = self.listening(shadow.of);
        let is_new = found.is_none();
        let end = found.unwrap_or_else(|| SocketEnd::shadow(&program, slot, slot_kind::STREAM));
        end.listening_number.set(listening);
        end.v6_only.set(shadow.v6_only);
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
        if !self.listen_at(&end, shadow.local) {
            // What would come here is refused, as where a socket more finds no room.
            eprintln!(
                "scoutline: warn: engine {} cannot listen at {}: what comes to it is refused",
                self.several.index, shadow.local
            );
            self.close_listener(&end, now);
        }
    }

    /// Makes the listen paths of a shadow. Who has the port is decided where the socket is: here it is shared with whoever
    /// else was allowed it there, and with nobody else.
    fn listen_at(&mut self, end: &Rc<SocketEnd>, local: Endpoint) -> bool {
        let sharing = Sharing { port: true, address: true };
        end.sharing.set(sharing);
        end.bound.set(Some((TCP, local)));
        for (net, place) in self.places_of(end, local) {
            if self.nets[net].tcp.reserve(place, sharing).is_err() {
                return false;
            }
            end.keep_port(Rc::clone(&self.nets[net].tcp), place);
        }
        end.begin_listening()
            && self
                .listened_classes(end, local)
                .into_iter()
                .all(|(net, class, place)| self.make_listen_path(end, net, class, place).is_ok())
    }
}

fn packet_of(net: usize, message: &Message) -> Packet {
    let bytes = match &message.body {
        Body::Block { block, range, .. } => block[range.start as usize..range.end as usize].into(),
        _ => Box::default(),
    };
    Packet { net, bytes, checksum: message.facts.checksum, segmentation: message.facts.segmentation }
}
