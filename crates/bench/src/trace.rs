//! How long the server's threads wait between being woken and running, while they serve the preferred client.
//!
//! It is what SILK's table 2 shows ("average time elapsed between when a server task unblocks and when it runs, for
//! preferred requests"). It is seen from outside, by the kernel's own tracepoints in a trace buffer of our own, so
//! that it is the same for a server on the kernel and for one on paths:
//!
//! ```text
//!   sched_waking   a thread of the server is woken, at the waker's side: the time that an IPI takes counts too
//!   sched_switch   it runs
//!   sys_enter_openat of a name that only the preferred client asks for: this thread serves it
//! ```
//!
//! The load generator tells when each preferred request began and ended. A wait counts if its end falls within such
//! a span and the thread is the one that opened the file in it; of a thread that was woken for somebody else before
//! the request began, and then took it, only what lies within the span. In an event-driven server the wake-ups may
//! be for other connections of the same thread, which the preferred request then waits for all the same.
//!
//! A thread that has a real-time priority by the time it runs was woken for the preferred request, or found to be wanted by
//! it while it waited: those wake-ups are told apart too, each from being woken, even if it was raised later.
//!
//! A thread also waits when it is pushed off its core. So the record tells, beside the wake-ups, how long the serving
//! thread stood in the run queue in all.
//!
//! Only the server's process group is traced. Tracing costs the server about half a microsecond an event, so other
//! figures are never taken from traced rounds. The buffer is read when the load is over.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cleanup;

/// The buffer of each core that has part in the experiment: seconds of a busy Apache.
const BUFFER_KIB: usize = 48 << 10;
/// What is recorded.
const EVENTS: [&str; 3] = ["sched/sched_waking", "sched/sched_switch", "syscalls/sys_enter_openat"];

/// The kernel's priorities below this are real-time ones.
const REAL_TIME: u32 = 100;

/// The kernel's tracing file system, which is at its place while this lives, also where nobody had mounted it.
pub(crate) struct Tracefs(());

impl Tracefs {
    pub(crate) fn ensure() -> Tracefs {
        cleanup::with(cleanup::mount_tracefs);
        Tracefs(())
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        cleanup::with(cleanup::unmount_tracefs);
    }
}

/// A trace buffer that records.
#[derive(Debug)]
pub(crate) struct Trace {
    directory: PathBuf,
}

impl Trace {
    /// Records these processes and what they fork; `opened` is the name by which a thread is known to serve the
    /// preferred client.
    ///
    /// # Errors
    /// Where the kernel has no such tracepoints, or does not let us use them.
    pub(crate) fn start(processes: &[u32], opened: &str, cores: &[usize]) -> Result<Trace> {
        let directory = cleanup::make_kernel_directory(Path::new(cleanup::TRACES), "trace")
            .with_context(|| format!("no trace buffer in {} (is tracefs mounted?)", cleanup::TRACES))?;
        let trace = Trace { directory };
        trace.write("tracing_on", "0")?;
        trace.write("trace_clock", "mono")?;
        // What came first is kept: the end of a full record is missing then, and nothing in between.
        trace.write("options/overwrite", "0")?;
        trace.write("options/event-fork", "1")?;
        for core in cores {
            trace.write(&format!("per_cpu/cpu{core}/buffer_size_kb"), &BUFFER_KIB.to_string())?;
        }
        let processes: Vec<String> = processes.iter().map(ToString::to_string).collect();
        trace.write("set_event_pid", &processes.join(" "))?;
        trace
            .write(&format!("events/{}/filter", EVENTS[2]), &format!("filename.ustring ~ \"*/{opened}\""))?;
        for event in EVENTS {
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        trace.write("tracing_on", "1")?;
        Ok(trace)
    }

    /// Whether this machine lets us trace.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn permitted() -> Result<()> {
        Trace::start(&[std::process::id()], "nothing", &[]).map(drop)
    }

    /// Ends the record.
    pub(crate) fn finish(self) -> Result<Record> {
        self.write("tracing_on", "0")?;
        let text = fs::read(self.directory.join("trace")).context("cannot read the trace")?;
        Ok(Record::parse(&String::from_utf8_lossy(&text)))
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        fs::write(self.directory.join(file), text)
            .with_context(|| format!("tracing: {file} does not take `{text}`"))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        cleanup::remove_kernel_directory(&self.directory);
    }
}

/// One wait of one thread in the run queue, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    thread: u32,
    cause: Cause,
    from: u64,
    ran: u64,
    /// It ran with a real-time priority.
    raised: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Woken,
    /// It would have run on.
    Displaced,
}

/// What a trace has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// In the order of their ends.
    waits: Vec<Wait>,
    /// When a thread opened the preferred client's file.
    opened: Vec<(u64, u32)>,
}

