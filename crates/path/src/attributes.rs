//! Attributes: typed name/value pairs, the invariants of a path (Scout §3.2).
//!
//! Modules add, change and remove them while a path is created; the path keeps the list, so that stages and
//! programs exchange facts without knowing each other.

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
    list: Vec<(Name, Value)>,
}

impl Attributes {
    /// An empty list.
    pub fn new() -> Attributes {
        Attributes { list: Vec::with_capacity(12) }
    }

    /// Sets an attribute; builder form.
    #[must_use]
    pub fn with(mut self, name: Name, value: Value) -> Attributes {
        self.set(name, value);
        self
    }

    /// Adds or changes an attribute.
    pub fn set(&mut self, name: Name, value: Value) {
        match self.list.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.list.push((name, value)),
        }
    }

    /// Takes an attribute away.
    pub fn remove(&mut self, name: Name) -> Option<Value> {
        let index = self.list.iter().position(|(n, _)| *n == name)?;
        Some(self.list.swap_remove(index).1)
    }

    /// An attribute's value.
    pub fn value(&self, name: Name) -> Option<&Value> {
        self.list.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
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
        self.list.iter()
    }
}
