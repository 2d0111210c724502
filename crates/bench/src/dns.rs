//! `dns`: BIND's named with a zone of a thousand names, asked by dnsperf over UDP, in each placement.
//!
//! named has one worker thread and answers with authority, without recursion; dnsperf keeps 100 questions on their way
//! over eight sockets, and measures in whole seconds.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::Options;
use crate::placed::{Bed, Case, Metric, Plan, Seen, Sides, Timing, compare};
use crate::report::{Better, Report, Target};

const METRICS: [Metric; 3] = [
    Metric::aimed(("rate", "queries/s", Better::Higher), |_| Some(Target::Ratio(1.5))),
    Metric::plain(("mean", "µs", Better::Lower)),
    Metric::plain(("lost", "queries", Better::Lower)),
];
/// Names in the zone.
const NAMES: u32 = 1000;
/// How long named may take until it answers.
const START: Duration = Duration::from_secs(15);

pub(crate) fn run(options: &Options) -> Result<Report> {
    let plan = Plan {
        name: "dns",
        title: "named",
        cases: vec![Case::everywhere("named".to_owned(), &METRICS)],
        sides: Sides::TwoHosts,
        timing: [(5, 3.0, 0.0), (3, 1.0, 0.0)],
    };
    let mut report = compare(options, &plan, |bed, arm, _, timing| {
        serve(bed, arm)?;
        ask(bed, arm, timing)
    })?;
    report.method("programs", "named with one worker thread; dnsperf, 8 sockets, 100 questions on their way");
    Ok(report)
}

/// Has named running on an arm.
fn serve(bed: &mut Bed<'_>, arm: usize) -> Result<()> {
    if bed.server(arm, "named").is_some() {
        return Ok(());
    }
    let directory = bed.directory().join(format!("named{arm}"));
    fs::create_dir_all(&directory)?;
    let file = write_files(&directory, bed.address(arm))?;
    let named =
        ["/usr/sbin/named", "/usr/local/sbin/named"].into_iter().find(|path| Path::new(path).exists());
    let named = named.context("named is missing; install it with: apt-get install bind9")?;
    let mut command: Vec<OsString> = [named, "-g", "-4", "-n", "1", "-c"].map(OsString::from).into();
    command.push(file.into());
    bed.serve(arm, "named", "", &command)?;
    let server = SocketAddrV4::new(bed.address(arm), 53);
    bed.on_client_host(|| wait_until_it_answers(server))?.with_context(|| {
        let log = bed.server(arm, "named").map(crate::process::Process::log_tail);
        format!("named does not answer{}", log.unwrap_or_default())
    })
}

/// The zone, the configuration, whose name comes back, and what dnsperf asks.
fn write_files(directory: &Path, address: Ipv4Addr) -> Result<PathBuf> {
    let mut zone = String::from("$TTL 60\n@ IN SOA ns root 1 60 60 60 60\n@ IN NS ns\nns IN A 10.1.0.1\n");
    let mut questions = String::new();
    for name in 0..NAMES {
        let _ = writeln!(zone, "h{name} IN A 10.1.{}.{}", name / 250, name % 250);
        // 7 has no divisor in common with 1000: each once, in no order that a cache likes.
        let _ = writeln!(questions, "h{}.example.test A", name * 7 % NAMES);
    }
    let here = directory.display();
    let configuration = format!(
        "options {{ directory \"{here}\"; listen-on {{ {address}; }}; listen-on-v6 {{ none; }}; recursion no;\n\
         pid-file none; session-keyfile \"{here}/session.key\"; dnssec-validation no; }};\n\
         controls {{ }};\nzone \"example.test\" {{ type primary; file \"{here}/zone\"; }};\n"
    );
    let file = directory.join("named.conf");
    fs::write(directory.join("zone"), zone)?;
    fs::write(directory.join("questions"), questions)?;
    fs::write(&file, configuration)?;
    Ok(file)
}

/// Asks for one name until the answer has an address.
fn wait_until_it_answers(server: SocketAddrV4) -> Result<()> {
    // RFC 1035 §4.1: number 1, a standard query of one question: h0.example.test, type A, class IN.
    let mut question = vec![0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["h0", "example", "test", ""] {
        question.push(label.len() as u8);
        question.extend_from_slice(label.as_bytes());
    }
    question.extend_from_slice(&[0, 1, 0, 1]);
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + START;
    let mut answer = [0; 512];
    while Instant::now() < deadline {
        // A refusal says that it does not listen yet; it comes at once, so the time-out is waited for all the same.
        let _ = socket.send(&question);
        let began = Instant::now();
        let len = socket.recv(&mut answer).unwrap_or(0);
        let (code, answers) = (answer[3] % 16, answer[7]);
        if len > 12 && code == 0 && answers > 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20).saturating_sub(began.elapsed()));
    }
    bail!("no answer within {} s", START.as_secs())
}

/// One run of dnsperf.
fn ask(bed: &Bed<'_>, arm: usize, timing: Timing) -> Result<Seen> {
    let seconds = timing.seconds.ceil().max(1.0);
    let questions = bed.directory().join(format!("named{arm}")).join("questions");
    let mut words: Vec<OsString> = vec!["dnsperf".into(), "-s".into(), bed.address(arm).to_string().into()];
    words.extend(["-d".into(), questions.into_os_string()]);
    words.extend(
        ["-c", "8", "-T", "1", "-q", "100", "-t", "1", "-l", &seconds.to_string()].map(OsString::from),
    );
    let (text, mut seen) = bed
        .ask(arm, "dnsperf", &words, Duration::from_secs_f64(seconds))
        .context("dnsperf (install it with: apt-get install dnsperf)")?;
    let value = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).with_context(|| format!("dnsperf printed: {text}"))
    };
    let lost = value("Queries lost:")?;
    seen.errors = lost as u64;
    seen.figures = vec![value("Queries per second:")?, value("Average Latency (s):")? * 1e6, lost];
    Ok(seen)
}
