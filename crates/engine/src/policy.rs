//! Which class a flow belongs to (DESIGN.md §6): the rules in order, the first match wins.
//!
//! ```text
//! order of the rules:   preferred(3)  web(0)  default(1)          changed as one by `replace`
//! numbers:              0 web   1 default   2 (leaving)   3 preferred
//! ```
//! What refers to a class (paths, listen paths, accounts) holds its *number*. A class keeps it for as long as a class
//! of that name exists, wherever it stands in the order; so a change of the rules leaves everything valid, and paths
//! can be classified again a few at a time. A class that was removed is *leaving* until no path is in it any more
//! ([`ClassPolicy::forget_leaving`]): it matches nothing, but what is still in it finds its settings.
//!
//! Classes that ask something of a request take no part until one is read: a connection begins in the first class that
//! fits and asks nothing, and the connection's [`Asked`](crate::socket::Asked) looks for the others.

mod conditions;

use std::cell::{Cell, Ref, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use scoutline_device::packet::Important;
use scoutline_path::{Budget, FlowKey};
use scoutline_proto::Classifier;
use scoutline_proto::bindings::ClassIndex;
use scoutline_proto::request::Matcher;
use scoutline_proto::request::matcher::Importance;
use scoutline_sched::Level;

use crate::admission::{Millionths, POLICIES};
use crate::scheduling::Stands;
use crate::settings::{ClassSettings, PermissionSettings, ProgramFacts};
pub(crate) use conditions::of_these_programs;
use conditions::{Place, hold_for_packet, hold_for_place, look_at_packets};

/// The classes and their rules.
pub struct ClassPolicy {
    table: RefCell<Table>,
    permissions: RefCell<Vec<PermissionSettings>>,
    /// Where Linux stands.
    linux_level: Cell<Level>,
    /// Packets that may wait at a path of a class which does not say.
    queue_packets: Cell<u32>,
}

/// What the sockets of each policy of the schedule may hold together.
#[derive(Clone)]
pub(crate) struct PolicyMemory([Budget; POLICIES.len()]);

impl PolicyMemory {
    /// Budgets of so many bytes; `None`: without a limit.
    pub(crate) fn new(limits: [Option<u64>; POLICIES.len()]) -> PolicyMemory {
        PolicyMemory(limits.map(|limit| Budget::new(u32::MAX, limit.unwrap_or(u64::MAX))))
    }

    /// The budgets, in the order of [`POLICIES`].
    pub(crate) fn all(&self) -> &[Budget; POLICIES.len()] {
        &self.0
    }
}

struct Table {
    policies: PolicyMemory,
    /// By number.
    numbered: Vec<Option<Rc<Class>>>,
    /// The numbers in the order of the rules; never empty, and the last one matches everything.
    order: Vec<ClassIndex>,
    leaving: Vec<ClassIndex>,
    /// The level of the most important class.
    highest: Level,
    /// What all classes ask of requests, by number; `None` when they ask nothing.
    requests: Option<Rc<Matcher>>,
    /// Times that the rules were changed.
    generation: u64,
}

/// One class.
pub(crate) struct Class {
    /// Names it.
    pub(crate) number: ClassIndex,
    /// Its place among the rules; `None` when it is leaving.
    rank: Option<u32>,
    /// What was said of it.
    pub(crate) settings: ClassSettings,
    /// What the sockets of the class may hold together.
    pub(crate) memory: Budget,
    connections: Rc<Cell<u32>>,
    /// What of the CPU is promised to its paths.
    pub(crate) promised: Rc<Cell<Millionths>>,
    /// The generation of the rules from which on it asks of requests what it asks now.
    asks_since: u64,
}

/// What the rules look at beside the request: all that is known of a connection before.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Its flow.
    pub(crate) key: FlowKey,
    /// The type-of-service octet of the first packet that came, if one has.
    pub(crate) tos: Option<u8>,
    /// The program here.
    pub(crate) program: Rc<ProgramFacts>,
    /// The program opened it, and asks; else its peer does.
    pub(crate) outgoing: bool,
}

