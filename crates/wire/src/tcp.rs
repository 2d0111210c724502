//! The TCP header (RFC 9293 §3.1) with the options that a stack acts on: maximum segment size (§3.7.1), window
//! scale and timestamps (RFC 7323), selective acknowledgment (RFC 2018), fast open (RFC 7413).
//!
//! The checksum is neither verified nor computed here: devices and stages know how much of it is left to do.
//!
//! ```text
//!  0                   1                   2                   3
//!  | source port                   | destination port              |
//!  | sequence                                                      |
//!  | acknowledgment                                                |
//!  | offset|reservd| flags         | window                        |
//!  | checksum                      | urgent                        |
//!  | options, padded to four bytes                                 |
//! ```

use bitflags::bitflags;

/// Length of a header without options, in bytes.
pub const MIN_HEADER_LEN: usize = 20;
/// Length of the longest header that the data offset can tell, in bytes.
pub const MAX_HEADER_LEN: usize = 60;
/// Where the checksum stands in the header, for those who fill it.
pub const CHECKSUM_OFFSET: usize = 16;
/// Length of the timestamps option with the two NOPs that align it (RFC 7323 Appendix A).
pub const TIMESTAMPS_LEN: usize = 12;
/// The most SACK blocks that fit beside nothing else (RFC 2018 §3).
pub const MAX_SACK_BLOCKS: usize = 4;

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;
const OPTION_FAST_OPEN: u8 = 34;
/// Shared by experiments (RFC 6994), which say by a magic number which one they are.
const OPTION_EXPERIMENT: u8 = 254;
/// Of fast open, before it had a number of its own (RFC 7413 §4.1.1).
const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];
/// The layout nearly every segment of an established connection has: NOP NOP TS(10).
const ALIGNED_TIMESTAMPS: [u8; 4] = [OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, 10];

bitflags! {
    /// Control bits, in their place in the header's fourteenth byte.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// No more data from the sender.
        const FIN = 0x01;
        /// Synchronise sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push.
        const PSH = 0x08;
        /// The acknowledgment field counts.
        const ACK = 0x10;
        /// The urgent field counts.
        const URG = 0x20;
        /// ECN echo (RFC 3168).
        const ECE = 0x40;
        /// Congestion window reduced (RFC 3168).
        const CWR = 0x80;
    }
}

/// Up to four SACK blocks (left edge, right edge), most recent first (RFC 2018 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
    len: u8,
}

impl SackBlocks {
    /// The blocks, in the order of the wire.
    #[inline]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.len)]
    }

    /// True without any block.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a block; false when all four places are taken.
    pub fn push(&mut self, left: u32, right: u32) -> bool {
        let place = usize::from(self.len);
        if place == MAX_SACK_BLOCKS {
            return false;
        }
        self.blocks[place] = (left, right);
        self.len += 1;
        true
    }

    /// Keeps the first `count` blocks.
    pub fn truncate(&mut self, count: usize) {
        while usize::from(self.len) > count {
            self.len -= 1;
            self.blocks[usize::from(self.len)] = (0, 0);
        }
    }
}

/// The longest cookie, in bytes (RFC 7413 §4.1.1).
pub const MAX_COOKIE_LEN: usize = 16;
/// The shortest that is not a request for one.
const MIN_COOKIE_LEN: usize = 4;

/// The Fast Open option of a SYN or SYN-ACK (RFC 7413 §4.1.1): a cookie, or without any bytes the request for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    bytes: [u8; MAX_COOKIE_LEN],
    len: u8,
    /// As the experimental option, which older stacks still send.
    pub is_experimental: bool,
}

impl FastOpen {
    /// The request for a cookie.
    pub fn request() -> FastOpen {
        FastOpen::default()
    }

