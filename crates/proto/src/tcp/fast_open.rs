//! TCP Fast Open (RFC 7413) without connections: cookies, what a client remembers of servers, what a listening socket
//! allows. What a connection does with them stands in `connection/fast_open.rs`.
//!
//! ```text
//! client                                   server
//!   SYN, request        ────────────────►    makes a cookie out of both addresses and a key: keeps nothing
//!   remembers it        ◄────────────────    SYN-ACK, cookie
//!   …
//!   SYN, cookie, data   ────────────────►    the cookie is right: the program has the connection and the data
//!                       ◄────────────────    SYN-ACK for SYN and data, and the program's answer at once
//! ```
//!
//! Cookies are made as Linux makes them (SipHash-2-4 of the SYN's two addresses), so that machines behind one address,
//! Linux among them, can share a key (RFC 7413 §4.1.2). The experimental option (254) is read and answered, since older
//! clients send it; we ask with the standard one only. A client asks again after a time, and for longer each time, when a
//! SYN with data was lost (§4.1.3.1): there may be something on the way that drops those. That is by server; Linux's
//! detection for the whole machine (off there by default) is left out.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bitflags::bitflags;
use scoutline_base::{Address, Time};
use scoutline_wire::tcp::FastOpen;

use crate::siphash::{self, siphash};

bitflags! {
    /// What is allowed: the bits of Linux's `net.ipv4.tcp_fastopen`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Policy: u32 {
        /// Programs may send data with their SYN.
        const CLIENT = 0x1;
        /// Listening sockets take data with a SYN, if their programs say how many (TCP_FASTOPEN).
        const SERVER = 0x2;
        /// Data goes with a SYN whether or not there is a cookie.
        const CLIENT_NO_COOKIE = 0x4;
        /// It is taken without a cookie.
        const SERVER_NO_COOKIE = 0x200;
        /// All listening sockets take it, as many as their backlog says.
        const EVERY_LISTENER = 0x400;
    }
}

/// What makes cookies, and what made them before: those count as well, and are answered with a new one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    primary: siphash::Key,
    backup: Option<siphash::Key>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// What a cookie is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was made here for this client.
    Valid,
    /// The same, with the key before: the client is to get a new one.
    Old,
    /// It was not.
    Invalid,
}

impl Keys {
    /// Of 16 bytes each.
    pub fn new(primary: [u8; 16], backup: Option<[u8; 16]>) -> Keys {
        Keys { primary: siphash::key(primary), backup: backup.map(siphash::key) }
    }

    /// As Linux writes them in `net.ipv4.tcp_fastopen_key`: four words in hexadecimal, with hyphens between; after a comma
    /// those of the key before.
    pub fn parse(text: &str) -> Option<Keys> {
        let key = |text: &str| {
            let mut key = [0; 16];
            let mut words = text.trim().split('-');
            for bytes in key.chunks_mut(4) {
                bytes.copy_from_slice(&u32::from_str_radix(words.next()?, 16).ok()?.to_le_bytes());
            }
            words.next().is_none().then_some(key)
        };
        match text.split_once(',') {
            Some((primary, before)) => Some(Keys::new(key(primary)?, Some(key(before)?))),
            None => Some(Keys::new(key(text)?, None)),
        }
    }

    /// The keys, each as two words in memory order.
    pub fn words(&self) -> ([u64; 2], Option<[u64; 2]>) {
        let words = |(first, second): siphash::Key| [first.to_le(), second.to_le()];
        (words(self.primary), self.backup.map(words))
    }

    /// The cookie of a client (RFC 7413 §4.1.2).
    pub fn cookie(&self, client: Address, server: Address) -> FastOpen {
        made_by(self.primary, client, server)
    }

    /// Looks at a cookie that came from `client`.
    pub fn check(&self, cookie: &FastOpen, client: Address, server: Address) -> Verdict {
        let is_of = |key| made_by(key, client, server).as_slice() == cookie.as_slice();
        match self.backup {
            _ if is_of(self.primary) => Verdict::Valid,
            Some(backup) if is_of(backup) => Verdict::Old,
            _ => Verdict::Invalid,
        }
    }
}

