//! The leases of one subscription: which partition each is for, how far it has settled, and how
//! it ends.
//!
//! ```text
//!   granted --(committed offset, or the start policy)--> running
//!   running --revoked, closing--> draining --(nothing runs, or the deadline)--> flushing --> gone
//!   any     --lost, seek, reset, truncation, topic recreated---------------------------> gone
//! ```

use super::maps::Measure;
use crate::ids::{LeaseId, TopicId, TopicPartition};
use crate::lane::Lease;
use crate::settle::{Restored, Tracker};
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One lease and what belongs to it.
pub(super) struct Tenure {
    pub lease: Arc<Lease>,
    pub partition: TopicPartition,
    pub topic_id: TopicId,
    /// `None` until the first offset is known.
    pub tracker: Option<Tracker>,
    /// What was settled above the committed offset when the lease began, as far as it has not
    /// been read again.
    pub restored: Option<Restored>,
    /// How long its offset map was when that was looked at last.
    pub measure: Measure,
    /// Results still count, nothing new starts.
    pub draining: bool,
    /// Whether fetching is held since the partition ran too far above its watermark.
    pub ahead_held: bool,
    /// Settled since the commit machine was last told.
    pub settled_new: u64,
    /// The user wants nothing of it handed out for now.
    pub paused: bool,
    /// When the watermark came to where it stands, or the record that it stands at was dealt.
    pub moved_at: Now,
}

/// All leases that have not ended.
pub(super) struct Leases {
    by_id: BTreeMap<LeaseId, Tenure>,
    by_partition: BTreeMap<TopicPartition, LeaseId>,
    next: u64,
    /// Leases with results since the last look at their watermarks.
    touched: BTreeSet<LeaseId>,
}

impl Leases {
    pub(super) fn new() -> Self {
        Leases {
            by_id: BTreeMap::new(),
            by_partition: BTreeMap::new(),
            next: 1,
            touched: BTreeSet::new(),
        }
    }

    /// A new lease. The caller has ended any earlier one on this partition.
    pub(super) fn grant(&mut self, partition: TopicPartition, topic_id: TopicId) -> LeaseId {
        let id = LeaseId(self.next);
        self.next += 1;
        self.by_partition.insert(partition.clone(), id);
        let tenure = Tenure {
            lease: Lease::new(id),
            partition,
            topic_id,
            tracker: None,
            restored: None,
            measure: Measure::default(),
            draining: false,
            ahead_held: false,
            settled_new: 0,
            paused: false,
            moved_at: Now(0),
        };
        self.by_id.insert(id, tenure);
        id
    }

    pub(super) fn end(&mut self, id: LeaseId) -> Option<Tenure> {
        let tenure = self.by_id.remove(&id)?;
        if self.by_partition.get(&tenure.partition) == Some(&id) {
            self.by_partition.remove(&tenure.partition);
        }
        self.touched.remove(&id);
        Some(tenure)
    }

    /// Something of it has settled, or was found to hold nothing.
    pub(super) fn touch(&mut self, id: LeaseId) {
        self.touched.insert(id);
    }

    pub(super) fn take_touched(&mut self) -> BTreeSet<LeaseId> {
        std::mem::take(&mut self.touched)
    }

    pub(super) fn get(&self, id: LeaseId) -> Option<&Tenure> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LeaseId) -> Option<&mut Tenure> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn of(&self, partition: &TopicPartition) -> Option<LeaseId> {
        self.by_partition.get(partition).copied()
    }

    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.by_id.keys().copied().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LeaseId, &Tenure)> {
        self.by_id.iter().map(|(id, tenure)| (*id, tenure))
    }
}

/// Leases that end in order: what runs may finish, what settled is committed.
pub(super) struct Drain {
    pub leases: Vec<LeaseId>,
    pub partitions: Vec<TopicPartition>,
    /// When what still runs is given up.
    pub deadline: Now,
    /// When the last commit is given up.
    pub flush_deadline: Now,
    pub step: DrainStep,
    pub after: After,
}

/// What follows once a [`Drain`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing: the subscription ends.
    Nothing,
    /// The group waits to hear that these are free.
    Group,
    /// They stay ours and go on elsewhere.
    Seek,
}

/// How far a [`Drain`] is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DrainStep {
    /// Handlers still run.
    Running,
    /// The last commit is out for these.
    Flushing(BTreeSet<LeaseId>),
}
