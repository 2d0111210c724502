//! Which descriptors a ring's entries name, and what is done here.
//!
//! EPOLL_CTL about sockets of ours, or an epoll of ours, is done here: event loops add what they watch so (libuv, hence node),
//! and would have each socket with the kernel. Its entry then only says the result. EPOLL_WAIT on an epoll of ours is EINVAL, as
//! on kernels before 6.15: the kernel's epoll behind it does not know of our sockets, and would wait for ever.

use std::ffi::c_int;

use super::queue::{FIXED_FILE, NOP, Said};
use super::{each_file, moving};
use crate::table::{self, Entry};
use crate::{export, real};

/// SPLICE_F_FD_IN_FIXED.
const IN_IS_FIXED: u32 = 1 << 31;

/// Operations, `enum io_uring_op`.
mod op {
    pub(super) const POLL_REMOVE: u8 = 7;
    pub(super) const TIMEOUT: u8 = 11;
    pub(super) const TIMEOUT_REMOVE: u8 = 12;
    pub(super) const ASYNC_CANCEL: u8 = 14;
    pub(super) const LINK_TIMEOUT: u8 = 15;
    pub(super) const OPENAT: u8 = 18;
    pub(super) const CLOSE: u8 = 19;
    pub(super) const FILES_UPDATE: u8 = 20;
    pub(super) const STATX: u8 = 21;
    pub(super) const MADVISE: u8 = 25;
    pub(super) const OPENAT2: u8 = 28;
    pub(super) const EPOLL_CTL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const PROVIDE_BUFFERS: u8 = 31;
    pub(super) const REMOVE_BUFFERS: u8 = 32;
    pub(super) const TEE: u8 = 33;
    pub(super) const RENAMEAT: u8 = 35;
    pub(super) const LINKAT: u8 = 39;
    pub(super) const MSG_RING: u8 = 40;
    pub(super) const SETXATTR: u8 = 42;
    pub(super) const GETXATTR: u8 = 44;
    pub(super) const SOCKET: u8 = 45;
    pub(super) const WAITID: u8 = 50;
    pub(super) const FUTEX_WAITV: u8 = 53;
    pub(super) const FIXED_FD_INSTALL: u8 = 54;
    pub(super) const EPOLL_WAIT: u8 = 59;
    pub(super) const PIPE: u8 = 62;
}

/// What a ring cannot do here, as on a kernel that does not have it.
pub(super) const ABSENT: u8 = op::EPOLL_WAIT;

/// What an entry names is the kernel's before the kernel has the entry. `Some`: it is done, with this result.
pub(super) fn look_at(said: Said) -> Option<c_int> {
    let Said { operation, flags, fd, .. } = said;
    match operation {
        // `fd` is none, a directory, a ring, a domain, or names what is to be cancelled.
        NOP
        | op::POLL_REMOVE
        | op::TIMEOUT
        | op::TIMEOUT_REMOVE
        | op::ASYNC_CANCEL
        | op::LINK_TIMEOUT
        | op::OPENAT
        | op::OPENAT2
        | op::STATX
        | op::MADVISE
        | op::PROVIDE_BUFFERS
        | op::REMOVE_BUFFERS
        | op::RENAMEAT..=op::LINKAT
        | op::MSG_RING
        | op::SETXATTR
        | op::GETXATTR
        | op::WAITID..=op::FUTEX_WAITV
        | op::FIXED_FD_INSTALL
        | op::PIPE => {}
        op::SOCKET => moving::made(),
        op::CLOSE if said.other == 0 => moving::closing(fd),
        op::CLOSE => {}
        op::FILES_UPDATE => each_file(said.address as usize, said.len),
        op::EPOLL_CTL => return control_epoll(said),
        op::EPOLL_WAIT if flags & FIXED_FILE == 0 && matches!(table::look(fd), Entry::Epoll(_)) => {
            return Some(-libc::EINVAL);
        }
        _ => {
            if flags & FIXED_FILE == 0 {
                moving::named(fd);
            }
            if matches!(operation, op::SPLICE | op::TEE) && said.operation_flags & IN_IS_FIXED == 0 {
                moving::named(said.other.cast_signed());
            }
        }
    }
    None
}

/// EPOLL_CTL: the epoll in `fd`, the operation in `len`, the descriptor in `off`, the event at `addr`.
fn control_epoll(said: Said) -> Option<c_int> {
    let target = said.offset as c_int;
    let is_ours = matches!(table::look(said.fd), Entry::Epoll(_))
        || matches!(table::look(target), Entry::Socket(_) | Entry::Candidate { .. });
    if !is_ours {
        return None;
    }
    let arguments = [said.fd as usize, said.len as usize, target as usize, said.address as usize, 0, 0];
    let result = export::by_number(libc::SYS_epoll_ctl, arguments)?;
    Some(if result < 0 { -real::errno() } else { 0 })
}
