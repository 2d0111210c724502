//! Which woken threads count as waiting for a core.

use std::os::fd::FromRawFd;

use super::*;

/// A program with so many poll sets, a thread asleep on each.
fn asleep(sets: u32) -> Program {
    let (region, _) = Region::create().unwrap();
    let extension = Rc::new(Extension::new(crate::extend::Threads::new(None, None), 0));
    let facts = ProgramFacts::default();
    let engine = OfEngine {
        several: Several::default(),
        wakes: Rc::default(),
        turns: Rc::default(),
        tracks_woken: true,
        extension,
    };
    let program = Program::new(RegionId(1), facts, 1, Arc::new(region), engine);
    for set in 0..sets {
        let mut ends = [0; 2];
        // SAFETY: fills two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: just made, and owned by nobody else.
        let [_, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        program.add_set(set, Arc::new(write), 1);
        program.region.set(set).unwrap().sleepers.store(1, Ordering::SeqCst);
    }
    program
}

fn wake_all(program: &Program, sets: u32) {
    for set in 0..sets {
        assert!(program.wake_set(set, Duty::default()), "{set}");
    }
}

/// As the shim does when its thread runs.
fn run(program: &Program, set: u32) {
    program.region.set(set).unwrap().signalled.store(0, Ordering::SeqCst);
}

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

#[test]
fn threads_of_a_stopped_program_do_not_count_for_ever() {
    let program = asleep(8);
    wake_all(&program, 8);
    assert_eq!(program.backlog(at(100)), 8);
    assert_eq!(program.backlog(at(100)), 8, "Linux has not run since");
    assert_eq!(program.backlog(at(2000)), 8);
    assert_eq!(program.backlog(at(2200)), 0);
    // It goes on, and is woken anew.
    (0..8).for_each(|set| run(&program, set));
    wake_all(&program, 8);
    assert_eq!((program.backlog(at(5000)), program.backlog(at(6900))), (8, 8));
}

#[test]
fn threads_that_run_one_after_the_other_count_until_they_have() {
    let program = asleep(8);
    wake_all(&program, 8);
    for set in 0..8 {
        let now = u64::from(set) * 1900;
        assert_eq!(program.backlog(at(now)), 8 - set as usize, "{set} have run");
        run(&program, set);
    }
    assert_eq!(program.backlog(at(100_000)), 0);
}
