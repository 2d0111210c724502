//! `scoutline stat`.

use std::collections::BTreeMap;
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
    text += &summary(stat);
    let mut engine = Table::new(&["ENGINE", ">VALUE"]);
    for (name, value) in &stat.engine {
        engine.row(match output::nanoseconds(name) {
            Some(name) => vec![name.to_owned(), output::time(*value)],
            None => vec![name.clone(), output::count(*value)],
        });
    }
    let mut stages = Table::new(&["STAGES OF", "DIRECTION", ">TIME", ">PACKETS", ">BURSTS", ">NS/PACKET"]);
    for row in &stat.stages {
        for (direction, cost) in [("in", row.inward), ("out", row.outward), ("time-outs", row.timeouts)] {
            stages.row(vec![
                row.module.clone(),
                direction.to_owned(),
                output::time(cost.ns),
                output::count(cost.packets),
                output::count(cost.bursts),
                cost.ns.checked_div(cost.packets).map(|ns| ns.to_string()).unwrap_or_default(),
            ]);
        }
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
    let mut routes = Table::new(&["ROUTE", "TYPE", "VIA", "DEVICE", ">METRIC", "SAYS"]);
    for route in &stat.routes {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let (via, device) = (or_none(&route.via), or_none(&route.device));
        let metrics = [
            ("mtu", route.mtu),
            ("advmss", route.advmss),
            ("initcwnd", route.initcwnd),
            ("initrwnd", route.initrwnd),
        ];
        let says = metrics.iter().filter_map(|(name, value)| value.map(|value| format!("{name} {value}")));
        let says = Some(says.collect::<Vec<_>>().join(" ")).filter(|says| !says.is_empty());
        let metric = route.metric.to_string();
        routes.row(vec![route.to.clone(), route.kind.clone(), via, device, metric, or_none(&says)]);
    }
    let mut programs = Table::new(&[
        "PROGRAM",
        ">PID",
        ">PROCESSES",
        ">SOCKETS",
        ">IO_URING-REFUSED",
        ">IO_URING-LEFT",
        ">IO_URING-SOCKETS",
        ">DISPATCHED",
    ]);
    for program in &stat.programs {
        let numbers = [
            u64::from(program.pid),
            program.processes,
            program.sockets,
            program.rings_refused,
            program.rings_left,
            program.ring_sockets,
            program.calls_dispatched,
        ];
        programs
            .row([vec![program.name.clone()], numbers.map(|number| number.to_string()).to_vec()].concat());
    }
    let _ = writeln!(text, "\n{engine}");
    if !stat.stages.is_empty() {
        let _ = writeln!(text, "{stages}");
    }
    let _ = write!(text, "{classes}\n{policies}\n{devices}\n{addresses}\n{routes}\n{programs}");
    let _ = writeln!(text, "\ndrops without a path: {}", output::counts(&stat.drops));
    text
}

/// Where the engine's time went since its start, and how well its work comes in bursts.
fn summary(stat: &Stat) -> String {
    let value = |name: &str| stat.engine.get(name).copied().unwrap_or(0) as f64;
    let of_devices = |name: &str| stat.devices.values().filter_map(|rows| rows.get(name)).sum::<u64>() as f64;
    let each = |what: &str, of: &str| if value(of) > 0.0 { value(what) / value(of) } else { 0.0 };
    let mut times = String::new();
    if stat.engines.is_empty() {
        times += &where_time_went("engine", &stat.engine, stat.uptime_s);
    }
    for (number, engine) in stat.engines.iter().enumerate() {
        times += &where_time_went(&format!("engine {number}"), engine, stat.uptime_s);
    }
    format!(
        "{times}work: {:.1} packets in a burst in, {:.1} out; {:.2} wake-ups of programs and {:.2} doorbells for each \
         packet in\n\
         copies: {:.2} of each byte in, {:.2} of each byte out; {} left uncopied\n",
        each("packets-pulled", "pulls"),
        each("packets-pushed", "pushes"),
        each("wake-ups", "packets-pulled"),
        each("doorbells", "packets-pulled"),
        (of_devices("rx-copied-bytes") + value("stored-bytes")) / of_devices("rx-bytes").max(1.0),
        of_devices("tx-copied-bytes") / of_devices("tx-bytes").max(1.0),
        output::bytes((of_devices("tx-bytes") - of_devices("tx-copied-bytes")).max(0.0) as u64),
    )
}

fn where_time_went(name: &str, engine: &BTreeMap<String, u64>, uptime_s: f64) -> String {
    let percent = |counter: &str| {
        let spent = engine.get(counter).copied().unwrap_or(0) as f64;
        100.0 * spent / (uptime_s * 1e9).max(1.0)
    };
    let [spinning, asleep, away] = ["spin-ns", "sleep-ns", "away-ns"].map(percent);
    // Devices, demultiplexing and sending are nobody's in particular.
    let busy = (100.0 - spinning - asleep - away).max(0.0);
    let paths = percent("busy-ns");
    format!(
        "{name}: busy {busy:.1} % (paths {paths:.1} %), spinning {spinning:.1} %, asleep {asleep:.1} %, away {away:.1} %\n",
    )
}

#[cfg(test)]
mod tests {
    use super::text;
    use scoutline_abi::api::{AddressRow, ClassRow, RouteRow, Scheduling, StageCost, StageRow, Stat};

    #[test]
    fn all_parts_are_told() {
        let stat = Stat {
            uptime_s: 0.01,
            engine: [
                ("busy-ns", 1_500_000),
                ("pulls", 4),
                ("packets-pulled", 10),
                ("wake-ups", 5),
                ("stored-bytes", 900),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            devices: [(
                "eth1".to_owned(),
                [("rx-bytes", 1000), ("rx-copied-bytes", 300), ("tx-bytes", 4000), ("tx-copied-bytes", 1000)]
                    .map(|(name, value)| (name.to_owned(), value))
                    .into(),
            )]
            .into(),
            stages: vec![StageRow {
                module: "TCP".into(),
                inward: StageCost { ns: 700, packets: 7, bursts: 2 },
                ..StageRow::default()
            }],
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
                mtu: Some(1400),
                initcwnd: Some(20),
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
            "mtu 1400 initcwnd 20",
            "busy 100.0 % (paths 15.0 %)",
            "2.5 packets in a burst in",
            "0.50 wake-ups",
            "copies: 1.20 of each byte in, 0.25 of each byte out",
            "STAGES OF",
            "700ns",
        ];
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
