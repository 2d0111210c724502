//! Fixed priority: the conformance suite, an oracle that searches linearly, and Linux's rule.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Time};

use super::{Configuration, FixedPriority};
use crate::{Entry, Level, Parameters, Policy, conformance};

fn path(index: u32) -> Entry {
    Entry::Path(PathId { index, generation: 0 })
}

fn at(level: Level) -> Parameters {
    Parameters::Level(level)
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn with_linux_at(linux_level: Level) -> FixedPriority {
    FixedPriority::new(Configuration { linux_level, ..Configuration::default() })
}

/// The next entry, charged `spent` and enqueued again at once.
fn serve(policy: &mut FixedPriority, spent: Duration, again: Parameters) -> Entry {
    let decision = policy.dequeue(Time::ZERO).expect("something is ready");
    policy.charge(decision.entry, spent, Time::ZERO);
    policy.enqueue(decision.entry, again, Time::ZERO);
    decision.entry
}

#[test]
fn stale_paths_are_forgotten() {
    conformance::forgets_stale_paths(&mut FixedPriority::default(), 1);
}

#[test]
fn a_ready_path_keeps_its_place_unless_its_level_changes() {
    let mut policy = FixedPriority::default();
    for index in 0..3 {
        policy.enqueue(path(index), at(Level::Priority(1)), Time::ZERO);
    }
    policy.enqueue(path(0), at(Level::Priority(1)), Time::ZERO);
    assert_eq!(policy.dequeue(Time::ZERO).unwrap().entry, path(0), "enqueued twice, it kept its place");
    policy.enqueue(path(1), at(Level::Idle), Time::ZERO);
    policy.enqueue(path(2), at(Level::Priority(63)), Time::ZERO);
    assert_eq!(policy.highest_ready(), Some(Level::Priority(63)));
    assert_eq!(policy.dequeue(Time::ZERO).unwrap().entry, path(2));
    let last = policy.dequeue(Time::ZERO).unwrap();
    assert_eq!((last.entry, last.level), (path(1), Level::Idle));
    assert_eq!(last.quantum, policy.configuration().idle_quantum);
    assert_eq!(policy.dequeue(Time::ZERO), None);
}

#[test]
fn linux_shares_its_level_by_time() {
    let mut policy = FixedPriority::default();
    let level = at(Level::Priority(0));
    policy.enqueue(Entry::Linux, level, Time::ZERO);
    for index in 0..2 {
        policy.enqueue(path(index), level, Time::ZERO);
    }
    let served: Vec<Entry> = (0..9).map(|_| serve(&mut policy, micros(20), level)).collect();
    // 20, 40, 60: after three quanta of paths the interval of 50 µs is over.
    let expected =
        [0, 1, 0, 9, 1, 0, 1, 9, 0].map(|index| if index == 9 { Entry::Linux } else { path(index) });
    assert_eq!(served, expected);
    assert_eq!(policy.charged().linux, micros(40));
    assert_eq!(policy.charged_at(Level::Priority(0)), micros(180), "Linux's time counts at its level");
}

#[test]
fn linux_runs_at_once_when_its_level_has_nothing_else_and_waits_for_higher_ones() {
    let mut policy = FixedPriority::default();
    policy.enqueue(Entry::Linux, Parameters::default(), Time::ZERO);
    policy.enqueue(path(0), at(Level::Idle), Time::ZERO);
    policy.enqueue(path(1), at(Level::Priority(1)), Time::ZERO);
    for _ in 0..5 {
        assert_eq!(serve(&mut policy, micros(1_000), at(Level::Priority(1))), path(1));
    }
    policy.remove(path(1));
    assert_eq!(policy.dequeue(Time::ZERO).unwrap().entry, Entry::Linux);
    assert_eq!(policy.dequeue(Time::ZERO).unwrap().entry, path(0), "the idle level comes last of all");
}

#[test]
fn time_of_unknown_paths_is_counted_too() {
    let mut policy = FixedPriority::default();
    policy.charge(path(7), micros(3), Time::ZERO);
    assert_eq!(policy.charged().paths, micros(3));
    assert!(Level::all().all(|level| policy.charged_at(level).is_zero()));
}

/// One operation on policy and oracle alike.
#[derive(Clone, Debug)]
enum Operation {
    Enqueue(u32, u8),
    Remove(u32),
    Dequeue { spent: u64 },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        4 => (0u32..9, 0u8..6).prop_map(|(entry, level)| Operation::Enqueue(entry, level)),
        1 => (0u32..9).prop_map(Operation::Remove),
        4 => (0u64..8).prop_map(|tens| Operation::Dequeue { spent: tens * 10 }),
    ];
    prop::collection::vec(operation, 0..400)
}

