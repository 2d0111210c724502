//! Transfers over a veth pair that loses packets in both directions, at random.

use std::fs;

use scoutline_bench::server::{Kind, Server};
use scoutline_bench::testbed::Host;
use scoutline_bpf::{Hook, RandomDrop};

use crate::fixture::{Arm, Fixture, SOON, assert_same, script, twins, wait_for_line, write_file};
use crate::machine::{ask, interface_index};

twins!(transfers_stay_intact_over_a_lossy_link);

/// One packet in twenty.
const LOSS_PER_MILLE: u32 = 50;
const MIB: usize = 4;

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
