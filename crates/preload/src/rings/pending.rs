//! Operations on a datagram socket of paths that has no peer: the library's calls do them, and its ring says what came of
//! them ([`super::post`]). A stand-in could not: beside each datagram stands whose it is.
//!
//! ```text
//! sends              at once, in `io_uring_enter`, which waits there if it has to
//! receives, polls    at once, where there is something and nobody was first; else they wait here, in their order, and the
//!                    ferry does them when the path has something
//! ```
//!
//! The socket stays what it is, so calls on it go on beside. What waits ends by a datagram, an error, IORING_OP_ASYNC_CANCEL
//! and its kin, with its ring, and with the thread that asked for it, as the kernel's do; memory is written as the kernel
//! would: where the program has given it back, that is EFAULT.
//!
//! Left out (EOPNOTSUPP): in a chain, what receives, and what sends behind something else than sends, since a chain goes on
//! when its entries end, and ours end at once; what is to wait for all before it; receives by several results from one entry
//! (EINVAL, as by older kernels), and buffers that the ring chooses. An entry that waits is one of which nothing is said
//! (IOSQE_CQE_SKIP_SUCCESS), and a ring that had one takes none with IOSQE_IO_DRAIN any more. Who cancels several is told how
//! many of them were the kernel's.

use std::ffi::{c_int, c_long};
use std::mem::{self, offset_of};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{iovec, msghdr, sockaddr_storage};
use scoutline_abi::layout::{SLOT_COUNT, slot_request as ask, slot_state as is};

use super::crossing::Progress;
use super::entries::{by_number, op};
use super::queue::{Answer, BUFFER_SELECT, DRAIN, FIXED_FILE, LINK, LINKS, SKIP_SUCCESS, Said};
use super::{ALONE, ferry, moving, post, theirs};
use crate::address::{self, Given, Name};
use crate::lock::{self, Lock};
use crate::real::err;
use crate::slot::Socket;
use crate::table::{self, Entry};
use crate::{adopt, cancel, export, family, memory};

/// `linux/io_uring.h`: IORING_RECV_MULTISHOT and IORING_RECVSEND_BUNDLE of a receive; IORING_POLL_ADD_MULTI and what else a
/// poll may be asked.
const SEVERAL: u16 = 1 << 1 | 1 << 4;
/// Of a send: IORING_RECVSEND_POLL_FIRST, _FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE change nothing here; others would.
const SEND_FLAGS: u16 = 1 << 0 | 1 << 2 | 1 << 3;
const POLL_FLAGS: u32 = 0xf;
/// Of IORING_OP_ASYNC_CANCEL: which are meant.
const CANCEL_ALL: u32 = 1 << 0;
const CANCEL_FD: u32 = 1 << 1;
const CANCEL_ANY: u32 = 1 << 2;
const CANCEL_USERDATA: u32 = 1 << 4;
const CANCEL_KNOWN: u32 = CANCEL_ALL | CANCEL_FD | CANCEL_ANY | CANCEL_USERDATA;

/// Bytes beside a datagram that are told.
const MOST_CONTROL: usize = 4096;

/// A ring, and a descriptor that it has.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    pub(super) number: u32,
    pub(super) fd: c_int,
}

/// What an entry waits for: those of its chain before it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Chain {
    /// None.
    #[default]
    Free,
    /// They are done, here.
    Done,
    /// One has failed here, and the rest with it.
    Failed,
    /// They are the kernel's.
    Elsewhere,
}

impl Chain {
    /// Behind an entry that was done here, with this answer, or not.
    pub(super) fn after(self, said: Said, here: Option<&Answer>) -> Chain {
        match (self, here) {
            _ if said.flags & LINKS == 0 => Chain::Free,
            (Chain::Failed, _) => Chain::Failed,
            (Chain::Free | Chain::Done, Some(Answer::Result(result))) => {
                if *result < 0 && said.flags & LINKS == LINK { Chain::Failed } else { Chain::Done }
            }
            _ => Chain::Elsewhere,
        }
    }
}

