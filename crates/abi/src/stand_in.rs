//! What stands for a socket that is passed to another process (SCM_RIGHTS): a word that a fresh kernel socket carries in
//! an option which the kernel keeps for it and nobody needs, the pacing rate (SO_MAX_PACING_RATE).
//!
//! ```text
//! bit 63   set, as in no rate that is meant      bits 16..62   the program's key      bits 0..16   the slot
//! ```
//! The key is random and stands in the program's region ([`crate::layout::Header::stand_in_key`]): who can name a socket
//! has been given it. Bit 62 is never set, so no word is "no limit".

use crate::layout::SLOT_COUNT;

/// In the engine's answer to TAKE, beside the slot: the program has the socket already, where it is under way now.
pub const CAME_BEFORE: u32 = 1 << 30;

const MARK: u64 = 1 << 63;
const SLOT_BITS: u32 = SLOT_COUNT.trailing_zeros();
const KEY_MASK: u64 = (1 << 62 >> SLOT_BITS) - 1;

const _: () = assert!(SLOT_COUNT.is_power_of_two());

/// A key out of random bits.
pub const fn key(random: u64) -> u64 {
    random & KEY_MASK
}

/// The word for a slot of the program with this key.
pub const fn word(key: u64, slot: u32) -> u64 {
    MARK | ((key & KEY_MASK) << SLOT_BITS) | (slot as u64 % SLOT_COUNT as u64)
}

/// Key and slot; `None` for what is no such word.
pub const fn read(word: u64) -> Option<(u64, u32)> {
    if word & (MARK | 1 << 62) != MARK {
        return None;
    }
    Some((word >> SLOT_BITS & KEY_MASK, (word % SLOT_COUNT as u64) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_no_rate_is_a_word() {
        for (random, slot) in [(0, 0), (u64::MAX, SLOT_COUNT as u32 - 1), (0x1234_5678_9abc_def0, 77)] {
            assert_eq!(read(word(key(random), slot)), Some((key(random), slot)));
        }
        for rate in [0, 1, 125_000_000_000, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(read(rate), None);
        }
    }
}
