//! The neighbour cache: which station has which address, for ARP (RFC 826, RFC 1122 §2.3.2) and neighbour discovery
//! (RFC 4861 §7.3) alike. Pure and bounded.
//!
//! ```text
//!            asked for             answer                  age
//!  (nothing) ─────────► Incomplete ──────► Reachable ─────────────► Stale
//!                 ▲        │ 3 tries           ▲ answer               │ used
//!                 │        ▼                   │        5 s           ▼
//!                 └───── Failed ◄──── Probe ───┴────────────────── Delay
//!                 used         3 tries
//! ```
//! The protocols say the same in other words: RFC 1122 §2.3.2.1 (2) has ARP poll the old station alone, and forget it
//! when it does not answer, which is RFC 4861's detection of unreachable neighbours. Linux runs both on one machine
//! too. What differs is how an answer is worded, so each protocol's stage reads its own messages, and tells the cache
//! [`Claim`]s.
//!
//! Stages of any path ask the cache on their way out, and leave a message with it when the answer is not there yet. The
//! path of ARP or of neighbour discovery hears the answer and sends what waited. A path that waits drives the timers
//! itself, so no path depends on another's being run.

mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_path::{Account, Body, Burst, Context, DropReason, Effect, Message};
use scoutline_wire::{ethernet, icmp, icmpv6, ipv6};

use self::waiting::Waiting;
use crate::eth::encapsulate;
use crate::{Interface, arp, nd};

/// Entries of a cache.
const MAX_ENTRIES: usize = 4096;
/// At most one question in a second for each destination (RFC 1122 §2.3.2.1; RFC 4861 §10 RETRANS_TIMER).
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// RFC 4861 §10 MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT; Linux' `mcast_solicit` and `ucast_solicit`.
const MAX_REQUESTS: u8 = 3;
/// RFC 4861 §10 DELAY_FIRST_PROBE_TIME: an answer may come by itself.
const DELAY_TIME: Duration = Duration::from_secs(5);
/// RFC 4861 §10 REACHABLE_TIME: how long an answer is believed; Linux' `base_reachable_time`.
const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// How long a neighbour that did not answer is not asked again.
const FAILED_TIME: Duration = Duration::from_secs(1);
/// Bytes of a payload that tell its flow (RFC 792).
const QUOTED: usize = 8;
/// Entries that eviction looks at to find an old one.
const EVICTION_SAMPLE: usize = 8;

/// The link addresses of neighbours of one family, and what waits for those that are not known yet.
#[derive(Debug, Default)]
pub struct Cache {
    slots: Vec<Entry>,
    index: BTreeMap<Address, u32>,
    /// Where eviction looks next.
    hand: usize,
    /// Slots in `Incomplete`, `Delay` or `Probe`, by when that ends: the engine asks for the first in each turn, and anybody
    /// on the link can make the others many.
    asking: BTreeSet<(Time, u32)>,
    /// By slot.
    waiting: Waiting,
    /// What waited at entries that had to go, until somebody counts it.
    evicted: Vec<Message>,
    /// Grows with each change of a known address: who remembers an answer compares it.
    generation: u32,
}

/// What the cache says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The neighbour's link address, to be believed until then.
    Known {
        /// The link address.
        link: ethernet::Address,
        /// Ask again from then on.
        until: Time,
    },
    /// Not known yet: [`Cache::hold`] the message. With `request` the caller asks for it.
    Unknown {
        /// Send a question.
        request: bool,
    },
    /// It did not answer a moment ago: drop the message.
    Failed,
}

/// What a station says about an address that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where it is; `None`: where it was.
    pub link: Option<ethernet::Address>,
    /// It answers us, so the way there and back works.
    pub solicited: bool,
    /// It is to replace what is known.
    pub overrides: bool,
}

/// What is to be done when time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Ask for the owner of an address.
    Ask {
        /// Whose owner.
        address: Address,
        /// That station alone, or all who may have it.
        last: Option<ethernet::Address>,
        /// The source of the first message that waits for it.
        prompt: Option<Address>,
    },
    /// Nobody answers at this address any more: whoever has another way takes that (RFC 4861 §7.3.3).
    Lost(Address),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete,
    Reachable,
    Stale,
    Delay,
    Probe,
    Failed,
}

#[derive(Debug)]
struct Entry {
    address: Address,
    state: State,
    link: ethernet::Address,
    /// When the state ends.
    deadline: Time,
    tries: u8,
    used: Time,
}

impl Cache {
    /// True when this address did not answer a moment ago.
    pub fn has_failed(&self, address: impl Into<Address>, now: Time) -> bool {
        let entry = self.index.get(&address.into()).map(|&slot| &self.slots[slot as usize]);
        entry.is_some_and(|entry| entry.state == State::Failed && now < entry.deadline)
    }

