//! Control groups for the threads of `wfq` classes: Linux divides the processor among them by the classes' weights.
//!
//! ```text
//!   P                        where the thread was
//!   ├── other threads        as before
//!   └── scoutline-wfq-PID-CLASS  v1: cpu.shares = weight · 1024 / 100;  v2: cpu.weight = weight
//!       └── the thread       v1: tasks;  v2: cgroup.threads, the group is `threaded`
//! ```
//! A group is made in the group where the thread was. So whatever limits that has go on holding, a thread's home is
//! always the parent of where it is (which is all that is needed to bring it back, whoever does), and it is the one
//! place to which version 2 lets single threads go. Weights therefore compare classes within one parent; what parents
//! get of each other is what the administrator has said of them. A class as a whole weighs as much as so many hundredths
//! of one ordinary thread.
//!
//! The move of one thread takes up to 20 ms (measured; a grace period of all processors), so a thread of its own does
//! it, and the engine only says what it wants, [`MAX_WISHES`] things ahead at most. By the time that it comes to one the
//! thread may have ended and its id be another's: so threads are known by their start, too. What is made is noted with the
//! [`UndoLog`] first.
//!
//! Kernel documents: admin-guide/cgroup-v1/cgroups.rst and scheduler/sched-design-CFS.rst (version 1),
//! admin-guide/cgroup-v2.rst "Threads" and "CPU" (version 2).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use scoutline_sched::Weight;

use super::{ThreadBefore, UndoLog};
use crate::sys;

/// Every group of ours is called so.
const PREFIX: &str = "scoutline-wfq-";
/// Entries that may wait for the worker. Who has entered may always leave: as many again, and one for each thread in the
/// books.
const MAX_WISHES: usize = 1024;
/// Members that are there when a group is removed may start others meanwhile.
const ROUNDS: usize = 64;

/// A control group that has been made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThreadGroup {
    /// Its directory.
    pub directory: PathBuf,
    /// The controller was switched on for it in its parent (version 2).
    pub enabled: bool,
}

impl ThreadGroup {
    /// Whoever is in it goes back to its parent, and the group goes.
    ///
    /// # Errors
    /// As the kernel says; a group that is gone is none.
    pub fn dissolve(&self) -> io::Result<()> {
        let Some(home) = self.directory.parent() else { return Ok(()) };
        let mut result = Ok(());
        for _ in 0..ROUNDS {
            for file in ["tasks", "cgroup.threads"] {
                // One of them is there, by version.
                for thread in fs::read_to_string(self.directory.join(file)).unwrap_or_default().lines() {
                    // It may have ended.
                    let _ = fs::write(home.join(file), thread);
                }
            }
            result = match fs::remove_dir(&self.directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
            if result.is_ok() {
                break;
            }
        }
        let ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
        if self.enabled
            && !fs::read_dir(home).is_ok_and(|mut below| below.any(|it| it.is_ok_and(|it| ours(&it))))
        {
            // Others may need it by now; then the kernel says so.
            let _ = fs::write(self.subtree(), "-cpu");
        }
        result
    }

    fn subtree(&self) -> PathBuf {
        self.directory.with_file_name("cgroup.subtree_control")
    }
}

/// Which version has the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The hierarchy that divides the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    mount: PathBuf,
    /// Which group is mounted there.
    root: String,
}

