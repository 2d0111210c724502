//! Sockets that a ring's operation names become the kernel's: that behind ours, which is the descriptor's own, takes their
//! place.
//!
//! ```text
//! fresh, or connected to nothing   the kernel's socket gets the options and the address
//! listening, nobody waits          it listens there, too; then our listener is closed, for all who have it
//! listening, else                  stays on paths; a stand-in accepts in its place ([`super::listening`])
//! connected                        stays on paths; a stand-in takes its place in this process ([`super::standin`])
//! connecting by a call             stays on paths: the operation finds a socket that is not connected
//! bound to what Linux has not, and no more than that
//!                                  stays on paths, and there calls go on serving it: the operation finds one that is
//!                                  bound to nothing. Any other address, or any at all, is not what was asked for
//! a datagram socket that is bound  stays on paths, where the operation is done ([`super::pending`]), unless the ring knows it
//!                                  by another number than its descriptor
//! ```
//!
//! So an operation on a stream that a call connects fails with ENOTCONN, or EPIPE where it sends. The queue of a
//! datagram socket that moves is lost, as datagrams may be.
//!
//! Left out: an epoll of the program's that has such a socket does not go on watching it. Other processes that have the socket
//! keep it as it is on paths, where it listens no more.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use libc::{sockaddr_storage, socklen_t};
use scoutline_abi::layout::slot_state as is;

use super::{ALONE, listening, pending, say_once, standin};
use crate::address::{self, Name};
use crate::bind::unbound;
use crate::reach::kernel_port;
use crate::slot::{Socket, kept};
use crate::table::{self, Entry};
use crate::{attach, cancel, family, life, options, own, real};

/// Why a socket stays on paths.
#[derive(Clone, Copy)]
enum Stays {
    InUse,
    Address,
}

/// What came of a socket that is named.
#[derive(Clone, Copy)]
enum Came {
    /// Nothing: it is something else by now.
    Nothing,
    /// The kernel's socket has its place.
    Moved,
    /// A stand-in has.
    StandIn,
}

/// A socket of the kernel's is made by a ring.
pub(super) fn made() {
    count();
}

/// A ring closes `fd`, which is to be known before the number can be given out again.
pub(super) fn closing(fd: c_int) {
    if table::is_own(fd) {
        own::relocate(fd); // what is closed is no more ours
    } else {
        life::closing(fd);
    }
}

/// A ring's operation is about `fd`. Two threads may be here with the same socket: one moves it, the other waits and finds
/// what came of it.
pub(super) fn named(fd: c_int) {
    let result = match family::look(fd) {
        // Whoever is cancelled would leave the others waiting.
        Entry::Socket(slot) => cancel::uncancelled(|| go_alone(fd, slot)),
        Entry::Candidate { .. } if table::keep_kernels(fd) => Ok(Came::Moved),
        _ => return,
    };
    tell(result);
}

/// A stand-in has been made for a socket.
pub(super) fn stood_in() {
    tell(Ok(Came::StandIn));
}

/// Operations of a ring on a datagram socket are done here.
pub(super) fn served() {
    static SAID: AtomicBool = AtomicBool::new(false);
    count();
    say_once(
        &SAID,
        b"io_uring operations on datagram sockets of paths are done by calls; to have rings refused: scoutline run --io-uring=refuse",
    );
}

/// Counts it, and says so once.
fn tell(result: Result<Came, Stays>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    static SAID_STAND_IN: AtomicBool = AtomicBool::new(false);
    static SAID_IN_USE: AtomicBool = AtomicBool::new(false);
    static SAID_ADDRESS: AtomicBool = AtomicBool::new(false);
    match result {
        Ok(Came::Nothing) => {}
        Ok(Came::StandIn) => {
            count();
            say_once(
                &SAID_STAND_IN,
                b"io_uring operations on what is connected or listens on paths are served by stand-ins, with two copies more; to have rings refused: scoutline run --io-uring=refuse",
            );
        }
        Ok(Came::Moved) => {
            count();
            say_once(
                &SAID,
                b"sockets that io_uring operations name are the kernel's, and not on paths; to have rings refused: scoutline run --io-uring=refuse",
            );
        }
        Err(Stays::InUse) => say_once(
            &SAID_IN_USE,
            b"an io_uring operation on a socket that is in use on paths fails, and so it will with each; to have all sockets with the kernel: scoutline run --io-uring",
        ),
        Err(Stays::Address) => say_once(
            &SAID_ADDRESS,
            b"an io_uring operation on a socket that is bound to an address of paths fails: Linux does not have the address, or has it in use",
        ),
    }
}

fn count() {
    if let Some(region) = attach::region() {
        region.header().ring_sockets.fetch_add(1, Ordering::Relaxed);
    }
}

