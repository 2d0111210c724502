//! The SOCKET stage of a UDP path: datagrams as records in the two rings.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scoutline_abi::datagram::{ErrorRecord, HEADER_LEN, Record, origin, record_flag};
use scoutline_abi::layout::{datagram_flag, slot_request, slot_state};
use scoutline_base::Time;
use scoutline_path::{
    Attributes, Body, Burst, Context, Control, CreateError, DropReason, Effect, Facts, Message, Name, Reach,
    Segmentation, SegmentationKind, Stage, Told,
};
use scoutline_ring::{Block, Pool};
use scoutline_wire::ipv6;

use super::SocketEnd;
use super::module::Outlet;
use super::stream::set_addresses;
use super::written::Written;

/// The longest UDP payload, over IPv6: the protocol knows what IPv4 takes.
const MAX_PAYLOAD: u32 = scoutline_proto::udp::MAX_PAYLOAD6 as u32;

/// What the headers of a datagram come to on the wire: Ethernet, IPv4, UDP.
const HEADERS_LEN: u64 = 14 + 20 + 8;

/// Packets that one record may be cut into: UDP_MAX_SEGMENTS of Linux.
const MAX_SEGMENTS: usize = 128;
/// Datagrams that are gathered into one record at most: what Linux's GRO takes.
const MAX_GATHERED: usize = 64;
/// The least MTU that is believed of an IPv4 router: Linux's `ip_rt_min_pmtu`.
const MIN_MTU: u32 = 552;

/// Moves datagrams between a UDP stage and the rings of a socket.
pub(crate) struct DatagramStage {
    end: Rc<SocketEnd>,
    pool: Rc<Pool>,
    outlet: Rc<Outlet>,
    sends: Sends,
    unread: Unread,
}

/// How long its program has left a full receive ring unread.
#[derive(Default)]
struct Unread {
    /// How far it had read.
    consumed: u64,
    /// The device was asked to drop what comes, for so long, until then.
    span: Duration,
    until: Time,
}

/// A program takes longer than this to read a full ring, for each small datagram that it may hold.
const READ_IN: Duration = Duration::from_nanos(200);
const SMALL_RECORD: u32 = 128;
/// As long as nothing at all is read the device drops for twice as long each time, but no longer than this: who reads
/// again soon hears of his peer again.
const LONGEST_UNREAD: Duration = Duration::from_millis(10);

/// What of a socket's datagrams a path sends.
enum Sends {
    /// Those for its own device; the others it gives to the socket's paths there.
    Own,
    /// What it is given.
    Given,
}

/// A record that is being written into the receive ring.
struct Open {
    at: u64,
    record: Record,
    /// Datagrams in it.
    count: usize,
    /// What it holds ends with one that is shorter than the first: nothing may follow it.
    ended: bool,
}

impl DatagramStage {
    /// The stage of a UDP path: datagrams go by whichever device leads to their peers.
    pub(crate) fn new(end: Rc<SocketEnd>, pool: Rc<Pool>, outlet: Rc<Outlet>) -> DatagramStage {
        DatagramStage { end, pool, outlet, sends: Sends::Own, unread: Unread::default() }
    }

    /// The stage of a path beside the one that reads the socket's ring.
    pub(crate) fn beside(self) -> DatagramStage {
        DatagramStage { sends: Sends::Given, ..self }
    }

    /// True for a datagram that leaves by another device. Where no way leads the protocol says so.
    fn leaves_elsewhere(&self, message: &Message) -> bool {
        if matches!(self.sends, Sends::Given) {
            return false;
        }
        let Outlet { routing, device, .. } = &*self.outlet;
        if self.end.tuning.get().device != 0 {
            return false; // it has no other (SO_BINDTODEVICE)
        }
        let way = message.facts.destination.and_then(|to| routing.towards(to, message.facts.scope).ok());
        way.is_some_and(|net| net != usize::from(device.0))
    }

    /// The socket.
    pub(crate) fn end(&self) -> &Rc<SocketEnd> {
        &self.end
    }

    /// The socket is another one from now on, in the same state.
    pub(crate) fn set_end(&mut self, end: Rc<SocketEnd>) {
        self.end = end;
    }

