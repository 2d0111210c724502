//! What the control thread tells the engine.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use scoutline_abi::Region;
use scoutline_abi::api::{Answer, Request};

use crate::file::FileMap;
use crate::settings::{ClassSettings, LiveSettings, PermissionSettings, ProgramFacts};
use crate::several::Crossing;

/// Names a region of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// One command. The sender rings the engine's doorbell afterwards.
pub enum Command {
    /// A program attached.
    AddRegion {
        /// Chosen by the control thread, never used twice.
        id: RegionId,
        /// Its shared memory.
        region: Arc<Region>,
        /// What is known of it, for people and for the policy.
        program: ProgramFacts,
        /// Process id of its first process.
        pid: u32,
        /// By which its sockets are known when they are passed: out of random bits. `None`: the engine draws one.
        key: Option<u64>,
        /// Read ends of the pipes that its processes write to when an engine sleeps, one for each engine; each engine is
        /// given its own. Pipes of its own: no program can take another's ring away, or change how our end behaves.
        bells: Vec<OwnedFd>,
    },
    /// All of its processes are gone: its sockets are aborted and its memory returns.
    RemoveRegion(RegionId),
    /// A poll set came into use.
    AddSet {
        /// Whose.
        region: RegionId,
        /// Its number.
        set: u32,
        /// Write end of its pipe, non-blocking.
        pipe: Arc<OwnedFd>,
        /// The process that asked for it, as the kernel says; 0: not known.
        process: u32,
    },
    /// A poll set is given back.
    RemoveSet {
        /// Whose.
        region: RegionId,
        /// Its number.
        set: u32,
    },
    /// Whoever sleeps on a poll set looks again.
    WakeSet {
        /// Whose.
        region: RegionId,
        /// Its number.
        set: u32,
    },
    /// A file that the program may send from.
    AddFile {
        /// Whose.
        region: RegionId,
        /// Its number.
        file: u32,
        /// Its pages.
        map: Arc<FileMap>,
    },
    /// A process is gone: the engine releases what its record says it held.
    ProcessGone {
        /// Of which program.
        region: RegionId,
        /// Its record.
        process: u32,
    },
    /// These classes take the place of all, at once for what comes; what exists is classified again a few paths at
    /// a time. [`Answer::Done`] follows when all of it is.
    SetClasses(Vec<ClassSettings>, Sender<Answer>),
    /// These permissions take the place of all, for what is asked from now on; for what was asked, with the next
    /// [`Command::SetClasses`].
    SetPermissions(Vec<PermissionSettings>),
    /// These settings take the place of those that there are; [`Answer::Done`] follows when every path and thread is as
    /// they say.
    SetLive(LiveSettings, Sender<Answer>),
    /// What another engine says.
    Crossing(Crossing),
    /// A question of the JSON API.
    Query(Request, Sender<Answer>),
    /// Reset all connections, give everything back, end the loop.
    Stop,
}
