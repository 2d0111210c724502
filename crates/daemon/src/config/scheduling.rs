//! How paths and Linux are scheduled: the keys of `[scheduler]`, `[linux]` and of each class that say so, and what
//! goes with what.

use std::fmt;

use scoutline_abi::layout::slot_option;
use scoutline_engine::{Asks, JobAsks};
use scoutline_sched::schedule::{self, Shares};
use scoutline_sched::{Level, Weight};
use serde::de::{self, Deserialize, Deserializer};
use toml::Spanned;

use super::check::{Checked, MAX_PRIORITY, MEMORY, fault, within};
use super::{Class, Linux, Size, values};

/// Greatest weight and share.
const MAX_WEIGHT: u32 = Weight::HIGHEST as u32;
/// As programs may ask for.
pub(super) const DEADLINES_US: std::ops::RangeInclusive<u32> =
    *slot_option::DEADLINES_US.start() as u32..=*slot_option::DEADLINES_US.end() as u32;
/// `kernel.sched_deadline_period_max_us` is 2²² by default.
const MOST_OF_THREAD_US: u32 = 4_000_000;

/// `policy = "…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The highest first, in turn within one.
    #[default]
    Priority,
    /// The earliest deadline first.
    Edf,
    /// In proportion to weights.
    Wfq,
    /// In proportion to rates; important real-time work steals to be in time.
    Bert,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Priority => "priority",
            Policy::Edf => "edf",
            Policy::Wfq => "wfq",
            Policy::Bert => "bert",
        })
    }
}

/// A part of the engine's CPU in per cent, to two places: `10`, `2.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u16);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 100.0)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Percent, D::Error> {
        struct Number;
        impl de::Visitor<'_> for Number {
            type Value = Percent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a percentage such as 10 or 2.5")
            }

            fn visit_f64<E: de::Error>(self, percent: f64) -> Result<Percent, E> {
                let hundredths = (percent * 100.0).round();
                if (0.0..=f64::from(u16::MAX)).contains(&hundredths) {
                    Ok(Percent(hundredths as u16))
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(percent), &self))
                }
            }

            fn visit_i64<E: de::Error>(self, percent: i64) -> Result<Percent, E> {
                self.visit_f64(percent as f64)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// `[scheduler]`: what each policy is guaranteed of the engine's CPU, as a part of the sum of them all.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scheduler {
    /// Of the priorities.
    pub priority_share: Spanned<u32>,
    /// Of EDF.
    pub edf_share: Spanned<u32>,
    /// Of WFQ.
    pub wfq_share: Spanned<u32>,
    /// Of BERT.
    pub bert_share: Spanned<u32>,
    /// Buffer bytes that the sockets of the priorities may hold together; default: no limit of their own.
    pub priority_memory: Option<Spanned<Size>>,
    /// Of EDF.
    pub edf_memory: Option<Spanned<Size>>,
    /// Of WFQ.
    pub wfq_memory: Option<Spanned<Size>>,
    /// Of BERT.
    pub bert_memory: Option<Spanned<Size>>,
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        let Shares { fixed, edf, wfq, bert } = Shares::default();
        let share = |share: u16| values::unplaced(u32::from(share));
        Scheduler {
            priority_share: share(fixed),
            edf_share: share(edf),
            wfq_share: share(wfq),
            bert_share: share(bert),
            priority_memory: None,
            edf_memory: None,
            wfq_memory: None,
            bert_memory: None,
        }
    }
}

