//! `exec` and `posix_spawn`: sockets that stay open go on in the new program image.
//!
//! The new image begins with nothing but descriptors. It gets a process record of its own, as a forked child does, and
//! finds in a file in memory, the *handoff*, what the table said:
//!
//! ```text
//! old image                                              new image, in `attach::start`
//! FORK: a record and a connection for the new image
//! the record holds the sockets that stay open
//! handoff: record, connection, doorbell, region,         maps the region, enters the sockets,
//!   which descriptor is which slot                         gives back what it has no descriptor for
//! SCOUTLINE_EXEC=its descriptor, exec                    takes the variable away, looks whether all that is so
//! ```
//! - If `exec` fails, the new record's connection is closed, and the daemon releases what the record held.
//! - The old record ends with the old image; what only it held is closed as Linux closes it.
//! - A program without the shim (static, set-user-id) keeps its sockets alive while it runs, but cannot use them:
//!   what it has is a kernel socket that was never connected.
//! - An environment that lacks the variables of `scoutline run` gets them again: nginx starts its successor with none. So
//!   does one without sockets that go on, where it is of the program's own making ([`with_us`]).
//! - A new image without sockets of ours attaches by itself: it is a program of its own, with its own name.
//! - `posix_spawn` makes the child in the C library: what its file actions will do is followed here in the parent's
//!   table ([`actions`]). `system` and `popen` call neither `exec` nor `posix_spawn` by name; they stand here themselves
//!   ([`shell`]).
//! - An epoll keeps the sockets of ours that go on with it, as a forked child's does: from then on each has its own table,
//!   and the kernel's descriptors in it stay shared. An edge that was told already is told once more.
//!
//! Left out: an epoll keeps no socket of which only other processes have a descriptor. An image to which no socket goes on
//! does not know the epolls that it inherits: where the image before it lives on and wakes its own sleepers in one, it finds
//! events with a number of ours.

mod actions;
mod handoff;
mod shell;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use scoutline_abi::Region;

use crate::dispatch::signals;
use crate::table::Entry;
use crate::{attach, cancel, family, real, rings, table};

use actions::Made;
pub(crate) use actions::{Action, add_action, after_fork, before_fork, clear_actions};
use handoff::Handoff;
pub(crate) use handoff::take_over;
pub(crate) use shell::{children_after_fork, children_before_fork, close, environment, popen, system};

const VARIABLE: &CStr = c"SCOUTLINE_EXEC";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// An environment of a program's own making has no more, with ours: they fit on the stack, since a child by `vfork` has no
/// heap to itself.
const MOST_VARIABLES: usize = 256;
/// More than that is not preloaded with us.
const MOST_PRELOADED: usize = 1_024;
/// These programs ran without us until such environments were looked at, so they need not have paths.
const REQUIRED: &[u8] = b"SCOUTLINE_REQUIRED=";

pub(crate) type Environment = *const *const c_char;

/// What `scoutline run` has put into the environment, as it was at the start.
struct Kept {
    /// This library, as LD_PRELOAD names it.
    library: Vec<u8>,
    /// `LD_PRELOAD=` it.
    preload: CString,
    /// `NAME=value`.
    variables: Vec<CString>,
    /// Who the process was then, to the system.
    user: libc::uid_t,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Remembers what a new image needs, before the program can change its environment.
pub(crate) fn remember() {
    let library = own_path();
    let _ = KEPT.set(Kept {
        preload: CString::new([PRELOAD, &library].concat()).unwrap_or_default(),
        library,
        // SAFETY: no arguments.
        user: unsafe { libc::geteuid() },
        variables: [
            c"SCOUTLINE_ATTACH",
            c"SCOUTLINE_REQUIRED",
            c"SCOUTLINE_BACKGROUND",
            c"SCOUTLINE_IO_URING",
        ]
        .into_iter()
        .filter_map(|name| {
            let value = real::getenv(name.as_ptr());
            // SAFETY: `getenv` answers a terminated string.
            let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })?;
            CString::new([name.to_bytes(), b"=", value.to_bytes()].concat()).ok()
        })
        .collect(),
    });
}

fn own_path() -> Vec<u8> {
    // SAFETY: zeros are a valid structure to fill; the address is one of ours, and the name stays while we are loaded.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((&raw const KEPT).cast(), &raw mut found) == 0 || found.dli_fname.is_null() {
            return Vec::new();
        }
        CStr::from_ptr(found.dli_fname).to_bytes().to_vec()
    }
}

/// A descriptor and what it is in the new image.
type Staying = (c_int, Entry);

/// What stays open over `exec`: descriptors without FD_CLOEXEC. Before the locks for a fork are taken, since this may adopt
/// sockets; see [`look_once_more`].
fn staying() -> Vec<Staying> {
    let mut staying = Vec::new();
    for fd in 0..=table::highest() {
        let entry = family::look(fd);
        if can_stay(entry) && real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC == 0 {
            table::note_shared(fd); // with what goes on there
            staying.push((fd, entry));
        }
    }
    staying
}

