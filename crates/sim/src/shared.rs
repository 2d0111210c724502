//! What all parts of a run share: the trace, and the first thing found wrong.

use std::cell::{Cell, RefCell};
use std::fmt;

use scoutline_base::Time;

use crate::canary::Canary;

/// See the module.
#[derive(Default)]
pub(crate) struct Shared {
    /// The defect that is switched on.
    pub(crate) canary: Option<Canary>,
    /// Lines are printed.
    pub(crate) prints: bool,
    now: Cell<Time>,
    hash: Cell<u64>,
    found: RefCell<Option<String>>,
}

impl Shared {
    pub(crate) fn new(canary: Option<Canary>, prints: bool) -> Shared {
        Shared { canary, prints, ..Shared::default() }
    }

    pub(crate) fn set_now(&self, now: Time) {
        self.now.set(now);
    }

    /// Something happened at a host: it becomes part of the hash by which two runs are compared.
    pub(crate) fn note(&self, host: usize, what: fmt::Arguments<'_>, numbers: &[u64]) {
        let now = self.now.get();
        self.mix(now.as_nanos());
        self.mix(host as u64);
        for number in numbers {
            self.mix(*number);
        }
        if self.prints {
            println!("{:>12.6} {host} {what}", now.as_nanos() as f64 / 1e9);
        }
    }

    /// Bytes become part of the hash.
    pub(crate) fn mix_bytes(&self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&self, value: u64) {
        let mixed = (self.hash.get().rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash.set(mixed);
    }

    /// Something is wrong. The first finding counts.
    pub(crate) fn found(&self, what: fmt::Arguments<'_>) {
        let mut found = self.found.borrow_mut();
        if found.is_none() {
            *found = Some(format!("at {:.6} s: {what}", self.now.get().as_nanos() as f64 / 1e9));
        }
    }

    pub(crate) fn first_found(&self) -> Option<String> {
        self.found.borrow().clone()
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }
}
