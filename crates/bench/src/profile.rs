//! Where the server's core spends its time while an experiment measures: `perf record` of that core around each window of
//! measurement, by arm (`--perf`), and drawn as a flame graph (`--flame FILE.svg`).
//!
//! ```text
//!   window of measurement ── perf record -C core ──► perf script ──► stacks, counted by arm ──► table, flame graph
//! ```
//! Each window's recording is folded (inferno's `collapse::perf`) and deleted at once. Recording costs time on the core that
//! it looks at, so the figures of such a run are not for claims. Stacks go by frame pointers, which the release build has
//! not: a table of functions does without; for a flame graph perf copies the stack and unwinds it by DWARF.
//!
//! What is measured in this process without a window (`micro`, `sched`) has no profile.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use inferno::collapse::Collapse as _;
use inferno::collapse::perf::{Folder, Options as FoldOptions};
use inferno::flamegraph;
use serde::Serialize;

use crate::{Options, sys};

/// Functions shown.
const TOP: usize = 20;
/// A profile of fewer samples tells nothing.
const LEAST_SAMPLES: u64 = 10;

/// Where one arm spent its time.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// The arm.
    pub arm: String,
    /// The core that was looked at.
    pub core: usize,
    /// Samples taken.
    pub samples: u64,
    /// The functions that they were in, most first, each with its share in percent and `[k]` behind the kernel's.
    pub top: Vec<(String, f64)>,
}

/// What was recorded so far.
struct Recorder {
    core: usize,
    stacks: bool,
    file: PathBuf,
    /// By arm and stack: samples.
    seen: BTreeMap<String, HashMap<String, u64>>,
    /// What went wrong first.
    failure: Option<anyhow::Error>,
}

