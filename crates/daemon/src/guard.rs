//! Puts the machine back as it was when the daemon ends, in whatever way.
//!
//! A child process holds the list of what to undo. It reads from a pipe whose other end only the daemon has, so it
//! hears of the daemon's end even after `kill -9`. Then it undoes everything, the newest first, and ends. An orderly
//! end goes the same way. What is to be undone is written to the pipe before it is done.
//!
//! Attached eBPF programs, sockets and mappings need no guard: the kernel takes them back with the process.

use std::fmt;
use std::io::{self, BufRead};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use rustix::pipe::PIPE_BUF;
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
            Undo::SegmentLimit { interface, len } => unless_gone(SegmentLimit::set(interface, len)),
            Undo::Steering { interface, queue, cores } => {
                unless_gone(Steering::set(interface, &queue, &cores))
            }
            Undo::Thread { thread, started, policy, priority } => {
                ThreadBefore { thread, started, policy, priority }.restore()
            }
            Undo::Group { directory, enabled } => ThreadGroup { directory, enabled }.dissolve(),
        }
    }
}

/// An interface that is gone has nothing left to undo.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    let is_gone = |error: &io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::NODEV | Errno::NXIO))
    };
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::SegmentLimit { interface, len } => {
                write!(
                    f,
                    "the longest super-segment (gso_ipv4_max_size) of interface {interface} back to {len} bytes"
                )
            }
            Undo::Steering { interface, queue, cores } => {
                write!(f, "the receive steering of {queue} of interface {interface} back to cores {cores}")
            }
            Undo::Thread { thread, policy, priority, .. } => {
                write!(f, "thread {thread} back to scheduling policy {policy}, priority {priority}")
            }
            Undo::Group { directory, .. } => write!(f, "control group {} away", directory.display()),
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

/// Writes one line, whole or not at all, and never waits: the engine may not. Of up to `PIPE_BUF` bytes the kernel promises
/// that (pipe(7)); a longer line (a control group's path has no bound) might be cut, and mixed with another's.
fn write(pipe: impl AsFd, note: &Note) -> io::Result<()> {
    let mut line = serde_json::to_vec(note)?;
    line.push(b'\n');
    if line.len() > PIPE_BUF {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "longer than the guard can be told"));
    }
    let written = rustix::io::write(pipe, &line)?;
    if written < line.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
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

/// What the child does: reads until the daemon is gone, then undoes. A line that says nothing to it (cut off by the daemon's
/// death, say) is passed over: what it was about has not been done.
///
/// # Errors
/// The input cannot be read, or a line not be understood. All else is undone all the same.
pub fn serve(input: impl BufRead) -> io::Result<()> {
    // A service manager signals the whole group of processes: we end when the daemon has.
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&signalled))?;
    }
    let (all, result) = read(input);
    undo_all(all);
    result
}

/// Reads to the end: what is to be undone then, oldest first, and what went wrong first.
fn read(mut input: impl BufRead) -> (Vec<Undo>, io::Result<()>) {
    let mut all: Vec<Undo> = Vec::new();
    let mut result = Ok(());
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(0) => return (all, result),
            Ok(_) => {}
            Err(error) => return (all, Err(error)),
        }
        match serde_json::from_slice(&line) {
            Ok(Note::Undo(undo)) => all.push(undo),
            Ok(Note::Done(undo)) => {
                // In their order: the newest is undone first.
                if let Some(at) = all.iter().rposition(|known| *known == undo) {
                    all.remove(at);
                }
            }
            Err(error) => result = result.and(Err(error.into())),
        }
    }
}

/// The newest first.
fn undo_all(all: Vec<Undo>) {
    for undo in all.into_iter().rev() {
        if let Err(error) = undo.clone().carry_out() {
            let text = error.to_string();
            let plain = text.split(" (os error").next().unwrap_or_default();
            eprintln!("scoutline: warn: cannot put {undo}: {plain}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn thread(thread: u32) -> Undo {
        Undo::Thread { thread, started: 7, policy: 0, priority: 0 }
    }

    fn lines(notes: &[Note]) -> Vec<u8> {
        notes.iter().flat_map(|note| [serde_json::to_vec(note).unwrap(), b"\n".to_vec()].concat()).collect()
    }

    #[test]
    fn a_bad_line_ends_nothing() {
        let first = lines(&[Note::Undo(thread(1)), Note::Undo(thread(2)), Note::Undo(thread(3))]);
        let then = lines(&[Note::Done(thread(1)), Note::Undo(thread(4))]);
        for bad in [&b"{\"undo\":{\"thr\n"[..], b"\xff\xfe\n", b"\n", b"null\n"] {
            let (all, result) = read(&[&first, bad, &then].concat()[..]);
            assert_eq!(all, [2, 3, 4].map(thread));
            assert!(result.is_err(), "it is said");
        }
        let cut = [&first[..], &then[..then.len() - 3]].concat();
        assert_eq!(read(&cut[..]).0, [2, 3].map(thread));
    }

    #[test]
    fn an_interface_that_is_gone_is_no_complaint_and_others_are_in_plain_words() {
        // No index is that high.
        let gone = i32::MAX.cast_unsigned();
        Undo::SegmentLimit { interface: gone, len: 65_536 }.carry_out().unwrap();
        Undo::Steering { interface: gone, queue: "rx-0".into(), cores: "f".into() }.carry_out().unwrap();
        assert!(unless_gone(Err(io::ErrorKind::PermissionDenied.into())).is_err());
        let limit = Undo::SegmentLimit { interface: 2, len: 65_536 };
        assert_eq!(
            limit.to_string(),
            "the longest super-segment (gso_ipv4_max_size) of interface 2 back to 65536 bytes"
        );
    }

    #[test]
    fn a_line_is_written_whole_or_not_at_all() {
        let (mut reader, writer) = io::pipe().unwrap();
        let group = |len| Note::Undo(Undo::Group { directory: "d".repeat(len).into(), enabled: false });
        write(&writer, &group(PIPE_BUF - 100)).unwrap();
        assert_eq!(write(&writer, &group(PIPE_BUF)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        drop(writer);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, lines(&[group(PIPE_BUF - 100)]));
    }
}
