//! IPv6: the programs of the other tests over it, both families at one socket, and how sockets show addresses.

use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6, TcpStream};

use scoutline_bench::process::Process;

use crate::fixture::{
    Arm, Fixture, SOON, assert_same, finish, script, twins, wait_for_line, wait_until, write_file,
};
use crate::nginx::{self, Side};

twins!(nginx_serves_both, curl_fetches, sockets_show_their_addresses, iperf3_both_ways, redis_serves);

const OURS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);
const PEER: &str = "2001:db8:77::2";
/// The device on the client host.
const DEVICE: &str = "eth0";

/// Two hosts with IPv6 beside IPv4.
fn fixture(arm: Arm) -> Fixture {
    let mut fixture = Fixture::without_daemon(arm);
    let address = |address: &str| format!("-6 addr add {address}/64 dev {DEVICE} nodad");
    let ip = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let theirs = ip(address(PEER));
    fixture.run_peer("ip", &theirs.iter().map(String::as_str).collect::<Vec<_>>(), SOON);
    if arm == Arm::Paths {
        fixture.start_daemon_with(&format!("address6 = [\"{OURS}/64\"]\n"));
        // The addresses are probed first.
        wait_until("the address is in use", SOON, || {
            let stat = fixture.paths_now();
            let shown = stat.iter().filter_map(|path| path["details"]["addresses"].as_str());
            shown.clone().any(|text| text.contains(&format!("{OURS}/64 preferred")))
        });
    } else {
        let ours = ip(address(&OURS.to_string()));
        fixture.run("ip", &ours.iter().map(String::as_str).collect::<Vec<_>>(), SOON);
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

fn iperf3_both_ways(arm: Arm) {
    let fixture = fixture(arm);
    for extra in [&[][..], &["-R"], &["-u", "-b", "50M"]] {
        let mut server = fixture.start("iperf3", &["-s", "-1", "--forceflush"]);
        wait_for_line(&mut server, "listening");
        let arguments = [&["-6", "-c", &OURS.to_string(), "-t", "1", "-J"][..], extra].concat();
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
    let ask = |words: &[&str]| {
        let arguments = [&["-h", &OURS.to_string(), "-p", "6379"][..], words].concat();
        fixture.run_peer("redis-cli", &arguments, SOON)
    };
    let value = "v".repeat(50_000);
    assert_eq!(ask(&["set", "key", &value]).trim(), "OK");
    assert_eq!(ask(&["get", "key"]).trim(), value);
    server.check().unwrap();
}