    /// Looks an address up for a message that is about to leave.
    pub fn find(&mut self, address: impl Into<Address>, now: Time) -> Found {
        let address = address.into();
        let slot = match self.index.get(&address) {
            Some(&slot) => slot,
            None => self.add(address, now),
        };
        let entry = &mut self.slots[slot as usize];
        entry.used = now;
        if entry.state == State::Reachable && now >= entry.deadline {
            entry.state = State::Stale;
        }
        let (link, deadline) = (entry.link, entry.deadline);
        match entry.state {
            State::Reachable | State::Delay => Found::Known { link, until: deadline },
            State::Probe => Found::Known { link, until: now + REQUEST_INTERVAL },
            State::Stale => {
                // It is used at once; whether it is still there is asked if nothing says so before.
                let until = now + DELAY_TIME;
                self.ask(slot, State::Delay, until, 0);
                Found::Known { link, until }
            }
            State::Incomplete => Found::Unknown { request: false },
            State::Failed if now < deadline => Found::Failed,
            State::Failed => {
                self.ask(slot, State::Incomplete, now + REQUEST_INTERVAL, 1);
                Found::Unknown { request: true }
            }
        }
    }

    /// Leaves a message until `address` is known; it has all headers but the link's. What comes back is to be
    /// dropped: what has waited longest, when too much waits ([`Cache::waiting_bytes`]). Stream bodies come back at
    /// once: their memory is known only once they have left the path, and TCP sends them again.
    pub fn hold(&mut self, address: impl Into<Address>, message: Message) -> Vec<Message> {
        let mut back = std::mem::take(&mut self.evicted);
        let slot = self.index.get(&address.into()).copied();
        let slot = slot.filter(|&slot| self.slots[slot as usize].state == State::Incomplete);
        match slot {
            Some(slot) if matches!(message.body, Body::Empty | Body::Block { .. }) => {
                back.append(&mut self.waiting.push(slot, message));
            }
            _ => back.push(message),
        }
        back
    }

