//! What an epoll has of sockets on paths: one list for all processes that have its descriptor, as on Linux. It lies in the
//! region and is named as the epoll's poll set.
//!
//! ```text
//! entries   0 .. SLOT_COUNT             the first registration of the socket at this slot
//!           SLOT_COUNT ..               further ones of the same socket by other descriptors (`dup`), chained by `next`
//! ```
//! Written by the shims of the program's processes: under a lock of the process, and under `lock` as well while several
//! processes have the set ([`crate::layout::PollSet::holders`]). Whatever stands here is bounded and checked by who reads it;
//! the engine does not.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::layout::SLOT_COUNT;

/// Further registrations that an epoll may have.
const FURTHER: usize = 16_384;
/// Places for registrations: one for each slot, and those for further ones.
pub const INTEREST_COUNT: usize = SLOT_COUNT + FURTHER;

/// In [`InterestList::lock`]: who was in the list has ended there, and what it was doing is half done. The daemon says so,
/// since the record may be another's next.
pub const LEFT: u32 = u32::MAX;

/// One registration.
#[repr(C)]
pub struct Interest {
    /// The descriptor's number in the process that added it, plus one; 0: none stands here.
    pub fd_plus_one: AtomicU32,
    /// The events that are asked for.
    pub events: AtomicU32,
    /// The program's.
    pub data: AtomicU64,
    /// [`crate::layout::Slot::generation`] of the socket: another one has its slot if that differs.
    pub generation: AtomicU32,
    /// The place of the next registration of the same socket plus one; 0: none.
    pub next: AtomicU32,
}

/// The list of an epoll.
#[repr(C, align(4096))]
pub struct InterestList {
    /// The process that is in the list, its record plus one; 0: none; [`LEFT`].
    pub lock: AtomicU32,
    /// Slots that have a registration.
    pub count: AtomicU32,
    /// Kernel descriptors in the epoll, at most (closing removes them unseen).
    pub kernel: AtomicU32,
    /// Whether EPOLLEXCLUSIVE holds; the shim's.
    pub exclusive: AtomicU32,
    /// Further places that were ever used.
    pub extras: AtomicU32,
    /// The first further place that was given back, plus one; 0: none. They are chained by `next`.
    pub spare: AtomicU32,
    /// 1: something was written here, and the memory has to be emptied before the set is another's.
    pub touched: AtomicU32,
    /// See above.
    pub entries: [Interest; INTEREST_COUNT],
}

const _: () = assert!(size_of::<Interest>() == 24);
