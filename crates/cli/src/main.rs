//! The scoutline program.
fn main() {}
