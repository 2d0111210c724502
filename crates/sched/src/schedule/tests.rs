//! The policies side by side: the conformance suite, equality with fixed priority, shares, lending, the idle level.

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Random, Time};

use super::{Configuration, Linux, Schedule, Shares};
use crate::simulation::{Asks, Load, Outcome, Place, Task, simulate};
use crate::{Claim, Deadline, Entry, FixedPriority, Level, Policy, Weight, conformance, priority};

fn path(index: u32) -> Entry {
    Entry::Path(PathId { index, generation: 0 })
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn with_linux(linux: Linux) -> Schedule {
    Schedule::new(Configuration { linux, ..Configuration::default() })
}

fn always(asks: Asks) -> Task {
    Task { asks, load: Load::Always, ideal: Place::weight(1), overrun: Duration::ZERO, linux: false }
}

fn fixed(level: u8) -> Asks {
    Asks::Level(Level::Priority(level))
}

fn weighted(weight: u64) -> Asks {
    Asks::Weight(Weight::new(weight))
}

fn shares(outcomes: &[Outcome]) -> Vec<f64> {
    let all: Duration = outcomes.iter().map(|outcome| outcome.got).sum();
    outcomes.iter().map(|outcome| outcome.got.as_secs_f64() / all.as_secs_f64()).collect()
}

fn assert_shares(outcomes: &[Outcome], expected: &[f64], within: f64) {
    let shares = shares(outcomes);
    for (share, expected) in shares.iter().zip(expected) {
        assert!((share - expected).abs() <= within, "{shares:.3?}");
    }
}

#[test]
fn each_policy_gets_its_share() {
    let tasks = [fixed(0), fixed(5), Asks::Deadline, weighted(1), weighted(3)].map(always);
    let outcomes = simulate(&mut Schedule::default(), &tasks, Duration::from_secs(1), 1);
    // Of 80: 40 for fixed priority, and there the higher level takes all.
    assert_shares(&outcomes, &[0.0, 0.5, 0.25, 0.0625, 0.1875], 0.005);
}

#[test]
fn bert_keeps_its_promise_within_its_share() {
    // A fifth of the CPU is BERT's: a job of 3 ms in 33, reserved at a quarter of that, beside all others at work.
    let decoder = Task {
        load: Load::Periodic {
            period: micros(33_000),
            offset: micros(1_000),
            work: micros(3_000),
            jitter: micros(300),
            deadline: micros(33_000),
        },
        ..always(Asks::RealTime { rate: Weight::new(1_000), important: true })
    };
    let bulk = always(Asks::Rate { rate: Weight::new(5_000), important: false });
    let tasks = [decoder, bulk, bulk, always(fixed(0)), always(Asks::Deadline), always(weighted(1))];
    let mut schedule = Schedule::default();
    let outcomes = simulate(&mut schedule, &tasks, Duration::from_secs(5), 1);
    assert_eq!(outcomes[0].missed, 0, "{outcomes:#?}");
    assert!(outcomes[0].met > 140 && schedule.bert().stolen() > Duration::from_millis(100));
    assert_shares(&outcomes[3..], &[0.5, 0.25, 0.25], 0.005);
}

#[test]
fn what_a_policy_does_not_use_is_lent() {
    let tasks = [weighted(1), fixed(0)].map(always);
    let outcomes = simulate(&mut Schedule::default(), &tasks, Duration::from_secs(1), 1);
    assert_shares(&outcomes, &[1.0 / 3.0, 2.0 / 3.0], 0.005);
    let light = Task {
        load: Load::Periodic {
            period: micros(10_000),
            offset: Duration::ZERO,
            work: micros(500),
            jitter: Duration::ZERO,
            deadline: micros(2_300),
        },
        ..always(Asks::Deadline)
    };
    let tasks = [light, always(weighted(1)), always(fixed(0))];
    let outcomes = simulate(&mut Schedule::default(), &tasks, Duration::from_secs(1), 1);
    assert_shares(&outcomes, &[0.05, 0.95 / 3.0, 0.95 * 2.0 / 3.0], 0.005);
    assert_eq!(outcomes[0].missed, 0, "a quarter of the CPU does it in 2 ms: {outcomes:#?}");
}

#[test]
fn a_policy_that_comes_back_has_saved_nothing() {
    let mut schedule = Schedule::default();
    let mut now = Time::ZERO;
    let mut serve = |schedule: &mut Schedule, again: Option<Weight>| {
        let entry = schedule.dequeue(now).unwrap().entry;
        if entry == path(0) {
            schedule.enqueue(entry, Level::Priority(0).into(), now);
        } else if let Some(weight) = again {
            schedule.enqueue(entry, weight.into(), now);
        }
        now += micros(100);
        schedule.charge(entry, micros(100), now);
        entry
    };
    schedule.enqueue(path(0), Level::Priority(0).into(), Time::ZERO);
    schedule.enqueue(path(1), Weight::default().into(), Time::ZERO);
    let turns = (0..1000).filter(|_| serve(&mut schedule, None) == path(1)).count();
    assert_eq!(turns, 1);
    schedule.enqueue(path(1), Weight::default().into(), Time::ZERO);
    let turns = (0..30).filter(|_| serve(&mut schedule, Some(Weight::default())) == path(1)).count();
    assert!((9..=11).contains(&turns), "{turns} of 30 for a share of a third");
}

#[test]
fn idle_gets_only_what_nobody_else_wants() {
    let mut tasks = [Asks::Level(Level::Idle), weighted(1), Asks::Deadline].map(always);
    let outcomes = simulate(&mut Schedule::default(), &tasks, Duration::from_secs(1), 1);
    assert_shares(&outcomes, &[0.0, 0.5, 0.5], 0.005);
    for task in &mut tasks[1..] {
        task.load = Load::Periodic {
            period: micros(2_000),
            offset: micros(100),
            work: micros(500),
            jitter: micros(400),
            deadline: micros(2_000),
        };
    }
    let outcomes = simulate(&mut Schedule::default(), &tasks, Duration::from_secs(1), 1);
    let asked: Duration = outcomes[1..].iter().map(|outcome| outcome.asked).sum();
    let got: Duration = outcomes[1..].iter().map(|outcome| outcome.got).sum();
    assert!(asked < got + micros(1_000), "{outcomes:#?}");
    assert!(outcomes[0].got + got > Duration::from_millis(999), "work is conserved");
    let idle_quantum = Configuration::default().fixed.idle_quantum.time;
    let waits = outcomes[1..].iter().map(|outcome| outcome.longest_wait).max().unwrap();
    assert!(waits <= 16 * micros(100) + idle_quantum, "{waits:?}");
}

#[test]
fn linux_with_half_the_cpu_gets_half_of_it() {
    let linux = Task { linux: true, ..always(fixed(0)) };
    let shares = Shares { fixed: 40, edf: 3, wfq: 4, bert: 3 };
    for (linux_stands, paths) in [
        (Linux::Share(50), vec![fixed(3); 20]),
        (Linux::Share(45), vec![fixed(1), weighted(7)]),
        (Linux::Weight(Weight::new(100)), vec![weighted(5); 20]),
    ] {
        let configuration = Configuration { linux: linux_stands, shares, ..Configuration::default() };
        let mut tasks = vec![linux];
        tasks.extend(paths.into_iter().map(always));
        let outcomes = simulate(&mut Schedule::new(configuration), &tasks, Duration::from_secs(1), 1);
        let expected = if linux_stands == Linux::Share(50) { 50.0 / 90.0 } else { 0.5 };
        assert!((self::shares(&outcomes)[0] - expected).abs() < 0.01, "{linux_stands:?} {outcomes:#?}");
    }
}

/// Whoever of the policies has work, and however many paths they have.
#[test]
fn a_percentage_of_linux_is_one_against_all_policies_together() {
    let linux = Task { linux: true, ..always(fixed(0)) };
    for (percent, paths) in [
        (50, vec![fixed(3); 20]),
        (50, vec![weighted(5)]),
        (20, vec![fixed(1), weighted(7), Asks::Deadline]),
        (80, vec![Asks::Deadline, weighted(1), weighted(2)]),
    ] {
        let configuration = Configuration { linux: Linux::Percent(percent), ..Configuration::default() };
        let mut tasks = vec![linux];
        tasks.extend(paths.into_iter().map(always));
        let outcomes = simulate(&mut Schedule::new(configuration), &tasks, Duration::from_secs(1), 1);
        assert!((shares(&outcomes)[0] - f64::from(percent) / 100.0).abs() < 0.005, "{percent} {outcomes:#?}");
    }
    // A policy that comes and goes changes nothing of that, nor of what the others get of the rest.
    let now_and_then = Task {
        load: Load::Periodic {
            period: micros(5_000),
            offset: micros(700),
            work: micros(1_000),
            jitter: micros(500),
            deadline: micros(5_000),
        },
        ..always(Asks::Deadline)
    };
    let configuration = Configuration { linux: Linux::Percent(40), ..Configuration::default() };
    let tasks = [linux, always(fixed(0)), always(weighted(1)), now_and_then];
    let outcomes = simulate(&mut Schedule::new(configuration), &tasks, Duration::from_secs(2), 3);
    let shares = shares(&outcomes);
    assert!((shares[0] - 0.4).abs() < 0.01, "{shares:.3?}");
    assert!((shares[1] / shares[2] - 2.0).abs() < 0.1, "{shares:.3?}");
    let guarantee = |parameters| Schedule::new(configuration).guarantee(parameters).value();
    assert_eq!(guarantee(Level::default().into()), 2_400);
    assert_eq!(guarantee(Weight::default().into()), 1_200);
}

#[test]
fn a_deadline_interrupts_linux_while_its_share_lasts() {
    let mut schedule = with_linux(Linux::Share(40));
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::ZERO);
    let linux = schedule.dequeue(Time::ZERO).unwrap();
    let asks = Deadline::After(micros(1_000)).into();
    schedule.enqueue(path(0), asks, Time::from_micros(10));
    assert!(schedule.preempts(&linux, Time::from_micros(10)));
    schedule.charge(Entry::Linux, micros(10), Time::from_micros(10));
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::from_micros(10));
    assert_eq!(schedule.dequeue(Time::from_micros(10)).unwrap().entry, path(0));
    schedule.charge(path(0), micros(100), Time::from_micros(110));
    let linux = schedule.dequeue(Time::from_micros(110)).unwrap();
    schedule.enqueue(path(0), asks, Time::from_micros(110));
    assert!(!schedule.preempts(&linux, Time::from_micros(120)), "it is ahead");
    assert!(schedule.preempts(&linux, Time::from_micros(400)));
}

