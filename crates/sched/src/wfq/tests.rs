//! Weighted fair shares: the conformance suite, and lag against the fluid schedule.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Time};

use super::{Configuration, Wfq};
use crate::simulation::{Asks, Load, Outcome, Place, Task, simulate};
use crate::{Entry, Parameters, Policy, Weight, conformance};

/// The quantum of a path.
const QUANTUM: Duration = Duration::from_micros(100);

fn path(index: u32) -> Entry {
    Entry::Path(PathId { index, generation: 0 })
}

fn weight(weight: u64) -> Parameters {
    Weight::new(weight).into()
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn task(weight: u32, load: Load) -> Task {
    Task {
        asks: Asks::Weight(Weight::new(weight.into())),
        load,
        ideal: Place::weight(weight),
        overrun: Duration::ZERO,
        linux: false,
    }
}

fn periodic(period: u64, offset: u64, work: u64) -> Load {
    Load::Periodic {
        period: micros(period),
        offset: micros(offset),
        work: micros(work),
        jitter: micros(work / 2),
        deadline: micros(period),
    }
}

fn share(outcomes: &[Outcome], index: usize) -> f64 {
    let all: Duration = outcomes.iter().map(|outcome| outcome.got).sum();
    outcomes[index].got.as_secs_f64() / all.as_secs_f64()
}

#[test]
fn shares_are_as_the_weights_over_a_second() {
    let weights = [1, 2, 3, 10, 84];
    let tasks = weights.map(|weight| task(weight, Load::Always));
    let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_secs(1), 1);
    for (index, weight) in weights.into_iter().enumerate() {
        let expected = f64::from(weight) / 100.0;
        let off = (share(&outcomes, index) - expected).abs() / expected;
        assert!(off < 0.02, "{weight}: {} of {expected}", share(&outcomes, index));
    }
}

#[test]
fn linux_and_the_paths_split_a_busy_core() {
    let linux = Task { linux: true, ..task(100, Load::Always) };
    let tasks = [linux, task(50, Load::Always), task(50, Load::Always)];
    let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_secs(1), 1);
    assert!((share(&outcomes, 0) - 0.5).abs() < 0.01, "{outcomes:?}");
}

#[test]
fn who_wakes_up_has_saved_nothing() {
    let mut policy = Wfq::default();
    let mut now = Time::ZERO;
    let mut serve = |policy: &mut Wfq| {
        let entry = policy.dequeue(now).unwrap().entry;
        now += QUANTUM;
        policy.charge(entry, QUANTUM, now);
        policy.enqueue(entry, weight(1), now);
        entry
    };
    policy.enqueue(path(0), weight(1), Time::ZERO);
    for _ in 0..1000 {
        assert_eq!(serve(&mut policy), path(0));
    }
    policy.enqueue(path(1), weight(1), Time::ZERO);
    let mine = (0..20).filter(|_| serve(&mut policy) == path(1)).count();
    assert!((9..=11).contains(&mine), "{mine} of 20 turns after 1000 in which it slept");
}

#[test]
fn who_overran_waits_for_the_fluid_even_if_it_sleeps() {
    let mut policy = Wfq::default();
    policy.enqueue(path(0), weight(1), Time::ZERO);
    policy.enqueue(path(1), weight(1), Time::ZERO);
    let first = policy.dequeue(Time::ZERO).unwrap().entry;
    policy.charge(first, 10 * QUANTUM, Time::ZERO);
    // It naps for one quantum of the other.
    let other = policy.dequeue(Time::ZERO).unwrap().entry;
    policy.enqueue(other, weight(1), Time::ZERO);
    policy.charge(other, QUANTUM, Time::ZERO);
    policy.enqueue(first, weight(1), Time::ZERO);
    assert!(policy.lag_ns(first) < -(4 * QUANTUM.as_nanos() as i64), "{}", policy.lag_ns(first));
    for _ in 0..8 {
        assert_eq!(policy.dequeue(Time::ZERO).unwrap().entry, other);
        policy.enqueue(other, weight(1), Time::ZERO);
        policy.charge(other, QUANTUM, Time::ZERO);
    }
    assert!(policy.lag_ns(first) >= -(QUANTUM.as_nanos() as i64));
}

#[test]
fn another_weight_keeps_what_is_owed() {
    let mut policy = Wfq::default();
    for index in 0..4 {
        policy.enqueue(path(index), weight(10), Time::ZERO);
    }
    let first = policy.dequeue(Time::ZERO).unwrap().entry;
    policy.charge(first, QUANTUM, Time::ZERO);
    policy.enqueue(first, weight(10), Time::ZERO);
    let ahead = policy.lag_ns(first);
    policy.enqueue(first, weight(1000), Time::ZERO);
    assert!((policy.lag_ns(first) - ahead).abs() <= 1, "{ahead} and {}", policy.lag_ns(first));
}

