//! What a value of the wrong kind is told: its key, and what is expected there, in the words of the configuration.
//!
//! serde knows neither. It says what it had in hand (`invalid type: string "x", expected u32`) and where that stands;
//! the key is looked up by that place, and what belongs there by the key.

mod place;

#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as Plain, StrDeserializer};

use super::error::with_suggestion;
use super::tcp::FastOpen;
use super::{Congestion, DeviceMode, Driver, Ecn, Ip6Mode, Policy, Realtime, Requests, RouteKind};
use place::Found;
pub(super) use place::misshapen;

/// Longer values are not repeated.
const LONGEST_SHOWN: usize = 40;

/// Numbers, and what each may be: as `check` has it, so that what has no place in a small integer (-1, say) is told
/// the same as what has.
const NUMBERS: [(&str, u32, u32); 45] = [
    ("device.vlan", 1, 4094),
    ("device.vlan_priority", 0, 7),
    ("device.mtu", 576, 65_535),
    ("device.packet.ring_frames", 8, 16_384),
    ("device.xdp.ring_frames", 64, 65_536),
    ("route.metric", 0, u32::MAX),
    ("route.mtu", 68, 65_535),
    ("route.advmss", 88, 65_495),
    ("route.initcwnd", 1, 65_535),
    ("route.initrwnd", 1, 65_535),
    ("engine.realtime_priority", 1, 99),
    ("engine.spin_us", 0, 10_000),
    ("engine.forward_pause_us", 0, 1_000),
    ("engine.max_paths", 16, 4_000_000),
    ("engine.time_wait_s", 0, 600),
    ("engine.queue_packets", 1, 65_536),
    ("linux.priority", 0, 63),
    ("linux.weight", 1, 10_000),
    ("linux.share", 1, 99),
    ("linux.quantum_us", 10, 1_000_000),
    ("linux.interval_us", 0, 1_000_000),
    ("scheduler.priority_share", 1, 10_000),
    ("scheduler.edf_share", 1, 10_000),
    ("scheduler.wfq_share", 1, 10_000),
    ("scheduler.bert_share", 1, 10_000),
    ("extension.base", 0, 98),
    ("extension.range", 1, 63),
    ("system.priority", 0, 63),
    ("class.priority", 0, 63),
    ("class.listen_priority", 0, 63),
    ("class.deadline_us", 100, 60_000_000),
    ("class.budget_us", 1, 60_000_000),
    ("class.thread_budget_us", 2, 4_000_000),
    ("class.queue_packets", 1, 65_536),
    ("class.connections", 1, 4_000_000),
    ("class.weight", 1, 10_000),
    ("permission.priority", 0, 63),
    ("permission.deadline_us", 100, 60_000_000),
    ("permission.weight", 1, 10_000),
    // Those beyond have notations of their own; here stands what their numbers may be.
    ("class.dscp", 0, 63),
    ("class.mark", 0, 63),
    ("class.user", 0, u32::MAX),
    ("permission.user", 0, u32::MAX),
    ("class.local_port", 1, 65_535),
    ("class.remote_port", 1, 65_535),
];
/// Where [`NUMBERS`] begin to be one of several notations.
const WITH_NOTATION: usize = 38;

/// Tells the words that a key can have.
type Choices = fn() -> String;

/// Keys that have one of several words.
const CHOICES: [(&str, Choices); 10] = [
    ("device.driver", choices::<Driver>),
    ("device.ipv6", choices::<Ip6Mode>),
    ("device.mode", choices::<DeviceMode>),
    ("route.type", choices::<RouteKind>),
    ("engine.realtime", choices::<Realtime>),
    ("tcp.congestion", choices::<Congestion>),
    ("tcp.ecn", choices::<Ecn>),
    ("tcp.fast_open", choices::<FastOpen>),
    ("class.policy", choices::<Policy>),
    ("class.requests", choices::<Requests>),
];

/// Keys of which serde's own words say too little.
const OTHERS: [(&str, &str); 5] = [
    ("device.gateway", "an IPv4 address such as \"10.0.0.254\""),
    ("device.gateway6", "an IPv6 address such as \"fe80::1\""),
    ("route.via", "an address such as \"10.0.0.254\" or \"fe80::1\""),
    ("engine.cpu", "the number of a core such as 0, or a list of them, an engine for each"),
    ("device.address6", "a list of networks such as [\"2001:db8::1/64\"]"),
];

