//! Limits of resources that what is ours counts towards, and the program knows nothing of it.
//!
//! - RLIMIT_AS: our mappings, most of all the region's, are address space of the program. A limit that the program sets is
//!   told to the kernel with so much added, and the program reads back what it asked for. It begins with the first such
//!   call of a program image; one that starts with a limit too small to map the region has it raised, if it may.
//! - RLIMIT_NOFILE: whoever lowers it could not have a pipe to wait by any more, so the calling thread has one before. And
//!   what a child or a new image needs is opened beyond a limit that is reached.
//!
//! Left out: limits that another process sets for this one.

use std::ffi::c_int;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{RLIM_INFINITY, RLIMIT_AS, RLIMIT_NOFILE, rlimit};
use scoutline_abi::layout::offset;
use scoutline_abi::{MapError, Region};

use crate::{attach, real, wait};

/// Address space that the shim takes: the region, and what else it maps and is itself, amply.
const OWN_ADDRESS_SPACE: u64 = offset::END as u64 + (32 << 20);
/// Descriptors that a child or a new image needs at once, amply.
const MORE_DESCRIPTORS: u64 = 64;

/// A limit of address space: what the program asked for, and what the kernel was told instead. 0: nothing yet.
struct Told {
    asked: AtomicU64,
    kernel: AtomicU64,
}

impl Told {
    const fn new() -> Told {
        Told { asked: AtomicU64::new(0), kernel: AtomicU64::new(0) }
    }

    fn set(&self, asked: u64, kernel: u64) {
        self.asked.store(asked, Ordering::Relaxed);
        self.kernel.store(kernel, Ordering::Relaxed);
    }

    /// What the program sees where the kernel has this.
    fn shown(&self, kernel: u64) -> u64 {
        let is_told = kernel != 0 && kernel == self.kernel.load(Ordering::Relaxed);
        if is_told { self.asked.load(Ordering::Relaxed) } else { kernel }
    }
}

static SOFT: Told = Told::new();
static HARD: Told = Told::new();

fn with_ours(asked: u64) -> u64 {
    if asked == RLIM_INFINITY { asked } else { asked.saturating_add(OWN_ADDRESS_SPACE) }
}

fn current(resource: u32) -> Option<rlimit> {
    // SAFETY: zeros are a valid structure to fill.
    let mut limit: rlimit = unsafe { zeroed() };
    (real::getrlimit(resource as c_int, &raw mut limit) == 0).then_some(limit)
}

fn tell(asked: rlimit, kernel: rlimit) -> c_int {
    let result = real::setrlimit(RLIMIT_AS as c_int, &raw const kernel);
    if result == 0 {
        SOFT.set(asked.rlim_cur, kernel.rlim_cur);
        HARD.set(asked.rlim_max, kernel.rlim_max);
    }
    result
}

/// RLIMIT_NOFILE as it was last set or seen, plus one; 0: neither.
static DESCRIPTORS: AtomicU64 = AtomicU64::new(0);
/// For so few the kernel is not asked: that kills a process which has forbidden itself to ask (sshd's before it knows who
/// logs in, by seccomp).
const FEW: u64 = 64;

/// So many are more than there may be descriptors: `poll` refuses them before it looks at any.
pub(crate) fn are_too_many(descriptors: u64) -> bool {
    let known = DESCRIPTORS.load(Ordering::Relaxed);
    if descriptors < known {
        return false;
    }
    if descriptors <= FEW {
        return known != 0;
    }
    let Some(now) = current(RLIMIT_NOFILE) else { return false };
    DESCRIPTORS.store(now.rlim_cur.saturating_add(1), Ordering::Relaxed);
    descriptors > now.rlim_cur
}

