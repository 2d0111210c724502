//! Replays the inputs kept from fuzzing (`fuzz/corpus-kept`) through the bodies of the fuzz targets.

#[path = "../../../fuzz/src/bytes.rs"]
pub mod bytes;
#[path = "../../../fuzz/src/demux.rs"]
pub mod demux;
#[path = "../../../fuzz/src/groups.rs"]
pub mod groups;
#[path = "../../../fuzz/src/neighbours.rs"]
pub mod neighbours;
#[path = "../../../fuzz/src/reassembly.rs"]
pub mod reassembly;
#[path = "../../../fuzz/src/reassembly6.rs"]
pub mod reassembly6;
#[path = "../../../fuzz/src/request.rs"]
pub mod request;
#[path = "../../../fuzz/src/tcp_operations.rs"]
pub mod tcp_operations;
#[path = "../../../fuzz/src/tcp_pair.rs"]
pub mod tcp_pair;

fn replay(targets: &[bytes::Target]) {
    for target in targets {
        bytes::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"), target);
    }
}

#[test]
fn kept_frames_pass() {
    replay(demux::TARGETS);
}

#[test]
fn kept_fragments_pass() {
    replay(reassembly::TARGETS);
    replay(reassembly6::TARGETS);
}

#[test]
fn kept_tcp_operations_pass() {
    replay(tcp_operations::TARGETS);
}

#[test]
fn kept_tcp_pairs_pass() {
    replay(tcp_pair::TARGETS);
}

#[test]
fn kept_requests_pass() {
    replay(request::TARGETS);
}

#[test]
fn kept_neighbours_pass() {
    replay(neighbours::TARGETS);
}

#[test]
fn kept_groups_pass() {
    replay(groups::TARGETS);
}
