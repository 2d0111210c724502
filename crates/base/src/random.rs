//! Seeded randomness (xoshiro256**, Blackman and Vigna 2018), so that a run repeats from one printed seed.

/// A small, fast, seeded generator. Not for secrets: keys come from the system, at the edge.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Random {
        // SplitMix64 spreads the seed over the state, as the authors advise.
        let mut z = seed;
        let mut next = || {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number below `bound`, evenly spread (Lemire's multiply-shift; its bias is below 2^-32 here).
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "an empty range has no member");
        ((u64::from(self.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// True with the given probability, 0 to 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn same_seed_same_sequence_and_bounds_hold() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            assert_eq!(a.next_u64(), b.next_u64());
            assert!(a.below(10) < 10);
            b.below(10);
        }
        let hits = (0..10_000).filter(|_| a.chance(0.25)).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
    }
}