/// Moves it, with no other thread here.
fn go_alone(fd: c_int, slot: u32) -> Result<Came, Stays> {
    let _alone = ALONE.enter();
    // Held, so that the slot is not given to another socket before this is over, whoever closes `fd`.
    let Some(socket) = Socket::at(slot).filter(|socket| socket.hold_beside()) else {
        return Ok(Came::Nothing);
    };
    let result = if table::socket(fd) != Some(slot) {
        Ok(Came::Nothing)
    } else if pending::has(socket) {
        Err(Stays::InUse)
    } else if is_connected(socket) && standin::put(fd, socket) {
        return Ok(Came::StandIn); // which holds it now
    } else {
        go(fd, socket).or_else(|stays| if listening::put(socket) { Ok(Came::StandIn) } else { Err(stays) })
    };
    socket.release();
    result
}

fn is_connected(socket: Socket) -> bool {
    socket.state() & is::CONNECTED != 0 && !socket.connect_is_pending()
}

/// The kernel's socket behind this one takes its place.
fn go(fd: c_int, socket: Socket) -> Result<Came, Stays> {
    if is_in_use(socket) || socket.state() & is::LISTENING != 0 && has_accepted(fd) {
        return Err(Stays::InUse);
    }
    options::carry_back(fd, socket);
    if !take_address(fd, socket) {
        return Err(Stays::Address);
    }
    if socket.state() & is::LISTENING != 0 && real::listen(fd, options::backlog(socket)) < 0 {
        return Err(Stays::Address);
    }
    let mut moved = false;
    // Who duplicates one meanwhile looks at it again (`life::duplicated`), or is seen the second time.
    for _ in 0..2 {
        for other in 0..=table::highest() {
            if table::socket(other) == Some(socket.index) && table::give_up(other, socket.index, true) {
                socket.release();
                moved = true;
            }
        }
        fence(Ordering::SeqCst);
    }
    if !moved {
        return Ok(Came::Nothing); // a signal handler of this thread's has done it meanwhile
    }
    standin::wake_sleepers(socket);
    if socket.state() & is::LISTENING != 0 {
        // Who has come by now is reset, as by any end of a listener.
        life::shutdown(socket, libc::SHUT_RD);
    }
    Ok(Came::Moved)
}

/// There is a peer, or somebody who waits to be accepted; or the descriptor is a listener's to the kernel.
fn is_in_use(socket: Socket) -> bool {
    let state = socket.state();
    if state & is::LISTENING != 0 {
        return socket.received() > 0;
    }
    let is_accepted = socket.slot.kept_options.load(Ordering::Relaxed) & kept::ACCEPTED != 0;
    is_accepted || state & is::CONNECTED != 0 || is::opens(state) || socket.connect_is_pending()
}

/// Whether this process has sockets that a listener has accepted: they are, to the kernel, the listener itself, which would go
/// on listening with them.
fn has_accepted(listener: c_int) -> bool {
    let file = real::inode(listener);
    (0..=table::highest()).any(|fd| {
        Socket::of(fd).is_some_and(|socket| {
            socket.slot.kept_options.load(Ordering::Relaxed) & kept::ACCEPTED != 0 && real::inode(fd) == file
        })
    })
}

/// The kernel's socket has the address that this one has. False: Linux does not give it.
fn take_address(fd: c_int, socket: Socket) -> bool {
    let name = address_of(socket);
    let is_none = name.address.is_unspecified() && name.port == 0;
    if socket.state() & is::BOUND == 0 || is_none || kernel_port(fd) != 0 {
        return true;
    }
    // SAFETY: zeros are a valid address.
    let mut bytes: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    address::write(name, socket.is_inet6(), (&raw mut bytes).cast(), &raw mut len);
    // A signal handler's ring may have named it as well.
    real::bind(fd, (&raw const bytes).cast(), len) == 0 || kernel_port(fd) != 0
}

/// Its own address. An attempt to connect that has failed leaves what `bind` was asked for (`tcp_disconnect` of Linux).
fn address_of(socket: Socket) -> Name {
    let slot = socket.slot;
    let kept = slot.kept_options.load(Ordering::Relaxed);
    let stays = |bit: u32| socket.state() & is::FAILED == 0 || kept & bit != 0;
    let address = slot.local_address.load();
    let name = if stays(kept::ADDRESS_GIVEN) {
        Name { address, port: 0, scope: slot.scope.load(Ordering::Relaxed) }
    } else {
        unbound(socket.is_inet6())
    };
    let port = slot.local_port.load(Ordering::Relaxed) as u16;
    Name { port: if stays(kept::PORT_GIVEN) { port } else { 0 }, ..name }
}