/// One at a time: experiments run one after another in a process. `None` unless profiles are asked for.
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn with<T>(change: impl FnOnce(&mut Option<Recorder>) -> T) -> T {
    change(&mut RECORDER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Has windows of measurement recorded from now on, if the options ask for it.
///
/// # Errors
/// perf is missing.
pub(crate) fn begin(options: &Options) -> Result<()> {
    if !options.perf && options.flame.is_none() {
        return Ok(());
    }
    match Command::new("perf").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("cannot run perf"),
        _ => bail!("`perf` is missing, or does not run here; install it with: apt-get install linux-perf"),
    }
    let file = std::env::temp_dir().join(format!("{}{}-perf", crate::cleanup::PREFIX, std::process::id()));
    let recorder = Recorder {
        core: options.server_core,
        stacks: options.flame.is_some(),
        file,
        seen: BTreeMap::new(),
        failure: None,
    };
    with(|place| *place = Some(recorder));
    Ok(())
}

/// Ends what [`begin`] has begun: the profiles, and the flame graph where the options say.
///
/// # Errors
/// perf has failed, or saw next to nothing.
pub(crate) fn end(options: &Options) -> Result<Vec<Profile>> {
    let Some(recorder) = with(Option::take) else { return Ok(Vec::new()) };
    if let Some(failure) = recorder.failure {
        return Err(failure);
    }
    ensure!(
        !recorder.seen.is_empty(),
        "this experiment has no windows of measurement that perf could record"
    );
    if let Some(file) = &options.flame {
        draw(&recorder.seen, file)?;
    }
    let profile = |(arm, stacks): (&String, &HashMap<String, u64>)| profile(arm, recorder.core, stacks);
    Ok(recorder.seen.iter().map(profile).collect())
}

/// perf, while it records.
pub(crate) struct Recording {
    arm: String,
    file: PathBuf,
    perf: Child,
}

/// Starts recording a window of this arm's, if profiles are asked for.
pub(crate) fn record(arm: &str) -> Option<Recording> {
    with(|place| {
        let recorder = place.as_mut().filter(|recorder| recorder.failure.is_none())?;
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-C", &recorder.core.to_string(), "-o"]).arg(&recorder.file);
        if recorder.stacks {
            command.args(["-F", "997", "--call-graph", "dwarf,16384"]);
        } else {
            command.args(["-F", "4999"]);
        }
        // It begins when it is told to by its standard input, and says on its output that it has.
        command.args(["--delay=-1", "--control=fd:0,1"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.spawn().context("cannot run perf").and_then(enabled) {
            Ok(perf) => Some(Recording { arm: arm.to_owned(), file: recorder.file.clone(), perf }),
            Err(error) => {
                recorder.failure = Some(error);
                None
            }
        }
    })
}

/// Tells perf to record, and waits until it does.
fn enabled(mut perf: Child) -> Result<Child> {
    let mut answer = String::new();
    let told = perf.stdin.as_mut().is_some_and(|stdin| stdin.write_all(b"enable\n").is_ok());
    let heard = perf.stdout.as_mut().map(|stdout| BufReader::new(stdout).read_line(&mut answer));
    if told && matches!(heard, Some(Ok(_))) && answer.contains("ack") {
        return Ok(perf);
    }
    // Who has closed its output, or says something else, is of no use any more.
    let _ = perf.kill();
    let mut said = String::new();
    if let Some(mut stderr) = perf.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    perf.wait()?;
    bail!("perf does not record: {}", said.trim())
}

impl Recording {
    /// The window is over.
    pub(crate) fn finish(mut self) {
        let folded = self.fold();
        // One that is gone already is what is wanted.
        let _ = fs::remove_file(&self.file);
        with(|place| {
            let Some(recorder) = place else { return };
            match folded {
                Ok(stacks) => {
                    let all = recorder.seen.entry(self.arm).or_default();
                    for (stack, count) in stacks {
                        *all.entry(stack).or_default() += count;
                    }
                }
                Err(error) => recorder.failure = Some(error),
            }
        });
    }

    /// Stops perf; what it saw, by stack.
    fn fold(&mut self) -> Result<HashMap<String, u64>> {
        // It writes its file and ends.
        sys::signal_process(self.perf.id() as i32, libc::SIGINT);
        let mut said = String::new();
        if let Some(stderr) = &mut self.perf.stderr {
            stderr.read_to_string(&mut said)?;
        }
        self.perf.wait()?;
        ensure!(self.file.exists(), "perf has recorded nothing: {}", said.trim());
        let mut script = Command::new("perf")
            .args(["script", "--no-inline", "-F", "comm,pid,tid,cpu,time,event,ip,sym,dso", "-i"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run perf script")?;
        let output = BufReader::new(script.stdout.take().context("perf script has no output")?);
        let mut options = FoldOptions::default();
        options.annotate_kernel = true;
        let mut folded = Vec::new();
        let collapsed = Folder::from(options).collapse(output, &mut folded);
        let status = script.wait()?;
        ensure!(status.success(), "perf script failed ({status}): {}", said.trim());
        collapsed.context("perf script printed what inferno cannot read")?;
        Ok(String::from_utf8_lossy(&folded).lines().filter_map(parse).collect())
    }
}

/// A line of folded stacks: frames from the outermost in, a blank, a count.
fn parse(line: &str) -> Option<(String, u64)> {
    let (stack, count) = line.rsplit_once(' ')?;
    Some((stack.to_owned(), count.parse().ok()?))
}

fn profile(arm: &str, core: usize, stacks: &HashMap<String, u64>) -> Profile {
    let samples: u64 = stacks.values().sum();
    let mut functions: HashMap<&str, u64> = HashMap::new();
    for (stack, count) in stacks {
        let innermost = stack.rsplit(';').next().unwrap_or(stack);
        *functions.entry(innermost).or_default() += count;
    }
    let mut top: Vec<(String, f64)> = functions
        .into_iter()
        .map(|(function, count)| {
            let name =
                function.strip_suffix("_[k]").map_or(function.to_owned(), |name| format!("{name} [k]"));
            (name, 100.0 * count as f64 / samples.max(1) as f64)
        })
        .collect();
    top.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    top.truncate(TOP);
    Profile { arm: arm.to_owned(), core, samples, top }
}

/// Draws all arms side by side, each under a frame with its name.
fn draw(seen: &BTreeMap<String, HashMap<String, u64>>, file: &Path) -> Result<()> {
    let mut lines: Vec<String> = Vec::new();
    for (arm, stacks) in seen {
        lines.extend(stacks.iter().map(|(stack, count)| format!("{arm};{stack} {count}")));
    }
    lines.sort();
    let mut options = flamegraph::Options::default();
    "The server's core, by arm".clone_into(&mut options.title);
    let out = fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .with_context(|| format!("cannot draw {}", file.display()))
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ncore {} while `{}` was measured, {} samples", self.core, self.arm, self.samples)?;
        if self.samples < LEAST_SAMPLES {
            writeln!(f, "  too few to say anything")?;
        }
        for (function, share) in &self.top {
            writeln!(f, "{share:6.2} %  {function}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_counted_wherever_they_are_called_from() {
        let lines = ["engine;main;run;copy 6", "engine;main;copy 2", "swapper;idle_[k] 2"];
        let stacks: HashMap<String, u64> = lines.into_iter().filter_map(parse).collect();
        let profile = profile("paths", 0, &stacks);
        assert_eq!(profile.samples, 10);
        let top: Vec<(&str, u32)> =
            profile.top.iter().map(|(name, share)| (name.as_str(), share.round() as u32)).collect();
        assert_eq!(top, [("copy", 80), ("idle [k]", 20)]);
    }

    #[test]
    fn arms_stand_side_by_side_in_the_flame_graph() {
        let stacks = |line: &str| parse(line).into_iter().collect::<HashMap<String, u64>>();
        let seen = BTreeMap::from([
            ("kernel".to_owned(), stacks("nginx;read_[k] 3")),
            ("paths".to_owned(), stacks("scl-engine;run_path 4")),
        ]);
        let file = std::env::temp_dir().join(format!("scoutline-flame-{}.svg", std::process::id()));
        draw(&seen, &file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        for word in ["<svg", "kernel", "paths", "run_path", "scl-engine"] {
            assert!(text.contains(word), "{word} is missing in:\n{text}");
        }
    }
}
