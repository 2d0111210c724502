//! The classes of a running daemon: what they are, and how they change. Its other settings ([`crate::live`]) change
//! with them when the file is read again.
//!
//! ```text
//! scoutline class …  ─► a copy of the tables, changed ─┐
//! scoutline reload,  ─► the file, read again ──────────┴─► parsed and checked as a file is
//! SIGHUP                                                      │ wrong: one line says why, all stays
//!                                                             ▼ sound: the copy becomes what is, and the engine
//!                                                               puts the classes in place (Command::SetClasses)
//! ```
//! The engine cannot refuse classes that have been checked, so what stands here is what it has, or will have before
//! the next command. What `scoutline class` changes is not written into the file: reading that again undoes it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use scoutline_abi::api::{Answer, ClassKeys, Reloaded, Request};
use toml::{Table, Value};

use crate::config::{
    self, Class, Config, DEFAULT_CLASS, class_settings, key_value, parse_classes, permission_settings, render,
};
use crate::engine::{Command, EngineLink};
use crate::live::Settings;

/// What stands in an answer when a change was refused: one line with the remedy.
type Refusal = String;

/// The classes.
pub(crate) struct Classes {
    /// What the daemon was started with.
    running: Config,
    /// The classes of now, as a file would have them.
    tables: Vec<Table>,
    /// The other settings of now.
    settings: Settings,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Handled {
    /// It is answered.
    Now(Answer),
    /// It is answered once the engine says that it is done.
    Later(Answer, Receiver<Answer>),
    /// It is about something else.
    NotOurs,
}

/// A change that has been checked.
struct Change {
    tables: Vec<Table>,
    classes: Vec<Class>,
    answer: Answer,
}

impl Classes {
    /// The classes of a daemon that starts.
    pub(crate) fn new(running: &Config) -> Classes {
        let tables = running.origin.classes.clone();
        Classes { running: running.clone(), tables, settings: Settings::new(running) }
    }

    /// Whether there is a file to read again.
    pub(crate) fn has_file(&self) -> bool {
        self.running.origin.file.is_some()
    }

    /// Answers what is about classes and settings.
    pub(crate) fn handle(&mut self, request: &Request, engine: &impl EngineLink) -> Handled {
        let change = match request {
            Request::Classes => return Handled::Now(self.list()),
            Request::ClassAdd { name, keys, before } => self.add(name, keys, before.as_deref()),
            Request::ClassSet { name, keys } => self.set(name, keys),
            Request::ClassRemove { name } => self.remove(name),
            Request::ClassMove { name, before } => self.place(name, before.as_deref()),
            Request::Settings => {
                return Handled::Now(Answer::Settings { settings: self.settings.rows() });
            }
            Request::Set { keys } => return self.set_live(keys, engine),
            Request::Reload => return self.reload(engine),
            Request::Ps | Request::Stat | Request::Graph | Request::Stop => return Handled::NotOurs,
        };
        match change {
            Ok(change) => self.carry_out(change, engine),
            Err(message) => Handled::Now(Answer::Error { message }),
        }
    }

    /// Changes settings that are no classes.
    fn set_live(&mut self, keys: &[(String, String)], engine: &impl EngineLink) -> Handled {
        match self.settings.with(keys) {
            Ok(settings) => {
                let (sender, done) = channel();
                engine.send(Command::SetLive(settings.live(), sender));
                self.settings = settings;
                Handled::Later(Answer::Done, done)
            }
            Err(message) => Handled::Now(Answer::Error { message }),
        }
    }

    /// Reads the file again.
    pub(crate) fn reload(&mut self, engine: &impl EngineLink) -> Handled {
        match self.running.reload() {
            Ok(config) => {
                let (settings, changed) = match self.settings.following(&config) {
                    Ok(followed) => followed,
                    Err(message) => {
                        let message = format!("{message}; or restart the daemon");
                        return Handled::Now(Answer::Error { message });
                    }
                };
                let tables = config.origin.classes.clone();
                if !changed.is_empty() {
                    // The answer about the classes comes later than this one.
                    engine.send(Command::SetLive(settings.live(), channel().0));
                }
                let answer = Answer::Reloaded(Reloaded {
                    settings: changed,
                    restart: self.running.needs_restart(&config),
                    ..compare(&self.tables, &tables)
                });
                self.settings = settings;
                engine.send(Command::SetPermissions(permission_settings(&config.permission)));
                self.carry_out(Change { tables, classes: config.class, answer }, engine)
            }
            Err(error) => Handled::Now(Answer::Error { message: error.to_string() }),
        }
    }

    fn carry_out(&mut self, change: Change, engine: &impl EngineLink) -> Handled {
        let (sender, done) = channel();
        let settings = class_settings(&change.classes, &self.running.device);
        engine.send(Command::SetClasses(settings, sender));
        self.tables = change.tables;
        Handled::Later(change.answer, done)
    }

    /// All classes, the last one too if only the engine has it.
    fn list(&self) -> Answer {
        let of_table = |table: &Table| {
            let keys = table.iter().filter(|(key, _)| *key != "name");
            let keys = keys.filter_map(|(key, value)| Some((key.clone(), serde_json::to_value(value).ok()?)));
            ClassKeys { name: name_of(table).to_owned(), keys: keys.collect() }
        };
        let mut classes: Vec<ClassKeys> = self.tables.iter().map(of_table).collect();
        if self.position(DEFAULT_CLASS).is_none() {
            classes.push(ClassKeys { name: DEFAULT_CLASS.into(), keys: BTreeMap::new() });
        }
        Answer::Classes { classes }
    }