enum Kind {
    Send,
    Receive,
    Poll,
    Shutdown,
}

fn kind(operation: u8) -> Option<Kind> {
    match operation {
        op::WRITEV | op::WRITE_FIXED | op::WRITE | op::SEND | op::SENDMSG | op::SEND_ZC | op::SENDMSG_ZC => {
            Some(Kind::Send)
        }
        op::READV | op::READ_FIXED | op::READ | op::RECV | op::RECVMSG => Some(Kind::Receive),
        op::POLL_ADD => Some(Kind::Poll),
        op::SHUTDOWN => Some(Kind::Shutdown),
        _ => None,
    }
}

/// An entry that waits.
struct Waiting {
    slot: u32,
    ring: Ring,
    /// The descriptor that it names.
    fd: c_int,
    user_data: u64,
    says_success: bool,
    /// Who has asked for it.
    thread: libc::pid_t,
    wants: Wants,
}

enum Wants {
    /// One of these events.
    Events(u32),
    Datagram(Place),
}

/// Where a datagram goes.
#[derive(Default)]
struct Place {
    parts: Vec<iovec>,
    flags: c_int,
    /// The program's `msghdr`, or 0, and what it said.
    message: usize,
    name: usize,
    name_room: u32,
    control: usize,
    control_room: usize,
}

// SAFETY: the program's places, which are numbers to us.
unsafe impl Send for Waiting {}

static WAITING: Lock<Vec<Waiting>> = Lock::new(Vec::new());
/// As many, to be seen without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The generations of sockets that have been served, plus one, by slot.
static SERVED: [AtomicU32; SLOT_COUNT] = [const { AtomicU32::new(0) }; SLOT_COUNT];

/// `work` on what waits. A signal handler that interrupted it there would wait for its own thread.
fn waiting<R>(work: impl FnOnce(&mut Vec<Waiting>) -> R) -> R {
    lock::undisturbed(|| {
        let mut waiting = WAITING.lock();
        let result = work(&mut waiting);
        COUNT.store(waiting.len(), Ordering::Release);
        result
    })
}

/// Something waits for this socket.
pub(super) fn has(socket: Socket) -> bool {
    COUNT.load(Ordering::Acquire) != 0 && waiting(|all| all.iter().any(|one| one.slot == socket.index))
}

/// Somebody is to have the next datagram, or the next error.
fn has_receive(all: &[Waiting], socket: Socket, flags: c_int) -> bool {
    all.iter().any(|one| {
        one.slot == socket.index
            && matches!(&one.wants, Wants::Datagram(place) if (place.flags ^ flags) & libc::MSG_ERRQUEUE == 0)
    })
}

/// A datagram socket of paths without a peer, or for which something waits since it had none.
fn without_peer(fd: c_int) -> Option<Socket> {
    let socket = Socket::of(fd).filter(|socket| !socket.is_stream())?;
    (socket.state() & is::CONNECTED == 0 || has(socket)).then_some(socket)
}

/// An entry that names such a socket. `None`: it does not, or is none of these operations.
pub(super) fn serve(ring: Ring, said: Said, chain: Chain) -> Option<Answer> {
    let kind = kind(said.operation).filter(|_| said.flags & FIXED_FILE == 0)?;
    if matches!(kind, Kind::Send)
        && matches!(family::look(said.fd), Entry::Candidate { .. })
        && let Some(to) = destination(said)
        && post::is_there()
    {
        adopt::adopt_for_send(said.fd, to)?;
    }
    let socket = without_peer(said.fd).filter(|_| post::is_there())?;
    if note(socket) {
        moving::served();
    }
    let may_follow = matches!(kind, Kind::Send | Kind::Shutdown);
    let refused = match chain {
        Chain::Failed => libc::ECANCELED,
        Chain::Elsewhere => libc::EOPNOTSUPP,
        Chain::Done if !may_follow => libc::EOPNOTSUPP,
        _ if said.flags & (DRAIN | BUFFER_SELECT) != 0 => libc::EOPNOTSUPP,
        _ if !may_follow && said.flags & LINKS != 0 => libc::EOPNOTSUPP,
        Chain::Free | Chain::Done => 0,
    };
    if refused != 0 {
        return Some(Answer::Result(-refused));
    }
    Some(cancel::uncancelled(|| match kind {
        Kind::Send => send(said),
        Kind::Shutdown => {
            done(by_number(libc::SYS_shutdown, [said.fd as usize, said.len as usize, 0, 0, 0, 0]))
        }
        Kind::Receive => receive(ring, said, socket),
        Kind::Poll => poll(ring, said, socket),
    }))
}

