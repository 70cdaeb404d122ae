//! The leader's part: reads what the members want, and shares out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::action::{GroupAction, GroupEvent, Unreadable};
use super::super::assign::{AssignMember, Shares};
use super::super::note::Note;
use super::super::protocol::{decode_subscription, encode_assignment_with};
use super::{Membership, Round, State, too_large};
use crate::error::Error;
use crate::ids::TopicPartition;
use crate::time::Now;
use crate::wire::message::JoinGroupMember;

impl Membership {
    /// Takes up the lead of a generation.
    pub(super) fn lead(
        &mut self,
        now: Now,
        round: Round,
        members: Vec<JoinGroupMember>,
        skip: bool,
    ) {
        self.watching = true;
        let members = self.read_members(members);
        let topics: BTreeSet<Arc<str>> = members
            .iter()
            .flat_map(|m| m.topics.iter().cloned())
            .collect();
        self.actions.push_back(GroupAction::Watch {
            topics: topics.into_iter().collect(),
        });
        if skip {
            // A static leader came back and the old shares stand (KIP-814): we only watch.
            // From what they were made our own assignment says, if one of our make wrote it. Else
            // nobody can tell, and the first count that we hear is no reason to disturb the group.
            let round = with_view(round, &members, |_| None);
            return self.send_sync(now, round, Vec::new());
        }
        let until = now + METADATA_WAIT.min(self.cfg.session_timeout / 3);
        self.state = State::Assigning {
            round,
            members,
            until,
        };
        self.try_assign(now, false);
    }

    /// Reads what the members want; one that cannot be read wants nothing.
    pub(super) fn read_members(&mut self, members: Vec<JoinGroupMember>) -> Vec<AssignMember> {
        let mut read: Vec<AssignMember> = Vec::with_capacity(members.len());
        self.forget_direct();
        let mut seen = BTreeSet::new();
        for member in members {
            let member_id = member.member_id;
            if !seen.insert(member_id.clone()) {
                self.notice(GroupEvent::MemberTwice { member_id });
                continue;
            }
            let mut found = AssignMember {
                member_id: member_id.clone(),
                instance_id: member.instance_id,
                ..AssignMember::default()
            };
            let why = match decode_subscription(&member.metadata) {
                Ok(subscription) => {
                    found.topics = subscription.topics.into_iter().collect();
                    found.generation = match subscription.generation {
                        // Versions 0 and 1 keep it in the data of the sticky assignors.
                        ..0 => subscription.user_data.as_deref().and_then(generation_in),
                        generation => Some(generation),
                    };
                    found.owned = subscription.owned;
                    let user_data = subscription.user_data.as_deref().unwrap_or_default();
                    self.hear(&member_id, Note::decode(user_data));
                    found.user_data = subscription.user_data;
                    subscription.cut.then_some(Unreadable::Tail)
                }
                Err(_) => Some(Unreadable::All),
            };
            if let Some(why) = why {
                self.notice(GroupEvent::MetadataUnread { member_id, why });
            }
            read.push(found);
        }
        read
    }

    /// Assigns if the partitions of all topics are known, or if that has taken too long.
    pub(super) fn try_assign(&mut self, now: Now, anyway: bool) {
        let State::Assigning { members, .. } = &self.state else {
            return;
        };
        let unknown: BTreeSet<&Arc<str>> = members
            .iter()
            .flat_map(|m| &m.topics)
            .filter(|topic| !self.counts.contains_key(*topic))
            .collect();
        if !unknown.is_empty() {
            if !anyway {
                return;
            }
            let topics = unknown.into_iter().cloned().collect();
            self.notice(GroupEvent::TopicsUnknown { topics });
        }
        let State::Assigning { round, members, .. } =
            std::mem::replace(&mut self.state, State::Stable)
        else {
            return;
        };
        let count = |topic: &Arc<str>| self.counts.get(topic).copied().unwrap_or(0);
        let mut round = with_view(round, &members, |topic| Some(count(topic)));
        let mut shares = Vec::new();
        let mut size = 0;
        let shared = match self.share_out(&round, &members) {
            Ok(shared) => shared,
            Err(e) => return self.fail(e),
        };
        let given: BTreeSet<&TopicPartition> = shared.values().flatten().collect();
        let mut owned = members.iter().flat_map(|member| &member.owned);
        round.hand_over = owned.any(|tp| !given.contains(tp));
        for (member_id, share) in shared {
            let note = Note {
                view: match member_id == self.member_id {
                    true => self.view_for_myself(&round),
                    false => BTreeMap::new(),
                },
                reservations: self.reservations.clone(),
                hand_over: round.hand_over && member_id == self.member_id,
                ..Note::default()
            };
            match encode_assignment_with(&share, note.encode()) {
                Ok(bytes) => {
                    size += bytes.len() + member_id.len();
                    shares.push((member_id, bytes));
                }
                Err(e) => return self.fail(e),
            }
        }
        match size > self.cfg.request_bytes_max {
            true => self.fail(too_large("SyncGroup", size, self.cfg.request_bytes_max)),
            false => self.send_sync(now, round, shares),
        }
    }

    /// What each member gets, by the assignor of this round.
    fn share_out(&mut self, round: &Round, members: &[AssignMember]) -> Result<Shares, Error> {
        if let Some(kind) = round.kind {
            return Ok(self.share_unreserved(kind, members));
        }
        let Some(custom) = &self.cfg.custom else {
            return Err(Error::bug("a round without an assignor"));
        };
        let (shares, nobodys) = custom.assign(&self.counts, members)?;
        if nobodys > 0 {
            self.notice(GroupEvent::LeftOut {
                partitions: nobodys,
            });
        }
        Ok(shares)
    }

    /// Whether we lead and the cluster is no longer as we assigned it.
    pub(super) fn view_is_old(&self) -> bool {
        let view = self.current.as_ref().and_then(|c| c.view.as_ref());
        view.is_some_and(|view| {
            let known = view.iter().filter_map(|(topic, n)| Some((topic, (*n)?)));
            known
                .into_iter()
                .any(|(topic, n)| self.counts.get(topic).is_some_and(|count| *count != n))
        })
    }

    /// For a static leader's next life: what these shares were made from.
    fn view_for_myself(&self, round: &Round) -> BTreeMap<Arc<str>, i32> {
        let view = round.view.iter().flatten();
        let known = view.filter_map(|(topic, n)| Some((topic.clone(), (*n)?)));
        let is_static = self.cfg.instance_id.is_some();
        known.filter(|_| is_static).collect()
    }

    /// Where the leader was told to keep the shares, the first count of a topic is the one that
    /// they were made from.
    pub(super) fn fill_view(&mut self) {
        let view = self.current.as_mut().and_then(|c| c.view.as_mut());
        for (topic, count) in view.into_iter().flatten() {
            *count = count.or_else(|| self.counts.get(topic).copied());
        }
    }
}

/// Notes from which partition counts the leader assigns.
fn with_view(
    mut round: Round,
    members: &[AssignMember],
    count: impl Fn(&Arc<str>) -> Option<i32>,
) -> Round {
    let topics: BTreeSet<&Arc<str>> = members.iter().flat_map(|m| &m.topics).collect();
    round.view = Some(topics.into_iter().map(|t| (t.clone(), count(t))).collect());
    round
}

fn generation_in(user_data: &[u8]) -> Option<i32> {
    let bytes = user_data.first_chunk::<4>()?;
    Some(i32::from_be_bytes(*bytes)).filter(|generation| *generation >= 0)
}

/// What a leader waits for partition counts, at most; then it assigns what it knows.
const METADATA_WAIT: Duration = Duration::from_secs(5);
