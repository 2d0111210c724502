//! What travels along a path: rich pointers with their facts, in bursts (DESIGN.md §3; Streamline's pvec).

use std::ops::Range;
use std::rc::Rc;

use scoutline_base::{Address, DeviceId, Endpoint, Time};
use scoutline_ring::{Block, StreamMemory};

/// Room for every header that the outward stages put in front: Ethernet with a VLAN tag, IPv6 and TCP fit.
pub const HEAD_ROOM: usize = 128;

/// A burst of messages moving one way along a path.
pub type Burst = Vec<Message>;

/// Hands each packet to `each` and leaves the controls: for a stage at which packets end.
pub fn take_packets(burst: &mut Burst, mut each: impl FnMut(Message)) {
    burst.retain_mut(|message| {
        if let Body::Control(_) = message.body {
            return true;
        }
        each(std::mem::take(message));
        false
    });
}

/// One unit of data on a path.
///
/// Inward (device to program) the packet is `body` and stages move its start past the header that they own.
/// Outward (program to device) stages put headers in front in `head`, innermost first, and never touch the body.
#[derive(Debug, Default)]
pub struct Message {
    /// Headers written so far, outward only.
    pub head: Head,
    /// The data itself.
    pub body: Body,
    /// What stages and device know about it.
    pub facts: Facts,
}

/// The data of a message.
#[derive(Default)]
pub enum Body {
    /// No data (a pure acknowledgment, say).
    #[default]
    Empty,
    /// `range` of a block: a received packet, or one that we built.
    Block {
        /// The memory.
        block: Block,
        /// The part that is still to be processed.
        range: Range<u32>,
        /// What follows it, and lies elsewhere.
        tail: Option<Box<Tail>>,
    },
    /// Bytes of the path's outgoing stream, in the socket's send ring; the device reads them there.
    Stream {
        /// Positions in the stream.
        range: Range<u64>,
        /// The ring. Stages leave it `None`; the engine sets it when the message leaves the path.
        memory: Option<Rc<dyn StreamMemory>>,
    },
    /// No packet: one end of the path tells the other something.
    Control(Control),
}

/// The end of a received packet that stays where it is until it is stored: one copy fewer. Stages that want the packet in
/// one piece settle it first ([`Message::settle`]).
pub struct Tail {
    /// Positions in the sender's stream, or in what a device holds of the packet.
    pub range: Range<u64>,
    /// The sender's ring, where they stand until they are acknowledged, or the device's queue, out of which they are copied
    /// once.
    pub memory: Rc<dyn StreamMemory>,
}

impl Tail {
    /// How many bytes there are.
    #[expect(clippy::len_without_is_empty, reason = "a tail without bytes is none")]
    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl Body {
    /// A packet in one piece.
    pub fn block(block: Block, range: Range<u32>) -> Body {
        Body::Block { block, range, tail: None }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::Empty => write!(f, "Empty"),
            Body::Block { range, .. } => write!(f, "Block({range:?})"),
            Body::Stream { range, .. } => write!(f, "Stream({range:?})"),
            Body::Control(control) => write!(f, "Control({control:?})"),
        }
    }
}

