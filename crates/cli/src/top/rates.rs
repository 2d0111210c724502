//! From two samples to rates. Pure.

use std::collections::{BTreeMap, HashMap};

use scoutline_abi::api::{PathRow, Scheduling};
use serde::Serialize;

use super::Sample;
use crate::output;

/// What the paths are ordered by, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Cpu,
    Packets,
    Bytes,
}

/// Per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    /// Share of a core, 0 to 1.
    pub(super) cpu: f64,
    pub(super) packets: f64,
    pub(super) bits_in: f64,
    pub(super) bits_out: f64,
    pub(super) drops: f64,
}

impl Rates {
    pub(super) fn cells(&self) -> [String; 5] {
        [
            format!("{:.1}", self.cpu * 100.0),
            output::count(self.packets as u64),
            output::bit_rate(self.bits_in),
            output::bit_rate(self.bits_out),
            output::count(self.drops as u64),
        ]
    }
}

/// One round; `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) uptime_s: f64,
    pub(super) interval_s: f64,
    pub(super) path_count: usize,
    /// Shares of the interval: busy, spinning, asleep, away.
    pub(super) engine: BTreeMap<String, f64>,
    pub(super) classes: Vec<ClassRates>,
    pub(super) paths: Vec<PathRates>,
}

#[derive(Debug, Serialize)]
pub(super) struct ClassRates {
    pub(super) name: String,
    pub(super) priority: Option<u8>,
    #[serde(flatten)]
    pub(super) scheduling: Scheduling,
    pub(super) paths: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

#[derive(Debug, Serialize)]
pub(super) struct PathRates {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) class: String,
    pub(super) priority: Option<u8>,
    #[serde(flatten)]
    pub(super) scheduling: Scheduling,
    pub(super) state: Option<String>,
    pub(super) queue_packets: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

/// Counters in one order: CPU nanoseconds, packets, bytes in, bytes out, drops.
type Counters = [u64; 5];

fn rates(before: Counters, after: Counters, seconds: f64) -> Rates {
    let [cpu, packets, bytes_in, bytes_out, drops]: [f64; 5] =
        std::array::from_fn(|i| after[i].saturating_sub(before[i]) as f64 / seconds);
    Rates { cpu: cpu / 1e9, packets, bits_in: bytes_in * 8.0, bits_out: bytes_out * 8.0, drops }
}

fn of_path(path: &PathRow) -> Counters {
    [
        path.cpu_ns,
        path.packets_in + path.packets_out,
        path.bytes_in,
        path.bytes_out,
        path.drops.values().sum(),
    ]
}

/// What happened between two samples. A path that is new counts from zero.
pub(super) fn round(before: &Sample, after: &Sample, sort: Sort) -> Round {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
    let old: HashMap<&str, &PathRow> = before.paths.iter().map(|path| (path.id.as_str(), path)).collect();
    let mut paths: Vec<PathRates> = after
        .paths
        .iter()
        .map(|path| PathRates {
            id: path.id.clone(),
            name: path.name.clone(),
            class: path.class.clone(),
            priority: path.priority,
            scheduling: path.scheduling.clone(),
            state: path.state.clone(),
            queue_packets: path.queue_packets,
            rates: rates(
                old.get(path.id.as_str()).map_or([0; 5], |path| of_path(path)),
                of_path(path),
                seconds,
            ),
        })
        .collect();
    let key = |path: &PathRates| match sort {
        Sort::Cpu => path.rates.cpu,
        Sort::Packets => path.rates.packets,
        Sort::Bytes => path.rates.bits_in + path.rates.bits_out,
    };
    paths.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
    let classes = after.stat.classes.iter().map(|class| {
        let counters = |class: &scoutline_abi::api::ClassRow| {
            let packets = class.packets_in + class.packets_out;
            [class.cpu_ns, packets, class.bytes_in, class.bytes_out, class.drops.values().sum()]
        };
        let old = before.stat.classes.iter().find(|old| old.name == class.name).map_or([0; 5], counters);
        let rates = rates(old, counters(class), seconds);
        ClassRates {
            name: class.name.clone(),
            priority: class.priority,
            scheduling: class.scheduling.clone(),
            paths: class.paths,
            rates,
        }
    });
    let engine = after.stat.engine.iter().filter_map(|(name, value)| {
        let old = before.stat.engine.get(name).copied().unwrap_or(0);
        let name = output::nanoseconds(name)?;
        Some((name.to_owned(), value.saturating_sub(old) as f64 / 1e9 / seconds))
    });
    Round {
        uptime_s: after.stat.uptime_s,
        interval_s: seconds,
        path_count: after.paths.len(),
        engine: engine.collect(),
        classes: classes.collect(),
        paths,
    }
}

#[cfg(test)]
mod tests {
    use super::{Sort, round};
    use crate::top::{Sample, text};
    use scoutline_abi::api::{ClassRow, PathRow, Stat};
    use std::time::{Duration, Instant};

    fn sample(at: Instant, cpu_ns: u64, bytes: u64) -> Sample {
        let path = |id: &str, factor: u64| PathRow {
            id: id.into(),
            name: id.into(),
            cpu_ns: cpu_ns * factor,
            bytes_in: bytes / factor,
            ..PathRow::default()
        };
        let class = ClassRow { name: "c".into(), cpu_ns, ..ClassRow::default() };
        let engine = [("busy-ns".to_owned(), cpu_ns), ("wakeups".to_owned(), 7)].into();
        let stat = Stat { classes: vec![class], engine, ..Stat::default() };
        Sample { at, stat, paths: vec![path("a", 1), path("b", 2)] }
    }

    #[test]
    fn rates_are_per_second_and_sorted() {
        let start = Instant::now();
        let (before, after) =
            (sample(start, 0, 0), sample(start + Duration::from_secs(2), 1_000_000_000, 4_000));
        let by_cpu = round(&before, &after, Sort::Cpu);
        assert_eq!(by_cpu.paths[0].id, "b");
        assert!((by_cpu.paths[0].rates.cpu - 1.0).abs() < 1e-9);
        assert!((by_cpu.classes[0].rates.cpu - 0.5).abs() < 1e-9);
        assert_eq!(by_cpu.engine.len(), 1);
        let by_bytes = round(&before, &after, Sort::Bytes);
        assert_eq!(by_bytes.paths[0].id, "a");
        assert!((by_bytes.paths[0].rates.bits_in - 16_000.0).abs() < 1e-6);
        assert!(text(&by_cpu).contains("busy 50 %"), "{}", text(&by_cpu));
    }
}
