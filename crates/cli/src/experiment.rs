//! `scoutline demo`, `scoutline bench`, and the load generator that they start.

use std::ffi::OsString;

use scoutline_bench::{Options, Trial};
use serde_json::json;

use crate::arguments::{Bench, Experiment};
use crate::failure::{Failure, USAGE};
use crate::output::{self, Table};

fn options(arguments: &Experiment) -> Options {
    Options {
        quick: arguments.quick,
        plot: arguments.plot.clone(),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        only: arguments.only.clone(),
        steer: arguments.steer,
        think_us: arguments.think,
        baseline: arguments.baseline,
        ..Options::default()
    }
}

pub(crate) fn demo(arguments: &Experiment) -> Result<(), Failure> {
    Ok(scoutline_bench::demo(&options(arguments))?)
}

pub(crate) fn bench(arguments: &Bench) -> Result<(), Failure> {
    let Some(name) = &arguments.name else { return list(arguments.json) };
    if !scoutline_bench::names().any(|(known, _)| known == name) {
        let known: Vec<&str> = scoutline_bench::names().map(|(name, _)| name).collect();
        let message = format!("there is no experiment `{name}`; there are: {}", known.join(", "));
        return Err(Failure::new(USAGE, message));
    }
    let options = Options {
        perf: arguments.perf,
        flame: arguments.flame.clone(),
        callgrind: arguments.callgrind,
        peers: arguments.peers.iter().copied().collect(),
        trial: Trial { build: arguments.build.clone(), settings: arguments.settings.clone() },
        ..options(&arguments.common)
    };
    let report = scoutline_bench::run(name, &options)?;
    let text = if arguments.json { report.to_json()? + "\n" } else { report.to_string() };
    output::print(&text)
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        let names: Vec<_> =
            scoutline_bench::names().map(|(name, about)| json!({"name": name, "about": about})).collect();
        return output::print_json(&names);
    }
    let mut table = Table::new(&["EXPERIMENT", "WHAT IT MEASURES"]);
    for (name, about) in scoutline_bench::names() {
        table.row(vec![name.into(), about.into()]);
    }
    output::print(&table.to_string())
}

pub(crate) fn load(arguments: Vec<OsString>) -> Result<(), Failure> {
    Ok(scoutline_bench::load::main_from_args(std::iter::once(OsString::from("load")).chain(arguments))?)
}
