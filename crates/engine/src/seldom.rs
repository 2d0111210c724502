//! What few of many have: it takes its room only once there is something in it.
//!
//! There are a hundred thousand sockets, and a handful of them listen, are in groups, send files or have options set. A
//! `RefCell` with an empty list takes 32 or 40 bytes of each; [`Seldom`] and [`Rare`] take 8.

use std::cell::{Cell, OnceCell, Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::Deref;

/// A value in a cell that is mostly the default one.
pub(crate) struct Rare<T>(Cell<Option<Box<T>>>);

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Rare(Cell::new(None))
    }
}

impl<T: Copy + Default + PartialEq> Rare<T> {
    /// See [`Cell::get`].
    #[inline]
    pub(crate) fn get(&self) -> T {
        let value = self.0.take();
        let copy = value.as_deref().copied().unwrap_or_default();
        self.0.set(value);
        copy
    }

    /// See [`Cell::set`].
    pub(crate) fn set(&self, value: T) {
        self.0.set((value != T::default()).then(|| Box::new(value)));
    }

    /// See [`Cell::take`].
    pub(crate) fn take(&self) -> T {
        self.0.take().map_or_else(T::default, |value| *value)
    }
}

/// A list in a cell, borrowed as one of a [`RefCell`] is.
pub(crate) struct Seldom<L>(OnceCell<Box<RefCell<L>>>);

/// A look at a list: there is none before something was put there.
pub(crate) struct Look<'a, L>(Option<Ref<'a, L>>);

/// What may be in it.
pub(crate) trait List: Default + 'static {
    /// One without anything in it.
    const EMPTY: &'static Self;

    /// True without anything in it.
    fn has_none(&self) -> bool;
}

impl<T: 'static> List for Vec<T> {
    const EMPTY: &'static Vec<T> = &Vec::new();

    fn has_none(&self) -> bool {
        self.is_empty()
    }
}

impl<T: 'static> List for VecDeque<T> {
    const EMPTY: &'static VecDeque<T> = &VecDeque::new();

    fn has_none(&self) -> bool {
        self.is_empty()
    }
}

impl<L: List> Deref for Look<'_, L> {
    type Target = L;

    fn deref(&self) -> &L {
        self.0.as_deref().unwrap_or(L::EMPTY)
    }
}

impl<L> Default for Seldom<L> {
    fn default() -> Self {
        Seldom(OnceCell::new())
    }
}

impl<L: List> Seldom<L> {
    /// True without anything in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none_or(|list| list.borrow().has_none())
    }

    /// See [`RefCell::borrow`].
    #[inline]
    pub(crate) fn borrow(&self) -> Look<'_, L> {
        Look(self.0.get().map(|list| list.borrow()))
    }

    /// See [`RefCell::borrow_mut`]: for what will hardly stay empty.
    pub(crate) fn borrow_mut(&self) -> RefMut<'_, L> {
        self.0.get_or_init(Box::default).borrow_mut()
    }

    /// Takes all out.
    pub(crate) fn take(&self) -> L {
        self.0.get().map_or_else(L::default, |list| list.take())
    }

    /// See [`RefCell::replace`].
    pub(crate) fn replace(&self, list: L) {
        if !(list.has_none() && self.is_empty()) {
            *self.borrow_mut() = list;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Rare, Seldom};

    #[test]
    fn is_a_value() {
        let value: Rare<Option<u64>> = Rare::default();
        assert_eq!((value.get(), value.take()), (None, None));
        value.set(Some(3));
        assert_eq!((value.get(), value.get(), value.take(), value.get()), (Some(3), Some(3), Some(3), None));
        value.set(Some(4));
        value.set(None);
        assert!(value.0.take().is_none(), "the default takes no room");
        assert_eq!(size_of_val(&value), 8);
    }

    #[test]
    fn is_a_list() {
        let list: Seldom<Vec<u32>> = Seldom::default();
        assert!(list.is_empty() && list.borrow().is_empty() && list.take().is_empty());
        list.borrow_mut().push(3);
        list.borrow_mut().push(4);
        assert_eq!((list.borrow().as_slice(), list.is_empty()), (&[3, 4][..], false));
        assert_eq!((list.take(), list.is_empty()), (vec![3, 4], true));
        list.replace(vec![5]);
        assert_eq!(*list.borrow(), [5]);
        list.borrow_mut().clear();
        assert!(list.is_empty());
        assert_eq!(size_of_val(&list), 8);
    }
}
