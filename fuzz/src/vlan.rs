//! VLAN tags (IEEE 802.1Q §9.6): what is taken off was there, nothing else changes, and what is put on comes off again.

use scoutline_base::{DeviceId, Time};
use scoutline_device::Partner as _;
use scoutline_device::memory::{WireConfig, wire};
use scoutline_device::vlan::{Config, TAG_LEN, Tag, open, share, tag_of, untag};
use scoutline_path::{Body, Burst, Facts, Message, Segmentation, SegmentationKind};
use scoutline_ring::Block;

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("vlan", vlan)];

/// Bytes of both link addresses, and of a link header.
const ADDRESSES_LEN: usize = 12;
const HEADER_LEN: usize = 14;
/// What stands in a block around a frame.
const AROUND: u8 = 0xa5;
/// Tags within tags: no more of them are looked for.
const MOST_TAGS: usize = 4;

/// A frame somewhere in a block: its tags are read and taken off; then it is sent on a network with tags and read again.
pub fn vlan(data: &[u8]) {
    let mut choice = Bytes::new(data);
    let (before, number, priority) = (choice.u8() & 0x3f, choice.u16() & 0x0fff, choice.u8() & 7);
    let header_len = choice.u16();
    let frame = choice.take(data.len());
    take_off(frame, usize::from(before), header_len);
    if frame.len() >= HEADER_LEN {
        put_on(frame, number, priority);
    }
}

/// The tag that a frame has, by the standard's words.
fn tag_in(frame: &[u8]) -> Option<Tag> {
    let is_tagged = frame.len() >= HEADER_LEN + TAG_LEN && frame[12] == 0x81 && frame[13] == 0;
    is_tagged.then(|| Tag {
        vlan: u16::from(frame[14] & 0xf) << 8 | u16::from(frame[15]),
        priority: frame[14] >> 5,
    })
}

fn take_off(frame: &[u8], before: usize, header_len: u16) {
    let mut bytes = vec![AROUND; before];
    bytes.extend_from_slice(frame);
    bytes.extend([AROUND; 16]);
    let range = before as u32..(before + frame.len()) as u32;
    let segmentation = Some(Segmentation { kind: SegmentationKind::Tcp4, size: 1000, header_len });
    let facts = Facts { segmentation, ..Facts::default() };
    let mut message = Message::received(Block::from_bytes(bytes.into()), range, facts);
    let mut expected = frame.to_vec();
    let mut header_len = header_len;
    for _ in 0..MOST_TAGS {
        assert_eq!(tag_of(message.bytes()), tag_in(&expected));
        if tag_of(message.bytes()).is_none() {
            break;
        }
        untag(&mut message);
        expected.drain(ADDRESSES_LEN..ADDRESSES_LEN + TAG_LEN);
        header_len = header_len.saturating_sub(TAG_LEN as u16);
        assert_eq!(message.bytes(), expected);
        assert_eq!(message.facts.segmentation.map(|how| how.header_len), Some(header_len));
    }
    let Body::Block { block, range, .. } = &message.body else { panic!("it stays a block") };
    assert!(block[..before].iter().all(|byte| *byte == AROUND), "what stands in front of it is another's");
    assert!(block[range.end as usize..].iter().all(|byte| *byte == AROUND), "and what stands behind it");
}

fn put_on(frame: &[u8], number: u16, priority: u8) {
    let whole = WireConfig { whole: true, ..WireConfig::default() };
    let (parent, mut other) = wire(1, whole);
    let shared = share(Box::new(parent));
    let config =
        Config { name: "eth0.1".into(), parent: DeviceId(0), vlan: number, priority, by_kernel: true };
    let mut network = open(&config, &shared);
    let payload = &frame[HEADER_LEN..];
    let mut message =
        Message::received(Block::from_bytes(payload.into()), 0..payload.len() as u32, Facts::default());
    message.head.prepend(HEADER_LEN).copy_from_slice(&frame[..HEADER_LEN]);
    let sent = network.push(&mut vec![message]).expect("an empty wire takes it");
    let mut came = Burst::new();
    other.pull(&mut came, 2, Time::from_millis(1000)).expect("memory");
    assert_eq!((sent, came.len()), (1, 1));
    // A frame that is of a tagged type already is no path's: it is left as it is.
    if frame[12..HEADER_LEN] != [0x81, 0] {
        assert_eq!(tag_of(came[0].bytes()), Some(Tag { vlan: number, priority }));
        untag(&mut came[0]);
    }
    assert_eq!(came[0].bytes(), frame);
}
