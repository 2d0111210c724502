//! Settings that change while the daemon runs: `scoutline set`, and what reading the file again takes over.
//!
//! ```text
//! scoutline set KEY=VALUE ─► a copy of the file's tables, changed ─► parsed and checked as a file is
//!                                                                     │ wrong: one line says why, all stays
//!                                                                     ▼ sound: Command::SetLive
//! ```
//! As for classes ([`crate::classes`]), what stands here is what the engine has, or will have before the next command;
//! and what was set is not written into the file.

#[cfg(test)]
mod tests;

use scoutline_abi::api::SettingRow;
use scoutline_engine::LiveSettings;
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use crate::config::{Config, nearest};

/// How a value is written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `on` or `off`.
    Switch,
    Number,
    /// A number where it looks like one.
    Text,
}

/// One setting. Those of devices are there once for each device.
struct Setting {
    /// Table of the file; `device` is followed by the name of one.
    section: &'static str,
    key: &'static str,
    form: Form,
    unit: &'static str,
    range: &'static str,
    about: &'static str,
    value: fn(&Config, usize) -> Json,
}

/// `extend=off` is what people want to say in a hurry.
const SHORT: (&str, &str) = ("extend", "extension.enabled");

const SETTINGS: [Setting; 16] = [
    Setting {
        section: "device",
        key: "rate",
        form: Form::Text,
        unit: "",
        range: "64kbit/s to 800Gbit/s",
        about: "what the link carries",
        value: |config, device| {
            json!(config.device[device].rate.as_ref().map(|rate| rate.get_ref().to_string()))
        },
    },
    Setting {
        section: "device",
        key: "preemption_us",
        form: Form::Text,
        unit: "us",
        range: "auto, 0 to 10000000",
        about: "how long background keeps away after a foreground packet",
        value: |config, device| {
            let background = config.device[device].background.as_ref();
            match background.and_then(|knobs| knobs.preemption_us.as_ref()).map(toml::Spanned::get_ref) {
                None | Some(crate::config::Interval::Auto) => json!("auto"),
                Some(crate::config::Interval::Us(us)) => json!(us),
            }
        },
    },
    Setting {
        section: "engine",
        key: "spin_us",
        form: Form::Number,
        unit: "us",
        range: "0 to 10000",
        about: "how long to spin for more work before sleeping, at most",
        value: |config, _| json!(config.engine.spin_us.get_ref()),
    },
    Setting {
        section: "engine",
        key: "forward_pause_us",
        form: Form::Number,
        unit: "us",
        range: "0 to 1000",
        about: "how long to sleep between two looks while forwarded datagrams come densely",
        value: |config, _| json!(config.engine.forward_pause_us.get_ref()),
    },
    Setting {
        section: "engine",
        key: "queue_packets",
        form: Form::Number,
        unit: "",
        range: "1 to 65536",
        about: "packets that may wait at a path's input",
        value: |config, _| json!(config.engine.queue_packets.get_ref()),
    },
    Setting {
        section: "scheduler",
        key: "priority_share",
        form: Form::Number,
        unit: "",
        range: "1 to 10000",
        about: "what the priorities are guaranteed of the engine's CPU",
        value: |config, _| json!(config.scheduler.priority_share.get_ref()),
    },
    Setting {
        section: "scheduler",
        key: "edf_share",
        form: Form::Number,
        unit: "",
        range: "1 to 10000",
        about: "what edf is guaranteed",
        value: |config, _| json!(config.scheduler.edf_share.get_ref()),
    },
    Setting {
        section: "scheduler",
        key: "wfq_share",
        form: Form::Number,
        unit: "",
        range: "1 to 10000",
        about: "what wfq is guaranteed",
        value: |config, _| json!(config.scheduler.wfq_share.get_ref()),
    },
    Setting {
        section: "scheduler",
        key: "bert_share",
        form: Form::Number,
        unit: "",
        range: "1 to 10000",
        about: "what bert is guaranteed",
        value: |config, _| json!(config.scheduler.bert_share.get_ref()),
    },
    Setting {
        section: "linux",
        key: "weight",
        form: Form::Number,
        unit: "",
        range: "1 to 10000",
        about: "Linux stands among the paths of wfq, with this weight",
        value: |config, _| json!(config.linux.weight.as_ref().map(toml::Spanned::get_ref)),
    },
    Setting {
        section: "linux",
        key: "share",
        form: Form::Number,
        unit: "%",
        range: "1 to 99",
        about: "Linux stands beside all paths, with so much of the core",
        value: |config, _| json!(config.linux.share.as_ref().map(toml::Spanned::get_ref)),
    },
    Setting {
        section: "linux",
        key: "quantum_us",
        form: Form::Number,
        unit: "us",
        range: "10 to 1000000",
        about: "how long Linux may run before the engine looks again",
        value: |config, _| json!(config.linux.quantum_us.get_ref()),
    },
    Setting {
        section: "linux",
        key: "interval_us",
        form: Form::Number,
        unit: "us",
        range: "0 to 1000000",
        about: "how long paths of Linux's level may run between two of its turns",
        value: |config, _| json!(config.linux.interval_us.get_ref()),
    },
    Setting {
        section: "extension",
        key: "enabled",
        form: Form::Switch,
        unit: "",
        range: "on, off",
        about: "threads of programs are scheduled with the paths that they serve; short: extend",
        value: |config, _| json!(config.settings().extension.is_some()),
    },
    Setting {
        section: "extension",
        key: "base",
        form: Form::Number,
        unit: "",
        range: "0 to 98",
        about: "a path of priority p has its thread at SCHED_FIFO base + p",
        value: |config, _| json!(config.extension.base.get_ref()),
    },
    Setting {
        section: "extension",
        key: "range",
        form: Form::Number,
        unit: "",
        range: "1 to 63",
        about: "p counts up to this; base + range stay below realtime_priority",
        value: |config, _| json!(config.extension.range.get_ref()),
    },
];

