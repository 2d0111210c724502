//! Reading a capture file. It is hostile input: every length is checked before memory is taken for it.

use std::io::{self, Read};

/// libpcap's MAXIMUM_SNAPLEN: no record is longer.
const RECORD_LIMIT: u32 = 262_144;
/// LINKTYPE_ETHERNET.
pub(super) const LINK_TYPE_ETHERNET: u32 = 1;
/// Time stamps in microseconds.
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
/// Time stamps in nanoseconds.
pub(super) const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
/// pcapng's section header block type, the same in both byte orders.
const MAGIC_NG: u32 = 0x0a0d_0d0a;

/// A capture file being read.
pub struct Reader<R> {
    input: R,
    big_endian: bool,
    nanos_per_unit: u64,
    records: u64,
}

/// One captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// What was kept of it.
    pub bytes: Vec<u8>,
    /// How long it was on the wire.
    pub original_len: u32,
}

/// What is wrong with a capture file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It does not begin as a pcap file does.
    #[error("not a pcap file (it begins with {magic:#010x})")]
    NotPcap {
        /// Its first four bytes.
        magic: u32,
    },
    /// It is pcapng.
    #[error("a pcapng file: convert it with `editcap -F pcap` first")]
    PcapNg,
    /// It holds frames of another kind.
    #[error("its link type is {0}, not Ethernet (1)")]
    LinkType(u32),
    /// It ends in the middle.
    #[error("the file ends in the middle of record {record}")]
    Truncated {
        /// Counted from 1; 0 is the file's header.
        record: u64,
    },
    /// A record claims to be longer than any may be.
    #[error("record {record} claims {len} bytes, more than any packet has")]
    TooLong {
        /// Counted from 1.
        record: u64,
        /// The claim.
        len: u32,
    },
}

impl<R: Read> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// When it is no capture of Ethernet.
    pub fn new(input: R) -> Result<Reader<R>, FileError> {
        let mut reader = Reader { input, big_endian: false, nanos_per_unit: 1000, records: 0 };
        let mut header = [0; 24];
        let len = reader.fill(&mut header)?;
        let magic = reader.word(&header, 0);
        if len >= 4 {
            match (magic, magic.swap_bytes()) {
                (MAGIC_MICROS, _) => {}
                (MAGIC_NANOS, _) => reader.nanos_per_unit = 1,
                (_, MAGIC_MICROS) => reader.big_endian = true,
                (_, MAGIC_NANOS) => (reader.big_endian, reader.nanos_per_unit) = (true, 1),
                (MAGIC_NG, _) => return Err(FileError::PcapNg),
                _ => return Err(FileError::NotPcap { magic }),
            }
        }
        if len < header.len() {
            return Err(FileError::Truncated { record: 0 });
        }
        // The upper bits tell about frame check sequences (draft-ietf-opsawg-pcap §4).
        match reader.word(&header, 20) & 0x03ff_ffff {
            LINK_TYPE_ETHERNET => Ok(reader),
            other => Err(FileError::LinkType(other)),
        }
    }

    /// The next record, or `None` at the end.
    ///
    /// # Errors
    /// When the file is damaged; nothing comes after that.
    pub fn next_record(&mut self) -> Result<Option<Record>, FileError> {
        let mut header = [0; 16];
        self.records += 1;
        let record = self.records;
        match self.fill(&mut header)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(FileError::Truncated { record }),
        }
        let [seconds, fraction, len, original_len] = [0, 4, 8, 12].map(|at| self.word(&header, at));
        if len > RECORD_LIMIT {
            return Err(FileError::TooLong { record, len });
        }
        let mut bytes = vec![0; len as usize];
        if self.fill(&mut bytes)? < bytes.len() {
            return Err(FileError::Truncated { record });
        }
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.nanos_per_unit;
        Ok(Some(Record { time_ns, bytes, original_len }))
    }

    fn word(&self, bytes: &[u8], at: usize) -> u32 {
        let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    }

    /// Reads until the buffer is full or the file ends.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut len = 0;
        while len < buffer.len() {
            match self.input.read(&mut buffer[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use scoutline_base::Time;

    use super::{FileError, Reader, Record};
    use crate::pcap::Capture;

    fn big_endian_micros() -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 0x0002_0004, 0, 0, 65_535, 1, 7, 5, 3, 9] {
            file.extend(word.to_be_bytes());
        }
        file.extend([1, 2, 3]);
        file
    }

    #[test]
    fn both_byte_orders_and_units_are_read() {
        let file = big_endian_micros();
        let mut reader = Reader::new(&file[..]).unwrap();
        let record = reader.next_record().unwrap();
        assert_eq!(record, Some(Record { time_ns: 7_000_005_000, bytes: vec![1, 2, 3], original_len: 9 }));
        assert_eq!(reader.next_record().unwrap(), None);

        let mut capture = Capture::new(Vec::new(), 2, 1_000_000_000).unwrap();
        capture.record_bytes(Time::from_nanos(42), &[9, 8, 7]).unwrap();
        let file = capture.into_inner().unwrap();
        let record = Reader::new(&file[..]).unwrap().next_record().unwrap();
        assert_eq!(record, Some(Record { time_ns: 1_000_000_042, bytes: vec![9, 8], original_len: 3 }));
    }

    #[test]
    fn every_damage_is_a_typed_error() {
        let good = big_endian_micros();
        let read = |file: &[u8]| Reader::new(file).and_then(|mut reader| reader.next_record());
        for len in 0..24 {
            assert!(matches!(read(&good[..len]), Err(FileError::Truncated { record: 0 })), "{len}");
        }
        assert!(matches!(read(&good[..24]), Ok(None)));
        for len in 25..good.len() {
            assert!(matches!(read(&good[..len]), Err(FileError::Truncated { record: 1 })), "{len}");
        }
        let with = |at: usize, bytes: [u8; 4]| {
            let mut file = good.clone();
            file[at..at + 4].copy_from_slice(&bytes);
            read(&file)
        };
        assert!(matches!(with(0, *b"GIF8"), Err(FileError::NotPcap { .. })));
        assert!(matches!(with(0, [0x0a, 0x0d, 0x0d, 0x0a]), Err(FileError::PcapNg)));
        assert!(matches!(with(20, [0, 0, 0, 101]), Err(FileError::LinkType(101))));
        assert!(matches!(with(32, [0xff; 4]), Err(FileError::TooLong { record: 1, len: u32::MAX })));
    }
}