/// True: it has not been served before.
fn note(socket: Socket) -> bool {
    let served = socket.generation().wrapping_add(1);
    let known = &SERVED[socket.index as usize];
    known.load(Ordering::Relaxed) != served && known.swap(served, Ordering::Relaxed) != served
}

/// Where an entry sends to, if it says so.
fn destination(said: Said) -> Option<Name> {
    let (name, len) = match said.operation {
        op::SEND | op::SEND_ZC => (said.offset as usize, said.other & 0xffff),
        op::SENDMSG | op::SENDMSG_ZC => {
            let message = message_at(said.address as usize)?;
            (message.msg_name.addr(), message.msg_namelen)
        }
        _ => return None,
    };
    if name == 0 || len == 0 {
        return None;
    }
    match address::parse(ptr::with_exposed_provenance(name), len) {
        Given::Inet(to @ Name { port: 1.., .. }) => Some(to),
        _ => None,
    }
}

/// The program's message; `None`: there is none.
fn message_at(place: usize) -> Option<msghdr> {
    // SAFETY: zeros are a valid message.
    let mut message: msghdr = unsafe { mem::zeroed() };
    theirs::copy(&mut message, place, false).then_some(message)
}

fn send(said: Said) -> Answer {
    let (fd, address, len) = (said.fd as usize, said.address as usize, said.len as usize);
    let flags = said.operation_flags as usize;
    let is_vector_or_file = matches!(said.operation, op::WRITEV | op::WRITE | op::WRITE_FIXED);
    if !is_vector_or_file && said.own_flags & !SEND_FLAGS != 0 {
        return Answer::Result(-libc::EINVAL);
    }
    done(match said.operation {
        op::SENDMSG | op::SENDMSG_ZC => by_number(libc::SYS_sendmsg, [fd, address, flags, 0, 0, 0]),
        op::SEND | op::SEND_ZC => {
            let to = [said.offset as usize, (said.other & 0xffff) as usize];
            by_number(libc::SYS_sendto, [fd, address, len, flags, to[0], to[1]])
        }
        op::WRITEV => by_number(libc::SYS_writev, [fd, address, len, 0, 0, 0]),
        _ => by_number(libc::SYS_write, [fd, address, len, 0, 0, 0]),
    })
}

/// A call has done it; or its descriptor is closed by now.
fn done(result: Option<Answer>) -> Answer {
    result.unwrap_or(Answer::Result(-libc::EBADF))
}

fn receive(ring: Ring, said: Said, socket: Socket) -> Answer {
    let receives = matches!(said.operation, op::RECV | op::RECVMSG);
    if receives && said.own_flags & SEVERAL != 0 {
        return Answer::Result(-libc::EINVAL);
    }
    let flags = match said.operation_flags.cast_signed() {
        flags if receives => flags,
        flags if flags & export::RWF_NOWAIT != 0 => libc::MSG_DONTWAIT,
        _ => 0,
    };
    let waits = flags & libc::MSG_DONTWAIT == 0 && !socket.non_blocking();
    let is_first = COUNT.load(Ordering::Acquire) == 0 || !waiting(|all| has_receive(all, socket, flags));
    if !waits || is_first {
        match at_once(said, flags) {
            Answer::Result(result) if result == -libc::EAGAIN && waits => {}
            answer => return answer,
        }
    }
    if is_shut(socket) && flags & libc::MSG_ERRQUEUE == 0 {
        return Answer::Result(0);
    }
    match Place::of(said, flags) {
        Ok(place) => wait_for(ring, said, socket, Wants::Datagram(place)),
        Err(errno) => Answer::Result(-errno),
    }
}

