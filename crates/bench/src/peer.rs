//! Other stacks in user space that `stream` and `rr` can be compared with, beside the kernel.
//!
//! A peer is a program of its own in `crates/bench/peers`, which `make peers` builds beside `scoutline`: stack and service
//! in one process, on an interface that has no address. It is told `DEVICE ADDRESS SERVICE`, and `spin` where it is not
//! to sleep (gVisor's netstack does all the same); a service is `tcp:PORT` or `udp:PORT` for echo, `iperf3:PORT` for what
//! iperf3's client asks of its server. It prints `ready`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::Options;

/// The experiments that have services for peers.
const EXPERIMENTS: [&str; 2] = ["stream", "rr"];

/// Which stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Peer {
    /// The Rust crate smoltcp over a packet socket
    Smoltcp,
    /// gVisor's netstack (Go) over a packet socket
    Gvisor,
}

impl Peer {
    /// Its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Peer::Smoltcp => "smoltcp",
            Peer::Gvisor => "gvisor",
        }
    }

    /// What stands in the report's method.
    pub(crate) const fn method(self) -> &'static str {
        match self {
            Peer::Smoltcp => {
                "stack and service on one thread, pinned as the server, over a packet socket; super-segments, checksums \
                 left to the device, cubic, buffers of 1 MiB; it spins in `engine alone`"
            }
            Peer::Gvisor => {
                "stack and service in one process, all its threads pinned as the server, over a packet socket; \
                 super-segments, checksums of TCP left to the device, cubic, buffers of 1 MiB; it sleeps everywhere"
            }
        }
    }

    /// Its program, which lies beside ours.
    pub(crate) fn program(self, options: &Options) -> PathBuf {
        options.load.with_file_name(format!("scoutline-peer-{}", self.name()))
    }
}

/// Whether the peers that are asked for can be had.
///
/// # Errors
/// The experiment has no peers, or one is not built.
pub(crate) fn check(experiment: &str, options: &Options) -> Result<()> {
    let known = EXPERIMENTS.contains(&experiment);
    ensure!(
        known || options.peers.is_empty(),
        "`{experiment}` has no further peers; {} have",
        EXPERIMENTS.map(|name| format!("`{name}`")).join(" and ")
    );
    for peer in &options.peers {
        let program = peer.program(options);
        ensure!(
            program.is_file(),
            "the peer `{}` is not there ({}); build it with: make peers",
            peer.name(),
            program.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Peer, check};
    use crate::Options;

    fn refusal(experiment: &str, options: &Options) -> String {
        check(experiment, options).unwrap_err().to_string()
    }

    #[test]
    fn a_peer_that_is_not_built_says_what_builds_it() {
        let load = "/nowhere/scoutline".into();
        let mut options = Options { load, peers: [Peer::Gvisor].into(), ..Options::default() };
        let text = refusal("rr", &options);
        assert!(text.contains("/nowhere/scoutline-peer-gvisor") && text.contains("make peers"), "{text}");
        options.peers = [Peer::Smoltcp].into();
        let text = refusal("rr", &options);
        assert!(text.contains("/nowhere/scoutline-peer-smoltcp") && text.contains("make peers"), "{text}");
        let text = refusal("udp", &options);
        assert_eq!(text, "`udp` has no further peers; `stream` and `rr` have");
        assert!(check("udp", &Options::default()).is_ok());
    }
}
