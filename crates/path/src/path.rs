//! The path (Scout §3.2): its stages, its input queue, its attributes and its account, and how a run carries
//! bursts through it in both directions.
//!
//! ```text
//!  device                                                       program
//!    │ queue ─► stage 0 ─► stage 1 ─► … ─► stage n-1               │   inward
//!    ◄── out ── stage 0 ◄─ stage 1 ◄─ … ◄─ stage n-1 ◄── kick      │   outward
//!                   └─turned─►  (what a stage turns around starts at its neighbour)
//! ```
//!
//! A run goes all the way in one direction, then carries what was turned around all the way in the other, and so
//! on until nothing moves: so the acknowledgment that TCP turned around and the window update that the program's
//! end turned around leave together. How often a run may change direction is bounded. What waits between two
//! stages lives in the [`Runner`], not in the path, so an idle path holds no scratch memory and a run allocates
//! nothing.

mod run;

use std::borrow::Cow;

use scoutline_base::{PathId, Time};

use crate::{
    Account, Attributes, Body, Budget, ClassAccounts, DropReason, Limits, Message, Name, NewPath, Queue,
    Stage, Stages, Value,
};

pub use run::{Grant, Ran, Runner};

/// One flow of data through the system.
///
/// Made by [`crate::Graph::path_create`], owned by a [`crate::PathTable`], offered messages by the engine's demux,
/// and run when the scheduler chooses it. Dropping it returns every buffer that it holds.
pub struct Path {
    id: PathId,
    /// Device side first.
    stages: Stages,
    queue: Queue,
    class: u16,
    /// The DSCP that its packets leave with.
    mark: Option<u8>,
    memory_limit: u64,
    budget: Budget,
    /// What `budget` believes that this path holds.
    reported_held: u64,
    /// What was spent on it.
    pub account: Account,
    /// What of that was spent, and charged, in classes that it has left.
    charged: Option<Box<Account>>,
    /// Its invariants.
    pub attributes: Attributes,
}

// There may be a million.
const _: () = assert!(size_of::<Path>() <= 224);

/// A stage as people see it.
#[derive(Clone, Debug)]
pub struct StageFacts {
    /// The module.
    pub module: &'static str,
    /// Its facts, by name.
    pub facts: Vec<(&'static str, String)>,
}

impl Path {
    /// Puts a path into being. Most callers want [`crate::PathTable::insert`], which also checks the budget.
    pub fn new(id: PathId, new: NewPath, limits: Limits, budget: Budget) -> Path {
        let limits = limits.for_path(&new.attributes);
        budget.on_path_made();
        Path {
            id,
            stages: new.stages,
            queue: Queue::new(limits.queue_packets, limits.queue_bytes, budget.queue_memory()),
            class: new.attributes.number(Name::Class).map_or(0, |class| class as u16),
            mark: None,
            memory_limit: limits.memory_bytes,
            budget,
            reported_held: 0,
            account: Account::default(),
            charged: None,
            attributes: new.attributes,
        }
    }

    /// Offers a message to the input queue. Its buffer is charged to the path from now on.
    ///
    /// # Errors
    /// The message, when the queue is full or the path, or the engine, is over its memory limit: early drop. It is
    /// counted here already; dropping it returns its memory.
    #[allow(clippy::result_large_err)] // as Queue::offer
    #[inline]
    pub fn offer(&mut self, message: Message) -> Result<(), Message> {
        let held = held_by(&message);
        if held > 0
            && (self.account.buffer_bytes_held.saturating_add(held) > self.memory_limit
                || !self.budget.has_room(held))
        {
            self.account.on_drop(DropReason::MemoryLimit);
            return Err(message);
        }
        if let Err(message) = self.queue.offer(message) {
            self.account.on_drop(DropReason::QueueFull);
            return Err(message);
        }
        self.account.buffer_bytes_held += held;
        self.report_held();
        Ok(())
    }

    /// Its id.
    #[inline]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// The index of its class in the policy.
    #[inline]
    pub fn class(&self) -> u16 {
        self.class
    }

