//! Who has which local port: reservations, listeners by class, and ephemeral ports.
//!
//! One per transport protocol and interface. The exact flows stand in the engine's flow table; here are the ports
//! that are bound, and the paths that take what no exact flow takes: listening ones, and datagram sockets.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use scoutline_base::{Address, Endpoint, PathId, Random};
use scoutline_path::{CreateError, FlowKey};

/// The range of ephemeral ports, both ends included: Linux' default.
pub const EPHEMERAL: (u16, u16) = (32_768, 60_999);
const EPHEMERAL_COUNT: u32 = (EPHEMERAL.1 - EPHEMERAL.0) as u32 + 1;

/// Number of a class in the policy. A class keeps its number while it exists, whatever its place among the others.
pub type ClassIndex = u32;

/// Decides the class of a flow that has no path yet. The engine's policy implements it.
pub trait Classifier {
    /// The place of a class among the rules (the lowest wins) if a packet of this flow with this type-of-service
    /// octet has what the class asks of packets; `None` if it has not. Conditions on programs are not looked at
    /// here: who listens for a class says by that that it meets them. No side effects: demultiplexing calls it.
    fn rank(&self, class: ClassIndex, key: &FlowKey, tos: u8) -> Option<u32>;
}

/// The policy without classes: everything is of class 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneClass;

impl Classifier for OneClass {
    fn rank(&self, class: ClassIndex, _key: &FlowKey, _tos: u8) -> Option<u32> {
        (class == 0).then_some(0)
    }
}

/// The local ports of one protocol on one interface.
pub struct Bindings {
    state: RefCell<State>,
    classifier: Rc<dyn Classifier>,
    /// Keys the offset of RFC 6056 §3.3.3.
    secret: u64,
}

struct State {
    reserved: BTreeMap<(u16, Address), Reservation>,
    listeners: BTreeMap<(u16, Address), Vec<Listeners>>,
    /// Where each path listens: most paths that end never did, and must not cost a search.
    places: BTreeMap<PathId, Vec<(u16, Address)>>,
    /// RFC 6056 §3.3.3: counts the selections.
    next_ephemeral: u32,
}

/// The paths that listen at one place for one class: a packet is compared with each class once, however many share it.
struct Listeners {
    class: ClassIndex,
    /// They share what comes (SO_REUSEPORT).
    sharing: Vec<PathId>,
    /// Those of them that come before the others.
    preferred: BTreeSet<PathId>,
    /// Of these the last takes all (SO_REUSEADDR, datagrams).
    alone: Vec<PathId>,
    /// Who came last is alone.
    alone_is_last: bool,
}

impl Listeners {
    fn all(&self) -> impl Iterator<Item = PathId> {
        self.sharing.iter().chain(&self.alone).copied()
    }
}

/// How a path listens.
#[derive(Clone, Copy)]
struct Manner {
    shares: bool,
    /// Before others with which it shares.
    preferred: bool,
}

/// With whom who holds a port shares it, as Linux has it (`inet_csk_bind_conflict`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// SO_REUSEPORT: with all who say so.
    pub port: bool,
    /// SO_REUSEADDR: with all who say so, as long as none of them listens. (Datagram sockets never do.)
    pub address: bool,
}

/// The holders of a port at one address, and how many of them are of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Reservation {
    holders: u32,
    by_port: u32,
    by_address: u32,
    by_both: u32,
    listening: u32,
}

impl Reservation {
    fn admits(&self, sharing: Sharing) -> bool {
        let by_address = sharing.address && self.listening == 0;
        // With each holder either way will do.
        let shared = match (sharing.port, by_address) {
            (true, true) => self.by_port + self.by_address - self.by_both,
            (true, false) => self.by_port,
            (false, true) => self.by_address,
            (false, false) => 0,
        };
        shared == self.holders
    }

    fn add(&mut self, sharing: Sharing) {
        self.holders += 1;
        self.by_port += u32::from(sharing.port);
        self.by_address += u32::from(sharing.address);
        self.by_both += u32::from(sharing.port && sharing.address);
    }

