//! Attributes: typed name/value pairs, the invariants of a path (Scout §3.2).
//!
//! Modules add, change and remove them while a path is created; the path keeps the list, so that stages and
//! programs exchange facts without knowing each other.
//!
//! Of a hundred thousand connections of one server nearly all is the same but the addresses. So once a path is complete its
//! table puts what it has [in common](Commons) with others where all of them can see it: 100 bytes remain of 600.

use std::any::Any;
use std::rc::Rc;

use scoutline_base::{DeviceId, Endpoint, PathId};

use crate::CreateError;

/// The names of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// Text: the path's name for people; may also force routing decisions (Scout's PA_PATHNAME).
    PathName,
    /// Address: our end.
    Local,
    /// Address: the peer's end.
    Remote,
    /// Number: the protocol that the module above wants below it (Scout's PA_PROTID).
    Protocol,
    /// Number: the index of the class in the policy.
    Class,
    /// Number: priority within the fixed-priority policy; higher is more important.
    Priority,
    /// Number: when present, the path listens; the value is its backlog.
    Listen,
    /// Path: the listen path that this one came from.
    Parent,
    /// Number: packets that may wait in the input queue.
    QueueLimit,
    /// Number: buffer bytes that the path may hold.
    MemoryLimit,
    /// Device.
    Device,
    /// Number: bytes of the receive ring.
    ReceiveBuffer,
    /// Number: bytes of the send ring.
    SendBuffer,
    /// Any: the program's end (the engine's socket handle).
    Socket,
    /// Any other, by name.
    Other(&'static str),
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number; the unit stands at the name.
    Number(u64),
    /// Text.
    Text(Rc<str>),
    /// Address and port.
    Address(Endpoint),
    /// A device.
    Device(DeviceId),
    /// A path.
    Path(PathId),
    /// Something that only those who put and take it know.
    Any(Rc<dyn Any>),
}

/// An attribute list. Short, so a list searched in order.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// Its own. They hide those in common.
    own: Vec<(Name, Value)>,
    /// What other paths have as well.
    common: Option<Rc<Vec<(Name, Value)>>>,
}

impl Attributes {
    /// An empty list.
    pub fn new() -> Attributes {
        Attributes { own: Vec::with_capacity(12), common: None }
    }

    /// Sets an attribute; builder form.
    #[must_use]
    pub fn with(mut self, name: Name, value: Value) -> Attributes {
        self.set(name, value);
        self
    }

    /// Adds or changes an attribute.
    pub fn set(&mut self, name: Name, value: Value) {
        match self.own.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.own.push((name, value)),
        }
    }

    /// Takes an attribute away.
    pub fn remove(&mut self, name: Name) -> Option<Value> {
        if let Some(common) = self.common.take_if(|common| position(common, name).is_some()) {
            let hidden = |(name, _): &&(Name, Value)| position(&self.own, *name).is_some();
            let more: Vec<_> = common.iter().filter(|entry| !hidden(entry)).cloned().collect();
            self.own.extend(more);
        }
        position(&self.own, name).map(|index| self.own.swap_remove(index).1)
    }

    /// An attribute's value.
    pub fn value(&self, name: Name) -> Option<&Value> {
        let in_common = || self.in_common().iter().find(|(n, _)| *n == name);
        self.own.iter().find(|(n, _)| *n == name).or_else(in_common).map(|(_, value)| value)
    }

    fn in_common(&self) -> &[(Name, Value)] {
        self.common.as_ref().map_or(&[], |common| common)
    }

    /// A number.
    pub fn number(&self, name: Name) -> Option<u64> {
        match self.value(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// An address.
    pub fn address(&self, name: Name) -> Option<Endpoint> {
        match self.value(name)? {
            Value::Address(address) => Some(*address),
            _ => None,
        }
    }

    /// A device.
    pub fn device(&self) -> Option<DeviceId> {
        match self.value(Name::Device)? {
            Value::Device(device) => Some(*device),
            _ => None,
        }
    }

    /// A path.
    pub fn path(&self, name: Name) -> Option<PathId> {
        match self.value(name)? {
            Value::Path(path) => Some(*path),
            _ => None,
        }
    }

    /// A value that only its users know.
    pub fn any<T: 'static>(&self, name: Name) -> Option<Rc<T>> {
        match self.value(name)? {
            Value::Any(any) => Rc::clone(any).downcast().ok(),
            _ => None,
        }
    }

    /// An address that `module` cannot do without.
    ///
    /// # Errors
    /// [`CreateError::MissingAttribute`] when it is not there.
    pub fn require_address(
        &self,
        name: Name,
        module: &'static str,
        attribute: &'static str,
    ) -> Result<Endpoint, CreateError> {
        self.address(name).ok_or(CreateError::MissingAttribute { module, attribute })
    }

    /// All attributes, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &(Name, Value)> {
        let hidden = |(name, _): &&(Name, Value)| position(&self.own, *name).is_some();
        self.own.iter().chain(self.in_common().iter().filter(move |entry| !hidden(entry)))
    }
}

