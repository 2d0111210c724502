//! The experiments: test beds, load generators, harness, plots.
