//! Sequence numbers: modular arithmetic over 2^32 (RFC 9293 §3.4).
//!
//! Inside the machine everything is a `u64` that only grows; a [`SeqNumber`] appears where a header is read or
//! written, and the difference of two of them is the only thing ever compared.

/// A sequence or acknowledgment number as it stands on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// The number `offset` units later, through the wrap. Only the low 32 bits of `offset` matter.
    #[inline]
    #[must_use]
    pub const fn plus(self, offset: u64) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(offset as u32))
    }

    /// How far `self` lies after `reference`; negative when before. Right while they are within 2^31.
    #[inline]
    pub const fn offset_from(self, reference: SeqNumber) -> i64 {
        self.0.wrapping_sub(reference.0) as i32 as i64
    }

    /// True when `self` lies before `other`.
    #[inline]
    pub const fn is_before(self, other: SeqNumber) -> bool {
        self.offset_from(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::SeqNumber;

    #[test]
    fn compares_across_the_wrap() {
        let near_end = SeqNumber(u32::MAX - 1);
        assert_eq!(near_end.plus(3), SeqNumber(1));
        assert!(near_end.is_before(SeqNumber(1)));
        assert!(!SeqNumber(1).is_before(near_end));
        assert_eq!(SeqNumber(1).offset_from(near_end), 3);
        assert_eq!(near_end.offset_from(SeqNumber(1)), -3);
        assert!(!near_end.is_before(near_end));
    }

    proptest! {
        #[test]
        fn plus_and_offset_are_inverse(start in any::<u32>(), offset in 0..(1u64 << 31)) {
            let start = SeqNumber(start);
            prop_assert_eq!(start.plus(offset).offset_from(start), offset as i64);
        }
    }
}
