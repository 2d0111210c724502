//! Calls drawn at random, on the kernel and on paths: each gives the same.
//!
//! `scripts/compare/random.c` makes the calls and prints what they give; what it waits for, and which calls it leaves
//! out because paths are known to differ, stands there. A long form, or one seed alone, is asked for by hand:
//!
//! ```text
//! SCOUTLINE_RANDOM="FIRST COUNT CALLS" cargo test -p scoutline-bench --test real_programs -- random::
//! SCOUTLINE_RANDOM="7 1 48" SCOUTLINE_RANDOM_ONLY=3,12,47 cargo test … random::calls_give_the_same
//! ```
//!
//! The second form makes only some of the calls of a seed: to find those that a difference takes.

use std::env;
use std::fmt::Write as _;

use crate::compare::{Family, Transcript, Way, transcript_with};
use crate::fixture::Arm;
use crate::ip6;

/// Seeds from 0 on, and how many calls each makes.
const SHORT: &str = "0 40 150";

#[test]
fn calls_give_the_same() {
    let kernel = transcript(Arm::Kernel, &Family::ALL, Way::Kernel);
    let paths = transcript(Arm::Paths, &Family::ALL, Way::Library);
    assert_same(&kernel, &paths);
}

/// A transcript tells of nothing but its seed.
#[test]
#[ignore = "the same test, of the kernel against itself: shows that the test is right; run with --ignored random::"]
fn the_kernel_agrees_with_itself() {
    let [one, other] = [(); 2].map(|()| transcript(Arm::Kernel, &Family::ALL, Way::Kernel));
    assert_same(&one, &other);
}

fn transcript(arm: Arm, families: &[Family], way: Way) -> Transcript {
    let wish = env::var("SCOUTLINE_RANDOM").unwrap_or_else(|_| SHORT.to_owned());
    let variables = [format!("SCOUTLINE_RANDOM={wish}")];
    let transcript = transcript_with(&variables, "random", families, &ip6::fixture(arm), way);
    assert!(!transcript.is_empty(), "no seed ran");
    transcript
}

/// Sees that there is no difference; of each seed the first one is told, and how to have it again.
fn assert_same(kernel: &Transcript, paths: &Transcript) {
    let mut report = String::new();
    for ((family, seed), left) in kernel {
        let right = paths.get(&(*family, seed.clone())).map_or(&[][..], Vec::as_slice);
        let line = |lines: &[String], at: usize| lines.get(at).cloned().unwrap_or_default();
        let Some(at) = (0..left.len().max(right.len())).find(|at| left.get(*at) != right.get(*at)) else {
            continue;
        };
        let numbers = left[..left.len().min(at + 1)]
            .iter()
            .filter_map(|line| line.split(' ').next()?.parse::<u32>().ok());
        let calls: Vec<u32> = numbers.collect();
        let count = calls.last().map_or(1, |last| last + 1);
        let number = seed.trim_start_matches("seed_");
        let _ = writeln!(
            report,
            "{seed} {}\n    kernel: {}\n    paths:  {}\n    again: SCOUTLINE_RANDOM=\"{number} 1 {count}\" \
             SCOUTLINE_RANDOM_ONLY={}",
            family.name(),
            line(left, at),
            line(right, at),
            calls.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        );
    }
    assert!(report.is_empty(), "\n{report}");
}
