//! Sockets on paths against the kernel's: every call, in every state, gives the same results, errnos and events.
//!
//! The programs beside this file (`scripts/compare/*.c`) run twice, on the kernel and on paths, with the same other
//! host (`peer.py`, on the kernel), and print what each call gives. The two transcripts are compared line by line.
//! What may differ stands in `scripts/compare/differences.txt`, with the reason; an entry that no longer occurs is a
//! failure, too. A further program is a file there and a test here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, script, wait_for_line};

const PORT: &str = "7001";
const LIMIT: Duration = Duration::from_secs(150);
/// Nonsense is a part of what the programs try.
const QUIET: [&str; 5] = [
    "-Wno-unused-function",
    "-Wno-nonnull",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
];

#[test]
fn states() {
    compare("states");
}

#[test]
fn data() {
    compare("data");
}

#[test]
fn datagrams() {
    compare("datagrams");
}

#[test]
fn readiness() {
    compare("readiness");
}

#[test]
fn signals() {
    compare("signals");
}

#[test]
fn processes() {
    compare("processes");
}

#[test]
fn options() {
    compare("options");
}

#[test]
fn streams() {
    compare("streams");
}

#[test]
fn headers() {
    compare("headers");
}

#[test]
fn urgent() {
    compare("urgent");
}

#[test]
fn zero_copy() {
    compare("zero_copy");
}

#[test]
fn fast_open() {
    compare_in("fast_open", with_fast_open);
}

/// Both ends may use fast open, whoever has the server host.
fn with_fast_open(arm: Arm) -> Fixture {
    let mut fixture = Fixture::without_daemon(arm);
    let allow = || fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3");
    for host in [fixture.testbed().server(0), fixture.testbed().client()] {
        host.enter(allow).unwrap().unwrap();
    }
    if arm == Arm::Paths {
        fixture.start_daemon_with("[tcp]\nfast_open = \"both\"\n");
    }
    fixture
}

/// The lines of each case, and of what it started.
type Transcript = BTreeMap<String, Vec<String>>;

/// One entry of the list of differences.
struct Known<'a> {
    case: &'a str,
    kernel: &'a str,
    paths: &'a str,
}

fn compare(name: &str) {
    compare_in(name, Fixture::new);
}

fn compare_in(name: &str, hosts: fn(Arm) -> Fixture) {
    let [kernel, paths] = [Arm::Kernel, Arm::Paths].map(|arm| transcript(name, arm, hosts));
    let text = fs::read_to_string(script("compare/differences.txt")).unwrap();
    let known = known_differences(&text, name);
    let mut met = vec![false; known.len()];
    let mut report = String::new();
    for case in kernel.keys().chain(paths.keys().filter(|case| !kernel.contains_key(*case))) {
        let (left, right) = (lines(&kernel, case), lines(&paths, case));
        for at in 0..left.len().max(right.len()) {
            let [left, right] = [left, right].map(|lines| lines.get(at).map_or("", String::as_str));
            if left == right {
                continue;
            }
            let listed = known.iter().position(|k| k.case == case && k.kernel == left && k.paths == right);
            if let Some(listed) = listed {
                met[listed] = true;
            } else {
                let _ = writeln!(report, "{name} {case}\n    kernel: {left}\n    paths:  {right}");
            }
        }
    }
    for (known, met) in known.iter().zip(met) {
        if !met {
            let _ = writeln!(report, "{name} {}: listed, but no more: {}", known.case, known.paths);
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

fn lines<'a>(transcript: &'a Transcript, case: &str) -> &'a [String] {
    transcript.get(case).map_or(&[], Vec::as_slice)
}

/// Entries are blocks of four lines: `program case`, `kernel: …`, `paths: …`, `reason: …`.
fn known_differences<'a>(text: &'a str, program: &str) -> Vec<Known<'a>> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut known = Vec::new();
    while let Some(title) = lines.next() {
        let mut part = |key: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("differences.txt: `{key}` is missing after {title}")).trim()
        };
        let (kernel, paths, reason) = (part("kernel:"), part("paths:"), part("reason:"));
        assert!(!reason.is_empty(), "differences.txt: no reason for {title}");
        let (of, case) = title.split_once(' ').unwrap_or_else(|| panic!("differences.txt: {title}"));
        if of == program {
            known.push(Known { case, kernel, paths });
        }
    }
    known
}

/// Runs a program; what it printed.
fn transcript(name: &str, arm: Arm, hosts: fn(Arm) -> Fixture) -> Transcript {
    let fixture = hosts(arm);
    let (own, peer) = (fixture.address().to_string(), fixture.peer_address().to_string());
    let mut other = fixture.start_peer("python3", &[&script("compare/peer.py"), &peer, PORT]);
    wait_for_line(&mut other, "ready");
    let program = fixture.file(&format!("compare-{name}")).display().to_string();
    let built = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(QUIET)
        .args(["-o", &program, &script(&format!("compare/{name}.c"))])
        .output()
        .expect("a C compiler: apt-get install gcc libc6-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let text = fixture.run(&program, &[&own, &peer, PORT], LIMIT);
    if let Some(keep) = std::env::var_os("SCOUTLINE_LOGS") {
        fs::write(std::path::Path::new(&keep).join(format!("compare-{name}-{arm:?}.txt")), &text).unwrap();
    }
    other.check().unwrap();
    let mut transcript = Transcript::new();
    for line in text.lines() {
        let (case, said) = line.split_once(": ").unwrap_or(("", line));
        transcript.entry(case.to_owned()).or_default().push(said.trim_end().to_owned());
    }
    assert!(transcript.len() > 5, "{name} says too little: {text}");
    transcript
}
