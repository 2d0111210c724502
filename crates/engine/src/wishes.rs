//! What a program asks for one of its sockets (`setsockopt(SOL_SCOUT)`, `scoutline.h`), and what it gets.
//!
//! ```text
//! rules ─► class ─┬─ no wishes ─────────────────────────────────────────► class, its level, extended or not
//!                 └─ wishes ─► as far as it lowers, or is permitted ────►
//! ```
//! What is asked is judged when it is asked, for the errno, and again whenever it is applied: rules and permissions
//! change, and a wish never gives more than both allow at that time. Lowering is always allowed (DESIGN.md §6): a lower
//! priority, background, a longer deadline or a smaller weight where the class has one, no extension, and a class whose
//! paths stand lower and get no more of anything.

use std::rc::Rc;
use std::sync::Arc;

use scoutline_sched::transmit::BitRate;
use scoutline_sched::{Level, Weight};

use crate::policy::{Class, ClassPolicy, DSCP_LE, mark_of, of_these_programs};
use crate::scheduling::{Asks, Stands};
use crate::settings::{ClassSettings, PermissionSettings, ProgramFacts};

/// DSCP of low-priority data where LE is not known.
const DSCP_CS1: u8 = 8;

/// What was asked for. Without any of it, a socket has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// A class by name: there may come to be one again.
    pub(crate) class: Option<Arc<str>>,
    pub(crate) place: Option<Place>,
    pub(crate) background: bool,
    pub(crate) extend: Option<bool>,
}

/// Where a path should stand in the schedule: what was asked for last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Among the priorities.
    Priority(u8),
    /// In EDF, or in BERT where its class has real-time work: by when its work should be done, in microseconds.
    Deadline(u32),
    /// In WFQ.
    Weight(Weight),
}

/// What a path gets.
pub(crate) struct Granted {
    pub(crate) class: Rc<Class>,
    pub(crate) stands: Stands,
    /// For a listen path.
    pub(crate) listen_stands: Stands,
    /// Threads are raised with it.
    pub(crate) extended: bool,
}

/// What the permissions for one program come to.
#[derive(Default)]
struct Permitted {
    priority: Option<u8>,
    deadline_us: Option<u32>,
    weight: Option<Weight>,
    extend: bool,
}

impl ClassPolicy {
    /// What a path gets which the rules put into `ruled`.
    pub(crate) fn grant(&self, ruled: Rc<Class>, wishes: Option<&Wishes>, program: &ProgramFacts) -> Granted {
        let Some(wishes) = wishes else {
            let stands = ruled.stands_of(Some(program));
            let listen_stands = ruled.listen_stands_of(Some(program));
            return Granted { stands, listen_stands, extended: ruled.settings.extend, class: ruled };
        };
        let permitted = self.permitted(program);
        let named = wishes.class.as_ref().and_then(|name| self.named(name));
        let class = named.filter(|class| self.may_join(class, &ruled, program)).unwrap_or(ruled);
        let stands = |own: Stands| match (wishes.background, wishes.place) {
            (true, _) => Level::Idle.into(),
            (false, Some(place)) => permitted.place(place, own, self.linux_level()),
            (false, None) => own,
        };
        let extend = class.settings.extend;
        Granted {
            stands: stands(class.stands_of(Some(program))),
            listen_stands: stands(class.listen_stands_of(Some(program))),
            extended: wishes.extend.map_or(extend, |wish| wish && (extend || permitted.extend)),
            class,
        }
    }

    /// Whether all of these wishes would be granted.
    pub(crate) fn allows(&self, ruled: &Rc<Class>, wishes: &Wishes, program: &ProgramFacts) -> bool {
        let granted = self.grant(Rc::clone(ruled), Some(wishes), program);
        let class = wishes.class.as_ref().is_none_or(|name| granted.class.settings.name == **name);
        let place = wishes.background
            || wishes.place.is_none_or(|place| Place::of(place, granted.stands) == Some(place));
        class && place && wishes.extend.is_none_or(|extend| granted.extended == extend)
    }

