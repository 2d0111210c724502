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
    let mut addresses = Table::new(&["ADDRESS", "DEVICE", "STATE"]);
    for own in &stat.addresses {
        addresses.row(vec![own.address.clone(), own.device.clone(), own.state.clone()]);
    }
    let mut routes = Table::new(&["ROUTE", "TYPE", "VIA", "DEVICE", ">METRIC"]);
    for route in &stat.routes {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let (via, device) = (or_none(&route.via), or_none(&route.device));
        routes.row(vec![route.to.clone(), route.kind.clone(), via, device, route.metric.to_string()]);
    }
    let mut programs = Table::new(&["PROGRAM", ">PID", ">PROCESSES", ">SOCKETS", ">IO_URING-REFUSED"]);
    for program in &stat.programs {
        let numbers = [u64::from(program.pid), program.processes, program.sockets, program.rings_refused];
        programs
            .row([vec![program.name.clone()], numbers.map(|number| number.to_string()).to_vec()].concat());
    }
    let _ = write!(text, "\n{engine}\n{classes}\n{policies}\n{devices}\n{addresses}\n{routes}\n{programs}");
    let _ = writeln!(text, "\ndrops without a path: {}", output::counts(&stat.drops));
    text
}

#[cfg(test)]
mod tests {
    use super::text;
    use scoutline_abi::api::{AddressRow, ClassRow, RouteRow, Scheduling, Stat};

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
            addresses: vec![AddressRow {
                device: "eth1".into(),
                address: "10.0.0.5/24".into(),
                state: "preferred".into(),
            }],
            routes: vec![RouteRow {
                to: "192.168.0.0/16".into(),
                kind: "blackhole".into(),
                ..RouteRow::default()
            }],
            ..Stat::default()
        };
        let text = text(&stat);
        let parts = [
            "busy",
            "1.5ms",
            "standard",
            "idle",
            "bad-checksum 2",
            "notice: no real-time priority",
            "10.0.0.5/24",
            "blackhole",
        ];
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
