//! Sockets that one program passes to another ([`scoutline_abi::stand_in`]): who takes one gets it moved into its
//! region, with the connections that wait in its queue.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{Call, slot_state};
use scoutline_abi::stand_in;
use scoutline_base::{PathId, Time};
use scoutline_proto::bindings::Sharing;

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
    /// EBADF when it names no socket that is under way, or one with a peer that has moved to a third program, EINVAL when
    /// that is the program's own, EOPNOTSUPP when it listens at several engines, and as [`SocketEnd::move_to`] and BIND.
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
            let there = moved.iter().find(|end| Rc::ptr_eq(&end.program, to) && put_in_flight(end));
            let taken = match there {
                Some(end) => Ok(end.slot | stand_in::CAME_BEFORE),
                None => self.take_beside(&old, &moved, to, now).map(|new| {
                    hold(to, call, new.slot);
                    from.note_moved(slot, &new);
                    new.slot
                }),
            };
            let_go(&from, &old);
            return taken.map(|slot| slot as i32);
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

    /// A socket for one more of the programs to which one without a peer was passed: what comes there is shared among theirs
    /// as by SO_REUSEPORT, with those that it has become so far. If none is left, the port is had anew.
    ///
    /// Left out: the groups that it is in.
    fn take_beside(
        &mut self,
        old: &SocketEnd,
        others: &[Rc<SocketEnd>],
        to: &Rc<Program>,
        now: Time,
    ) -> Result<Rc<SocketEnd>, Errno> {
        let shown = others.first().map_or(old, |other| other);
        let state = shown.shared().state.load(Ordering::Acquire);
        let listens = state & slot_state::LISTENING != 0;
        if state & slot_state::BOUND == 0 || state & slot_state::CONNECTED != 0 {
            return Err(libc::EBADF);
        }
        if listens && self.several.is_several() {
            return Err(libc::EOPNOTSUPP);
        }
        // What it was bound to is the engine's own knowledge only as long as one is there.
        let (local, first_port) = match others.iter().find_map(|other| other.bound.get()) {
            Some((_, local)) => (local, 0),
            None => (old.shown_local(), old.program.facts.first_port),
        };
        let new = SocketEnd::open(to, old.kind).ok_or(libc::ENFILE)?;
        new.shared().references.store(1, Ordering::Release);
        let before: Vec<Sharing> = others.iter().map(|other| other.sharing.get()).collect();
        let made = if new.take_after(shown) {
            let sharing = Sharing { port: true, ..shown.sharing.get() };
            let backlog = u64::from(shown.backlog.get());
            self.share_ports(others, sharing);
            self.bind_from(&new, local, sharing, first_port, now)
                .and_then(|_| if listens { self.listen(&new, backlog, now) } else { Ok(0) })
        } else {
            Err(libc::ENOBUFS)
        };
        if let Err(errno) = made {
            if let Some(id) = new.path.get() {
                self.destroy(id);
            }
            new.release_port();
            to.forget_end(new.slot);
            others.iter().zip(before).for_each(|(other, before)| other.share_port(before));
            return Err(errno);
        }
        Ok(new)
    }

    /// These share their port, and what comes there, with who comes to have it so from now on.
    fn share_ports(&self, ends: &[Rc<SocketEnd>], sharing: Sharing) {
        for end in ends {
            end.share_port(sharing);
            for id in end.path.get().into_iter().chain(end.side_paths.borrow().clone()) {
                self.nets.iter().for_each(|net| net.udp.share_listener(id));
            }
        }
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
    if let Some(holds) = process.and_then(|index| program.region.holds(index)) {
        holds[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
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
