//! Paths that stand elsewhere than their class: their programs have asked for another place, or what their class promises is
//! given away. Where classes alone would say that there is nothing to decide (devices, doorbells), they count too.

use std::collections::BTreeMap;

use scoutline_base::PathId;
use scoutline_sched::Level;

use super::Core;

/// How many there are at each level. Background has a count of its own, see [`super::background`].
#[derive(Default)]
pub(super) struct Apart(BTreeMap<Level, u32>);

impl Apart {
    /// There are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The level of the most important one.
    pub(super) fn highest(&self) -> Level {
        self.0.last_key_value().map_or(Level::Idle, |(&level, _)| level)
    }

    fn add(&mut self, level: Level) {
        *self.0.entry(level).or_default() += 1;
    }

    fn remove(&mut self, level: Level) {
        if let Some(count) = self.0.get_mut(&level) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&level);
            }
        }
    }
}

impl Core {
    /// The level of the most important path that there can be now.
    pub(crate) fn highest_level(&self) -> Level {
        self.policy.highest_level().max(self.apart.highest())
    }

    /// A path of a program has been placed: looks whether that is where its class stands.
    pub(super) fn note_apart(&mut self, id: PathId) {
        let extra = &self.extras[id.index];
        let Some(path) = self.paths.get(id).filter(|_| extra.program.is_some()) else { return };
        let class = self.policy.class(u32::from(path.class()));
        let of_class = [Level::Idle, class.settings.level, class.settings.listen_level];
        let apart = (!of_class.contains(&extra.level)).then_some(extra.level);
        self.count_apart(extra.apart, apart);
        self.extras[id.index].apart = apart;
    }

    /// A path that stood apart so, if it did, does so now.
    pub(super) fn count_apart(&mut self, before: Option<Level>, after: Option<Level>) {
        if before == after {
            return;
        }
        let was_empty = self.apart.is_empty();
        if let Some(level) = after {
            self.apart.add(level);
        }
        if let Some(level) = before {
            self.apart.remove(level);
        }
        if was_empty != self.apart.is_empty() {
            self.check_direct();
        }
    }
}
