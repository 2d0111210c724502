//! Classes by key and value, as `scoutline class` changes them one by one. What a class is stays decided in one place:
//! a changed class is written as TOML and read and checked as the file is.

use serde::Deserialize;
use toml::{Table, Value};

use super::error::ConfigError;
use super::{Class, Device, check};

/// How the value of a key is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One value.
    One,
    /// A list.
    List,
    /// A list whose elements are never numbers, whatever they look like.
    Texts,
}

/// The keys of a class in the order in which people read them; whatever else there is comes behind.
const KEYS: [(&str, Form); 33] = [
    ("name", Form::One),
    ("priority", Form::One),
    ("idle", Form::One),
    ("listen_priority", Form::One),
    ("policy", Form::One),
    ("deadline_us", Form::One),
    ("budget_us", Form::One),
    ("thread_budget_us", Form::One),
    ("cpu_percent", Form::One),
    ("important", Form::One),
    ("cpu_limit_percent", Form::One),
    ("source", Form::Texts),
    ("destination", Form::Texts),
    ("local_port", Form::List),
    ("remote_port", Form::List),
    ("dscp", Form::List),
    ("interface", Form::Texts),
    ("program", Form::Texts),
    ("user", Form::List),
    ("cgroup", Form::Texts),
    ("tls_name", Form::Texts),
    ("host", Form::Texts),
    ("url", Form::Texts),
    ("header", Form::Texts),
    ("cookie", Form::Texts),
    ("requests", Form::One),
    ("queue_packets", Form::One),
    ("memory", Form::One),
    ("connections", Form::One),
    ("mark", Form::One),
    ("extend", Form::One),
    ("weight", Form::One),
    ("rate", Form::One),
];

/// How the value of a key is written; `None`: there is no such key.
fn form_of(key: &str) -> Option<Form> {
    KEYS.iter().find(|(known, _)| *known == key).map(|(_, form)| *form)
}

/// Just the classes of a file.
#[derive(Deserialize)]
struct Classes {
    #[serde(default)]
    class: Vec<Class>,
}

/// `[[class]]` of a file that has been read already.
pub(super) fn tables_of(text: &str) -> Vec<Table> {
    let file: Table = toml::from_str(text).unwrap_or_default();
    let classes = file.get("class").and_then(Value::as_array).cloned().unwrap_or_default();
    classes.into_iter().filter_map(|class| class.try_into().ok()).collect()
}

/// The value of a key from a word of the command line: lists have commas between their elements. `None`: an empty
/// word, which puts the key back to its default.
pub(crate) fn key_value(key: &str, word: &str) -> Option<Value> {
    let form = form_of(key).unwrap_or(Form::One);
    let scalar = |word: &str| match (word.parse(), word.parse()) {
        (Ok(number), _) if form != Form::Texts => Value::Integer(number),
        // Whatever looks like one is meant as one only where fractions are allowed.
        (Err(_), Ok(number)) if key.ends_with("_percent") => Value::Float(number),
        _ => word.parse().map_or_else(|_| Value::String(word.to_owned()), Value::Boolean),
    };
    let mut elements = word.split(',').map(str::trim).filter(|element| !element.is_empty()).peekable();
    elements.peek()?;
    Some(match form {
        Form::One => scalar(word.trim()),
        Form::List | Form::Texts => Value::Array(elements.map(scalar).collect()),
    })
}

/// Whether there is such a key.
pub(crate) fn is_class_key(key: &str) -> bool {
    form_of(key).is_some()
}

/// The text of a class, as in a file.
pub(crate) fn render(class: &Table) -> String {
    let place = |key: &str| KEYS.iter().position(|(known, _)| *known == key).unwrap_or(KEYS.len());
    let mut keys: Vec<(&String, &Value)> = class.iter().collect();
    keys.sort_by_key(|(key, _)| place(key));
    let lines = keys.into_iter().map(|(key, value)| format!("{} = {value}\n", quoted(key)));
    ["[[class]]\n".to_owned()].into_iter().chain(lines).collect()
}

/// A key as TOML has it: bare, or quoted (a JSON string is one of TOML).
fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { serde_json::to_string(key).unwrap_or_default() }
}

/// Reads and checks classes, of which the one with this name was changed, for an engine with these devices.
///
/// # Errors
/// What is wrong, and with what remedy, in the words that are used for a file.
pub(crate) fn parse_classes(
    tables: &[Table],
    devices: &[Device],
    changed: &str,
) -> Result<Vec<Class>, ConfigError> {
    let text: String = tables.iter().map(render).collect();
    let classes: Classes =
        toml::from_str(&text).map_err(|error| ConfigError::of_class_text(changed, &text, &error))?;
    check::check_classes(&classes.class, devices)
        .map_err(|fault| ConfigError::of_class(changed, &fault.message))?;
    Ok(classes.class)
}

#[cfg(test)]
mod tests {
    use super::{KEYS, form_of, key_value, render};
    use toml::Table;

    #[test]
    fn words_become_values() {
        let shown = |key, word| key_value(key, word).map(|value| value.to_string());
        for (key, word, value) in [
            ("priority", "2", "2"),
            ("idle", "true", "true"),
            ("memory", "64MiB", "\"64MiB\""),
            ("memory", "65536", "65536"),
            ("cpu_percent", "2.5", "2.5"),
            ("cpu_percent", "10", "10"),
            ("policy", "edf", "\"edf\""),
            ("source", "10.0.0.7/32, 10.1.0.0/16", "[\"10.0.0.7/32\", \"10.1.0.0/16\"]"),
            ("local_port", "80,8000-8100", "[80, \"8000-8100\"]"),
            ("dscp", "EF,10", "[\"EF\", 10]"),
            ("program", "7z", "[\"7z\"]"),
            ("program", "7", "[\"7\"]"),
            ("user", "33,root", "[33, \"root\"]"),
            ("url", "/api/,/8", "[\"/api/\", \"/8\"]"),
            ("header", "X-Tier: gold", "[\"X-Tier: gold\"]"),
            ("cookie", "1=2", "[\"1=2\"]"),
        ] {
            assert_eq!(shown(key, word).as_deref(), Some(value), "{key}={word}");
        }
        assert_eq!((shown("source", ""), shown("priority", " "), shown("dscp", ",")), (None, None, None));
    }

    #[test]
    fn text_of_a_class_is_in_order_and_can_be_read() {
        let mut class = Table::new();
        for (key, word) in [("source", "10.0.0.7"), ("priority", "2"), ("a b\n", "x\"]\n[[class]]")] {
            class.insert(key.into(), key_value(key, word).unwrap());
        }
        class.insert("name".into(), "a \"b\"".into());
        let text = render(&class);
        assert!(text.starts_with("[[class]]\nname = "), "{text}");
        assert!(text.find("priority") < text.find("source"), "{text}");
        let read: Table = toml::from_str(&text).unwrap();
        assert_eq!(
            read["class"].as_array().unwrap(),
            &[toml::Value::Table(class)],
            "nothing gets out of a value"
        );
    }

    #[test]
    fn every_key_has_its_place() {
        let error =
            toml::from_str::<super::Classes>("[[class]]\nname = \"a\"\nnosuchkey = 1\n").err().unwrap();
        let known: Vec<&str> = error.message().split('`').skip(3).step_by(2).collect();
        assert_eq!(known.len(), KEYS.len(), "{known:?}");
        assert!(known.iter().all(|key| form_of(key).is_some()), "{known:?}");
    }
}