    /// Bytes that waiting messages hold: for one neighbour 212,992 at most, as on Linux, for all 1 MiB.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes()
    }

    /// Hears from `address` itself that it is at `link`, and gives what waited for it. Unless `create`, only an entry
    /// that exists is changed (RFC 826: the merge flag).
    pub fn learn(
        &mut self,
        address: impl Into<Address>,
        link: ethernet::Address,
        create: bool,
        now: Time,
    ) -> Vec<Message> {
        let address = address.into();
        match self.index.get(&address).copied() {
            Some(slot) => self.set(slot, link, State::Reachable, now),
            None if create && self.has_place() => {
                let slot = self.add(address, now);
                self.set(slot, link, State::Reachable, now)
            }
            None => Vec::new(),
        }
    }

    /// Whoever speaks to us from `address`, or of it with authority, has told its link address (RFC 4861 §7.2.3, §6.3.4,
    /// §8.3): known, but not known to be reachable. Gives what waited for it.
    pub fn on_source(
        &mut self,
        address: impl Into<Address>,
        link: ethernet::Address,
        now: Time,
    ) -> Vec<Message> {
        let address = address.into();
        let slot = match self.index.get(&address).copied() {
            Some(slot) => slot,
            None if self.has_place() => self.add(address, now),
            None => return Vec::new(),
        };
        let entry = &self.slots[slot as usize];
        let known = !matches!(entry.state, State::Incomplete | State::Failed);
        if known && entry.link == link {
            return Vec::new();
        }
        self.set(slot, link, State::Stale, now)
    }

    /// RFC 4861 §7.2.5: hears a claim to an address that was asked for, and gives what waited for it.
    pub fn on_claim(&mut self, address: impl Into<Address>, claim: Claim, now: Time) -> Vec<Message> {
        // An address that nobody asked for is of no interest.
        let Some(&slot) = self.index.get(&address.into()) else { return Vec::new() };
        let entry = &mut self.slots[slot as usize];
        let reachable = if claim.solicited { State::Reachable } else { State::Stale };
        if matches!(entry.state, State::Incomplete | State::Failed) {
            let Some(link) = claim.link else { return Vec::new() };
            return self.set(slot, link, reachable, now);
        }
        let link = claim.link.unwrap_or(entry.link);
        let differs = link != entry.link;
        if !claim.overrides && differs {
            // Somebody else claims it: what is known stays, but is asked about.
            if entry.state == State::Reachable {
                entry.state = State::Stale;
                self.generation = self.generation.wrapping_add(1);
            }
            return Vec::new();
        }
        if claim.solicited || differs {
            return self.set(slot, link, reachable, now);
        }
        Vec::new()
    }

    fn set(&mut self, slot: u32, link: ethernet::Address, state: State, now: Time) -> Vec<Message> {
        let entry = &mut self.slots[slot as usize];
        self.asking.remove(&(entry.deadline, slot));
        if entry.link != link {
            self.generation = self.generation.wrapping_add(1);
        }
        entry.link = link;
        entry.state = state;
        entry.deadline = now + REACHABLE_TIME;
        entry.tries = 0;
        self.waiting.take(slot)
    }

    /// When [`Cache::on_timeout`] has work.
    pub fn next_timeout(&self) -> Option<Time> {
        self.asking.first().map(|&(due, _)| due)
    }

    /// Says what is to be done where no answer came, and gives back what waited for neighbours that are given up.
    pub fn on_timeout(&mut self, now: Time, mut due: impl FnMut(Due)) -> Vec<Message> {
        let mut given_up = std::mem::take(&mut self.evicted);
        while let Some(&(at, slot)) = self.asking.first().filter(|(at, _)| *at <= now) {
            self.asking.remove(&(at, slot));
            let entry = &mut self.slots[slot as usize];
            if entry.state == State::Delay {
                entry.state = State::Probe;
                entry.tries = 0;
            }
            if entry.tries >= MAX_REQUESTS {
                // RFC 4861 §7.3.3: one that was known is forgotten, so whoever needs it now asks all. Whom nobody knew
                // is left in peace for a moment.
                let rest = if entry.state == State::Probe { Duration::ZERO } else { FAILED_TIME };
                entry.state = State::Failed;
                entry.deadline = now + rest;
                self.generation = self.generation.wrapping_add(1);
                given_up.append(&mut self.waiting.take(slot));
                due(Due::Lost(entry.address));
                continue;
            }
            entry.tries += 1;
            entry.deadline = now + REQUEST_INTERVAL;
            self.asking.insert((entry.deadline, slot));
            due(Due::Ask {
                address: entry.address,
                last: (entry.state == State::Probe).then_some(entry.link),
                prompt: self.waiting.first(slot).and_then(source_of),
            });
        }
        given_up
    }

    /// Changes whenever an answer given earlier may be wrong now.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The neighbours, for people: address, link address when known, state.
    pub fn entries(&self) -> impl Iterator<Item = (Address, Option<ethernet::Address>, &'static str)> + '_ {
        self.slots.iter().map(|entry| {
            let (known, state) = match entry.state {
                State::Incomplete => (false, "incomplete"),
                State::Reachable => (true, "reachable"),
                State::Stale => (true, "stale"),
                State::Delay => (true, "delay"),
                State::Probe => (true, "probe"),
                State::Failed => (false, "failed"),
            };
            (entry.address, known.then_some(entry.link), state)
        })
    }

    fn ask(&mut self, slot: u32, state: State, deadline: Time, tries: u8) {
        let entry = &mut self.slots[slot as usize];
        entry.state = state;
        entry.tries = tries;
        entry.deadline = deadline;
        self.asking.insert((deadline, slot));
    }

    /// A fresh entry, of which nothing is known.
    fn add(&mut self, address: Address, now: Time) -> u32 {
        let entry = Entry { address, state: State::Failed, link: [0; 6], deadline: now, tries: 0, used: now };
        let slot = if self.slots.len() < MAX_ENTRIES {
            self.slots.push(entry);
            self.slots.len() - 1
        } else {
            let slot = self.victim();
            self.index.remove(&self.slots[slot].address);
            self.asking.remove(&(self.slots[slot].deadline, slot as u32));
            self.evicted.append(&mut self.waiting.take(slot as u32));
            self.generation = self.generation.wrapping_add(1);
            self.slots[slot] = entry;
            slot
        };
        self.index.insert(address, slot as u32);
        slot as u32
    }

    /// The longest unused of a few entries, those without waiting messages first.
    fn victim(&mut self) -> usize {
        let start = self.hand;
        self.hand = (start + EVICTION_SAMPLE) % MAX_ENTRIES;
        let age = |&slot: &usize| (!self.waiting.is_empty_at(slot as u32), self.slots[slot].used);
        sample(start).min_by_key(age).unwrap_or(start)
    }

    /// There is a place for whoever only tells of itself: it takes none from those whom somebody waits for.
    fn has_place(&mut self) -> bool {
        if self.slots.len() < MAX_ENTRIES {
            return true;
        }
        let free = sample(self.hand).any(|slot| self.waiting.is_empty_at(slot as u32));
        if !free {
            self.hand = (self.hand + EVICTION_SAMPLE) % MAX_ENTRIES;
        }
        free
    }
}

/// The slots that eviction looks at.
fn sample(start: usize) -> impl Iterator<Item = usize> {
    (start..start + EVICTION_SAMPLE).map(|slot| slot % MAX_ENTRIES)
}