impl Hierarchy {
    /// That of this machine.
    fn here() -> Option<Hierarchy> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Hierarchy::find(&mounts, |mount| {
            let controllers = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|name| name == "cpu")
        })
    }

    /// As `/proc/self/mountinfo` (`proc(5)`) has it; version 2 if the controller is there.
    fn find(mounts: &str, has_controller: impl Fn(&Path) -> bool) -> Option<Hierarchy> {
        let one = mounts.lines().find_map(|line| {
            let (hierarchy, kind, options) = parse(line)?;
            (kind == "cgroup" && options.split(',').any(|option| option == "cpu")).then_some(hierarchy)
        });
        let two = || {
            mounts.lines().find_map(|line| {
                let (hierarchy, kind, _) = parse(line)?;
                let two = Hierarchy { version: Version::Two, ..hierarchy };
                (kind == "cgroup2" && has_controller(&two.mount)).then_some(two)
            })
        };
        one.or_else(two)
    }

    /// The group of a thread, from its `/proc/ID/cgroup`; one of ours is left for its parent.
    fn home(&self, groups: &str) -> Option<PathBuf> {
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let ours = match self.version {
                Version::One => controllers.split(',').any(|name| name == "cpu"),
                Version::Two => line.starts_with("0::"),
            };
            ours.then_some(path)
        })?;
        let below = path.strip_prefix(self.root.trim_end_matches('/'))?.trim_start_matches('/');
        // What is outside of our view of the hierarchy cannot be named.
        if below.split('/').any(|part| part == "..") {
            return None;
        }
        let directory = self.mount.join(below);
        match below.rsplit('/').next() {
            Some(last) if last.starts_with(PREFIX) => directory.parent().map(Path::to_owned),
            _ => Some(directory),
        }
    }

    fn members(&self) -> &'static str {
        match self.version {
            Version::One => "tasks",
            Version::Two => "cgroup.threads",
        }
    }

    /// Makes a group, ready for threads.
    fn make(&self, group: &ThreadGroup) -> io::Result<()> {
        match fs::create_dir(&group.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if self.version == Version::Two {
            // First: a parent that has members may have controllers for threaded groups only.
            fs::write(group.directory.join("cgroup.type"), "threaded")?;
            if group.enabled {
                fs::write(group.subtree(), "+cpu")?;
            }
        }
        Ok(())
    }

    /// Whether the groups below this one have no part in dividing the processor yet.
    fn lacks_controller(&self, home: &Path) -> io::Result<bool> {
        let on = |text: String| text.split_whitespace().any(|name| name == "cpu");
        Ok(self.version == Version::Two
            && !fs::read_to_string(home.join("cgroup.subtree_control")).map(on)?)
    }

    fn weigh(&self, directory: &Path, weight: Weight) -> io::Result<()> {
        let weight = u64::from(weight.value());
        match self.version {
            // 1024 is what an ordinary thread has, and the least is 2.
            Version::One => fs::write(directory.join("cpu.shares"), (weight * 1024 / 100).max(2).to_string()),
            Version::Two => fs::write(directory.join("cpu.weight"), weight.to_string()),
        }
    }
}

/// Whether threads of `wfq` classes can be given weights here: where, or why not. For `scoutline doctor`.
///
/// # Errors
/// There is no such hierarchy.
pub fn weights_of_threads() -> io::Result<String> {
    let found = Hierarchy::here().ok_or_else(|| io::Error::other("no hierarchy with the cpu controller"))?;
    let version = if found.version == Version::One { 1 } else { 2 };
    Ok(format!("version {version} at {}", found.mount.display()))
}

/// A line of mountinfo: mount point and root; type; options of the file system.
fn parse(line: &str) -> Option<(Hierarchy, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    Some((Hierarchy { version: Version::One, mount: mount.into(), root: root.to_owned() }, kind, options))
}

/// A thread by its id and its start, see [`ThreadBefore`].
type ThreadKey = (u32, u64);

/// What the engine wants.
enum Wish {
    Enter {
        thread: ThreadKey,
        class: u32,
        weight: Weight,
    },
    Leave {
        thread: ThreadKey,
    },
    /// Everybody goes home, and no group stays; then somebody is told.
    Dissolve(Box<dyn FnOnce() + Send>),
}

/// Lines for `scoutline stat`.
pub(crate) type Notices = Arc<Mutex<Vec<String>>>;

/// The engine's end. Dropping it brings everybody home.
pub(crate) struct Weights {
    wishes: Option<Sender<Wish>>,
    /// Wishes that the worker has not taken yet.
    waiting: Arc<AtomicUsize>,
    worker: Option<JoinHandle<()>>,
}