    /// A cookie; `None` when it has not 4 to 16 bytes, or an odd number of them.
    pub fn cookie(cookie: &[u8]) -> Option<FastOpen> {
        let valid =
            (MIN_COOKIE_LEN..=MAX_COOKIE_LEN).contains(&cookie.len()) && cookie.len().is_multiple_of(2);
        valid.then(|| {
            let mut bytes = [0; MAX_COOKIE_LEN];
            bytes[..cookie.len()].copy_from_slice(cookie);
            FastOpen { bytes, len: cookie.len() as u8, is_experimental: false }
        })
    }

    /// The cookie; empty for a request.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// True for a request.
    pub fn is_request(&self) -> bool {
        self.len == 0
    }

    /// The same in the form that an option had which it answers.
    #[must_use]
    pub fn in_form_of(self, other: FastOpen) -> FastOpen {
        FastOpen { is_experimental: other.is_experimental, ..self }
    }

    fn parse(body: &[u8]) -> Option<FastOpen> {
        if body.is_empty() { Some(FastOpen::request()) } else { FastOpen::cookie(body) }
    }

    /// Length on the wire before padding, in bytes.
    fn option_len(&self) -> usize {
        usize::from(self.len) + if self.is_experimental { 4 } else { 2 }
    }
}

/// The options of one header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size the sender can take, in bytes.
    pub mss: Option<u16>,
    /// Shift of the sender's window field. As sent: the limit of 14 is the receiver's to apply.
    pub window_scale: Option<u8>,
    /// The sender understands SACK.
    pub sack_permitted: bool,
    /// Timestamp value and echo.
    pub timestamps: Option<(u32, u32)>,
    /// What the sender holds beyond its acknowledgment.
    pub sack: SackBlocks,
    /// Fast open; only on a SYN or SYN-ACK.
    pub fast_open: Option<FastOpen>,
}

impl Options {
    /// Length on the wire, in bytes: a multiple of four, at most 40.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if self.timestamps.is_some() {
            len += TIMESTAMPS_LEN;
        } else if self.sack_permitted {
            len += 4;
        }
        if let Some(fast_open) = &self.fast_open {
            len += fast_open.option_len().next_multiple_of(4);
        }
        len + self.sack_len(MAX_HEADER_LEN - MIN_HEADER_LEN - len)
    }

    /// Bytes for the SACK option within `room`: blocks that do not fit are left out.
    fn sack_len(&self, room: usize) -> usize {
        let count = usize::from(self.sack.len).min(room.saturating_sub(4) / 8);
        if count == 0 { 0 } else { 4 + 8 * count }
    }

    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let Some(&kind) = bytes.first() {
            if kind == OPTION_END {
                break;
            }
            if kind == OPTION_NOP {
                bytes = &bytes[1..];
                continue;
            }
            // A length below two or past the header ends the parsing and keeps what was read, as Linux does.
            let Some(&len) = bytes.get(1) else { break };
            let len = usize::from(len);
            if len < 2 || len > bytes.len() {
                break;
            }
            options.parse_one(kind, &bytes[2..len]);
            bytes = &bytes[len..];
        }
        options
    }

    /// Takes one option; an unknown kind or a known one of wrong length is skipped.
    fn parse_one(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (OPTION_MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (OPTION_WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (OPTION_SACK_PERMITTED, []) => self.sack_permitted = true,
            (OPTION_TIMESTAMPS, body) if body.len() == 8 => {
                self.timestamps = Some((be32(body, 0), be32(body, 4)));
            }
            (OPTION_SACK, body) if !body.is_empty() && body.len().is_multiple_of(8) => {
                self.sack = SackBlocks::default();
                for block in body.chunks_exact(8) {
                    self.sack.push(be32(block, 0), be32(block, 4));
                }
            }
            (OPTION_FAST_OPEN, body) => self.fast_open = FastOpen::parse(body).or(self.fast_open),
            (OPTION_EXPERIMENT, body) if body.starts_with(&FAST_OPEN_MAGIC) => {
                let parsed = FastOpen::parse(&body[FAST_OPEN_MAGIC.len()..]);
                let parsed = parsed.map(|option| FastOpen { is_experimental: true, ..option });
                self.fast_open = self.fast_open.or(parsed);
            }
            _ => {}
        }
    }

    /// Writes the options to `out`, which has exactly `emitted_len` bytes.
    fn emit(&self, out: &mut [u8]) {
        let room = out.len();
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let mut used = 0;
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            put(&[OPTION_MSS, 4, a, b]);
            used += 4;
        }
        if let Some((value, echo)) = self.timestamps {
            // SACK-permitted takes the place of the two NOPs, so that both cost twelve bytes.
            if self.sack_permitted {
                put(&[OPTION_SACK_PERMITTED, 2, OPTION_TIMESTAMPS, 10]);
            } else {
                put(&ALIGNED_TIMESTAMPS);
            }
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
            used += TIMESTAMPS_LEN;
        } else if self.sack_permitted {
            put(&[OPTION_NOP, OPTION_NOP, OPTION_SACK_PERMITTED, 2]);
            used += 4;
        }
        if let Some(shift) = self.window_scale {
            put(&[OPTION_NOP, OPTION_WINDOW_SCALE, 3, shift]);
            used += 4;
        }
        if let Some(fast_open) = &self.fast_open {
            let len = fast_open.option_len();
            if fast_open.is_experimental {
                put(&[OPTION_EXPERIMENT, len as u8]);
                put(&FAST_OPEN_MAGIC);
            } else {
                put(&[OPTION_FAST_OPEN, len as u8]);
            }
            put(fast_open.as_slice());
            // Of even length: nothing or two bytes are missing.
            put(&[OPTION_NOP; 2][..len.next_multiple_of(4) - len]);
            used += len.next_multiple_of(4);
        }
        if room > used {
            let count = (room - used - 4) / 8;
            put(&[OPTION_NOP, OPTION_NOP, OPTION_SACK, (2 + 8 * count) as u8]);
            for &(left, right) in &self.sack.as_slice()[..count] {
                put(&left.to_be_bytes());
                put(&right.to_be_bytes());
            }
        }
    }
}

