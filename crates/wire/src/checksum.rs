//! The Internet checksum (RFC 1071): ones'-complement sums, sixteen bytes at a time.
//!
//! A *sum* here is the folded, not yet complemented ones'-complement sum of big-endian words: what a
//! pseudo-header contributes, and what a partial checksum field holds. A *checksum* is its complement.

use scoutline_base::Address;

/// The sum of `bytes`; an odd last byte counts as the high half of a word.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    // RFC 1071 §2 (A), (B): any grouping and either byte order give the same sum, swapped at the end. Two totals,
    // so that one addition does not wait for the other; the carries gather in their upper halves.
    let (mut even, mut odd) = (0u128, 0u128);
    let mut chunks = bytes.chunks_exact(16);
    for chunk in &mut chunks {
        let (first, second) = words(chunk);
        even += u128::from(first);
        odd += u128::from(second);
    }
    fold(even + odd + tail(chunks.remainder()))
}

/// The sum of two sums.
#[inline]
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// The sum of two pieces that follow each other, the first of `first_len` bytes (RFC 1071 §2 (B): after an odd
/// number of bytes the second piece counts with its bytes swapped).
#[inline]
pub const fn combine(first: u16, first_len: usize, second: u16) -> u16 {
    add(first, if first_len % 2 == 1 { second.swap_bytes() } else { second })
}

/// The checksum of a sum.
#[inline]
pub const fn finish(sum: u16) -> u16 {
    !sum
}

/// True when `sum`, taken over bytes that include their checksum, is that of intact bytes.
#[inline]
pub const fn is_valid(sum: u16) -> bool {
    sum == 0xffff
}

/// The sum of the pseudo-header that transports put in front (RFC 9293 §3.1, RFC 768; RFC 8200 §8.1).
///
/// For both families: what the mapped form has in front of an IPv4 address is a word of ones, which adds nothing.
#[inline]
pub fn pseudo_header(
    source: impl Into<Address>,
    destination: impl Into<Address>,
    protocol: u8,
    len: usize,
) -> u16 {
    let (source, destination) = (source.into(), destination.into());
    let low = u64::from(source.low_bits()) + u64::from(destination.low_bits());
    let total = low + high_words(source) + high_words(destination) + u64::from(protocol) + len as u64;
    fold_host(total)
}

/// The sum of an IPv6 address without its last 32 bits.
#[inline]
fn high_words(address: Address) -> u64 {
    let [high, low] = address.words();
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32)
}

/// The checksum after a word of the covered bytes changed from `old` to `new` (RFC 1624 §3, equation 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !add(add(!checksum, !old), new)
}

/// The two words of sixteen bytes, in native order.
#[inline]
fn words(chunk: &[u8]) -> (u64, u64) {
    let (first, second) = chunk.split_at(8);
    (word(first), word(second))
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// The words of fewer than sixteen bytes, an odd one padded.
#[inline]
fn tail(mut rest: &[u8]) -> u128 {
    let mut total = 0u64;
    if rest.len() >= 8 {
        let whole = word(rest);
        total = (whole & 0xffff_ffff) + (whole >> 32);
        rest = &rest[8..];
    }
    if rest.len() >= 4 {
        total += u64::from(u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]));
        rest = &rest[4..];
    }
    if rest.len() >= 2 {
        total += u64::from(u16::from_ne_bytes([rest[0], rest[1]]));
        rest = &rest[2..];
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u128::from(total)
}

/// Folds a total of native-order words.
#[inline]
fn fold(total: u128) -> u16 {
    let (total, carry) = (total as u64).overflowing_add((total >> 64) as u64);
    u16::from_be(fold_host((total & 0xffff_ffff) + (total >> 32) + u64::from(carry)))
}

#[inline]
fn fold_host(total: u64) -> u16 {
    let total = (total & 0xffff_ffff) + (total >> 32);
    let total = (total & 0xffff_ffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16);
    let total = (total & 0xffff) + (total >> 16);
    (total + (total >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|w| u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]));
        words.fold(0, add)
    }

    #[test]
    fn rfc_1071_example() {
        // RFC 1071 §3.
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn rfc_1624_example() {
        // RFC 1624 §4: the corner case that equation 2 got wrong.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn pseudo_header_is_the_sum_of_its_bytes() {
        let bytes = [10, 0, 0, 1, 192, 168, 255, 254, 0, 17, 0xff, 0x01];
        let from = std::net::Ipv4Addr::new(10, 0, 0, 1);
        let to = std::net::Ipv4Addr::new(192, 168, 255, 254);
        assert_eq!(pseudo_header(from, to, 17, 0xff01), plain(&bytes));
    }

    proptest! {
        #[test]
        fn so_it_is_for_ipv6(source in any::<[u8; 16]>(), destination in any::<[u8; 16]>(), len in 0u32..1 << 20) {
            let mut bytes = [&source[..], &destination[..], &len.to_be_bytes()].concat();
            bytes.extend_from_slice(&[0, 0, 0, 58]);
            let of = Address::from_octets;
            let sum = pseudo_header(of(source), of(destination), 58, len as usize);
            prop_assert_eq!(sum, plain(&bytes));
        }

        #[test]
        fn agrees_with_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(sum(&bytes), plain(&bytes));
        }

        #[test]
        fn pieces_combine(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>()) {
            let cut = cut.index(bytes.len() + 1);
            prop_assert_eq!(combine(sum(&bytes[..cut]), cut, sum(&bytes[cut..])), sum(&bytes));
        }

        #[test]
        fn an_update_is_what_summing_again_gives(mut bytes in proptest::collection::vec(1u8.., 8..64), new in any::<u16>()) {
            let before = finish(sum(&bytes));
            let old = u16::from_be_bytes([bytes[2], bytes[3]]);
            bytes[2..4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), finish(sum(&bytes)));
        }
    }
}
