//! `scoutline class` and `scoutline reload`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scoutline_abi::api::{ClassKeys, ClassRow, Request};
use serde::Serialize;
use serde_json::Value;

use crate::arguments::{ClassCommand, Control, Listing};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};

/// Keys that say what a class is; the others are its conditions.
const SETTINGS: [&str; 17] = [
    "policy",
    "priority",
    "idle",
    "listen_priority",
    "deadline_us",
    "budget_us",
    "thread_budget_us",
    "cpu_percent",
    "important",
    "cpu_limit_percent",
    "queue_packets",
    "memory",
    "connections",
    "mark",
    "extend",
    "weight",
    "rate",
];
/// Those of them that the column of priorities tells.
const SCHEDULING: [&str; 6] = ["policy", "priority", "idle", "deadline_us", "cpu_percent", "important"];

/// A class with what lives in it.
#[derive(Debug, Serialize)]
struct Class {
    #[serde(flatten)]
    keys: ClassKeys,
    /// Its live paths, and its account.
    now: ClassRow,
}

pub(crate) fn class(command: &ClassCommand) -> Result<(), Failure> {
    let (control, request) = match command {
        ClassCommand::List(listing) => return list(listing),
        ClassCommand::Show { name, listing } => return show(name, listing),
        ClassCommand::Add { name, keys, before, control } => {
            let (name, keys, before) = (name.clone(), keys.clone(), before.clone());
            (control, Request::ClassAdd { name, keys, before })
        }
        ClassCommand::Set { name, keys, control } => {
            (control, Request::ClassSet { name: name.clone(), keys: keys.clone() })
        }
        ClassCommand::Remove { name, control } => (control, Request::ClassRemove { name: name.clone() }),
        ClassCommand::Move { name, before, control } => {
            (control, Request::ClassMove { name: name.clone(), before: before.clone() })
        }
    };
    Client::connect(&control.control)?.change(&request)
}

pub(crate) fn reload(arguments: &Control) -> Result<(), Failure> {
    let reloaded = Client::connect(&arguments.control)?.reload()?;
    output::print(&format!("{reloaded}\n"))
}

fn classes(listing: &Listing) -> Result<Vec<Class>, Failure> {
    let mut client = Client::connect(&listing.control.control)?;
    let classes = client.classes()?;
    let mut rows: BTreeMap<String, ClassRow> =
        client.stat()?.classes.into_iter().map(|row| (row.name.clone(), row)).collect();
    let with_row = |keys: ClassKeys| Class { now: rows.remove(&keys.name).unwrap_or_default(), keys };
    Ok(classes.into_iter().map(with_row).collect())
}

fn list(listing: &Listing) -> Result<(), Failure> {
    let classes = classes(listing)?;
    if listing.json { output::print_json(&classes) } else { output::print(&table(&classes)) }
}

fn show(name: &str, listing: &Listing) -> Result<(), Failure> {
    let classes = classes(listing)?;
    let Some(class) = classes.iter().find(|class| class.keys.name == name) else {
        let names: Vec<&str> = classes.iter().map(|class| class.keys.name.as_str()).collect();
        return Err(Failure::failed(scoutline_daemon::config::unknown("class", name, &names)));
    };
    if listing.json { output::print_json(class) } else { output::print(&text(class)) }
}

fn table(classes: &[Class]) -> String {
    let mut table =
        Table::new(&["CLASS", ">PRI", "CONDITIONS", "SETTINGS", ">PATHS", ">CONN", ">IN", ">OUT", "DROPS"]);
    for Class { keys, now } in classes {
        let some = |settings: bool| {
            let keys = keys.keys.iter().filter(|(key, _)| SETTINGS.contains(&key.as_str()) == settings);
            // How it is scheduled has a column of its own.
            let keys = keys.filter(|(key, _)| !SCHEDULING.contains(&key.as_str()));
            let words: Vec<String> = keys.map(|(key, value)| format!("{key}={}", word(value))).collect();
            if words.is_empty() { "-".to_owned() } else { words.join(" ") }
        };
        table.row(vec![
            keys.name.clone(),
            output::standing(now.priority, &now.scheduling),
            some(false),
            some(true),
            now.paths.to_string(),
            now.connections.to_string(),
            output::bytes(now.bytes_in),
            output::bytes(now.bytes_out),
            output::counts(&now.drops),
        ]);
    }
    table.to_string()
}

/// As the configuration file would have it; what lives in it as comments.
fn text(Class { keys, now }: &Class) -> String {
    let mut text = format!("[[class]]\nname = {}\n", Value::from(keys.name.as_str()));
    let settings = |key: &&String| SETTINGS.contains(&key.as_str());
    let (first, then): (Vec<&String>, Vec<&String>) = keys.keys.keys().partition(settings);
    for key in first.into_iter().chain(then) {
        // The values of classes are numbers, booleans, strings and lists of them, which TOML writes as JSON does.
        let _ = writeln!(text, "{key} = {}", keys.keys[key]);
    }
    let _ = writeln!(
        text,
        "# now: {} paths, {} connections, {} of memory, {:.1}% of the CPU promised, {} in, {} out, drops {}",
        now.paths,
        now.connections,
        output::bytes(now.memory_bytes),
        now.promised_percent,
        output::bytes(now.bytes_in),
        output::bytes(now.bytes_out),
        output::counts(&now.drops)
    );
    text
}

/// A value as `scoutline class set` takes it.
fn word(value: &Value) -> String {
    match value {
        Value::Array(elements) => elements.iter().map(word).collect::<Vec<_>>().join(","),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, table, text};
    use scoutline_abi::api::{ClassKeys, ClassRow};
    use serde_json::json;

    fn example() -> Class {
        let keys = [
            ("source".to_owned(), json!(["10.0.0.7/32", "10.1.0.0/16"])),
            ("local_port".to_owned(), json!([80, "8000-8100"])),
            ("connections".to_owned(), json!(5)),
            ("priority".to_owned(), json!(2)),
        ];
        let now = ClassRow { priority: Some(2), paths: 3, connections: 1, ..ClassRow::default() };
        Class { keys: ClassKeys { name: "a \"b\"".into(), keys: keys.into() }, now }
    }

    #[test]
    fn a_row_tells_rules_and_life() {
        let text = table(&[example()]);
        for part in ["local_port=80,8000-8100 source=10.0.0.7/32,10.1.0.0/16", "connections=5", "a \"b\""] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("priority="));
    }

    #[test]
    fn what_is_shown_can_be_written_into_the_file() {
        let text = text(&example());
        let path = std::path::Path::new("shown");
        let file = format!("[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n{text}");
        let config = scoutline_daemon::Config::parse(&file, path).unwrap();
        assert_eq!(config.class[0].name.get_ref(), "a \"b\"");
        assert_eq!(config.class[0].connections.as_ref().unwrap().get_ref(), &5);
        assert_eq!(config.class[0].local_port.len(), 2);
    }

    #[test]
    fn json_is_flat() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!((&json["priority"], &json["now"]["paths"]), (&json!(2), &json!(3)));
    }
}
