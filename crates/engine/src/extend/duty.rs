//! What a path asks of the threads that serve it, and what a thread's duties make of the thread.
//!
//! | the path's policy | the thread, if its class extends paths |
//! |---|---|
//! | priority p ≥ 1; `edf`; `bert` with a job | SCHED_FIFO while it serves: see [`super`] |
//! | `edf` with `thread_budget_us` | SCHED_DEADLINE, if the thread serves nothing else: see [`Share::Deadline`] |
//! | `wfq` | a control group with the class's weight, if the thread serves nothing else: see [`super::weights`] |
//!
//! The first follows each event, for a thread can lower itself at once and without privilege. The other two last: to
//! enter and leave SCHED_DEADLINE for each event is not safe (below), and to move a thread between control groups
//! takes milliseconds. So they are for threads whose events are all of one class, and a thread that is seen to serve
//! something else goes back to what it was.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_sched::{Level, Weight};

use crate::scheduling::{Asks, Stands};

/// How long a thread must have served one `wfq` class alone, once it was seen to serve something else.
const SETTLED: Duration = Duration::from_secs(1);

/// What is to be done for a path, as far as the thread is concerned that does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Duty {
    /// From priority 1 on, threads are raised.
    pub(crate) level: Level,
    /// Beside that.
    pub(crate) share: Share,
}

/// How threads are scheduled beside the levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Share {
    /// Nothing is said: a wake-up for other reasons.
    #[default]
    Unsaid,
    /// As the thread is by itself.
    Own,
    /// SCHED_DEADLINE, once, and for as long as it serves nothing else.
    ///
    /// Not for each event as SCHED_FIFO is: on Linux 6.18 a thread that leaves SCHED_DEADLINE when its budget is
    /// used up, and enters it again, is never run any more and cannot even be killed, until somebody gives it another
    /// policy (measured; a lost replenishment). So a thread that has left it does not come back.
    Deadline {
        /// The period, and the deadline in it.
        within_us: u32,
        /// What the thread may run in it.
        budget_us: u32,
    },
    /// The control group of a class with this weight.
    Group {
        /// Number of the class.
        class: u32,
        /// Of the class.
        weight: Weight,
    },
}

impl Share {
    /// What paths of a class ask for that stand so.
    pub(crate) fn of(class: u32, stands: Stands, thread_budget_us: Option<u32>) -> Share {
        match (stands.asks, thread_budget_us) {
            (Asks::Deadline { within_us, .. }, Some(budget_us)) => Share::Deadline { within_us, budget_us },
            (Asks::Weight(weight), _) => Share::Group { class, weight },
            _ => Share::Own,
        }
    }
}

impl Duty {
    /// That of a path whose class does not extend paths.
    pub(crate) const OWN: Duty = Duty { level: Level::Priority(0), share: Share::Own };

    /// Whether threads that have done what `before` asked for have something lasting to give back now.
    fn ends(self, before: Share) -> bool {
        match (before, self.share) {
            (Share::Unsaid | Share::Own, _) => false,
            // Its weight changes where it is, and so does a deadline, with the thread's next event.
            (Share::Group { class, .. }, Share::Group { class: now, .. }) => class != now,
            (Share::Deadline { .. }, now) => !matches!(now, Share::Deadline { .. }),
            (Share::Group { .. }, _) => true,
        }
    }
}

/// What a change of the classes takes back from threads. Nobody knows which path a thread serves next: so it is told by what
/// the threads have.
#[derive(Debug, Default)]
pub(crate) struct TakenBack {
    levels: bool,
    /// At most one for each class, and for each deadline that programs have asked for.
    lasting: Vec<Share>,
}

impl TakenBack {
    /// A path that asked for one thing asks for another.
    pub(crate) fn note(&mut self, before: Duty, now: Duty) {
        self.levels |= now.level < before.level;
        if now.ends(before.share) && !self.lasting.contains(&before.share) {
            self.lasting.push(before.share);
        }
    }

    /// Nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        !self.levels && self.lasting.is_empty()
    }

    /// Of threads that are raised.
    pub(super) fn levels(&self) -> bool {
        self.levels
    }

    /// Of threads that have a deadline or a weight.
    pub(super) fn lasting(&self) -> impl Iterator<Item = Share> {
        self.lasting.iter().copied()
    }

    /// Of those in the group of this class.
    pub(super) fn group(&self, class: u32) -> bool {
        self.lasting().any(|share| matches!(share, Share::Group { class: its, .. } if its == class))
    }
}

/// Where a thread stands among the control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Where it was.
    #[default]
    Home,
    /// In the group of this class, as far as we know.
    Group { class: u32, weight: Weight },
    /// At home, because it serves several; what it has served last, and since when nothing else.
    Mixed { class: Option<u32>, since: Time },
}

/// What is to be done with a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Into this group, or its weight is another one.
    Enter { class: u32, weight: Weight },
    /// Home.
    Leave,
}

