//! `scoutline doctor`: what the machine offers, and the remedy for each lack.

use std::fmt::Write as _;
use std::fs;

use rustix::fs::{Access, MemfdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use scoutline_abi::privilege;
use serde::Serialize;

use crate::arguments::Doctor;
use crate::failure::{FAILED, Failure};
use crate::output;

/// Bits of CapEff (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;
const CAP_BPF: u32 = 39;

/// The engine's, if nothing else is configured.
const REALTIME_PRIORITY: u8 = 50;
/// First kernel with tcx links.
const TCX: (u32, u32) = (6, 6);
/// Descriptors that a busy server takes: a pipe per poll set, a connection per process.
const DESCRIPTORS: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// It works without, worse.
    Degraded,
    /// Needed.
    Missing,
}

/// One finding.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    found: String,
    /// What to do; empty when all is well.
    remedy: String,
}

pub(crate) fn doctor(arguments: &Doctor) -> Result<(), Failure> {
    let findings = findings();
    if arguments.json {
        output::print_json(&findings)?;
    } else {
        output::print(&text(&findings))?;
    }
    let missing = findings.iter().filter(|finding| finding.state == State::Missing).count();
    if missing == 0 {
        return Ok(());
    }
    let message = format!(
        "{missing} thing{} missing; see the remedies above",
        if missing == 1 { " is" } else { "s are" }
    );
    Err(Failure::new(FAILED, if arguments.json { String::new() } else { message }))
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, state, found, remedy } in findings {
        let mark = match state {
            State::Ok => "ok      ",
            State::Degraded => "degraded",
            State::Missing => "MISSING ",
        };
        let _ = writeln!(text, "{mark}  {check:<18} {found}");
        if !remedy.is_empty() {
            let _ = writeln!(text, "          {:<18} -> {remedy}", "");
        }
    }
    text
}

fn finding(
    check: &'static str,
    good: bool,
    otherwise: State,
    found: impl Into<String>,
    remedy: &str,
) -> Finding {
    let state = if good { State::Ok } else { otherwise };
    Finding {
        check,
        state,
        found: found.into(),
        remedy: if good { String::new() } else { remedy.to_owned() },
    }
}

fn findings() -> Vec<Finding> {
    let root = rustix::process::geteuid().is_root();
    let user = if root { "root".to_owned() } else { format!("user {}", rustix::process::geteuid().as_raw()) };
    let mut all = vec![finding(
        "user",
        root,
        State::Degraded,
        user,
        "run `scoutline up` with sudo, or give the program the capabilities below: \
         sudo setcap cap_net_admin,cap_net_raw,cap_bpf,cap_sys_nice+ep $(which scoutline)",
    )];
    all.extend(capabilities());
    all.extend([
        packet_socket(),
        kernel(),
        memory_file(),
        tun(),
        real_time(),
        throttling(),
        deadlines(),
        weights(),
        descriptors(),
        dispatch(),
        library(),
    ]);
    all
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn capabilities() -> Vec<Finding> {
    let have = privilege::effective(&read("/proc/self/status"));
    let has = |bit: u32| have & (1 << bit) != 0;
    let one = |check, held: bool, otherwise, remedy: &str| {
        finding(check, held, otherwise, if held { "held" } else { "not held" }, remedy)
    };
    vec![
        one("CAP_NET_RAW", has(CAP_NET_RAW), State::Missing, "needed to open an interface; run as root"),
        one(
            "CAP_NET_ADMIN",
            has(CAP_NET_ADMIN),
            State::Missing,
            "needed to set up an interface; run as root",
        ),
        one(
            "CAP_BPF",
            has(CAP_BPF) || has(CAP_SYS_ADMIN),
            State::Missing,
            "needed to keep the kernel from answering for our packets; run as root",
        ),
        one(
            "CAP_SYS_NICE",
            has(CAP_SYS_NICE),
            State::Degraded,
            "without it no real-time priority; run as root",
        ),
    ]
}

fn packet_socket() -> Finding {
    let opened = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None);
    let found = opened.as_ref().map_or_else(ToString::to_string, |_| "can be opened".into());
    finding(
        "AF_PACKET",
        opened.is_ok(),
        State::Missing,
        found,
        "run as root, and load the module: modprobe af_packet",
    )
}

/// `6.18.44-fc` is (6, 18).
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let good = version(&release) >= TCX;
    let remedy = "Linux sees our packets too and may answer; tcx needs Linux 6.6, on Debian 12: apt-get install -t \
                  bookworm-backports linux-image-amd64";
    finding("kernel (tcx)", good, State::Degraded, release, remedy)
}

