//! `sched`: the policies in virtual time, against the ideal. Named sets of paths ask for work; a schedule as the engine
//! drives it says who runs; the fluid schedule of the same set (everyone with work served at once, in proportion)
//! says what each would have got on an ideal machine. The same set under round robin, and under plain WFQ (each path by
//! itself) where it is about BERT or about classes, are the peers.
//!
//! Nothing here is measured in real time: the same figures come out on every machine. Rounds differ in their seeds.

mod workload;

use std::time::Duration;

use anyhow::Result;
use scoutline_base::PathId;
use scoutline_sched::simulation::{Asks, Load, Outcome, Task, simulate};
use scoutline_sched::{Entry, FixedPriority, Level, Schedule, Wfq};

use crate::Options;
use crate::plot::{Figure, Panel, Series};
use crate::report::{Better, Report, Row, median};

use workload::Workload;

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arm {
    Ours,
    Wfq,
    RoundRobin,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Ours => "schedule",
            Arm::Wfq => "WFQ",
            Arm::RoundRobin => "round robin",
        }
    }

    /// What a task asks of this one.
    fn ask(self, task: &Task) -> Task {
        let asks = match (self, task.asks) {
            (Arm::Ours, asks) | (Arm::Wfq, asks @ Asks::Weight(_)) => asks,
            // As if each path were a class.
            (Arm::Wfq, Asks::Share(share)) => Asks::Weight(share.class_weight),
            (Arm::Wfq, Asks::Rate { rate, .. } | Asks::RealTime { rate, .. }) => Asks::Weight(rate),
            (Arm::Wfq | Arm::RoundRobin, _) => Asks::Level(Level::default()),
        };
        Task { asks, ..*task }
    }
}

/// What the paths of one name came to, in one round of one arm.
#[derive(Clone, Copy, Default)]
struct Sum {
    asked: Duration,
    got: Duration,
    ideal: Duration,
    behind: Duration,
    ahead: Duration,
    met: u64,
    missed: u64,
    stolen_by: Duration,
    stolen_from: Duration,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.asked += outcome.asked;
        self.got += outcome.got;
        self.ideal += outcome.ideal;
        self.behind = self.behind.max(outcome.behind);
        self.ahead = self.ahead.max(outcome.ahead);
        self.met += outcome.met;
        self.missed += outcome.missed;
    }
}

/// Per arm, per round, per name.
type Sums = Vec<(Arm, Vec<Vec<Sum>>)>;

pub(crate) fn run(options: &Options) -> Result<Report> {
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 5 });
    let seconds = options.seconds.unwrap_or(if options.quick { 2.0 } else { 10.0 });
    let mut report = Report::new("sched");
    report
        .method("time", format!("virtual: {rounds} rounds of {seconds} s, each with its own seed; medians"));
    report.method("fluid", "everyone with work served at once, in proportion: the ideal");
    let workloads: Vec<Workload> =
        workload::all().into_iter().filter(|workload| options.wants(workload.name)).collect();
    anyhow::ensure!(
        !workloads.is_empty(),
        "no case of `sched` contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    let mut panels = Vec::new();
    for workload in &workloads {
        let sums: Sums = workload
            .arms()
            .into_iter()
            .map(|arm| (arm, (0..rounds).map(|round| simulated(workload, arm, seconds, round)).collect()))
            .collect();
        rows(workload, &sums, seconds, &mut report.rows);
        panels.extend(figures(workload, &sums, seconds));
    }
    report.figure = Some(Figure { title: "Who got what, in virtual time".into(), panels });
    Ok(report)
}

