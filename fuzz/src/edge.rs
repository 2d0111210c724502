//! Parsers at the edge: capture files, attach messages, datagram records.

use scoutline_abi::{attach as attach_wire, datagram as record};
use scoutline_base::Time;
use scoutline_device::pcap::{Capture, Reader};

use crate::bytes::Target;

/// The targets of this file.
pub const TARGETS: &[Target] = &[("pcap", pcap), ("attach", attach), ("datagram", datagram)];

/// A capture file: it is read to its end or to a typed error, and what was read can be written and read again.
pub fn pcap(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else { return };
    let mut capture = Capture::new(Vec::new(), Capture::<Vec<u8>>::WHOLE, 0).expect("memory takes all");
    let mut records = Vec::new();
    let mut total = 0;
    let result = loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                total += record.bytes.len() + 16;
                capture
                    .record_bytes(Time::from_nanos(record.time_ns), &record.bytes)
                    .expect("memory takes all");
                records.push(record);
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.to_string()),
        }
    };
    assert!(24 + total <= data.len(), "no more than was there");
    assert!(result.is_err() || 24 + total == data.len(), "all of it");
    let file = capture.into_inner().expect("memory takes all");
    let mut again = Reader::new(&file[..]).expect("our own file");
    for record in records {
        let read = again.next_record().expect("our own record").expect("as many as before");
        assert_eq!(read.bytes, record.bytes);
        assert_eq!(read.original_len as usize, record.bytes.len());
        // Seconds are 32 bits; a fraction above a second may carry into more.
        if record.time_ns / 1_000_000_000 <= u64::from(u32::MAX) {
            assert_eq!(read.time_ns, record.time_ns);
        }
    }
    assert!(matches!(again.next_record(), Ok(None)));
}

/// A message on the attach socket.
pub fn attach(data: &[u8]) {
    let Some(message) = attach_wire::Message::from_bytes(data) else {
        assert_ne!(data.len(), attach_wire::MESSAGE_LEN);
        return;
    };
    let bytes = message.to_bytes();
    assert_eq!(attach_wire::Message::from_bytes(&bytes), Some(message));
    assert_eq!(bytes[..92], data[..92]);
    let name = message.name();
    assert!(name.chars().count() <= message.name.len());
    let named = attach_wire::Message::new(message.kind, message.value).named(name.as_bytes());
    assert!(named.name().is_char_boundary(0));
    if name.len() <= 80 {
        assert_eq!(named.name(), name);
    }
}

/// A datagram's record in a ring.
pub fn datagram(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<{ record::HEADER_LEN }>() else { return };
    let header = record::Record::from_bytes(*bytes);
    let out = header.to_bytes();
    assert_eq!(record::Record::from_bytes(out), header);
    assert_eq!(out[..6], bytes[..6]);
    assert_eq!(out[16..], bytes[16..]);
    let len = record::Record::ring_len(header.len as usize);
    assert!(len % 32 == 0 && len >= u64::from(header.len) + 32 && len < u64::from(header.len) + 64);
}
