//! The connection to the daemon: attaching, poll sets; forking is in [`fork`].
//!
//! A connection stands for one process. Its end means that the daemon is gone: from then on every socket of ours
//! fails with ECONNRESET and new ones stay with the kernel.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use scoutline_abi::attach::{MESSAGE_LEN, Message, flag, kind};
use scoutline_abi::layout::{ENGINE_COUNT, Holds, ProcessRecord};
use scoutline_abi::{Region, VERSION};

use crate::lock::{Lock, undisturbed};
use crate::{cancel, dispatch, exec, limits, own, real, rings, stdio, table, wait};

mod fork;

pub(crate) use fork::{alone, for_image, fork_by};

/// Where the daemon is.
const VARIABLE: &CStr = c"SCOUTLINE_ATTACH";
/// Exit code when a path was required and there is none.
const REQUIRED_EXIT: c_int = 126;

static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
static PROCESS: AtomicU32 = AtomicU32::new(0);
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
/// One for each engine.
static DOORBELLS: [AtomicI32; ENGINE_COUNT] = [const { AtomicI32::new(-1) }; ENGINE_COUNT];
/// The region, for a new program image.
static MEMORY: AtomicI32 = AtomicI32::new(-1);
static DEAD: AtomicBool = AtomicBool::new(false);
/// Process id of who attached or was forked.
static OWNER: AtomicI32 = AtomicI32::new(0);
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Serialises requests; its content is what a fork under way got for its child.
static REQUESTS: Lock<Option<fork::Child>> = Lock::new(None);

/// This image has begun to attach, or does not.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The region, once attached.
#[inline]
pub(crate) fn region() -> Option<&'static Region> {
    let region = REGION.load(Ordering::Acquire);
    // SAFETY: set once to a leaked box.
    unsafe { region.as_ref() }
}

/// A socket is made: perhaps by a constructor of a library, which runs before ours. No other call begins, since allocators
/// make some of them while they have no memory to give; and what runs earlier still, as sanitizers do, has no environment.
pub(crate) fn begin_for_socket() {
    if !BEGUN.load(Ordering::Relaxed) && !real::getenv(VARIABLE.as_ptr()).is_null() {
        start();
    }
}

/// The number of our process record.
#[inline]
pub(crate) fn process() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

/// The connection to the daemon.
pub(crate) fn connection() -> c_int {
    CONNECTION.load(Ordering::Relaxed)
}

