//! The queue of connections that wait to be accepted: slots of sockets in a listening socket's receive ring.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use super::SocketEnd;
use super::end::ACCEPT_RING;
use super::module::Standing;
use crate::arena::Ring;
use crate::several::{Listener, Said};

impl SocketEnd {
    /// The listening socket's ring and how far it is filled; of a shadow's, what its own engine says in shared memory.
    fn queue(&self) -> (Ring, u64) {
        if !self.is_shadow {
            return (self.receive.get(), self.received.get());
        }
        let slot = self.shared();
        let offset = slot.receive_offset.load(Ordering::Relaxed);
        let size = slot.receive_size.load(Ordering::Acquire).min(ACCEPT_RING);
        (Ring { offset, size }, slot.receive_tail.load(Ordering::Acquire))
    }

    /// The slot of the listening socket in whose queue it was put.
    pub(crate) fn listener(&self) -> Option<u32> {
        self.listener.get().map(|plus_one| plus_one.get() - 1)
    }

    /// It goes to the queue of this listening socket.
    pub(crate) fn set_listener(&self, listener: &SocketEnd) {
        self.listener.set(NonZeroU32::new(listener.slot + 1));
        self.listening_number.set(listener.listening_number.get());
    }

    /// As the other engines know a listening socket.
    pub(crate) fn as_listener(&self) -> Listener {
        Listener { region: self.program.id, slot: self.slot, listening: self.listening_number.get() }
    }

    /// Connections that wait in the accept queue.
    pub(crate) fn waiting(&self) -> u64 {
        let (_, tail) = self.queue();
        tail.saturating_sub(self.shared().receive_head.load(Ordering::Acquire))
    }

    /// The slots that wait in the accept queue, as the program has it: any numbers.
    pub(crate) fn queued(&self) -> impl Iterator<Item = u32> {
        let (ring, tail) = self.queue();
        // A socket that does not listen has other things in its ring, and more of them.
        let entries = u64::from(ACCEPT_RING.min(ring.size) / 4);
        let head =
            self.shared().receive_head.load(Ordering::Acquire).clamp(tail.saturating_sub(entries), tail);
        (head..tail).filter_map(move |entry| {
            let spans = self.program.region.ring_spans(ring.offset, ring.size, entry.wrapping_mul(4), 4)?;
            let mut bytes = [0; 4];
            // SAFETY: four bytes of our mapping; entries never wrap, since sizes are powers of two and hold four.
            unsafe { spans[0].copy_to(&mut bytes) };
            Some(u32::from_le_bytes(bytes))
        })
    }
}

/// The connection may wait in its listening socket's queue: who accepts takes the most important first, and hears of
/// one that has become so.
pub(super) fn stand_in_queue(end: &SocketEnd, standing: Standing) {
    let Some(listener) = end.listener().and_then(|slot| end.program.end(slot)) else { return };
    let waits = end.shared().references.load(Ordering::Acquire) == 0;
    if listener.is_shadow {
        if waits {
            let said = Said::Stands { listener: listener.as_listener(), slot: end.slot, standing };
            end.program.tell_of(listener.slot, said);
        }
        return;
    }
    if waits && standing.importance() > listener.shared().importance.load(Ordering::Relaxed).into() {
        listener.stand(standing);
        listener.signal_waiting(end.slot, standing.duty());
    }
}

/// Puts an accepted socket into its listening socket's queue; false when it is full or closed.
pub(super) fn accept_queue_push(listener: &SocketEnd, slot: u32, standing: Standing) -> bool {
    if let Some(accepted) = listener.program.end(slot) {
        accepted.set_listener(listener);
    }
    if listener.is_shadow {
        let listens = !listener.closed.get();
        if listens {
            let said = Said::Accepted { listener: listener.as_listener(), slot, standing };
            listener.program.tell_of(listener.slot, said);
        }
        return listens;
    }
    queue_accepted(listener, slot, standing)
}

/// The same for the listening socket itself, whichever engine the accepted one is of.
pub(crate) fn queue_accepted(listener: &SocketEnd, slot: u32, standing: Standing) -> bool {
    let shared = listener.shared();
    let entries = u64::from(listener.receive_size() / 4);
    let tail = listener.received.get();
    // A head beyond the tail is nonsense of a hostile program; it only harms its own queue.
    let waiting = tail.saturating_sub(shared.receive_head.load(Ordering::Acquire));
    if listener.closed.get() || waiting >= entries {
        return false;
    }
    if !listener.store(tail * 4, &slot.to_le_bytes()) {
        return false;
    }
    // Whoever accepts looks for the most important that waits while this says that there may be one.
    let importance = standing.importance();
    if waiting == 0 || importance > shared.importance.load(Ordering::Relaxed).into() {
        listener.stand(standing);
    }
    listener.publish_received(tail + 1);
    listener.program.early.tell(listener, slot, standing.duty());
    true
}
