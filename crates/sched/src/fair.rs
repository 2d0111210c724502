//! Worst-case fair choice (WF2Q+, Bennett and Zhang 1996): of the ready whom the fluid has caught up with, the one
//! whose quantum the fluid would finish first.
//!
//! ```text
//!   ahead: by tag ──── virtual time reaches the tag ────► eligible: by finish ──► taken
//!   (the ready, and those asleep                          (tag + quantum / weight)     │
//!    who owe the fluid time)  ◄──── tag moved by service / weight ◄───────────────────┘
//! ```
//!
//! A link knows a packet's length before it is sent; what a run costs is known only afterwards. So the finish is
//! computed from the quantum, and the tag moves by what was charged: whoever used less than a quantum is up again
//! sooner, whoever overran waits until the fluid has caught up.
//!
//! Who falls asleep while the fluid owes it time forgoes that: it could not have used it. Who falls asleep ahead of
//! the fluid stays a member until the fluid has caught up, as in the model, and starts from there if it wakes
//! earlier. So sleeping and waking gains nothing.
//!
//! A slot can hold a *grant*: time that another one has given up for it (see [`bert`](crate::bert)). While it has
//! some it need not wait for the fluid.
//!
//! Every call takes logarithmic time on average: each time that something is woken or charged it passes from one
//! heap to the other at most once.

use std::time::Duration;

use crate::fluid::{self, Fluid, Virtual};
use crate::heap::{Heap, Key as _};

/// See the module.
pub(crate) struct Fair {
    nodes: Vec<Node>,
    ahead: Heap<Virtual>,
    eligible: Heap<Virtual>,
    fluid: Fluid,
    /// Who was taken last: it is a member until the next one is taken, so that one who goes on keeps what it is owed.
    current: Option<u32>,
    ready: usize,
}

#[derive(Clone, Copy)]
struct Node {
    tag: Virtual,
    weight: u32,
    quantum: Duration,
    state: State,
    /// Nanoseconds that another slot has given up for it.
    grant: u64,
    /// By when it should have done what it is at: its own quantum may end later.
    by: Option<Virtual>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not in the fluid.
    Out,
    /// Waits for its turn.
    Ready,
    /// Has its turn, and has not been made ready again.
    Running,
    /// Not ready, but ahead of the fluid, and so still in it.
    Asleep,
}

impl Fair {
    pub(crate) fn new() -> Fair {
        Fair {
            nodes: Vec::new(),
            ahead: Heap::new(),
            eligible: Heap::new(),
            fluid: Fluid::new(),
            current: None,
            ready: 0,
        }
    }

    /// Makes a slot ready, with this weight and quantum from now on.
    pub(crate) fn wake(&mut self, slot: u32, weight: u32, quantum: Duration) {
        self.weigh(slot, weight);
        let node = &mut self.nodes[slot as usize];
        node.quantum = quantum;
        match node.state {
            State::Ready => {}
            State::Out => {
                node.tag = self.fluid.now();
                node.state = State::Ready;
                self.fluid.join(weight, node.tag);
                self.ready += 1;
            }
            State::Running | State::Asleep => {
                node.state = State::Ready;
                self.ready += 1;
            }
        }
        self.place(slot);
    }

    /// Makes a slot not ready.
    pub(crate) fn sleep(&mut self, slot: u32) {
        if !self.is_ready(slot) {
            return;
        }
        self.ready -= 1;
        if self.current == Some(slot) {
            self.nodes[slot as usize].state = State::Running;
        } else {
            self.eligible.remove(slot);
            self.fall_asleep(slot);
        }
    }

