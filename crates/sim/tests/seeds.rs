//! The simulation as a test: many seeds hold, defects are found, a run repeats, plans that once failed hold.

use std::fs;
use std::path::Path;

use scoutline_sim::{Canary, Plan, run, seeds};

/// As many as take a minute in a debug build on two cores. More: `cargo run --release -p scoutline-sim`.
const SEEDS: u64 = 2_000;
/// In how many seeds a defect has to show.
const CANARY_SEEDS: u64 = 150;

#[test]
fn seeds_hold() {
    let (sum, failures) = seeds::run_many(0, SEEDS, None, 3, |_| {});
    let shown: Vec<String> =
        failures.iter().map(|failure| format!("seed {}: {failure}", failure.seed)).collect();
    assert!(failures.is_empty(), "{}", shown.join("\n"));
    assert_eq!(sum.runs, SEEDS);
    assert!(sum.packets / SEEDS > 100, "runs in which little happens: {sum:?}");
}

#[test]
fn every_defect_is_found() {
    for canary in Canary::ALL {
        let (_, failures) = seeds::run_many(0, CANARY_SEEDS, Some(*canary), 1, |_| {});
        assert!(!failures.is_empty(), "{canary:?} is not found in {CANARY_SEEDS} seeds");
    }
}

#[test]
fn a_run_repeats() {
    for seed in 0..20 {
        let plan = Plan::draw(seed);
        assert_eq!(run(&plan, None, false), run(&plan, None, false), "seed {seed}");
    }
    let hash = |seed| run(&Plan::draw(seed), None, false).map(|report| report.hash);
    assert_ne!(hash(1), hash(2), "the hash says nothing");
}

#[test]
fn kept_plans_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept");
    let mut names: Vec<_> =
        fs::read_dir(&folder).expect("the folder").flatten().map(|entry| entry.path()).collect();
    names.retain(|name| name.extension().is_some_and(|extension| extension == "json"));
    names.sort();
    assert!(!names.is_empty(), "no plan is kept in {}", folder.display());
    for name in names {
        let text = fs::read_to_string(&name).expect("a file");
        let plan: Plan =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", name.display()));
        if let Err(found) = seeds::run_guarded(&plan, None, false) {
            panic!("{}: {found}", name.display());
        }
    }
}