    /// RFC 3376 §3.1: what goes to a group is for who is in it, or takes what others on this machine are in.
    fn wants(&self, facts: &Facts) -> bool {
        let (Some(group), Some(source)) = (facts.destination, facts.source) else { return true };
        if !group.is_multicast() {
            return true;
        }
        let own = if group.is_v4() { datagram_flag::OWN_GROUPS } else { datagram_flag::OWN_GROUPS6 };
        let all = self.end.shared().datagram_flags.load(Ordering::Relaxed) & own == 0;
        self.end.memberships.want(self.outlet.number, group, source, all)
    }

    /// A datagram of this machine's to a group that the socket is in, or to everybody.
    pub(crate) fn receive_looped(&self, message: &Message) {
        let mut open = None;
        if self.wants(&message.facts) && self.receive(message, self.gathers(), &mut open) {
            self.close_record(&mut open);
            self.end.signal();
        }
    }

    fn gathers(&self) -> bool {
        self.end.shared().datagram_flags.load(Ordering::Relaxed) & datagram_flag::GATHER != 0
    }

    /// Stores what one message brought: a datagram, or several that the device or the kernel has put together. They
    /// stay together only if the program wants that. `open` is the record that more may be put to. False when there was
    /// no room for all.
    fn receive(&self, message: &Message, gathers: bool, open: &mut Option<Open>) -> bool {
        let bytes = message.bytes();
        let size = message.facts.segmentation.map_or(0, |how| usize::from(how.size));
        if size == 0 || bytes.len() <= size {
            return self.receive_one(message, bytes, gathers, open);
        }
        let mut all = true;
        for piece in bytes.chunks(size) {
            all &= self.receive_one(message, piece, gathers, open);
        }
        all
    }

    fn receive_one(&self, message: &Message, bytes: &[u8], gathers: bool, open: &mut Option<Open>) -> bool {
        if let Some(current) = open {
            if self.join(current, message, bytes) {
                return true;
            }
            self.close_record(open);
        }
        let end = &self.end;
        let at = end.received.get();
        if !self.has_room(at, bytes.len()) {
            end.lost.set(end.lost.get().wrapping_add(1));
            return false;
        }
        let facts = &message.facts;
        let record = Record {
            len: bytes.len() as u32,
            address: facts.source.unwrap_or_default(),
            port: facts.ports.map_or(0, |(source, _)| source),
            tos: facts.tos,
            hop_limit: facts.hop_limit,
            interface: self.outlet.interface_of(facts.destination),
            own: facts.destination.unwrap_or_default(),
            arrival_ns: facts.arrival.as_nanos(),
            lost: end.lost.get(),
            ..Record::default()
        };
        end.store(at + HEADER_LEN as u64, bytes);
        *open = Some(Open { at, record, count: 1, ended: bytes.is_empty() });
        if !gathers {
            self.close_record(open);
        }
        true
    }

    /// Puts a datagram to a record, if it is one of the same series.
    fn join(&self, open: &mut Open, message: &Message, bytes: &[u8]) -> bool {
        let Open { at, record, count, ended } = open;
        let segment = if *count == 1 { record.len as usize } else { usize::from(record.segment) };
        let facts = &message.facts;
        let same = !*ended
            && *count < MAX_GATHERED
            && (1..=segment).contains(&bytes.len())
            && facts.source == Some(record.address)
            && facts.ports.is_some_and(|(source, _)| source == record.port)
            && facts.destination == Some(record.own)
            && (facts.tos, facts.hop_limit) == (record.tos, record.hop_limit);
        let len = record.len as usize + bytes.len();
        if !same || len > scoutline_proto::udp::MAX_PAYLOAD || !self.has_room(*at, len) {
            return false;
        }
        self.end.store(*at + HEADER_LEN as u64 + u64::from(record.len), bytes);
        record.len = len as u32;
        record.segment = segment as u16;
        *count += 1;
        *ended = bytes.len() < segment;
        true
    }

    fn has_room(&self, at: u64, len: usize) -> bool {
        let held = at - self.end.read_consumed();
        // SO_RCVBUF is said to be twice as much; as on Linux, the last one may go beyond it.
        let asked = u64::from(self.end.shared().asked_receive_buffer.load(Ordering::Relaxed));
        held + Record::ring_len(len) <= u64::from(self.end.receive_size()) && (asked == 0 || held < 2 * asked)
    }