/// Our process record.
pub(crate) fn record(region: &'static Region) -> Option<&'static ProcessRecord> {
    region.process(process())
}

/// What our process holds.
#[inline]
pub(crate) fn holds(region: &'static Region) -> Option<&'static Holds> {
    region.holds(process())
}

/// True once the daemon is known to be gone.
#[inline]
pub(crate) fn dead() -> bool {
    DEAD.load(Ordering::Acquire)
}

/// Nothing on paths works from now on in this process.
pub(crate) fn set_dead() {
    DEAD.store(true, Ordering::Release);
}

/// Somebody saw the end of the daemon. Many servers go on with a listener that nobody reaches, and say nothing.
pub(crate) fn on_daemon_ended() {
    let has_sockets = || (0..=table::highest()).any(|fd| table::socket(fd).is_some());
    if !DEAD.swap(true, Ordering::AcqRel) && has_sockets() {
        real::say(&[b"the daemon has ended, and with it this program's sockets on paths (ECONNRESET): \
            start the program again once `scoutline up` runs"]);
    }
}

/// A descriptor of ours was moved.
pub(crate) fn relocated(from: c_int, to: c_int) {
    for known in DOORBELLS.iter().chain([&CONNECTION, &MEMORY]) {
        let _ = known.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// How often this process image has forked into a child: what belongs to threads and sets of a parent is stale.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// False in a child that was made without fork handlers (`clone`, `_Fork`): what it sees is its parent's.
pub(crate) fn is_owner() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::getpid() == OWNER.load(Ordering::Relaxed) }
}

fn own_process() {
    // SAFETY: no arguments.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Wakes an engine.
pub(crate) fn ring(engine: usize) {
    let one = 1u64;
    // Whoever is cancelled here has marked something, and the engine would sleep on.
    cancel::uncancelled(|| {
        real::write(DOORBELLS[engine].load(Ordering::Relaxed), (&raw const one).cast(), 8)
    });
}

/// Descriptors beside an answer: the region's memory and the doorbells of all engines at most.
type Descriptors = [c_int; 1 + ENGINE_COUNT];

fn exchange(connection: c_int, request: Message, answer: bool) -> Result<(Message, Descriptors), c_int> {
    exchange_with(connection, request, None, answer)
}

/// [`exchange`] with a descriptor beside the request.
fn exchange_with(
    connection: c_int,
    request: Message,
    file: Option<c_int>,
    answer: bool,
) -> Result<(Message, Descriptors), c_int> {
    // Under a lock, and an answer that nobody has taken would be the next one's.
    cancel::uncancelled(|| exchange_now(connection, request, file, answer))
}

fn exchange_now(
    connection: c_int,
    mut request: Message,
    file: Option<c_int>,
    answer: bool,
) -> Result<(Message, Descriptors), c_int> {
    // SAFETY: no arguments.
    request.pid = unsafe { libc::getpid() } as u32;
    let bytes = request.to_bytes();
    loop {
        let sent = match file {
            None => real::send(connection, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL),
            Some(file) => send_with(connection, &bytes, file),
        };
        if sent == bytes.len() as isize {
            break;
        }
        match real::errno() {
            libc::EINTR => {}
            // Whom the daemon does not let in it tells so before it closes.
            libc::EPIPE if answer => break,
            errno => return Err(errno),
        }
    }
    if !answer {
        return Ok((request, Descriptors::from([-1; 1 + ENGINE_COUNT])));
    }
    let mut bytes = [0u8; MESSAGE_LEN];
    let mut control = [0u64; 8];
    let mut was_reset = false;
    loop {
        let mut ready = [libc::pollfd { fd: connection, events: libc::POLLIN, revents: 0 }];
        if wait::await_own(&mut ready, Some(real::now_ns() + dispatch::SLOW_NS), ptr::null()) == 0 {
            dispatch::let_end();
            continue;
        }
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: zeros are a valid empty message header.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = size_of_val(&control) as _;
        let got = real::recvmsg(connection, &raw mut message, libc::MSG_CMSG_CLOEXEC);
        if got < 0 && real::errno() == libc::EINTR {
            continue;
        }
        // It closed with our request unread (unix(7)): what it had said lies behind that error.
        if got < 0 && real::errno() == libc::ECONNRESET && !was_reset {
            was_reset = true;
            continue;
        }
        if got <= 0 {
            return Err(if got == 0 { libc::ECONNRESET } else { real::errno() });
        }
        let mut fds = [-1; 1 + ENGINE_COUNT];
        // SAFETY: the kernel filled the header and `control`; CMSG_* walk within it.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            if !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(head);
                let held = (*head).cmsg_len as usize - (data as usize - head as usize);
                for (i, fd) in fds.iter_mut().enumerate().take(held / size_of::<c_int>()) {
                    *fd = ptr::read_unaligned(data.add(i * size_of::<c_int>()).cast());
                }
            }
        }
        let answer = Message::from_bytes(&bytes[..got as usize]).ok_or(libc::EPROTO)?;
        if answer.kind == kind::OK {
            return Ok((answer, fds));
        }
        return Err(if answer.value == 0 { libc::EPROTO } else { answer.value as c_int });
    }
}

/// A new poll set: its number and its pipe, entered among ours.
pub(crate) fn new_set(region: &Region) -> Option<(u32, c_int)> {
    let _held = REQUESTS.lock(); // a fork sees it here and at the daemon, or at neither
    let (answer, [pipe, ..]) = request(Message::new(kind::NEW_SET, 0), true).ok()?;
    if pipe < 0 {
        // No descriptor was left for it: the daemon is not to keep what nobody can wait by.
        let _ = request(Message::new(kind::FREE_SET, answer.value), false);
        return None;
    }
    if region.set(answer.value).is_none() {
        real::close_uncancelled(pipe);
        return None;
    }
    Some((answer.value, own::protect_set(pipe, answer.value)))
}

/// `look` at the kernel's descriptors while none of ours comes: until it has been moved away (`own`) it has the lowest number
/// that is free, which may be one that the program has just closed.
pub(crate) fn while_none_comes<R>(look: impl FnOnce() -> R) -> R {
    let _held = REQUESTS.lock();
    look()
}

/// Gives a poll set back and closes its pipe.
pub(crate) fn free_set(set: u32, pipe: c_int) {
    undisturbed(|| {
        let _held = REQUESTS.lock();
        let _ = request(Message::new(kind::FREE_SET, set), false);
        own::discard(pipe);
    });
}

/// Whoever sleeps on a set that several processes have looks again.
pub(crate) fn wake_set(set: u32) {
    undisturbed(|| {
        let _held = REQUESTS.lock();
        let _ = request(Message::new(kind::WAKE_SET, set), false);
    });
}

/// Waits until what processes held that have ended is released. False: that cannot be.
pub(crate) fn settle() -> bool {
    is_owner()
        && undisturbed(|| {
            let _held = REQUESTS.lock();
            request(Message::new(kind::SETTLE, 0), true).is_ok()
        })
}

/// Sends a request to the daemon, and waits for its answer if it has one. For who holds `REQUESTS`.
fn request(request: Message, answer: bool) -> Result<(Message, Descriptors), c_int> {
    let connection = CONNECTION.load(Ordering::Relaxed);
    if connection < 0 || dead() {
        return Err(libc::ECONNRESET);
    }
    let result = exchange(connection, request, answer);
    if matches!(result, Err(libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN)) {
        on_daemon_ended();
    }
    result
}

/// Sends a message with a descriptor.
fn send_with(connection: c_int, bytes: &[u8; MESSAGE_LEN], file: c_int) -> isize {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 4];
    // SAFETY: zeros are a valid empty message header; CMSG_* stay within `control`, which has room for one
    // descriptor.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        ptr::write_unaligned(libc::CMSG_DATA(head).cast(), file);
        real::sendmsg(connection, &raw const message, libc::MSG_NOSIGNAL)
    }
}

