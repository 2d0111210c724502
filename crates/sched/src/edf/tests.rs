//! Earliest deadline first: the conformance suite, an oracle that searches linearly, and sets of periodic paths.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Time};

use super::Edf;
use crate::simulation::{Asks, Load, Place, Task, simulate};
use crate::{Deadline, Entry, FixedPriority, Level, Parameters, Policy, conformance};

fn path(index: u32) -> Entry {
    Entry::Path(PathId { index, generation: 0 })
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn at(micros: u64) -> Parameters {
    Deadline::At(Time::from_micros(micros)).into()
}

fn after(span: u64) -> Parameters {
    Deadline::After(micros(span)).into()
}

fn next(policy: &mut Edf, now: u64) -> Option<Entry> {
    policy.dequeue(Time::from_micros(now)).map(|decision| decision.entry)
}

/// Periodic tasks whose deadlines are their periods.
fn periodic(set: &[(u64, u64)], asks: Asks) -> Vec<Task> {
    let task = |&(period, work): &(u64, u64)| Task {
        asks,
        load: Load::Periodic {
            period: micros(period),
            offset: Duration::ZERO,
            work: micros(work),
            jitter: Duration::ZERO,
            deadline: micros(period),
        },
        ideal: Place::weight((work * 10_000 / period) as u32),
        overrun: Duration::ZERO,
        linux: false,
    };
    set.iter().map(task).collect()
}

fn misses(policy: &mut impl Policy, tasks: &[Task], seconds: u64) -> u64 {
    simulate(policy, tasks, Duration::from_secs(seconds), 1).iter().map(|outcome| outcome.missed).sum()
}

#[test]
fn at_95_percent_no_deadline_is_missed_where_round_robin_misses_many() {
    // 40 + 30 + 15 + 10 %; as Scout's table: one fast stream among slow ones with much work at a time.
    let set = [(33_000, 13_200), (100_000, 30_000), (200_000, 30_000), (5_000, 500)];
    let mut edf = Edf::default();
    assert_eq!(misses(&mut edf, &periodic(&set, Asks::Deadline), 10), 0);
    assert_eq!(edf.missed(), 0);
    let round_robin =
        misses(&mut FixedPriority::default(), &periodic(&set, Asks::Level(Level::default())), 10);
    assert!(round_robin > 50, "round robin missed {round_robin}");
}

#[test]
fn a_deadline_after_the_wake_up_stays_while_the_work_goes_on() {
    let mut policy = Edf::default();
    policy.enqueue(path(0), after(1_000), Time::ZERO);
    policy.enqueue(path(0), after(1_000), Time::from_micros(500));
    assert_eq!(policy.deadline(path(0)), Some(Time::from_micros(1_000)), "more packets change nothing");
    assert_eq!(next(&mut policy, 600), Some(path(0)));
    policy.enqueue(path(0), after(1_000), Time::from_micros(700));
    assert_eq!(policy.deadline(path(0)), Some(Time::from_micros(1_000)), "it goes on");
    assert_eq!(next(&mut policy, 1_100), Some(path(0)));
    assert_eq!(policy.missed(), 1);
    policy.enqueue(path(0), after(1_000), Time::from_micros(1_200));
    assert_eq!(policy.deadline(path(0)), Some(Time::from_micros(2_000)), "the next one follows");
    assert_eq!(next(&mut policy, 1_300), Some(path(0)));
    assert_eq!(next(&mut policy, 1_400), None);
    policy.enqueue(path(0), after(1_000), Time::from_micros(1_500));
    assert_eq!(policy.deadline(path(0)), Some(Time::from_micros(2_500)), "it had slept");
}

#[test]
fn what_is_due_earlier_preempts() {
    let mut policy = Edf::default();
    policy.enqueue(Entry::Linux, at(500), Time::ZERO);
    let running = policy.dequeue(Time::ZERO).unwrap();
    assert!(!policy.preempts(&running, Time::ZERO));
    policy.enqueue(path(0), at(600), Time::ZERO);
    assert!(!policy.preempts(&running, Time::ZERO));
    policy.enqueue(path(1), at(400), Time::ZERO);
    assert!(policy.preempts(&running, Time::ZERO));
}

#[test]
fn a_missed_deadline_is_counted_once() {
    let mut policy = Edf::default();
    for now in [200, 300, 400] {
        policy.enqueue(path(0), at(100), Time::from_micros(now));
        assert_eq!(next(&mut policy, now), Some(path(0)));
        policy.charge(path(0), micros(50), Time::from_micros(now + 50));
    }
    assert_eq!(policy.missed(), 1, "the same moment three times");
    policy.enqueue(path(0), at(460), Time::from_micros(450));
    assert_eq!(next(&mut policy, 450), Some(path(0)));
    policy.charge(path(0), micros(50), Time::from_micros(500));
    assert_eq!(policy.missed(), 2);
}

#[test]
fn in_overload_the_late_take_turns() {
    let tasks = periodic(&[(1_000, 600), (1_000, 600), (10_000, 2_000)], Asks::Deadline);
    let outcomes = simulate(&mut Edf::default(), &tasks, Duration::from_secs(2), 1);
    for outcome in &outcomes {
        assert!(outcome.got > Duration::from_millis(200), "{outcomes:#?}");
        assert!(outcome.longest_wait < Duration::from_millis(20), "{outcomes:#?}");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Enqueue(u32, u64),
    Remove(u32),
    Dequeue,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        4 => (0u32..8, 0u64..300).prop_map(|(entry, due)| Operation::Enqueue(entry, due)),
        1 => (0u32..8).prop_map(Operation::Remove),
        3 => Just(Operation::Dequeue),
    ];
    prop::collection::vec(operation, 0..300)
}

proptest! {
    #[test]
    fn conforms(seed in any::<u64>()) {
        conformance::keeps_its_books(&mut Edf::default(), false, seed, 400);
        conformance::forgets_stale_paths(&mut Edf::default(), seed);
        // Deadlines far and near, always past, and ever anew.
        let asks = |index: u32, now: Time| match index % 4 {
            0 => after(20_000),
            1 => Deadline::At(Time::ZERO).into(),
            2 => Deadline::At(now + micros(50)).into(),
            _ => after(3_000),
        };
        conformance::starves_nobody(&mut Edf::default(), asks, (12, micros(40_000)), seed, 2_000);
    }

    #[test]
    fn agrees_with_the_oracle(operations in operations()) {
        let mut policy = Edf::default();
        // In order of arrival: entry, what it asked for, and what that counted as.
        let mut oracle: Vec<(u32, u64, u64)> = Vec::new();
        for (now, operation) in operations.into_iter().enumerate() {
            let now = now as u64;
            match operation {
                Operation::Enqueue(entry, due) => {
                    policy.enqueue(path(entry), at(due), Time::from_micros(now));
                    if !oracle.iter().any(|(other, asked, _)| (*other, *asked) == (entry, due)) {
                        oracle.retain(|(other, _, _)| *other != entry);
                        oracle.push((entry, due, due.max(now)));
                    }
                }
                Operation::Remove(entry) => {
                    policy.remove(path(entry));
                    oracle.retain(|(other, _, _)| *other != entry);
                }
                Operation::Dequeue => {
                    let first = oracle.iter().map(|(_, _, due)| *due).min();
                    let place = oracle.iter().position(|(_, _, due)| Some(*due) == first);
                    let expected = place.map(|place| path(oracle.remove(place).0));
                    prop_assert_eq!(next(&mut policy, now), expected);
                }
            }
        }
    }

    /// Any set of periodic tasks below the whole CPU, as long as no quantum is longer than the slack.
    #[test]
    fn feasible_sets_miss_nothing(
        set in prop::collection::vec((5_000u64..100_000, 1u64..100), 1..12),
        used in 500u64..960,
    ) {
        let parts: u64 = set.iter().map(|(_, part)| part).sum();
        let set: Vec<(u64, u64)> = set
            .iter()
            .map(|(period, part)| (*period, period * part * used / parts / 1_000))
            .filter(|(_, work)| *work > 0)
            .collect();
        prop_assert_eq!(misses(&mut Edf::default(), &periodic(&set, Asks::Deadline), 1), 0, "{:?}", set);
    }
}