/// Sets a limit of this process. `None`: it is none of ours to change.
pub(crate) fn set(resource: c_int, asked: &rlimit) -> Option<c_int> {
    attach::region()?;
    if resource == RLIMIT_NOFILE as c_int {
        DESCRIPTORS.store(asked.rlim_cur.saturating_add(1), Ordering::Relaxed);
        let _ = wait::thread_set();
        return None;
    }
    if resource != RLIMIT_AS as c_int {
        return None;
    }
    let kernel = rlimit { rlim_cur: with_ours(asked.rlim_cur), rlim_max: with_ours(asked.rlim_max) };
    let result = tell(*asked, kernel);
    let is_refused = result < 0 && real::errno() == libc::EPERM;
    if let Some(now) = current(RLIMIT_AS)
        && is_refused
        && asked.rlim_max <= HARD.shown(now.rlim_max)
    {
        // The program may have it, but there is no more room for ours.
        let least = |wanted: u64| wanted.min(now.rlim_max);
        let kernel = rlimit { rlim_cur: least(kernel.rlim_cur), rlim_max: least(kernel.rlim_max) };
        return Some(tell(*asked, kernel));
    }
    Some(result)
}

/// What the program sees of a limit of this process that the kernel has told.
pub(crate) fn show(resource: c_int, limit: &mut rlimit) {
    if resource == RLIMIT_AS as c_int {
        limit.rlim_cur = SOFT.shown(limit.rlim_cur);
        limit.rlim_max = HARD.shown(limit.rlim_max);
    }
}

/// Makes room for the region where a limit of address space leaves none. False: there is no such limit, or it stays.
fn make_room() -> bool {
    let Some(now) = current(RLIMIT_AS).filter(|now| now.rlim_cur != RLIM_INFINITY) else { return false };
    let soft = with_ours(now.rlim_cur);
    tell(now, rlimit { rlim_cur: soft, rlim_max: now.rlim_max.max(soft) }) == 0
}

/// Maps a region, by this descriptor of its memory.
///
/// # Safety
/// The descriptor is open, and stays so meanwhile.
pub(crate) unsafe fn map(memory: c_int) -> Option<Region> {
    // SAFETY: as the caller says.
    let memory = unsafe { BorrowedFd::borrow_raw(memory) };
    match Region::map(memory) {
        Err(MapError::System(_, libc::ENOMEM)) if make_room() => Region::map(memory).ok(),
        region => region.ok(),
    }
}

/// `open` beyond a limit of descriptors that is reached: the kernel's is higher meanwhile. `None`: it cannot be.
pub(crate) fn beyond<T>(open: impl FnOnce() -> Option<T>) -> Option<T> {
    let before = current(RLIMIT_NOFILE)?;
    let most = before.rlim_max.max(before.rlim_cur.saturating_add(MORE_DESCRIPTORS));
    let is_enough = before.rlim_max - before.rlim_cur >= MORE_DESCRIPTORS;
    let more = if is_enough {
        rlimit { rlim_cur: before.rlim_max, rlim_max: before.rlim_max }
    } else {
        rlimit { rlim_cur: most, rlim_max: most }
    };
    // Another thread may open something beyond its limit meanwhile; without that the child would lose its sockets.
    if real::setrlimit(RLIMIT_NOFILE as c_int, &raw const more) < 0 {
        return None;
    }
    let result = open();
    let errno = real::errno();
    real::setrlimit(RLIMIT_NOFILE as c_int, &raw const before);
    real::set_errno(errno);
    result
}

/// `prlimit`, of this process.
pub(crate) fn exchange(resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: zeros are a valid structure to fill.
    let mut before: rlimit = unsafe { zeroed() };
    let result = real::prlimit(0, resource, ptr::null(), &raw mut before);
    if result < 0 {
        return result;
    }
    show(resource, &mut before);
    // SAFETY: the program vouches for what it points to, null aside.
    if let Some(new) = unsafe { new.as_ref() } {
        let result = set(resource, new).unwrap_or_else(|| real::setrlimit(resource, new));
        if result < 0 {
            return result;
        }
    }
    // SAFETY: as above.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}
