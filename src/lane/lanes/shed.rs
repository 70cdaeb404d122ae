//! What a lane that does not move lets go of, so that it holds no memory that others need.

use std::ops::Range;
use std::sync::Arc;

use super::super::LaneName;
use super::super::group::{Parcel, Stretch};
use super::super::hash::KeyHash;
use super::{Lanes, Mode, RETURNING};

impl<L> Lanes<L> {
    /// The lane that records of this key go to. None where no lane is theirs for good: records
    /// without a key, and modes without lanes.
    #[must_use]
    pub fn lane_for(&self, key: KeyHash) -> Option<LaneName> {
        match self.mode {
            _ if key.is_keyless() => None,
            Mode::Fixed { .. } => Some(LaneName(self.lane_number(key) as u64)),
            Mode::PerKey { .. } => Some(LaneName(key.number())),
            Mode::InTurn | Mode::Any { .. } => None,
        }
    }

    /// The number that a lane has now. None for a key of which nothing is held.
    fn number_of(&self, lane: LaneName) -> Option<usize> {
        let number = match &self.keys {
            Some(keys) => keys.get(KeyHash::new(lane.0)).map(|l| l as usize),
            None => usize::try_from(lane.0).ok(),
        };
        number.filter(|number| *number < self.lanes.len())
    }

    /// The lanes in which records wait, with how many those are; those with executors apart.
    pub fn queues(&self) -> impl Iterator<Item = (LaneName, u32)> {
        let lanes = self.lanes.iter().zip(0u64..);
        lanes
            .filter(|(lane, _)| lane.queued > 0)
            .map(|(lane, number)| match self.keys.is_some() {
                true => (LaneName(lane.key.number()), lane.queued),
                false => (LaneName(number), lane.queued),
            })
    }

    /// Records that wait in a lane, those with executors apart.
    #[must_use]
    pub fn queued_in(&self, lane: LaneName) -> u32 {
        let number = self.number_of(lane);
        number.map_or(0, |number| self.lanes[number].queued)
    }

    /// Whether no more is wanted because so much waits in lanes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queued >= self.queued_max
    }

    /// What waits in a lane, by the caller's own weight of a stretch.
    pub fn queued_weight(
        &self,
        lane: LaneName,
        weight: impl Fn(&Parcel<L>, Range<u32>) -> usize,
    ) -> usize {
        let Some(number) = self.number_of(lane) else {
            return 0;
        };
        let stretches = self.nodes.iter(&self.lanes[number].queue);
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
        lane: LaneName,
        keep: usize,
        weight: impl Fn(&Parcel<L>, Range<u32>) -> usize,
        mut goes: impl FnMut(&Arc<Parcel<L>>, u32) -> bool,
    ) -> u32 {
        let Some(number) = self.number_of(lane) else {
            return 0;
        };
        let lane = &mut self.lanes[number];
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
            self.touch(number as u32);
        }
        gone
    }

    /// Gives what waits in a lane other parcels, where `other` has one: the same records, by the
    /// same ordinals, in memory of their own.
    pub fn repack(
        &mut self,
        lane: LaneName,
        mut other: impl FnMut(&Arc<Parcel<L>>, Range<u32>) -> Option<Arc<Parcel<L>>>,
    ) {
        let Some(number) = self.number_of(lane) else {
            return;
        };
        let lane = &self.lanes[number];
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
