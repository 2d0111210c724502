//! The named sets of paths.

use std::time::Duration;

use scoutline_sched::schedule::{Configuration, Linux, Shares};
use scoutline_sched::simulation::{Asks, Load, Place, Task};
use scoutline_sched::{Level, Share, Weight};

/// A set of paths, and the schedule for it. Paths of one name are reported together.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) entries: Vec<(&'static str, Task)>,
    pub(super) configuration: Configuration,
    /// WFQ is a peer, too.
    pub(super) against_wfq: bool,
}

/// All of them.
pub(super) fn all() -> Vec<Workload> {
    vec![deadlines(), weights(), classes(), bert(), all_busy(), lent(), linux()]
}

/// Scout's table (§4.2) in today's numbers: eight slow streams and a fast one.
fn deadlines() -> Workload {
    let stream = |rate: u32, period: u64, work: u64| {
        task(Asks::Deadline, periodic(period, work, 0), Place::weight(rate))
    };
    let mut entries = vec![("slow streams", stream(8, 100_000, 8_000)); 8];
    entries.push(("fast stream", stream(31, 33_333, 10_333)));
    Workload { name: "EDF at 95 %", entries, configuration: Configuration::default(), against_wfq: false }
}

fn weights() -> Workload {
    let weighted = |weight: u32, load| task(Asks::Weight(weight_of(weight)), load, Place::weight(weight));
    let entries = vec![
        ("10", weighted(10, Load::Always)),
        ("100", weighted(100, Load::Always)),
        ("1,000", weighted(1_000, Load::Always)),
        ("500, bursts", weighted(500, periodic(20_000, 3_000, 2_000))),
    ];
    Workload { name: "WFQ, weights", entries, configuration: Configuration::default(), against_wfq: false }
}

/// Classes of equal weight with one path, with nine, and with three of which one comes and goes; and one of twice that.
fn classes() -> Workload {
    let member = |class: u16, class_weight: u32, load| {
        let share = Share { class, class_weight: weight_of(class_weight), weight: weight_of(100) };
        let ideal = Place { rank: 1, group: class as u8, share: class_weight, weight: 100 };
        task(Asks::Share(share), load, ideal)
    };
    let mut entries = vec![("one path", member(0, 100, Load::Always))];
    entries.extend(vec![("nine paths", member(1, 100, Load::Always)); 9]);
    entries.extend(vec![("three paths", member(2, 100, Load::Always)); 2]);
    entries.push(("three paths", member(2, 100, periodic(20_000, 1_000, 500))));
    entries.extend(vec![("twice the weight", member(3, 200, Load::Always)); 2]);
    Workload { name: "WFQ, classes", entries, configuration: Configuration::default(), against_wfq: true }
}

/// A decoder that reserved 10 % and needs 30, beside an important transfer and others.
fn bert() -> Workload {
    let rate = |percent: u32| weight_of(percent * 100);
    let best_effort = |percent: u32, important| {
        task(Asks::Rate { rate: rate(percent), important }, Load::Always, Place::weight(percent))
    };
    let decoder = task(
        Asks::RealTime { rate: rate(10), important: true },
        periodic(33_333, 10_000, 1_000),
        Place::weight(10),
    );
    let entries = vec![
        ("decoder", decoder),
        ("important", best_effort(20, true)),
        ("bulk", best_effort(10, false)),
        ("bulk ×2", best_effort(20, false)),
        ("bulk ×4", best_effort(40, false)),
    ];
    let shares = Shares { fixed: 1, edf: 1, wfq: 1, bert: 97 };
    Workload {
        name: "BERT at full load",
        entries,
        configuration: Configuration { shares, ..Configuration::default() },
        against_wfq: true,
    }
}

const SHARES: Shares = Shares { fixed: 40, edf: 30, wfq: 20, bert: 10 };

/// A place in the policy with this share.
fn place(group: u8, share: u16, weight: u32) -> Place {
    Place { rank: 1, group, share: share.into(), weight }
}

fn mixed(edf: Load) -> Vec<(&'static str, Task)> {
    let level = Asks::Level(Level::Priority(3));
    let weight = |weight| Asks::Weight(weight_of(weight));
    let rate = Asks::Rate { rate: weight_of(100), important: false };
    let idle = Place { rank: 0, group: 9, share: 1, weight: 1 };
    vec![
        ("priority", task(level, Load::Always, place(0, SHARES.fixed, 1))),
        ("EDF", task(Asks::Deadline, edf, place(1, SHARES.edf, 1))),
        ("WFQ ×1", task(weight(1), Load::Always, place(2, SHARES.wfq, 1))),
        ("WFQ ×3", task(weight(3), Load::Always, place(2, SHARES.wfq, 3))),
        ("BERT", task(rate, Load::Always, place(3, SHARES.bert, 1))),
        ("idle", task(Asks::Level(Level::Idle), Load::Always, idle)),
    ]
}

fn all_busy() -> Workload {
    Workload {
        name: "shares, all busy",
        entries: mixed(Load::Always),
        configuration: Configuration { shares: SHARES, ..Configuration::default() },
        against_wfq: false,
    }
}

/// Deadlines that need a third of their share: what is left goes to the others.
fn lent() -> Workload {
    Workload {
        name: "shares, EDF lends",
        entries: mixed(periodic(10_000, 1_000, 500)),
        configuration: Configuration { shares: SHARES, ..Configuration::default() },
        against_wfq: false,
    }
}

fn linux() -> Workload {
    let level = Asks::Level(Level::Priority(3));
    let linux = Task { linux: true, ..task(level, Load::Always, place(4, 50, 1)) };
    let mut entries = vec![("Linux", linux)];
    entries.extend(vec![("paths", task(level, Load::Always, place(0, 47, 1))); 8]);
    entries.push(("paths", task(Asks::Weight(weight_of(1)), Load::Always, place(2, 3, 1))));
    let configuration = Configuration {
        // A 0 counts as 1, and so all together are 102 and Linux is guaranteed 49 %; nobody uses those two.
        shares: Shares { fixed: 47, edf: 0, wfq: 3, bert: 0 },
        linux: Linux::Share(50),
        ..Configuration::default()
    };
    Workload { name: "Linux at 50 %", entries, configuration, against_wfq: false }
}

fn task(asks: Asks, load: Load, ideal: Place) -> Task {
    Task { asks, load, ideal, overrun: Duration::ZERO, linux: false }
}

fn weight_of(weight: u32) -> Weight {
    Weight::new(weight.into())
}

/// A job each period, due when the next one comes; in microseconds.
fn periodic(period: u64, work: u64, jitter: u64) -> Load {
    Load::Periodic {
        period: Duration::from_micros(period),
        offset: Duration::ZERO,
        work: Duration::from_micros(work),
        jitter: Duration::from_micros(jitter),
        deadline: Duration::from_micros(period),
    }
}
