//! The mapped TPACKET_V2 ring and its frames.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::OpenError;
use crate::ethernet::{bind, raw_socket};
use crate::sys;
use crate::vnet::{VNET_LEN, VnetHeader};

/// One frame holds a packet of 1,518 bytes and some, behind about 96 bytes of the ring's own headers.
pub(super) const FRAME_LEN: u32 = 2048;
/// Bytes kept free in front of the packet; they align the IP header to 32 bytes.
const RESERVE: libc::c_int = 6;
/// How much of packets longer than a frame may wait in the socket's queue; the kernel takes it twice, for its own.
pub(super) const QUEUE_BYTES: libc::c_int = 32 << 20;
/// `sockaddr_ll` follows the aligned header (TPACKET2_HDRLEN).
const ADDRESS_AT: usize = 32;
/// A packet is in the frame.
const USER: u32 = libc::TP_STATUS_USER;

/// The mapped ring with its socket. Only the engine's thread touches it; the kernel shares the frames' memory alone, by the
/// status words.
pub(super) struct Ring {
    socket: Rc<OwnedFd>,
    memory: NonNull<u8>,
    memory_len: usize,
    /// Less may wait in the socket's queue than we want.
    pub(super) has_short_queue: bool,
}

impl Ring {
    pub(super) fn open(name: &str, ifindex: u32, frames: u32) -> Result<Ring, OpenError> {
        let socket = raw_socket(name)?;
        let option = |option, value: libc::c_int, action| {
            sys::set_option(&socket, libc::SOL_PACKET, option, &value)
                .map_err(|error| OpenError::system(name, action, error))
        };
        option(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32, "choose TPACKET_V2")?;
        option(libc::PACKET_VNET_HDR, 1, "switch vnet headers on")?;
        // What is longer than a frame comes whole through the socket's queue; the value only has to be above 0.
        option(libc::PACKET_COPY_THRESH, 1, "receive long packets")?;
        option(libc::PACKET_RESERVE, RESERVE, "reserve head room")?;
        // Linux 4.20; before it, outgoing packets are skipped one by one.
        let _ = option(libc::PACKET_IGNORE_OUTGOING, 1, "leave outgoing packets out");
        let mut has_short_queue = false;
        if sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE_BYTES).is_err() {
            // Without the privilege to exceed the system's limit (`net.core.rmem_max`), take what there is.
            let _ = sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &QUEUE_BYTES);
            let got = sys::option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF);
            has_short_queue = got.is_ok_and(|got| got < QUEUE_BYTES as u32);
        }
        // Frames lie in blocks of whole pages, none across a border. Pages have 4 KiB at least, and a power of two.
        let block_len = sys::page_len();
        let per_block = block_len / FRAME_LEN;
        let blocks = frames.max(1).div_ceil(per_block);
        let request = libc::tpacket_req {
            tp_block_size: block_len,
            tp_block_nr: blocks,
            tp_frame_size: FRAME_LEN,
            tp_frame_nr: blocks * per_block,
        };
        sys::set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(|error| {
            OpenError::system(name, "set up its receive ring (ring_frames too large?)", error)
        })?;
        let memory_len = blocks as usize * block_len as usize;
        // SAFETY: a fresh shared mapping of the ring just set up.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                memory_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(OpenError::system(name, "map its receive ring", io::Error::last_os_error()));
        }
        let memory: NonNull<u8> = NonNull::new(memory.cast()).expect("mmap gives no null pointer");
        let ring = Ring { socket: Rc::new(socket), memory, memory_len, has_short_queue };
        bind(&ring.socket, ifindex, libc::ETH_P_ALL as u16)
            .map_err(|error| OpenError::system(name, "bind a raw packet socket to it", error))?;
        Ok(ring)
    }

    pub(super) fn socket(&self) -> &Rc<OwnedFd> {
        &self.socket
    }

    pub(super) fn frames(&self) -> u32 {
        self.memory_len as u32 / FRAME_LEN
    }

    /// True when frame `index` holds a packet for us.
    #[inline]
    pub(super) fn is_ready(&self, index: u32) -> bool {
        self.status(index).load(Ordering::Acquire) & USER != 0
    }

    #[inline]
    fn frame(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.frames(), "a frame of the ring");
        // SAFETY: frames fill the mapping: blocks are whole numbers of them.
        unsafe { self.memory.add((index * FRAME_LEN) as usize) }
    }

    #[inline]
    fn status(&self, index: u32) -> &AtomicU32 {
        // SAFETY: each frame begins with its 32-bit status word, aligned, mapped as long as `self` lives, and
        // accessed by both sides as an atomic.
        unsafe { AtomicU32::from_ptr(self.frame(index).cast().as_ptr()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody refers into it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.memory_len) };
    }
}

