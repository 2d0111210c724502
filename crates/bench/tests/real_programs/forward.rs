//! A forwarding host: two interfaces and the daemon between two hosts on the kernel; and a device with a rate.
//!
//! ```text
//!   client ── eth0 [server 0: the daemon] far0 ── far0 server 1
//! ```

use std::fs;

use scoutline_bench::process::{Place, Process};
use scoutline_bench::server::Daemon;
use scoutline_bench::testbed::{Client, Host, Owner, Testbed};
use serde_json::Value;

use crate::fixture::{SOON, find, finish, scoutline, script, turn, wait_for_line, wait_until};
use crate::machine;

const NEAR: &str = "10.99.0.1";
const FAR: &str = "10.99.0.2";
/// The same in IPv6: the client and the forwarding host on one link, and the latter and the far host on the other.
const CLIENT6: &str = "2001:db8:77::2";
const MIDDLE6: &str = "2001:db8:77::1";
const NEAR6: &str = "2001:db8:99::1";
const FAR6: &str = "2001:db8:99::2";
/// What foreground carries while background has more than enough: two seconds of the link.
const MUCH: u64 = 24 << 20;
/// Bytes that the far link carries in the tests of IPv6, where nobody on the way cuts packets.
const FAR_MTU6: &str = "1300";

/// The three hosts with the daemon in the middle. Fields go in order: the daemon before its host.
struct Router {
    daemon: Daemon,
    testbed: Testbed,
}

impl Router {
    fn new(far: &str, more: &str) -> Router {
        Router::with(("", far), more, |_| {})
    }

    /// With IPv6 on all three hosts, and a far link that carries less than the near one.
    fn with_ip6() -> Router {
        let near = format!("address6 = [\"{MIDDLE6}/64\"]");
        let far = format!("address6 = [\"{NEAR6}/64\"]");
        let router = Router::with((&near, &far), "", |testbed| {
            let (end, client) = (testbed.server(1), testbed.client());
            ip(testbed.server(0), &format!("link set far0 mtu {FAR_MTU6}"));
            ip(end, &format!("link set far0 mtu {FAR_MTU6}"));
            ip(end, &format!("-6 addr add {FAR6}/64 dev far0 nodad"));
            ip(end, &format!("-6 route add 2001:db8:77::/64 via {NEAR6}"));
            ip(client, &format!("-6 addr add {CLIENT6}/64 dev eth0 nodad"));
            ip(client, &format!("-6 route add 2001:db8:99::/64 via {MIDDLE6}"));
        });
        // The addresses are probed first.
        wait_until("the addresses are in use", SOON, || {
            let control = router.daemon.control().display().to_string();
            let tool = scoutline().display().to_string();
            let text = router.client(&tool, &["ps", "--json", "--control", &control]);
            let shown = |address: &str| text.contains(&format!("{address}/64 preferred"));
            shown(MIDDLE6) && shown(NEAR6)
        });
        router
    }

    fn with((near_more, far): (&str, &str), more: &str, prepare: impl FnOnce(&Testbed)) -> Router {
        let testbed = Testbed::new(&[Owner::Daemon, Owner::Kernel], None).unwrap();
        let (middle, end, client) = (testbed.server(0), testbed.server(1), testbed.client());
        let near = testbed.server_address(0).ip().to_string();
        let network = format!("{}/24", testbed.client_address(0, Client::Standard));
        ip(middle, &format!("link add far0 type veth peer name far0 netns {}", end.name()));
        ip(middle, "link set far0 up");
        ip(end, "link set far0 up");
        ip(end, &format!("addr add {FAR}/24 dev far0"));
        ip(end, &format!("route add {} via {NEAR}", base(&network)));
        ip(client, &format!("route add 10.99.0.0/24 via {near}"));
        prepare(&testbed);
        let text = format!(
            "[[device]]\nname = \"eth0\"\naddress = \"{near}/24\"\n{near_more}\n[[device]]\nname = \"far0\"\naddress = \"{NEAR}/24\"\n{far}\n\
             [[forward]]\nfrom = \"eth0\"\nto = \"far0\"\n[[forward]]\nfrom = \"far0\"\nto = \"eth0\"\n{more}"
        );
        let daemon = Daemon::start_with(&testbed, 0, &scoutline(), None, &text)
            .unwrap_or_else(|error| panic!("the daemon does not start: {error:#}"));
        Router { daemon, testbed }
    }

