//! How a leader shares partitions out.
//!
//! Whatever language the leader speaks, the group should see the same shares, so these follow
//! Kafka's own: the same blocks, the same turns, the same order among members. Racks (KIP-881)
//! play no part. All work is bounded by members, topics and partitions, and equal input gives
//! equal shares.

mod custom;
mod range;
mod round_robin;
mod sticky;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::config::AssignorKind;
use crate::ids::TopicPartition;

pub use custom::{Assignor, CustomAssignor};

/// A member, as an assignor sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignMember {
    /// Unique in the group.
    pub member_id: Arc<str>,
    /// Of a static member; decides its place among the others.
    pub instance_id: Option<Arc<str>>,
    /// The topics it wants.
    pub topics: BTreeSet<Arc<str>>,
    /// What it says that it has.
    pub owned: Vec<TopicPartition>,
    /// The generation that gave it `owned`, where it says so.
    pub generation: Option<i32>,
    /// What its own assignor told beside.
    pub user_data: Option<Bytes>,
}

/// What each member gets; every member has an entry.
pub type Shares = BTreeMap<Arc<str>, Vec<TopicPartition>>;

/// Shares out the partitions of the topics in `counts` that somebody wants.
///
/// A cooperative assignor leaves out what a member must give up first; the round after that
/// hands it over.
///
/// Members with the same id count once, the first of them.
#[must_use]
pub fn assign(
    kind: AssignorKind,
    counts: &BTreeMap<Arc<str>, i32>,
    members: &[AssignMember],
) -> Shares {
    assign_but(kind, counts, members, &BTreeSet::new())
}

/// As [`assign`], and `reserved` partitions go to nobody.
pub(in crate::group) fn assign_but(
    kind: AssignorKind,
    counts: &BTreeMap<Arc<str>, i32>,
    members: &[AssignMember],
    reserved: &BTreeSet<TopicPartition>,
) -> Shares {
    let mut seen = BTreeSet::new();
    let mut members: Vec<&AssignMember> = members
        .iter()
        .filter(|m| seen.insert(m.member_id.clone()))
        .collect();
    members.sort_by(|a, b| a.member_id.cmp(&b.member_id));
    let wanted: BTreeSet<&Arc<str>> = members.iter().flat_map(|m| &m.topics).collect();
    let counts: BTreeMap<Arc<str>, i32> = counts
        .iter()
        .filter(|(topic, count)| **count > 0 && wanted.contains(topic))
        .map(|(topic, count)| (topic.clone(), *count))
        .collect();
    if members.is_empty() {
        return Shares::new();
    }
    let free = |topic: &Arc<str>, count: i32| -> Vec<TopicPartition> {
        let all = (0..count).map(|p| TopicPartition::new(topic.clone(), p));
        all.filter(|tp| !reserved.contains(tp)).collect()
    };
    let topics: Topics = counts
        .iter()
        .map(|(topic, count)| (topic.clone(), free(topic, *count)))
        .collect();
    match kind {
        AssignorKind::Range => range::assign(topics, &members),
        AssignorKind::RoundRobin => round_robin::assign(topics, &members),
        AssignorKind::CooperativeSticky => sticky::assign_cooperative(topics, &members),
    }
}

/// What is to be shared out: each topic that somebody wants, and its partitions in order.
type Topics = BTreeMap<Arc<str>, Vec<TopicPartition>>;

/// An entry for each member, and nothing in it.
fn empty_shares(members: &[&AssignMember]) -> Shares {
    members
        .iter()
        .map(|m| (m.member_id.clone(), Vec::new()))
        .collect()
}

/// Static members first, by instance id; the others by member id. Static members keep their
/// place through restarts that way.
fn in_order<'a>(members: &[&'a AssignMember]) -> Vec<&'a AssignMember> {
    let mut sorted = members.to_vec();
    sorted.sort_by(|a, b| match (&a.instance_id, &b.instance_id) {
        (Some(x), Some(y)) => x.cmp(y).then_with(|| a.member_id.cmp(&b.member_id)),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.member_id.cmp(&b.member_id),
    });
    sorted
}

#[cfg(test)]
mod tests;
