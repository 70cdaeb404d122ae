//! Partitions that are kept out of the sharing, for a direct reader.
//!
//! Who reserves tells the leader with its join; the leader puts all that it has heard into every
//! member's assignment, and members say it again when they join next. So a reservation outlives
//! whoever made it and whoever led then, until it is released or the whole group has stopped.
//!
//! Each reservation has an epoch, and of two words on one partition the later one counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::assign::{AssignMember, Shares};
use crate::ids::TopicPartition;

/// One word on one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    /// Who reserved it, for people to read.
    pub owner: Arc<str>,
    /// Raised by each new word.
    pub epoch: u32,
    /// Free again.
    pub released: bool,
}

/// All that is known of reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reservations(pub BTreeMap<TopicPartition, Reservation>);

impl Reservations {
    /// Takes what `other` knows better. True: there was such.
    pub fn merge(&mut self, other: &Reservations) -> bool {
        let mut news = false;
        for (tp, theirs) in &other.0 {
            // Of equal epochs a release counts, and then the greater name: all agree.
            let rank = |r: &Reservation| (r.epoch, r.released, r.owner.clone());
            let known = self.0.get(tp);
            if known.is_none_or(|ours| rank(ours) < rank(theirs)) && self.has_room(tp) {
                self.0.insert(tp.clone(), theirs.clone());
                news = true;
            }
        }
        news
    }

    /// Reserves `tp` unless it is.
    pub fn reserve(&mut self, tp: &TopicPartition, owner: &Arc<str>) -> bool {
        let known = self.0.get(tp);
        if known.is_some_and(|r| !r.released) || !self.has_room(tp) {
            return false;
        }
        let epoch = known.map_or(0, |r| r.epoch).saturating_add(1);
        let word = Reservation {
            owner: owner.clone(),
            epoch,
            released: false,
        };
        self.0.insert(tp.clone(), word);
        true
    }

    /// Gives `tp` back to the sharing.
    pub fn release(&mut self, tp: &TopicPartition) -> bool {
        match self.0.get_mut(tp) {
            Some(word) if !word.released => {
                word.released = true;
                word.epoch = word.epoch.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// What goes to nobody but its direct reader.
    pub fn held(&self) -> BTreeSet<TopicPartition> {
        let held = self.0.iter().filter(|(_, r)| !r.released);
        held.map(|(tp, _)| tp.clone()).collect()
    }

    /// Words come from anyone in the group: there is an end to how many are kept.
    fn has_room(&self, tp: &TopicPartition) -> bool {
        self.0.contains_key(tp) || self.0.len() < RESERVATIONS_MAX
    }
}

/// Gives direct readers what they reserved, as far as nobody else still has it.
pub(super) fn give_directly(
    shares: &mut Shares,
    members: &[AssignMember],
    direct: &BTreeMap<Arc<str>, BTreeSet<TopicPartition>>,
    held: &BTreeSet<TopicPartition>,
    counts: &BTreeMap<Arc<str>, i32>,
) {
    let mut given = BTreeSet::new();
    for (member_id, wants) in direct {
        let others = || members.iter().filter(|m| m.member_id != *member_id);
        for tp in wants.intersection(held) {
            let exists = (0..counts.get(&tp.topic).copied().unwrap_or(0)).contains(&tp.partition);
            let had = others().any(|m| m.owned.contains(tp));
            if exists && !had && given.insert(tp.clone()) {
                shares
                    .entry(member_id.clone())
                    .or_default()
                    .push(tp.clone());
            }
        }
    }
}

/// Words on reservations that a member keeps.
const RESERVATIONS_MAX: usize = 1000;