    fn remove(&mut self, sharing: Sharing) {
        self.holders -= 1;
        self.by_port -= u32::from(sharing.port);
        self.by_address -= u32::from(sharing.address);
        self.by_both -= u32::from(sharing.port && sharing.address);
    }
}

impl State {
    /// Whether somebody holds what `local` covers and does not share it so; `own`: one of the holders is ourselves.
    fn look_for_conflict(
        &self,
        local: Endpoint,
        sharing: Sharing,
        own: Option<Sharing>,
    ) -> Result<(), CreateError> {
        for ((_, address), held) in self.reserved.range(all_of(local.port)) {
            let any = address.is_unspecified() || local.address.is_unspecified();
            let overlap = *address == local.address || any && address.is_v4() == local.address.is_v4();
            let mut others = *held;
            if let Some(own) = own.filter(|_| *address == local.address) {
                others.remove(own);
            }
            if overlap && !others.admits(sharing) {
                return Err(CreateError::InUse);
            }
        }
        Ok(())
    }
}

impl Bindings {
    /// Without any port in use. `seed` decides the order of ephemeral ports: from the system's randomness.
    pub fn new(classifier: Rc<dyn Classifier>, seed: u64) -> Rc<Bindings> {
        let mut random = Random::new(seed);
        let state = State {
            reserved: BTreeMap::new(),
            listeners: BTreeMap::new(),
            places: BTreeMap::new(),
            next_ephemeral: random.next_u32() % EPHEMERAL_COUNT,
        };
        Rc::new(Bindings { state: RefCell::new(state), classifier, secret: random.next_u64() })
    }

    /// Reserves a local address and port, which [`Bindings::release`] gives back, with the same `sharing`. Several
    /// holders are let in as they share it.
    ///
    /// # Errors
    /// [`CreateError::InUse`] when the port is taken at this address, at the unspecified one of its family, or, for
    /// an unspecified one, at any of its family.
    pub fn reserve(&self, local: Endpoint, sharing: Sharing) -> Result<(), CreateError> {
        let mut state = self.state.borrow_mut();
        state.look_for_conflict(local, sharing, None)?;
        state.reserved.entry((local.port, local.address)).or_default().add(sharing);
        Ok(())
    }

    /// Who holds a reservation listens from now on, and shares the port with fewer.
    ///
    /// # Errors
    /// [`CreateError::InUse`] when another listens whom it does not share the port with.
    pub fn begin_listening(&self, local: Endpoint, sharing: Sharing) -> Result<(), CreateError> {
        let mut state = self.state.borrow_mut();
        state.look_for_conflict(local, sharing, Some(sharing))?;
        if let Some(held) = state.reserved.get_mut(&(local.port, local.address)) {
            held.listening += 1;
        }
        Ok(())
    }

    /// Who holds a reservation shares it otherwise from now on, which is asked when the next one comes.
    pub fn share(&self, local: Endpoint, before: Sharing, sharing: Sharing) {
        if let Some(held) = self.state.borrow_mut().reserved.get_mut(&(local.port, local.address)) {
            held.remove(before);
            held.add(sharing);
        }
    }

    /// Who holds a reservation, and has listened there, does so no longer.
    pub fn end_listening(&self, local: Endpoint) {
        if let Some(held) = self.state.borrow_mut().reserved.get_mut(&(local.port, local.address)) {
            held.listening -= 1;
        }
    }

    /// Gives back one reservation, of one who does not listen (any more).
    pub fn release(&self, local: Endpoint, sharing: Sharing) {
        let mut state = self.state.borrow_mut();
        let key = (local.port, local.address);
        if let Some(held) = state.reserved.get_mut(&key) {
            held.remove(sharing);
            if held.holders == 0 {
                state.reserved.remove(&key);
            }
        }
    }

    /// True when somebody holds the port, at any address.
    pub fn is_reserved(&self, port: u16) -> bool {
        let range = all_of(port);
        self.state.borrow().reserved.range(range).next().is_some()
    }

