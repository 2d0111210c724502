//! Figures of the cases: rows, how they came about, and what `--plot` draws.

use super::bed::{self, Arm};
use super::{Plan, Results, STEER, Seen, Work, case_text};
use crate::Options;
use crate::harness::describe_conditions;
use crate::load::bulk::Shape;
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, mean, median};
use crate::testbed::Link;

const OURS: usize = 0;

/// What the rounds of one case say on one arm.
struct Figures<'a> {
    link: Link,
    work: Work,
    results: &'a Results,
    arm: usize,
}

impl Figures<'_> {
    fn each(&self, figure: impl Fn(&Seen) -> f64) -> Vec<f64> {
        self.results.of(self.work, self.arm).iter().map(figure).collect()
    }

    /// A figure of each round of this case and of the same round of another.
    fn beside(&self, other: Option<Work>, figure: impl Fn(&Seen, &Seen) -> f64) -> Vec<f64> {
        let Some(other) = other else { return Vec::new() };
        let others = self.results.of(other, self.arm);
        self.results
            .of(self.work, self.arm)
            .iter()
            .zip(others)
            .map(|(seen, other)| figure(seen, other))
            .collect()
    }

    /// Percent of what foreground does alone.
    fn kept(&self) -> Vec<f64> {
        self.beside(self.work.alone(), |seen, alone| percent(seen.foreground.rate, alone.foreground.rate))
    }

    /// Microseconds that background adds to the median of what it is alone: the machine's own pauses hit one round and
    /// not another.
    fn added(&self, of: impl Fn(&Seen) -> f64) -> Vec<f64> {
        let Some(alone) = self.work.alone() else { return Vec::new() };
        let alone: Vec<f64> = self.results.of(alone, self.arm).iter().map(&of).collect();
        self.each(|seen| of(seen) - median(&alone))
    }

    /// Percent of what foreground leaves, which background gets.
    fn used(&self) -> Vec<f64> {
        let rate = self.link.rate as f64;
        match (self.work.unlimited(), self.work.alone()) {
            // What nginx could send to background at most, less what foreground takes of that.
            (Some(unlimited), Some(alone)) => {
                let most = self.results.of(unlimited, self.arm).iter().map(|seen| seen.background.rate);
                let alone = self.results.of(alone, self.arm).iter().map(|seen| seen.foreground.rate);
                let idle = most.zip(alone).map(|(most, alone)| most - alone);
                let got = self.each(|seen| seen.background.rate);
                got.into_iter().zip(idle).map(|(got, idle)| percent(got, idle)).collect()
            }
            (_, Some(alone)) => self.beside(Some(alone), |seen, alone| {
                percent(seen.background.rate, rate - alone.foreground.rate)
            }),
            (_, None) => self.each(|seen| percent(seen.background.rate, rate)),
        }
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Nothing is left for background.
fn is_full(work: Work) -> bool {
    matches!(work, Work::Bulk { foreground: Some((_, Shape::Full)), .. })
}

fn is_bursty(work: Work) -> bool {
    matches!(work, Work::Bulk { foreground: Some((_, Shape::Bursty)), .. })
}

pub(super) fn rows(
    link: Link,
    case: Work,
    results: &Results,
    arms: &[Arm],
    options: &Options,
    rows: &mut Vec<Row>,
) {
    let of = |arm| Figures { link, work: case, results, arm };
    for (peer, arm) in arms.iter().enumerate().skip(OURS + 1) {
        let mut add = |metric: (&str, &str, Better), figures: &dyn Fn(&Figures<'_>) -> Vec<f64>| {
            let (ours, peers) = (figures(&of(OURS)), figures(&of(peer)));
            let peer = Some((arm.name, &*peers));
            let is_time = matches!(metric.1, "µs" | "frames");
            let row = if is_time { Row::new } else { Row::with_confidence };
            rows.push(row(case_text(link, case), metric, &ours, peer));
        };
        if case.alone().is_some() {
            add(("foreground, share of alone", "%", Better::Higher), &|of| of.kept());
            add(("foreground throughput", "Mbit/s", Better::Higher), &|of| {
                of.each(|seen| seen.foreground.rate / 1e6)
            });
            add(("foreground latency, p50", "µs", Better::Lower), &|of| {
                of.each(|seen| seen.foreground.p50_us)
            });
            add(("foreground latency, p99", "µs", Better::Lower), &|of| {
                of.each(|seen| seen.foreground.p99_us)
            });
            add(("added to p50", "µs", Better::Lower), &|of| of.added(|seen| seen.foreground.p50_us));
            add(("added to p99", "µs", Better::Lower), &|of| of.added(|seen| seen.foreground.p99_us));
            add(("added to p99, in frame times", "frames", Better::Lower), &|of| {
                let added = of.added(|seen| seen.foreground.p99_us);
                added.into_iter().map(|added| added / link.frame_us()).collect()
            });
        }
        if !is_full(case) {
            add(("background, share of what was idle", "%", Better::Higher), &|of| of.used());
        }
        add(("background throughput", "Mbit/s", Better::Higher), &|of| {
            of.each(|seen| seen.background.rate / 1e6)
        });
        if is_bursty(case) {
            add(("time to yield, p50", "µs", Better::Lower), &|of| of.each(|seen| seen.yield_p50_us));
            add(("time to yield, p99", "µs", Better::Lower), &|of| of.each(|seen| seen.yield_p99_us));
            add(("time to reclaim, p50", "µs", Better::Lower), &|of| of.each(|seen| seen.reclaim_p50_us));
            add(("time to reclaim, p99", "µs", Better::Lower), &|of| of.each(|seen| seen.reclaim_p99_us));
        }
        for (name, core) in [("server core busy", options.server_core), ("load core busy", options.load_core)]
        {
            add((name, "%", Better::Lower), &|of| {
                of.each(|seen| seen.busy.get(core).copied().unwrap_or(0.0))
            });
        }
    }
}

pub(super) fn methods(
    report: &mut Report,
    options: &Options,
    arms: &[Arm],
    (seconds, warmup, rounds): (f64, f64, u32),
    done: &[(Plan, Results)],
) {
    report.method(
        "placement",
        format!(
            "senders, servers and the daemon's engine on core {}; forwarding host, receiver (SCHED_FIFO) and clients \
             on core {}",
            options.server_core, options.load_core
        ),
    );
    report.method(
        "timing",
        format!(
            "{rounds} rounds, arms in turn; {seconds} s each after {warmup} s of warm-up; means, and for ours the 95 % \
             confidence interval (Student's t) as the spread; times: medians, lowest and highest"
        ),
    );
    let text = |link: Link| format!("{} bit/s, MTU {}", link.rate, link.mtu);
    let links: Vec<String> = done.iter().map(|(plan, _)| text(plan.link)).collect();
    report.method(
        "link",
        format!(
            "a forwarding host with tbf ({}), 50 full frames of queue; veth pairs, offloads on, cubic on every route",
            links.join("; ")
        ),
    );
    report.method(
        "senders",
        "the same program in every arm, 3 flows of each side, messages of one frame with the time when they were due; \
         full: TCP what the sockets take, UDP twice the link's rate; bursty: 10 ms in 100, at 0.9 of the link's rate; \
         the foreground sender and the receiver are SCHED_FIFO in every arm, and sleep 100 µs at most at a time, so that \
         what delays a message is the network and not a core that wakes late",
    );
    report.method(
        "web",
        "nginx, 1 worker: one client of 50 KB that thinks 20 ms, beside 8 clients of 500 KB; by address (an idle class) \
         on paths, by a second server on port 81 in the arms nice, SCHED_IDLE and htb; rates are those of bodies",
    );
    report.method(
        "arms",
        format!(
            "{}; paths: `run --background` and the device's rate, the link's; htb: two classes at the link's rate",
            arms.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", ")
        ),
    );
    report.method(
        "yielding congestion control of the kernel",
        bed::yielding().unwrap_or("this kernel has none (neither ledbat nor lp): no such arm"),
    );
    report.method(
        "yield, reclaim",
        "from when the first message of a burst was due to the last of background before the burst's last arrival; from \
         that to background's next arrival",
    );
    let all = || done.iter().flat_map(|(_, results)| results.seen.values().flatten().flatten());
    let errors = all().map(|seen| seen.errors).sum();
    let others = all().map(|seen| seen.others).fold(0.0, f64::max);
    describe_conditions(report, options, STEER, (errors, "messages or requests"), others);
}

