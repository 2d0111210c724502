//! Threads that have SCHED_DEADLINE with their class, and threads that have its weight in a control group.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use scoutline_bench::process::Process;

use crate::background::children;
use crate::classes::tool;
use crate::fixture::{Arm, Fixture, SOON, find, script, wait_for_line, wait_until};
use crate::machine::{asleep, stat_field};

const MORE: &str = "
[extension]
enabled = true

[[class]]
name = \"in time\"
policy = \"edf\"
deadline_us = 20000
thread_budget_us = 5000
local_port = [7000]

[[class]]
name = \"heavy\"
policy = \"wfq\"
weight = 300
local_port = [7001]

[[class]]
name = \"light\"
policy = \"wfq\"
local_port = [7002]
";

/// SCHED_OTHER, SCHED_FIFO and SCHED_DEADLINE.
const OTHER: u32 = 0;
const FIFO: u32 = 1;
const DEADLINE: u32 = 6;

fn fixture() -> Fixture {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(MORE);
    fixture
}

fn server(fixture: &Fixture, port: &str) -> Process {
    let mut server = fixture.start("python3", &[&script("blocking_echo.py"), port]);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    server
}

fn echo(peer: &mut TcpStream) {
    peer.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

fn policy(process: &Process) -> u32 {
    stat_field(&format!("/proc/{}", process.id()), 41)
}

/// The control group that divides the processor.
pub(crate) fn group(thread: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{thread}/cgroup")).unwrap();
    let cpu = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "cpu").then(|| path.to_owned())
    };
    text.lines().find_map(cpu).expect("these tests need the cpu controller in version 1")
}

fn directory(group: &str) -> PathBuf {
    PathBuf::from(format!("/sys/fs/cgroup/cpu{group}"))
}

fn shares(group: &str) -> u32 {
    fs::read_to_string(directory(group).join("cpu.shares")).unwrap().trim().parse().unwrap()
}

fn counter(fixture: &Fixture, name: &str) -> u64 {
    fixture.ask("stat")["engine"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
}

#[test]
fn a_thread_with_a_budget_has_sched_deadline_until_its_class_says_otherwise() {
    let fixture = fixture();
    let server = server(&fixture, "7000");
    let mut peer = fixture.connect(7000);
    echo(&mut peer);
    wait_until("it has SCHED_DEADLINE", SOON, || policy(&server) == DEADLINE);
    assert_eq!(counter(&fixture, "threads-with-deadline"), 1);
    for _ in 0..100 {
        echo(&mut peer);
    }
    drop(peer);
    let mut peer = fixture.connect(7000);
    echo(&mut peer);
    assert_eq!(policy(&server), DEADLINE, "between connections too");
    tool(&fixture, &["class", "set", "in time", "thread_budget_us="]);
    assert_eq!(policy(&server), OTHER, "at once, though it has nothing to do");
    echo(&mut peer);
    wait_until("it is raised as those without a budget are", SOON, || policy(&server) == FIFO);
    tool(&fixture, &["class", "set", "in time", "thread_budget_us=5000"]);
    tool(&fixture, &["set", "extend=off"]);
    tool(&fixture, &["set", "extend=on"]);
    for _ in 0..3 {
        echo(&mut peer);
        // Who has left SCHED_DEADLINE does not enter it again: see extend/duty.rs.
        wait_until("it is raised as those without a budget are", SOON, || policy(&server) == FIFO);
        drop(peer);
        wait_until("it is itself", SOON, || policy(&server) == OTHER);
        peer = fixture.connect(7000);
    }
}

/// Linux is an entry in the schedule of a pinned engine, and gives way to what has a deadline.
#[test]
fn a_pinned_engine_serves_paths_with_a_deadline() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.start_daemon_with(&format!("[engine]\ncpu = 0\n{MORE}"));
    let server = server(&fixture, "7000");
    let begin = std::time::Instant::now();
    for _ in 0..5 {
        let mut peer = fixture.connect(7000);
        for _ in 0..50 {
            echo(&mut peer);
        }
    }
    // A tenth of a second; a minute or more when each message comes a second time before it is looked at.
    assert!(begin.elapsed() < SOON / 2, "{:?}", begin.elapsed());
    assert_eq!(policy(&server), DEADLINE);
}

#[test]
fn a_killed_daemon_leaves_no_deadline() {
    let mut fixture = fixture();
    let server = server(&fixture, "7000");
    echo(&mut fixture.connect(7000));
    wait_until("it has SCHED_DEADLINE", SOON, || policy(&server) == DEADLINE);
    fixture.daemon().process().kill();
    wait_until("it has its own policy", SOON, || policy(&server) == OTHER);
}

/// As when a control group is killed whole.
#[test]
fn a_daemon_that_is_killed_with_its_guard_leaves_no_deadline() {
    let mut fixture = fixture();
    let server = server(&fixture, "7000");
    echo(&mut fixture.connect(7000));
    wait_until("it has SCHED_DEADLINE", SOON, || policy(&server) == DEADLINE);
    let daemon = fixture.daemon().process();
    for guard in children(daemon.id()) {
        assert!(Command::new(find("kill")).args(["-9", &guard.to_string()]).status().unwrap().success());
    }
    daemon.kill();
    wait_until("it has its own policy", SOON, || policy(&server) == OTHER);
}

