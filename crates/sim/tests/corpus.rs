//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) of targets that need whole engines.
#![allow(unsafe_code)] // a hostile program writes where it likes; the block says why it may

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/region.rs"]
pub mod region;

#[test]
fn kept_hostile_programs_pass() {
    for target in region::TARGETS {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}
