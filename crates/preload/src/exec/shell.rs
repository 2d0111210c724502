//! `system`, `popen` and `pclose`: shells that inherit sockets of ours. The C library starts its shells by itself, past us,
//! with an environment that leads to no handoff; so these do what its functions do, by our `posix_spawn`.
//!
//! POSIX says of `system` that it waits with SIGCHLD blocked, and SIGINT and SIGQUIT ignored: by the first of several
//! threads, until the last is done. A stream of `popen` is one of `fdopen` on a pipe, and stands in a list with its child, by
//! which `pclose` and `fclose` wait for it. No child inherits the streams that stand there already.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, pid_t, posix_spawnattr_t, sigaction, sigset_t};

use super::actions::{Action, Made};
use super::{Environment, spawn_through};
use crate::lock::Lock;
use crate::{attach, cancel, real};

const SHELL: &CStr = c"/bin/sh";
/// What a shell is said to have ended with that could not be started.
const NO_SHELL: c_int = 127 << 8;

/// Threads in `system`, and what SIGINT and SIGQUIT did before the first of them.
struct Deaf {
    threads: u32,
    before: [MaybeUninit<sigaction>; 2],
}

static DEAF: Lock<Deaf> = Lock::new(Deaf { threads: 0, before: [const { MaybeUninit::zeroed() }; 2] });
/// There was such a stream: `fclose` of others need not look, nor wait for who opens one.
static ANY_OPENED: AtomicBool = AtomicBool::new(false);
/// Streams of `popen`, by their address, and their children.
static OPENED: Lock<Vec<(usize, pid_t)>> = Lock::new(Vec::new());

/// Nobody may be in the lists while the process is copied. Whoever opens such a stream starts a child with its lock held,
/// so this comes before all other locks.
pub(crate) fn children_before_fork() {
    OPENED.take_over_fork();
    DEAF.take_over_fork();
}

/// See [`children_before_fork`].
pub(crate) fn children_after_fork() {
    DEAF.give_back();
    OPENED.give_back();
}

unsafe extern "C" {
    /// The program's environment.
    static environ: Environment;
}

/// The program's environment, now.
pub(crate) fn environment() -> Environment {
    // SAFETY: a pointer of the C library's; who changes the environment meanwhile does what POSIX forbids.
    unsafe { environ }
}

/// Starts a shell with a command. Its pid, or an errno.
fn start(
    command: *const c_char,
    actions: &[Action],
    attributes: *const posix_spawnattr_t,
) -> Result<pid_t, c_int> {
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"--".as_ptr(), command, ptr::null()];
    let mut made = Made::new(actions).ok_or(libc::ENOMEM)?;
    let mut pid = 0;
    let to = &raw mut pid;
    let spawn = |object, environment| {
        let attributes = attributes.cast();
        real::posix_spawn(to, SHELL.as_ptr(), object, attributes, arguments.as_ptr(), environment)
    };
    let object = made.object();
    let failed = match attach::region().filter(|_| attach::is_owner() && !attach::dead()) {
        Some(region) => spawn_through(actions, object, region, environment(), spawn),
        None => spawn(object, environment()),
    };
    if failed == 0 { Ok(pid) } else { Err(failed) }
}

/// Waits for a child: what it ended with; below 0: it is no child.
fn await_child(pid: pid_t) -> c_int {
    let mut status = 0;
    loop {
        // SAFETY: fills the integer that we give.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended == pid {
            return status;
        }
        if real::errno() != libc::EINTR {
            return -1;
        }
    }
}

/// `system` of a command.
pub(crate) fn system(command: *const c_char) -> c_int {
    let quiet = Quiet::begin();
    let status = quiet.start(command).map_or(NO_SHELL, |pid| {
        let mut waiting = Waiting { pid, before: quiet.before };
        let undo = (&raw mut waiting).cast();
        cancel::cancellable(cancelled, undo, || await_child(pid))
    });
    let errno = real::errno();
    quiet.end();
    real::set_errno(errno);
    status
}

/// SIGINT, SIGQUIT and SIGCHLD are kept away from a thread in `system`.
struct Quiet {
    /// The thread's mask as it was.
    before: sigset_t,
}

