//! Live change of the classes: new rules at once, and then all paths classified again, a few in each turn of the loop.
//!
//! ```text
//! SetClasses ─► policy.replace          what comes from now on is classified by the new rules
//!            ─► sweep 0 … slots         a bounded piece a turn: connection → its class of now; listening socket → a
//!                                       listen path for each class that can match, none for another
//!            ─► forget what has left    numbers and accounts of removed classes; then the answer
//! ```
//! A connection whose class depends on what is asked on it changes class with its requests, too ([`Asked`]); then each
//! class is charged with what was spent in it. Where the rules have changed, connections that live are looked into
//! from now on, or no longer, as they say.
//!
//! Paths keep their accounts and whatever waits in their queues. A path of a class that was removed stays valid until
//! the sweep has come to it, for the class keeps its number that long (see [`crate::policy`]). A change during a
//! sweep starts it anew.

use std::rc::Rc;
use std::sync::mpsc::Sender;

use scoutline_abi::api::Answer;
use scoutline_base::{Address, Endpoint, PathId, Time};
use scoutline_proto::bindings::ClassIndex;
use scoutline_sched::{Entry, Level, Policy};
use scoutline_wire::ipv4::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

use super::Core;
use super::paths::{flow_key, note_level, socket_of};
use crate::admission::Booked;
use crate::extend::Duty;
use crate::policy::{Class, Origin, mark_of};
use crate::scheduling::Stands;
use crate::settings::ClassSettings;
use crate::socket::{Asked, SocketEnd, Standing, StreamStage};
use crate::wishes::Granted;

/// Units of work that a turn of the loop may spend on the sweep; about 50 ns each.
const TURN: u32 = 512;
/// To look at an empty slot costs one; to classify a path and to make or end one costs so many.
const CLASSIFY: u32 = 4;
const MAKE: u32 = 40;
/// Removed classes whose numbers may wait for the end of a sweep. More only come when changes are asked for faster
/// than sweeps end; then one sweep is finished in one go.
const MOST_LEAVING: usize = 4096;

/// What a path asked of the threads that serve it before it was moved, and asks now.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    before: Duty,
    now: Duty,
}

/// How far the paths have been looked at since the classes changed.
#[derive(Default)]
pub(super) struct Sweep {
    next: u32,
    waiting: Vec<Sender<Answer>>,
}

impl Core {
    /// Puts these classes in the place of all.
    pub(super) fn set_classes(&mut self, mut classes: Vec<ClassSettings>, done: Sender<Answer>, now: Time) {
        if self.policy.leaving() > MOST_LEAVING {
            while self.sweep(now) {}
        }
        for class in &mut classes {
            class.settle(self.settings.linux_level);
        }
        self.policy.replace(classes);
        self.set_bells();
        self.check_direct();
        self.sweep_all(done);
    }

    /// Has all paths looked at again; then somebody is told.
    pub(super) fn sweep_all(&mut self, done: Sender<Answer>) {
        let sweep = self.sweep.get_or_insert_default();
        sweep.next = 0;
        sweep.waiting.push(done);
    }

    /// A bounded piece of the sweep. True while there is more to do.
    pub(crate) fn sweep(&mut self, now: Time) -> bool {
        let Some(mut sweep) = self.sweep.take() else { return false };
        let mut spent = 0;
        while spent < TURN {
            // Paths that are made meanwhile are of the new rules; slots may well be added.
            if sweep.next >= self.paths.slots() {
                self.finish_sweep(sweep);
                return false;
            }
            let id = self.paths.at(sweep.next).map(scoutline_path::Path::id);
            sweep.next += 1;
            spent += id.map_or(1, |id| self.classify_again(id, now));
        }
        self.sweep = Some(sweep);
        true
    }

    fn finish_sweep(&mut self, sweep: Sweep) {
        let last = self.policy.last().number;
        for number in self.policy.forget_leaving() {
            // What its paths have cost is not lost: it is the last class's now.
            self.finished.merge(number as u16, last as u16);
        }
        self.extension.take_back(&std::mem::take(&mut self.taken_back));
        for waiting in sweep.waiting {
            // Whoever asked may be gone.
            let _ = waiting.send(Answer::Done);
        }
    }

    /// Puts a path into the class that it belongs to now; what that cost.
    fn classify_again(&mut self, id: PathId, now: Time) -> u32 {
        let listener = self.listeners.borrow().get(&id).cloned();
        if let Some(end) = listener {
            // All listen paths of a socket together, when the sweep comes to the first.
            let is_first = end.listen_paths.borrow().first() == Some(&id);
            return if is_first { self.listen_again(&end, now) } else { 1 };
        }
        let extra = &self.extras[id.index];
        if extra.to.is_some() {
            self.end_forward_path(id, now);
            return MAKE;
        }
        let Some(program) = &extra.program else {
            // It serves the machine itself: at its own level, in the last class.
            let (stands, last) = (Stands { level: extra.level, asks: extra.asks }, self.policy.last());
            self.move_path(id, &last, stands, last.settings.extend, now);
            return CLASSIFY;
        };
        let bound =
            extra.flow.is_none().then(|| self.paths.get(id).and_then(socket_of)?.bound.get()).flatten();
        let key = match (extra.flow, bound) {
            (Some(key), _) => key,
            (None, Some((protocol, local))) => self.place_key(extra.net as usize, protocol, local),
            // A socket that is being closed.
            (None, None) => self.place_key(extra.net as usize, UDP, UNBOUND),
        };
        let class = self.policy.class(self.policy.class_for(&key, extra.tos, Some(program)));
        let class = self.look_into_requests(id).unwrap_or(class);
        let moved = self.place_path(id, class, now);
        self.take_back(moved);
        CLASSIFY
    }

