//! Waiting for many: epoll, poll, select.

use std::ffi::{c_int, c_long};
use std::{ptr, slice};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::data::deadline_ns;
use crate::dispatch::signals::strip;
use crate::epoll::Answer;
use crate::poll::{self, Sets};
use crate::real::{self, err, finish_int};
use crate::{attach, cancel, epoll, life, limits, memory, table};

fn made(epfd: c_int) -> c_int {
    if epfd >= 0 && attach::region().is_some() {
        life::closing(epfd); // whatever had the number was closed unseen
        epoll::created(epfd);
    }
    epfd
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    made(real::epoll_create(size))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    made(real::epoll_create1(flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if attach::region().is_none() {
        return real::epoll_ctl(epfd, op, fd, event);
    }
    let _deferred = cancel::Deferred::new();
    finish_int(epoll::control(epfd, op, fd, event))
}

/// Milliseconds as a deadline; `None`: for ever.
fn deadline_ms(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| real::now_ns() + ms * 1_000_000)
}

fn is_zero(timeout: &timespec) -> bool {
    timeout.tv_sec == 0 && timeout.tv_nsec == 0
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    match epoll::await_events(epfd, events, max, timeout == 0, deadline_of(timeout), ptr::null()) {
        Answer::Done(result) => finish_int(result),
        Answer::Kernel => real::epoll_wait(epfd, events, max, timeout),
    }
}

/// The clock is read only where there is something to wait for.
fn deadline_of(timeout: c_int) -> Option<u64> {
    if timeout <= 0 { None } else { deadline_ms(timeout) }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = strip(mask, &mut copy);
    match epoll::await_events(epfd, events, max, timeout == 0, deadline_of(timeout), mask) {
        Answer::Done(result) => finish_int(result),
        Answer::Kernel => real::epoll_pwait(epfd, events, max, timeout, mask),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = strip(mask, &mut copy);
    // SAFETY: the program vouches for its timeout, or passes null.
    let given = unsafe { timeout.as_ref() };
    let deadline = given.and_then(deadline_ns);
    if given.is_some() && deadline.is_none() {
        return finish_int(err(libc::EINVAL));
    }
    match epoll::await_events(epfd, events, max, given.is_some_and(is_zero), deadline, mask) {
        Answer::Done(result) => finish_int(result),
        Answer::Kernel => real::epoll_pwait2(epfd, events, max, timeout, mask),
    }
}

/// As [`poll::looked_at`], where there are descriptors of our own.
fn looked_at(n: c_int) -> c_int {
    if attach::region().is_some() { poll::looked_at(n) } else { n }
}

/// The program's array when the real function would not do.
fn concerned<'a>(fds: *mut pollfd, n: nfds_t) -> Option<&'a mut [pollfd]> {
    // More than there can be descriptors are the kernel's to refuse.
    if memory::is_nowhere(fds) || n == 0 || n > table::LEN as nfds_t || attach::region().is_none() {
        return None;
    }
    if limits::are_too_many(n) {
        return None;
    }
    // SAFETY: the program vouches for `n` entries.
    let fds = unsafe { slice::from_raw_parts_mut(fds, n as usize) };
    poll::concerns(fds).then_some(fds)
}

#[unsafe(export_name = "poll")]
pub(crate) extern "C-unwind" fn poll_plain(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    match concerned(fds, n) {
        Some(fds) => finish_int(poll::poll(fds, timeout == 0, deadline_ms(timeout), ptr::null())),
        None => real::poll(fds, n, timeout),
    }
}

/// Whether a `poll` is about sockets of ours.
#[cfg(target_arch = "x86_64")]
pub(crate) fn concerns(fds: *mut pollfd, n: nfds_t) -> bool {
    concerned(fds, n).is_some()
}

fn check(n: nfds_t, room: size_t) {
    if room / size_of::<pollfd>() < n as usize {
        real::say(&[b"*** buffer overflow detected ***: terminated"]);
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int {
    check(n, room);
    poll_plain(fds, n, timeout)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = strip(mask, &mut copy);
    let Some(ours) = concerned(fds, n) else { return real::ppoll(fds, n, timeout, mask) };
    // SAFETY: the program vouches for its timeout, or passes null.
    let given = unsafe { timeout.as_ref() };
    let deadline = given.and_then(deadline_ns);
    if given.is_some() && deadline.is_none() {
        return finish_int(err(libc::EINVAL));
    }
    finish_int(poll::poll(ours, given.is_some_and(is_zero), deadline, mask))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(n, room);
    ppoll(fds, n, timeout, mask)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets { read, write, except };
    let n = looked_at(n);
    if attach::region().is_none() || n <= 0 || !sets.concerns(n) {
        return real::select(n, read, write, except, timeout);
    }
    // SAFETY: the program vouches for its timeout, or passes null.
    let given = unsafe { timeout.as_mut() };
    let Some(given) = given else { return finish_int(sets.select(n, false, None, ptr::null())) };
    if given.tv_sec < 0 || given.tv_usec < 0 {
        return finish_int(err(libc::EINVAL));
    }
    let left = given.tv_sec as u64 * 1_000_000 + given.tv_usec as u64;
    let deadline = real::now_ns().saturating_add(left.saturating_mul(1000));
    let result = sets.select(n, left == 0, Some(deadline), ptr::null());
    // As Linux: what is left of the time.
    let left = deadline.saturating_sub(real::now_ns()) / 1000;
    given.tv_sec = (left / 1_000_000) as i64;
    given.tv_usec = (left % 1_000_000) as i64;
    finish_int(result)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = strip(mask, &mut copy);
    let sets = Sets { read, write, except };
    let n = looked_at(n);
    if attach::region().is_none() || n <= 0 || !sets.concerns(n) {
        return real::pselect(n, read, write, except, timeout, mask);
    }
    // SAFETY: the program vouches for its timeout, or passes null.
    let given = unsafe { timeout.as_ref() };
    let deadline = given.and_then(deadline_ns);
    if given.is_some() && deadline.is_none() {
        return finish_int(err(libc::EINVAL));
    }
    finish_int(sets.select(n, given.is_some_and(is_zero), deadline, mask))
}

/// What the kernel takes as the last argument of `pselect6` (select(2)).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GivenMask {
    mask: *const sigset_t,
    len: size_t,
}

/// Bytes of the kernel's own `sigset_t`, which is a part of the C library's.
const MASK_LEN: size_t = 8;

/// The signals to wait with, if their length is right.
fn mask_of(mask: *const sigset_t, len: size_t) -> Result<*const sigset_t, c_long> {
    if mask.is_null() || len == MASK_LEN { Ok(mask) } else { Err(failed(libc::EINVAL)) }
}

/// A system call that is given a mask and its length.
pub(super) fn with_mask(
    mask: *const sigset_t,
    len: size_t,
    wait: impl FnOnce(*const sigset_t) -> c_int,
) -> c_long {
    mask_of(mask, len).map_or_else(|result| result, |mask| wait(mask).into())
}

fn failed(errno: c_int) -> c_long {
    finish_int(err(errno)).into()
}

/// By number a call tells what is left of its time, which the C library's functions keep to themselves.
fn with_time_left(timeout: *mut timespec, call: impl FnOnce(*const timespec) -> c_int) -> c_long {
    // SAFETY: the program vouches for its timeout, or passes null.
    let Some(given) = (unsafe { timeout.as_mut() }) else { return call(ptr::null()).into() };
    let deadline = deadline_ns(given);
    let result = call(ptr::from_ref(given));
    if let Some(deadline) = deadline {
        let left = deadline.saturating_sub(real::now_ns());
        given.tv_sec = (left / 1_000_000_000) as i64;
        given.tv_nsec = (left % 1_000_000_000) as i64;
    }
    result.into()
}

/// `syscall(SYS_ppoll, …)`.
pub(super) fn ppoll_by_number(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *mut timespec,
    mask: *const sigset_t,
    mask_len: size_t,
) -> c_long {
    if concerned(fds, n).is_none() {
        let mut copy = None;
        let mask = if mask_len == MASK_LEN { strip(mask, &mut copy) } else { mask };
        let [fds, timeout, mask] =
            [fds.expose_provenance(), timeout.expose_provenance(), mask.expose_provenance()];
        return real::syscall(libc::SYS_ppoll, fds, n as usize, timeout, mask, mask_len, 0);
    }
    match mask_of(mask, mask_len) {
        Ok(mask) => with_time_left(timeout, |timeout| ppoll(fds, n, timeout, mask)),
        Err(result) => result,
    }
}

/// `syscall(SYS_pselect6, …)`.
pub(super) fn pselect6(
    n: c_int,
    [read, write, except]: [*mut fd_set; 3],
    timeout: *mut timespec,
    given: *const GivenMask,
) -> c_long {
    let sets = Sets { read, write, except };
    let n = looked_at(n);
    if attach::region().is_none() || n <= 0 || !sets.concerns(n) {
        // SAFETY: the program vouches for its mask, or passes null.
        let mut stripped = unsafe { given.as_ref() }.copied();
        let mut copy = None;
        if let Some(given) = stripped.as_mut().filter(|given| given.len == MASK_LEN) {
            given.mask = strip(given.mask, &mut copy);
        }
        let given = stripped.as_ref().map_or(ptr::null(), ptr::from_ref);
        let [read, write, except] = [read, write, except].map(<*mut fd_set>::expose_provenance);
        let [timeout, given] = [timeout.expose_provenance(), given.expose_provenance()];
        return real::syscall(libc::SYS_pselect6, n as usize, read, write, except, timeout, given);
    }
    // SAFETY: the program vouches for its mask, or passes null.
    let mask = unsafe { given.as_ref() }.map_or(Ok(ptr::null()), |given| mask_of(given.mask, given.len));
    match mask {
        Ok(mask) => with_time_left(timeout, |timeout| pselect(n, read, write, except, timeout, mask)),
        Err(result) => result,
    }
}
