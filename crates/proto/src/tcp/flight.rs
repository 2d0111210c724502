//! What is outstanding, in pieces that were sent at one time: the scoreboard of a sender with SACK (RFC 6675 §4) and
//! the send times that RACK needs (RFC 8985 §6.1).
//!
//! ```text
//!  una                                              next
//!   │▒▒▒▒▒│lost│▒▒▒▒▒▒│  sacked: no piece  │▒▒▒▒│▒▒▒▒▒│
//!     at 7 ms          at 9 ms              at 9   at 12 ms
//! ```
//! A piece is what one turn of the engine has sent: many segments, of which the earlier count as sent earlier, as their
//! sequence numbers tell (RFC 8985 `RACK_sent_after`). What is selectively acknowledged has no piece, so RFC 6675's
//! `pipe` is the sum over the pieces that are not lost. Positions are sequence units.

use std::collections::VecDeque;
use std::ops::Range;

use scoutline_base::Time;

/// More pieces than this are not told apart: what is sent then joins the last one, and counts as sent with it. A window
/// of 6 MB in segments of 1,448 bytes that were each sent alone has about half as many.
const MAX_PIECES: usize = 8192;
/// So many pieces may be as short as they like; more have to hold so many bytes each, on the average.
const FEW_PIECES: usize = 256;
const LEAST_AVERAGE: u64 = 512;
/// An idle connection keeps no more room than this for pieces.
const IDLE_PIECES: usize = 4;

/// Units that were sent at one time, and are neither acknowledged nor selectively acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first unit.
    pub start: u64,
    /// After the last unit.
    pub end: u64,
    /// When it was sent last.
    pub at: Time,
    /// It was sent more than once.
    pub again: bool,
    /// It is taken for lost, and was not sent again since.
    pub lost: bool,
}

impl Piece {
    /// RFC 8985 `RACK_sent_after`: sent after what was sent at `at` and ends at `end`.
    #[inline]
    pub fn is_sent_after(&self, at: Time, end: u64) -> bool {
        (self.at, self.end) > (at, end)
    }

    /// How many: no more than a send ring has, and the SYN and the FIN.
    fn len(&self) -> u32 {
        (self.end - self.start) as u32
    }
}

/// What one acknowledgment said has arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    /// How many units.
    pub units: u64,
    /// Of those that were sent once only, what was sent last.
    pub newest: Option<Piece>,
    /// Of those that were sent more than once, what was sent last.
    pub newest_again: Option<Piece>,
    /// Of those that were sent once only, what comes first.
    pub first: Option<Range64>,
}

/// Start and end.
type Range64 = (u64, u64);

impl Delivered {
    fn add(&mut self, piece: Piece) {
        self.units += u64::from(piece.len());
        let newest = if piece.again { &mut self.newest_again } else { &mut self.newest };
        if newest.is_none_or(|newest| piece.is_sent_after(newest.at, newest.end)) {
            *newest = Some(piece);
        }
        if !piece.again && self.first.is_none_or(|(start, _)| piece.start < start) {
            self.first = Some((piece.start, piece.end));
        }
    }
}

/// The pieces, in the order of the stream.
#[derive(Clone, Debug, Default)]
pub struct Flight {
    pieces: VecDeque<Piece>,
    /// Units in all pieces.
    total: u32,
    /// Units in lost pieces.
    lost: u32,
}

impl Flight {
    /// RFC 6675 `pipe`: units that are in the network.
    #[inline]
    pub fn in_network(&self) -> u64 {
        u64::from(self.total - self.lost)
    }

