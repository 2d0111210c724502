//! What is asked on a connection to a program here, and the class that follows from it (DESIGN.md §6): an
//! [`Exchange`] is shown the bytes of both directions as they pass.
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
//! Left out on purpose: connections that programs here open. A program would choose its class by what it asks.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_path::Account;
use scoutline_proto::request::{Exchange, Limits, Opaque};
use scoutline_sched::Level;

use super::SocketEnd;
use super::module::Standing;
use crate::policy::{Class, ClassPolicy, Origin};
use crate::wishes::Wishes;

/// Bytes of a ring that are copied to be shown, at a time: nearly every head fits.
const PIECE: usize = 2048;

/// What a connection is asked.
pub(crate) struct Asked {
    policy: Rc<ClassPolicy>,
    origin: Origin,
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
    pub(crate) fn new(policy: &Rc<ClassPolicy>, origin: Origin, linux_level: Level) -> Asked {
        Asked {
            policy: Rc::clone(policy),
            origin,
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

    /// The class that the rules give now: by what was asked, or else by the rest of the rules.
    pub(crate) fn class(&self) -> Rc<Class> {
        let Origin { key, tos, program } = &self.origin;
        let begun = || self.policy.class_for(key, *tos, Some(program));
        self.policy.class(self.exchange.class().unwrap_or_else(begun))
    }

    /// What a path gets that the rules put into this class, and whose program asks for this.
    pub(crate) fn grant(&self, ruled: Rc<Class>, wishes: Option<&Wishes>) -> (Rc<Class>, Standing) {
        let granted = self.policy.grant(ruled, wishes, &self.origin.program);
        let standing = Standing::of(&granted.class, granted.stands, granted.extended, self.linux_level);
        (granted.class, standing)
    }

    /// Requests that were read since this was asked last.
    pub(crate) fn take_requests(&mut self) -> u64 {
        let read = self.exchange.answered() + self.exchange.outstanding() as u64;
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
        if self.look == Look::Waiting {
            self.join(end, position);
        }
        // What is out of order is shown when it is its turn.
        if self.look == Look::On && position == self.seen {
            self.show_inward(bytes);
        }
    }

    /// The incoming stream is about to be published up to this position.
    pub(crate) fn on_readable(&mut self, end: &SocketEnd, position: u64) {
        let mut piece = [0; PIECE];
        while self.look == Look::On && self.seen < position {
            let left = position - self.seen;
            let unread = self.exchange.unread_inward().min(left);
            if unread > 0 {
                self.exchange.skip_inward(unread);
                self.seen += unread;
                self.conclude();
                continue;
            }
            let piece = &mut piece[..left.min(PIECE as u64) as usize];
            end.load_received(self.seen, piece);
            self.show_inward(piece);
        }
    }

    /// The program has written from one position of the outgoing stream to another.
    pub(crate) fn on_written(&mut self, end: &SocketEnd, from: u64, to: u64) {
        let mut piece = [0; PIECE];
        let mut at = from;
        // A ring holds no more, but a program can say anything of what it has written behind a file.
        let mut most = u64::from(end.send_size());
        while self.look == Look::On && at < to {
            let unread = self.exchange.unread_outward().min(to - at);
            let in_file = end.in_file(at).min(to - at);
            let beyond = if most == 0 { to - at } else { 0 };
            let skipped = unread.max(in_file).max(beyond);
            if skipped > 0 {
                self.exchange.skip_outward(skipped);
                at += skipped;
            } else {
                let len = end.until_file(at).min(to - at).min(PIECE as u64).min(most);
                most -= len;
                let piece = &mut piece[..len as usize];
                end.load(at, piece);
                self.exchange.on_outward(piece);
                at += len;
            }
            self.conclude();
        }
    }

    fn show_inward(&mut self, bytes: &[u8]) {
        self.renew();
        self.seen += bytes.len() as u64;
        let Some(matcher) = self.policy.requests() else { return };
        let (policy, origin) = (&self.policy, &self.origin);
        self.exchange.on_inward(bytes, &matcher, |class| policy.is_possible(class, origin));
        self.conclude();
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
