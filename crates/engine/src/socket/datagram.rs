//! The SOCKET stage of a UDP path: datagrams as records in the two rings.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::datagram::{HEADER_LEN, Record};
use scoutline_abi::layout::{slot_request, slot_state};
use scoutline_base::DeviceId;
use scoutline_path::{
    Attributes, Body, Burst, Context, Control, CreateError, DropReason, Effect, Facts, Message, Name, Stage,
};
use scoutline_ring::{Block, Pool};

use super::SocketEnd;
use super::end::Written;
use super::stream::set_addresses;
use crate::routing::Routing;

/// The longest UDP payload, over IPv6: the protocol knows what IPv4 takes.
const MAX_PAYLOAD: u32 = scoutline_proto::udp::MAX_PAYLOAD6 as u32;

/// What the headers of a datagram come to on the wire: Ethernet, IPv4, UDP.
const HEADERS_LEN: u64 = 14 + 20 + 8;

/// Moves datagrams between a UDP stage and the rings of a socket.
pub(crate) struct DatagramStage {
    end: Rc<SocketEnd>,
    pool: Rc<Pool>,
    sends: Sends,
}

/// What of a socket's datagrams a path sends.
enum Sends {
    /// All: it has one peer.
    All,
    /// Those for its own device; the others it gives to the socket's paths there.
    Own { routing: Rc<Routing>, device: DeviceId },
    /// What it is given.
    Given,
}

impl DatagramStage {
    /// The stage of a UDP path with one peer.
    pub(crate) fn new(end: Rc<SocketEnd>, pool: Rc<Pool>) -> DatagramStage {
        DatagramStage { end, pool, sends: Sends::All }
    }

    /// The stage of a path for many peers: datagrams go by whichever device leads to theirs.
    pub(crate) fn choosing(self, routing: Rc<Routing>, device: DeviceId) -> DatagramStage {
        DatagramStage { sends: Sends::Own { routing, device }, ..self }
    }

    /// The stage of a path beside the one that reads the socket's ring.
    pub(crate) fn beside(self) -> DatagramStage {
        DatagramStage { sends: Sends::Given, ..self }
    }

    /// True for a datagram that leaves by another device. Where no way leads the protocol says so.
    fn leaves_elsewhere(&self, message: &Message) -> bool {
        let Sends::Own { routing, device } = &self.sends else { return false };
        let way = message.facts.destination.and_then(|to| routing.towards(to, 0).ok());
        way.is_some_and(|net| net != usize::from(device.0))
    }

    /// The socket.
    pub(crate) fn end(&self) -> &Rc<SocketEnd> {
        &self.end
    }

    /// Stores one datagram; false when the ring has no room.
    fn receive(&self, message: &Message) -> bool {
        let end = &self.end;
        let bytes = message.bytes();
        let tail = end.received.get();
        let used = tail - end.read_consumed();
        let needed = Record::ring_len(bytes.len());
        if used + needed > u64::from(end.receive_size()) {
            return false;
        }
        let record = Record {
            len: bytes.len() as u32,
            address: message.facts.source.unwrap_or_default(),
            port: message.facts.ports.map_or(0, |(source, _)| source),
        };
        end.store(tail, &record.to_bytes());
        end.store(tail + HEADER_LEN as u64, bytes);
        end.publish_received(tail + needed);
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
        if record.len > MAX_PAYLOAD || at + needed > written {
            // The program scribbled in its ring: what it holds is lost, nothing else.
            end.freed.set(written);
            return None;
        }
        let mut block = self.block(record.len);
        end.load(at + HEADER_LEN as u64, &mut block[..record.len as usize]);
        end.freed.set(at + needed);
        let facts = if record.port == 0 {
            Facts::default()
        } else {
            let local_port = end.shared().local_port.load(Ordering::Relaxed) as u16;
            Facts {
                destination: Some(record.address),
                ports: Some((local_port, record.port)),
                ..Facts::default()
            }
        };
        Some(Message { body: Body::Block { block, range: 0..record.len }, facts, ..Message::default() })
    }

    fn block(&self, len: u32) -> Block {
        if len as usize <= self.pool.block_len()
            && let Some(block) = self.pool.take()
        {
            return block;
        }
        Block::from_bytes(vec![0; len as usize].into_boxed_slice())
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
        let mut arrived = false;
        for message in burst.drain(..) {
            match &message.body {
                Body::Block { .. } => {
                    if self.receive(&message) {
                        arrived = true;
                    } else {
                        context.drop_message(message, DropReason::ReceiveBufferFull);
                    }
                }
                Body::Control(Control::Failed(errno)) => {
                    // RFC 1122 §4.1.3.3: errors reach the program; a datagram socket goes on afterwards.
                    self.end.shared().error.store(*errno, Ordering::Release);
                    arrived = true;
                }
                Body::Control(_) | Body::Empty | Body::Stream { .. } => {}
            }
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
                    made += message.body_len() as u64 + HEADERS_LEN;
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
