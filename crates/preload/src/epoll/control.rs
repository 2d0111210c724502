//! `epoll_ctl`.

use std::ffi::c_int;
use std::ptr;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN,
    EPOLLOUT, EPOLLWAKEUP, epoll_event,
};

use super::nested::{Nested, nest};
use super::sharing::lock;
use super::{EXCLUSIVE, Item, created, ready, watch_above};
use crate::real::err;
use crate::slot::Socket;
use crate::table::Entry as Fd;
use crate::{family, memory, real, table};

/// What may stand beside EPOLLEXCLUSIVE, which can be given once and not changed (epoll_ctl(2)).
const BESIDE_EXCLUSIVE: u32 =
    (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE) as u32;

/// `epoll_ctl`.
pub(crate) fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> isize {
    let target = family::look(fd);
    let number = match table::look(epfd) {
        Fd::Epoll(number) => Some(number),
        // Made behind our back: known from now on.
        Fd::Kernel if matches!(target, Fd::Socket(_)) => match look_at(epfd, fd) {
            Ok(()) => created(epfd),
            Err(result) => return result,
        },
        _ => None,
    };
    let Some(number) = number else { return kernel_control(epfd, op, fd, event) };
    if matches!(target, Fd::Internal(_)) {
        return err(libc::EBADF);
    }
    let given = if memory::is_nowhere(event) {
        None
    } else {
        // SAFETY: the program vouches for its event; the type is packed.
        Some(unsafe { ptr::read_unaligned(event) })
    };
    let item =
        given.map(|event| Item { fd_plus_one: fd + 1, events: event.events, data: event.u64, spent: false });
    if let Fd::Socket(slot) = target
        && let Some(socket) = Socket::at(slot)
    {
        return control_socket(epfd, number, op, fd, socket, item);
    }
    if let Fd::Epoll(inner) = target {
        return control_nested((epfd, number), op, (fd, inner), item, event);
    }
    let result = kernel_control(epfd, op, fd, event);
    if result < 0 {
        return result;
    }
    let mut epoll = lock(number);
    epoll.note_kernel(op);
    let item = item.filter(|_| op != EPOLL_CTL_DEL);
    if matches!(target, Fd::Candidate { .. }) {
        epoll.candidates.retain(|item| item.fd_plus_one != fd + 1);
        if let Some(item) = item {
            epoll.candidates.push(item);
            table::watch(fd);
        }
    }
    0
}

/// The same for an epoll of ours, which the kernel knows by a mark.
fn control_nested(
    (epfd, number): (c_int, u32),
    op: c_int,
    (fd, inner): (c_int, u32),
    item: Option<Item>,
    event: *mut epoll_event,
) -> isize {
    let mut epoll = lock(number);
    let marked =
        item.filter(|_| op != EPOLL_CTL_DEL).map(|item| (item, epoll.marked(inner, fd, item.events)));
    let result = match marked {
        Some((_, (mut event, _))) => kernel_control(epfd, op, fd, &raw mut event),
        None => kernel_control(epfd, op, fd, event),
    };
    if result < 0 {
        return result;
    }
    epoll.note_kernel(op);
    let new = marked.map(|(item, (_, id))| Nested::new(inner, item, id));
    nest(epoll, (epfd, number), (fd, inner), new);
    0
}

/// Whether this is an epoll descriptor at all: it says that it does not know `fd`, whose socket here is not in it.
pub(super) fn look_at(epfd: c_int, fd: c_int) -> Result<(), isize> {
    match kernel_control(epfd, EPOLL_CTL_DEL, fd, ptr::null_mut()) {
        result if result < 0 && result != err(libc::ENOENT) => Err(result),
        _ => Ok(()),
    }
}

fn kernel_control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> isize {
    real::ours(real::epoll_ctl(epfd, op, fd, event) as isize)
}

fn control_socket(
    epfd: c_int,
    number: u32,
    op: c_int,
    fd: c_int,
    socket: Socket,
    item: Option<Item>,
) -> isize {
    let mut epoll = lock(number);
    match op {
        EPOLL_CTL_DEL => {
            if epoll.remove(socket, fd) {
                0
            } else {
                err(libc::ENOENT)
            }
        }
        EPOLL_CTL_ADD => {
            let Some(item) = item else { return err(libc::EFAULT) };
            if item.events & EXCLUSIVE != 0 && item.events & !BESIDE_EXCLUSIVE != 0 {
                return err(libc::EINVAL);
            }
            if epoll.list.is_some_and(|list| list.find(socket, fd).is_some()) {
                return err(libc::EEXIST);
            }
            if !epoll.insert(socket, item) {
                return err(libc::ENOSPC);
            }
            // In the kernel's `epoll_wait` nobody hears of it otherwise.
            if !epoll.shared || ready::has_event(socket, item) {
                epoll.kick(epfd);
            }
            drop(epoll);
            watch_above(number, socket);
            0
        }
        EPOLL_CTL_MOD => {
            let Some(item) = item else { return err(libc::EFAULT) };
            if item.events & EXCLUSIVE != 0 {
                return err(libc::EINVAL);
            }
            let place = epoll.list.and_then(|list| list.find(socket, fd));
            let Some(place) = place else { return err(libc::ENOENT) };
            if place.events() & EXCLUSIVE != 0 {
                return err(libc::EINVAL);
            }
            place.set(item);
            if epoll.ready_set().is_some_and(|set| ready::mark(set, socket, item)) {
                epoll.kick(epfd);
            }
            0
        }
        _ => err(libc::EINVAL),
    }
}
