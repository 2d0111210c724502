//! How fast a device is, on a veth pair of its own, one core each side:
//! `cargo run --release -p scoutline-device --example blast [seconds] [ring frames] [pair]`.
//!
//! Each case runs for a second. "to Linux" is received and dropped by Linux's IP; "to packet" by another partner. With
//! `pair` only pairs of partners run: `packet` and `xdp` in all combinations.

#![allow(unsafe_code)] // setns and core affinity

#[path = "../tests/support/mod.rs"]
mod support;

use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scoutline_base::{DeviceId, Time};
use scoutline_device::{DeviceCounters, Partner, packet, tap, xdp};
use scoutline_path::{Body, Burst, Checksum, Facts, Message, Segmentation, SegmentationKind};
use scoutline_ring::{Span, Spans, StreamMemory};
use support::{Namespace, veth};

struct Source(Box<[u8]>);

impl StreamMemory for Source {
    fn spans(&self, range: Range<u64>) -> Spans {
        let at = range.start as usize % (self.0.len() - (1 << 16));
        let memory = NonNull::from(&self.0[at]);
        [Span { memory, len: (range.end - range.start) as usize }, Span::EMPTY].into()
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(1.0, |text| text.parse().expect("seconds"));
    let frames = arguments.next().map_or(512, |text| text.parse().expect("ring frames"));
    let only = arguments.next().unwrap_or_default();
    let time = Duration::from_secs_f64(seconds);
    for (name, payload, size) in
        [("64 B", 10usize, None), ("1448 B", 1448, None), ("64 KiB super-segments", 45 * 1448, Some(1448u16))]
    {
        for (offload, bypass) in [(true, false), (true, true), (false, false)] {
            if only == "pair" {
                break;
            }
            let (first, _second) = veth();
            let sent = blast(&first, &config("left", offload, bypass, frames), payload, size, time);
            print(
                &format!("{name}, offload {offload}, bypass {bypass}: to Linux"),
                sent.tx_packets,
                sent.tx_bytes,
                time,
            );
        }
        let (first, second) = veth();
        for (from, to) in [("packet", "packet"), ("packet", "xdp"), ("xdp", "packet"), ("xdp", "xdp")] {
            let (sent, got) = both((&first, from), (&second, to), frames, (payload, size), time);
            print(&format!("{name}: sent by {from} to {to}"), sent.tx_packets, sent.tx_bytes, time);
            print(&format!("{name}: received by {to} from {from}"), got.rx_packets, got.rx_bytes, time);
        }
        if only == "pair" {
            continue;
        }
        let namespace = Namespace::new();
        let (mut cable, _) =
            namespace.enter(|| tap::open(DeviceId(1), &tap::Config::new("cable0"))).expect("opens");
        let sent = push_for(&mut cable, payload, size, time);
        print(&format!("{name}: tap to Linux"), sent.tx_packets, sent.tx_bytes, time);
    }
}

fn config(name: &str, offload: bool, qdisc_bypass: bool, ring_frames: u32) -> packet::Config {
    packet::Config { offload, qdisc_bypass, ring_frames, ..packet::Config::new(name) }
}

fn print(what: &str, packets: u64, bytes: u64, time: Duration) {
    let seconds = time.as_secs_f64();
    let (rate, bits) = (packets as f64 / seconds / 1e6, bytes as f64 * 8.0 / seconds / 1e9);
    println!("{what:<60} {rate:7.3} M/s {bits:7.2} Gbit/s");
}

fn blast(
    namespace: &Namespace,
    config: &packet::Config,
    payload: usize,
    size: Option<u16>,
    time: Duration,
) -> DeviceCounters {
    let (mut partner, _) = namespace.enter(|| packet::open(DeviceId(1), config)).expect("opens");
    push_for(&mut partner, payload, size, time)
}

/// An interface by this driver.
fn open(namespace: &Namespace, driver: &str, name: &str, frames: u32) -> Box<dyn Partner> {
    namespace.enter(|| match driver {
        "xdp" => {
            Box::new(xdp::open(DeviceId(1), &xdp::Config::new(name)).expect("opens").0) as Box<dyn Partner>
        }
        _ => Box::new(packet::open(DeviceId(1), &config(name, true, false, frames)).expect("opens").0),
    })
}

fn push_for(partner: &mut dyn Partner, payload: usize, size: Option<u16>, time: Duration) -> DeviceCounters {
    pin(0);
    let source: Rc<dyn StreamMemory> = Rc::new(Source(vec![7; 2 << 20].into()));
    let headers = headers(payload);
    let mut position = 0;
    let mut burst = Burst::new();
    let began = Instant::now();
    while began.elapsed() < time {
        while burst.len() < 32 {
            let segmentation =
                size.map(|size| Segmentation { kind: SegmentationKind::Tcp4, size, header_len: 54 });
            let checksum = Checksum::Partial { start: 34, offset: 16 };
            let facts = Facts { checksum, segmentation, ..Facts::default() };
            let mut message = Message { facts, ..Message::default() };
            message.head.prepend(54).copy_from_slice(&headers);
            let range = position..position + payload as u64;
            position = range.end;
            message.body = Body::Stream { range, memory: Some(source.clone()) };
            burst.push(message);
        }
        partner.push(&mut burst).expect("pushes");
    }
    partner.counters()
}

fn both(
    (first, from): (&Namespace, &str),
    (second, to): (&Namespace, &str),
    frames: u32,
    (payload, size): (usize, Option<u16>),
    time: Duration,
) -> (DeviceCounters, DeviceCounters) {
    let (done, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            pin(1);
            let mut partner = open(second, to, "right", frames);
            let mut burst = Burst::new();
            ready.wait();
            while !done.load(Ordering::Relaxed) {
                partner.pull(&mut burst, 64, Time::ZERO).expect("pulls");
                burst.clear();
            }
            partner.counters()
        });
        let mut partner = open(first, from, "left", frames);
        ready.wait();
        let sent = push_for(partner.as_mut(), payload, size, time);
        done.store(true, Ordering::Relaxed);
        (sent, receiver.join().expect("receives"))
    })
}

fn headers(payload: usize) -> [u8; 54] {
    let mut bytes = [0; 54];
    bytes[..12].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1]);
    bytes[12..26].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    bytes[26..34].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    bytes[46] = 0x50;
    bytes
}

fn pin(core: usize) {
    // SAFETY: a zeroed set, filled with one existing core, for this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
