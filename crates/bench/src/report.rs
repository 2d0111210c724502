//! What an experiment hands back: rows of figures, the facts of the machine, and how it was done.
//!
//! The JSON form is read by scripts and stays stable; see DESIGN §10.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::Serialize;

use crate::plot::Figure;
use crate::profile::Profile;

/// Which direction of a metric is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// What a figure ought to be, in its metric's good direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Of the ratio.
    Ratio(f64),
    /// Of our own figure.
    Ours(f64),
}

/// One figure of one case: ours, the peer's, and the ratio.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was run: server, size, clients.
    pub case: String,
    /// What was measured.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which direction is good.
    pub better: Better,
    /// Median over the rounds.
    pub ours: f64,
    /// The peer's median from the same rounds.
    pub peer: Option<f64>,
    /// Who the peer is; empty without one.
    pub peer_name: String,
    /// `ours / peer`.
    pub ratio: Option<f64>,
    /// The lowest and the highest of ours over the rounds.
    pub spread: [f64; 2],
    /// The same of the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_spread: Option<[f64; 2]>,
    /// What it ought to be, where that is laid down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

impl Row {
    /// A row from what each round measured. Without rounds of ours all is 0.
    pub fn new(
        case: impl Into<String>,
        (metric, unit, better): (&str, &str, Better),
        ours: &[f64],
        peer: Option<(&str, &[f64])>,
    ) -> Row {
        let middle = median(ours);
        let peer_middle = peer.map(|(_, figures)| median(figures));
        Row {
            case: case.into(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            better,
            ours: rounded(middle),
            peer: peer_middle.map(rounded),
            peer_name: peer.map(|(name, _)| name.to_owned()).unwrap_or_default(),
            ratio: peer_middle.filter(|peer| *peer != 0.0).map(|peer| rounded(middle / peer)),
            spread: spread(ours),
            peer_spread: peer.map(|(_, figures)| spread(figures)),
            target: None,
        }
    }

    /// As [`Row::new`], with means in the place of medians and the 95 % confidence interval of ours in that of its
    /// lowest and highest.
    pub fn with_confidence(
        case: impl Into<String>,
        metric: (&str, &str, Better),
        ours: &[f64],
        peer: Option<(&str, &[f64])>,
    ) -> Row {
        let middle = peer.map(|(name, figures)| (name, [mean(figures)]));
        let row =
            Row::new(case, metric, &[mean(ours)], middle.as_ref().map(|(name, middle)| (*name, &middle[..])));
        let half = half_interval(ours);
        let spread = if ours.is_empty() { [0.0; 2] } else { [mean(ours) - half, mean(ours) + half] };
        Row { spread: spread.map(rounded), peer_spread: None, ..row }
    }

    /// The same row with a target.
    #[must_use]
    pub fn aiming_at(self, target: impl Into<Option<Target>>) -> Row {
        Row { target: target.into(), ..self }
    }

    /// Whether the target is met; `None` without one, or without a ratio to compare with it.
    pub fn meets_target(&self) -> Option<bool> {
        let (figure, target) = match self.target? {
            Target::Ratio(target) => (self.ratio?, target),
            Target::Ours(target) => (self.ours, target),
        };
        Some(if self.better == Better::Higher { figure >= target } else { figure <= target })
    }

    /// The target for people: `≥ 1.50 ×`, and whether it was missed.
    fn target_text(&self) -> String {
        let sign = if self.better == Better::Higher { '≥' } else { '≤' };
        let text = match self.target {
            None => return String::new(),
            Some(Target::Ratio(ratio)) => format!("{sign} {ratio:.2} ×"),
            Some(Target::Ours(figure)) => format!("{sign} {}", number(figure)),
        };
        if self.meets_target() == Some(false) { format!("{text} MISSED") } else { text }
    }
}

/// The lowest and the highest; 0 of none.
fn spread(figures: &[f64]) -> [f64; 2] {
    let low = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let high = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if figures.is_empty() { [0.0; 2] } else { [rounded(low), rounded(high)] }
}

/// The mean; 0 of none.
pub fn mean(figures: &[f64]) -> f64 {
    if figures.is_empty() { 0.0 } else { figures.iter().sum::<f64>() / figures.len() as f64 }
}

/// Half of the 95 % confidence interval of the mean: Student's t times the standard error. 0 of fewer than two.
pub fn half_interval(figures: &[f64]) -> f64 {
    /// Two-sided 95 % quantiles for 1, 2, … degrees of freedom; beyond, the normal distribution's.
    const T: [f64; 19] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093,
    ];
    let count = figures.len();
    if count < 2 {
        return 0.0;
    }
    let middle = mean(figures);
    let squares: f64 = figures.iter().map(|figure| (figure - middle).powi(2)).sum();
    let deviation = (squares / (count - 1) as f64).sqrt();
    T.get(count - 2).copied().unwrap_or(1.96) * deviation / (count as f64).sqrt()
}

