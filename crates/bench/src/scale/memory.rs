//! What the server host's processes hold: their own memory (PSS, the daemon's included), and what the kernel holds for
//! them, which a memory cgroup of theirs counts: sockets, files, page tables. The clients are not in it, nor what waits in
//! sockets' buffers.
//!
//! A socket that comes up in an interrupt is charged once it is accepted (Linux 6.12), in version 1 of cgroups only where
//! the group's TCP limit has been set, to whatever.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::cleanup;

/// What the kernel holds for a group, in bytes.
const KERNEL: &str = "memory.kmem.usage_in_bytes";
/// What sockets' buffers may take.
const TCP_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";

/// A memory cgroup for the servers of each arm. They go with this.
#[derive(Debug)]
pub(super) struct Groups(Vec<PathBuf>);

impl Groups {
    /// Empty ones, as many as there are names.
    ///
    /// # Errors
    /// This machine has no memory controller of version 1, or does not let us use it.
    pub(super) fn new(names: &[&str]) -> Result<Groups> {
        cleanup::install()?;
        let place = cleanup::memory_group().context("no memory controller of version 1")?;
        let mut groups = Groups(Vec::new());
        for name in names {
            let directory = cleanup::make_kernel_directory(&place, name)
                .with_context(|| format!("no memory cgroup in {}", place.display()))?;
            groups.0.push(directory.clone());
            fs::write(directory.join(TCP_LIMIT), "-1")
                .with_context(|| format!("{TCP_LIMIT} cannot be set"))?;
        }
        Ok(groups)
    }

    /// Takes a process with all its threads into a group; what it holds already stays where it was counted.
    ///
    /// # Errors
    /// It is gone, or may not be moved.
    pub(super) fn take(&self, group: usize, process: u32) -> Result<()> {
        let file = self.0[group].join("cgroup.procs");
        fs::write(&file, process.to_string())
            .with_context(|| format!("process {process} into {}", file.display()))
    }

    /// What the kernel holds for a group, in bytes.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn kernel_bytes(&self, group: usize) -> Result<f64> {
        let file = self.0[group].join(KERNEL);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        text.trim().parse().with_context(|| format!("{} has no number: {text:?}", file.display()))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.0.iter().for_each(|directory| cleanup::remove_kernel_directory(directory));
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