impl Seat {
    /// The thread has something of this kind to do: its new seat, and what to do for it.
    pub(crate) fn serve(self, share: Share, now: Time) -> (Seat, Option<Step>) {
        let mixed = |class| Seat::Mixed { class, since: now };
        match (self, share) {
            (Seat::Home, Share::Own | Share::Deadline { .. }) | (_, Share::Unsaid) => (self, None),
            (Seat::Home, Share::Group { class, weight }) => enter(class, weight),
            (Seat::Group { class, weight }, Share::Group { class: now, weight: wanted }) if class == now => {
                if weight == wanted {
                    (self, None)
                } else {
                    enter(class, wanted)
                }
            }
            (Seat::Group { .. }, Share::Group { class, .. }) => (mixed(Some(class)), Some(Step::Leave)),
            (Seat::Group { .. }, _) => (mixed(None), Some(Step::Leave)),
            (Seat::Mixed { class: last, since }, Share::Group { class, weight }) if last == Some(class) => {
                if now.since(since) >= SETTLED {
                    enter(class, weight)
                } else {
                    (self, None)
                }
            }
            (Seat::Mixed { .. }, Share::Group { class, .. }) => (mixed(Some(class)), None),
            (Seat::Mixed { .. }, _) => (mixed(None), None),
        }
    }
}

fn enter(class: u32, weight: Weight) -> (Seat, Option<Step>) {
    (Seat::Group { class, weight }, Some(Step::Enter { class, weight }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(class: u32, weight: u64) -> Share {
        Share::Group { class, weight: Weight::new(weight) }
    }

    /// What is done with a thread that serves these at these milliseconds.
    fn steps(served: &[(u64, Share)]) -> Vec<Option<Step>> {
        let mut seat = Seat::default();
        let one = |&(ms, share): &(u64, Share)| {
            let step;
            (seat, step) = seat.serve(share, Time::ZERO + Duration::from_millis(ms));
            step
        };
        served.iter().map(one).collect()
    }

    fn entered(class: u32, weight: u64) -> Step {
        Step::Enter { class, weight: Weight::new(weight) }
    }

    #[test]
    fn a_thread_of_one_class_enters_its_group_once() {
        assert_eq!(steps(&[(0, group(1, 300)), (1, group(1, 300))]), [Some(entered(1, 300)), None]);
        let changed = [(0, group(1, 300)), (1, group(1, 50))];
        assert_eq!(steps(&changed), [Some(entered(1, 300)), Some(entered(1, 50))], "its weight follows");
    }

    #[test]
    fn a_thread_of_several_classes_stays_at_home() {
        let served = [
            (0, group(1, 300)),
            (10, group(2, 100)),
            (20, group(1, 300)),
            (30, Share::Own),
            (40, group(1, 300)),
            (1039, group(1, 300)),
            (1040, group(1, 300)),
        ];
        let leave = Some(Step::Leave);
        assert_eq!(
            steps(&served),
            [Some(entered(1, 300)), leave, None, None, None, None, Some(entered(1, 300))]
        );
    }

    #[test]
    fn wake_ups_for_other_reasons_are_no_service() {
        let served = [(0, group(1, 300)), (1, Share::Unsaid), (2, Share::Own)];
        assert_eq!(steps(&served), [Some(entered(1, 300)), None, Some(Step::Leave)]);
        assert_eq!(steps(&[(0, Share::Own), (1, Share::Unsaid)]), [None, None]);
    }

    #[test]
    fn what_a_change_of_classes_takes_back() {
        let duty = |priority, share| Duty { level: Level::Priority(priority), share };
        let deadline = |within_us| Share::Deadline { within_us, budget_us: 100 };
        for (before, now, levels, lasting) in [
            (duty(2, Share::Own), duty(1, Share::Own), true, None),
            (duty(2, Share::Own), duty(3, Share::Own), false, None),
            (duty(0, group(1, 100)), duty(0, group(1, 300)), false, None),
            (duty(0, group(1, 100)), duty(0, group(2, 100)), false, Some(group(1, 100))),
            (duty(0, group(1, 100)), duty(2, Share::Own), false, Some(group(1, 100))),
            (duty(1, deadline(2000)), duty(1, Share::Own), false, Some(deadline(2000))),
            (duty(1, deadline(2000)), duty(1, deadline(2000)), false, None),
            (duty(1, deadline(2000)), duty(1, deadline(3000)), false, None),
            (duty(1, deadline(2000)), duty(0, group(1, 100)), true, Some(deadline(2000))),
            (duty(0, Share::Own), duty(0, group(1, 100)), false, None),
        ] {
            let mut taken = TakenBack::default();
            taken.note(before, now);
            taken.note(before, now);
            assert_eq!(
                (taken.levels(), taken.lasting().collect::<Vec<_>>()),
                (levels, lasting.into_iter().collect()),
                "{before:?} to {now:?}"
            );
        }
    }
}
