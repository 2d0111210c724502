//! Puts the machine back as it was when the daemon ends, in whatever way.
//!
//! A child process holds the list of what to undo. It reads from a pipe whose other end only the daemon has, so it
//! hears of the daemon's end even after `kill -9`. Then it undoes everything, the newest first, and ends. An orderly
//! end goes the same way. What is to be undone is written to the pipe before it is done.
//!
//! Attached eBPF programs, sockets and mappings need no guard: the kernel takes them back with the process.

use std::io::{self, BufRead};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use scoutline_device::{SegmentLimit, Steering};
use scoutline_engine::{ThreadBefore, ThreadGroup, UndoLog};

/// The subcommand of `scoutline` that is the guard.
pub const COMMAND: &str = "guard";

/// One thing to put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Undo {
    /// The longest super-segment of the interface with this index.
    SegmentLimit {
        /// Which.
        interface: u32,
        /// What it was, in bytes.
        len: u32,
    },
    /// The cores to which one receive queue of the interface with this index hands packets.
    Steering {
        /// Which interface.
        interface: u32,
        /// Which queue.
        queue: String,
        /// What they were.
        cores: String,
    },
    /// A thread's scheduling.
    Thread {
        /// Which.
        thread: u32,
        /// When it started, in clock ticks since boot.
        started: u64,
        /// What it had.
        policy: i32,
        /// Its real-time priority.
        priority: i32,
    },
    /// A control group that was made for threads.
    Group {
        /// Its directory.
        directory: PathBuf,
        /// Its parent was given the controller for it.
        enabled: bool,
    },
}

/// A line of the pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    /// To be undone at the end.
    Undo(Undo),
    /// It has been undone.
    Done(Undo),
}

impl Undo {
    fn carry_out(self) -> io::Result<()> {
        match self {
            // It may be gone, or another's by now; then the kernel says so.
            Undo::SegmentLimit { interface, len } => SegmentLimit::set(interface, len),
            Undo::Steering { interface, queue, cores } => Steering::set(interface, &queue, &cores),
            Undo::Thread { thread, started, policy, priority } => {
                ThreadBefore { thread, started, policy, priority }.restore()
            }
            Undo::Group { directory, enabled } => ThreadGroup { directory, enabled }.dissolve(),
        }
    }
}

/// Why there is no guard.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the process that puts the machine back as it was ({0}); so nothing is changed that it would have to"
)]
pub(crate) struct GuardError(#[from] io::Error);

/// The daemon's end. Dropping it has everything undone, and waits for that.
pub(crate) struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
    /// What the daemon itself has noted, should the child be gone before us.
    noted: Vec<Undo>,
}

impl Guard {
    /// Starts the child: this very program, in a process group of its own, so that what ends the daemon's group does
    /// not end it.
    pub(crate) fn start() -> Result<Guard, GuardError> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("scoutline-guard")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        if let Some(pipe) = &pipe {
            rustix::io::ioctl_fionbio(pipe, true).map_err(io::Error::from)?;
        }
        Ok(Guard { child, pipe, noted: Vec::new() })
    }

    /// Notes what is to be undone. Only after this may it be done.
    pub(crate) fn note(&mut self, undo: Undo) -> io::Result<()> {
        self.noted.push(undo.clone());
        self.pipe.as_ref().map_or(Ok(()), |pipe| write(pipe, &Note::Undo(undo)))
    }

    /// It was not done after all.
    pub(crate) fn take_back(&mut self, undo: Undo) -> io::Result<()> {
        self.noted.retain(|noted| *noted != undo);
        self.pipe.as_ref().map_or(Ok(()), |pipe| write(pipe, &Note::Done(undo)))
    }

    /// For the engine, to note what it does with threads. It must be gone before the guard is dropped.
    pub(crate) fn log(&self) -> io::Result<Box<dyn UndoLog>> {
        let pipe = self.pipe.as_ref().ok_or(io::ErrorKind::BrokenPipe)?.as_fd().try_clone_to_owned()?;
        Ok(Box::new(ThreadLog(pipe)))
    }
}

/// The engine's way to the guard.
struct ThreadLog(OwnedFd);

impl UndoLog for ThreadLog {
    fn note(&self, before: &ThreadBefore) -> io::Result<()> {
        write(&self.0, &Note::Undo(before.into()))
    }

    fn forget(&self, before: &ThreadBefore) {
        // A note too many only has the thread given what it has already.
        let _ = write(&self.0, &Note::Done(before.into()));
    }

    fn note_group(&self, group: &ThreadGroup) -> io::Result<()> {
        write(&self.0, &Note::Undo(group.into()))
    }

    fn forget_group(&self, group: &ThreadGroup) {
        let _ = write(&self.0, &Note::Done(group.into()));
    }
}

impl From<&ThreadGroup> for Undo {
    fn from(group: &ThreadGroup) -> Undo {
        let ThreadGroup { directory, enabled } = group.clone();
        Undo::Group { directory, enabled }
    }
}

impl From<&ThreadBefore> for Undo {
    fn from(before: &ThreadBefore) -> Undo {
        let ThreadBefore { thread, started, policy, priority } = *before;
        Undo::Thread { thread, started, policy, priority }
    }
}

/// Writes one line, whole or not at all (pipe(7), PIPE_BUF), and never waits: the engine may not.
fn write(pipe: impl AsFd, note: &Note) -> io::Result<()> {
    let mut line = serde_json::to_vec(note)?;
    line.push(b'\n');
    rustix::io::write(pipe, &line)?;
    Ok(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pipe = None; // end of file: the child undoes all and ends
        if !self.child.wait().is_ok_and(|status| status.success()) {
            log::warn!("the guard process has died: undoing by ourselves");
            undo_all(std::mem::take(&mut self.noted));
        }
    }
}

/// What the child does: reads until the daemon is gone, then undoes.
///
/// # Errors
/// The input cannot be read. What came before is undone all the same.
pub fn serve(input: impl BufRead) -> io::Result<()> {
    // A service manager signals the whole group of processes: we end when the daemon has.
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&signalled))?;
    }
    let mut all: Vec<Undo> = Vec::new();
    let mut result = Ok(());
    for line in input.lines() {
        match line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::from)) {
            Ok(Note::Undo(undo)) => all.push(undo),
            Ok(Note::Done(undo)) => {
                if let Some(at) = all.iter().rposition(|known| *known == undo) {
                    all.swap_remove(at);
                }
            }
            // Cut off by the daemon's death: it was not done yet.
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    undo_all(all);
    result
}

/// The newest first.
fn undo_all(all: Vec<Undo>) {
    for undo in all.into_iter().rev() {
        if let Err(error) = undo.clone().carry_out() {
            eprintln!("scoutline: warn: cannot undo {undo:?}: {error}");
        }
    }
}
