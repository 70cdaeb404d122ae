//! The lanes as a snapshot shows them. Not for the hot path: it looks at every lane.

use std::collections::BTreeMap;

use super::super::LaneId;
use super::super::group::Stretch;
use super::held::Held;
use super::{Lanes, PARKED};
use crate::ids::LeaseId;
use crate::time::Now;

/// One lane that has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Which.
    pub lane: LaneId,
    /// Records that wait in it.
    pub queued: u32,
    /// Records that its executor has.
    pub out: u32,
    /// When its first record runs again, where that has failed; [`Now::NEVER`]: not by itself.
    pub parked_until: Option<Now>,
}

/// A record that waits in the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Its lane.
    pub lane: LaneId,
    /// How often it has run.
    pub attempts: u32,
    /// When it runs again, where it waits for that.
    pub until: Option<Now>,
    /// It is on its way to a dead-letter topic.
    pub is_dead: bool,
}

impl<L> Lanes<L> {
    /// Every lane that has something, by number.
    pub fn busy(&self) -> impl Iterator<Item = LaneView> {
        let lanes = self.lanes.iter().zip(0..);
        let busy = lanes.filter(|(lane, _)| lane.out > 0 || lane.queued > 0);
        busy.map(|(lane, number)| LaneView {
            lane: LaneId(number),
            queued: lane.queued,
            out: lane.out,
            parked_until: lane.is(PARKED).then_some(lane.due),
        })
    }

    /// Which of these records wait in the lanes: one of each lease, by its ordinal.
    #[must_use]
    pub fn find(&self, records: &BTreeMap<LeaseId, u64>) -> BTreeMap<LeaseId, Waits> {
        let mut found = BTreeMap::new();
        let queued = self.nodes.all();
        let aside = self.aside.values().flatten();
        for stretch in queued.chain(aside) {
            let lease = stretch.parcel.lease.id();
            let is_here = |o: &u64| {
                *o >= stretch.ordinal() && *o - stretch.ordinal() < u64::from(stretch.len)
            };
            if records.get(&lease).is_some_and(is_here) {
                let lane = self.lanes.get(stretch.lane.0 as usize);
                let until = lane.filter(|l| l.is(PARKED) && stretch.tried.is_some());
                found.insert(
                    lease,
                    Waits {
                        lane: stretch.lane,
                        attempts: runs(stretch),
                        until: until.map(|l| l.due),
                        is_dead: false,
                    },
                );
            }
        }
        for ((due, _), what) in &self.timers {
            if let super::Due::Record(stretch) = what {
                let lease = stretch.parcel.lease.id();
                if records.get(&lease) == Some(&stretch.ordinal()) {
                    found.insert(
                        lease,
                        Waits {
                            lane: LaneId::NONE,
                            attempts: runs(stretch),
                            until: Some(*due),
                            is_dead: false,
                        },
                    );
                }
            }
        }
        for stretch in self.dead.values().map(Held::what) {
            let lease = stretch.parcel.lease.id();
            if records.get(&lease) == Some(&stretch.ordinal()) {
                found.insert(
                    lease,
                    Waits {
                        lane: stretch.lane,
                        attempts: runs(stretch),
                        until: None,
                        is_dead: true,
                    },
                );
            }
        }
        found
    }
}

/// How often a record has run.
fn runs<L>(stretch: &Stretch<L>) -> u32 {
    stretch.tried.as_ref().map_or(0, |t| t.attempts())
}
