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
//! SCOUTLINE_EXEC=its descriptor, exec                    takes the variable away, closes the handoff
//! ```
//! - If `exec` fails, the new record's connection is closed, and the daemon releases what the record held.
//! - The old record ends with the old image; what only it held is closed as Linux closes it (`ends_well`).
//! - A program without the shim (static, set-user-id) keeps its sockets alive while it runs, but cannot use them:
//!   what it has is a kernel socket that was never connected.
//! - An environment that lacks the variables of `scoutline run` gets them again: nginx starts its successor with none.
//! - A new image without sockets of ours attaches by itself: it is a program of its own, with its own name.
//! - `posix_spawn` makes the child in the C library: what its file actions will do is followed here in the parent's
//!   table. Behind `closefrom` nothing is handed over, as the handoff's descriptors are closed, too.
//!
//! Left out: epoll descriptors (the new image has them without our sockets), and `system` and `popen`, which call
//! neither `exec` nor `posix_spawn` by name; their shells find no sockets of ours.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::ENGINE_COUNT;
use scoutline_abi::{Region, VERSION};

use crate::attach::{self, ForImage};
use crate::lock::Lock;
use crate::slot::Socket;
use crate::table::Entry;
use crate::{own, real, slot, stdio, table};

const VARIABLE: &CStr = c"SCOUTLINE_EXEC";
/// The first word of a handoff.
const MAGIC: u32 = u32::from_le_bytes(*b"SLEX");
/// Descriptors in a handoff, at most: what is beyond stays open, but unknown.
const MOST: usize = 1 << 16;
/// In a handoff: a socket of the kernel's that may become ours.
const CANDIDATE: u32 = u32::MAX;
/// Words before the descriptors: magic, version, record, connection, region, doorbells.
const HEAD: usize = 5 + ENGINE_COUNT;

type Environment = *const *const c_char;

