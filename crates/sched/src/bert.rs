//! BERT: best effort and real time under one fair scheduler (Bavier, Peterson and Mosberger, Princeton TR-587-98,
//! revised as TR-602-99; TR-611-99 on why it works).
//!
//! What is followed:
//! - Everyone has a rate in the fluid model and is chosen by WF2Q+. So it is known from the model by when work will
//!   be done at the latest: virtual time never moves slower than real time, and the reserved rates never exceed the
//!   whole.
//! - If that is too late for the deadline of a real-time entry, and the entry is important, it *steals*: in the model
//!   it gets part of the service of others until the deadline, and they get that much less. The model stays feasible,
//!   so all others keep what they had.
//! - Important entries are immune, whether best effort or real time. The unimportant neither steal nor are spared:
//!   in overload they are the first to slow down.
//! - What was stolen is accounted, by thief and by victim.
//!
//! What was decided here, since only the abstracts and SILK's account of it were at hand:
//! - The unimportant are one member of the model, the *crowd*, with all that the important have not reserved, and
//!   share it among themselves by [`Wfq`] with their rates as weights. A theft pushes the crowd's tag back, one step
//!   however many they are, and slows each in proportion to its rate. What can be stolen at all is in `thefts.rs`.
//! - A thief holds what it took as a grant beside its own rate, to be used by the deadline in virtual time. While the
//!   fluid owes it service it uses its own; beyond that the grant. What is left when the job is done goes back.
//! - How much to take is judged when work is enqueued, and again after each run with what is left of it: so an
//!   estimate that the caller corrects is made good while there is time. Who has used up its estimate is taken to need
//!   one more quantum; who can no longer make its deadline, to be done as soon as it can. As the model is followed to
//!   the deadline, an estimate that is too low and stays so ends too late by what it lacked.
//! - A part of the crowd's rate ([`Configuration::spared`]) cannot be stolen or reserved away: it crawls, but moves.
//! - Rates of the important that exceed what is left beside that are cut in proportion.
//! - Only what is taken while somebody unimportant waits is stolen; else nobody misses it.

mod thefts;

use std::time::Duration;

use scoutline_base::Time;

use crate::fair::Fair;
use crate::fluid::{self, Virtual};
use crate::slots::Owners;
use crate::{Charged, Claim, Decision, Entry, Job, Level, Parameters, Policy, Quantum, Weight, Wfq, wfq};

use thefts::Thefts;

/// The crowd's slot among the important.
const CROWD: u32 = 0;
/// All of the policy's time.
const WHOLE: u32 = Weight::HIGHEST as u32;

/// The policy. Work for each call: logarithmic in the number of ready entries, on average.
pub struct Bert {
    configuration: Configuration,
    /// The important, one slot after that of `owners`, and the crowd.
    fair: Fair,
    crowd: Wfq,
    owners: Owners,
    nodes: Vec<Node>,
    thefts: Thefts,
    /// The rates of the unimportant that wait.
    waiting: u64,
    /// What a waiting one of rate 1 has lost so far, in units of virtual time.
    lost: u128,
    stolen: Duration,
    missed: u64,
    charged: Charged,
}

/// The parameters of [`Bert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What a path gets at a time.
    pub path_quantum: Quantum,
    /// How long Linux gets the CPU at a time.
    pub linux_quantum: Quantum,
    /// Of an entry that asked for something else.
    pub claim: Claim,
    /// What of the CPU the policy can count on, in 1/10,000: how fast virtual time moves at least. A
    /// [`Schedule`](crate::Schedule) sets it to the policy's share.
    pub capacity: Weight,
    /// What the important can neither reserve nor steal.
    pub spared: Weight,
    /// How long before its deadline work should be done in the model: as long as others may hold the CPU when it is
    /// their last chance to be interrupted.
    pub margin: Duration,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            path_quantum: Quantum::PATH,
            linux_quantum: Quantum::LINUX,
            claim: Claim::default(),
            capacity: Weight::new(WHOLE as u64),
            spared: Weight::new(100),
            // The run that is going on when the work comes, and that before the last one of its own.
            margin: 2 * Quantum::PATH.time,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Node {
    claim: Claim,
    /// Of the job that it is at.
    deadline: Time,
    /// Of the job.
    done: Duration,
    missed: bool,
    /// The deadline of the job before it, while the last run is not charged: the run was for that one.
    before: Option<Time>,
    /// Among the thieves, until then.
    thief: Option<Virtual>,
    /// As a thief.
    taken: Duration,
    /// As a victim, and the `lost` up to which that counts.
    given: Duration,
    lost: u128,
}

