//! Leases at rest: what waits of them is set aside, in its place, until they go on.

use super::super::LaneId;
use super::super::group::{Lease, Stretch};
use super::{Due, Lanes, PARKED, REJOINED};

impl<L> Lanes<L> {
    /// Lets a lease rest: no record of it starts until [`go_on`](Self::go_on). What runs ends, and
    /// its results count; what has failed waits with the rest, and runs again at once afterwards.
    /// Its lanes are free for records of other leases meanwhile.
    ///
    /// Records that an executor has come back as not run, and seal their lane there, as one that
    /// must run again does: so what is behind them cannot pass them when the lease goes on before
    /// they are all back.
    pub fn rest(&mut self, lease: &Lease) {
        if !lease.rest(true) {
            return;
        }
        let mut aside = Vec::new();
        for l in 0..self.lanes.len() {
            // Until all is set aside no lane is without anything, or it would be another key's.
            self.lanes[l].aside += 1;
            self.take_queued(l as u32, lease, |stretch| aside.push(stretch));
        }
        self.take_unplaced(lease, |stretch| aside.push(stretch));
        for stretch in aside {
            self.set_aside(stretch);
        }
        for l in 0..self.lanes.len() {
            self.lanes[l].aside -= 1;
            self.touch(l as u32);
        }
    }

    /// Ends a lease's rest.
    pub fn go_on(&mut self, lease: &Lease) {
        if !lease.rest(false) {
            return;
        }
        let mut aside = self.aside.remove(&lease.id()).unwrap_or_default();
        // What came back from executors lies behind what was queued, though it comes first.
        aside.sort_by_key(Stretch::ordinal);
        for stretch in aside {
            let len = stretch.len;
            self.aside_records -= len as usize;
            self.queued += len as usize;
            if stretch.lane == LaneId::NONE {
                self.nodes.push(&mut self.again, stretch);
                continue;
            }
            let l = stretch.lane.0;
            let lane = &mut self.lanes[l as usize];
            lane.queued += len;
            lane.aside -= len;
            // Step 1: a record fails and is set aside, and the one behind it is still with the
            // executor. Step 2: the lease goes on, and the first is put into the queue. Step 3: the
            // second comes back, and would be put before all that was queued.
            lane.set(REJOINED, lane.out > 0);
            self.nodes.push(&mut lane.queue, stretch);
            self.touch(l);
        }
    }

    /// Records of leases at rest that wait here.
    #[must_use]
    pub fn at_rest(&self) -> usize {
        self.aside_records
    }

    pub(super) fn set_aside(&mut self, stretch: Stretch<L>) {
        self.aside_records += stretch.len as usize;
        if stretch.lane != LaneId::NONE {
            // The lane is kept for them: under lanes by key it would be another key's.
            self.lanes[stretch.lane.0 as usize].aside += stretch.len;
        }
        let of_lease = self.aside.entry(stretch.parcel.lease.id());
        of_lease.or_default().push(stretch);
    }

    pub(super) fn drop_aside(&mut self, lease: &Lease) {
        for stretch in self.aside.remove(&lease.id()).unwrap_or_default() {
            self.aside_records -= stretch.len as usize;
            if stretch.lane != LaneId::NONE {
                self.lanes[stretch.lane.0 as usize].aside -= stretch.len;
                self.touch(stretch.lane.0);
            }
        }
    }

    /// Takes what is queued of a lease out of a lane.
    pub(super) fn take_queued(&mut self, l: u32, lease: &Lease, mut out: impl FnMut(Stretch<L>)) {
        let lane = &mut self.lanes[l as usize];
        if lane.queued == 0 {
            return;
        }
        let mut gone = 0;
        self.nodes.drain_where(
            &mut lane.queue,
            |stretch| stretch.parcel.lease.id() == lease.id(),
            |stretch| {
                gone += stretch.len;
                out(stretch);
            },
        );
        if gone == 0 {
            return;
        }
        lane.queued -= gone;
        self.queued -= gone as usize;
        let front = self.nodes.front(&lane.queue);
        if lane.is(PARKED) && front.is_none_or(|s| s.tried.is_none()) {
            lane.set(PARKED, false);
            if self.timers.remove(&(lane.due, u64::from(l))).is_some() {
                self.parked -= 1;
            }
        }
        self.touch(l);
    }

    /// Takes out the records without a lane that wait for a retry.
    pub(super) fn take_unplaced(&mut self, lease: &Lease, mut out: impl FnMut(Stretch<L>)) {
        let queued = &mut self.queued;
        self.nodes.drain_where(
            &mut self.again,
            |stretch| stretch.parcel.lease.id() == lease.id(),
            |stretch| {
                *queued -= stretch.len as usize;
                out(stretch);
            },
        );
        let is_its = |due: &Due<L>| match due {
            Due::Lane(_) | Due::DeadLetter(_) | Due::Batch(_) => false,
            Due::Record(stretch) => stretch.parcel.lease.id() == lease.id(),
        };
        let timers = self.timers.iter().filter(|(_, due)| is_its(due));
        let its: Vec<_> = timers.map(|(key, _)| *key).collect();
        for key in its {
            self.parked -= 1;
            if let Some(Due::Record(stretch)) = self.timers.remove(&key) {
                out(stretch);
            }
        }
    }
}
