//! How a subscription stands.

use super::overflow::Overflow;
use super::{Engine, PartitionSnapshot, Snapshot};
use crate::ids::{LeaseId, TopicPartition};
use crate::lane::{LaneId, Running, Waits};
use crate::settle::Tracker;
use crate::time::Now;
use std::collections::BTreeMap;
use std::time::Duration;

/// Lanes that a snapshot lists at most: those with most records waiting.
pub const SNAPSHOT_LANES_MAX: usize = 4096;

/// A record that a handler works on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningRecord {
    /// From where.
    pub partition: TopicPartition,
    /// Its offset; of a batch, the first one's.
    pub offset: i64,
    /// Its lane, where records run in lanes.
    pub lane: Option<u32>,
    /// Which run of it this is, from 1.
    pub attempt: u32,
    /// How long the handler has had it.
    pub running_for: Duration,
}

/// One lane of a [`Snapshot`] that has something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneSnapshot {
    /// Its number, which means nothing outside this subscription.
    pub lane: u32,
    /// Records that wait in it.
    pub queued: u64,
    /// Records that its executor has: running, or next.
    pub out: u64,
    /// The record that runs, where one has for longer than a moment.
    pub running: Option<RunningRecord>,
    /// How long until its first record runs again, where that has failed; [`Duration::MAX`]: not
    /// by itself.
    pub parked_for: Option<Duration>,
}

/// The record that holds a partition's commit back: the lowest that has not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holdup {
    /// Its offset, which is the watermark.
    pub offset: i64,
    /// How long the watermark has stood at it.
    pub holds_for: Duration,
    /// How often it has run, a run that is not over included.
    pub attempts: u32,
    /// Where it is.
    pub what: HoldupState,
}

/// Where the record is that holds a commit back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldupState {
    /// A handler has had it for this long.
    Running(Duration),
    /// It has failed and runs again in this time.
    Retrying(Duration),
    /// It has failed for good, and nothing runs it again by itself.
    GivenUp,
    /// It is on its way to the dead-letter topic, and settles once that write is acknowledged.
    DeadLetter,
    /// It waits in its lane, or was let go by it for now.
    Queued,
    /// Its partition is paused.
    Paused,
    /// With an executor: about to run, or just done.
    Out,
}

