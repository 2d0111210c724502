//! `micro`: what the primitives cost, in this process, on one core. There is no peer.
//!
//! - A hit in the demultiplexer: the key of a frame, and the look-up among 100,000 flows. Frames come in
//!   random order of their flows, so that the table's slots are as cold as they are in service; the
//!   frames themselves lie in a row, because a frame that has just arrived is in the cache.
//! - The same for bursts of frames, whose lines are brought in together.
//! - A miss: the same with frames of flows that are not there.
//! - Flows in and out of the table, as creating and destroying a path does.
//! - TCP paths made and ended on a whole engine, alone and beside 100,000 others.
//! - Copies by size, the floor under everything that moves data.
//!
//! All but the last can be counted in instructions as well, see [`callgrind`](crate::callgrind).

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use scoutline_base::{DeviceId, PathId, Random};
use scoutline_engine::path_cost;
use scoutline_path::{FlowKey, FlowTable, flow_of_frame};

use crate::report::{Better, Report, Row};
use crate::{Options, sys};

const FLOWS: u32 = 100_000;
/// A number of whole batches of [`path_cost`].
const PATHS: u32 = 20_032;
/// Ethernet, IPv4 and TCP without options, padded to a cache line so that frames do not share one.
const FRAME: usize = 64;
const COPIES: [usize; 5] = [64, 1_500, 4_096, 65_536, 1 << 20];
/// What a busy engine takes from a device at a time is this and more.
pub(crate) const BURST: usize = 32;
const DEVICE: DeviceId = DeviceId(0);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// A case whose instructions can be counted.
pub(crate) struct Case {
    pub(crate) text: &'static str,
    /// The function that repeats the operation, and does nothing else.
    pub(crate) function: &'static str,
    /// How often, in one round.
    pub(crate) operations: u32,
}

/// Those of [`run`] that are no mere copies.
pub(crate) const CASES: [Case; 6] = [
    Case { text: "demux hit, 100,000 flows", function: "micro::demux", operations: FLOWS },
    Case { text: "demux of bursts, 100,000 flows", function: "micro::demux_bursts", operations: FLOWS },
    Case { text: "demux miss, 100,000 flows", function: "micro::demux", operations: FLOWS },
    Case { text: "flow in and out, 100,000 others", function: "micro::in_and_out", operations: FLOWS },
    Case { text: "path create, 100000 others", function: "micro::create_batch", operations: PATHS },
    Case { text: "path destroy, 100000 others", function: "micro::destroy_batch", operations: PATHS },
];

pub(crate) fn run(options: &Options) -> Result<Report> {
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 9 });
    // The machine is looked at first: a thread on one core sees only that one.
    let mut report = Report::new("micro");
    let core = options.server_core;
    sys::set_core(core).with_context(|| format!("cannot use core {core}"))?;
    report.method("placement", format!("core {core}, one thread"));
    report.method("timing", format!("{rounds} rounds; medians; build {}", build()));
    let mut random = Random::new(1);
    let (hits, misses) = (frames(&mut random, 0), frames(&mut random, FLOWS));
    let mut table = FlowTable::new(random.next_u64());
    for flow in 0..FLOWS {
        table.insert(&key(flow), path(flow));
    }
    let mut add = |case: String, metric: &str, unit: &str, measure: &mut dyn FnMut() -> f64| {
        if options.wants(&case) {
            let better = if unit == "ns" { Better::Lower } else { Better::Higher };
            let figures: Vec<f64> = (0..rounds).map(|_| measure()).collect();
            report.rows.push(Row::new(case, (metric, unit, better), &figures, None));
        }
    };
    add("demux hit, 100,000 flows".into(), "time", "ns", &mut || demux(&table, &hits, true));
    add("demux of bursts, 100,000 flows".into(), "time", "ns", &mut || demux_bursts(&table, &hits));
    add("demux miss, 100,000 flows".into(), "time", "ns", &mut || demux(&table, &misses, false));
    add("flow in and out, 100,000 others".into(), "time", "ns", &mut || in_and_out(&mut table));
    for neighbours in [0, FLOWS] {
        let mut destroyed = Vec::new();
        add(format!("path create, {neighbours} others"), "time", "ns", &mut || {
            let cost = path_cost(neighbours, PATHS).expect("the engine fits together");
            destroyed.push(cost.destroy.as_nanos() as f64);
            cost.create.as_nanos() as f64
        });
        let mut next = destroyed.into_iter();
        add(format!("path destroy, {neighbours} others"), "time", "ns", &mut || {
            next.next().unwrap_or_else(|| {
                path_cost(neighbours, PATHS).expect("the engine fits together").destroy.as_nanos() as f64
            })
        });
    }
    for size in COPIES {
        add(format!("copy {size} B"), "rate", "GB/s", &mut || copy(size));
    }
    Ok(report)
}

