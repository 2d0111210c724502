//! Weighted fair shares: the conformance suite, and lag against the fluid schedule.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Time};

use super::{Configuration, Wfq};
use crate::simulation::{Asks, Load, Outcome, Place, Task, simulate};
use crate::{Entry, Parameters, Policy, Share, Weight, conformance};

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

fn part(class: u16, class_weight: u32, weight: u32) -> Share {
    Share { class, class_weight: Weight::new(class_weight.into()), weight: Weight::new(weight.into()) }
}

/// A path of a class.
fn member(share: Share, load: Load) -> Task {
    let ideal = Place {
        rank: 1,
        group: share.class as u8 + 1,
        share: share.class_weight.value(),
        weight: share.weight.value(),
    };
    Task { asks: Asks::Share(share), load, ideal, overrun: Duration::ZERO, linux: false }
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
fn a_class_gets_its_share_however_many_paths_it_has() {
    let mut tasks = vec![member(part(0, 100, 1), Load::Always)];
    tasks.extend([member(part(1, 100, 1), Load::Always); 9]);
    tasks.extend([member(part(2, 200, 3), Load::Always), member(part(2, 200, 1), Load::Always)]);
    // A path that stands by itself is a member of the fluid's own group.
    let alone = Place { rank: 1, group: 0, share: 100, weight: 1 };
    tasks.push(Task { ideal: alone, ..task(100, Load::Always) });
    let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_secs(1), 1);
    let of = |range: std::ops::Range<usize>| -> f64 { range.map(|index| share(&outcomes, index)).sum() };
    for (class, expected) in [(0..1, 0.2), (1..10, 0.2), (10..11, 0.3), (11..12, 0.1), (12..13, 0.2)] {
        let got = of(class.clone());
        assert!((got - expected).abs() < 0.002, "{class:?}: {got} of {expected}");
    }
    let nine: Vec<Duration> = outcomes[1..10].iter().map(|outcome| outcome.got).collect();
    assert!(*nine.iter().max().unwrap() <= *nine.iter().min().unwrap() + QUANTUM);
}

/// What a class is owed stays with it when its paths take turns in being there; who goes to another class takes nothing
/// along.
#[test]
fn paths_change_their_class_and_weight() {
    let mut policy = Wfq::default();
    let turn = |policy: &mut Wfq, asks: &dyn Fn(u32) -> Parameters| {
        let entry = policy.dequeue(Time::ZERO).unwrap().entry;
        let Entry::Path(id) = entry else { panic!("Linux") };
        policy.enqueue(entry, asks(id.index), Time::ZERO);
        policy.charge(entry, QUANTUM, Time::ZERO);
        id.index
    };
    let all_in_one = |_| part(5, 100, 1).into();
    for index in 0..3 {
        policy.enqueue(path(index), all_in_one(index), Time::ZERO);
    }
    let mut first: Vec<u32> = (0..6).map(|_| turn(&mut policy, &all_in_one)).collect();
    first.sort_unstable();
    assert_eq!(first, [0, 0, 1, 1, 2, 2], "they take turns");
    assert!(policy.class_lag_ns(5).abs() <= QUANTUM.as_nanos() as i64);
    // Path 2 goes, and 1 stands by itself.
    let apart = |index| if index == 0 { part(5, 100, 1).into() } else { weight(100 * u64::from(index)) };
    policy.enqueue(path(1), apart(1), Time::ZERO);
    policy.enqueue(path(2), apart(2), Time::ZERO);
    let counts = (0..400).fold([0; 3], |mut counts, _| {
        counts[turn(&mut policy, &apart) as usize] += 1;
        counts
    });
    assert_eq!(counts, [100, 100, 200]);
    policy.remove(path(0));
    assert!((0..10).all(|_| turn(&mut policy, &apart) != 0), "nobody of the class is ready");
    policy.enqueue(path(0), apart(0), Time::ZERO);
    assert!((0..4).any(|_| turn(&mut policy, &apart) == 0));
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
        let asks = |index: u32, _| part(index as u16 / 5, 1 + index / 5 * 10, 1 + index % 3).into();
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

    /// In classes, too: each level adds a quantum to the distance from the fluid schedule.
    #[test]
    fn lag_in_classes_is_bounded_by_two_quanta(
        classes in prop::collection::vec(
            (prop_oneof![1u32..10, 1u32..10_000], prop::collection::vec(1u32..100, 1..8)), 2..8,
        ),
        overrun in prop_oneof![Just(0u64), 1u64..300],
        seed in any::<u64>(),
    ) {
        let mut tasks = Vec::new();
        for (class, (class_weight, weights)) in classes.iter().enumerate() {
            for weight in weights {
                let share = part(class as u16, *class_weight, *weight);
                tasks.push(Task { overrun: micros(overrun), ..member(share, Load::Always) });
            }
        }
        let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_millis(200), seed);
        let ahead = 2 * (QUANTUM + micros(overrun)) + Duration::from_nanos(20);
        let others = classes.len() as u32 - 1 + classes.iter().map(|(_, members)| members.len()).max().unwrap() as u32;
        let behind = 2 * QUANTUM + micros(overrun) * others + Duration::from_nanos(20);
        for outcome in &outcomes {
            prop_assert!(outcome.ahead <= ahead && outcome.behind <= behind, "{outcome:?}");
        }
    }

    #[test]
    fn lag_in_classes_stays_bounded_when_work_comes_and_goes(
        tasks in prop::collection::vec((0u16..4, 1u32..20, loads()), 2..16),
        seed in any::<u64>(),
    ) {
        let tasks: Vec<Task> = tasks
            .into_iter()
            .map(|(class, weight, load)| member(part(class, 1 + u32::from(class) * 7, weight), load))
            .collect();
        let outcomes = simulate(&mut Wfq::default(), &tasks, Duration::from_millis(500), seed);
        let most = outcomes.iter().map(|outcome| outcome.behind).max().unwrap();
        prop_assert!(most <= 5 * QUANTUM, "{most:?} behind: {outcomes:#?}");
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
