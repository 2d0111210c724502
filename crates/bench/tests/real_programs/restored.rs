//! The daemon and processes of a program are killed at any moment while threads are raised, given deadlines and moved
//! between control groups; whoever survives is scheduled as before.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use scoutline_base::Random;

use crate::fixture::{Arm, Fixture, SOON, find, long, script, wait_for_line, wait_until};
use crate::machine::stat_field;
use crate::shares::group;

/// One port for each way to schedule a thread.
const MORE: &str = "
[extension]
enabled = true
[[class]]
name = \"raised\"
priority = 2
local_port = [7000]
[[class]]
name = \"weighed\"
policy = \"wfq\"
weight = 300
local_port = [7001]
[[class]]
name = \"in time\"
policy = \"edf\"
deadline_us = 20000
thread_budget_us = 1000
local_port = [7002]
";
const PORTS: [u16; 3] = [7000, 7001, 7002];

/// How a thread is scheduled: policy with its flags, nice value, control group.
fn scheduled(thread: u32) -> Option<(String, i32, String)> {
    if !fs::exists(format!("/proc/{thread}")).unwrap() {
        return None;
    }
    let chrt = Command::new(find("chrt")).args(["-p", &thread.to_string()]).output().unwrap();
    let chrt = String::from_utf8_lossy(&chrt.stdout).lines().next().unwrap_or_default().to_owned();
    let policy = chrt.rsplit(' ').next().unwrap_or_default().to_owned();
    Some((policy, stat_field(&format!("/proc/{thread}"), 19).cast_signed(), group(thread)))
}

/// Connections that come and go, with a few messages each, until told to stop. Tells of each answer.
fn load(address: SocketAddrV4, stop: &AtomicBool, answers: &Sender<()>) {
    let limit = Duration::from_millis(500);
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut peer) = TcpStream::connect_timeout(&address.into(), limit) else { continue };
        peer.set_read_timeout(Some(limit)).unwrap();
        for _ in 0..5 {
            let mut answer = [0; 5];
            if peer.write_all(b"hello").and_then(|()| peer.read_exact(&mut answer)).is_err() {
                break;
            }
            // Whoever counted them has seen enough.
            let _ = answers.send(());
        }
    }
}

/// Waits for so many answers.
fn hear(answers: &Receiver<()>, count: u64) {
    for _ in 0..count {
        answers.recv_timeout(SOON).expect("it serves");
    }
}

/// One life of a daemon.
fn round(fixture: &mut Fixture, random: &mut Random) {
    fixture.start_daemon_with(MORE);
    let mut server =
        fixture.start("python3", &[&[script("prefork.py").as_str()][..], &["7000", "7001", "7002"]].concat());
    let mut children: Vec<(u32, i32)> = Vec::new();
    while children.len() < 9 {
        let line = wait_for_line(&mut server, "child");
        let words: Vec<&str> = line.split(' ').collect();
        children.push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    wait_for_line(&mut server, "ready");
    let home = group(server.id());
    let daemon = fixture.daemon().process().id();
    let stop = AtomicBool::new(false);
    let (tell, answers) = channel();
    thread::scope(|scope| {
        let (client, address) = (fixture.testbed().client(), fixture.address());
        for port in PORTS.into_iter().flat_map(|port| [port; 3]) {
            let (stop, tell) = (&stop, tell.clone());
            scope.spawn(move || {
                client.enter(|| load(SocketAddrV4::new(address, port), stop, &tell)).unwrap();
            });
        }
        hear(&answers, 50 + u64::from(random.below(1000)));
        if random.below(2) == 0 {
            let (child, _) = children.swap_remove(random.below(9) as usize);
            kill(child);
            hear(&answers, u64::from(random.below(200)));
        }
        kill(daemon);
        stop.store(true, Ordering::Relaxed);
    });
    let mut wanted: Vec<(u32, i32)> = children;
    wanted.push((server.id(), 0));
    for (thread, nice) in wanted {
        let right = ("SCHED_OTHER".to_owned(), nice, home.clone());
        let mut last = None;
        let settled = || {
            last = scheduled(thread);
            last.as_ref() == Some(&right)
        };
        wait_until(&format!("process {thread} is scheduled as before: {right:?}"), SOON, settled);
        // And it stays so: nobody is left who would change it.
        assert_eq!(scheduled(thread).as_ref(), Some(&right));
    }
    let ours = format!("scoutline-wfq-{daemon}-");
    let left = || {
        let groups = fs::read_dir(format!("/sys/fs/cgroup/cpu{home}")).unwrap();
        groups.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(&ours))
    };
    wait_until("no control group is left", SOON, || !left());
}

fn kill(process: u32) {
    let done = Command::new(find("kill")).args(["-9", &process.to_string()]).status().unwrap();
    assert!(done.success());
}

#[test]
fn whoever_survives_is_scheduled_as_before() {
    let seed = std::env::var("SCOUTLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("SCOUTLINE_SEED={seed}");
    let mut random = Random::new(seed);
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    for _ in 0..if long() { 60 } else { 5 } {
        round(&mut fixture, &mut random);
    }
}
