//! The books of an engine, held against what can be seen from outside: its statistics, its programs' regions, its
//! devices.

use scoutline_abi::Region;
use scoutline_abi::api::{Answer, PathRow, Request, Stat};
use scoutline_abi::layout::{slot_kind, slot_state};
use scoutline_base::Time;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::host::Host;

/// Totals of one host that never go down while it is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    starts: u64,
    totals: [u64; 4],
}

/// Bytes of rings in a region: of sockets that carry data, and of listening ones.
fn rings(region: &Region) -> (u64, u64) {
    let (mut data, mut listening) = (0, 0);
    for slot in region.slots_used().filter_map(|index| region.slot(index)) {
        if slot.kind.load(Relaxed) == slot_kind::FREE {
            continue;
        }
        let bytes = u64::from(slot.receive_size.load(Relaxed)) + u64::from(slot.send_size.load(Relaxed));
        let listens = slot.state.load(Relaxed) & slot_state::LISTENING != 0;
        *(if listens { &mut listening } else { &mut data }) += bytes;
    }
    (data, listening)
}

fn counter(stat: &Stat, name: &str) -> u64 {
    stat.engine.get(name).copied().unwrap_or_default()
}

fn same(what: &str, one: u64, other: u64) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{what}: {one} and {other}")) }
}

/// Holds the books against each other and against what was before.
pub(crate) fn check(host: &Host, before: &mut Totals, now: Time) -> Result<(), String> {
    let (Some(stat), Some(engine)) = (host.stat(now), &host.engine) else {
        *before = Totals::default();
        return Ok(());
    };
    let Answer::Paths { paths } = engine.query(&Request::Ps, now) else {
        return Err("no list of paths".into());
    };
    let in_class = |f: fn(&scoutline_abi::api::ClassRow) -> u64| stat.classes.iter().map(f).sum::<u64>();
    // Memory: what the classes are charged is what their sockets hold.
    let memory = in_class(|class| class.memory_bytes);
    // Rings that are being exchanged for larger ones are charged beside those that the slots name.
    let handed_out = counter(&stat, "ring-bytes");
    if let Some(program) = &host.program {
        let (data, listening) = rings(&program.region);
        if handed_out < data + listening {
            return Err(format!(
                "{handed_out} bytes of rings are handed out, sockets have {}",
                data + listening
            ));
        }
        // Another program's may linger, and a closed socket whose last messages wait at the device may be charged to a
        // class that is no more.
        if host.graves.is_empty() && !host.has_changed_classes {
            same("memory charged to classes, rings handed out", memory, handed_out - listening)
                .map_err(|wrong| format!("{wrong}; {}", show(&stat, &paths)))?;
            let policies = stat.policies.iter().map(|policy| policy.memory_bytes).sum();
            same("memory of classes, of policies", memory, policies)?;
        }
    }
    // Paths.
    same("paths, paths of classes", paths.len() as u64, in_class(|class| class.paths))?;
    same("paths, paths counted", paths.len() as u64, counter(&stat, "paths"))?;
    if counter(&stat, "timers-set") > paths.len() as u64 {
        return Err(format!("{} timers for {} paths", counter(&stat, "timers-set"), paths.len()));
    }
    let connections = paths.iter().filter(|path| is_used_connection(path)).count() as u64;
    let counted = in_class(|class| class.connections);
    if counted > paths.len() as u64 || connections < counted {
        return Err(format!("{counted} connections are counted, {connections} are there"));
    }
    // Packets.
    let devices = |name: &str| stat.devices.values().map(|counters| counters[name]).sum::<u64>();
    same("packets pulled, packets of devices", counter(&stat, "packets-pulled"), devices("rx-packets"))?;
    same("packets pushed, packets of devices", counter(&stat, "packets-pushed"), devices("tx-packets"))?;
    let totals = [
        in_class(|class| class.packets_in),
        in_class(|class| class.packets_out),
        in_class(|class| class.bytes_in),
        in_class(|class| class.bytes_out),
    ];
    if before.starts == host.starts && totals.iter().zip(before.totals).any(|(now, before)| *now < before) {
        return Err(format!("totals of classes went down: {before:?}, then {totals:?}"));
    }
    *before = Totals { starts: host.starts, totals };
    Ok(())
}

/// For people: who is charged what, and what is there.
fn show(stat: &Stat, paths: &[PathRow]) -> String {
    let classes: Vec<_> =
        stat.classes.iter().map(|class| (&class.name, class.paths, class.memory_bytes)).collect();
    let paths: Vec<_> = paths.iter().map(|path| (&path.name, &path.class, &path.state)).collect();
    format!("{classes:?}, {paths:?}")
}

/// A connection may count in its class as long as its path is there.
fn is_used_connection(path: &PathRow) -> bool {
    path.stages.iter().any(|stage| stage.contains("TCP")) && path.peer.is_some()
}

/// Once everything is closed and TIME-WAIT is over, nothing may be left.
pub(crate) fn check_empty(host: &mut Host, now: Time) -> Result<(), String> {
    let unconfirmed = host.unconfirmed();
    let (Some(stat), Some(engine)) = (host.stat(now), &host.engine) else { return Ok(()) };
    let Answer::Paths { paths } = engine.query(&Request::Ps, now) else {
        return Err("no list of paths".into());
    };
    if let Some(path) = paths.iter().find(|path| path.program.is_some() || is_used_connection(path)) {
        return Err(format!("a path is left: {} {:?} of {:?}", path.name, path.state, path.program));
    }
    if let Some(path) = paths.iter().find(|path| path.queue_packets > 0) {
        return Err(format!("packets wait for ever at {}", path.name));
    }
    same("connections left, none", stat.classes.iter().map(|class| class.connections).sum(), 0)?;
    same("memory left, none", stat.classes.iter().map(|class| class.memory_bytes).sum(), 0)?;
    same("rings left, none", counter(&stat, "ring-bytes"), 0)?;
    same("buffers left, none", counter(&stat, "buffer-bytes"), 0)?;
    same("sockets left, none", stat.programs.iter().map(|program| program.sockets).sum(), 0)?;
    same("classes never confirmed, none", unconfirmed as u64, 0)?;
    let held = host.graves.iter().filter(|region| Arc::strong_count(region) > 1).count();
    same("regions of killed programs still held, none", held as u64, 0)
}
