//! `scoutline top`: rates of classes and of the busiest paths, round after round.

mod rates;
mod screen;

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use scoutline_abi::api::{PathRow, Stat};

use crate::arguments::Top;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};
use rates::{Round, Sort, round};

/// Paths that a round shows as text.
const SHOWN: usize = 20;

/// What was seen at one moment.
pub(crate) struct Sample {
    at: Instant,
    stat: Stat,
    paths: Vec<PathRow>,
}

impl Sample {
    fn take(client: &mut Client) -> Result<Sample, Failure> {
        Ok(Sample { at: Instant::now(), stat: client.stat()?, paths: client.paths()? })
    }
}

pub(crate) fn top(arguments: &Top) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.control.control)?;
    let interval = Duration::from_secs_f64(arguments.interval);
    if !arguments.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return screen::run(&mut client, interval, arguments.count);
    }
    let mut before = Sample::take(&mut client)?;
    let mut done = 0;
    while arguments.count.is_none_or(|count| done < count) {
        std::thread::sleep(interval.saturating_sub(before.at.elapsed()));
        let after = Sample::take(&mut client)?;
        let round = round(&before, &after, Sort::Cpu);
        if arguments.json {
            let mut line =
                serde_json::to_string(&round).map_err(|error| Failure::failed(error.to_string()))?;
            line.push('\n');
            output::print(&line)?;
        } else {
            output::print(&text(&round))?;
        }
        before = after;
        done += 1;
    }
    Ok(())
}

fn text(round: &Round) -> String {
    let (classes, paths) = tables(round, SHOWN);
    let mut text = summary(round);
    let _ = write!(text, "\n{classes}\n{paths}\n");
    text
}

/// The first line of a round.
fn summary(round: &Round) -> String {
    let times: Vec<String> =
        round.engine.iter().map(|(name, share)| format!("{name} {:.0} %", share * 100.0)).collect();
    format!("up {:.0} s, {} paths, engine: {}\n", round.uptime_s, round.path_count, times.join(", "))
}

fn tables(round: &Round, shown: usize) -> (Table, Table) {
    let mut classes =
        Table::new(&["CLASS", ">PRI", ">PATHS", ">CPU%", ">PKT/S", ">IN-BIT/S", ">OUT-BIT/S", ">DROPS/S"]);
    for row in &round.classes {
        let cells =
            vec![row.name.clone(), output::standing(row.priority, &row.scheduling), row.paths.to_string()];
        classes.row([cells, row.rates.cells().to_vec()].concat());
    }
    let mut paths = Table::new(&[
        "PATH",
        "CLASS",
        ">PRI",
        "STATE",
        ">CPU%",
        ">PKT/S",
        ">IN-BIT/S",
        ">OUT-BIT/S",
        ">DROPS/S",
        ">QUEUE",
    ]);
    for row in round.paths.iter().take(shown) {
        let state = row.state.clone().unwrap_or_else(|| "-".into());
        let cells =
            vec![row.name.clone(), row.class.clone(), output::standing(row.priority, &row.scheduling), state];
        paths.row([cells, row.rates.cells().to_vec(), vec![row.queue_packets.to_string()]].concat());
    }
    (classes, paths)
}
