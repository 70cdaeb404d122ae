//! How a subscription stands.

use super::overflow::Overflow;
use super::{Engine, PartitionSnapshot, Snapshot};
use crate::settle::Tracker;
use crate::time::Now;

impl Engine {
    /// How the subscription stands now.
    #[must_use]
    pub fn snapshot(&self, _now: Now) -> Snapshot {
        let load = self.lanes.load();
        let used = self.fetch.budget().used_bytes();
        let apart = self.overflow.as_ref().map_or(0, Overflow::used_bytes);
        let partitions = self.leases.iter().map(|(id, tenure)| {
            let view = self.fetch.view(id);
            let tracker = tenure.tracker.as_ref();
            let gone = self.overflow.as_ref().map(|o| o.view(id));
            let gone = gone.unwrap_or_default();
            PartitionSnapshot {
                partition: tenure.partition.clone(),
                position: tracker.map_or(-1, Tracker::position),
                watermark: tracker.map_or(-1, Tracker::watermark),
                committed: self.commit.as_ref().and_then(|c| c.committed(id)),
                ahead: tracker.map_or(0, Tracker::ahead),
                buffered_bytes: view.map_or(0, |v| v.buffered_bytes as u64),
                high_watermark: view.map_or(-1, |v| v.high_watermark),
                last_stable_offset: view.map_or(-1, |v| v.last_stable_offset),
                gone: gone.records,
                reread_bytes: gone.reread_bytes,
                draining: tenure.draining,
            }
        });
        Snapshot {
            partitions: partitions.collect(),
            budget_used: (used + apart) as u64,
            budget_max: self.config.budget_bytes,
            ready: load.ready as u64,
            queued: load.queued as u64,
            parked: load.parked as u64,
            dead_letters: load.held as u64,
            timed_out: self.lanes.timed_out(),
            out: load.out as u64,
            lanes_busy: load.lanes_busy as u64,
            settled: self.counters.settled,
            retries: self.counters.retries,
            generation: self
                .group
                .as_ref()
                .and_then(|g| g.member())
                .map(|m| m.generation),
        }
    }
}
