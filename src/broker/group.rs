//! One classic consumer group, as Kafka's coordinator runs it.
//!
//! ```text
//!            join                 all joined, or time is up
//!  Empty ----------> Preparing ------------------------------> Completing
//!    ^                ^  |  ^                                    |    |
//!    |   nobody left  |  |  | join, leave, expiry                |    | the leader's sync
//!    +----------------|--+  +------------------------------------+    v
//!                     +------------------------------------------- Stable
//!                              join, leave, expiry
//! ```
//!
//! The group knows no wire format: a request that must wait leaves its connection's number, and
//! the answer comes out later through `out`.

mod rebalance;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::codes;
use super::core::ConnId;
use crate::time::{Now, earliest};

/// Where a group is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// No members.
    Empty,
    /// Waiting for members to join again.
    PreparingRebalance,
    /// Joined; waiting for the leader's assignment.
    CompletingRebalance,
    /// Assigned.
    Stable,
}

impl GroupState {
    /// Kafka's name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Stable => "Stable",
        }
    }
}

/// An answer that a group gives, at once or later.
#[derive(Debug)]
pub(crate) enum Reply {
    Join(ConnId, JoinReply),
    Sync(ConnId, SyncReply),
}

#[derive(Debug, Default)]
pub(crate) struct JoinReply {
    pub error: i16,
    pub generation: i32,
    pub protocol_type: Option<StrBytes>,
    pub protocol: Option<StrBytes>,
    pub leader: StrBytes,
    pub member_id: StrBytes,
    pub members: Vec<(StrBytes, Option<StrBytes>, Bytes)>,
    pub skip_assignment: bool,
}