/// Nanoseconds for one flow.
#[inline(never)] // it has to have a name where it is counted
fn in_and_out(table: &mut FlowTable) -> f64 {
    let begin = Instant::now();
    for flow in FLOWS..2 * FLOWS {
        table.insert(&key(flow), path(flow));
        table.remove(black_box(&key(flow)));
    }
    begin.elapsed().as_nanos() as f64 / f64::from(FLOWS)
}

/// Nanoseconds for one frame: its key, and its path.
#[inline(never)] // it has to have a name where it is counted
pub(crate) fn demux(table: &FlowTable, frames: &[u8], hit: bool) -> f64 {
    let count = frames.len() / FRAME;
    let begin = Instant::now();
    let mut found = 0_usize;
    for frame in frames.chunks_exact(FRAME) {
        let key = flow_of_frame(black_box(frame), DEVICE).expect("these frames are of the common kind");
        found += usize::from(table.lookup(&key).is_some());
    }
    let elapsed = begin.elapsed();
    assert_eq!(found, if hit { count } else { 0 }, "the table is wrong");
    elapsed.as_nanos() as f64 / count as f64
}

/// The same for frames that come in bursts, as the engine sorts them: all their lines are asked for before the first is
/// looked at. A burst is in the cache when it is sorted, since it has just arrived.
#[inline(never)] // it has to have a name where it is counted
pub(crate) fn demux_bursts(table: &FlowTable, frames: &[u8]) -> f64 {
    let count = frames.len() / FRAME;
    let (mut found, mut taken) = (0_usize, Duration::ZERO);
    let mut arrived = [0; BURST * FRAME];
    for burst in frames.chunks(BURST * FRAME) {
        let here = &mut arrived[..burst.len()];
        here.copy_from_slice(burst);
        let burst = black_box(&*here);
        let begin = Instant::now();
        let mut probes = [None; BURST];
        for (probe, frame) in probes.iter_mut().zip(burst.chunks_exact(FRAME)) {
            let key = flow_of_frame(black_box(frame), DEVICE).expect("these frames are of the common kind");
            probe.insert(table.probe(&key)).prefetch();
        }
        found += probes.iter().flatten().filter(|probe| probe.path().is_some()).count();
        taken += begin.elapsed();
    }
    assert_eq!(found, count, "the table is wrong");
    taken.as_nanos() as f64 / count as f64
}

/// Gigabytes per second.
fn copy(size: usize) -> f64 {
    let from = vec![7_u8; size];
    let mut to = vec![0_u8; size];
    let times = (256 << 20) / size;
    let begin = Instant::now();
    for _ in 0..times {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    (times * size) as f64 / begin.elapsed().as_nanos() as f64
}

/// One of as many flows as there may be.
pub(crate) fn key(flow: u32) -> FlowKey {
    FlowKey {
        remote: Ipv4Addr::from(0x0a4d_0002 + flow / 50_000).into(),
        local: SERVER.into(),
        remote_port: 10_000 + (flow % 50_000) as u16,
        local_port: 80,
        device: DEVICE,
        protocol: 6,
    }
}

/// The path of a flow.
pub(crate) fn path(flow: u32) -> PathId {
    PathId { index: flow, generation: 1 }
}

fn frames(random: &mut Random, first: u32) -> Vec<u8> {
    frames_of(random, first, FLOWS)
}

/// One TCP frame of each of `count` flows from `first` on, shuffled.
pub(crate) fn frames_of(random: &mut Random, first: u32, count: u32) -> Vec<u8> {
    let mut flows: Vec<u32> = (first..first + count).collect();
    for index in (1..flows.len()).rev() {
        flows.swap(index, random.below(index as u32 + 1) as usize);
    }
    let mut frames = Vec::with_capacity(flows.len() * FRAME);
    for flow in flows {
        let key = key(flow);
        let mut frame = [0_u8; FRAME];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&40_u16.to_be_bytes());
        frame[22] = 64;
        frame[23] = key.protocol;
        frame[26..30].copy_from_slice(&key.remote.octets()[12..]);
        frame[30..34].copy_from_slice(&key.local.octets()[12..]);
        frame[34..36].copy_from_slice(&key.remote_port.to_be_bytes());
        frame[36..38].copy_from_slice(&key.local_port.to_be_bytes());
        frame[46] = 5 << 4;
        frames.extend_from_slice(&frame);
    }
    frames
}

fn build() -> &'static str {
    if cfg!(debug_assertions) { "dev: not for claims" } else { "release" }
}

#[cfg(test)]
mod tests {
    use crate::Options;

    #[test]
    fn every_frame_finds_its_flow() {
        let options = Options { rounds: Some(1), only: Some("demux".into()), ..Options::default() };
        let report = super::run(&options).unwrap();
        assert_eq!(report.rows.len(), 3);
        assert!(report.rows.iter().all(|row| row.ours > 0.0 && row.peer.is_none()), "{report}");
    }
}
