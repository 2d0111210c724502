//! Sockets on paths against the kernel's: every call, in every state, gives the same results, errnos and events.
//!
//! The programs beside this file (`scripts/compare/*.c`) run twice, on the kernel and on paths, with the same other
//! host (`peer.py`, on the kernel), and print what each call gives; over IPv4, over IPv6, and over IPv4 by sockets of
//! IPv6 (mapped addresses), as far as they are about what the families share. The two transcripts are compared line by
//! line. What may differ stands in `scripts/compare/differences.txt`, with the reason; an entry that no longer occurs
//! is a failure, too. Most of them run a third time, by `run --trap` ([`TRAPPED`]); what differs there besides stands
//! in `scripts/compare/differences-trap.txt`. Most run once more with their calls made by instruction, past the C library
//! ([`BY_INSTRUCTION`], `scripts/compare/inline.h`). A further program is a file there and a test here. Which case shows which call and option:
//! `scripts/compare/README.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::fixture::{Arm, Fixture, beside_others, finish, script, wait_for_line};
use crate::ip6;

/// Those that run by `run --trap` too, over IPv4. The others are about what is not served there: fast open.
const TRAPPED: [&str; 18] = [
    "states",
    "data",
    "numbers",
    "datagrams",
    "bursts",
    "waits",
    "groups",
    "headers",
    "readiness",
    "shared_epolls",
    "signals",
    "processes",
    "shells",
    "options",
    "streams",
    "urgent",
    "zero_copy",
    "information",
];
/// And over IPv6, where names, addresses, options and errors have to do with the family.
const TRAPPED_OVER_INET6: [&str; 12] = [
    "states",
    "data",
    "numbers",
    "datagrams",
    "bursts",
    "waits",
    "readiness",
    "signals",
    "processes",
    "options",
    "streams",
    "urgent",
];
/// Those whose calls are made by instruction as well, over IPv4; with no more differences than those by the library.
#[cfg(target_arch = "x86_64")]
const BY_INSTRUCTION: [&str; 10] = [
    "states",
    "data",
    "datagrams",
    "readiness",
    "shared_epolls",
    "signals",
    "processes",
    "options",
    "interfaces",
    "headers",
];
#[cfg(not(target_arch = "x86_64"))]
const BY_INSTRUCTION: [&str; 0] = [];
const PORT: &str = "7001";
const LIMIT: Duration = Duration::from_secs(400);
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
fn numbers() {
    compare("numbers");
}

#[test]
fn datagrams() {
    compare("datagrams");
}

#[test]
fn bursts() {
    compare_in("bursts", &[Family::Inet, Family::Inet6], ip6::fixture);
}

#[test]
fn waits() {
    compare_in("waits", &[Family::Inet, Family::Inet6], ip6::fixture);
}

#[test]
fn groups() {
    compare_in("groups", &[Family::Inet], ip6::fixture);
}

#[test]
fn families() {
    compare_in("families", &[Family::Inet6], ip6::fixture);
}

#[test]
fn readiness() {
    compare("readiness");
}

#[test]
fn shared_epolls() {
    compare_in("shared_epolls", &[Family::Inet], ip6::fixture);
}

#[test]
fn signals() {
    compare_in("signals", &[Family::Inet, Family::Inet6], ip6::fixture);
}

#[test]
fn processes() {
    compare("processes");
}

#[test]
fn shells() {
    compare("shells");
}

#[test]
fn limits() {
    compare_in("limits", &[Family::Inet], ip6::fixture);
}

#[test]
fn options() {
    compare("options");
}

#[test]
fn looks() {
    compare("looks");
}

#[test]
fn ports() {
    compare("ports");
}

#[test]
fn beside() {
    compare("beside");
}

#[test]
fn interfaces() {
    compare("interfaces");
}

#[test]
fn streams() {
    compare("streams");
}

#[test]
fn headers() {
    compare_in("headers", &[Family::Inet, Family::Inet6], ip6::fixture);
}

#[test]
fn information() {
    compare_in("information", &[Family::Inet, Family::Inet6], ip6::fixture);
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
    compare_in("fast_open", &[Family::Inet], with_fast_open);
}

#[test]
fn fast_open_over_inet6() {
    compare_in("fast_open", &[Family::Inet6], with_fast_open);
}

/// Apart, because hosts remember of an address of IPv4 that fast open failed there.
#[test]
fn fast_open_of_mapped_addresses() {
    compare_in("fast_open", &[Family::Mapped], with_fast_open);
}

/// Both ends may use fast open, whoever has the server host.
fn with_fast_open(arm: Arm) -> Fixture {
    let fixture = ip6::fixture_with(arm, "[tcp]\nfast_open = \"both\"\n");
    let allow = || fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3");
    for host in [fixture.testbed().server(0), fixture.testbed().client()] {
        host.enter(allow).unwrap().unwrap();
    }
    fixture
}

