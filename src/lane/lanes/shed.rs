//! What a lane that does not move lets go of, so that it holds no memory that others need.

use std::ops::Range;
use std::sync::Arc;

use super::super::LaneId;
use super::super::group::{Parcel, Stretch};
use super::super::hash::KeyHash;
use super::{Lanes, Mode, RETURNING};

impl<L> Lanes<L> {
    /// The lane that records of this key go to. None where no lane is theirs for good: records
    /// without a key, and modes without a fixed number of lanes.
    #[must_use]
    pub fn lane_for(&self, key: KeyHash) -> Option<LaneId> {
        let fixed = matches!(self.mode, Mode::Fixed { .. });
        (fixed && !key.is_keyless()).then(|| LaneId(self.lane_number(key) as u32))
    }

    /// How many lanes there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// Records that wait in a lane, those with executors apart.
    #[must_use]
    pub fn queued_in(&self, lane: LaneId) -> u32 {
        let lane = self.lanes.get(lane.0 as usize);
        lane.map_or(0, |lane| lane.queued)
    }

    /// Whether no more is wanted because so much waits in lanes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queued >= self.queued_max
    }

    /// What waits in a lane, by the caller's own weight of a stretch.
    pub fn queued_weight(
        &self,
        lane: LaneId,
        weight: impl Fn(&Parcel<L>, Range<u32>) -> usize,
    ) -> usize {
        let Some(lane) = self.lanes.get(lane.0 as usize) else {
            return 0;
        };
        let stretches = self.nodes.iter(&lane.queue);
        stretches.map(|s| weight(&s.parcel, s.range())).sum()
    }

    /// Takes the end of a lane's queue out, beyond what weighs `keep`: of each stretch there
    /// `goes` says which of its first records go (all, some, none), and `out` hears of them in
    /// order. At least one record stays, and all that have run before.
    ///
    /// Nothing goes while records of the lane are on their way back from an executor: they would
    /// find their place at the front taken by what comes after them.
    pub fn shed(
        &mut self,
        lane: LaneId,
        keep: usize,
        weight: impl Fn(&Parcel<L>, Range<u32>) -> usize,
        mut goes: impl FnMut(&Arc<Parcel<L>>, u32) -> bool,
    ) -> u32 {
        let l = lane.0;
        let Some(lane) = self.lanes.get_mut(l as usize) else {
            return 0;
        };
        if lane.is(RETURNING) || lane.queued < 2 {
            return 0;
        }
        let (mut kept, mut stay, mut seen) = (0, 1, 0);
        for stretch in self.nodes.iter(&lane.queue) {
            seen += 1;
            kept += weight(&stretch.parcel, stretch.range());
            if stretch.tried.is_some() || kept <= keep {
                stay = seen;
            }
        }
        let (mut at, mut gone) = (0, 0);
        let mut left: Vec<Stretch<L>> = Vec::new();
        self.nodes.drain_where(
            &mut lane.queue,
            |_| {
                at += 1;
                at > stay
            },
            |mut stretch| {
                while stretch.len > 0 {
                    let one = match stretch.len {
                        1 => {
                            let len = std::mem::take(&mut stretch.len);
                            stretch.one(stretch.index, len)
                        }
                        _ => stretch.split(1),
                    };
                    if goes(&one.parcel, one.index) {
                        gone += 1;
                        continue;
                    }
                    let joined = left
                        .last_mut()
                        .is_some_and(|last| last.join(&one.parcel, one.index, 1));
                    if !joined {
                        left.push(one);
                    }
                }
            },
        );
        for stretch in left {
            self.nodes.push(&mut lane.queue, stretch);
        }
        lane.queued -= gone;
        self.queued -= gone as usize;
        if gone > 0 {
            self.touch(l);
        }
        gone
    }

    /// Gives what waits in a lane other parcels, where `other` has one: the same records, by the
    /// same ordinals, in memory of their own.
    pub fn repack(
        &mut self,
        lane: LaneId,
        mut other: impl FnMut(&Arc<Parcel<L>>, Range<u32>) -> Option<Arc<Parcel<L>>>,
    ) {
        let Some(lane) = self.lanes.get(lane.0 as usize) else {
            return;
        };
        self.nodes.for_each_mut(&lane.queue, |stretch| {
            if let Some(parcel) = other(&stretch.parcel, stretch.range()) {
                let index = stretch.ordinal().wrapping_sub(parcel.first_ordinal);
                debug_assert!(index + u64::from(stretch.len) <= u64::from(parcel.len));
                stretch.index = index as u32;
                stretch.parcel = parcel;
            }
        });
    }
}
