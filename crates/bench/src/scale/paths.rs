//! A million paths of UDP sockets, with traffic on some of them.
//!
//! ```text
//!   client host, kernel              server host, paths
//!   `load echo` at one port ◄─────── the herd that asks: 16,000 sockets, questions on 1,000 of them
//!   nobody                  ◄─────── 62 × `load herd`: 16,000 connected sockets each
//! ```
//! The herd that asks does so once without the others and once beside them. Memory is what the daemon and the herds have
//! (PSS), and all the kernel's slabs, in which each socket of ours is one of the kernel's too.

use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::memory;
use crate::Options;
use crate::load::herd::HerdReport;
use crate::placed::{Bed, PATHS, Placement, Sides};
use crate::process::Process;
use crate::report::{Better, Report, Row, Target, median};

/// Sockets of one program, which often may have 20,000 files at most.
const SOCKETS: u32 = 16_000;
/// Programs beside the one that asks.
const HERDS: u32 = 62;
/// Sockets on which questions are asked.
const ACTIVE: u32 = 1_000;
/// Where the echo is; the other herds' peers are the ports behind.
const ECHO: u16 = 7000;
const FIRST_PORT: u16 = 20_000;
const PATIENCE: Duration = Duration::from_secs(120);
const MORE: &str = "max_paths = 1100000\nmax_buffer_memory = \"64GiB\"\nreceive_buffer = \"16KiB\"\nsend_buffer = \"16KiB\"\n";

/// The case, as `--only` finds it.
pub(super) const CASE: &str = "1,008,000 UDP paths";

pub(super) fn run(options: &Options, rounds: u32, seconds: f64, report: &mut Report) -> Result<()> {
    let mut bed = Bed::with(options, Placement::Apart, Sides::TwoHosts, MORE)?;
    let mut echo = bed.load_command();
    echo.extend(["echo", &format!("--port={ECHO}"), "--protocol=udp"].map(OsString::from));
    let mut echo = bed.client(PATHS, "echo", &echo)?;
    wait_for(&mut echo, "ready")?;
    let before = memory(&bed, &[])?;
    let alone = rates(&bed, rounds, seconds)?;
    let begin = Instant::now();
    let mut herds = Vec::new();
    for number in 1..=HERDS {
        let mut herd = start(&bed, number, 0, 0.0)?;
        wait_for(&mut herd, "holding")?;
        herds.push(herd);
    }
    let opened = begin.elapsed();
    let held = memory(&bed, &herds)? - before;
    let beside = rates(&bed, rounds, seconds)?;
    bed.check(PATHS)?;
    let others = f64::from(HERDS * SOCKETS);
    let mut add = |metric: &str, unit, better, figures: &[f64], target| {
        report.rows.push(Row::new(CASE, (metric, unit, better), figures, None).aiming_at(target));
    };
    let kept = 100.0 * median(&beside) / median(&alone).max(1e-9);
    add("questions, beside them", "/s", Better::Higher, &beside, None);
    add("questions, without the others", "/s", Better::Higher, &alone, None);
    add("kept", "%", Better::Higher, &[kept], Some(Target::Ours(90.0)));
    add("memory of each, with all of the kernel's slabs", "bytes", Better::Lower, &[held / others], None);
    add("to open and connect each", "µs", Better::Lower, &[opened.as_secs_f64() * 1e6 / others], None);
    Ok(())
}

/// Questions a second by a herd that comes and goes, in each round.
fn rates(bed: &Bed<'_>, rounds: u32, seconds: f64) -> Result<Vec<f64>> {
    let round = |_| -> Result<f64> {
        let mut herd = start(bed, 0, ACTIVE, seconds)?;
        wait_for(&mut herd, "holding")?;
        let line = herd.line(Instant::now() + PATIENCE)?.context("the herd that asks has ended")?;
        let report: HerdReport =
            serde_json::from_str(&line).with_context(|| format!("it printed: {line}"))?;
        ensure!(report.lost * 100 <= report.answered, "{} of its questions were lost", report.lost);
        Ok(report.answered as f64 / report.seconds)
    };
    (0..rounds).map(round).collect()
}

/// Starts a herd on paths; that of number 0 has the echo as its peer.
fn start(bed: &Bed<'_>, number: u32, active: u32, seconds: f64) -> Result<Process> {
    let peer = SocketAddrV4::new(bed.client_address(PATHS), ECHO + number as u16);
    let mut command = bed.load_command();
    command.extend(
        [
            "herd".to_owned(),
            format!("--connect={peer}"),
            format!("--source={}", bed.address(PATHS)),
            format!("--port={FIRST_PORT}"),
            format!("--count={SOCKETS}"),
            format!("--active={active}"),
            format!("--seconds={seconds}"),
        ]
        .map(OsString::from),
    );
    bed.program(PATHS, &format!("herd{number}-"), &command)
}

fn wait_for(process: &mut Process, word: &str) -> Result<()> {
    match process.line(Instant::now() + PATIENCE)? {
        Some(line) if line == word => Ok(()),
        said => bail!("it said {said:?} instead of `{word}`{}", process.log_tail()),
    }
}

/// Memory of the daemon and of these, in bytes, with the kernel's slabs.
fn memory(bed: &Bed<'_>, herds: &[Process]) -> Result<f64> {
    let daemon = bed.daemon().map(crate::server::Daemon::process_id);
    let processes: Result<f64> = herds.iter().map(Process::id).chain(daemon).map(memory::of_process).sum();
    Ok(processes? + memory::slabs()?)
}
