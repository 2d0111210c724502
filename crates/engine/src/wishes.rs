//! What a program asks for one of its sockets (`setsockopt(SOL_SCOUT)`, `scoutline.h`), and what it gets.
//!
//! ```text
//! rules ─► class ─┬─ no wishes ─────────────────────────────────────────► class, its level, extended or not
//!                 └─ wishes ─► as far as it lowers, or is permitted ────►
//! ```
//! What is asked is judged when it is asked, for the errno, and again whenever it is applied: rules and permissions
//! change, and a wish never gives more than both allow at that time. Lowering is always allowed (DESIGN.md §6): a lower
//! priority, background, no extension, and a class whose paths stand lower.

use std::rc::Rc;

use scoutline_sched::Level;
use scoutline_sched::transmit::BitRate;

use crate::policy::{Class, ClassPolicy, of_these_programs};
use crate::scheduling::{Asks, Stands};
use crate::settings::{ClassSettings, PermissionSettings, ProgramFacts};

/// What was asked for. Without any of it, a socket has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// A class by name: there may come to be one again.
    pub(crate) class: Option<Rc<str>>,
    pub(crate) priority: Option<u8>,
    pub(crate) background: bool,
    pub(crate) extend: Option<bool>,
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
        // Who asks for a priority gets it as one, whatever policy its class has.
        let stands = |own: Stands| match (wishes.background, wishes.priority) {
            (true, _) => Level::Idle.into(),
            (false, Some(priority)) => {
                // What is urgent within a share only has no priority above the ordinary by itself.
                let level = if own.asks == Asks::Level { own.level } else { own.level.min(Level::default()) };
                Level::Priority(priority).min(permitted.up_to(level)).into()
            }
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
        let level = wishes.background
            || wishes.priority.is_none_or(|priority| granted.stands.level == Level::Priority(priority));
        class && level && wishes.extend.is_none_or(|extend| granted.extended == extend)
    }

    /// The class of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Rc<Class>> {
        self.classes().into_iter().find(|class| class.settings.name == name)
    }

    /// A class is more than its level: limits, marks. So an equal one needs permission, too.
    fn may_join(&self, class: &Class, ruled: &Class, program: &ProgramFacts) -> bool {
        class.number == ruled.number
            || lowers(&class.settings, &ruled.settings)
            || self.permissions().iter().any(|permission| {
                permission.classes.contains(&class.settings.name) && is_for(permission, program)
            })
    }

    fn permitted(&self, program: &ProgramFacts) -> Permitted {
        let mut sum = Permitted::default();
        for permission in self.permissions().iter().filter(|permission| is_for(permission, program)) {
            sum.priority = sum.priority.max(permission.priority);
            sum.extend |= permission.extend;
        }
        sum
    }
}

impl Permitted {
    /// The highest level for what has this one by itself.
    fn up_to(&self, own: Level) -> Level {
        self.priority.map_or(own, |priority| own.max(Level::Priority(priority)))
    }
}

/// Whether paths that go from one class to another get no more of anything there.
fn lowers(to: &ClassSettings, from: &ClassSettings) -> bool {
    to.level < from.level
        && to.listen_level <= from.listen_level
        && (to.asks, to.listen_asks) == (Asks::Level, Asks::Level)
        && (from.extend || !to.extend)
        && within(to.rate.map(BitRate::get), from.rate.map(BitRate::get))
        && within(to.memory, from.memory)
        && within(to.connections, from.connections)
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
            assert_eq!(allows(&wish(|wishes| wishes.priority = Some(priority))), allowed, "{priority}");
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
        let at = |priority| wish(|wishes| wishes.priority = Some(priority));
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
        let wishes = wish(|wishes| (wishes.priority, wishes.class) = (Some(8), Some("low".into())));
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