/// Over what the cases of a program run; it tells by the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Inet,
    Inet6,
    /// Sockets of IPv6 over IPv4.
    Mapped,
}

impl Family {
    pub(crate) const ALL: [Family; 3] = [Family::Inet, Family::Inet6, Family::Mapped];

    /// Our address and the other host's, as the program is told them.
    fn addresses(self, fixture: &Fixture) -> [String; 2] {
        let inet = [fixture.address(), fixture.peer_address()];
        match self {
            Family::Inet => inet.map(|address| address.to_string()),
            Family::Inet6 => [ip6::OURS.to_string(), ip6::PEER.to_owned()],
            Family::Mapped => inet.map(|address| format!("::ffff:{address}")),
        }
    }

    /// How the list of differences calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Inet6 => "inet6",
            Family::Mapped => "mapped",
        }
    }
}

/// The lines of each case over each family, and of what it started.
pub(crate) type Transcript = BTreeMap<(Family, String), Vec<String>>;

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// On the kernel.
    Kernel,
    /// On paths, with the library preloaded.
    Library,
    /// On paths, by `run --trap`.
    Trap,
    /// On paths, with the library preloaded; the program's calls are made past it.
    Inline,
    /// The same on the kernel.
    KernelInline,
}

impl Way {
    /// For `scoutline run`, where there are paths.
    fn options(self) -> &'static [&'static str] {
        if self == Way::Trap { &["--trap"] } else { &[] }
    }
}

/// One entry of the list of differences.
struct Known<'a> {
    case: &'a str,
    /// It differs over this one only.
    family: Option<&'a str>,
    kernel: &'a str,
    paths: &'a str,
}

impl Known<'_> {
    fn is(&self, (family, case): &(Family, String), kernel: &str, paths: &str) -> bool {
        (self.case == case || self.case == "*")
            && self.family.is_none_or(|only| only == family.name())
            && self.kernel == kernel.trim_start()
            && self.paths == paths.trim_start()
    }
}

/// Whether a program of [`TRAPPED`] runs over this family by trap, too.
fn is_trapped_over(name: &str, family: Family) -> bool {
    match family {
        Family::Inet => true,
        Family::Inet6 => TRAPPED_OVER_INET6.contains(&name),
        Family::Mapped => false,
    }
}

fn compare(name: &str) {
    compare_in(name, &Family::ALL, ip6::fixture);
}

fn compare_in(name: &str, families: &[Family], hosts: fn(Arm) -> Fixture) {
    beside_others(|| compare_on(name, families, hosts));
}

fn compare_on(name: &str, families: &[Family], hosts: fn(Arm) -> Fixture) {
    let by_instruction = BY_INSTRUCTION.contains(&name);
    let fixture = hosts(Arm::Kernel);
    let kernel = transcript(name, families, &fixture, Way::Kernel);
    let kernel_inline =
        by_instruction.then(|| transcript(name, &[Family::Inet], &fixture, Way::KernelInline));
    drop(fixture);
    let fixture = hosts(Arm::Paths);
    let mut report =
        differences(name, &kernel, &transcript(name, families, &fixture, Way::Library), Way::Library);
    if TRAPPED.contains(&name) {
        let families: Vec<Family> =
            families.iter().copied().filter(|family| is_trapped_over(name, *family)).collect();
        let kernel = kernel.into_iter().filter(|((family, _), _)| families.contains(family)).collect();
        report += &differences(name, &kernel, &transcript(name, &families, &fixture, Way::Trap), Way::Trap);
    }
    if let Some(kernel) = kernel_inline {
        let paths = transcript(name, &[Family::Inet], &fixture, Way::Inline);
        report += &differences(name, &kernel, &paths, Way::Inline);
    }
    assert!(report.is_empty(), "\n{report}");
}

/// Calls past the C library, where they are more than one that is served: threads, signals, processes.
#[test]
#[cfg(target_arch = "x86_64")]
fn dispatched() {
    let kernel = transcript("dispatched", &[Family::Inet], &ip6::fixture(Arm::Kernel), Way::KernelInline);
    assert!(kernel.keys().len() > 8, "{kernel:?}");
    let paths = transcript("dispatched", &[Family::Inet], &ip6::fixture(Arm::Paths), Way::Inline);
    let report = differences("dispatched", &kernel, &paths, Way::Inline);
    assert!(report.is_empty(), "\n{report}");
}