impl Default for Bert {
    fn default() -> Self {
        Bert::new(Configuration::default())
    }
}

impl Bert {
    /// A policy without entries.
    pub fn new(configuration: Configuration) -> Bert {
        let mut bert = Bert {
            configuration,
            fair: Fair::new(),
            crowd: Wfq::default(),
            owners: Owners::default(),
            nodes: Vec::new(),
            thefts: Thefts::default(),
            waiting: 0,
            lost: 0,
            stolen: Duration::ZERO,
            missed: 0,
            charged: Charged::default(),
        };
        bert.configure(configuration);
        bert
    }

    /// Its parameters.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Changes the parameters. What is ready keeps its place.
    pub fn configure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
        let Configuration { path_quantum, linux_quantum, claim, .. } = configuration;
        self.crowd.configure(wfq::Configuration { path_quantum, linux_quantum, weight: claim.rate });
        self.weigh_crowd();
    }

    /// All that was taken from the unimportant while they waited.
    pub fn stolen(&self) -> Duration {
        self.stolen
    }

    /// What an entry has stolen.
    pub fn stolen_by(&self, entry: Entry) -> Duration {
        self.node(entry).map_or(Duration::ZERO, |node| node.taken)
    }

    /// What was stolen from an entry while it waited.
    pub fn stolen_from(&self, entry: Entry) -> Duration {
        let Some(node) = self.node(entry) else { return Duration::ZERO };
        if self.crowd.is_ready(entry) { node.given + self.loss(node) } else { node.given }
    }

    /// How many deadlines had passed when the work was still going on.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Whoever ran last has stopped: unless it is ready again it sleeps, and gives back what it has not used.
    pub(crate) fn end_turn(&mut self) {
        if let Some(slot) = self.fair.current().filter(|slot| *slot != CROWD) {
            self.nodes[slot as usize - 1].before = None;
        }
        match self.fair.finished() {
            None | Some(CROWD) => {}
            Some(slot) => {
                self.return_grant(slot - 1, Duration::ZERO);
                self.fair.set_due(slot, None);
                self.nodes[slot as usize - 1].done = Duration::ZERO;
            }
        }
        self.crowd.end_turn();
        self.fair.end_turn();
    }

    fn node(&self, entry: Entry) -> Option<&Node> {
        self.owners.slot(entry).map(|slot| &self.nodes[slot as usize])
    }

    /// What has been stolen of a waiting one since its mark.
    fn loss(&self, node: &Node) -> Duration {
        let units = (self.lost - node.lost) * u128::from(node.claim.rate.value());
        Duration::from_nanos((units / u128::from(fluid::UNIT)) as u64)
    }

    /// The crowd has what the important ones have not reserved.
    fn weigh_crowd(&mut self) {
        let reserved = self.fair.weight() - self.fair.weight_of(CROWD);
        let rate = u64::from(WHOLE).saturating_sub(reserved).max(self.configuration.spared.value().into());
        self.fair.weigh(CROWD, rate as u32);
    }

    fn wake_crowd(&mut self) {
        let rate = self.fair.own_weight(CROWD);
        self.fair.wake(CROWD, rate, self.configuration.path_quantum.time);
    }

    /// An unimportant entry no longer waits.
    fn stop_waiting(&mut self, entry: Entry, slot: u32) {
        debug_assert!(self.owners.slot(entry) == Some(slot));
        let loss = self.loss(&self.nodes[slot as usize]);
        let node = &mut self.nodes[slot as usize];
        node.given += loss;
        self.waiting -= u64::from(node.claim.rate.value());
    }

    /// Takes an entry out of wherever it is; it gives back what it has taken.
    fn withdraw(&mut self, entry: Entry, slot: u32) {
        if self.crowd.is_ready(entry) {
            self.stop_waiting(entry, slot);
            self.crowd.remove(entry);
        }
        self.return_grant(slot, Duration::ZERO);
        self.fair.set_due(slot + 1, None);
        self.fair.sleep(slot + 1);
    }

    fn enqueue_unimportant(&mut self, entry: Entry, slot: u32, claim: Claim, now: Time) {
        if self.crowd.is_ready(entry) {
            if self.nodes[slot as usize].claim.rate == claim.rate {
                return;
            }
            self.stop_waiting(entry, slot);
        }
        let lost = self.lost;
        let node = &mut self.nodes[slot as usize];
        (node.claim, node.lost) = (claim, lost);
        self.waiting += u64::from(claim.rate.value());
        self.crowd.enqueue(entry, claim.rate.into(), now);
        if !self.fair.is_ready(CROWD) {
            self.wake_crowd();
        }
    }

    fn enqueue_important(&mut self, slot: u32, claim: Claim, quantum: Quantum, now: Time) {
        let ready = self.fair.is_ready(slot + 1);
        let node = &mut self.nodes[slot as usize];
        let at_it = ready || self.fair.finished() == Some(slot + 1);
        let moment = claim.job.map(|job| job.deadline.moment(at_it.then_some(node.deadline), now));
        if ready && claim == node.claim && moment.is_none_or(|moment| moment == node.deadline) {
            return;
        }
        if !at_it || moment.is_some_and(|moment| moment != node.deadline) {
            node.before = (at_it && !ready && !node.missed).then_some(node.deadline);
            node.deadline = moment.unwrap_or_default();
            node.done = Duration::ZERO;
            node.missed = false;
        }
        node.claim = claim;
        let done = node.done;
        self.fair.wake(slot + 1, claim.rate.value(), quantum.time);
        self.weigh_crowd();
        if let (Some(job), Some(deadline)) = (claim.job, moment) {
            self.judge(slot, left(job, done, quantum), deadline, now);
        } else {
            self.return_grant(slot, Duration::ZERO);
            self.fair.set_due(slot + 1, None);
        }
    }

    /// Takes from the crowd what an important entry lacks, or gives back what it has too much.
    fn judge(&mut self, slot: u32, left: Duration, deadline: Time, now: Time) {
        let node = &self.nodes[slot as usize];
        let Configuration { capacity, spared, margin, .. } = self.configuration;
        let window = deadline.since(now).saturating_sub(margin).max(left);
        let counted = window.as_nanos() as u64 / u64::from(WHOLE) * u64::from(capacity.value());
        // Each who joins takes its rate from the crowd's: the sum is the whole, unless too much is reserved.
        let all = self.fair.weight().max(u64::from(WHOLE)).min(u64::from(u32::MAX));
        let start = self.fair.now();
        let by = start.plus(fluid::distance(Duration::from_nanos(counted), all as u32));
        let own = fluid::service(by.after(self.fair.tag(slot + 1)).max(0), node.claim.rate.value());
        let granted = self.fair.granted(slot + 1);
        let wanted = left.saturating_sub(Duration::from_nanos(own as u64));
        self.return_grant(slot, wanted);
        self.fair.set_due(slot + 1, Some(by));
        if wanted > granted {
            let rate = self.fair.own_weight(CROWD).saturating_sub(spared.value());
            let tag = self.fair.tag(CROWD);
            let held = |thief: u32| self.fair.granted(thief + 1).as_nanos() as u64;
            let limit = self.thefts.limit((start, by), (tag, rate), granted.as_nanos() as u64, held);
            self.fair
                .grant((CROWD, slot + 1), wanted.saturating_sub(granted).min(Duration::from_nanos(limit)));
        }
        if !self.fair.granted(slot + 1).is_zero() {
            self.thefts.add(slot, by);
            self.nodes[slot as usize].thief = Some(by);
        }
    }

    /// Gives back what an entry has stolen and not used, but for `keep`; it is no longer among the thieves.
    fn return_grant(&mut self, slot: u32, keep: Duration) {
        if !self.fair.granted(slot + 1).is_zero() {
            self.fair.return_grant((CROWD, slot + 1), keep);
        }
        if let Some(by) = self.nodes[slot as usize].thief.take() {
            self.thefts.remove(slot, by);
        }
    }

    fn charge_important(&mut self, slot: u32, spent: Duration, now: Time) {
        let taken = self.fair.charge(slot + 1, spent);
        let node = &mut self.nodes[slot as usize];
        if let Some(before) = node.before.take() {
            self.missed += u64::from(now > before);
        } else {
            node.done += spent;
            if node.claim.job.is_some() && now > node.deadline && !node.missed {
                node.missed = true;
                self.missed += 1;
            }
        }
        if !taken.is_zero() && self.waiting > 0 {
            node.taken += taken;
            self.stolen += taken;
            self.lost += taken.as_nanos() * u128::from(fluid::UNIT) / u128::from(self.waiting);
        }
    }

    fn quantum(&self, entry: Entry) -> Quantum {
        match entry {
            Entry::Path(_) => self.configuration.path_quantum,
            Entry::Linux => self.configuration.linux_quantum,
        }
    }
}