fn memory_file() -> Finding {
    let made = rustix::fs::memfd_create("scoutline-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let found = made.as_ref().map_or_else(ToString::to_string, |_| "works".into());
    finding(
        "memfd",
        made.is_ok(),
        State::Missing,
        found,
        "the kernel lacks CONFIG_MEMFD_CREATE; use a stock kernel",
    )
}

fn tun() -> Finding {
    let opened = rustix::fs::access("/dev/net/tun", Access::READ_OK | Access::WRITE_OK);
    let found = opened.map_or_else(|error| error.to_string(), |()| "/dev/net/tun".into());
    let remedy = "only driver = \"tap\" needs it: modprobe tun, or give the container --device /dev/net/tun";
    finding("tap", opened.is_ok(), State::Degraded, found, remedy)
}

fn real_time() -> Finding {
    let tried = scoutline_daemon::realtime_of_threads(REALTIME_PRIORITY);
    let found = tried.as_ref().map_or_else(ToString::to_string, |()| "allowed".into());
    let privileged = privilege::effective(&read("/proc/self/status")) & (1 << CAP_SYS_NICE) != 0;
    // What the privilege allows, the control group or a container refuses.
    let remedy = if privileged {
        "the control group has no real-time budget (write 950000 to its cpu.rt_runtime_us; with version 2 start from \
         the root group, or boot with rt_group_sched=0), or the container forbids it"
    } else {
        "run as root, or raise `rtprio` in /etc/security/limits.conf; realtime = \"off\" does without"
    };
    finding("SCHED_FIFO", tried.is_ok(), State::Degraded, found, remedy)
}

fn throttling() -> Finding {
    let runtime = read("/proc/sys/kernel/sched_rt_runtime_us");
    let period = read("/proc/sys/kernel/sched_rt_period_us");
    // The Linux thread gives up the core often enough that the throttle is not met; a small budget would meet it.
    let share = match (runtime.parse::<f64>(), period.parse::<f64>()) {
        (Ok(runtime), _) if runtime < 0.0 => 1.0,
        (Ok(runtime), Ok(period)) if period > 0.0 => runtime / period,
        _ => 1.0,
    };
    let found = format!("real-time threads may take {:.0} % of a core", share * 100.0);
    let remedy = "sysctl kernel.sched_rt_runtime_us=950000";
    finding("rt throttling", share >= 0.9, State::Degraded, found, remedy)
}

fn deadlines() -> Finding {
    let allowed = scoutline_daemon::deadlines_of_threads();
    let found = allowed.as_ref().map_or_else(ToString::to_string, |()| "allowed".into());
    let remedy =
        "only classes with thread_budget_us need it, and have SCHED_FIFO instead: run as root, unpinned";
    finding("SCHED_DEADLINE", allowed.is_ok(), State::Degraded, found, remedy)
}

fn weights() -> Finding {
    let hierarchy = scoutline_daemon::weights_of_threads();
    let there = hierarchy.is_ok();
    let remedy = "only threads of wfq classes need it, and keep their own weight: mount cgroup2 with the cpu controller";
    finding(
        "cpu control groups",
        there,
        State::Degraded,
        hierarchy.unwrap_or_else(|error| error.to_string()),
        remedy,
    )
}

fn descriptors() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let remedy = "raise the hard limit: ulimit -Hn 65536, or LimitNOFILE= in the service";
    finding("descriptors", limit >= DESCRIPTORS, State::Degraded, format!("up to {limit}"), remedy)
}

fn dispatch() -> Finding {
    let there = scoutline_trap::dispatches();
    let remedy = "system calls that a program makes past the C library reach the kernel's sockets, and names are asked \
                  for by the kernel's routes; it needs Linux 5.11 on x86-64, or: scoutline run --trap";
    let found = there.as_ref().map_or_else(ToString::to_string, |()| "works".into());
    finding("system-call dispatch", there.is_ok(), State::Degraded, found, remedy)
}

fn library() -> Finding {
    match crate::run::library() {
        Ok(path) => finding("preload library", true, State::Missing, path.display().to_string(), ""),
        Err(_) => finding(
            "preload library",
            false,
            State::Missing,
            "not found",
            "run `make build` or `make install`, or name it in SCOUTLINE_PRELOAD",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{State, finding, findings, text, version};

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version("6.18.44-fc-v445"), (6, 18));
        assert!(version("6.1.0-9-amd64") < super::TCX);
        assert!(version("7.0-rc1") >= super::TCX);
    }

    #[test]
    fn every_lack_has_a_remedy() {
        for found in findings() {
            assert!(found.state == State::Ok || !found.remedy.is_empty(), "{found:?}");
        }
        let text = text(&[finding("memfd", false, State::Missing, "no", "do this")]);
        assert!(text.contains("MISSING") && text.contains("-> do this"), "{text}");
    }
}