/// The place of one TCP connection among those of its class: given back when dropped.
pub(crate) struct Seat(Rc<Cell<u32>>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Class {
    /// Where a path of this class and of this program stands. Background stays background, whatever its class says:
    /// lowering oneself is always allowed.
    pub(crate) fn stands_of(&self, program: Option<&ProgramFacts>) -> Stands {
        lowered(self.settings.stands(), program)
    }

    /// As [`Class::stands_of`], for a listen path.
    pub(crate) fn listen_stands_of(&self, program: Option<&ProgramFacts>) -> Stands {
        lowered(self.settings.listen_stands(), program)
    }

    /// Connections that it has.
    pub(crate) fn connections(&self) -> u32 {
        self.connections.get()
    }

    /// Of two requests that wait on one connection, the more important gives it its class.
    fn importance(&self) -> Importance {
        match self.settings.level {
            Level::Idle => 0,
            Level::Priority(priority) => Importance::from(priority) + 1,
        }
    }

    /// True when it may have no more connections.
    pub(crate) fn is_full(&self) -> bool {
        self.settings.connections.is_some_and(|limit| self.connections.get() >= limit)
    }

    /// A place among its connections, limit or not: whoever asks has looked at [`Class::is_full`], or brings a
    /// connection that exists already.
    pub(crate) fn seat(&self) -> Seat {
        self.connections.set(self.connections.get() + 1);
        Seat(Rc::clone(&self.connections))
    }
}

/// DSCP of lower effort (RFC 8622 §3).
pub(crate) const DSCP_LE: u8 = 0b00_0001;

/// The mark of packets: what the class says, else background is marked as such.
pub(crate) fn mark_of(mark: Option<u8>, level: Level) -> Option<u8> {
    mark.or((level == Level::Idle).then_some(DSCP_LE))
}

fn lowered(stands: Stands, program: Option<&ProgramFacts>) -> Stands {
    if program.is_some_and(|program| program.background) { Level::Idle.into() } else { stands }
}

impl ClassPolicy {
    /// A policy with these classes, to which one that matches everything is added.
    pub fn new(classes: Vec<ClassSettings>) -> ClassPolicy {
        ClassPolicy::within(classes, &PolicyMemory::new([None; POLICIES.len()]))
    }

    /// The same; what they hold is part of what their policies may hold.
    pub(crate) fn within(classes: Vec<ClassSettings>, policies: &PolicyMemory) -> ClassPolicy {
        let table = Table {
            policies: policies.clone(),
            numbered: Vec::new(),
            order: Vec::new(),
            leaving: Vec::new(),
            highest: Level::default(),
            requests: None,
            generation: 0,
        };
        let policy = ClassPolicy {
            table: RefCell::new(table),
            permissions: RefCell::default(),
            linux_level: Cell::default(),
            queue_packets: Cell::new(u32::MAX),
        };
        policy.replace(classes);
        policy
    }

    /// Puts these classes in the place of all. Those whose name was there already keep number, memory and
    /// connections.
    pub(crate) fn replace(&self, mut classes: Vec<ClassSettings>) {
        if !classes.last().is_some_and(conditions::match_everything) {
            classes.push(ClassSettings::new("default"));
        }
        let table = &mut *self.table.borrow_mut();
        table.highest = classes.iter().map(|class| class.level).max().unwrap_or_default();
        table.generation += 1;
        let before: Vec<ClassIndex> = table.order.drain(..).chain(table.leaving.drain(..)).collect();
        for (rank, settings) in classes.into_iter().enumerate() {
            let same = |number: &&ClassIndex| {
                table.class(**number).is_some_and(|c| c.settings.name == settings.name)
            };
            let number = before.iter().find(same).copied().unwrap_or_else(|| table.free_number());
            table.put(number, Some(rank as u32), settings);
            table.order.push(number);
        }
        for number in before {
            if !table.order.contains(&number)
                && let Some(class) = table.class(number).cloned()
            {
                table.put(number, None, class.settings.clone());
                table.leaving.push(number);
            }
        }
        table.compile();
    }

    /// Linux stands here; what is urgent depends on it.
    pub(crate) fn set_linux_level(&self, level: Level) {
        self.linux_level.set(level);
    }

    pub(crate) fn linux_level(&self) -> Level {
        self.linux_level.get()
    }

    /// Packets that may wait at a path of a class which does not say.
    pub(crate) fn set_queue_packets(&self, packets: u32) {
        self.queue_packets.set(packets);
    }

    /// Packets that may wait at a path of this class.
    pub(crate) fn queue_packets(&self, class: &ClassSettings) -> u32 {
        class.queue_packets.unwrap_or(self.queue_packets.get())
    }

    /// At a listen path: a burst of as many clients as may wait to be accepted is let in, if the class does not say.
    pub(crate) fn listen_queue_packets(&self, class: &ClassSettings, backlog: u64) -> u32 {
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        class.queue_packets.unwrap_or_else(|| self.queue_packets.get().max(backlog))
    }

    /// Puts these permissions in the place of all.
    pub(crate) fn set_permissions(&self, permissions: Vec<PermissionSettings>) {
        *self.permissions.borrow_mut() = permissions;
    }

    /// What programs may ask for beyond what the classes give them.
    pub(crate) fn permissions(&self) -> Ref<'_, Vec<PermissionSettings>> {
        self.permissions.borrow()
    }

    /// Ends the classes that were removed; their numbers. No path may be in them.
    pub(crate) fn forget_leaving(&self) -> Vec<ClassIndex> {
        let table = &mut *self.table.borrow_mut();
        let gone = std::mem::take(&mut table.leaving);
        for &number in &gone {
            table.numbered[number as usize] = None;
        }
        gone
    }

    /// How many classes were removed and not yet forgotten.
    pub(crate) fn leaving(&self) -> usize {
        self.table.borrow().leaving.len()
    }

    /// All classes in the order of their rules.
    pub(crate) fn classes(&self) -> Vec<Rc<Class>> {
        let table = self.table.borrow();
        table.order.iter().filter_map(|&number| table.class(number).cloned()).collect()
    }

    /// Packets of classes above this level, as far as their source or port tells.
    pub(crate) fn important(&self, level: Level) -> Vec<Important> {
        let mut rules = Vec::new();
        for class in self.classes() {
            let class = &class.settings;
            if class.level <= level || class.sources.is_empty() && class.local_ports.is_empty() {
                continue;
            }
            // Whether a packet brings such a request is not known before it is read.
            if !class.request.is_empty() {
                continue;
            }
            let any = [(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)];
            let sources = if class.sources.is_empty() { &any[..] } else { &class.sources };
            for &(source, prefix_len) in sources {
                if class.local_ports.is_empty() {
                    rules.push(Important { source, prefix_len, local_port: None });
                }
                rules.extend(class.local_ports.iter().map(|ports| Important {
                    source,
                    prefix_len,
                    local_port: Some(ports.clone()),
                }));
            }
        }
        rules
    }

    /// Whether [`ClassPolicy::important`] names all packets of classes above this level.
    pub(crate) fn all_important_named(&self, level: Level) -> bool {
        self.classes().iter().map(|class| &class.settings).all(|class| {
            let by_place = !class.sources.is_empty() || !class.local_ports.is_empty();
            class.level <= level || by_place && class.request.is_empty()
        })
    }

    /// The level of the most important class.
    pub(crate) fn highest_level(&self) -> Level {
        self.table.borrow().highest
    }

    /// A class; a number that names none (it never does) gives the last.
    pub(crate) fn class(&self, number: ClassIndex) -> Rc<Class> {
        let table = self.table.borrow();
        let found = table.class(number).or_else(|| table.class(*table.order.last()?));
        Rc::clone(found.expect("there is always a last class"))
    }

    /// The class that takes what no other takes.
    pub(crate) fn last(&self) -> Rc<Class> {
        self.class(ClassIndex::MAX)
    }

    /// The class of a flow of this program. `tos` is the type-of-service octet of the first packet that came, if one
    /// has.
    pub(crate) fn class_for(
        &self,
        key: &FlowKey,
        tos: Option<u8>,
        program: Option<&ProgramFacts>,
    ) -> ClassIndex {
        let table = self.table.borrow();
        let fits = |class: &ClassSettings| class.request.is_empty() && fits(class, key, tos, program);
        let matching = table
            .order
            .iter()
            .find(|&&number| table.class(number).is_some_and(|class| fits(&class.settings)));
        *matching.or(table.order.last()).expect("there is always a last class")
    }

    /// Whether the class is one of the rules, and what it asks beside the request holds.
    pub(crate) fn is_possible(&self, number: ClassIndex, origin: &Origin) -> bool {
        let table = self.table.borrow();
        let asked =
            |class: &ClassSettings| class.request.is_empty() || class.requests.are_looked_at(origin.outgoing);
        let class = table.class(number).filter(|class| class.rank.is_some() && asked(&class.settings));
        class.is_some_and(|class| fits(&class.settings, &origin.key, origin.tos, Some(&origin.program)))
    }

    /// What the classes ask of requests; `None` when they ask nothing.
    pub(crate) fn requests(&self) -> Option<Rc<Matcher>> {
        self.table.borrow().requests.clone()
    }

    /// Times that the rules were changed.
    pub(crate) fn generation(&self) -> u64 {
        self.table.borrow().generation
    }

    /// Whether requests can decide the class of a connection.
    pub(crate) fn depends_on_requests(&self, origin: &Origin) -> bool {
        let requests = self.requests();
        requests.is_some_and(|requests| requests.needs_request_among(|class| self.is_possible(class, origin)))
    }

    /// Whether a class that a request has given to this connection, by the rules of that generation, is still what the
    /// rules give it: it asks for the same, and none goes before it that asks for nothing.
    pub(crate) fn still_asks_for(&self, number: ClassIndex, origin: &Origin, generation: u64) -> bool {
        let table = self.table.borrow();
        let asks = |class: &Rc<Class>| !class.settings.request.is_empty();
        let same = |class: &Rc<Class>| asks(class) && class.asks_since <= generation;
        let mut reachable = table.order.iter().filter_map(|&other| table.class(other));
        let found = reachable
            .find(|class| class.number == number || !asks(class) && self.is_possible(class.number, origin));
        found.is_some_and(|class| class.number == number && same(class) && self.is_possible(number, origin))
    }

    /// The classes that connections to a socket of this program can be in, when it listens at the place that `key`
    /// says (its remote half does not count).
    pub(crate) fn classes_at(&self, key: &FlowKey, program: &ProgramFacts) -> Vec<ClassIndex> {
        let table = self.table.borrow();
        let program = Some(program);
        let place = Place { address: key.local, port: key.local_port, device: key.device, program };
        let mut reachable = Vec::new();
        for &number in &table.order {
            let Some(class) = table.class(number) else { continue };
            // No connection begins in one that asks for a request.
            if class.settings.request.is_empty() && hold_for_place(&class.settings, &place) {
                reachable.push(number);
                if !look_at_packets(&class.settings) {
                    break;
                }
            }
        }
        reachable
    }
}

