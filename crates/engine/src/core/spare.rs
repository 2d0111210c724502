//! Paths that only wait until no old segment can be about (TIME-WAIT, RFC 9293 §3.6). When the engine has no place for
//! one path more they make it, the longest waiting first: who opens connections and has them closed takes no place from
//! others. Linux as well keeps no more of them than it has places (`tcp_max_tw_buckets`), and refuses nobody for them.

use scoutline_base::PathId;

use super::Core;

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
}
