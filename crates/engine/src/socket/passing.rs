//! A socket moves to another program (SCM_RIGHTS): into a slot and rings of that one's region, with all that stood in
//! the old ones at the same positions.
//!
//! The engine tries to take the locks of both directions, as for a growth ([`super::growth`]): then no thread of the old
//! program is within. What is on its way to the device keeps the old rings, which go back with the old slot, when the
//! program that passed the socket closes it. Cursors come from the engine's own copies; what else stands in the slot is
//! the programs' affair, and the new one reads it as it reads everything in a region.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::datagram::{ERROR_COUNT, ERROR_LEN};
use scoutline_abi::layout::{Slot, slot_kind, slot_request, slot_state};
use scoutline_base::Endpoint;

use super::SocketEnd;
use super::growth::Held;
use super::written::Written;
use crate::arena::Ring;
use crate::program::Program;

/// Bytes copied at a time.
const STEP: usize = 64 << 10;

/// An errno.
type Errno = i32;

impl SocketEnd {
    /// The same socket in a slot of another program, which one process there holds. This one has no path any more.
    /// A listening socket's queue stays for who calls to fill.
    ///
    /// # Errors
    /// EAGAIN while a thread copies from or to its rings; ENFILE and ENOBUFS when the program has no slot or no room.
    pub(crate) fn move_to(&self, program: &Rc<Program>) -> Result<Rc<SocketEnd>, Errno> {
        let slot = self.shared();
        let held = Held::try_take(&slot.receive_lock).zip(Held::try_take(&slot.send_lock));
        let Some(_held) = held else { return Err(libc::EAGAIN) };
        if !matches!(self.read_written(), Written::To(_)) {
            return Err(libc::EAGAIN);
        }
        self.read_consumed();
        let new = SocketEnd::open(program, self.kind).ok_or(libc::ENFILE)?;
        if !self.give_rings(&new) {
            program.forget_end(new.slot);
            return Err(libc::ENOBUFS);
        }
        self.give_state(&new);
        self.give_bytes(&new);
        copy_slot(slot, new.shared());
        new.show_cursors();
        new.shared().references.store(1, Ordering::Release);
        self.leave_behind();
        Ok(new)
    }

    /// Has what was set on another of its kind; false where its memory has no room for that.
    pub(crate) fn take_after(&self, other: &SocketEnd) -> bool {
        self.v6_only.set(other.v6_only.get());
        self.no_delay.set(other.no_delay.get());
        self.keep_alive.set(other.keep_alive.get());
        self.tuning.set(other.tuning.get());
        self.headers.set(other.headers.get());
        self.wishes.replace(other.wishes.borrow().clone());
        self.defer_accept.set(other.defer_accept.get());
        if let Some(queue) = other.fast_open.get() {
            self.fast_open.get_or_init(|| Rc::clone(queue));
        }
        copy_options(other.shared(), self.shared());
        other.errors_charged().is_none_or(|memory| self.ensure_errors(memory))
    }

    /// What its program is told that it is bound to.
    pub(crate) fn shown_local(&self) -> Endpoint {
        let slot = self.shared();
        Endpoint::new(slot.local_address.load(), slot.local_port.load(Ordering::Relaxed) as u16)
    }

    /// Rings of the same sizes, charged where the old ones are: until those go back both count.
    fn give_rings(&self, new: &SocketEnd) -> bool {
        let memory = self.charged.borrow().as_ref().map(|(memory, _)| memory.clone()).unwrap_or_default();
        let sizes = (self.receive_size(), self.send_size());
        let has_room = sizes == (0, 0) || new.ensure_rings(sizes, &memory);
        has_room && self.errors_charged().is_none_or(|memory| new.ensure_errors(memory))
    }

