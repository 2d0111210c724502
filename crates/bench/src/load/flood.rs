//! The flood's two ends: a sender of minimum-size datagrams, or of SYNs from forged addresses, at a rate or as fast as its
//! core can, and a program that takes datagrams slower than they come.
//!
//! The sender writes whole Ethernet frames to a packet socket, many a system call, past the queueing discipline: it
//! is not held up by a socket of its own, by routes or by neighbours. Both run until they are stopped, as
//! `scoutline load flood …` and `scoutline load sink …`.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use scoutline_base::Random;
use scoutline_wire::{checksum, ethernet, ipv4, tcp, udp};
use serde::{Deserialize, Serialize};

use crate::sys;

/// The least that Ethernet carries, its checksum not counted (IEEE 802.3 §4A.4.2: 64 with it).
const FRAME_BYTES: usize = 60;
/// A SYN with the options that Linux puts there.
const SYN_BYTES: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN + 40;
/// Frames of one system call.
const BATCH: usize = 64;

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
    let sender = sys::FrameSender::open(device).with_context(|| format!("cannot send frames at {device}"))?;
    println!("sending");
    let mut random = Random::new(u64::from(std::process::id()));
    let mut syns = [syn(own, mac, arguments.target); BATCH];
    let frame = frame(own, mac, arguments.source, arguments.target);
    let begin = Instant::now();
    let (mut count, mut tell_at) = (0, Duration::ZERO);
    loop {
        let now = begin.elapsed();
        if now.as_secs_f64() >= arguments.seconds {
            return Ok(());
        }
        if now >= tell_at {
            println!("{}", serde_json::to_string(&Sent { count, at_ns: sys::monotonic_ns() })?);
            tell_at = now + TELL_EVERY;
        }
        if arguments.rate.is_some_and(|rate| count as f64 >= rate * now.as_secs_f64()) {
            // To sleep would take longer than a batch is worth of time.
            std::hint::spin_loop();
            continue;
        }
        let frames: [&[u8]; BATCH] = if arguments.syn {
            for syn in &mut syns {
                forge(syn, &mut random);
            }
            syns.each_ref().map(<[u8; SYN_BYTES]>::as_slice)
        } else {
            [&frame; BATCH]
        };
        count += sender.send(frames).with_context(|| format!("cannot send at {device}"))?;
    }
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
fn forge(frame: &mut [u8; SYN_BYTES], random: &mut Random) {
    const NETWORK: u32 = 0xc612_0000;
    let (header, segment) = frame[ethernet::HEADER_LEN..].split_at_mut(ipv4::MIN_HEADER_LEN);
    let source = NETWORK | random.below(1 << 17);
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
    udp::Header { source_port: 40_000, destination_port: target.port(), len, checksum: 0 }.emit(datagram);
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
        let datagram = udp::Header::parse(&packet[ipv4::MIN_HEADER_LEN..]).unwrap();
        assert_eq!((datagram.destination_port, datagram.len, datagram.checksum), (9000, 26, 0));
        assert!(parse_mac("02:00").is_err() && parse_mac("02:00:00:00:00:xx").is_err());
    }
}
