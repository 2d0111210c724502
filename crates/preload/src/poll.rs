//! `poll` and `select` over descriptors of both kinds: ours are looked at in shared memory, the kernel's by the
//! real `ppoll`, and a thread that sleeps sleeps on the kernel's descriptors and its set's pipe together.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd, sigset_t};

use crate::real::err;
use crate::slot::{Socket, ring_before_sleep, tell_deferred};
use crate::table::Entry;
use crate::wait::{self, Woken};
use crate::{attach, epoll, real, serve, table};

/// Descriptors that need no memory from the heap.
const SMALL: usize = 128;
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
    match table::look(fd) {
        Entry::Socket(slot) => Socket::at(slot).map_or(Part::Kernel, Part::Socket),
        Entry::Epoll(number) if epoll::is_ours(number) => Part::Epoll(number),
        Entry::Internal => Part::Internal,
        _ => Part::Kernel,
    }
}

/// True when the real function would not do.
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| !matches!(part(entry.fd), Part::Kernel))
}

/// Our part of the answer: fills `revents` of what is ours, zeroes the rest. Answers how many are ready.
fn look(fds: &mut [pollfd]) -> usize {
    let mut n = 0;
    for entry in fds {
        entry.revents = match part(entry.fd) {
            Part::Socket(socket) => {
                let interest = entry.events as u16 as u32 | (POLLERR | POLLHUP) as u32;
                (socket.readiness(interest) & interest) as i16
            }
            Part::Epoll(number) if entry.events & POLLIN != 0 && epoll::peek(number) => POLLIN,
            Part::Internal => POLLNVAL,
            _ => 0,
        };
        n += usize::from(entry.revents != 0);
    }
    n
}

/// The kernel's part, merged in. `extra` is polled too and answers in its own `revents`.
fn look_at_kernel(
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
    for (to, from) in kernel.iter_mut().zip(fds.iter()) {
        let ours = matches!(part(from.fd), Part::Socket(_) | Part::Internal);
        to.write(pollfd { fd: if ours { -1 } else { from.fd }, events: from.events, revents: 0 });
    }
    kernel[fds.len()].write(extra.as_ref().map_or(pollfd { fd: -1, events: 0, revents: 0 }, |extra| **extra));
    // SAFETY: every element was written above.
    let kernel = unsafe { &mut *(std::ptr::from_mut(kernel) as *mut [pollfd]) };
    let result = wait::ppoll_until(kernel, deadline, mask);
    if result >= 0 {
        for (to, from) in fds.iter_mut().zip(kernel.iter()) {
            to.revents |= from.revents;
        }
        if let Some(extra) = extra {
            extra.revents = kernel[fds.len()].revents;
        }
    }
    result
}

fn ready(fds: &[pollfd]) -> isize {
    fds.iter().filter(|entry| entry.revents != 0).count() as isize
}

/// `poll` and `ppoll` where some descriptor is ours. `zero`: do not wait; `deadline` none: for ever.
pub(crate) fn poll(fds: &mut [pollfd], zero: bool, deadline: Option<u64>, mask: *const sigset_t) -> isize {
    let result = await_ready(fds, zero, deadline, mask);
    if serve::is_raised() {
        let mut most = 0;
        for entry in fds.iter().filter(|entry| entry.revents != 0) {
            each_socket(std::slice::from_ref(entry), &mut |socket| most = most.max(socket.importance()));
        }
        serve::serve(most);
    }
    result
}

fn await_ready(fds: &mut [pollfd], zero: bool, deadline: Option<u64>, mask: *const sigset_t) -> isize {
    tell_deferred();
    let mut spun = false;
    loop {
        if look(fds) > 0 || zero {
            let result = look_at_kernel(fds, None, Some(0), std::ptr::null());
            return if result < 0 { result } else { ready(fds) };
        }
        if !spun && let Some(region) = attach::region() {
            spun = true;
            if wait::spin(region, || look(fds) > 0) {
                continue;
            }
        }
        let Some(set) = wait::thread_set() else {
            real::nap(1000);
            let result = look_at_kernel(fds, None, Some(0), std::ptr::null());
            let late = deadline.is_some_and(|at| real::now_ns() >= at);
            if result != 0 || late {
                return result;
            }
            continue;
        };
        serve::enter(set);
        each_socket(fds, &mut |socket| wait::watch(socket, set.number));
        set.shared.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut woken = Woken::Event;
        let mut result = 0;
        if look(fds) == 0 {
            let pipe = if attach::dead() { -1 } else { set.pipe };
            let mut pipe = pollfd { fd: pipe, events: POLLIN, revents: 0 };
            ring_before_sleep();
            result = look_at_kernel(fds, Some(&mut pipe), deadline, mask);
            if result == 0 {
                woken = Woken::TimedOut;
            } else if result > 0 && pipe.revents != 0 {
                set.drain();
            }
        }
        set.shared.sleepers.fetch_sub(1, Ordering::SeqCst);
        each_socket(fds, &mut |socket| wait::unwatch(socket, set));
        if result < 0 {
            return result;
        }
        let kernel = ready(fds);
        if woken == Woken::TimedOut {
            return look(fds) as isize;
        }
        if kernel > 0 && result > 0 {
            // The kernel's are ready; ours may have become so.
            look(fds);
            let result = look_at_kernel(fds, None, Some(0), std::ptr::null());
            let n = ready(fds);
            if result < 0 || n > 0 {
                return if result < 0 { result } else { n };
            }
        }
    }
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
        (0..n.min(highest.saturating_add(1))).any(|fd| {
            !matches!(table::look(fd), Entry::Kernel | Entry::Candidate { .. })
                && self.any(fd)
                && !matches!(part(fd), Part::Kernel)
        })
    }

    /// `select` where some descriptor is ours.
    pub(crate) fn select(&self, n: c_int, zero: bool, deadline: Option<u64>, mask: *const sigset_t) -> isize {
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
        let result = poll(fds, zero, deadline, mask);
        if result < 0 {
            return result;
        }
        if fds.iter().any(|entry| entry.revents & POLLNVAL != 0) {
            return err(libc::EBADF);
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
        if total == 0 && result > 0 {
            // Only a hang-up that no set asks about: as Linux, keep waiting unless time is over.
            return 0;
        }
        total
    }
}
