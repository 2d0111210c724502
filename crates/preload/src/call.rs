//! Questions to the engine: open, bind, listen, connect, options.

use std::sync::atomic::Ordering;

use scoutline_abi::Region;
use scoutline_abi::layout::{CALL_COUNT, Call, EXCLUSIVE, call_state, engine_state};

use crate::lock::undisturbed;
use crate::wait::{Set, Woken};
use crate::{attach, cancel, dispatch, engines, lock, real, slot, wait};

/// How often an answer is looked for before sleeping.
const SPINS: u32 = 200;
/// Between two looks of who does not sleep for it, in microseconds.
const PAUSE_US: u64 = 50;

/// Asks the engine of a slot; answers its result, an errno negated on failure.
pub(crate) fn call(op: u32, slot: u32, arguments: [u64; 4]) -> i32 {
    call_for(op, slot, arguments).0
}

/// Asks this engine something that is about no slot.
pub(crate) fn ask_engine(engine: usize, op: u32, arguments: [u64; 4]) -> i32 {
    let Some(region) = attach::region().filter(|_| !attach::dead()) else { return -libc::ECONNRESET };
    let asked = cancel::uncancelled(|| ask(region, engine, op, 0, arguments, 0));
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
    cancel::uncancelled(|| ask(region, engine, op, slot, arguments, more)).unwrap_or(gone)
}

/// `None`: the engine is gone.
///
/// As within a system call of Linux, no handler runs meanwhile: it could jump out, or fork, while the call is taken. What
/// ends the process without one does so also where the daemon does not answer.
fn ask(
    region: &Region,
    engine: usize,
    op: u32,
    slot: u32,
    arguments: [u64; 4],
    more: u64,
) -> Option<(i32, [u64; 4])> {
    let frame = 0u64; // its address tells where we are
    undisturbed(|| {
        let set = wait::set_to_ask(&raw const frame);
        ask_by(set, region, engine, (op, slot, arguments, more))
    })
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
    tell(region, engine, index);
    if !is_answered(call, set) {
        return None;
    }
    let result = call.result.load(Ordering::Relaxed);
    for (to, from) in arguments.iter_mut().zip(&call.arguments) {
        *to = from.load(Ordering::Relaxed);
    }
    put_back(region, index, call);
    Some((result, arguments))
}

/// Waits for the answer; false: the engine is gone.
fn is_answered(call: &Call, set: Option<Set>) -> bool {
    let done = || call.state.load(Ordering::Acquire) == call_state::DONE;
    let spun = (0..SPINS).any(|_| {
        std::hint::spin_loop();
        done()
    });
    if spun {
        return true;
    }
    let Some(set) = set else { return looked_for(call) };
    set.bell().enter(1 + EXCLUSIVE);
    let answered = loop {
        set.bell().before_look();
        if done() {
            break true;
        }
        match set.sleep(Some(real::now_ns() + dispatch::SLOW_NS), false) {
            Woken::Dead => break done(),
            Woken::TimedOut => dispatch::let_end(),
            _ => {}
        }
    };
    set.bell().leave(1 + EXCLUSIVE);
    answered
}

/// The engine hears that a call is posted.
fn tell(region: &Region, engine: usize, index: usize) {
    region.header().calls_pending[engine].0[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
    slot::wake_engine(region, engine, false);
    // A call is worth waking for even when the engine has given the core to Linux.
    if region.header().engines[engine].state.load(Ordering::Relaxed) == engine_state::AWAY {
        attach::ring(engine);
    }
}

/// Looks for the answer now and then; false: the engine is gone.
fn looked_for(call: &Call) -> bool {
    let mut slow = real::now_ns() + dispatch::SLOW_NS;
    loop {
        if call.state.load(Ordering::Acquire) == call_state::DONE {
            return true;
        }
        if attach::dead() {
            return false;
        }
        real::nap(PAUSE_US);
        if real::now_ns() > slow {
            dispatch::let_end();
            slow = real::now_ns() + dispatch::SLOW_NS;
        }
    }
}

fn put_back(region: &Region, index: usize, call: &Call) {
    // Whoever has it next is not yet there with its name: this process's end must not take it away.
    call.process.store(0, Ordering::Relaxed);
    call.state.store(call_state::FREE, Ordering::Release);
    region.header().calls_taken.0[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
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