/// Entry 8 is Linux; level 5 is idle.
fn entry(number: u32) -> Entry {
    if number == 8 { Entry::Linux } else { path(number) }
}

fn level(number: u8) -> Level {
    if number == 5 { Level::Idle } else { Level::Priority(number) }
}

/// The policy as one would say it: a list in order of arrival, searched from its start.
#[derive(Default)]
struct Oracle {
    arrived: Vec<(Entry, Level)>,
    since_linux: Duration,
}

impl Oracle {
    fn enqueue(&mut self, entry: Entry, level: Level) {
        if !self.arrived.contains(&(entry, level)) {
            self.remove(entry);
            self.arrived.push((entry, level));
        }
    }

    fn remove(&mut self, entry: Entry) {
        self.arrived.retain(|&(other, _)| other != entry);
    }

    fn dequeue(&mut self, linux_level: Level, interval: Duration) -> Option<(Entry, Level)> {
        let highest = self.arrived.iter().map(|&(_, level)| level).max()?;
        let paths_wait = self.arrived.iter().any(|&(entry, level)| entry != Entry::Linux && level == highest);
        let linux_ready = self.arrived.iter().any(|&(entry, _)| entry == Entry::Linux);
        let linux = linux_ready && highest == linux_level && (!paths_wait || self.since_linux >= interval);
        let chosen = self
            .arrived
            .iter()
            .position(|&(entry, level)| level == highest && (entry == Entry::Linux) == linux)?;
        if linux {
            self.since_linux = Duration::ZERO;
        }
        Some(self.arrived.remove(chosen))
    }
}

proptest! {
    #[test]
    fn agrees_with_the_oracle(operations in operations(), linux_level in 0u8..6) {
        let linux_level = level(linux_level);
        let mut policy = with_linux_at(linux_level);
        let interval = policy.configuration().linux_interval;
        let mut oracle = Oracle::default();
        for operation in operations {
            match operation {
                Operation::Enqueue(number, at_level) => {
                    let at_level = level(at_level);
                    policy.enqueue(entry(number), at(at_level), Time::ZERO);
                    oracle.enqueue(entry(number), if number == 8 { linux_level } else { at_level });
                }
                Operation::Remove(number) => {
                    policy.remove(entry(number));
                    oracle.remove(entry(number));
                }
                Operation::Dequeue { spent } => {
                    let decision = policy.dequeue(Time::ZERO);
                    let expected = oracle.dequeue(linux_level, interval);
                    prop_assert_eq!(decision.map(|d| (d.entry, d.level)), expected);
                    let Some((entry, level)) = expected else { continue };
                    policy.charge(entry, micros(spent), Time::ZERO);
                    if entry != Entry::Linux && level == linux_level {
                        oracle.since_linux += micros(spent);
                    }
                }
            }
        }
        let by_level: Duration = Level::all().map(|level| policy.charged_at(level)).sum();
        prop_assert_eq!(by_level, policy.charged().paths + policy.charged().linux);
    }

    #[test]
    fn conforms(seed in any::<u64>(), linux_level in 0u8..6) {
        let linux_level = level(linux_level);
        conformance::keeps_its_books(&mut with_linux_at(linux_level), true, seed, 400);
        conformance::keeps_its_books(&mut with_linux_at(linux_level), false, seed, 400);
        conformance::forgets_stale_paths(&mut with_linux_at(linux_level), seed);
        let one_level = |_, _| Level::Priority(2).into();
        let round = (12, 12 * micros(300));
        conformance::starves_nobody(&mut with_linux_at(linux_level), one_level, round, seed, 400);
        conformance::serves_the_highest_level(&mut with_linux_at(linux_level), linux_level, seed, 400);
        for level in [Level::Idle, Level::Priority(0), Level::Priority(63)] {
            conformance::takes_turns_within_a_level(&mut with_linux_at(linux_level), level, seed, 400);
        }
    }
}
