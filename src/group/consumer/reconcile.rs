//! From what the coordinator says to what is leased.

use std::collections::BTreeMap;

use super::super::action::GroupAction;
use super::ConsumerMembership;
use crate::ids::{TopicId, TopicPartition};
use crate::time::Now;

impl ConsumerMembership {
    /// Takes what is to be ours and gives what is not. The coordinator has waited for it since
    /// `since` at most.
    pub(super) fn reconcile(&mut self, now: Now, since: Now) {
        if self.unnamed().next().is_some() {
            self.actions.push_back(GroupAction::Refresh);
        }
        let wanted = self.wanted();
        self.revoke(now, since, &wanted);
        self.grant(&wanted);
        let used: Vec<TopicId> = self.target.iter().map(|(id, _)| *id).collect();
        let leased: Vec<TopicId> = self.ids.values().copied().collect();
        self.names
            .retain(|id, _| used.binary_search(id).is_ok() || leased.contains(id));
    }

    /// Topics of which the coordinator speaks and whose names we do not know.
    pub(super) fn unnamed(&self) -> impl Iterator<Item = TopicId> {
        let ids = self.target.iter().map(|(id, _)| *id);
        ids.filter(|id| !self.names.contains_key(id))
    }

    /// These are no longer ours.
    pub(super) fn given_back(&mut self, partitions: &[TopicPartition]) {
        for tp in partitions {
            self.ids.remove(tp);
        }
        // Given to us again while they drained: leases of their own.
        let wanted = self.wanted();
        self.grant(&wanted);
    }

    /// All that should be ours and that we can name.
    fn wanted(&self) -> BTreeMap<TopicPartition, TopicId> {
        let named = |(id, partition): &(TopicId, i32)| {
            let topic = self.names.get(id)?.clone();
            Some((TopicPartition::new(topic, *partition), *id))
        };
        self.target.iter().filter_map(named).collect()
    }

    fn grant(&mut self, wanted: &BTreeMap<TopicPartition, TopicId>) {
        let partitions = self.leases.grant(wanted.keys());
        for tp in &partitions {
            self.ids.insert(tp.clone(), wanted[tp]);
        }
        if !partitions.is_empty() {
            self.actions.push_back(GroupAction::Granted { partitions });
        }
    }

    fn revoke(&mut self, now: Now, since: Now, wanted: &BTreeMap<TopicPartition, TopicId>) {
        let drain = self.cfg.drain_timeout;
        let rest = self.cfg.rebalance_timeout.saturating_sub(drain);
        // As with the classic protocol: the last commit may take half of what the drain leaves
        // of the rebalance's time, the report that it is done the rest.
        let deadline = (now + drain).min(since + drain + rest / 4).max(now);
        let hard = (since + drain + rest / 2).max(deadline);
        let ids = &self.ids;
        let goes = |tp: &TopicPartition| wanted.get(tp) != ids.get(tp);
        let partitions = self.leases.revoke(hard, goes);
        for tp in &partitions {
            if let Some(id) = self.ids.get(tp) {
                self.revoking.entry((*id, tp.partition)).or_insert(since);
            }
        }
        if !partitions.is_empty() {
            self.actions.push_back(GroupAction::Revoke {
                partitions,
                deadline,
            });
        }
    }
}
