//! What a run has made on the machine, so that all of it goes however the run ends.
//!
//! Three ways out, one list: guards remove their own things when they are dropped; on SIGINT, SIGTERM
//! and SIGHUP a thread removes everything on the list and ends the process; and what a run killed by
//! SIGKILL left behind is found by its name (`scl-<pid>-…`, with no such process any more) and removed
//! by the next run.
//!
//! Whatever adds to the machine does so inside [`with`], under the list's lock. The signal thread takes
//! that lock and never gives it back, so nothing can be made after it has begun to remove.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use anyhow::{Context as _, Result, anyhow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::sys;

/// How the names of all our namespaces and directories begin.
pub(crate) const PREFIX: &str = "scl-";

/// Where `ip netns` keeps its names.
pub(crate) const NAMESPACES: &str = "/run/netns";

/// Where the kernel's tracing file system is mounted.
const TRACEFS: &str = "/sys/kernel/tracing";

/// Where the kernel keeps trace buffers; each directory is one.
pub(crate) const TRACES: &str = "/sys/kernel/tracing/instances";

/// Where the memory controller has a hierarchy of its own (version 1).
const MEMORY_GROUPS: &str = "/sys/fs/cgroup/memory";

/// How long processes that were killed may take to go.
const DYING: Duration = Duration::from_secs(3);

/// What exists now.
#[derive(Default)]
pub(crate) struct Registry {
    /// Process groups that we started.
    pub(crate) groups: Vec<i32>,
    /// Named network namespaces.
    pub(crate) namespaces: Vec<String>,
    /// Temporary directories.
    pub(crate) directories: Vec<PathBuf>,
    /// Directories that are the kernel's, each a thing of its own: trace buffers, cgroups.
    kernel_directories: Vec<PathBuf>,
    /// The tracing file system is mounted by us.
    pub(crate) tracefs: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    groups: Vec::new(),
    namespaces: Vec::new(),
    directories: Vec::new(),
    kernel_directories: Vec::new(),
    tracefs: false,
});

/// Runs `change` under the list's lock.
pub(crate) fn with<T>(change: impl FnOnce(&mut Registry) -> T) -> T {
    // A panic inside leaves a list that is still right to remove from.
    change(&mut REGISTRY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sees to it that a signal removes everything, and removes what dead runs have left. Done once.
pub(crate) fn install() -> Result<()> {
    static DONE: OnceLock<Result<(), String>> = OnceLock::new();
    DONE.get_or_init(|| {
        sweep();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| error.to_string())?;
        let wait = move || {
            if let Some(signal) = signals.forever().next() {
                with(|registry| {
                    eprintln!("\nstopped by a signal: removing hosts and servers");
                    remove_all(registry);
                    process::exit(128 + signal);
                });
            }
        };
        thread::Builder::new().name("cleanup".into()).spawn(wait).map_err(|error| error.to_string())?;
        Ok(())
    })
    .clone()
    .map_err(|error| anyhow!("cannot catch signals: {error}"))
}

/// Whether this process group is one that we started.
pub(crate) fn started(group: u32) -> bool {
    with(|registry| registry.groups.contains(&(group as i32)))
}

fn remove_all(registry: &mut Registry) {
    for group in registry.groups.drain(..) {
        sys::signal_group(group, libc::SIGTERM);
        sys::signal_group(group, libc::SIGKILL);
    }
    for name in registry.namespaces.drain(..) {
        remove_namespace(&name);
    }
    for directory in registry.directories.drain(..) {
        remove_directory(&directory);
    }
    for directory in registry.kernel_directories.drain(..) {
        end_kernel_directory(&directory);
    }
    unmount_tracefs(registry);
}

/// Mounts the tracing file system at its place, where nobody has. Without the privilege it is not there afterwards, which
/// who wants to trace is told.
pub(crate) fn mount_tracefs(registry: &mut Registry) {
    if !Path::new(TRACES).exists() {
        let status = Command::new("mount").args(["-t", "tracefs", "tracefs", TRACEFS]).output();
        registry.tracefs = status.is_ok_and(|output| output.status.success());
    }
}

/// Undoes that, if it was us.
pub(crate) fn unmount_tracefs(registry: &mut Registry) {
    if std::mem::take(&mut registry.tracefs) {
        let _ = Command::new("umount").args(["--lazy", TRACEFS]).output();
    }
}

/// Ends what still runs in a namespace and removes its name. Its devices go with it.
pub(crate) fn remove_namespace(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        let pids = String::from_utf8_lossy(&output.stdout);
        for pid in pids.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
            if pid > 1 && pid != process::id() as i32 {
                sys::signal_process(pid, libc::SIGKILL);
            }
        }
    }
    if Path::new(NAMESPACES).join(name).exists() {
        let result = ip(&["netns", "delete", name]);
        if let Err(error) = result {
            eprintln!("warning: {error:#}; remove it with: ip netns delete {name}");
        }
    }
}

