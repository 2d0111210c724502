//! Every order in which the sides of shared memory can meet, within bounds (loom): no mark is lost, no sleeper sleeps
//! through what it waits for, and no byte of a ring is read before it was written.
//!
//! The files are those of the crate, included here over loom's atomics; which is why they take theirs from
//! `crate::sync`.
#![allow(dead_code, unreachable_pub, clippy::unused_self)] // each model uses a part of the included files, none is public
#![allow(unsafe_code)] // cells of the modelled ring; each block says why it holds

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/bell.rs"]
mod bell;
#[path = "../src/bitmap.rs"]
mod bitmap;
#[path = "../src/cursors.rs"]
mod cursors;

use bell::{EngineBell, SleeperBell};
use bitmap::Bitmap;
use cursors::Cursors;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use sync::{AtomicU32, AtomicU64, Ordering, fence};

const POLLING: u32 = 0;
const SLEEPING: u32 = 1;
const AWAY: u32 = 2;

/// Preemptions of one thread by another that are tried: three find every known lost wake-up of two sides (loom's
/// documentation), and end within seconds.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A pipe: bytes written, and somebody who waits for one.
#[derive(Default)]
struct Pipe {
    bytes: Mutex<u32>,
    written: Condvar,
}

impl Pipe {
    fn write(&self) {
        *self.bytes.lock().unwrap() += 1;
        self.written.notify_one();
    }

    /// Loom finds a thread that waits here for ever, and fails.
    fn read(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while *bytes == 0 {
            bytes = self.written.wait(bytes).unwrap();
        }
        *bytes = 0;
    }
}

/// Two words, so that the summary matters.
struct Map {
    summary: [AtomicU64; 1],
    words: [AtomicU64; 2],
}

impl Map {
    fn new() -> Map {
        Map { summary: [AtomicU64::new(0)], words: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    fn bits(&self) -> Bitmap<'_> {
        Bitmap::new(&self.summary, &self.words)
    }
}

#[test]
fn marks_are_taken_once_and_none_is_lost() {
    model(|| {
        let map = Arc::new(Map::new());
        let marker = |index: usize| {
            let map = Arc::clone(&map);
            thread::spawn(move || map.bits().set(index))
        };
        let threads = [marker(3), marker(70)];
        let mut seen = Vec::new();
        map.bits().drain(|index| seen.push(index));
        for thread in threads {
            thread.join().unwrap();
        }
        map.bits().drain(|index| seen.push(index));
        seen.sort_unstable();
        assert_eq!(seen, [3, 70]);
    });
}

#[test]
fn what_is_marked_is_seen_with_its_mark() {
    model(|| {
        let shared = Arc::new((Map::new(), AtomicU64::new(0)));
        let writer = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            writer.1.store(7, Ordering::Relaxed);
            writer.0.bits().set(65);
        });
        shared.0.bits().drain(|_| assert_eq!(shared.1.load(Ordering::Relaxed), 7));
        thread.join().unwrap();
    });
}

#[test]
fn a_look_does_not_lose_marks() {
    model(|| {
        let map = Arc::new(Map::new());
        map.bits().set(64);
        map.bits().clear(64);
        let marker = Arc::clone(&map);
        let thread = thread::spawn(move || {
            marker.bits().set(64);
        });
        // Finds the word empty and clears its summary bit, perhaps while it is being set.
        map.bits().visit(0, |_| true);
        thread.join().unwrap();
        let mut seen = 0;
        map.bits().drain(|_| seen += 1);
        assert_eq!(seen, 1);
    });
}

#[test]
fn the_engine_does_not_sleep_through_a_mark() {
    model(|| {
        let shared = Arc::new((Map::new(), AtomicU32::new(POLLING), Pipe::default()));
        let program = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (map, state, pipe) = &*shared;
                map.bits().set(index);
                let bell = EngineBell(state);
                if bell.look_after_mark() == SLEEPING && bell.claim(SLEEPING, POLLING) {
                    pipe.write();
                }
            })
        };
        let programs = [program(1), program(70)];
        let (map, state, pipe) = &*shared;
        let bell = EngineBell(state);
        let mut seen = 0;
        while seen < 2 {
            map.bits().drain(|_| seen += 1);
            if seen == 2 {
                break;
            }
            bell.publish(SLEEPING);
            if map.bits().is_empty() {
                pipe.read();
            }
            bell.publish(POLLING);
        }
        for program in programs {
            program.join().unwrap();
        }
    });
}