    /// Shows a record to the program.
    fn close_record(&self, open: &mut Option<Open>) {
        if let Some(Open { at, record, .. }) = open.take() {
            self.end.store(at, &record.to_bytes());
            self.end.publish_received(at + Record::ring_len(record.len as usize));
        }
    }

    /// An ICMP message came, or a neighbour was not found: true when the program hears of it. As Linux's
    /// `__udp4_lib_err`: who asks for details hears of everything; else only a connected socket, and of what is final
    /// (RFC 1122 §4.1.3.3).
    fn on_told(&self, told: &Told) -> bool {
        let shared = self.end.shared();
        let connected = shared.state.load(Ordering::Relaxed) & slot_state::CONNECTED != 0;
        let v4 = told.to.address.is_v4();
        if told.mtu > 0 && connected {
            let least = if v4 { MIN_MTU } else { u32::from(ipv6::MIN_MTU) };
            let mtu = told.mtu.max(least).min(self.end.mtu.get());
            self.end.set_mtu(mtu);
        }
        let wanted = if v4 { datagram_flag::ERRORS } else { datagram_flag::ERRORS6 };
        let queued = shared.datagram_flags.load(Ordering::Relaxed) & wanted != 0;
        if queued {
            let error = ErrorRecord {
                errno: told.errno as u32,
                origin: if v4 { origin::ICMP } else { origin::ICMP6 },
                kind: told.kind,
                code: told.code,
                info: told.mtu,
                offender: told.from,
                address: told.to.address,
                port: told.to.port,
                interface: self.outlet.number,
                ..ErrorRecord::default()
            };
            self.end.queue_error(error, &told.quoted);
        } else if !connected || !told.fatal {
            return false;
        }
        shared.error.store(told.errno, Ordering::Release);
        true
    }

    /// Takes the next datagram of the send ring; `None` when there is none or what is there is nonsense.
    fn next_to_send(&self, written: u64) -> Option<Message> {
        let end = &self.end;
        let at = end.freed.get();
        if written - at < HEADER_LEN as u64 {
            return None;
        }
        let mut header = [0; HEADER_LEN];
        end.load(at, &mut header);
        let record = Record::from_bytes(header);
        let needed = Record::ring_len(record.len as usize);
        let segment = usize::from(record.segment);
        let too_many = segment > 0 && (record.len as usize).div_ceil(segment) > MAX_SEGMENTS;
        if record.len > MAX_PAYLOAD || at + needed > written || too_many {
            // The program scribbled in its ring: what it holds is lost, nothing else.
            end.freed.set(written);
            return None;
        }
        let mut block = self.block(record.len);
        end.load(at + HEADER_LEN as u64, &mut block[..record.len as usize]);
        end.freed.set(at + needed);
        let facts = self.facts_of(&record);
        Some(Message { body: Body::block(block, 0..record.len), facts, ..Message::default() })
    }

    /// What the program said of a datagram.
    fn facts_of(&self, record: &Record) -> Facts {
        let cut = record.segment > 0 && record.len > u32::from(record.segment);
        let local_port = self.end.shared().local_port.load(Ordering::Relaxed) as u16;
        let no_hops = record.flags & record_flag::HOP_LIMIT != 0 && record.hop_limit == 0;
        let to = (record.port != 0).then_some((record.address, (local_port, record.port)));
        Facts {
            destination: to.map(|(address, _)| address),
            ports: to.map(|(_, ports)| ports),
            source: Some(record.own).filter(|own| !own.is_unspecified()),
            tos: record.tos,
            hop_limit: if record.flags & record_flag::HOP_LIMIT == 0 { 0 } else { record.hop_limit },
            scope: record.interface,
            reach: match record.flags & record_flag::NO_LOOP {
                _ if no_hops => Reach::Machine,
                0 => Reach::All,
                _ => Reach::Link,
            },
            dont_fragment: record.flags & record_flag::DONT_FRAGMENT != 0,
            divisible: record.flags & record_flag::DIVISIBLE != 0,
            most: record.most,
            segmentation: cut.then_some(Segmentation {
                kind: SegmentationKind::Udp,
                size: record.segment,
                header_len: 0,
            }),
            ..Facts::default()
        }
    }

