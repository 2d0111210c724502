//! One line that says where, what, and what to do.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::words;

/// The place of what is wrong with arguments.
const ARGUMENTS: &str = "arguments";

/// What is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file and the line, or who said it.
    place: String,
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

impl std::error::Error for ConfigError {}

/// A finding of the checks, with the place in the text where the value stands.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: Range<usize>,
    pub(super) message: String,
}

impl ConfigError {
    /// What is wrong, without the place.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Whether the arguments of a command are wrong, and no file.
    pub fn is_usage(&self) -> bool {
        self.place == ARGUMENTS
    }

    pub(super) fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
        let remedy = match error.kind() {
            io::ErrorKind::IsADirectory => "; name a file in it",
            io::ErrorKind::InvalidData => {
                let message = "cannot read the configuration: it is no text (UTF-8)".to_owned();
                return ConfigError { place: path.display().to_string(), message };
            }
            io::ErrorKind::NotFound => "; name another with --config, or start with --device and --address",
            io::ErrorKind::PermissionDenied => "; run as root or make it readable",
            _ => "",
        };
        let message = format!("cannot read the configuration: {}{remedy}", plain(error));
        ConfigError { place: path.display().to_string(), message }
    }

    pub(super) fn from_toml(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
        let place = place(path, text, error.span());
        ConfigError { place, message: in_words(text, error) }
    }

    pub(super) fn from_fault(path: &Path, text: &str, fault: Fault) -> ConfigError {
        let span = (fault.at != (0..0)).then_some(fault.at);
        ConfigError { place: place(path, text, span), message: fault.message }
    }

    pub(super) fn too_long(path: &Path, most: u64) -> ConfigError {
        let message = format!(
            "it is longer than {} MiB, which no configuration is; name another with --config",
            most >> 20
        );
        ConfigError { place: path.display().to_string(), message }
    }

    pub(super) fn from_arguments(fault: Fault) -> ConfigError {
        ConfigError { place: ARGUMENTS.into(), message: fault.message }
    }

    pub(super) fn of_class(name: &str, message: &str) -> ConfigError {
        ConfigError { place: format!("class `{name}`"), message: message.to_owned() }
    }

    /// The same of a class that was written as `text`.
    pub(super) fn of_class_text(name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
        ConfigError::of_class(name, &in_words(text, error))
    }

    pub(super) fn of_machine(message: String) -> ConfigError {
        ConfigError { place: "configuration".into(), message }
    }
}

/// What the system said, without Rust's "(os error 2)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn place(path: &Path, text: &str, span: Option<Range<usize>>) -> String {
    let Some(span) = span else { return path.display().to_string() };
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    format!("{}:{line}", path.display())
}

/// What the reader of TOML found, in one line.
fn in_words(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let explained = error.span().and_then(|at| words::explain(text, message, at));
    explained.map_or_else(|| with_suggestion(message), |explained| explained.replace('\n', " "))
}

/// Makes serde's list of what it expected into a suggestion, and any message into one line.
pub(super) fn with_suggestion(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (kind, rest) = if message.starts_with("unknown field") {
        ("unknown key", "known keys here")
    } else if message.starts_with("unknown variant") {
        ("unknown value", "known values")
    } else {
        return message.split('\n').map(str::trim).collect::<Vec<_>>().join("; ");
    };
    let Some((&wrong, known)) = quoted.split_first() else { return message.to_owned() };
    match nearest(wrong, known) {
        Some(near) => format!("{kind} `{wrong}`; did you mean `{near}`?"),
        None => format!("{kind} `{wrong}`; {rest}: {}", known.join(", ")),
    }
}

/// One line about a name that is none of those that there are.
pub fn unknown(what: &str, wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known) {
        Some(near) => format!("there is no {what} `{wrong}`; did you mean `{near}`?"),
        None if known.is_empty() => format!("there is no {what} `{wrong}`, and no other"),
        None => format!("there is no {what} `{wrong}`; there are: {}", known.join(", ")),
    }
}

/// The word that differs least, if it differs little.
pub(crate) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, word) = known.iter().map(|&word| (distance(wrong, word), word)).min()?;
    (distance <= 1.max(wrong.len() / 3)).then_some(word)
}

/// Edits between two words, a swap of neighbours counting as one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}
