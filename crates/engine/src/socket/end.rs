//! A socket as the engine keeps it: its slot, its rings, and our own idea of every cursor.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::datagram::{ERROR_COUNT, ERROR_LEN, ErrorRecord, MAX_QUOTED};
use scoutline_abi::layout::{Slot, datagram_flag, slot_request, slot_state};
use scoutline_base::{Address, Endpoint, PathId};
use scoutline_path::{Budget, Sent, Tuning};
use scoutline_proto::Bindings;
use scoutline_proto::bindings::Sharing;
use scoutline_proto::tcp::fast_open::Queue;
use scoutline_ring::{Span, StreamMemory, copy_spans};

use crate::arena::Ring;
use crate::extend::Duty;
use crate::program::Program;
use crate::seldom::{Rare, Seldom};
use crate::socket::growth::{Sizes, Turns};
use crate::socket::membership::Memberships;
use crate::socket::module::Standing;
use crate::socket::written::FileRange;
use crate::wishes::Wishes;

/// Bytes of a listening socket's queue: 4,096 accepted connections, Linux's default SOMAXCONN.
pub(crate) const ACCEPT_RING: u32 = 4096 * 4;
/// Bytes of a ring of errors about datagrams.
const ERROR_RING: u32 = (ERROR_COUNT * ERROR_LEN) as u32;

/// A socket. Its slot and rings return to the program when the last reference goes: the program's list, the path's
/// stage, and messages on their way to the device hold one each.
pub(crate) struct SocketEnd {
    /// Whose it is.
    pub(crate) program: Rc<Program>,
    /// Its slot.
    pub(crate) slot: u32,
    /// [`scoutline_abi::layout::slot_kind`].
    pub(crate) kind: u32,
    /// It stands for a listening socket of another engine, whose the slot and the queue are.
    pub(crate) is_shadow: bool,
    pub(super) receive: Cell<Ring>,
    pub(super) send: Cell<Ring>,
    /// The send ring before the last exchange, and up to where the stream stands in it.
    pub(super) send_before: Rare<Option<(Ring, u64)>>,
    /// How large its rings become.
    pub(super) sizes: Cell<Sizes>,
    /// Of program and network, at each ring.
    pub(super) receive_turns: Cell<Turns>,
    pub(super) send_turns: Cell<Turns>,
    /// The rings of connections that it accepts, at first (only for a listening socket).
    pub(crate) first_of_accepted: Cell<(u32, u32)>,
    /// The path below it.
    pub(crate) path: Cell<Option<PathId>>,
    /// Those of a datagram socket without a peer on the other devices.
    pub(crate) side_paths: Seldom<Vec<PathId>>,
    /// What it is bound to: protocol and address.
    pub(crate) bound: Rare<Option<(u8, Endpoint)>>,
    /// The port that it has reserved for that, one entry per net.
    pub(super) reserved: Seldom<Vec<(Rc<Bindings>, Endpoint)>>,
    /// It takes IPv6 only (IPV6_V6ONLY).
    pub(crate) v6_only: Cell<bool>,
    /// With whom it shares its port.
    pub(crate) sharing: Cell<Sharing>,
    /// How many of `reserved` it listens at: all, none, or some while that is being arranged.
    pub(super) listening: Cell<u32>,
    /// Listen paths, one per class (only for a listening socket).
    pub(crate) listen_paths: Seldom<Vec<PathId>>,
    /// TCP_NODELAY; accepted connections have their listener's.
    pub(crate) no_delay: Cell<bool>,
    /// SO_KEEPALIVE as [`scoutline_abi::layout::slot_option::KEEP_ALIVE`] has it; 0 off.
    pub(crate) keep_alive: Cell<u64>,
    /// Other options of TCP; accepted connections have their listener's.
    pub(crate) tuning: Rare<Tuning>,
    /// What the program said of network headers, as [`scoutline_abi::layout::slot_option::HEADERS`] has it.
    pub(crate) headers: Cell<u64>,
    /// What it allows of fast open (only for a listening socket, or one that is to listen).
    pub(crate) fast_open: OnceCell<Rc<Queue>>,
    /// What its program asks for it (SOL_SCOUT); accepted connections have what was asked for their listener.
    pub(crate) wishes: RefCell<Option<Box<Wishes>>>,
    /// TCP_DEFER_ACCEPT of a listening socket, in seconds; 0 off.
    pub(crate) defer_accept: Cell<u32>,
    /// Connections that this keeps from its queue.
    pub(crate) deferring: Cell<u32>,
    /// The slot of the listening socket in whose queue it was put, plus one: see [`SocketEnd::listener`].
    pub(super) listener: Cell<Option<NonZeroU32>>,
    /// Which listening of its slot this is, or that was.
    pub(crate) listening_number: Cell<u32>,
    /// Connections that may wait to be accepted (only for a listening socket).
    pub(crate) backlog: Cell<u32>,
    /// In order in the receive ring.
    pub(crate) received: Cell<u64>,
    /// The highest position that was stored there, out of order too.
    pub(super) stored: Cell<u64>,
    /// Taken by the program, as far as believed.
    pub(crate) consumed: Cell<u64>,
    /// Written by the program, as far as believed.
    pub(crate) written: Cell<u64>,
    /// Whose memory its rings are, and how much.
    pub(super) charged: RefCell<Option<(Budget, u64)>>,
    /// Pieces of the outgoing stream that lie in files, in order.
    pub(super) extents: Seldom<VecDeque<FileRange>>,
    pub(super) extents_taken: Cell<u32>,
    /// What it sends is read by this process, so none of it may lie in a file.
    pub(super) copies: Cell<bool>,
    /// Freed in the send ring.
    pub(crate) freed: Cell<u64>,
    /// What its path asks of threads; of a listening socket, the most important connection that waits.
    pub(crate) duty: Cell<Duty>,
    /// The program has closed it.
    pub(crate) closed: Cell<bool>,
    /// The groups that it is in.
    pub(crate) memberships: Memberships,
    /// Datagrams that found no room.
    pub(crate) lost: Cell<u32>,
    /// What the way to the peer, or the link, carries: our own copy.
    pub(crate) mtu: Cell<u32>,
    /// The ring of errors about datagrams, and how many were ever put there.
    pub(super) errors: Rare<Ring>,
    pub(super) errors_put: Cell<u32>,
    /// Whose memory that ring is.
    errors_charged: OnceCell<Budget>,
    /// Times that threads were woken for it, not yet charged.
    pub(crate) wakeups: Cell<u64>,
    /// An urgent byte came that the program has not been told of.
    urges: Cell<bool>,
}

