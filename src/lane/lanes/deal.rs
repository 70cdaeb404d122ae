//! Parcels in: each record to its lane's executor, or into its lane's queue.

use std::ops::Range;
use std::sync::Arc;

use super::super::LaneId;
use super::super::group::{Item, PARCEL_RECORDS_MAX, Parcel, Stretch};
use super::super::hash::{KeyHash, Keys};
use super::exec::Exec;
use super::{Lane, Lanes, MOVING, Mode, ROTATION_TRIES};

impl<L> Lanes<L> {
    /// Takes a parcel in. A parcel of a lease that has ended is dropped.
    ///
    /// # Panics
    /// When there are not as many keys as records, or more records than a parcel may hold.
    pub fn deal(&mut self, parcel: &Arc<Parcel<L>>, keys: Keys<'_>) {
        self.deal_part(parcel, keys, 0..parcel.len);
    }

    /// Takes some of a parcel's records in: those with these indices. The keys are those of the
    /// whole parcel. Parts are dealt in order; what is left out, because it had settled before,
    /// never comes back.
    ///
    /// # Panics
    /// When there are not as many keys as records, more records than a parcel may hold, or fewer
    /// than the part says.
    pub fn deal_part(&mut self, parcel: &Arc<Parcel<L>>, keys: Keys<'_>, part: Range<u32>) {
        assert!(parcel.len <= PARCEL_RECORDS_MAX, "a parcel is too long");
        assert!(part.end <= parcel.len, "a part of the parcel");
        if let Keys::Each(keys) = keys {
            assert!(keys.len() == parcel.len as usize, "a key for each record");
        }
        if part.is_empty() || !parcel.lease.is_granted() {
            return;
        }
        match (self.mode, keys) {
            (Mode::Any { .. }, _) => self.deal_any(parcel, part),
            (Mode::PerKey { .. }, Keys::Same(key)) if key.is_keyless() => match self.one_lane {
                true => self.enqueue_loose(parcel, part),
                false => self.deal_any(parcel, part),
            },
            (_, Keys::Same(key)) => {
                let lane = self.lane_of(key);
                self.deal_range(parcel, part, lane);
            }
            (_, Keys::Each(keys)) if self.one_lane => {
                for index in part {
                    let key = keys[index as usize];
                    if key.is_keyless() && self.keys.is_some() {
                        self.enqueue_loose(parcel, index..index + 1);
                        continue;
                    }
                    let lane = self.lane_of(key);
                    self.enqueue(lane, parcel, index, 1);
                }
            }
            (_, Keys::Each(keys)) => self.deal_each(parcel, keys, part),
        }
    }

    fn deal_any(&mut self, parcel: &Arc<Parcel<L>>, part: Range<u32>) {
        parcel.lease.went_out(part.end - part.start);
        let mut index = part.start;
        while index < part.end {
            let e = self.pick_loose();
            let exec = &mut self.execs[e];
            let room = exec.room().min(part.end - index);
            for index in index..index + room {
                exec.push_item(parcel, Item::new(LaneId::NONE, index));
            }
            exec.close_seg();
            index += room;
        }
    }

    fn deal_range(&mut self, parcel: &Arc<Parcel<L>>, part: Range<u32>, l: u32) {
        let records = part.end - part.start;
        self.mark_crowded();
        if self.one_lane || !self.may_deal(l) {
            self.enqueue(l, parcel, part.start, records);
            return;
        }
        let lane = &mut self.lanes[l as usize];
        lane.out += records;
        let exec = &mut self.execs[lane.exec as usize];
        parcel.lease.went_out(records);
        let mut index = part.start;
        while index < part.end {
            let len = exec.room().min(part.end - index);
            let stretch = Stretch {
                parcel: Arc::clone(parcel),
                index,
                len,
                tried: None,
                lane: LaneId(l),
            };
            exec.push_range(stretch, LaneId::NONE);
            index += len;
        }
    }

    fn deal_each(&mut self, parcel: &Arc<Parcel<L>>, keys: &[KeyHash], part: Range<u32>) {
        let mut out = 0;
        self.mark_crowded();
        let keys = &keys[part.start as usize..part.end as usize];
        for (key, index) in keys.iter().zip(part.start..) {
            if key.is_keyless() && self.keys.is_some() {
                let e = self.pick_loose();
                self.execs[e].push_item(parcel, Item::new(LaneId::NONE, index));
                out += 1;
                continue;
            }
            let l = self.lane_of(*key);
            let lane = &mut self.lanes[l as usize];
            let exec = &self.execs[lane.exec as usize];
            let plain = lane.flags == 0 && lane.out > 0 && !exec.crowded && !exec.is_full();
            if !plain && !self.may_deal(l) {
                self.enqueue(l, parcel, index, 1);
                continue;
            }
            let lane = &mut self.lanes[l as usize];
            lane.out += 1;
            out += 1;
            self.execs[lane.exec as usize].push_item(parcel, Item::new(LaneId(l), index));
        }
        self.execs.iter_mut().for_each(Exec::close_seg);
        parcel.lease.went_out(out);
    }

    /// Whether the lane's next record may go straight to an executor; binds the lane if need be.
    fn may_deal(&mut self, l: u32) -> bool {
        if self.lanes[l as usize].flags != 0 {
            return false;
        }
        if self.lanes[l as usize].out == 0 {
            let exec = self.pick();
            if self.execs[exec].is_full() {
                return false;
            }
            self.lanes[l as usize].exec = exec as u32;
            return true;
        }
        if self.execs[self.lanes[l as usize].exec as usize].is_full() {
            return false;
        }
        if self.should_move(l) {
            self.lanes[l as usize].flags |= MOVING;
            return false;
        }
        true
    }

    fn enqueue(&mut self, l: u32, parcel: &Arc<Parcel<L>>, index: u32, len: u32) {
        let lane = &mut self.lanes[l as usize];
        lane.queued += len;
        self.queued += len as usize;
        let joined = self
            .nodes
            .back_mut(&lane.queue)
            .is_some_and(|last| last.join(parcel, index, len));
        if !joined {
            let stretch = Stretch {
                parcel: Arc::clone(parcel),
                index,
                len,
                tried: None,
                lane: LaneId(l),
            };
            self.nodes.push(&mut lane.queue, stretch);
        }
        self.touch(l);
    }

    fn lane_of(&mut self, key: KeyHash) -> u32 {
        if let Some(keys) = &mut self.keys {
            let (l, is_new) = keys.get_or_add(key, self.lanes.len() as u32);
            if is_new {
                self.lanes.push(Lane::new());
            }
            self.lanes[l as usize].key = key;
            return l;
        }
        if !key.is_keyless() {
            return self.lane_number(key) as u32;
        }
        let lanes = self.lanes.len() as u32;
        for _ in 0..ROTATION_TRIES.min(lanes) {
            self.turn = (self.turn + 1) % lanes;
            if self.lanes[self.turn as usize].flags & !MOVING == 0 {
                break;
            }
        }
        self.turn
    }
}
