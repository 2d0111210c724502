//! Which key a place in a text belongs to.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

/// The key of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// With the tables around it: `device.packet.ring_frames`. Tables of a list have no number.
    pub(super) path: String,
    /// The place is one element of its list.
    pub(super) is_element: bool,
}

/// A document of which nothing but places is kept.
enum Node {
    Leaf,
    List(Vec<Spanned<Node>>),
    Table(Vec<(String, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Node::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Table(entries))
    }
}

/// Tables that are there once, and those of a list.
const TABLES: [&str; 8] = ["local", "engine", "tcp", "linux", "scheduler", "extension", "system", "control"];
const LISTS: [&str; 5] = ["device", "forward", "route", "class", "permission"];
const OF_DEVICES: [&str; 5] = ["packet", "xdp", "tap", "pcap", "background"];

/// The first table of a configuration that is something else, and what it should be. serde would take a list for a
/// table, with the values of its keys in their order.
pub(in super::super) fn misshapen(text: &str) -> Option<(Range<usize>, String)> {
    let Ok(Node::Table(entries)) = toml::from_str(text) else { return None };
    for (key, value) in &entries {
        let at = value.span();
        match value.get_ref() {
            Node::Table(_) if TABLES.contains(&key.as_str()) => {}
            _ if TABLES.contains(&key.as_str()) => {
                return Some((at, format!("{key} is one table; write [{key}]")));
            }
            Node::List(elements) if LISTS.contains(&key.as_str()) => {
                let tables = elements.iter().map(|element| match element.get_ref() {
                    Node::Table(entries) => Some(entries),
                    _ => None,
                });
                let Some(tables) = tables.collect::<Option<Vec<_>>>() else {
                    return Some((at, list_of_tables(key)));
                };
                let mut inner = tables.into_iter().flatten().filter(|_| key == "device");
                let wrong = inner.find(|(key, value)| {
                    OF_DEVICES.contains(&key.as_str()) && !matches!(value.get_ref(), Node::Table(_))
                });
                if let Some((key, value)) = wrong {
                    return Some((value.span(), format!("{key} is one table; write [device.{key}]")));
                }
            }
            _ if LISTS.contains(&key.as_str()) => return Some((at, list_of_tables(key))),
            _ => {}
        }
    }
    None
}

fn list_of_tables(key: &str) -> String {
    format!("{key} is a list of tables; begin each with [[{key}]]")
}

/// The key whose value, or an element of it, stands at a place.
pub(super) fn value_at(text: &str, at: &Range<usize>) -> Option<Found> {
    let Ok(root) = toml::from_str::<Node>(text) else { return by_the_line(text, at) };
    let mut narrowest = None;
    search(&root, at, "", &mut narrowest);
    narrowest.map(|(_, found)| found)
}

/// Looks for what is narrowest of all that holds a place. Tables with a header of their own lie beyond their parent's
/// place, so all are looked into.
fn search(node: &Node, at: &Range<usize>, path: &str, narrowest: &mut Option<(usize, Found)>) {
    let mut look = |value: &Spanned<Node>, path: String, is_element: bool| {
        let span = value.span();
        let is_narrower = narrowest.as_ref().is_none_or(|(len, _)| span.len() <= *len);
        if span.start <= at.start && at.end <= span.end && is_narrower {
            *narrowest = Some((span.len(), Found { path: path.clone(), is_element }));
        }
        search(value.get_ref(), at, &path, narrowest);
    };
    match node {
        Node::Leaf => {}
        Node::List(elements) => {
            for element in elements {
                look(element, path.to_owned(), !matches!(element.get_ref(), Node::Table(_)));
            }
        }
        Node::Table(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                look(value, path, false);
            }
        }
    }
}

/// The same where TOML could not read on (a number that is too large): from what stands before.
fn by_the_line(text: &str, at: &Range<usize>) -> Option<Found> {
    let before = text.get(..at.start)?.trim_end();
    let is_element = !before.ends_with('=');
    let (before, _) = before.rsplit_once('=')?;
    let key = before.trim_end().rsplit(['\n', ',', '{', ' ']).next()?.trim();
    let header = before.lines().rev().find(|line| line.starts_with('['));
    let table = header.map_or("", |line| line.trim().trim_matches(['[', ']']));
    let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
    (!key.is_empty()).then_some(Found { path, is_element })
}
