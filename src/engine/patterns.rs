//! Topics by a pattern, and which topics and partitions were born after us.

use super::{Engine, Source};
use crate::group::GroupProtocol;
use crate::ids::TopicPartition;
use crate::time::Now;
use std::sync::Arc;

impl Engine {
    /// The topics that we ourselves want, as far as they are known.
    pub(super) fn own_topics(&self) -> Vec<Arc<str>> {
        match &self.config.source {
            Source::Topics { topics, .. } => topics.clone(),
            Source::Pattern { .. } => self.matched.clone().unwrap_or_default(),
            Source::Partitions { .. } | Source::Nothing => Vec::new(),
        }
    }

    /// With the classic protocol the pattern is ours to read: the group hears of every change.
    pub(super) fn match_topics(&mut self, now: Now) {
        let Source::Pattern { pattern, .. } = &self.config.source else {
            return;
        };
        if self.config.group_protocol == GroupProtocol::Consumer || !self.cluster.has_learned() {
            return;
        }
        let matching = |(name, topic): (&Arc<str>, &crate::cluster::Topic)| {
            (!topic.internal && pattern.matches(name)).then(|| name.clone())
        };
        let matched: Vec<Arc<str>> = self.cluster.topics().filter_map(matching).collect();
        if self.matched.as_ref() == Some(&matched) {
            return;
        }
        let gone = self
            .matched
            .iter()
            .flatten()
            .filter(|t| !matched.contains(t));
        let gone: Vec<Arc<str>> = gone.cloned().collect();
        self.watched.retain(|topic| !gone.contains(topic));
        self.watched.extend(matched.iter().cloned());
        self.watched.sort();
        self.watched.dedup();
        if matched.is_empty() {
            let words = format!("no topic matches the pattern {pattern:?} now");
            self.notice(words);
        }
        let (had, empty) = (self.matched.is_some(), matched.is_empty());
        self.matched = Some(matched.clone());
        if let Some(group) = &mut self.group
            && (had || !empty)
        {
            group.set_subscription(now, matched);
        }
    }

    /// How many partitions each topic had when we first saw it. A topic that was not there when
    /// we first looked had none.
    pub(super) fn note_first_counts(&mut self) {
        if !self.cluster.has_learned() {
            return;
        }
        let first_look = !std::mem::replace(&mut self.looked, true);
        let by_pattern = matches!(self.config.source, Source::Pattern { .. });
        for (name, topic) in self.cluster.topics() {
            let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
            if count > 0 && !self.first_counts.contains_key(name) {
                let late = by_pattern && !first_look;
                let first = if late { 0 } else { count };
                self.first_counts.insert(name.clone(), first);
            }
        }
        for (name, count) in self.cluster.partition_counts(&self.watched) {
            if count == 0 {
                self.first_counts.insert(name, 0);
            }
        }
    }

    /// Whether the topic, or this partition of it, came after we had first looked: what was
    /// written to it before anyone noticed counts as ours to read, whatever the start policy
    /// (KAFKA-12261).
    pub(super) fn is_new(&self, partition: &TopicPartition) -> bool {
        let seen = self.first_counts.get(&partition.topic);
        seen.is_some_and(|count| partition.partition >= *count)
    }
}
