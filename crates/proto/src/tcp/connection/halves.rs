//! What each direction of a connection keeps (RFC 9293 §3.3.1): the sending half counts units, the receiving one stream
//! positions (see [`Connection`](super::Connection)).

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;

use scoutline_base::Time;

use crate::tcp::late::Late;
use crate::tcp::reassembly::Ranges;
use crate::tcp::sequence::SeqNumber;

/// The sending half: units (0 is the SYN).
#[derive(Clone, Debug)]
pub(super) struct Send {
    pub(super) iss: SeqNumber,
    /// RFC 9293 SND.UNA
    pub(super) una: u64,
    /// RFC 9293 SND.NXT; goes back after a time-out.
    pub(super) next: u64,
    /// The highest that `next` ever was.
    pub(super) max: u64,
    /// RFC 9293 SND.WND, scaled.
    pub(super) window: u32,
    /// RFC 5961 §5 MAX.SND.WND
    pub(super) max_window: u32,
    /// RFC 9293 SND.WL1
    pub(super) wl1: SeqNumber,
    /// RFC 9293 SND.WL2
    pub(super) wl2: u64,
    /// Stream position: what the program has written.
    pub(super) written: u64,
    /// Size of the send ring, with what lies in files beside it.
    pub(super) buffer: u32,
    /// Of the ring alone; 0: not told.
    pub(super) ring: u32,
    /// From this unit on the program holds back what fills no segment (TCP_CORK, MSG_MORE); `u64::MAX`: nothing.
    pub(super) held: u64,
    /// Calls say so (MSG_MORE), not the socket.
    pub(super) held_by_call: bool,
    /// The last call says so, whoever else does.
    pub(super) held_unfinished: bool,
    /// What ends here was written with the word that more follows.
    pub(super) unfinished: u64,
    /// End of the last segment sent that was less than full (Minshall's SND.SML).
    pub(super) small_end: u64,
    /// Data up to here was sent while the congestion window was the limit.
    pub(super) limited_to: u64,
    /// The most that was outstanding since what ends here (its low half) was sent: how much of the window is in use.
    pub(super) most_out: u32,
    pub(super) most_out_to: u32,
    /// When data was last sent.
    pub(super) last: Time,
    /// The segment being timed (Karn).
    pub(super) timed: Option<Timed>,
    /// The end of a tail loss probe that is under way (RFC 8985 §7.1 TLP.end_seq), and whether it was sent before
    /// (TLP.is_retrans).
    pub(super) tail_probe: Option<NonZeroU64>,
    pub(super) tail_probe_again: bool,
}

/// A segment whose round trip is measured. No segment ends at unit 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) end: NonZeroU64,
    pub(super) at: Time,
}

/// The receiving half: stream positions.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub(super) irs: SeqNumber,
    /// The stream is complete to here.
    pub(super) next: u64,
    /// The right edge of the window as last told to the peer; never moves left (RFC 9293 §3.8.6).
    pub(super) edge: u64,
    /// What the program has taken.
    pub(super) consumed: u64,
    /// Size of the receive ring.
    pub(super) buffer: u32,
    /// `next` in our last acknowledgment (RFC 7323 §4.3 Last.ACK.sent).
    pub(super) acknowledged: u64,
    /// End of a FIN that came ahead of data: its position, and one.
    pub(super) fin_end: Option<NonZeroU64>,
    /// What came otherwise than in order, while it has to be told of or something may be late by it. Most connections never
    /// see any.
    pub(super) unordered: Option<Box<Unordered>>,
    /// RFC 7323 TS.Recent and when it was taken.
    pub(super) recent: u32,
    pub(super) recent_at: Time,
    /// The echo of the last segment (RFC 7323 TSecr).
    pub(super) echo: u32,
    /// Bytes since our last acknowledgment.
    pub(super) unacknowledged: u32,
    /// The peer's full segment as seen, in bytes of payload.
    pub(super) segment: u16,
    /// Acknowledgments to send without delay, at the start.
    pub(super) quick: u8,
    /// Duplicate acknowledgments owed beyond one.
    pub(super) duplicates: u8,
}

/// Reports of duplicates that may wait: more would be acknowledgments for their own sake.
const MOST_DUPLICATES: usize = 8;

/// What came ahead of data that is missing, and what came twice.
#[derive(Clone, Debug, Default)]
pub(super) struct Unordered {
    /// Data beyond [`Receive::next`] that is already in the ring, and the place of a FIN that came ahead of some.
    pub(super) ranges: Ranges,
    /// Start of the range that grew last: the first SACK block (RFC 2018 §4).
    pub(super) latest: u64,
    /// A position in each range that has grown since it was last told, in the order in which they grew.
    pub(super) untold: Vec<u64>,
    /// What came a second time, oldest first: each to be reported once (RFC 2883), in an acknowledgment of its own.
    pub(super) duplicates: VecDeque<Range<u64>>,
    /// Where the gap begins of which acknowledgments have told, how many did so at once, and what the next one merges.
    pub(super) told_of: u64,
    pub(super) told_at_once: u8,
    pub(super) merged: u8,
    /// What came last has an acknowledgment of its own, whatever else came with it.
    pub(super) tells: bool,
    /// What may be late, since a gap was filled.
    pub(super) late: Option<Late>,
}

impl Unordered {
    /// There is nothing to tell.
    pub(super) fn is_told(&self) -> bool {
        self.ranges.is_empty() && self.duplicates.is_empty()
    }

    /// A gap was filled, and TS.Recent is no longer what it was.
    pub(super) fn note_filled(&mut self, recent: u32, now: Time) {
        match &mut self.late {
            Some(late) => late.on_filled(recent, now),
            None => self.late = Some(Late::new(recent, now)),
        }
    }

    /// This came a second time. What follows another is told with it: who undoes what it did for a loss that was none
    /// counts all of them (RFC 3708), so none may be left out because it came in one burst with another.
    pub(super) fn note_duplicate(&mut self, came: Range<u64>) {
        let has_room = self.duplicates.len() < MOST_DUPLICATES;
        match self.duplicates.back_mut() {
            Some(last) if last.end == came.start => last.end = came.end,
            _ if has_room => self.duplicates.push_back(came),
            _ => {}
        }
    }

    /// What of this is held already came a second time (RFC 2883 §4.3).
    pub(super) fn note_overlaps(&mut self, came: Range<u64>) {
        let first = self.ranges.as_slice().partition_point(|range| range.end <= came.start);
        for at in first..self.ranges.as_slice().len() {
            let range = &self.ranges.as_slice()[at];
            if range.start >= came.end {
                break;
            }
            self.note_duplicate(range.start.max(came.start)..range.end.min(came.end));
        }
    }
}

impl Receive {
    /// Position of a FIN that came ahead of data.
    #[inline]
    pub(super) fn fin_at(&self) -> Option<u64> {
        self.fin_end.map(|end| end.get() - 1)
    }

    pub(super) fn set_fin_at(&mut self, position: Option<u64>) {
        self.fin_end = position.and_then(|position| NonZeroU64::new(position + 1));
    }

    /// A gap was filled, not long ago.
    pub(super) fn late(&self) -> Option<&Late> {
        self.unordered.as_ref()?.late.as_ref()
    }

    /// Data is missing before some that has come.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        self.unordered.as_ref().is_some_and(|unordered| !unordered.ranges.is_empty())
    }

    /// These positions came a second time.
    pub(super) fn note_duplicate(&mut self, start: u64, end: u64) {
        self.unordered.get_or_insert_default().note_duplicate(start..end);
    }
}