#[test]
fn a_hundred_thousand_paths() {
    let mut policy = Wfq::default();
    const PATHS: u32 = 100_000;
    for index in 0..PATHS {
        policy.enqueue(path(index), weight(u64::from(index % 7) + 1), Time::ZERO);
    }
    let mut turns = [0_u32; 8];
    // 40,000 rounds of weight: each path gets ten turns for each of its weight's.
    for _ in 0..400_000 {
        let entry = policy.dequeue(Time::ZERO).unwrap().entry;
        let Entry::Path(id) = entry else { panic!("Linux") };
        let asks = u64::from(id.index % 7) + 1;
        turns[asks as usize] += 1;
        policy.enqueue(entry, weight(asks), Time::ZERO);
        policy.charge(entry, micros(10), Time::ZERO);
    }
    for asks in 1..8 {
        let per_weight = f64::from(turns[asks]) / asks as f64 / f64::from(turns[1]);
        assert!((per_weight - 1.0).abs() < 0.15, "weight {asks}: {per_weight}");
    }
    assert_eq!(policy.configuration(), &Configuration::default());
}

fn loads() -> impl Strategy<Value = Load> {
    prop_oneof![
        Just(Load::Always),
        (200u64..20_000, 0u64..5_000, 1u64..3_000)
            .prop_map(|(period, offset, work)| periodic(period, offset, work)),
    ]
}

proptest! {
    #[test]
    fn conforms(seed in any::<u64>()) {
        conformance::keeps_its_books(&mut Wfq::default(), false, seed, 400);
        conformance::forgets_stale_paths(&mut Wfq::default(), seed);
        // The least of twelve weights 1 to 50: within two rounds of all of them, as overruns go.
        let asks = |index: u32, _| weight(1 + u64::from(index * index) / 3);
        conformance::starves_nobody(&mut Wfq::default(), asks, (12, micros(100_000)), seed, 2_000);
    }

    /// All have work all the time: nobody is farther ahead of the fluid than its own run, or farther behind it than a
    /// quantum and what each other one can overrun once before it has to wait for the fluid.
    #[test]
    fn lag_is_bounded_by_a_quantum(
        weights in prop::collection::vec(prop_oneof![1u32..10, 1u32..10_000], 2..30),
        overrun in prop_oneof![Just(0u64), 1u64..300],
        seed in any::<u64>(),
    ) {
        let tasks: Vec<Task> = weights
            .iter()
            .map(|weight| Task { overrun: micros(overrun), ..task(*weight, Load::Always) })
            .collect();
        let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_millis(200), seed);
        let ahead = QUANTUM + micros(overrun) + Duration::from_nanos(10);
        let behind = QUANTUM + micros(overrun) * (weights.len() as u32 - 1) + Duration::from_nanos(10);
        for outcome in &outcomes {
            prop_assert!(outcome.ahead <= ahead && outcome.behind <= behind, "{outcome:?}");
        }
    }

    /// Arrivals as they like: against the true fluid schedule, which knows how long each job is.
    #[test]
    fn lag_stays_bounded_when_work_comes_and_goes(
        tasks in prop::collection::vec((1u32..100, loads()), 2..16),
        seed in any::<u64>(),
    ) {
        let tasks: Vec<Task> = tasks.into_iter().map(|(weight, load)| task(weight, load)).collect();
        let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_millis(500), seed);
        let most = outcomes.iter().map(|outcome| outcome.behind).max().unwrap();
        prop_assert!(most <= 3 * QUANTUM, "{most:?} behind: {outcomes:#?}");
    }

    /// Nobody gains by being late to sleep or quick to wake: against one that always has work, one that naps after
    /// every turn gets no more than its share.
    #[test]
    fn napping_gains_nothing(nap in 1u64..400, work in 1u64..500, others in 1u32..5) {
        let napper = task(1, Load::Periodic {
            period: micros(work + nap), offset: Duration::ZERO, work: micros(work),
            jitter: Duration::ZERO, deadline: micros(1_000),
        });
        let mut tasks = vec![task(1, Load::Always); others as usize];
        tasks.push(napper);
        let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_millis(300), 1);
        let (napper, other) = (outcomes[others as usize].got, outcomes[0].got);
        prop_assert!(napper <= other + 2 * QUANTUM, "{napper:?} and {other:?}");
    }
}
