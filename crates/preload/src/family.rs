//! A socket that several processes have by a fork, made before it and adopted after it: who adopts it holds it for the
//! others, too, and they find it with their next call on their descriptor.
//!
//! Such a candidate is marked as shared when the process is copied. Who adopts one looks in /proc which processes of the
//! program have it, holds the slot in their records, and writes the word of a stand-in ([`stand_in`]) into the kernel's
//! socket behind, which all of them have. A shared candidate with such a word is what the word says, if the record of
//! this process has it.
//!
//! Left out: a thread that sleeps in a call of the kernel's on a datagram socket that another process then binds sleeps on;
//! processes whose descriptors cannot be looked at (another user's); two that adopt the same socket at the same moment,
//! which get two; a handler that adopts one where it has interrupted `malloc`, which this needs.

use std::ffi::c_int;
use std::fs;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use scoutline_abi::Region;
use scoutline_abi::layout::{PROCESS_COUNT, ProcessRecord};

use crate::slot::{self, Socket};
use crate::table::{self, Entry};
use crate::{adopt, attach, cancel, options, passing, real};

/// Who closes something is waited for no longer than this.
const CLOSED_NS: u64 = 20_000_000;

/// [`table::look`] for a call on `fd`: also what another process has made of it.
pub(crate) fn look(fd: c_int) -> Entry {
    meet(fd);
    table::look(fd)
}

/// The slot of `fd`, if another process of the program has adopted what it names.
#[inline]
pub(crate) fn meet(fd: c_int) -> Option<u32> {
    if table::is_shared(fd) { meet_shared(fd) } else { None }
}

#[cold]
fn meet_shared(fd: c_int) -> Option<u32> {
    let errno = real::errno();
    let word = passing::stood_for(fd);
    if word.is_none() && (is_connected(fd) || options::of_kernel(fd, libc::SO_ACCEPTCONN) != 0) {
        table::forget_shared(fd); // it leads to where paths do not
    }
    // Held meanwhile, lest it end with the first of several descriptors that another thread closes.
    if let Some(socket) = word.and_then(Socket::at).filter(|socket| socket.hold_again()) {
        if table::is_twin(fd) {
            adopt::enter_twins(fd, socket);
        } else {
            socket.hold(false);
            adopt::follow(fd, socket);
        }
        socket.release();
    }
    real::set_errno(errno);
    table::socket(fd)
}

fn is_connected(fd: c_int) -> bool {
    // SAFETY: zeros are a valid address.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    real::getpeername(fd, (&raw mut name).cast(), &raw mut len) == 0
}

/// `fd`, a shared candidate until now, has become `socket`.
pub(crate) fn share(fd: c_int, socket: Socket) {
    cancel::uncancelled(|| share_with_others(fd, socket));
}

fn share_with_others(fd: c_int, socket: Socket) {
    let Ok(link) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return };
    // One that is about to begin (0) drops what it turns out not to have.
    let has_it = |number: u32| {
        socket.region.process(number).is_some_and(|record| {
            let pid = record.pid.load(Ordering::Relaxed);
            record.alive.load(Ordering::Acquire) != 0 && (pid == 0 || has(pid, &link))
        })
    };
    let others = (0..PROCESS_COUNT as u32).filter(|&number| number != attach::process() && has_it(number));
    let others: Vec<u32> = others.collect();
    if !others.is_empty() && passing::stand_for(fd, Some(socket)).is_ok() {
        for other in others {
            slot::share_one(socket.region, other, socket.index);
            // It may have closed it, or ended, since it was looked at; or does so just now, and has not met this.
            await_closers(socket.region, other);
            if !has_it(other) {
                slot::unshare_one(socket.region, other, socket.index);
            }
        }
    }
}

/// A number that others may make a socket of paths is closed from here on, until this is dropped: it is met before, or they see
/// that it is closed. No cancellation may end that.
pub(crate) struct Closing(&'static ProcessRecord);

impl Closing {
    pub(crate) fn begin(fd: c_int) -> Option<Closing> {
        let record = attach::record(attach::region().filter(|_| table::is_shared(fd))?)?;
        record.closing.fetch_add(1, Ordering::SeqCst);
        Some(Closing(record))
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until a process has closed what it is closing: for a moment, since it may be stopped in the midst.
fn await_closers(region: &Region, process: u32) {
    fence(Ordering::SeqCst);
    let end = real::now_ns() + CLOSED_NS;
    let closes = |record: &ProcessRecord| record.closing.load(Ordering::SeqCst) != 0;
    while region.process(process).is_some_and(closes) && real::now_ns() < end {
        real::nap(50);
    }
}

fn has(pid: u32, link: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut descriptors = descriptors.into_iter().flatten().flatten();
    descriptors.any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|other| other == link))
}

/// Finds what others have adopted by now.
pub(crate) fn meet_all() {
    for fd in 0..=table::highest() {
        meet(fd);
    }
}

/// The process is about to be copied, and nobody opens or closes a socket of ours any more: its child has what it has.
pub(crate) fn share_candidates() {
    for fd in 0..=table::highest() {
        table::note_shared(fd);
    }
}
