//! Capture files: any bytes are read to their end or to a typed error.

use scoutline_base::Time;
use scoutline_device::pcap::{Capture, Reader};

use crate::bytes::Target;

/// The target of this file.
pub const TARGETS: &[Target] = &[("pcap", pcap)];

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
        if u32::try_from(record.time_ns / 1_000_000_000).is_ok() {
            assert_eq!(read.time_ns, record.time_ns);
        }
    }
    assert!(matches!(again.next_record(), Ok(None)));
}
