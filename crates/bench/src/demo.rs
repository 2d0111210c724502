//! The demonstration: nginx, unmodified, on the kernel and on paths; 96 standard clients and a
//! preferred one; files of 1 and 50 KB. Live progress, a table, a figure; about a minute.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::Options;
use crate::harness::{Arm, Lab, Load, Measurement, clock, order};
use crate::load::Progress;
use crate::plot::{Figure, Panel, Series, draw};
use crate::report::{Table, median, number};
use crate::server::{Kind, Priorities};

const SIZES_KB: [u32; 2] = [1, 50];
const STANDARD: usize = 96;
const ARMS: [Arm; 3] = [
    Arm { name: "paths priorities", paths: Some(Priorities::Preferred) },
    Arm { name: "kernel", paths: None },
    Arm { name: "paths equal", paths: Some(Priorities::Equal) },
];
const PRIORITIES: usize = 0;
const KERNEL: usize = 1;
const EQUAL: usize = 2;
/// See [`crate::preferred`].
const STEER: bool = true;
/// The order of tables.
const SHOWN: [usize; 3] = [KERNEL, EQUAL, PRIORITIES];
/// Of a core, in percent: what others take beyond it is told (as [`crate::harness`] does).
const MUCH: f64 = 10.0;
const FIGURE: &str = "scoutline-demo.svg";

/// Runs the demonstration and prints its table; the figure goes to `options.plot`, or to
/// `scoutline-demo.svg` in the current directory.
///
/// # Errors
/// As for [`crate::run`].
pub fn demo(options: &Options) -> Result<()> {
    let (rounds, seconds, warmup) = if options.quick { (1, 1.5, 0.3) } else { (3, 3.5, 0.5) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
    let begin = Instant::now();
    let path = options.plot.as_deref().unwrap_or(Path::new(FIGURE));
    // Before a minute of measuring, not after.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "cannot write the figure: there is no folder {}", folder.display());
    eprintln!(
        "Making hosts: three servers and a client (network namespaces, veth pairs). Starting nginx on each:\n\
         on the kernel, on paths with equal priorities, on paths where the client 10.77.0.3 is preferred."
    );
    let mut lab = Lab::new(options, &ARMS, STEER)?;
    lab.serve(Kind::NGINX)?;
    let total = rounds as usize * SIZES_KB.len() * ARMS.len();
    eprintln!(
        "{STANDARD} standard clients ask without pause, and one preferred client. {total} measurements:"
    );
    let mut seen: Vec<[Vec<Measurement>; 3]> = SIZES_KB.iter().map(|_| Default::default()).collect();
    let mut done = 0;
    for round in 0..rounds {
        for (size, size_kb) in SIZES_KB.iter().enumerate() {
            for arm in order(ARMS.len(), round) {
                done += 1;
                let name = lab.arms()[arm].name;
                let head = format!("[{done:>2}/{total}] {size_kb:>2} KB, {name:<16}");
                let mut live = |standard: Option<Progress>, preferred: Option<Progress>| {
                    show(&head, standard, preferred, begin);
                };
                let load = Load { size_kb: *size_kb, standard: STANDARD, preferred: true, seconds, warmup };
                let live: Option<&mut dyn FnMut(Option<Progress>, Option<Progress>)> =
                    if options.progress { Some(&mut live) } else { None };
                let measurement = lab.measure(arm, &load, live)?;
                show_result(&head, &measurement, options, begin);
                seen[size][arm].push(measurement);
            }
        }
    }
    drop(lab);
    let mut text = format!("\n{}\n", table(&seen, options));
    for (size, size_kb) in SIZES_KB.iter().enumerate() {
        let _ = writeln!(text, "{size_kb:>2} KB: {}", sentence(&seen[size]));
    }
    text.push_str(&disturbed(seen.iter().flatten().flatten()));
    if options.baseline {
        text.push_str("(Baseline: the kernel stood in our place too.)\n");
    }
    draw(&figure(&seen), path)?;
    let _ = writeln!(text, "The figure is in {}. Hosts and servers are removed.", path.display());
    // Whoever reads may have gone (`| head`): that is no fault of ours.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// What a row of measurements comes to. What does not lie beyond the spread of the rounds is not called faster.
fn sentence(arms: &[Vec<Measurement>; 3]) -> String {
    let times =
        |arm: usize| arms[arm].iter().map(|seen| seen.preferred.mean_us.max(1.0)).collect::<Vec<f64>>();
    let against = |other: usize| {
        let (ours, theirs) = (times(PRIORITIES), times(other));
        let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        if ours.len() > 1 && least(&ours) <= most(&theirs) && least(&theirs) <= most(&ours) {
            return None;
        }
        Some(format!("{:.1} times as fast as", median(&theirs) / median(&ours)))
    };
    let ends = "(the difference is within the spread of the rounds)";
    match (against(EQUAL), against(KERNEL)) {
        (Some(equal), Some(kernel)) => format!(
            "with priorities the preferred client is served {equal} with equal ones, and {kernel} by the kernel."
        ),
        (None, Some(kernel)) => format!(
            "with priorities the preferred client is served {kernel} by the kernel, and as with equal ones {ends}."
        ),
        (Some(equal), None) => format!(
            "with priorities the preferred client is served {equal} with equal ones, and as by the kernel {ends}."
        ),
        (None, None) => {
            format!(
                "the preferred client is served alike with priorities, with equal ones and by the kernel {ends}."
            )
        }
    }
}

/// A line about what else ran meanwhile, if it was much.
fn disturbed<'a>(seen: impl Iterator<Item = &'a Measurement>) -> String {
    let others = seen.map(|seen| seen.others).fold(0.0, f64::max);
    if others < MUCH {
        return String::new();
    }
    format!(
        "The machine was busy beside: other processes took up to {others:.0} % of a core, so these figures are not clean; \
         a quiet machine shows more.\n"
    )
}

fn show(head: &str, standard: Option<Progress>, preferred: Option<Progress>, begin: Instant) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let (standard, preferred) = (standard.map(|seen| seen.throughput), preferred.map(|seen| seen.mean_us));
    eprint!(
        "\r\x1b[K{head} {:>7} requests/s · preferred client {:>6} µs   ({})",
        number(standard.unwrap_or(0.0)),
        number(preferred.unwrap_or(0.0)),
        clock(begin.elapsed())
    );
    let _ = std::io::stderr().flush();
}

