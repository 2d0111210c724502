//! SipHash (Aumasson and Bernstein 2012): a pseudo-random function of a secret, cheap for the few bytes of a flow. Whoever
//! does not know the key cannot tell what comes of other flows. SipHash-1-3 is what Linux and Rust take where an answer
//! is not shown whole.

/// A secret.
pub(crate) type Key = (u64, u64);

/// A secret of 16 bytes, as two words in little endian.
pub(crate) fn key(bytes: [u8; 16]) -> Key {
    let (low, high) = bytes.split_at(8);
    (little_endian(low), little_endian(high))
}

/// SipHash with `C` rounds per word and `D` at the end.
pub(crate) fn siphash<const C: usize, const D: usize>(key: Key, bytes: &[u8]) -> u64 {
    let mut v = [
        key.0 ^ 0x736f_6d65_7073_6575,
        key.1 ^ 0x646f_7261_6e64_6f6d,
        key.0 ^ 0x6c79_6765_6e65_7261,
        key.1 ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64, rounds: usize| {
        v[3] ^= word;
        for _ in 0..rounds {
            sip_round(&mut v);
        }
        v[0] ^= word;
    };
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        absorb(little_endian(word), C);
    }
    // The last word carries the length in its top byte.
    absorb(little_endian(words.remainder()) | (bytes.len() as u64) << 56, C);
    v[2] ^= 0xff;
    for _ in 0..D {
        sip_round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_2_4_matches_the_paper() {
        // Appendix A of the paper: key 00..0f, message 00..0e.
        let message: [u8; 15] = std::array::from_fn(|i| i as u8);
        let key = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(siphash::<2, 4>(key, &message), 0xa129_ca61_49be_45e5);
    }
}