/// A setting of this daemon: which, and of which device.
#[derive(Clone, Copy)]
struct Place {
    setting: &'static Setting,
    device: usize,
}

/// The settings of now.
#[derive(Clone)]
pub(crate) struct Settings {
    /// As a file would have them, with the devices that are there.
    document: Table,
    config: Config,
}

impl Settings {
    /// Those of a daemon that starts.
    pub(crate) fn new(running: &Config) -> Settings {
        Settings { document: running.origin.document.clone(), config: running.clone() }
    }

    /// In the engine's words.
    pub(crate) fn live(&self) -> LiveSettings {
        self.config.settings().live()
    }

    /// All of them, for people.
    pub(crate) fn rows(&self) -> Vec<SettingRow> {
        let row = |place: Place| {
            let Setting { unit, range, about, value, .. } = place.setting;
            let mut unset = self.document.clone();
            place.set(&mut unset, None);
            let default =
                Config::from_document(&unset).map_or(Json::Null, |config| value(&config, place.device));
            SettingRow {
                key: self.name(place),
                value: value(&self.config, place.device),
                default,
                unit: (*unit).to_owned(),
                range: (*range).to_owned(),
                about: (*about).to_owned(),
            }
        };
        self.places().map(row).collect()
    }

    /// These, after some have changed; an empty value puts one back to its default.
    ///
    /// # Errors
    /// One line with the remedy.
    pub(crate) fn with(&self, keys: &[(String, String)]) -> Result<Settings, String> {
        let mut document = self.document.clone();
        for (key, word) in keys {
            let place = self.find(key)?;
            place.set(&mut document, value(place.setting, key, word.trim())?);
        }
        Settings::checked(document)
    }

    /// These, after the file has been read again, and the names of those that have changed.
    ///
    /// # Errors
    /// What the file says does not go with what only a restart changes.
    pub(crate) fn following(&self, file: &Config) -> Result<(Settings, Vec<String>), String> {
        let mut document = self.document.clone();
        for place in self.places() {
            let theirs = if place.setting.section == "device" {
                let name = self.config.device[place.device].name.get_ref();
                let device = file.device.iter().position(|device| device.name.get_ref() == name);
                device.map(|device| Place { device, ..place })
            } else {
                Some(place)
            };
            let value = theirs.and_then(|theirs| theirs.of(&file.origin.document));
            place.set(&mut document, value);
        }
        self.follow_host(&mut document, file);
        let followed = Settings::checked(document)?;
        let changed = |place: &Place| {
            let of = |config| (place.setting.value)(config, place.device);
            of(&self.config) != of(&followed.config)
        };
        let mut changed: Vec<String> = self.places().filter(changed).map(|place| self.name(place)).collect();
        let [before, after] = [&self.config, &followed.config].map(|config| config.settings().host);
        if before.others != after.others {
            changed.push("address".to_owned());
        }
        if before.routes != after.routes {
            changed.push("route".to_owned());
        }
        Ok((followed, changed))
    }

