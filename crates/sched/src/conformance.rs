//! What every policy has to keep, as functions over [`Policy`]: each drives a fresh policy with random calls from
//! one seed, and panics with what went wrong.
//!
//! A policy runs all of the functions of its kind with many seeds; they are no part of a running engine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scoutline_base::{PathId, Random, Time};

use crate::{Charged, Claim, Deadline, Entry, Job, Level, Parameters, Policy, Share, Weight};

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

/// What anyone may ask for; a policy has to serve those too who ask for what it does not know.
pub fn random_parameters(random: &mut Random, now: Time) -> Parameters {
    let weight = Weight::new(1 << random.below(14));
    let span = Duration::from_micros(random.below(3_000).into());
    let deadline = match random.below(3) {
        0 => Deadline::At(now + span),
        1 => Deadline::At(Time::from_micros(random.below(3_000).into())),
        _ => Deadline::After(span),
    };
    match random.below(5) {
        0 => random_level(random).into(),
        1 => deadline.into(),
        2 => weight.into(),
        3 => {
            let class_weight = Weight::new(1 << random.below(14));
            Share { class: random.below(3) as u16, class_weight, weight }.into()
        }
        _ => {
            let work = Duration::from_micros(random.below(2_000).into());
            let job = random.chance(0.6).then_some(Job { deadline, work });
            Claim { rate: weight, important: random.chance(0.5), job }.into()
        }
    }
}

/// `levels`: only levels are asked for.
fn random_call(random: &mut Random, now: Time, levels: bool) -> Call {
    let entry = random_entry(random);
    match random.below(10) {
        0..5 if levels => Call::Enqueue(entry, random_level(random).into()),
        0..5 => Call::Enqueue(entry, random_parameters(random, now)),
        5 => Call::Remove(entry),
        _ => Call::Dequeue,
    }
}

/// Any policy: what is enqueued comes out exactly once, what is removed does not, readiness is told truly, and the
/// time charged adds up to the time given. Runs are charged before or after their entries are enqueued again, some
/// are removed while they run, and time is charged to those who were not chosen, too. `levels`: only levels are asked
/// for.
pub fn keeps_its_books(policy: &mut impl Policy, levels: bool, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut books = Books::default();
    let mut now = Time::ZERO;
    for _ in 0..steps {
        match random_call(&mut random, now, levels) {
            Call::Enqueue(entry, parameters) => books.enqueue(policy, entry, parameters, now),
            Call::Remove(entry) => books.remove(policy, entry),
            Call::Dequeue => {
                let decision = policy.dequeue(now);
                assert_eq!(decision.is_none(), books.ready.is_empty(), "a policy that has work chooses some");
                let Some(decision) = decision else { continue };
                assert!(books.ready.remove(&decision.entry), "{:?} was not ready", decision.entry);
                assert!(!decision.quantum.time.is_zero() && decision.quantum.packets > 0, "{decision:?}");
                let start = now;
                now += Duration::from_nanos(random.below(300_000).into());
                let again = random_parameters(&mut random, now);
                match random.below(4) {
                    0 if !levels => books.enqueue(policy, decision.entry, again, start),
                    1 => books.remove(policy, decision.entry),
                    _ => {}
                }
                // Whether anything should interrupt it is a question at any time.
                policy.preempts(&decision, now);
                books.charge(policy, decision.entry, now.since(start), now);
                let early = random_entry(&mut random);
                let drop = Duration::from_nanos(random.below(200).into());
                now += drop;
                books.charge(policy, early, drop, now);
            }
        }
        books.check(policy);
    }
    assert_eq!(books.charged.paths + books.charged.linux, now.since(Time::ZERO));
    while let Some(decision) = policy.dequeue(now) {
        assert!(books.ready.remove(&decision.entry), "{:?} was not ready", decision.entry);
    }
    books.check(policy);
}

/// What a policy should know.
#[derive(Default)]
struct Books {
    ready: BTreeSet<Entry>,
    charged: Charged,
}

impl Books {
    fn enqueue(&mut self, policy: &mut impl Policy, entry: Entry, parameters: Parameters, now: Time) {
        policy.enqueue(entry, parameters, now);
        self.ready.insert(entry);
    }

    fn remove(&mut self, policy: &mut impl Policy, entry: Entry) {
        policy.remove(entry);
        self.ready.remove(&entry);
    }

    fn charge(&mut self, policy: &mut impl Policy, entry: Entry, spent: Duration, now: Time) {
        policy.charge(entry, spent, now);
        self.charged.add(entry, spent);
    }

