//! How a group rebalances: who is waited for, who is left behind, who leads, what is chosen.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::{Group, GroupState, JoinReply, JoinTimer, Reply, SyncReply};
use crate::broker::codes;
use crate::time::Now;

impl Group {
    pub(super) fn rebalance_or_complete(&mut self, now: Now, out: &mut Vec<Reply>) {
        if self.state == GroupState::PreparingRebalance {
            self.try_complete_join(now, out);
        } else {
            self.prepare_rebalance(now, out);
        }
    }

    fn prepare_rebalance(&mut self, now: Now, out: &mut Vec<Reply>) {
        if self.state == GroupState::CompletingRebalance {
            for member in self.members.values_mut() {
                member.assignment = Bytes::new();
            }
            self.answer_syncs(now, codes::REBALANCE_IN_PROGRESS, out);
        }
        self.unsynced.clear();
        self.sync_deadline = None;
        let timeout = self.rebalance_timeout();
        self.was_empty = self.state == GroupState::Empty;
        self.state = GroupState::PreparingRebalance;
        if self.was_empty {
            self.new_member = false;
            self.join_timer = Some(JoinTimer::Initial {
                at: now + self.initial_delay,
                remaining: timeout.saturating_sub(self.initial_delay),
                delay: self.initial_delay,
            });
            if self.initial_delay.is_zero() {
                self.complete_join(now, out);
            }
        } else {
            self.join_timer = Some(JoinTimer::Rebalance { at: now + timeout });
            self.try_complete_join(now, out);
        }
    }

    /// A group's first rebalance waits for its delay, though all that are known have joined.
    pub(super) fn try_complete_join(&mut self, now: Now, out: &mut Vec<Reply>) {
        if !self.was_empty {
            self.complete_if_all_joined(now, out);
        }
    }

    /// But somebody who goes ends that wait, as in Kafka.
    pub(super) fn complete_if_all_joined(&mut self, now: Now, out: &mut Vec<Reply>) {
        let all = self.pending.is_empty() && self.members.values().all(|m| m.join.is_some());
        if self.state == GroupState::PreparingRebalance && all {
            self.complete_join(now, out);
        }
    }

    pub(super) fn complete_join(&mut self, now: Now, out: &mut Vec<Reply>) {
        self.join_timer = None;
        let gone: Vec<StrBytes> = self
            .members
            .iter()
            .filter(|(_, m)| m.join.is_none() && m.instance.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.remove_member(&id, out);
        }
        if !self.members.is_empty() && !self.elect_joined_leader() {
            // Only static members that have not come back: wait for them once more.
            let at = now + self.rebalance_timeout();
            self.join_timer = Some(JoinTimer::Rebalance { at });
            return;
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        if self.members.is_empty() {
            self.state = GroupState::Empty;
            self.protocol = None;
            self.was_empty = true;
            return self.write_down();
        }
        self.protocol = self.vote();
        self.state = GroupState::CompletingRebalance;
        self.was_empty = false;
        self.unsynced = self.members.keys().cloned().collect();
        self.sync_deadline = Some(now + self.rebalance_timeout());
        let ids: Vec<StrBytes> = self.members.keys().cloned().collect();
        for id in ids {
            let reply = self.join_reply(&id);
            if let Some(member) = self.members.get_mut(&id) {
                member.is_new = false;
                member.deadline = now + member.session;
                if let Some(conn) = member.join.take() {
                    out.push(Reply::Join(conn, reply));
                }
            }
        }
    }

    pub(super) fn expire_unsynced(&mut self, now: Now, out: &mut Vec<Reply>) {
        self.sync_deadline = None;
        let late = std::mem::take(&mut self.unsynced);
        for id in &late {
            self.remove_member(id, out);
        }
        if !late.is_empty() && self.state != GroupState::PreparingRebalance {
            self.prepare_rebalance(now, out);
        }
    }

    pub(super) fn remove_and_rebalance(&mut self, now: Now, id: &StrBytes, out: &mut Vec<Reply>) {
        self.remove_member(id, out);
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance => {
                self.prepare_rebalance(now, out);
            }
            GroupState::PreparingRebalance => self.complete_if_all_joined(now, out),
            GroupState::Empty => {}
        }
    }

    fn remove_member(&mut self, id: &StrBytes, out: &mut Vec<Reply>) {
        let Some(member) = self.members.remove(id) else {
            return;
        };
        if let Some(conn) = member.join {
            let reply = JoinReply::error(codes::UNKNOWN_MEMBER_ID, StrBytes::new());
            out.push(Reply::Join(conn, reply));
        }
        if let Some(conn) = member.sync {
            let reply = SyncReply {
                error: codes::UNKNOWN_MEMBER_ID,
                ..SyncReply::default()
            };
            out.push(Reply::Sync(conn, reply));
        }
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        self.unsynced.remove(id);
        if self.leader.as_ref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    /// Sees to it that the leader is among those that joined.
    fn elect_joined_leader(&mut self) -> bool {
        let joined = |id: &StrBytes| self.members.get(id).is_some_and(|m| m.join.is_some());
        if self.leader.as_ref().is_some_and(joined) {
            return true;
        }
        let next = self.members.iter().find(|(_, m)| m.join.is_some());
        let Some(id) = next.map(|(id, _)| id.clone()) else {
            return false;
        };
        self.leader = Some(id);
        true
    }

    /// The protocol that most members like best among those all of them support.
    pub(super) fn vote(&self) -> Option<StrBytes> {
        let everywhere = |name: &StrBytes| {
            self.members
                .values()
                .all(|m| m.protocols.iter().any(|(n, _)| n == name))
        };
        let mut votes: BTreeMap<&StrBytes, usize> = BTreeMap::new();
        for member in self.members.values() {
            let first = member.protocols.iter().find(|(n, _)| everywhere(n));
            if let Some((name, _)) = first {
                *votes.entry(name).or_default() += 1;
            }
        }
        let best = votes.into_iter().max_by_key(|&(_, n)| n);
        best.map(|(name, _)| name.clone())
    }
}
