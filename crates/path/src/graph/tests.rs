//! Every error names its link, cycles are fine, and demux goes from module to module without leaving a trace.

use scoutline_base::{DeviceId, PathId};

use super::*;
use crate::testing::{DOWN, Fake, Log, UP, logged};
use crate::{Arity, CreateError, Service, Side};

const RESOLVE: Service = Service {
    name: "resolve",
    kind: ServiceKind::Resolve,
    side: Side::Lower,
    arity: Arity::Optional,
    initialise_first: true,
};
const ANSWERS: Service = Service { side: Side::Upper, initialise_first: false, ..RESOLVE };

/// E is at the device, A and I above it, T above I; I asks A for addresses.
fn builder(log: &Log) -> GraphBuilder {
    GraphBuilder::new()
        .module(Box::new(Fake::new("T", log)))
        .module(Box::new(Fake { services: &[UP, DOWN, RESOLVE], ..Fake::new("I", log) }))
        .module(Box::new(Fake { services: &[UP, DOWN, ANSWERS], ..Fake::new("A", log) }))
        .module(Box::new(Fake::leaf("E", log)))
        .link("T.down", "I.up")
        .link("I.down", "E.up")
        .link("A.down", "E.up")
        .link("I.resolve", "A.resolve")
}

fn error(builder: GraphBuilder) -> (GraphError, String) {
    let error = builder.build().expect_err("the graph is wrong");
    (error.clone(), error.to_string())
}

#[test]
fn initialises_in_order_and_lists_what_it_has() {
    let log = Log::default();
    let graph = builder(&log).build().unwrap();
    assert_eq!(logged(&log), ["initialise E", "initialise A", "initialise I", "initialise T"]);
    let links: Vec<_> = graph.links().map(ToString::to_string).collect();
    assert_eq!(links, ["T.down -> I.up", "I.down -> E.up", "A.down -> E.up", "I.resolve -> A.resolve"]);
    let names: Vec<_> = graph.modules().map(|(_, module)| module.name()).collect();
    assert_eq!(names, ["T", "I", "A", "E"]);
    let order: Vec<_> = graph.initialisation_order().iter().map(|&id| graph.module(id).name()).collect();
    assert_eq!(order, ["E", "A", "I", "T"]);
}

#[test]
fn a_cycle_of_links_is_fine_while_an_order_exists() {
    const LATE: Service = Service { name: "late", initialise_first: false, arity: Arity::Optional, ..DOWN };
    let log = Log::default();
    let graph = GraphBuilder::new()
        .module(Box::new(Fake { services: &[UP, DOWN], ..Fake::new("X", &log) }))
        .module(Box::new(Fake { services: &[UP, LATE], ..Fake::new("Y", &log) }))
        .link("X.down", "Y.up")
        .link("Y.late", "X.up");
    graph.build().unwrap();
    assert_eq!(logged(&log), ["initialise Y", "initialise X"]);

    let (error, text) = error(
        GraphBuilder::new()
            .module(Box::new(Fake::leaf("E", &log)))
            .module(Box::new(Fake { services: &[UP, DOWN, RESOLVE], ..Fake::new("T", &log) }))
            .module(Box::new(Fake { services: &[UP, DOWN, ANSWERS], ..Fake::new("X", &log) }))
            .module(Box::new(Fake::new("Y", &log)))
            .link("T.down", "E.up")
            .link("T.resolve", "X.resolve")
            .link("X.down", "Y.up")
            .link("Y.down", "X.up"),
    );
    let links = vec!["X.down -> Y.up".to_owned(), "Y.down -> X.up".to_owned()];
    assert_eq!(error, GraphError::InitialisationCycle { links }, "T only waits for the cycle");
    assert!(text.contains("X.down -> Y.up, Y.down -> X.up"), "{text}");
}

#[test]
fn one_module_may_reach_another_by_two_services() {
    const AUX: Service = Service { name: "aux", ..DOWN };
    let log = Log::default();
    let graph = GraphBuilder::new()
        .module(Box::new(Fake { services: &[UP, DOWN, AUX], ..Fake::new("T", &log) }))
        .module(Box::new(Fake::leaf("E", &log)))
        .link("T.down", "E.up")
        .link("T.aux", "E.up");
    graph.build().expect("its protocol number is taken by itself only");
}

