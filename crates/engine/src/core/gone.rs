//! What a process or a program leaves behind that has ended, however it did.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{CALL_COUNT, HOLDER_PROCESS, call_state, slot_request};
use scoutline_base::Time;

use super::Core;
use crate::program::Program;
use crate::socket::SocketEnd;

impl Core {
    /// A process of a program is gone: what it held and nobody else holds is closed, however it died.
    pub(crate) fn on_process_gone(&mut self, program: &Rc<Program>, process: u32, now: Time) {
        let region = &program.region;
        let (Some(record), Some(holds)) = (region.process(process), region.holds(process)) else { return };
        let claiming = record.claiming.load(Ordering::Acquire);
        if let Some(claimed) = claiming.checked_sub(1).filter(|&slot| program.serves(slot))
            && record.claiming.compare_exchange(claiming, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            && let Some(end) = program.end(claimed)
            && end.shared().references.load(Ordering::Acquire) == 0
            && !end.closed.get()
        {
            // It died between taking a connection from the queue and holding it, or just before taking it.
            let held = holds[claimed as usize / 64].load(Ordering::Acquire) >> (claimed % 64) & 1;
            let listener = record.claiming_from.load(Ordering::Acquire).checked_sub(1);
            let queued = listener
                .and_then(|slot| program.end(slot))
                .is_some_and(|listener| listener.queued().any(|slot| slot == claimed));
            if held == 0 && !queued {
                self.finish_end(&end, how_it_closes(&end), now);
            }
        }
        for word in program.words_used() {
            let mut bits = holds[word].swap(0, Ordering::AcqRel);
            while bits != 0 {
                let slot = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let Some(end) = program.end(slot) else { continue };
                let shared = end.shared();
                for lock in [&shared.receive_lock, &shared.send_lock] {
                    let holder = lock.load(Ordering::Acquire);
                    if holder & HOLDER_PROCESS == process + 1 {
                        let _ = lock.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
                    }
                }
                // Living processes count at the same time.
                let before = shared
                    .references
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1))
                    .unwrap_or(0);
                if before <= 1 {
                    self.finish_end(&end, how_it_closes(&end), now);
                } else {
                    // Others may have slept through a wake-up that went to the dead process.
                    end.signal();
                }
            }
        }
        for index in 0..CALL_COUNT as u32 {
            let Some(call) = program.region.call(index) else { continue };
            if call.process.load(Ordering::Relaxed) == process + 1 {
                // Not answered any more: it is soon another's, of any engine.
                let pending = &program.calls_pending()[index as usize / 64];
                pending.fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
                if !self.several.is_last() {
                    continue; // the next one goes on
                }
                call.process.store(0, Ordering::Relaxed);
                call.state.store(call_state::FREE, Ordering::Relaxed);
                let taken = &program.region.header().calls_taken.0[index as usize / 64];
                taken.fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
            }
        }
        if self.several.is_last() {
            record.alive.store(0, Ordering::Release);
        }
    }

    /// All processes of a program are gone. What they wrote is still sent, from its memory, which lives as long as a path
    /// needs it.
    pub(crate) fn remove_program(&mut self, program: &Rc<Program>, now: Time) {
        for end in program.ends() {
            let closed = end.shared().requests.load(Ordering::Acquire) & slot_request::CLOSE != 0;
            self.finish_end(&end, if closed { slot_request::CLOSE } else { how_it_closes(&end) }, now);
        }
        self.counters.stored += program.stored.take();
        self.programs.remove(&program.id);
    }
}

/// What a socket's last holder asks for who is gone without a word: a reset if SO_LINGER says 0 seconds, as `close` does.
fn how_it_closes(end: &SocketEnd) -> u32 {
    let aborts = end.shared().linger_plus_one.load(Ordering::Relaxed) == 1;
    if aborts { slot_request::ABORT } else { slot_request::CLOSE }
}
