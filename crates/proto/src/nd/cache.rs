//! The neighbour cache (RFC 4861 §7.3.2), pure and bounded.
//!
//! ```text
//!            asked for             answer                  age
//!  (nothing) ─────────► Incomplete ──────► Reachable ─────────────► Stale
//!                 ▲        │ 3 tries           ▲ answer               │ used
//!                 └────────▼──────             │        5 s           ▼
//!                        Failed ◄──── Probe ───┴────────────────── Delay
//!                          3 tries
//! ```

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::{Body, Message};
use scoutline_wire::ethernet;
use scoutline_wire::nd::Advertisement;

/// Entries of a cache.
const MAX_ENTRIES: usize = 4096;
/// Messages that wait at one entry: RFC 4861 §7.2.2 asks for at least one, the latest.
const MAX_WAITING: usize = 4;
/// RFC 4861 §10: RETRANS_TIMER, MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT, DELAY_FIRST_PROBE_TIME, REACHABLE_TIME.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
const MAX_REQUESTS: u8 = 3;
const DELAY_TIME: Duration = Duration::from_secs(5);
const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// How long a neighbour that did not answer is not asked again.
const FAILED_TIME: Duration = Duration::from_secs(1);
/// Entries that eviction looks at to find an old one.
const EVICTION_SAMPLE: usize = 8;

/// What to ask, and whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address whose owner is sought.
    pub address: Ipv6Addr,
    /// Ask this station alone; `None` asks the group of those who may have it.
    pub link: Option<ethernet::Address>,
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
    /// Not known yet: [`Cache::hold`] the message. With `request` the caller sends a solicitation.
    Unknown {
        /// Send a solicitation.
        request: bool,
    },
    /// It did not answer a moment ago: drop the message.
    Failed,
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
    address: Ipv6Addr,
    state: State,
    link: ethernet::Address,
    /// When the state ends.
    deadline: Time,
    tries: u8,
    used: Time,
    waiting: Vec<Message>,
}

/// The link addresses of neighbours, and what waits for those that are not known yet.
#[derive(Debug, Default)]
pub struct Cache {
    slots: Vec<Entry>,
    index: BTreeMap<Ipv6Addr, u32>,
    /// Where eviction looks next.
    hand: usize,
    /// Slots in `Incomplete`, `Delay` or `Probe`: those with a timer.
    asking: Vec<u32>,
    /// Grows with each change of a known address: who remembers an answer compares it.
    generation: u32,
}

impl Cache {
    /// True when this address did not answer a moment ago.
    pub fn has_failed(&self, address: Ipv6Addr, now: Time) -> bool {
        let entry = self.index.get(&address).map(|&slot| &self.slots[slot as usize]);
        entry.is_some_and(|entry| entry.state == State::Failed && now < entry.deadline)
    }

    /// Looks an address up for a message that is about to leave.
    pub fn find(&mut self, address: Ipv6Addr, now: Time) -> Found {
        let Some(&slot) = self.index.get(&address) else {
            let slot = self.add(address, now);
            self.ask(slot, State::Incomplete, now + REQUEST_INTERVAL, 1);
            return Found::Unknown { request: true };
        };
        let entry = &mut self.slots[slot as usize];
        entry.used = now;
        if entry.state == State::Reachable && now >= entry.deadline {
            entry.state = State::Stale;
        }
        match entry.state {
            State::Reachable | State::Delay | State::Probe => {
                let until = if entry.state == State::Probe { now + REQUEST_INTERVAL } else { entry.deadline };
                Found::Known { link: entry.link, until }
            }
            State::Stale => {
                // It is used at once; whether it is still there is asked if nothing says so before.
                let (link, until) = (entry.link, now + DELAY_TIME);
                self.ask(slot, State::Delay, until, 0);
                Found::Known { link, until }
            }
            State::Incomplete => Found::Unknown { request: false },
            State::Failed if now < entry.deadline => Found::Failed,
            State::Failed => {
                self.ask(slot, State::Incomplete, now + REQUEST_INTERVAL, 1);
                Found::Unknown { request: true }
            }
        }
    }

    /// Leaves a message until `address` is known; it has all headers but the link's. When too much waits the
    /// oldest comes back, to be dropped. Stream bodies come back at once, as [`crate::arp::Cache::hold`] says.
    pub fn hold(&mut self, address: Ipv6Addr, message: Message) -> Option<Message> {
        let entry = self.index.get(&address).map(|&slot| &mut self.slots[slot as usize]);
        let Some(entry) = entry.filter(|entry| entry.state == State::Incomplete) else {
            return Some(message);
        };
        if !matches!(message.body, Body::Empty | Body::Block { .. }) {
            return Some(message);
        }
        let oldest = (entry.waiting.len() == MAX_WAITING).then(|| entry.waiting.remove(0));
        entry.waiting.push(message);
        oldest
    }