    /// The rules have changed what a path asks of threads. What they had by the old ones they give back at the end of the
    /// sweep. Where a request or the program itself moves a path, they go by what they serve next: nothing is taken back.
    fn take_back(&mut self, moved: Option<Moved>) {
        if let Some(Moved { before, now }) = moved {
            self.taken_back.note(before, now);
        }
    }

    /// Puts a path where it belongs which the rules put into this class: its program may have asked for something.
    pub(super) fn place_path(&mut self, id: PathId, ruled: Rc<Class>, now: Time) -> Option<Moved> {
        let granted = self.rule_path(id, ruled)?;
        self.move_path(id, &granted.class, granted.stands, granted.extended, now)
    }

    /// Notes that the rules put a path into this class; what it gets there.
    fn rule_path(&mut self, id: PathId, ruled: Rc<Class>) -> Option<Granted> {
        let program = self.extras[id.index].program.clone()?;
        let path = self.paths.get_mut(id)?;
        let wishes = match path.stage_mut::<StreamStage>() {
            Some(stage) => {
                stage.set_ruled(ruled.number);
                stage.wishes()
            }
            None => socket_of(path).and_then(|end| end.wishes.borrow().as_deref().cloned()),
        };
        Some(self.policy.grant(ruled, wishes.as_ref(), &program))
    }

    /// Looks at what is asked on a connection from now on, or no longer, as the rules have it; the class that this has
    /// given it.
    pub(super) fn look_into_requests(&mut self, id: PathId) -> Option<Rc<Class>> {
        let booked = self.booked(id);
        let extra = &self.extras[id.index];
        let path = self.paths.get_mut(id)?;
        let stage = path.stage_mut::<StreamStage>().filter(|stage| stage.is_used())?;
        if self.policy.requests().is_none() && stage.asked().is_none() {
            return None;
        }
        let program = Rc::clone(extra.program.as_ref()?);
        let outgoing = !stage.is_passive();
        let origin = Origin { key: extra.flow?, tos: extra.tos, program, outgoing };
        let depends = self.policy.depends_on_requests(&origin);
        match stage.asked() {
            Some(asked) if depends => {
                asked.renew();
                return Some(asked.class());
            }
            Some(asked) => {
                let charged = asked.charged();
                stage.set_asked(None);
                path.account.buffer_bytes_held = path.account.buffer_bytes_held.saturating_sub(charged);
            }
            None if depends => {
                let rules = (&self.policy, &self.promises);
                stage.set_asked(Some(Asked::new(rules, origin, booked?, self.settings.linux_level)));
            }
            None => {}
        }
        None
    }

    /// What was asked on a connection has changed its class.
    pub(super) fn follow_request(&mut self, id: PathId, class: ClassIndex, requests: u64, now: Time) {
        let Some(path) = self.paths.get_mut(id) else { return };
        path.settle(&mut self.finished);
        let class = self.policy.class(class);
        if let Some(Granted { class, stands, extended, .. }) = self.rule_path(id, class) {
            // As the stage has found before, by the same books.
            let stands = self.promises.carried(&class, stands, self.booked(id));
            self.move_path(id, &class, stands, extended, now);
        }
        if let Some(path) = self.paths.get_mut(id) {
            path.account.requests += requests;
        }
    }

    /// The one place where a path that exists changes its class.
    fn move_path(
        &mut self,
        id: PathId,
        class: &Class,
        stands: Stands,
        extended: bool,
        now: Time,
    ) -> Option<Moved> {
        let queue_packets = self.queue_packets_at(id, &class.settings);
        let standing = Standing::of(class, stands, extended, self.settings.linux_level);
        let asks = |core: &Core| Some(socket_of(core.paths.get(id)?)?.duty.get());
        let before = asks(self);
        let path = self.paths.get_mut(id)?;
        let extra = &mut self.extras[id.index];
        path.set_class(class.number as u16, queue_packets);
        note_level(path, stands.level, now);
        if extra.program.is_some() {
            path.set_mark(mark_of(class.settings.mark, stands.level));
        }
        if let Some(stage) = path.stage_mut::<StreamStage>() {
            stage.set_class(class, standing);
            if let Some(asked) = stage.asked() {
                asked.book(Booked { class: class.number, asks: stands.asks });
            }
        } else if let Some(end) = socket_of(path) {
            if end.path.get() == Some(id) {
                end.move_charge(&class.memory);
            }
            self.nets[extra.net as usize].udp.set_class(id, class.number);
        }
        let after = asks(self);
        self.reschedule(id, stands, now);
        Some(Moved { before: before?, now: after? })
    }

