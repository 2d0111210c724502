//! What daemon, shim and programs tell each other: attach messages, datagram records, the words of stand-ins.

use scoutline_abi::{attach as attach_wire, datagram as record, stand_in as word};

use crate::bytes::{Bytes, Target};

/// The targets of this file.
pub const TARGETS: &[Target] = &[("attach", attach), ("datagram", datagram), ("stand_in", stand_in)];

/// A message on the attach socket.
pub fn attach(data: &[u8]) {
    let Some(message) = attach_wire::Message::from_bytes(data) else {
        assert_ne!(data.len(), attach_wire::MESSAGE_LEN);
        return;
    };
    let bytes = message.to_bytes();
    assert_eq!(attach_wire::Message::from_bytes(&bytes), Some(message));
    assert_eq!(bytes[..], data[..]);
    let name = message.name();
    assert!(name.chars().count() <= message.name.len());
    let named = attach_wire::Message::new(message.kind, message.value).named(name.as_bytes());
    assert!(named.name().is_char_boundary(0));
    if name.len() <= 80 {
        assert_eq!(named.name(), name);
    }
}

/// A datagram's record in a ring, and that of an error about one: any bytes are one, and what it says is written again.
pub fn datagram(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<{ record::HEADER_LEN }>() else { return };
    let header = record::Record::from_bytes(*bytes);
    let out = header.to_bytes();
    assert_eq!(record::Record::from_bytes(out), header);
    // The rest is padding.
    assert_eq!((&out[..15], &out[16..60]), (&bytes[..15], &bytes[16..60]));
    let (len, unit) = (record::Record::ring_len(header.len as usize), record::HEADER_LEN as u64);
    let least = u64::from(header.len) + unit;
    assert!(len.is_multiple_of(unit) && (least..least + unit).contains(&len));
    let Some(bytes) = data.first_chunk::<{ record::ERROR_HEADER_LEN }>() else { return };
    let error = record::ErrorRecord::from_bytes(*bytes);
    assert_eq!(record::ErrorRecord::from_bytes(error.to_bytes()), error);
    assert!(error.quoted_len as usize <= record::MAX_QUOTED);
}

/// Words that a passed descriptor may carry: what reads as a stand-in is one word only, and no rate is taken for one.
pub fn stand_in(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    while !bytes.is_empty() {
        let any = bytes.u64();
        if let Some((key, slot)) = word::read(any) {
            assert_eq!(word::word(key, slot), any);
            assert_eq!(word::key(key), key);
        } else {
            // No key that there can be makes it.
            assert_ne!(
                word::read(word::word(word::key(any), any as u32)).map(|(key, slot)| word::word(key, slot)),
                Some(any)
            );
        }
        let (key, slot) = (word::key(bytes.u64()), bytes.u32());
        let made = word::word(key, slot);
        assert_ne!(made, u64::MAX, "that is no limit");
        let (read, at) = word::read(made).expect("what is written is read");
        assert_eq!((read, at), (key, slot % scoutline_abi::layout::SLOT_COUNT as u32));
    }
}