impl Scheduler {
    fn all(&self) -> [(&'static str, &Spanned<u32>); 4] {
        [
            ("priority_share", &self.priority_share),
            ("edf_share", &self.edf_share),
            ("wfq_share", &self.wfq_share),
            ("bert_share", &self.bert_share),
        ]
    }

    /// What the sockets of each policy may hold.
    pub(super) fn memory(&self) -> [Option<u64>; 4] {
        [&self.priority_memory, &self.edf_memory, &self.wfq_memory, &self.bert_memory]
            .map(|size| size.as_ref().map(|size| size.get_ref().0))
    }

    /// In the schedule's words.
    pub(super) fn shares(&self) -> Shares {
        let [fixed, edf, wfq, bert] = self.all().map(|(_, share)| *share.get_ref() as u16);
        Shares { fixed, edf, wfq, bert }
    }
}

impl Linux {
    /// Where it stands.
    pub(super) fn stands(&self) -> schedule::Linux {
        match (&self.weight, &self.share) {
            (Some(weight), _) => schedule::Linux::Weight(Weight::new(u64::from(*weight.get_ref()))),
            (_, Some(share)) => schedule::Linux::Percent(*share.get_ref()),
            (None, None) => schedule::Linux::Priority,
        }
    }

    /// Above which level paths are urgent.
    pub(super) fn level(&self) -> Level {
        Level::Priority(self.priority.as_ref().map_or(0, |priority| *priority.get_ref()))
    }
}

impl Class {
    fn policy(&self) -> Policy {
        self.policy.as_ref().map(|policy| *policy.get_ref()).unwrap_or_default()
    }

    /// Its place among the priorities.
    pub(super) fn level(&self) -> Level {
        if self.idle {
            Level::Idle
        } else {
            Level::Priority(self.priority.as_ref().map_or(0, |priority| *priority.get_ref()))
        }
    }