    /// The slot belongs to somebody else from now on, who inherits nothing.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.sleep(slot);
        if self.current == Some(slot) {
            self.end_turn();
        }
        if self.ahead.remove(slot) {
            self.leave(slot);
        }
    }

    /// Takes out the slot that is served next.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.end_turn();
        self.promote();
        let Some((_, slot)) = self.eligible.first() else {
            // Not all can be ahead of their mean, and a grant makes eligible.
            debug_assert_eq!(self.ready, 0, "some of the ready are eligible");
            return None;
        };
        self.eligible.remove(slot);
        self.ahead.remove(slot);
        self.nodes[slot as usize].state = State::Running;
        self.current = Some(slot);
        self.ready -= 1;
        Some(slot)
    }

    /// The turn of who was taken last is over: if it has not been made ready again, it sleeps.
    pub(crate) fn end_turn(&mut self) {
        let Some(slot) = self.current.take() else { return };
        match self.nodes[slot as usize].state {
            State::Running => self.fall_asleep(slot),
            _ => self.place(slot),
        }
    }

    /// A slot got this service. Returns how much of it was paid from its grant.
    pub(crate) fn charge(&mut self, slot: u32, spent: Duration) -> Duration {
        let Some(node) = self.nodes.get_mut(slot as usize) else { return Duration::ZERO };
        if node.state == State::Out {
            node.tag = self.fluid.now();
            node.state = State::Asleep;
            self.fluid.join(node.weight, node.tag);
        }
        let spent_ns = spent.as_nanos() as u64;
        let own_turn = !self.fluid.now().before(node.tag);
        let paid = if own_turn { 0 } else { node.grant.min(spent_ns) };
        node.grant -= paid;
        let room = fluid::FARTHEST - node.tag.after(self.fluid.now());
        let own = fluid::distance(Duration::from_nanos(spent_ns - paid), node.weight).min(room);
        node.tag = node.tag.plus(own);
        self.fluid.moved(node.weight, own);
        if paid > 0 {
            self.fluid.claimed(paid as i64);
        }
        self.place(slot);
        Duration::from_nanos(paid)
    }

    /// Gives `amount` of what `from` will get to `to`.
    pub(crate) fn grant(&mut self, (from, to): (u32, u32), amount: Duration) {
        // First what lowers the mean and then what raises it: together they leave virtual time where it is.
        let node = &mut self.nodes[to as usize];
        node.grant += amount.as_nanos() as u64;
        self.fluid.claimed(-(amount.as_nanos() as i64));
        self.push_back(from, amount);
        self.place(to);
    }

    /// Gives back what is left of a grant, but for `keep`.
    pub(crate) fn return_grant(&mut self, (from, to): (u32, u32), keep: Duration) {
        let left = self.granted(to).saturating_sub(keep);
        if left.is_zero() {
            return;
        }
        self.pull_forward(from, left);
        self.nodes[to as usize].grant -= left.as_nanos() as u64;
        self.fluid.claimed(left.as_nanos() as i64);
        self.place(to);
    }

    /// By when a slot should have done what it is at.
    pub(crate) fn set_due(&mut self, slot: u32, by: Option<Virtual>) {
        if let Some(node) = self.nodes.get_mut(slot as usize) {
            node.by = by;
            self.place(slot);
        }
    }

    /// What a slot has got of others and not used.
    pub(crate) fn granted(&self, slot: u32) -> Duration {
        self.nodes.get(slot as usize).map_or(Duration::ZERO, |node| Duration::from_nanos(node.grant))
    }

    /// The slot whose turn it is.
    pub(crate) fn current(&self) -> Option<u32> {
        self.current
    }

    /// The slot that was taken last, when it has not been made ready again.
    pub(crate) fn finished(&self) -> Option<u32> {
        self.current.filter(|slot| self.nodes[*slot as usize].state == State::Running)
    }

    /// A slot counts with this weight from now on; what it has got ahead, or is owed, stays.
    pub(crate) fn weigh(&mut self, slot: u32, weight: u32) {
        if slot as usize >= self.nodes.len() {
            let fresh = Node {
                tag: self.fluid.now(),
                weight,
                quantum: Duration::ZERO,
                state: State::Out,
                grant: 0,
                by: None,
            };
            self.nodes.resize(slot as usize + 1, fresh);
        }
        let node = &mut self.nodes[slot as usize];
        if node.weight == weight {
            return;
        }
        if node.state != State::Out {
            node.tag = self.fluid.reweigh((node.weight, weight), node.tag);
        }
        node.weight = weight;
        self.place(slot);
    }

    pub(crate) fn is_ready(&self, slot: u32) -> bool {
        self.nodes.get(slot as usize).is_some_and(|node| node.state == State::Ready)
    }

    /// How many slots are ready.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    pub(crate) fn now(&self) -> Virtual {
        self.fluid.now()
    }

    /// The weights of all who are in the fluid.
    pub(crate) fn weight(&self) -> u64 {
        self.fluid.weight()
    }

    /// What a slot adds to that at present.
    pub(crate) fn weight_of(&self, slot: u32) -> u64 {
        let node = self.nodes.get(slot as usize).filter(|node| node.state != State::Out);
        node.map_or(0, |node| node.weight.into())
    }

    /// What a slot counts, or would count, with.
    pub(crate) fn own_weight(&self, slot: u32) -> u32 {
        self.nodes.get(slot as usize).map_or(1, |node| node.weight)
    }

    /// The tag of a slot, or where it would start.
    pub(crate) fn tag(&self, slot: u32) -> Virtual {
        let now = self.fluid.now();
        self.nodes.get(slot as usize).filter(|node| node.state != State::Out).map_or(now, |node| node.tag)
    }

    /// What the fluid owes a slot, in nanoseconds; below zero when it is ahead.
    pub(crate) fn lag(&self, slot: u32) -> i64 {
        let Some(node) = self.nodes.get(slot as usize) else { return 0 };
        fluid::service(self.fluid.now().after(self.tag(slot)), node.weight) + node.grant as i64
    }

    /// What the fluid will owe a slot when others have been served for so long from now on.
    pub(crate) fn lag_after(&self, slot: u32, elapsed: Duration) -> i64 {
        let Some(node) = self.nodes.get(slot as usize) else { return 0 };
        let all = self.fluid.weight().clamp(1, u64::from(u32::MAX)) as u32;
        self.lag(slot) + fluid::service(fluid::distance(elapsed, all), node.weight)
    }

    /// Makes a slot wait as if it had been served.
    fn push_back(&mut self, slot: u32, amount: Duration) {
        debug_assert_eq!(self.nodes[slot as usize].grant, 0, "who gives has nothing of others");
        self.charge(slot, amount);
    }

    fn pull_forward(&mut self, slot: u32, amount: Duration) {
        let node = &mut self.nodes[slot as usize];
        let by = fluid::distance(amount, node.weight);
        match node.state {
            // The fluid has caught up with what was pushed back, while nobody wanted it.
            State::Out => return,
            State::Asleep => {
                let by = by.min(node.tag.after(self.fluid.now()).max(0));
                node.tag = node.tag.plus(-by);
                self.fluid.moved(node.weight, -by);
            }
            State::Ready | State::Running => {
                node.tag = node.tag.plus(-by);
                self.fluid.moved(node.weight, -by);
            }
        }
        self.place(slot);
    }

    /// Puts one who is ready or asleep where its tag says; whoever has its turn only when that is over and paid.
    fn place(&mut self, slot: u32) {
        if self.current == Some(slot) {
            return;
        }
        let node = &self.nodes[slot as usize];
        let ahead = self.fluid.now().before(node.tag);
        match node.state {
            State::Ready => {
                if ahead {
                    self.ahead.set(slot, node.tag);
                } else {
                    self.ahead.remove(slot);
                }
                let finish = node.tag.plus(fluid::distance(node.quantum, node.weight));
                let finish = node.by.filter(|by| ahead || by.before(finish)).unwrap_or(finish);
                if ahead && node.grant == 0 {
                    self.eligible.remove(slot);
                } else {
                    self.eligible.set(slot, finish);
                }
            }
            State::Asleep if ahead => self.ahead.set(slot, node.tag),
            State::Asleep => {
                self.ahead.remove(slot);
                self.leave(slot);
            }
            State::Out | State::Running => {}
        }
    }

    fn fall_asleep(&mut self, slot: u32) {
        self.nodes[slot as usize].state = State::Asleep;
        self.place(slot);
    }

    fn leave(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        debug_assert_eq!(node.grant, 0, "a grant is given back first");
        node.state = State::Out;
        self.fluid.leave(node.weight, node.tag);
    }

    /// Whom the fluid has caught up with becomes eligible, or leaves.
    fn promote(&mut self) {
        while let Some((tag, slot)) = self.ahead.first() {
            if self.fluid.now().before(tag) {
                break;
            }
            self.place(slot);
        }
    }
}
