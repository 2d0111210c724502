//! BERT: the conformance suite, deadlines where fair shares alone miss them, immunity, overload, and the account.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Time};

use super::{Bert, WHOLE};
use crate::simulation::{Asks, Load, Outcome, Place, Task, simulate};
use crate::{Claim, Deadline, Entry, Job, Parameters, Policy, Weight, Wfq, conformance};

const SECOND: Duration = Duration::from_secs(1);

fn path(index: u32) -> Entry {
    Entry::Path(PathId { index, generation: 0 })
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// In per cent of the policy's time.
fn rate(percent: u32) -> Weight {
    Weight::new(u64::from(percent * WHOLE / 100))
}

fn best_effort(percent: u32, important: bool) -> Task {
    Task {
        asks: Asks::Rate { rate: rate(percent), important },
        load: Load::Always,
        ideal: Place::weight(percent),
        overrun: Duration::ZERO,
        linux: false,
    }
}

/// A job of `work` each `period`, due when the next one comes.
fn real_time(percent: u32, (period, work): (u64, u64), important: bool) -> Task {
    Task {
        asks: Asks::RealTime { rate: rate(percent), important },
        load: Load::Periodic {
            period: micros(period),
            offset: micros(period / 7),
            work: micros(work),
            jitter: micros(work / 10),
            deadline: micros(period),
        },
        ideal: Place::weight(percent),
        overrun: Duration::ZERO,
        linux: false,
    }
}

/// The same tasks as WFQ sees them: rates as weights.
fn weighted(tasks: &[Task]) -> Vec<Task> {
    let weighted = |task: &Task| Task {
        asks: match task.asks {
            Asks::Rate { rate, .. } | Asks::RealTime { rate, .. } => Asks::Weight(rate),
            asks => asks,
        },
        ..*task
    };
    tasks.iter().map(weighted).collect()
}

fn missed(outcomes: &[Outcome]) -> u64 {
    outcomes.iter().map(|outcome| outcome.missed).sum()
}

#[test]
fn deadlines_are_met_at_full_load_where_fair_shares_miss_them() {
    // A decoder that needs 30 % and has reserved 10, among five bulk transfers.
    let mut tasks = vec![real_time(10, (33_000, 10_000), true)];
    tasks.extend([best_effort(18, false); 5]);
    let mut bert = Bert::default();
    let outcomes = simulate(&mut bert, &tasks, 10 * SECOND, 1);
    assert_eq!(outcomes[0].missed, 0, "{outcomes:#?}");
    assert!(outcomes[0].met > 290 && bert.missed() == 0);
    for victim in &outcomes[1..] {
        // In equal parts of what is left.
        assert!(victim.got > Duration::from_millis(1_350), "{outcomes:#?}");
    }
    let stolen = bert.stolen();
    assert!(stolen > Duration::from_millis(1_700) && stolen < Duration::from_millis(2_400), "{stolen:?}");
    let wfq = simulate(&mut Wfq::default(), &weighted(&tasks), 10 * SECOND, 1);
    assert!(wfq[0].missed > 250, "{wfq:#?}");
}

#[test]
fn nothing_is_stolen_where_the_rate_is_enough() {
    let mut tasks = vec![real_time(40, (33_000, 10_000), true)];
    tasks.extend([best_effort(12, false); 5]);
    let mut bert = Bert::default();
    let outcomes = simulate(&mut bert, &tasks, 10 * SECOND, 1);
    assert_eq!((outcomes[0].missed, bert.stolen()), (0, Duration::ZERO), "{outcomes:#?}");
}

#[test]
fn the_important_are_immune() {
    let tasks = [
        real_time(5, (20_000, 8_000), true),
        best_effort(30, true),
        best_effort(50, false),
        real_time(10, (20_000, 8_000), false),
    ];
    let mut bert = Bert::default();
    let outcomes = simulate(&mut bert, &tasks, 10 * SECOND, 1);
    assert_eq!(outcomes[0].missed, 0, "{outcomes:#?}");
    assert!(outcomes[1].got >= Duration::from_millis(2_990), "{outcomes:#?}");
    assert_eq!(bert.stolen_from(path(1)), Duration::ZERO);
    assert!(outcomes[3].missed > 400, "the unimportant do not steal: {outcomes:#?}");
    assert_eq!(bert.stolen_by(path(3)), Duration::ZERO);
    assert!(outcomes[2].got + outcomes[3].got > Duration::from_millis(2_900), "work is conserved");
}

#[test]
fn in_overload_the_unimportant_degrade_first_and_in_proportion() {
    let tasks = |work| {
        [
            real_time(10, (20_000, work), true),
            best_effort(30, true),
            best_effort(20, false),
            best_effort(40, false),
        ]
    };
    let mut last = Duration::MAX;
    for work in [2_000, 6_000, 10_000, 12_000] {
        let outcomes = simulate(&mut Bert::default(), &tasks(work), 10 * SECOND, 1);
        assert_eq!(outcomes[0].missed, 0, "{work}: {outcomes:#?}");
        assert!(outcomes[1].got >= Duration::from_millis(2_990), "{work}: {outcomes:#?}");
        let (small, great) = (outcomes[2].got, outcomes[3].got);
        let ratio = great.as_secs_f64() / small.as_secs_f64();
        assert!((ratio - 2.0).abs() < 0.1, "{work}: {ratio}");
        assert!(small < last, "{work}");
        last = small;
    }
    // More than there is: who may not steal more than there is keeps what it has reserved, and the crowd crawls.
    let outcomes = simulate(&mut Bert::default(), &tasks(18_000), 10 * SECOND, 1);
    assert!(outcomes[1].got >= Duration::from_millis(2_950), "{outcomes:#?}");
    assert!(outcomes[0].got > Duration::from_millis(6_500), "{outcomes:#?}");
    assert!(outcomes[2].got > Duration::from_millis(10), "{outcomes:#?}");
}

#[test]
fn a_corrected_estimate_is_made_good_while_there_is_time() {
    // It says 2 ms, and after 5 ms that it will be 8.
    let mut bert = Bert::default();
    let claim = |important, now: Time| Claim {
        rate: rate(10),
        important,
        job: important.then_some(Job {
            deadline: Deadline::At(Time::from_millis(20)),
            work: micros(if now < Time::from_millis(5) { 2_000 } else { 8_000 }),
        }),
    };
    let mut now = Time::ZERO;
    let mut left = micros(8_000);
    bert.enqueue(path(0), claim(true, now).into(), now);
    bert.enqueue(path(1), claim(false, now).into(), now);
    while left > Duration::ZERO {
        let entry = bert.dequeue(now).unwrap().entry;
        let start = now;
        now += micros(100);
        if entry == path(0) {
            left -= micros(100);
        }
        if entry != path(0) || left > Duration::ZERO {
            bert.enqueue(entry, claim(entry == path(0), start).into(), start);
        }
        bert.charge(entry, micros(100), now);
    }
    assert!(now <= Time::from_millis(20), "{now:?}");
    assert_eq!(bert.missed(), 0);
}

#[test]
fn who_is_done_early_gives_back() {
    let mut bert = Bert::default();
    let job = Job { deadline: Deadline::At(Time::from_millis(10)), work: micros(9_000) };
    let thief = Claim { rate: rate(10), important: true, job: Some(job) };
    let victim = Claim { rate: rate(10), important: false, job: None };
    bert.enqueue(path(1), victim.into(), Time::ZERO);
    bert.enqueue(path(0), thief.into(), Time::ZERO);
    let mut first = bert.dequeue(Time::ZERO).unwrap().entry;
    while first != path(0) {
        bert.charge(first, micros(100), Time::ZERO);
        bert.enqueue(first, victim.into(), Time::ZERO);
        first = bert.dequeue(Time::ZERO).unwrap().entry;
    }
    // One tenth of a millisecond instead of nine.
    bert.charge(path(0), micros(100), Time::from_micros(100));
    assert_eq!(bert.dequeue(Time::from_micros(100)).unwrap().entry, path(1));
    bert.charge(path(1), micros(100), Time::from_micros(200));
    assert!(
        bert.fair.lag(super::CROWD) > -(micros(400).as_nanos() as i64),
        "{}",
        bert.fair.lag(super::CROWD)
    );
    assert!(bert.stolen() <= micros(100));
}

#[test]
fn a_hundred_thousand_victims() {
    let mut bert = Bert::default();
    let victim: Parameters = Claim { rate: Weight::new(1), important: false, job: None }.into();
    for index in 1..=100_000 {
        bert.enqueue(path(index), victim, Time::ZERO);
    }
    let mut now = Time::ZERO;
    let mut done = Duration::ZERO;
    let job = Job { deadline: Deadline::At(Time::from_millis(100)), work: Duration::from_millis(60) };
    let thief: Parameters = Claim { rate: rate(5), important: true, job: Some(job) }.into();
    bert.enqueue(path(0), thief, now);
    while done < job.work {
        let entry = bert.dequeue(now).unwrap().entry;
        let start = now;
        now += micros(100);
        if entry == path(0) {
            done += micros(100);
        }
        if entry != path(0) || done < job.work {
            bert.enqueue(entry, if entry == path(0) { thief } else { victim }, start);
        }
        bert.charge(entry, micros(100), now);
    }
    assert!(now <= Time::from_millis(100), "{now:?}");
    let from_all: Duration = (1..=100_000).map(|index| bert.stolen_from(path(index))).sum();
    let off = bert.stolen().as_secs_f64() - from_all.as_secs_f64();
    assert!(off.abs() < 0.001, "{:?} and {from_all:?}", bert.stolen());
}

/// Important real-time tasks that together need no more than their part, important best effort, and a crowd.
#[derive(Clone, Debug)]
struct Mix {
    real_time: Vec<(u32, u64, u32)>,
    immune: u32,
    crowd: Vec<u32>,
}

fn mixes() -> impl Strategy<Value = Mix> {
    let real_time = prop::collection::vec((1u32..15, 10_000u64..60_000, 1u32..24), 1..4);
    (real_time, 1u32..20, prop::collection::vec(1u32..100, 1..8)).prop_map(|(real_time, immune, crowd)| Mix {
        real_time,
        immune,
        crowd,
    })
}

impl Mix {
    fn tasks(&self) -> Vec<Task> {
        let real_time = self.real_time.iter().map(|(percent, period, needs)| {
            real_time(*percent, (*period, period * u64::from(*needs) / 100), true)
        });
        let immune = std::iter::once(best_effort(self.immune, true));
        let crowd = self.crowd.iter().map(|percent| best_effort(*percent, false));
        real_time.chain(immune).chain(crowd).collect()
    }
}

proptest! {
    #[test]
    fn conforms(seed in any::<u64>()) {
        conformance::keeps_its_books(&mut Bert::default(), false, seed, 400);
        conformance::forgets_stale_paths(&mut Bert::default(), seed);
        let asks = |index: u32, now: Time| {
            let job = Job { deadline: Deadline::At(now + micros(3_000)), work: micros(400) };
            Claim { rate: rate(4), important: index.is_multiple_of(3), job: index.is_multiple_of(2).then_some(job) }.into()
        };
        conformance::starves_nobody(&mut Bert::default(), asks, (12, micros(200_000)), seed, 2_000);
    }

    /// Feasible: what the real-time tasks need is at most 72 % with what jitter adds, the immune one has less than
    /// 20, and so nobody important lacks anything.
    #[test]
    fn the_important_lack_nothing(mix in mixes(), seed in any::<u64>()) {
        let tasks = mix.tasks();
        let mut bert = Bert::default();
        let outcomes = simulate(&mut bert, &tasks, 2 * SECOND, seed);
        let count = mix.real_time.len();
        prop_assert_eq!(missed(&outcomes[..count]), 0, "{:#?}", outcomes);
        let immune = outcomes[count].got.as_secs_f64() / 2.0;
        prop_assert!(immune >= f64::from(mix.immune) / 100.0 - 0.001, "{immune} {outcomes:#?}");
        let got: Duration = outcomes.iter().map(|outcome| outcome.got).sum();
        prop_assert!(got >= 2 * SECOND, "work is conserved");
        let by: Duration = (0..count as u32).map(|index| bert.stolen_by(path(index))).sum();
        let from: Duration = (0..tasks.len() as u32).map(|index| bert.stolen_from(path(index))).sum();
        prop_assert_eq!(by, bert.stolen());
        let off = (bert.stolen().as_secs_f64() - from.as_secs_f64()).abs();
        prop_assert!(off < 0.000_1, "{:?} stolen, {from:?} lost", bert.stolen());
        prop_assert!((0..=count as u32).all(|index| bert.stolen_from(path(index)).is_zero()));
    }
}
