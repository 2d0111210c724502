//! A mapped region and checked ways into it.

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use scoutline_ring::{Bitmap, Span};

use crate::interest::InterestList;
use crate::layout::{
    ARENA_LEN, CALL_COUNT, Call, ENGINE_COUNT, Header, Holds, MAGIC, PROCESS_COUNT, PollSet, ProcessRecord,
    SET_COUNT, SLOT_COUNT, SLOT_SUMMARY, Slot, offset, slots_of,
};

/// Why a region could not be made or mapped. Carries an errno where the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The system call that failed and its errno.
    System(&'static str, i32),
    /// Not a region, or of another version.
    NotARegion,
}

impl std::fmt::Display for MapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MapError::System(call, errno) => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(*errno))
            }
            MapError::NotARegion => write!(f, "the memory is not a region of this version"),
        }
    }
}

impl std::error::Error for MapError {}

/// Offset and length of what even a small program uses: the header and the first of what there are many of, which are given
/// first; of several engines' slots and rings the first engine's. Of a bitmap of slots that is the beginning.
const USED_BY_ALL: [(usize, usize); 5] = [
    (0, offset_of!(Header, dirty_words) + FIRST_WORDS),
    (offset::PROCESSES, size_of::<ProcessRecord>()),
    (offset::HOLDS, FIRST_WORDS),
    (offset::CALLS, offset::SLOTS - offset::CALLS + 64 * size_of::<Slot>()),
    (offset::ARENA, 512 << 10),
];

/// The same of each of the first poll sets, which lie further apart than a page.
const SETS_USED_BY_ALL: usize = 8;

/// Bytes of the first words of a bitmap.
const FIRST_WORDS: usize = 64;

const PAGE: usize = 4096;

/// Two spans of a ring: the second is used when the range wraps.
pub type Span2 = [Span; 2];

/// A region, mapped. Unmapped on drop.
pub struct Region {
    base: NonNull<u8>,
}

