//! The scripts of this crate, and what is known of them.
//!
//! Two lists beside the scripts hold what does not pass, each line `PATH: REASON`. A listed script that passes is a
//! failure, too: so the lists stay true.
//!
//! - `known-failures.txt`: ours does otherwise than the clause says, a defect that is open;
//! - `kernel-differences.txt`: the kernel does otherwise, with the reason.

mod mutant;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::run::{Failure, How, run, setting};
use crate::script::{Event, Script, load};
use crate::stack::Setting;
use crate::stack::kernel::Kernel;
use crate::stack::ours::Ours;

pub use mutant::mutants;

/// Which stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// Ours, in virtual time.
    Ours,
    /// The kernel's.
    Kernel,
}

/// How a script ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// As it says.
    Passed,
    /// Otherwise.
    Failed(String),
    /// It wants what the runner, or the machine, does not have.
    Unsupported(String),
}

/// One script on one stack.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Path below the folder of scripts, or as given.
    pub script: String,
    /// Which stack.
    pub arm: Arm,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Why it was expected not to pass, if it was.
    pub known: Option<String>,
}

impl Verdict {
    /// True when it is as it should be: passed, or known not to.
    pub fn is_expected(&self) -> bool {
        matches!(self.outcome, Outcome::Passed) == self.known.is_none()
    }
}

/// Where this crate's scripts are.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

/// All scripts below a folder (or the one file), in order; `common` holds what others include.
///
/// # Errors
/// When the folder cannot be read.
pub fn scripts(below: &Path) -> std::io::Result<Vec<PathBuf>> {
    if below.is_file() {
        return Ok(vec![below.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(below)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("common") {
            found.extend(scripts(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a script takes at most so many seconds; one that cannot be read does, and says so when it runs.
pub fn is_within(path: &Path, root: &Path, arm: Arm, seconds: u32) -> bool {
    load(path, root).map_or(true, |script| {
        let script = if arm == Arm::Kernel { for_kernel(&script).unwrap_or(script) } else { script };
        script.duration() <= i64::from(seconds) * 1_000_000
    })
}

/// Whether a script is for ours alone, see [`for_kernel`].
pub fn is_ours_alone(path: &Path, root: &Path) -> bool {
    load(path, root).is_ok_and(|script| for_kernel(&script).is_none())
}

/// A script as it runs against the kernel; `None`: it is for ours alone.
///
/// Over IPv6 the kernel says what it has to say of itself (groups, duplicate addresses) at moments that it draws. So its
/// addresses are ready from the beginning, what the script says of a start is left out, and what is about a start, an
/// address made from a router's word, or groups is asked of ours alone.
pub fn for_kernel(script: &Script) -> Option<Script> {
    const READY: &str = "common/ip6_ready.pkt";
    let stands_in = |event: &Event, file: &str| event.place.file.ends_with(file);
    if script.option("ip6").is_none() {
        return Some(script.clone());
    }
    let is_ready = script.events.iter().any(|event| stands_in(event, READY));
    if !is_ready || script.events.iter().any(|event| stands_in_folder(event, "mld")) {
        return None;
    }
    let mut script = script.clone();
    script.events.retain(|event| !stands_in(event, READY) && !stands_in(event, "common/ip6_starting.pkt"));
    Some(script)
}

fn stands_in_folder(event: &Event, folder: &str) -> bool {
    Path::new(&*event.place.file).parent().is_some_and(|parent| parent.ends_with(folder))
}

/// The list of what does not pass on a stack.
///
/// # Errors
/// When a line has no reason.
pub fn known(arm: Arm, root: &Path) -> Result<BTreeMap<String, String>, String> {
    let name = match arm {
        Arm::Ours => "known-failures.txt",
        Arm::Kernel => "kernel-differences.txt",
    };
    let text = std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(": ") {
            Some((path, reason)) => Ok((path.trim().to_owned(), reason.trim().to_owned())),
            None => Err(format!("{name}: no reason in `{line}`")),
        })
        .collect()
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// On which stack.
    pub arm: Arm,
    /// And how.
    pub how: How,
    /// It is known to do otherwise there: a late machine is no excuse for what comes late.
    pub differs: bool,
}

/// Runs one script.
pub fn run_one(path: &Path, root: &Path, choice: Choice) -> Outcome {
    let script = match load(path, root) {
        Ok(script) => script,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    run_script(&script, choice)
}

/// Runs a script that was read.
pub fn run_script(script: &Script, choice: Choice) -> Outcome {
    let allows_for_load = !choice.differs;
    let setting = Setting { allows_for_load, ..setting(script, choice.how) };
    let result = match choice.arm {
        Arm::Ours => {
            let run = || run(script, &mut Ours::new(&setting), choice.how);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(result) => result,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                    return Outcome::Failed(format!("panic: {}", text.unwrap_or_default()));
                }
            }
        }
        Arm::Kernel => match (for_kernel(script), Kernel::new(&setting)) {
            (None, _) => return Outcome::Unsupported("for ours alone".into()),
            (Some(script), Ok(mut kernel)) => run(&script, &mut kernel, choice.how),
            (_, Err(error)) => return Outcome::Unsupported(format!("no namespace: {error}")),
        },
    };
    match result {
        Ok(()) => Outcome::Passed,
        Err(failure @ Failure::Differs(..)) => Outcome::Failed(failure.to_string()),
        Err(failure @ Failure::Unsupported(..)) => Outcome::Unsupported(failure.to_string()),
    }
}

/// Runs scripts on so many threads. `done` hears of each as it ends.
pub fn run_all(
    paths: &[PathBuf],
    root: &Path,
    choice: Choice,
    threads: usize,
    done: &(dyn Fn(&Verdict) + Sync),
) -> Vec<Verdict> {
    let known = known(choice.arm, root).unwrap_or_default();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, paths.len().max(1)) {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
                    let known = known.get(&name).cloned();
                    let outcome = run_one(path, root, Choice { differs: known.is_some(), ..choice });
                    let verdict = Verdict { script: name, arm: choice.arm, outcome, known };
                    done(&verdict);
                    verdicts.lock().unwrap_or_else(PoisonError::into_inner).push(verdict);
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    verdicts.sort_by(|one, other| one.script.cmp(&other.script));
    verdicts
}