/// A thread with SCHED_DEADLINE could not fork but for SCHED_RESET_ON_FORK.
#[test]
fn a_server_with_a_deadline_forks_children_without() {
    let fixture = fixture();
    let mut server = fixture.start("python3", &[&script("forking_echo.py"), "7000"]);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    for _ in 0..3 {
        echo(&mut fixture.connect(7000));
    }
    wait_until("it has SCHED_DEADLINE", SOON, || policy(&server) == DEADLINE);
    echo(&mut fixture.connect(7000));
    let line = wait_for_line(&mut server, "child");
    assert_eq!(line, "child 0", "its policy when it began");
}

#[test]
fn a_thread_that_may_not_have_a_deadline_is_raised_and_it_is_said_why() {
    let fixture = fixture();
    let arguments = ["-c", "0", "python3", &script("blocking_echo.py"), "7000"];
    let mut server = fixture.start("taskset", &arguments);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    let mut peer = fixture.connect(7000);
    echo(&mut peer);
    wait_until("it is raised", SOON, || policy(&server) == FIFO);
    let notices = fixture.ask("stat")["notices"].to_string();
    assert!(notices.contains("not as SCHED_DEADLINE") && notices.contains("every core"), "{notices}");
    drop(peer);
    wait_until("it is itself", SOON, || policy(&server) == OTHER);
}

#[test]
pub(crate) fn threads_of_weighted_classes_are_in_groups_of_that_weight() {
    let mut fixture = fixture();
    let [heavy, light] = ["7001", "7002"].map(|port| server(&fixture, port));
    let home = group(heavy.id());
    let [mut to_heavy, mut to_light] = [7001, 7002].map(|port| fixture.connect(port));
    echo(&mut to_heavy);
    echo(&mut to_light);
    let moved = |process: &Process| group(process.id()) != home;
    wait_until("they are in groups", SOON, || moved(&heavy) && moved(&light));
    let [heavy_group, light_group] = [&heavy, &light].map(|process| group(process.id()));
    assert_eq!((shares(&heavy_group), shares(&light_group)), (3072, 1024));
    assert_eq!(counter(&fixture, "threads-with-weight"), 2);

    tool(&fixture, &["class", "set", "heavy", "weight=50"]);
    echo(&mut to_heavy);
    wait_until("its weight has changed where it is", SOON, || shares(&heavy_group) == 512);
    assert_eq!(group(heavy.id()), heavy_group);

    tool(&fixture, &["set", "extend=off"]);
    assert_eq!([group(heavy.id()), group(light.id())], [home.clone(), home.clone()], "at once");
    assert!(!directory(&heavy_group).exists() && !directory(&light_group).exists());
    tool(&fixture, &["set", "extend=on"]);
    echo(&mut to_light);
    wait_until("it is in its group again", SOON, || moved(&light));

    fixture.daemon().process().kill();
    wait_until("it is at home", SOON, || !moved(&light));
    wait_until("the group is gone", SOON, || !directory(&light_group).exists());
}

/// One thread, two classes: it keeps its own weight, or one class would run with that of the other.
#[test]
fn a_thread_of_several_classes_stays_where_it_was() {
    let fixture = fixture();
    let mut server = fixture.start("python3", &[&script("echo_server.py"), "7001", "7002"]);
    wait_for_line(&mut server, "ready");
    asleep(&server);
    let home = group(server.id());
    let [mut one, mut other] = [7001, 7002].map(|port| fixture.connect(port));
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        echo(&mut one);
        echo(&mut other);
    }
    wait_until("it is at home", SOON, || group(server.id()) == home);
    assert_eq!(counter(&fixture, "threads-with-weight"), 0);
}

/// Two servers that compute, on one core: they share it as their classes weigh.
#[test]
fn linux_divides_the_core_as_the_classes_weigh() {
    let fixture = fixture();
    let start = |port: &str| {
        let mut server = fixture.start("taskset", &["-c", "0", "python3", &script("busy_echo.py"), port]);
        wait_for_line(&mut server, "ready");
        asleep(&server);
        server
    };
    let [heavy, light] = ["7001", "7002"].map(start);
    let home = group(heavy.id());
    let done = std::sync::atomic::AtomicBool::new(false);
    let peers = [7001, 7002].map(|port| fixture.connect(port));
    let used = |process: &Process| {
        let task = format!("/proc/{}", process.id());
        f64::from(stat_field(&task, 14) + stat_field(&task, 15))
    };
    let ratio = std::thread::scope(|scope| {
        for mut peer in peers {
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    echo(&mut peer);
                }
            });
        }
        let moved = |process: &Process| group(process.id()) != home;
        wait_until("they are in groups", SOON, || moved(&heavy) && moved(&light));
        let before = (used(&heavy), used(&light));
        wait_until("the light one has worked for a while", SOON, || used(&light) - before.1 >= 60.0);
        let ratio = (used(&heavy) - before.0) / (used(&light) - before.1);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        ratio
    });
    // What their weights are is tested above; that Linux goes by them shows however little of the core is left.
    println!("3 : 1 became {ratio:.2} : 1");
    assert!((1.5..6.0).contains(&ratio), "{ratio}");
}
