//! The partitions that are ours, and those of them on their way out.

use std::collections::BTreeMap;

use crate::ids::TopicPartition;
use crate::time::Now;

/// One partition that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Granted,
    /// Revoked and not yet released; past that moment it counts as lost.
    Draining(Now),
}

/// All partitions that are ours, in order.
#[derive(Debug, Default)]
pub(super) struct Leases(BTreeMap<TopicPartition, Lease>);

impl Leases {
    /// Takes what is not ours yet and names it.
    pub(super) fn grant<'a>(
        &mut self,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
    ) -> Vec<TopicPartition> {
        let mut granted = Vec::new();
        for tp in partitions {
            if !self.0.contains_key(tp) {
                self.0.insert(tp.clone(), Lease::Granted);
                granted.push(tp.clone());
            }
        }
        granted
    }

    /// Marks what is granted and `goes`, and names it.
    pub(super) fn revoke(
        &mut self,
        hard: Now,
        goes: impl Fn(&TopicPartition) -> bool,
    ) -> Vec<TopicPartition> {
        let mut revoked = Vec::new();
        for (tp, lease) in &mut self.0 {
            if *lease == Lease::Granted && goes(tp) {
                *lease = Lease::Draining(hard);
                revoked.push(tp.clone());
            }
        }
        revoked
    }

    /// Ends a drain; false where there was none.
    pub(super) fn release(&mut self, tp: &TopicPartition) -> bool {
        let draining = matches!(self.0.get(tp), Some(Lease::Draining(_)));
        if draining {
            self.0.remove(tp);
        }
        draining
    }

    /// Takes out the drains that are overdue.
    pub(super) fn overdue(&mut self, now: Now) -> Vec<TopicPartition> {
        let late = |lease: &Lease| matches!(lease, Lease::Draining(hard) if *hard <= now);
        let gone: Vec<_> = self
            .0
            .iter()
            .filter(|(_, lease)| late(lease))
            .map(|(tp, _)| tp.clone())
            .collect();
        self.0.retain(|_, lease| !late(lease));
        gone
    }

    /// Takes out all.
    pub(super) fn clear(&mut self) -> Vec<TopicPartition> {
        std::mem::take(&mut self.0).into_keys().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &TopicPartition> {
        self.0.keys()
    }

    /// Those that drain, in order.
    pub(super) fn draining(&self) -> impl Iterator<Item = &TopicPartition> {
        self.0
            .iter()
            .filter(|(_, lease)| matches!(lease, Lease::Draining(_)))
            .map(|(tp, _)| tp)
    }

    /// When the first drain is overdue.
    pub(super) fn next_overdue(&self) -> Option<Now> {
        self.0
            .values()
            .filter_map(|lease| match lease {
                Lease::Draining(hard) => Some(*hard),
                Lease::Granted => None,
            })
            .min()
    }
}
