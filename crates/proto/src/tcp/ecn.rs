//! Explicit congestion notification (RFC 3168 §6.1): routers mark what they would else drop.
//!
//! ```text
//!  sender            router            receiver
//!    │ ── ECT(0) ──────► marks CE ────────► │
//!    │ ◄───────────────────────────── ECE ──│ on each acknowledgment, until
//!    │ halves its window, once a round trip │
//!    │ ── CWR ────────────────────────────► │ the sender says that it has heard
//! ```
//! New data is sent as capable (ECT(0)); retransmissions, probes, SYNs and bare acknowledgments are not (§6.1.4 to
//! §6.1.6). CWR leaves on a segment of its own, so that no device copies it when it cuts. Accurate ECN (RFC 9768) is not
//! spoken: an offer of it is answered as one of this (§3.1.2 there), and its extra bit is not looked at.

use scoutline_wire::ipv4;
use scoutline_wire::tcp::Flags;

/// Whether connections use ECN, as Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Never.
    Off,
    /// When the peer offers it.
    #[default]
    Accept,
    /// Offered to peers, too.
    Offer,
}

/// The state of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ecn {
    /// Both ends agreed.
    on: bool,
    /// Our SYN offers it.
    offered: bool,
    /// A mark came, and no CWR since: acknowledgments carry ECE.
    echo: bool,
    /// The window was reduced: the next new data carries CWR.
    reduced: bool,
    /// What was sent before the last reduction: echoes for it ask for no other.
    point: u64,
}

const BOTH: Flags = Flags::ECE.union(Flags::CWR);

/// The flags of a SYN whose packet came with this type of service. A SYN is not sent as capable (§6.1.1): where one is,
/// somebody on the way changes that field, marks would say nothing, and the offer is none (Linux:
/// `tcp_ecn_create_request`).
pub(super) fn flags_of_syn(flags: Flags, tos: u8) -> Flags {
    if tos & ipv4::ECN_MASK == 0 { flags } else { flags - BOTH }
}

impl Ecn {
    /// Both ends agreed.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// The flags of our SYN; `again`: it was sent before. Then the offer may be what keeps it from arriving (§6.1.1.1).
    pub fn syn(&mut self, policy: Policy, again: bool) -> Flags {
        self.offered = policy == Policy::Offer && !again;
        if self.offered { BOTH } else { Flags::empty() }
    }

    /// A SYN came to which we answer: both bits offer.
    pub fn on_syn(&mut self, policy: Policy, flags: Flags) {
        self.on = policy != Policy::Off && flags.contains(BOTH);
    }

    /// The flags of our SYN-ACK.
    pub fn syn_ack(&self) -> Flags {
        if self.on { Flags::ECE } else { Flags::empty() }
    }

    /// The answer to our SYN came: ECE alone accepts; both are the reflection of a broken peer (§6.1.1).
    pub fn on_syn_ack(&mut self, flags: Flags) {
        self.on = self.offered && flags & BOTH == Flags::ECE;
    }

    /// A segment came with these flags. True when congestion control must respond: at most once for what was sent before
    /// the last response (§6.1.2). `acknowledged` and `next` are units.
    pub fn on_flags(&mut self, flags: Flags, acknowledged: u64, next: u64) -> bool {
        if !self.on {
            return false;
        }
        if flags.contains(Flags::CWR) {
            self.echo = false;
        }
        if !flags.contains(Flags::ECE) || acknowledged <= self.point {
            return false;
        }
        self.point = next;
        self.reduced = true;
        true
    }

    /// A packet came marked CE. True when that is news, to be told at once.
    pub fn on_mark(&mut self) -> bool {
        self.on && !std::mem::replace(&mut self.echo, true)
    }

    /// The flags of every acknowledgment now.
    #[inline]
    pub fn echo(&self) -> Flags {
        if self.echo { Flags::ECE } else { Flags::empty() }
    }

    /// The next new data has to carry CWR.
    #[inline]
    pub fn is_reduced(&self) -> bool {
        self.reduced
    }

    /// The window was reduced after a loss: the peer's echo is answered by that, too (§6.1.2).
    pub fn on_reduced(&mut self, next: u64) {
        if self.on {
            self.point = next;
            self.reduced = true;
        }
    }

    /// New data was sent, with the flag if it was due.
    pub fn on_sent(&mut self) {
        self.reduced = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_taken_and_reflections_are_not() {
        let mut ours = Ecn::default();
        assert_eq!(ours.syn(Policy::Accept, false), Flags::empty());
        assert_eq!(ours.syn(Policy::Offer, false), BOTH);
        ours.on_syn_ack(BOTH);
        assert!(!ours.is_on());
        ours.on_syn_ack(Flags::ECE);
        assert!(ours.is_on());
        assert_eq!(ours.syn(Policy::Offer, true), Flags::empty());
        ours.on_syn_ack(Flags::ECE);
        assert!(!ours.is_on(), "what was not offered cannot be accepted");
        for (policy, flags, on) in [
            (Policy::Off, BOTH, false),
            (Policy::Accept, BOTH, true),
            (Policy::Accept, Flags::ECE, false),
            (Policy::Offer, Flags::empty(), false),
        ] {
            let mut theirs = Ecn::default();
            theirs.on_syn(policy, flags);
            assert_eq!((theirs.is_on(), theirs.syn_ack() == Flags::ECE), (on, on));
        }
    }

    #[test]
    fn a_mark_is_echoed_until_the_sender_has_heard_of_it() {
        let mut ecn = Ecn { on: true, ..Ecn::default() };
        assert!(ecn.on_mark());
        assert!(!ecn.on_mark(), "no news");
        assert_eq!(ecn.echo(), Flags::ECE);
        ecn.on_flags(Flags::ACK | Flags::CWR, 1, 1);
        assert_eq!(ecn.echo(), Flags::empty());
        assert!(!Ecn::default().on_mark(), "not agreed on");
    }

    #[test]
    fn one_response_each_round_trip() {
        let mut ecn = Ecn { on: true, ..Ecn::default() };
        assert!(ecn.on_flags(Flags::ACK | Flags::ECE, 1_001, 9_001));
        assert!(ecn.is_reduced());
        ecn.on_sent();
        assert!(!ecn.on_flags(Flags::ACK | Flags::ECE, 9_001, 20_001), "sent before the response");
        assert!(!ecn.is_reduced());
        assert!(ecn.on_flags(Flags::ACK | Flags::ECE, 9_002, 20_001));
    }
}
