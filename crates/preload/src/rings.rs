//! io_uring (io_uring(7), `linux/io_uring.h`) beside sockets on paths.
//!
//! A ring works on the kernel's sockets. So a program has its rings, its sockets stay on paths, and one that an operation
//! names is seen to before the kernel has the operation: `io_uring_enter` looks through what is in the submission queue
//! ([`queue`], [`entries`]), `io_uring_register` through the files that it is given.
//!
//! ```text
//! in no use, or a listener where Linux can have it   becomes the kernel's                        moving
//! a stream that is connected, or that a ring connects
//!                                                    a stand-in, whose bytes go to the path      standin, connecting
//! a datagram socket that is connected                a stand-in, whose messages do               standin, parcels
//! any other listener                                 a stand-in that accepts stand-ins           listening
//! a datagram socket of paths without a peer          stays, and the operation is a call's        pending, post
//! ```
//!
//! One thread carries the bytes ([`ferry`], [`crossing`], [`parcels`]).
//!
//! ```text
//! rule       when                                              io_uring_setup
//! Native     without paths                                     the kernel's
//! Left       `scoutline run --io-uring`                        the kernel's; from then on all new sockets are, too
//! Refused    `--io-uring=refuse`, or calls cannot be seen      ENOSYS
//! Seen       else                                              the kernel's, and its queue is looked at
//! ```
//!
//! Calls are seen that are made by number (`syscall`) and, where [`crate::dispatch`] can be had, by instruction. With its
//! first ring a program is dispatched even where none of its code was found to make calls by itself: that may be loaded yet.
//!
//! What the kernel would do unseen, or where we cannot look, is refused as by kernels that do not know it:
//!
//! ```text
//! IORING_SETUP_SQPOLL                                  EPERM   the kernel takes entries without a call
//! IORING_SETUP_NO_MMAP, _REGISTERED_FD_ONLY            EINVAL  the queue is in the program's memory
//! flags that are newer than these lines                EINVAL  entries of several lengths in one queue, for one
//! IORING_REGISTER_RING_FDS, IORING_REGISTER_USE_REGISTERED_RING, IORING_ENTER_REGISTERED_RING
//!                                                      EINVAL  a ring by another number than its descriptor
//! IORING_REGISTER_RESIZE_RINGS                         EINVAL  the queue moves
//! IORING_ENTER_EXT_ARG_REG, IORING_REGISTER_MEM_REGION EINVAL  the mask of signals is in memory that the kernel has mapped
//! io_uring_enter on a ring that another image made     EOPNOTSUPP
//! ```
//!
//! A ring is known by its descriptor ([`crate::table`]), so duplicates, forked children and closed numbers are what they
//! are for sockets. Each has a mapping of our own, which lives until the last descriptor is closed and nobody looks at it.
//! Its words are the program's to write as well: each is read once, and all that an odd one does is that the operation
//! finds the kernel's socket behind ours, which is not connected.

mod connecting;
mod crossing;
mod entries;
mod ferry;
mod listening;
mod moving;
mod parcels;
mod pending;
mod post;
mod probe;
mod queue;
mod standin;
mod theirs;

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;
use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use libc::sigset_t;
use scoutline_abi::Region;

use crate::dispatch::{self, signals};
use crate::lock::Section;
use crate::slot::Socket;
use crate::table::{self, Entry};
use crate::{attach, life, memory, reach, real};
use entries::Looker;
pub(crate) use ferry::{flush, look_again};
pub(crate) use listening::accept;
use queue::{Shape, View};
pub(crate) use standin::{has_left, is_kernels as is_stand_ins, socket_of as of_stand_in};

/// `linux/io_uring.h`: `io_uring_setup` flags.
const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_NO_MMAP: u32 = 1 << 14;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Up to IORING_SETUP_CQE_MIXED (Linux 6.18).
const SETUP_KNOWN: u32 = (1 << 19) - 1;

/// `io_uring_enter` flags.
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_EXT_ARG_REG: u32 = 1 << 6;
/// Up to IORING_ENTER_NO_IOWAIT (Linux 6.15).
const ENTER_KNOWN: u32 = (1 << 8) - 1;
/// What a mask of signals is long to the kernel.
const MASK_LEN: usize = size_of::<u64>();

