//! The doorbells: one eventfd that the control thread and the sentinel ring, and a pipe for each program.
//!
//! A program has only the write end of its pipe. What it does to that end changes nothing at ours, and it cannot read
//! what others wrote.

use std::collections::BTreeMap;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::command::RegionId;
use crate::sys::{self, Sleeper};

/// All doorbells of an engine.
pub(crate) struct Bells {
    /// The devices' bells, and `inner`.
    all: Sleeper,
    /// Our own and the programs'.
    inner: Sleeper,
    /// Open for as long as it is heard.
    _own: OwnedFd,
    programs: BTreeMap<RegionId, OwnedFd>,
    /// Those that had rung when it was looked at last.
    rung: Vec<RegionId>,
}

impl Bells {
    /// Only the engine's own so far.
    pub(crate) fn new(own: OwnedFd) -> Result<Bells> {
        let (all, inner) = (Sleeper::new()?, Sleeper::new()?);
        inner.watch(own.as_raw_fd(), false)?;
        all.watch(inner.fd(), false)?;
        Ok(Bells { all, inner, _own: own, programs: BTreeMap::new(), rung: Vec::new() })
    }

    /// Readable while any of them rings.
    pub(crate) fn fd(&self) -> RawFd {
        self.all.fd()
    }

    /// Readable while any of them rings but those of the devices.
    pub(crate) fn without_devices(&self) -> RawFd {
        self.inner.fd()
    }

    /// A device's bell. The device takes what rang.
    pub(crate) fn watch(&mut self, bell: RawFd) -> Result<()> {
        self.all.watch(bell, false)
    }

    /// A program's bell.
    pub(crate) fn add(&mut self, region: RegionId, bell: OwnedFd) {
        if let Err(error) = self.inner.watch(bell.as_raw_fd(), false) {
            // Without it the program is looked at whenever the engine wakes for something else.
            eprintln!("scoutline: a program's doorbell cannot be watched: {error}");
        }
        self.programs.insert(region, bell);
    }

    /// The program is gone.
    pub(crate) fn remove(&mut self, region: RegionId) {
        // Closing the last descriptor takes it out of the epoll set.
        self.programs.remove(&region);
    }

    /// Takes what was rung, and says whether a program rang. Never waits: our ends are non-blocking, and nobody else has
    /// them.
    pub(crate) fn silence(&mut self) -> bool {
        self.rung.clear();
        for fd in self.inner.ready() {
            self.rung
                .extend(self.programs.iter().find(|(_, bell)| bell.as_raw_fd() == fd).map(|(&id, _)| id));
            if !sys::drain(fd) {
                // End of file: every process of the program is gone; the control thread says so soon.
                self.programs.retain(|_, bell| bell.as_raw_fd() != fd);
            }
        }
        !self.rung.is_empty()
    }

    /// The programs that had rung when they were silenced last.
    pub(crate) fn rung(&self) -> &[RegionId] {
        &self.rung
    }
}