fn set_of(signals: impl IntoIterator<Item = c_int>) -> sigset_t {
    // SAFETY: zeros are a set, which these calls fill.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

const INTERACTIVE: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

impl Quiet {
    fn begin() -> Quiet {
        let mut deaf = DEAF.lock();
        deaf.threads += 1;
        if deaf.threads == 1 {
            for (signal, before) in INTERACTIVE.into_iter().zip(&mut deaf.before) {
                // SAFETY: zeros and SIG_IGN are a valid action; the other is filled.
                unsafe {
                    let mut ignored: sigaction = std::mem::zeroed();
                    ignored.sa_sigaction = libc::SIG_IGN;
                    libc::sigaction(signal, &raw const ignored, before.as_mut_ptr());
                }
            }
        }
        drop(deaf);
        let child = set_of([libc::SIGCHLD]);
        let mut before = set_of([]);
        // SAFETY: two sets of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const child, &raw mut before) };
        Quiet { before }
    }

    /// Starts the shell, to which the signals do what they did to us.
    fn start(&self, command: *const c_char) -> Result<pid_t, c_int> {
        let heard = {
            let deaf = DEAF.lock();
            let was_ignored = |before: &MaybeUninit<sigaction>| {
                // SAFETY: filled when the first thread came, which this one has counted itself after; zeros before.
                unsafe { before.assume_init_ref() }.sa_sigaction == libc::SIG_IGN
            };
            let heard = INTERACTIVE.into_iter().zip(&deaf.before).filter(|(_, before)| !was_ignored(before));
            set_of(heard.map(|(signal, _)| signal))
        };
        let mut attributes: MaybeUninit<posix_spawnattr_t> = MaybeUninit::uninit();
        let at = attributes.as_mut_ptr();
        let flags = (libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF) as libc::c_short;
        // SAFETY: initialised first, destroyed last; sets of ours.
        unsafe {
            libc::posix_spawnattr_init(at);
            libc::posix_spawnattr_setsigmask(at, &raw const self.before);
            libc::posix_spawnattr_setsigdefault(at, &raw const heard);
            libc::posix_spawnattr_setflags(at, flags);
            let started = start(command, &[], at);
            libc::posix_spawnattr_destroy(at);
            started
        }
    }

    fn end(self) {
        hear_again(&self.before);
    }
}

/// A thread leaves `system`.
fn hear_again(mask: &sigset_t) {
    let mut deaf = DEAF.lock();
    deaf.threads = deaf.threads.saturating_sub(1);
    if deaf.threads == 0 {
        for (signal, before) in INTERACTIVE.into_iter().zip(&deaf.before) {
            // SAFETY: what was there before.
            unsafe { libc::sigaction(signal, before.as_ptr(), ptr::null_mut()) };
        }
    }
    drop(deaf);
    // SAFETY: a set of ours.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::from_ref(mask), ptr::null_mut()) };
}

/// What a thread leaves that is cancelled while it waits for its shell.
struct Waiting {
    pid: pid_t,
    before: sigset_t,
}

/// As the C library: the shell is killed.
extern "C" fn cancelled(waiting: *mut c_void) {
    // SAFETY: what `system` gave, in a frame that still stands.
    let waiting = unsafe { &*waiting.cast::<Waiting>() };
    // SAFETY: our child, which nobody has waited for.
    unsafe { libc::kill(waiting.pid, libc::SIGKILL) };
    cancel::uncancelled(|| await_child(waiting.pid));
    hear_again(&waiting.before);
}

/// `popen`.
pub(crate) fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // It is no place to be cancelled.
    match cancel::uncancelled(|| open(command, mode)) {
        Ok(stream) => stream,
        Err(errno) => {
            real::set_errno(errno);
            ptr::null_mut()
        }
    }
}

fn open(command: *const c_char, mode: *const c_char) -> Result<*mut FILE, c_int> {
    // SAFETY: the program vouches for its text.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let has = |letter| letters.contains(&letter);
    if has(b'r') == has(b'w') || letters.iter().any(|letter| !b"rwe".contains(letter)) {
        return Err(libc::EINVAL);
    }
    let (reads, stays) = (has(b'r'), !has(b'e'));
    let mut ends = [-1; 2];
    // SAFETY: fills two integers.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(real::errno());
    }
    let (ours, theirs) = if reads { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
    let stream = real::fdopen(ours, if reads { c"r".as_ptr() } else { c"w".as_ptr() });
    let started = if stream.is_null() {
        real::close_uncancelled(ours);
        Err(libc::ENOMEM)
    } else {
        attach_child(stream, command, (theirs, c_int::from(reads)), stays)
    };
    real::close_uncancelled(theirs);
    if started.is_err() && !stream.is_null() {
        real::fclose(stream);
    }
    started.map(|()| stream)
}

/// Starts the shell, which has `theirs` as this standard stream of its own.
fn attach_child(
    stream: *mut FILE,
    command: *const c_char,
    (theirs, standard): (c_int, c_int),
    stays: bool,
) -> Result<(), c_int> {
    let mut opened = OPENED.lock();
    let mut actions = vec![Action::Dup(theirs, standard)];
    for &(other, _) in opened.iter() {
        let fd = real::fileno(ptr::with_exposed_provenance_mut(other));
        if fd != standard {
            actions.push(Action::Close(fd));
        }
    }
    let pid = start(command, &actions, ptr::null())?;
    if stays {
        real::fcntl(real::fileno(stream), libc::F_SETFD, 0);
    }
    ANY_OPENED.store(true, Ordering::Release);
    opened.push((stream.expose_provenance(), pid));
    Ok(())
}

/// The child of a stream, which is none of `popen` from now on.
fn child_of(stream: *mut FILE) -> Option<pid_t> {
    if !ANY_OPENED.load(Ordering::Acquire) {
        return None;
    }
    let mut opened = OPENED.lock();
    let at = opened.iter().position(|(other, _)| *other == stream.addr())?;
    Some(opened.swap_remove(at).1)
}

/// `pclose` or `fclose` of a stream of `popen`: what its child ended with. `None`: it is another stream.
pub(crate) fn close(stream: *mut FILE) -> Option<c_int> {
    let pid = child_of(stream)?;
    let closed = real::fclose(stream);
    let status = cancel::uncancelled(|| await_child(pid));
    Some(if status == 0 { closed } else { status })
}