fn made_by(key: siphash::Key, client: Address, server: Address) -> FastOpen {
    let mut bytes = [0; 32];
    let mut len = 0;
    for address in [client, server] {
        match address.to_ip() {
            std::net::IpAddr::V4(address) => {
                bytes[len..len + 4].copy_from_slice(&address.octets());
                len += 4;
            }
            std::net::IpAddr::V6(address) => {
                bytes[len..len + 16].copy_from_slice(&address.octets());
                len += 16;
            }
        }
    }
    let cookie = siphash::<2, 4>(key, &bytes[..len]).to_le_bytes();
    FastOpen::cookie(&cookie).unwrap_or_default()
}

/// What a listening socket allows, and the connections that are begun on the word of a cookie alone.
#[derive(Debug, Default)]
pub struct Queue {
    /// How many there may be (TCP_FASTOPEN); 0: none.
    pub limit: Cell<u32>,
    /// No cookie is asked for (TCP_FASTOPEN_NO_COOKIE).
    pub needs_no_cookie: Cell<bool>,
    /// Its own keys (TCP_FASTOPEN_KEY).
    pub keys: Cell<Option<Keys>>,
    pending: Cell<u32>,
    /// Until when those that were reset count.
    resets: RefCell<VecDeque<Time>>,
}

impl Queue {
    /// Connections whose handshake is not complete, and those that were reset before it was.
    pub fn len(&self) -> u32 {
        self.pending.get() + self.resets.borrow().len() as u32
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether another one may begin, where at most `limit` may be. One at a time makes room that was reset long ago.
    fn admits(&self, limit: u32, now: Time) -> bool {
        if self.len() < limit {
            return true;
        }
        let mut resets = self.resets.borrow_mut();
        let is_over = limit > 0 && resets.front().is_some_and(|&until| until <= now);
        if is_over {
            resets.pop_front();
        }
        is_over && self.pending.get() + (resets.len() as u32) < limit
    }
}

/// A connection that was begun on the word of a cookie. It counts until it is dropped.
#[derive(Debug)]
pub struct Pending(Rc<Queue>);

impl Pending {
    fn take(queue: &Rc<Queue>) -> Pending {
        queue.pending.set(queue.pending.get() + 1);
        Pending(Rc::clone(queue))
    }

    /// It was reset before its handshake was complete: whoever forges source addresses brings that about, so it counts
    /// for a while more (RFC 7413 §5.1).
    pub fn on_reset(self, now: Time) {
        self.0.resets.borrow_mut().push_back(now + COUNT_RESET_FOR);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}

/// What is done with the fast open of a SYN.
#[derive(Debug, Default)]
pub struct Offer {
    /// What the SYN-ACK tells: a cookie.
    pub answer: Option<FastOpen>,
    /// The connection begins at once.
    pub accepted: Option<Pending>,
}

/// A SYN as fast open looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Syn {
    /// Its option.
    pub option: Option<FastOpen>,
    /// It carries data.
    pub has_data: bool,
    /// Where it came from.
    pub client: Address,
    /// Where it went.
    pub server: Address,
}

/// Decides on a SYN to a listening socket with this queue (RFC 7413 §4.2.2), in the order of Linux's
/// `tcp_try_fast_open`.
pub fn consider(queue: &Rc<Queue>, policy: Policy, backlog: u32, keys: &Keys, syn: &Syn, now: Time) -> Offer {
    let limit = match queue.limit.get() {
        0 if policy.contains(Policy::EVERY_LISTENER) => backlog,
        limit => limit,
    };
    let asks = syn.has_data || syn.option.is_some();
    if !policy.contains(Policy::SERVER) || !asks || limit == 0 || !queue.admits(limit, now) {
        return Offer::default();
    }
    let accept = || Some(Pending::take(queue));
    if queue.needs_no_cookie.get() || policy.contains(Policy::SERVER_NO_COOKIE) {
        return Offer { answer: None, accepted: accept() };
    }
    let Some(option) = syn.option else { return Offer::default() };
    let keys = queue.keys.get().unwrap_or(*keys);
    let fresh = || Some(keys.cookie(syn.client, syn.server).in_form_of(option));
    match keys.check(&option, syn.client, syn.server) {
        Verdict::Valid => Offer { answer: None, accepted: accept() },
        Verdict::Old => Offer { answer: fresh(), accepted: accept() },
        Verdict::Invalid => Offer { answer: fresh(), accepted: None },
    }
}

/// What a client knows of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its cookie.
    pub cookie: Option<FastOpen>,
    /// Its segment size, in bytes.
    pub mss: u16,
}

