//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) of capture files and VLAN tags.

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/capture.rs"]
pub mod capture;
#[path = "../../../fuzz/src/vlan.rs"]
pub mod vlan;

#[test]
fn kept_inputs_pass() {
    for target in capture::TARGETS.iter().chain(vlan::TARGETS) {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}