fn simulated(workload: &Workload, arm: Arm, seconds: f64, round: u32) -> Vec<Sum> {
    let tasks: Vec<Task> = workload.entries.iter().map(|(_, task)| arm.ask(task)).collect();
    let time = Duration::from_secs_f64(seconds);
    let seed = u64::from(round) + 1;
    let mut schedule = Schedule::new(workload.configuration);
    let outcomes = match arm {
        Arm::Ours => simulate(&mut schedule, &tasks, time, seed),
        Arm::Wfq => simulate(&mut Wfq::default(), &tasks, time, seed),
        Arm::RoundRobin => simulate(&mut FixedPriority::default(), &tasks, time, seed),
    };
    let names = workload.names();
    let mut sums = vec![Sum::default(); names.len()];
    for (index, ((name, _), outcome)) in workload.entries.iter().zip(&outcomes).enumerate() {
        let sum = &mut sums[names.iter().position(|other| other == name).expect("names are of entries")];
        sum.add(outcome);
        let entry = Entry::Path(PathId { index: index as u32, generation: 0 });
        sum.stolen_by += schedule.bert().stolen_by(entry);
        sum.stolen_from += schedule.bert().stolen_from(entry);
    }
    sums
}

fn rows(workload: &Workload, sums: &Sums, seconds: f64, rows: &mut Vec<Row>) {
    let percent = |time: Duration| time.as_secs_f64() / seconds * 100.0;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    for (index, name) in workload.names().into_iter().enumerate() {
        let case = format!("{}: {name}", workload.name);
        let figures = |arm: usize, figure: &dyn Fn(&Sum) -> f64| -> Vec<f64> {
            sums[arm].1.iter().map(|round| figure(&round[index])).collect()
        };
        let alone = |metric: (&str, &str, Better), figure: &dyn Fn(&Sum) -> f64| {
            Row::new(case.clone(), metric, &figures(0, figure), None)
        };
        let periodic = workload.is_periodic(name);
        if periodic {
            rows.push(alone(("asked", "% of the CPU", Better::Higher), &|sum| percent(sum.asked)));
        }
        let fluid = figures(0, &|sum| percent(sum.ideal));
        let got = figures(0, &|sum| percent(sum.got));
        rows.push(Row::new(
            case.clone(),
            ("got", "% of the CPU", Better::Higher),
            &got,
            Some(("fluid", &fluid)),
        ));
        let mut against = |metric: (&str, &str, Better), figure: &dyn Fn(&Sum) -> f64| {
            for (arm, (peer, _)) in sums.iter().enumerate().skip(1) {
                let theirs = figures(arm, figure);
                rows.push(Row::new(case.clone(), metric, &figures(0, figure), Some((peer.name(), &theirs))));
            }
        };
        against(("got", "% of the CPU", Better::Higher), &|sum| percent(sum.got));
        against(("behind the fluid at most", "µs", Better::Lower), &|sum| micros(sum.behind));
        if periodic {
            against(("deadlines met", "jobs", Better::Higher), &|sum| sum.met as f64);
            against(("deadlines missed", "jobs", Better::Lower), &|sum| sum.missed as f64);
        }
        rows.push(alone(("ahead of the fluid at most", "µs", Better::Lower), &|sum| micros(sum.ahead)));
        for (what, figure) in [
            ("stolen by it", (|sum: &Sum| sum.stolen_by) as fn(&Sum) -> Duration),
            ("stolen from it", |sum: &Sum| sum.stolen_from),
        ] {
            let figure = |sum: &Sum| percent(figure(sum));
            if figures(0, &figure).iter().any(|stolen| *stolen > 0.0) {
                rows.push(alone((what, "% of the CPU", Better::Lower), &figure));
            }
        }
    }
}