/// The words that a key can have, as serde names them to who gives another.
fn choices<'de, T: Deserialize<'de>>() -> String {
    let none: StrDeserializer<'de, Plain> = "".into_deserializer();
    let error = T::deserialize(none).err().map(|error| error.to_string()).unwrap_or_default();
    let words: Vec<String> = error.split('`').skip(3).step_by(2).map(|word| format!("\"{word}\"")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "another word".to_owned(),
    }
}

fn look_up<T: Copy>(list: &[(&str, T)], path: &str) -> Option<T> {
    list.iter().find(|(known, _)| *known == path).map(|&(_, found)| found)
}

/// What may stand at a key: from our own tables, or from the words of whoever looked for it.
fn expected(path: &str, message: &str) -> String {
    if let Some(choices) = look_up(&CHOICES, path) {
        return choices();
    }
    if let Some(words) = look_up(&OTHERS, path) {
        return words.to_owned();
    }
    let asked = message.split_once(", expected ").map_or("", |(_, asked)| asked);
    let asked = asked.strip_suffix(" in quotes").unwrap_or(asked);
    match asked {
        "a boolean" => "true or false".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "path string" => "a path in quotes".to_owned(),
        "a sequence" => "a list, with [ and ] around it".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "a whole number, 0 or more".to_owned(),
        "" => "something else".to_owned(),
        other => other.to_owned(),
    }
}

/// All of a number of which this is a part.
fn number_at(text: &str, part: &Range<usize>) -> Range<usize> {
    let is_of_number = |c: char| c.is_ascii_alphanumeric() || "+-_.".contains(c);
    let before = text.get(..part.start).unwrap_or_default();
    let behind = text.get(part.start..).unwrap_or_default();
    let start = before.trim_end_matches(is_of_number).len();
    start..part.start + behind.find(|c| !is_of_number(c)).unwrap_or(behind.len())
}

/// Says what is wrong with a value in a text that TOML could read, or nearly: one line without a place. `None`: it is
/// not about a value, and the message stands as it is.
pub(super) fn explain(text: &str, message: &str, at: Range<usize>) -> Option<String> {
    if message.starts_with("unknown variant ") {
        let Found { path, .. } = place::value_at(text, &at)?;
        let key = path.rsplit_once('.').map_or(path.as_str(), |(_, key)| key);
        return Some(format!("{key}: {}", with_suggestion(message)));
    }
    const OF_VALUES: [&str; 9] = [
        "`",
        // A date, of which TOML makes a table.
        "unknown field `$__toml",
        "missing field ",
        "invalid type: ",
        "invalid value: ",
        "invalid length ",
        "invalid IP",
        "wanted ",
        "number too ",
    ];
    if !OF_VALUES.iter().any(|beginning| message.starts_with(beginning)) {
        return None;
    }
    let at = if message.starts_with("number too ") { number_at(text, &at) } else { at };
    if let Some(missing) = message.strip_prefix("missing field ") {
        let Found { path, .. } = place::value_at(text, &at)?;
        return Some(format!("[[{path}]] without {missing}; give it one"));
    }
    let Found { path, is_element } = place::value_at(text, &at)?;
    let key = path.rsplit_once('.').map_or(path.as_str(), |(_, key)| key);
    if message.starts_with('`') {
        return Some(format!("{key}: {message}"));
    }
    let value = text.get(at).map(str::trim).filter(|value| {
        !value.is_empty() && value.len() <= LONGEST_SHOWN && !value.contains('\n') && !value.starts_with('[')
    });
    let shown = match value {
        Some(value) if is_element => format!("{key}: {value}"),
        Some(value) => format!("{key} = {value}"),
        None => key.to_owned(),
    };
    let number = NUMBERS.iter().position(|(known, _, _)| *known == path);
    let is_number = value.is_some_and(|value| {
        let digits = value.trim_start_matches(['-', '+']);
        !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_digit() || digit == '_')
    });
    if let Some(at) = number.filter(|&at| at < WITH_NOTATION || is_number) {
        let (_, least, most) = NUMBERS[at];
        let what = if is_number {
            "is out of range"
        } else if value.is_some_and(|value| value.parse::<f64>().is_ok()) {
            "is no whole number"
        } else {
            "is no number"
        };
        return Some(format!("{shown} {what}; it must be {least} to {most}"));
    }
    if is_number && message.contains("too large") {
        return Some(format!("{shown} is too large"));
    }
    Some(format!("{shown} is wrong; it must be {}", expected(&path, message)))
}
