//! File actions of `posix_spawn`: what they leave open in the child, and how a handoff gets through `closefrom`.
//!
//! The C library makes the child and does not say what stands in its object, so the actions are remembered as the program
//! adds them. Where one closes all from some number on, the handoff's descriptors are put at the first numbers there that
//! nothing later names, and what is closed is the rest: the same actions, in another object.
//!
//! ```text
//! dup2(sock, 1)  closefrom(3)  dup2(2, 4)
//! dup2(sock, 1)  dup2(h0, 3) dup2(h1, 5) dup2(h2, 6) dup2(h3, 7) close(4) closefrom(8)  dup2(2, 4)
//! ```

use std::ffi::{CString, c_int, c_void};
use std::mem::MaybeUninit;

use scoutline_abi::layout::ENGINE_COUNT;

use super::Staying;
use crate::lock::Lock;
use crate::table::Entry;
use crate::{attach, real, table};

/// One step of the file actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Closes a descriptor.
    Close(c_int),
    /// Puts a file there.
    Open {
        /// See above.
        fd: c_int,
        /// As the program gave them.
        path: CString,
        /// See `path`.
        flags: c_int,
        /// See `path`.
        mode: libc::mode_t,
    },
    /// `dup2`.
    Dup(c_int, c_int),
    /// Closes all from here on.
    CloseFrom(c_int),
    /// `chdir`.
    ChangeTo(CString),
    /// `fchdir`.
    ChangeToOpen(c_int),
    /// `tcsetpgrp` of the child's group.
    Foreground(c_int),
}

impl Action {
    /// The descriptors that it is about.
    fn names(&self, fd: c_int) -> bool {
        match *self {
            Action::Close(one)
            | Action::Open { fd: one, .. }
            | Action::ChangeToOpen(one)
            | Action::Foreground(one) => one == fd,
            Action::Dup(from, to) => from == fd || to == fd,
            Action::CloseFrom(_) | Action::ChangeTo(_) => false,
        }
    }

    /// Adds it to the C library's object; false when that takes it not.
    fn add_to(&self, object: *mut c_void) -> bool {
        0 == match self {
            Action::Close(fd) => real::posix_spawn_file_actions_addclose(object, *fd),
            Action::Open { fd, path, flags, mode } => {
                real::posix_spawn_file_actions_addopen(object, *fd, path.as_ptr(), *flags, *mode)
            }
            Action::Dup(from, to) => real::posix_spawn_file_actions_adddup2(object, *from, *to),
            Action::CloseFrom(first) => real::posix_spawn_file_actions_addclosefrom_np(object, *first),
            Action::ChangeTo(path) => real::posix_spawn_file_actions_addchdir_np(object, path.as_ptr()),
            Action::ChangeToOpen(fd) => real::posix_spawn_file_actions_addfchdir_np(object, *fd),
            Action::Foreground(fd) => real::posix_spawn_file_actions_addtcsetpgrp_np(object, *fd),
        }
    }
}

/// The actions that the program has collected, by the object that stands for them.
static ACTIONS: Lock<Vec<(usize, Action)>> = Lock::new(Vec::new());

/// Nobody may be in the list while the process is copied.
pub(crate) fn before_fork() {
    ACTIONS.take_over_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    ACTIONS.give_back();
}

/// A further action of `object`.
pub(crate) fn add_action(object: *const c_void, action: Action) {
    if attach::region().is_some() {
        ACTIONS.lock().push((object.addr(), action));
    }
}

/// `object` has no actions (any more).
pub(crate) fn clear_actions(object: *const c_void) {
    if attach::region().is_some() {
        ACTIONS.lock().retain(|(of, _)| *of != object.addr());
    }
}

/// What the program has added to `object`, in order.
pub(super) fn of(object: *const c_void) -> Vec<Action> {
    if object.is_null() {
        return Vec::new();
    }
    let actions = ACTIONS.lock();
    actions.iter().filter(|(of, _)| *of == object.addr()).map(|(_, action)| action.clone()).collect()
}

/// What stays open in a child that goes through these actions.
pub(super) fn after(mut staying: Vec<Staying>, actions: &[Action]) -> Vec<Staying> {
    for action in actions {
        match *action {
            Action::CloseFrom(first) => staying.retain(|(fd, _)| *fd < first),
            Action::Close(fd) | Action::Open { fd, .. } => staying.retain(|(other, _)| *other != fd),
            Action::Dup(from, to) => {
                // Of a descriptor with FD_CLOEXEC too, as the duplicate has none.
                let here =
                    staying.iter().find(|(fd, _)| *fd == from).map_or_else(|| table::look(from), |it| it.1);
                staying.retain(|(fd, _)| *fd != to);
                if matches!(here, Entry::Socket(_) | Entry::Candidate { .. } | Entry::Epoll(_)) {
                    staying.push((to, here));
                }
            }
            Action::ChangeTo(_) | Action::ChangeToOpen(_) | Action::Foreground(_) => {}
        }
    }
    staying
}

/// The descriptors of a handoff; -1: there is no such engine.
pub(super) type Numbers = [c_int; 3 + ENGINE_COUNT];

/// The same actions, which leave these descriptors open, and where they are then.
fn around(actions: &[Action], mut numbers: Numbers) -> (Vec<Action>, Numbers) {
    let mut changed = Vec::new();
    for (at, action) in actions.iter().enumerate() {
        let Action::CloseFrom(first) = *action else {
            changed.push(action.clone());
            continue;
        };
        let later = &actions[at + 1..];
        // Standard streams stay what the program makes of them.
        let mut next = first.max(super::handoff::LEAST_NUMBER);
        let mut kept = Vec::new();
        for index in 0..numbers.len() {
            if numbers[index] < first {
                continue;
            }
            while numbers.contains(&next) || later.iter().any(|action| action.names(next)) {
                next += 1;
            }
            changed.push(Action::Dup(numbers[index], next));
            kept.push(next);
            numbers[index] = next;
            next += 1;
        }
        let between = (first.max(0)..next).filter(|fd| !kept.contains(fd));
        changed.extend(between.map(Action::Close));
        changed.push(Action::CloseFrom(next));
    }
    (changed, numbers)
}

/// File actions of our own making.
pub(super) struct Made(Box<MaybeUninit<libc::posix_spawn_file_actions_t>>);

impl Made {
    pub(super) fn new(actions: &[Action]) -> Option<Made> {
        let mut made = Made(Box::new(MaybeUninit::zeroed()));
        if real::posix_spawn_file_actions_init(made.object()) != 0 {
            // Nothing is there to be destroyed.
            std::mem::forget(made);
            return None;
        }
        let object = made.object();
        actions.iter().all(|action| action.add_to(object)).then_some(made)
    }

    /// As these actions, but that the descriptors go through; and where they are then. `None` where the program's own
    /// do, or nothing can be done.
    pub(super) fn around(actions: &[Action], numbers: Numbers) -> Option<(Made, Numbers)> {
        if !actions.iter().any(|action| matches!(action, Action::CloseFrom(_))) {
            return None;
        }
        let (changed, numbers) = around(actions, numbers);
        Some((Made::new(&changed)?, numbers))
    }

    pub(super) fn object(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        real::posix_spawn_file_actions_destroy(self.object());
    }
}