// There may be a hundred thousand.
const _: () = assert!(size_of::<SocketEnd>() <= 360);

impl SocketEnd {
    /// A socket in a fresh slot, without rings; `None` when slots ran out.
    pub(crate) fn open(program: &Rc<Program>, kind: u32) -> Option<Rc<SocketEnd>> {
        let slot = program.take_slot(kind)?;
        Some(SocketEnd::at(program, slot, kind, false))
    }

    /// What stands for a listening socket of another engine.
    pub(crate) fn shadow(program: &Rc<Program>, slot: u32, kind: u32) -> Rc<SocketEnd> {
        SocketEnd::at(program, slot, kind, true)
    }

    fn at(program: &Rc<Program>, slot: u32, kind: u32, is_shadow: bool) -> Rc<SocketEnd> {
        let end = Rc::new(SocketEnd {
            program: Rc::clone(program),
            slot,
            kind,
            is_shadow,
            receive: Cell::default(),
            send: Cell::default(),
            send_before: Rare::default(),
            sizes: Cell::default(),
            receive_turns: Cell::default(),
            send_turns: Cell::default(),
            first_of_accepted: Cell::default(),
            path: Cell::new(None),
            side_paths: Seldom::default(),
            bound: Rare::default(),
            reserved: Seldom::default(),
            v6_only: Cell::new(false),
            sharing: Cell::default(),
            listening: Cell::new(0),
            listen_paths: Seldom::default(),
            no_delay: Cell::new(false),
            keep_alive: Cell::new(0),
            tuning: Rare::default(),
            headers: Cell::default(),
            fast_open: OnceCell::new(),
            wishes: RefCell::default(),
            defer_accept: Cell::new(0),
            deferring: Cell::new(0),
            listener: Cell::new(None),
            listening_number: Cell::new(0),
            backlog: Cell::new(0),
            received: Cell::new(0),
            stored: Cell::new(0),
            consumed: Cell::new(0),
            written: Cell::new(0),
            charged: RefCell::default(),
            extents: Seldom::default(),
            extents_taken: Cell::new(0),
            copies: Cell::new(false),
            freed: Cell::new(0),
            duty: Cell::default(),
            closed: Cell::new(false),
            memberships: Memberships::default(),
            lost: Cell::new(0),
            mtu: Cell::new(0),
            errors: Rare::default(),
            errors_put: Cell::new(0),
            errors_charged: OnceCell::new(),
            wakeups: Cell::new(0),
            urges: Cell::new(false),
        });
        program.keep_end(slot, Rc::clone(&end));
        end
    }