    fn add(&self, name: &str, keys: &[(String, String)], before: Option<&str>) -> Result<Change, Refusal> {
        if self.position(name).is_some() {
            return Err(format!(
                "there is a class `{name}` already; change it with `scoutline class set {name} …`"
            ));
        }
        let mut tables = self.tables.clone();
        let mut table = Table::new();
        table.insert("name".into(), name.into());
        set_keys(&mut table, keys)?;
        leaves_something(&table)?;
        let at = self.place_before(before)?;
        tables.insert(at, table);
        self.checked(tables, name)
    }

    fn set(&self, name: &str, keys: &[(String, String)]) -> Result<Change, Refusal> {
        let mut tables = self.tables.clone();
        let at = match self.position(name) {
            // The engine's own last class becomes one that is written down.
            None if name == DEFAULT_CLASS => {
                tables.push(Table::from_iter([("name".to_owned(), Value::from(name))]));
                tables.len() - 1
            }
            found => found.ok_or_else(|| self.no_class(name))?,
        };
        let took_everything = takes_everything(&tables[at]);
        set_keys(&mut tables[at], keys)?;
        if !took_everything {
            leaves_something(&tables[at])?;
        }
        self.checked(tables, name)
    }

    fn remove(&self, name: &str) -> Result<Change, Refusal> {
        let at = self.position(name).ok_or_else(|| self.no_class(name))?;
        let mut tables = self.tables.clone();
        tables.remove(at);
        self.checked(tables, name)
    }

    fn place(&self, name: &str, before: Option<&str>) -> Result<Change, Refusal> {
        let from = self.position(name).ok_or_else(|| self.no_class(name))?;
        let to = self.place_before(before)?;
        let mut tables = self.tables.clone();
        let table = tables.remove(from);
        tables.insert(if to > from { to - 1 } else { to }, table);
        self.checked(tables, name)
    }

    fn checked(&self, tables: Vec<Table>, changed: &str) -> Result<Change, Refusal> {
        let classes =
            parse_classes(&tables, &self.running.device, changed).map_err(|error| error.to_string())?;
        Ok(Change { tables, classes, answer: Answer::Done })
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.tables.iter().position(|table| name_of(table) == name)
    }

    /// Where a class goes that comes before this one; `None`: behind all that have conditions.
    fn place_before(&self, before: Option<&str>) -> Result<usize, Refusal> {
        match before {
            Some(DEFAULT_CLASS) if self.position(DEFAULT_CLASS).is_none() => Ok(self.behind_conditions()),
            Some(before) => self.position(before).ok_or_else(|| self.no_class(before)),
            None => Ok(self.behind_conditions()),
        }
    }

    /// Behind all classes that have conditions.
    fn behind_conditions(&self) -> usize {
        self.tables.len() - usize::from(self.tables.last().is_some_and(takes_everything))
    }

    fn no_class(&self, name: &str) -> Refusal {
        let mut names: Vec<&str> = self.tables.iter().map(name_of).collect();
        if name == DEFAULT_CLASS {
            return format!(
                "`{DEFAULT_CLASS}` takes what no other class takes: it is always there, and the last; \
                 `scoutline class set {DEFAULT_CLASS} …` changes it"
            );
        }
        if !names.contains(&DEFAULT_CLASS) {
            names.push(DEFAULT_CLASS);
        }
        config::unknown("class", name, &names)
    }
}

/// Changes the keys of a class; an empty value takes one away.
fn set_keys(table: &mut Table, keys: &[(String, String)]) -> Result<(), Refusal> {
    for (key, word) in keys {
        if key == "name" {
            return Err("a class keeps its name; add another one and remove this".into());
        }
        match key_value(key, word) {
            Some(value) => _ = table.insert(key.clone(), value),
            None if config::is_class_key(key) => _ = table.remove(key),
            // Refused with a suggestion where keys are checked.
            None => _ = table.insert(key.clone(), Value::String(String::new())),
        }
    }
    Ok(())
}

/// Whether a class takes whatever comes to it.
fn takes_everything(table: &Table) -> bool {
    let config: Option<Config> = toml::from_str(&render(table)).ok();
    config.is_some_and(|config| config.class.iter().any(Class::matches_everything))
}

/// Refuses a class by command that would hide `default`. In a file it may stand, as the last one.
fn leaves_something(table: &Table) -> Result<(), Refusal> {
    let name = name_of(table);
    if name == DEFAULT_CLASS || !takes_everything(table) {
        return Ok(());
    }
    Err(format!(
        "class `{name}` would take everything, and leave nothing for `{DEFAULT_CLASS}`: give it a condition, such as \
         source=10.0.0.7/32 or local_port=80, or change `{DEFAULT_CLASS}` with `scoutline class set {DEFAULT_CLASS} …`"
    ))
}

fn name_of(table: &Table) -> &str {
    table.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// What is different between two lists of classes.
fn compare(before: &[Table], after: &[Table]) -> Reloaded {
    let find = |list: &[Table], name: &str| list.iter().find(|table| name_of(table) == name).cloned();
    let names = |list: &[Table]| list.iter().map(|table| name_of(table).to_owned()).collect::<Vec<_>>();
    let (before_names, after_names) = (names(before), names(after));
    let changed = |name: &&String| find(before, name).is_some_and(|old| Some(old) != find(after, name));
    let common = |list: &[String], other: &[String]| {
        list.iter().filter(|name| other.contains(name)).cloned().collect::<Vec<_>>()
    };
    Reloaded {
        added: after_names.iter().filter(|name| !before_names.contains(name)).cloned().collect(),
        changed: after_names.iter().filter(changed).cloned().collect(),
        removed: before_names.iter().filter(|name| !after_names.contains(name)).cloned().collect(),
        reordered: common(&before_names, &after_names) != common(&after_names, &before_names),
        settings: Vec::new(),
        restart: Vec::new(),
    }
}