impl Table {
    fn class(&self, number: ClassIndex) -> Option<&Rc<Class>> {
        self.numbered.get(number as usize)?.as_ref()
    }

    fn free_number(&mut self) -> ClassIndex {
        let free = self.numbered.iter().position(Option::is_none);
        let free = free.unwrap_or_else(|| {
            self.numbered.push(None);
            self.numbered.len() - 1
        });
        free as ClassIndex
    }

    /// Says what a number means from now on. What is held under it stays so.
    fn put(&mut self, number: ClassIndex, rank: Option<u32>, settings: ClassSettings) {
        let limit = settings.memory.unwrap_or(u64::MAX);
        let (memory, connections, promised, asks_since) = match self.class(number) {
            Some(same) => {
                same.memory.set_limits(u32::MAX, limit);
                let asks_same =
                    same.settings.request == settings.request && same.settings.requests == settings.requests;
                let asks_since = if asks_same { same.asks_since } else { self.generation };
                let (connections, promised) = (Rc::clone(&same.connections), Rc::clone(&same.promised));
                (same.memory.clone(), connections, promised, asks_since)
            }
            None => (Budget::new(u32::MAX, limit), Rc::default(), Rc::default(), self.generation),
        };
        memory.put_within(&self.policies.0[settings.asks.index()]);
        let class = Class { number, rank, settings, memory, connections, promised, asks_since };
        self.numbered[number as usize] = Some(Rc::new(class));
    }

