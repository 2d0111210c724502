//! `poll` and `select` over descriptors of both kinds: ours are looked at in shared memory, the kernel's by the
//! real `ppoll`, and a thread that sleeps sleeps on the kernel's descriptors and its set's pipe together.
//!
//! The program's order of descriptors is its own: events cannot be given in that of importance, as `epoll_wait` does.
//! So while sockets of an important class are ready, less important ones are said not to be, for as long as epoll
//! would hold them back ([`HOLD_NS`]); then all are reported once. The kernel's descriptors, and sets of epoll, are
//! never held back. Where nothing important is ready this costs a comparison for each socket that is.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd, sigset_t};

use crate::lock::Quiet;
use crate::real::err;
use crate::serve::{self, HOLD_NS, ORDINARY};
use crate::slot::{Socket, ring_before_sleep};
use crate::table::Entry;
use crate::wait::{self, Set, Woken};
use crate::{attach, cancel, epoll, family, fruitless, real, table};

/// Descriptors that need no memory from the heap.
const SMALL: usize = 128;
/// Words of a set that need none: the shim's own descriptors are below 8192.
const SMALL_WORDS: usize = 8192 / 64;
const POLLRDNORM: i16 = 0x40;
const POLLRDBAND: i16 = 0x80;
const POLLWRNORM: i16 = 0x100;
const POLLWRBAND: i16 = 0x200;

/// What of `fd` is not the kernel's alone.
enum Part {
    Kernel,
    Socket(Socket),
    /// An epoll with sockets of ours: the kernel's view of it counts too.
    Epoll(u32),
    Internal,
}

fn part(fd: c_int) -> Part {
    match family::look(fd) {
        Entry::Socket(slot) => Socket::at(slot).map_or(Part::Kernel, Part::Socket),
        Entry::Epoll(number) if epoll::is_ours(number) => Part::Epoll(number),
        Entry::Internal(_) => Part::Internal,
        _ => Part::Kernel,
    }
}

/// True when the real function would not do.
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| !matches!(part(entry.fd), Part::Kernel))
}

/// Less important sockets of the calling thread that are said not to be ready.
#[derive(Clone, Copy)]
struct Held {
    /// From then on; 0: none are.
    since_ns: u64,
    /// One of them: once it is reported, or looked at and not ready, nothing is held back any more. Calls about other
    /// descriptors come between.
    fd: c_int,
}

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held { since_ns: 0, fd: -1 }) };
}

/// Which of the events that a descriptor has a caller hears of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Errors and hang-ups, whatever it asks about.
    Poll,
    /// What its sets can show.
    Select,
}

impl Call {
    /// What is reported to who asks for these events.
    fn shows(self, events: i16) -> i16 {
        let of = |asked, shown| if events & asked != 0 { shown } else { 0 };
        match self {
            Call::Poll => events | POLLERR | POLLHUP,
            Call::Select => of(POLLIN, READ) | of(POLLOUT, WRITE) | of(POLLPRI, EXCEPT),
        }
    }
}

/// Our part of the answer: fills `revents` of what is ours, zeroes the rest. Answers how many are ready.
fn look(fds: &mut [pollfd], call: Call) -> usize {
    let mut n = 0;
    let mut most = 0;
    for entry in fds.iter_mut() {
        entry.revents = match part(entry.fd) {
            Part::Socket(socket) => {
                let interest = call.shows(entry.events) as u16 as u32;
                let ready = (socket.readiness(interest) & interest) as i16;
                if ready != 0 {
                    most = most.max(socket.importance());
                }
                ready
            }
            Part::Epoll(number) if entry.events & POLLIN != 0 && epoll::peek(number) => POLLIN,
            Part::Internal => POLLNVAL,
            _ => 0,
        };
        n += usize::from(entry.revents != 0);
    }
    if most > ORDINARY || HELD.get().since_ns != 0 { n - hold_back(fds, most) } else { n }
}

/// Takes what is less important than this out of the answer, unless that has been done for too long; how many.
#[cold]
fn hold_back(fds: &mut [pollfd], most: u32) -> usize {
    let is_less = |entry: &pollfd| {
        entry.revents != 0
            && matches!(part(entry.fd), Part::Socket(socket) if most > ORDINARY && socket.importance() < most)
    };
    let mut held = HELD.get();
    if fds.iter().any(|entry| entry.fd == held.fd) && !fds.iter().any(|e| e.fd == held.fd && is_less(e)) {
        held.since_ns = 0;
    }
    let mut count = 0;
    if most > ORDINARY {
        let now = real::now_ns();
        serve::saw_important();
        if let Some(first) = fds.iter().find(|entry| is_less(entry)) {
            if held.since_ns == 0 {
                held = Held { since_ns: now, fd: first.fd };
            }
            if now.wrapping_sub(held.since_ns) < HOLD_NS {
                for entry in fds.iter_mut().filter(|entry| is_less(entry)) {
                    entry.revents = 0;
                    count += 1;
                }
            } else {
                held.since_ns = 0;
            }
        }
    }
    HELD.set(held);
    count
}

