//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) of attach messages, datagram records and stand-ins.

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/messages.rs"]
pub mod messages;

#[test]
fn kept_inputs_pass() {
    for target in messages::TARGETS {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}
