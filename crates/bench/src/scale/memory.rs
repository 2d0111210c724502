//! What the server host's processes hold: their own memory (PSS, the daemon's included), and what the kernel holds for
//! them, which a memory cgroup of theirs counts: sockets, files, page tables. The clients are not in it.
//!
//! A socket that comes up in an interrupt is charged once it is accepted, from Linux 6.12 on; before, an arm of the
//! kernel's looks smaller than it is.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cleanup;

/// What the kernel holds for a group, in bytes.
const KERNEL: &str = "memory.kmem.usage_in_bytes";

/// A memory cgroup, which goes with this.
#[derive(Debug)]
pub(super) struct Group(PathBuf);

impl Group {
    /// Empty; `None` where this machine has no such controller.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(name: &str) -> Result<Option<Group>> {
        if !Path::new(cleanup::MEMORY_GROUPS).join(KERNEL).exists() {
            return Ok(None);
        }
        let directory = cleanup::make_kernel_directory(cleanup::MEMORY_GROUPS, name)
            .with_context(|| format!("no memory cgroup in {}", cleanup::MEMORY_GROUPS))?;
        Ok(Some(Group(directory)))
    }

    /// Takes in a process with all its threads; what it holds already stays where it was counted.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn take(&self, process: u32) -> Result<()> {
        let file = self.0.join("cgroup.procs");
        fs::write(&file, process.to_string())
            .with_context(|| format!("process {process} into {}", file.display()))
    }

    /// What the kernel holds for it, in bytes.
    ///
    /// # Errors
    /// The controller is gone.
    pub(super) fn kernel_bytes(&self) -> Result<f64> {
        let file = self.0.join(KERNEL);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        text.trim().parse().with_context(|| format!("{} has no number: {text:?}", file.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        cleanup::remove_kernel_directory(&self.0);
    }
}

/// A process's own memory, in bytes, each shared page divided among those who have it.
///
/// # Errors
/// It is gone.
pub(super) fn of_process(process: u32) -> Result<f64> {
    value_of(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// All slabs of the kernel, in bytes: whoever uses the machine has part in them.
///
/// # Errors
/// The kernel does not say.
pub(super) fn slabs() -> Result<f64> {
    value_of("/proc/meminfo", "Slab:")
}

/// A value that a file of the kernel's gives in kB.
fn value_of(file: &str, key: &str) -> Result<f64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib: Option<f64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map(|kib| kib * 1024.0).with_context(|| format!("{file} has no {key}"))
}
