//! Transformation rules (Scout §3.2): a pattern over the stages of a path, and a replacement that means the same
//! but runs faster, or measures.
//!
//! The fused Ethernet+IP+TCP rule stands beside the protocols that it fuses; the measuring rule is
//! [`crate::MeasureRule`].

use crate::{Stage, Stages};

/// Matches any one stage.
pub const ANY: &str = "*";

/// Passes over one path before the rules are given up as never coming to rest.
const MAX_PASSES: usize = 8;

/// A pair of pattern and transformation.
pub trait Rule {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// The modules of consecutive stages, device side first; [`ANY`] matches every module.
    fn pattern(&self) -> &[&str];

    /// Replaces the stages that matched the pattern (device side first, already established) by others of the
    /// same meaning, byte for byte.
    ///
    /// # Errors
    /// The stages themselves, unchanged, when the rule declines: they are not of the types that it knows, or it
    /// was applied already. A rule that never declines its own result is stopped after a few passes.
    fn apply(&self, matched: Stages) -> Result<Stages, Stages>;
}

/// The rules of a graph, in the order in which they are tried.
#[derive(Default)]
pub struct RuleSet {
    rules: Vec<Box<dyn Rule>>,
}

impl RuleSet {
    /// No rules.
    pub fn new() -> RuleSet {
        RuleSet::default()
    }

    /// Adds a rule after the others.
    pub fn push(&mut self, rule: Box<dyn Rule>) {
        self.rules.push(rule);
    }

    /// The names of the rules, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.rules.iter().map(|rule| rule.name())
    }

    /// Applies the rules until none matches any more.
    pub fn transform(&self, mut stages: Stages) -> Stages {
        for _ in 0..MAX_PASSES {
            let mut changed = false;
            for rule in &self.rules {
                changed |= apply_everywhere(&**rule, &mut stages);
            }
            if !changed {
                break;
            }
        }
        stages
    }
}

/// Tries one rule at each position, once, from the device side on.
fn apply_everywhere(rule: &dyn Rule, stages: &mut Stages) -> bool {
    let pattern = rule.pattern();
    let mut changed = false;
    let mut start = 0;
    while !pattern.is_empty() && start + pattern.len() <= stages.len() {
        let end = start + pattern.len();
        if !matches(pattern, &stages[start..end]) {
            start += 1;
            continue;
        }
        let matched = stages.drain(start..end).collect();
        let (result, replaced) = match rule.apply(matched) {
            Ok(replacement) => (replacement, true),
            Err(declined) => (declined, false),
        };
        changed |= replaced;
        // Go on behind what was put in: it is looked at again in the next pass.
        let step = if replaced { result.len() } else { 1 };
        stages.splice(start..start, result);
        start += step;
    }
    changed
}

fn matches(pattern: &[&str], stages: &[Box<dyn Stage>]) -> bool {
    pattern.iter().zip(stages).all(|(&name, stage)| name == ANY || name == stage.module())
}

#[cfg(test)]
mod tests;