/// A frame that the kernel has given us and that we have not yet given back.
pub(super) struct Frame<'a> {
    ring: &'a Ring,
    index: u32,
    header: libc::tpacket2_hdr,
    memory: NonNull<u8>,
    /// First byte of the packet, from the start of the frame.
    start: u32,
    len: u32,
}

impl<'a> Frame<'a> {
    /// The packet in frame `index`, if there is one.
    #[inline]
    pub(super) fn take(ring: &'a Ring, index: u32) -> Option<Frame<'a>> {
        if !ring.is_ready(index) {
            return None;
        }
        let memory = ring.frame(index);
        // SAFETY: the frame begins with this structure, and is ours since its status says USER (Acquire).
        let header: libc::tpacket2_hdr = unsafe { memory.cast().read() };
        let (start, len) = (u32::from(header.tp_mac), header.tp_snaplen);
        Some(Frame { ring, index, header, memory, start, len })
    }

    /// The kernel or the hardware has verified its transport checksum.
    #[inline]
    pub(super) fn checksum_valid(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_CSUM_VALID != 0
    }

    #[inline]
    pub(super) fn packet_type(&self) -> libc::c_uchar {
        const PACKET_TYPE_AT: usize = std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);
        // SAFETY: a `sockaddr_ll` stands at this offset of each frame, which is ours.
        unsafe { self.memory.add(ADDRESS_AT + PACKET_TYPE_AT).read() }
    }

    /// The whole packet's length, if it does not fit and so is in the socket's queue, too.
    #[inline]
    pub(super) fn queued(&self) -> Option<u32> {
        (self.header.tp_status & libc::TP_STATUS_COPY != 0).then_some(self.header.tp_len)
    }

    /// The packet is cut short.
    #[inline]
    pub(super) fn is_cut(&self) -> bool {
        self.header.tp_len != self.len
    }

    /// False when the header makes no sense.
    #[inline]
    pub(super) fn is_sane(&self) -> bool {
        self.len >= 14
            && self.start as usize >= ADDRESS_AT + size_of::<libc::sockaddr_ll>() + VNET_LEN
            && self.start.checked_add(self.len).is_some_and(|end| end <= FRAME_LEN)
    }

    #[inline]
    pub(super) fn vnet(&self) -> VnetHeader {
        // SAFETY: `is_sane` found room for it in front of the packet; the frame is ours.
        let bytes = unsafe {
            let at = self.memory.add(self.start as usize - VNET_LEN);
            std::slice::from_raw_parts(at.as_ptr(), VNET_LEN)
        };
        VnetHeader::read(bytes)
    }

    #[inline]
    pub(super) fn bytes_len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `is_sane` found the packet inside the frame, which is ours; zeroed or written by the kernel.
        unsafe {
            let at = self.memory.add(self.start as usize);
            std::slice::from_raw_parts(at.as_ptr(), self.len as usize)
        }
    }

    /// The VLAN tag that the driver or kernel took out, as it stood in the frame.
    pub(super) fn vlan(&self) -> Option<[u8; 4]> {
        if self.header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let protocol = if self.header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            self.header.tp_vlan_tpid
        } else {
            0x8100
        };
        let ([a, b], [c, d]) = (protocol.to_be_bytes(), self.header.tp_vlan_tci.to_be_bytes());
        Some([a, b, c, d])
    }

    /// Puts such a tag back in its place, over the vnet header (already read).
    pub(super) fn restore_vlan(&mut self, tag: [u8; 4]) {
        const { assert!(VNET_LEN >= 4) };
        self.start -= 4;
        self.len += 4;
        // SAFETY: the four bytes in front were the vnet header's; the sixteen lie inside the frame, which is ours.
        let bytes = unsafe {
            let at = self.memory.add(self.start as usize);
            std::slice::from_raw_parts_mut(at.as_ptr(), 16)
        };
        bytes.copy_within(4.., 0);
        bytes[12..].copy_from_slice(&tag);
    }

    #[inline]
    pub(super) fn give_back(self) {
        self.ring.status(self.index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}