impl Weights {
    /// Starts the thread that does the work; `None` if there is no such hierarchy, or no thread.
    pub(crate) fn start(undo: Arc<dyn UndoLog>, notices: &Notices) -> Option<Weights> {
        let Some(hierarchy) = Hierarchy::here() else {
            say(notices, "no control group hierarchy here has the cpu controller: threads of `wfq` classes keep their \
                          own weight".into());
            return None;
        };
        let (wishes, received) = channel();
        let worker = Worker::new(hierarchy, undo, Arc::clone(notices));
        let waiting = Arc::new(AtomicUsize::new(0));
        let taken = Arc::clone(&waiting);
        let serve = move || worker.serve(&received, &taken);
        let worker = std::thread::Builder::new().name("scl-weights".into()).spawn(serve);
        Some(Weights { wishes: Some(wishes), waiting, worker: Some(worker.ok()?) })
    }

    /// A thread serves this class alone. False: too much waits to be done; to be tried again.
    pub(crate) fn enter(&self, thread: &ThreadBefore, class: u32, weight: Weight) -> bool {
        let has_room = self.waiting.load(Ordering::Relaxed) < MAX_WISHES;
        if has_room {
            self.wish(Wish::Enter { thread: (thread.thread, thread.started), class, weight });
        }
        has_room
    }

    /// It does not any more, or is gone.
    pub(crate) fn leave(&self, thread: &ThreadBefore) {
        self.wish(Wish::Leave { thread: (thread.thread, thread.started) });
    }

    /// Nobody does; `then` is called when all are back.
    pub(crate) fn dissolve(&self, then: Box<dyn FnOnce() + Send>) {
        self.wish(Wish::Dissolve(then));
    }

    fn wish(&self, wish: Wish) {
        if let Some(wishes) = &self.wishes {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // It ends only with us.
            let _ = wishes.send(wish);
        }
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        self.wishes = None;
        if let Some(worker) = self.worker.take() {
            // A panic of the thread has been printed where it happened; the guard knows of the groups.
            let _ = worker.join();
        }
    }
}

/// Says something once, in the log and to `scoutline stat`.
pub(crate) fn say(notices: &Notices, line: String) {
    let mut notices = notices.lock().unwrap_or_else(PoisonError::into_inner);
    if !notices.contains(&line) {
        eprintln!("scoutline: warn: {line}");
        notices.push(line);
    }
}

struct Worker {
    hierarchy: Hierarchy,
    undo: Arc<dyn UndoLog>,
    notices: Notices,
    /// Each with its weight.
    groups: HashMap<PathBuf, (ThreadGroup, Weight)>,
    /// In which group a thread was put.
    threads: HashMap<ThreadKey, PathBuf>,
}

impl Worker {
    fn new(hierarchy: Hierarchy, undo: Arc<dyn UndoLog>, notices: Notices) -> Worker {
        Worker { hierarchy, undo, notices, groups: HashMap::new(), threads: HashMap::new() }
    }

    fn serve(mut self, wishes: &Receiver<Wish>, waiting: &AtomicUsize) {
        // The engine's thread, which has started this one, has a core of its own.
        sys::run_anywhere();
        while let Ok(wish) = wishes.recv() {
            waiting.fetch_sub(1, Ordering::Relaxed);
            match wish {
                Wish::Enter { thread, class, weight } => {
                    if let Err(error) = self.enter(thread, class, weight) {
                        self.explain(&error);
                    }
                }
                Wish::Leave { thread } => self.leave(thread),
                Wish::Dissolve(then) => {
                    self.dissolve();
                    then();
                }
            }
        }
        self.dissolve();
    }

