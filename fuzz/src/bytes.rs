//! Reading decisions off fuzz input, and replaying kept inputs.

use std::path::Path;

/// A target: its name, which is also its corpus folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Input read from the front; zeros when it has run out, so that every input means something.
pub struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// A reader of `input`.
    pub fn new(input: &'a [u8]) -> Bytes<'a> {
        Bytes { rest: input }
    }

    /// True when only zeros follow.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        first
    }

    /// The next two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// The next four bytes, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// The next eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// The next `len` bytes, or what is left.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        front
    }

    /// A small signed number most of the time, any at others: what lies near a boundary is what breaks.
    pub fn near(&mut self) -> i32 {
        let choice = self.u8();
        match choice {
            0..=127 => 0,
            128..=191 => i32::from(choice) - 160,
            192..=231 => i32::from(self.u16() as i16) / 8,
            232..=247 => i32::from(self.u16() as i16) * 3,
            _ => self.u32() as i32,
        }
    }
}

/// Runs a target over every input kept for it under `fuzz`, the folder of the fuzz package.
///
/// # Panics
/// When the folder cannot be read; and when the target does, after naming the input.
pub fn replay(fuzz: impl AsRef<Path>, &(name, body): &Target) {
    let folder = fuzz.as_ref().join("corpus-kept").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let input = std::fs::read(&file).unwrap();
        let result = std::panic::catch_unwind(|| body(&input));
        assert!(result.is_ok(), "{} breaks it", file.display());
    }
    // Nothing, and something that is nothing.
    body(&[]);
    body(&[0xff; 300]);
}
