//! Real threads that end.

use std::sync::mpsc;

use super::*;

fn own_id() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::gettid() }.cast_unsigned()
}

fn started(thread: u32) -> u64 {
    thread_stat(thread).unwrap().started
}

/// What a handle that is made this way says while its thread lives, and when it has ended.
fn says(handle: fn(u32) -> ThreadHandle) -> (bool, bool) {
    let (tell_id, id) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell_id.send(own_id()).unwrap();
        let _ = ends.recv();
    });
    let handle = handle(id.recv().unwrap());
    let lived = handle.lives();
    drop(end);
    thread.join().unwrap();
    // It is joined before the kernel has done away with it.
    while matches!(&handle, ThreadHandle::Start { thread, .. } if thread_stat(*thread).is_ok()) {
        std::thread::yield_now();
    }
    if let ThreadHandle::Descriptor(fd) = &handle {
        let mut ended = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure outlives the call.
        unsafe { libc::poll(&raw mut ended, 1, 10_000) };
    }
    (lived, handle.lives())
}

#[test]
fn a_handle_tells_that_its_thread_has_ended() {
    assert_eq!(says(|thread| ThreadHandle::of(thread, started(thread))), (true, false));
    assert_eq!(says(|thread| ThreadHandle::Start { thread, started: started(thread) }), (true, false));
}

#[test]
fn a_thread_that_started_at_another_time_is_another() {
    let own = own_id();
    assert!(ThreadHandle::of(own, started(own)).lives());
    assert!(!ThreadHandle::of(own, started(own) + 1).lives());
}

#[test]
fn a_policy_is_told_with_its_flag() {
    let nothing = ThreadPolicy { policy: libc::SCHED_OTHER, priority: 0 };
    let idle = ThreadPolicy { policy: libc::SCHED_IDLE, priority: 0 };
    std::thread::spawn(move || {
        let own = own_id();
        assert_eq!(ThreadPolicy::of(own).unwrap(), nothing);
        idle.give(own, true).unwrap();
        let has = ThreadPolicy { policy: libc::SCHED_IDLE | libc::SCHED_RESET_ON_FORK, priority: 0 };
        assert_eq!(ThreadPolicy::of(own).unwrap(), has);
    })
    .join()
    .unwrap();
}
