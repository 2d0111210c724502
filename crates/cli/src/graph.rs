//! `scoutline graph`: the module graph and the live paths, as DOT, SVG or JSON.

mod dot;
mod svg;

use std::collections::BTreeMap;

use scoutline_abi::api::{Graph, PathRow};

use crate::arguments::{self, GraphFormat};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

pub(crate) fn graph(arguments: &arguments::Graph) -> Result<(), Failure> {
    let graph = Client::connect(&arguments.control.control)?.graph()?;
    if arguments.json {
        return output::print_json(&graph);
    }
    match arguments.format {
        GraphFormat::Dot => output::print(&dot::draw(&graph)),
        GraphFormat::Svg => output::print(&svg::draw(&graph)),
    }
}

/// Paths that look alike in the picture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    stages: Vec<String>,
    class: String,
    standing: String,
}

/// What a kind of path is labelled with.
fn label(kind: &Kind, paths: &[&PathRow]) -> String {
    let number = match paths {
        [only] => only.name.clone(),
        more => format!("{} paths", more.len()),
    };
    format!("{} ({}): {number}", kind.class, kind.standing)
}

/// The live paths by what they look like: ten thousand connections make one line.
fn kinds(graph: &Graph) -> BTreeMap<Kind, Vec<&PathRow>> {
    let mut kinds: BTreeMap<Kind, Vec<&PathRow>> = BTreeMap::new();
    for path in &graph.paths {
        let standing = output::standing(path.priority, &path.scheduling);
        let kind = Kind { stages: path.stages.clone(), class: path.class.clone(), standing };
        kinds.entry(kind).or_default().push(path);
    }
    kinds
}

/// The links as module names and service names: (upper module, its service, lower module, its service).
fn links(graph: &Graph) -> impl Iterator<Item = (&str, &str, &str, &str)> {
    graph.links.iter().map(|(upper, lower)| {
        let (upper, upper_service) = upper.split_once('.').unwrap_or((upper, ""));
        let (lower, lower_service) = lower.split_once('.').unwrap_or((lower, ""));
        (upper, upper_service, lower, lower_service)
    })
}

#[cfg(test)]
fn sample() -> Graph {
    let link = |upper: &str, lower: &str| (upper.to_owned(), lower.to_owned());
    let path = |id: &str| PathRow {
        id: id.into(),
        name: "tcp 10.0.0.1:80 <- 10.0.0.2:4000".into(),
        stages: ["ETH", "IP4", "TCP", "SOCKET"].map(String::from).to_vec(),
        class: "a<b".into(),
        priority: Some(2),
        ..PathRow::default()
    };
    Graph {
        modules: ["ETH", "ARP", "IP4", "TCP", "SOCKET"].map(String::from).to_vec(),
        links: vec![
            link("SOCKET.down", "TCP.up"),
            link("TCP.down", "IP4.up"),
            link("IP4.down", "ETH.up"),
            link("ARP.down", "ETH.up"),
            link("IP4.resolve", "ARP.resolve"),
        ],
        paths: vec![path("1.0"), path("2.0")],
    }
}
