//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) of capture files.

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/capture.rs"]
pub mod capture;

#[test]
fn kept_inputs_pass() {
    for target in capture::TARGETS {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}
