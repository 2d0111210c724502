//! Finding the end of a head in pieces, in place where one piece has all of it.

use crate::request::Opaque;

/// Collects one head after another.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadScanner {
    /// The head's bytes of earlier pieces; empty while one piece has had all.
    partial: Vec<u8>,
    /// Where the line that is being read begins, from the start of the head.
    line: usize,
    has_bare_line_feed: bool,
    /// The head in `partial` was given out.
    is_given: bool,
}

/// A whole head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    /// From the first byte to the end of the empty line.
    pub(super) bytes: &'a [u8],
    /// Some line ended without carriage return.
    pub(super) has_bare_line_feed: bool,
}

impl HeadScanner {
    /// Forgets a head that was given out. To be called before anything else.
    pub(super) fn release(&mut self) {
        if self.is_given {
            *self = HeadScanner::default();
        }
    }

    /// True when no byte of a head was seen yet.
    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Takes bytes off `piece` up to the end of the head, or all. `judge` sees the first line, without its end, as
    /// soon as it is there: what is not HTTP must not wait for an empty line.
    pub(super) fn scan<'a, 'p: 'a>(
        &'a mut self,
        piece: &mut &'p [u8],
        limit: usize,
        judge: impl Fn(&[u8]) -> Result<(), Opaque>,
    ) -> Result<Option<Head<'a>>, Opaque> {
        let known = self.partial.len();
        let whole = *piece;
        let window = &whole[..whole.len().min(limit.saturating_sub(known))];
        for at in memchr::memchr_iter(b'\n', window) {
            let before = if at > 0 { Some(window[at - 1]) } else { self.partial.last().copied() };
            let line_len = known + at - self.line;
            let returns = usize::from(line_len > 0 && before == Some(b'\r'));
            self.has_bare_line_feed |= returns == 0;
            if self.line == 0 {
                let rest = &window[..at];
                if known == 0 {
                    judge(&rest[..at - returns])?;
                } else {
                    self.keep(rest, limit);
                    let judged = judge(&self.partial[..line_len - returns]);
                    self.partial.truncate(known);
                    judged?;
                }
            } else if line_len == returns {
                let (front, behind) = whole.split_at(at + 1);
                *piece = behind;
                return Ok(Some(self.give(front, limit)));
            }
            self.line = known + at + 1;
        }
        if known + window.len() >= limit {
            return Err(Opaque::HeadTooLong);
        }
        self.keep(window, limit);
        *piece = &[];
        Ok(None)
    }

    fn give<'a>(&'a mut self, front: &'a [u8], limit: usize) -> Head<'a> {
        let has_bare_line_feed = self.has_bare_line_feed;
        self.is_given = true;
        let bytes = if self.partial.is_empty() {
            front
        } else {
            self.keep(front, limit);
            &self.partial
        };
        Head { bytes, has_bare_line_feed }
    }

    /// Appends without ever holding more than `limit`, doubling on the way there.
    fn keep(&mut self, bytes: &[u8], limit: usize) {
        let (len, capacity) = (self.partial.len(), self.partial.capacity());
        let needed = len + bytes.len();
        if needed > capacity {
            let wanted = (2 * capacity).clamp(needed, limit.max(needed));
            self.partial.reserve_exact(wanted - len);
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.partial.capacity()
    }
}
