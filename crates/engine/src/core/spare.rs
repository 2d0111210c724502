//! Paths that only wait until no old segment can be about (TIME-WAIT, RFC 9293 §3.6). When the engine has no place for
//! one path more they make it, the longest waiting first: who opens connections and has them closed takes no place from
//! others. Linux as well keeps no more of them than it has places (`tcp_max_tw_buckets`), and refuses nobody for them.

use std::time::Duration;

use scoutline_base::{PathId, Time};
use scoutline_path::Path;
use scoutline_proto::tcp::TcpStage;

use super::Core;

/// A connection may follow one that has been in TIME-WAIT for so long: a step of Linux's clock for that, and of the
/// coarsest of timestamps (RFC 7323 §5.4).
const FOLLOWS_AFTER: Duration = Duration::from_secs(1);

impl Core {
    /// A path has begun to wait.
    pub(super) fn note_spare(&mut self, id: PathId) {
        // Nearly all have gone in the order in which they came.
        while self.spare.front().is_some_and(|&first| self.paths.get(first).is_none()) {
            self.spare.pop_front();
        }
        // A peer can have the first one wait for ever (its FIN, again and again), and those behind it go.
        if self.spare.len() > 2 * self.paths.len() {
            let paths = &self.paths;
            self.spare.retain(|&other| paths.get(other).is_some());
        }
        self.spare.push_back(id);
    }

    /// There is a place for one path more, if any path can make it.
    pub(super) fn make_place(&mut self) {
        while self.paths.budget().paths() >= self.settings.max_paths
            && let Some(id) = self.spare.pop_front()
        {
            self.destroy(id);
        }
    }

    /// A connection may follow one of its flow that has been in TIME-WAIT for a second, if an old segment of that one
    /// would be known: by its timestamp (RFC 6191 §2; Linux has this as `tcp_tw_reuse` 1), or since the two are within
    /// the machine, where none can be on its way any more (`tcp_tw_reuse` 2). So a proxy does not run out of ports when
    /// it opens thousands of connections a second to one server and closes them first.
    pub(super) fn may_follow(&self, net: usize, before: PathId, now: Time) -> bool {
        self.waits(before, now).is_some_and(|(time, has_timestamps)| {
            time >= FOLLOWS_AFTER && (has_timestamps || self.nets[net].interface().is_own_link())
        })
    }

    /// The same for a program that has chosen both ends: where timestamps tell old segments, at once (Linux's
    /// `tcp_twsk_unique` without `twp`).
    pub(super) fn may_follow_as_bound(&self, net: usize, before: PathId, now: Time) -> bool {
        self.waits(before, now).is_some_and(|(_, has_timestamps)| has_timestamps)
            || self.may_follow(net, before, now)
    }

    /// For how long it has been in TIME-WAIT, and whether its segments have timestamps.
    fn waits(&self, path: PathId, now: Time) -> Option<(Duration, bool)> {
        let connection = self.paths.get(path)?.stage::<TcpStage>()?.connection()?;
        Some((connection.in_time_wait_for(now)?, connection.has_timestamps()))
    }

    /// Ends TIME-WAIT for a connection that is made in this turn.
    pub(super) fn give_way(&mut self, before: PathId) {
        if let Some(stage) = self.paths.get(before).and_then(Path::stage::<TcpStage>) {
            stage.precede();
        }
        self.destroy(before);
    }
}
