//! Opening capture files.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use scoutline_base::{DeviceId, Time};

use crate::error::OpenError;
use crate::partner::{DeviceCounters, DeviceFacts, MAX_SUPER_FRAME, Notice, Offload};
use crate::pcap::{Capture, FileError, PcapPartner, Reader};

/// Which files, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What `pull` replays; nothing comes without.
    pub read: Option<PathBuf>,
    /// Where `push` writes; counted only without.
    pub write: Option<PathBuf>,
    /// When packets come.
    pub pace: Pace,
    /// Bytes kept of each written packet.
    pub snap_len: u32,
    /// What the written file's clock (nanoseconds since 1970) says at time zero.
    pub epoch_ns: u64,
    /// Our link address in it.
    pub link_address: [u8; 6],
    /// The largest network-layer packet.
    pub mtu: u32,
}

/// When replayed packets come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as they are pulled.
    #[default]
    AsFastAsPossible,
    /// As far apart as in the file, beginning with the first pull.
    ByTime,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            read: None,
            write: None,
            pace: Pace::default(),
            snap_len: Capture::<Vec<u8>>::WHOLE,
            epoch_ns: 0,
            link_address: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
        }
    }
}

/// Opens the files.
///
/// # Errors
/// A file that cannot be opened or is no capture of Ethernet.
pub fn open(id: DeviceId, config: &Config) -> Result<(PcapPartner, Vec<Notice>), OpenError> {
    let mut notices = Vec::new();
    let mut reader = None;
    let mut next = None;
    if let Some(path) = &config.read {
        let file = File::open(path).map_err(FileError::Io).map_err(named(path))?;
        let mut opened = Reader::new(BufReader::new(file)).map_err(named(path))?;
        next = opened.next_record().map_err(named(path))?;
        reader = Some(opened);
        if next.is_none() {
            notices.push(Notice(format!("{} holds no packets", path.display())));
        }
    }
    let output = match &config.write {
        None => None,
        Some(path) => {
            let file = File::create(path).map_err(FileError::Io).map_err(named(path))?;
            let capture = Capture::new(BufWriter::new(file), config.snap_len, config.epoch_ns);
            Some(capture.map_err(FileError::Io).map_err(named(path))?)
        }
    };
    let name = config.read.as_ref().or(config.write.as_ref());
    let partner = PcapPartner {
        name: name.map_or_else(|| "pcap".to_owned(), |path| path.display().to_string()),
        device: id,
        facts: DeviceFacts {
            kind: "pcap",
            link_address: config.link_address,
            mtu: config.mtu,
            offload: Offload { checksum: false, segmentation: false, max_segment_len: MAX_SUPER_FRAME },
            trusted_checksums: false,
            index: 0,
        },
        pace: config.pace,
        reader,
        next,
        origin: None,
        output,
        now: Time::ZERO,
        counters: DeviceCounters::default(),
        scratch: Vec::new(),
    };
    Ok((partner, notices))
}

fn named(path: &Path) -> impl Fn(FileError) -> OpenError {
    let name = path.display().to_string();
    move |source| OpenError::File { name: name.clone(), source }
}
