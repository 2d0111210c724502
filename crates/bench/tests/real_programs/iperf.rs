//! iperf3: TCP in both directions, eight flows at once, UDP.

use serde_json::Value;

use crate::fixture::{Arm, Fixture, SOON, finish, twins, wait_for_line};

twins!(iperf3_as_server, iperf3_as_client);

/// What the client is told beyond the address; the kernel's side of TCP uses cubic by its route.
const CASES: [&[&str]; 6] = [
    &[],
    &["-R"],
    &["-P", "8"],
    &["-P", "8", "-R"],
    &["-u", "-b", "20M", "-l", "1400"],
    &["-u", "-b", "20M", "-l", "1400", "-R"],
];

fn check(case: &[&str], text: &str) {
    let report: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{case:?}: {error} in {text}"));
    assert!(report.get("error").is_none(), "{case:?}: {}", report["error"]);
    let end = &report["end"];
    if case.contains(&"-u") {
        let sum = &end["sum"];
        let (bytes, lost) = (sum["bytes"].as_f64(), sum["lost_percent"].as_f64());
        // 20 Mbit/s for a second is little: what is lost then is lost by fault, or because iperf3 did not get a core
        // for as long as its socket's buffer lasts.
        assert!(bytes.is_some_and(|bytes| bytes > 1e6), "{case:?}: {sum}");
        assert!(lost.is_some_and(|lost| lost < 25.0), "{case:?}: {sum}");
    } else {
        let received = end["sum_received"]["bytes"].as_f64();
        assert!(received.is_some_and(|bytes| bytes > 10e6), "{case:?}: {}", end["sum_received"]);
        let streams = end["streams"].as_array().expect("streams");
        for stream in streams {
            let bytes = stream["receiver"]["bytes"].as_f64();
            assert!(bytes.is_some_and(|bytes| bytes > 0.0), "{case:?}: a flow starves: {stream}");
        }
    }
}

pub(crate) fn iperf3_as_server(arm: Arm) {
    let fixture = Fixture::new(arm);
    let address = fixture.address().to_string();
    for case in CASES {
        let mut server = fixture.start("iperf3", &["-s", "-1", "--forceflush"]);
        wait_for_line(&mut server, "listening");
        let arguments = [&["-c", &address, "-t", "1", "-J"], case].concat();
        check(case, &fixture.run_peer("iperf3", &arguments, SOON));
        finish(&mut server, SOON);
    }
}

pub(crate) fn iperf3_as_client(arm: Arm) {
    let fixture = Fixture::new(arm);
    let address = fixture.peer_address().to_string();
    for case in CASES {
        let mut server = fixture.start_peer("iperf3", &["-s", "-1", "--forceflush"]);
        wait_for_line(&mut server, "listening");
        let arguments = [&["-c", &address, "-t", "1", "-J"], case].concat();
        check(case, &fixture.run("iperf3", &arguments, SOON));
        finish(&mut server, SOON);
    }
}
