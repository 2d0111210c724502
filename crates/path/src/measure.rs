//! The measuring rule (Scout §4.2): wraps each stage in one that times it, and changes nothing else.
//!
//! The clock is handed in from the edge, so this crate stays pure. Time is taken once on either side of a burst;
//! a run of one packet pays two readings per stage, a full burst a fraction of that.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use scoutline_base::Time;

use crate::rules::{ANY, Rule};
use crate::{Attributes, Burst, Context, CreateError, Stage, Stages};

/// Tells the time in the finest steps that the edge has.
pub trait Clock {
    /// Now.
    fn now(&self) -> Time;
}

impl<F: Fn() -> Time> Clock for F {
    fn now(&self) -> Time {
        self()
    }
}

/// What one stage cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    /// Inward.
    pub inward: Cost,
    /// Outward.
    pub outward: Cost,
    /// Time-outs; a "packet" is one that was due.
    pub timeouts: Cost,
}

/// Time spent on a number of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds in all.
    pub ns: u64,
    /// Packets that entered the stage.
    pub packets: u64,
    /// Bursts in which they came.
    pub bursts: u64,
}

impl Cost {
    /// Nanoseconds for one packet, on average.
    pub fn ns_per_packet(&self) -> u64 {
        self.ns.checked_div(self.packets).unwrap_or(0)
    }

    fn charge(&mut self, from: Time, to: Time, packets: usize) {
        self.ns += to.since(from).as_nanos() as u64;
        self.packets += packets as u64;
        self.bursts += 1;
    }

    fn add(&mut self, other: Cost) {
        self.ns += other.ns;
        self.packets += other.packets;
        self.bursts += other.bursts;
    }
}

impl Measurements {
    /// Both together.
    #[must_use]
    pub fn and(mut self, other: Measurements) -> Measurements {
        self.inward.add(other.inward);
        self.outward.add(other.outward);
        self.timeouts.add(other.timeouts);
        self
    }
}

/// What all stages of each module have cost, those of finished paths included.
#[derive(Debug, Default)]
pub struct StageTotals {
    modules: RefCell<BTreeMap<&'static str, Rc<Cell<Measurements>>>>,
}

impl StageTotals {
    /// By module.
    pub fn all(&self) -> Vec<(&'static str, Measurements)> {
        self.modules.borrow().iter().map(|(module, total)| (*module, total.get())).collect()
    }

    fn of(&self, module: &'static str) -> Rc<Cell<Measurements>> {
        Rc::clone(self.modules.borrow_mut().entry(module).or_default())
    }
}

/// Wraps every stage in one that measures it. Put it after the rules that look for certain stages: they see the
/// wrapper, not what is in it.
pub struct MeasureRule {
    clock: Rc<dyn Clock>,
    totals: Rc<StageTotals>,
}

impl MeasureRule {
    /// A rule that reads this clock and adds to these totals.
    pub fn new(clock: Rc<dyn Clock>, totals: Rc<StageTotals>) -> MeasureRule {
        MeasureRule { clock, totals }
    }
}

impl Rule for MeasureRule {
    fn name(&self) -> &'static str {
        "measure"
    }

    fn pattern(&self) -> &[&str] {
        &[ANY]
    }

    fn apply(&self, matched: Stages) -> Result<Stages, Stages> {
        if matched.iter().any(|stage| stage.measurements().is_some()) {
            return Err(matched);
        }
        let clock = &self.clock;
        let wrap = |inner: Box<dyn Stage>| -> Box<dyn Stage> {
            let total = self.totals.of(inner.module());
            Box::new(Measured {
                inner,
                clock: Rc::clone(clock),
                total,
                measurements: Measurements::default(),
            })
        };
        Ok(matched.into_iter().map(wrap).collect())
    }
}

/// A stage with a stopwatch. It answers as the stage inside it, so that who looks for that one finds it.
pub struct Measured {
    inner: Box<dyn Stage>,
    clock: Rc<dyn Clock>,
    /// Of all stages of its module.
    total: Rc<Cell<Measurements>>,
    measurements: Measurements,
}

impl Measured {
    /// The stage inside, without the stopwatch.
    pub fn into_inner(self) -> Box<dyn Stage> {
        self.inner
    }

    fn charge(&mut self, which: fn(&mut Measurements) -> &mut Cost, from: Time, packets: usize) {
        let to = self.clock.now();
        let mut total = self.total.get();
        for measurements in [&mut self.measurements, &mut total] {
            which(measurements).charge(from, to, packets);
        }
        self.total.set(total);
    }
}

impl Stage for Measured {
    fn module(&self) -> &'static str {
        self.inner.module()
    }

    fn establish(&mut self, attributes: &mut Attributes) -> Result<(), CreateError> {
        self.inner.establish(attributes)
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        let (packets, start) = (burst.len(), self.clock.now());
        self.inner.inward(burst, turned, context);
        self.charge(|measurements| &mut measurements.inward, start, packets);
    }

    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        let (packets, start) = (burst.len(), self.clock.now());
        self.inner.outward(burst, turned, context);
        self.charge(|measurements| &mut measurements.outward, start, packets);
    }

    fn next_timeout(&self) -> Option<Time> {
        self.inner.next_timeout()
    }

    fn on_timeout(&mut self, inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        let start = self.clock.now();
        self.inner.on_timeout(inward, outward, context);
        self.charge(|measurements| &mut measurements.timeouts, start, 1);
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        self.inner.describe(facts);
        let Measurements { inward, outward, .. } = self.measurements;
        facts.push(("inward-ns-per-packet", inward.ns_per_packet().to_string()));
        facts.push(("outward-ns-per-packet", outward.ns_per_packet().to_string()));
    }

    fn measurements(&self) -> Option<&Measurements> {
        Some(&self.measurements)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self.inner.as_any_mut()
    }
}

#[cfg(test)]
mod tests;
