//! The neighbour cache (RFC 1122 §2.3.2), pure and bounded.
//!
//! ```text
//!            asked for            answer                 age
//!  (nothing) ─────────► Incomplete ─────► Reachable ─────────► Stale ◄─┐
//!                 ▲        │ 3 tries          ▲                  │ used│
//!                 └────────▼──────            │ answer           ▼     │
//!                        Failed               └─────────────── Probe ──┘ no answer: Incomplete
//! ```

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::{Body, Message};
use scoutline_wire::ethernet;

/// Entries of a cache.
const MAX_ENTRIES: usize = 4096;
/// Messages that wait at one entry: RFC 1122 §2.3.2.2 asks for at least one, the latest.
const MAX_WAITING: usize = 4;
/// RFC 1122 §2.3.2.1: at most one request per second and destination.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Requests before giving up; Linux' `mcast_solicit`.
const MAX_REQUESTS: u8 = 3;
/// How long an answer is believed without asking again; Linux' `base_reachable_time`.
const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// How long a neighbour that did not answer is not asked again.
const FAILED_TIME: Duration = Duration::from_secs(1);
/// Entries that eviction looks at to find an old one.
const EVICTION_SAMPLE: usize = 8;

/// What to ask, and whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address whose owner is sought.
    pub address: Ipv4Addr,
    /// Ask this station alone; `None` asks all.
    pub link: Option<ethernet::Address>,
}

/// What the cache says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The neighbour's link address, to be believed until then. With `probe` the caller sends a request to that
    /// address alone.
    Known {
        /// The link address.
        link: ethernet::Address,
        /// Ask again from then on.
        until: Time,
        /// Send a request.
        probe: bool,
    },
    /// Not known yet: [`Cache::hold`] the message. With `request` the caller sends a request to all.
    Unknown {
        /// Send a request.
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
    Probe,
    Failed,
}

#[derive(Debug)]
struct Entry {
    address: Ipv4Addr,
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
    index: BTreeMap<Ipv4Addr, u32>,
    /// Where eviction looks next.
    hand: usize,
    /// Slots in `Incomplete` or `Probe`: those with a timer.
    asking: Vec<u32>,
    /// Grows with each change of a known address: who remembers an answer compares it.
    generation: u32,
}

impl Cache {
    /// True when this address did not answer a moment ago.
    pub fn has_failed(&self, address: Ipv4Addr, now: Time) -> bool {
        let entry = self.index.get(&address).map(|&slot| &self.slots[slot as usize]);
        entry.is_some_and(|entry| entry.state == State::Failed && now < entry.deadline)
    }

    /// Looks an address up for a message that is about to leave.
    pub fn find(&mut self, address: Ipv4Addr, now: Time) -> Found {
        let Some(&slot) = self.index.get(&address) else {
            let slot = self.add(address, now);
            self.ask(slot, State::Incomplete, now);
            return Found::Unknown { request: true };
        };
        let entry = &mut self.slots[slot as usize];
        entry.used = now;
        if entry.state == State::Reachable && now >= entry.deadline {
            entry.state = State::Stale;
        }
        match entry.state {
            State::Reachable => Found::Known { link: entry.link, until: entry.deadline, probe: false },
            State::Stale => {
                // RFC 1122 §2.3.2.1 (2): poll the old address; it stays in use meanwhile.
                let link = entry.link;
                self.ask(slot, State::Probe, now);
                Found::Known { link, until: now + REQUEST_INTERVAL, probe: true }
            }
            State::Probe => Found::Known { link: entry.link, until: now + REQUEST_INTERVAL, probe: false },
            State::Incomplete => Found::Unknown { request: false },
            State::Failed if now < entry.deadline => Found::Failed,
            State::Failed => {
                self.ask(slot, State::Incomplete, now);
                Found::Unknown { request: true }
            }
        }
    }

    /// Leaves a message until `address` is known; it has all headers but the link's. When too much waits the
    /// oldest comes back, to be dropped. Stream bodies come back at once: their memory is known only once they
    /// have left the path, and TCP sends them again.
    pub fn hold(&mut self, address: Ipv4Addr, message: Message) -> Option<Message> {
        let entry = self.index.get(&address).map(|&slot| &mut self.slots[slot as usize]);
        let Some(entry) = entry.filter(|entry| entry.state == State::Incomplete) else {
            return Some(message);
        };
        if !matches!(message.body, Body::Empty | Body::Block { .. }) {
            return Some(message);
        }
        // RFC 1122 §2.3.2.2: save the latest.
        let oldest = (entry.waiting.len() == MAX_WAITING).then(|| entry.waiting.remove(0));
        entry.waiting.push(message);
        oldest
    }

    /// Hears that `address` is at `link`, and gives what waited for it. Unless `create`, only an entry that exists
    /// is changed (RFC 826: the merge flag).
    pub fn learn(
        &mut self,
        address: Ipv4Addr,
        link: ethernet::Address,
        create: bool,
        now: Time,
    ) -> Vec<Message> {
        let slot = match self.index.get(&address) {
            Some(&slot) => slot,
            None if create => self.add(address, now),
            None => return Vec::new(),
        };
        let entry = &mut self.slots[slot as usize];
        if entry.link != link {
            self.generation = self.generation.wrapping_add(1);
        }
        entry.link = link;
        entry.state = State::Reachable;
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
            if entry.tries >= MAX_REQUESTS {
                if entry.state == State::Incomplete {
                    entry.state = State::Failed;
                    entry.deadline = now + FAILED_TIME;
                    given_up.append(&mut entry.waiting);
                    return false;
                }
                // RFC 1122 §2.3.2.1 (2): no answer to the poll; whoever needs it now waits for a broadcast's.
                entry.state = State::Incomplete;
                entry.tries = 0;
                *generation = generation.wrapping_add(1);
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
    pub fn entries(&self) -> impl Iterator<Item = (Ipv4Addr, Option<ethernet::Address>, &'static str)> + '_ {
        self.slots.iter().map(|entry| {
            let (known, state) = match entry.state {
                State::Incomplete => (false, "incomplete"),
                State::Reachable => (true, "reachable"),
                State::Stale => (true, "stale"),
                State::Probe => (true, "probe"),
                State::Failed => (false, "failed"),
            };
            (entry.address, known.then_some(entry.link), state)
        })
    }

    fn ask(&mut self, slot: u32, state: State, now: Time) {
        let entry = &mut self.slots[slot as usize];
        entry.state = state;
        entry.tries = 1;
        entry.deadline = now + REQUEST_INTERVAL;
        self.asking.push(slot);
    }

    fn add(&mut self, address: Ipv4Addr, now: Time) -> u32 {
        let entry = Entry {
            address,
            state: State::Stale,
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
