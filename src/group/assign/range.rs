//! `range`: each topic on its own, cut into one block for each member that wants it.

use super::{AssignMember, Shares, Topics, empty_shares, in_order};

pub(super) fn assign(topics: Topics, members: &[&AssignMember]) -> Shares {
    let mut shares = empty_shares(members);
    let members = in_order(members);
    for (topic, partitions) in topics {
        let takers: Vec<_> = members
            .iter()
            .filter(|m| m.topics.contains(&topic))
            .collect();
        let all = partitions.len();
        let (block, extra) = match takers.len() {
            0 => continue,
            n => (all / n, all % n),
        };
        let mut partitions = partitions.into_iter();
        for (i, member) in takers.iter().enumerate() {
            let size = block + usize::from(i < extra);
            if let Some(share) = shares.get_mut(&member.member_id) {
                share.extend(partitions.by_ref().take(size));
            }
        }
    }
    shares
}
