//! What every policy has to keep, as functions over [`Policy`]: each drives a fresh policy with random calls from
//! one seed, and panics with what went wrong.
//!
//! A policy runs all of the functions of its kind with many seeds; they are no part of a running engine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scoutline_base::{PathId, Random, Time};

use crate::{Charged, Entry, Level, Parameters, Policy};

/// Paths that take part.
const PATHS: u32 = 12;

/// One random call, as the suite makes them.
enum Call {
    Enqueue(Entry, Parameters),
    Remove(Entry),
    Dequeue,
}

fn random_entry(random: &mut Random) -> Entry {
    match random.below(PATHS + 1) {
        PATHS => Entry::Linux,
        index => Entry::Path(PathId { index, generation: 0 }),
    }
}

fn random_level(random: &mut Random) -> Level {
    match random.below(5) {
        0 => Level::Idle,
        4 => Level::Priority(Level::HIGHEST_PRIORITY),
        priority => Level::Priority(priority as u8 - 1),
    }
}

fn random_call(random: &mut Random) -> Call {
    let entry = random_entry(random);
    match random.below(10) {
        0..5 => Call::Enqueue(entry, Parameters { level: random_level(random) }),
        5 => Call::Remove(entry),
        _ => Call::Dequeue,
    }
}

/// Any policy: what is enqueued comes out exactly once, what is removed does not, readiness is told truly, and the
/// time charged adds up to the time given.
pub fn keeps_its_books(policy: &mut impl Policy, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut ready: BTreeSet<Entry> = BTreeSet::new();
    let mut charged = Charged::default();
    let mut now = Time::ZERO;
    for _ in 0..steps {
        match random_call(&mut random) {
            Call::Enqueue(entry, parameters) => {
                policy.enqueue(entry, parameters, now);
                ready.insert(entry);
            }
            Call::Remove(entry) => {
                policy.remove(entry);
                ready.remove(&entry);
            }
            Call::Dequeue => {
                let decision = policy.dequeue(now);
                assert_eq!(decision.is_none(), ready.is_empty(), "a policy that has work chooses some");
                let Some(decision) = decision else { continue };
                assert!(ready.remove(&decision.entry), "{:?} was not ready", decision.entry);
                let spent = Duration::from_nanos(random.below(100_000).into());
                now += spent;
                policy.charge(decision.entry, spent, now);
                match decision.entry {
                    Entry::Path(_) => charged.paths += spent,
                    Entry::Linux => charged.linux += spent,
                }
            }
        }
        for index in 0..PATHS {
            let entry = Entry::Path(PathId { index, generation: 0 });
            assert_eq!(policy.is_ready(entry), ready.contains(&entry), "{entry:?}");
        }
        assert_eq!(policy.is_ready(Entry::Linux), ready.contains(&Entry::Linux));
        assert_eq!(policy.is_idle(), ready.is_empty());
    }
    assert_eq!(policy.charged(), charged, "what was charged is what was given");
    assert_eq!(charged.paths + charged.linux, now.since(Time::ZERO));
}

/// Any policy: an id whose slot has a new path names nothing.
pub fn forgets_stale_paths(policy: &mut impl Policy) {
    let id = |generation| Entry::Path(PathId { index: 3, generation });
    policy.enqueue(id(0), Parameters::default(), Time::ZERO);
    policy.enqueue(id(1), Parameters::default(), Time::ZERO);
    assert!(!policy.is_ready(id(0)), "its slot belongs to another path");
    policy.remove(id(0));
    assert!(policy.is_ready(id(1)), "removing the old one leaves the new one");
    assert_eq!(policy.dequeue(Time::ZERO).map(|decision| decision.entry), Some(id(1)));
    assert_eq!(policy.dequeue(Time::ZERO), None);
}

/// Policies with levels: nothing is served while something at a higher level is ready. `linux` is Linux's level.
pub fn serves_the_highest_level(policy: &mut impl Policy, linux: Level, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut ready: BTreeMap<Entry, Level> = BTreeMap::new();
    for _ in 0..steps {
        match random_call(&mut random) {
            Call::Enqueue(entry, parameters) => {
                policy.enqueue(entry, parameters, Time::ZERO);
                ready.insert(entry, if entry == Entry::Linux { linux } else { parameters.level });
            }
            Call::Remove(entry) => {
                policy.remove(entry);
                ready.remove(&entry);
            }
            Call::Dequeue => {
                let highest = ready.values().max().copied();
                assert_eq!(policy.highest_ready(), highest);
                let Some(decision) = policy.dequeue(Time::ZERO) else { continue };
                assert_eq!(Some(decision.level), highest, "{decision:?}");
                assert_eq!(ready.remove(&decision.entry), highest);
                policy.charge(decision.entry, Duration::from_micros(random.below(60).into()), Time::ZERO);
            }
        }
    }
}

/// Policies with levels: inside one, paths take turns. Between two services of a path that stayed ready in
/// between, every other path of the level is served at most once; Linux follows its own rule and does not count.
pub fn takes_turns_within_a_level(policy: &mut impl Policy, level: Level, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    // For each ready path, who was served since it became ready.
    let mut waiting: BTreeMap<Entry, Vec<Entry>> = BTreeMap::new();
    for _ in 0..steps {
        let entry = random_entry(&mut random);
        if random.chance(0.3) {
            policy.enqueue(entry, Parameters { level }, Time::ZERO);
            waiting.entry(entry).or_default();
            continue;
        }
        let Some(decision) = policy.dequeue(Time::ZERO) else { continue };
        policy.charge(decision.entry, Duration::from_micros(random.below(30).into()), Time::ZERO);
        waiting.remove(&decision.entry);
        if decision.entry == Entry::Linux {
            continue;
        }
        for (path, served) in &mut waiting {
            if matches!(path, Entry::Path(_)) {
                assert!(
                    !served.contains(&decision.entry),
                    "{path:?} waited through two turns of {decision:?}"
                );
                served.push(decision.entry);
            }
        }
        // It still has work, mostly.
        if random.chance(0.8) {
            policy.enqueue(decision.entry, Parameters { level }, Time::ZERO);
            waiting.entry(decision.entry).or_default();
        }
    }
}
