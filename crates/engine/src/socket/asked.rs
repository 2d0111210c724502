//! What is asked on a connection, and the class that follows from it (DESIGN.md §6): an [`Exchange`] is shown the bytes of both directions as they pass.
//!
//! ```text
//! inward:   packet ─► shown, if it comes next ─► receive ring ─┐            before the program can see it
//!                     else from the ring, when the gap is filled ┴─► class ─► published
//! outward:  send ring ─► copied once, and shown: heads and framing only; bodies and files are skipped
//! ```
//! A program can change its rings under our eyes. It deceives itself alone: which class a connection gets is decided
//! by what its peer asks, and a program that answers wrongly keeps a class no longer than by not answering.
//!
//! Rules may come while a connection lives. Where its next request begins cannot be known then; it is likely to be what
//! comes when the program has taken everything and has answered before ([`Look::Waiting`]). If that proves to be no
//! request, the look waits again. A peer gains nothing by leading it astray: it could send the request itself.
//!
//! On a connection that a program here opens, the two directions change their parts, for classes whose rules say so
//! ([`Requests`](crate::settings::Requests)): there a program chooses its class by what it asks.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_path::{Account, DropReason};
use scoutline_proto::bindings::ClassIndex;
use scoutline_proto::request::{Exchange, Limits, Opaque};
use scoutline_sched::Level;

use super::SocketEnd;
use super::module::Standing;
use crate::admission::{Booked, Promises};
use crate::policy::{Class, ClassPolicy, Origin};
use crate::wishes::{Granted, Wishes};

/// Bytes of a ring that are copied to be shown, at a time: nearly every head fits.
const PIECE: usize = 2048;

/// What is shown of a program's bytes in one run: it may write nothing but heads and framing, megabytes of them.
const SHOWN_AT_ONCE: u64 = 64 << 10;

/// What a connection is asked.
pub(crate) struct Asked {
    policy: Rc<ClassPolicy>,
    promises: Rc<Promises>,
    origin: Origin,
    /// What the engine's books have for the path: where it was before this run.
    booked: Booked,
    /// The class that it is in.
    within: ClassIndex,
    /// The class that could not carry it.
    refused: Option<Refused>,
    /// Where Linux stands, to tell what is urgent.
    linux_level: Level,
    exchange: Exchange,
    look: Look,
    /// It began with the connection under way, and has not seen a request with its answer yet.
    unproven: bool,
    /// Of the rules that the exchange's classes were found by.
    generation: u64,
    /// The incoming stream has been shown up to here.
    seen: u64,
    /// Requests that have been told of.
    counted: u64,
    /// Bytes that stand in the path's account.
    charged: u64,
}

/// A class that could not carry the connection, for as long as no other request has been read.
#[derive(Clone, Copy, Debug)]
struct Refused {
    class: ClassIndex,
    reason: DropReason,
    requests: u64,
}

/// Where a connection goes by what is asked on it.
pub(crate) struct Move {
    /// The class that the rules give it.
    pub(crate) ruled: ClassIndex,
    /// The class that it gets.
    pub(crate) class: Rc<Class>,
    /// How it stands there.
    pub(crate) standing: Standing,
    /// The class that could not carry it, and why.
    pub(crate) not_admitted: Option<(ClassIndex, DropReason)>,
}

/// Who asks and who answers: an [`Exchange`] is of the side that answers, and on a connection that a program here opened
/// that is the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Asks,
    Answers,
}

/// Whether the bytes are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    On,
    /// Until something comes when the program has taken all that came before.
    Waiting,
    Over(Opaque),
}

impl Asked {
    /// Of a connection that begins.
    pub(crate) fn new(
        (policy, promises): (&Rc<ClassPolicy>, &Rc<Promises>),
        origin: Origin,
        booked: Booked,
        linux_level: Level,
    ) -> Asked {
        Asked {
            policy: Rc::clone(policy),
            promises: Rc::clone(promises),
            origin,
            booked,
            within: booked.class,
            refused: None,
            linux_level,
            exchange: Exchange::new(Limits::default()),
            look: Look::On,
            unproven: false,
            generation: policy.generation(),
            seen: 0,
            counted: 0,
            charged: 0,
        }
    }

    /// Of a connection that has a socket already.
    pub(crate) fn joining(self, end: &SocketEnd) -> Asked {
        let begins = end.received.get() == 0 && end.written.get() == 0;
        if begins { self } else { Asked { look: Look::Waiting, unproven: true, ..self } }
    }