#[test]
fn errors_name_the_link() {
    let log = Log::default();
    let base = || builder(&log);
    let cases = [
        (
            base().link("T.sideways", "I.up"),
            "link T.sideways -> I.up: module T has no service sideways (it has: up, down)",
        ),
        (base().link("U.down", "I.up"), "link U.down -> I.up: there is no module U"),
        (base().link("T", "I.up"), "link T -> I.up: \"T\" is not written MODULE.service"),
        (
            base().link("T.down", "A.resolve"),
            "link T.down -> A.resolve: a service of type Net cannot be joined to one of type Resolve",
        ),
        (
            base().link("I.up", "T.down"),
            "link I.up -> T.down: leads from a service looking up to one looking down; it must lead from down to up",
        ),
        (base().link("T.down", "I.up"), "link T.down -> I.up: is there twice"),
        (
            base().link("T.down", "A.up"),
            "link T.down -> A.up: service T.down takes one link and has T.down -> I.up already",
        ),
        (
            base().module(Box::new(Fake::new("U", &log))),
            "link U.down -> ?: is missing; the service needs exactly one",
        ),
        (
            base()
                .module(Box::new(Fake { protocol: Some(0x54), ..Fake::new("U", &log) }))
                .link("U.down", "I.up"),
            "link U.down -> I.up: protocol 0x54 is taken by T.down -> I.up",
        ),
    ];
    for (builder, expected) in cases {
        assert_eq!(error(builder).1, expected);
    }
    assert_eq!(error(base().module(Box::new(Fake::leaf("E", &log)))).0, GraphError::DuplicateModule("E"));
    assert!(logged(&log).is_empty(), "nothing starts in a graph that is wrong");
    let broken = Fake { initialise: Err(CreateError::Exhausted("memory")), ..Fake::leaf("B", &log) };
    assert_eq!(error(base().module(Box::new(broken))).1, "module B failed to initialise: out of memory");
}

#[test]
fn demux_asks_one_module_after_the_other() {
    let log = Log::default();
    let graph = builder(&log).build().unwrap();
    logged(&log);
    let demux = |bytes: &[u8]| graph.demux(bytes, DeviceId(3), graph.find("E").unwrap());
    let path = Verdict::Path(PathId { index: 7, generation: 0 });
    let (verdict, key) = demux(b"EIT\0");
    assert_eq!((verdict, key.device, key.protocol), (path, DeviceId(3), 3));
    assert_eq!(demux(b"EIT\0"), (verdict, key), "asking changes nothing");
    assert_eq!(demux(b"EI").0, Verdict::NoPath);
    assert_eq!(demux(b"EI").1.protocol, 2, "what was learnt is told");
    assert_eq!(demux(b"EXT").0, Verdict::Drop(DropReason::UnknownProtocol));
    assert_eq!(demux(b"XIT").0, Verdict::Drop(DropReason::Malformed));
    assert_eq!(
        demux(b"EAI").0,
        Verdict::Drop(DropReason::UnknownProtocol),
        "who asks A for addresses is not above it"
    );
    assert_eq!(demux(b"EI\xff").0, Verdict::Drop(DropReason::Truncated), "moved past the end");
    assert_eq!(demux(b"").0, Verdict::Drop(DropReason::Malformed));
    // A packet may be classified from further up: a datagram that was put together has no link header.
    assert_eq!(graph.demux(b"IT\0", DeviceId(3), graph.find("I").unwrap()).0, path);
    assert!(logged(&log).is_empty());
}

#[test]
fn demux_of_endless_tunnels_ends() {
    const LATE: Service = Service { name: "late", initialise_first: false, arity: Arity::Optional, ..DOWN };
    let log = Log::default();
    let graph = GraphBuilder::new()
        .module(Box::new(Fake { services: &[UP, LATE], ..Fake::new("T", &log) }))
        .link("T.late", "T.up")
        .build()
        .unwrap();
    let (verdict, _) = graph.demux(&[b'T'; 100], DeviceId(0), graph.find("T").unwrap());
    assert_eq!(verdict, Verdict::Drop(DropReason::Malformed));
}
