//! Rests of an engine without a core of its own. Where many paths have something to do, it sleeps for a moment whatever comes
//! meanwhile, as network cards moderate their interrupts: else it sleeps and is woken for each request or two, which costs a
//! switch here, a wake-up of another core there, and the core that programs would have had.

use std::time::Duration;

use scoutline_base::{PathId, Time};

/// So many turns of paths in a rest's time, each of another path than the one before, make it worth its timer: what one or two
/// connections ask waits for nobody.
const LEAST: u64 = 8;

/// How long a rest is: with 100 µs connections that clients open one after the other took a tenth longer.
pub(crate) const REST: Duration = Duration::from_micros(50);

/// What the engine has done lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// Counted from here.
    since: Time,
    turns: u64,
    last: Option<PathId>,
}

impl Default for Rest {
    fn default() -> Rest {
        Rest { since: Time::ZERO, turns: 0, last: None }
    }
}

impl Rest {
    /// A path has had a turn.
    #[inline]
    pub(crate) fn on_turn(&mut self, path: PathId) {
        if self.last != Some(path) {
            self.turns += 1;
            self.last = Some(path);
        }
    }

    /// How long to rest, nothing being left to do.
    #[inline]
    pub(crate) fn due(&mut self, now: Time) -> Option<Duration> {
        let counted = now.since(self.since);
        if counted < REST {
            return None;
        }
        let is_dense = u128::from(self.turns) * REST.as_nanos() >= u128::from(LEAST) * counted.as_nanos();
        (self.since, self.turns) = (now, 0);
        is_dense.then_some(REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_millis(1) + Duration::from_micros(us)
    }

    /// So many turns of paths with these numbers, one after the other.
    fn turns(rest: &mut Rest, count: u32, paths: u32) {
        (0..count).for_each(|turn| rest.on_turn(PathId { index: turn % paths, generation: 1 }));
    }

    #[test]
    fn many_paths_are_made_to_wait_and_few_are_not() {
        let mut rest = Rest::default();
        assert_eq!(rest.due(at(0)), None, "it has just begun");
        turns(&mut rest, 100, 8);
        assert_eq!(rest.due(at(40)), None, "too soon to say");
        assert_eq!(rest.due(at(60)), Some(REST));
        assert_eq!(rest.due(at(120)), None, "nothing came in it");
        turns(&mut rest, 8, 8);
        assert_eq!(rest.due(at(220)), None, "half as many");
        turns(&mut rest, 16, 8);
        assert_eq!(rest.due(at(320)), Some(REST));
    }

    #[test]
    fn one_connection_never_waits() {
        let mut rest = Rest::default();
        for us in (0..1000).step_by(50) {
            turns(&mut rest, 100, 1);
            assert_eq!(rest.due(at(us)), None);
        }
    }
}
