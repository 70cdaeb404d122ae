//! What a lane lets go of, and when.

use super::{Entry, GONE_LANES_MAX, Overflow, PARCEL_BYTES, STILL_FOR, key_of};
use crate::engine::{Engine, Phase};
use crate::ids::LeaseId;
use crate::lane::{LaneName, Parcel};
use crate::record::Delivery;
use crate::time::Now;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

impl Engine {
    /// Lets go where the budget refuses the next fetch because lanes hold so much. Returns
    /// whether memory came free.
    ///
    /// Step 1: it is too early to look, or all queues are looked at in vain, say because the long
    /// one's records are just coming back from an executor. Step 2: they are back, and nothing else
    /// will happen for a minute: the budget is full, and the handler is stuck. So who comes too
    /// early leaves word, and there is another look when its time has come.
    pub(in crate::engine) fn let_go(&mut self, now: Now) -> bool {
        if self.overflow.is_none() {
            return false;
        }
        let pinched = matches!(self.phase, Phase::Running)
            && (self.fetch.is_starved() || self.lanes.is_full() || !self.may_decode());
        let Some(overflow) = &mut self.overflow else {
            return false;
        };
        overflow.look_wanted = pinched && now < overflow.look_at;
        if !pinched || overflow.look_wanted {
            return false;
        }
        if overflow.looked.is_none() {
            return self.heaviest_key_lets_go(now);
        }
        while let Some(lane) = self.longest_queue() {
            let went = self.let_go_of(lane);
            let queued = self.lanes.queued_in(lane);
            if let Some(looked) = self.overflow.as_mut().and_then(|o| o.looked.as_mut()) {
                // Not again before its queue has changed.
                looked.insert(lane, queued);
            }
            if went {
                return true;
            }
        }
        false
    }

    fn longest_queue(&self) -> Option<LaneName> {
        let looked = self.overflow.as_ref()?.looked.as_ref()?;
        let changed =
            |(lane, queued): &(LaneName, u32)| *queued > 1 && looked.get(lane) != Some(queued);
        let queues = self.lanes.queues().filter(changed);
        queues
            .max_by_key(|(_, queued)| *queued)
            .map(|(lane, _)| lane)
    }

    /// Where each live key has a lane.
    fn heaviest_key_lets_go(&mut self, now: Now) -> bool {
        let Some(share) = self.overflow.as_ref().map(|overflow| overflow.share) else {
            return false;
        };
        let long = self.lanes.queues().filter(|(_, queued)| *queued > 1);
        let mut heavy: Vec<(usize, LaneName)> = long
            .map(|(lane, _)| (self.lanes.queued_weight(lane, weight), lane))
            .filter(|(bytes, _)| *bytes > share)
            .collect();
        heavy.sort_unstable_by(|a, b| b.cmp(a));
        if heavy.into_iter().any(|(_, lane)| self.let_go_of(lane)) {
            return true;
        }
        if let Some(overflow) = &mut self.overflow {
            overflow.look_at = now + STILL_FOR;
        }
        false
    }

    fn let_go_of(&mut self, lane: LaneName) -> bool {
        let Some(overflow) = &mut self.overflow else {
            return false;
        };
        let keep = match overflow.looked {
            Some(_) => overflow.share,
            // There may be more keys than shares. One record of each stays, whatever it takes.
            None if overflow.copies.free_bytes() == 0 => return false,
            None => overflow.share.min(overflow.copies.free_bytes() / 4),
        };
        let (by, hasher) = (&self.config.lane_key, &self.hasher);
        let (leases, entries) = (&mut overflow.leases, &mut overflow.entries);
        // Leases that had an entry before: what the lane holds of them came back by a pass.
        let old: BTreeSet<LeaseId> = leases
            .iter()
            .filter(|(_, of)| of.lanes.contains_key(&lane))
            .map(|(id, _)| *id)
            .collect();
        let went = self.lanes.shed(lane, keep, weight, |parcel, index| {
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
        taken_at: parcel.taken_at,
        len: range.len() as u32,
        load: overflow.copy(&parcel.load, copy),
    }))
}
