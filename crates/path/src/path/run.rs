//! Running a path: bursts through the stages, turned around as often as stages ask (within a bound).

use scoutline_base::Time;

use super::Path;
use crate::{Body, Burst, Context, DropReason, Effect, Message, Stage};

/// Changes of direction in one run. Two are usual (data in, acknowledgment out); more than this is a pair of
/// stages that throw messages at one another.
const MAX_PASSES: usize = 8;

/// What the engine grants one run.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The time of this run.
    pub now: Time,
    /// Messages that may be taken from the input queue.
    pub packets: usize,
    /// Messages that the device can take now.
    pub transmit_room: usize,
    /// Bytes on the wire that it can take now.
    pub transmit_len: u64,
    /// Bytes on the wire of one message at most: more would keep the link busy for too long at a time.
    pub segment_len: u32,
}

impl Grant {
    /// A grant for a device that is bound by messages alone.
    pub fn new(now: Time, packets: usize, transmit_room: usize) -> Grant {
        Grant { now, packets, transmit_room, transmit_len: u64::MAX, segment_len: u32::MAX }
    }

    /// What is left of it once these messages were made.
    #[must_use]
    pub fn after(&self, made: &Burst) -> Grant {
        let bytes = if self.transmit_len == u64::MAX {
            0
        } else {
            made.iter().map(|message| u64::from(message.wire_len())).sum()
        };
        Grant {
            transmit_room: self.transmit_room.saturating_sub(made.len()),
            transmit_len: self.transmit_len.saturating_sub(bytes),
            ..*self
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Messages that entered the path.
    pub packets: usize,
    /// The path has more to do, in its queue or in a stage: it stays ready.
    pub more: bool,
    /// A stage stopped early ([`Context::more`]): it goes on when the path is kicked, [`Path::run_outward`], and
    /// nothing else may come to wake it.
    pub stopped_early: bool,
}

/// Scratch memory of runs, one for each engine, and what a run leaves behind for it.
#[derive(Debug, Default)]
pub struct Runner {
    /// Messages for the device, in order. The engine takes them after the run, or after several.
    pub out: Burst,
    /// What stages asked for, in order. The engine carries it out after the run.
    pub effects: Vec<Effect>,
    between: Between,
}

/// What waits between stages.
#[derive(Debug, Default)]
struct Between {
    /// `inward[i]` enters stage `i` inward; one longer than the path, the last being the program's end.
    inward: Vec<Burst>,
    /// `outward[i]` enters stage `i - 1` outward; the first is the device.
    outward: Vec<Burst>,
    burst: Burst,
    turned: Burst,
}

impl Runner {
    /// Scratch memory; it grows to what the paths need and stays.
    pub fn new() -> Runner {
        Runner::default()
    }
}

impl Path {
    /// Runs the path with messages from its input queue, at most `grant.packets` of them.
    ///
    /// The burst goes from the device's end to the program's, as far as stages let it. Afterwards `runner.out` holds what the device is to send, and `runner.effects` what stages asked of the engine.
    pub fn run_inward(&mut self, runner: &mut Runner, grant: Grant) -> Ran {
        runner.between.fit(self.stages.len());
        let mut entering = std::mem::take(&mut runner.between.inward[0]);
        let packets = self.queue.take_burst(grant.packets, &mut entering);
        for message in &entering {
            self.release_held(message);
        }
        runner.between.inward[0] = entering;
        self.run(runner, grant, packets, Start::Inward)
    }

    /// Runs the path with the messages of `burst`, past its input queue (the first message of a new path, say).
    pub fn run_inward_with(&mut self, runner: &mut Runner, grant: Grant, burst: &mut Burst) -> Ran {
        runner.between.fit(self.stages.len());
        let packets = burst.len();
        runner.between.inward[0].append(burst);
        self.run(runner, grant, packets, Start::Inward)
    }

    /// Kicks the path from the program's end: `burst`, which may be empty, enters the innermost stage.
    ///
    /// Every stage is called, with an empty burst if nothing reached it: a stage that stopped early because the
    /// device was full, or that polls the program's end, goes on here.
    pub fn run_outward(&mut self, runner: &mut Runner, grant: Grant, burst: &mut Burst) -> Ran {
        let count = self.stages.len();
        runner.between.fit(count);
        let packets = burst.len();
        runner.between.outward[count].append(burst);
        self.run(runner, grant, packets, Start::Kick)
    }

    /// Calls every stage whose time-out is due at `grant.now`, and carries on what they give.
    pub fn on_timeout(&mut self, runner: &mut Runner, grant: Grant) -> Ran {
        runner.between.fit(self.stages.len());
        self.run(runner, grant, 0, Start::Timeout)
    }

    fn run(&mut self, runner: &mut Runner, grant: Grant, packets: usize, start: Start) -> Ran {
        let Runner { out, effects, between } = runner;
        self.account.runs += 1;
        for message in between.inward[0].iter().filter(|message| !is_control(message)) {
            self.account.packets_in += 1;
            self.account.bytes_in += message.body_len() as u64;
        }
        let sent_before = out.len();
        let mut context = Context {
            now: grant.now,
            path: self.id,
            account: &mut self.account,
            mark: self.mark,
            out,
            transmit_room: grant.transmit_room,
            transmit_len: grant.transmit_len,
            segment_len: grant.segment_len,
            more: false,
            effects,
        };
        between.carry(&mut self.stages, &mut context, start);
        let stopped_early = context.more;
        for message in &out[sent_before..] {
            self.account.packets_out += 1;
            self.account.bytes_out += u64::from(message.wire_len());
        }
        self.report_held();
        Ran { packets, more: stopped_early || !self.queue.is_empty(), stopped_early }
    }
}

/// What a run begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Inward,
    Kick,
    Timeout,
}

impl Between {
    /// Makes room for a path of `stages` stages. Everything is empty between runs.
    #[inline]
    fn fit(&mut self, stages: usize) {
        if self.inward.len() <= stages {
            self.inward.resize_with(stages + 1, Burst::new);
            self.outward.resize_with(stages + 1, Burst::new);
        }
    }

