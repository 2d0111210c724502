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

use crate::policy::{Class, ClassPolicy, of_these_programs};
use crate::settings::{PermissionSettings, ProgramFacts};

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
    pub(crate) level: Level,
    /// For a listen path.
    pub(crate) listen_level: Level,
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
            let (level, listen_level) = (ruled.level_of(Some(program)), ruled.listen_level_of(Some(program)));
            return Granted { level, listen_level, extended: ruled.settings.extend, class: ruled };
        };
        let permitted = self.permitted(program);
        let named = wishes.class.as_ref().and_then(|name| self.named(name));
        let class = named.filter(|class| self.may_join(class, &ruled, program)).unwrap_or(ruled);
        let level = |own: Level| match (wishes.background, wishes.priority) {
            (true, _) => Level::Idle,
            (false, Some(priority)) => Level::Priority(priority).min(permitted.up_to(own)),
            (false, None) => own,
        };
        let extend = class.settings.extend;
        Granted {
            level: level(class.level_of(Some(program))),
            listen_level: level(class.listen_level_of(Some(program))),
            extended: wishes.extend.map_or(extend, |wish| wish && (extend || permitted.extend)),
            class,
        }
    }

    /// Whether all of these wishes would be granted.
    pub(crate) fn allows(&self, ruled: &Rc<Class>, wishes: &Wishes, program: &ProgramFacts) -> bool {
        let granted = self.grant(Rc::clone(ruled), Some(wishes), program);
        let class = wishes.class.as_ref().is_none_or(|name| granted.class.settings.name == **name);
        let level = wishes.background
            || wishes.priority.is_none_or(|priority| granted.level == Level::Priority(priority));
        class && level && wishes.extend.is_none_or(|extend| granted.extended == extend)
    }

    /// The class of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Rc<Class>> {
        self.classes().into_iter().find(|class| class.settings.name == name)
    }

    /// A class is more than its level: limits, marks. So an equal one needs permission, too.
    fn may_join(&self, class: &Class, ruled: &Class, program: &ProgramFacts) -> bool {
        class.number == ruled.number
            || class.settings.level < ruled.settings.level
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

fn is_for(permission: &PermissionSettings, program: &ProgramFacts) -> bool {
    of_these_programs(&permission.programs, &permission.users, &permission.cgroups, Some(program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ClassSettings;

    fn class(name: &str, level: Level) -> ClassSettings {
        ClassSettings { level, listen_level: level, local_ports: vec![80..=80], ..ClassSettings::new(name) }
    }

    fn policy(permissions: Vec<PermissionSettings>) -> ClassPolicy {
        let quiet = ClassSettings { extend: false, ..class("quiet", Level::Priority(2)) };
        let classes = [
            class("web", Level::Priority(2)),
            class("like", Level::Priority(2)),
            class("top", Level::Priority(9)),
            class("low", Level::Priority(1)),
            class("backup", Level::Idle),
            quiet,
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
            (granted.class.settings.name.clone(), granted.level)
        };
        assert_eq!(of(&policy, "web"), ("low".into(), Level::Priority(4)));
        assert_eq!(of(&policy, "backup"), ("backup".into(), Level::Priority(4)), "it would be a rise");
        policy.set_permissions(Vec::new());
        assert_eq!(of(&policy, "web"), ("low".into(), Level::Priority(1)));
        assert_eq!(of(&policy, "top"), ("low".into(), Level::Priority(1)));
        assert_eq!(of(&policy, "backup"), ("backup".into(), Level::Idle));
    }
}
