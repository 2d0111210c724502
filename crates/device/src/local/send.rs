//! Putting packets on the link.

use std::rc::Rc;

use scoutline_path::{Body, Burst, Checksum, Facts, Message, Tail};
use scoutline_ring::Block;

use crate::local::LocalPartner;
use crate::local::open::MAX_FRAME;
use crate::partner::Partner;
use crate::software;

/// Payload so long stays in its sender's ring until it is stored.
const LONG_PAYLOAD: u64 = 4096;

/// Sends from the front; says how many left the burst.
pub(super) fn push(link: &mut LocalPartner, burst: &Burst) -> usize {
    for (done, message) in burst.iter().enumerate() {
        if link.room() == 0 {
            link.counters.tx_full += 1;
            return done;
        }
        let len = software::frame_len(message);
        if len > MAX_FRAME {
            link.counters.tx_too_large += 1;
            continue;
        }
        let body = match &message.body {
            Body::Stream { range, memory: Some(memory) } if range.end - range.start >= LONG_PAYLOAD => {
                let tail = Tail { range: range.clone(), memory: Rc::clone(memory) };
                (message.head.as_slice().len(), Some(Box::new(tail)))
            }
            _ => (len, None),
        };
        let Some(block) = assemble(link, message, body.0) else {
            link.counters.tx_malformed += 1;
            continue;
        };
        let checksum = match message.facts.checksum {
            // The field holds the pseudo-header's sum; what it covers has never left our memory.
            Checksum::Partial { .. } => Checksum::Verified,
            _ => Checksum::Unverified,
        };
        let segmentation = message.facts.segmentation;
        let facts = Facts { device: link.device, checksum, segmentation, ..Facts::default() };
        let (copied, tail) = body;
        let mut packet = Message::received(block, 0..copied as u32, facts);
        if let Body::Block { tail: of_packet, .. } = &mut packet.body {
            *of_packet = tail;
        }
        link.queue.push_back(packet);
        link.queued += len;
        link.counters.tx_packets += 1;
        link.counters.tx_bytes += len as u64;
        link.counters.tx_copied_bytes += copied as u64;
    }
    burst.len()
}

/// The first `len` bytes of the frame in one piece: all of it, or its headers. `None` for what is no packet.
fn assemble(link: &LocalPartner, message: &Message, len: usize) -> Option<Block> {
    let pool = if len <= link.short.block_len() { &link.short } else { &link.long };
    let mut block = pool.take().unwrap_or_else(|| Block::from_bytes(vec![0; len].into_boxed_slice()));
    let head = message.head.as_slice();
    let (first, rest) = block[..len].split_at_mut(head.len());
    first.copy_from_slice(head);
    match &message.body {
        Body::Empty => {}
        Body::Stream { memory: Some(_), .. } if rest.is_empty() => {}
        Body::Block { .. } => scoutline_ring::copy_slice(message.bytes(), rest),
        Body::Stream { range, memory: Some(memory) } => {
            // What stood in the block before was for somebody else.
            if !scoutline_ring::gather(&**memory, range.clone(), rest) {
                return None;
            }
        }
        Body::Stream { memory: None, .. } | Body::Control(_) => return None,
    }
    Some(block)
}
