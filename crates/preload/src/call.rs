//! Questions to the engine: open, bind, listen, connect, options.

use std::sync::atomic::Ordering;

use scoutline_abi::Region;
use scoutline_abi::layout::{CALL_COUNT, Call, EXCLUSIVE, call_state, engine_state};
use scoutline_ring::EngineBell;

use crate::wait::{Set, Woken};
use crate::{attach, engines, lock, real, wait};

/// How often an answer is looked for before sleeping.
const SPINS: u32 = 200;

/// Asks the engine of a slot; answers its result, an errno negated on failure.
pub(crate) fn call(op: u32, slot: u32, arguments: [u64; 4]) -> i32 {
    call_for(op, slot, arguments).0
}

/// Asks this engine something that is about no slot.
pub(crate) fn ask_engine(engine: usize, op: u32, arguments: [u64; 4]) -> i32 {
    let Some(region) = attach::region().filter(|_| !attach::dead()) else { return -libc::ECONNRESET };
    let asked = real::uncancelled(|| ask(region, engine, op, 0, arguments, 0));
    asked.map_or(-libc::ECONNRESET, |(result, _)| result)
}

/// The same for a call that is answered with words, too.
pub(crate) fn call_for(op: u32, slot: u32, arguments: [u64; 4]) -> (i32, [u64; 4]) {
    call_with(op, slot, arguments, 0)
}

/// The same for a call that has one argument more.
pub(crate) fn call_with(op: u32, slot: u32, arguments: [u64; 4], more: u64) -> (i32, [u64; 4]) {
    let gone = (-libc::ECONNRESET, [0; 4]);
    let Some(region) = attach::region() else { return gone };
    if attach::dead() {
        return gone;
    }
    let engine = engines::of_slot(region, slot);
    real::uncancelled(|| ask(region, engine, op, slot, arguments, more)).unwrap_or(gone)
}

/// `None`: the engine is gone.
fn ask(
    region: &Region,
    engine: usize,
    op: u32,
    slot: u32,
    arguments: [u64; 4],
    more: u64,
) -> Option<(i32, [u64; 4])> {
    let frame = 0u64; // its address tells where we are
    let using = wait::use_set_to_ask(&raw const frame);
    let result = ask_by(using.map(|(set, _)| set), region, engine, (op, slot, arguments, more));
    if let Some((_, using)) = using {
        wait::used(using);
    }
    result
}

/// The same by a set of the calling thread's, which nobody else uses; `None`: it looks for the answer now and then.
fn ask_by(
    set: Option<Set>,
    region: &Region,
    engine: usize,
    (op, slot, mut arguments, more): (u32, u32, [u64; 4], u64),
) -> Option<(i32, [u64; 4])> {
    let (index, call) = take();
    call.op.store(op, Ordering::Relaxed);
    call.slot.store(slot, Ordering::Relaxed);
    call.process.store(attach::process() + 1, Ordering::Relaxed);
    call.set.store(set.map_or(0, |set| set.number + 1), Ordering::Relaxed);
    for (to, from) in call.arguments.iter().zip(arguments) {
        to.store(from, Ordering::Relaxed);
    }
    call.more.store(more, Ordering::Relaxed);
    call.state.store(call_state::POSTED, Ordering::Release);
    region.header().calls_pending[engine].0[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
    let bell = EngineBell(&region.header().engines[engine].state);
    if bell.look_after_mark() != engine_state::POLLING {
        // A call is worth waking for even when the engine has given the core to Linux.
        bell.claim(engine_state::SLEEPING, engine_state::POLLING);
        attach::ring(engine);
    }
    let done = || call.state.load(Ordering::Acquire) == call_state::DONE;
    if !(0..SPINS).any(|_| {
        std::hint::spin_loop();
        done()
    }) {
        let alive = match set {
            Some(set) => {
                set.bell().enter(1 + EXCLUSIVE);
                let alive = loop {
                    set.bell().before_look();
                    if done() {
                        break true;
                    }
                    if set.drain() == Woken::Dead {
                        break done();
                    }
                };
                set.bell().leave(1 + EXCLUSIVE);
                alive
            }
            None => loop {
                if done() {
                    break true;
                }
                if attach::dead() {
                    break false;
                }
                real::nap(50);
            },
        };
        if !alive {
            return None;
        }
    }
    let result = call.result.load(Ordering::Relaxed);
    for (to, from) in arguments.iter_mut().zip(&call.arguments) {
        *to = from.load(Ordering::Relaxed);
    }
    call.state.store(call_state::FREE, Ordering::Release);
    region.header().calls_taken.0[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
    Some((result, arguments))
}

/// A free call, taken.
fn take() -> (usize, &'static Call) {
    let mut tries = 0;
    loop {
        if let Some(region) = attach::region() {
            for (w, word) in region.header().calls_taken.0.iter().enumerate() {
                let free = !word.load(Ordering::Relaxed);
                if free == 0 {
                    continue;
                }
                let bit = free.trailing_zeros();
                let index = w * 64 + bit as usize;
                if index < CALL_COUNT
                    && word.fetch_or(1 << bit, Ordering::AcqRel) & (1 << bit) == 0
                    && let Some(call) = region.call(index as u32)
                {
                    return (index, call);
                }
            }
        }
        lock::back_off(tries);
        tries += 1;
    }
}