    /// Makes what all classes ask of requests into one matcher.
    fn compile(&mut self) {
        let classes: Vec<Rc<Class>> =
            self.order.iter().filter_map(|&number| self.class(number).cloned()).collect();
        let asks = classes.iter().any(|class| !class.settings.request.is_empty());
        let rules = classes.iter().map(|class| (class.number, &class.settings.request, class.importance()));
        // The daemon has compiled them before; what cannot be is asked by nobody.
        self.requests = if asks { Matcher::numbered(rules).ok().map(Rc::new) } else { None };
    }
}

/// Whether the conditions on flow, packet and program hold.
fn fits(class: &ClassSettings, key: &FlowKey, tos: Option<u8>, program: Option<&ProgramFacts>) -> bool {
    let place = Place { address: key.local, port: key.local_port, device: key.device, program };
    hold_for_packet(class, key, tos) && hold_for_place(class, &place)
}

impl Classifier for ClassPolicy {
    fn rank(&self, class: ClassIndex, key: &FlowKey, tos: u8) -> Option<u32> {
        let table = self.table.borrow();
        let class = table.class(class)?;
        let begins =
            |_: &u32| class.settings.request.is_empty() && hold_for_packet(&class.settings, key, Some(tos));
        class.rank.filter(begins)
    }
}

#[cfg(test)]
mod tests;