// SAFETY: the region is a mapping of shared memory; every access goes through atomics or raw copies, which are as
// valid from one thread as from another.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Region {
    /// Makes a fresh region, sealed in size, and maps it. The header is complete but for what the caller sets.
    pub fn create() -> Result<(Region, OwnedFd), MapError> {
        // SAFETY: a constant, terminated name.
        let fd = unsafe {
            libc::memfd_create(c"scoutline-region".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(MapError::System("memfd_create", errno()));
        }
        // SAFETY: just created and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system calls on our descriptor.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), offset::END as i64) < 0 {
                return Err(MapError::System("ftruncate", errno()));
            }
            // A program that could shrink the file would kill the daemon with SIGBUS.
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) < 0 {
                return Err(MapError::System("fcntl(F_ADD_SEALS)", errno()));
            }
        }
        let region = Region::map_unchecked(fd_borrow(&fd))?;
        region.header().version.store(crate::VERSION, Ordering::Relaxed);
        region.header().magic.store(MAGIC, Ordering::Release);
        Ok((region, fd))
    }

    /// Maps a region that was made by [`Region::create`].
    ///
    /// # Errors
    /// Nothing of that kind: also a file of the right length that somebody could shrink, which would end us.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Region, MapError> {
        // SAFETY: a plain system call; -1, where it has no seals at all, fails below.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(MapError::NotARegion);
        }
        // SAFETY: fstat fills the structure that we give.
        let len = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &raw mut stat) < 0 {
                return Err(MapError::System("fstat", errno()));
            }
            stat.st_size
        };
        if len != offset::END as i64 {
            return Err(MapError::NotARegion);
        }
        let region = Region::map_unchecked(fd)?;
        let header = region.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.version.load(Ordering::Relaxed) != crate::VERSION
        {
            return Err(MapError::NotARegion);
        }
        Ok(region)
    }

    fn map_unchecked(fd: BorrowedFd<'_>) -> Result<Region, MapError> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                offset::END,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(MapError::System("mmap", errno()));
        }
        // What has no page yet would get one for a core dump: gigabytes. Older kernels dump.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(base, offset::END, libc::MADV_DONTDUMP) };
        let region = Region { base: NonNull::new(base.cast()).expect("mmap gave an address") };
        region.bring_in();
        Ok(region)
    }

    /// The pages that every program uses are there before its first packet. Kernels before 5.14 cannot be asked.
    fn bring_in(&self) {
        let set =
            |set| (offset::SETS + set * size_of::<PollSet>(), offset_of!(PollSet, ready_words) + FIRST_WORDS);
        for (start, len) in USED_BY_ALL.into_iter().chain((0..SETS_USED_BY_ALL).map(set)) {
            let (start, len) = (start / PAGE * PAGE, start % PAGE + len);
            // SAFETY: the range lies in the mapping, and no byte of it changes.
            unsafe { libc::madvise(self.base.as_ptr().add(start).cast(), len, libc::MADV_POPULATE_WRITE) };
        }
    }

    /// The addresses that it takes, most of them without memory.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.base.as_ptr().addr();
        start..start + offset::END
    }

    fn at<T>(&self, at: usize) -> &T {
        debug_assert!(at + size_of::<T>() <= offset::ARENA && at.is_multiple_of(align_of::<T>()));
        // SAFETY: callers pass offsets of `layout::offset` plus a checked index, inside the mapping and aligned;
        // the types consist of atomics, for which any bytes are valid.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// The header.
    pub fn header(&self) -> &Header {
        self.at(0)
    }

    /// A process record; `None` out of range.
    pub fn process(&self, index: u32) -> Option<&ProcessRecord> {
        let index = index as usize;
        (index < PROCESS_COUNT).then(|| self.at(offset::PROCESSES + index * size_of::<ProcessRecord>()))
    }

    /// What a process holds; `None` out of range.
    pub fn holds(&self, process: u32) -> Option<&Holds> {
        let index = process as usize;
        (index < PROCESS_COUNT).then(|| self.at(offset::HOLDS + index * size_of::<Holds>()))
    }

    /// A poll set.
    pub fn set(&self, index: u32) -> Option<&PollSet> {
        let index = index as usize;
        (index < SET_COUNT).then(|| self.at(offset::SETS + index * size_of::<PollSet>()))
    }

    /// What the epoll with this poll set has of sockets.
    #[inline]
    pub fn interests(&self, set: u32) -> Option<&InterestList> {
        let index = set as usize;
        (index < SET_COUNT).then(|| self.at(offset::INTERESTS + index * size_of::<InterestList>()))
    }

    /// Empties that list, and gives its memory back. For who alone has the set.
    pub fn clear_interests(&self, set: u32) {
        let Some(list) = self.interests(set).filter(|list| list.touched.load(Ordering::Acquire) != 0) else {
            return;
        };
        let len = size_of::<InterestList>();
        // SAFETY: whole pages of this mapping, whose contents are atomics for which zeros are valid: a hole in the memory
        // reads as zeros, for everybody who maps it.
        if unsafe { libc::madvise(ptr::from_ref(list).cast_mut().cast(), len, libc::MADV_REMOVE) } == 0 {
            return;
        }
        for entry in &list.entries {
            entry.fd_plus_one.store(0, Ordering::Relaxed);
        }
        for word in [&list.lock, &list.count, &list.kernel, &list.exclusive, &list.extras, &list.spare] {
            word.store(0, Ordering::Relaxed);
        }
        list.touched.store(0, Ordering::Release);
    }

    /// A call.
    pub fn call(&self, index: u32) -> Option<&Call> {
        let index = index as usize;
        (index < CALL_COUNT).then(|| self.at(offset::CALLS + index * size_of::<Call>()))
    }

    /// A slot.
    #[inline]
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        let index = index as usize;
        (index < SLOT_COUNT).then(|| self.at(offset::SLOTS + index * size_of::<Slot>()))
    }

    /// The slots that have been handed out at some time, as the engines say: further ones are nobody's, and have no memory
    /// until somebody looks at them. Any numbers may stand there.
    pub fn slots_used(&self) -> impl Iterator<Item = u32> + '_ {
        self.parts_used().flat_map(|part| part.start as u32..part.end as u32)
    }

    /// Of a bitmap of slots the words of those.
    pub fn words_used(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts_used().flat_map(|part| part.start / 64..part.end.div_ceil(64))
    }

    fn parts_used(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let engines = self.engines();
        (0..engines).map(move |engine| {
            let slots = slots_of(engine, engines);
            let used = self.header().slots_used[engine].load(Ordering::Acquire) as usize;
            slots.start..slots.start + used.min(slots.len())
        })
    }

    /// Slots that need the engine's attention.
    #[inline]
    pub fn dirty(&self) -> Bitmap<'_> {
        let header = self.header();
        Bitmap::new(&header.dirty_summary.0, &header.dirty_words)
    }

    /// Of one engine's among several those, as far as `used` of its slots have been handed out: a look at a small program is one
    /// at a word of the summary. Whole words of that, since a slot may be handed out, and marked, while marks are taken.
    /// [`slots_of`]`.start` is the first.
    #[inline]
    pub fn dirty_of(&self, engine: usize, engines: usize, used: usize) -> Bitmap<'_> {
        let header = self.header();
        let slots = slots_of(engine, engines);
        let (first, len) = (slots.start / 4096, used.min(slots.len()).div_ceil(4096));
        let words = &header.dirty_words[first * 64..][..len * 64];
        Bitmap::new(&header.dirty_summary.0[first..][..len], words)
    }

    /// How many engines serve it. Any number may stand there.
    #[inline]
    pub fn engines(&self) -> usize {
        (self.header().engine_count.load(Ordering::Relaxed) as usize).clamp(1, ENGINE_COUNT)
    }

    /// What became ready in a poll set: of the only engine's slots as [`Region::dirty_of`] has them, for who waits looks often.
    #[inline]
    pub fn ready<'a>(&self, set: &'a PollSet) -> Bitmap<'a> {
        let header = self.header();
        let used = match header.engine_count.load(Ordering::Relaxed) {
            0 | 1 => header.slots_used[0].load(Ordering::Acquire) as usize,
            _ => SLOT_COUNT, // the last one's are at the end
        };
        let len = used.div_ceil(4096).clamp(1, SLOT_SUMMARY);
        Bitmap::new(&set.ready_summary[..len], &set.ready_words[..len * 64])
    }

    /// The bytes `position .. position + len` of a ring that lies at `ring_offset` of the arena. `None` when the
    /// numbers do not fit the arena or each other: whoever reads them from shared memory must expect that.
    #[inline]
    pub fn ring_spans(&self, ring_offset: u64, size: u32, position: u64, len: usize) -> Option<Span2> {
        let size64 = u64::from(size);
        if !size.is_power_of_two()
            || len as u64 > size64
            || ring_offset.checked_add(size64).is_none_or(|end| end > ARENA_LEN)
        {
            return None;
        }
        let start = position & (size64 - 1);
        let first = (len as u64).min(size64 - start);
        let span = |at: u64, len: u64| Span {
            // SAFETY: `at + len` is within the arena by the checks above, hence within the mapping.
            memory: unsafe { self.base.add(offset::ARENA + (ring_offset + at) as usize) },
            len: len as usize,
        };
        Some([span(start, first), span(0, len as u64 - first)])
    }
}

