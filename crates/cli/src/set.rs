//! `scoutline set`.

use scoutline_abi::api::{Request, SettingRow};
use serde_json::Value;

use crate::arguments::Set;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Table};

pub(crate) fn set(arguments: &Set) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.listing.control.control)?;
    if !arguments.keys.is_empty() {
        client.change(&Request::Set { keys: arguments.keys.clone() })?;
        if !arguments.listing.json {
            return Ok(());
        }
    }
    let settings = client.settings()?;
    if arguments.listing.json { output::print_json(&settings) } else { output::print(&table(&settings)) }
}

fn table(settings: &[SettingRow]) -> String {
    let mut table = Table::new(&["SETTING", ">NOW", ">DEFAULT", "UNIT", "RANGE", "MEANING"]);
    for SettingRow { key, value, default, unit, range, about } in settings {
        let cells = [key, &word(value), &word(default), unit, range, about];
        table.row(cells.map(ToOwned::to_owned).into());
    }
    table.to_string()
}

/// As it is written to set it.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Bool(on) => if *on { "on" } else { "off" }.into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{SettingRow, table};
    use serde_json::json;

    #[test]
    fn values_are_shown_as_they_are_set() {
        let row = |key: &str, value, default| SettingRow {
            key: key.into(),
            value,
            default,
            ..SettingRow::default()
        };
        let rows = [
            row("extension.enabled", json!(false), json!(true)),
            row("device.eth1.rate", json!("1Gbit/s"), json!(null)),
            row("linux.quantum_us", json!(500), json!(2000)),
        ];
        let text = table(&rows);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["extension.enabled", "off", "on"]);
        assert_eq!(words[2], ["device.eth1.rate", "1Gbit/s", "-"]);
        assert_eq!(words[3], ["linux.quantum_us", "500", "2000"]);
    }
}