    fn block(&self, len: u32) -> Block {
        if len as usize <= self.pool.block_len()
            && let Some(block) = self.pool.take()
        {
            return block;
        }
        Block::from_bytes(vec![0; len as usize].into_boxed_slice())
    }

    /// Until when the device is to drop what finds the receive ring full.
    fn hold_until(&mut self, now: Time) -> Time {
        let Unread { consumed: before, span, until } = self.unread;
        if now < until {
            // Another flow, or what was on its way.
            return until;
        }
        let consumed = self.end.read_consumed();
        let again = consumed == before && !span.is_zero();
        let span = if again { 2 * span } else { READ_IN * (self.end.receive_size() / SMALL_RECORD) };
        let span = span.min(LONGEST_UNREAD);
        self.unread = Unread { consumed, span, until: now + span };
        self.unread.until
    }
}

impl Stage for DatagramStage {
    fn module(&self) -> &'static str {
        "SOCKET"
    }

    fn establish(&mut self, attributes: &mut Attributes) -> Result<(), CreateError> {
        if matches!(self.sends, Sends::Given) {
            return Ok(());
        }
        if let Some(local) = attributes.address(Name::Local) {
            let remote = attributes.address(Name::Remote);
            set_addresses(&self.end, local, remote.unwrap_or_default());
            self.end.add_state(slot_state::BOUND);
            if remote.is_some() {
                self.end.add_state(slot_state::CONNECTED);
            }
        }
        Ok(())
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        let (mut arrived, mut refused) = (false, None);
        let mut open = None;
        let gathers = self.gathers();
        for message in burst.drain(..) {
            match &message.body {
                Body::Block { .. } if !self.wants(&message.facts) => {
                    context.drop_message(message, DropReason::NotForUs);
                }
                Body::Block { .. } => {
                    // Of several together the first may have found room.
                    let before = self.end.received.get();
                    let room = self.receive(&message, gathers, &mut open);
                    arrived |= open.is_some() || self.end.received.get() != before;
                    if !room {
                        context.account.on_drop(DropReason::ReceiveBufferFull);
                        refused = Some(message);
                    }
                }
                Body::Control(Control::Told(told)) => arrived |= self.on_told(told),
                Body::Control(_) | Body::Empty | Body::Stream { .. } => {}
            }
        }
        self.close_record(&mut open);
        if let Some(message) = refused {
            let until = self.hold_until(context.now);
            context.effects.push(Effect::Full { message, until });
        }
        if arrived {
            self.end.signal();
            context.account.wakeups += self.end.wakeups.take();
        }
    }

    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        if matches!(self.sends, Sends::Given) {
            return;
        }
        let end = &self.end;
        let requests = end.shared().requests.load(Ordering::Acquire);
        if requests & slot_request::WAKE != 0 {
            end.shared().requests.fetch_and(!slot_request::WAKE, Ordering::AcqRel);
            end.signal();
        }
        let Written::To(written) = end.read_written() else {
            // Datagrams have no extents: a program that claims some has lost this socket.
            end.closed.set(true);
            context.effects.push(Effect::Destroy);
            return;
        };
        let mut made = 0;
        while end.freed.get() < written {
            if burst.len() >= context.transmit_room || made >= context.transmit_len {
                context.more = true;
                break;
            }
            match self.next_to_send(written) {
                Some(message) => {
                    let size = message.facts.segmentation.map_or(usize::MAX, |how| usize::from(how.size));
                    let packets = message.body_len().div_ceil(size).max(1) as u64;
                    made += message.body_len() as u64 + packets * HEADERS_LEN;
                    if self.leaves_elsewhere(&message) {
                        context.effects.push(Effect::Elsewhere(message));
                    } else {
                        burst.push(message);
                    }
                }
                None => break,
            }
        }
        if end.publish_freed(end.freed.get()) {
            end.signal();
        }
        // A closed socket still sends what it holds; what is no datagram is not waited for.
        let ends =
            requests & slot_request::ABORT != 0 || requests & slot_request::CLOSE != 0 && !context.more;
        if ends && !end.closed.replace(true) {
            context.effects.push(Effect::Destroy);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
