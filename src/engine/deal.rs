//! From the fetch buffer to the lanes: decode, number, hash, deal. Also what executors get.

use super::{Action, CommitMode, Engine, LaneKey, Phase};
use crate::commit::Progress;
use crate::error::{Error, ErrorKind};
use crate::fetch::{Charge, Fetched};
use crate::ids::LeaseId;
use crate::lane::{KeyHash, Keys, LaneHasher, LaneId, Mode, Parcel, Recalled};
use crate::record::{Delivery, Record};
use crate::records::{Batch, Compression, Limits, RawBatch};
use crate::settle::Offsets;
use crate::time::Now;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Inflated bytes that one call decodes before it gives the driver a turn: a few milliseconds of
/// the slowest codec, so that a heartbeat never waits for a backlog.
pub(super) const SLICE_BYTES: usize = 4 << 20;

impl Engine {
    /// Deals what has been fetched while executors can take it. Returns whether it dealt any.
    pub(super) fn deal(&mut self, now: Now) -> bool {
        if !matches!(self.phase, Phase::Running) {
            return false;
        }
        let mut moved = false;
        while self.lanes.wants_more() && self.slice_used < SLICE_BYTES && self.may_decode() {
            let Some(fetched) = self.fetch.take(now) else {
                break;
            };
            moved = true;
            match fetched {
                Fetched::Gap { lease, to } => self.cover(lease, to),
                Fetched::Batch {
                    lease,
                    from,
                    raw,
                    charge,
                } => {
                    self.slice_used += self.deal_batch(now, lease, from, &raw, charge);
                }
            }
        }
        self.note_watermarks(now);
        moved
    }

    /// Whether one more batch keeps to the budget once it is decompressed, or nothing else is at
    /// work that would make room.
    pub(super) fn may_decode(&self) -> bool {
        if self.fetch.budget().may_inflate() {
            return true;
        }
        let load = self.lanes.load();
        load.ready == 0 && load.queued == 0 && load.out == 0 && load.parked == 0
    }

    /// A stretch without records: settled by definition.
    fn cover(&mut self, lease: LeaseId, to: i64) {
        if let Some(tracker) = self.leases.get_mut(lease).and_then(|t| t.tracker.as_mut()) {
            tracker.cover(to);
            self.leases.touch(lease);
        }
    }

    /// Returns how many bytes were decoded.
    fn deal_batch(
        &mut self,
        now: Now,
        lease: LeaseId,
        from: i64,
        raw: &RawBatch,
        mut charge: Charge,
    ) -> usize {
        let limits = Limits {
            inflated_max: self.config.batch_bytes_max as usize,
        };
        let batch = match raw.decode(&mut self.decoder, from, &limits) {
            Ok(batch) => batch,
            Err(error) => {
                if let Some(tenure) = self.leases.get(lease) {
                    let p = &tenure.partition;
                    let error = error.into_error(p.topic.clone(), p.partition);
                    self.fetch.corrupt(now, lease, from, error);
                }
                return raw.bytes().len();
            }
        };
        let held = batch.bytes_held();
        match raw.header().compression() {
            // The records are slices of the frame, which stays as long as they do.
            Compression::None => charge.extend(held.saturating_sub(raw.bytes().len())),
            _ => charge.inflate(held),
        }
        let Some(tenure) = self.leases.get(lease) else {
            return held;
        };
        let Some(tracker) = &tenure.tracker else {
            return held;
        };
        let (len, mut next, epoch) = (batch.len(), batch.next_offset(), batch.leader_epoch());
        let mut refused = batch.refused().cloned();
        if len == 0 {
            self.cover(lease, next);
            return held;
        }
        let load = Delivery {
            topic: tenure.partition.topic.clone(),
            partition: tenure.partition.partition,
            batch,
            _charge: charge,
        };
        let mut parcel = Arc::new(Parcel {
            lease: tenure.lease.clone(),
            first_ordinal: tracker.next_ordinal(),
            taken_at: now,
            len: len as u32,
            load,
        });
        if let Some(before) = self.hash_by_function(&parcel) {
            // What comes before the record runs; its partition stands still at it.
            next = parcel.load.batch.offset(before);
            let words = "the lane key function panicked; mend it and start anew";
            let error = Error::new(ErrorKind::Handler, words).offset_at(next);
            let cut = Arc::try_unwrap(parcel).ok().filter(|_| before > 0);
            // Twice: what a second reading cannot mend stops the partition.
            let at = if cut.is_some() { next } else { from };
            self.fetch.corrupt(now, lease, at, error);
            refused = None;
            let Some(mut cut) = cut else {
                return held;
            };
            cut.len = before as u32;
            parcel = Arc::new(cut);
        }
        let Some(tenure) = self.leases.get_mut(lease) else {
            return held;
        };
        let Some(tracker) = &mut tenure.tracker else {
            return held;
        };
        if tracker.open() == 0 {
            tenure.moved_at = now;
        }
        let offsets = offsets_of(&parcel, &mut self.deltas);
        match tracker.push(offsets, next, epoch) {
            Ok(first) => debug_assert_eq!(first, parcel.first_ordinal),
            Err(error) => {
                let p = tenure.partition.clone();
                let error = Error::bug(format!("settlement refused a batch: {error}"))
                    .at(p.topic, p.partition)
                    .offset_at(from);
                self.fetch.corrupt(now, lease, from, error);
                return held;
            }
        }
        if let Some(error) = refused {
            // A message set up to a bad message: what came before it runs, its partition goes
            // back to it, and stops there unless another reading mends it.
            let p = &tenure.partition;
            let error = error.into_error(p.topic.clone(), p.partition);
            self.fetch.corrupt(now, lease, next, error);
        }
        let position = tracker.position();
        if self.config.commit == CommitMode::Auto
            && let Some(commit) = &mut self.commit
            && let Some(progress) = Progress::new(position, epoch)
        {
            commit.note(now, lease, progress, u64::from(parcel.len));
        }
        match tenure.restored {
            None => self.deal_parts(&parcel, std::iter::once(0..parcel.len)),
            Some(_) => self.deal_what_is_open(lease, &parcel),
        }
        if let Some(overflow) = &mut self.overflow {
            overflow.flows(now);
        }
        self.leases.touch(lease);
        self.hold_if_ahead(now, lease);
        held
    }