/// What the two ends of a path tell each other, in order with the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    // Outward: the program's side to the protocol.
    /// The program has taken the incoming stream up to this position.
    Consumed(u64),
    /// The program has put the outgoing stream in place up to this position.
    Written(u64),
    /// The program holds back what fills no segment (TCP_CORK, MSG_MORE).
    Held {
        /// From this position on; `None`: nothing any more.
        from: Option<u64>,
        /// Calls have said so, not the socket: until something is acknowledged.
        by_call: bool,
        /// The last call has said so, whatever the socket does.
        unfinished: bool,
    },
    /// What the program has written up to this position is urgent (MSG_OOB).
    Urge(u64),
    /// The receive ring has grown to so many bytes.
    ReceiveBuffer(u32),
    /// The send ring has so many bytes, and they are all written.
    SendRing(u32),
    /// No more will be written (`shutdown(SHUT_WR)`).
    Shutdown,
    /// No more will be read (`shutdown(SHUT_RD)`).
    ShutdownRead,
    /// The program closed the socket.
    Close,
    /// The program died or asked for a reset.
    Abort,
    /// Nagle's algorithm off or on.
    NoDelay(bool),
    /// What the program set for the transport.
    Tune(Tuning),
    /// What the program said of network headers, see [`HeaderWishes::of_families`].
    Headers(u64),
    /// Keepalive probes: `None` is off; else idle and interval in seconds, and the count.
    KeepAlive(Option<(u32, u32, u32)>),

    // Inward: the protocol to the program's side.
    /// The handshake is complete.
    Connected,
    /// The incoming stream is complete up to this position (data was stored before).
    Readable(u64),
    /// The peer has acknowledged the outgoing stream up to this position.
    Acknowledged(u64),
    /// The byte at this position of the incoming stream is urgent. It may come later.
    Urgent(u64),
    /// How far the outgoing stream has been sent; only where what is unsent has a bound (TCP_NOTSENT_LOWAT).
    Sent(Sent),
    /// With a receive ring of so many bytes the program's reading does not limit the flow.
    NeedReceive(u32),
    /// With a send ring of so many bytes the program's writing does not limit the flow.
    NeedSend(u32),
    /// The peer will send no more.
    PeerFinished,
    /// The path failed; a Linux errno.
    Failed(i32),
    /// An ICMP error came that the connection outlives (RFC 5927 §5.2); a Linux errno, for programs that ask for such. 0: the
    /// peer was heard of since.
    Hint(i32),
    /// An ICMP error concerns this flow: type and code as ICMP for IPv4 has them (RFC 792), also where ICMPv6 told. The transport stage decides what it means.
    Unreachable(u8, u8),
    /// An ICMP message about a datagram that went out on this path, with all that a program may ask of it.
    Told(Box<Told>),
    /// As `Unreachable`, about the segment with this sequence number (RFC 5927 §4.1: a guess will not know one).
    UnreachableSegment(u8, u8, u32),
    /// A packet of this flow was dropped as too long for a link: its MTU (0: not told), and the sequence number that is
    /// quoted (RFC 1191).
    TooLong(u16, u32),
    /// The protocol needs this path no longer.
    Closed,
}

/// What an ICMP message, or the lack of a neighbour, says of a datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What it means to a program: a Linux errno.
    pub errno: i32,
    /// A program that asks for no details is told, too.
    pub fatal: bool,
    /// Type and code as they stood in the message.
    pub kind: u8,
    /// See `kind`.
    pub code: u8,
    /// The MTU of the next link, for a datagram that was too long; 0 else.
    pub mtu: u32,
    /// Who sent the message.
    pub from: Address,
    /// Where the datagram was to go.
    pub to: Endpoint,
    /// What the message quotes of the datagram's data.
    pub quoted: Vec<u8>,
}

/// How far an outgoing stream has been sent, where what is written and not sent has a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Position in the stream.
    pub position: u64,
    /// Bytes: the program is to write more when twice what is unsent is less than this; 0: there is no bound any more.
    pub low_water: u32,
    /// Bytes that may be unsent at most: the bound, as many times as it takes what leaves as one.
    pub most: u32,
}

/// Settings of the transport that a program may change; the default leaves all as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Congestion control, by the number that the protocol gave it, plus one; 0: as configured.
    pub congestion: u8,
    /// The largest segment, in bytes, as the program counts it; 0: what the link takes. Before the connection begins.
    pub max_segment: u16,
    /// Give up when data stays unacknowledged for so long, in milliseconds; 0: as configured.
    pub user_timeout_ms: u32,
    /// The most bytes a second; 0: no limit. All bits set: none either, but a program has said so. See
    /// [`Tuning::most_paced`].
    pub max_pacing_rate: u64,
    /// Acknowledge at once from now on (1), or not (2); 0: not said. Changes when it is said again.
    pub quick_ack: u8,
    /// How often `quick_ack` was said.
    pub quick_ack_said: u8,
    /// The program writes while less than this is unsent, in bytes, and so wants to hear what is sent; 0: as configured;
    /// 2³² - 1: there is no bound (Linux: `tcp_notsent_lowat`).
    pub unsent_low_water: u32,
    /// The most that the peer is offered, in bytes; 0: as much as there is room for.
    pub window_clamp: u32,
    /// So much may wait to be read, in bytes, where the program has said so of a connection, or a listening socket
    /// (SO_RCVBUF); 0: what there is room for.
    pub receive_most: u32,
    /// How often a SYN, or a SYN-ACK, goes again; 0: as configured.
    pub syn_count: u8,
    /// Seconds in FIN-WAIT-2 once the program has closed; 0: as configured; below: none.
    pub orphan_wait_s: i8,
    /// Linux's number of the interface by which all comes and goes; 0: any. Whoever makes its paths sees to that.
    pub device: u32,
    /// A listening socket wants the connections that live on this core, plus one (SO_INCOMING_CPU); 0: any. Whoever makes
    /// its paths sees to that.
    pub incoming_cpu: u32,
}

