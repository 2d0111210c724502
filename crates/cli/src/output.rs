//! Printing: tables, units, JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use scoutline_abi::api::Scheduling;
use serde::Serialize;

use crate::failure::Failure;

/// Prints. That the reader has gone (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::failed(format!("cannot print: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints as JSON, indented for a person at a terminal.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| Failure::failed(error.to_string()))?;
    text.push('\n');
    print(&text)
}

/// A table: the columns named in `right` are aligned to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A heading that starts with `>` is of a column of numbers.
    pub(crate) fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let headings = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Table { rows: vec![headings], right }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.right.len();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate().take(columns) {
                let gap = if column == 0 { "" } else { "  " };
                let width = widths[column];
                if self.right[column] {
                    write!(line, "{gap}{cell:>width$}")?;
                } else {
                    write!(line, "{gap}{cell:<width$}")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Bytes in at most five characters.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["", "K", "M", "G", "T", "P"])
}

/// A count in at most five characters.
pub(crate) fn count(count: u64) -> String {
    scaled(count as f64, 1000.0, &["", "k", "M", "G", "T", "P"])
}

/// Bits per second.
pub(crate) fn bit_rate(bits: f64) -> String {
    scaled(bits, 1000.0, &["", "k", "M", "G", "T"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0}{}", units[unit])
    } else {
        format!("{value:.1}{}", units[unit])
    }
}

/// A span of time, of nanoseconds.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.2}s", ns as f64 / 1e9),
    }
}

/// The name of a counter of nanoseconds, without its unit.
pub(crate) fn nanoseconds(counter: &str) -> Option<&str> {
    counter.strip_suffix("-ns")
}

/// A priority, or another policy with what is asked of it: `wfq 300`, `edf 2.0ms`, `bert 10%`.
pub(crate) fn standing(priority: Option<u8>, scheduling: &Scheduling) -> String {
    if let Some(priority) = priority {
        return priority.to_string();
    }
    let policy = &scheduling.policy;
    let deadline = scheduling.deadline_us.map(|us| time(u64::from(us) * 1_000));
    let asked = [
        scheduling.weight.map(|weight| weight.to_string()),
        scheduling.cpu_percent.map(|percent| {
            format!("{percent}%{}", if scheduling.important == Some(true) { "!" } else { "" })
        }),
        deadline,
    ];
    let words = [Some(policy.clone())].into_iter().chain(asked).flatten();
    words.collect::<Vec<_>>().join(" ")
}

/// Counts by name, in one cell: `checksum 3, queue-full 12`.
pub(crate) fn counts(counts: &std::collections::BTreeMap<String, u64>) -> String {
    let some = counts.iter().filter(|&(_, &count)| count > 0);
    let text: Vec<String> = some.map(|(name, &number)| format!("{name} {}", count(number))).collect();
    if text.is_empty() { "-".into() } else { text.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::{Table, bytes, count, time};

    #[test]
    fn numbers_stay_short() {
        assert_eq!((bytes(999), bytes(1024), bytes(1 << 30)), ("999".into(), "1.0K".into(), "1.0G".into()));
        assert_eq!((count(1_500), count(999_999)), ("1.5k".into(), "1.0M".into()));
        assert_eq!(
            (time(999), time(1_500), time(2_000_000_000)),
            ("999ns".into(), "1.5us".into(), "2.00s".into())
        );
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", ">N"]);
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["long".into(), "1".into()]);
        assert_eq!(table.to_string(), "NAME   N\na     10\nlong   1\n");
    }
}
