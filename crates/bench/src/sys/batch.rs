//! Many datagrams with one system call: recvmmsg(2) and sendmmsg(2).

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use super::check;

/// Datagrams with the addresses that they came from.
pub(crate) struct Batch {
    size: usize,
    room: Vec<u8>,
    lens: Vec<usize>,
    names: Vec<libc::sockaddr_in>,
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

/// Whether addresses go with the datagrams.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    With,
    Without,
}

impl Batch {
    /// Room for `count` datagrams of up to `size` bytes.
    pub(crate) fn new(count: usize, size: usize) -> Batch {
        // SAFETY: sockaddr_in, iovec and mmsghdr are plain data for which zeros are valid.
        let (name, part, message) = unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        Batch {
            size,
            room: vec![0; count * size],
            lens: vec![size; count],
            names: vec![name; count],
            parts: vec![part; count],
            messages: vec![message; count],
        }
    }

    /// The datagram with this index.
    pub(crate) fn datagram(&self, index: usize) -> &[u8] {
        &self.room[index * self.size..][..self.lens[index]]
    }

    /// The bytes of the datagram with this index, which is to be so long.
    pub(crate) fn datagram_mut(&mut self, index: usize, len: usize) -> &mut [u8] {
        self.lens[index] = len.min(self.size);
        &mut self.room[index * self.size..][..self.lens[index]]
    }

    /// Takes what is there, and waits for the first one if the socket blocks. How many.
    pub(crate) fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        let count = self.lens.len();
        self.lens.fill(self.size);
        self.point(count, Names::With);
        let (fd, messages) = (socket.as_raw_fd(), self.messages.as_mut_ptr());
        let flags = libc::MSG_WAITFORONE as _;
        // SAFETY: `point` has made `count` messages point into buffers of this batch, which nothing else uses now; the
        // time-out is null.
        let taken = unsafe { libc::recvmmsg(fd, messages, count as u32, flags, std::ptr::null_mut()) };
        let taken = check(taken)? as usize;
        for index in 0..taken {
            self.lens[index] = (self.messages[index].msg_len as usize).min(self.size);
        }
        Ok(taken)
    }

    /// Sends the first `count` to where they came from; how many the socket took.
    pub(crate) fn send_back(&mut self, socket: &UdpSocket, count: usize) -> io::Result<usize> {
        self.send_with(socket, count, Names::With)
    }

    /// Sends the first `count` to whom the socket is connected; how many it took.
    pub(crate) fn send(&mut self, socket: &UdpSocket, count: usize) -> io::Result<usize> {
        self.send_with(socket, count, Names::Without)
    }

    fn send_with(&mut self, socket: &UdpSocket, count: usize, names: Names) -> io::Result<usize> {
        let count = count.min(self.lens.len());
        self.point(count, names);
        let (fd, messages) = (socket.as_raw_fd(), self.messages.as_mut_ptr());
        // SAFETY: `point` has made `count` messages point into buffers of this batch; sending only reads those.
        let sent = unsafe { libc::sendmmsg(fd, messages, count as u32, 0) };
        check(sent).map(|sent| sent as usize)
    }

    /// Has the first `count` messages point to their parts, and these to their bytes.
    fn point(&mut self, count: usize, names: Names) {
        for index in 0..count {
            let bytes = &mut self.room[index * self.size..][..self.size];
            self.parts[index] =
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: self.lens[index] };
            let header = &mut self.messages[index].msg_hdr;
            (header.msg_iov, header.msg_iovlen) = (&raw mut self.parts[index], 1);
            (header.msg_name, header.msg_namelen) = match names {
                Names::Without => (std::ptr::null_mut(), 0),
                Names::With => (
                    (&raw mut self.names[index]).cast(),
                    mem::size_of::<libc::sockaddr_in>() as libc::socklen_t,
                ),
            };
        }
    }
}