    /// The class of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Rc<Class>> {
        self.classes().into_iter().find(|class| class.settings.name == name)
    }

    /// A class is more than its level: limits, marks. So an equal one needs permission, too.
    fn may_join(&self, class: &Class, ruled: &Class, program: &ProgramFacts) -> bool {
        class.number == ruled.number
            || self.lowers(&class.settings, &ruled.settings)
            || self.permissions().iter().any(|permission| {
                permission.classes.contains(&class.settings.name) && is_for(permission, program)
            })
    }

    /// Whether paths that go from one class to another get no more of anything there.
    fn lowers(&self, to: &ClassSettings, from: &ClassSettings) -> bool {
        to.level < from.level
            && to.listen_level <= from.listen_level
            && (to.asks, to.listen_asks) == (Asks::Level, Asks::Level)
            && (from.extend || !to.extend)
            && is_marked_no_higher(to, from)
            && self.queue_packets(to) <= self.queue_packets(from)
            && within(to.rate.map(BitRate::get), from.rate.map(BitRate::get))
            && within(to.memory, from.memory)
            && within(to.connections, from.connections)
    }

    fn permitted(&self, program: &ProgramFacts) -> Permitted {
        let mut sum = Permitted::default();
        for permission in self.permissions().iter().filter(|permission| is_for(permission, program)) {
            sum.priority = sum.priority.max(permission.priority);
            sum.deadline_us = sum.deadline_us.into_iter().chain(permission.deadline_us).min();
            sum.weight = sum.weight.max(permission.weight);
            sum.extend |= permission.extend;
        }
        sum
    }
}

impl Place {
    /// What a path has of that which this one asks for.
    fn of(self, stands: Stands) -> Option<Place> {
        match (self, stands.level) {
            (Place::Priority(_), Level::Priority(priority)) => Some(Place::Priority(priority)),
            (Place::Priority(_), Level::Idle) => None,
            (Place::Deadline(_), _) => stands.asks.deadline_us().map(Place::Deadline),
            (Place::Weight(_), _) => stands.asks.weight().map(Place::Weight),
        }
    }
}

impl Permitted {
    /// What a path gets of the place that it asks for, which by itself stands there.
    fn place(&self, place: Place, own: Stands, linux: Level) -> Stands {
        match place {
            // As a priority, whatever policy its class has.
            Place::Priority(priority) => {
                // What is urgent within a share only has no priority above the ordinary by itself.
                let level = if own.asks == Asks::Level { own.level } else { own.level.min(Level::default()) };
                Level::Priority(priority).min(self.up_to(level)).into()
            }
            // To be done later is less than to be done sooner.
            Place::Deadline(within_us) => {
                let least = own.asks.deadline_us().into_iter().chain(self.deadline_us).min();
                least
                    .map_or(own, |least| Stands::new(own.asks.within(within_us.max(least)), own.level, linux))
            }
            Place::Weight(weight) => {
                let most = own.asks.weight().max(self.weight);
                most.map_or(own, |most| Stands::new(Asks::Weight(weight.min(most)), own.level, linux))
            }
        }
    }

    /// The highest level for what has this one by itself.
    fn up_to(&self, own: Level) -> Level {
        self.priority.map_or(own, |priority| own.max(Level::Priority(priority)))
    }
}

/// Whether a network cannot take the packets of one class for better than those of another. Of two marks that differ
/// only the administrator knows which is more; but nothing is less than LE (RFC 8622), and no mark is the ordinary,
/// which is more than LE and its predecessor CS1 (RFC 4594 §4.10) and less than the rest.
fn is_marked_no_higher(to: &ClassSettings, from: &ClassSettings) -> bool {
    let mark = |class: &ClassSettings| mark_of(class.mark, class.level);
    match (mark(to), mark(from)) {
        (Some(DSCP_LE), _) => true,
        (None, from) => !matches!(from, Some(DSCP_LE | DSCP_CS1)),
        (to, from) => to == from,
    }
}