/// Gives the daemon a file to send from: its number.
///
/// # Errors
/// What the daemon said, as an errno; ECONNRESET when it is gone.
pub(crate) fn give_file(file: c_int) -> Result<u32, c_int> {
    undisturbed(|| {
        let _held = REQUESTS.lock();
        let connection = CONNECTION.load(Ordering::Relaxed);
        if connection < 0 || dead() {
            return Err(libc::ECONNRESET);
        }
        exchange_with(connection, Message::new(kind::FILE, 0), Some(file), true)
            .map(|(answer, _)| answer.value)
    })
}

/// Called by the loader before the program's `main`.
extern "C" fn start() {
    if BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    real::resolve_all();
    #[cfg(target_arch = "x86_64")]
    real::dispatched::resolve_all();
    let path = real::getenv(VARIABLE.as_ptr());
    if path.is_null() {
        return;
    }
    // SAFETY: `getenv` answers a terminated string.
    let path = unsafe { CStr::from_ptr(path) };
    if path.is_empty() {
        return;
    }
    exec::remember();
    rings::asked();
    if exec::take_over() {
        return;
    }
    let attached = match attach(path) {
        Err(failed) if failed.errno == libc::EMFILE => {
            limits::beyond(|| Some(attach(path))).unwrap_or(Err(failed))
        }
        attached => attached,
    };
    let Err(failed) = attached else { return };
    let is_refused = matches!(failed.errno, libc::EACCES | libc::EPERM);
    if is_refused && matches!(failed.what, CONNECTING | ATTACHING) {
        // An image before this one has given up the right, or the socket's mode lets in whom the daemon does not.
        real::say(&[
            b"who this program runs as may not attach: it and what it starts run on the kernel's sockets",
        ]);
        // SAFETY: a terminated name; no other thread runs yet.
        unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
        return;
    }
    let required = is_set(c"SCOUTLINE_REQUIRED");
    let mut number = [0u8; 12];
    let number = decimal(failed.errno, &mut number);
    let instead: &[u8] = if required { b"" } else { b"; the program runs on the kernel's sockets" };
    real::say(&[
        failed.what,
        b" ",
        path.to_bytes(),
        b" failed (errno ",
        number,
        b"): ",
        failed.remedy(),
        instead,
    ]);
    if required {
        real::exit_now(REQUIRED_EXIT);
    }
}

/// Whether a variable of the environment begins with 1.
pub(crate) fn is_set(name: &CStr) -> bool {
    let value = real::getenv(name.as_ptr());
    // SAFETY: `getenv` answers a terminated string, whose first byte exists.
    !value.is_null() && unsafe { *value }.to_ne_bytes() == *b"1"
}

fn decimal(mut value: c_int, digits: &mut [u8; 12]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10).unsigned_abs() as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

/// The attach socket does not let us in.
const CONNECTING: &[u8] = b"connecting to";

/// Or the daemon does not.
const ATTACHING: &[u8] = b"attaching to";

/// Or the region does not fit: a limit of address space is the reason that there may be.
const MAPPING: &[u8] = b"mapping the memory of";

struct Failed {
    what: &'static [u8],
    errno: c_int,
}

impl Failed {
    fn remedy(&self) -> &'static [u8] {
        match (self.what, self.errno) {
            (MAPPING, _) => b"does a limit (`ulimit -H -v`) leave 9 GB of address space?",
            (CONNECTING, _) => b"is `scoutline up` running?",
            // The daemon's limit (`MAX_PROGRAMS`).
            (_, libc::EUSERS) => {
                b"64 programs are on paths, as many as can be at once; each that a script starts counts as one"
            }
            (ATTACHING, libc::EAGAIN) => b"too many programs attach just now; try again",
            (ATTACHING, libc::ECONNRESET | libc::EPIPE) => b"the daemon has ended, or closed the connection; see its log",
            (_, libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                b"the daemon or this program has no descriptors or memory left (`ulimit -n`); see the daemon's log"
            }
            (_, libc::EPROTO) => b"library and daemon are of different versions; install both anew, and restart the daemon",
            _ => b"see the daemon's log",
        }
    }
}

