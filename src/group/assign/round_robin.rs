//! `roundrobin`: all partitions of all topics in turn; a member that does not want the topic is
//! passed over.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AssignMember, Shares, empty_shares, in_order};
use crate::ids::TopicPartition;

pub(super) fn assign(counts: &BTreeMap<Arc<str>, i32>, members: &[&AssignMember]) -> Shares {
    let mut shares = empty_shares(members);
    let members = in_order(members);
    let mut turn = 0;
    for (topic, count) in counts {
        if !members.iter().any(|m| m.topics.contains(topic)) {
            continue;
        }
        for partition in 0..*count {
            // Ends: somebody wants the topic, as was just seen.
            while !members[turn].topics.contains(topic) {
                turn = (turn + 1) % members.len();
            }
            if let Some(share) = shares.get_mut(&members[turn].member_id) {
                share.push(TopicPartition::new(topic.clone(), partition));
            }
            turn = (turn + 1) % members.len();
        }
    }
    shares
}