    /// Gives it rings of these sizes, unless it has them, and charges them to `memory`; false when that, or the
    /// arena, has no room.
    pub(crate) fn ensure_rings(&self, (receive, send): (u32, u32), memory: &Budget) -> bool {
        if self.receive.get().size == 0 {
            let bytes = u64::from(receive) + u64::from(send);
            if !memory.charge(bytes) {
                return false;
            }
            *self.charged.borrow_mut() = Some((memory.clone(), bytes));
        }
        let slot = self.shared();
        if self.receive.get().size == 0 && receive > 0 {
            let Some(ring) = self.program.take_ring(receive) else {
                self.refund();
                return false;
            };
            self.receive.set(ring);
            slot.receive_offset.store(ring.offset, Ordering::Relaxed);
            slot.receive_size.store(ring.size, Ordering::Release);
        }
        if self.send.get().size == 0 && send > 0 {
            let Some(ring) = self.program.take_ring(send) else { return false };
            self.send.set(ring);
            slot.send_offset.store(ring.offset, Ordering::Relaxed);
            slot.send_size.store(ring.size, Ordering::Release);
        }
        true
    }

    /// Makes room for errors about datagrams and charges it to `memory`; false when that, or the arena, has none.
    pub(crate) fn ensure_errors(&self, memory: &Budget) -> bool {
        if self.errors.get().size == 0 {
            if !memory.charge(ERROR_RING.into()) {
                return false;
            }
            let Some(ring) = self.program.take_ring(ERROR_RING) else {
                memory.refund(ERROR_RING.into());
                return false;
            };
            self.errors.set(ring);
            self.errors_charged.get_or_init(|| memory.clone());
            let slot = self.shared();
            slot.errors_offset.store(ring.offset, Ordering::Relaxed);
            slot.errors_queued.store(1, Ordering::Release);
        }
        true
    }

    /// Whose memory its ring of errors is, if it has one.
    pub(super) fn errors_charged(&self) -> Option<&Budget> {
        self.errors_charged.get()
    }

