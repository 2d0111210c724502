//! Which descriptors a ring's entries name, and what is done here.
//!
//! EPOLL_CTL about sockets of ours, or an epoll of ours, is done here: event loops add what they watch so (libuv, hence node),
//! and would have each socket with the kernel. Its entry then only says the result. EPOLL_WAIT on an epoll of ours is EINVAL, as
//! on kernels before 6.15: the kernel's epoll behind it does not know of our sockets, and would wait for ever.

use std::ffi::{c_int, c_long};

use super::pending::{self, Chain, Ring};
use super::queue::{Answer, FIXED_FILE, NOP, SKIP_SUCCESS, Said};
use super::{connecting, each_file, listening, moving, of_stand_in, post};
use crate::table::{self, Entry};
use crate::{export, family, real};

/// SPLICE_F_FD_IN_FIXED.
const IN_IS_FIXED: u32 = 1 << 31;

/// IORING_RECVSEND_FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE.
const ZERO_COPY_FLAGS: u16 = 1 << 2 | 1 << 3;

/// Operations, `enum io_uring_op`.
pub(super) mod op {
    pub(in super::super) const READV: u8 = 1;
    pub(in super::super) const WRITEV: u8 = 2;
    pub(in super::super) const READ_FIXED: u8 = 4;
    pub(in super::super) const WRITE_FIXED: u8 = 5;
    pub(in super::super) const POLL_ADD: u8 = 6;
    pub(super) const POLL_REMOVE: u8 = 7;
    pub(in super::super) const SENDMSG: u8 = 9;
    pub(in super::super) const RECVMSG: u8 = 10;
    pub(super) const TIMEOUT: u8 = 11;
    pub(super) const TIMEOUT_REMOVE: u8 = 12;
    pub(super) const ACCEPT: u8 = 13;
    pub(in super::super) const ASYNC_CANCEL: u8 = 14;
    pub(super) const LINK_TIMEOUT: u8 = 15;
    pub(super) const CONNECT: u8 = 16;
    pub(super) const OPENAT: u8 = 18;
    pub(super) const CLOSE: u8 = 19;
    pub(super) const FILES_UPDATE: u8 = 20;
    pub(super) const STATX: u8 = 21;
    pub(in super::super) const READ: u8 = 22;
    pub(in super::super) const WRITE: u8 = 23;
    pub(super) const MADVISE: u8 = 25;
    pub(in super::super) const SEND: u8 = 26;
    pub(in super::super) const RECV: u8 = 27;
    pub(super) const OPENAT2: u8 = 28;
    pub(super) const EPOLL_CTL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const PROVIDE_BUFFERS: u8 = 31;
    pub(super) const REMOVE_BUFFERS: u8 = 32;
    pub(super) const TEE: u8 = 33;
    pub(in super::super) const SHUTDOWN: u8 = 34;
    pub(super) const RENAMEAT: u8 = 35;
    pub(super) const LINKAT: u8 = 39;
    pub(super) const MSG_RING: u8 = 40;
    pub(super) const SETXATTR: u8 = 42;
    pub(super) const GETXATTR: u8 = 44;
    pub(super) const SOCKET: u8 = 45;
    pub(in super::super) const SEND_ZC: u8 = 47;
    pub(in super::super) const SENDMSG_ZC: u8 = 48;
    pub(super) const WAITID: u8 = 50;
    pub(super) const FUTEX_WAITV: u8 = 53;
    pub(super) const FIXED_FD_INSTALL: u8 = 54;
    pub(super) const BIND: u8 = 56;
    pub(super) const LISTEN: u8 = 57;
    pub(super) const EPOLL_WAIT: u8 = 59;
    pub(super) const PIPE: u8 = 62;
}

/// What a ring cannot do here, as on a kernel that does not have it.
pub(super) const ABSENT: u8 = op::EPOLL_WAIT;

