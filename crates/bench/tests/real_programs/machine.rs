//! What the kernel's networking of a host looks like, to see that nothing of ours is left.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use scoutline_bench::process::Process;
use scoutline_bench::testbed::Host;
use scoutline_bpf::{Hook, attached};
use scoutline_device::{SegmentLimit, Steering};

use crate::fixture::{SOON, find, wait_until};

/// Interfaces, addresses, routes, queueing disciplines, filters, tcx programs and packet sockets of a host, as text.
pub(crate) fn networking(host: &Host) -> String {
    let mut text = String::new();
    for (program, arguments) in [
        ("ip", &["-d", "addr", "show", "dev", "eth0"][..]),
        ("ip", &["route", "show", "table", "all"]),
        ("ip", &["rule", "show"]),
        ("tc", &["qdisc", "show"]),
        ("tc", &["filter", "show", "dev", "eth0", "ingress"]),
        ("tc", &["filter", "show", "dev", "eth0", "egress"]),
    ] {
        let _ = write!(text, "# {program} {}\n{}", arguments.join(" "), ask(host, program, arguments));
    }
    let index = interface_index(host, "eth0");
    let (limit, steering, hooks, sockets) = host
        .enter(|| {
            let hooks = [Hook::Ingress, Hook::Egress].map(|hook| attached(index, hook).unwrap());
            let limit = SegmentLimit::of(index).unwrap();
            // Of the thread's namespace, not of the process's.
            (
                limit,
                Steering::named("eth0").unwrap(),
                hooks,
                fs::read_to_string("/proc/thread-self/net/packet").unwrap(),
            )
        })
        .unwrap();
    text + &format!(
        "# {limit:?} {steering:?}\n# tcx programs, in and out: {hooks:?}\n# packet sockets: {}\n",
        sockets.lines().count() - 1
    )
}

/// What `ip` or `tc` says of a host.
pub(crate) fn ask(host: &Host, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(find(program)).args(["-n", host.name()]).args(arguments).output().unwrap();
    // `tc filter show` fails where there is no clsact: that is an answer as well.
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// One fact of an interface, as `ip -j link` names it.
pub(crate) fn link(host: &Host, device: &str, fact: &str) -> serde_json::Value {
    let text = ask(host, "ip", &["-j", "link", "show", "dev", device]);
    let links: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    links[0][fact].clone()
}

/// The index of an interface in its host.
pub(crate) fn interface_index(host: &Host, device: &str) -> u32 {
    link(host, device, "ifindex").as_u64().expect("an index") as u32
}

/// A number of `/proc/…/stat` of a process or thread, by its place in `proc(5)`.
pub(crate) fn stat_field(task: &str, field: usize) -> u32 {
    let stat = std::fs::read_to_string(format!("{task}/stat")).unwrap();
    // The name may hold anything; behind it stands the third field.
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(field - 3).unwrap().parse().unwrap()
}

/// Waits until a program's first thread sleeps. A server that has said that it is ready waits for somebody only then: what
/// comes before finds nobody who waits, and no thread to raise.
pub(crate) fn asleep(process: &Process) {
    let status = format!("/proc/{}/status", process.id());
    let sleeps = || fs::read_to_string(&status).unwrap_or_default().contains("State:\tS");
    wait_until("the program sleeps", SOON, sleeps);
}