    /// The class that the rules give now: by what was asked, if that can carry it, or else by the rest of the rules.
    pub(crate) fn class(&self) -> Rc<Class> {
        let asked = self.exchange.class().filter(|_| self.refusal().is_none());
        self.policy.class(asked.unwrap_or_else(|| self.begun()))
    }

    /// That the class by what was asked could not carry it.
    fn refusal(&self) -> Option<Refused> {
        let still = |it: &Refused| self.exchange.class() == Some(it.class) && it.requests == self.requests();
        self.refused.filter(still)
    }

    /// The class in which it began.
    fn begun(&self) -> ClassIndex {
        let Origin { key, tos, program, .. } = &self.origin;
        self.policy.class_for(key, *tos, Some(program))
    }

    /// The books have this for the path now, and the connection is there.
    pub(crate) fn book(&mut self, booked: Booked) {
        (self.booked, self.within) = (booked, booked.class);
    }

    /// The connection is in this class, whatever the books say yet.
    pub(crate) fn enter(&mut self, class: ClassIndex) {
        self.within = class;
    }

    /// Where the connection goes now, whose program asks for this. What its class cannot carry is refused there, and
    /// goes back to where it began; there it may stay even beyond a limit, but not with more than can be promised.
    pub(crate) fn go(&mut self, wishes: Option<&Wishes>, end: Option<&SocketEnd>) -> Move {
        let (mut ruled, begun) = (self.class(), self.begun());
        let mut granted = self.policy.grant(Rc::clone(&ruled), wishes, &self.origin.program);
        let admitted = if ruled.number == begun {
            self.promises.admit(&granted.class, granted.stands.asks, Some(self.booked))
        } else {
            self.admit(&granted, end)
        };
        let not_admitted = admitted.err().map(|reason| (granted.class.number, reason));
        if let Some((_, reason)) = not_admitted.filter(|_| ruled.number != begun) {
            self.refused = Some(Refused { class: ruled.number, reason, requests: self.requests() });
            ruled = self.policy.class(begun);
            granted = self.policy.grant(Rc::clone(&ruled), wishes, &self.origin.program);
        }
        let stands = self.promises.carried(&granted.class, granted.stands, Some(self.booked));
        let standing = Standing::of(&granted.class, stands, granted.extended, self.linux_level);
        Move { ruled: ruled.number, class: granted.class, standing, not_admitted }
    }

    fn admit(&self, to: &Granted, end: Option<&SocketEnd>) -> Result<(), DropReason> {
        if to.class.number != self.within {
            if to.class.is_full() {
                return Err(DropReason::ConnectionLimit);
            }
            if end.is_some_and(|end| !end.fits(&to.class.memory)) {
                return Err(DropReason::MemoryLimit);
            }
        }
        self.promises.admit(&to.class, to.stands.asks, Some(self.booked))
    }

    /// Requests that were read.
    fn requests(&self) -> u64 {
        self.exchange.answered() + self.exchange.outstanding() as u64
    }

    /// Requests that were read since this was asked last.
    pub(crate) fn take_requests(&mut self) -> u64 {
        let read = self.requests();
        let fresh = read.saturating_sub(self.counted);
        self.counted = read.max(self.counted);
        fresh
    }

    /// Puts what it holds into the path's account.
    pub(crate) fn charge(&mut self, account: &mut Account) {
        let held = (size_of::<Asked>() + self.exchange.held()) as u64;
        account.buffer_bytes_held = account.buffer_bytes_held.saturating_sub(self.charged) + held;
        self.charged = held;
    }