/// The middle value; the mean of the two middle ones when their number is even; 0 of none.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// Four significant digits: no more is ever meant.
fn rounded(figure: f64) -> f64 {
    if figure == 0.0 || !figure.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(3 - figure.abs().log10().floor() as i32);
    if scale > 1.0 { (figure * scale).round() / scale } else { figure.round() }
}

/// The facts of the machine that figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Processors online.
    pub cpus: usize,
    /// Frequency governor, where there is one.
    pub governor: Option<String>,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The system's default TCP congestion control (the experiments set cubic for the kernel).
    pub congestion: String,
    /// How the experiment was done: who ran where, for how long, and how busy the cores were.
    pub method: BTreeMap<String, String>,
}

impl Machine {
    /// Reads the facts of this machine.
    pub fn read() -> Machine {
        let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let value = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
        let meminfo = text("/proc/meminfo").unwrap_or_default();
        let memory = value(&meminfo, "MemTotal").unwrap_or_default();
        let memory_kib: u64 =
            memory.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Machine {
            kernel: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cpu: value(&cpuinfo, "model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            memory_mib: memory_kib / 1024,
            congestion: text("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default(),
            method: BTreeMap::new(),
        }
    }
}

/// The commit of the source that this program is run from; empty when it cannot be told.
pub fn commit() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("git").arg("-C").arg(source).args(["rev-parse", "--short", "HEAD"]).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// The result of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub experiment: String,
    /// Where it ran, and how.
    pub machine: Machine,
    /// What was run.
    pub commit: String,
    /// The figures.
    pub rows: Vec<Row>,
    /// Where each arm spent the server core's time, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<Profile>,
    /// What `--plot` draws.
    #[serde(skip)]
    pub figure: Option<Figure>,
}

impl Report {
    /// An empty report of this machine and commit.
    pub fn new(experiment: &str) -> Report {
        Report {
            experiment: experiment.to_owned(),
            machine: Machine::read(),
            commit: commit(),
            rows: Vec::new(),
            profiles: Vec::new(),
            figure: None,
        }
    }

    /// Adds a line to the method.
    pub fn method(&mut self, what: &str, how: impl Into<String>) {
        self.machine.method.insert(what.to_owned(), how.into());
    }

    /// One JSON object on one line, as DESIGN §10 fixes it.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }
}

impl fmt::Display for Report {
    /// A table for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(
            f,
            "{} · commit {} · Linux {} · {} × {} · {} MiB",
            self.experiment, self.commit, machine.kernel, machine.cpus, machine.cpu, machine.memory_mib
        )?;
        for (what, how) in &machine.method {
            writeln!(f, "  {what}: {how}")?;
        }
        let head = [
            "case",
            "metric",
            "ours",
            "peer",
            "ratio",
            "target",
            "spread of ours",
            "spread of peer",
            "peer is",
        ];
        let mut table = Table::new(&head);
        let from_to = |[low, high]: [f64; 2]| format!("{} – {}", number(low), number(high));
        for row in &self.rows {
            let good = if row.better == Better::Higher { "↑" } else { "↓" };
            table.row(&[
                row.case.clone(),
                format!("{} ({}, {good})", row.metric, row.unit),
                number(row.ours),
                row.peer.map(number).unwrap_or_default(),
                row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
                row.target_text(),
                from_to(row.spread),
                row.peer_spread.map(from_to).unwrap_or_default(),
                row.peer_name.clone(),
            ]);
        }
        write!(f, "\n{table}")?;
        self.profiles.iter().try_for_each(|profile| write!(f, "{profile}"))
    }
}

