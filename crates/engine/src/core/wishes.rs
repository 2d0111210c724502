//! Calls about what a program asks for a socket (`setsockopt(SOL_SCOUT)`): judged, kept, applied at once.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{CLASS_NAME_LEN, Call, slot_option};
use scoutline_base::Time;
use scoutline_path::FlowKey;
use scoutline_sched::{Level, Weight};
use scoutline_wire::ipv4::PROTOCOL_TCP as TCP;

use super::Core;
use crate::policy::Class;
use crate::scheduling::Stands;
use crate::socket::{SocketEnd, StreamStage};
use crate::wishes::{Place, Wishes};

/// An errno as a result.
type Errno = i32;

impl Core {
    /// Asks for a class, or, without a name, for what the rules say.
    pub(super) fn wish_class(&mut self, end: &Rc<SocketEnd>, name: &str, now: Time) -> Result<i32, Errno> {
        if !name.is_empty() && self.policy.named(name).is_none() {
            return Err(libc::ENOENT);
        }
        let class: Option<Arc<str>> = (!name.is_empty()).then(|| Arc::from(name));
        self.wish(end, |wishes| wishes.class.clone_from(&class), now)
    }

    /// Asks for a place in the schedule, for background, for extension.
    pub(super) fn wish_option(
        &mut self,
        end: &Rc<SocketEnd>,
        option: u64,
        value: u64,
        now: Time,
    ) -> Result<i32, Errno> {
        let given = (value != slot_option::AS_CLASS).then_some(value);
        match (option, given) {
            (slot_option::PRIORITY, Some(value)) if value <= u64::from(Level::HIGHEST_PRIORITY) => {
                self.wish(end, |wishes| wishes.place = Some(Place::Priority(value as u8)), now)
            }
            (slot_option::DEADLINE, Some(value)) if slot_option::DEADLINES_US.contains(&value) => {
                self.wish(end, |wishes| wishes.place = Some(Place::Deadline(value as u32)), now)
            }
            (slot_option::WEIGHT, Some(value)) if (1..=u64::from(Weight::HIGHEST)).contains(&value) => {
                self.wish(end, |wishes| wishes.place = Some(Place::Weight(Weight::new(value))), now)
            }
            (slot_option::PRIORITY | slot_option::DEADLINE | slot_option::WEIGHT, None) => {
                // What was asked for in other terms stays.
                let same = |place: &Place| match place {
                    Place::Priority(_) => option == slot_option::PRIORITY,
                    Place::Deadline(_) => option == slot_option::DEADLINE,
                    Place::Weight(_) => option == slot_option::WEIGHT,
                };
                self.wish(end, |wishes| wishes.place = wishes.place.filter(|place| !same(place)), now)
            }
            (slot_option::BACKGROUND, Some(value @ 0..=1)) => {
                self.wish(end, |wishes| wishes.background = value == 1, now)
            }
            (slot_option::EXTEND, None | Some(0..=1)) => {
                self.wish(end, |wishes| wishes.extend = given.map(|value| value == 1), now)
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Changes one wish if it will be granted and carried. Those that were granted before may have become more than is allowed
    /// meanwhile: they are no reason to refuse this one.
    fn wish(&mut self, end: &Rc<SocketEnd>, change: impl Fn(&mut Wishes), now: Time) -> Result<i32, Errno> {
        let ruled = self.ruled(end);
        let mut wishes = end.wishes.borrow().as_deref().cloned().unwrap_or_default();
        // Whether it is a rise is judged in the class that the socket has by an earlier wish.
        let class = self.granted(Rc::clone(&ruled), end).class;
        let name = (class.number != ruled.number).then(|| Arc::from(class.settings.name.as_str()));
        let mut alone = Wishes { class: name, ..Wishes::default() };
        change(&mut alone);
        change(&mut wishes);
        if !self.policy.allows(&ruled, &alone, &end.program.facts) {
            return Err(libc::EPERM);
        }
        let path = end.path.get().filter(|&id| self.paths.get(id).is_some());
        if let Some(id) = path {
            let granted = self.policy.grant(Rc::clone(&ruled), Some(&wishes), &end.program.facts);
            self.refuse(self.admit_move(id, end, &granted), granted.class.number)?;
        }
        *end.wishes.borrow_mut() = Some(Box::new(wishes));
        if !end.listen_paths.is_empty() {
            self.place_listener(end, now);
            self.tell_listens(end);
        }
        if let Some(id) = path {
            self.place_path(id, ruled, now);
        }
        Ok(0)
    }

    /// The listen paths of a socket stand where it is granted now.
    pub(super) fn place_listener(&mut self, end: &Rc<SocketEnd>, now: Time) {
        let listen_paths = end.listen_paths.borrow().clone();
        for id in listen_paths {
            if let Some(path) = self.paths.get(id) {
                self.place_listen_path(end, id, u32::from(path.class()), now);
            }
        }
    }

    /// The class that the rules give a socket, as far as is known where its path will lead.
    fn ruled(&self, end: &SocketEnd) -> Rc<Class> {
        let program = Some(&*end.program.facts);
        let path = end.path.get().and_then(|id| self.paths.get(id));
        if let Some(path) = path {
            if let Some(stage) = path.stage::<StreamStage>() {
                return self.policy.class(stage.ruled());
            }
            let extra = &self.extras[path.id().index];
            if let Some(key) = &extra.flow {
                return self.policy.class(self.policy.class_for(key, extra.tos, program));
            }
        }
        let key = match end.bound.get() {
            Some((protocol, local)) => self.place_key(0, protocol, local),
            None => FlowKey { protocol: TCP, ..FlowKey::default() },
        };
        self.policy.class(self.policy.class_for(&key, None, program))
    }

    /// What a socket's path has now; one without a path: what it would have.
    pub(super) fn tell_option(&self, end: &Rc<SocketEnd>, option: u64, call: &Call) -> Result<i32, Errno> {
        let granted = self.granted(self.ruled(end), end);
        let stands =
            if end.listen_paths.borrow().is_empty() { granted.stands } else { granted.listen_stands };
        // What it was promised may be less.
        let booked = end.path.get().filter(|&id| self.paths.get(id).is_some());
        let Stands { level, asks } = booked.map_or(stands, |id| {
            let extra = &self.extras[id.index];
            Stands { level: extra.level, asks: extra.asks }
        });
        match option {
            slot_option::PRIORITY => Ok(match level {
                Level::Priority(priority) => i32::from(priority),
                Level::Idle => slot_option::NO_PRIORITY,
            }),
            slot_option::DEADLINE => Ok(asks.deadline_us().map_or(slot_option::NONE, |us| us as i32)),
            slot_option::WEIGHT => {
                Ok(asks.weight().map_or(slot_option::NONE, |weight| weight.value() as i32))
            }
            slot_option::BACKGROUND => Ok(i32::from(level == Level::Idle)),
            slot_option::EXTEND => Ok(i32::from(granted.extended)),
            slot_option::CLASS => {
                let name = granted.class.settings.name.as_bytes();
                let mut bytes = [0; CLASS_NAME_LEN];
                let len = name.len().min(CLASS_NAME_LEN);
                bytes[..len].copy_from_slice(&name[..len]);
                for (cell, word) in call.arguments.iter().zip(bytes.chunks_exact(8)) {
                    cell.store(u64::from_ne_bytes(word.try_into().unwrap_or_default()), Ordering::Relaxed);
                }
                Ok(len as i32)
            }
            _ => Err(libc::ENOPROTOOPT),
        }
    }
}

/// The name in the arguments of a call. What is no UTF-8 names no class.
pub(super) fn name_in(call: &Call) -> String {
    let mut bytes = [0; CLASS_NAME_LEN];
    for (to, cell) in bytes.chunks_exact_mut(8).zip(&call.arguments) {
        to.copy_from_slice(&cell.load(Ordering::Relaxed).to_ne_bytes());
    }
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(CLASS_NAME_LEN);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