    /// Bytes of it that stand in the path's account.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// The server name that a TLS connection gave.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.exchange.server_name()
    }

    /// The class by what was asked, where that could not carry it, and why.
    pub(crate) fn refused(&self) -> Option<String> {
        let Refused { class, reason, .. } = self.refusal()?;
        Some(format!("{} ({})", self.policy.class(class).settings.name, reason.as_str()))
    }

    /// Why it is not looked at any more, if it is not.
    pub(crate) fn opaque(&self) -> Option<Opaque> {
        match self.look {
            Look::Over(reason) => Some(reason),
            Look::On | Look::Waiting => None,
        }
    }

    /// The rules are others.
    pub(crate) fn renew(&mut self) {
        let generation = self.policy.generation();
        if generation == self.generation {
            return;
        }
        if let Some(matcher) = self.policy.requests() {
            let (policy, origin) = (&self.policy, &self.origin);
            self.exchange.on_classes_changed(
                &matcher,
                |class| policy.is_possible(class, origin),
                |class| policy.still_asks_for(class, origin, self.generation),
            );
        }
        self.generation = generation;
    }

    /// Bytes from a packet, which have been stored at this position of the incoming stream and not been published.
    #[inline]
    pub(crate) fn on_stored(&mut self, end: &SocketEnd, position: u64, bytes: &[u8]) {
        if self.look == Look::Waiting && !self.origin.outgoing {
            self.join(end, position);
        }
        // What is out of order is shown when it is its turn.
        if self.look == Look::On && position == self.seen {
            self.seen += bytes.len() as u64;
            self.show(self.peer(), bytes);
        }
    }

    /// The incoming stream is about to be published up to this position.
    pub(crate) fn on_readable(&mut self, end: &SocketEnd, position: u64) {
        let mut piece = [0; PIECE];
        while self.look == Look::On && self.seen < position {
            let left = position - self.seen;
            let unread = self.unread(self.peer()).min(left);
            if unread > 0 {
                self.seen += unread;
                self.skip(self.peer(), unread);
                continue;
            }
            let piece = &mut piece[..left.min(PIECE as u64) as usize];
            end.load_received(self.seen, piece);
            self.seen += piece.len() as u64;
            self.show(self.peer(), piece);
        }
    }

    /// The program has written from one position of the outgoing stream to another. How far of that may be sent: what
    /// follows has to be shown first, in another run.
    pub(crate) fn on_written(&mut self, end: &SocketEnd, from: u64, to: u64) -> u64 {
        if self.look == Look::Waiting && self.origin.outgoing {
            self.join_outgoing(end, from);
        }
        let mut piece = [0; PIECE];
        let (mut at, mut shown) = (from, 0);
        while self.look == Look::On && at < to && shown < SHOWN_AT_ONCE {
            let unread = self.unread(self.program()).min(to - at);
            let in_file = end.in_file(at).min(to - at);
            let skipped = unread.max(in_file);
            if skipped > 0 {
                self.skip(self.program(), skipped);
                at += skipped;
            } else {
                let len = end.until_file(at).min(to - at).min(PIECE as u64);
                let piece = &mut piece[..len as usize];
                end.load(at, piece);
                self.show(self.program(), piece);
                at += len;
                shown += len;
            }
        }
        if self.look == Look::On { at } else { to }
    }

    /// What the peer does on this connection.
    fn peer(&self) -> Side {
        if self.origin.outgoing { Side::Answers } else { Side::Asks }
    }

    /// What the program does.
    fn program(&self) -> Side {
        if self.origin.outgoing { Side::Asks } else { Side::Answers }
    }

    fn show(&mut self, side: Side, bytes: &[u8]) {
        match side {
            Side::Asks => {
                self.renew();
                let Some(matcher) = self.policy.requests() else { return };
                let (policy, origin) = (&self.policy, &self.origin);
                self.exchange.on_inward(bytes, &matcher, |class| policy.is_possible(class, origin));
            }
            Side::Answers => {
                self.exchange.on_outward(bytes);
            }
        }
        self.conclude();
    }

    fn skip(&mut self, side: Side, len: u64) {
        match side {
            Side::Asks => self.exchange.skip_inward(len),
            Side::Answers => self.exchange.skip_outward(len),
        };
        self.conclude();
    }

    fn unread(&self, side: Side) -> u64 {
        match side {
            Side::Asks => self.exchange.unread_inward(),
            Side::Answers => self.exchange.unread_outward(),
        }
    }

    /// Begins to look if a request can begin here.
    fn join(&mut self, end: &SocketEnd, position: u64) {
        // As the program says: the engine may not have looked since.
        let answered = end.shared().send_tail.load(Ordering::Acquire) > 0;
        if answered && position == end.received.get() && position == end.read_consumed() {
            self.look = Look::On;
            (self.seen, self.counted) = (position, 0);
        }
    }

    /// The same where the program asks: it has read all answers, and the peer has all that was asked.
    fn join_outgoing(&mut self, end: &SocketEnd, position: u64) {
        let received = end.received.get();
        if received > 0 && received == end.read_consumed() && position == end.freed.get() {
            self.look = Look::On;
            (self.seen, self.counted) = (received, 0);
        }
    }

    /// Ends the look if there is nothing more to see.
    fn conclude(&mut self) {
        self.unproven &= self.exchange.answered() == 0;
        let Some(reason) = self.exchange.opaque() else { return };
        if self.unproven {
            self.look = Look::Waiting;
        } else {
            self.look = Look::Over(reason);
        }
        // Whoever sends such things may want to keep a class, or to lose one.
        if self.unproven || reason.is_suspect() {
            self.exchange = Exchange::new(Limits::default());
        }
    }
}