    /// Routes are those of the file from now on, and so are the addresses of a device beside its first.
    fn follow_host(&self, document: &mut Table, file: &Config) {
        match file.origin.document.get("route") {
            Some(routes) => _ = document.insert("route".to_owned(), routes.clone()),
            None => _ = document.remove("route"),
        }
        let Some(devices) = document.get_mut("device").and_then(Value::as_array_mut) else { return };
        for (device, ours) in devices.iter_mut().zip(&self.config.device) {
            let name = ours.name.get_ref();
            let found = file.device.iter().position(|theirs| theirs.name.get_ref() == name);
            let Some(index) = found else { continue };
            let same = file.device[index].networks().first() == ours.networks().first();
            let theirs = file.origin.document.get("device").and_then(|all| all.get(index)?.get("address"));
            if let Some((device, address)) = device.as_table_mut().filter(|_| same).zip(theirs) {
                device.insert("address".to_owned(), address.clone());
            }
        }
    }

    fn checked(document: Table) -> Result<Settings, String> {
        let config = Config::from_document(&document).map_err(|error| error.message().to_owned())?;
        Ok(Settings { document, config })
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let devices = self.config.device.len();
        SETTINGS.iter().flat_map(move |setting| {
            let devices = if setting.section == "device" { devices } else { 1 };
            (0..devices).map(move |device| Place { setting, device })
        })
    }

    fn name(&self, Place { setting, device }: Place) -> String {
        let Setting { section, key, .. } = setting;
        match *section {
            "device" => format!("device.{}.{key}", self.config.device[device].name.get_ref()),
            section => format!("{section}.{key}"),
        }
    }

    /// A setting by its name, or by the last part of it where that is enough.
    fn find(&self, word: &str) -> Result<Place, String> {
        let word = if word == SHORT.0 { SHORT.1 } else { word };
        let all: Vec<(Place, String)> = self.places().map(|place| (place, self.name(place))).collect();
        if let Some((place, _)) = all.iter().find(|(_, name)| name == word) {
            return Ok(*place);
        }
        let short: Vec<&(Place, String)> =
            all.iter().filter(|(place, _)| place.setting.key == word).collect();
        if let [(place, _)] = short[..] {
            return Ok(*place);
        }
        if !short.is_empty() {
            let names: Vec<&str> = short.iter().map(|(_, name)| name.as_str()).collect();
            return Err(format!(
                "there are several settings `{word}`; name one of them: {}",
                names.join(", ")
            ));
        }
        let names: Vec<&str> = all.iter().map(|(_, name)| name.as_str()).collect();
        let short = all.iter().map(|(place, _)| place.setting.key).chain([SHORT.0]);
        let known: Vec<&str> = names.iter().copied().chain(short).collect();
        let which = match nearest(word, &known) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => format!(": {}.", names.join(", ")),
        };
        Err(format!(
            "`{word}` is none of the settings that change live{which} `scoutline set` lists them; all others need a \
             restart"
        ))
    }
}

impl Place {
    /// What a file says of it.
    fn of(self, document: &Table) -> Option<Value> {
        let section = document.get(self.setting.section)?;
        let mut table = section.as_array().map_or(Some(section), |devices| devices.get(self.device))?;
        if let Some(inner) = self.inner() {
            table = table.get(inner)?;
        }
        table.get(self.setting.key).cloned()
    }

    /// Has a file say this of it, or nothing.
    fn set(self, document: &mut Table, value: Option<Value>) {
        let section = document.entry(self.setting.section).or_insert_with(|| Value::Table(Table::new()));
        let table = match section {
            Value::Array(devices) => devices.get_mut(self.device).and_then(Value::as_table_mut),
            other => other.as_table_mut(),
        };
        let Some(mut table) = table else { return };
        if let Some(inner) = self.inner() {
            let inner = table.entry(inner).or_insert_with(|| Value::Table(Table::new()));
            let Some(inner) = inner.as_table_mut() else { return };
            table = inner;
        }
        match value {
            Some(value) => _ = table.insert(self.setting.key.to_owned(), value),
            None => _ = table.remove(self.setting.key),
        }
    }

    /// The table in the section's table where it stands.
    fn inner(self) -> Option<&'static str> {
        (self.setting.key == "preemption_us").then_some("background")
    }
}

/// The value of a setting, which was called `key`, from a word; `None`: an empty one.
fn value(setting: &Setting, key: &str, word: &str) -> Result<Option<Value>, String> {
    let Setting { range, .. } = setting;
    if word.is_empty() {
        return Ok(None);
    }
    let value = match (setting.form, word.parse()) {
        (Form::Switch, _) => match word {
            "on" | "true" | "yes" => Value::Boolean(true),
            "off" | "false" | "no" => Value::Boolean(false),
            _ => return Err(format!("{key} = {word}: write on or off")),
        },
        (_, Ok(number)) => Value::Integer(number),
        (Form::Number, Err(_)) => return Err(format!("{key} = {word} is no number; it must be {range}")),
        (Form::Text, Err(_)) => Value::String(word.to_owned()),
    };
    Ok(Some(value))
}
