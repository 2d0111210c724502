//! `scoutline ps`.

use scoutline_abi::api::PathRow;

use crate::arguments::Listing;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};

pub(crate) fn ps(arguments: &Listing) -> Result<(), Failure> {
    let paths = Client::connect(&arguments.control.control)?.paths()?;
    if arguments.json { output::print_json(&paths) } else { output::print(&table(&paths)) }
}

fn table(paths: &[PathRow]) -> String {
    let mut table = Table::new(&[
        "ID", "CLASS", ">PRI", "LOCAL", "PEER", "STATE", "PROGRAM", ">QUEUE", ">RECV-Q", ">SEND-Q",
        ">PKT-IN", ">PKT-OUT", ">IN", ">OUT", ">CPU", ">CYCLES", "STAGES", "DROPS",
    ]);
    for path in paths {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        table.row(vec![
            path.id.clone(),
            path.class.clone(),
            output::standing(path.priority, &path.scheduling),
            text(&path.local),
            text(&path.peer),
            path.state.clone().unwrap_or_else(|| path.name.clone()),
            text(&path.program),
            path.queue_packets.to_string(),
            output::bytes(path.receive_queue_bytes),
            output::bytes(path.send_queue_bytes),
            output::count(path.packets_in),
            output::count(path.packets_out),
            output::bytes(path.bytes_in),
            output::bytes(path.bytes_out),
            output::time(path.cpu_ns),
            output::count(path.cycles),
            path.stages.join(">"),
            output::counts(&path.drops),
        ]);
    }
    let number = paths.len();
    format!("{table}{number} path{}\n", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::table;
    use scoutline_abi::api::PathRow;

    #[test]
    fn a_row_tells_the_path() {
        let path = PathRow {
            id: "3.1".into(),
            stages: vec!["ETH".into(), "IP4".into(), "TCP".into(), "SOCKET".into()],
            class: "preferred".into(),
            priority: Some(2),
            peer: Some("10.0.0.7:4000".into()),
            state: Some("ESTABLISHED".into()),
            drops: [("queue-full".to_owned(), 12)].into(),
            ..PathRow::default()
        };
        let text = table(&[path]);
        for part in [
            "3.1",
            "preferred",
            "10.0.0.7:4000",
            "ESTABLISHED",
            "ETH>IP4>TCP>SOCKET",
            "queue-full 12",
            "1 path\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