    /// What its paths ask of the schedule. It has been checked.
    pub(super) fn asks(&self) -> Asks {
        let number = |key: &Option<Spanned<u32>>| key.as_ref().map(|value| *value.get_ref());
        let (within_us, budget_us) = (number(&self.deadline_us), number(&self.budget_us));
        match self.policy() {
            Policy::Priority => Asks::Level,
            Policy::Edf => Asks::Deadline {
                within_us: within_us.unwrap_or_default(),
                budget_us: budget_us.unwrap_or_default(),
            },
            Policy::Wfq => Asks::Weight(
                number(&self.weight).map_or_else(Weight::default, |weight| Weight::new(weight.into())),
            ),
            Policy::Bert => Asks::Rate {
                rate: Weight::new(self.cpu_percent.as_ref().map_or(0, |percent| percent.get_ref().0).into()),
                important: self.important.as_ref().is_some_and(|important| *important.get_ref()),
                job: within_us.zip(budget_us).map(|(within_us, budget_us)| JobAsks { within_us, budget_us }),
            },
        }
    }
}

pub(super) fn check_scheduler(scheduler: &Scheduler) -> Checked {
    scheduler.all().into_iter().try_for_each(|(name, share)| within(name, share, 1..=MAX_WEIGHT))?;
    let memory = [
        ("priority_memory", &scheduler.priority_memory),
        ("edf_memory", &scheduler.edf_memory),
        ("wfq_memory", &scheduler.wfq_memory),
        ("bert_memory", &scheduler.bert_memory),
    ];
    let mut given = memory.into_iter().filter_map(|(name, size)| Some((name, size.as_ref()?)));
    given.try_for_each(|(name, size)| within(name, size, MEMORY))
}

pub(super) fn check_linux(linux: &Linux) -> Checked {
    if let Some(priority) = &linux.priority {
        within("priority", priority, 0..=MAX_PRIORITY)?;
    }
    if let Some(weight) = &linux.weight {
        within("weight", weight, 1..=MAX_WEIGHT)?;
        if linux.share.is_some() {
            let message = "Linux has a weight and a share; with a weight it is one among the paths of wfq, with a \
                           share it is beside all paths: remove one of them";
            return fault(weight, message.into());
        }
    }
    if let Some(share) = &linux.share {
        within("share", share, 1..=99)?;
    }
    Ok(())
}

/// The keys that say how a class is scheduled.
pub(super) fn check_class(class: &Class) -> Checked {
    let policy = class.policy();
    check_foreign(class, policy)?;
    if let Some(priority) = &class.priority {
        within("priority", priority, 0..=MAX_PRIORITY)?;
    }
    if let Some(priority) = &class.listen_priority {
        within("listen_priority", priority, 0..=MAX_PRIORITY)?;
    }
    if let Some(deadline) = &class.deadline_us {
        within("deadline_us", deadline, DEADLINES_US)?;
    }
    if let (Some(budget), Some(deadline)) = (&class.budget_us, &class.deadline_us) {
        within("budget_us", budget, 1..=*deadline.get_ref())?;
    }
    if let (Some(budget), Some(deadline)) = (&class.thread_budget_us, &class.deadline_us) {
        within("thread_budget_us", budget, 2..=*deadline.get_ref())?;
        if *deadline.get_ref() > MOST_OF_THREAD_US {
            let message = format!(
                "thread_budget_us goes with a deadline_us of at most {MOST_OF_THREAD_US}: Linux takes no longer one"
            );
            return fault(budget, message);
        }
    }
    if let Some(percent) = &class.cpu_limit_percent {
        within("cpu_limit_percent", percent, Percent(1)..=Percent(10_000))?;
    }
    if let Some(percent) = &class.cpu_percent {
        within("cpu_percent", percent, Percent(1)..=Percent(10_000))?;
    }
    let name = class.name.get_ref();
    match (policy, &class.policy) {
        (Policy::Edf, Some(place)) if class.deadline_us.is_none() => fault(
            place,
            format!(
                "class `{name}` has policy \"edf\" and no deadline; add deadline_us, such as deadline_us = 2000"
            ),
        ),
        (Policy::Bert, Some(place)) if class.cpu_percent.is_none() => fault(
            place,
            format!(
                "class `{name}` has policy \"bert\" and no share; add cpu_percent, such as cpu_percent = 5"
            ),
        ),
        (Policy::Bert, Some(place)) if class.deadline_us.is_some() != class.budget_us.is_some() => fault(
            place,
            format!(
                "class `{name}`: real-time work in bert has deadline_us and budget_us; add the other one"
            ),
        ),
        _ => Ok(()),
    }
}

/// Keys of another policy than the class has.
fn check_foreign(class: &Class, policy: Policy) -> Checked {
    use Policy::{Bert, Edf, Priority};
    let name = class.name.get_ref();
    let place = class.policy.as_ref();
    if class.idle
        && let Some(priority) = &class.priority
    {
        return fault(priority, format!("class `{name}` is idle and has a priority; remove one of them"));
    }
    if class.idle
        && policy != Priority
        && let Some(place) = place
    {
        return fault(
            place,
            format!(
                "class `{name}` is idle and has policy \"{policy}\"; idle is below all of them: remove one"
            ),
        );
    }
    let foreign = |key: &str, span: Option<std::ops::Range<usize>>, of: &[Policy]| {
        let Some(at) = span.filter(|_| !of.contains(&policy)) else { return Ok(()) };
        let of: Vec<String> = of.iter().map(|policy| format!("policy = \"{policy}\"")).collect();
        let message = format!(
            "class `{name}`: {key} goes with {}, and the class has policy \"{policy}\"; remove {key} or change the \
             policy",
            of.join(" or ")
        );
        Err(super::error::Fault { at, message })
    };
    foreign("priority", span(class.priority.as_ref()), &[Priority])?;
    foreign("deadline_us", span(class.deadline_us.as_ref()), &[Edf, Bert])?;
    foreign("budget_us", span(class.budget_us.as_ref()), &[Edf, Bert])?;
    foreign("thread_budget_us", span(class.thread_budget_us.as_ref()), &[Edf])?;
    foreign("cpu_limit_percent", span(class.cpu_limit_percent.as_ref()), &[Edf, Bert])?;
    foreign("cpu_percent", span(class.cpu_percent.as_ref()), &[Bert])?;
    foreign("important", span(class.important.as_ref()), &[Bert])
}

fn span<T>(value: Option<&Spanned<T>>) -> Option<std::ops::Range<usize>> {
    value.map(Spanned::span)
}
