use std::path::Path;

use serde_json::json;

use super::{Form, SETTINGS, Settings};
use crate::config::Config;

const FILE: &str = "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\nrate = \"1Gbit/s\"\n\
                    [engine]\ncpu = 1\nrealtime_priority = 60\n[extension]\nbase = 20\n[[class]]\nname = \"a\"\n";

fn of(text: &str) -> Settings {
    Settings::new(&Config::parse(text, Path::new("test")).unwrap())
}

fn set(settings: &Settings, keys: &[(&str, &str)]) -> Result<Settings, String> {
    let keys: Vec<_> = keys.iter().map(|(key, word)| ((*key).to_owned(), (*word).to_owned())).collect();
    settings.with(&keys)
}

fn row(settings: &Settings, key: &str) -> (serde_json::Value, serde_json::Value) {
    let row = settings.rows().into_iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no {key}"));
    (row.value, row.default)
}

#[test]
fn rows_have_values_and_defaults() {
    let settings = of(FILE);
    assert_eq!(settings.rows().len(), SETTINGS.len());
    assert_eq!(row(&settings, "device.eth1.rate"), (json!("1Gbit/s"), json!(null)));
    assert_eq!(row(&settings, "device.eth1.preemption_us"), (json!("auto"), json!("auto")));
    assert_eq!(row(&settings, "extension.enabled"), (json!(true), json!(true)), "it is pinned");
    assert_eq!(row(&settings, "extension.base"), (json!(20), json!(10)));
    assert_eq!(row(&settings, "linux.share"), (json!(null), json!(null)));
}

#[test]
fn what_is_set_reaches_the_engine_and_can_be_taken_back() {
    let settings = of(FILE);
    let keys =
        [("extend", "off"), ("rate", "100Mbit/s"), ("device.eth1.preemption_us", "300"), ("share", "30")];
    let changed = set(&settings, &keys).unwrap();
    assert_eq!(row(&changed, "device.eth1.rate").0, json!("100Mbit/s"));
    assert_eq!(row(&changed, "device.eth1.preemption_us").0, json!(300));
    let live = changed.live();
    assert_eq!((live.extension, live.links[0].0.unwrap().get()), (None, 100_000_000));
    assert_ne!(live.linux, settings.live().linux);
    let back = [("extend", ""), ("rate", "1Gbit/s"), ("preemption_us", "auto"), ("share", "")];
    assert_eq!(set(&changed, &back).unwrap().live(), settings.live());
}

#[test]
fn mistakes_are_explained_and_change_nothing() {
    let settings = of(FILE);
    let two = FILE.replace("[engine]", "[[device]]\nname = \"eth2\"\naddress = \"10.1.0.1/24\"\n[engine]");
    for (settings, keys, words) in [
        (
            &settings,
            &[("extension.bose", "1")][..],
            &["extension.bose", "did you mean `extension.base`?"][..],
        ),
        (&settings, &[("extnd", "off")], &["did you mean `extend`?"]),
        (&settings, &[("engine.cpu", "0")], &["engine.cpu", "restart"]),
        (&settings, &[("base", "45")], &["base + range is 75", "below the engine's realtime_priority (60)"]),
        (&settings, &[("base", "much")], &["base = much is no number", "0 to 98"]),
        (&settings, &[("extend", "maybe")], &["on or off"]),
        (&settings, &[("spin_us", "-1")], &["spin_us = -1 is out of range; it must be 0 to 10000"]),
        (&settings, &[("rate", "true")], &["rate", "100Mbit/s"]),
        (
            &settings,
            &[("nix", "1")],
            &[
                "`nix` is none of the settings that change live: device.eth1.rate, device.eth1.preemption_us, engine.spin_us",
                "extension.enabled, extension.base, extension.range. `scoutline set` lists them; all others need a restart",
            ],
        ),
        (&settings, &[("linux.share", "30"), ("linux.weight", "5")], &["remove one of them"]),
        (&settings, &[("rate", "fast")], &["fast"]),
        (&of(&two), &[("rate", "1Gbit/s")], &["several", "device.eth1.rate, device.eth2.rate"]),
    ] {
        let said = set(settings, keys).err().unwrap_or_else(|| panic!("{keys:?} was taken"));
        assert!(words.iter().all(|word| said.contains(word)) && !said.contains('\n'), "{said}");
    }
}

/// What the list says of ranges is what the checks say.
#[test]
fn ranges_are_those_of_the_file() {
    let settings = of(&FILE.replace("60", "99"));
    let settings = set(&settings, &[("base", "0"), ("range", "1")]).unwrap();
    for setting in SETTINGS.iter().filter(|setting| setting.form == Form::Number) {
        let (least, most) = setting.range.split_once(" to ").unwrap();
        let (least, most): (i64, i64) = (least.parse().unwrap(), most.parse().unwrap());
        // 98 + 1 would be that of the engine.
        let most_here = if setting.key == "base" { most - 1 } else { most };
        for (word, good) in [(least - 1, false), (least, true), (most_here, true), (most + 1, false)] {
            let key = format!("{}.{}", setting.section, setting.key);
            let taken = set(&settings, &[(&key, &word.to_string())]);
            assert_eq!(taken.is_ok(), good, "{key}={word}");
        }
    }
}

#[test]
fn a_file_that_is_read_again_is_followed() {
    let settings = set(&of(FILE), &[("base", "5"), ("spin_us", "7")]).unwrap();
    let file = FILE.replace("[extension]\nbase = 20", "[linux]\nquantum_us = 500").replace("1Gbit", "2Gbit");
    let file = file.replace("realtime_priority = 60", "realtime_priority = 70");
    let (followed, mut changed) =
        settings.following(&Config::parse(&file, Path::new("test")).unwrap()).unwrap();
    changed.sort();
    assert_eq!(changed, ["device.eth1.rate", "engine.spin_us", "extension.base", "linux.quantum_us"]);
    assert_eq!(row(&followed, "extension.base").0, json!(10));
    assert_eq!(followed.config.engine.realtime_priority.get_ref(), &60, "only a restart changes that");
}

#[test]
fn what_belongs_to_no_device_is_followed_though_the_first_one_is_gone() {
    let file = FILE.replace("eth1", "eth9").replace("base = 20", "base = 21");
    let (followed, changed) = of(FILE).following(&Config::parse(&file, Path::new("test")).unwrap()).unwrap();
    assert!(changed.contains(&"extension.base".to_owned()), "{changed:?}");
    assert_eq!(row(&followed, "extension.base").0, json!(21));
    assert_eq!(followed.config.engine.realtime_priority.get_ref(), &60);
}
