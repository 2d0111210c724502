//! `scoutline ps`.

use scoutline_abi::api::PathRow;

use crate::arguments::Ps;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};

pub(crate) fn ps(arguments: &Ps) -> Result<(), Failure> {
    let mut paths = Client::connect(&arguments.listing.control.control)?.paths()?;
    paths.retain(|path| is_asked_for(path, arguments));
    if arguments.listing.json {
        return output::print_json(&paths);
    }
    let listed = paths.len();
    if !arguments.all {
        paths.retain(is_somebodys);
    }
    output::print(&table(&paths, listed - paths.len()))
}

fn is_asked_for(path: &PathRow, arguments: &Ps) -> bool {
    // `name/process`
    let name = path.program.as_ref().and_then(|program| program.rsplit_once('/')).map(|(name, _)| name);
    arguments.class.as_ref().is_none_or(|class| path.class == *class)
        && arguments.program.as_ref().is_none_or(|program| name == Some(program))
}

/// Whether a path is a program's, or a connection that was one's; not of the daemon's own.
fn is_somebodys(path: &PathRow) -> bool {
    path.program.is_some() || path.peer.is_some()
}

fn table(paths: &[PathRow], left_out: usize) -> String {
    let mut table = Table::new(&[
        "ID", "CLASS", ">PRI", "DEVICE", "LOCAL", "PEER", "STATE", "PROGRAM", ">QUEUE", ">RECV-Q", ">SEND-Q",
        ">PKT-IN", ">PKT-OUT", ">IN", ">OUT", ">CPU", ">CYCLES", "STAGES", "DROPS",
    ]);
    for path in paths {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        table.row(vec![
            path.id.clone(),
            path.class.clone(),
            output::standing(path.priority, &path.scheduling),
            path.device.clone(),
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
    let more = match left_out {
        0 => String::new(),
        _ => format!("; {left_out} of the daemon's own: --all"),
    };
    format!("{table}{number} path{}{more}\n", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Asked {
        #[command(flatten)]
        ps: Ps,
    }

    #[test]
    fn a_row_tells_the_path() {
        let path = PathRow {
            id: "3.1".into(),
            stages: vec!["ETH".into(), "IP4".into(), "TCP".into(), "SOCKET".into()],
            class: "preferred".into(),
            device: "eth1".into(),
            priority: Some(2),
            peer: Some("10.0.0.7:4000".into()),
            state: Some("ESTABLISHED".into()),
            drops: [("queue-full".to_owned(), 12)].into(),
            ..PathRow::default()
        };
        let text = table(&[path], 0);
        for part in [
            "3.1",
            "preferred",
            "eth1",
            "10.0.0.7:4000",
            "ESTABLISHED",
            "ETH>IP4>TCP>SOCKET",
            "queue-full 12",
            "1 path\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn rows_are_chosen() {
        let path = |class: &str, program: Option<&str>, peer: Option<&str>| PathRow {
            class: class.into(),
            program: program.map(Into::into),
            peer: peer.map(Into::into),
            ..PathRow::default()
        };
        let web = path("gold", Some("nginx/17"), None);
        let (gone, arp) = (path("gold", None, Some("10.0.0.7:4000")), path("default", None, None));
        assert_eq!([&web, &gone, &arp].map(is_somebodys), [true, true, false]);
        for (arguments, wanted) in [
            (&["--class", "gold"][..], [true, true, false]),
            (&["--program", "nginx"], [true, false, false]),
            (&["--program", "ngin"], [false; 3]),
            (&["--class", "default", "--program", "nginx"], [false; 3]),
            (&[], [true; 3]),
        ] {
            let arguments = Asked::try_parse_from([&["ps"], arguments].concat()).unwrap().ps;
            assert_eq!([&web, &gone, &arp].map(|path| is_asked_for(path, &arguments)), wanted);
        }
        let text = table(&[web], 17);
        assert!(text.ends_with("1 path; 17 of the daemon's own: --all\n"), "{text}");
    }
}
