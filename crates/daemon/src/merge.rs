//! The answers of several engines as one: what was counted is added up, lists are joined, and which engine did what stays
//! to be seen.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use scoutline_abi::api::{Answer, ClassRow, PathRow, PolicyRow, ProgramRow, StageCost, StageRow, Stat};

type Counters = BTreeMap<String, u64>;

/// Makes one answer of all. What one engine refuses is refused.
///
/// # Panics
/// Without any.
pub(crate) fn merge(answers: Vec<Answer>) -> Answer {
    if let Some(error) = answers.iter().find(|answer| matches!(answer, Answer::Error { .. })) {
        return error.clone();
    }
    let numbered = answers.into_iter().enumerate().map(|(engine, answer)| of_engine(engine, answer));
    numbered.reduce(join).expect("there is an engine")
}

/// Says whose it is.
fn of_engine(engine: usize, mut answer: Answer) -> Answer {
    let number = |rows: &mut Vec<PathRow>| {
        for row in rows {
            row.engine = engine as u32;
            row.id = format!("{engine}:{}", row.id);
        }
    };
    match &mut answer {
        Answer::Paths { paths } => number(paths),
        Answer::Graph(graph) => number(&mut graph.paths),
        Answer::Stat(stat) => stat.engines = vec![stat.engine.clone()],
        _ => {}
    }
    answer
}

fn join(mut one: Answer, other: Answer) -> Answer {
    match (&mut one, other) {
        (Answer::Paths { paths }, Answer::Paths { paths: more }) => paths.extend(more),
        (Answer::Graph(graph), Answer::Graph(more)) => graph.paths.extend(more.paths),
        (Answer::Stat(stat), Answer::Stat(more)) => add_stat(stat, more),
        _ => {}
    }
    one
}

fn add_stat(stat: &mut Stat, more: Stat) {
    add(&mut stat.engine, &more.engine);
    stat.engines.extend(more.engines);
    for (name, counters) in more.devices {
        add(stat.devices.entry(name).or_default(), &counters);
    }
    add(&mut stat.drops, &more.drops);
    add_rows(&mut stat.classes, more.classes, |one, other| one.name == other.name, add_class);
    add_rows(&mut stat.policies, more.policies, |one, other| one.name == other.name, add_policy);
    add_rows(&mut stat.programs, more.programs, |one, other| one.pid == other.pid, add_program);
    add_rows(&mut stat.stages, more.stages, |one, other| one.module == other.module, add_stage);
    let fresh = more.notices.into_iter().filter(|notice| !stat.notices.contains(notice));
    let fresh: Vec<String> = fresh.collect();
    stat.notices.extend(fresh);
}

fn add(to: &mut Counters, more: &Counters) {
    for (name, count) in more {
        *to.entry(name.clone()).or_default() += count;
    }
}

/// Adds to the rows that are about the same; the others come behind.
fn add_rows<R>(rows: &mut Vec<R>, more: Vec<R>, same: impl Fn(&R, &R) -> bool, add: impl Fn(&mut R, &R)) {
    for other in more {
        match rows.iter_mut().find(|row| same(row, &other)) {
            Some(row) => add(row, &other),
            None => rows.push(other),
        }
    }
}

fn add_class(row: &mut ClassRow, more: &ClassRow) {
    row.paths += more.paths;
    row.connections += more.connections;
    row.memory_bytes += more.memory_bytes;
    row.cpu_ns += more.cpu_ns;
    row.packets_in += more.packets_in;
    row.packets_out += more.packets_out;
    row.bytes_in += more.bytes_in;
    row.bytes_out += more.bytes_out;
    row.requests += more.requests;
    row.promised_percent += more.promised_percent;
    add(&mut row.drops, &more.drops);
}

fn add_policy(row: &mut PolicyRow, more: &PolicyRow) {
    row.cpu_ns += more.cpu_ns;
    row.missed += more.missed;
    row.memory_bytes += more.memory_bytes;
    row.promised_percent += more.promised_percent;
}

fn add_program(row: &mut ProgramRow, more: &ProgramRow) {
    // Processes and refusals each engine reads in the same place.
    row.sockets += more.sockets;
}

fn add_stage(row: &mut StageRow, more: &StageRow) {
    add_cost(&mut row.inward, &more.inward);
    add_cost(&mut row.outward, &more.outward);
    add_cost(&mut row.timeouts, &more.timeouts);
}

fn add_cost(cost: &mut StageCost, more: &StageCost) {
    cost.ns += more.ns;
    cost.packets += more.packets;
    cost.bursts += more.bursts;
}
