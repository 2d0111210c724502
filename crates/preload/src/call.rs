//! Questions to the engine: open, bind, listen, connect, options.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use scoutline_abi::Region;
use scoutline_abi::layout::{CALL_COUNT, Call, EXCLUSIVE, call_op, call_state, engine_state};

use crate::slot::{self, Socket};
use crate::wait::{Set, Woken};
use crate::{attach, engines, lock, real, wait};

/// How often an answer is looked for before sleeping.
const SPINS: u32 = 200;
/// Between two looks of who does not sleep for it, in microseconds.
const PAUSE_US: u64 = 50;

/// As deep handlers within handlers ask, at most: whatever is older has been left by a jump.
const DEEPEST: usize = 8;

/// The calls by which a thread asks, the innermost last: engine and index. One stands here still once a handler has jumped
/// out of it.
#[derive(Clone, Copy)]
struct Asked {
    calls: [(usize, usize); DEEPEST],
    count: usize,
}

thread_local! {
    static ASKED: Cell<Asked> = const { Cell::new(Asked { calls: [(0, 0); DEEPEST], count: 0 }) };
}

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
    if using.is_some() {
        give_up(region, 0); // nobody asks further out
    } else if ASKED.get().count == DEEPEST {
        give_up(region, DEEPEST - 1);
    }
    let result = ask_by(using.and_then(|(set, _)| set), region, engine, (op, slot, arguments, more));
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
    ASKED.set(ASKED.get().with(engine, index));
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
            None => looked_for(call),
        };
        if !alive {
            ASKED.set(ASKED.get().without(engine, index));
            return None;
        }
    }
    let result = call.result.load(Ordering::Relaxed);
    for (to, from) in arguments.iter_mut().zip(&call.arguments) {
        *to = from.load(Ordering::Relaxed);
    }
    ASKED.set(ASKED.get().without(engine, index));
    put_back(region, index, call);
    Some((result, arguments))
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
    loop {
        if call.state.load(Ordering::Acquire) == call_state::DONE {
            return true;
        }
        if attach::dead() {
            return false;
        }
        real::nap(PAUSE_US);
    }
}

fn put_back(region: &Region, index: usize, call: &Call) {
    call.state.store(call_state::FREE, Ordering::Release);
    region.header().calls_taken.0[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
}

impl Asked {
    fn with(mut self, engine: usize, index: usize) -> Asked {
        if let Some(place) = self.calls.get_mut(self.count) {
            *place = (engine, index);
            self.count += 1;
        }
        self
    }

    /// Others may have come, gone, or been left since it began.
    fn without(mut self, engine: usize, index: usize) -> Asked {
        let own = self.calls[..self.count].iter().rposition(|call| *call == (engine, index));
        if let Some(at) = own {
            self.calls[at..self.count].rotate_left(1);
            self.count -= 1;
        }
        self
    }
}

/// Handlers have jumped out of this thread's oldest questions, all but the `left` last ones: nobody wants their answers.
fn give_up(region: &Region, left: usize) {
    while ASKED.get().count > left {
        let mut asked = ASKED.get();
        let (engine, index) = asked.calls[0];
        asked.calls.rotate_left(1);
        asked.count -= 1;
        ASKED.set(asked);
        finish(region, engine, index);
    }
}

/// Waits for the answer of such a question, and gives back what it was and what it gave.
#[cold]
fn finish(region: &Region, engine: usize, index: usize) {
    let Some(call) = region.call(index as u32) else { return };
    if call.process.load(Ordering::Relaxed) != attach::process() + 1 {
        return; // this process was copied meanwhile
    }
    if call.state.load(Ordering::Acquire) == call_state::POSTED {
        // It may have jumped before it had told.
        tell(region, engine, index);
        if !looked_for(call) {
            return;
        }
    }
    let opened = call.op.load(Ordering::Relaxed) == call_op::OPEN
        && call.state.load(Ordering::Relaxed) == call_state::DONE;
    let slot = u32::try_from(call.result.load(Ordering::Relaxed)).ok().filter(|_| opened);
    if let Some(socket) = slot.and_then(Socket::at) {
        socket.hold(true);
        socket.release();
    }
    put_back(region, index, call);
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
