use std::collections::BTreeSet;
use std::path::Path;

use super::super::Config;
use super::{NUMBERS, WITH_NOTATION};

const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n";

/// A text in which one key of a section has this value; at which line.
fn text(section: &str, key: &str, value: &str) -> String {
    let line = format!("{key} = {value}\n");
    match section {
        "" if key == "device" => line,
        "" => format!("{line}{DEVICE}"),
        "device" if key == "name" => format!("[[device]]\n{line}"),
        "device" => format!("[[device]]\nname = \"eth1\"\n{line}"),
        "device.packet" | "device.xdp" | "device.tap" | "device.pcap" | "device.background" => {
            format!("{DEVICE}[{section}]\n{line}")
        }
        "class" if key != "name" => format!("{DEVICE}[[class]]\nname = \"a\"\n{line}"),
        "route" if key != "to" => format!("{DEVICE}[[route]]\nto = \"10.9.0.0/16\"\n{line}"),
        "forward" if key == "from" => format!("{DEVICE}[[forward]]\nto = \"eth1\"\n{line}"),
        "forward" => format!("{DEVICE}[[forward]]\nfrom = \"eth1\"\n{line}"),
        "class" | "route" | "permission" => format!("{DEVICE}[[{section}]]\n{line}"),
        _ => format!("{DEVICE}[{section}]\n{line}"),
    }
}

fn refusal(text: &str) -> Option<String> {
    Config::parse(text, Path::new("s.toml")).err().map(|error| error.to_string())
}

const SECTIONS: [&str; 18] = [
    "",
    "device",
    "device.packet",
    "device.xdp",
    "device.tap",
    "device.pcap",
    "device.background",
    "forward",
    "route",
    "local",
    "engine",
    "tcp",
    "linux",
    "scheduler",
    "extension",
    "system",
    "control",
    "class",
];

/// The keys of a section, as serde names them to who gives another.
fn keys_of(section: &str) -> Vec<String> {
    let error = toml::from_str::<Config>(&text(section, "nosuchkey", "1")).expect_err(section);
    let keys: Vec<String> = error.message().split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(!keys.is_empty(), "{section}: {}", error.message());
    keys
}

/// Every key of the configuration, with its section.
fn all_keys() -> Vec<(&'static str, String)> {
    let sections = SECTIONS.into_iter().chain(["permission"]);
    sections.flat_map(|section| keys_of(section).into_iter().map(move |key| (section, key))).collect()
}