/// Removes a directory of ours and all in it.
pub(crate) fn remove_directory(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory)
        && error.kind() != ErrorKind::NotFound
    {
        eprintln!("warning: cannot remove {}: {error}", directory.display());
    }
}

/// Our own cgroup in that hierarchy, where there is one; each directory in it is one below.
pub(crate) fn memory_group() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.split_once(":memory:"))?.1;
    let own = Path::new(MEMORY_GROUPS).join(path.trim_start_matches('/'));
    // In a container the path may be the host's.
    [own, MEMORY_GROUPS.into()].into_iter().find(|place| place.join("cgroup.procs").exists())
}

/// Makes a trace buffer or a cgroup in `place`, as they are made: a directory, named `scl-<pid>-<name>`.
///
/// # Errors
/// The kernel's.
pub(crate) fn make_kernel_directory(place: &Path, name: &str) -> std::io::Result<PathBuf> {
    let directory = place.join(format!("{PREFIX}{}-{name}", process::id()));
    with(|registry| {
        fs::create_dir(&directory)?;
        registry.kernel_directories.push(directory.clone());
        Ok(directory)
    })
}

/// Removes what [`make_kernel_directory`] has made. Twice does no harm.
pub(crate) fn remove_kernel_directory(directory: &Path) {
    end_kernel_directory(directory);
    with(|registry| registry.kernel_directories.retain(|other| other != directory));
}

/// Removes a trace buffer or a cgroup. A cgroup is busy until the last of its processes, killed a moment ago, has given back what it had.
fn end_kernel_directory(directory: &Path) {
    let deadline = Instant::now() + DYING;
    loop {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return eprintln!("warning: cannot remove {}: {error}", directory.display());
            }
            _ => return,
        }
    }
}

/// Removes what runs that no longer exist have left behind.
fn sweep() {
    for name in stale_names(Path::new(NAMESPACES)) {
        eprintln!("removing host {name}, left by a run that was killed");
        remove_namespace(&name);
    }
    let temporary = std::env::temp_dir();
    for name in stale_names(&temporary) {
        remove_directory(&temporary.join(name));
    }
    for place in [Some(PathBuf::from(TRACES)), memory_group()].into_iter().flatten() {
        for directory in stale_names(&place).into_iter().map(|name| place.join(name)) {
            let left = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines().filter_map(|pid| pid.parse().ok()) {
                sys::signal_process(pid, libc::SIGKILL);
            }
            end_kernel_directory(&directory);
        }
    }
}

fn stale_names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())).collect()
}

/// The process whose name stands in `scl-<pid>-…`.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// Runs `ip` with these arguments; its error message becomes ours.
pub(crate) fn ip(arguments: &[&str]) -> Result<()> {
    iproute("ip", arguments)
}

/// Runs `tc` with these arguments; its error message becomes ours.
pub(crate) fn tc(arguments: &[&str]) -> Result<()> {
    iproute("tc", arguments)
}

fn iproute(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            anyhow!("the program `{program}` is missing; install it with: apt-get install iproute2")
        } else {
            anyhow!("cannot run {program}: {error}")
        }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(anyhow!("{}", message.trim())).with_context(|| format!("{program} {}", arguments.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn owner_is_read_from_the_name_alone() {
        assert_eq!(owner("scl-17-0-client"), Some(17));
        assert_eq!(owner("scl-17"), None);
        assert_eq!(owner("scl-x-0"), None);
        assert_eq!(owner("other-17-0"), None);
    }
}
