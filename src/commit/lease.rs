//! One lease, as far as commits go.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{TopicId, TopicPartition};
use crate::pace::Backoff;
use crate::time::Now;

/// How far a lease has come. Cannot be negative: Kafka would take -1 for a deletion or an error.
///
/// ```
/// use laneway::commit::Progress;
/// assert!(Progress::new(-1, 0).is_none());
/// assert_eq!(Progress::new(42, 0).map(|p| p.offset()), Some(42));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    offset: i64,
    /// The leader epoch of the last settled record; -1 not known.
    pub leader_epoch: i32,
    /// What has settled above the watermark, made in the same moment as the watermark.
    pub metadata: Option<Arc<str>>,
}

impl Progress {
    /// `offset` is the watermark: the next offset to read.
    #[must_use]
    pub fn new(offset: i64, leader_epoch: i32) -> Option<Self> {
        (offset >= 0).then_some(Progress {
            offset,
            leader_epoch: leader_epoch.max(-1),
            metadata: None,
        })
    }

    /// Beside the offset goes this text.
    #[must_use]
    pub fn with_metadata(mut self, metadata: impl Into<Arc<str>>) -> Self {
        self.metadata = Some(metadata.into()).filter(|m: &Arc<str>| !m.is_empty());
        self
    }

    /// The watermark.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.offset
    }
}

/// What the broker holds for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to read.
    pub offset: i64,
    /// Of the record before it; -1 not known.
    pub leader_epoch: i32,
    /// What stood beside it; `None` where it was empty.
    pub metadata: Option<Arc<str>>,
}

/// State of a lease that lives.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) partition: TopicPartition,
    pub(super) topic_id: TopicId,
    /// The newest progress, and how many there were.
    pub(super) noted: Option<Progress>,
    pub(super) version: u64,
    /// The version that the broker has acknowledged.
    pub(super) acked: u64,
    pub(super) committed: Option<Committed>,
    /// When `committed` was heard of.
    pub(super) committed_at: Now,
    /// This version was made only so that the broker does not forget the partition.
    pub(super) keeping_alive: bool,
    /// Someone waits for it, until then.
    pub(super) flush_until: Option<Now>,
    /// Its own pause after its own failure.
    pub(super) not_before: Now,
    pub(super) backoff: Backoff,
    /// Since when the coordinator does not know the topic.
    pub(super) unknown_since: Option<Now>,
    /// That has lasted.
    pub(super) gone: bool,
    /// The broker will not have it.
    pub(super) refused: bool,
    /// Its committed offset is being read.
    pub(super) loading: bool,
    /// What it has is to be asked for before it is sent.
    pub(super) asks: bool,
}

/// What the owner of a lease says when it is asked for its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This, all of one moment.
    Progress(Progress),
    /// Something that must not be committed yet: ask again after the interval.
    Later,
    /// There is nothing.
    Nothing,
}

impl Lease {
    pub(super) fn new(partition: TopicPartition, id: TopicId, now: Now, backoff: Backoff) -> Self {
        Lease {
            partition,
            topic_id: id,
            noted: None,
            version: 0,
            acked: 0,
            committed: None,
            committed_at: now,
            keeping_alive: false,
            flush_until: None,
            not_before: now,
            backoff,
            unknown_since: None,
            gone: false,
            refused: false,
            loading: false,
            asks: false,
        }
    }

    /// Something has changed; what it is, is asked for later.
    pub(super) fn touch(&mut self) {
        self.asks = true;
        self.version += 1;
        self.keeping_alive = false;
    }

    /// What had changed is this. Nothing is left to send where the broker has it already.
    pub(super) fn answered(&mut self, progress: Progress) {
        self.asks = false;
        let is_same = |c: &Committed| {
            c.offset > progress.offset
                || c.offset == progress.offset && c.metadata == progress.metadata
        };
        if self.committed.as_ref().is_some_and(is_same) && !self.keeping_alive {
            self.acked = self.version;
        } else if self
            .noted
            .as_ref()
            .is_none_or(|n| n.offset <= progress.offset)
        {
            self.noted = Some(progress);
        }
    }

    /// There is nothing to send.
    pub(super) fn nothing(&mut self, now: Now) {
        self.asks = false;
        self.keeping_alive = false;
        self.acked = self.version;
        self.committed_at = now;
    }

    /// Takes progress. False: it is none. Offsets alone tell the order; epochs may be unknown.
    pub(super) fn note(&mut self, progress: Progress) -> bool {
        let known = self.noted.as_ref().map(|p| (p.offset, &p.metadata));
        let committed = self.committed.as_ref().map(|c| (c.offset, &c.metadata));
        if let Some((offset, metadata)) = known.max_by_offset(committed)
            && (progress.offset < offset
                || (progress.offset == offset && progress.metadata == *metadata))
        {
            return false;
        }
        self.noted = Some(progress);
        self.version += 1;
        self.keeping_alive = false;
        true
    }

    /// The broker acknowledged `progress`, which was version `version`.
    pub(super) fn ack(&mut self, now: Now, version: u64, progress: Progress) {
        self.acked = self.acked.max(version);
        self.committed = Some(Committed {
            offset: progress.offset,
            leader_epoch: progress.leader_epoch,
            metadata: progress.metadata,
        });
        self.committed_at = now;
        self.keeping_alive &= self.is_dirty();
        self.unknown_since = None;
        self.gone = false;
        self.backoff.reset();
        self.not_before = now;
    }

    /// Makes what is committed a new version when it is so old that the broker may forget it.
    pub(super) fn keep_alive(&mut self, now: Now, after: Duration, asks: bool) {
        if self.keep_alive_at(after).is_none_or(|at| now < at) {
            return;
        }
        if let Some(c) = &self.committed {
            self.noted = Some(Progress {
                offset: c.offset,
                leader_epoch: c.leader_epoch,
                // One that we do not know the meaning of is not ours to carry on.
                metadata: self.noted.take().and_then(|n| n.metadata),
            });
            self.version += 1;
            self.keeping_alive = true;
            self.asks = asks;
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.version != self.acked
    }

    pub(super) fn may_send(&self, now: Now) -> bool {
        self.is_dirty() && !self.refused && self.not_before <= now
    }

    /// When something of it should be sent, given when the routine commit is due.
    pub(super) fn wants_send(&self, due: Option<Now>, keep_alive: Duration) -> Option<Now> {
        if self.refused {
            return None;
        }
        if !self.is_dirty() {
            return self.keep_alive_at(keep_alive);
        }
        if self.flush_until.is_some() || self.keeping_alive {
            return Some(self.not_before);
        }
        due.map(|at| at.max(self.not_before))
    }

    fn keep_alive_at(&self, after: Duration) -> Option<Now> {
        let idle = self.committed.is_some() && !self.is_dirty() && !self.loading;
        idle.then(|| self.committed_at + after)
    }
}

/// The further of two places.
trait Further<'a> {
    fn max_by_offset(self, other: Self) -> Self;
}

impl<'a> Further<'a> for Option<(i64, &'a Option<Arc<str>>)> {
    fn max_by_offset(self, other: Self) -> Self {
        match (self, other) {
            (Some(a), Some(b)) => Some(if b.0 > a.0 { b } else { a }),
            (a, b) => a.or(b),
        }
    }
}
