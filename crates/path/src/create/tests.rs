//! Creation runs towards the device, establishment away from it, and a failure leaves nothing behind.

use crate::testing::{DOWN, Fake, Layer, Log, UP, logged};
use crate::{Arity, Attributes, CreateError, Graph, GraphBuilder, Next, Service};

const MANY: Service = Service { arity: Arity::Many, ..DOWN };

fn graph(log: &Log, top: Fake, middle: Fake) -> Graph {
    let graph = GraphBuilder::new()
        .module(Box::new(top))
        .module(Box::new(middle))
        .module(Box::new(Fake::leaf("E", log)))
        .module(Box::new(Fake::leaf("F", log)))
        .link("T.down", "I.up")
        .link("I.down", "E.up")
        .link("I.down", "F.up");
    let graph = graph.build().unwrap();
    logged(log);
    graph
}

fn middle(log: &Log) -> Fake {
    Fake { services: &[UP, MANY], ..Fake::new("I", log) }
}

fn error(graph: &Graph) -> CreateError {
    graph.path_create("T", Attributes::new()).err().expect("no path can be made")
}

#[test]
fn makes_stages_towards_the_device_and_establishes_them_away_from_it() {
    let log = Log::default();
    let graph = GraphBuilder::new()
        .module(Box::new(Fake::new("T", &log)))
        .module(Box::new(Fake { stage: |_| None, ..Fake::new("I", &log) }))
        .module(Box::new(Fake::leaf("E", &log)))
        .link("T.down", "I.up")
        .link("I.down", "E.up")
        .build()
        .unwrap();
    logged(&log);
    let new = graph.path_create("T", Attributes::new()).unwrap();
    let modules: Vec<_> = new.stages.iter().map(|stage| stage.module()).collect();
    assert_eq!(modules, ["E", "T"], "device side first; I only passed creation on");
    assert_eq!(logged(&log), ["create T", "create I", "create E", "establish E", "establish T"]);
    drop(new);
    assert_eq!(logged(&log), ["drop E", "drop T"]);
}

#[test]
fn needs_a_unique_way_on() {
    let log = Log::default();
    let ambiguous = graph(&log, Fake::new("T", &log), middle(&log));
    assert_eq!(error(&ambiguous), CreateError::Ambiguous { module: "I", service: "down" });
    assert_eq!(logged(&log), ["create T", "create I", "drop T", "drop I"]);

    // The attributes are too unspecific to go on: the path ends there (Scout §3.2).
    let ends = graph(&log, Fake::new("T", &log), Fake { next: Next::End, ..middle(&log) });
    assert_eq!(ends.path_create("T", Attributes::new()).unwrap().stages.len(), 2);

    let elsewhere = Fake { next: Next::Through("aside"), ..middle(&log) };
    let unlinked = graph(&log, Fake::new("T", &log), elsewhere);
    assert_eq!(error(&unlinked), CreateError::NotLinked { module: "I", service: "aside" });
    assert_eq!(
        unlinked.path_create("U", Attributes::new()).err(),
        Some(CreateError::NoModule("U".to_owned()))
    );

    let empty = graph(&log, Fake { stage: |_| None, next: Next::End, ..Fake::new("T", &log) }, middle(&log));
    assert_eq!(error(&empty), CreateError::Empty("T".to_owned()));
}

#[test]
fn a_circular_route_ends_in_an_error() {
    const LATE: Service = Service { name: "down", initialise_first: false, ..DOWN };
    let log = Log::default();
    let graph = GraphBuilder::new()
        .module(Box::new(Fake { services: &[UP, LATE], ..Fake::new("T", &log) }))
        .link("T.down", "T.up")
        .build()
        .unwrap();
    assert_eq!(error(&graph), CreateError::Endless { module: "T" });
    let log = logged(&log);
    let count = |start: &str| log.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("create"), count("drop"));
}

#[test]
fn a_failed_establishment_undoes_all() {
    let log = Log::default();
    let fails = |fake: &Fake| -> Option<Box<dyn crate::Stage>> {
        let mut layer = Layer::new(fake.name, &fake.log);
        layer.fails = true;
        Some(Box::new(layer))
    };
    let graph = graph(&log, Fake::new("T", &log), Fake { next: Next::End, stage: fails, ..middle(&log) });
    assert_eq!(error(&graph), CreateError::InUse);
    assert_eq!(logged(&log), ["create T", "create I", "establish I", "drop I", "drop T"]);
}
