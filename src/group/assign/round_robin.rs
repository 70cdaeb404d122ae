//! `roundrobin`: all partitions of all topics in turn; a member that does not want the topic is
//! passed over.

use super::{AssignMember, Shares, Topics, empty_shares, in_order};

pub(super) fn assign(topics: Topics, members: &[&AssignMember]) -> Shares {
    let mut shares = empty_shares(members);
    let members = in_order(members);
    let mut turn = 0;
    for (topic, partitions) in topics {
        if !members.iter().any(|m| m.topics.contains(&topic)) {
            continue;
        }
        for partition in partitions {
            // Ends: somebody wants the topic, as was just seen.
            while !members[turn].topics.contains(&topic) {
                turn = (turn + 1) % members.len();
            }
            if let Some(share) = shares.get_mut(&members[turn].member_id) {
                share.push(partition);
            }
            turn = (turn + 1) % members.len();
        }
    }
    shares
}