/// `io_uring_register` operations.
const REGISTER_FILES: u32 = 2;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_PROBE: u32 = 8;
const REGISTER_FILES2: u32 = 13;
const REGISTER_FILES_UPDATE2: u32 = 14;
const REGISTER_RING_FDS: u32 = 20;
const REGISTER_SYNC_CANCEL: u32 = 24;
const REGISTER_RESIZE_RINGS: u32 = 33;
const REGISTER_MEM_REGION: u32 = 34;
const REGISTER_USE_REGISTERED_RING: u32 = 1 << 31;

/// So many rings can be in a process; a data base has one for each connection that it may get.
const MOST: usize = 4096;
/// Of [`Record::users`]: the last one is unmapping it.
const ENDING: u32 = u32::MAX;

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread: [u32; 2],
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: Offsets,
    cq_off: CompletionOffsets,
}

impl Parameters {
    /// The submission queue that the kernel has made.
    fn shape(&self) -> Shape {
        Shape {
            count: self.sq_entries,
            head: self.sq_off.head,
            tail: self.sq_off.tail,
            array: (self.flags & SETUP_NO_SQARRAY == 0).then_some(self.sq_off.array),
            long: self.flags & SETUP_SQE128 != 0,
        }
    }
}

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Offsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv: u32,
    user_addr: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv: u32,
    user_addr: u64,
}

const _: () = assert!(size_of::<Parameters>() == 120 && offset_of!(Parameters, sq_off) == 40);

/// `struct io_uring_getevents_arg`, of which the mask alone concerns us.
#[repr(C)]
#[derive(Clone, Copy)]
struct GetEvents {
    mask: u64,
    mask_len: u32,
    least_wait_us: u32,
    time: u64,
}

/// Who may have a ring, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Native,
    Left,
    Refused,
    Seen,
}

struct Record {
    /// Descriptors, and threads that look at it. 0: free.
    users: AtomicU32,
    view: AtomicPtr<View>,
    /// Who looks at its entries and submits them: what one does in an entry's place no other thread may begin, nor submit.
    looking: Section,
}

static RECORDS: [Record; MOST] = [const {
    Record { users: AtomicU32::new(0), view: AtomicPtr::new(ptr::null_mut()), looking: Section::new() }
}; MOST];

/// Who makes a ring or ends one, or moves a socket. Not looks, of which a child counts its own.
static ALONE: Section = Section::new();

/// What `scoutline run` was told; called first before a program can change it.
pub(crate) fn asked() -> Rule {
    static ASKED: OnceLock<Rule> = OnceLock::new();
    *ASKED.get_or_init(|| {
        let value = real::getenv(c"SCOUTLINE_IO_URING".as_ptr());
        // SAFETY: `getenv` answers a terminated string, whose first byte exists.
        match (!value.is_null()).then(|| unsafe { *value }.to_ne_bytes()[0]) {
            Some(b'1') => Rule::Left,
            Some(b'r') => Rule::Refused,
            _ => Rule::Seen,
        }
    })
}

/// The rule for the calling thread, which is about to make a ring.
pub(crate) fn rule() -> Rule {
    if attach::region().is_none() {
        return Rule::Native;
    }
    match asked() {
        Rule::Seen if !dispatch::see_all() => Rule::Refused,
        rule => rule,
    }
}

fn say_once(said: &AtomicBool, what: &[u8]) {
    if !said.swap(true, Ordering::Relaxed) {
        real::say(&[what]);
    }
}

/// Counts a ring that is the kernel's with all sockets to come.
pub(crate) fn leave() {
    static SAID: AtomicBool = AtomicBool::new(false);
    count_ring();
    reach::stay_away();
    say_once(&SAID, b"io_uring is used: this program's sockets are the kernel's from now on");
}

