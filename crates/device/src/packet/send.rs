//! Sending with `sendmmsg`: one system call for a batch, each packet gathered from its parts, nothing copied here.
//!
//! 64-byte packets cost some 0.8 µs each, nearly all of it in the kernel (skb, veth, the receiver's softirq). Putting
//! headers and small bodies together in one part instead of four was tried and made no difference that showed (1.28
//! against 1.27 million packets a second, best of three on a busy machine), so it is not done.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use scoutline_path::{Burst, Message};

use crate::error::OpenError;
use crate::ethernet::{bind, raw_socket};
use crate::packet::Config;
use crate::partner::DeviceCounters;
use crate::software;
use crate::sys::{self, Interface};
use crate::vnet::{NO_PART, PARTS, VNET_LEN, VnetHeader, gather};

/// Packets per system call: 64 bring its cost (95 ns plus entry work) below 2 ns each.
const BATCH: usize = 64;
/// How much may stand in the kernel on our account before it says "full".
const SEND_BUFFER_LEN: libc::c_int = 8 << 20;

/// The sending half.
pub(crate) struct Sender {
    socket: OwnedFd,
    vnet: bool,
    headers: Box<[VnetHeader; BATCH]>,
    parts: Vec<[libc::iovec; PARTS]>,
    calls: Box<[libc::mmsghdr; BATCH]>,
    /// Without offload: packets of a message that left the burst, cut and complete, for which the device had no
    /// room yet. Never more than one message makes.
    backlog: VecDeque<Box<[u8]>>,
    /// Within one push: where in the backlog each message begins that is cut but still in the burst, and whether
    /// it made several packets.
    begins: VecDeque<(usize, bool)>,
    scratch: Vec<u8>,
    full: bool,
}

