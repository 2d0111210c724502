//! Unmodified programs on paths, with the kernel as their peer, between two network namespaces.
//!
//! ```text
//!   client host, kernel            veth              server host, `scoutline up`
//!   curl wrk redis-benchmark …  10.77.0.2 ═ 10.77.0.1  `scoutline run -- nginx` …
//! ```
//!
//! Needs root, iproute2, a built `scoutline` (`make build`; `SCOUTLINE_BIN` names another one) and the programs
//! themselves, and fails with a hint where one is missing. Three variables:
//! `SCOUTLINE_LONG=1` makes the transfers over the bad line 8 MiB and runs all of redis's own tests; `SCOUTLINE_LOGS=DIR`
//! keeps the logs of each test there. `SCOUTLINE_ENGINES=2` gives each daemon two engines (see [`several`]).
//!
//! Most tests have a twin that runs the same programs on the kernel alone: it shows that the test itself is right.
//! `cargo test -p scoutline-bench --test real_programs -- --ignored on_kernel` runs them. Tests take turns
//! ([`fixture::Fixture`] holds the turn), since each of them wants the whole machine; but those that mostly wait share it
//! ([`fixture::beside_others`]).

mod background;
mod beginnings;
mod bind;
mod classes;
mod compare;
mod cpython;
mod death;
mod experiments;
mod extension;
mod faults;
mod fixture;
mod forward;
mod ftp;
mod git;
mod hostile;
mod ip6;
mod iperf;
mod local;
mod loss;
mod machine;
mod many;
mod names;
mod near;
mod nginx;
mod options;
mod policies;
mod python;
mod random;
mod readiness;
mod redis;
mod redis_suite;
mod refused;
mod requests;
mod restored;
mod rings;
mod several;
mod shares;
mod spinning;
mod ssh;
mod successors;
mod syn_flood;
mod trap;
mod web;
mod wishes;
mod xdp;