    fn spawn(&self, host: &Host, log: &str, program: &str, arguments: &[&str]) -> Process {
        let place = Place { namespace: Some(host.namespace().unwrap()), core: None };
        let log = self.testbed.directory().join(log);
        Process::spawn(program, &find(program), arguments, place, &log)
            .unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn client(&self, program: &str, arguments: &[&str]) -> String {
        finish(&mut self.spawn(self.testbed.client(), "client.log", program, arguments), SOON)
    }

    /// What the middle has carried of a class.
    fn bytes_of(&self, class: &str) -> u64 {
        let control = self.daemon.control().display().to_string();
        let tool = scoutline().display().to_string();
        let text = self.client(&tool, &["stat", "--json", "--control", &control]);
        let stat: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let classes = stat["classes"].as_array().unwrap();
        classes.iter().find(|row| row["name"] == class).unwrap()["bytes_out"].as_u64().unwrap()
    }

    /// iperf3 servers on the far host, one for each port.
    fn iperf_servers(&self, ports: &[&str]) -> Vec<Process> {
        let start = |port: &&str| {
            let log = format!("iperf-{port}.log");
            let mut server =
                self.spawn(self.testbed.server(1), &log, "iperf3", &["-s", "-p", port, "--forceflush"]);
            wait_for_line(&mut server, "listening");
            server
        };
        ports.iter().map(start).collect()
    }
}

/// Runs `ip` on a host.
fn ip(host: &Host, command: &str) {
    let said = machine::ask(host, "ip", &command.split_whitespace().collect::<Vec<_>>());
    assert!(said.is_empty(), "ip {command}: {said}");
}

/// The network of an address with a prefix of 24 bits.
fn base(address: &str) -> String {
    let (address, _) = address.split_once('/').unwrap();
    format!("{}.0/24", address.rsplit_once('.').unwrap().0)
}

/// iperf3 has said that it went well.
fn see_carried(text: &str) {
    let report: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert!(report.get("error").is_none(), "{}", report["error"]);
}

#[test]
fn programs_reach_each_other_through_a_forwarding_host() {
    let _turn = turn();
    reach(&Router::new("", ""), FAR, FAR);
}

/// Over a link that carries less than those at the ends know of: they are told (RFC 8201).
#[test]
fn programs_reach_each_other_over_ip6() {
    let _turn = turn();
    reach(&Router::with_ip6(), FAR6, &format!("[{FAR6}]"));
}

/// A file, and streams in both directions, from and to the far host, whose address is `host` in a URL.
fn reach(router: &Router, far: &str, host: &str) {
    let files = router.testbed.directory().join("www");
    fs::create_dir(&files).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(files.join("file"), &bytes).unwrap();
    let mut server = router.spawn(
        router.testbed.server(1),
        "server.log",
        "python3",
        &["-u", "-m", "http.server", "-d", files.to_str().unwrap(), "-b", far, "8080"],
    );
    wait_for_line(&mut server, "Serving");
    let got = router.testbed.directory().join("got");
    let url = format!("http://{host}:8080/file");
    router.client("curl", &["-sS", "-g", "-o", got.to_str().unwrap(), &url]);
    assert!(fs::read(&got).unwrap() == bytes, "what arrives is what was sent");
    let _servers = router.iperf_servers(&["5201"]);
    for direction in [&[][..], &["-R"]] {
        let arguments = [&["-c", far, "-p", "5201", "-n", "50M", "-J"], direction].concat();
        see_carried(&router.client("iperf3", &arguments));
    }
}

#[test]
fn a_forwarding_host_says_when_a_packet_cannot_go_on() {
    let _turn = turn();
    let router = Router::new("", "");
    let near = router.testbed.server_address(0).ip().to_string();
    let said = router.client("python3", &[&script("hops.py"), FAR, &near]);
    assert!(said.contains("done"), "{said}");
}

#[test]
fn a_forwarding_host_says_so_in_ip6() {
    let _turn = turn();
    let router = Router::with_ip6();
    let said = router.client("python3", &[&script("hops.py"), FAR6, MIDDLE6, FAR_MTU6]);
    assert!(said.contains("done"), "{said}");
}

/// Foreground and background of other hosts over a link whose rate the forwarding host keeps: by bytes, since a machine
/// that is busy with others' work leaves no time to go by.
#[test]
fn background_yields_at_a_forwarding_host() {
    let _turn = turn();
    let class = "[[class]]\nname = \"backup\"\nidle = true\nlocal_port = [5202]\n\
                 [[class]]\nname = \"backup answers\"\nidle = true\nremote_port = [5202]\n";
    let mut router = Router::new("rate = \"100Mbit/s\"", class);
    let _servers = router.iperf_servers(&["5201", "5202"]);
    let carry = |bytes: u64, port: &str| {
        let bytes = bytes.to_string();
        let arguments = ["-c", FAR, "-n", &bytes, "-p", port, "-J"];
        router.spawn(router.testbed.client(), &format!("to-{port}.log"), "iperf3", &arguments)
    };
    let mut background = carry(2 * MUCH, "5202");
    wait_until("background has the link", SOON, || router.bytes_of("backup") > MUCH / 8);
    let before = router.bytes_of("backup");
    see_carried(&finish(&mut carry(MUCH, "5201"), SOON));
    let meanwhile = router.bytes_of("backup") - before;
    see_carried(&finish(&mut background, SOON));
    router.daemon.check().unwrap();
    // As much as foreground, if it did not yield; a hundredth on a quiet machine. Who has not got a core has no foreground
    // for that long, and background takes the time.
    assert!(meanwhile < MUCH / 2, "background had {meanwhile} bytes while foreground had {MUCH}");
}