impl Record {
    /// Reads the kernel's own form, a line for each event.
    fn parse(text: &str) -> Record {
        let mut record = Record::default();
        let mut waiting: HashMap<u32, (Cause, u64)> = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((head, event, fields)) = event_of(line) else { continue };
            let Some(time) = head.rsplit(' ').next().and_then(nanoseconds) else { continue };
            match event {
                "sched_waking" => {
                    if let Some(thread) = number_after(fields, " pid=") {
                        waiting.entry(thread).or_insert((Cause::Woken, time));
                    }
                }
                "sched_switch" => {
                    if let Some(from) = number_after(fields, "prev_pid=") {
                        // Of a thread that was woken on its way to sleep, this ends what was no wait.
                        waiting.remove(&from);
                        if fields.contains(" prev_state=R") {
                            waiting.insert(from, (Cause::Displaced, time));
                        }
                    }
                    let to = number_after(fields, "next_pid=");
                    if let Some((thread, (cause, from))) = to.and_then(|to| Some((to, waiting.remove(&to)?)))
                    {
                        let raised = number_after(fields, "next_prio=").is_some_and(|prio| prio < REAL_TIME);
                        record.waits.push(Wait { thread, cause, from, ran: time, raised });
                    }
                }
                // NAME-THREAD [CORE] flags time
                _ => {
                    let thread =
                        head.rsplit_once(" [").and_then(|(name, _)| name.trim_end().rsplit('-').next());
                    if let Some(thread) = thread.and_then(|thread| thread.parse().ok()) {
                        record.opened.push((time, thread));
                    }
                }
            }
        }
        record
    }

    /// The waits of the threads that served these requests, within them. The requests follow one another.
    pub(crate) fn within(&self, requests: &[(u64, u64)]) -> Waits {
        // The trace cuts its times to microseconds.
        let request_at = |time: u64| {
            let index = requests.partition_point(|(begin, _)| *begin <= time + 1_000).checked_sub(1)?;
            (time <= requests[index].1).then_some(index)
        };
        let mut servers: HashMap<usize, u32> = HashMap::new();
        for (time, thread) in &self.opened {
            if let Some(request) = request_at(*time) {
                servers.insert(request, *thread);
            }
        }
        let mut waits = Waits { requests: servers.len(), ..Waits::default() };
        for wait in &self.waits {
            let Some(request) = request_at(wait.ran) else { continue };
            if servers.get(&request) == Some(&wait.thread) {
                let time_ns = wait.ran.saturating_sub(wait.from.max(requests[request].0));
                waits.queued_ns += time_ns;
                if wait.cause == Cause::Woken {
                    waits.woken_ns.push(time_ns);
                    if wait.raised {
                        waits.raised_ns.push(time_ns);
                    }
                }
            }
        }
        waits
    }
}

/// The waits of the threads that served the preferred client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Each from being woken to running.
    woken_ns: Vec<u64>,
    /// Those of them that ended with a real-time priority.
    raised_ns: Vec<u64>,
    /// In the run queue, woken or displaced, in all.
    queued_ns: u64,
    /// How many requests they belong to.
    requests: usize,
}

impl Waits {
    /// From being woken to running, in microseconds; 0 of none.
    pub(crate) fn mean_us(&self) -> f64 {
        mean_us(&self.woken_ns)
    }

    /// The same, of threads that ran with a real-time priority, if any did.
    pub(crate) fn raised_us(&self) -> Option<f64> {
        (!self.raised_ns.is_empty()).then(|| mean_us(&self.raised_ns))
    }

    /// The 99th percentile of that.
    pub(crate) fn p99_us(&self) -> f64 {
        let mut sorted = self.woken_ns.clone();
        sorted.sort_unstable();
        let index = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
        sorted.get(index).map_or(0.0, |time| *time as f64 / 1e3)
    }

    /// How often the thread that serves a request is woken within it, on average.
    pub(crate) fn per_request(&self) -> f64 {
        self.woken_ns.len() as f64 / self.requests.max(1) as f64
    }

    /// How long that thread stands in the run queue for a request, on average, in microseconds.
    pub(crate) fn queued_us(&self) -> f64 {
        self.queued_ns as f64 / 1e3 / self.requests.max(1) as f64
    }

    /// How many requests were seen being served.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }
}

fn mean_us(times_ns: &[u64]) -> f64 {
    times_ns.iter().sum::<u64>() as f64 / 1e3 / times_ns.len().max(1) as f64
}

