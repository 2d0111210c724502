//! `scoutline stat`.

use std::fmt::Write as _;

use scoutline_abi::api::Stat;

use crate::arguments::Listing;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};

pub(crate) fn stat(arguments: &Listing) -> Result<(), Failure> {
    let stat = Client::connect(&arguments.control.control)?.stat()?;
    if arguments.json { output::print_json(&stat) } else { output::print(&text(&stat)) }
}

fn text(stat: &Stat) -> String {
    let mut text = format!("scoutline {}, up {:.0} s\n", stat.version, stat.uptime_s);
    for notice in &stat.notices {
        let _ = writeln!(text, "notice: {notice}");
    }
    let mut engine = Table::new(&["ENGINE", ">VALUE"]);
    for (name, value) in &stat.engine {
        engine.row(match output::nanoseconds(name) {
            Some(name) => vec![name.to_owned(), output::time(*value)],
            None => vec![name.clone(), output::count(*value)],
        });
    }
    let mut classes = Table::new(&[
        "CLASS", ">PRI", ">PATHS", ">CONN", ">CPU", ">PKT-IN", ">PKT-OUT", ">IN", ">OUT", "DROPS",
    ]);
    for class in &stat.classes {
        classes.row(vec![
            class.name.clone(),
            output::standing(class.priority, &class.scheduling),
            class.paths.to_string(),
            class.connections.to_string(),
            output::time(class.cpu_ns),
            output::count(class.packets_in),
            output::count(class.packets_out),
            output::bytes(class.bytes_in),
            output::bytes(class.bytes_out),
            output::counts(&class.drops),
        ]);
    }
    let mut policies = Table::new(&["POLICY", ">CAN-PROMISE", ">PROMISED", ">CPU", ">MISSED", ">MEMORY"]);
    for policy in &stat.policies {
        policies.row(vec![
            policy.name.clone(),
            format!("{:.1}%", policy.share_percent),
            format!("{:.1}%", policy.promised_percent),
            output::time(policy.cpu_ns),
            output::count(policy.missed),
            output::bytes(policy.memory_bytes),
        ]);
    }
    let mut devices = Table::new(&["DEVICE", "COUNTER", ">VALUE"]);
    for (name, counters) in &stat.devices {
        for (counter, value) in counters {
            devices.row(vec![name.clone(), counter.clone(), output::count(*value)]);
        }
    }
    let mut programs = Table::new(&["PROGRAM", ">PID", ">PROCESSES", ">SOCKETS", ">IO_URING-REFUSED"]);
    for program in &stat.programs {
        let numbers = [u64::from(program.pid), program.processes, program.sockets, program.rings_refused];
        programs
            .row([vec![program.name.clone()], numbers.map(|number| number.to_string()).to_vec()].concat());
    }
    let _ = write!(text, "\n{engine}\n{classes}\n{policies}\n{devices}\n{programs}");
    let _ = writeln!(text, "\ndrops without a path: {}", output::counts(&stat.drops));
    text
}

#[cfg(test)]
mod tests {
    use super::text;
    use scoutline_abi::api::{ClassRow, Scheduling, Stat};

    #[test]
    fn all_parts_are_told() {
        let stat = Stat {
            engine: [("busy-ns".to_owned(), 1_500_000)].into(),
            classes: vec![ClassRow {
                name: "standard".into(),
                scheduling: Scheduling { policy: "idle".into(), ..Scheduling::default() },
                ..ClassRow::default()
            }],
            drops: [("bad-checksum".to_owned(), 2)].into(),
            notices: vec!["no real-time priority".into()],
            ..Stat::default()
        };
        let text = text(&stat);
        for part in ["busy", "1.5ms", "standard", "idle", "bad-checksum 2", "notice: no real-time priority"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
