//! IPv6: the programs of the other tests over it, both families at one socket, and how sockets show addresses.

use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6, TcpStream};

use scoutline_bench::process::Process;

use crate::fixture::{
    Arm, Fixture, SOON, assert_same, finish, script, twins, wait_for_line, wait_until, write_file,
};
use crate::nginx::{self, Side};

twins!(nginx_serves_both, curl_fetches, sockets_show_their_addresses, iperf3_both_ways, redis_serves);

/// The server host's address.
pub(crate) const OURS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);
/// The client host's.
pub(crate) const PEER: &str = "2001:db8:77::2";
/// The device on the client host.
const DEVICE: &str = "eth0";

/// Runs `ip -6` on the client host.
fn ip_of_peer(fixture: &Fixture, command: &str) {
    let words: Vec<&str> = std::iter::once("-6").chain(command.split(' ')).collect();
    fixture.run_peer("ip", &words, SOON);
}

/// Waits until the server host has an address in use that looks like this.
fn wait_for_address(fixture: &Fixture, address: &str) {
    wait_until("the address is in use", SOON, || {
        let paths = fixture.paths_now();
        let mut shown = paths.iter().filter_map(|path| path["details"]["addresses"].as_str());
        shown.any(|text| text.split(", ").any(|one| one.starts_with(address) && one.ends_with(" preferred")))
    });
}

/// Two hosts with IPv6 beside IPv4.
pub(crate) fn fixture(arm: Arm) -> Fixture {
    fixture_with(arm, "")
}

/// As [`fixture`], with more in the daemon's configuration.
pub(crate) fn fixture_with(arm: Arm, more: &str) -> Fixture {
    let mut fixture = Fixture::without_daemon(arm);
    ip_of_peer(&fixture, &format!("addr add {PEER}/64 dev {DEVICE} nodad"));
    if arm == Arm::Paths {
        fixture.start_daemon_with(&format!("address6 = [\"{OURS}/64\"]\n{more}"));
        // The addresses are probed first.
        wait_for_address(&fixture, &format!("{OURS}/64"));
    } else {
        let ours = format!("{OURS}/64");
        fixture.run("ip", &["-6", "addr", "add", &ours, "dev", DEVICE, "nodad"], SOON);
    }
    fixture
}

fn wait_for_port(fixture: &Fixture, port: u16, server: &mut Process) {
    let address = SocketAddrV6::new(OURS, port, 0, 0);
    wait_until("the server accepts", SOON, || {
        server.check().unwrap_or_else(|error| panic!("{error:#}"));
        let connect = || TcpStream::connect_timeout(&address.into(), SOON);
        fixture.testbed().client().enter(connect).unwrap().is_ok()
    });
}

fn nginx_serves_both(arm: Arm) {
    let fixture = fixture(arm);
    let files = fixture.file("files");
    fs::create_dir_all(&files).unwrap();
    write_file(&files.join("large"), 64);
    let server = format!("listen [::]:80 ipv6only=off; root {};", files.display());
    let mut nginx = nginx::start_with(&fixture, Side::UnderTest, &server, 80);
    wait_for_port(&fixture, 80, &mut nginx);
    let fetched = fixture.file("fetched");
    let to = fetched.display().to_string();
    for url in [format!("http://[{OURS}]/large"), format!("http://{}/large", fixture.address())] {
        let asked = ["-sS", "--fail", "--max-time", "15", "-g", "-o", &to, &url];
        fixture.run_peer("curl", &asked, SOON);
        assert_same(&files.join("large"), &fetched);
    }
    if arm == Arm::Paths {
        let paths = fixture.paths_now();
        let stages = |path: &serde_json::Value| path["stages"].to_string();
        assert!(
            paths.iter().any(|path| path["local"] == "[::]:80" && stages(path).contains("IP6")),
            "{paths:?}"
        );
    }
}

fn curl_fetches(arm: Arm) {
    let fixture = fixture(arm);
    let files = fixture.file("files");
    fs::create_dir_all(&files).unwrap();
    write_file(&files.join("large"), 64);
    let server = format!("listen 80; listen [::]:80; root {};", files.display());
    let _nginx = nginx::start_with(&fixture, Side::Peer, &server, 80);
    let fetched = fixture.file("fetched");
    let to = fetched.display().to_string();
    let asked =
        ["-6", "-sS", "--fail", "--max-time", "15", "-g", "-o", &to, &format!("http://[{PEER}]/large")];
    fixture.run("curl", &asked, SOON);
    assert_same(&files.join("large"), &fetched);
}

/// The script checks what it sees against what Linux does, and says so; its twin shows that it is right.
fn sockets_show_their_addresses(arm: Arm) {
    let fixture = fixture(arm);
    let (program, peer) = (script("ip6.py"), script("ip6_peer.py"));
    let ours = OURS.to_string();
    let v4 = (fixture.address().to_string(), fixture.peer_address().to_string());
    let mut peer = fixture.start_peer("python3", &[&peer, &ours, &v4.0, PEER, &v4.1]);
    wait_for_line(&mut peer, "ready");
    let text = fixture.run("python3", &[&program, &ours, &v4.0, PEER, &v4.1], SOON * 2);
    assert!(text.trim_end().ends_with("done"), "{text}");
    finish(&mut peer, SOON);
}

