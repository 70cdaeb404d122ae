//! The end of a lease.

use super::super::LaneId;
use super::super::group::{Lease, LeaseState};
use super::super::runner::Recall;
use super::{Due, Lanes, PARKED, Recalled};
use crate::ids::ExecutorId;

impl<L> Lanes<L> {
    /// Ends a lease, or ends it further: from now on none of its records starts, and with
    /// [`LeaseState::Lost`] no result of them counts. What is queued, parked or dealt but not
    /// shipped is dropped; executors are to be told of the rest (see
    /// [`poll_recall`](Self::poll_recall)). A lane that runs one of its records stays busy until
    /// that has come back.
    pub fn end_lease(&mut self, lease: &Lease, how: LeaseState) {
        if how == LeaseState::Granted {
            return;
        }
        lease.lower(how);
        for l in 0..self.lanes.len() {
            self.drop_queued(l as u32, lease);
        }
        self.drop_unplaced(lease);
        self.drop_held(lease, how);
        self.drop_ready(lease);
        let what = match how {
            LeaseState::Lost => Recall::Cancel,
            _ => Recall::Unstarted,
        };
        if lease.out() == 0 {
            return;
        }
        for (exec, number) in self.execs.iter().zip(0..) {
            if exec.load > exec.ready_records {
                self.recalls.push_back(Recalled {
                    executor: ExecutorId(number),
                    lease: lease.id(),
                    what,
                });
            }
        }
    }

    fn drop_queued(&mut self, l: u32, lease: &Lease) {
        let lane = &mut self.lanes[l as usize];
        if lane.queued == 0 {
            return;
        }
        let mut gone = 0;
        self.nodes.drain_where(
            &mut lane.queue,
            |stretch| stretch.parcel.lease.id() == lease.id(),
            |stretch| gone += stretch.len,
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

    /// Records without a lane that wait for a retry.
    fn drop_unplaced(&mut self, lease: &Lease) {
        let queued = &mut self.queued;
        self.nodes.drain_where(
            &mut self.again,
            |stretch| stretch.parcel.lease.id() == lease.id(),
            |stretch| *queued -= stretch.len as usize,
        );
        let before = self.timers.len();
        self.timers.retain(|_, due| match due {
            Due::Lane(_) | Due::DeadLetter(_) => true,
            Due::Record(stretch) => stretch.parcel.lease.id() != lease.id(),
        });
        self.parked -= before - self.timers.len();
    }

    fn drop_ready(&mut self, lease: &Lease) {
        let mut touched = Vec::new();
        let lanes = &mut self.lanes;
        for exec in &mut self.execs {
            exec.withdraw(
                |parcel| parcel.lease.id() == lease.id(),
                |lane, records| {
                    lease.came_back(records);
                    if lane == LaneId::NONE {
                        return;
                    }
                    lanes[lane.0 as usize].out -= records;
                    touched.push(lane.0);
                },
            );
        }
        touched.into_iter().for_each(|l| self.touch(l));
    }
}