impl Sender {
    pub(crate) fn open(interface: &Interface, config: &Config) -> Result<Sender, OpenError> {
        let name = &interface.name;
        // Protocol 0: this socket receives nothing.
        let socket = raw_socket(name)?;
        let set = |level, option, value: libc::c_int| sys::set_option(&socket, level, option, &value);
        if config.offload {
            set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
                .map_err(|error| OpenError::system(name, "switch vnet headers on", error))?;
        }
        if config.qdisc_bypass {
            set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)
                .map_err(|error| OpenError::system(name, "bypass its queueing discipline", error))?;
        }
        // Without the privilege to exceed the system's limit, take what there is.
        if set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_LEN).is_err() {
            let _ = set(libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_LEN);
        }
        bind(&socket, interface.index, 0)
            .map_err(|error| OpenError::system(name, "bind a raw packet socket to it", error))?;
        // SAFETY: plain data for which zeros are valid.
        let call: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Ok(Sender {
            socket,
            vnet: config.offload,
            headers: Box::new([VnetHeader::default(); BATCH]),
            parts: vec![[NO_PART; PARTS]; BATCH],
            calls: Box::new([call; BATCH]),
            backlog: VecDeque::new(),
            begins: VecDeque::new(),
            scratch: Vec::new(),
            full: false,
        })
    }

    /// A full batch or several; one to try with after the device was full.
    pub(crate) fn room(&self) -> usize {
        if self.full || !self.backlog.is_empty() { 1 } else { 4 * BATCH }
    }

    /// What the kernel still holds of ours: with the queueing discipline, the driver, or the other end of a veth.
    pub(crate) fn standing(&self) -> Option<u64> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes one `int` (af_packet.c, SIOCOUTQ: sk_wmem_alloc).
        let status = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        (status == 0).then(|| u64::from(bytes.max(0).cast_unsigned()))
    }

    pub(super) fn push(&mut self, burst: &mut Burst, counters: &mut DeviceCounters) -> io::Result<usize> {
        let mut done = 0;
        let result = if self.vnet {
            self.push_offloaded(burst, &mut done, counters)
        } else {
            self.full = false;
            self.push_software(burst, &mut done, counters)
        };
        burst.drain(..done);
        result.map(|()| done)
    }

    /// Hands messages over as they are; `done` counts those that need not come again.
    pub(crate) fn push_offloaded(
        &mut self,
        burst: &[Message],
        done: &mut usize,
        counters: &mut DeviceCounters,
    ) -> io::Result<()> {
        self.full = false;
        while *done < burst.len() {
            let mut count = 0;
            for message in burst[*done..].iter().take(BATCH) {
                let parts = &mut self.parts[count];
                let Some((extra, len)) = gather(message, &mut parts[1..]) else { break };
                self.headers[count] = VnetHeader::for_sending(message);
                parts[0].iov_base = (&raw mut self.headers[count]).cast();
                parts[0].iov_len = VNET_LEN;
                let call = &mut self.calls[count];
                call.msg_hdr.msg_iov = parts.as_mut_ptr();
                call.msg_hdr.msg_iovlen = (1 + extra) as _;
                call.msg_len = len as u32; // overwritten by the kernel with the same and the vnet header's
                count += 1;
            }
            if count == 0 {
                counters.tx_malformed += 1; // no packet at all
                *done += 1;
                continue;
            }
            match self.send(count) {
                Sent::Packets(sent) => {
                    counters.tx_packets += sent as u64;
                    counters.tx_bytes += self.sent_bytes(sent) - (sent * VNET_LEN) as u64;
                    *done += sent;
                }
                Sent::Full => {
                    counters.tx_full += 1;
                    self.full = true;
                    return Ok(());
                }
                Sent::Refused(error) => {
                    count_refusal(&error, counters);
                    *done += 1;
                }
                Sent::Failed(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn push_software(
        &mut self,
        burst: &Burst,
        done: &mut usize,
        counters: &mut DeviceCounters,
    ) -> io::Result<()> {
        loop {
            self.cut_ahead(burst, done, counters);
            if self.backlog.is_empty() {
                return Ok(());
            }
            let count = self.backlog.len().min(BATCH);
            for (index, packet) in self.backlog.iter_mut().take(count).enumerate() {
                let parts = &mut self.parts[index];
                parts[0] = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
                self.calls[index].msg_hdr.msg_iov = parts.as_mut_ptr();
                self.calls[index].msg_hdr.msg_iovlen = 1;
            }
            match self.send(count) {
                Sent::Packets(sent) => {
                    counters.tx_packets += sent as u64;
                    counters.tx_bytes += self.sent_bytes(sent);
                    *done += self.begun(sent, counters);
                }
                Sent::Refused(error) => {
                    count_refusal(&error, counters);
                    *done += self.begun(1, counters);
                }
                Sent::Full => {
                    counters.tx_full += 1;
                    self.full = true;
                    self.uncut();
                    return Ok(());
                }
                Sent::Failed(error) => {
                    self.uncut();
                    return Err(error);
                }
            }
        }
    }

    /// Cuts messages until a batch is full. They stay in the burst until their first packet is sent.
    fn cut_ahead(&mut self, burst: &Burst, done: &mut usize, counters: &mut DeviceCounters) {
        while self.backlog.len() < BATCH {
            let Some(message) = burst.get(*done + self.begins.len()) else { return };
            let (begin, backlog) = (self.backlog.len(), &mut self.backlog);
            match software::packets(message, &mut self.scratch, |packet| backlog.push_back(packet.into())) {
                Ok(cut) => self.begins.push_back((begin, cut > 1)),
                Err(_) if self.begins.is_empty() => {
                    counters.tx_malformed += 1;
                    *done += 1;
                }
                Err(_) => return, // its turn comes when those in front of it have gone
            }
        }
    }

    /// The first `packets` of the backlog have gone; says how many more messages have begun to go.
    fn begun(&mut self, packets: usize, counters: &mut DeviceCounters) -> usize {
        self.backlog.drain(..packets);
        let before = self.begins.len();
        while let Some((begin, cut)) = self.begins.front()
            && *begin < packets
        {
            counters.tx_software += u64::from(*cut);
            self.begins.pop_front();
        }
        for (begin, _) in &mut self.begins {
            *begin -= packets;
        }
        before - self.begins.len()
    }

    /// Forgets the packets of messages that have not begun to go: they stay in the burst.
    fn uncut(&mut self) {
        if let Some((begin, _)) = self.begins.front() {
            self.backlog.truncate(*begin);
        }
        self.begins.clear();
    }

    /// One system call for the first `count` prepared packets.
    fn send(&mut self, count: usize) -> Sent {
        // SAFETY: the calls' iovecs point to `headers`, to messages that the caller still holds, or to the backlog;
        // the kernel only reads them. Shared send rings may change meanwhile: only which bytes go out changes.
        let sent = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), self.calls.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT)
        };
        if sent > 0 {
            return Sent::Packets(sent as usize);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => Sent::Packets(0),
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Sent::Full,
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADF) => Sent::Failed(error),
            _ => Sent::Refused(error),
        }
    }

    fn sent_bytes(&self, sent: usize) -> u64 {
        self.calls[..sent].iter().map(|call| u64::from(call.msg_len)).sum()
    }
}

enum Sent {
    Packets(usize),
    Full,
    /// This one packet cannot be sent.
    Refused(io::Error),
    /// The device cannot be used now.
    Failed(io::Error),
}

fn count_refusal(error: &io::Error, counters: &mut DeviceCounters) {
    if error.raw_os_error() == Some(libc::EMSGSIZE) {
        counters.tx_too_large += 1;
    } else {
        counters.tx_refused += 1;
    }
}
