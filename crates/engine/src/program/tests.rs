//! Slots, which woken threads count as waiting for a core, who is woken to accept, and when bells ring.

use std::os::fd::FromRawFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use scoutline_abi::layout::SLOT_COUNT;

use super::*;
use crate::program::put_off::Home;
use crate::several::Mouth;
use crate::sys;

/// The engine's core.
const CORE: usize = 0;

/// A listening socket.
const LISTENER: u32 = 3;
/// Cores as poll sets have them.
const HERE: Option<NonZeroU32> = NonZeroU32::new(1);
const THERE: Option<NonZeroU32> = NonZeroU32::new(2);

/// A program with so many poll sets, a thread asleep on each.
fn asleep(sets: u32) -> Program {
    with_pipes(sets).0
}

/// The same under one of several engines.
fn asleep_under(several: Several, sets: u32) -> Program {
    pipes_under(several, sets).0
}

/// The same, with the ends of the pipes on which they sleep.
fn with_pipes(sets: u32) -> (Program, Vec<OwnedFd>) {
    pipes_under(Several::default(), sets)
}

fn pipes_under(several: Several, sets: u32) -> (Program, Vec<OwnedFd>) {
    let (region, _) = Region::create().unwrap();
    let extension = Rc::new(Extension::new(crate::extend::Threads::new(None, None), 0));
    let facts = ProgramFacts::default();
    let engine = OfEngine {
        several,
        wakes: Rc::default(),
        turns: Rc::default(),
        core: Some(CORE),
        put_off: Rc::default(),
        early: Rc::default(),
        extension,
    };
    let program = Program::new(RegionId(1), facts, 1, Arc::new(region), engine);
    program.put_off.of_all.home.set(Some(Home { core: CORE, priority: 50 }));
    let mut pipes = Vec::new();
    for set in 0..sets {
        let mut ends = [0; 2];
        // SAFETY: fills two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) }, 0);
        // SAFETY: just made, and owned by nobody else.
        let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        program.add_set(set, Arc::new(write), std::process::id());
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

/// Threads that wait for connections at [`LISTENER`], each on its core; `weight`: as they sleep.
fn waiting(weight: u32, cores: &[Option<NonZeroU32>]) -> Program {
    let program = asleep(cores.len() as u32);
    for (set, core) in (0..).zip(cores) {
        let shared = program.region.set(set).unwrap();
        shared.sleepers.store(weight, Ordering::SeqCst);
        shared.cpu_plus_one.store(core.map_or(0, NonZeroU32::get), Ordering::SeqCst);
        watch(&program, set);
    }
    program
}

fn watch(program: &Program, set: u32) {
    let slot = program.slot(LISTENER);
    slot.sets[set as usize / 64].fetch_or(1 << (set % 64), Ordering::SeqCst);
    slot.sets_summary.fetch_or(1 << (set / 64), Ordering::SeqCst);
}

fn take_alone(program: &Program, sets: Range<u32>) {
    sets.for_each(|set| program.region.set(set).unwrap().one_takes.store(1, Ordering::SeqCst));
}

/// Which of them have been woken, and which were told to look at the socket.
fn woken_and_told(program: &Program, sets: u32) -> [Vec<u32>; 2] {
    let shared = |set: &u32| program.region.set(*set).unwrap();
    let woken = (0..sets).filter(|set| shared(set).signalled.load(Ordering::SeqCst) == 1);
    let told = (0..sets).filter(|set| !program.region.ready(shared(set)).is_empty());
    [woken.collect(), told.collect()]
}

/// A connection that lives on this core.
fn connect(program: &Program, near: Option<NonZeroU32>) -> u64 {
    program.signal(LISTENER, true, near, Duty::default())
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
    program.add_set(0, Arc::new(OwnedFd::from(write)), std::process::id());
    program.ring_put_off();
    assert_eq!(rung(&pipes[0]), 0);
}

#[test]
fn of_threads_in_accept_those_on_the_connections_core_come_first() {
    let program = waiting(1 + EXCLUSIVE, &[HERE, THERE, THERE, None]);
    for (connections, woken) in [vec![1], vec![1, 2], vec![0, 1, 2], vec![0, 1, 2, 3]].into_iter().enumerate()
    {
        // Who has been woken is busy, on whichever core: another one that sleeps is not left asleep for it.
        assert_eq!(connect(&program, THERE), 1, "connection {connections}");
        assert_eq!(woken_and_told(&program, 4), [woken, vec![]]);
    }
    assert_eq!(connect(&program, THERE), 0, "all have something to do");
}

#[test]
fn who_does_not_sleep_is_not_chosen_for_its_core() {
    let program = waiting(1 + EXCLUSIVE, &[HERE, THERE]);
    program.region.set(1).unwrap().sleepers.store(0, Ordering::SeqCst);
    assert_eq!(connect(&program, THERE), 1);
    assert_eq!(woken_and_told(&program, 2), [vec![0], vec![1]], "that one looks when it comes to it");
}

#[test]
fn a_thread_elsewhere_accepts_where_none_is_near() {
    for near in [None, THERE, NonZeroU32::new(u32::MAX)] {
        let program = waiting(1 + EXCLUSIVE, &[HERE, HERE]);
        assert_eq!(connect(&program, near), 1);
        assert_eq!(woken_and_told(&program, 2), [vec![0], vec![]], "{near:?}");
    }
}

#[test]
fn of_epolls_that_take_alone_only_the_near_one_hears() {
    let program = waiting(1, &[HERE, THERE, THERE]);
    take_alone(&program, 0..3);
    assert_eq!(connect(&program, THERE), 1);
    assert_eq!(woken_and_told(&program, 3), [vec![1], vec![1]]);
    // It is busy now; the next near one hears, and then whoever sleeps. Those that do not sleep find it when they look.
    assert_eq!(connect(&program, THERE), 1);
    assert_eq!(woken_and_told(&program, 3), [vec![1, 2], vec![1, 2]]);
    assert_eq!(connect(&program, THERE), 1);
    assert_eq!(woken_and_told(&program, 3), [vec![0, 1, 2], vec![0, 1, 2]]);
}

#[test]
fn epolls_that_may_wait_for_other_things_all_hear() {
    let program = waiting(1, &[HERE, THERE]);
    assert_eq!(connect(&program, THERE), 2);
    assert_eq!(woken_and_told(&program, 2), [vec![0, 1], vec![0, 1]]);
}

#[test]
fn the_near_one_of_those_that_take_alone_comes_before_other_near_ones() {
    let program = waiting(1, &[THERE, HERE, THERE]);
    take_alone(&program, 1..3);
    assert_eq!(connect(&program, THERE), 2);
    assert_eq!(woken_and_told(&program, 3), [vec![0, 2], vec![0, 2]], "and not the one elsewhere");
}

#[test]
fn the_thread_that_runs_for_an_important_connection_is_a_near_one() {
    let program = waiting(1, &[HERE, THERE]);
    let slot = program.slot(LISTENER);
    let accepts = |near: Option<NonZeroU32>| {
        program.who_accepts(slot, near.and_then(|core| program.sleeper_on(slot, core)))
    };
    assert_eq!([accepts(None), accepts(HERE), accepts(THERE)], [Some(0), Some(0), Some(1)]);
    program.region.set(1).unwrap().signalled.store(1, Ordering::SeqCst);
    assert_eq!(accepts(THERE), Some(0), "it is busy");
    program.region.set(0).unwrap().signalled.store(1, Ordering::SeqCst);
    assert_eq!(accepts(THERE), Some(0), "all are");
}

#[test]
fn what_is_for_all_is_told_to_all_on_whichever_core() {
    let program = waiting(1 + EXCLUSIVE, &[HERE, THERE]);
    assert_eq!(program.signal(LISTENER, false, THERE, Duty::default()), 2);
}

#[test]
fn a_connection_is_near_the_core_of_its_engine() {
    let tell = |program: &Program| {
        let words = program.region.header().engines.iter();
        words
            .zip([1, 2, 0, u32::MAX])
            .for_each(|(word, core)| word.cpu_plus_one.store(core, Ordering::SeqCst));
    };
    let mouths = || vec![Mouth::new(channel().0, sys::eventfd().unwrap()); 3];
    let program = asleep_under(Several::new(0, mouths()), 0);
    tell(&program);
    let cores = [0, 1, 2].map(|engine| program.core_of(slots_of(engine, 3).start as u32));
    assert_eq!(cores, [HERE, THERE, None], "the third is not pinned");
    assert_eq!(program.core_of(u32::MAX), NonZeroU32::new(u32::MAX), "whatever a program writes");
    let alone = asleep(0);
    tell(&alone);
    assert_eq!(alone.core_of(0), None, "with one engine nobody looks at cores");
}

#[test]
fn who_may_not_have_to_wait_for_the_engine_is_woken_at_once() {
    let (here, _idler) = idler(Some(CORE));
    let is_rung = |change: &dyn Fn(&Program)| {
        let (program, pipes) = with_pipes(1);
        program.region.set(0).unwrap().thread.store(here, Ordering::SeqCst);
        change(&program);
        wake_all(&program, 1);
        rung(&pipes[0]) == 1
    };
    assert!(!is_rung(&|_| {}));
    assert!(is_rung(&|program| program.put_off.of_all.home.set(None)), "the engine is an ordinary thread");
    assert!(is_rung(&|program| program.put_off.of_all.home.set(Some(Home { core: CORE + 1, priority: 50 }))));
    assert!(
        is_rung(&|program| program.put_off.of_all.home.set(Some(Home { core: CORE, priority: 0 }))),
        "above it"
    );
    let two = |program: &Program| program.region.set(0).unwrap().sleepers.store(2, Ordering::SeqCst);
    assert!(is_rung(&two), "another one sleeps there, too");
    assert!(
        is_rung(&|program| program.region.set(0).unwrap().thread.store(1, Ordering::SeqCst)),
        "not its own"
    );
}
