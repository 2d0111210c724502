//! Rules: where they match, that they end, and that a transformed path means what the plain one does.

use std::any::Any;

use proptest::prelude::*;

use super::{ANY, Rule, RuleSet};
use crate::testing::{Layer, Log, Program, grant, packet, path_of, three_layers, wire};
use crate::{Body, Burst, Context, DropReason, Runner, Stage, Stages};

/// A and B in one: a header of two bytes.
struct Fused {
    outer: u8,
    inner: u8,
}

impl Stage for Fused {
    fn module(&self) -> &'static str {
        "A+B"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        for mut message in std::mem::take(burst) {
            if message.bytes().starts_with(&[self.outer, self.inner]) {
                message.advance(2);
                burst.push(message);
            } else {
                context.drop_message(message, DropReason::Malformed);
            }
        }
    }

    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {
        for message in burst.iter_mut().filter(|message| !matches!(message.body, Body::Control(_))) {
            message.head.prepend(2).copy_from_slice(&[self.outer, self.inner]);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

struct Fuse;

impl Rule for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn pattern(&self) -> &[&str] {
        &["A", "B"]
    }

    fn apply(&self, matched: Stages) -> Result<Stages, Stages> {
        if matched.iter().any(|stage| !stage.as_any().is::<Layer>()) {
            return Err(matched);
        }
        let letter = |stage: &dyn Stage| stage.module().as_bytes()[0];
        Ok(vec![Box::new(Fused { outer: letter(&*matched[0]), inner: letter(&*matched[1]) })])
    }
}

fn names(stages: &Stages) -> Vec<&'static str> {
    stages.iter().map(|stage| stage.module()).collect()
}

#[test]
fn replaces_wherever_the_pattern_stands() {
    let log = Log::default();
    let mut rules = RuleSet::new();
    assert_eq!(names(&rules.transform(three_layers(&log, |_| ()))), ["A", "B", "C"]);
    rules.push(Box::new(Fuse));
    assert_eq!(names(&rules.transform(three_layers(&log, |_| ()))), ["A+B", "C"]);
    let mut tunnel = three_layers(&log, |_| ());
    tunnel.extend(three_layers(&log, |_| ()));
    tunnel.pop();
    assert_eq!(names(&rules.transform(tunnel)), ["A+B", "C", "A+B"]);
    let mut short = three_layers(&log, |_| ());
    short.truncate(1);
    assert_eq!(names(&rules.transform(short)), ["A"]);
    assert_eq!(rules.names().collect::<Vec<_>>(), ["fuse"]);
}

#[test]
fn a_rule_that_declines_or_never_rests_harms_nothing() {
    struct Picky(bool);
    impl Rule for Picky {
        fn name(&self) -> &'static str {
            "picky"
        }
        fn pattern(&self) -> &[&str] {
            &[ANY, "B"]
        }
        fn apply(&self, matched: Stages) -> Result<Stages, Stages> {
            if self.0 { Ok(matched) } else { Err(matched) }
        }
    }
    let log = Log::default();
    for restless in [false, true] {
        let mut rules = RuleSet::new();
        rules.push(Box::new(Picky(restless)));
        assert_eq!(names(&rules.transform(three_layers(&log, |_| ()))), ["A", "B", "C"]);
    }
}

/// Frames that get far: mostly the right letters.
fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let letter = |letter: u8| prop_oneof![9 => Just(letter), 1 => any::<u8>()];
    let frame =
        (letter(b'A'), letter(b'B'), letter(b'C'), prop::collection::vec(any::<u8>(), 0..20), 0usize..24)
            .prop_map(|(a, b, c, data, len)| {
                let mut frame = vec![a, b, c];
                frame.extend(data);
                frame.truncate(len);
                frame
            });
    prop::collection::vec(frame, 0..40)
}

/// What goes out, what the program gets, and how many were refused.
fn run(rules: &RuleSet, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, u32) {
    let log = Log::default();
    let mut stages = three_layers(&log, |_| ());
    stages.push(Box::new(Program { got: Vec::new() }));
    let mut path = path_of(rules.transform(stages));
    let mut runner = Runner::new();
    for frame in frames {
        path.offer(packet(frame)).unwrap();
    }
    while path.run_inward(&mut runner, crate::Grant { packets: 7, ..grant() }).more {}
    let got = path.stage::<Program>().unwrap().got.iter().map(|message| message.bytes().to_vec()).collect();
    (runner.out.iter().map(wire).collect(), got, path.account.drops(DropReason::Malformed))
}

proptest! {
    #[test]
    fn a_transformed_path_does_byte_for_byte_what_the_plain_one_does(frames in frames()) {
        let mut rules = RuleSet::new();
        rules.push(Box::new(Fuse));
        rules.push(Box::new(crate::MeasureRule::new(
            std::rc::Rc::new(|| scoutline_base::Time::ZERO),
            std::rc::Rc::default(),
        )));
        prop_assert_eq!(run(&RuleSet::new(), &frames), run(&rules, &frames));
    }
}