fn attach(path: &CStr) -> Result<(), Failed> {
    let fail = |what, errno| Failed { what, errno };
    if !table::create() {
        return Err(fail(b"making the table of descriptors for", real::errno()));
    }
    let fd = real::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
    if fd < 0 {
        return Err(fail(b"making a socket for", real::errno()));
    }
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let bytes = path.to_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(fail(b"the name is too long:", libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = std::ffi::c_char::from_ne_bytes([*from]);
    }
    let len = size_of::<libc::sockaddr_un>() as u32;
    if real::connect(fd, (&raw const address).cast(), len) < 0 {
        let errno = real::errno();
        real::close_uncancelled(fd);
        return Err(fail(CONNECTING, errno));
    }
    let mut exe = [0u8; 512];
    // SAFETY: writes at most the length that we give.
    let exe_len =
        unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), exe.as_mut_ptr().cast(), exe.len()) }.max(0);
    let exe = &exe[..exe_len as usize];
    let mut name = exe.rsplit(|&b| b == b'/').next().unwrap_or(exe);
    // The supervisor of a trapped program stands for it.
    let stands_for = real::getenv(c"SCOUTLINE_PROGRAM".as_ptr());
    if !stands_for.is_null() {
        // SAFETY: `getenv` answers a terminated string, and nobody changes the environment before `main`.
        name = unsafe { CStr::from_ptr(stands_for) }.to_bytes();
    }
    let mut hello = Message::new(kind::ATTACH, VERSION).named(name);
    if is_set(c"SCOUTLINE_BACKGROUND") {
        hello.flags |= flag::BACKGROUND;
    }
    let (answer, [memory, doorbells @ ..]) = exchange(fd, hello, true).map_err(|errno| {
        real::close_uncancelled(fd); // the program may go on, and the number is its own then
        fail(ATTACHING, errno)
    })?;
    if memory < 0 {
        return Err(fail(ATTACHING, libc::EPROTO));
    }
    // SAFETY: just received, open, and closed only below.
    let region = unsafe { limits::map(memory) };
    let Some(region) = region else { return Err(fail(MAPPING, libc::EPROTO)) };
    if region.process(answer.value).is_none() {
        return Err(fail(ATTACHING, libc::EPROTO));
    }
    if doorbells[..region.engines()].iter().any(|&doorbell| doorbell < 0) {
        // What finds no place in our table the kernel leaves out (unix(7)).
        ForImage { process: 0, connection: fd, doorbells, memory }.close();
        return Err(fail(ATTACHING, libc::EMFILE));
    }
    begin(region, ForImage { process: answer.value, connection: fd, doorbells, memory });
    Ok(())
}

/// What a process needs to take part in a region: its record, and descriptors; -1: there is no such engine.
#[derive(Clone, Copy)]
pub(crate) struct ForImage {
    pub(crate) process: u32,
    pub(crate) connection: c_int,
    pub(crate) doorbells: [c_int; ENGINE_COUNT],
    pub(crate) memory: c_int,
}

impl ForImage {
    /// Closes the descriptors.
    pub(crate) fn close(&self) {
        let fds = [self.connection, self.memory].into_iter().chain(self.doorbells);
        for fd in fds.filter(|&fd| fd >= 0) {
            real::close_uncancelled(fd);
        }
    }
}

fn begin(region: Region, image: ForImage) -> &'static Region {
    PROCESS.store(image.process, Ordering::Relaxed);
    CONNECTION.store(own::protect(image.connection), Ordering::Relaxed);
    for (known, doorbell) in DOORBELLS.iter().zip(image.doorbells).filter(|(_, doorbell)| *doorbell >= 0) {
        known.store(own::protect(doorbell), Ordering::Relaxed);
    }
    MEMORY.store(own::protect(image.memory), Ordering::Relaxed);
    own_process();
    wait::start();
    let region: &'static Region = Box::leak(Box::new(region));
    REGION.store(ptr::from_ref(region).cast_mut(), Ordering::Release);
    stdio::serve();
    dispatch::start();
    // SAFETY: three functions of ours that live as long as the process.
    unsafe { libc::pthread_atfork(Some(fork::before), Some(fork::after), Some(fork::in_child)) };
    region
}

/// This image goes on with what the one before it handed over.
pub(crate) fn go_on(region: Region, image: ForImage) -> &'static Region {
    begin(region, image)
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
