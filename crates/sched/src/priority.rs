//! Fixed priority with round robin inside a level, the idle level below all, and Linux as an entry (Scout §3.3,
//! SILK §3.2).
//!
//! The highest level with a ready entry is served. Inside a level each ready path gets one quantum in turn.
//!
//! Linux has a level too. There it shares with the paths by *time*, not by turns: with a thousand ready paths a
//! turn would come too seldom, and with one it would come too often. When the paths of its level have together
//! been charged an interval since Linux last ran, Linux is next; when none of them is ready, it runs at once. So
//! the backlog of less important work stays in path queues, where priority applies, and not in Linux's run queue.

use std::time::Duration;

use scoutline_base::Time;

use crate::levels::{self, Levels};
use crate::{Charged, Decision, Entry, Level, Parameters, Policy, Quantum};

/// The policy. Work for each call: a few cache lines, whatever the number of paths.
pub struct FixedPriority {
    configuration: Configuration,
    paths: Levels,
    linux_ready: bool,
    /// What the paths of Linux's level have been charged since Linux last ran.
    since_linux: Duration,
    charged: Charged,
    charged_at: [Duration; levels::COUNT],
}

/// The parameters of [`FixedPriority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What a path of a priority gets at a time.
    pub path_quantum: Quantum,
    /// What a path of the idle level gets at a time: less, since nothing preempts it when better work arrives.
    pub idle_quantum: Quantum,
    /// How long Linux gets the CPU at a time (`packets` means nothing to it).
    pub linux_quantum: Quantum,
    /// Linux's level.
    pub linux_level: Level,
    /// How much time the paths of Linux's level may take before Linux, if ready, is next there.
    pub linux_interval: Duration,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            path_quantum: Quantum::PATH,
            idle_quantum: Quantum { packets: 16, time: Duration::from_micros(25) },
            linux_quantum: Quantum::LINUX,
            linux_level: Level::Priority(0),
            linux_interval: Duration::from_micros(50),
        }
    }
}

impl Default for FixedPriority {
    fn default() -> Self {
        FixedPriority::new(Configuration::default())
    }
}

impl FixedPriority {
    /// A policy without entries.
    pub fn new(configuration: Configuration) -> FixedPriority {
        FixedPriority {
            configuration,
            paths: Levels::new(),
            linux_ready: false,
            since_linux: Duration::ZERO,
            charged: Charged::default(),
            charged_at: [Duration::ZERO; levels::COUNT],
        }
    }

    /// Its parameters.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Changes the parameters. Entries stay where they are.
    pub fn configure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
    }

    /// Time charged to entries of this level, Linux included in its own. Time of paths that were never enqueued
    /// (early drops) is in [`Policy::charged`] only.
    pub fn charged_at(&self, level: Level) -> Duration {
        self.charged_at[levels::index(level)]
    }

    /// The level at which an entry is, or was last.
    pub(crate) fn level_of(&self, entry: Entry) -> Option<Level> {
        match entry {
            Entry::Linux => Some(self.configuration.linux_level),
            Entry::Path(path) => self.paths.level_of(path).map(levels::level),
        }
    }

    /// Whoever is ready in the slot of this entry is so no more.
    pub(crate) fn evict(&mut self, entry: Entry) {
        match entry {
            Entry::Linux => self.linux_ready = false,
            Entry::Path(path) => self.paths.evict(path.index),
        }
    }

    fn linux_index(&self) -> usize {
        levels::index(self.configuration.linux_level)
    }

    /// Whether Linux is next, when `paths` is the highest level with a ready path.
    fn linux_is_next(&self, paths: Option<usize>) -> bool {
        self.linux_ready
            && paths.is_none_or(|paths| {
                let linux = self.linux_index();
                linux > paths || (linux == paths && self.since_linux >= self.configuration.linux_interval)
            })
    }
}

impl Policy for FixedPriority {
    /// Linux's level is in the [`Configuration`]; for it `parameters` mean nothing.
    #[inline]
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, _now: Time) {
        match entry {
            Entry::Path(path) => {
                let level = match parameters {
                    Parameters::Level(level) => level,
                    _ => Level::default(),
                };
                self.paths.push(path, levels::index(level));
            }
            Entry::Linux => self.linux_ready = true,
        }
    }

    #[inline]
    fn dequeue(&mut self, _now: Time) -> Option<Decision> {
        let highest = self.paths.highest();
        if self.linux_is_next(highest) {
            self.linux_ready = false;
            self.since_linux = Duration::ZERO;
            let Configuration { linux_level, linux_quantum, .. } = self.configuration;
            return Some(Decision { entry: Entry::Linux, level: linux_level, quantum: linux_quantum });
        }
        let index = highest?;
        let path = self.paths.pop(index)?;
        let level = levels::level(index);
        let quantum = match level {
            Level::Idle => self.configuration.idle_quantum,
            Level::Priority(_) => self.configuration.path_quantum,
        };
        Some(Decision { entry: Entry::Path(path), level, quantum })
    }

    #[inline]
    fn charge(&mut self, entry: Entry, spent: Duration, _now: Time) {
        let linux = self.linux_index();
        match entry {
            Entry::Linux => {
                self.charged.linux += spent;
                self.charged_at[linux] += spent;
            }
            Entry::Path(path) => {
                self.charged.paths += spent;
                if let Some(level) = self.paths.level_of(path) {
                    self.charged_at[level] += spent;
                    if level == linux {
                        self.since_linux += spent;
                    }
                }
            }
        }
    }

    fn remove(&mut self, entry: Entry) {
        match entry {
            Entry::Path(path) => self.paths.remove(path),
            Entry::Linux => self.linux_ready = false,
        }
    }

    #[inline]
    fn is_ready(&self, entry: Entry) -> bool {
        match entry {
            Entry::Path(path) => self.paths.is_queued(path),
            Entry::Linux => self.linux_ready,
        }
    }

    #[inline]
    fn highest_ready(&self) -> Option<Level> {
        let linux = self.linux_ready.then(|| self.linux_index());
        self.paths.highest().max(linux).map(levels::level)
    }

    /// When something of a higher level is ready.
    #[inline]
    fn preempts(&self, running: &Decision, _now: Time) -> bool {
        self.highest_ready().is_some_and(|level| level > running.level)
    }

    fn charged(&self) -> Charged {
        self.charged
    }
}

impl std::fmt::Debug for FixedPriority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FixedPriority")
            .field("highest_ready", &self.highest_ready())
            .field("linux_ready", &self.linux_ready)
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
