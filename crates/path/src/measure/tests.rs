//! The stopwatch reads what the clock says, and nothing else changes.

use std::cell::Cell;
use std::rc::Rc;

use scoutline_base::Time;

use super::{Cost, MeasureRule, Measured, Measurements, StageTotals};
use crate::testing::{Layer, Log, grant, packet, path_of, three_layers};
use crate::{Burst, RuleSet, Runner};

#[test]
fn times_each_stage_in_each_direction() {
    let log = Log::default();
    // Each reading is 100 ns after the one before.
    let ticks = Cell::new(0);
    let clock = move || {
        ticks.set(ticks.get() + 100);
        Time::from_nanos(ticks.get())
    };
    let mut rules = RuleSet::new();
    let totals = Rc::new(StageTotals::default());
    rules.push(Box::new(MeasureRule::new(Rc::new(clock), Rc::clone(&totals))));
    let stages = rules.transform(three_layers(&log, |layers| layers[1].timeout = Some(Time::ZERO)));
    assert_eq!(stages.len(), 3);
    let mut path = path_of(stages);
    path.replace_stages(|stages| rules.transform(stages));
    let mut runner = Runner::new();
    for _ in 0..4 {
        path.offer(packet(b"ABC")).unwrap();
    }
    path.run_inward(&mut runner, grant());
    path.run_outward(&mut runner, grant(), &mut Burst::new());
    path.on_timeout(&mut runner, grant());

    let middle = path.stages()[1].measurements().unwrap();
    assert_eq!(
        middle.inward,
        Cost { ns: 100, packets: 4, bursts: 1 },
        "measured once, however often transformed"
    );
    assert_eq!(middle.inward.ns_per_packet(), 25);
    assert_eq!(middle.outward, Cost { ns: 100, packets: 0, bursts: 1 });
    assert_eq!(middle.timeouts, Cost { ns: 100, packets: 1, bursts: 1 });
    let both = middle.and(*middle);
    assert_eq!(both.inward, Cost { ns: 200, packets: 8, bursts: 2 });
    let of_module: Vec<(&str, Measurements)> = totals.all();
    assert_eq!(of_module[1], ("B", *middle), "the one path so far");
    assert_eq!(path.describe()[1].module, "B");
    let expected = [("header", "B"), ("inward-ns-per-packet", "25"), ("outward-ns-per-packet", "0")];
    assert_eq!(path.describe()[1].facts, expected.map(|(name, value)| (name, value.to_owned())));

    // Who looks for the stage inside finds it, and the stopwatch comes off again.
    assert_eq!(path.stage::<Layer>().unwrap().module, "C");
    path.replace_stages(|stages| {
        let unwrap =
            |stage: Box<dyn crate::Stage>| stage.into_any().downcast::<Measured>().unwrap().into_inner();
        stages.into_iter().map(unwrap).collect()
    });
    assert!(path.stages().iter().all(|stage| stage.measurements().is_none()));
    assert_eq!(totals.all(), of_module, "what finished paths have cost stays");
}