    /// A free ephemeral port for a flow to `remote`, or `None` when all are taken. `in_use` says whether a port
    /// is (the engine looks into its flow table); reserved ones are skipped here.
    ///
    /// RFC 6056 §3.3.3 (algorithm 3): the start follows from a keyed hash of the flow, so that ports of one
    /// destination grow by one and those of others tell nothing.
    pub fn ephemeral(
        &self,
        local: Address,
        remote: Endpoint,
        mut in_use: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let [words, more] = [local.words(), remote.address.words()];
        let flow = [words[0], words[1], more[0], more[1], u64::from(remote.port)];
        let offset = self.keyed(flow) as u32;
        let start = offset % EPHEMERAL_COUNT;
        for _ in 0..EPHEMERAL_COUNT {
            let next = self.state.borrow().next_ephemeral;
            self.state.borrow_mut().next_ephemeral = (next + 1) % EPHEMERAL_COUNT;
            let port = EPHEMERAL.0 + ((start + next) % EPHEMERAL_COUNT) as u16;
            if !self.is_reserved(port) && !in_use(port) {
                return Some(port);
            }
        }
        None
    }

    /// Gives packets for `local` of this class to `path`, or to it and the others that listen so.
    pub fn listen(&self, local: Endpoint, class: ClassIndex, path: PathId) {
        self.listen_with(local, class, path, true);
    }

    /// Gives packets for `local` of this class to `path`, and to no other that came before (Linux looks through datagram
    /// sockets from the last that was bound).
    pub fn listen_alone(&self, local: Endpoint, class: ClassIndex, path: PathId) {
        self.listen_with(local, class, path, false);
    }

    fn listen_with(&self, local: Endpoint, class: ClassIndex, path: PathId, shares: bool) {
        let mut state = self.state.borrow_mut();
        let place = (local.port, local.address);
        add(state.listeners.entry(place).or_default(), class, path, Manner { shares, preferred: false });
        state.places.entry(path).or_default().push(place);
    }

    /// Takes a path out of the listeners, wherever it stands. To be called when it is destroyed.
    pub fn unlisten(&self, path: PathId) {
        let mut state = self.state.borrow_mut();
        let Some(places) = state.places.remove(&path) else { return };
        for place in places {
            if let Some(classes) = state.listeners.get_mut(&place) {
                take(classes, path);
                if classes.is_empty() {
                    state.listeners.remove(&place);
                }
            }
        }
    }

    /// A listening path serves another class from now on.
    pub fn set_class(&self, path: PathId, class: ClassIndex) {
        let state = &mut *self.state.borrow_mut();
        for place in state.places.get(&path).into_iter().flatten() {
            if let Some(classes) = state.listeners.get_mut(place) {
                let manner = take(classes, path);
                add(classes, class, path, manner);
            }
        }
    }

    /// A path that listens shares what comes with the others that do so, from now on.
    pub fn share_listener(&self, path: PathId) {
        let state = &mut *self.state.borrow_mut();
        for place in state.places.get(&path).into_iter().flatten() {
            let Some(classes) = state.listeners.get_mut(place) else { continue };
            let class = classes.iter().find(|at| at.alone.contains(&path)).map(|at| at.class);
            if let Some(class) = class {
                let manner = take(classes, path);
                add(classes, class, path, Manner { shares: true, ..manner });
            }
        }
    }

    /// Where it listens now, a path comes before others that share the place and are not preferred, or does so no longer.
    pub fn prefer(&self, path: PathId, is_preferred: bool) {
        let state = &mut *self.state.borrow_mut();
        for place in state.places.get(&path).into_iter().flatten() {
            for at in state.listeners.get_mut(place).into_iter().flatten() {
                if !is_preferred {
                    at.preferred.remove(&path);
                } else if at.all().any(|other| other == path) {
                    at.preferred.insert(path);
                }
            }
        }
    }