    /// Goes back and forth until nothing moves.
    fn carry(&mut self, stages: &mut [Box<dyn Stage>], context: &mut Context<'_>, start: Start) {
        if start == Start::Timeout {
            self.expire(stages, context);
        }
        if start == Start::Kick {
            self.pass_outward(stages, context, true);
        }
        for _ in 0..MAX_PASSES / 2 {
            let inward = self.pass_inward(stages, context);
            let outward = self.pass_outward(stages, context, false);
            if !inward && !outward {
                return;
            }
        }
        for burst in self.inward.iter_mut().chain(&mut self.outward) {
            for message in burst.drain(..) {
                context.drop_message(message, DropReason::TurnLimit);
            }
        }
    }

    /// Calls the stages whose time-outs are due.
    fn expire(&mut self, stages: &mut [Box<dyn Stage>], context: &mut Context<'_>) {
        for (index, stage) in stages.iter_mut().enumerate() {
            if stage.next_timeout().is_some_and(|due| due <= context.now) {
                stage.on_timeout(&mut self.inward[index + 1], &mut self.outward[index], context);
            }
        }
    }

    /// Carries everything that waits to go inward up to the program's end; false when nothing waited.
    fn pass_inward(&mut self, stages: &mut [Box<dyn Stage>], context: &mut Context<'_>) -> bool {
        let mut moved = false;
        let (burst, turned) = (&mut self.burst, &mut self.turned);
        for (index, stage) in stages.iter_mut().enumerate() {
            join(&mut self.inward[index], burst);
            if burst.is_empty() {
                continue;
            }
            moved = true;
            stage.inward(burst, turned, context);
            self.outward[index].append(turned);
        }
        join(&mut self.inward[stages.len()], burst);
        // The program's end has taken what it wants. A note that nobody read is none to be missed; a packet is.
        for message in burst.drain(..) {
            if !is_control(&message) {
                context.drop_message(message, DropReason::Closed);
            }
        }
        moved
    }

    /// Carries everything that waits to go outward to the device; false when nothing waited. With `kick` every
    /// stage is called.
    fn pass_outward(&mut self, stages: &mut [Box<dyn Stage>], context: &mut Context<'_>, kick: bool) -> bool {
        let mut moved = false;
        let (burst, turned) = (&mut self.burst, &mut self.turned);
        for (index, stage) in stages.iter_mut().enumerate().rev() {
            join(&mut self.outward[index + 1], burst);
            if burst.is_empty() && !kick {
                continue;
            }
            moved = true;
            stage.outward(burst, turned, context);
            self.inward[index + 1].append(turned);
        }
        join(&mut self.outward[0], burst);
        burst.retain(|message| !is_control(message));
        context.out.append(burst);
        moved
    }
}

/// Puts what waited (it came first) in front of what comes now, into `burst`.
#[inline]
fn join(waiting: &mut Burst, burst: &mut Burst) {
    if waiting.is_empty() {
        return;
    }
    waiting.append(burst);
    std::mem::swap(waiting, burst);
}

#[inline]
fn is_control(message: &Message) -> bool {
    matches!(message.body, Body::Control(_))
}