/// How a client begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// What its SYN carries: a cookie, or the request for one.
    pub option: Option<FastOpen>,
    /// How much data may go with it, in bytes.
    pub room: u32,
    /// The SYN waits for data.
    pub waits: bool,
}

impl Start {
    /// Towards a server of which this is known, over a link that takes segments of `mss` bytes.
    pub fn new(known: Option<Known>, policy: Policy, mss: u16) -> Start {
        let mss = known.map_or(mss, |known| known.mss.min(mss));
        // Linux: MAX_TCP_OPTION_SPACE, for what others on the way may add.
        let room = u32::from(mss).saturating_sub(MAX_OPTIONS);
        match known.and_then(|known| known.cookie) {
            _ if policy.contains(Policy::CLIENT_NO_COOKIE) => Start { option: None, room, waits: false },
            Some(cookie) => Start { option: Some(cookie), room, waits: false },
            None => Start { option: Some(FastOpen::request()), room: 0, waits: false },
        }
    }
}

/// How a connection began that asked for a cookie, or used one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The segment size that the server told, in bytes.
    pub mss: u16,
    /// The cookie that it told.
    pub cookie: Option<FastOpen>,
    /// The server took data with the SYN.
    pub is_taken: bool,
    /// The SYN with data, or its answer, was lost.
    pub is_lost: bool,
}

/// What a client remembers of servers, by both addresses (RFC 7413 §4.1.3): of [`MAX_SERVERS`].
#[derive(Debug, Default)]
pub struct Cache {
    servers: BTreeMap<(Address, Address), Server>,
}

#[derive(Clone, Copy, Debug)]
struct Server {
    cookie: Option<FastOpen>,
    mss: u16,
    used: Time,
    /// SYNs with data that were lost in a row.
    losses: u8,
    /// No data goes with a SYN before.
    not_before: Time,
}

/// Servers of which something is remembered.
pub const MAX_SERVERS: usize = 1024;

impl Cache {
    /// What is known of a server, if something is.
    pub fn look(&mut self, ours: Address, theirs: Address, now: Time) -> Option<Known> {
        let server = self.servers.get_mut(&(ours, theirs))?;
        server.used = now;
        let cookie = server.cookie.filter(|_| now >= server.not_before);
        Some(Known { cookie, mss: server.mss })
    }

    /// How it went.
    pub fn learn(&mut self, ours: Address, theirs: Address, outcome: &Outcome, now: Time) {
        let key = (ours, theirs);
        if self.servers.len() >= MAX_SERVERS
            && !self.servers.contains_key(&key)
            && let Some((&oldest, _)) = self.servers.iter().min_by_key(|(_, server)| server.used)
        {
            self.servers.remove(&oldest);
        }
        let fresh = Server { cookie: None, mss: outcome.mss, used: now, losses: 0, not_before: Time::ZERO };
        let server = self.servers.entry(key).or_insert(fresh);
        (server.mss, server.used) = (outcome.mss, now);
        if let Some(cookie) = outcome.cookie {
            server.cookie = Some(cookie);
        }
        if outcome.is_lost {
            server.not_before = now + HOLD_OFF * (1 << server.losses.min(MAX_DOUBLINGS));
            server.losses = server.losses.saturating_add(1);
        } else if outcome.is_taken {
            server.losses = 0;
        }
    }

    /// Servers of which something is known.
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

/// Linux: `reqsk_fastopen_remove`.
const COUNT_RESET_FOR: Duration = Duration::from_secs(60);
/// After the first SYN with data that was lost; doubled for each that follows (RFC 7413 §4.1.3.1 asks for "a while").
const HOLD_OFF: Duration = Duration::from_secs(60);
/// The longest options of a header, in bytes.
const MAX_OPTIONS: u32 = 40;
/// Up to some 17 hours.
const MAX_DOUBLINGS: u8 = 10;

#[cfg(test)]
mod tests;