#[test]
fn linux_is_interrupted_by_who_is_owed_a_quantum() {
    let mut schedule = with_linux(Linux::Share(40));
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::ZERO);
    let linux = schedule.dequeue(Time::ZERO).unwrap();
    assert_eq!(linux.entry, Entry::Linux);
    assert!(!schedule.preempts(&linux, Time::from_micros(1_900)), "there is nothing else");
    schedule.enqueue(path(0), Level::Priority(1).into(), Time::ZERO);
    assert!(!schedule.preempts(&linux, Time::from_micros(100)), "both have 40: half a quantum is owed");
    assert!(schedule.preempts(&linux, Time::from_micros(201)), "a quantum is");
    schedule.charge(Entry::Linux, micros(201), Time::from_micros(201));
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::from_micros(201));
    assert_eq!(schedule.dequeue(Time::from_micros(201)).unwrap().entry, path(0));
}

#[test]
fn idle_work_is_interrupted_by_anything() {
    let mut schedule = with_linux(Linux::Share(40));
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::ZERO);
    schedule.remove(Entry::Linux);
    schedule.enqueue(path(0), Level::Idle.into(), Time::ZERO);
    let idle = schedule.dequeue(Time::ZERO).unwrap();
    assert_eq!(idle.level, Level::Idle);
    schedule.enqueue(path(1), Level::Idle.into(), Time::ZERO);
    assert!(!schedule.preempts(&idle, Time::ZERO));
    schedule.enqueue(path(2), Weight::default().into(), Time::ZERO);
    assert!(schedule.preempts(&idle, Time::ZERO));
}

