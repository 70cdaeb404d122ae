//! What a lane lets go of, and when.

use super::{Entry, GONE_LANES_MAX, Overflow, PARCEL_BYTES, key_of};
use crate::engine::{Engine, Phase};
use crate::ids::LeaseId;
use crate::lane::{LaneId, Parcel};
use crate::record::Delivery;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

impl Engine {
    /// Lets go where the budget refuses the next fetch because lanes hold so much. Returns
    /// whether memory came free.
    pub(in crate::engine) fn let_go(&mut self) -> bool {
        if !matches!(self.phase, Phase::Running) || self.overflow.is_none() {
            return false;
        }
        let pinched = self.fetch.is_starved() || self.lanes.is_full() || !self.may_decode();
        if !pinched {
            return false;
        }
        while let Some(lane) = self.longest_queue() {
            let went = self.let_go_of(lane);
            let queued = self.lanes.queued_in(lane);
            if let Some(overflow) = &mut self.overflow {
                // Not again before its queue has changed.
                overflow.looked[lane.0 as usize] = queued;
            }
            if went {
                return true;
            }
        }
        false
    }

    fn longest_queue(&self) -> Option<LaneId> {
        let overflow = self.overflow.as_ref()?;
        let lanes = (0..self.lanes.count()).map(LaneId);
        let changed = |lane: &LaneId| {
            let queued = self.lanes.queued_in(*lane);
            queued > 1 && overflow.looked.get(lane.0 as usize) != Some(&queued)
        };
        lanes
            .filter(changed)
            .max_by_key(|lane| self.lanes.queued_in(*lane))
    }

    fn let_go_of(&mut self, lane: LaneId) -> bool {
        let Some(overflow) = &mut self.overflow else {
            return false;
        };
        let (by, hasher) = (&self.config.lane_key, &self.hasher);
        let (leases, entries) = (&mut overflow.leases, &mut overflow.entries);
        // Leases that had an entry before: what the lane holds of them came back by a pass.
        let old: BTreeSet<LeaseId> = leases
            .iter()
            .filter(|(_, of)| of.lanes.contains_key(&lane))
            .map(|(id, _)| *id)
            .collect();
        let went = self
            .lanes
            .shed(lane, overflow.share, weight, |parcel, index| {
                let id = parcel.lease.id();
                if old.contains(&id)
                    || !parcel.lease.is_granted()
                    || key_of(by, hasher, parcel, index as usize).is_none()
                {
                    return false;
                }
                let ordinal = parcel.first_ordinal.wrapping_add(u64::from(index));
                let of = leases.entry(id).or_default();
                if !of.lanes.contains_key(&lane) {
                    if *entries >= GONE_LANES_MAX {
                        return false;
                    }
                    *entries += 1;
                }
                let entry = of.lanes.entry(lane).or_insert(Entry {
                    first: ordinal,
                    last: ordinal,
                    hungry_at: 0,
                });
                entry.last = ordinal;
                of.gone.mark(ordinal, 1);
                true
            });
        if went == 0 {
            return false;
        }
        let queued = self.lanes.queued_in(lane);
        for of in leases.values_mut() {
            if let Some(entry) = of.lanes.get_mut(&lane) {
                entry.hungry_at = queued / 2;
            }
        }
        let overflow = &*overflow;
        self.lanes
            .repack(lane, |parcel, range| repacked(overflow, parcel, &range));
        true
    }
}

/// What a waiting stretch takes once it is copied out.
pub(super) fn weight(parcel: &Parcel<Delivery>, range: Range<u32>) -> usize {
    let bytes = |at| parcel.load.batch.copied_bytes(at as usize);
    PARCEL_BYTES + range.map(bytes).sum::<usize>()
}

/// The same records in memory of their own, unless they have it already.
fn repacked(
    overflow: &Overflow,
    parcel: &Arc<Parcel<Delivery>>,
    range: &Range<u32>,
) -> Option<Arc<Parcel<Delivery>>> {
    let batch = &parcel.load.batch;
    let own: usize = range
        .clone()
        .map(|at| batch.copied_bytes(at as usize))
        .sum();
    if batch.bytes_held() <= own.saturating_mul(2) {
        return None;
    }
    let copy = batch.copied_out(range.start as usize, range.end as usize - 1, |_| true);
    Some(Arc::new(Parcel {
        lease: parcel.lease.clone(),
        first_ordinal: parcel.first_ordinal + u64::from(range.start),
        len: range.len() as u32,
        load: overflow.copy(&parcel.load, copy),
    }))
}