/// Nothing comes any more, as a call says that waits.
fn is_shut(socket: Socket) -> bool {
    socket.requests() & ask::SHUTDOWN_READ != 0
}

/// What there is.
fn at_once(said: Said, flags: c_int) -> Answer {
    let (fd, address, len) = (said.fd as usize, said.address as usize, said.len as usize);
    let now = (flags | libc::MSG_DONTWAIT) as usize;
    done(match said.operation {
        op::RECVMSG => by_number(libc::SYS_recvmsg, [fd, address, now, 0, 0, 0]),
        op::RECV => by_number(libc::SYS_recvfrom, [fd, address, len, now, 0, 0]),
        op::READV => by_number(
            libc::SYS_preadv2,
            [fd, address, len, usize::MAX, usize::MAX, export::RWF_NOWAIT as usize],
        ),
        _ if len == 0 => Some(Answer::Result(0)),
        _ => by_number(libc::SYS_recvfrom, [fd, address, len, now, 0, 0]),
    })
}

fn poll(ring: Ring, said: Said, socket: Socket) -> Answer {
    if said.len & POLL_FLAGS != 0 {
        return Answer::Result(-libc::EINVAL);
    }
    let events = said.operation_flags & 0xffff | (libc::POLLERR | libc::POLLHUP) as u32;
    match socket.readiness(events) & events {
        0 => wait_for(ring, said, socket, Wants::Events(events)),
        ready => Answer::Result(ready.cast_signed()),
    }
}

/// The entry ends later.
fn wait_for(ring: Ring, said: Said, socket: Socket, wants: Wants) -> Answer {
    if !ferry::reserve() {
        return Answer::Result(-libc::ENOMEM);
    }
    // Another thread neither closes the socket and opens another one in its place, nor gives it a stand-in meanwhile.
    let _alone = ALONE.enter();
    if !socket.hold_beside() {
        return Answer::Result(-libc::EBADF);
    }
    if table::socket(said.fd) != Some(socket.index) {
        socket.release();
        return Answer::Result(-libc::EBADF);
    }
    let is_seen_to = waiting(|all| {
        // Who was first gets what there is; then there is nothing to look for.
        let is_seen_to = matches!(&wants, Wants::Datagram(place) if has_receive(all, socket, place.flags));
        all.push(Waiting {
            slot: socket.index,
            ring,
            fd: said.fd,
            user_data: said.user_data,
            says_success: said.flags & SKIP_SUCCESS == 0,
            // SAFETY: no arguments.
            thread: unsafe { libc::gettid() },
            wants,
        });
        is_seen_to
    });
    if is_seen_to {
        socket.release();
    } else {
        ferry::add(Pending(socket).into());
    }
    Answer::Nothing
}

impl Place {
    fn of(said: Said, flags: c_int) -> Result<Place, c_int> {
        let whole = |base: usize, len: usize| {
            vec![iovec {
                iov_base: ptr::with_exposed_provenance_mut(base),
                iov_len: len.min(memory::MOST_MOVED),
            }]
        };
        let (address, len) = (said.address as usize, said.len as usize);
        match said.operation {
            op::RECVMSG => {
                let message = message_at(address).ok_or(libc::EFAULT)?;
                Ok(Place {
                    parts: parts_at(message.msg_iov.addr(), message.msg_iovlen, libc::EMSGSIZE)?,
                    flags,
                    message: address,
                    name: message.msg_name.addr(),
                    name_room: message.msg_namelen,
                    control: message.msg_control.addr(),
                    control_room: message.msg_controllen,
                })
            }
            op::READV => {
                Ok(Place { parts: parts_at(address, len, libc::EINVAL)?, flags, ..Place::default() })
            }
            _ => Ok(Place { parts: whole(address, len), flags, ..Place::default() }),
        }
    }