    fn check(&self, policy: &impl Policy) {
        for index in 0..PATHS {
            let entry = Entry::Path(PathId { index, generation: 0 });
            assert_eq!(policy.is_ready(entry), self.ready.contains(&entry), "{entry:?}");
        }
        assert_eq!(policy.is_ready(Entry::Linux), self.ready.contains(&Entry::Linux));
        assert_eq!(policy.is_idle(), self.ready.is_empty());
        assert_eq!(policy.charged(), self.charged, "what was charged is what was given");
    }
}

/// Any policy: an id whose slot has a new path names nothing, whatever the two asked for.
pub fn forgets_stale_paths(policy: &mut impl Policy, seed: u64) {
    let mut random = Random::new(seed);
    let id = |generation| Entry::Path(PathId { index: 3, generation });
    for generation in 0..20 {
        let now = Time::from_micros(generation.into());
        let (old, new) = (id(generation), id(generation + 1));
        policy.enqueue(old, random_parameters(&mut random, now), now);
        // It runs, or waits, or has run, when the slot goes to another path.
        if random.chance(0.5) {
            assert_eq!(policy.dequeue(now).map(|decision| decision.entry), Some(old));
            if random.chance(0.5) {
                policy.charge(old, Duration::from_micros(random.below(500).into()), now);
            }
        }
        policy.enqueue(new, random_parameters(&mut random, now), now);
        assert!(!policy.is_ready(old), "its slot belongs to another path");
        policy.remove(old);
        policy.charge(old, Duration::from_micros(5), now);
        assert!(policy.is_ready(new), "removing the old one leaves the new one");
        assert_eq!(policy.dequeue(now).map(|decision| decision.entry), Some(new));
        assert_eq!(policy.dequeue(now), None);
        policy.remove(new);
    }
}

/// Any policy, for entries of which it promises this: one that stays ready gets its turn before `patience` is over,
/// though all others have work all the time, overrun their quanta, and come and go. `asks` gives what each asks for.
pub fn starves_nobody(
    policy: &mut impl Policy,
    asks: impl Fn(u32, Time) -> Parameters,
    (entries, patience): (u32, Duration),
    seed: u64,
    steps: usize,
) {
    let mut random = Random::new(seed);
    let entry = |index| Entry::Path(PathId { index, generation: 0 });
    let mut now = Time::ZERO;
    let mut waiting: BTreeMap<u32, Time> = BTreeMap::new();
    for index in 0..entries {
        policy.enqueue(entry(index), asks(index, now), now);
        waiting.insert(index, now);
    }
    for _ in 0..steps {
        let Some(decision) = policy.dequeue(now) else { break };
        let Entry::Path(path) = decision.entry else { panic!("Linux was never ready") };
        let since = waiting.remove(&path.index).expect("it was ready");
        assert!(now.since(since) <= patience, "{path} waited for {:?}", now.since(since));
        let start = now;
        let quantum = decision.quantum.time.as_nanos() as u32;
        let bound = if random.chance(0.1) { 3 * quantum } else { quantum };
        now += Duration::from_nanos(u64::from(random.below(bound)) + 1);
        if random.chance(0.9) {
            policy.enqueue(decision.entry, asks(path.index, start), start);
            waiting.insert(path.index, start);
        }
        policy.charge(decision.entry, now.since(start), now);
        let other = random.below(entries);
        policy.enqueue(entry(other), asks(other, now), now);
        waiting.entry(other).or_insert(now);
    }
    for (index, since) in waiting {
        assert!(now.since(since) <= patience, "{index} still waits after {:?}", now.since(since));
    }
}

/// Policies with levels: nothing is served while something at a higher level is ready. `linux` is Linux's level.
pub fn serves_the_highest_level(policy: &mut impl Policy, linux: Level, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut ready: BTreeMap<Entry, Level> = BTreeMap::new();
    for _ in 0..steps {
        match random_call(&mut random, Time::ZERO, true) {
            Call::Enqueue(entry, parameters) => {
                policy.enqueue(entry, parameters, Time::ZERO);
                ready.insert(entry, level_of(entry, parameters, linux));
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

fn level_of(entry: Entry, parameters: Parameters, linux: Level) -> Level {
    match (entry, parameters) {
        (Entry::Linux, _) => linux,
        (_, Parameters::Level(level)) => level,
        _ => Level::default(),
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
            policy.enqueue(entry, level.into(), Time::ZERO);
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
            policy.enqueue(decision.entry, level.into(), Time::ZERO);
            waiting.entry(decision.entry).or_default();
        }
    }
}
