//! The end of a lease.

use super::super::LaneId;
use super::super::group::{Lease, LeaseState};
use super::super::runner::Recall;
use super::{Lanes, Recalled};
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
            self.take_queued(l as u32, lease, drop);
        }
        self.take_unplaced(lease, drop);
        self.drop_aside(lease);
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
