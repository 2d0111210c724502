//! Putting packets on the link.

use scoutline_path::{Body, Burst, Checksum, Facts, Message};
use scoutline_ring::Block;

use crate::local::LocalPartner;
use crate::local::open::MAX_FRAME;
use crate::partner::Partner;
use crate::software;

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
        let Some(block) = assemble(link, message, len) else {
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
        link.queue.push_back(Message::received(block, 0..len as u32, facts));
        link.queued += len;
        link.counters.tx_packets += 1;
        link.counters.tx_bytes += len as u64;
        link.counters.tx_copied_bytes += len as u64;
    }
    burst.len()
}

/// The frame in one piece; `None` for what is no packet.
fn assemble(link: &LocalPartner, message: &Message, len: usize) -> Option<Block> {
    let pool = if len <= link.short.block_len() { &link.short } else { &link.long };
    let mut block = pool.take().unwrap_or_else(|| Block::from_bytes(vec![0; len].into_boxed_slice()));
    let head = message.head.as_slice();
    let (first, mut rest) = block[..len].split_at_mut(head.len());
    first.copy_from_slice(head);
    match &message.body {
        Body::Empty => {}
        Body::Block { .. } => scoutline_ring::copy_slice(message.bytes(), rest),
        Body::Stream { range, memory: Some(memory) } => {
            for span in memory.spans(range.clone()).iter() {
                let (part, behind) = rest.split_at_mut_checked(span.len)?;
                // SAFETY: `memory`, which the message holds, keeps its spans mapped.
                unsafe { span.copy_to(part) };
                rest = behind;
            }
            // What stood in the block before was for somebody else.
            if !rest.is_empty() {
                return None;
            }
        }
        Body::Stream { memory: None, .. } | Body::Control(_) => return None,
    }
    Some(block)
}