    /// What a path asks of the schedule from now on, in whichever policy; if it is ready it takes its place there.
    pub(super) fn reschedule(&mut self, id: PathId, stands: Stands, now: Time) {
        let was_idle = self.extras[id.index].level == Level::Idle;
        self.set_level(id, stands.level);
        let class = self.paths.get(id).map(|path| u32::from(path.class()));
        let listens = self.listeners.borrow().contains_key(&id);
        let promise = class
            .filter(|_| !listens)
            .and_then(|class| self.promises.give(&self.policy.class(class), stands.asks));
        let extra = &mut self.extras[id.index];
        (extra.asks, extra.promise) = (stands.asks, promise.map(Box::new));
        // Who waited as background for foreground to be silent waits no longer.
        let waited = was_idle
            && stands.level != Level::Idle
            && (std::mem::take(&mut extra.suspended) | std::mem::take(&mut extra.stalled));
        if waited {
            let net = extra.net as usize;
            self.nets[net].transmit.forget_waiting(id);
        }
        if waited || self.schedule.is_ready(Entry::Path(id)) {
            self.make_ready(id, now);
        }
    }

    /// The nets, classes and addresses for which a listening socket needs a path.
    pub(super) fn listened_classes(
        &self,
        end: &SocketEnd,
        local: Endpoint,
    ) -> Vec<(usize, ClassIndex, Endpoint)> {
        let mut wanted = Vec::new();
        for (net, place) in self.places_of(end, local) {
            for at in self.ends_at(net, place) {
                let key = flow_key(net, TCP, at, Endpoint::new(at.address.unspecified(), 0));
                for class in self.policy.classes_at(&key, &end.program.facts) {
                    if !wanted.contains(&(net, class, place)) {
                        wanted.push((net, class, place));
                    }
                }
            }
        }
        wanted
    }

    /// Gives a listening socket the listen paths that it needs now; what that cost.
    fn listen_again(&mut self, end: &Rc<SocketEnd>, now: Time) -> u32 {
        let Some((_, local)) = end.bound.get() else { return 1 };
        let wanted = self.listened_classes(end, local);
        let mut missing = wanted.clone();
        let mut surplus = Vec::new();
        let mut spent = CLASSIFY * wanted.len() as u32;
        for id in end.listen_paths.borrow().clone() {
            let Some(path) = self.paths.get(id) else { continue };
            let serves = (self.extras[id.index].net as usize, u32::from(path.class()));
            let is_v4 = path
                .attributes
                .address(scoutline_path::Name::Local)
                .is_none_or(|local| local.address.is_v4());
            let same = |&(net, class, place): &(usize, ClassIndex, Endpoint)| {
                (net, class) == serves && place.address.is_v4() == is_v4
            };
            if let Some(at) = missing.iter().position(same) {
                missing.swap_remove(at);
                let moved = self.place_listen_path(end, id, serves.1, now);
                self.take_back(moved);
            } else {
                surplus.push(id);
            }
        }
        spent += MAKE * (missing.len() + surplus.len()) as u32;
        for (net, class, place) in missing {
            // Without it, SYNs of that class go to another listen path, and are put into their class all the same.
            let _ = self.make_listen_path(end, net, class, place);
        }
        if end.listen_paths.borrow().len() == surplus.len() {
            // Nothing could be made: the old ones serve on, as paths of the last class.
            for id in surplus {
                let last = self.policy.last();
                let net = self.extras[id.index].net as usize;
                self.nets[net].tcp.set_class(id, last.number);
                let moved = self.place_listen_path(end, id, last.number, now);
                self.take_back(moved);
            }
            return spent;
        }
        for id in surplus {
            self.end_listen_path(end, id, now);
        }
        spent
    }

    /// Puts a listen path of a socket where it belongs: in its class, at the level that the socket gets there.
    pub(super) fn place_listen_path(
        &mut self,
        end: &SocketEnd,
        id: PathId,
        class: ClassIndex,
        now: Time,
    ) -> Option<Moved> {
        let class = self.policy.class(class);
        let granted = self.granted(Rc::clone(&class), end);
        self.move_path(id, &class, granted.listen_stands, granted.extended, now)
    }

    /// What a path of a socket gets which the rules put into this class.
    pub(super) fn granted(&self, ruled: Rc<Class>, end: &SocketEnd) -> Granted {
        self.policy.grant(ruled, end.wishes.borrow().as_deref(), &end.program.facts)
    }

    /// Ends one listen path of a socket that goes on listening: SYNs that wait there go to the others.
    fn end_listen_path(&mut self, end: &SocketEnd, id: PathId, now: Time) {
        end.listen_paths.borrow_mut().retain(|&other| other != id);
        let waiting = self.destroy_but_queued(id);
        self.classify_queued(waiting, now);
    }
}

/// What rules with conditions on our end do not hold for.
const UNBOUND: Endpoint = Endpoint { address: Address::UNSPECIFIED_V4, port: 0 };