#[test]
fn a_value_of_a_wrong_kind_is_told_its_key_in_plain_words() {
    let wrong = [
        "-1",
        "1.5",
        "true",
        "\"nonsense\"",
        "\"\"",
        "[]",
        "[[1]]",
        "[-1]",
        "[true]",
        "[{ a = 1 }]",
        "{ a = 1 }",
        "300",
        "70000",
        "99999999999",
        "99999999999999999999",
        "-99999999999999999999",
        "[99999999999999999999]",
        "1979-05-27",
        "[1, 2, 3]",
        "[\"nonsense\"]",
        "[[\"nonsense\"]]",
        "{ nonsense = {} }",
        "inf",
    ];
    let of_rust = [
        "u8",
        "u16",
        "u32",
        "u64",
        "i64",
        "usize",
        "f64",
        "enum",
        "struct",
        "string",
        "variant",
        "newtype",
        "expected",
        "field",
        "sequence",
        "element",
        "invalid",
        "target type",
        "map",
        "boolean",
        "syntax",
        "wanted",
    ];
    let keys = all_keys();
    assert!(keys.len() > 130, "{}", keys.len());
    let (mut seen, mut faults) = (BTreeSet::new(), Vec::new());
    for (section, key) in &keys {
        for value in wrong {
            let text = text(section, key, value);
            let of_keys = super::misshapen(&text).is_some();
            if toml::from_str::<Config>(&text).is_ok() && !of_keys {
                continue; // what it means is not ours here
            }
            let refusal = refusal(&text).unwrap();
            let is_unknown =
                refusal.contains("unknown key `a`") || refusal.contains("unknown key `nonsense`");
            let about = refusal.split_once(": ").unwrap().1.replace("nonsense", "");
            let words = of_rust.iter().filter(|word| {
                about.split(|c: char| !c.is_alphanumeric() && c != ' ').any(|part| {
                    part.contains(**word) && (word.contains(' ') || part.split(' ').any(|one| one == **word))
                })
            });
            let words: Vec<_> = words.collect();
            if !(is_unknown || about.contains(key.as_str())) || !words.is_empty() {
                faults.push(format!("{section} {key} = {value}: {refusal}: {words:?}"));
            }
            assert!(!refusal.contains('\n'), "{refusal}");
            seen.insert((section, key));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(seen.len(), keys.len(), "each key has a value that is wrong for it");
}

#[test]
fn numbers_may_be_what_the_checks_say() {
    let number = |section: &str, key: &str, value: &str| {
        let more = match key {
            "vlan" => "address = \"10.0.0.1/24\"\nparent = \"eth0\"\n",
            "vlan_priority" => "address = \"10.0.0.1/24\"\nparent = \"eth0\"\nvlan = 1\n",
            "deadline_us" if section == "class" => "policy = \"edf\"\n",
            "budget_us" | "thread_budget_us" => "policy = \"edf\"\ndeadline_us = 60000000\n",
            _ if section == "route" => "device = \"eth1\"\n",
            _ if section == "device" => "address = \"10.0.0.1/24\"\n",
            _ => "",
        };
        let mut text = text(section, key, value) + more;
        if section == "device.xdp" {
            text = text.replace("[device.xdp]", "driver = \"xdp\"\n[device.xdp]");
        }
        refusal(&text)
    };
    for (path, least, most) in &NUMBERS[..WITH_NOTATION] {
        let (section, key) = path.rsplit_once('.').unwrap();
        let says = format!("it must be {least} to {most}");
        let beyond = [i64::from(*least) - 1, i64::from(*most) + 1, -7, i64::from(u32::MAX) + 1];
        for value in beyond {
            let refusal =
                number(section, key, &value.to_string()).unwrap_or_else(|| panic!("{path} = {value}"));
            let is_special = key == "thread_budget_us" || key == "budget_us";
            assert!(refusal.contains(&says) || is_special, "{path} = {value}: {refusal}\nnot: {says}");
        }
    }
}

#[test]
fn the_words() {
    for (text, says) in [
        ("[engine]\nspin_us = \"lots\"", "s.toml:5: spin_us = \"lots\" is no number; it must be 0 to 10000"),
        ("[engine]\nspin_us = -1", "s.toml:5: spin_us = -1 is out of range; it must be 0 to 10000"),
        ("[engine]\nspin_us = 1.5", "s.toml:5: spin_us = 1.5 is no whole number; it must be 0 to 10000"),
        (
            "[engine]\nspin_us = 99999999999999999999",
            "s.toml:5: spin_us = 99999999999999999999 is out of range; it must be 0 to 10000",
        ),
        ("[engine]\nmeasure = 1", "s.toml:5: measure = 1 is wrong; it must be true or false"),
        ("[engine]\nrealtime = []", "s.toml:5: realtime is wrong; it must be \"auto\", \"on\" or \"off\""),
        ("[engine]\nsend_buffer = \"lots\"", "s.toml:5: send_buffer: `lots` is no size; write it like"),
        (
            "gateway = \"router\"",
            "s.toml:4: gateway = \"router\" is wrong; it must be an IPv4 address such as \"10.0.0.254\"",
        ),
        ("packet = 5", "s.toml:4: packet is one table; write [device.packet]"),
        ("[class]\nname = \"a\"", "s.toml:4: class is a list of tables; begin each with [[class]]"),
        ("[[engine]]\nspin_us = 1", "s.toml:4: engine is one table; write [engine]"),
        ("[[class]]\npriority = 1", "s.toml:4: [[class]] without `name`; give it one"),
        (
            "[[class]]\nname = \"a\"\nsource = [\"10.0.0.1\", 5]",
            "s.toml:6: source: 5 is wrong; it must be a network such as \"10.0.0.1/24\" or \"2001:db8::1/64\"",
        ),
        (
            "[[class]]\nname = \"a\"\npriority = -1",
            "s.toml:6: priority = -1 is out of range; it must be 0 to 63",
        ),
        (
            "[[class]]\nname = \"a\"\nlocal_port = [80, 0]",
            "s.toml:6: local_port: 0 is out of range; it must be 1 to 65535",
        ),
        (
            "[[class]]\nname = \"a\"\nurl = \"/a\"",
            "s.toml:6: url = \"/a\" is wrong; it must be a list, with [ and ] around it",
        ),
    ] {
        let refusal = refusal(&format!("{DEVICE}{text}\n")).expect(text);
        assert!(refusal.contains(says), "{text}\n gave: {refusal}\n  not: {says}");
    }
}