fn kept(of: &Figures<'_>) -> Vec<f64> {
    of.kept()
}

fn used(of: &Figures<'_>) -> Vec<f64> {
    of.used()
}

pub(super) fn figure(done: &[(Plan, Results)], arms: &[Arm]) -> Figure {
    let mut panels = Vec::new();
    for (plan, results) in done {
        let mut panel =
            |what: &str, unit: &str, wanted: fn(Work) -> bool, of: fn(&Figures<'_>) -> Vec<f64>| {
                let middle = if unit == "µs" { median } else { mean };
                let cases: Vec<Work> = plan.cases.iter().copied().filter(|case| wanted(*case)).collect();
                let series = arms.iter().enumerate().map(|(arm, named)| {
                    let point = |(at, &work): (usize, &Work)| {
                        (at as f64, middle(&of(&Figures { link: plan.link, work, results, arm })).max(0.0))
                    };
                    Series { name: named.name.into(), points: cases.iter().enumerate().map(point).collect() }
                });
                panels.push(Panel {
                    title: case_text(plan.link, plan.cases[0]).split(',').next().unwrap_or("").to_owned()
                        + ": "
                        + what,
                    y_label: unit.to_owned(),
                    categories: cases.iter().map(|case| short(*case)).collect(),
                    series: series.collect(),
                    ..Panel::default()
                });
            };
        panel("foreground beside background", "% of alone", |case| case.alone().is_some(), kept);
        panel(
            "added to the p99 of foreground",
            "µs",
            |case| case.alone().is_some(),
            |of| of.added(|seen| seen.foreground.p99_us),
        );
        panel("background", "% of what was idle", |case| !is_full(case), used);
        panel("time to yield, p99", "µs", is_bursty, |of| of.each(|seen| seen.yield_p99_us));
    }
    Figure { title: "Foreground beside unlimited background".into(), panels }
}

/// A case in a few letters.
fn short(case: Work) -> String {
    match case {
        Work::Bulk { foreground, background } => {
            let background = background.map_or("", |protocol| protocol.name());
            match foreground {
                Some((protocol, Shape::Full)) => format!("{} / {background}", protocol.name()),
                Some((protocol, Shape::Bursty)) => format!("{} 10 % / {background}", protocol.name()),
                None => format!("- / {background}"),
            }
        }
        Work::Web { .. } => "web".to_owned(),
    }
}
