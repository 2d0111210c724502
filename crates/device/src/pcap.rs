//! `pcap`: capture files as a device: replay one, write one.
//!
//! - **Synopsis**: `pcap(read?, write?)`.
//! - **Options** ([`Config`]): `read`, `write` (paths); `pace` (as fast as possible, or by the file's time stamps);
//!   `snap_len` (bytes kept of each packet); `epoch_ns` (what the file's clock says at time zero).
//! - **Counters**: see [`DeviceCounters`].
//! - **Example**: `pcap::open(id, &Config { read: Some("trace.pcap".into()), ..Config::default() })`.
//! - **See also**: `memory`; [`Capture`] alone writes any partner's messages.
//!
//! Classic pcap (draft-ietf-opsawg-pcap), Ethernet only. Written with nanoseconds in this machine's byte order;
//! read in either byte order with microseconds or nanoseconds. Not pcapng.

mod open;
mod receive;
mod send;

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::fd::RawFd;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Burst, Facts, Message};
use scoutline_ring::Block;

use crate::partner::{DeviceCounters, DeviceError, DeviceFacts, Partner};
use crate::software;

pub use open::{Config, Pace, open};
pub use receive::{FileError, Reader, Record};
pub use send::Capture;

/// A capture file in, a capture file out, or both.
pub struct PcapPartner {
    name: String,
    device: DeviceId,
    facts: DeviceFacts,
    pace: Pace,
    reader: Option<Reader<BufReader<File>>>,
    /// The record that comes next.
    next: Option<Record>,
    /// When the replay began: the first record's time stamp and ours.
    origin: Option<(u64, Time)>,
    output: Option<Capture<BufWriter<File>>>,
    now: Time,
    counters: DeviceCounters,
    scratch: Vec<u8>,
}

impl PcapPartner {
    /// Lets time reach `now`: what is pushed after it carries it as its time stamp.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        if let Some(record) = &self.next {
            self.origin.get_or_insert((record.time_ns, self.now));
        }
    }

    /// True when the file has been replayed to its end.
    pub fn is_finished(&self) -> bool {
        self.next.is_none()
    }

    /// When the next record is due.
    fn due(&self) -> Option<Time> {
        let record = self.next.as_ref()?;
        match (self.pace, self.origin) {
            (Pace::ByTime, Some((first, began))) => {
                Some(began + std::time::Duration::from_nanos(record.time_ns.saturating_sub(first)))
            }
            _ => Some(self.now),
        }
    }

    fn failed(&self, source: FileError) -> DeviceError {
        DeviceError::File { name: self.name.clone(), source }
    }
}

impl Partner for PcapPartner {
    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        self.advance(now);
        let mut taken = 0;
        while taken < limit && self.due().is_some_and(|due| due <= self.now) {
            let Some(record) = self.next.take() else { break };
            let result = self.reader.as_mut().map_or(Ok(None), Reader::next_record);
            let whole = record.bytes.len() as u32 == record.original_len && record.bytes.len() >= 14;
            if whole {
                let len = record.original_len;
                self.counters.rx_packets += 1;
                self.counters.rx_bytes += u64::from(len);
                let facts = Facts { device: self.device, arrival: self.now, ..Facts::default() };
                let block = Block::from_bytes(record.bytes.into_boxed_slice());
                burst.push(Message::received(block, 0..len, facts));
                taken += 1;
            } else {
                self.counters.rx_malformed += 1; // cut short by the capture
            }
            match result {
                Ok(next) => self.next = next,
                // What came before stays good; the replay ends here.
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(taken)
    }

    fn has_input(&self) -> bool {
        self.due().is_some_and(|due| due <= self.now)
    }

    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        let mut done = 0;
        let mut result = Ok(());
        for message in burst.iter() {
            let (now, output) = (self.now, &mut self.output);
            let mut written = Ok(());
            let cut = software::packets(message, &mut self.scratch, |packet| {
                if let Some(output) = output
                    && written.is_ok()
                {
                    written = output.record_bytes(now, packet);
                }
            });
            if let Err(error) = written {
                result = Err(self.failed(FileError::Io(error)));
                break;
            }
            match cut {
                Ok(_) => {
                    self.counters.tx_packets += 1;
                    self.counters.tx_bytes += software::frame_len(message) as u64;
                }
                Err(_) => self.counters.tx_malformed += 1,
            }
            done += 1;
        }
        burst.drain(..done);
        if let (Ok(()), Some(output)) = (&result, &mut self.output) {
            result = output.flush().map_err(|error| self.failed(FileError::Io(error)));
        }
        result.map(|()| done)
    }

    fn room(&self) -> usize {
        256
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }

    fn next_event(&self) -> Option<Time> {
        self.due()
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
