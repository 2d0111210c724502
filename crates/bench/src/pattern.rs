//! The content of the files that are served: known, so that a client can check what it gets, and
//! without a period, so that a piece at the wrong place is noticed.

use scoutline_base::Random;

/// The sizes that the experiments serve, in KB of 1,024 bytes.
pub const SIZES_KB: [u32; 6] = [1, 16, 50, 100, 250, 500];

/// The first `length` bytes of the pattern; a shorter one is the beginning of a longer one.
pub fn bytes(length: usize) -> Vec<u8> {
    let mut random = Random::new(0x5c07_71fe);
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        out.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    out.truncate(length);
    out
}

/// The name of the file with so many KB.
pub fn file_name(size_kb: u32) -> String {
    format!("{size_kb}k")
}

/// A second name of the same file, for requests that a trace must tell from the others.
pub fn traced_name(size_kb: u32) -> String {
    format!("traced-{}", file_name(size_kb))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn a_shorter_pattern_begins_a_longer_one() {
        let long = bytes(100_001);
        assert_eq!(long.len(), 100_001);
        assert_eq!(bytes(4_093), long[..4_093]);
        assert_ne!(long[..4_096], long[4_096..8_192]);
    }
}