/// Whether a limit is no wider than another; `None` is none.
fn within<T: Ord>(to: Option<T>, from: Option<T>) -> bool {
    from.is_none_or(|from| to.is_some_and(|to| to <= from))
}

fn is_for(permission: &PermissionSettings, program: &ProgramFacts) -> bool {
    of_these_programs(&permission.programs, &permission.users, &permission.cgroups, Some(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, level: Level) -> ClassSettings {
        ClassSettings { level, listen_level: level, local_ports: vec![80..=80], ..ClassSettings::new(name) }
    }

    fn policy(permissions: Vec<PermissionSettings>) -> ClassPolicy {
        let quiet = ClassSettings { extend: false, ..class("quiet", Level::Priority(2)) };
        let bounded = ClassSettings { connections: Some(9), ..class("bounded", Level::Priority(3)) };
        let classes = [
            class("web", Level::Priority(2)),
            class("like", Level::Priority(2)),
            class("top", Level::Priority(9)),
            class("low", Level::Priority(1)),
            class("backup", Level::Idle),
            quiet,
            bounded,
        ];
        let policy = ClassPolicy::new(classes.to_vec());
        policy.set_permissions(permissions);
        policy
    }

    fn program(name: &str) -> ProgramFacts {
        ProgramFacts {
            name: name.to_owned(),
            user: Some(33),
            cgroups: vec!["/web/one".into()],
            ..ProgramFacts::default()
        }
    }

    fn wish(change: impl FnOnce(&mut Wishes)) -> Wishes {
        let mut wishes = Wishes::default();
        change(&mut wishes);
        wishes
    }

    fn named(name: &str) -> Wishes {
        wish(|wishes| wishes.class = Some(name.into()))
    }

    #[test]
    fn lowering_needs_no_permission_and_rising_does() {
        let policy = policy(Vec::new());
        let web = policy.named("web").unwrap();
        let allows = |wishes: &Wishes| policy.allows(&web, wishes, &program("nginx"));
        for (priority, allowed) in [(0, true), (2, true), (3, false), (63, false)] {
            assert_eq!(
                allows(&wish(|wishes| wishes.place = Some(Place::Priority(priority)))),
                allowed,
                "{priority}"
            );
        }
        assert!(allows(&wish(|wishes| wishes.background = true)));
        assert!(allows(&wish(|wishes| wishes.extend = Some(false))));
        for (name, allowed) in
            [("web", true), ("low", true), ("backup", true), ("like", false), ("top", false), ("none", false)]
        {
            assert_eq!(allows(&named(name)), allowed, "{name}");
        }
        let quiet = policy.named("quiet").unwrap();
        assert!(!policy.allows(&quiet, &wish(|wishes| wishes.extend = Some(true)), &program("nginx")));
        assert!(!policy.allows(&quiet, &named("low"), &program("nginx")), "its threads would be raised");
        let bounded = policy.named("bounded").unwrap();
        assert!(!policy.allows(&bounded, &named("low"), &program("nginx")), "it would lose its limit");
    }

    #[test]
    fn marks_are_no_way_up() {
        const EF: u8 = 46;
        let marked = |name, level, mark| ClassSettings { mark, ..class(name, level) };
        let (high, low) = (Level::Priority(2), Level::Priority(1));
        let classes = [
            marked("plain", high, None),
            marked("lower", low, None),
            marked("ef", high, Some(EF)),
            marked("lower-ef", low, Some(EF)),
            marked("lower-le", low, Some(DSCP_LE)),
            marked("cs1", high, Some(DSCP_CS1)),
            marked("le", high, Some(DSCP_LE)),
            marked("backup", Level::Idle, None),
            marked("backup-ef", Level::Idle, Some(EF)),
        ];
        let policy = ClassPolicy::new(classes.to_vec());
        for (from, allowed) in [
            ("plain", &["lower", "lower-le", "backup"][..]),
            ("ef", &["lower", "lower-ef", "lower-le", "backup", "backup-ef"]),
            ("cs1", &["lower-le", "backup"]),
            ("le", &["lower-le", "backup"]),
        ] {
            let ruled = policy.named(from).unwrap();
            for to in ["lower", "lower-ef", "lower-le", "backup", "backup-ef"] {
                let allows = policy.allows(&ruled, &named(to), &program("nginx"));
                assert_eq!(allows, allowed.contains(&to), "{from} to {to}");
            }
        }
    }

    #[test]
    fn longer_queues_are_no_way_down() {
        let queue = |name, level, queue_packets| ClassSettings { queue_packets, ..class(name, level) };
        let (high, low) = (Level::Priority(2), Level::Priority(1));
        let classes = [
            queue("web", high, None),
            queue("short", high, Some(64)),
            queue("low", low, None),
            queue("low-short", low, Some(64)),
            queue("low-long", low, Some(1000)),
        ];
        let policy = ClassPolicy::new(classes.to_vec());
        policy.set_queue_packets(256);
        for (from, allowed) in [("web", &["low", "low-short"][..]), ("short", &["low-short"])] {
            let ruled = policy.named(from).unwrap();
            for to in ["low", "low-short", "low-long"] {
                let allows = policy.allows(&ruled, &named(to), &program("nginx"));
                assert_eq!(allows, allowed.contains(&to), "{from} to {to}");
            }
        }
    }

    #[test]
    fn permissions_are_for_programs_and_add_up() {
        let general =
            PermissionSettings { programs: vec!["nginx".into()], priority: Some(5), ..Default::default() };
        let group = PermissionSettings {
            cgroups: vec!["/web".into()],
            users: vec![33],
            classes: vec!["top".into()],
            extend: true,
            ..Default::default()
        };
        let policy = policy(vec![general, group]);
        let (web, quiet) = (policy.named("web").unwrap(), policy.named("quiet").unwrap());
        let at = |priority| wish(|wishes| wishes.place = Some(Place::Priority(priority)));
        assert!(
            policy.allows(&web, &at(5), &program("nginx")) && !policy.allows(&web, &at(6), &program("nginx"))
        );
        assert!(!policy.allows(&web, &at(5), &program("other")));
        assert!(policy.allows(&web, &named("top"), &program("other")));
        assert!(!policy.allows(&web, &named("like"), &program("other")));
        assert!(policy.allows(&quiet, &wish(|wishes| wishes.extend = Some(true)), &program("other")));
        let other_user = ProgramFacts { user: Some(34), ..program("other") };
        assert!(!policy.allows(&web, &named("top"), &other_user));
    }

    #[test]
    fn what_is_granted_follows_rules_and_permissions() {
        let policy = policy(vec![PermissionSettings { priority: Some(4), ..Default::default() }]);
        let wishes =
            wish(|wishes| (wishes.place, wishes.class) = (Some(Place::Priority(8)), Some("low".into())));
        let of = |policy: &ClassPolicy, ruled: &str| {
            let granted = policy.grant(policy.named(ruled).unwrap(), Some(&wishes), &program("nginx"));
            (granted.class.settings.name.clone(), granted.stands.level)
        };
        assert_eq!(of(&policy, "web"), ("low".into(), Level::Priority(4)));
        assert_eq!(of(&policy, "backup"), ("backup".into(), Level::Priority(4)), "it would be a rise");
        policy.set_permissions(Vec::new());
        assert_eq!(of(&policy, "web"), ("low".into(), Level::Priority(1)));
        assert_eq!(of(&policy, "top"), ("low".into(), Level::Priority(1)));
        assert_eq!(of(&policy, "backup"), ("backup".into(), Level::Idle));
    }
}