/// Addresses and routers come from advertisements: nginx is reached at one, and through the router from another network.
#[test]
fn a_router_is_listened_to() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    ip_of_peer(&fixture, &format!("addr add fe80::99/64 dev {DEVICE} nodad"));
    ip_of_peer(&fixture, &format!("addr add 2001:db8:99::99/64 dev {DEVICE} nodad"));
    // The client's end of another network, for which the router is asked.
    ip_of_peer(&fixture, "addr add 2001:db8:100::1/128 dev lo");
    // Or it says of itself that it is no router (RFC 4861 §4.4), and is believed.
    fixture.run_peer("sysctl", &["-qw", &format!("net.ipv6.conf.{DEVICE}.forwarding=1")], SOON);
    fixture.start_daemon_with("ipv6 = \"auto\"\n");
    wait_for_address(&fixture, "fe80::");
    fixture.run_peer("python3", &[&script("router.py"), DEVICE, "2001:db8:99::", "7200"], SOON);
    wait_for_address(&fixture, "2001:db8:99:");
    let paths = fixture.paths_now();
    let text = paths.iter().find_map(|path| path["details"]["addresses"].as_str()).unwrap();
    let address = text.split(", ").find(|one| one.starts_with("2001:db8:99:")).unwrap();
    let address = address.split('/').next().unwrap().to_owned();
    let files = fixture.file("files");
    fs::create_dir_all(&files).unwrap();
    write_file(&files.join("large"), 1);
    let server = format!("listen [::]:80 ipv6only=off; root {};", files.display());
    let _nginx = nginx::start_with(&fixture, Side::UnderTest, &server, 80);
    let fetched = fixture.file("fetched");
    let to = fetched.display().to_string();
    for source in ["2001:db8:99::99", "2001:db8:100::1"] {
        let url = format!("http://[{address}]/large");
        let asked = ["-sS", "--fail", "--max-time", "15", "-g", "--interface", source, "-o", &to, &url];
        fixture.run_peer("curl", &asked, SOON);
        assert_same(&files.join("large"), &fetched);
    }
    // A link-local address needs the link's name.
    let local = text.split(", ").find(|one| one.starts_with("fe80:")).unwrap();
    let local = local.split('/').next().unwrap();
    let url = format!("http://[{local}%25{DEVICE}]/large");
    fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "15", "-g", "-o", &to, &url], SOON);
    assert_same(&files.join("large"), &fetched);
}

/// Nobody is misled by a second station with our address, and what no honest packet is reaches no program.
#[test]
fn a_second_owner_of_an_address_wins() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    ip_of_peer(&fixture, &format!("addr add {OURS}/64 dev {DEVICE} nodad"));
    fixture.start_daemon_with(&format!("address6 = [\"{OURS}/64\"]\n"));
    wait_until("the conflict is seen", SOON, || {
        let paths = fixture.paths_now();
        let mut shown = paths.iter().filter_map(|path| path["details"]["addresses"].as_str());
        shown.any(|text| text.contains(&format!("{OURS}/64 duplicate")))
    });
}

fn iperf3_both_ways(arm: Arm) {
    let fixture = fixture(arm);
    let address = OURS.to_string();
    for extra in [&[][..], &["-R"], &["-u", "-b", "50M"]] {
        let mut server = fixture.start("iperf3", &["-s", "-1", "--forceflush"]);
        wait_for_line(&mut server, "listening");
        let arguments = [&["-6", "-c", &address, "-t", "1", "-J"][..], extra].concat();
        let text = fixture.run_peer("iperf3", &arguments, SOON);
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(report.get("error").is_none(), "{extra:?}: {}", report["error"]);
        let sum = if extra.contains(&"-u") { &report["end"]["sum"] } else { &report["end"]["sum_received"] };
        assert!(sum["bytes"].as_f64().is_some_and(|bytes| bytes > 2e6), "{extra:?}: {sum}");
        finish(&mut server, SOON);
    }
}

fn redis_serves(arm: Arm) {
    let fixture = fixture(arm);
    let directory = fixture.file("").display().to_string();
    let mut server = fixture.start(
        "redis-server",
        &["--port", "6379", "--bind", "::", "--dir", &directory, "--save", "", "--protected-mode", "no"],
    );
    wait_for_line(&mut server, "Ready to accept connections");
    let address = OURS.to_string();
    let ask = |words: &[&str]| {
        let arguments = [&["-h", &address, "-p", "6379"][..], words].concat();
        fixture.run_peer("redis-cli", &arguments, SOON)
    };
    let value = "v".repeat(50_000);
    assert_eq!(ask(&["set", "key", &value]).trim(), "OK");
    assert_eq!(ask(&["get", "key"]).trim(), value);
    server.check().unwrap();
}
