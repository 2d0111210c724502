//! Incremental creation of a path (Scout §3.2): the route is determined and stages are made module by module,
//! from the program's end towards the device; then they are combined device side first, established with the
//! whole path known, and transformed by the graph's rules.

use crate::graph::Hop;
use crate::{Attributes, CreateError, Graph, Next, Stages};

/// Stages that a path may have; a route that is longer runs in circles.
const MAX_STAGES: usize = 16;

/// A path that is complete but belongs to no table yet. Dropping it undoes everything.
pub struct NewPath {
    /// Device side first.
    pub stages: Stages,
    /// What was asked for, and what the modules made of it.
    pub attributes: Attributes,
}

impl Graph {
    /// Makes a path that starts at `module`, with these invariants.
    ///
    /// # Errors
    /// What a module said, or why there is no unique way on. Whatever was made by then is dropped.
    pub fn path_create(&self, module: &str, mut attributes: Attributes) -> Result<NewPath, CreateError> {
        let mut at = self.find(module).ok_or_else(|| CreateError::NoModule(module.to_owned()))?;
        let mut stages = Stages::with_capacity(4);
        // Phase 1: determine the route and create the stages.
        let mut steps = 0;
        loop {
            let node = &self.nodes[at.0 as usize];
            let step = node.module.create_stage(&mut attributes)?;
            stages.extend(step.stage);
            let Next::Through(service) = step.next else { break };
            steps += 1;
            if steps == MAX_STAGES {
                return Err(CreateError::Endless { module: node.module.name() });
            }
            match node.below.iter().find(|(name, _)| *name == service) {
                Some((_, Hop::To(next))) => at = *next,
                Some((_, Hop::Several)) => {
                    return Err(CreateError::Ambiguous { module: node.module.name(), service });
                }
                Some((_, Hop::Nowhere)) | None => {
                    return Err(CreateError::NotLinked { module: node.module.name(), service });
                }
            }
        }
        if stages.is_empty() {
            return Err(CreateError::Empty(module.to_owned()));
        }
        // Phase 2: combine. Creation ran from the program's end, the path is kept from the device's.
        stages.reverse();
        // Phase 3: establish.
        for stage in &mut stages {
            stage.establish(&mut attributes)?;
        }
        // Phase 4: transform.
        let stages = self.rules.transform(stages);
        Ok(NewPath { stages, attributes })
    }
}

#[cfg(test)]
mod tests;
