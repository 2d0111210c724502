//! Memory ahead of need: what sorting a burst of packets looks at is brought into the cache for all of it at once.
//!
//! Among many flows each packet would wait by itself for its line of the flow table, then for its path, then for the
//! engine's notes on it: some 200 ns each where the last cache is far. Asked for together they come together.

use scoutline_base::DeviceId;
use scoutline_path::{Burst, Probe, flow_of_message};
use scoutline_ring::prefetch;

use super::{Core, PULL_BURST};

/// The flows whose entries, and paths, a cache of the second level may hold.
const FLOWS_IN_CACHE: usize = 4096;

impl Core {
    /// Has brought in what sorting this burst of a device's needs.
    #[inline]
    pub(super) fn prefetch(&self, net: usize, burst: &Burst) {
        if self.flows.len() < FLOWS_IN_CACHE || burst.len() < 2 {
            return;
        }
        let device = DeviceId(net as u16);
        let mut probes = [None; PULL_BURST];
        for (probe, message) in probes.iter_mut().zip(burst) {
            if let Some(key) = flow_of_message(message, device) {
                probe.insert(self.flows.probe(&key)).prefetch();
            }
        }
        for id in probes.iter().flatten().filter_map(Probe::path) {
            self.paths.prefetch(id);
            if let Some(extra) = self.extras.get(id.index) {
                prefetch(extra);
            }
        }
    }
}
