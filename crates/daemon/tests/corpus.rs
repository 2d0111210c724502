//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) of the control API and the configuration file.

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/config.rs"]
pub mod config;
#[path = "../../../fuzz/src/control.rs"]
pub mod control;

#[test]
fn kept_requests_pass() {
    for target in control::TARGETS {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}

#[test]
fn kept_files_pass() {
    for target in config::TARGETS {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}