/// For who is alone: what other threads have made of it since it was looked at.
fn look_once_more(staying: &mut Vec<Staying>) {
    staying.retain_mut(|(fd, entry)| {
        *entry = table::look(*fd);
        can_stay(*entry)
    });
}

fn can_stay(entry: Entry) -> bool {
    matches!(entry, Entry::Socket(_) | Entry::Candidate { .. } | Entry::Epoll(_))
}

/// Calls one of the `exec` family with the environment that the new image needs. Answers as it does: only on failure.
pub(crate) fn execute(environment: Environment, exec: impl FnOnce(Environment) -> c_int) -> c_int {
    let exec = |environment| signals::handing_on(|| exec(environment));
    let exec = |environment| with_us(environment, exec);
    let Some(region) = attach::region().filter(|_| attach::is_owner() && !attach::dead()) else {
        return exec(environment);
    };
    rings::before_image();
    cancel::uncancelled(|| execute_alone(environment, exec, region))
}

fn execute_alone(
    environment: Environment,
    exec: impl FnOnce(Environment) -> c_int,
    region: &'static Region,
) -> c_int {
    let mut staying = staying();
    let epolls = handoff::epolls_of(&staying);
    // Until the image is exchanged nobody forks: the handoff's descriptors are for one.
    let alone = attach::alone();
    look_once_more(&mut staying);
    let result = match Handoff::new(&staying, region) {
        Some(handoff) => {
            let numbers = handoff.numbers();
            let result = if handoff.write(&staying, &epolls, numbers) {
                exec(Changed::new(environment, numbers[0]).as_ptr())
            } else {
                exec(environment)
            };
            let errno = real::errno();
            handoff.close();
            real::set_errno(errno);
            result
        }
        None => exec(environment),
    };
    drop(alone);
    result
}

/// Calls `posix_spawn` or `posix_spawnp` with the file actions and the environment that the new image needs.
pub(crate) fn spawn(
    object: *const c_void,
    environment: Environment,
    spawn: impl FnOnce(*const c_void, Environment) -> c_int,
) -> c_int {
    let Some(region) = attach::region().filter(|_| attach::is_owner() && !attach::dead()) else {
        return with_us(environment, |environment| signals::handing_on(|| spawn(object, environment)));
    };
    spawn_through(&actions::of(object), object, region, environment, spawn)
}

/// The same, where these are the actions that `object` has.
fn spawn_through(
    actions: &[Action],
    object: *const c_void,
    region: &'static Region,
    environment: Environment,
    spawn: impl FnOnce(*const c_void, Environment) -> c_int,
) -> c_int {
    let spawn = |object, environment| {
        with_us(environment, |environment| signals::handing_on(|| spawn(object, environment)))
    };
    // It is no place to be cancelled, and what it calls is: its locks would stay taken.
    cancel::uncancelled(|| spawn_alone(actions, object, region, environment, spawn))
}

fn spawn_alone(
    actions: &[Action],
    object: *const c_void,
    region: &'static Region,
    environment: Environment,
    spawn: impl FnOnce(*const c_void, Environment) -> c_int,
) -> c_int {
    let mut staying = staying();
    let epolls = handoff::epolls_of(&actions::after(staying.clone(), actions));
    let alone = attach::alone();
    look_once_more(&mut staying);
    let staying = actions::after(staying, actions);
    let Some(handoff) = Handoff::new(&staying, region) else { return spawn(object, environment) };
    let mut made = Made::around(actions, handoff.numbers());
    let (object, numbers) = match &mut made {
        Some((made, numbers)) => (made.object().cast_const(), *numbers),
        None => (object, handoff.numbers()),
    };
    let result = if handoff.write(&staying, &epolls, numbers) {
        spawn(object, Changed::new(environment, numbers[0]).as_ptr())
    } else {
        spawn(object, environment)
    };
    handoff.close();
    drop(alone);
    result
}

/// Starts a program with an environment that leads to us also where the program has made one of its own (`env -i`), or one
/// that preloads something else in our place (an allocator, in a script that starts a server): it does not mean what it
/// starts to have another network. Whoever removes or empties only LD_PRELOAD wants it gone; and a program that could not
/// attach or not load us is not given it, since it would say so, or end.
fn with_us(environment: Environment, start: impl FnOnce(Environment) -> c_int) -> c_int {
    let mut room = Room { list: [ptr::null(); MOST_VARIABLES], preload: [0; MOST_PRELOADED] };
    let completed = attach::region().is_some()
        && !attach::dead()
        && KEPT.get().is_some_and(|kept| kept.complete(environment, &mut room) && kept.can_be_used());
    start(if completed { room.list.as_ptr() } else { environment })
}

/// An environment made on the stack.
struct Room {
    list: [*const c_char; MOST_VARIABLES],
    /// `LD_PRELOAD=` us and what else is named.
    preload: [u8; MOST_PRELOADED],
}