    /// Fills `hashes` where the user's function picks the lanes. Returns the index of a record
    /// that it panicked on. Before anything of the batch counts as taken: what is not dealt must
    /// not be open either, for nothing would ever settle it.
    fn hash_by_function(&mut self, parcel: &Arc<Parcel<Delivery>>) -> Option<usize> {
        let LaneKey::By(by) = &self.config.lane_key else {
            return None;
        };
        let mut record = Record::new(parcel.clone(), 0, None, LaneId::NONE);
        let (hasher, hashes) = (&self.hasher, &mut self.hashes);
        let hashed = catch_unwind(AssertUnwindSafe(|| {
            hashes.clear();
            for index in 0..parcel.len {
                record.move_to(index);
                hashes.push(match by(&record) {
                    Some(number) => hasher.number(number),
                    None => KeyHash::KEYLESS,
                });
            }
        }));
        hashed.is_err().then_some(hashes.len())
    }

    pub(super) fn deal_parts(
        &mut self,
        parcel: &Arc<Parcel<Delivery>>,
        parts: impl Iterator<Item = Range<u32>>,
    ) {
        let keys = match (&self.config.lane_key, self.config.mode) {
            (_, Mode::Any { .. }) => Keys::Same(KeyHash::KEYLESS),
            (LaneKey::Partition, _) => {
                let load = &parcel.load;
                Keys::Same(self.hasher.partition(&load.topic, load.partition))
            }
            (LaneKey::RecordKey, _) => {
                hash_keys(&self.hasher, &mut self.hashes, &parcel.load);
                Keys::Each(&self.hashes)
            }
            (LaneKey::By(_), _) => Keys::Each(&self.hashes),
        };
        for part in parts {
            if let (Some(overflow), Keys::Each(keys)) = (&mut self.overflow, keys)
                && overflow.has(parcel.lease.id())
            {
                overflow.deal_what_stays(&mut self.lanes, parcel, keys, part);
            } else {
                self.lanes.deal_part(parcel, keys, part);
            }
        }
    }

    /// What executors are to run, and what they are to drop.
    pub(super) fn send_groups(&mut self, now: Now) -> bool {
        self.recall();
        // A batch waits for more records only where more may come.
        let intake = matches!(self.phase, Phase::Running) && !self.fetch.is_starved();
        self.lanes.set_intake(intake);
        let mut moved = false;
        while let Some((executor, group)) = self.lanes.poll_run(now) {
            self.actions.push_back(Action::Run { executor, group });
            moved = true;
        }
        if moved {
            self.expect_progress(now);
        }
        moved
    }

    pub(super) fn recall(&mut self) {
        while let Some(Recalled {
            executor,
            lease,
            what,
        }) = self.lanes.poll_recall()
        {
            self.actions.push_back(Action::Recall {
                executor,
                lease,
                what,
            });
        }
    }
}

/// The parcel's offsets, and the buffer that holds them where they have holes.
fn offsets_of<'a>(parcel: &Parcel<Delivery>, deltas: &'a mut Vec<u32>) -> Offsets<'a> {
    let batch = &parcel.load.batch;
    let base = batch.offset(0);
    if batch.offsets_are_dense() {
        return Offsets::Dense {
            base,
            len: parcel.len,
        };
    }
    deltas.clear();
    deltas.extend((0..parcel.len as usize).map(|i| (batch.offset(i) - base) as u32));
    Offsets::Sparse { base, deltas }
}

/// One pass over the batch while it is in the cache, with nothing between the key loads.
fn hash_keys(hasher: &LaneHasher, hashes: &mut Vec<KeyHash>, load: &Delivery) {
    hashes.clear();
    let salt = hasher.salt(&load.topic);
    let batch: &Batch = &load.batch;
    hashes.extend((0..batch.len()).map(|i| match batch.key(i) {
        Some(key) => hasher.salted(salt, key),
        None => KeyHash::KEYLESS,
    }));
}