    /// The path that takes packets of this flow (with this type-of-service octet) when no exact one does: that of
    /// the first class that the packet fits, else of the class that was listened for first. Of several paths that
    /// listen for that class (SO_REUSEPORT) the flow's hash chooses, or the next that is preferred (as Linux's
    /// `reuseport_select_sock_by_hash`), or it is the last (SO_REUSEADDR). A listener at the address goes before one at the
    /// unspecified address.
    pub fn listener(&self, key: &FlowKey, tos: u8) -> Option<PathId> {
        let state = self.state.borrow();
        let at = |address| state.listeners.get(&(key.local_port, address));
        let classes = at(key.local).or_else(|| at(key.local.unspecified()))?;
        let listeners = if let [only] = &classes[..] {
            only
        } else {
            let ranked =
                classes.iter().filter_map(|at| Some((self.classifier.rank(at.class, key, tos)?, at)));
            ranked.min_by_key(|&(rank, _)| rank).map_or(classes.first()?, |(_, at)| at)
        };
        match &listeners.sharing[..] {
            _ if listeners.alone_is_last => listeners.alone.last().copied(),
            [only] => Some(*only),
            paths => {
                let chosen = (self.hash(key) % paths.len().max(1) as u64) as usize;
                let (before, from) = paths.split_at(chosen);
                let mut in_turn = from.iter().chain(before);
                let preferred = if listeners.preferred.is_empty() {
                    None
                } else {
                    in_turn.find(|path| listeners.preferred.contains(path))
                };
                preferred.or(from.first()).copied()
            }
        }
    }

    /// A hash of a flow that nobody else can tell: who chooses his port does not choose who serves him.
    fn hash(&self, key: &FlowKey) -> u64 {
        let [ours, theirs] = [key.local.words(), key.remote.words()];
        let ports = u64::from(key.remote_port) << 16 | u64::from(key.local_port);
        let words = [ours[0], ours[1], theirs[0], theirs[1], ports];
        self.keyed(words)
    }

    /// One generator for each word of a flow, each keyed with what the last made of the words before.
    fn keyed(&self, flow: [u64; 5]) -> u64 {
        flow.into_iter().fold(self.secret, |key, word| Random::new(key ^ word).next_u64())
    }
}

impl Bindings {
    /// The paths of all who take datagrams of this flow, which goes to a group or to everybody (RFC 1122 §4.1.3.2,
    /// §3.3.7; Linux's `__udp4_lib_mcast_deliver`): bound to that, or to every address.
    pub fn group_listeners(&self, key: &FlowKey) -> Vec<PathId> {
        let state = self.state.borrow();
        let at = |address| state.listeners.get(&(key.local_port, address)).into_iter().flatten();
        at(key.local).chain(at(key.local.unspecified())).flat_map(Listeners::all).collect()
    }
}

fn add(classes: &mut Vec<Listeners>, class: ClassIndex, path: PathId, manner: Manner) {
    let index = classes.iter().position(|at| at.class == class).unwrap_or_else(|| {
        classes.push(Listeners {
            class,
            sharing: Vec::new(),
            preferred: BTreeSet::new(),
            alone: Vec::new(),
            alone_is_last: false,
        });
        classes.len() - 1
    });
    let at = &mut classes[index];
    if manner.shares {
        at.sharing.push(path);
    } else {
        at.alone.push(path);
    }
    if manner.preferred {
        at.preferred.insert(path);
    }
    at.alone_is_last = !manner.shares;
}

/// How it listened.
fn take(classes: &mut Vec<Listeners>, path: PathId) -> Manner {
    let mut manner = Manner { shares: true, preferred: false };
    for at in &mut *classes {
        manner.shares &= !at.alone.contains(&path);
        manner.preferred |= at.preferred.remove(&path);
        at.sharing.retain(|&other| other != path);
        at.alone.retain(|&other| other != path);
        at.alone_is_last = !at.alone.is_empty() && (at.alone_is_last || at.sharing.is_empty());
    }
    classes.retain(|at| at.all().next().is_some());
    manner
}

/// Every address of this port.
fn all_of(port: u16) -> std::ops::RangeInclusive<(u16, Address)> {
    (port, Address::from_bits(0))..=(port, Address::from_bits(u128::MAX))
}

#[cfg(test)]
mod tests;