    /// Units that are lost and were not sent again.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost.into()
    }

    /// Something outstanding was sent more than once.
    pub fn has_again(&self) -> bool {
        self.pieces.iter().any(|piece| piece.again)
    }

    /// Units that were sent more than once, and are not lost again.
    pub fn again(&self) -> u64 {
        self.pieces
            .iter()
            .filter(|piece| piece.again && !piece.lost)
            .map(|piece| u64::from(piece.len()))
            .sum()
    }

    /// The last of the stream.
    pub fn last(&self) -> Option<&Piece> {
        self.pieces.back()
    }

    /// These units, which follow all others, were sent at `now` for the first time.
    #[inline]
    pub fn on_sent(&mut self, range: Range<u64>, now: Time) {
        self.total += (range.end - range.start) as u32;
        let is_full = self.is_full();
        if let Some(last) = self.pieces.back_mut()
            && last.end == range.start
            && !last.lost
            && (is_full || (last.at == now && !last.again))
        {
            last.end = range.end;
            last.at = now;
            return;
        }
        if self.pieces.capacity() == 0 {
            // Most connections never have more than one at a time; the next is room for four.
            self.pieces.reserve_exact(1);
        }
        let piece = Piece { start: range.start, end: range.end, at: now, again: false, lost: false };
        self.pieces.push_back(piece);
    }

    /// Who writes single bytes must not have more of our memory than of his ring.
    #[inline]
    fn is_full(&self) -> bool {
        let count = self.pieces.len();
        count >= MAX_PIECES || count >= FEW_PIECES && u64::from(self.total) < count as u64 * LEAST_AVERAGE
    }

    /// All below `una` is acknowledged, and nothing is lost or was selectively acknowledged: when the last of it was
    /// sent, and its end.
    #[inline]
    pub fn acknowledge(&mut self, una: u64) -> Option<(Time, u64)> {
        let mut newest = None;
        while let Some(front) = self.pieces.front_mut() {
            if front.start >= una {
                break;
            }
            let end = front.end.min(una);
            self.total -= (end - front.start) as u32;
            newest = Some((front.at, end));
            if front.end > una {
                front.start = una;
                break;
            }
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() && self.pieces.capacity() > 4 * IDLE_PIECES {
            self.pieces = VecDeque::with_capacity(IDLE_PIECES);
        }
        newest
    }

    /// These units have arrived: they are no longer outstanding.
    pub fn deliver(&mut self, range: Range<u64>, delivered: &mut Delivered) {
        let (first, after) = self.cut(range);
        for piece in self.pieces.drain(first..after) {
            self.total -= piece.len();
            self.lost -= if piece.lost { piece.len() } else { 0 };
            delivered.add(piece);
        }
    }

    /// These units were sent again at `now`.
    pub fn on_sent_again(&mut self, range: Range<u64>, now: Time) {
        let (first, after) = self.cut(range);
        let mut merged: Option<Piece> = None;
        let mut kept = first;
        for at in first..after {
            let piece = self.pieces[at];
            self.lost -= if piece.lost { piece.len() } else { 0 };
            let renewed = Piece { at: now, again: true, lost: false, ..piece };
            match &mut merged {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => {
                    if let Some(done) = merged.replace(renewed) {
                        self.pieces[kept] = done;
                        kept += 1;
                    }
                }
            }
        }
        if let Some(done) = merged {
            self.pieces[kept] = done;
            self.pieces.drain(kept + 1..after);
        }
    }

    /// Looks at each piece that is not lost, in order, and takes it for lost when `is_lost` says so; as long as it says
    /// anything. True when any was.
    pub fn lose_where(&mut self, mut is_lost: impl FnMut(&Piece) -> Option<bool>) -> bool {
        let mut found = false;
        for piece in self.pieces.iter_mut().filter(|piece| !piece.lost) {
            match is_lost(piece) {
                Some(true) => {
                    piece.lost = true;
                    self.lost += piece.len();
                    found = true;
                }
                Some(false) => {}
                None => break,
            }
        }
        found
    }

    /// All of these units are outstanding and lost.
    pub fn is_lost(&self, range: &Range<u64>) -> bool {
        let first = self.pieces.partition_point(|piece| piece.end <= range.start);
        let lost = self.pieces.range(first..).take_while(|piece| piece.lost && piece.start < range.end);
        let covered: u64 = lost.map(|piece| piece.end.min(range.end) - piece.start.max(range.start)).sum();
        covered == range.end - range.start
    }

    /// These units are lost.
    pub fn lose(&mut self, range: Range<u64>) {
        let (first, after) = self.cut(range);
        for piece in self.pieces.range_mut(first..after).filter(|piece| !piece.lost) {
            piece.lost = true;
            self.lost += piece.len();
        }
    }

    /// Nothing was lost after all.
    pub fn find_all(&mut self) {
        for piece in &mut self.pieces {
            piece.lost = false;
        }
        self.lost = 0;
    }

    /// The first lost units, at most `limit`.
    pub fn next_lost(&self, limit: u64) -> Option<Range<u64>> {
        if self.lost == 0 {
            return None;
        }
        let mut pieces = self.pieces.iter().skip_while(|piece| !piece.lost);
        let first = pieces.next()?;
        let mut end = first.end;
        for piece in pieces.take_while(|piece| piece.lost) {
            if piece.start != end || end - first.start >= limit {
                break;
            }
            end = piece.end;
        }
        Some(first.start..end.min(first.start + limit))
    }

    /// Everything from `una` to `end` is outstanding, and lost: what was selectively acknowledged was given up.
    pub fn lose_everything(&mut self, una: u64, end: u64) {
        self.pieces.clear();
        if una < end {
            // Sent before any time that counts.
            self.pieces.push_back(Piece { start: una, end, at: Time::ZERO, again: true, lost: true });
        }
        self.total = (end - una) as u32;
        self.lost = self.total;
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Flight::default();
    }

    /// Cuts pieces so that none reaches over an end of `range`: the indices of those within.
    fn cut(&mut self, range: Range<u64>) -> (usize, usize) {
        let first = self.pieces.partition_point(|piece| piece.end <= range.start);
        let first = if self.split(first, range.start) { first + 1 } else { first };
        let after = self.pieces.partition_point(|piece| piece.end <= range.end);
        self.split(after, range.end);
        let after = self.pieces.partition_point(|piece| piece.start < range.end);
        (first, after.max(first))
    }

    /// Cuts the piece at `index` in two at `unit`, if that lies within it.
    fn split(&mut self, index: usize, unit: u64) -> bool {
        let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.start < unit && unit < piece.end)
        else {
            return false;
        };
        let rest = Piece { start: unit, ..*piece };
        piece.end = unit;
        self.pieces.insert(index + 1, rest);
        true
    }
}

#[cfg(test)]
mod tests;
