//! A child process that ends when its guard is dropped, with all that it started.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;

use crate::{cleanup, sys};

/// How long a process may take to end after SIGTERM before SIGKILL follows.
const GRACE: Duration = Duration::from_secs(3);

/// A running program of ours: a process group, its standard output line by line, its log.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    /// A line that was looked at and not taken.
    kept: Option<String>,
    log: PathBuf,
}

/// Where a program runs.
#[derive(Debug, Default)]
pub struct Place {
    /// The network namespace; `None` for our own.
    pub namespace: Option<OwnedFd>,
    /// The one core it may use; `None` for all.
    pub core: Option<usize>,
}

impl Process {
    /// Waits until it says that it is ready.
    pub(crate) fn await_ready(&mut self, deadline: Instant) -> Result<()> {
        while let Some(line) = self.line(deadline)? {
            if line == "ready" {
                return Ok(());
            }
        }
        bail!("it ended before it was ready{}", self.log_tail())
    }

    /// Its report: the last line that it prints. It ends well.
    pub(crate) fn report<T: DeserializeOwned>(&mut self, deadline: Instant) -> Result<T> {
        let mut last = None;
        while let Some(line) = self.line(deadline)? {
            last = Some(line);
        }
        self.finish(deadline)?;
        let last = last.with_context(|| format!("no report{}", self.log_tail()))?;
        serde_json::from_str(&last).with_context(|| format!("not a report: {last}"))
    }

    /// Starts `program` with `arguments` at `place`; its standard error goes to the file `log`.
    pub fn spawn(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        place: Place,
        log: &Path,
    ) -> Result<Process> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        sys::prepare(&mut command, place.namespace, place.core);
        let mut child = cleanup::with(|registry| {
            let child = command.spawn();
            registry.groups.extend(child.as_ref().ok().map(|child| child.id() as i32));
            child
        })
        .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Reads to the end, so that the program never blocks on a full pipe.
            let read = move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            };
            thread::Builder::new().name(format!("{name} output")).spawn(read)?;
        }
        Ok(Process { name: name.to_owned(), child, lines, kept: None, log: log.to_owned() })
    }

    /// The process id, which is also that of its group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its standard output; `None` once it has closed it.
    pub fn line(&mut self, deadline: Instant) -> Result<Option<String>> {
        if let Some(line) = self.kept.take() {
            return Ok(Some(line));
        }
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("{} says nothing in time{}", self.name, self.log_tail()),
        }
    }

    /// What `parse` makes of the next line, if one is there and `parse` takes it; else it stays.
    pub fn line_if<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let line = self.kept.take().or_else(|| self.lines.try_recv().ok())?;
        let parsed = parse(&line);
        if parsed.is_none() {
            self.kept = Some(line);
        }
        parsed
    }

    /// An error with the end of its log when it no longer runs.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended early ({status}){}", self.name, self.log_tail()),
        }
    }

    /// Sends a signal to it and all that it started.
    pub fn signal(&self, signal: i32) {
        sys::signal_group(self.child.id() as i32, signal);
    }

    /// Ends it and all that it started by SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Waits until it ends by itself.
    pub fn finish(&mut self, deadline: Instant) -> Result<()> {
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("{} failed ({status}){}", self.name, self.log_tail());
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("{} does not end in time{}", self.name, self.log_tail())
    }

    /// The last lines of its log, to stand in an error message.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(8)..].join("\n  ");
        if tail.is_empty() { String::new() } else { format!("; it wrote:\n  {tail}") }
    }

    fn stop(&mut self) {
        let group = self.child.id() as i32;
        let asked = Instant::now();
        sys::signal_group(group, libc::SIGTERM);
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(2));
        }
        // The leader may be gone before its workers: give those what is left of the grace.
        while sys::signal_group(group, 0) && asked.elapsed() < GRACE {
            let _ = self.child.try_wait();
            thread::sleep(Duration::from_millis(2));
        }
        sys::signal_group(group, libc::SIGKILL);
        let _ = self.child.wait();
        cleanup::with(|registry| registry.groups.retain(|other| *other != group));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}
