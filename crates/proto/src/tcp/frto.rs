//! F-RTO: whether a retransmission time-out was spurious (RFC 5682).
//!
//! After a time-out one segment goes again. If its acknowledgment advances the window, two new segments go in the place
//! of more old ones; when what arrives next are originals that were never sent again, nothing was lost but time. With
//! SACK the first such original decides (§3.1, in Linux's reading); without, a second advance does (§2.1). Timestamps
//! (Eifel, RFC 3522) often know sooner; this is for peers without.

/// How far the question has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frto {
    /// Not asked, or answered.
    #[default]
    Off,
    /// The timer expired; the first segment goes again (step 1).
    Retransmitted,
    /// Its acknowledgment advanced the window: so much new data goes, in bytes (step 2b).
    SendingNew(u32),
}

/// What an acknowledgment after the time-out says.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// It advances the window.
    pub advances: bool,
    /// All that was sent before the time-out is acknowledged.
    pub completes: bool,
    /// Something has arrived that was sent before the time-out, and once only.
    pub original: bool,
    /// Acknowledgments are selective.
    pub selective: bool,
    /// There is new data to send, and room in the peer's window.
    pub more: bool,
    /// Payload of a full segment, in bytes.
    pub segment: u32,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Undecided,
    /// Send new data before anything goes again.
    SendNew,
    /// Nothing was lost.
    Spurious,
    /// It was lost: recover from the time-out as always (step 2a, 3a).
    Conventional,
}

impl Frto {
    /// The timer expired, for the first time on this data or once more (§2.1 step 1: only the first counts).
    pub fn on_timeout(&mut self, first: bool) {
        *self = if first { Frto::Retransmitted } else { Frto::Off };
    }

    /// New data goes before lost data: so much, whatever the window; `None`: it does not.
    #[inline]
    pub fn new_data(self) -> Option<u32> {
        if let Frto::SendingNew(left) = self { Some(left) } else { None }
    }

    /// So much new data was sent.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64) {
        if let Frto::SendingNew(left) = self {
            *left = u64::from(*left).saturating_sub(bytes) as u32;
        }
    }

    /// An acknowledgment came.
    pub fn on_acknowledgment(&mut self, seen: &Seen) -> Verdict {
        let (next, verdict) = match *self {
            Frto::Off => (Frto::Off, Verdict::Undecided),
            _ if seen.original => (Frto::Off, Verdict::Spurious),
            _ if seen.completes => (Frto::Off, Verdict::Undecided),
            Frto::Retransmitted if seen.advances && seen.more => {
                // Up to two segments.
                (Frto::SendingNew(2 * seen.segment), Verdict::SendNew)
            }
            Frto::SendingNew(_) if seen.advances && !seen.selective => (Frto::Off, Verdict::Spurious),
            Frto::Retransmitted | Frto::SendingNew(_) => (Frto::Off, Verdict::Conventional),
        };
        *self = next;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVANCES: Seen = Seen {
        advances: true,
        completes: false,
        original: false,
        selective: false,
        more: true,
        segment: 1_000,
    };
    const DUPLICATE: Seen = Seen { advances: false, ..ADVANCES };

    #[test]
    fn two_advances_without_sack_mean_that_nothing_was_lost() {
        let mut frto = Frto::default();
        assert_eq!(frto.on_acknowledgment(&ADVANCES), Verdict::Undecided);
        frto.on_timeout(true);
        assert_eq!(frto.on_acknowledgment(&ADVANCES), Verdict::SendNew);
        assert_eq!(frto.new_data(), Some(2_000));
        frto.on_sent(1_500);
        assert_eq!(frto.new_data(), Some(500));
        assert_eq!(frto.on_acknowledgment(&ADVANCES), Verdict::Spurious);
        assert_eq!(frto, Frto::Off);
    }

    #[test]
    fn a_duplicate_at_either_step_means_loss() {
        let mut frto = Frto::Retransmitted;
        assert_eq!(frto.on_acknowledgment(&DUPLICATE), Verdict::Conventional);
        let mut frto = Frto::SendingNew(0);
        assert_eq!(frto.on_acknowledgment(&DUPLICATE), Verdict::Conventional);
        let mut frto = Frto::Retransmitted;
        assert_eq!(frto.on_acknowledgment(&Seen { more: false, ..ADVANCES }), Verdict::Conventional);
    }

    #[test]
    fn with_sack_an_original_decides_and_a_second_advance_does_not() {
        let selective = Seen { selective: true, ..ADVANCES };
        let mut frto = Frto::Retransmitted;
        assert_eq!(frto.on_acknowledgment(&Seen { original: true, ..selective }), Verdict::Spurious);
        let mut frto = Frto::SendingNew(0);
        assert_eq!(frto.on_acknowledgment(&selective), Verdict::Conventional);
        let mut frto = Frto::Retransmitted;
        assert_eq!(frto.on_acknowledgment(&Seen { completes: true, ..selective }), Verdict::Undecided);
        assert_eq!(frto, Frto::Off, "all of it was what was sent again");
    }

    #[test]
    fn a_second_time_out_asks_nothing() {
        let mut frto = Frto::SendingNew(0);
        frto.on_timeout(false);
        assert_eq!(frto, Frto::Off);
    }
}
