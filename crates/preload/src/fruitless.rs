//! Programs that ask again and again instead of waiting. One that does so on the engine's core, while Linux has its turn
//! there, is in the way of the engine, which would bring what it asks for; no sentinel runs beside it, and nobody else knows
//! that it has nothing to do. So it says that it has not, in the engine's word, and rings: the engine takes the core
//! whenever it has work from then on, to the end of the turn. Whoever finds something has something to do.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use scoutline_abi::Region;
use scoutline_abi::layout::engine_state;
use scoutline_ring::EngineBell;

use crate::{attach, engines, real, serve, slot, wait};

/// A thread that only asks has found nothing so many times in a row.
const ROW: u32 = 8;
/// Who takes longer between two has done something else.
const GAP_NS: u64 = 2_000;

/// Of a thread that was interrupted after it had said so: most likely by the engine.
const MORE: u32 = 2;

thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last { at: 0, row: 0, has_said: false }) };
}

/// When nothing was found last.
#[derive(Clone, Copy)]
struct Last {
    at: u64,
    /// How often in a row.
    row: u32,
    /// It has been said in this row.
    has_said: bool,
}

/// A call has found something.
#[inline]
pub(crate) fn found() {
    LAST.set(Last { row: 0, ..LAST.get() });
    slot::ring_if_awaited();
}

/// A call that does not wait has found nothing.
#[inline]
pub(crate) fn found_nothing(region: &Region) {
    slot::ring_if_awaited();
    for (engine, word) in engines::all(region).iter().enumerate() {
        let bell = EngineBell(&word.state);
        if bell.is(engine_state::AWAY)
            && word.takes_back.load(Ordering::Relaxed) != 0
            && wait::is_on_core_of(word)
            && !serve::is_raised()
            && is_in_a_row(real::now_ns())
            && bell.claim(engine_state::AWAY, engine_state::SLEEPING)
        {
            LAST.set(Last { has_said: true, ..LAST.get() });
            attach::ring(engine);
        }
    }
}

/// Whether nothing has been found often enough by now.
fn is_in_a_row(now: u64) -> bool {
    let Last { at, row, has_said } = LAST.get();
    let last = if now.wrapping_sub(at) < GAP_NS {
        Last { at: now, row: row.saturating_add(1), has_said }
    } else {
        Last { at: now, row: if has_said { ROW - MORE } else { 0 }, has_said: false }
    };
    LAST.set(last);
    last.row >= ROW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_does_nothing_else_has_nothing_to_do() {
        let mut now = 1_000_000;
        let mut in_a_row = |gaps: &[u64]| {
            gaps.iter()
                .map(|gap| {
                    now += gap;
                    is_in_a_row(now)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            in_a_row(&[300; 10]),
            [false, false, false, false, false, false, false, false, true, true]
        );
        assert_eq!(in_a_row(&[GAP_NS, 300, 300]), [false; 3]);
        in_a_row(&[300; 10]);
        LAST.set(Last { has_said: true, ..LAST.get() });
        assert_eq!(in_a_row(&[30_000, 300, 300]), [false, false, true]);
        assert_eq!(in_a_row(&[30_000, 300, 300]), [false; 3]);
        assert!(in_a_row(&[5_000; 100]).iter().all(|is| !is));
        for _ in 0..20 {
            assert_eq!(in_a_row(&[300; 7]), [false; 7]);
            found();
        }
    }
}
