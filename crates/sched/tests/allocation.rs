//! No policy allocates once it has seen as many paths as ever live at a time: counted by the allocator itself.
#![allow(unsafe_code)] // an allocator is unsafe by its nature

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scoutline_base::{PathId, Random, Time};
use scoutline_sched::conformance::random_parameters;
use scoutline_sched::{Bert, Edf, Entry, FixedPriority, Policy, Schedule, Wfq};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` above with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PATHS: u32 = 2_000;

/// Everyone comes, asks for something, changes it, runs and goes.
fn drive(policy: &mut impl Policy, random: &mut Random, steps: u32, start: Time) -> Time {
    let mut now = start;
    for _ in 0..steps {
        let entry = Entry::Path(PathId { index: random.below(PATHS), generation: random.below(2) });
        let parameters = random_parameters(random, now);
        policy.enqueue(entry, parameters, now);
        if random.chance(0.1) {
            policy.remove(entry);
        }
        if random.chance(0.5)
            && let Some(decision) = policy.dequeue(now)
        {
            now += Duration::from_nanos(random.below(100_000).into());
            policy.charge(decision.entry, Duration::from_micros(50), now);
        }
    }
    now
}

fn allocations_of(mut policy: impl Policy) -> usize {
    let mut random = Random::new(5);
    // All at once, in every policy and at every place.
    let mut now = Time::ZERO;
    for _ in 0..200 {
        for index in 0..PATHS {
            let parameters = random_parameters(&mut random, now);
            policy.enqueue(Entry::Path(PathId { index, generation: 0 }), parameters, now);
        }
    }
    now = drive(&mut policy, &mut random, 200_000, now);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drive(&mut policy, &mut random, 100_000, now);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// One test for all: a second one beside it would be counted too.
#[test]
fn none_in_steady_state() {
    assert_eq!(allocations_of(FixedPriority::default()), 0, "fixed priority");
    assert_eq!(allocations_of(Edf::default()), 0, "EDF");
    assert_eq!(allocations_of(Wfq::default()), 0, "WFQ");
    assert_eq!(allocations_of(Bert::default()), 0, "BERT");
    assert_eq!(allocations_of(Schedule::default()), 0, "schedule");
}
