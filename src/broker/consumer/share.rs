//! How the coordinator shares partitions out: `uniform`, which is balanced and moves little, and
//! `range`, in blocks topic by topic.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::protocol::StrBytes;

use super::{Part, Parts};

/// A member, as an assignor sees it.
pub(super) struct Taker<'a> {
    pub id: &'a StrBytes,
    pub instance: Option<&'a StrBytes>,
    pub wants: &'a BTreeSet<[u8; 16]>,
    /// What it should have had until now.
    pub had: Option<&'a Parts>,
}

type Shares = BTreeMap<StrBytes, Parts>;

pub(super) fn range(takers: &[Taker<'_>], counts: &BTreeMap<[u8; 16], i32>) -> Shares {
    let mut order: Vec<&Taker<'_>> = takers.iter().collect();
    order.sort_by_key(|t| (t.instance.is_none(), t.instance, t.id));
    let mut shares = empty(takers);
    for (topic, count) in counts {
        let wanting: Vec<_> = order.iter().filter(|t| t.wants.contains(topic)).collect();
        let all = usize::try_from(*count).unwrap_or(0);
        let Some(block) = all.checked_div(wanting.len()) else {
            continue;
        };
        let extra = all % wanting.len();
        let mut partitions = 0..*count;
        for (i, taker) in wanting.iter().enumerate() {
            let size = block + usize::from(i < extra);
            let taken = partitions.by_ref().take(size).map(|p| (*topic, p));
            shares.entry(taker.id.clone()).or_default().extend(taken);
        }
    }
    shares
}

pub(super) fn uniform(takers: &[Taker<'_>], counts: &BTreeMap<[u8; 16], i32>) -> Shares {
    let mut holder: BTreeMap<Part, usize> = BTreeMap::new();
    let mut load = vec![0_usize; takers.len()];
    let all = counts
        .iter()
        .flat_map(|(topic, count)| (0..*count).map(move |p| (*topic, p)));
    let mut free = Vec::new();
    for part in all {
        let had = |t: &Taker<'_>| {
            t.wants.contains(&part.0) && t.had.is_some_and(|had| had.contains(&part))
        };
        match takers.iter().position(had) {
            Some(at) => {
                load[at] += 1;
                holder.insert(part, at);
            }
            None => free.push(part),
        }
    }
    for part in free {
        let wanting = (0..takers.len()).filter(|i| takers[*i].wants.contains(&part.0));
        if let Some(at) = wanting.min_by_key(|i| load[*i]) {
            load[at] += 1;
            holder.insert(part, at);
        }
    }
    // Each move makes two loads more alike, so this ends.
    while let Some((part, to)) = a_move(takers, &holder, &load) {
        if let Some(from) = holder.insert(part, to) {
            load[from] -= 1;
        }
        load[to] += 1;
    }
    let mut shares = empty(takers);
    for (part, at) in holder {
        shares
            .entry(takers[at].id.clone())
            .or_default()
            .insert(part);
    }
    shares
}

fn a_move(
    takers: &[Taker<'_>],
    holder: &BTreeMap<Part, usize>,
    load: &[usize],
) -> Option<(Part, usize)> {
    let mut parts: Vec<(&Part, &usize)> = holder.iter().collect();
    parts.sort_by_key(|(_, from)| std::cmp::Reverse(load[**from]));
    parts.into_iter().find_map(|(part, from)| {
        let better = |i: &usize| takers[*i].wants.contains(&part.0) && load[*i] + 1 < load[*from];
        let to = (0..takers.len()).filter(better).min_by_key(|i| load[*i])?;
        Some((*part, to))
    })
}

fn empty(takers: &[Taker<'_>]) -> Shares {
    let each = takers.iter().map(|t| (t.id.clone(), Parts::new()));
    each.collect()
}