#[test]
fn the_first_path_beside_the_levels_does_not_interrupt_linux() {
    let mut schedule = Schedule::default();
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::ZERO);
    let linux = schedule.dequeue(Time::ZERO).unwrap();
    schedule.enqueue(path(0), Weight::default().into(), Time::ZERO);
    assert!(!schedule.preempts(&linux, Time::from_micros(10)));
    schedule.enqueue(path(1), Level::Priority(1).into(), Time::ZERO);
    assert!(schedule.preempts(&linux, Time::from_micros(10)));
}

#[test]
fn an_entry_can_change_its_policy() {
    let mut schedule = Schedule::default();
    schedule.enqueue(path(0), Level::Priority(4).into(), Time::ZERO);
    schedule.enqueue(path(0), Weight::default().into(), Time::ZERO);
    assert_eq!(schedule.highest_ready(), Some(Level::default()));
    schedule.enqueue(path(0), Deadline::After(micros(5)).into(), Time::ZERO);
    assert!(schedule.edf().is_ready(path(0)) && !schedule.wfq().is_ready(path(0)));
    assert_eq!(schedule.dequeue(Time::ZERO).unwrap().entry, path(0));
    assert_eq!(schedule.dequeue(Time::ZERO), None);
}

#[test]
fn linux_moves_when_it_is_configured_elsewhere() {
    let mut schedule = Schedule::default();
    schedule.enqueue(Entry::Linux, Level::default().into(), Time::ZERO);
    for linux in [Linux::Share(10), Linux::Weight(Weight::default()), Linux::Priority] {
        schedule.configure(Configuration { linux, ..*schedule.configuration() });
        assert!(schedule.is_ready(Entry::Linux), "{linux:?}");
    }
    assert_eq!(schedule.dequeue(Time::ZERO).unwrap().entry, Entry::Linux);
    assert_eq!(schedule.dequeue(Time::ZERO), None);
}

