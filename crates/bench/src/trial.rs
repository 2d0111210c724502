//! A further arm of ours, so that a change is measured beside what it changes: with other settings, by another build, or
//! both.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, ensure};
use toml::{Table, Value};

use crate::Options;

/// The arm's name.
pub(crate) const NAME: &str = "tried";

/// The experiments that have such an arm: all of [`crate::placed`], and `web`.
const EXPERIMENTS: [&str; 8] = ["web", "stream", "rr", "conn", "udp", "dns", "redis", "local"];

/// What is tried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    /// Another build of `scoutline`, with its library beside it.
    pub build: Option<PathBuf>,
    /// Other settings of its daemon.
    pub settings: Vec<Setting>,
}

impl Trial {
    /// Whether there is such an arm.
    pub(crate) fn is_asked_for(&self) -> bool {
        *self != Trial::default()
    }

    /// The program of the arm.
    pub(crate) fn program(&self, options: &Options) -> PathBuf {
        // Without a directory it would be looked for where programs are.
        let build = self.build.as_ref().map(|build| build.canonicalize().unwrap_or_else(|_| build.clone()));
        build.unwrap_or_else(|| options.scoutline.clone())
    }

    /// A daemon's configuration with these settings in it.
    pub(crate) fn apply(&self, configuration: &str) -> Result<String> {
        let mut root: Table = configuration.parse().context("the experiment's own configuration")?;
        for setting in &self.settings {
            setting.apply(&mut root);
        }
        Ok(root.to_string())
    }

    /// What stands in the report's method.
    pub(crate) fn method(&self) -> String {
        let build = self.build.iter().map(|build| format!("the build {}", build.display()));
        let settings = self.settings.iter().map(|setting| {
            let Setting { table, key, value } = setting;
            format!("{table}.{key} = {value}")
        });
        format!("ours with {}", build.chain(settings).collect::<Vec<_>>().join(", "))
    }
}

/// One key of the daemon's configuration, as `engine.spin_us=0`; of a table that there are several of (`device.driver`),
/// of each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    table: String,
    key: String,
    value: Value,
}

impl Setting {
    fn apply(&self, root: &mut Table) {
        let table = root.entry(&self.table).or_insert_with(|| Table::new().into());
        let each = match table {
            Value::Array(tables) => tables.as_mut_slice(),
            table => std::slice::from_mut(table),
        };
        for table in each.iter_mut().filter_map(Value::as_table_mut) {
            table.insert(self.key.clone(), self.value.clone());
        }
    }
}

impl FromStr for Setting {
    type Err = anyhow::Error;

    /// What is no value of TOML is a word.
    fn from_str(text: &str) -> Result<Setting> {
        let (name, word) = text.split_once('=').ok_or_else(|| anyhow!("not TABLE.KEY=VALUE: {text:?}"))?;
        let (table, key) =
            name.trim().split_once('.').ok_or_else(|| anyhow!("no table before the key: {text:?}"))?;
        let parsed: Option<Table> = format!("value = {word}").parse().ok();
        let value = parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| word.trim().into());
        Ok(Setting { table: table.into(), key: key.into(), value })
    }
}

/// Whether what is asked for can be tried.
///
/// # Errors
/// The experiment has no such arm, or there is no such build.
pub(crate) fn check(experiment: &str, options: &Options) -> Result<()> {
    let trial = &options.trial;
    ensure!(
        !trial.is_asked_for() || EXPERIMENTS.contains(&experiment),
        "`{experiment}` has no arm to try something in; {} have",
        EXPERIMENTS.map(|name| format!("`{name}`")).join(", ")
    );
    ensure!(
        !(trial.is_asked_for() && options.baseline),
        "in a baseline the kernel is in our place: there is nothing to try"
    );
    if let Some(build) = &trial.build {
        ensure!(build.is_file(), "there is no build {}", build.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "[[device]]\nname = \"eth0\"\n[[device]]\nname = \"eth1\"\n[engine]\ncpu = 1\n";

    fn applied(settings: &[&str]) -> Table {
        let settings = settings.iter().map(|text| text.parse().unwrap()).collect();
        Trial { build: None, settings }.apply(BASE).unwrap().parse().unwrap()
    }

    #[test]
    fn settings_are_added_and_replaced() {
        let table = applied(&[
            "engine.spin_us=0",
            "engine.cpu = [0, 1]",
            "linux.interval_us=50",
            "device.driver=xdp",
        ]);
        assert_eq!(table["engine"]["spin_us"].as_integer(), Some(0));
        assert_eq!(table["engine"]["cpu"].as_array().map(Vec::len), Some(2));
        assert_eq!(table["linux"]["interval_us"].as_integer(), Some(50));
        let devices = table["device"].as_array().unwrap();
        assert_eq!(devices.len(), 2);
        for (device, name) in devices.iter().zip(["eth0", "eth1"]) {
            assert_eq!((device["driver"].as_str(), device["name"].as_str()), (Some("xdp"), Some(name)));
        }
    }

    #[test]
    fn what_is_no_setting_says_why() {
        let error = |text: &str| text.parse::<Setting>().unwrap_err().to_string();
        assert_eq!(error("engine.spin_us"), "not TABLE.KEY=VALUE: \"engine.spin_us\"");
        assert_eq!(error("spin_us=0"), "no table before the key: \"spin_us=0\"");
    }

    #[test]
    fn only_some_experiments_have_such_an_arm() {
        let trial = Trial { build: Some("/nowhere/scoutline".into()), settings: Vec::new() };
        let options = Options { trial, ..Options::default() };
        assert!(check("idle", &options).unwrap_err().to_string().contains("has no arm to try something in"));
        assert_eq!(check("udp", &options).unwrap_err().to_string(), "there is no build /nowhere/scoutline");
        assert!(check("idle", &Options::default()).is_ok());
        let baseline = Options { baseline: true, ..options };
        assert!(check("udp", &baseline).unwrap_err().to_string().contains("there is nothing to try"));
    }
}