/// Bars: what each name got in each arm and in the fluid; and the deadlines missed, if there are any.
fn figures(workload: &Workload, sums: &Sums, seconds: f64) -> Vec<Panel> {
    let names = workload.names();
    let points = |arm: usize, figure: &dyn Fn(&Sum) -> f64| -> Vec<(f64, f64)> {
        let of =
            |index: usize| -> Vec<f64> { sums[arm].1.iter().map(|round| figure(&round[index])).collect() };
        (0..names.len()).map(|index| (index as f64, median(&of(index)))).collect()
    };
    let bars = |figure: &dyn Fn(&Sum) -> f64| -> Vec<Series> {
        let series = |(arm, (who, _)): (usize, &(Arm, _))| Series {
            name: who.name().into(),
            points: points(arm, figure),
        };
        sums.iter().enumerate().map(series).collect()
    };
    let panel = |title: String, y_label: &str, series| Panel {
        title,
        x_label: String::new(),
        y_label: y_label.into(),
        categories: names.iter().map(ToString::to_string).collect(),
        series,
    };
    let percent = |time: Duration| time.as_secs_f64() / seconds * 100.0;
    let mut got = vec![Series { name: "fluid".into(), points: points(0, &|sum| percent(sum.ideal)) }];
    got.extend(bars(&|sum| percent(sum.got)));
    let mut panels = vec![panel(workload.name.into(), "% of the CPU", got)];
    if names.iter().any(|name| workload.is_periodic(name)) {
        let missed = |sum: &Sum| 100.0 * sum.missed as f64 / (sum.met + sum.missed).max(1) as f64;
        panels.push(panel(format!("{}, deadlines", workload.name), "% missed", bars(&missed)));
    }
    panels
}

impl Workload {
    /// The names, in order, each once.
    fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        for (name, _) in &self.entries {
            if !names.contains(name) {
                names.push(name);
            }
        }
        names
    }

    fn is_periodic(&self, name: &str) -> bool {
        let periodic =
            |(other, task): &(&str, Task)| *other == name && matches!(task.load, Load::Periodic { .. });
        self.entries.iter().any(periodic)
    }

    fn arms(&self) -> Vec<Arm> {
        if self.against_wfq {
            vec![Arm::Ours, Arm::Wfq, Arm::RoundRobin]
        } else {
            vec![Arm::Ours, Arm::RoundRobin]
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::report::Row;
    use crate::{Options, Report};

    fn report() -> Report {
        super::run(&Options { quick: true, ..Options::default() }).unwrap()
    }

    fn find<'a>(report: &'a Report, case: &str, metric: &str, peer: &str) -> &'a Row {
        let wanted = |row: &&Row| row.case == case && row.metric == metric && row.peer_name == peer;
        report.rows.iter().find(wanted).unwrap_or_else(|| panic!("no {case}, {metric}, {peer}: {report}"))
    }

    #[test]
    fn the_criteria_of_the_policies_hold() {
        let report = report();
        for name in ["fast stream", "slow streams"] {
            let missed = find(&report, &format!("EDF at 95 %: {name}"), "deadlines missed", "round robin");
            assert!(missed.ours == 0.0, "{missed:?}");
        }
        let missed = find(&report, "EDF at 95 %: fast stream", "deadlines missed", "round robin");
        assert!(missed.peer.unwrap() > 30.0, "{missed:?}");
        for row in report
            .rows
            .iter()
            .filter(|row| row.case.starts_with("WFQ") && row.metric == "got" && row.peer_name == "fluid")
        {
            assert!((row.ratio.unwrap() - 1.0).abs() < 0.02, "{row:?}");
        }
        let nine = find(&report, "WFQ, classes: nine paths", "got", "WFQ");
        assert!((nine.ours - 20.0).abs() < 0.5 && nine.peer.unwrap() > 45.0, "{nine:?}");
        let missed = find(&report, "BERT at full load: decoder", "deadlines missed", "WFQ");
        assert!(missed.ours == 0.0 && missed.peer.unwrap() > 30.0, "{missed:?}");
        assert!(find(&report, "BERT at full load: decoder", "stolen by it", "").ours > 15.0);
        let linux = find(&report, "Linux at 50 %: Linux", "got", "fluid");
        assert!((linux.ours - 50.0).abs() < 3.0, "{linux:?}");
        let idle = find(&report, "shares, all busy: idle", "got", "fluid");
        assert!(idle.ours == 0.0, "{idle:?}");
        for row in report
            .rows
            .iter()
            .filter(|row| row.case.starts_with("shares") && row.metric == "got" && row.peer_name == "fluid")
        {
            assert!((row.ours - row.peer.unwrap()).abs() < 1.0, "{row:?}");
        }
    }

    #[test]
    fn it_repeats_exactly() {
        let rows = |report: Report| serde_json::to_string(&report.rows).unwrap();
        assert_eq!(rows(report()), rows(report()));
    }
}
