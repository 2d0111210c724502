//! Writing a capture file.

use std::io::{self, Write};

use scoutline_base::Time;
use scoutline_path::Message;

use crate::pcap::receive::{LINK_TYPE_ETHERNET, MAGIC_NANOS};
use crate::software;

/// Writes packets to a capture file: any partner's messages, in either direction.
///
/// Messages are written as they are: a super-segment is one record, and a checksum that a device would complete is
/// not complete (as every capture on an offloading device shows it).
pub struct Capture<W: Write> {
    output: W,
    snap_len: u32,
    epoch_ns: u64,
    scratch: Vec<u8>,
}

impl<W: Write> Capture<W> {
    /// The snap length that keeps every packet whole.
    pub const WHOLE: u32 = 262_144;

    /// Begins a file. At time zero the file's clock says `epoch_ns` nanoseconds since 1970.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut output: W, snap_len: u32, epoch_ns: u64) -> io::Result<Capture<W>> {
        let snap_len = snap_len.min(Self::WHOLE);
        // draft-ietf-opsawg-pcap §4: magic, version 2.4, two reserved words, snap length, link type.
        let version =
            u32::from_ne_bytes(if cfg!(target_endian = "little") { [2, 0, 4, 0] } else { [0, 2, 0, 4] });
        for word in [MAGIC_NANOS, version, 0, 0, snap_len, LINK_TYPE_ETHERNET] {
            output.write_all(&word.to_ne_bytes())?;
        }
        Ok(Capture { output, snap_len, epoch_ns, scratch: Vec::new() })
    }

    /// Writes a message; false when it holds no packet.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record(&mut self, at: Time, message: &Message) -> io::Result<bool> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        let holds = software::assemble(message, &mut frame).is_ok();
        let result = if holds { self.record_bytes(at, &frame) } else { Ok(()) };
        self.scratch = frame;
        result.map(|()| holds)
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_bytes(&mut self, at: Time, packet: &[u8]) -> io::Result<()> {
        let time = self.epoch_ns.saturating_add(at.as_nanos());
        let kept = packet.len().min(self.snap_len as usize);
        let words = [time / 1_000_000_000, time % 1_000_000_000, kept as u64, packet.len() as u64];
        let mut header = [0; 16];
        for (to, word) in header.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&(word as u32).to_ne_bytes());
        }
        self.output.write_all(&header)?;
        self.output.write_all(&packet[..kept])
    }

    /// Hands everything on to the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Ends the file and gives its writer back.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}
