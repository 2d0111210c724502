//! The device: a packet socket on an interface, a virtio-net header in front of each frame (`linux/virtio_net.h`), by
//! which super-segments of TCP come and go whole and checksums are left to whoever needs them. It is what the daemon's
//! `packet` driver gives its packets to, without that one's ring and batches, which smoltcp has no place for.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::num::{NonZeroU16, NonZeroUsize};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use smoltcp::phy::{
    self, Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, PacketMeta,
    SegmentationCapabilities,
};
use smoltcp::time::{Duration, Instant};

/// `PACKET_VNET_HDR` of `linux/if_packet.h`.
const PACKET_VNET_HDR: libc::c_int = 15;
/// flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
const VNET_LEN: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

const ETHERNET_LEN: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
const TCP: u8 = 6;
/// Where TCP's checksum stands in its header.
const TCP_CHECKSUM: usize = 16;
const MTU: usize = 1500;
/// The longest frame that comes: an IP packet of 64 KiB.
const LONGEST: usize = ETHERNET_LEN + 0xffff;
/// The longest that goes: as many whole segments as stay below `gso_max_size`, or the kernel cuts it before the other side
/// has it.
const SUPER_SEGMENT: usize = ETHERNET_LEN + 40 + 44 * (MTU - 40);
/// For what comes while the program is at work.
const SOCKET_BUFFER: libc::c_int = 8 << 20;

/// The socket, and room for a frame each way.
pub(crate) struct Packets {
    socket: OwnedFd,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Packets {
    /// Takes what comes to the interface of this name.
    pub(crate) fn open(device: &str) -> io::Result<Packets> {
        let name = CString::new(device)?;
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the name ends in 0, and both calls keep nothing.
        let (index, socket) = unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            (libc::if_nametoindex(name.as_ptr()), socket)
        };
        let socket = checked(socket as isize)? as i32;
        // SAFETY: the socket was made above and belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        option(&socket, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER)?;
        option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SOCKET_BUFFER)?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is a whole sockaddr_ll, and its length is told.
        let bound = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
        };
        checked(bound as isize)?;
        let room = || vec![0; VNET_LEN + LONGEST];
        Ok(Packets { socket, incoming: room(), outgoing: room() })
    }

    /// Until a frame has come, or for so long.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        match phy::wait(self.socket.as_raw_fd(), limit) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Device for Packets {
    type RxToken<'a> = Incoming<'a>;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        let room = &mut self.incoming;
        // SAFETY: the kernel writes at most the room's length into it.
        let count = unsafe {
            libc::recv(self.socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
        };
        // An interface that is down is seen by the client.
        let frame = room.get(VNET_LEN..usize::try_from(count).ok()?)?;
        Some((Incoming(frame), Outgoing::new(&self.socket, &mut self.outgoing)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outgoing<'_>> {
        Some(Outgoing::new(&self.socket, &mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        checksum.tcp = Checksum::None;
        checksum.udp = Checksum::Tx;
        let mut segmentation = SegmentationCapabilities::default();
        segmentation.tcpv4 = Some(const { NonZeroUsize::new(SUPER_SEGMENT).unwrap() });
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = ETHERNET_LEN + MTU;
        capabilities.checksum = checksum;
        capabilities.segmentation = segmentation;
        capabilities
    }
}

/// A frame that came.
pub(crate) struct Incoming<'a>(&'a [u8]);

impl phy::RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// One that goes.
pub(crate) struct Outgoing<'a> {
    socket: &'a OwnedFd,
    room: &'a mut [u8],
    segment_len: Option<NonZeroU16>,
}

impl<'a> Outgoing<'a> {
    fn new(socket: &'a OwnedFd, room: &'a mut [u8]) -> Outgoing<'a> {
        Outgoing { socket, room, segment_len: None }
    }
}

impl phy::TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let whole = &mut self.room[..VNET_LEN + len];
        let (vnet, frame) = whole.split_at_mut(VNET_LEN);
        let done = fill(frame);
        vnet.copy_from_slice(&leave_to_device(frame, self.segment_len));
        // What the interface does not take is lost, as on a wire.
        // SAFETY: the kernel reads the slice's length from it.
        let _ = unsafe { libc::send(self.socket.as_raw_fd(), whole.as_ptr().cast(), whole.len(), 0) };
        done
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment_len = meta.segmentation_offload_size;
    }
}

/// The virtio-net header of a frame. A segment of TCP gets the sum of its pseudo header (RFC 9293 §3.1) where its
/// checksum will stand: who cuts it, or needs the checksum, goes on from there.
fn leave_to_device(frame: &mut [u8], segment_len: Option<NonZeroU16>) -> [u8; VNET_LEN] {
    let mut vnet = [0; VNET_LEN];
    let is_tcp =
        frame.len() > ETHERNET_LEN + 20 && frame[12..14] == ETHERTYPE_IPV4 && frame[ETHERNET_LEN + 9] == TCP;
    if !is_tcp {
        return vnet;
    }
    let start = ETHERNET_LEN + usize::from(frame[ETHERNET_LEN] & 15) * 4;
    let segment = frame.len() - start;
    let addresses = frame[ETHERNET_LEN + 12..ETHERNET_LEN + 20].chunks_exact(2);
    let sum: u32 = addresses.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = sum + u32::from(TCP) + segment as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    frame[start + TCP_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
    vnet[0] = NEEDS_CHECKSUM;
    if let Some(segment_len) = segment_len {
        let headers = start + usize::from(frame[start + 12] >> 4) * 4;
        vnet[1] = GSO_TCPV4;
        vnet[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
        vnet[4..6].copy_from_slice(&segment_len.get().to_ne_bytes());
    }
    vnet[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
    vnet[8..10].copy_from_slice(&(TCP_CHECKSUM as u16).to_ne_bytes());
    vnet
}

fn option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (pointer, len) = ((&raw const value).cast(), size_of_val(&value) as u32);
    // SAFETY: the value is an int, as each of the options asked for takes, and its length is told.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, pointer, len) };
    checked(set as isize).map(drop)
}

fn checked(result: isize) -> io::Result<isize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::leave_to_device;

    /// Ethernet, IPv4 from 10.77.2.1 to 10.77.2.2, TCP with 8 bytes of options and a byte of data.
    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 28 + 1];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[10, 77, 2, 1, 10, 77, 2, 2]);
        frame[34 + 12] = 7 << 4;
        frame
    }

    #[test]
    fn a_segment_leaves_its_checksum_to_the_device() {
        let mut frame = frame();
        let vnet = leave_to_device(&mut frame, None);
        assert_eq!(
            vnet,
            [&[1, 0, 0, 0, 0, 0][..], &34_u16.to_ne_bytes(), &16_u16.to_ne_bytes()].concat()[..]
        );
        // 0x0a4d + 0x0201 + 0x0a4d + 0x0202 + 6 + 29.
        assert_eq!(frame[50..52], 0x18c0_u16.to_be_bytes());
    }

    #[test]
    fn a_super_segment_tells_where_to_cut() {
        let vnet = leave_to_device(&mut frame(), NonZeroU16::new(1460));
        assert_eq!(vnet[..2], [1, 1]);
        assert_eq!(vnet[2..6], [62_u16.to_ne_bytes(), 1460_u16.to_ne_bytes()].concat());
    }

    #[test]
    fn other_frames_stay_as_they_are() {
        let mut frame = frame();
        frame[23] = 17;
        let before = frame.clone();
        assert_eq!(leave_to_device(&mut frame, None), [0; 10]);
        assert_eq!(frame, before);
    }
}