    fn enter(&mut self, thread: ThreadKey, class: u32, weight: Weight) -> io::Result<()> {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", thread.0))?;
        check(thread)?;
        let outside = || io::Error::other("its control group is outside of what this process sees");
        let home = self.hierarchy.home(&groups).ok_or_else(outside)?;
        let directory = home.join(format!("{PREFIX}{}-{class}", std::process::id()));
        let entered =
            self.make(&home, &directory, weight).and_then(|()| self.move_in(thread, &home, &directory));
        if entered.is_ok()
            && let Some(left) = self.threads.insert(thread, directory.clone())
        {
            self.remove_if_empty(&left);
        }
        self.remove_if_empty(&directory);
        entered
    }

    /// Sees that there is a group with this weight.
    fn make(&mut self, home: &Path, directory: &Path, weight: Weight) -> io::Result<()> {
        if !self.groups.contains_key(directory) {
            let ours =
                |(group, _): &(ThreadGroup, Weight)| group.enabled && group.directory.parent() == Some(home);
            let enabled = self.hierarchy.lacks_controller(home)? || self.groups.values().any(ours);
            let group = ThreadGroup { directory: directory.to_owned(), enabled };
            self.undo.note_group(&group)?;
            let made = self.hierarchy.make(&group).and_then(|()| self.hierarchy.weigh(directory, weight));
            if let Err(error) = made {
                self.remove(&group);
                return Err(error);
            }
            self.groups.insert(directory.to_owned(), (group, weight));
        }
        if let Some((_, known)) = self.groups.get_mut(directory)
            && *known != weight
        {
            self.hierarchy.weigh(directory, weight)?;
            *known = weight;
        }
        Ok(())
    }

    /// Moves a thread into a group; back, if its id has become another's meanwhile.
    fn move_in(&self, thread: ThreadKey, home: &Path, directory: &Path) -> io::Result<()> {
        let id = thread.0.to_string();
        fs::write(directory.join(self.hierarchy.members()), &id)?;
        check(thread).inspect_err(|_| {
            // That one may have ended too.
            let _ = fs::write(home.join(self.hierarchy.members()), &id);
        })
    }

    fn leave(&mut self, thread: ThreadKey) {
        let Some(directory) = self.threads.remove(&thread) else { return };
        let id = thread.0.to_string();
        let still_in = |members: String| members.lines().any(|member| member == id);
        let members = fs::read_to_string(directory.join(self.hierarchy.members()));
        // Whoever else is there, by a fork, goes with the group.
        if members.is_ok_and(still_in)
            && check(thread).is_ok()
            && let Some(home) = directory.parent()
        {
            let _ = fs::write(home.join(self.hierarchy.members()), &id);
        }
        self.remove_if_empty(&directory);
    }

    /// A group goes once nobody is in it whom we have put there.
    fn remove_if_empty(&mut self, directory: &Path) {
        if !self.threads.values().any(|other| other == directory)
            && let Some((group, _)) = self.groups.remove(directory)
        {
            self.remove(&group);
        }
    }

    fn dissolve(&mut self) {
        self.threads.clear();
        for (_, (group, _)) in std::mem::take(&mut self.groups) {
            self.remove(&group);
        }
    }

    fn remove(&self, group: &ThreadGroup) {
        match group.dissolve() {
            Ok(()) => self.undo.forget_group(group),
            Err(error) => eprintln!(
                "scoutline: warn: control group {} stays until the daemon ends: {error}",
                group.directory.display()
            ),
        }
    }

    /// That a thread has ended is no news.
    fn explain(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
            return;
        }
        let what = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EBUSY) => {
                "; in version 2 the program's own group must not divide memory or I/O among groups below it"
            }
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                "; run the daemon as root, with /sys/fs/cgroup writable"
            }
            _ => "",
        };
        say(&self.notices, format!("a thread of a `wfq` class keeps its own weight: {error}{what}"));
    }
}

/// Whether this thread is still that one.
///
/// # Errors
/// It has ended.
fn check((thread, started): ThreadKey) -> io::Result<()> {
    if sys::thread_stat(thread)?.started == started { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[cfg(test)]
mod tests;