#[test]
fn a_deadline_does_not_outlive_its_work() {
    // EDF has nothing else, and so nobody asks it for a decision until its path wakes again.
    let mut schedule = Schedule::default();
    let asks = Deadline::After(micros(1_000)).into();
    schedule.enqueue(path(0), asks, Time::ZERO);
    assert_eq!(schedule.dequeue(Time::ZERO).unwrap().entry, path(0));
    schedule.charge(path(0), micros(10), Time::from_micros(10));
    assert_eq!(schedule.dequeue(Time::from_micros(10)), None);
    schedule.enqueue(path(0), asks, Time::from_micros(1_500));
    assert_eq!(schedule.edf().deadline(path(0)), Some(Time::from_micros(2_500)));
}

proptest! {
    #[test]
    fn conforms(seed in any::<u64>(), linux in 0..4) {
        let stands =
            [Linux::Priority, Linux::Weight(Weight::new(500)), Linux::Share(50), Linux::Percent(50)];
        let linux = stands[linux as usize];
        let linux_level = Configuration::default().fixed.linux_level;
        conformance::keeps_its_books(&mut with_linux(linux), false, seed, 400);
        conformance::keeps_its_books(&mut with_linux(linux), true, seed, 400);
        conformance::forgets_stale_paths(&mut with_linux(linux), seed);
        conformance::serves_the_highest_level(&mut Schedule::default(), linux_level, seed, 400);
        conformance::takes_turns_within_a_level(&mut Schedule::default(), Level::Priority(5), seed, 400);
        let asks = |index: u32, now: Time| match index % 3 {
            0 => Level::Priority(2).into(),
            1 => Weight::new(u64::from(index)).into(),
            2 if index > 6 => Claim { important: index > 9, ..Claim::default() }.into(),
            _ => Deadline::At(now + micros(2_000)).into(),
        };
        conformance::starves_nobody(&mut with_linux(linux), asks, (12, micros(60_000)), seed, 2_000);
    }

    /// With levels only, every answer is that of fixed priority.
    #[test]
    fn levels_alone_are_fixed_priority(seed in any::<u64>(), linux_level in 0u64..4) {
        let configuration =
            priority::Configuration { linux_level: Level::priority(linux_level), ..Default::default() };
        let mut fixed = FixedPriority::new(configuration);
        let mut schedule =
            Schedule::new(Configuration { fixed: configuration, ..Configuration::default() });
        let mut random = Random::new(seed);
        for _ in 0..500 {
            let entry = match random.below(9) {
                8 => Entry::Linux,
                index => path(index),
            };
            let level = match random.below(6) {
                5 => Level::Idle,
                priority => Level::priority(priority.into()),
            };
            match random.below(8) {
                0..4 => {
                    fixed.enqueue(entry, level.into(), Time::ZERO);
                    schedule.enqueue(entry, level.into(), Time::ZERO);
                }
                4 => {
                    fixed.remove(entry);
                    schedule.remove(entry);
                }
                _ => {
                    let decision = fixed.dequeue(Time::ZERO);
                    prop_assert_eq!(schedule.dequeue(Time::ZERO), decision);
                    let Some(decision) = decision else { continue };
                    prop_assert_eq!(
                        schedule.preempts(&decision, Time::ZERO),
                        fixed.preempts(&decision, Time::ZERO)
                    );
                    let spent = Duration::from_nanos(random.below(60_000).into());
                    fixed.charge(decision.entry, spent, Time::ZERO);
                    schedule.charge(decision.entry, spent, Time::ZERO);
                }
            }
            prop_assert_eq!(schedule.highest_ready(), fixed.highest_ready());
            prop_assert_eq!(schedule.charged(), fixed.charged());
        }
    }

    /// Whatever the shares and whoever else has work, no policy with work gets less than its part, but for the runs
    /// that were going on.
    #[test]
    fn every_share_is_guaranteed(
        numbers in prop::array::uniform4(0u16..100),
        busy in prop::array::uniform4(any::<bool>()),
        overrun in 0u64..100,
    ) {
        let shares = Shares { fixed: numbers[0], edf: numbers[1], wfq: numbers[2], bert: 0 };
        let configuration =
            Configuration { shares, linux: Linux::Share(numbers[3]), ..Configuration::default() };
        let asks = [fixed(1), Asks::Deadline, weighted(5), fixed(0)];
        let tasks: Vec<Task> = (0..4)
            .map(|index| Task {
                load: if busy[index] { Load::Always } else { Load::Periodic {
                    period: micros(700), offset: micros(50), work: micros(120), jitter: micros(100),
                    deadline: micros(700),
                } },
                linux: index == 3,
                overrun: micros(overrun),
                ideal: Place { rank: 1, group: index as u8, share: numbers[index].max(1).into(), weight: 1 },
                ..always(asks[index])
            })
            .collect();
        let outcomes = simulate(&mut Schedule::new(configuration), &tasks, Duration::from_millis(500), 7);
        // Linux's slice is ended when the next look finds that somebody is owed a quantum.
        let late = micros(100 + 100 + 2 * (100 + overrun)) + 2 * micros(100);
        for outcome in &outcomes[..3] {
            prop_assert!(outcome.behind <= late, "{outcome:#?} of {outcomes:#?}");
        }
        let got: Duration = outcomes.iter().map(|outcome| outcome.got).sum();
        prop_assert!(!busy.contains(&true) || got >= micros(499_000), "work is conserved");
    }
}