impl Tuning {
    /// The most bytes a second; `None`: no limit.
    #[must_use]
    pub const fn most_paced(&self) -> Option<u64> {
        match self.max_pacing_rate {
            0 | u64::MAX => None,
            rate => Some(rate),
        }
    }
}

/// What a program may say of the network headers of its packets; the default leaves all to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderWishes {
    /// Type of service or traffic class; its lowest two bits, ECN's, are the transport's.
    pub tos: u8,
    /// Hops that packets may go; 0: as many as the host gives.
    pub hop_limit: u8,
    /// IPv4: routers may fragment them.
    pub divisible: bool,
    /// Inward: packets with fewer hops left are dropped (RFC 5082).
    pub least_hops: u8,
}

impl HeaderWishes {
    /// From a number, the type of service, the hops << 8, 1 << 16 if divisible, and the least hops inward << 24; any
    /// gives wishes.
    pub fn from_bits(bits: u64) -> HeaderWishes {
        HeaderWishes {
            tos: bits as u8 & !0b11,
            hop_limit: (bits >> 8) as u8,
            divisible: bits >> 16 & 1 != 0,
            least_hops: (bits >> 24) as u8,
        }
    }

    /// Those over IPv4 and IPv6, of which the upper half of the number tells.
    pub fn of_families(bits: u64) -> [HeaderWishes; 2] {
        [bits, bits >> 32].map(HeaderWishes::from_bits)
    }

    /// Puts them into the facts of a message that leaves; what the transport has said of ECN stays.
    #[inline]
    pub fn apply(self, facts: &mut Facts) {
        facts.tos |= self.tos;
        facts.hop_limit = self.hop_limit;
        facts.divisible = self.divisible;
    }
}

/// Header bytes, written from the back so that each stage prepends.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; HEAD_ROOM],
    start: u8,
}

impl Default for Head {
    fn default() -> Self {
        Head { bytes: [0; HEAD_ROOM], start: HEAD_ROOM as u8 }
    }
}

impl Head {
    /// Makes room for `len` bytes in front and gives them to be written.
    ///
    /// # Panics
    /// When the headers of a path exceed [`HEAD_ROOM`]: a fault of the module graph, not of a packet.
    #[inline]
    pub fn prepend(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.start as usize, "headers exceed HEAD_ROOM");
        let end = self.start as usize;
        self.start -= len as u8;
        &mut self.bytes[end - len..end]
    }

    /// The headers so far, outermost first.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    /// The headers so far, to be completed (a checksum, say).
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start as usize..]
    }
}

/// What is known about a message besides its bytes.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Where it came from or shall go.
    pub device: DeviceId,
    /// When it arrived.
    pub arrival: Time,
    /// State of its transport checksum.
    pub checksum: Checksum,
    /// Set on a super-segment: how it is to be cut, or was put together.
    pub segmentation: Option<Segmentation>,
    /// Set by the link stage inward: the sender's link address.
    pub link_source: [u8; 6],
    /// Set by the network stage: who sent it, and to whom. Outward, read by it where the path does not fix them.
    pub source: Option<Address>,
    /// See `source`.
    pub destination: Option<Address>,
    /// Transport ports (source, destination), where a datagram path needs them per message.
    pub ports: Option<(u16, u16)>,
    /// Type of service octet: DSCP and ECN.
    pub tos: u8,
    /// The hops that it has left (TTL). Outward 0: as many as the host gives.
    pub hop_limit: u8,
    /// Outward, IPv4: no router may fragment it.
    pub dont_fragment: bool,
    /// Outward, IPv4: routers may fragment it, though it is a transport's, which fits what it sends to the way.
    pub divisible: bool,
    /// Outward, IPv6: if it has to be cut, into packets no longer than this; 0: as the way carries.
    pub most: u16,
    /// Outward: Linux's number of the interface by which it is to leave, where its destination does not say; 0: any.
    pub scope: u32,
    /// Outward, to a group or to everybody: who gets it.
    pub reach: Reach,
    /// Outward: nobody waits for it. However important its path, it leaves with what leaves next.
    pub can_wait: bool,
    /// For stream data moving inward: the position in the stream of the first byte of the body.
    pub stream_position: u64,
}

/// Who gets a datagram to a group or to everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Who is on the link, and members on this machine.
    #[default]
    All,
    /// Who is on the link (IP_MULTICAST_LOOP off).
    Link,
    /// Members on this machine (IP_MULTICAST_TTL 0).
    Machine,
}