fn show_result(head: &str, seen: &Measurement, options: &Options, begin: Instant) {
    let start = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    let busy = |core: usize| seen.busy.get(core).copied().unwrap_or(0.0);
    let errors = match seen.error_count() {
        0 => String::new(),
        count => format!(" · {count} requests failed"),
    };
    eprintln!(
        "{start}{head} {:>7} requests/s · preferred client {:>6} µs · server core {:.0} % busy{errors}   ({})",
        number(seen.standard.throughput()),
        number(seen.preferred.mean_us),
        busy(options.server_core),
        clock(begin.elapsed())
    );
}

fn middle(seen: &[Measurement], figure: impl Fn(&Measurement) -> f64) -> f64 {
    median(&seen.iter().map(figure).collect::<Vec<f64>>())
}

fn table(seen: &[[Vec<Measurement>; 3]], options: &Options) -> Table {
    let mut table = Table::new(&[
        "file",
        "nginx on",
        "throughput (req/s)",
        "preferred mean (µs)",
        "preferred p99 (µs)",
        "server core busy (%)",
        "",
    ]);
    for (size_kb, arms) in SIZES_KB.iter().zip(seen) {
        for arm in SHOWN {
            let busy = |seen: &Measurement| seen.busy.get(options.server_core).copied().unwrap_or(0.0);
            table.row(&[
                format!("{size_kb} KB"),
                ARMS[arm].name.to_owned(),
                number(middle(&arms[arm], |seen| seen.standard.throughput())),
                number(middle(&arms[arm], |seen| seen.preferred.mean_us)),
                number(middle(&arms[arm], |seen| seen.preferred.p99_us)),
                number(middle(&arms[arm], busy)),
            ]);
        }
    }
    table
}

fn figure(seen: &[[Vec<Measurement>; 3]]) -> Figure {
    let panel = |title: &str, y_label: &str, figure: &dyn Fn(&Measurement) -> f64| Panel {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        categories: SIZES_KB.iter().map(|size_kb| format!("{size_kb} KB")).collect(),
        series: SHOWN
            .iter()
            .map(|arm| Series {
                name: ARMS[*arm].name.to_owned(),
                points: (0..SIZES_KB.len())
                    .map(|size| (size as f64, middle(&seen[size][*arm], figure)))
                    .collect(),
            })
            .collect(),
        ..Panel::default()
    };
    Figure {
        title: format!("nginx, {STANDARD} standard clients and a preferred one"),
        panels: vec![
            panel("preferred client, mean", "response time (µs)", &|seen| seen.preferred.mean_us),
            panel("preferred client, 99th percentile", "response time (µs)", &|seen| seen.preferred.p99_us),
            panel("standard clients", "requests/s", &|seen| seen.standard.throughput()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::{EQUAL, KERNEL, Measurement, PRIORITIES, disturbed, sentence};

    fn arms(of: [(usize, &[f64]); 3]) -> [Vec<Measurement>; 3] {
        let mut arms: [Vec<Measurement>; 3] = Default::default();
        for (arm, times) in of {
            for &mean_us in times {
                let mut seen = Measurement::default();
                seen.preferred.mean_us = mean_us;
                arms[arm].push(seen);
            }
        }
        arms
    }

    #[test]
    fn what_is_within_the_spread_is_not_called_faster() {
        let clear = arms([
            (PRIORITIES, &[100.0, 110.0, 105.0]),
            (EQUAL, &[300.0, 320.0, 315.0]),
            (KERNEL, &[1000.0, 1050.0, 1100.0]),
        ]);
        assert_eq!(
            sentence(&clear),
            "with priorities the preferred client is served 3.0 times as fast as with equal ones, and 10.0 times as fast as \
             by the kernel."
        );
        let blurred =
            arms([(PRIORITIES, &[434.0, 390.0]), (EQUAL, &[395.0, 420.0]), (KERNEL, &[1000.0, 1100.0])]);
        let text = sentence(&blurred);
        assert!(
            text.contains("times as fast as by the kernel, and as with equal ones (the difference is within"),
            "{text}"
        );
        let alike = arms([(PRIORITIES, &[1.0, 9.0]), (EQUAL, &[2.0, 8.0]), (KERNEL, &[3.0, 4.0])]);
        assert!(sentence(&alike).contains("served alike"));
        // One round has no spread.
        let quick = arms([(PRIORITIES, &[100.0]), (EQUAL, &[100.0]), (KERNEL, &[200.0])]);
        assert!(sentence(&quick).contains("2.0 times as fast as by the kernel"));
    }

    #[test]
    fn what_ran_beside_is_told() {
        let seen = [9.0, 35.0].map(|others| Measurement { others, ..Measurement::default() });
        assert!(disturbed(seen.iter()).contains("up to 35 % of a core"));
        assert_eq!(disturbed(seen[..1].iter()), "");
    }
}
