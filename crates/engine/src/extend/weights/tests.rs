//! Where groups are, and that none is left.

use super::*;
use crate::extend::tests::{Idler, NoLog};

const ONE: &str = "\
30 23 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw
33 30 0:29 / /sys/fs/cgroup/cpuset rw shared:15 - cgroup cgroup rw,cpuset
34 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:16 - cgroup cgroup rw,cpu,cpuacct
";
const TWO: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const IN_CONTAINER: &str = "30 23 0:26 /docker/ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";

#[test]
fn the_hierarchy_with_the_processor_is_found() {
    let one = Hierarchy::find(ONE, |_| true).unwrap();
    assert_eq!((one.version, one.mount), (Version::One, PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")));
    let two = Hierarchy::find(TWO, |mount| mount == Path::new("/sys/fs/cgroup")).unwrap();
    assert_eq!(two.version, Version::Two);
    assert_eq!(Hierarchy::find(TWO, |_| false), None, "without the controller");
    let hybrid = ONE.lines().filter(|line| !line.contains("cpuacct")).collect::<Vec<_>>().join("\n");
    assert_eq!(Hierarchy::find(&hybrid, |_| false), None, "cpuset is not cpu");
}

#[test]
fn a_thread_is_found_where_it_is() {
    let one = Hierarchy::find(ONE, |_| false).unwrap();
    let mount = "/sys/fs/cgroup/cpu,cpuacct";
    for (groups, home) in [
        ("4:cpu,cpuacct:/system.slice/a\n0::/b\n", Some(format!("{mount}/system.slice/a"))),
        ("4:cpu,cpuacct:/\n", Some(format!("{mount}/"))),
        ("4:cpu,cpuacct:/a/scoutline-wfq-12-3\n", Some(format!("{mount}/a"))),
        ("4:cpu,cpuacct:/scoutline-wfq-12-3\n", Some(mount.to_owned())),
        ("4:cpu,cpuacct:/../a\n", None),
        ("3:cpuset:/a\n0::/b\n", None),
    ] {
        assert_eq!(one.home(groups), home.map(PathBuf::from), "{groups}");
    }
    let two = Hierarchy::find(TWO, |_| true).unwrap();
    assert_eq!(two.home("1:name=x:/c\n0::/user.slice/a\n"), Some("/sys/fs/cgroup/user.slice/a".into()));
    let inside = Hierarchy::find(IN_CONTAINER, |_| false).unwrap();
    assert_eq!(inside.home("4:cpu:/docker/ab/c\n"), Some("/sys/fs/cgroup/cpu/c".into()));
    assert_eq!(inside.home("4:cpu:/other\n"), None);
}

fn key(idler: &Idler) -> ThreadKey {
    (idler.id(), sys::thread_stat(idler.id()).unwrap().started)
}

fn worker() -> Worker {
    let hierarchy = Hierarchy::here().expect("a hierarchy with the cpu controller");
    Worker::new(hierarchy, Arc::new(NoLog), Notices::default())
}

/// The group of a class, for threads that are where this one is.
fn group_of(worker: &Worker, class: u32) -> PathBuf {
    let home = worker.hierarchy.home(&fs::read_to_string("/proc/self/cgroup").unwrap()).unwrap();
    home.join(format!("{PREFIX}{}-{class}", std::process::id()))
}

#[test]
fn an_id_that_is_anothers_by_now_is_left_alone_and_no_group_stays() {
    let (mut worker, idler) = (worker(), Idler::start());
    let (id, started) = key(&idler);
    let home = fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap();
    assert!(worker.enter((id, started - 1), 1, Weight::new(300)).is_err());
    assert_eq!(fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap(), home);
    assert!(!group_of(&worker, 1).exists());
}

#[test]
fn a_group_that_the_last_thread_leaves_goes() {
    let (mut worker, one, two) = (worker(), Idler::start(), Idler::start());
    let groups = [2, 3].map(|class| group_of(&worker, class));
    let exist = || groups.clone().map(|group| group.exists());
    for idler in [&one, &two] {
        worker.enter(key(idler), 2, Weight::new(300)).unwrap();
    }
    assert_eq!(exist(), [true, false]);
    worker.enter(key(&one), 3, Weight::new(50)).unwrap();
    assert_eq!(exist(), [true, true]);
    // From one class to the other without a stop at home.
    worker.enter(key(&two), 3, Weight::new(50)).unwrap();
    assert_eq!(exist(), [false, true]);
    worker.leave(key(&two));
    assert_eq!(exist(), [false, true]);
    let ended = key(&one);
    drop(one);
    worker.leave(ended);
    assert_eq!(exist(), [false, false]);
}

#[test]
fn a_worker_that_is_behind_is_told_no_more() {
    let (wishes, received) = channel();
    let weights = Weights { wishes: Some(wishes), waiting: Arc::default(), worker: None };
    let thread = ThreadBefore { thread: 1, started: 1, policy: 0, priority: 0 };
    let entered = (0..2 * MAX_WISHES).filter(|_| weights.enter(&thread, 1, Weight::new(100))).count();
    assert_eq!(entered, MAX_WISHES);
    weights.leave(&thread);
    assert_eq!(received.try_iter().count(), MAX_WISHES + 1, "who has entered may always leave");
}
