//! Transfers over lines that lose packets in both directions, at random: a veth pair with a dropping program at it,
//! and a bridge of our own that also mixes up, doubles and delays.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use scoutline_bench::bridge::Line;
use scoutline_bench::server::{Kind, Server};
use scoutline_bench::testbed::Host;
use scoutline_bpf::{Hook, RandomDrop};
use scoutline_device::memory::WireConfig;

use crate::fixture::{
    Arm, Fixture, SOON, assert_same, long, script, twins, wait_for_line, write_file, write_file_kib,
};
use crate::machine::{ask, interface_index};
use crate::nginx::{self, Side};

twins!(transfers_stay_intact_over_a_lossy_link, a_server_over_a_bad_line, a_client_over_a_bad_line);

/// One packet in twenty.
const LOSS_PER_MILLE: u32 = 50;
/// Enough super-segments that the odds of losing none are below 1 in 10,000.
const MIB: usize = 12;

/// The loss; it goes with this.
struct Lossy {
    _drops: [RandomDrop; 2],
}

impl Lossy {
    fn new(fixture: &Fixture) -> Lossy {
        let client = fixture.testbed().client();
        let index = interface_index(client, "eth0");
        let attach = || {
            [Hook::Ingress, Hook::Egress].map(|hook| {
                RandomDrop::attach(index, hook, LOSS_PER_MILLE).unwrap_or_else(|error| panic!("{error}"))
            })
        };
        Lossy { _drops: client.enter(attach).unwrap() }
    }
}

fn transfers_stay_intact_over_a_lossy_link(arm: Arm) {
    let fixture = Fixture::new(arm);
    let paths = fixture.paths();
    let paths = paths.as_ref().map(|(program, daemon)| (program.as_path(), *daemon));
    let _server = Server::start(fixture.testbed(), 0, Kind::NGINX, None, paths)
        .unwrap_or_else(|error| panic!("{error:#}"));
    let (original, got) = (fixture.file("files").join("original"), fixture.file("got"));
    write_file(&original, MIB);
    let url = format!("http://{}/original", fixture.address());
    let got_name = got.display().to_string();
    let arguments = ["-sS", "--fail", "--max-time", "60", "-o", &got_name, &url];
    let (sunk, target) = (fixture.file("sunk"), format!("http://{}:7300/", fixture.address()));
    let mut sink = fixture.start("python3", &[&script("sink.py"), "7300", &sunk.display().to_string()]);
    wait_for_line(&mut sink, "ready");

    // With super-segments, of which one loss takes 64 KiB; then with single segments.
    let client = fixture.testbed().client();
    let lossy = Lossy::new(&fixture);
    for segments in [None, Some("1")] {
        if let Some(segments) = segments {
            let said = ask(client, "ip", &["link", "set", "dev", "eth0", "gso_max_segs", segments]);
            assert!(said.is_empty(), "{said}");
        }
        fixture.run_peer("curl", &arguments, SOON * 4);
        assert_same(&original, &got);
        fs::remove_file(&got).unwrap();

        let original_name = original.display().to_string();
        let upload = ["-sS", "--fail", "--max-time", "60", "-T", &original_name, &target];
        fixture.run_peer("curl", &upload, SOON * 4);
        assert_same(&original, &sunk);
        fs::remove_file(&sunk).unwrap();
    }
    drop(lossy);
    assert!(retransmissions(client) > 0, "the link has lost nothing");
    // The link is whole again, and so is the server.
    fixture.run_peer("curl", &arguments, SOON);
    assert_same(&original, &got);
}

/// Segments that the kernel's TCP of a host has sent again.
fn retransmissions(host: &Host) -> u64 {
    let text = host.enter(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap()).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = pairs.find(|(name, _)| *name == "RetransSegs").expect("RetransSegs");
    value.parse().expect("a number")
}

/// The line, as in the engine's tests: 5 % loss and reordering each way, duplication, 100 ms for the round
/// trip (50 each way; what is held back takes up to 50 more).
fn bad_line() -> Line {
    let wire = WireConfig {
        delay: Duration::from_millis(50),
        jitter: Duration::from_millis(2),
        loss: 0.05,
        reorder: 0.05,
        duplicate: 0.02,
        ..WireConfig::default()
    };
    Line { wire, seed: 2 }
}

/// How much goes each way. At this loss TCP's window is a handful of packets for each 100 ms (Mathis: 1.22/√p),
/// 30 to 60 KB/s, for the kernel and for us.
fn bad_line_kib() -> usize {
    if long() { 8 << 10 } else { 384 }
}

/// One file down and up again by curl; `run` runs it.
fn down_and_up(fixture: &Fixture, url: &str, files: &Path, run: impl Fn(&[&str])) {
    let (original, got) = (files.join("original"), fixture.file("got"));
    write_file_kib(&original, bad_line_kib());
    let got_name = got.display().to_string();
    let common = ["-sS", "--fail", "--max-time", "600"];
    let begin = Instant::now();
    run(&[&common[..], &["-o", &got_name, &format!("{url}/original")]].concat());
    assert_same(&original, &got);
    let (down, begin) = (begin.elapsed(), Instant::now());
    run(&[&common[..], &["-T", &got_name, &format!("{url}/uploaded")]].concat());
    assert_same(&original, &files.join("uploaded"));
    // To compare with the twin; what it should be depends on the luck of the draw.
    eprintln!("{} KiB down in {down:.1?}, up in {:.1?}", bad_line_kib(), begin.elapsed());
    let passed = fixture.testbed().bridge().expect("a bridge").passed();
    let passed = passed.unwrap_or_else(|error| panic!("{error:#}"));
    for wire in [passed.to_server, passed.to_client] {
        assert!(wire.lost > 0 && wire.reordered > 0 && wire.duplicated > 0, "{passed:?}");
    }
    assert_eq!(passed.mishaps(), 0, "{passed:?}");
}

fn a_server_over_a_bad_line(arm: Arm) {
    let fixture = Fixture::over(bad_line(), arm);
    let files = fixture.file("files");
    let mut nginx = nginx::start(&fixture, Side::UnderTest, &files);
    let url = format!("http://{}", fixture.address());
    down_and_up(&fixture, &url, &files, |arguments| {
        fixture.run_peer("curl", arguments, SOON * 30);
    });
    nginx.check().unwrap();
}

fn a_client_over_a_bad_line(arm: Arm) {
    let fixture = Fixture::over(bad_line(), arm);
    let files = fixture.file("files");
    let _nginx = nginx::start(&fixture, Side::Peer, &files);
    let url = format!("http://{}", fixture.peer_address());
    down_and_up(&fixture, &url, &files, |arguments| {
        fixture.run("curl", arguments, SOON * 30);
    });
}
