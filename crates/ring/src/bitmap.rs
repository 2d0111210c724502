//! A two-level bitmap in shared memory: which of many things need attention.
//!
//! Fields and who may write them: any side sets bits, any side clears them; every access is a single atomic
//! read-modify-write, so bits are never lost. `summary` has one bit per word of `words`.
//! Setting: the word first (Release), then its summary bit. Taking: the summary word first (swap, Acquire), then
//! the words it names. A setter that finds its word already non-zero still sets the summary bit, so a bit
//! set between the taker's two steps is found either by this taker or by the next.
//! Marking twice is harmless, and nothing can overflow: that is why it is a bitmap and no queue.

use crate::sync::{AtomicU64, Ordering};

/// A view of a bitmap of `words.len() * 64` bits.
#[derive(Clone, Copy)]
pub struct Bitmap<'a> {
    summary: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

/// Summary words that a bitmap of `bits` needs.
pub const fn summary_words(bits: usize) -> usize {
    bits.div_ceil(64).div_ceil(64)
}

/// Words that a bitmap of `bits` needs, the summary not counted.
pub const fn bitmap_words(bits: usize) -> usize {
    bits.div_ceil(64)
}

impl<'a> Bitmap<'a> {
    /// A view on memory that starts as zeros.
    ///
    /// # Panics
    /// When the two slices do not fit each other.
    pub fn new(summary: &'a [AtomicU64], words: &'a [AtomicU64]) -> Bitmap<'a> {
        assert!(summary.len() == words.len().div_ceil(64), "summary and words do not fit");
        Bitmap { summary, words }
    }

    /// Marks `index`. Indices out of range are ignored (the caller may be hostile).
    #[inline]
    pub fn set(&self, index: usize) {
        let word = index / 64;
        if let Some(cell) = self.words.get(word) {
            cell.fetch_or(1 << (index % 64), Ordering::SeqCst);
            self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    /// Clears `index` and tells whether it was set. Its summary bit may stay: it only costs a look.
    #[inline]
    pub fn clear(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        self.words.get(index / 64).is_some_and(|cell| cell.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
    }

    /// True when nothing is marked, as far as one look at the summary tells.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Takes all marks, calling `found` with each index.
    #[inline]
    pub fn drain(&self, mut found: impl FnMut(usize)) {
        for (s, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Acquire) == 0 {
                continue;
            }
            let mut words = summary.swap(0, Ordering::SeqCst);
            while words != 0 {
                let w = s * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let Some(cell) = self.words.get(w) else { continue };
                let mut bits = cell.swap(0, Ordering::SeqCst);
                while bits != 0 {
                    found(w * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Looks at all marks without taking them, starting at `from` and going round. Stops when `visit` answers
    /// false. Summary bits of words found empty are cleared, with a second look afterwards.
    #[inline]
    pub fn visit(&self, from: usize, mut visit: impl FnMut(usize) -> bool) {
        let count = self.words.len();
        let start = (from / 64) % count;
        let low = u64::MAX << (from % 64);
        // The start word is seen twice, its low bits last, so that the order goes round at bit precision.
        let goes_on = self.visit_word(start, low, &mut visit)
            && self.visit_words(start + 1, count, &mut visit)
            && self.visit_words(0, start, &mut visit);
        if goes_on {
            self.visit_word(start, !low, &mut visit);
        }
    }

    /// Looks at the words `from .. to` that the summary names.
    #[inline]
    fn visit_words(&self, from: usize, to: usize, visit: &mut impl FnMut(usize) -> bool) -> bool {
        let mut w = from;
        while w < to {
            let named = self.summary[w / 64].load(Ordering::Acquire) >> (w % 64);
            if named == 0 {
                w = (w / 64 + 1) * 64;
                continue;
            }
            w += named.trailing_zeros() as usize;
            if w >= to {
                break;
            }
            if !self.visit_word(w, u64::MAX, visit) {
                return false;
            }
            w += 1;
        }
        true
    }

    /// Looks at the marks of one word within `mask`.
    #[inline]
    fn visit_word(&self, w: usize, mask: u64, visit: &mut impl FnMut(usize) -> bool) -> bool {
        let named = 1u64 << (w % 64);
        let (summary, cell) = (&self.summary[w / 64], &self.words[w]);
        if summary.load(Ordering::Acquire) & named == 0 {
            return true;
        }
        let all = cell.load(Ordering::SeqCst);
        if all == 0 {
            summary.fetch_and(!named, Ordering::SeqCst);
            if cell.load(Ordering::SeqCst) != 0 {
                summary.fetch_or(named, Ordering::SeqCst);
            }
            return true;
        }
        let mut bits = all & mask;
        while bits != 0 {
            if !visit(w * 64 + bits.trailing_zeros() as usize) {
                return false;
            }
            bits &= bits - 1;
        }
        true
    }
}