/// Who looks at a ring's entries, one after the other.
pub(super) struct Looker {
    ring: Ring,
    chain: Chain,
}

impl Looker {
    pub(super) fn new(number: u32, fd: c_int) -> Looker {
        Looker { ring: Ring { number, fd }, chain: Chain::default() }
    }

    /// What an entry names is the kernel's, or has a stand-in, before the kernel has the entry; or the entry is done here. The
    /// answer: what becomes of it, if it does not stay as it is.
    pub(super) fn look_at(&mut self, said: Said) -> Option<Answer> {
        let here = pending::serve(self.ring, said, self.chain);
        self.chain = self.chain.after(said, here.as_ref());
        let answer = here.or_else(|| look_at(self.ring, said));
        match answer {
            // The kernel would say 0.
            Some(Answer::Result(result)) if result != 0 && !post::nops_have_results() => {
                let is_told = result < 0 || said.flags & SKIP_SUCCESS == 0;
                let posted = !is_told || post::post(self.ring.number, self.ring.fd, said.user_data, result);
                Some(if posted { Answer::Nothing } else { Answer::Result(result) })
            }
            answer => answer,
        }
    }
}

/// As [`Looker::look_at`], of what is not done here.
fn look_at(ring: Ring, said: Said) -> Option<Answer> {
    let Said { operation, flags, fd, .. } = said;
    match operation {
        // `fd` is none, a directory, a ring, a domain, or names what is to be cancelled.
        NOP
        | op::TIMEOUT
        | op::TIMEOUT_REMOVE
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
        op::POLL_REMOVE | op::ASYNC_CANCEL => return pending::cancel(ring, said),
        op::SOCKET => moving::made(),
        op::CLOSE if said.other == 0 => moving::closing(fd),
        op::CLOSE => {}
        op::FILES_UPDATE => each_file(said.address as usize, said.len),
        op::ACCEPT if flags & FIXED_FILE == 0 => {
            moving::named(fd);
            listening::note(said);
        }
        op::SEND_ZC | op::SENDMSG_ZC if flags & FIXED_FILE == 0 => {
            moving::named(fd);
            // AF_UNIX copies, and says EOPNOTSUPP. A send without notice is one that has copied.
            let plain = if operation == op::SEND_ZC { op::SEND } else { op::SENDMSG };
            return of_stand_in(fd).map(|_| Answer::As(plain, ZERO_COPY_FLAGS));
        }
        // Where it binds decides whose it is, as by a call.
        op::BIND if flags & FIXED_FILE == 0 => {
            let arguments = [fd as usize, said.address as usize, said.offset as usize, 0, 0, 0];
            return by_number(libc::SYS_bind, arguments);
        }
        op::LISTEN if flags & FIXED_FILE == 0 => {
            return by_number(libc::SYS_listen, [fd as usize, said.len as usize, 0, 0, 0, 0]);
        }
        op::EPOLL_CTL => return control_epoll(said),
        op::CONNECT if flags & FIXED_FILE == 0 => return connecting::connect(said),
        op::EPOLL_WAIT if flags & FIXED_FILE == 0 && matches!(table::look(fd), Entry::Epoll(_)) => {
            return Some(Answer::Result(-libc::EINVAL));
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
fn control_epoll(said: Said) -> Option<Answer> {
    let target = said.offset as c_int;
    let is_ours = matches!(table::look(said.fd), Entry::Epoll(_))
        || matches!(family::look(target), Entry::Socket(_) | Entry::Candidate { .. });
    if !is_ours {
        return None;
    }
    let arguments = [said.fd as usize, said.len as usize, target as usize, said.address as usize, 0, 0];
    by_number(libc::SYS_epoll_ctl, arguments)
}

/// A call in the entry's place.
pub(super) fn by_number(number: c_long, arguments: [usize; 6]) -> Option<Answer> {
    let result = export::by_number(number, arguments)?;
    Some(Answer::Result(if result < 0 { -real::errno() } else { result as c_int }))
}