/// A parsed header, or one to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Sequence number of the first byte of payload, or of the SYN.
    pub sequence: u32,
    /// Next sequence number that the sender awaits; counts only with `Flags::ACK`.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: Flags,
    /// Window field as on the wire: not scaled.
    pub window: u16,
    /// Urgent pointer; counts only with `Flags::URG`.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

/// Why bytes are no TCP header. The peer's (or the network's) fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the header is.
    #[error("{got} bytes cannot hold a TCP header of {need}")]
    Truncated {
        /// Bytes there were.
        got: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// The data offset is below five words.
    #[error("data offset of {words} words is below the minimum of 5")]
    DataOffset {
        /// What the field said, in words of four bytes.
        words: u8,
    },
}

impl Header {
    /// Reads a header from the front of `bytes`: the header and its length with options.
    ///
    /// # Errors
    /// When the bytes end before the header does, or the data offset is impossible. Malformed options are no
    /// error: parsing of options ends there.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
        let Some(fixed) = bytes.first_chunk::<MIN_HEADER_LEN>() else {
            return Err(ParseError::Truncated { got: bytes.len(), need: MIN_HEADER_LEN });
        };
        let words = fixed[12] >> 4;
        let len = usize::from(words) * 4;
        if len < MIN_HEADER_LEN {
            return Err(ParseError::DataOffset { words });
        }
        if bytes.len() < len {
            return Err(ParseError::Truncated { got: bytes.len(), need: len });
        }
        let options = &bytes[MIN_HEADER_LEN..len];
        let options = if options.is_empty() {
            Options::default()
        } else if options.len() == TIMESTAMPS_LEN && options[..4] == ALIGNED_TIMESTAMPS {
            Options { timestamps: Some((be32(options, 4), be32(options, 8))), ..Options::default() }
        } else {
            Options::parse(options)
        };
        let header = Header {
            source_port: be16(fixed, 0),
            destination_port: be16(fixed, 2),
            sequence: be32(fixed, 4),
            acknowledgment: be32(fixed, 8),
            flags: Flags::from_bits_retain(fixed[13]),
            window: be16(fixed, 14),
            urgent: be16(fixed, 18),
            options,
        };
        Ok((header, len))
    }

    /// Length that `emit` will write, in bytes.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        MIN_HEADER_LEN + self.options.emitted_len()
    }

    /// Writes the header to the front of `out` with a checksum field of 0: the length written.
    ///
    /// # Panics
    /// When `out` is shorter than `emitted_len`.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.emitted_len();
        let out = &mut out[..len];
        out[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        out[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        out[12] = ((len / 4) as u8) << 4;
        out[13] = self.flags.bits();
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..18].fill(0);
        out[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        self.options.emit(&mut out[MIN_HEADER_LEN..]);
        len
    }
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_a_syn_as_linux_writes_it() {
        let bytes = [
            0xc3, 0x50, 0x00, 0x50, 1, 2, 3, 4, 0, 0, 0, 0, 0xa0, 0x02, 0xfa, 0xf0, 0xde, 0xad, 0, 0, 2, 4,
            5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
        ];
        let (header, len) = Header::parse(&bytes).unwrap();
        assert_eq!(len, 40);
        assert_eq!((header.source_port, header.destination_port), (50_000, 80));
        assert_eq!(header.sequence, 0x0102_0304);
        assert_eq!(header.flags, Flags::SYN);
        assert_eq!(header.window, 64_240);
        let expected = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((9, 0)),
            sack: SackBlocks::default(),
            fast_open: None,
        };
        assert_eq!(header.options, expected);
        let mut out = [0; 60];
        assert_eq!(header.emit(&mut out), 40);
        let mut without_checksum = bytes;
        without_checksum[16..18].fill(0);
        assert_eq!(out[..40], without_checksum);
    }

    #[test]
    fn bad_lengths_are_errors_and_bad_options_end_parsing() {
        assert_eq!(Header::parse(&[0; 19]), Err(ParseError::Truncated { got: 19, need: 20 }));
        let mut bytes = [0; 24];
        bytes[12] = 0x40;
        assert_eq!(Header::parse(&bytes), Err(ParseError::DataOffset { words: 4 }));
        bytes[12] = 0x70;
        assert_eq!(Header::parse(&bytes), Err(ParseError::Truncated { got: 24, need: 28 }));
        let options = Options::parse(&[2, 4, 5, 180, 99, 3, 0, 3, 0, 7]);
        assert_eq!(options.mss, Some(1460), "known before unknown");
        assert_eq!(options.window_scale, None, "nothing after a zero length");
        assert_eq!(Options::parse(&[99, 3, 0, 3, 3, 7]).window_scale, Some(7), "unknown is skipped");
        assert_eq!(Options::parse(&[2, 3, 5, 3, 3, 7]).window_scale, Some(7), "wrong length is skipped");
        assert_eq!(Options::parse(&[2]), Options::default());
        assert_eq!(Options::parse(&[2, 9, 1]), Options::default());
    }

    #[test]
    fn fast_open_is_read_in_both_forms_and_bad_lengths_are_none() {
        let read = |bytes: &[u8]| Options::parse(bytes).fast_open;
        assert_eq!(read(&[34, 2]), Some(FastOpen::request()));
        assert_eq!(read(&[34, 6, 1, 2, 3, 4]), FastOpen::cookie(&[1, 2, 3, 4]));
        let experimental = read(&[254, 8, 0xf9, 0x89, 1, 2, 3, 4]).unwrap();
        assert!(experimental.is_experimental && experimental.as_slice() == [1, 2, 3, 4]);
        assert_eq!(read(&[254, 8, 0xf9, 0x88, 1, 2, 3, 4]), None, "another experiment");
        // RFC 7413 §4.1.1: 4 to 16 bytes, an even number.
        assert_eq!(read(&[34, 4, 1, 2]), None);
        assert_eq!(read(&[34, 7, 1, 2, 3, 4, 5]), None);
        assert_eq!(read(&[[34, 20].as_slice(), &[1; 18]].concat()), None);
        // Beside everything that a SYN carries the longest cookie fits.
        let options = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((1, 0)),
            fast_open: FastOpen::cookie(&[7; 16]),
            ..Options::default()
        };
        assert_eq!(options.emitted_len(), 40);
    }

    #[test]
    fn sack_blocks_that_do_not_fit_are_left_out() {
        let mut options = Options { timestamps: Some((1, 2)), ..Options::default() };
        for block in 0..4 {
            assert!(options.sack.push(block, block + 1));
        }
        assert!(!options.sack.push(9, 9));
        // RFC 2018 §3: with timestamps there is room for three.
        let header = Header { options, ..Header::default() };
        let mut out = [0; 60];
        assert_eq!(header.emit(&mut out), 60);
        let (read, _) = Header::parse(&out).unwrap();
        assert_eq!(read.options.sack.as_slice(), &[(0, 1), (1, 2), (2, 3)]);
    }

    fn options() -> impl Strategy<Value = Options> {
        (
            any::<Option<u16>>(),
            any::<Option<u8>>(),
            any::<bool>(),
            any::<Option<(u32, u32)>>(),
            proptest::collection::vec(any::<(u32, u32)>(), 0..=2),
            proptest::option::of(fast_open()),
        )
            .prop_map(|(mss, window_scale, sack_permitted, timestamps, blocks, fast_open)| {
                let mut sack = SackBlocks::default();
                for (left, right) in blocks {
                    sack.push(left, right);
                }
                // All at once fits for at most one block: 4 + 4 + 12 + 12 + 8 is 40.
                if mss.is_some() || window_scale.is_some() {
                    sack.truncate(1);
                }
                if fast_open.is_some() {
                    sack.truncate(0);
                }
                Options { mss, window_scale, sack_permitted, timestamps, sack, fast_open }
            })
    }

    fn fast_open() -> impl Strategy<Value = FastOpen> {
        (proptest::collection::vec(any::<u8>(), 4..=16), any::<bool>(), any::<bool>()).prop_map(
            |(bytes, is_request, is_experimental)| {
                let even = &bytes[..bytes.len() & !1];
                let option = if is_request { FastOpen::request() } else { FastOpen::cookie(even).unwrap() };
                FastOpen { is_experimental, ..option }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_emitted_parses_to_the_same(
            ports in any::<(u16, u16)>(), numbers in any::<(u32, u32)>(), flags in any::<u8>(),
            window in any::<u16>(), urgent in any::<u16>(), options in options(),
        ) {
            let header = Header {
                source_port: ports.0, destination_port: ports.1, sequence: numbers.0, acknowledgment: numbers.1,
                flags: Flags::from_bits_retain(flags), window, urgent, options,
            };
            let mut out = [0xff; MAX_HEADER_LEN];
            let len = header.emit(&mut out);
            prop_assert_eq!(len, header.emitted_len());
            prop_assert_eq!(len % 4, 0);
            prop_assert_eq!(Header::parse(&out[..len]), Ok((header, len)));
        }

        #[test]
        fn any_bytes_parse_or_err(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok((header, len)) = Header::parse(&bytes) {
                prop_assert!(len >= MIN_HEADER_LEN && len <= bytes.len());
                let mut out = [0; MAX_HEADER_LEN];
                let written = header.emit(&mut out);
                prop_assert!(written <= MAX_HEADER_LEN);
                let (again, _) = Header::parse(&out).unwrap();
                prop_assert_eq!(again.flags, header.flags);
            }
        }
    }
}
