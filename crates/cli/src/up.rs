//! `scoutline up`.

use std::io::Write as _;
use std::path::Path;

use scoutline_daemon::config::DEFAULT_FILE;
use scoutline_daemon::{Config, ConfigError};

use crate::arguments::Up;
use crate::failure::{FAILED, Failure, USAGE};
use crate::output;

pub(crate) fn up(arguments: &Up) -> Result<(), Failure> {
    start_log();
    let config = configuration(arguments).map_err(|error| {
        let code = if error.is_usage() { USAGE } else { FAILED };
        Failure::new(code, error.to_string())
    })?;
    if arguments.check {
        return check(&config);
    }
    scoutline_daemon::run(&config).map_err(|error| Failure::failed(error.to_string()))
}

/// Says whether `up` would find on this machine what the configuration names.
fn check(config: &Config) -> Result<(), Failure> {
    scoutline_daemon::check(config).map_err(|error| {
        Failure::failed(format!("the configuration is sound, but not for this machine: {error}"))
    })?;
    output::print("the configuration is sound, and this machine has its interfaces, cores, users and group\n")
}

pub(crate) fn guard() -> Result<(), Failure> {
    scoutline_daemon::guard::serve(std::io::stdin().lock())
        .map_err(|error| Failure::failed(error.to_string()))
}

fn configuration(arguments: &Up) -> Result<Config, ConfigError> {
    let mut config = match (&arguments.device, arguments.address) {
        (Some(device), Some(address)) if device == "auto" => Config::automatic(address, arguments.gateway)?,
        (Some(device), Some(address)) => Config::quick(device, address, arguments.gateway)?,
        _ => Config::load(arguments.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE)))?,
    };
    if let Some(control) = &arguments.control {
        config.set_control(control)?;
    }
    Ok(config)
}

/// Log lines go to standard error as `scoutline: level: text`.
fn start_log() {
    let environment = env_logger::Env::new().filter_or("SCOUTLINE_LOG", "info");
    let mut builder = env_logger::Builder::from_env(environment);
    builder.format(|out, record| {
        let level = record.level().as_str().to_ascii_lowercase();
        writeln!(out, "scoutline: {level}: {}", record.args())
    });
    builder.init();
}