    /// Puts it into another class. Its account goes with it; the queue keeps what waits in it already, even beyond
    /// its new limit.
    pub fn set_class(&mut self, class: u16, queue_packets: u32) {
        self.class = class;
        self.attributes.set(Name::Class, Value::Number(u64::from(class)));
        self.queue.set_limit_packets(queue_packets);
    }

    /// What was spent on it in its class of now.
    pub fn account_in_class(&self) -> Cow<'_, Account> {
        match &self.charged {
            None => Cow::Borrowed(&self.account),
            Some(before) => Cow::Owned(self.account.since(before)),
        }
    }

    /// Charges its class with what was spent on it so far, before it goes to another.
    pub fn settle(&mut self, classes: &mut ClassAccounts) {
        classes.charge(self.class, &self.account_in_class());
        match &mut self.charged {
            Some(charged) => **charged = self.account.clone(),
            None => self.charged = Some(Box::new(self.account.clone())),
        }
    }

    /// The DSCP that its packets leave with from now on; `None`: what they have by themselves.
    pub fn set_mark(&mut self, dscp: Option<u8>) {
        self.mark = dscp;
    }

    /// Its input queue.
    #[inline]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Its stages, device side first.
    pub fn stages(&self) -> &[Box<dyn Stage>] {
        &self.stages
    }

    /// The first stage of this type, from the program's side (what is asked for most stands there).
    pub fn stage<T: Stage>(&self) -> Option<&T> {
        self.stages.iter().rev().find_map(|stage| stage.as_any().downcast_ref())
    }

    /// See [`Path::stage`].
    pub fn stage_mut<T: Stage>(&mut self) -> Option<&mut T> {
        self.stages.iter_mut().rev().find_map(|stage| stage.as_any_mut().downcast_mut())
    }

    /// Puts other stages of the same meaning in the place of all, as a transformation rule does. Between runs no
    /// message is inside a stage's neighbourhood, so this is safe at any time.
    ///
    /// # Panics
    /// When `replace` gives no stage.
    pub fn replace_stages(&mut self, replace: impl FnOnce(Stages) -> Stages) {
        self.stages = replace(std::mem::take(&mut self.stages));
        assert!(!self.stages.is_empty(), "a path has at least one stage");
    }

    /// When the earliest of its stages wants [`Path::on_timeout`].
    pub fn next_timeout(&self) -> Option<Time> {
        self.stages.iter().filter_map(|stage| stage.next_timeout()).min()
    }

    /// Its stages as people see them, device side first.
    pub fn describe(&self) -> Vec<StageFacts> {
        self.stages
            .iter()
            .map(|stage| {
                let mut facts = Vec::new();
                stage.describe(&mut facts);
                StageFacts { module: stage.module(), facts }
            })
            .collect()
    }

    /// Takes the next message out of the queue without running it (the engine moves it to another path, say).
    pub fn take_queued(&mut self) -> Option<Message> {
        let message = self.queue.take()?;
        self.release_held(&message);
        self.report_held();
        Some(message)
    }

    #[inline]
    fn release_held(&mut self, message: &Message) {
        self.account.buffer_bytes_held = self.account.buffer_bytes_held.saturating_sub(held_by(message));
    }

    /// Tells the budget what changed.
    #[inline]
    fn report_held(&mut self) {
        self.budget.on_held(self.reported_held, self.account.buffer_bytes_held);
        self.reported_held = self.account.buffer_bytes_held;
    }
}

/// Buffer bytes that a message keeps from other use.
///
/// The data, not the whole block: a device's buffers have one size whatever is in them, and their number is bounded by
/// the device itself.
#[inline]
fn held_by(message: &Message) -> u64 {
    match &message.body {
        Body::Block { .. } => message.body_len() as u64,
        Body::Empty | Body::Stream { .. } | Body::Control(_) => 0,
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.budget.on_held(self.reported_held, 0);
        self.budget.on_path_gone();
    }
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modules: Vec<_> = self.stages.iter().map(|stage| stage.module()).collect();
        write!(f, "Path({} {}, {} queued)", self.id, modules.join("-"), self.queue.len())
    }
}

#[cfg(test)]
mod tests;
