//! `range`: each topic on its own, cut into one block for each member that wants it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AssignMember, Shares, empty_shares, in_order};
use crate::ids::TopicPartition;

pub(super) fn assign(counts: &BTreeMap<Arc<str>, i32>, members: &[&AssignMember]) -> Shares {
    let mut shares = empty_shares(members);
    let members = in_order(members);
    for (topic, count) in counts {
        let takers: Vec<_> = members
            .iter()
            .filter(|m| m.topics.contains(topic))
            .collect();
        let all = usize::try_from(*count).unwrap_or(0);
        let (block, extra) = match takers.len() {
            0 => continue,
            n => (all / n, all % n),
        };
        let mut partitions = (0..*count).map(|p| TopicPartition::new(topic.clone(), p));
        for (i, member) in takers.iter().enumerate() {
            let size = block + usize::from(i < extra);
            if let Some(share) = shares.get_mut(&member.member_id) {
                share.extend(partitions.by_ref().take(size));
            }
        }
    }
    shares
}