    fn room(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
    }

    /// Takes a datagram, by way of `space`. -EAGAIN: there is none.
    fn take(&self, socket: Socket, space: &mut [u8]) -> c_int {
        let room = self.room().min(space.len());
        // SAFETY: zeros are a valid name and a valid message.
        let (mut name, mut message): (sockaddr_storage, msghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
        let mut control = vec![0u64; self.control_room.min(MOST_CONTROL).div_ceil(size_of::<u64>())];
        let mut part = iovec { iov_base: space.as_mut_ptr().cast(), iov_len: room };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        if self.name != 0 {
            message.msg_name = (&raw mut name).cast();
            message.msg_namelen = self.name_room.min(size_of::<sockaddr_storage>() as u32);
        }
        if self.control != 0 {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = self.control_room.min(MOST_CONTROL);
        }
        let name_room = message.msg_namelen as usize;
        let got = export::receive_message(socket, &mut message, self.flags | libc::MSG_DONTWAIT) as c_int;
        if got == -libc::EAGAIN && is_shut(socket) && self.flags & libc::MSG_ERRQUEUE == 0 {
            return 0;
        }
        if got < 0 {
            return got;
        }
        let copied = (got as usize).min(room);
        let mut is_whole = theirs::copy_parts(&mut space[..copied], &parts_of(&self.parts, copied), true);
        if self.message != 0 {
            let told = (message.msg_namelen as usize).min(name_room);
            let mut write = |from: *mut u8, len: usize, to: usize| {
                // SAFETY: so many bytes of a structure of numbers above.
                let bytes = unsafe { std::slice::from_raw_parts_mut(from, len) };
                is_whole &= len == 0 || theirs::copy_bytes(bytes, to, true);
            };
            let own = (&raw mut message).cast::<u8>();
            let mut field = |offset: usize, len: usize| {
                write(own.wrapping_add(offset), len, self.message + offset);
            };
            field(offset_of!(msghdr, msg_namelen), size_of::<u32>());
            field(offset_of!(msghdr, msg_controllen), size_of::<usize>());
            field(offset_of!(msghdr, msg_flags), size_of::<c_int>());
            write((&raw mut name).cast(), told, self.name);
            write(control.as_mut_ptr().cast(), message.msg_controllen, self.control);
        }
        if is_whole { got } else { -libc::EFAULT }
    }
}

/// The program's vector; `too_many`: how that is said.
fn parts_at(place: usize, count: usize, too_many: c_int) -> Result<Vec<iovec>, c_int> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(too_many);
    }
    let mut parts = vec![iovec { iov_base: ptr::null_mut(), iov_len: 0 }; count];
    for (index, part) in parts.iter_mut().enumerate() {
        if !theirs::copy(part, place.wrapping_add(index * size_of::<iovec>()), false) {
            return Err(libc::EFAULT);
        }
    }
    memory::check(&parts)?;
    Ok(parts)
}

/// The first `len` bytes of them.
fn parts_of(parts: &[iovec], mut len: usize) -> Vec<iovec> {
    let mut first = Vec::new();
    for part in parts {
        let taken = part.iov_len.min(len);
        first.push(iovec { iov_base: part.iov_base, iov_len: taken });
        len -= taken;
        if len == 0 {
            break;
        }
    }
    first
}

/// What the ferry has of a socket for which something waits.
pub(super) struct Pending(pub(super) Socket);