/// What is known of the transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Inward: the stage must verify it.
    #[default]
    Unverified,
    /// Inward: hardware, or a trusted local sender (veth, tap), vouches for it.
    Verified,
    /// Outward: the field holds the pseudo-header sum and the device completes it. `start` counts from the first
    /// byte of the frame, `offset` from `start` (as in virtio_net_hdr).
    Partial {
        /// Where summing begins.
        start: u16,
        /// Where the field stands, from `start`.
        offset: u16,
    },
    /// Outward: the packet is complete.
    Complete,
}

/// How a super-segment relates to packets on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Which protocol cuts it.
    pub kind: SegmentationKind,
    /// Transport payload bytes of each packet on the wire, the last excepted.
    pub size: u16,
    /// Length of all headers in front of the payload, where known (0 else).
    pub header_len: u16,
}

/// The protocols whose packets devices cut and merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP (USO).
    Udp,
}

impl Message {
    /// An incoming packet.
    pub fn received(block: Block, range: Range<u32>, facts: Facts) -> Message {
        Message { head: Head::default(), body: Body::block(block, range), facts }
    }

    /// A note from one end of the path to the other.
    pub fn control(control: Control) -> Message {
        Message { body: Body::Control(control), ..Message::default() }
    }

    /// The unprocessed bytes of a block body, without its tail; empty for every other body.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Block { block, range, .. } => &block[range.start as usize..range.end as usize],
            _ => &[],
        }
    }

    /// Moves the start of the body past `len` bytes of header.
    ///
    /// # Panics
    /// When there are fewer bytes: callers parse before they advance.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        if let Body::Block { range, tail, .. } = &mut self.body {
            let here = (len as u32).min(range.end - range.start);
            range.start += here;
            let behind = len - here as usize;
            if behind > 0 {
                let tail = tail.as_mut().filter(|tail| behind <= tail.len()).expect("advanced past the end");
                tail.range.start += behind as u64;
            }
        }
    }

    /// Cuts the body to `len` bytes (link padding goes).
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if let Body::Block { range, tail, .. } = &mut self.body {
            let here = (range.end - range.start) as usize;
            match tail {
                Some(rest) if len > here => {
                    rest.range.end = rest.range.end.min(rest.range.start + (len - here) as u64);
                }
                _ => *tail = None,
            }
            range.end = range.end.min(range.start.saturating_add(len as u32));
        }
    }

    /// What follows the bytes of the block, and lies elsewhere.
    #[inline]
    pub fn tail(&self) -> Option<&Tail> {
        match &self.body {
            Body::Block { tail, .. } => tail.as_deref(),
            _ => None,
        }
    }

    /// Brings the packet into one piece, with what stood before the unprocessed bytes. False: what lay elsewhere is lost,
    /// and the packet is cut short.
    #[inline]
    pub fn settle(&mut self) -> bool {
        self.tail().is_none() || self.bring_together()
    }

    #[cold]
    fn bring_together(&mut self) -> bool {
        let Body::Block { block, range, tail } = &mut self.body else { return true };
        let Some(tail) = tail.take() else { return true };
        let mut whole = vec![0; range.end as usize + tail.len()];
        let (front, rest) = whole.split_at_mut(range.end as usize);
        scoutline_ring::copy_slice(&block[..range.end as usize], front);
        if !scoutline_ring::gather(&*tail.memory, tail.range, rest) {
            return false;
        }
        range.end = whole.len() as u32;
        *block = Block::from_bytes(whole.into_boxed_slice());
        true
    }

    /// Bytes that it comes to on the wire, link headers included: a super-segment's headers count once for each packet
    /// that it is cut into. For messages that have all of their headers.
    #[inline]
    pub fn wire_len(&self) -> u32 {
        let (head, body) = (self.head.as_slice().len(), self.body_len());
        let Some(how) = self.facts.segmentation else { return (head + body) as u32 };
        // A packet that is passed on has its headers in the body.
        let headers = head.max(usize::from(how.header_len));
        let payload = (head + body).saturating_sub(headers);
        let packets = payload.div_ceil(usize::from(how.size.max(1))).max(1);
        (payload + packets * headers) as u32
    }

    /// Bytes of data, headers in `head` not counted.
    #[inline]
    pub fn body_len(&self) -> usize {
        match &self.body {
            Body::Block { range, tail, .. } => {
                (range.end - range.start) as usize + tail.as_ref().map_or(0, |tail| tail.len())
            }
            Body::Stream { range, .. } => (range.end - range.start) as usize,
            Body::Empty | Body::Control(_) => 0,
        }
    }
}
