//! The flood's two ends: a sender of minimum-size datagrams, or of SYNs from forged addresses, at a rate or as fast as its
//! core can, and a program that takes datagrams slower than they come.
//!
//! How the sender sends: see `flood/sender.rs`. Both run until they are stopped, as `scoutline load flood …` and
//! `scoutline load sink …`.

mod sender;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use scoutline_base::Random;
use scoutline_wire::{checksum, ethernet, ipv4, tcp, udp};
use serde::{Deserialize, Serialize};

pub(crate) use self::sender::Means;
use self::sender::Order;
use crate::sys;

/// The least that Ethernet carries, its checksum not counted (IEEE 802.3 §4A.4.2: 64 with it).
const FRAME_BYTES: usize = 60;
/// A SYN with the options that Linux puts there.
const SYN_BYTES: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN + 40;
/// Frames of one system call.
const BATCH: usize = 64;
/// Where forged addresses are drawn: the /15 of RFC 2544, appendix C.2.2.
const FORGED_FROM: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// What `scoutline load flood` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load flood", about = "Datagrams of minimum size, at a rate or as fast as can be")]
pub struct FloodArguments {
    /// The interface to send from.
    #[arg(long)]
    pub device: String,
    /// The receiver's link address, `aa:bb:…`.
    #[arg(long)]
    pub mac: String,
    /// The sender's address.
    #[arg(long)]
    pub source: Ipv4Addr,
    /// To whom.
    #[arg(long)]
    pub target: SocketAddrV4,
    /// Datagrams a second; what a delay has kept back is made up for.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Send SYNs from addresses and ports that are drawn anew for each: in 198.18.0.0/15 (RFC 2544), whatever `--source`.
    #[arg(long)]
    pub syn: bool,
    /// Run on this core only.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Who sends; where live frames do not work a packet socket does, and standard error says so.
    #[arg(long, value_enum, default_value_t)]
    pub means: Means,
    /// End by itself after so long.
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
}

/// What `scoutline load sink` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load sink", about = "A program that reads datagrams slowly")]
pub struct SinkArguments {
    /// Where it listens.
    #[arg(long)]
    pub port: u16,
    /// Microseconds between two datagrams that it takes.
    #[arg(long, default_value_t = 1000)]
    pub every: u64,
}

/// How many the sender has sent by then, on CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) count: u64,
    pub(crate) at_ns: u64,
    pub(crate) means: Means,
}

/// Between two lines with a [`Sent`].
const TELL_EVERY: Duration = Duration::from_millis(20);

/// Sends until the time is over. Prints `sending` once it does, and then, now and then, how many it has sent.
pub fn flood(arguments: &FloodArguments) -> Result<()> {
    if let Some(core) = arguments.cpu {
        sys::set_core(core).with_context(|| format!("cannot use core {core}"))?;
    }
    let device = &arguments.device;
    let own = sys::link_address(device).with_context(|| format!("no link address of {device}"))?;
    let mac = parse_mac(&arguments.mac)?;
    let (syn, datagram);
    let template: &[u8] = if arguments.syn {
        syn = self::syn(own, mac, arguments.target);
        &syn
    } else {
        datagram = frame(own, mac, arguments.source, arguments.target);
        &datagram
    };
    let FloodArguments { syn: forged, rate, seconds, .. } = *arguments;
    Order { device, template, forged, rate, seconds }.carry_out(arguments.means)
}

/// A SYN as Linux makes them, with all of its options; from nobody yet.
fn syn(own: [u8; 6], mac: [u8; 6], target: SocketAddrV4) -> [u8; SYN_BYTES] {
    let mut frame = [0; SYN_BYTES];
    let packet = &mut frame[ethernet::HEADER_LEN..];
    let header = ipv4::Header {
        header_len: ipv4::MIN_HEADER_LEN as u8,
        tos: 0,
        total_len: packet.len() as u16,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: ipv4::PROTOCOL_TCP,
        source: Ipv4Addr::UNSPECIFIED,
        destination: *target.ip(),
    };
    header.emit(packet);
    let options = tcp::Options {
        mss: Some(1460),
        sack_permitted: true,
        timestamps: Some((1, 0)),
        window_scale: Some(7),
        ..tcp::Options::default()
    };
    let header = tcp::Header {
        destination_port: target.port(),
        flags: tcp::Flags::SYN,
        window: 64_240,
        options,
        ..tcp::Header::default()
    };
    header.emit(&mut packet[ipv4::MIN_HEADER_LEN..]);
    ethernet::Header { destination: mac, source: own, ethertype: ethernet::TYPE_IPV4 }.emit(&mut frame);
    frame
}

