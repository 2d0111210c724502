//! The configuration file: any text is a configuration or is refused with a reason, and what is taken makes settings for
//! an engine.

use std::path::Path;

use scoutline_daemon::Config;

use crate::bytes::Target;

/// The target of this file.
pub const TARGETS: &[Target] = &[("config", run)];

/// One input: a file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text, Path::new("scoutline.toml")) {
        Ok(config) => {
            let _ = config.settings();
            assert!(!config.device.is_empty(), "without a device there is nothing to do");
            let again = Config::parse(text, Path::new("elsewhere.toml")).expect("the same text");
            assert_eq!(again.class.len(), config.class.len());
        }
        Err(error) => assert!(!error.to_string().is_empty(), "refused without a reason"),
    }
}