/// Cuts a line into what stands before the event's name, the name, and the fields.
fn event_of(line: &str) -> Option<(&str, &str, &str)> {
    ["sched_waking", "sched_switch", "sys_openat"].into_iter().find_map(|event| {
        let at = line.find(&format!(": {event}"))?;
        let behind = at + 2 + event.len();
        Some((&line[..at], event, &line[behind..]))
    })
}

/// `4439.325222`, in seconds.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, microseconds) = text.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + microseconds.parse::<u64>().ok()? * 1_000)
}

fn number_after(fields: &str, key: &str) -> Option<u32> {
    let rest = &fields[fields.rfind(key)? + key.len()..];
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Cause, Record, Wait, Waits};

    /// As Linux 6.18 prints it: thread 21 is woken, runs, opens the file, sleeps, is woken again; thread 22 is
    /// woken before it has slept, and displaced; then the engine runs between two requests.
    const TEXT: &str = "\
# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
       scl engine-7     [000] d..2.    10.000100: sched_waking: comm=apache2 pid=21 prio=120 target_cpu=000
       scl engine-7     [000] d..2.    10.000110: sched_waking: comm=apache2 pid=22 prio=120 target_cpu=000
       scl engine-7     [000] d..2.    10.000150: sched_switch: prev_comm=scl engine prev_pid=7 prev_prio=49 prev_state=S ==> next_comm=apache2 next_pid=21 next_prio=120
          apache2-21    [000] .....    10.000160: sys_openat(dfd: 0xffffff9c, filename: 0x7ffc28681aa2, flags: 0, mode: 0)
          apache2-21    [000] d..2.    10.000200: sched_switch: prev_comm=apache2 prev_pid=21 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
          apache2-22    [000] d..2.    10.000210: sched_switch: prev_comm=apache2 prev_pid=22 prev_prio=120 prev_state=R ==> next_comm=x next_pid=9 next_prio=120
               x y-9    [000] d..2.    10.000220: sched_switch: prev_comm=x y prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=apache2 next_pid=22 next_prio=120
       scl engine-7     [001] d..2.    10.000300: sched_waking: comm=apache2 pid=21 prio=120 target_cpu=000
       scl engine-7     [000] d..2.    10.000330: sched_switch: prev_comm=scl engine prev_pid=7 prev_prio=49 prev_state=S ==> next_comm=apache2 next_pid=21 next_prio=48
       scl engine-7     [001] d..2.    10.000900: sched_waking: comm=apache2 pid=21 prio=120 target_cpu=000
       scl engine-7     [000] d..2.    10.000990: sched_switch: prev_comm=scl engine prev_pid=7 prev_prio=49 prev_state=S ==> next_comm=apache2 next_pid=21 next_prio=120
";

    #[test]
    fn waits_of_the_serving_thread_within_its_request_count() {
        let record = Record::parse(TEXT);
        assert_eq!(record.opened, [(10_000_160_000, 21)]);
        let waits = record.within(&[(10_000_050_000, 10_000_400_000), (10_000_850_000, 10_001_000_000)]);
        // The last wait is in a request that this thread is not known to serve.
        let raised_ns = vec![30_000];
        assert_eq!(
            waits,
            Waits { woken_ns: vec![50_000, 30_000], raised_ns, queued_ns: 80_000, requests: 1 }
        );
        assert!((waits.mean_us() - 40.0).abs() < 1e-9);
        assert_eq!(waits.raised_us(), Some(30.0));
        assert!((waits.p99_us() - 50.0).abs() < 1e-9);
        assert!((waits.per_request() - 2.0).abs() < 1e-9);
        assert!((waits.queued_us() - 80.0).abs() < 1e-9);
    }

    #[test]
    fn of_an_earlier_wake_up_only_what_lies_within_the_request_counts() {
        let waits = Record::parse(TEXT).within(&[(10_000_130_000, 10_000_170_000)]);
        let woken_ns = vec![20_000];
        assert_eq!(waits, Waits { woken_ns, queued_ns: 20_000, requests: 1, ..Waits::default() });
    }

    #[test]
    fn a_thread_woken_before_it_slept_was_not_woken_and_one_displaced_has_waited() {
        let of_22: Vec<Wait> =
            Record::parse(TEXT).waits.into_iter().filter(|wait| wait.thread == 22).collect();
        let displaced = Wait {
            thread: 22,
            cause: Cause::Displaced,
            from: 10_000_210_000,
            ran: 10_000_220_000,
            raised: false,
        };
        assert_eq!(of_22, [displaced]);
    }

    #[test]
    fn without_requests_there_is_no_wait() {
        let waits = Record::parse(TEXT).within(&[]);
        assert_eq!(waits, Waits::default());
        assert!(
            waits.mean_us().abs() < 1e-9 && waits.p99_us().abs() < 1e-9 && waits.queued_us().abs() < 1e-9
        );
    }
}