    /// What the engine keeps.
    fn give_state(&self, new: &SocketEnd) {
        new.sizes.set(self.sizes.get());
        new.first_of_accepted.set(self.first_of_accepted.get());
        new.path.set(self.path.take());
        new.side_paths.replace(self.side_paths.take());
        new.listen_paths.replace(self.listen_paths.take());
        self.give_port(new);
        new.v6_only.set(self.v6_only.get());
        new.sharing.set(self.sharing.get());
        new.no_delay.set(self.no_delay.get());
        new.keep_alive.set(self.keep_alive.get());
        new.tuning.set(self.tuning.get());
        new.headers.set(self.headers.get());
        new.wishes.replace(self.wishes.take());
        new.defer_accept.set(self.defer_accept.get());
        if let Some(queue) = self.fast_open.get() {
            new.fast_open.get_or_init(|| Rc::clone(queue));
        }
        new.backlog.set(self.backlog.get());
        new.consumed.set(self.consumed.get());
        new.written.set(self.written.get());
        new.freed.set(self.freed.get());
        new.duty.set(self.duty.get());
        new.memberships.take_from(&self.memberships);
        new.lost.set(self.lost.get());
        new.mtu.set(self.mtu.get());
        new.copies.set(self.copies.get());
        new.extents.replace(self.extents.take());
        new.errors_put.set(self.errors_put.get());
    }

    /// What stands in the rings. A listening socket's are numbers of the old program's slots.
    fn give_bytes(&self, new: &SocketEnd) {
        let mut bytes = vec![0; STEP];
        if new.listen_paths.borrow().is_empty() {
            let (mut at, until) = (self.consumed.get(), self.stored.get().max(self.received.get()));
            while at < until {
                let part = &mut bytes[..(until - at).min(STEP as u64) as usize];
                self.load_received(at, part);
                new.store(at, part);
                at += part.len() as u64;
            }
            new.stored.set(self.stored.get());
            new.received.set(self.received.get());
        } else {
            // Those that wait there are put in anew, behind those that were taken.
            new.received.set(self.consumed.get());
        }
        let (mut at, until) = (self.freed.get(), self.written.get());
        while at < until {
            let in_file = self.in_file(at);
            if in_file > 0 {
                at += in_file;
                continue;
            }
            let len = (until - at).min(self.until_file(at)).min(STEP as u64);
            let part = &mut bytes[..len as usize];
            self.load(at, part);
            put(&new.program, new.send.get(), at, part);
            at += part.len() as u64;
        }
        let mut errors = [0; ERROR_COUNT * ERROR_LEN];
        if self.errors_charged().is_some() {
            take(&self.program, self.errors.get(), &mut errors);
            put(&new.program, new.errors.get(), 0, &errors);
        }
    }

    /// The ports that it holds, and that it listens there.
    fn give_port(&self, new: &SocketEnd) {
        new.bound.set(self.bound.take());
        new.reserved.replace(self.reserved.take());
        new.listening.set(self.listening.take());
    }

    /// The cursors as the program sees them.
    fn show_cursors(&self) {
        let slot = self.shared();
        slot.receive_head.store(self.consumed.get(), Ordering::Relaxed);
        slot.receive_tail.store(self.received.get(), Ordering::Relaxed);
        slot.send_head.store(self.freed.get(), Ordering::Relaxed);
        slot.send_tail.store(self.written.get(), Ordering::Release);
        if self.kind == slot_kind::DATAGRAM {
            slot.errors_tail.store(self.errors_put.get(), Ordering::Release);
        }
    }

    /// What the program that passed it still has: a socket where nothing comes any more, and that takes nothing. On Linux
    /// it would be both programs'.
    fn leave_behind(&self) {
        let slot = self.shared();
        slot.receive_tail.store(slot.receive_head.load(Ordering::Acquire), Ordering::Release);
        self.received.set(slot.receive_head.load(Ordering::Acquire));
        if slot.state.load(Ordering::Relaxed) & slot_state::LISTENING == 0 {
            slot.requests.fetch_or(slot_request::SHUTDOWN, Ordering::AcqRel);
        }
        self.signal();
    }
}

/// Puts bytes at a position of a ring; it has room for them.
fn put(program: &Program, ring: Ring, at: u64, bytes: &[u8]) {
    let Some(spans) = program.region.ring_spans(ring.offset, ring.size, at, bytes.len()) else { return };
    let (first, second) = bytes.split_at(spans[0].len);
    // SAFETY: the spans lie in our mapping, which the program keeps; their lengths are those of the two parts.
    unsafe {
        scoutline_ring::copy(first.as_ptr(), spans[0].memory.as_ptr(), first.len());
        scoutline_ring::copy(second.as_ptr(), spans[1].memory.as_ptr(), second.len());
    }
}

