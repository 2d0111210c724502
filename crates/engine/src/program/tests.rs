//! Slots, which woken threads count as waiting for a core, and when their bells ring.

use std::os::fd::FromRawFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use scoutline_abi::layout::SLOT_COUNT;

use super::*;
use crate::sys;

/// The engine's core.
const CORE: usize = 0;

/// A program with so many poll sets, a thread asleep on each.
fn asleep(sets: u32) -> Program {
    with_pipes(sets).0
}

/// The same, with the ends of the pipes on which they sleep.
fn with_pipes(sets: u32) -> (Program, Vec<OwnedFd>) {
    let (region, _) = Region::create().unwrap();
    let extension = Rc::new(Extension::new(crate::extend::Threads::new(None, None), 0));
    let facts = ProgramFacts::default();
    let engine = OfEngine {
        several: Several::default(),
        wakes: Rc::default(),
        turns: Rc::default(),
        core: Some(CORE),
        put_off: Rc::default(),
        extension,
    };
    let program = Program::new(RegionId(1), facts, 1, Arc::new(region), engine);
    let mut pipes = Vec::new();
    for set in 0..sets {
        let mut ends = [0; 2];
        // SAFETY: fills two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) }, 0);
        // SAFETY: just made, and owned by nobody else.
        let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        program.add_set(set, Arc::new(write), 1);
        program.region.set(set).unwrap().sleepers.store(1, Ordering::SeqCst);
        pipes.push(read);
    }
    (program, pipes)
}

/// How many bytes stand in a pipe; they are taken.
fn rung(pipe: &OwnedFd) -> usize {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer outlives the call.
    let got = unsafe { libc::read(pipe.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(got).unwrap_or(0)
}

#[test]
fn every_slot_is_given_once_and_marks_of_no_slot_cost_nothing() {
    let program = asleep(0);
    let used = &program.region.header().slots_used[0];
    program.region.dirty().set(1);
    assert!(!program.has_called(), "none was given yet");
    for slot in 0..SLOT_COUNT as u32 {
        assert_eq!(program.take_slot(slot_kind::STREAM), Some(slot), "the lowest first");
        assert_eq!(used.load(Ordering::Relaxed), slot + 1);
        assert!(program.has_called(), "a mark in its word is found from then on");
    }
    assert_eq!(program.take_slot(slot_kind::STREAM), None);
    // Whatever the program writes.
    used.store(0, Ordering::Relaxed);
    program.give_slot(40_000);
    assert_eq!(program.words_used(), 0..SLOT_COUNT / 64);
    assert_eq!(program.take_slot(slot_kind::STREAM), Some(40_000), "what was given back");
    assert_eq!(program.take_slot(slot_kind::STREAM), None);
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

/// A thread that does nothing until told, on this core alone or on any; its id.
fn idler(core: Option<usize>) -> (u32, impl Drop) {
    struct Told(Option<Sender<()>>, Option<JoinHandle<()>>);
    impl Drop for Told {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.take().unwrap().join().unwrap();
        }
    }
    let ((tell, told), (say, said)) = (channel::<()>(), channel());
    let thread = thread::spawn(move || {
        match core {
            Some(core) => sys::pin(core).unwrap(),
            None => sys::run_anywhere(),
        }
        // SAFETY: no arguments.
        say.send(unsafe { libc::gettid() }.cast_unsigned()).unwrap();
        let _ = told.recv();
    });
    (said.recv().unwrap(), Told(Some(tell), Some(thread)))
}

#[test]
fn who_can_run_on_the_engines_core_alone_is_woken_when_it_is_given_away() {
    let (program, pipes) = with_pipes(3);
    let ((here, _one), (anywhere, _other)) = (idler(Some(CORE)), idler(None));
    for (set, thread) in [here, anywhere, 0].into_iter().enumerate() {
        program.region.set(set as u32).unwrap().thread.store(thread, Ordering::SeqCst);
    }
    wake_all(&program, 3);
    let rings = || pipes.iter().map(rung).collect::<Vec<_>>();
    assert_eq!(rings(), [0, 1, 1], "who may run elsewhere, or is not known, is woken at once");
    assert_eq!(program.wakes.get(), 3);
    assert!(!program.wake_set(0, Duty::default()), "once");
    program.ring_put_off();
    assert_eq!(rings(), [1, 0, 0]);
    program.ring_put_off();
    assert_eq!(rings(), [0, 0, 0], "once");
}

#[test]
fn a_set_that_is_given_back_is_not_rung() {
    let (program, pipes) = with_pipes(1);
    let (here, _idler) = idler(Some(CORE));
    program.region.set(0).unwrap().thread.store(here, Ordering::SeqCst);
    wake_all(&program, 1);
    program.remove_set(0);
    let (_, write) = std::io::pipe().unwrap();
    program.add_set(0, Arc::new(OwnedFd::from(write)), 1);
    program.ring_put_off();
    assert_eq!(rung(&pipes[0]), 0);
}