    /// Whoever speaks to us from `address` has told its link address (RFC 4861 §7.2.3, §6.3.4): known, but not known to
    /// be reachable. Gives what waited for it.
    pub fn on_source(&mut self, address: Ipv6Addr, link: ethernet::Address, now: Time) -> Vec<Message> {
        let (slot, is_new) = match self.index.get(&address) {
            Some(&slot) => (slot, false),
            None => (self.add(address, now), true),
        };
        let entry = &mut self.slots[slot as usize];
        let known = !matches!(entry.state, State::Incomplete | State::Failed) && !is_new;
        if known && entry.link == link {
            return Vec::new();
        }
        self.set(slot, link, State::Stale, now)
    }

    /// RFC 4861 §7.2.5: hears an advertisement for an address that was asked for, and gives what waited for it.
    pub fn on_advertisement(&mut self, said: &Advertisement, now: Time) -> Vec<Message> {
        // An address that nobody asked for is of no interest.
        let Some(&slot) = self.index.get(&said.target) else { return Vec::new() };
        let entry = &mut self.slots[slot as usize];
        let reachable = if said.solicited { State::Reachable } else { State::Stale };
        if matches!(entry.state, State::Incomplete | State::Failed) {
            let Some(link) = said.target_link else { return Vec::new() };
            return self.set(slot, link, reachable, now);
        }
        let link = said.target_link.unwrap_or(entry.link);
        let differs = link != entry.link;
        if !said.overrides && differs {
            // Somebody else claims it: what is known stays, but is asked about.
            if entry.state == State::Reachable {
                entry.state = State::Stale;
                self.generation = self.generation.wrapping_add(1);
            }
            return Vec::new();
        }
        if said.solicited || differs {
            return self.set(slot, link, reachable, now);
        }
        Vec::new()
    }

    fn set(&mut self, slot: u32, link: ethernet::Address, state: State, now: Time) -> Vec<Message> {
        let entry = &mut self.slots[slot as usize];
        if entry.link != link {
            self.generation = self.generation.wrapping_add(1);
        }
        entry.link = link;
        entry.state = state;
        entry.deadline = now + REACHABLE_TIME;
        entry.tries = 0;
        self.asking.retain(|&other| other != slot);
        std::mem::take(&mut entry.waiting)
    }

    /// When [`Cache::on_timeout`] has work.
    pub fn next_timeout(&self) -> Option<Time> {
        self.asking.iter().map(|&slot| self.slots[slot as usize].deadline).min()
    }

    /// Asks again where no answer came (by calling `request`), and gives back what waited for neighbours that are
    /// given up.
    pub fn on_timeout(&mut self, now: Time, mut request: impl FnMut(Question)) -> Vec<Message> {
        let mut given_up = Vec::new();
        let slots = &mut self.slots;
        let generation = &mut self.generation;
        self.asking.retain(|&slot| {
            let entry = &mut slots[slot as usize];
            if entry.deadline > now {
                return true;
            }
            if entry.state == State::Delay {
                entry.state = State::Probe;
                entry.tries = 0;
            }
            if entry.tries >= MAX_REQUESTS {
                entry.state = State::Failed;
                entry.deadline = now + FAILED_TIME;
                *generation = generation.wrapping_add(1);
                given_up.append(&mut entry.waiting);
                return false;
            }
            entry.tries += 1;
            entry.deadline = now + REQUEST_INTERVAL;
            let link = (entry.state == State::Probe).then_some(entry.link);
            request(Question { address: entry.address, link });
            true
        });
        given_up
    }

    /// Changes whenever an answer given earlier may be wrong now.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The neighbours, for people: address, link address when known, state.
    pub fn entries(&self) -> impl Iterator<Item = (Ipv6Addr, Option<ethernet::Address>, &'static str)> + '_ {
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
        self.asking.push(slot);
    }

    fn add(&mut self, address: Ipv6Addr, now: Time) -> u32 {
        let entry = Entry {
            address,
            state: State::Failed,
            link: [0; 6],
            deadline: now,
            tries: 0,
            used: now,
            waiting: Vec::new(),
        };
        let slot = if self.slots.len() < MAX_ENTRIES {
            self.slots.push(entry);
            self.slots.len() - 1
        } else {
            let slot = self.victim();
            self.index.remove(&self.slots[slot].address);
            self.asking.retain(|&other| other as usize != slot);
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
        let sample = (start..start + EVICTION_SAMPLE).map(|slot| slot % MAX_ENTRIES);
        let age = |&slot: &usize| (!self.slots[slot].waiting.is_empty(), self.slots[slot].used);
        sample.min_by_key(age).unwrap_or(start)
    }
}