impl JoinReply {
    pub fn error(error: i16, member_id: StrBytes) -> Self {
        JoinReply {
            error,
            generation: -1,
            member_id,
            ..JoinReply::default()
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SyncReply {
    pub error: i16,
    pub protocol_type: Option<StrBytes>,
    pub protocol: Option<StrBytes>,
    pub assignment: Bytes,
}

pub(crate) struct Join {
    pub conn: ConnId,
    pub member_id: StrBytes,
    /// The id to give where the member brought none.
    pub fresh_id: StrBytes,
    pub instance: Option<StrBytes>,
    pub client_id: StrBytes,
    pub session: Duration,
    pub rebalance: Duration,
    pub protocol_type: StrBytes,
    pub protocols: Vec<(StrBytes, Bytes)>,
    /// From version 4 a new dynamic member must come again with the id it was given.
    pub id_required: bool,
    /// From version 9 a static leader that comes back may be told to skip its assignment.
    pub can_skip: bool,
}

pub(crate) struct Sync {
    pub conn: ConnId,
    pub member_id: StrBytes,
    pub instance: Option<StrBytes>,
    pub generation: i32,
    pub protocol_type: Option<StrBytes>,
    pub protocol: Option<StrBytes>,
    pub assignments: Vec<(StrBytes, Bytes)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub instance: Option<StrBytes>,
    pub client_id: StrBytes,
    pub session: Duration,
    pub rebalance: Duration,
    pub protocols: Vec<(StrBytes, Bytes)>,
    pub assignment: Bytes,
    /// Set where its JoinGroup waits for the others.
    join: Option<ConnId>,
    /// Set where its SyncGroup waits for the leader's.
    sync: Option<ConnId>,
    is_new: bool,
    deadline: Now,
}

/// What the group looked like when it was last written down: what another coordinator would load.
#[derive(Clone, Debug)]
struct Written {
    generation: i32,
    protocol_type: Option<StrBytes>,
    protocol: Option<StrBytes>,
    leader: Option<StrBytes>,
    members: BTreeMap<StrBytes, Member>,
}

#[derive(Clone, Copy, Debug)]
enum JoinTimer {
    /// The first rebalance of an empty group waits a little for more members (KIP-134).
    Initial {
        at: Now,
        remaining: Duration,
        delay: Duration,
    },
    Rebalance {
        at: Now,
    },
}

#[derive(Debug)]
pub(crate) struct Group {
    pub state: GroupState,
    pub generation: i32,
    pub protocol_type: Option<StrBytes>,
    pub protocol: Option<StrBytes>,
    pub leader: Option<StrBytes>,
    pub members: BTreeMap<StrBytes, Member>,
    was_empty: bool,
    new_member: bool,
    /// Ids given out whose owners have not come back yet, each with its end.
    pending: BTreeMap<StrBytes, Now>,
    instances: BTreeMap<StrBytes, StrBytes>,
    /// Members of this generation that have not synced yet.
    unsynced: BTreeSet<StrBytes>,
    join_timer: Option<JoinTimer>,
    sync_deadline: Option<Now>,
    initial_delay: Duration,
    written: Option<Written>,
}

impl Group {
    pub fn new(initial_delay: Duration) -> Self {
        Group {
            state: GroupState::Empty,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            was_empty: true,
            new_member: false,
            pending: BTreeMap::new(),
            instances: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            join_timer: None,
            sync_deadline: None,
            initial_delay,
            written: None,
        }
    }

    pub fn join(&mut self, now: Now, req: Join, size_max: usize, out: &mut Vec<Reply>) {
        if !self.has_room(&req.member_id, size_max) {
            self.pending.remove(&req.member_id);
            let reply = JoinReply::error(codes::GROUP_MAX_SIZE_REACHED, StrBytes::new());
            return out.push(Reply::Join(req.conn, reply));
        }
        if !self.supports(&req) {
            let reply = JoinReply::error(codes::INCONSISTENT_GROUP_PROTOCOL, req.member_id);
            return out.push(Reply::Join(req.conn, reply));
        }
        if req.member_id.is_empty() {
            self.join_new(now, req, out);
        } else {
            self.join_known(now, req, out);
        }
    }

    pub fn sync(&mut self, now: Now, req: Sync, out: &mut Vec<Reply>) {
        let Sync {
            conn,
            member_id,
            assignments,
            ..
        } = req;
        let (generation, instance) = (req.generation, req.instance.as_ref());
        let differs = |asked: Option<&StrBytes>, ours: &Option<StrBytes>| {
            asked.is_some_and(|a| Some(a) != ours.as_ref())
        };
        let error = match self.check_member(&member_id, instance) {
            codes::NONE if generation != self.generation => codes::ILLEGAL_GENERATION,
            codes::NONE
                if differs(req.protocol_type.as_ref(), &self.protocol_type)
                    || differs(req.protocol.as_ref(), &self.protocol) =>
            {
                codes::INCONSISTENT_GROUP_PROTOCOL
            }
            codes::NONE => match self.state {
                GroupState::Empty => codes::UNKNOWN_MEMBER_ID,
                GroupState::PreparingRebalance => codes::REBALANCE_IN_PROGRESS,
                GroupState::CompletingRebalance | GroupState::Stable => codes::NONE,
            },
            error => error,
        };
        if error != codes::NONE {
            let reply = SyncReply {
                error,
                ..SyncReply::default()
            };
            return out.push(Reply::Sync(conn, reply));
        }
        self.unsynced.remove(&member_id);
        if self.unsynced.is_empty() {
            self.sync_deadline = None;
        }
        if let Some(member) = self.members.get_mut(&member_id) {
            member.sync = Some(conn);
        }
        if self.state == GroupState::CompletingRebalance {
            if self.leader.as_ref() != Some(&member_id) {
                return;
            }
            let mut given: BTreeMap<StrBytes, Bytes> = assignments.into_iter().collect();
            for (id, member) in &mut self.members {
                member.assignment = given.remove(id).unwrap_or_default();
            }
            self.state = GroupState::Stable;
            self.write_down();
        }
        self.answer_syncs(now, codes::NONE, out);
    }

    pub fn heartbeat(
        &mut self,
        now: Now,
        member_id: &StrBytes,
        instance: Option<&StrBytes>,
        generation: i32,
    ) -> i16 {
        let error = self.check_member(member_id, instance);
        if error != codes::NONE {
            return error;
        }
        if generation != self.generation {
            return codes::ILLEGAL_GENERATION;
        }
        self.touch(now, member_id);
        match self.state {
            GroupState::Empty => codes::UNKNOWN_MEMBER_ID,
            GroupState::PreparingRebalance => codes::REBALANCE_IN_PROGRESS,
            GroupState::CompletingRebalance | GroupState::Stable => codes::NONE,
        }
    }

    pub fn leave(
        &mut self,
        now: Now,
        member_id: &StrBytes,
        instance: Option<&StrBytes>,
        out: &mut Vec<Reply>,
    ) -> i16 {
        let id = match instance {
            Some(instance) if member_id.is_empty() => match self.instances.get(instance) {
                Some(id) => id.clone(),
                None => return codes::UNKNOWN_MEMBER_ID,
            },
            Some(_) => {
                let error = self.check_member(member_id, instance);
                if error != codes::NONE {
                    return error;
                }
                member_id.clone()
            }
            None => member_id.clone(),
        };
        if self.pending.remove(&id).is_some() {
            self.complete_if_all_joined(now, out);
            return codes::NONE;
        }
        if !self.members.contains_key(&id) {
            return codes::UNKNOWN_MEMBER_ID;
        }
        self.remove_and_rebalance(now, &id, out);
        codes::NONE
    }

    /// Whether an OffsetCommit under these credentials may be stored.
    pub fn check_commit(
        &mut self,
        now: Now,
        member_id: &StrBytes,
        instance: Option<&StrBytes>,
        generation: i32,
    ) -> i16 {
        if generation < 0 && self.state == GroupState::Empty {
            return codes::NONE;
        }
        if generation < 0 && member_id.is_empty() && instance.is_none() {
            // Someone outside the group, while it has members.
            return codes::UNKNOWN_MEMBER_ID;
        }
        let error = self.check_member(member_id, instance);
        if error != codes::NONE {
            return error;
        }
        if generation != self.generation {
            return codes::ILLEGAL_GENERATION;
        }
        if self.state == GroupState::CompletingRebalance {
            return codes::REBALANCE_IN_PROGRESS;
        }
        self.touch(now, member_id);
        codes::NONE
    }

    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Reply>) {
        match self.join_timer {
            Some(JoinTimer::Initial {
                at,
                remaining,
                delay,
            }) if at <= now => {
                if self.new_member && !remaining.is_zero() {
                    self.new_member = false;
                    let next = self.initial_delay.min(remaining);
                    self.join_timer = Some(JoinTimer::Initial {
                        at: at + next,
                        remaining: remaining.saturating_sub(delay),
                        delay: next,
                    });
                } else {
                    self.complete_join(now, out);
                }
            }
            Some(JoinTimer::Rebalance { at }) if at <= now => self.complete_join(now, out),
            _ => {}
        }
        if self.sync_deadline.is_some_and(|at| at <= now) {
            self.expire_unsynced(now, out);
        }
        let pending_before = self.pending.len();
        self.pending.retain(|_, at| *at > now);
        if self.pending.len() != pending_before {
            self.complete_if_all_joined(now, out);
        }
        let late: Vec<StrBytes> = self
            .members
            .iter()
            .filter(|(_, m)| m.expires() && m.deadline <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            self.remove_and_rebalance(now, &id, out);
        }
    }

    pub fn next_deadline(&self) -> Option<Now> {
        let join = self.join_timer.map(|t| match t {
            JoinTimer::Initial { at, .. } | JoinTimer::Rebalance { at } => at,
        });
        let pending = self.pending.values().copied().min();
        let members = self.members.values().filter(|m| m.expires());
        let member = members.map(|m| m.deadline).min();
        earliest(
            earliest(join, self.sync_deadline),
            earliest(pending, member),
        )
    }

    /// Another node becomes the coordinator: who waits is told, and the group is as last written.
    pub fn reload(&mut self, now: Now, out: &mut Vec<Reply>) {
        for (id, member) in &mut self.members {
            if let Some(conn) = member.join.take() {
                let reply = JoinReply::error(codes::NOT_COORDINATOR, id.clone());
                out.push(Reply::Join(conn, reply));
            }
        }
        self.answer_syncs(now, codes::NOT_COORDINATOR, out);
        let written = self.written.clone();
        *self = Group::new(self.initial_delay);
        self.written.clone_from(&written);
        let Some(written) = written else { return };
        self.generation = written.generation;
        self.protocol_type = written.protocol_type;
        self.protocol = written.protocol;
        self.leader = written.leader;
        self.members = written.members;
        for (id, member) in &mut self.members {
            member.deadline = now + member.session;
            if let Some(instance) = &member.instance {
                self.instances.insert(instance.clone(), id.clone());
            }
        }
        if !self.members.is_empty() {
            self.state = GroupState::Stable;
            self.was_empty = false;
        }
    }

    /// The member's metadata for the chosen protocol.
    pub fn metadata_of(&self, member: &Member) -> Bytes {
        let chosen = self.protocol.as_ref();
        let found = member
            .protocols
            .iter()
            .find(|(name, _)| Some(name) == chosen);
        found.map(|(_, m)| m.clone()).unwrap_or_default()
    }

    fn join_new(&mut self, now: Now, mut req: Join, out: &mut Vec<Reply>) {
        req.member_id = req.fresh_id.clone();
        if let Some(instance) = &req.instance {
            if let Some(old) = self.instances.get(instance).cloned() {
                return self.replace_static(now, &old, req, out);
            }
        } else if req.id_required {
            self.pending
                .insert(req.member_id.clone(), now + req.session);
            let reply = JoinReply::error(codes::MEMBER_ID_REQUIRED, req.member_id);
            return out.push(Reply::Join(req.conn, reply));
        }
        self.add_member(now, req, out);
    }

    fn join_known(&mut self, now: Now, req: Join, out: &mut Vec<Reply>) {
        if self.pending.remove(&req.member_id).is_some() {
            return self.add_member(now, req, out);
        }
        let error = self.check_member(&req.member_id, req.instance.as_ref());
        if error != codes::NONE {
            return out.push(Reply::Join(
                req.conn,
                JoinReply::error(error, req.member_id),
            ));
        }
        let is_leader = self.leader.as_ref() == Some(&req.member_id);
        let same = self
            .members
            .get(&req.member_id)
            .is_some_and(|m| m.protocols == req.protocols);
        let answer_now = match self.state {
            GroupState::PreparingRebalance => false,
            GroupState::CompletingRebalance => same,
            GroupState::Stable => same && !is_leader,
            GroupState::Empty => {
                let reply = JoinReply::error(codes::UNKNOWN_MEMBER_ID, req.member_id);
                return out.push(Reply::Join(req.conn, reply));
            }
        };
        if answer_now {
            // It did not get our answer to its JoinGroup: the same once more.
            let reply = self.join_reply(&req.member_id);
            return out.push(Reply::Join(req.conn, reply));
        }
        self.update_member(&req);
        self.rebalance_or_complete(now, out);
    }

    fn update_member(&mut self, req: &Join) {
        if let Some(member) = self.members.get_mut(&req.member_id) {
            member.protocols.clone_from(&req.protocols);
            member.session = req.session;
            member.rebalance = req.rebalance;
            member.join = Some(req.conn);
        }
    }

    fn add_member(&mut self, now: Now, req: Join, out: &mut Vec<Reply>) {
        if self.state == GroupState::PreparingRebalance && self.was_empty {
            self.new_member = true;
        }
        if self.members.is_empty() {
            self.protocol_type = Some(req.protocol_type);
        }
        let id = req.member_id;
        if self.leader.is_none() {
            self.leader = Some(id.clone());
        }
        if let Some(instance) = &req.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        let member = Member {
            instance: req.instance,
            client_id: req.client_id,
            session: req.session,
            rebalance: req.rebalance,
            protocols: req.protocols,
            assignment: Bytes::new(),
            join: Some(req.conn),
            sync: None,
            is_new: true,
            deadline: now + NEW_MEMBER_JOIN_TIMEOUT,
        };
        self.members.insert(id, member);
        self.rebalance_or_complete(now, out);
    }

    /// A static member came back under its instance id, with a new member id.
    fn replace_static(&mut self, now: Now, old: &StrBytes, req: Join, out: &mut Vec<Reply>) {
        let Some(mut member) = self.members.remove(old) else {
            return self.add_member(now, req, out);
        };
        if let Some(conn) = member.join.take() {
            let reply = JoinReply::error(codes::FENCED_INSTANCE_ID, old.clone());
            out.push(Reply::Join(conn, reply));
        }
        if let Some(conn) = member.sync.take() {
            let reply = SyncReply {
                error: codes::FENCED_INSTANCE_ID,
                ..SyncReply::default()
            };
            out.push(Reply::Sync(conn, reply));
        }
        let id = req.member_id.clone();
        if let Some(instance) = &req.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        let was_leader = self.leader.as_ref() == Some(old);
        if was_leader {
            self.leader = Some(id.clone());
        }
        if self.unsynced.remove(old) {
            self.unsynced.insert(id.clone());
        }
        member.protocols.clone_from(&req.protocols);
        member.session = req.session;
        member.rebalance = req.rebalance;
        member.client_id = req.client_id.clone();
        member.deadline = now + req.session;
        self.members.insert(id.clone(), member);
        // Its subscription may have changed: what counts is which protocol would be chosen.
        let stays = self.state == GroupState::Stable && self.vote() == self.protocol;
        if let (false, Some(member)) = (stays, self.members.get_mut(&id)) {
            member.join = Some(req.conn);
        }
        if !stays {
            return self.rebalance_or_complete(now, out);
        }
        self.write_down();
        let mut reply = self.join_reply(&id);
        if was_leader {
            if req.can_skip {
                reply.skip_assignment = true;
            } else {
                // An old client would assign again as the leader: it is told the old id.
                reply.leader = old.clone();
                reply.members.clear();
            }
        }
        out.push(Reply::Join(req.conn, reply));
    }

    /// While members join again it counts who waits, so that the last to come are left out.
    fn has_room(&self, id: &StrBytes, size_max: usize) -> bool {
        let known = self.members.get(id);
        match self.state {
            GroupState::Empty => true,
            GroupState::PreparingRebalance => {
                known.is_some_and(|m| m.join.is_some())
                    || self.members.values().filter(|m| m.join.is_some()).count() < size_max
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                known.is_some() || self.members.len() < size_max
            }
        }
    }

    fn supports(&self, req: &Join) -> bool {
        if req.protocol_type.is_empty() || req.protocols.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        let everywhere = |name: &StrBytes| {
            self.members
                .values()
                .all(|m| m.protocols.iter().any(|(n, _)| n == name))
        };
        self.protocol_type.as_ref() == Some(&req.protocol_type)
            && req.protocols.iter().any(|(name, _)| everywhere(name))
    }

    fn check_member(&self, member_id: &StrBytes, instance: Option<&StrBytes>) -> i16 {
        if let Some(instance) = instance {
            return match self.instances.get(instance) {
                None => codes::UNKNOWN_MEMBER_ID,
                Some(id) if id != member_id => codes::FENCED_INSTANCE_ID,
                Some(_) => codes::NONE,
            };
        }
        if self.members.contains_key(member_id) {
            codes::NONE
        } else {
            codes::UNKNOWN_MEMBER_ID
        }
    }

    fn join_reply(&self, id: &StrBytes) -> JoinReply {
        let leader = self.leader.clone().unwrap_or_default();
        let members = if leader == *id {
            let each = self.members.iter();
            each.map(|(id, m)| (id.clone(), m.instance.clone(), self.metadata_of(m)))
                .collect()
        } else {
            Vec::new()
        };
        JoinReply {
            error: codes::NONE,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader,
            member_id: id.clone(),
            members,
            skip_assignment: false,
        }
    }

    fn answer_syncs(&mut self, now: Now, error: i16, out: &mut Vec<Reply>) {
        for member in self.members.values_mut() {
            if let Some(conn) = member.sync.take() {
                member.deadline = now + member.session;
                let mut reply = SyncReply {
                    error,
                    ..SyncReply::default()
                };
                if error == codes::NONE {
                    reply.protocol_type.clone_from(&self.protocol_type);
                    reply.protocol.clone_from(&self.protocol);
                    reply.assignment = member.assignment.clone();
                }
                out.push(Reply::Sync(conn, reply));
            }
        }
    }

    fn touch(&mut self, now: Now, id: &StrBytes) {
        if let Some(member) = self.members.get_mut(id) {
            member.deadline = now + member.session;
        }
    }

    fn rebalance_timeout(&self) -> Duration {
        let each = self.members.values().map(|m| m.rebalance);
        each.max().unwrap_or_default()
    }

    fn write_down(&mut self) {
        let mut members = self.members.clone();
        for member in members.values_mut() {
            member.join = None;
            member.sync = None;
        }
        self.written = Some(Written {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            members,
        });
    }
}

impl Member {
    /// One whose JoinGroup or SyncGroup we hold is alive by that, but for a new member: a client
    /// that gave up before its first answer would never be missed.
    fn expires(&self) -> bool {
        self.is_new || (self.join.is_none() && self.sync.is_none())
    }
}

/// How long a new member may wait for its first JoinGroup answer.
const NEW_MEMBER_JOIN_TIMEOUT: Duration = Duration::from_secs(300);