/// What of two transcripts differs and is not listed, or is listed and does not differ. By trap there is a list more;
/// what is in the first one need not differ there.
fn differences(name: &str, kernel: &Transcript, paths: &Transcript, way: Way) -> String {
    let list = |file: &str| fs::read_to_string(script(&format!("compare/{file}"))).unwrap();
    let (of_all, of_trap) = (list("differences.txt"), list("differences-trap.txt"));
    let mut known = known_differences(&of_all, name);
    // Over one family not all are met.
    let may_be_met = if way == Way::Library { 0 } else { known.len() };
    if way == Way::Trap {
        known.extend(known_differences(&of_trap, name));
    }
    let mut met = vec![false; known.len()];
    let mut report = String::new();
    // A case that its alarm has ended compares nothing from there on.
    for ((family, case), lines) in kernel {
        if lines.iter().any(|line| line.contains("ended with status e")) {
            let last = &lines[lines.len().saturating_sub(3)..];
            let _ = writeln!(report, "{name} {case} {}: hangs on the kernel behind {last:?}", family.name());
        }
    }
    for case in kernel.keys().chain(paths.keys().filter(|case| !kernel.contains_key(*case))) {
        let (left, right) = (lines(kernel, case), lines(paths, case));
        for at in 0..left.len().max(right.len()) {
            let [left, right] = [left, right].map(|lines| lines.get(at).map_or("", String::as_str));
            if left == right {
                continue;
            }
            if let Some(listed) = known.iter().position(|known| known.is(case, left, right)) {
                met[listed] = true;
            } else {
                let (family, case) = (case.0.name(), &case.1);
                let _ = writeln!(
                    report,
                    "{name} {case} {family} ({way:?})\n    kernel: {left}\n    paths:  {right}"
                );
            }
        }
    }
    for (known, met) in known.iter().zip(met).skip(may_be_met) {
        if !met {
            let _ = writeln!(report, "{name} {}: listed, but no more: {}", known.case, known.paths);
        }
    }
    report
}

fn lines<'a>(transcript: &'a Transcript, case: &(Family, String)) -> &'a [String] {
    transcript.get(case).map_or(&[], Vec::as_slice)
}

/// Entries are blocks of four lines: `program case` (`*`: any case), and the family if it is about one; `kernel: …`, `paths: …`,
/// `reason: …`.
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
        let mut words = title.split(' ');
        let of = words.next();
        let case = words.next().unwrap_or_else(|| panic!("differences.txt: {title}"));
        if of == Some(program) {
            known.push(Known { case, family: words.next(), kernel, paths });
        }
    }
    known
}

/// Builds a program; where it is.
fn built(name: &str, fixture: &Fixture, way: Way) -> String {
    let program = fixture.file(&format!("compare-{name}-{way:?}")).display().to_string();
    let inline = ["-include".to_owned(), script("compare/inline.h"), "-Wno-unused-value".to_owned()];
    let built = Command::new("gcc")
        .args(if matches!(way, Way::Inline | Way::KernelInline) { &inline[..] } else { &[] })
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(QUIET)
        .args(["-o", &program, &script(&format!("compare/{name}.c"))])
        .output()
        .expect("a C compiler: apt-get install gcc libc6-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

/// Runs a program over each family; what it printed.
fn transcript(name: &str, families: &[Family], fixture: &Fixture, way: Way) -> Transcript {
    let transcript = transcript_with(&[], name, families, fixture, way);
    assert!(transcript.len() > 4 * families.len(), "{name} says too little: {transcript:?}");
    transcript
}

/// The same, with these variables (`NAME=VALUE`).
pub(crate) fn transcript_with(
    variables: &[String],
    name: &str,
    families: &[Family],
    fixture: &Fixture,
    way: Way,
) -> Transcript {
    let program = built(name, fixture, way);
    let peer_host = fixture.peer_address().to_string();
    let mut others = [&peer_host, ip6::PEER].map(|host| {
        let mut other = fixture.start_peer("python3", &[&script("compare/peer.py"), host, PORT]);
        wait_for_line(&mut other, "ready");
        other
    });
    let mut transcript = Transcript::new();
    for &family in families {
        let [own, peer] = family.addresses(fixture);
        let other = if family == Family::Inet6 { Family::Inet } else { Family::Inet6 };
        let [other_own, other_peer] = other.addresses(fixture);
        let mut command: Vec<&str> = variables.iter().map(String::as_str).collect();
        command.extend([&program, &own, &peer, &other_own, &other_peer, PORT].map(|word| word as &str));
        let text = finish(&mut fixture.start_with(way.options(), "env", &command), LIMIT);
        if let Some(keep) = std::env::var_os("SCOUTLINE_LOGS") {
            let file = format!("compare-{name}-{}-{way:?}.txt", family.name());
            fs::write(std::path::Path::new(&keep).join(file), &text).unwrap();
        }
        // What the library says of such calls comes where a case has standard error in its output.
        let is_ours = |line: &&str| way == Way::Inline && line.starts_with("scoutline: system calls");
        for line in text.lines().filter(|line| !is_ours(line)) {
            let (case, said) = line.split_once(": ").unwrap_or(("", line));
            let of_case = transcript.entry((family, case.to_owned())).or_default();
            of_case.push(said.trim_end().to_owned());
        }
    }
    for other in &mut others {
        other.check().unwrap();
    }
    transcript
}