    /// Queues an error about a datagram, with what is quoted of it, for the program. One too many is lost, and so is one
    /// without a queue.
    pub(crate) fn queue_error(&self, error: ErrorRecord, quoted: &[u8]) {
        let (ring, put) = (self.errors.get(), self.errors_put.get());
        let slot = self.shared();
        let waiting = put.wrapping_sub(slot.errors_head.load(Ordering::Acquire));
        if ring.size == 0 || waiting >= ERROR_COUNT as u32 {
            return;
        }
        let at = u64::from(put) % ERROR_COUNT as u64 * ERROR_LEN as u64;
        let Some(spans) = self.program.region.ring_spans(ring.offset, ring.size, at, ERROR_LEN) else {
            return;
        };
        let quoted = &quoted[..quoted.len().min(MAX_QUOTED)];
        let header = ErrorRecord { quoted_len: quoted.len() as u32, ..error }.to_bytes();
        let to = spans[0].memory.as_ptr();
        // SAFETY: the span lies in our mapping, has ERROR_LEN bytes, which header and quotation fit, and does not wrap.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), to, header.len());
            std::ptr::copy_nonoverlapping(quoted.as_ptr(), to.add(header.len()), quoted.len());
        }
        self.errors_put.set(put.wrapping_add(1));
        slot.errors_tail.store(put.wrapping_add(1), Ordering::Release);
    }

    /// What the way to the peer, or without one the link, carries; the program is told.
    pub(crate) fn set_mtu(&self, mtu: u32) {
        self.mtu.set(mtu);
        self.shared().mtu.store(mtu, Ordering::Relaxed);
    }

    /// Where packets come in for a socket that is bound to `local`: at `::` those of IPv4 as well (RFC 3493 §3.7, §5.3).
    pub(crate) fn places(&self, local: Endpoint) -> impl Iterator<Item = Endpoint> + use<> {
        let dual = local.address == Address::UNSPECIFIED_V6 && !self.v6_only.get();
        let v4 = Endpoint::new(Address::UNSPECIFIED_V4, local.port);
        std::iter::once(local).chain(dual.then_some(v4))
    }

    /// It holds a port of `bindings`, which goes back with the socket if not before.
    pub(crate) fn keep_port(&self, bindings: Rc<Bindings>, local: Endpoint) {
        self.reserved.borrow_mut().push((bindings, local));
    }

    /// Gives back the port that it holds by itself.
    pub(crate) fn release_port(&self) {
        self.bound.set(None);
        self.end_listening();
        for (bindings, local) in self.reserved.take() {
            bindings.release(local, self.sharing.get());
        }
    }

    /// The port that it holds by itself, for who holds it on; the socket no longer does.
    pub(super) fn take_port(&self) -> Option<Box<HeldPort>> {
        if self.reserved.is_empty() || self.listening.get() != 0 {
            return None;
        }
        self.bound.set(None);
        Some(Box::new(HeldPort { places: self.reserved.take(), sharing: self.sharing.get() }))
    }

    /// Has from now on the port that another socket of its kind is bound to, and that one no longer.
    ///
    /// # Errors
    /// EINVAL: there is none to take, or no place for it.
    pub(crate) fn take_port_of(&self, other: &SocketEnd) -> Result<(), i32> {
        let held = other.bound.get().filter(|_| other.kind == self.kind && self.bound.get().is_none());
        let (Some((protocol, local)), Some(port)) = (held, other.take_port()) else {
            return Err(libc::EINVAL);
        };
        self.sharing.set(port.sharing);
        self.v6_only.set(other.v6_only.get());
        *self.reserved.borrow_mut() = port.into_places();
        self.bind_to(protocol, local);
        Ok(())
    }

    /// It is bound to this, which it has reserved.
    pub(crate) fn bind_to(&self, protocol: u8, local: Endpoint) {
        self.bound.set(Some((protocol, local)));
        let slot = self.shared();
        slot.local_address.store(local.address);
        slot.local_port.store(u32::from(local.port), Ordering::Relaxed);
        self.add_state(slot_state::BOUND);
    }

    /// Its program has said otherwise with whom it shares its port.
    pub(crate) fn share_port(&self, sharing: Sharing) {
        let before = self.sharing.replace(sharing);
        for (bindings, local) in &*self.reserved.borrow() {
            bindings.share(*local, before, sharing);
        }
    }

    /// It listens from now on where it holds its port; false when another does whom it does not share that with. Then it
    /// is to give the port back, or to try again.
    pub(crate) fn begin_listening(&self) -> bool {
        for (bindings, local) in &self.reserved.borrow()[self.listening.get() as usize..] {
            if bindings.begin_listening(*local, self.sharing.get()).is_err() {
                return false;
            }
            self.listening.set(self.listening.get() + 1);
        }
        true
    }

    /// It listens no longer, where it did.
    pub(crate) fn end_listening(&self) {
        for (bindings, local) in &self.reserved.borrow()[..self.listening.take() as usize] {
            bindings.end_listening(*local);
        }
    }

    /// Its rings are charged to another budget from now on, even beyond its limit: they are in use.
    pub(crate) fn move_charge(&self, memory: &Budget) {
        if let Some((before, bytes)) = &mut *self.charged.borrow_mut() {
            before.refund(*bytes);
            memory.take_over(*bytes);
            *before = memory.clone();
        }
    }

    /// Whether its rings fit that budget, if they are not charged to it already.
    pub(crate) fn fits(&self, memory: &Budget) -> bool {
        let Some((before, bytes)) = self.charged.borrow().clone() else { return true };
        if before.is(memory) {
            return true;
        }
        // The two may be parts of the same.
        before.refund(bytes);
        let fits = memory.has_room(bytes);
        before.take_over(bytes);
        fits
    }

    fn refund(&self) {
        if let Some((memory, bytes)) = self.charged.take() {
            memory.refund(bytes);
        }
    }

    /// The slot in shared memory.
    #[inline]
    pub(crate) fn shared(&self) -> &Slot {
        self.program.slot(self.slot)
    }

    /// Size of the receive ring.
    #[inline]
    pub(crate) fn receive_size(&self) -> u32 {
        self.receive.get().size
    }

    /// Size of the send ring.
    #[inline]
    pub(crate) fn send_size(&self) -> u32 {
        self.send.get().size
    }

    /// From now on what it sends is read by this process, and not by the kernel.
    pub(crate) fn send_by_copies(&self) {
        self.copies.set(true);
        self.add_state(slot_state::COPIES);
    }

    /// Adds state bits for the shim to see.
    pub(crate) fn add_state(&self, bits: u32) {
        self.shared().state.fetch_or(bits, Ordering::Release);
    }

    /// Takes state bits away.
    pub(crate) fn clear_state(&self, bits: u32) {
        self.shared().state.fetch_and(!bits, Ordering::Release);
    }

    /// The socket has failed: `errno` is what the program will be told.
    pub(crate) fn fail(&self, errno: i32) {
        let slot = self.shared();
        let closed_by_peer = slot.state.load(Ordering::Relaxed) & slot_state::PEER_FINISHED != 0
            && slot.requests.load(Ordering::Relaxed) & slot_request::SHUTDOWN == 0;
        // Linux's tcp_reset: in CLOSE-WAIT the program can only be writing.
        let errno = if errno == libc::ECONNRESET && closed_by_peer { libc::EPIPE } else { errno };
        slot.error.store(errno, Ordering::Relaxed);
        self.clear_state(slot_state::CONNECTING);
        // The peer has not finished: to read tells the error first, then the end.
        self.add_state(slot_state::FAILED);
        self.signal();
    }

    /// Its program has shut a connection that opens: as Linux's `tcp_disconnect` leaves it. False: it opens no more. (What
    /// the program writes over its state ends its own connection.)
    pub(crate) fn disconnect(&self) -> bool {
        if !slot_state::opens(self.shared().state.load(Ordering::Relaxed)) {
            self.signal();
            return false;
        }
        self.add_state(slot_state::DISCONNECTED);
        self.fail(libc::ECONNRESET);
        true
    }

    /// The connection goes on, but a router has said something of it: what a program that asked for it (IP_RECVERR) hears
    /// from its next call, or by SO_ERROR, and others by SO_ERROR alone, until something is heard of the peer (`errno` 0).
    /// As on Linux a stream's errors are in no queue (ip(7)).
    pub(crate) fn hint(&self, errno: i32) {
        let slot = self.shared();
        if errno == 0 {
            slot.soft_error.store(0, Ordering::Release);
            return;
        }
        let is_v4 = slot.remote_address.load().is_v4();
        let wanted = if is_v4 { datagram_flag::ERRORS } else { datagram_flag::ERRORS6 };
        if slot.datagram_flags.load(Ordering::Relaxed) & wanted != 0 {
            slot.error.store(errno, Ordering::Release);
            self.signal();
        } else {
            slot.soft_error.store(errno, Ordering::Release);
        }
    }

    /// Its path stands here from now on; the program is told.
    pub(crate) fn stand(&self, standing: Standing) {
        self.duty.set(standing.duty());
        let slot = self.shared();
        slot.importance.store(standing.importance() as u16, Ordering::Relaxed);
        slot.urgent.store(standing.urgent.into(), Ordering::Relaxed);
    }

    /// Tells whoever waits that something happened.
    pub(crate) fn signal(&self) {
        self.signal_near(None, self.duty.get());
    }

    /// Tells who waits for connections that one waits at this slot, which asks this of threads.
    pub(crate) fn signal_waiting(&self, slot: u32, duty: Duty) {
        self.signal_near(self.program.core_of(slot), duty);
    }

    fn signal_near(&self, core_plus_one: Option<NonZeroU32>, duty: Duty) {
        let listens = !self.listen_paths.is_empty();
        let woken = self.program.signal(self.slot, listens, core_plus_one, duty);
        self.wakeups.set(self.wakeups.get() + woken);
    }

    /// Copies `bytes` to `position` of the receive ring. The caller has checked that they fit.
    #[inline]
    pub(crate) fn store(&self, position: u64, bytes: &[u8]) -> bool {
        let from = Span { memory: NonNull::from(bytes).cast(), len: bytes.len() };
        // SAFETY: the caller's bytes, and memory in our mapping.
        self.fill(position, bytes.len(), |to| unsafe { copy_spans(&[from], to) })
    }

    /// The same for what stands elsewhere.
    pub(crate) fn store_from(&self, position: u64, memory: &dyn StreamMemory, range: Range<u64>) -> bool {
        let len = (range.end - range.start) as usize;
        // SAFETY: memory in our mapping.
        self.fill(position, len, |to| unsafe { memory.copy_to(range, to) })
    }

    /// The spans lie in our mapping, which `self.program` keeps. The other process may scribble there meanwhile: it is its own
    /// data.
    #[inline]
    fn fill(&self, position: u64, len: usize, copy: impl FnOnce(&[Span]) -> bool) -> bool {
        let ring = self.receive.get();
        let spans = self.program.region.ring_spans(ring.offset, ring.size, position, len);
        let stored = spans.is_some_and(|spans| copy(&spans));
        if stored {
            self.stored.set(self.stored.get().max(position + len as u64));
            self.program.stored.set(self.program.stored.get() + len as u64);
        }
        stored
    }

    /// Copies `to.len()` bytes at `position` of the receive ring, which are there.
    pub(crate) fn load_received(&self, position: u64, to: &mut [u8]) {
        let ring = self.receive.get();
        let spans = self.program.region.ring_spans(ring.offset, ring.size, position, to.len());
        let Some(spans) = spans else { return };
        let (first, second) = to.split_at_mut(spans[0].len);
        // SAFETY: as in `store`.
        unsafe {
            spans[0].copy_to(first);
            spans[1].copy_to(second);
        }
    }

    /// Reads how far the program has taken the received bytes; nonsense counts as nothing new.
    pub(crate) fn read_consumed(&self) -> u64 {
        let claimed = self.shared().incoming().freed();
        if claimed > self.consumed.get() && claimed <= self.received.get() {
            self.consumed.set(claimed);
        }
        self.consumed.get()
    }

    /// The receive ring is complete up to `position`.
    pub(crate) fn publish_received(&self, position: u64) {
        self.received.set(position);
        self.shared().incoming().publish(position);
    }

    /// The byte at this position of the incoming stream is urgent.
    pub(crate) fn publish_urgent(&self, position: u64) {
        let slot = self.shared();
        // Linux's tcp_check_urg: one that is there and next to be read is passed, once there is another. Before the mark:
        // who sees that sees this.
        if let Some(before) = slot.urgent_mark.load(Ordering::Relaxed).checked_sub(1) {
            let passed = slot.urgent_passed().load(Ordering::Relaxed);
            let reads_at = slot.receive_head.load(Ordering::Acquire).max(passed);
            if reads_at == before && before < self.received.get() {
                slot.urgent_passed().store(before + 1, Ordering::Release);
            }
        }
        slot.urgent_mark.store(position.wrapping_add(1), Ordering::Release);
        self.add_state(slot_state::URGENT);
        self.urges.set(true);
    }

    /// Tells of an urgent byte since the last call, once what came with it can be read: a handler of SIGURG reads it at once.
    pub(crate) fn tell_urgent(&self) {
        if self.urges.take() {
            self.signal();
            self.program.signal_owner(self.shared().owner_set.load(Ordering::Acquire));
        }
    }

    /// How far the stream has been sent; true when the program waits for that and little enough is unsent.
    pub(crate) fn publish_sent(&self, sent: &Sent) -> bool {
        let slot = self.shared();
        let (low_water, most) = slot.unsent_told();
        // Half of the stream's positions is enough: nobody is 2 GiB ahead.
        slot.sent.store(sent.position as u32, Ordering::SeqCst);
        most.store(sent.most, Ordering::Relaxed);
        if low_water.swap(sent.low_water, Ordering::Relaxed) != sent.low_water {
            match sent.low_water {
                0 => self.clear_state(slot_state::UNSENT_BOUNDED),
                _ => self.add_state(slot_state::UNSENT_BOUNDED),
            }
        }
        let unsent = slot.send_tail.load(Ordering::Acquire).saturating_sub(sent.position);
        let is_little = sent.low_water == 0 || 2 * unsent < u64::from(sent.low_water);
        is_little && self.is_writer_to_wake()
    }

    /// The send ring is free up to `position`; true when the program waits for that and now has enough.
    pub(crate) fn publish_freed(&self, position: u64) -> bool {
        self.freed.set(position);
        if position == self.written.get() {
            let mut turns = self.send_turns.get();
            turns.begin();
            self.send_turns.set(turns);
        }
        self.free_extents(position);
        if self.send_before.get().is_some_and(|(_, until)| until <= position) {
            self.leave_ring_before();
        }
        self.shared().outgoing().free_then_look(position);
        self.is_writer_to_wake()
    }

    /// The program may fill more of the send ring than before.
    pub(crate) fn tell_of_room(&self) {
        if self.is_writer_to_wake() {
            self.signal();
        }
    }

    /// The program waits for room in the send ring and now has enough.
    pub(super) fn is_writer_to_wake(&self) -> bool {
        let (slot, position) = (self.shared(), self.freed.get());
        if slot.send_wanted.load(Ordering::SeqCst) == 0 {
            return false;
        }
        // As Linux's sk_stream_write_space: a third free, so that a writer is woken for more than a trifle.
        let used = slot.send_tail.load(Ordering::Acquire).saturating_sub(position);
        if used > u64::from(self.send_limit()) * 2 / 3 {
            return false;
        }
        slot.send_wanted.store(0, Ordering::SeqCst);
        true
    }
}

/// A port that is held without a socket, until this is dropped.
pub(super) struct HeldPort {
    places: Vec<(Rc<Bindings>, Endpoint)>,
    sharing: Sharing,
}

impl HeldPort {
    /// For who holds it from now on.
    fn into_places(mut self) -> Vec<(Rc<Bindings>, Endpoint)> {
        std::mem::take(&mut self.places)
    }
}

impl Drop for HeldPort {
    fn drop(&mut self) {
        for (bindings, local) in &self.places {
            bindings.release(*local, self.sharing);
        }
    }
}

impl Drop for SocketEnd {
    fn drop(&mut self) {
        self.release_port();
        self.refund();
        if let Some(memory) = self.errors_charged.get() {
            memory.refund(ERROR_RING.into());
        }
        self.program.give_ring(self.receive.get());
        self.program.give_ring(self.send.get());
        self.program.give_ring(self.errors.get());
        self.program.give_ring(self.send_before.get().map_or_else(Ring::default, |(before, _)| before));
        if !self.is_shadow {
            self.program.give_slot(self.slot);
        }
    }
}