/// Looks up the link address of `next_hop` for a message that leaves. With it comes how long it is to be believed.
/// Without an answer the message is taken: it waits, and the owner is asked for, or it is dropped.
pub(crate) fn resolve(
    interface: &Interface,
    next_hop: Address,
    message: &mut Message,
    context: &mut Context<'_>,
) -> Resolved {
    let neighbours = interface.neighbours_of(next_hop);
    let found = neighbours.borrow_mut().find(next_hop, context.now);
    match found {
        Found::Known { link, until } => Resolved::Known(link, until),
        Found::Unknown { request } => {
            if request {
                context.out.push(question(interface, next_hop, None, source_of(message)));
            }
            let back = neighbours.borrow_mut().hold(next_hop, std::mem::take(message));
            for message in back {
                context.drop_message(message, DropReason::NoNeighbour);
            }
            Resolved::Waits
        }
        Found::Failed => {
            on_given_up(interface, &std::mem::take(message), context.account, context.effects);
            Resolved::Dropped
        }
    }
}

/// What became of a message that looked for its neighbour.
pub(crate) enum Resolved {
    /// It can go there, and others until then.
    Known(ethernet::Address, Time),
    /// It waits, and somebody has to drive the timers.
    Waits,
    /// There is nobody.
    Dropped,
}

/// Sends what waited for the neighbour with this address, which is at `link`.
pub(crate) fn release(
    interface: &Interface,
    (address, link): (Address, ethernet::Address),
    waited: Vec<Message>,
    out: &mut Burst,
) {
    let ethertype = if address.is_v4() { ethernet::TYPE_IPV4 } else { ethernet::TYPE_IPV6 };
    for mut message in waited {
        encapsulate(&mut message, link, interface.link_address.get(), ethertype);
        out.push(message);
    }
}

/// The frame that asks for `address`: all who may have it, or the station that had it last. `prompt`: the source of what
/// waits.
fn question(
    interface: &Interface,
    address: Address,
    last: Option<ethernet::Address>,
    prompt: Option<Address>,
) -> Message {
    match address.to_ip() {
        IpAddr::V4(address) => arp::request_frame(interface, address, last),
        IpAddr::V6(address) => {
            // RFC 4861 §7.2.2: the answer comes to where what waits would have its own, and tells the neighbour of it.
            let prompt = prompt.filter(|&source| interface.is_ours(source)).and_then(Address::as_v6);
            nd::solicitation_frame(interface, address, last, prompt)
        }
    }
}

/// The source of a message of ours that waits at the link stage, over IPv6.
fn source_of(message: &Message) -> Option<Address> {
    ipv6::Header::parse_header(message.head.as_slice()).ok().map(|header| header.source.into())
}

/// Asks again for neighbours that did not answer, and gives up those who never do: what waited for them is dropped as
/// `NoNeighbour`, and the paths it came from are told that the host is unreachable.
pub(crate) fn on_timeout(
    interface: &Interface,
    now: Time,
    out: &mut Burst,
    account: &mut Account,
    effects: &mut Vec<Effect>,
) {
    for neighbours in [&interface.neighbours, &interface.neighbours6] {
        let given_up = neighbours.borrow_mut().on_timeout(now, |due| match due {
            Due::Ask { address, last, prompt } => out.push(question(interface, address, last, prompt)),
            Due::Lost(address) => {
                if let Some(address) = address.as_v6() {
                    interface.ip6.on_unreachable(address);
                }
            }
        });
        for message in given_up {
            on_given_up(interface, &message, account, effects);
        }
    }
}

/// Drops a message whose neighbour never answered, and tells its path.
fn on_given_up(interface: &Interface, message: &Message, account: &mut Account, effects: &mut Vec<Effect>) {
    account.on_drop(DropReason::NoNeighbour);
    // What an ICMP error would quote: the IP header, in the head unless the message is passed on for others, and the
    // transport's first bytes, which a fragment has in the body.
    let (head, body) = (message.head.as_slice(), message.bytes());
    if head.is_empty() {
        return;
    }
    let quoted = [head, &body[..body.len().min(QUOTED)]].concat();
    let parsed = icmp::Quoted::parse(&quoted)
        .map(|quoted| (crate::icmp::flow_of(interface.device, &quoted), quoted.data))
        .or_else(|| {
            let quoted = icmpv6::Quoted::parse(&quoted)?;
            Some((crate::icmp6::flow_of(interface.device, &quoted), quoted.data))
        });
    if let Some((key, data)) = parsed {
        let data = &body[data.saturating_sub(head.len()).min(body.len())..];
        effects.push(Effect::Notify(key, crate::icmp::neighbour_missing(&key, data)));
    }
}

#[cfg(test)]
mod tests;
