//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) through the bodies of the fuzz targets.

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/wire.rs"]
pub mod wire;

#[test]
fn kept_inputs_pass() {
    for target in wire::TARGETS {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}