/// Takes what stands at the beginning of a ring.
fn take(program: &Program, ring: Ring, bytes: &mut [u8]) {
    let Some(spans) = program.region.ring_spans(ring.offset, ring.size, 0, bytes.len()) else { return };
    let (first, second) = bytes.split_at_mut(spans[0].len);
    // SAFETY: as in `put`.
    unsafe {
        spans[0].copy_to(first);
        spans[1].copy_to(second);
    }
}

/// What programs and engine have said in a slot, but for cursors, rings, locks, and who holds and watches it.
fn copy_slot(from: &Slot, to: &Slot) {
    let words = [
        (&from.state, &to.state),
        (&from.sent, &to.sent),
        (&from.requests, &to.requests),
        (&from.send_wanted, &to.send_wanted),
        (&from.local_port, &to.local_port),
        (&from.remote_port, &to.remote_port),
        (&from.scope, &to.scope),
        (&from.mtu, &to.mtu),
        (&from.zero_copy_done, &to.zero_copy_done),
        (&from.zero_copy_told, &to.zero_copy_told),
        (&from.errors_head, &to.errors_head),
    ];
    for (from, to) in words {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    copy_options(from, to);
    for (from, to) in [(&from.importance, &to.importance), (&from.urgent, &to.urgent)] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    copy_long_words(from, to);
    if from.kind.load(Ordering::Relaxed) == slot_kind::STREAM {
        to.urgent_passed().store(from.urgent_passed().load(Ordering::Relaxed), Ordering::Relaxed);
        to.unsent_told().0.store(from.unsent_told().0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    to.error.store(from.error.load(Ordering::Relaxed), Ordering::Relaxed);
    to.soft_error.store(from.soft_error.load(Ordering::Relaxed), Ordering::Relaxed);
    to.local_address.store(from.local_address.load());
    to.remote_address.store(from.remote_address.load());
}

/// What a program has set.
fn copy_options(from: &Slot, to: &Slot) {
    let words = [
        (&from.flags, &to.flags),
        (&from.linger_plus_one, &to.linger_plus_one),
        (&from.kept_options, &to.kept_options),
        (&from.keep_alive_times[0], &to.keep_alive_times[0]),
        (&from.keep_alive_times[1], &to.keep_alive_times[1]),
        (&from.receive_low_water, &to.receive_low_water),
        (&from.asked_receive_buffer, &to.asked_receive_buffer),
        (&from.asked_send_buffer, &to.asked_send_buffer),
        (&from.asked_user_timeout_ms, &to.asked_user_timeout_ms),
        (&from.asked_max_segment, &to.asked_max_segment),
        (&from.unsent_low_water, &to.unsent_low_water),
        (&from.defer_accept_s, &to.defer_accept_s),
        (&from.datagram_flags, &to.datagram_flags),
        (&from.segment, &to.segment),
        (&from.group_interface[0], &to.group_interface[0]),
        (&from.group_interface[1], &to.group_interface[1]),
        (&from.peek_offset_inverted, &to.peek_offset_inverted),
    ];
    for (from, to) in words {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let long_words = [
        (&from.receive_timeout_us, &to.receive_timeout_us),
        (&from.send_timeout_us, &to.send_timeout_us),
        (&from.send_options[0], &to.send_options[0]),
        (&from.send_options[1], &to.send_options[1]),
    ];
    for (from, to) in long_words {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn copy_long_words(from: &Slot, to: &Slot) {
    let words = [
        (&from.held_from, &to.held_from),
        (&from.urgent_mark, &to.urgent_mark),
        (&from.urgent_taken, &to.urgent_taken),
        (&from.urgent_to, &to.urgent_to),
    ];
    for (from, to) in words {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    if from.kind.load(Ordering::Relaxed) == slot_kind::DATAGRAM {
        // Half a datagram stands in the old ring only.
        to.held_from.store(0, Ordering::Relaxed);
    }
}