impl Engine {
    /// How the subscription stands now.
    #[must_use]
    pub fn snapshot(&self, now: Now) -> Snapshot {
        let load = self.lanes.load();
        let used = self.fetch.budget().used_bytes();
        let apart = self.overflow.as_ref().map_or(0, Overflow::used_bytes);
        let running = self.runner.watch.running();
        let lowest = self.lowest_open();
        let waits = self.lanes.find(&lowest);
        let partitions = self.leases.iter().map(|(id, tenure)| {
            let view = self.fetch.view(id);
            let tracker = tenure.tracker.as_ref();
            let gone = self.overflow.as_ref().map(|o| o.view(id));
            let gone = gone.unwrap_or_default();
            PartitionSnapshot {
                partition: tenure.partition.clone(),
                lease: id,
                position: tracker.map_or(-1, Tracker::position),
                watermark: tracker.map_or(-1, Tracker::watermark),
                committed: self.commit.as_ref().and_then(|c| c.committed(id)),
                ahead: tracker.map_or(0, Tracker::ahead),
                map_full: tenure.measure.is_full,
                buffered_bytes: view.map_or(0, |v| v.buffered_bytes as u64),
                high_watermark: view.map_or(-1, |v| v.high_watermark),
                last_stable_offset: view.map_or(-1, |v| v.last_stable_offset),
                gone: gone.records,
                reread_bytes: gone.reread_bytes,
                draining: tenure.draining,
                paused: tenure.paused,
                holdup: lowest.get(&id).and_then(|ordinal| {
                    let waits = waits.get(&id);
                    self.holdup(now, id, *ordinal, waits, &running)
                }),
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
            dead_lettered: self.counters.dead_lettered,
            timed_out: self.lanes.timed_out(),
            at_rest: self.lanes.at_rest() as u64,
            out: load.out as u64,
            lanes_busy: load.lanes_busy as u64,
            lanes: self.lane_snapshots(now, &running),
            oldest_running: self
                .oldest_of(&running)
                .and_then(|run| self.running_record(now, run)),
            workers: self.runner.permits.as_ref().map(|p| p.limit()),
            settled: self.counters.settled,
            settled_before: self.maps.settled_before,
            maps_unused: self.maps.unused,
            retries: self.counters.retries,
            stalls: self.counters.stalls,
            generation: self
                .group
                .as_ref()
                .and_then(|g| g.member())
                .map(|m| m.generation),
        }
    }

    /// The lowest record of each lease that has not settled.
    fn lowest_open(&self) -> BTreeMap<LeaseId, u64> {
        let lowest = self.leases.iter().filter_map(|(id, tenure)| {
            let (ordinal, _) = tenure.tracker.as_ref()?.lowest_open()?;
            Some((id, ordinal))
        });
        lowest.collect()
    }

    fn holdup(
        &self,
        now: Now,
        lease: LeaseId,
        ordinal: u64,
        waits: Option<&Waits>,
        running: &[Running],
    ) -> Option<Holdup> {
        let tenure = self.leases.get(lease)?;
        let offset = tenure.tracker.as_ref()?.offset_of(ordinal)?;
        let runs = running
            .iter()
            .find(|r| r.lease == lease && r.ordinal == ordinal);
        let (attempts, what) = match (waits, runs) {
            (_, Some(run)) => (run.attempt, HoldupState::Running(now.since(run.since))),
            (Some(w), _) if w.is_dead => (w.attempts, HoldupState::DeadLetter),
            (Some(w), _) if tenure.paused => (w.attempts, HoldupState::Paused),
            (Some(w), _) => {
                let what = match w.until {
                    Some(Now::NEVER) => HoldupState::GivenUp,
                    Some(at) => HoldupState::Retrying(at.since(now)),
                    None => HoldupState::Queued,
                };
                (w.attempts, what)
            }
            (None, None) if self.is_gone(lease, ordinal) => (0, HoldupState::Queued),
            (None, None) => (0, HoldupState::Out),
        };
        Some(Holdup {
            offset,
            holds_for: now.since(tenure.moved_at),
            attempts,
            what,
        })
    }

    fn is_gone(&self, lease: LeaseId, ordinal: u64) -> bool {
        let overflow = self.overflow.as_ref();
        overflow.is_some_and(|o| o.is_gone(lease, ordinal))
    }

    fn lane_snapshots(&self, now: Now, running: &[Running]) -> Vec<LaneSnapshot> {
        let mut busy: Vec<_> = self.lanes.busy().collect();
        if busy.len() > SNAPSHOT_LANES_MAX {
            busy.sort_by_key(|lane| std::cmp::Reverse(lane.queued));
            busy.truncate(SNAPSHOT_LANES_MAX);
            busy.sort_by_key(|lane| lane.lane);
        }
        let by_lane: BTreeMap<LaneId, &Running> = running.iter().map(|r| (r.lane, r)).collect();
        let lanes = busy.into_iter().map(|lane| LaneSnapshot {
            lane: lane.lane.0,
            queued: u64::from(lane.queued),
            out: u64::from(lane.out),
            running: by_lane
                .get(&lane.lane)
                .and_then(|run| self.running_record(now, run)),
            parked_for: lane.parked_until.map(|at| match at {
                Now::NEVER => Duration::MAX,
                at => at.since(now),
            }),
        });
        lanes.collect()
    }

    fn oldest_of<'a>(&self, running: &'a [Running]) -> Option<&'a Running> {
        let ours = |run: &&Running| self.leases.get(run.lease).is_some();
        running.iter().filter(ours).min_by_key(|run| run.since)
    }

    fn running_record(&self, now: Now, run: &Running) -> Option<RunningRecord> {
        let (partition, offset) = self.address(run.lease, run.ordinal)?;
        Some(RunningRecord {
            partition,
            offset,
            lane: (run.lane != LaneId::NONE).then_some(run.lane.0),
            attempt: run.attempt,
            running_for: now.since(run.since),
        })
    }
}