fn count_ring() {
    if let Some(region) = attach::region() {
        region.header().rings_left.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a refusal. -1 and `errno`.
fn refuse(errno: c_int, said: &AtomicBool, line: &[u8]) -> c_long {
    if let Some(region) = attach::region() {
        region.header().rings_refused.fetch_add(1, Ordering::Relaxed);
    }
    say_once(said, line);
    failed(errno)
}

/// No ring: ENOSYS, as of a kernel without.
pub(crate) fn refuse_setup() -> c_long {
    static SAID: AtomicBool = AtomicBool::new(false);
    let line =
        b"io_uring is refused, for this program's sockets are on paths; if it cannot do without: scoutline run --io-uring";
    refuse(libc::ENOSYS, &SAID, line)
}

fn failed(errno: c_int) -> c_long {
    real::set_errno(errno);
    -1
}

/// `io_uring_setup` by [`Rule::Seen`].
pub(crate) fn setup(entries: c_uint, parameters: *mut Parameters) -> c_long {
    let native = |place: usize| real::syscall(libc::SYS_io_uring_setup, entries as usize, place, 0, 0, 0, 0);
    if memory::is_nowhere(parameters) {
        return native(parameters.expose_provenance()); // the kernel's to refuse
    }
    // SAFETY: the program vouches for its parameters. A copy, of which the kernel's answer is read.
    let mut copy = unsafe { parameters.read_unaligned() };
    if copy.flags & SETUP_SQPOLL != 0 {
        static SAID: AtomicBool = AtomicBool::new(false);
        let line = b"io_uring with IORING_SETUP_SQPOLL is refused (EPERM), for this program's sockets are on paths; if it cannot do without: scoutline run --io-uring";
        return refuse(libc::EPERM, &SAID, line);
    }
    if copy.flags & (SETUP_NO_MMAP | SETUP_REGISTERED_FD_ONLY | !SETUP_KNOWN) != 0 {
        return failed(libc::EINVAL);
    }
    let _alone = ALONE.enter();
    let Some(number) = claim() else { return failed(libc::ENOMEM) };
    let fd = native((&raw mut copy).expose_provenance());
    if fd < 0 {
        let errno = real::errno();
        closed(number);
        return failed(errno);
    }
    let descriptor = fd as c_int;
    let view = if table::covers(descriptor) { View::map(descriptor, copy.shape()) } else { None };
    let Some(view) = view else {
        real::close_uncancelled(descriptor);
        closed(number);
        return failed(libc::ENOMEM);
    };
    RECORDS[number as usize].view.store(Box::into_raw(Box::new(view)), Ordering::Release);
    life::left(descriptor, table::put(descriptor, Entry::Ring(number)));
    // SAFETY: as above; the kernel would write there.
    unsafe { parameters.write_unaligned(copy) };
    count_ring();
    fd
}

/// A free record, with one user.
fn claim() -> Option<u32> {
    let free =
        |record: &Record| record.users.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    RECORDS.iter().position(free).map(|number| number as u32)
}

/// One more user of a record that has some.
fn take(number: u32) -> bool {
    let more = |users: u32| (users != 0 && users < ENDING - 1).then(|| users + 1);
    let record = RECORDS.get(number as usize);
    record.is_some_and(|record| record.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok())
}

/// One descriptor more.
pub(crate) fn duplicated(number: u32) -> bool {
    take(number)
}

/// One user less; the last one ends it.
pub(crate) fn closed(number: u32) {
    let Some(record) = RECORDS.get(number as usize) else { return };
    let mut alone = None;
    loop {
        let users = record.users.load(Ordering::Acquire);
        let less = match users {
            0 | ENDING => return,
            1 if alone.is_none() => {
                alone = Some(ALONE.enter());
                continue;
            }
            1 => ENDING,
            _ => users - 1,
        };
        let exchanged = record.users.compare_exchange(users, less, Ordering::AcqRel, Ordering::Relaxed);
        match exchanged {
            Ok(1) => break,
            Ok(_) => return,
            Err(_) => {}
        }
    }
    let view = record.view.swap(ptr::null_mut(), Ordering::AcqRel);
    if !view.is_null() {
        // SAFETY: made by `setup` from a box; the record was claimed for it, and this is its only end.
        drop(unsafe { Box::from_raw(view) });
    }
    pending::ring_ended(number);
    record.users.store(0, Ordering::Release);
}

/// A look at a ring, which meanwhile stays mapped.
struct Look {
    number: u32,
    /// One that this one's signal handler has interrupted.
    before: *const Look,
}

thread_local! {
    /// The calling thread's last look.
    static LAST: Cell<*const Look> = const { Cell::new(ptr::null()) };
}

/// Has `work` look at the ring; `None`: that is none of this image's.
fn look<R>(fd: c_int, work: impl FnOnce(u32, &View) -> R) -> Option<R> {
    let Entry::Ring(number) = table::look(fd) else { return None };
    let look = Look { number, before: LAST.get() };
    // First and last: where a handler forks between two lines, its child counts one too many, not one too few.
    LAST.set(&raw const look);
    let taken = take(number);
    let mut result = None;
    // Closed meanwhile, and the record another ring's?
    if taken && table::look(fd) == Entry::Ring(number) {
        let view = RECORDS[number as usize].view.load(Ordering::Acquire);
        // SAFETY: freed only when the last user has gone, and this is one.
        result = unsafe { view.as_ref() }.map(|view| work(number, view));
    }
    if taken {
        closed(number);
    }
    LAST.set(look.before);
    result
}

/// A socket goes back to the kernel: what rings have asked of it ends.
pub(crate) fn goes_back(socket: Socket) {
    pending::socket_left(socket);
}

/// A descriptor of ours has another number.
pub(crate) fn relocated(from: c_int, to: c_int) {
    ferry::relocated(from, to);
    post::relocated(from, to);
}

/// Another image begins, in which nobody serves what stands here: what the program has written goes, and who listens is on
/// paths alone.
pub(crate) fn before_image() {
    flush();
    let _alone = ALONE.enter();
    listening::step_back();
}

/// Nobody makes or ends a ring, nor moves a socket, while the process is copied.
pub(crate) fn before_fork() {
    ALONE.take_over_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    ALONE.give_back();
}

/// The child has its parent's mappings, but of the threads that looked at them the calling one alone: who uses a ring is
/// counted anew.
pub(crate) fn in_child(region: &Region) {
    ferry::in_child();
    pending::in_child();
    post::in_child();
    standin::in_child(region);
    listening::in_child();
    let mut known = Vec::new();
    for (number, record) in RECORDS.iter().enumerate() {
        record.looking.in_child();
        if record.users.swap(0, Ordering::Relaxed) != 0 {
            known.push(number as u32);
        }
    }
    if known.is_empty() {
        return;
    }
    let more = |number: u32| {
        if let Some(record) = RECORDS.get(number as usize) {
            record.users.fetch_add(1, Ordering::Relaxed);
        }
    };
    // One more each, until all are counted.
    known.iter().copied().for_each(more);
    for fd in 0..=table::highest() {
        if let Entry::Ring(number) = table::look(fd) {
            more(number);
        }
    }
    let mut last = LAST.get();
    // SAFETY: looks of this thread that have not ended; they stand on its stack.
    while let Some(look) = unsafe { last.as_ref() } {
        more(look.number);
        last = look.before;
    }
    known.into_iter().for_each(closed);
}

/// `io_uring_enter`. `None`: the kernel's alone.
pub(crate) fn enter(arguments: [usize; 6]) -> Option<c_long> {
    let [fd, to_submit, _, flags, ..] = arguments;
    let (fd, flags) = (fd as c_int, flags as u32);
    if asked() != Rule::Seen {
        return None;
    }
    if flags & (ENTER_REGISTERED_RING | ENTER_EXT_ARG_REG | !ENTER_KNOWN) != 0 {
        return Some(failed(libc::EINVAL));
    }
    let to_submit = to_submit as u32;
    if to_submit == 0 {
        return Some(wait(arguments));
    }
    let Some(result) = look(fd, |number, view| submit(fd, to_submit, flags, number, view)) else {
        return unknown(fd);
    };
    let waits = flags & ENTER_GETEVENTS != 0 && result == c_long::from(to_submit);
    // What is submitted is told, whatever comes of the wait.
    if waits {
        let [ring, _, rest @ ..] = arguments;
        wait([ring, 0, rest[0], rest[1], rest[2], rest[3]]);
    } else {
        listening::translate();
    }
    Some(result)
}

/// Has the kernel take what waits, and was looked at, and no more: meanwhile another thread may add to it.
fn submit(fd: c_int, to_submit: u32, flags: u32, number: u32, view: &View) -> c_long {
    // A signal handler would submit what its thread is about to do.
    let Some(_inside) = RECORDS[number as usize].looking.enter() else { return failed(libc::EBUSY) };
    let mut looker = Looker::new(number, fd);
    let count = view.each_waiting(to_submit, |said| looker.look_at(said));
    let flags = flags & !(ENTER_GETEVENTS | ENTER_EXT_ARG);
    real::syscall(libc::SYS_io_uring_enter, fd as usize, count as usize, 0, flags as usize, 0, 0)
}

/// The call without anything to submit.
fn wait(arguments: [usize; 6]) -> c_long {
    let result = enter_with_signals(arguments);
    listening::translate();
    result
}

/// A ring that this image has not made: its queue is not to be looked at.
fn unknown(fd: c_int) -> Option<c_long> {
    if real::fcntl(fd, libc::F_GETFD, 0) < 0 {
        return None; // EBADF
    }
    Some(failed(libc::EOPNOTSUPP))
}

/// The call; meanwhile SIGSYS is not blocked, whatever the mask says, or a call in a signal handler would end the program.
fn enter_with_signals([fd, to_submit, least, flags, argument, len]: [usize; 6]) -> c_long {
    let native =
        |argument: usize| real::syscall(libc::SYS_io_uring_enter, fd, to_submit, least, flags, argument, len);
    let mut copy: Option<sigset_t> = None;
    let mut strip = |set: usize| signals::strip(at(set), &mut copy).expose_provenance();
    // Who waits for nothing may have anything in its place.
    if flags as u32 & ENTER_GETEVENTS == 0 || memory::is_nowhere(at::<c_void>(argument)) {
        return native(argument);
    }
    if flags as u32 & ENTER_EXT_ARG == 0 {
        return native(if len == MASK_LEN { strip(argument) } else { argument });
    }
    if len != size_of::<GetEvents>() {
        return native(argument);
    }
    // SAFETY: the program vouches for its argument of this length.
    let mut given = unsafe { at::<GetEvents>(argument).read_unaligned() };
    if memory::is_nowhere(at::<c_void>(given.mask as usize)) || given.mask_len as usize != MASK_LEN {
        return native(argument);
    }
    given.mask = strip(given.mask as usize) as u64;
    native((&raw const given).expose_provenance())
}

/// `io_uring_register`. `None`: the kernel's alone.
pub(crate) fn register(arguments: [usize; 6]) -> Option<c_long> {
    if asked() != Rule::Seen {
        return None;
    }
    let [ring, operation, argument, count, ..] = arguments;
    let (operation, count) = (operation as u32, count as u32);
    if operation & REGISTER_USE_REGISTERED_RING != 0 {
        return Some(failed(libc::EINVAL));
    }
    if matches!(operation, REGISTER_RING_FDS | REGISTER_RESIZE_RINGS | REGISTER_MEM_REGION) {
        return Some(failed(libc::EINVAL));
    }
    if memory::is_nowhere(at::<c_void>(argument)) {
        return None;
    }
    // SAFETY: the program vouches for its structures; their lengths are those that the kernel reads.
    let word = |offset: usize| unsafe { at::<u32>(argument + offset).read_unaligned() };
    // SAFETY: as above.
    let pointer = |offset: usize| unsafe { at::<u64>(argument + offset).read_unaligned() } as usize;
    match operation {
        REGISTER_PROBE => return Some(probe::probe(arguments)),
        // `struct io_uring_sync_cancel_reg`.
        REGISTER_SYNC_CANCEL => {
            let Entry::Ring(number) = table::look(ring as c_int) else { return None };
            let ended = pending::end_matching(number, word(12), pointer(0) as u64, word(8).cast_signed());
            return ended.then_some(0);
        }
        REGISTER_FILES => each_file(argument, count),
        // `struct io_uring_files_update`, `io_uring_rsrc_register`, `io_uring_rsrc_update2`.
        REGISTER_FILES_UPDATE => each_file(pointer(8), count),
        REGISTER_FILES2 if count == 32 => each_file(pointer(16), word(0)),
        REGISTER_FILES_UPDATE2 if count == 32 => each_file(pointer(8), word(24)),
        _ => {}
    }
    None
}

/// So many descriptors at this place, in the program's memory, are a ring's.
fn each_file(place: usize, count: u32) {
    // More than a process can have is the kernel's to refuse.
    if memory::is_nowhere(at::<c_int>(place)) || count as usize > table::LEN {
        return;
    }
    for index in 0..count as usize {
        // SAFETY: the program vouches for so many.
        moving::named(unsafe { at_mut::<c_int>(place).add(index).read_unaligned() });
    }
}
