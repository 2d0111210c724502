//! Taking tags off.

use scoutline_path::{Body, Message};

use crate::vlan::TAG_LEN;

/// The type of a tagged frame.
pub(super) const TYPE: [u8; 2] = [0x81, 0x00];
/// Both link addresses, which stand in front of a tag.
pub(super) const ADDRESSES_LEN: usize = 12;
/// Link header and tag.
const TAGGED_HEADER_LEN: usize = 18;

/// What a tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Which network; 0: the frame only has a priority (802.1Q §9.6, table 9-2).
    pub vlan: u16,
    /// The priority code point.
    pub priority: u8,
}

/// The tag of a frame that has one.
#[inline]
pub fn tag_of(frame: &[u8]) -> Option<Tag> {
    let head: &[u8; TAGGED_HEADER_LEN] = frame.first_chunk()?;
    if head[12..14] != TYPE {
        return None;
    }
    let tci = u16::from_be_bytes([head[14], head[15]]);
    Some(Tag { vlan: tci & 0x0fff, priority: (tci >> 13) as u8 })
}

/// Takes the tag off a received frame that has one.
pub fn untag(message: &mut Message) {
    if let Body::Block { block, range, .. } = &mut message.body {
        let start = range.start as usize;
        block.copy_within(start..start + ADDRESSES_LEN, start + TAG_LEN);
        range.start += TAG_LEN as u32;
    }
    if let Some(how) = &mut message.facts.segmentation {
        how.header_len = how.header_len.saturating_sub(TAG_LEN as u16);
    }
}