/// A plain table: the first two columns to the left, figures to the right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, width) in widths.iter().enumerate() {
                let text = cell(row, column);
                let _ = if column < 2 || column == columns - 1 {
                    write!(line, "{text:<width$}  ")
                } else {
                    write!(line, "{text:>width$}  ")
                };
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                writeln!(f, "{}", "─".repeat(widths.iter().map(|width| width + 2).sum::<usize>() - 2))?;
            }
        }
        Ok(())
    }
}

/// A figure for people: 34,900 · 46.3 · 0.82.
pub fn number(figure: f64) -> String {
    if figure.abs() < 100.0 {
        return if figure.abs() < 10.0 { format!("{figure:.2}") } else { format!("{figure:.1}") };
    }
    let digits = format!("{:.0}", figure.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if figure < 0.0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::{Better, Row, Target, half_interval, median, number, rounded};

    #[test]
    fn median_of_even_and_odd_numbers() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }

    #[test]
    fn the_interval_of_confidence_is_students() {
        assert!(half_interval(&[5.0]).abs() < 1e-9);
        // Deviation 1, standard error 1/√3, t of two degrees of freedom.
        assert!((half_interval(&[1.0, 2.0, 3.0]) - 4.303 / 3_f64.sqrt()).abs() < 1e-9);
        let metric = ("share", "%", Better::Higher);
        let row = Row::with_confidence("x", metric, &[98.0, 100.0], Some(("kernel", &[40.0, 60.0])));
        assert!((row.ours - 99.0).abs() < 1e-9 && row.ratio.is_some_and(|ratio| (ratio - 1.98).abs() < 1e-9));
        assert!((row.spread[1] - row.spread[0] - 2.0 * 12.71).abs() < 0.1, "{:?}", row.spread);
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(number(34_900.4), "34,900");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(46.34), "46.3");
        assert_eq!(number(0.818), "0.82");
        assert!((rounded(0.123_456) - 0.1235).abs() < 1e-9);
        assert!((rounded(123_456.7) - 123_457.0).abs() < 1e-9);
    }

    #[test]
    fn targets_are_met_in_the_good_direction() {
        let metric = ("throughput", "req/s", Better::Higher);
        let row = Row::new("x", metric, &[3.0], Some(("kernel", &[2.0])));
        assert_eq!(row.clone().meets_target(), None);
        assert_eq!(row.clone().aiming_at(Target::Ratio(1.5)).meets_target(), Some(true));
        let missed = row.aiming_at(Target::Ratio(1.6));
        assert_eq!((missed.meets_target(), missed.target_text().as_str()), (Some(false), "≥ 1.60 × MISSED"));
        let memory = Row::new("x", ("memory", "MiB", Better::Lower), &[310.0], None);
        assert_eq!(memory.aiming_at(Target::Ours(300.0)).target_text(), "≤ 300 MISSED");
    }

    #[test]
    fn json_of_a_row_is_as_the_design_fixes_it() {
        let metric = ("throughput", "req/s", Better::Higher);
        let row = Row::new("nginx 1 KB", metric, &[2.0, 4.0, 3.0], Some(("kernel", &[6.0])));
        let json = serde_json::to_string(&row).unwrap();
        let expected = r#"{"case":"nginx 1 KB","metric":"throughput","unit":"req/s","better":"higher","ours":3.0,"peer":6.0,"peer_name":"kernel","ratio":0.5,"spread":[2.0,4.0],"peer_spread":[6.0,6.0]}"#;
        assert_eq!(json, expected);
        let alone = Row::new("x", metric, &[1.0], None);
        assert!(
            serde_json::to_string(&alone).unwrap().contains(r#""peer":null,"peer_name":"","ratio":null"#)
        );
    }
}
