//! Reservations: what a member tells of them, and how a leader keeps to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::action::GroupEvent;
use super::super::assign::{AssignMember, Shares, assign_but};
use super::super::config::AssignorKind;
use super::super::note::Note;
use super::super::reserve::{Reservations, give_directly};
use super::{Membership, State};
use crate::error::Error;
use crate::ids::TopicPartition;
use crate::time::Now;

impl Membership {
    /// These go back to the sharing, whoever reserved them. False: none of them was reserved.
    pub fn release_reserved(&mut self, now: Now, partitions: &[TopicPartition]) -> bool {
        let mut any = false;
        for tp in partitions {
            self.cfg.reserve.retain(|own| own != tp);
            any |= self.reservations.release(tp);
        }
        if any && !matches!(self.state, State::Idle) {
            self.rejoin(now, "a reservation was released");
        }
        any
    }

    /// What our join tells beside the subscription.
    pub(super) fn note_of_join(&mut self) -> Note {
        for tp in &self.cfg.reserve {
            self.reservations.reserve(tp, &self.cfg.owner);
        }
        let direct = self.cfg.reserve.iter().filter(|_| self.cfg.direct);
        Note {
            reservations: self.reservations.clone(),
            direct: direct.cloned().collect(),
            ..Note::default()
        }
    }

    /// The leader hears a member.
    pub(super) fn hear(&mut self, member_id: &Arc<str>, note: Note) {
        self.reservations.merge(&note.reservations);
        if !note.direct.is_empty() {
            self.direct.insert(member_id.clone(), note.direct);
        }
    }

    /// Shares out what is not reserved among those that read no reservation, and the rest to those
    /// that do.
    pub(super) fn share_unreserved(&self, kind: AssignorKind, members: &[AssignMember]) -> Shares {
        let held = self.reservations.held();
        let sharing = members
            .iter()
            .filter(|m| !self.direct.contains_key(&m.member_id));
        let sharing: Vec<AssignMember> = sharing.cloned().collect();
        let mut shares = assign_but(kind, &self.counts, &sharing, &held);
        for member in members {
            shares.entry(member.member_id.clone()).or_default();
        }
        give_directly(&mut shares, members, &self.direct, &held, &self.counts);
        shares
    }

    /// Takes what the leader tells of reservations. One of another make tells nothing, and shares
    /// out what is reserved: that is said at each such generation.
    pub(super) fn note_reservations(&mut self, told: &Reservations) {
        if told.0.is_empty() && !self.reservations.held().is_empty() {
            let partitions = self.reservations.held().into_iter().collect();
            self.notice(GroupEvent::ReservationsIgnored { partitions });
        }
        self.reservations.merge(told);
    }

    /// A partition that does not exist cannot be reserved.
    pub(super) fn check_reserved(&self) -> Result<(), Error> {
        for tp in &self.cfg.reserve {
            match self.counts.get(&tp.topic) {
                Some(count) if *count > 0 && tp.partition >= *count => {
                    return Err(Error::misuse(format!(
                        "reserve names {tp}, which does not exist: {} has partitions 0 to {}",
                        tp.topic,
                        count - 1
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a direct reader takes of an assignment: a leader of another make may give it more.
    pub(super) fn is_wanted(&self, tp: &TopicPartition) -> bool {
        !self.cfg.direct || self.cfg.reserve.contains(tp)
    }

    pub(super) fn forget_direct(&mut self) {
        self.direct = BTreeMap::new();
    }
}