/// What a job still takes, as far as one can tell.
fn left(job: Job, done: Duration, quantum: Quantum) -> Duration {
    job.work.checked_sub(done).filter(|left| !left.is_zero()).unwrap_or(quantum.time)
}

impl Policy for Bert {
    /// One that is ready keeps its place, unless it claims something else.
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, now: Time) {
        let claim = match parameters {
            Parameters::Bert(claim) => claim,
            _ => self.configuration.claim,
        };
        if let Some(owner) = self.owners.other(entry) {
            let (slot, _) = self.owners.own(owner);
            self.withdraw(owner, slot);
            self.fair.forget(slot + 1);
            self.nodes[slot as usize] = Node::default();
        }
        let (slot, _) = self.owners.own(entry);
        if slot as usize >= self.nodes.len() {
            self.nodes.resize(slot as usize + 1, Node::default());
        }
        if claim.important != self.nodes[slot as usize].claim.important {
            self.withdraw(entry, slot);
        }
        if claim.important {
            self.enqueue_important(slot, claim, self.quantum(entry), now);
        } else {
            self.enqueue_unimportant(entry, slot, claim, now);
        }
    }

    fn dequeue(&mut self, now: Time) -> Option<Decision> {
        self.end_turn();
        match (self.crowd.is_idle(), self.fair.is_ready(CROWD)) {
            (false, false) => self.wake_crowd(),
            (true, true) => self.fair.sleep(CROWD),
            _ => {}
        }
        self.weigh_crowd();
        let slot = self.fair.take()?;
        if slot != CROWD {
            let entry = self.owners.entry(slot - 1)?;
            return Some(Decision { entry, level: Level::default(), quantum: self.quantum(entry) });
        }
        let decision = self.crowd.dequeue(now)?;
        if let Some(slot) = self.owners.slot(decision.entry) {
            self.stop_waiting(decision.entry, slot);
        }
        Some(decision)
    }

    fn charge(&mut self, entry: Entry, spent: Duration, now: Time) {
        self.charged.add(entry, spent);
        let Some(slot) = self.owners.slot(entry) else { return };
        if self.nodes[slot as usize].claim.important {
            self.charge_important(slot, spent, now);
        } else {
            self.crowd.charge(entry, spent, now);
            self.fair.charge(CROWD, spent);
        }
    }

    fn remove(&mut self, entry: Entry) {
        if let Some(slot) = self.owners.slot(entry) {
            self.withdraw(entry, slot);
        }
    }

    fn is_ready(&self, entry: Entry) -> bool {
        self.crowd.is_ready(entry) || self.owners.slot(entry).is_some_and(|slot| self.fair.is_ready(slot + 1))
    }

    fn highest_ready(&self) -> Option<Level> {
        let crowd = usize::from(self.fair.is_ready(CROWD));
        (self.fair.ready() > crowd || !self.crowd.is_idle()).then(Level::default)
    }

    /// Never: the margin allows for the quantum of who runs.
    fn preempts(&self, _running: &Decision, _now: Time) -> bool {
        false
    }

    fn charged(&self) -> Charged {
        self.charged
    }
}

impl std::fmt::Debug for Bert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bert")
            .field("ready", &self.fair.ready())
            .field("crowd", &self.crowd)
            .field("stolen", &self.stolen)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