impl Room {
    /// The variable that names us before the others; `None`: it is too long.
    fn name(&mut self, library: &[u8], others: &[u8]) -> Option<*const c_char> {
        let mut at = 0;
        for piece in [PRELOAD, library, b":", others, b"\0"] {
            self.preload.get_mut(at..at + piece.len())?.copy_from_slice(piece);
            at += piece.len();
        }
        Some(self.preload.as_ptr().cast())
    }
}

impl Kept {
    /// Writes the list of `environment` and ours; false: it needs none of it, or is not to have it, or is too long.
    fn complete(&self, environment: Environment, room: &mut Room) -> bool {
        let (mut count, mut attached, mut preloaded) = (0, false, false);
        let mut at = environment;
        // SAFETY: as in `Changed::new`.
        while let Some(&entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
            // SAFETY: as there.
            let (text, next) = unsafe { (CStr::from_ptr(entry).to_bytes(), at.add(1)) };
            if count + self.variables.len() + 3 > MOST_VARIABLES {
                return false;
            }
            room.list[count] = entry;
            if let Some(others) = text.strip_prefix(PRELOAD) {
                let named = Some(others).filter(|_| !preloaded).and_then(|others| self.before(others, room));
                let Some(named) = named else { return false };
                (room.list[count], preloaded) = (named, true);
            }
            attached |= text.starts_with(b"SCOUTLINE_ATTACH=");
            (count, at) = (count + 1, next);
        }
        if attached {
            return preloaded;
        }
        let variables = self.variables.iter().filter(|variable| !variable.to_bytes().starts_with(REQUIRED));
        let ours = variables.chain(Some(&self.preload).filter(|_| !preloaded));
        for (place, variable) in room.list[count..MOST_VARIABLES - 1].iter_mut().zip(ours) {
            *place = variable.as_ptr();
        }
        true
    }

    /// The variable that preloads us before these; `None`: we are among them, or there are none.
    fn before(&self, others: &[u8], room: &mut Room) -> Option<*const c_char> {
        let mut names = others.split(|byte| b": ".contains(byte)).filter(|name| !name.is_empty()).peekable();
        names.peek()?;
        let is_ours = |name: &[u8]| file_name(name) == file_name(&self.library);
        if names.any(is_ours) { None } else { room.name(&self.library, others) }
    }

    /// Who runs is still whom the library was started for, and finds it and the daemon.
    fn can_be_used(&self) -> bool {
        let value = |variable: &CString| {
            let text = variable.to_bytes();
            let at = text.iter().position(|&byte| byte == b'=').map_or(0, |at| at + 1);
            variable.as_c_str().to_bytes_with_nul()[at..].as_ptr().cast::<c_char>()
        };
        // `remember` begins with the attach socket, without which it would not have been called.
        let attach = self.variables.first().map_or(ptr::null(), value);
        // SAFETY: no arguments; terminated paths, or null, which is refused.
        unsafe {
            libc::geteuid() == self.user
                && libc::access(value(&self.preload), libc::R_OK) == 0
                && libc::access(attach, libc::W_OK) == 0
        }
    }
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// An environment that leads to a handoff, and to us.
struct Changed {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Changed {
    fn new(environment: Environment, handoff: c_int) -> Changed {
        let own = KEPT.get();
        let library: &[u8] = own.map_or(b"", |own| &own.library);
        let variables = own.map_or(&[][..], |own| &own.variables);
        let mut strings = vec![[VARIABLE.to_bytes(), b"=", handoff.to_string().as_bytes()].concat()];
        let mut pointers = Vec::new();
        let (mut attached, mut preloaded) = (false, false);
        let mut at = environment;
        // SAFETY: the program vouches for a list of terminated strings with null at its end; Linux takes null for an
        // empty one.
        while let Some(&entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
            // SAFETY: as above; null was not met yet.
            at = unsafe { at.add(1) };
            // SAFETY: as above.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            attached |= text.starts_with(b"SCOUTLINE_ATTACH=");
            if let Some(list) = text.strip_prefix(PRELOAD) {
                preloaded = true;
                if !list.split(|byte| matches!(byte, b':' | b' ')).any(|item| item == library) {
                    strings.push([PRELOAD, library, b":", list].concat());
                    continue;
                }
            }
            if !text.starts_with(b"SCOUTLINE_EXEC=") {
                pointers.push(entry);
            }
        }
        if !preloaded {
            strings.push([PRELOAD, library].concat());
        }
        if !attached {
            pointers.extend(variables.iter().map(|variable| variable.as_ptr()));
        }
        let strings: Vec<CString> = strings.into_iter().filter_map(|text| CString::new(text).ok()).collect();
        pointers.extend(strings.iter().map(|text| text.as_ptr()));
        pointers.push(ptr::null());
        Changed { _strings: strings, pointers }
    }

    fn as_ptr(&self) -> Environment {
        self.pointers.as_ptr()
    }
}