fn position(list: &[(Name, Value)], name: Name) -> Option<usize> {
    list.iter().position(|(n, _)| *n == name)
}

/// What paths that were made lately had in common with others.
#[derive(Debug, Default)]
pub(crate) struct Commons {
    /// The one used last in front.
    recent: Vec<Rc<Vec<(Name, Value)>>>,
}

impl Commons {
    /// Servers and classes whose connections come at the same time. Of more, some lists stand more than once.
    const KEPT: usize = 16;

    /// The same list in as little memory as possible: for one that will hardly change any more.
    pub(crate) fn settle(&mut self, attributes: Attributes) -> Attributes {
        let Attributes { own: mut list, common: None } = attributes else { return attributes };
        let found =
            self.recent.iter().position(|known| is_same(known, list.iter().filter(|entry| is_plain(entry))));
        if let Some(found) = found {
            self.recent[..=found].rotate_right(1);
        } else {
            self.recent.truncate(Commons::KEPT - 1);
            self.recent.insert(0, Rc::new(list.iter().filter(|entry| is_plain(entry)).cloned().collect()));
        }
        list.retain(|entry| !is_plain(entry));
        // Not shrunk where it is: that would leave scraps between what paths keep.
        let mut own = Vec::with_capacity(list.len());
        own.append(&mut list);
        Attributes { own, common: self.recent.first().cloned() }
    }
}

/// What many paths have alike.
fn is_plain((_, value): &(Name, Value)) -> bool {
    matches!(value, Value::Number(_) | Value::Device(_) | Value::Path(_))
}

/// Paths of one kind are made by the same modules, which leave their attributes in the same order.
fn is_same<'a>(known: &[(Name, Value)], mut list: impl Iterator<Item = &'a (Name, Value)>) -> bool {
    let same = |one: &Value, other: &Value| match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other,
        (Value::Device(one), Value::Device(other)) => one == other,
        (Value::Path(one), Value::Path(other)) => one == other,
        _ => false,
    };
    let mut known = known.iter();
    let all =
        list.all(|entry| known.next().is_some_and(|known| known.0 == entry.0 && same(&known.1, &entry.1)));
    all && known.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::{Attributes, Commons, Name, Value};

    const NAMES: [Name; 6] =
        [Name::Local, Name::Class, Name::Priority, Name::Device, Name::PathName, Name::Other("one more")];

    /// A plain value, or one that is a path's own.
    fn value(number: u64) -> Value {
        if number.is_multiple_of(3) { Value::Text("text".into()) } else { Value::Number(number) }
    }

    fn text(value: &Value) -> String {
        format!("{value:?}")
    }

    proptest! {
        /// Lists that are settled at any time, beside others that share with them, against plain lists.
        #[test]
        fn settled_or_not_is_the_same(
            operations in prop::collection::vec((0u8..4, 0usize..3, 0usize..6, 0u64..6), 0..200)
        ) {
            let mut commons = Commons::default();
            let mut lists: [Attributes; 3] = Default::default();
            let mut oracles: [std::collections::BTreeMap<String, String>; 3] = Default::default();
            for (operation, of, name, number) in operations {
                let (list, oracle, name) = (&mut lists[of], &mut oracles[of], NAMES[name]);
                let key = format!("{name:?}");
                match operation {
                    0 | 1 => {
                        list.set(name, value(number));
                        oracle.insert(key, text(&value(number)));
                    }
                    2 => prop_assert_eq!(list.remove(name).as_ref().map(text), oracle.remove(&key)),
                    _ => *list = commons.settle(std::mem::take(list)),
                }
                for (list, oracle) in lists.iter().zip(&oracles) {
                    let all: Vec<_> = list.iter().map(|(name, value)| (format!("{name:?}"), text(value))).collect();
                    prop_assert_eq!(all.len(), oracle.len(), "each name once");
                    prop_assert!(all.iter().all(|(name, value)| oracle.get(name) == Some(value)));
                    for name in NAMES {
                        prop_assert_eq!(list.value(name).map(text), oracle.get(&format!("{name:?}")).cloned());
                    }
                }
            }
            prop_assert!(commons.recent.len() <= Commons::KEPT);
        }
    }

    #[test]
    fn connections_of_one_server_share() {
        let mut commons = Commons::default();
        let make = |number: u64| {
            let list =
                Attributes::new().with(Name::Class, Value::Number(1)).with(Name::Priority, Value::Number(2));
            list.with(Name::PathName, Value::Text(format!("path {number}").into()))
        };
        let lists: Vec<_> = (0..10).map(|number| commons.settle(make(number))).collect();
        let first = lists[0].common.as_ref().unwrap();
        assert!(lists.iter().all(|list| Rc::ptr_eq(list.common.as_ref().unwrap(), first)));
        assert!(lists.iter().all(|list| list.own.len() == 1 && list.own.capacity() == 1));
    }
}