/// Another address, port and sequence number, and the checksums that follow.
fn forge(frame: &mut [u8], random: &mut Random) {
    let (header, segment) = frame[ethernet::HEADER_LEN..].split_at_mut(ipv4::MIN_HEADER_LEN);
    let source = FORGED_FROM.to_bits() | random.below(1 << 17);
    header[12..16].copy_from_slice(&source.to_be_bytes());
    header[ipv4::CHECKSUM_OFFSET..ipv4::CHECKSUM_OFFSET + 2].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[ipv4::CHECKSUM_OFFSET..ipv4::CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_be_bytes());
    segment[..2].copy_from_slice(&(1_024 + random.below(60_000) as u16).to_be_bytes());
    segment[4..8].copy_from_slice(&(random.next_u64() as u32).to_be_bytes());
    let [a, b, c, d] = [16, 17, 18, 19].map(|at: usize| header[at]);
    let target = Ipv4Addr::new(a, b, c, d);
    let pseudo = checksum::pseudo_header(Ipv4Addr::from(source), target, ipv4::PROTOCOL_TCP, segment.len());
    segment[tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2].fill(0);
    let sum = checksum::finish(checksum::add(pseudo, checksum::sum(segment)));
    segment[tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Takes a datagram, rests, takes the next. Prints `ready` once it listens.
pub fn sink(arguments: &SinkArguments) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, arguments.port))?;
    println!("ready");
    let mut room = [0; 2048];
    loop {
        socket.recv(&mut room)?;
        thread::sleep(Duration::from_micros(arguments.every));
    }
}

fn frame(own: [u8; 6], mac: [u8; 6], source: Ipv4Addr, target: SocketAddrV4) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    ethernet::Header { destination: mac, source: own, ethertype: ethernet::TYPE_IPV4 }.emit(&mut frame);
    let packet = &mut frame[ethernet::HEADER_LEN..];
    let total_len = packet.len() as u16;
    ipv4::Header {
        header_len: ipv4::MIN_HEADER_LEN as u8,
        tos: 0,
        total_len,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: ipv4::PROTOCOL_UDP,
        source,
        destination: *target.ip(),
    }
    .emit(packet);
    let datagram = &mut packet[ipv4::MIN_HEADER_LEN..];
    let len = datagram.len() as u16;
    let header = udp::Header { source_port: 40_000, destination_port: target.port(), len, checksum: 0 };
    header.emit(datagram);
    let pseudo = checksum::pseudo_header(source, *target.ip(), ipv4::PROTOCOL_UDP, datagram.len());
    let checksum = checksum::finish(checksum::add(pseudo, checksum::sum(datagram)));
    udp::Header { checksum, ..header }.emit(datagram);
    frame
}

fn parse_mac(text: &str) -> Result<[u8; 6]> {
    let mut mac = [0; 6];
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() != mac.len() {
        bail!("`{text}` is no link address");
    }
    for (byte, part) in mac.iter_mut().zip(parts) {
        *byte = u8::from_str_radix(part, 16).with_context(|| format!("`{text}` is no link address"))?;
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_syn_is_whole_and_from_another() {
        let target = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
        let mut frame = syn([2; 6], [3; 6], target);
        let mut random = Random::new(1);
        let mut sources = std::collections::BTreeSet::new();
        for _ in 0..100 {
            forge(&mut frame, &mut random);
            let packet = &frame[ethernet::HEADER_LEN..];
            let header = ipv4::Header::parse(packet).unwrap();
            assert!(ipv4::checksum_is_valid(&packet[..20]));
            assert_eq!((header.total_len, header.destination), (60, *target.ip()));
            let segment = &packet[20..];
            let pseudo = checksum::pseudo_header(header.source, header.destination, 6, segment.len());
            assert!(checksum::is_valid(checksum::add(pseudo, checksum::sum(segment))));
            let (header_of, _) = tcp::Header::parse(segment).unwrap();
            assert!(header_of.flags.contains(tcp::Flags::SYN) && header_of.options.window_scale == Some(7));
            sources.insert((header.source, header_of.source_port));
        }
        assert!(sources.len() > 95);
    }

    #[test]
    fn a_frame_is_a_whole_datagram_of_minimum_size() {
        let target = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
        let frame =
            frame([2; 6], parse_mac("02:00:00:00:00:0a").unwrap(), Ipv4Addr::new(10, 0, 0, 2), target);
        let link = ethernet::Header::parse(&frame).unwrap();
        assert_eq!((link.destination, link.source), ([2, 0, 0, 0, 0, 10], [2; 6]));
        let packet = &frame[ethernet::HEADER_LEN..];
        let header = ipv4::Header::parse(packet).unwrap();
        assert!(ipv4::checksum_is_valid(&packet[..ipv4::MIN_HEADER_LEN]));
        assert_eq!((header.total_len, header.destination), (46, *target.ip()));
        let bytes = &packet[ipv4::MIN_HEADER_LEN..];
        let datagram = udp::Header::parse(bytes).unwrap();
        assert_eq!((datagram.destination_port, datagram.len), (9000, 26));
        let pseudo = checksum::pseudo_header(header.source, header.destination, 17, bytes.len());
        assert!(datagram.checksum != 0 && checksum::is_valid(checksum::add(pseudo, checksum::sum(bytes))));
        assert!(parse_mac("02:00").is_err() && parse_mac("02:00:00:00:00:xx").is_err());
    }
}
