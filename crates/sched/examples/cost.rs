//! Turns of one policy and nothing else, so that their instructions can be counted:
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/cost fixed 100000 1000000
//! ```
//!
//! once with a number of turns and once with twice as many; the difference over that number is the cost of one
//! `dequeue`, `enqueue` (as the engine orders them: first the place, then the bill) and `charge`.

use std::hint::black_box;
use std::time::Duration;

use scoutline_base::{PathId, Random, Time};
use scoutline_sched::{
    Bert, Claim, Deadline, Edf, Entry, FixedPriority, Job, Level, Parameters, Policy, Schedule, Share,
    Weight, Wfq,
};

fn turns(
    policy: &mut impl Policy,
    paths: u32,
    turns: u64,
    parameters: impl Fn(u32, Time) -> Parameters,
) -> Time {
    let mut random = Random::new(1);
    let mut now = Time::ZERO;
    let entry = |index| Entry::Path(PathId { index, generation: 0 });
    for index in 0..paths {
        policy.enqueue(entry(index), parameters(index, now), now);
    }
    for _ in 0..turns {
        let Some(decision) = policy.dequeue(now) else { break };
        let spent = Duration::from_nanos(500 + u64::from(random.below(1000)));
        now += spent;
        if let Entry::Path(path) = decision.entry {
            policy.enqueue(decision.entry, parameters(path.index, now), now);
        }
        policy.charge(decision.entry, spent, now);
    }
    now
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, policy, paths, count] = &arguments[..] else { panic!("POLICY PATHS TURNS") };
    let (paths, count) = (paths.parse().expect("a number"), count.parse().expect("a number"));
    let at_level = |index: u32, _| Parameters::from(Level::Priority((index % 3) as u8));
    let due = |index: u32, now| Deadline::At(now + Duration::from_micros(u64::from(index % 1000))).into();
    let weighted = |index: u32, _| Weight::new(u64::from(index % 1000)).into();
    let in_class = |index: u32, _| {
        let class_weight = Weight::new(u64::from(1 + index % 50));
        Share { class: (index % 50) as u16, class_weight, weight: class_weight }.into()
    };
    // One in ten is important and real-time.
    let claim = |index: u32, now: Time| {
        let deadline = Deadline::At(Time::from_millis(now.as_millis() / 10 * 10 + 20));
        let job = Some(Job { deadline, work: Duration::from_micros(200) });
        Claim { rate: Weight::new(1 + u64::from(index % 9)), important: index.is_multiple_of(10), job }.into()
    };
    let end = match policy.as_str() {
        "fixed" => turns(&mut FixedPriority::default(), paths, count, at_level),
        "schedule" => turns(&mut Schedule::default(), paths, count, at_level),
        "edf" => turns(&mut Edf::default(), paths, count, due),
        "wfq" => turns(&mut Wfq::default(), paths, count, weighted),
        "wfq-classes" => turns(&mut Wfq::default(), paths, count, in_class),
        "bert" => turns(&mut Bert::default(), paths, count, claim),
        "schedule-wfq" => turns(&mut Schedule::default(), paths, count, weighted),
        "schedule-mixed" => turns(&mut Schedule::default(), paths, count, |index, now| match index % 3 {
            0 => at_level(index, now),
            1 => due(index, now),
            _ => weighted(index, now),
        }),
        other => panic!("no policy {other}"),
    };
    black_box(end);
}