/// What `scoutline run` has put into the environment, as it was at the start.
struct Kept {
    /// This library, as LD_PRELOAD names it.
    library: Vec<u8>,
    /// `NAME=value`.
    variables: Vec<CString>,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Remembers what a new image needs, before the program can change its environment.
pub(crate) fn remember() {
    let _ = KEPT.set(Kept {
        library: own_path(),
        variables: [c"SCOUTLINE_ATTACH", c"SCOUTLINE_REQUIRED", c"SCOUTLINE_BACKGROUND"]
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

/// What stays open over `exec`: descriptors without FD_CLOEXEC.
fn staying() -> Vec<Staying> {
    let mut staying = Vec::new();
    for fd in 0..=table::highest() {
        let entry = table::look(fd);
        if matches!(entry, Entry::Socket(_) | Entry::Candidate { .. })
            && real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC == 0
        {
            staying.push((fd, entry));
        }
    }
    staying
}

/// Calls one of the `exec` family with the environment that the new image needs. Answers as it does: only on failure.
pub(crate) fn execute(environment: Environment, exec: impl FnOnce(Environment) -> c_int) -> c_int {
    let Some(region) = attach::region().filter(|_| attach::is_owner() && !attach::dead()) else {
        return exec(environment);
    };
    let staying = staying();
    // Until the image is exchanged nobody forks: the handoff's descriptors are for one.
    let alone = attach::alone();
    set_ends_well(region, true);
    let result = match Handoff::new(&staying, region) {
        Some(handoff) => {
            let changed = Changed::new(environment, handoff.file);
            let result = exec(changed.as_ptr());
            let errno = real::errno();
            handoff.close();
            real::set_errno(errno);
            result
        }
        None => exec(environment),
    };
    set_ends_well(region, false);
    drop(alone);
    result
}

/// This process ends in good order, with sockets: the daemon closes them as Linux would.
pub(crate) fn ends_well() {
    if let Some(region) = attach::region().filter(|_| attach::is_owner() && !attach::dead()) {
        set_ends_well(region, true);
        slot::tell_deferred();
    }
}

/// The end of this image is not that of a killed process.
fn set_ends_well(region: &'static Region, on: bool) {
    if let Some(record) = attach::record(region) {
        record.ends_well.store(u32::from(on), Ordering::Release);
    }
}

/// Calls `posix_spawn` or `posix_spawnp` with the environment that the new image needs.
pub(crate) fn spawn(
    actions: *const c_void,
    environment: Environment,
    spawn: impl FnOnce(Environment) -> c_int,
) -> c_int {
    let Some(region) = attach::region().filter(|_| attach::is_owner() && !attach::dead()) else {
        return spawn(environment);
    };
    let Some(staying) = after_actions(actions) else { return spawn(environment) };
    let alone = attach::alone();
    let result = match Handoff::new(&staying, region) {
        Some(handoff) => {
            let changed = Changed::new(environment, handoff.file);
            let result = spawn(changed.as_ptr());
            handoff.close();
            result
        }
        None => spawn(environment),
    };
    drop(alone);
    result
}

/// A handoff with the descriptors that it names, all without FD_CLOEXEC.
struct Handoff {
    file: c_int,
    image: ForImage,
}

impl Handoff {
    /// `None` when no socket is to be handed over, or nothing can be: then the sockets end with this image.
    fn new(staying: &[Staying], region: &'static Region) -> Option<Handoff> {
        if !staying.iter().any(|(_, entry)| matches!(entry, Entry::Socket(_))) {
            return None;
        }
        let image = attach::for_image()?;
        for (_, entry) in staying {
            if let Entry::Socket(index) = entry {
                slot::share_one(region, image.process, *index);
            }
        }
        let mut words = vec![MAGIC, VERSION, image.process];
        words.extend([image.connection, image.memory].map(c_int::cast_unsigned));
        words.extend(image.doorbells.map(c_int::cast_unsigned));
        for (fd, entry) in staying.iter().take(MOST) {
            let what = if let Entry::Socket(index) = entry { *index } else { CANDIDATE };
            words.extend([fd.cast_unsigned(), what]);
        }
        // SAFETY: a terminated name.
        let file = unsafe { libc::memfd_create(c"scoutline-exec".as_ptr(), 0) };
        let file = own::move_up_open(file);
        let handoff = Handoff { file, image };
        let len = words.len() * size_of::<u32>();
        if file < 0 || real::write(file, words.as_ptr().cast(), len) != len as isize {
            handoff.close();
            return None;
        }
        Some(handoff)
    }

    /// Closes our copies. Without a new image that has them the daemon sees the end of its connection.
    fn close(self) {
        if self.file >= 0 {
            real::close(self.file);
        }
        self.image.close();
    }
}

/// An environment that leads to a handoff, and to us.
struct Changed {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Changed {
    fn new(environment: Environment, handoff: c_int) -> Changed {
        const PRELOAD: &[u8] = b"LD_PRELOAD=";
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
        pointers.push(std::ptr::null());
        Changed { _strings: strings, pointers }
    }

    fn as_ptr(&self) -> Environment {
        self.pointers.as_ptr()
    }
}

/// In a new image: what the one before handed over, entered. False when there is nothing, or nothing usable.
pub(crate) fn take_over() -> bool {
    let value = real::getenv(VARIABLE.as_ptr());
    if value.is_null() {
        return false;
    }
    // SAFETY: `getenv` answers a terminated string.
    let text = unsafe { CStr::from_ptr(value) }.to_str().unwrap_or_default();
    let file = text.parse().unwrap_or(-1);
    // SAFETY: a terminated name; no other thread runs yet.
    unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
    let Some(words) = read(file) else { return false };
    real::close(file);
    let (process, connection, memory) = (words[2], words[3].cast_signed(), words[4].cast_signed());
    let doorbells = std::array::from_fn(|engine| words[5 + engine].cast_signed());
    // SAFETY: named by the image before us, and closed by nobody; a number that is not open is an error to `map`.
    let Ok(region) = Region::map(unsafe { BorrowedFd::borrow_raw(memory) }) else { return false };
    if region.process(process).is_none() || !table::create() {
        return false;
    }
    let region = attach::go_on(region, ForImage { process, connection, doorbells, memory });
    for pair in words[HEAD..].chunks_exact(2) {
        let (fd, what) = (pair[0].cast_signed(), pair[1]);
        // Another thread may have closed it in the meantime.
        if real::fcntl(fd, libc::F_GETFD, 0) < 0 {
            continue;
        }
        if what == CANDIDATE {
            table::put(fd, Entry::Candidate { watched: false });
        } else if let Some(socket) = Socket::at(what) {
            table::put(fd, Entry::Socket(what));
            socket.hold(true);
        }
    }
    slot::drop_unheld(region);
    if stdio::is_standard() {
        stdio::tell_if_not_served();
    }
    true
}

/// The words of a handoff; `None` for any other file.
fn read(file: c_int) -> Option<Vec<u32>> {
    let mut words = vec![0u32; HEAD + 2 * MOST];
    let room = words.len() * size_of::<u32>();
    // SAFETY: room for so many bytes.
    let got = unsafe { libc::pread(file, words.as_mut_ptr().cast(), room, 0) };
    words.truncate(usize::try_from(got).ok()? / size_of::<u32>());
    (words.len() >= HEAD && words[..2] == [MAGIC, VERSION]).then_some(words)
}

/// One step of `posix_spawn`'s file actions.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Closes a descriptor, or puts something of the kernel's there.
    Gone(c_int),
    /// `dup2`.
    Dup(c_int, c_int),
    /// Closes all from here on.
    CloseFrom,
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

/// What stays open in a child that goes through these actions; `None` when it closes the handoff.
fn after_actions(object: *const c_void) -> Option<Vec<Staying>> {
    let mut staying = staying();
    if object.is_null() {
        return Some(staying);
    }
    for (_, action) in ACTIONS.lock().iter().filter(|(of, _)| *of == object.addr()) {
        match *action {
            Action::CloseFrom => return None,
            Action::Gone(fd) => staying.retain(|(other, _)| *other != fd),
            Action::Dup(from, to) => {
                // Of a descriptor with FD_CLOEXEC too, as the duplicate has none.
                let here =
                    staying.iter().find(|(fd, _)| *fd == from).map_or_else(|| table::look(from), |it| it.1);
                staying.retain(|(fd, _)| *fd != to);
                if matches!(here, Entry::Socket(_) | Entry::Candidate { .. }) {
                    staying.push((to, here));
                }
            }
        }
    }
    Some(staying)
}