fn fd_borrow(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `map_unchecked` with this length; references into it borrow `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), offset::END) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::Region;
    use crate::layout::{SLOT_COUNT, slots_of};

    #[test]
    fn slots_that_were_used_are_each_engines_first() {
        let (region, _) = Region::create().unwrap();
        assert_eq!((region.slots_used().count(), region.words_used().count()), (0, 0));
        let header = region.header();
        header.engine_count.store(3, Ordering::Relaxed);
        for (word, used) in header.slots_used.iter().zip([0, 65, u32::MAX, 7]) {
            word.store(used, Ordering::Relaxed);
        }
        let [second, third] = [1, 2].map(|engine| slots_of(engine, 3));
        let slots: Vec<usize> = region.slots_used().map(|slot| slot as usize).collect();
        assert_eq!(slots, (second.start..second.start + 65).chain(third.clone()).collect::<Vec<_>>());
        let words: Vec<usize> = region.words_used().collect();
        let of_second = second.start / 64;
        assert_eq!(
            words,
            (of_second..of_second + 2).chain(third.start / 64..third.end / 64).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_poll_set_is_as_large_as_what_was_used() {
        let (region, _) = Region::create().unwrap();
        let (set, used) = (region.set(5).unwrap(), &region.header().slots_used[0]);
        let found = || {
            let mut found: Vec<usize> = Vec::new();
            region.ready(set).visit(70_000, |slot| {
                found.push(slot);
                true
            });
            found
        };
        assert!(found().is_empty(), "nothing was used");
        for slot in [0, 4_095, 4_096, SLOT_COUNT - 1] {
            used.store(slot as u32 + 1, Ordering::Relaxed);
            region.ready(set).set(slot);
        }
        assert_eq!(found(), [SLOT_COUNT - 1, 0, 4_095, 4_096], "from the middle on, and round");
    }

    #[test]
    fn marks_are_looked_for_among_slots_that_were_used() {
        let (region, _) = Region::create().unwrap();
        let own = slots_of(1, 2);
        let marks = |used| {
            let mut found = Vec::new();
            region.dirty_of(1, 2, used).drain(|slot| found.push(slot));
            found
        };
        for slot in [0, 63, 64, 4_095, 4_096, own.len() - 1] {
            region.dirty().set(own.start + slot);
        }
        region.dirty().set(own.start - 1);
        assert_eq!((marks(0), marks(1)), (vec![], vec![0, 63, 64, 4_095]));
        assert_eq!(
            (marks(4_096), marks(4_097)),
            (vec![], vec![4_096]),
            "and what is left there stays for later"
        );
        assert_eq!(marks(usize::MAX), [own.len() - 1], "as many as there are, whatever is asked");
        assert!(!region.dirty().is_empty(), "the other engine's stays");
        assert_eq!(own.end, SLOT_COUNT);
    }

    #[test]
    fn an_interest_list_is_emptied_for_all_who_map_it() {
        let (ours, fd) = Region::create().unwrap();
        let theirs = Region::map(fd.as_fd()).unwrap();
        let (list, other) = (ours.interests(3).unwrap(), theirs.interests(4).unwrap());
        list.touched.store(1, Ordering::Relaxed);
        list.count.store(2, Ordering::Relaxed);
        list.entries.last().unwrap().fd_plus_one.store(9, Ordering::Relaxed);
        other.entries[0].fd_plus_one.store(5, Ordering::Relaxed);
        theirs.clear_interests(3);
        assert_eq!(list.count.load(Ordering::Relaxed), 0);
        assert_eq!(list.entries.last().unwrap().fd_plus_one.load(Ordering::Relaxed), 0);
        assert_eq!(other.entries[0].fd_plus_one.load(Ordering::Relaxed), 5, "its neighbour stays");
        assert!(ours.interests(crate::layout::SET_COUNT as u32).is_none());
    }

    #[test]
    fn two_mappings_share_and_rings_wrap() {
        let (ours, fd) = Region::create().unwrap();
        let theirs = Region::map(fd.as_fd()).unwrap();
        ours.slot(5).unwrap().receive_tail.store(77, Ordering::Release);
        assert_eq!(theirs.slot(5).unwrap().receive_tail.load(Ordering::Acquire), 77);
        assert!(ours.slot(u32::MAX).is_none());
        let spans = ours.ring_spans(4096, 64, 60, 10).unwrap();
        assert_eq!((spans[0].len, spans[1].len), (4, 6));
        assert!(ours.ring_spans(4096, 64, 0, 65).is_none(), "longer than the ring");
        assert!(ours.ring_spans(u64::MAX, 64, 0, 1).is_none(), "outside the arena");
        assert!(ours.ring_spans(0, 48, 0, 1).is_none(), "not a power of two");
    }
}