impl Pending {
    /// Does what can be done. Over: nothing waits any more.
    pub(super) fn advance(&self, space: &mut [u8]) -> Progress {
        let socket = self.0;
        waiting(|all| {
            let mut is_empty = false;
            all.retain(|one| {
                if one.slot != socket.index {
                    return true;
                }
                let result = match &one.wants {
                    Wants::Datagram(place) if is_empty && place.flags & libc::MSG_ERRQUEUE == 0 => {
                        return true;
                    }
                    _ if !is_alive(one.thread) => -libc::ECANCELED,
                    Wants::Events(events) => match socket.readiness(*events) & events {
                        0 => return true,
                        ready => ready.cast_signed(),
                    },
                    Wants::Datagram(place) => match place.take(socket, space) {
                        result if result as isize == err(libc::EAGAIN) => {
                            is_empty |= place.flags & libc::MSG_ERRQUEUE == 0;
                            return true;
                        }
                        result => result,
                    },
                };
                one.end(result);
                false
            });
            if all.iter().any(|one| one.slot == socket.index) { Progress::Waits } else { Progress::Over }
        })
    }
}

impl Waiting {
    fn is_poll(&self) -> bool {
        matches!(self.wants, Wants::Events(_))
    }

    fn end(&self, result: c_int) {
        if result < 0 || self.says_success {
            post::post(self.ring.number, self.ring.fd, self.user_data, result);
        }
    }
}

/// The kernel cancels what a thread has asked for when that ends.
fn is_alive(thread: libc::pid_t) -> bool {
    // SAFETY: no arguments; no signal is sent.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid() as c_long, thread as c_long, 0) == 0 }
}

/// IORING_OP_ASYNC_CANCEL and IORING_OP_POLL_REMOVE. The answer: it has ended what waits here; else it is the kernel's.
pub(super) fn cancel(ring: Ring, said: Said) -> Option<Answer> {
    let ended = match said.operation {
        op::ASYNC_CANCEL => end_matching(ring.number, said.operation_flags, said.address, said.fd),
        // With other flags it changes a poll.
        _ => said.len == 0 && end_first(|one| is_known_by(one, ring.number, said.address) && one.is_poll()),
    };
    ended.then_some(Answer::Result(0))
}

fn is_known_by(one: &Waiting, ring: u32, user_data: u64) -> bool {
    one.ring.number == ring && one.user_data == user_data
}

/// Ends what is meant, as cancelled. True: that is all that was meant. What is meant by flags newer than these the kernel
/// alone has.
pub(super) fn end_matching(ring: u32, flags: u32, user_data: u64, fd: c_int) -> bool {
    if flags & !CANCEL_KNOWN != 0 {
        return false;
    }
    let by_fd = flags & CANCEL_FD != 0;
    let by_data = flags & (CANCEL_FD | CANCEL_ANY) == 0 || flags & CANCEL_USERDATA != 0;
    let is_meant = |one: &Waiting| {
        one.ring.number == ring && (!by_fd || one.fd == fd) && (!by_data || one.user_data == user_data)
    };
    if flags & (CANCEL_ALL | CANCEL_ANY) == 0 {
        return end_first(is_meant);
    }
    end_each(is_meant);
    false
}

/// A ring has ended, and what waits with it: nobody is there to be told.
pub(super) fn ring_ended(ring: u32) {
    if COUNT.load(Ordering::Acquire) != 0 {
        waiting(|all| all.retain(|one| one.ring.number != ring));
        ferry::look_again();
    }
}

/// A socket is the kernel's again.
pub(super) fn socket_left(socket: Socket) {
    end_each(|one| one.slot == socket.index);
}

fn end_first(is_meant: impl Fn(&Waiting) -> bool) -> bool {
    let mut found = false;
    end_each(|one| {
        let ends = !found && is_meant(one);
        found |= ends;
        ends
    });
    found
}

fn end_each(mut is_meant: impl FnMut(&Waiting) -> bool) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let ended = waiting(|all| {
        let before = all.len();
        all.retain(|one| {
            let ends = is_meant(one);
            if ends {
                one.end(-libc::ECANCELED);
            }
            !ends
        });
        before != all.len()
    });
    if ended {
        ferry::look_again();
    }
}

/// What waits is the parent's.
pub(super) fn in_child() {
    WAITING.give_back();
    mem::forget(mem::take(&mut *WAITING.lock()));
    COUNT.store(0, Ordering::Relaxed);
}
