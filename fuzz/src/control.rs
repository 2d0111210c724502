//! The control API: any line is a request or is refused with a reason; requests that are taken leave classes that a
//! configuration file could hold.

use std::path::Path;

use scoutline_abi::api::Request;
use scoutline_daemon::{Config, dry};

use crate::bytes::Target;

/// The target of this file.
pub const TARGETS: &[Target] = &[("control", run)];

/// What the daemon was started with.
const STARTED: &str = r#"
[[device]]
name = "eth0"
driver = "packet"
address = "10.0.0.1/24"

[[class]]
name = "web"
local_port = [80]
priority = 4
"#;

/// One input: lines.
pub fn run(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(request) = serde_json::from_slice::<Request>(line) else { continue };
        let text = serde_json::to_vec(&request).expect("a request can be written");
        assert_eq!(serde_json::from_slice::<Request>(&text).expect("and read again"), request);
    }
    let config = Config::parse(STARTED, Path::new("scoutline.toml")).expect("a sound configuration");
    let outcome = dry::requests(&config, data);
    let lines = data.split(|byte| *byte == b'\n').count();
    assert!(outcome.unknown + outcome.refused <= lines);
    let names: Vec<&String> = outcome.classes.iter().map(|class| &class.name).collect();
    assert!(!names.is_empty(), "there is always the class of all else");
    for (index, name) in names.iter().enumerate() {
        assert!(!names[..index].contains(name), "{name} twice");
    }
}
