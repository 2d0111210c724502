//! Sockets that one program passes to another ([`scoutline_abi::stand_in`]): who takes one gets it moved into its
//! region, with the connections that wait in its queue.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{Call, slot_state};
use scoutline_abi::stand_in;
use scoutline_base::{PathId, Time};

use super::Core;
use crate::program::Program;
use crate::socket::{DatagramStage, SocketEnd, StreamStage};

/// An errno as a result.
type Errno = i32;

impl Core {
    /// Moves the socket for which this word stands to the program; its slot there. What has moved to that one before and
    /// comes to it once more is the same socket ([`stand_in::CAME_BEFORE`]).
    ///
    /// # Errors
    /// EBADF when it names no socket that is under way, or one that has moved to a third program, EINVAL when that is the
    /// program's own, EOPNOTSUPP when it listens at several engines, and as [`SocketEnd::move_to`].
    pub(super) fn take_passed(
        &mut self,
        to: &Rc<Program>,
        call: &Call,
        word: u64,
        now: Time,
    ) -> Result<i32, Errno> {
        let (key, slot) = stand_in::read(word).ok_or(libc::EBADF)?;
        let from = self.programs.values().find(|program| program.key.get() == key);
        let from = from.cloned().ok_or(libc::EBADF)?;
        if Rc::ptr_eq(&from, to) {
            return Err(libc::EINVAL);
        }
        let old = from.end(slot).ok_or(libc::EBADF)?;
        if old.closed.get() || old.shared().in_flight.load(Ordering::Acquire) == 0 {
            return Err(libc::EBADF);
        }
        if let Some(moved) = from.moved(slot) {
            let_go(&from, &old);
            let new = moved.upgrade().filter(|new| Rc::ptr_eq(&new.program, to) && put_in_flight(new));
            return new.map(|new| (new.slot | stand_in::CAME_BEFORE) as i32).ok_or(libc::EBADF);
        }
        let listens = !old.listen_paths.borrow().is_empty();
        if listens && self.several.is_several() {
            return Err(libc::EOPNOTSUPP); // its shadows and what waits in its queue are other engines'
        }
        let waiting: Vec<u32> = if listens { old.queued().collect() } else { Vec::new() };
        let new = old.move_to(to)?;
        self.serve_by(&old, &new);
        for slot in waiting {
            self.move_queued(&from, slot, &new, now);
        }
        hold(to, call, new.slot);
        from.note_moved(slot, &new);
        let_go(&from, &old);
        if let Some(id) = new.path.get() {
            self.kick(id, now);
        }
        Ok(new.slot as i32)
    }

    /// The paths of one socket are another's from now on.
    fn serve_by(&mut self, old: &Rc<SocketEnd>, new: &Rc<SocketEnd>) {
        let paths: Vec<PathId> = new.path.get().into_iter().chain(new.side_paths.borrow().clone()).collect();
        for id in paths {
            let Some(path) = self.paths.get_mut(id) else { continue };
            if let Some(stage) = path.stage_mut::<StreamStage>() {
                stage.set_end(Rc::clone(new));
            } else if let Some(stage) = path.stage_mut::<DatagramStage>() {
                stage.set_end(Rc::clone(new));
            }
        }
        if new.listen_paths.borrow().is_empty() {
            return;
        }
        for id in &*new.listen_paths.borrow() {
            self.listeners.borrow_mut().insert(*id, Rc::clone(new));
        }
        let half_open: Vec<PathId> = self
            .paths
            .iter()
            .filter(|path| path.stage::<StreamStage>().is_some_and(|stage| stage.is_half_open_of(old)))
            .map(scoutline_path::Path::id)
            .collect();
        for id in half_open {
            if let Some(stage) = self.paths.get_mut(id).and_then(|path| path.stage_mut::<StreamStage>()) {
                stage.set_listener(new);
            }
        }
    }

    /// A connection in the queue of a socket that has moved goes along; one that cannot is reset.
    fn move_queued(&mut self, from: &Rc<Program>, slot: u32, listener: &Rc<SocketEnd>, now: Time) {
        let Some(old) = from.end(slot) else { return };
        // The program writes there, too: only what nobody has taken is in the queue.
        let waits = old.shared().references.load(Ordering::Acquire) == 0
            && old.shared().state.load(Ordering::Acquire) & slot_state::CONNECTED != 0
            && !old.closed.get();
        if !waits {
            return;
        }
        match old.move_to(&listener.program) {
            Ok(new) => {
                new.shared().references.store(0, Ordering::Release);
                self.serve_by(&old, &new);
                from.forget_end(slot);
                let path = new.path.get().and_then(|id| self.paths.get(id));
                if !path.and_then(|path| path.stage::<StreamStage>()).is_some_and(|it| it.wait_at(listener)) {
                    self.abort_end(&new, now);
                }
            }
            Err(_) => self.abort_end(&old, now),
        }
    }

    /// Whether a process of some program says that it has this id.
    pub(super) fn is_on_paths(&self, pid: u32) -> bool {
        self.programs.values().any(|program| program.has_process(pid))
    }
}

/// The calling process holds what it was given, as after OPEN.
fn hold(program: &Program, call: &Call, slot: u32) {
    let process = call.process.load(Ordering::Relaxed).checked_sub(1);
    if let Some(record) = process.and_then(|index| program.region.process(index)) {
        record.holds[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
    }
}

/// It is under way to who has it already; false: that has closed it.
fn put_in_flight(end: &SocketEnd) -> bool {
    let more = |count: u32| (count > 0).then(|| count + 1);
    let held = end.shared().references.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok();
    if held {
        end.shared().in_flight.fetch_add(1, Ordering::AcqRel);
    }
    held
}

/// It is no longer under way. Who closed it meanwhile, has nothing left of it.
fn let_go(program: &Program, end: &SocketEnd) {
    let less = |count: u32| count.checked_sub(1);
    let slot = end.shared();
    let _ = slot.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    if slot.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).unwrap_or(0) <= 1 {
        end.closed.set(true);
        program.forget_end(end.slot);
    }
}
