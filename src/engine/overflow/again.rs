//! Reading again what was let go.

use super::letgo::weight;
use super::{GAP_MAX, PARCEL_BYTES, Pass, key_of};
use crate::engine::deal::SLICE_BYTES;
use crate::engine::{Engine, Event, Phase};
use crate::error::{Error, ErrorKind};
use crate::fetch::{Fetched, Loss, Start};
use crate::ids::{LeaseId, TopicPartition};
use crate::lane::{KeyHash, Keys, LaneName, Parcel};
use crate::record::Delivery;
use crate::records::{Batch, Limits, RawBatch};
use crate::settle::Tracker;
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Engine {
    /// Reads again for the lanes that are hungry. Returns whether anything moved.
    pub(in crate::engine) fn read_again(&mut self, now: Now) -> bool {
        let idle = self.overflow.as_ref().is_none_or(|o| o.leases.is_empty());
        if idle || !matches!(self.phase, Phase::Running) {
            return false;
        }
        self.begin_passes(now);
        let mut moved = false;
        // What the main position has to deal gets the other half.
        while self.slice_used < SLICE_BYTES / 2 {
            let Some(fetched) = self.overflow.as_mut().and_then(|o| o.fetch.take(now)) else {
                break;
            };
            moved = true;
            match fetched {
                Fetched::Gap { lease, to } => self.went_over(now, lease, to),
                Fetched::Batch {
                    lease, from, raw, ..
                } => {
                    self.slice_used += self.take_again(now, lease, from, &raw);
                }
            }
        }
        moved
    }

    /// Hungry lanes join the pass of their lease, or begin one.
    fn begin_passes(&mut self, now: Now) {
        let Some(overflow) = &mut self.overflow else {
            return;
        };
        if let Some(then) = overflow.refused_at {
            if overflow.copies.used_bytes() >= then && then > 0 {
                return;
            }
            overflow.refused_at = None;
        }
        for id in overflow.leases.keys().copied().collect::<Vec<_>>() {
            let Some(tenure) = self.leases.get(id) else {
                continue;
            };
            let Some(tracker) = tenure
                .tracker
                .as_ref()
                .filter(|_| !tenure.draining && !tenure.paused)
            else {
                continue;
            };
            overflow.tidy(now, id, tracker);
            let Some(of) = overflow.leases.get_mut(&id).filter(|of| !of.stopped) else {
                continue;
            };
            let at = of
                .pass
                .as_ref()
                .map_or(0, |pass| tracker.first_at_or_after(pass.cursor));
            let mut joining = BTreeSet::new();
            let mut start = u64::MAX;
            for (lane, entry) in &of.lanes {
                let hungry = self.lanes.queued_in(*lane) <= entry.hungry_at;
                let first = of.gone.next_from(entry.first).unwrap_or(entry.first);
                if hungry && first >= at {
                    joining.insert(*lane);
                    start = start.min(first);
                }
            }
            if joining.is_empty() {
                continue;
            }
            if let Some(pass) = &mut of.pass {
                pass.lanes.extend(joining);
                continue;
            }
            let Some(offset) = tracker.offset_of(start) else {
                continue;
            };
            of.pass = Some(Pass {
                lanes: joining,
                cursor: offset,
            });
            let (partition, topic_id) = (tenure.partition.clone(), tenure.topic_id);
            let from = Start::At { offset, epoch: -1 };
            overflow
                .fetch
                .add(now, id, partition, topic_id, from, false);
        }
    }

    /// There is nothing from the cursor to `to`: what was gone there has been compacted away.
    fn went_over(&mut self, now: Now, lease: LeaseId, to: i64) {
        let (Some(overflow), Some(tenure)) = (&mut self.overflow, self.leases.get_mut(lease))
        else {
            return;
        };
        let tracker = tenure.tracker.as_mut();
        let Some((of, tracker)) = overflow.leases.get_mut(&lease).zip(tracker) else {
            return;
        };
        let Some(pass) = &mut of.pass else {
            return;
        };
        let mut ordinal = tracker.first_at_or_after(pass.cursor);
        let end = tracker.first_at_or_after(to);
        pass.cursor = pass.cursor.max(to);
        while let Some(next) = of.gone.next_from(ordinal).filter(|next| *next < end) {
            of.gone.take(next);
            settle(tracker, next, &mut tenure.settled_new);
            ordinal = next + 1;
        }
        overflow.tidy(now, lease, tracker);
        self.leases.touch(lease);
    }

    /// A batch that the cursor has read. Returns how many bytes were decoded.
    fn take_again(&mut self, now: Now, lease: LeaseId, from: i64, raw: &RawBatch) -> usize {
        let limits = Limits {
            inflated_max: self.config.batch_bytes_max as usize,
        };
        let Some(partition) = self.leases.get(lease).map(|t| t.partition.clone()) else {
            return 0;
        };
        let batch = match raw.decode(&mut self.decoder, from, &limits) {
            Ok(batch) => batch,
            Err(error) => {
                let error = error.into_error(partition.topic, partition.partition);
                if let Some(overflow) = &mut self.overflow {
                    overflow.fetch.corrupt(now, lease, from, error);
                }
                return raw.bytes().len();
            }
        };
        let held = batch.bytes_held();
        // What lies behind a message that does not hold has not been seen.
        let refused = batch.refused().cloned();
        let refused = refused.map(|e| e.into_error(partition.topic.clone(), partition.partition));
        let next = batch.next_offset();
        match self.pick_again(now, lease, &partition, batch) {
            Ok(picked) => {
                for (parcel, places) in picked.parcels {
                    self.deal_places(&parcel, &places);
                }
                self.rest(now, lease, &picked.left);
                if let (Some(error), Some(overflow)) = (refused, &mut self.overflow) {
                    overflow.fetch.corrupt(now, lease, next, error);
                }
            }
            Err(error) => {
                if let Some(overflow) = &mut self.overflow {
                    // Twice: a third reading would find the same.
                    overflow.fetch.corrupt(now, lease, from, error.clone());
                    overflow.fetch.corrupt(now, lease, from, error);
                }
            }
        }
        held
    }

    /// Which records of the batch go to their lanes now.
    fn pick_again(
        &mut self,
        now: Now,
        lease: LeaseId,
        partition: &TopicPartition,
        batch: Batch,
    ) -> Result<Picked, Error> {
        let mut picked = Picked::default();
        let (Some(overflow), Some(tenure)) = (&mut self.overflow, self.leases.get_mut(lease))
        else {
            return Ok(picked);
        };
        let tracker = tenure.tracker.as_mut();
        let Some((of, tracker)) = overflow.leases.get_mut(&lease).zip(tracker) else {
            return Ok(picked);
        };
        let Some(pass) = &mut of.pass else {
            return Ok(picked);
        };
        of.reread_bytes += batch.bytes_held() as u64;
        let (len, to) = (batch.len(), batch.next_offset());
        let from = tracker.first_at_or_after(pass.cursor);
        let end = tracker.first_at_or_after(to);
        pass.cursor = pass.cursor.max(to);
        // A parcel, so that the lane function can be given its records.
        let whole = Arc::new(Parcel {
            lease: tenure.lease.clone(),
            first_ordinal: from,
            taken_at: now,
            len: len as u32,
            load: Delivery {
                topic: partition.topic.clone(),
                partition: partition.partition,
                batch,
                _charge: overflow.copies.charge(0),
            },
        });
        let batch = &whole.load.batch;
        let mut room: BTreeMap<LaneName, usize> = BTreeMap::new();
        let mut places: Vec<Place> = Vec::new();
        let mut free = overflow.copies.free_bytes();
        let (mut at, mut next) = (0, of.gone.next_from(from));
        while let Some(ordinal) = next.filter(|ordinal| *ordinal < end) {
            next = of.gone.next_from(ordinal + 1);
            // A gone record is open, so its offset is known.
            let offset = tracker.offset_of(ordinal).unwrap_or(i64::MAX);
            while at < len && batch.offset(at) < offset {
                at += 1;
            }
            if at == len || batch.offset(at) != offset {
                // It was there once: compaction has taken it.
                of.gone.take(ordinal);
                settle(tracker, ordinal, &mut tenure.settled_new);
                continue;
            }
            let key = key_of(&self.config.lane_key, &self.hasher, &whole, at);
            let lane = key.and_then(|key| self.lanes.lane_for(key));
            let entry = lane.and_then(|lane| of.lanes.get_mut(&lane));
            let (Some(key), Some(lane), Some(entry)) = (key, lane, entry) else {
                return Err(impure(partition, offset));
            };
            if ordinal > entry.last {
                return Err(impure(partition, offset));
            }
            if !pass.lanes.contains(&lane) {
                continue;
            }
            let size = batch.copied_bytes(at) + PARCEL_BYTES;
            let left = room.entry(lane).or_insert_with(|| {
                let queued = self.lanes.queued_weight(lane, weight);
                match queued {
                    // One record at least, however large.
                    0 => overflow.share.max(size),
                    queued => overflow.share.saturating_sub(queued),
                }
            });
            let alone = overflow.copies.used_bytes() == 0 && places.is_empty();
            let refused = size > free && !alone;
            if refused {
                overflow.refused_at = Some(overflow.copies.used_bytes());
            }
            if refused || size > *left {
                pass.lanes.remove(&lane);
                entry.first = ordinal;
                picked.left.push(lane);
                continue;
            }
            *left -= size;
            free = free.saturating_sub(size);
            of.gone.take(ordinal);
            entry.first = ordinal + 1;
            places.push(Place { at, ordinal, key });
        }
        let neighbours = |a: &Place, b: &Place| {
            b.at - a.at <= GAP_MAX && (b.at - a.at) as u64 == b.ordinal - a.ordinal
        };
        for places in places.chunk_by(neighbours) {
            let (first, last) = (places[0], places[places.len() - 1]);
            let kept = |i: usize| places.binary_search_by_key(&i, |p| p.at).is_ok();
            let copy = whole.load.batch.copied_out(first.at, last.at, kept);
            let parcel = Arc::new(Parcel {
                lease: whole.lease.clone(),
                first_ordinal: first.ordinal,
                taken_at: now,
                len: copy.len() as u32,
                load: overflow.copy(&whole.load, copy),
            });
            let from_first = |p: &Place| ((p.at - first.at) as u32, p.key);
            picked
                .parcels
                .push((parcel, places.iter().map(from_first).collect()));
        }
        self.leases.touch(lease);
        Ok(picked)
    }

    /// Deals the records of a copied parcel; between them are empty places.
    fn deal_places(&mut self, parcel: &Arc<Parcel<Delivery>>, places: &[(u32, KeyHash)]) {
        self.hashes.clear();
        self.hashes.resize(parcel.len as usize, KeyHash::KEYLESS);
        for (at, key) in places {
            self.hashes[*at as usize] = *key;
        }
        for run in places.chunk_by(|a, b| a.0 + 1 == b.0) {
            let part = run[0].0..run[0].0 + run.len() as u32;
            self.lanes.deal_part(parcel, Keys::Each(&self.hashes), part);
        }
    }

    /// Lanes that had no room wait until half of what they hold has run.
    fn rest(&mut self, now: Now, lease: LeaseId, left: &[LaneName]) {
        let (Some(overflow), Some(tenure)) = (&mut self.overflow, self.leases.get(lease)) else {
            return;
        };
        if let Some(of) = overflow.leases.get_mut(&lease) {
            for lane in left {
                if let Some(entry) = of.lanes.get_mut(lane) {
                    entry.hungry_at = self.lanes.queued_in(*lane) / 2;
                }
            }
        }
        if let Some(tracker) = &tenure.tracker {
            overflow.tidy(now, lease, tracker);
        }
    }

    /// The cursor's partition has ended by itself.
    pub(in crate::engine) fn again_stopped(&mut self, lease: LeaseId, error: Error) {
        let Some(tenure) = self.leases.get(lease) else {
            return;
        };
        let of = self
            .overflow
            .as_mut()
            .and_then(|o| o.leases.get_mut(&lease));
        if let Some(of) = of {
            of.stopped = true;
        }
        let tp = &tenure.partition;
        let words = format!(
            "records that were let go while their lane was busy cannot be read again, so their \
             lanes stand still; seek past them, or choose another loss policy: {}",
            error.message()
        );
        let error = error.with_message(words).at(tp.topic.clone(), tp.partition);
        self.event(Event::Stopped { error });
    }

    /// The log no longer has what the cursor was to read, and the loss policy says to go on.
    pub(in crate::engine) fn again_lost(
        &mut self,
        now: Now,
        lease: LeaseId,
        (from, to): (i64, i64),
        why: Loss,
    ) {
        let Loss::BelowStart { .. } = why else {
            // The history is another one: that is the whole lease's to hear.
            return self.reset(now, lease, (from, to), why);
        };
        let Some(partition) = self.leases.get(lease).map(|t| t.partition.clone()) else {
            return;
        };
        let before = self.gone_records(lease);
        self.went_over(now, lease, to);
        let lost = before - self.gone_records(lease);
        self.event(Event::DataLoss {
            partition,
            from,
            to,
            why: format!(
                "{lost} records that were let go while their lane was busy are lost: {why}"
            ),
        });
        // The next pass begins at what is left.
        let overflow = self.overflow.as_mut();
        if let Some(overflow) = overflow {
            overflow.fetch.remove(now, lease);
            if let Some(of) = overflow.leases.get_mut(&lease) {
                of.pass = None;
            }
        }
    }

    fn gone_records(&self, lease: LeaseId) -> u64 {
        self.overflow.as_ref().map_or(0, |o| o.view(lease).records)
    }
}

/// A record that goes to its lane: where it is in its batch.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    ordinal: u64,
    key: KeyHash,
}

/// A copied parcel, and which of its places hold a record, with its key.
type Copied = (Arc<Parcel<Delivery>>, Vec<(u32, KeyHash)>);

/// What comes of a batch that was read again.
#[derive(Default)]
struct Picked {
    /// What goes to lanes.
    parcels: Vec<Copied>,
    /// Lanes that had no room.
    left: Vec<LaneName>,
}

fn settle(tracker: &mut Tracker, ordinal: u64, settled: &mut u64) {
    // A gone record is open, so this holds; if it did not, the watermark would only wait.
    if tracker.settle(ordinal).is_ok() {
        *settled += 1;
    }
}

fn impure(partition: &TopicPartition, offset: i64) -> Error {
    let words = "the lane key function gave another lane at a second reading: it must depend on \
                 nothing but the record";
    Error::new(ErrorKind::Handler, words)
        .at(partition.topic.clone(), partition.partition)
        .offset_at(offset)
}