/// The kernel's part, merged in. `extra` is polled too and answers in its own `revents`.
fn look_at_kernel(
    call: Call,
    fds: &mut [pollfd],
    extra: Option<&mut pollfd>,
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> isize {
    let mut small = [const { MaybeUninit::<pollfd>::uninit() }; SMALL + 1];
    let mut large;
    let kernel: &mut [MaybeUninit<pollfd>] = if fds.len() <= SMALL {
        &mut small[..=fds.len()]
    } else {
        large = vec![MaybeUninit::<pollfd>::uninit(); fds.len() + 1];
        &mut large
    };
    // Linux refuses more descriptors than RLIMIT_NOFILE says: `extra` has the place of one that is not the kernel's.
    let mut place = fds.len();
    for (at, (to, from)) in kernel.iter_mut().zip(fds.iter()).enumerate() {
        let ours = matches!(part(from.fd), Part::Socket(_) | Part::Internal);
        if ours {
            place = place.min(at);
        }
        to.write(pollfd { fd: if ours { -1 } else { from.fd }, events: from.events, revents: 0 });
    }
    let mut count = fds.len();
    if let Some(extra) = &extra {
        kernel[place].write(**extra);
        count = count.max(place + 1);
    }
    // SAFETY: the first `count` elements were written above.
    let kernel = unsafe { &mut *(std::ptr::from_mut(&mut kernel[..count]) as *mut [pollfd]) };
    let result = ask_kernel(call, kernel, fds.len(), deadline, mask);
    if result >= 0 {
        if let Some(extra) = extra {
            extra.revents = std::mem::take(&mut kernel[place].revents);
        }
        for (to, from) in fds.iter_mut().zip(kernel.iter()) {
            to.revents |= from.revents;
        }
    }
    result
}

/// The kernel's answer about `fds`, of which so many are the program's.
fn ask_kernel(
    call: Call,
    fds: &mut [pollfd],
    programs: usize,
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> isize {
    let blind = |entry: &pollfd| entry.fd >= 0 && entry.events & POLLIN == 0;
    if call == Call::Select && fds.iter().any(blind) {
        return select_until(fds, deadline, mask);
    }
    let result = wait::ppoll_until(fds, deadline, mask);
    if result != -(libc::EINVAL as isize) {
        return result;
    }
    // Beyond RLIMIT_NOFILE, which `select` knows nothing of.
    if call == Call::Poll {
        // An epoll alone is ours, and with our pipe it is one too many; or so the program's are already.
        let result = wait::ppoll_until(&mut fds[..programs], Some(0), ptr::null());
        if result != 0 {
            return result;
        }
    }
    select_until(fds, deadline, mask)
}

/// As [`wait::ppoll_until`], for `select`: hang-ups and errors, which `poll` always reports, end it only where its sets show
/// them. Those read by nobody (POLLIN) may not.
#[cold]
pub(crate) fn select_until(fds: &mut [pollfd], deadline: Option<u64>, mask: *const sigset_t) -> isize {
    let n = fds.iter().map(|entry| entry.fd + 1).max().unwrap_or(0).max(0);
    let words = (n as usize).div_ceil(64);
    let mut small = [0u64; 3 * SMALL_WORDS];
    let mut large = Vec::new();
    let all = if words <= SMALL_WORDS {
        &mut small[..3 * words]
    } else {
        large.resize(3 * words, 0u64);
        &mut large[..]
    };
    let (read, others) = all.split_at_mut(words);
    let (write, except) = others.split_at_mut(words);
    let [read, write, except] = [read, write, except].map(|set| set.as_mut_ptr().cast::<fd_set>());
    let asked = [(read, POLLIN), (write, POLLOUT), (except, POLLPRI)];
    for entry in fds.iter().filter(|entry| entry.fd >= 0) {
        for (set, _) in asked.iter().filter(|(_, event)| entry.events & event != 0) {
            put(*set, entry.fd, true);
        }
    }
    let timeout = deadline.map(wait::left);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let result = real::ours(real::pselect(n, read, write, except, timeout, mask) as isize);
    if result >= 0 {
        for entry in fds.iter_mut().filter(|entry| entry.fd >= 0) {
            let events = asked.iter().filter(|(set, _)| has(*set, entry.fd)).map(|(_, event)| event);
            entry.revents = events.fold(0, |all, event| all | event);
        }
    }
    result
}

fn count_sockets(fds: &[pollfd]) -> usize {
    fds.iter().filter(|entry| matches!(part(entry.fd), Part::Socket(_))).count()
}

fn ready(fds: &[pollfd]) -> isize {
    fds.iter().filter(|entry| entry.revents != 0).count() as isize
}

/// `poll` and `ppoll` where some descriptor is ours. `zero`: do not wait; `deadline` none: for ever.
pub(crate) fn poll(fds: &mut [pollfd], zero: bool, deadline: Option<u64>, mask: *const sigset_t) -> isize {
    let _deferred = cancel::Deferred::new();
    let result = await_ready(Call::Poll, fds, zero, deadline, mask);
    has_looked(zero, result);
    go_on(fds, result);
    result
}

fn has_looked(zero: bool, result: isize) {
    match attach::region() {
        Some(region) if zero && result == 0 => fruitless::found_nothing(region),
        _ if result > 0 => fruitless::found(),
        _ => {}
    }
}

/// The thread goes on with what is ready.
fn go_on(fds: &[pollfd], result: isize) {
    if serve::is_raised() || serve::has_important() {
        let mut most: Option<Socket> = None;
        for entry in fds.iter().filter(|entry| result > 0 && entry.revents != 0) {
            each_socket(std::slice::from_ref(entry), &mut |socket| {
                if most.is_none_or(|most| most.importance() < socket.importance()) {
                    most = Some(socket);
                }
            });
        }
        match most {
            Some(socket) => serve::go_on_with(socket),
            None => serve::serve(0),
        }
    }
}

fn await_ready(
    call: Call,
    fds: &mut [pollfd],
    zero: bool,
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> isize {
    let look = |fds: &mut [pollfd]| look(fds, call);
    let mut quiet = None;
    let mut sockets = 0;
    loop {
        let found = look(fds) > 0;
        if found || zero {
            // Where nothing is ready, signals that the mask lets in come, though there is no time to wait (`do_poll`).
            let mask = if found { ptr::null() } else { mask };
            let result = look_at_kernel(call, fds, None, Some(0), mask);
            return if result < 0 { result } else { ready(fds) };
        }
        if quiet.is_none() && attach::region().is_some_and(|region| wait::spin(region, || look(fds) > 0)) {
            continue;
        }
        let count = count_sockets(fds);
        if count < mem::replace(&mut sockets, count) {
            // One has been closed beside the sleep: whoever sleeps on its number again sleeps on what has it next.
            let result = attach::while_none_comes(|| look_at_kernel(call, fds, None, Some(0), ptr::null()));
            if result != 0 {
                return if result < 0 { result } else { ready(fds) };
            }
        }
        // From here on handlers run in the kernel's call alone, which tells so. One that took what has just come, between
        // that call and a look at it, would leave us asleep.
        let quiet = quiet.get_or_insert_with(Quiet::new);
        let mask = if mask.is_null() { quiet.mask() } else { mask };
        let frame = 0u64; // its address tells where we are
        let Some((set, using)) = wait::use_set(&raw const frame) else {
            let soon = real::now_ns() + 1_000_000;
            let due = deadline.map_or(soon, |at| at.min(soon));
            let result = look_at_kernel(call, fds, None, Some(due), mask);
            let late = deadline.is_some_and(|at| real::now_ns() >= at);
            if result != 0 || late {
                return result;
            }
            continue;
        };
        serve::enter(set);
        each_socket(fds, &mut |socket| wait::watch(socket, set.number));
        set.enter(1);
        set.bell().before_look();
        let generation = attach::generation();
        let mut woken = Woken::Event;
        let mut result = 0;
        let mut leaving = Leaving { fds: ptr::from_ref(fds), kept: Kept::default(), set, using, generation };
        let place = &raw mut leaving;
        // From before anything is held until nothing is: a handler may jump out of every moment of it.
        cancel::cancellable(cancelled, place.cast(), || {
            // SAFETY: `cancelled` looks at it only when this will not go on.
            let kept = unsafe { &mut (*place).kept };
            if look(fds) == 0 && kept.take(fds) {
                let pipe = if attach::dead() { -1 } else { set.pipe };
                let mut pipe = pollfd { fd: pipe, events: POLLIN, revents: 0 };
                ring_before_sleep();
                result = look_at_kernel(call, fds, Some(&mut pipe), deadline, mask);
                if attach::generation() != generation {
                    return;
                }
                if result == 0 {
                    woken = Woken::TimedOut;
                } else if result > 0 && pipe.revents != 0 {
                    set.drain();
                }
            }
            set.bell().leave(1);
            give_back(fds, kept, set);
        });
        if attach::generation() == generation {
            wait::used(using);
        } else {
            // A handler has forked here, and this is the child: the set is its parent's, who sleeps on.
            wait::forget_use();
            result = result.min(0);
        }
        if result < 0 {
            return result;
        }
        let kernel = ready(fds);
        if woken == Woken::TimedOut {
            // One may be the kernel's by now, or closed.
            let result =
                if look(fds) > 0 { 0 } else { look_at_kernel(call, fds, None, Some(0), ptr::null()) };
            return if result < 0 { result } else { ready(fds) };
        }
        if kernel > 0 && result > 0 {
            // The kernel's are ready; ours may have become so.
            look(fds);
            let result = look_at_kernel(call, fds, None, Some(0), std::ptr::null());
            let n = ready(fds);
            if result < 0 || n > 0 {
                return if result < 0 { result } else { n };
            }
        }
    }
}

/// Sockets that a sleeping thread holds, so that another thread's close does not end them (`do_poll` has the files): who
/// waits is woken by what comes then, and finds that the number is closed.
#[derive(Clone, Copy, Default)]
struct Kept {
    sockets: [Option<Socket>; MOST_KEPT],
    /// Whose they are: a child, which a handler has forked here, holds what stands in its table.
    generation: u32,
}

/// More are not held: their threads sleep on when another one closes them.
const MOST_KEPT: usize = 16;

impl Kept {
    /// False, and none is held: one of them has been closed just now.
    fn take(&mut self, fds: &[pollfd]) -> bool {
        self.generation = attach::generation();
        let mut places = self.sockets.iter_mut();
        for entry in fds {
            let Part::Socket(socket) = part(entry.fd) else { continue };
            let Some(place) = places.next() else { break };
            if !socket.hold_beside() {
                self.give_back();
                return false;
            }
            *place = Some(socket);
        }
        true
    }

    fn each(&self) -> impl Iterator<Item = Socket> {
        self.sockets.iter().map_while(|socket| *socket)
    }

    fn give_back(&mut self) {
        let held = self.generation == attach::generation();
        for socket in std::mem::take(&mut self.sockets).into_iter().flatten().filter(|_| held) {
            socket.release();
        }
    }
}

/// What a thread takes back that no longer sleeps.
struct Leaving {
    fds: *const [pollfd],
    kept: Kept,
    set: Set,
    using: wait::InUse,
    /// Whose they are.
    generation: u32,
}

fn give_back(fds: &[pollfd], kept: &mut Kept, set: Set) {
    each_socket(fds, &mut |socket| wait::unwatch(socket, set));
    for socket in kept.each() {
        wait::unwatch(socket, set); // its number may be another's by now
    }
    kept.give_back();
}

/// A thread is cancelled in its sleep, or a signal handler jumps out of it.
extern "C" fn cancelled(leaving: *mut c_void) {
    // SAFETY: what the sleeper gave, in a frame that still stands and does not go on; its descriptors are read only.
    let (fds, leaving) = unsafe {
        let leaving = &mut *leaving.cast::<Leaving>();
        (&*leaving.fds, leaving)
    };
    if leaving.generation != attach::generation() {
        return wait::forget_use(); // it is a child's: its parent sleeps on
    }
    give_back(fds, &mut leaving.kept, leaving.set);
    wait::left_asleep(leaving.set, leaving.using);
}

fn each_socket(fds: &[pollfd], visit: &mut dyn FnMut(Socket)) {
    for entry in fds {
        match part(entry.fd) {
            Part::Socket(socket) => visit(socket),
            Part::Epoll(number) => epoll::each_socket(number, visit),
            _ => {}
        }
    }
}

/// Descriptors for which a process has room at first (NR_OPEN_DEFAULT), and at least once there are more.
const FIRST_TABLE: c_int = 64;
const NEXT_TABLE: c_int = 256;

/// For how many descriptors the kernel's table would have room without the library's own: `select` looks at no more,
/// whatever the program says, who may have asked for as many as it may open (getdtablesize(3)).
#[cold]
fn table_size() -> c_int {
    let errno = real::errno();
    let of_program = |number: &c_int| !table::is_own(*number);
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let highest = numbers.filter(of_program).max().unwrap_or(libc::FD_SETSIZE as c_int - 1);
    real::set_errno(errno);
    match highest {
        ..FIRST_TABLE => FIRST_TABLE,
        _ => u32::try_from(highest + 1)
            .map_or(NEXT_TABLE, |n| (n.next_power_of_two() as c_int).max(NEXT_TABLE)),
    }
}

/// How many descriptors a `select` of the first `n` looks at.
pub(crate) fn looked_at(n: c_int) -> c_int {
    if n > libc::FD_SETSIZE as c_int { n.min(table_size()) } else { n }
}

/// The three sets of `select`, as bits.
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

const READ: i16 = POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR | POLLNVAL;
const WRITE: i16 = POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR | POLLNVAL;
const EXCEPT: i16 = POLLPRI | POLLNVAL;

fn has(set: *mut fd_set, fd: c_int) -> bool {
    // SAFETY: the program vouches for as many bits as it says; sets may be larger than the type (FD_SETSIZE), so
    // the word is found by hand.
    !set.is_null() && unsafe { *set.cast::<u64>().add(fd as usize / 64) } >> (fd % 64) & 1 != 0
}

fn put(set: *mut fd_set, fd: c_int, on: bool) {
    if !set.is_null() {
        // SAFETY: as in `has`.
        let word = unsafe { &mut *set.cast::<u64>().add(fd as usize / 64) };
        *word = *word & !(1 << (fd % 64)) | u64::from(on) << (fd % 64);
    }
}

impl Sets {
    fn any(&self, fd: c_int) -> bool {
        has(self.read, fd) || has(self.write, fd) || has(self.except, fd)
    }

    /// True when the real function would not do.
    pub(crate) fn concerns(&self, n: c_int) -> bool {
        let highest = table::highest();
        (0..n.min(highest.saturating_add(1)))
            .any(|fd| table::look(fd) != Entry::Kernel && self.any(fd) && !matches!(part(fd), Part::Kernel))
    }

    /// `select` where some descriptor is ours.
    pub(crate) fn select(&self, n: c_int, zero: bool, deadline: Option<u64>, mask: *const sigset_t) -> isize {
        let result = self.select_below(n, zero, deadline, mask);
        if result != err(libc::EBADF) || n <= FIRST_TABLE {
            return result;
        }
        // Beyond the table nothing is looked at.
        match table_size() {
            size if size < n => self.select_below(size, zero, deadline, mask),
            _ => result,
        }
    }

    fn select_below(&self, n: c_int, zero: bool, deadline: Option<u64>, mask: *const sigset_t) -> isize {
        let mut small = [pollfd { fd: -1, events: 0, revents: 0 }; SMALL];
        let mut large = Vec::new();
        let count = (0..n).filter(|&fd| self.any(fd)).count();
        let fds: &mut [pollfd] = if count <= SMALL {
            &mut small[..count]
        } else {
            large.resize(count, pollfd { fd: -1, events: 0, revents: 0 });
            &mut large
        };
        for (entry, fd) in fds.iter_mut().zip((0..n).filter(|&fd| self.any(fd))) {
            let wants = |set, bits| if has(set, fd) { bits } else { 0 };
            entry.fd = fd;
            entry.events = wants(self.read, POLLIN | POLLRDNORM)
                | wants(self.write, POLLOUT | POLLWRNORM)
                | wants(self.except, POLLPRI);
        }
        let _deferred = cancel::Deferred::new();
        let now_mask = if zero { mask } else { ptr::null() };
        let mut result = await_ready(Call::Select, fds, true, None, now_mask);
        if result >= 0 && fds.iter().any(|entry| entry.revents & POLLNVAL != 0) {
            return err(libc::EBADF);
        }
        if result == 0 && !zero {
            // What is closed from here on counts as ready (`POLLIN_SET`).
            result = await_ready(Call::Select, fds, false, deadline, mask);
        }
        has_looked(zero, result);
        go_on(fds, result);
        if result < 0 {
            return result;
        }
        let mut total = 0;
        for entry in fds.iter() {
            for (set, bits) in [(self.read, READ), (self.write, WRITE), (self.except, EXCEPT)] {
                if has(set, entry.fd) {
                    let on = entry.revents & bits != 0;
                    put(set, entry.fd, on);
                    total += isize::from(on);
                }
            }
        }
        // Whole words are written (`set_fd_set`).
        for set in [self.read, self.write, self.except] {
            for fd in n..n.saturating_add(63) / 64 * 64 {
                put(set, fd, false);
            }
        }
        total
    }
}
