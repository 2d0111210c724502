//! Instructions for each operation, counted by valgrind (`--callgrind`): a figure that no neighbour on the machine and no
//! other day changes, so that a few instructions more on the path of every packet show.
//!
//! ```text
//!   this process ── valgrind --tool=callgrind --toggle-collect=FUNCTION scoutline bench micro --only CASE ──► its file
//! ```
//! One run for each case of `micro` that is not a mere copy, counting only inside the function that repeats the operation.
//! It says nothing of what waits: a cache miss is an instruction like any other.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::report::{Better, Report, Row};
use crate::{Options, cleanup, micro};

/// Runs one case after another under valgrind.
///
/// # Errors
/// valgrind is missing, or cannot run the program.
pub(crate) fn count(options: &Options) -> Result<Report> {
    let valgrind = "valgrind";
    require(valgrind)?;
    let mut report = Report::new("micro");
    report.method(
        "counting",
        "instructions inside the function that repeats the operation, by valgrind".to_owned(),
    );
    for case in micro::CASES.iter().filter(|case| options.wants(case.text)) {
        if options.progress {
            eprintln!("{} …", case.text);
        }
        let file = OutFile::new();
        let mut command = Command::new(valgrind);
        command.args(["-q", "--tool=callgrind"]);
        command.arg(format!("--callgrind-out-file={}", file.0.display()));
        // The pattern is matched against the whole of the demangled name.
        command.arg(format!("--toggle-collect=*{}*", case.function));
        command.arg(&options.scoutline).args(["bench", "micro", "--rounds", "1", "--json"]);
        command.args(["--only", case.text]);
        let total = instructions(&mut command, &file.0)?;
        ensure!(total > 0, "valgrind saw no call of `{}`: is this program stripped?", case.function);
        let each = total as f64 / f64::from(case.operations);
        report.rows.push(Row::new(case.text, ("instructions", "each", Better::Lower), &[each], None));
    }
    ensure!(
        !report.rows.is_empty(),
        "no case of `micro` that can be counted contains {:?}",
        options.only.as_deref().unwrap_or_default()
    );
    Ok(report)
}

/// Fails with the remedy where the tool is not there.
fn require(tool: &str) -> Result<()> {
    match Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot run {tool}"))
        }
        _ => bail!("`{tool}` is missing, or does not run here; install it with: apt-get install valgrind"),
    }
}

/// Runs a command under callgrind, which writes to `file`: the instructions that it counted.
fn instructions(command: &mut Command, file: &Path) -> Result<u64> {
    let done = command.stdin(Stdio::null()).output().context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the case failed under valgrind ({}): {}", done.status, said.trim());
    let text = fs::read_to_string(file).context("callgrind has written nothing")?;
    total(&text).with_context(|| format!("{} has no totals", file.display()))
}

/// What a file of callgrind's says in all (its format's line `totals:`, the first event being instructions).
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("totals:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Where callgrind writes to; it goes with this.
struct OutFile(PathBuf);

impl OutFile {
    fn new() -> OutFile {
        OutFile(std::env::temp_dir().join(format!("{}{}-callgrind", cleanup::PREFIX, std::process::id())))
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{OutFile, instructions, require, total};

    #[test]
    fn a_missing_tool_comes_with_the_remedy() {
        let error = require("scoutline-has-no-such-tool").unwrap_err().to_string();
        assert!(error.contains("apt-get install valgrind"), "{error}");
    }

    #[test]
    fn totals_are_the_first_event() {
        let text = "version: 1\nevents: Ir\nfn=(1) main\n12 40\ntotals: 1234 9\n";
        assert_eq!((total(text), total("events: Ir\n")), (Some(1234), None));
    }

    #[test]
    fn valgrind_counts_a_real_program() {
        require("valgrind").expect("scripts/deps installs it");
        let file = OutFile::new();
        let mut command = Command::new("valgrind");
        command.args([
            "-q",
            "--tool=callgrind",
            &format!("--callgrind-out-file={}", file.0.display()),
            "true",
        ]);
        // The dynamic linker alone takes a hundred thousand.
        assert!(instructions(&mut command, &file.0).unwrap() > 10_000);
    }
}