/// A program has nothing to do, and gives the core back; from then on marks ring.
#[test]
fn the_engine_hears_of_marks_once_the_core_is_given_back() {
    model(|| {
        let shared = Arc::new((Map::new(), AtomicU32::new(AWAY), Pipe::default()));
        let spinner = Arc::clone(&shared);
        let spinner = thread::spawn(move || {
            let (_, state, pipe) = &*spinner;
            if EngineBell(state).claim(AWAY, SLEEPING) {
                pipe.write();
            }
        });
        let marker = Arc::clone(&shared);
        let marker = thread::spawn(move || {
            let (map, state, pipe) = &*marker;
            map.bits().set(70);
            let bell = EngineBell(state);
            if bell.look_after_mark() == SLEEPING && bell.claim(SLEEPING, POLLING) {
                pipe.write();
            }
        });
        let (map, state, pipe) = &*shared;
        let mut seen = 0;
        while seen == 0 {
            pipe.read();
            EngineBell(state).publish(SLEEPING);
            map.bits().drain(|_| seen += 1);
        }
        spinner.join().unwrap();
        marker.join().unwrap();
    });
}

#[test]
fn a_thread_does_not_sleep_through_what_it_waits_for() {
    model(|| {
        let shared = Arc::new((AtomicU64::new(0), AtomicU32::new(0), AtomicU32::new(0), Pipe::default()));
        let engine = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (tail, sleepers, signalled, pipe) = &*engine;
            let bell = SleeperBell { sleepers, signalled };
            for position in 1..=2 {
                tail.store(position, Ordering::Release);
                fence(Ordering::SeqCst);
                if bell.has_sleepers() && bell.claim() {
                    pipe.write();
                }
            }
        });
        let (tail, sleepers, signalled, pipe) = &*shared;
        let bell = SleeperBell { sleepers, signalled };
        bell.enter(1);
        loop {
            bell.before_look();
            if tail.load(Ordering::Acquire) == 2 {
                break;
            }
            pipe.read();
            bell.drained();
        }
        bell.leave(1);
        thread.join().unwrap();
    });
}

/// A ring of two cells between the cursors that are shipped.
struct Ring {
    bytes: [UnsafeCell<u64>; Ring::SIZE as usize],
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: the cells are touched as the cursors allow, which is what loom checks here.
unsafe impl Sync for Ring {}
// SAFETY: as above.
unsafe impl Send for Ring {}

impl Ring {
    const SIZE: u64 = 2;

    fn new() -> Ring {
        let bytes = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Ring { bytes, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    fn cursors(&self) -> Cursors<'_> {
        Cursors { head: &self.head, tail: &self.tail }
    }

    fn put(&self, position: u64, value: u64) {
        self.bytes[(position % Ring::SIZE) as usize].with_mut(|byte| {
            // SAFETY: the reader is behind: loom fails otherwise.
            unsafe { *byte = value };
        });
    }

    fn take(&self, position: u64) -> u64 {
        self.bytes[(position % Ring::SIZE) as usize].with(|byte| {
            // SAFETY: the writer is ahead: loom fails otherwise.
            unsafe { *byte }
        })
    }
}

#[test]
fn a_ring_is_read_behind_and_written_ahead() {
    model(|| {
        let ring = Arc::new(Ring::new());
        let writer = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            let cursors = writer.cursors();
            for value in 0..3u64 {
                let tail = cursors.own_tail();
                while tail - cursors.freed() == Ring::SIZE {
                    thread::yield_now();
                }
                writer.put(tail, value);
                cursors.publish(tail + 1);
            }
        });
        let cursors = ring.cursors();
        for expected in 0..3u64 {
            let head = cursors.own_head();
            while cursors.written() == head {
                thread::yield_now();
            }
            assert_eq!(ring.take(head), expected);
            cursors.free(head + 1);
        }
        thread.join().unwrap();
    });
}

/// As programs and the engine use it: several bytes at once, as many as there is room for or are there.
#[test]
fn several_at_once_are_as_many_as_there_are() {
    model(|| {
        let ring = Arc::new(Ring::new());
        let writer = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            let cursors = writer.cursors();
            let mut value = 0;
            while value < 3 {
                let room = Ring::SIZE - cursors.held();
                let (tail, some) = (cursors.own_tail(), room.min(3 - value));
                (0..some).for_each(|step| writer.put(tail + step, value + step));
                cursors.publish(tail + some);
                value += some;
                thread::yield_now();
            }
        });
        let cursors = ring.cursors();
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let (head, held) = (cursors.own_head(), cursors.held());
            assert!(held <= Ring::SIZE);
            seen.extend((0..held).map(|step| ring.take(head + step)));
            cursors.free_then_look(head + held);
            thread::yield_now();
        }
        assert_eq!(seen, [0, 1, 2]);
        thread.join().unwrap();
    });
}
