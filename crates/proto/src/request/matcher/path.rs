//! Normalised paths and prefixes of them.

use std::borrow::Cow;

/// Prefixes, sorted, none of which begins with another: so at most one can hold, the greatest that is not greater
/// than the path.
#[derive(Clone, Debug)]
pub(super) struct Prefixes(Vec<Box<[u8]>>);

impl Prefixes {
    /// Gives back the first without a slash in front.
    pub(super) fn new(paths: &[String]) -> Result<Prefixes, &str> {
        let mut sorted = Vec::new();
        for path in paths {
            if !path.starts_with('/') {
                return Err(path);
            }
            let mut decoded = Decoded::default();
            decoded.push_all(path.as_bytes());
            sorted.push(decoded.out.into_boxed_slice());
        }
        sorted.sort_unstable();
        // What begins with another comes right behind it, or behind more of its kind.
        sorted.dedup_by(|longer, shorter| longer.starts_with(shorter));
        Ok(Prefixes(sorted))
    }

    /// Whether the path begins with one of them; without any, every path will do.
    pub(super) fn hold(&self, path: Option<&[u8]>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(path) = path else { return false };
        let behind = self.0.partition_point(|prefix| **prefix <= *path);
        behind > 0 && path.starts_with(&self.0[behind - 1])
    }
}

/// The path as servers read it; `path` begins with a slash.
pub(super) fn normalise(path: &[u8]) -> Cow<'_, [u8]> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    let mut decoded = Decoded { out: Vec::with_capacity(path.len()) };
    decoded.push_all(path);
    Cow::Owned(decoded.finish())
}

/// Nothing is encoded, and no segment is empty or begins with a dot.
fn is_normal(path: &[u8]) -> bool {
    let mut after_slash = false;
    for &byte in path {
        if byte == b'%' || after_slash && matches!(byte, b'/' | b'.') {
            return false;
        }
        after_slash = byte == b'/';
    }
    true
}

/// A path in the making: segments that are closed by a slash are resolved.
#[derive(Default)]
struct Decoded {
    out: Vec<u8>,
}

impl Decoded {
    fn push_all(&mut self, mut path: &[u8]) {
        while let Some((&byte, rest)) = path.split_first() {
            let hex = |at: usize| rest.get(at).and_then(|&digit| (digit as char).to_digit(16));
            let encoded = if byte == b'%' { hex(0).zip(hex(1)) } else { None };
            let (byte, len) = encoded.map_or((byte, 0), |(high, low)| ((high << 4 | low) as u8, 2));
            path = &rest[len..];
            self.out.push(byte);
            if byte == b'/' {
                self.close_segment();
            }
        }
    }

    /// Behind a slash: resolves what the segment before it means.
    fn close_segment(&mut self) {
        let len = self.out.len();
        if self.out.ends_with(b"//") {
            self.out.truncate(len - 1);
        } else if self.out.ends_with(b"/./") {
            self.out.truncate(len - 2);
        } else if self.out.ends_with(b"/../") {
            // The work is paid for by the bytes that it takes away.
            let parent = self.out[..len - 4].iter().rposition(|&byte| byte == b'/');
            self.out.truncate(parent.map_or(1, |at| at + 1));
        }
    }

    /// The last segment is closed by the end.
    fn finish(mut self) -> Vec<u8> {
        if self.out.ends_with(b"/.") || self.out.ends_with(b"/..") {
            self.out.push(b'/');
            self.close_segment();
        }
        self.out
    }
}
