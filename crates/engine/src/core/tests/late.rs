//! An engine that was away from its core for a while.

use scoutline_path::Path;
use scoutline_proto::tcp::TcpStage;

use super::*;

/// What came meanwhile is looked at before the timers that it makes needless: nothing goes twice.
#[test]
fn what_came_goes_before_timers_that_are_due() {
    let mut pair = Pair::new(19, WireConfig::default());
    let (_, client, server) = pair.established(80);
    pair.client.write(client, b"question");
    pair.client.settle(pair.now);
    pair.now += Duration::from_millis(1);
    pair.server.settle(pair.now);
    assert_eq!(pair.server.read(server, 100), b"question");
    pair.server.write(server, b"answer");
    pair.server.settle(pair.now);
    // Longer than any probe or time-out of the question would wait.
    pair.now += Duration::from_secs(2);
    let timers = pair.client.core.counters.timers;
    pair.client.settle(pair.now);
    assert!(pair.client.core.counters.timers > timers, "none was due");
    assert_eq!(pair.client.read(client, 100), b"answer");
    let stage = pair.client.core.paths.iter().find_map(Path::stage::<TcpStage>).unwrap();
    let info = stage.connection().unwrap().info();
    assert_eq!((info.retransmits, info.retransmitted), (0, 0));
}
