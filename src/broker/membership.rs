//! The group calls on the wire: JoinGroup to LeaveGroup, DescribeGroups, ListGroups, DeleteGroups.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::codes;
use super::core::{Call, Cluster, Outcome};
use super::group::{Group, GroupState, Join, JoinReply, Reply, Sync, SyncReply};
use crate::time::Now;

/// What there is of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its state.
    pub state: GroupState,
    /// Its generation.
    pub generation: i32,
    /// The protocol chosen.
    pub protocol: Option<String>,
    /// The leader's member id.
    pub leader: Option<String>,
    /// Member ids, each with the assignment it was given.
    pub members: Vec<(String, Bytes)>,
}

impl Cluster {
    /// What there is of a group.
    #[must_use]
    pub fn group_view(&self, group: &str) -> Option<GroupView> {
        let g = self.groups.get(group.as_bytes())?;
        let text = |s: &Option<StrBytes>| s.as_ref().map(|s| s.to_string());
        let members = g.members.iter();
        Some(GroupView {
            state: g.state,
            generation: g.generation,
            protocol: text(&g.protocol),
            leader: text(&g.leader),
            members: members
                .map(|(id, m)| (id.to_string(), m.assignment.clone()))
                .collect(),
        })
    }

    /// The node that coordinates a group.
    #[must_use]
    pub fn coordinator(&self, group: &str) -> Option<i32> {
        self.coordinator_of(&StrBytes::from_string(group.to_owned()))
    }

    /// Another node becomes a group's coordinator. It loads the group as it was last written;
    /// whoever waits at the old one is told NOT_COORDINATOR.
    pub fn move_coordinator(&mut self, now: Now, group: &str, node: i32) {
        let group = StrBytes::from_string(group.to_owned());
        self.coordinators.insert(group.clone(), node);
        self.reload_group(now, &group);
        self.pump(now);
    }

    pub(crate) fn reload_group(&mut self, now: Now, group: &StrBytes) {
        let mut out = Vec::new();
        if let Some(g) = self.groups.get_mut(group) {
            g.reload(now, &mut out);
        }
        self.reload_consumers(now, group);
        self.answer_group(now, out);
    }

    pub(crate) fn join_group(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = JoinGroupRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let session = millis(req.session_timeout_ms);
        let group = req.group_id.0.clone();
        let allowed = self.cfg.session_timeout_min..=self.cfg.session_timeout_max;
        let error = match call.faults.error {
            Some(code) => code,
            None if group.is_empty() => codes::INVALID_GROUP_ID,
            None if self.coordinator_of(&group) != Some(call.node) => codes::NOT_COORDINATOR,
            None if self.is_taken_by_consumers(&group) => codes::INCONSISTENT_GROUP_PROTOCOL,
            None if !allowed.contains(&session) => codes::INVALID_SESSION_TIMEOUT,
            None if !req.member_id.is_empty() && !self.groups.contains_key(&group) => {
                codes::UNKNOWN_MEMBER_ID
            }
            None => codes::NONE,
        };
        if error != codes::NONE {
            let id = if error == codes::NOT_COORDINATOR {
                StrBytes::new()
            } else {
                req.member_id
            };
            return call.answer(&join_answer(call, JoinReply::error(error, id)));
        }
        let uuid = hyphenated(self.uuid());
        let stem = req.group_instance_id.as_ref().unwrap_or(&call.client_id);
        let fresh_id = StrBytes::from_string(format!("{stem}-{uuid}"));
        // Version 0 has no rebalance time-out: the session's stands for it.
        let rebalance = match call.version {
            0 => session,
            _ => millis(req.rebalance_timeout_ms),
        };
        let join = Join {
            conn: call.conn,
            member_id: req.member_id,
            fresh_id,
            instance: req.group_instance_id,
            client_id: call.client_id.clone(),
            session,
            rebalance,
            protocol_type: req.protocol_type,
            protocols: req
                .protocols
                .into_iter()
                .map(|p| (p.name, p.metadata))
                .collect(),
            id_required: call.version >= 4,
            can_skip: call.version >= 9,
        };
        let delay = self.cfg.group_initial_rebalance_delay;
        let size_max = self.cfg.group_size_max;
        let g = self
            .groups
            .entry(group)
            .or_insert_with(|| Group::new(delay));
        let mut out = Vec::new();
        g.join(now, join, size_max, &mut out);
        self.answer_group(now, out);
        Outcome::Parked
    }

    pub(crate) fn sync_group(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = SyncGroupRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let group = &req.group_id.0;
        let error = self.check_group(call, group);
        if error != codes::NONE {
            let reply = SyncReply {
                error,
                ..SyncReply::default()
            };
            return call.answer(&sync_answer(call, reply));
        }
        let assignments = req.assignments.into_iter();
        let sync = Sync {
            conn: call.conn,
            member_id: req.member_id,
            instance: req.group_instance_id,
            generation: req.generation_id,
            protocol_type: req.protocol_type,
            protocol: req.protocol_name,
            assignments: assignments.map(|a| (a.member_id, a.assignment)).collect(),
        };
        let mut out = Vec::new();
        if let Some(g) = self.groups.get_mut(group) {
            g.sync(now, sync, &mut out);
        }
        self.answer_group(now, out);
        Outcome::Parked
    }

    pub(crate) fn heartbeat(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = HeartbeatRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut error = self.check_group(call, &req.group_id.0);
        if let (codes::NONE, Some(g)) = (error, self.groups.get_mut(&req.group_id.0)) {
            let instance = req.group_instance_id.as_ref();
            error = g.heartbeat(now, &req.member_id, instance, req.generation_id);
        }
        let mut resp =
            HeartbeatResponse::default().with_error_code(call.faults.late.unwrap_or(error));
        if call.version >= 1 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        call.answer(&resp)
    }

    pub(crate) fn leave_group(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = LeaveGroupRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut resp = LeaveGroupResponse::default();
        if call.version >= 1 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        let group = &req.group_id.0;
        let error = self.check_group(call, group);
        // An unknown group is an unknown member, of which the outer code says nothing from 3 on.
        if error != codes::NONE && (call.version < 3 || error != codes::UNKNOWN_MEMBER_ID) {
            resp.error_code = error;
            return call.answer(&resp);
        }
        let mut out = Vec::new();
        let mut leave = |id: &StrBytes, instance: Option<&StrBytes>| {
            let found = self.groups.get_mut(group);
            found.map_or(codes::UNKNOWN_MEMBER_ID, |g| {
                g.leave(now, id, instance, &mut out)
            })
        };
        if call.version >= 3 {
            for member in &req.members {
                let instance = member.group_instance_id.as_ref();
                let error = leave(&member.member_id, instance);
                let one = MemberResponse::default()
                    .with_member_id(member.member_id.clone())
                    .with_group_instance_id(member.group_instance_id.clone())
                    .with_error_code(error);
                resp.members.push(one);
            }
        } else {
            resp.error_code = leave(&req.member_id, None);
        }
        if let Some(code) = call.faults.late {
            resp.error_code = code;
        }
        self.answer_group(now, out);
        call.answer(&resp)
    }

    pub(crate) fn describe_groups(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = DescribeGroupsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let v = call.version;
        let each = req.groups.iter().map(|id| {
            let one = DescribedGroup::default().with_group_id(id.clone());
            if let Some(code) = call.faults.error {
                return one.with_error_code(code);
            }
            if self.coordinator_of(&id.0) != Some(call.node) {
                return one.with_error_code(codes::NOT_COORDINATOR);
            }
            let Some(g) = self.groups.get(&id.0) else {
                let one = one.with_group_state(StrBytes::from_static_str("Dead"));
                return match v {
                    0..6 => one,
                    _ => one
                        .with_error_code(codes::GROUP_ID_NOT_FOUND)
                        .with_error_message(Some(StrBytes::from_string(format!(
                            "Group {} not found.",
                            id.0
                        )))),
                };
            };
            describe(v, one, g)
        });
        let mut resp = DescribeGroupsResponse::default().with_groups(each.collect());
        if v >= 1 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        call.answer(&resp)
    }

    pub(crate) fn list_groups(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = ListGroupsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let v = call.version;
        let fits = |filter: &[StrBytes], name: &str| {
            filter.is_empty() || filter.iter().any(|f| f.eq_ignore_ascii_case(name))
        };
        let here = self.groups.iter().filter(|(id, g)| {
            self.coordinator_of(id) == Some(call.node)
                && fits(&req.states_filter, g.state.name())
                && fits(&req.types_filter, "classic")
        });
        let each = here.map(|(id, g)| {
            let mut one = ListedGroup::default()
                .with_group_id(GroupId(id.clone()))
                .with_protocol_type(g.protocol_type.clone().unwrap_or_default());
            if v >= 4 {
                one.group_state = StrBytes::from_static_str(g.state.name());
            }
            if v >= 5 {
                one.group_type = StrBytes::from_static_str("classic");
            }
            one
        });
        let mut resp = ListGroupsResponse::default()
            .with_error_code(call.faults.error.unwrap_or(codes::NONE))
            .with_groups(each.collect());
        if v >= 1 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        call.answer(&resp)
    }

    pub(crate) fn delete_groups(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = DeleteGroupsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut results = Vec::with_capacity(req.groups_names.len());
        for id in req.groups_names {
            let error = match (call.faults.error, self.groups.get(&id.0)) {
                (Some(code), _) => code,
                _ if self.coordinator_of(&id.0) != Some(call.node) => codes::NOT_COORDINATOR,
                (None, None) => self.delete_consumer_group(&id.0),
                (None, Some(g)) if g.state != GroupState::Empty => codes::NON_EMPTY_GROUP,
                _ => {
                    self.groups.remove(&id.0);
                    self.committed.remove(&id.0);
                    codes::NONE
                }
            };
            results.push(
                DeletableGroupResult::default()
                    .with_group_id(id)
                    .with_error_code(error),
            );
        }
        let resp = DeleteGroupsResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_results(results);
        call.answer(&resp)
    }

    pub(crate) fn expire_groups(&mut self, now: Now) {
        let mut out = Vec::new();
        for group in self.groups.values_mut() {
            if group.next_deadline().is_some_and(|at| at <= now) {
                group.handle_timeout(now, &mut out);
            }
        }
        self.answer_group(now, out);
    }

    /// What Sync, Heartbeat and Leave ask first.
    fn check_group(&self, call: &Call, group: &StrBytes) -> i16 {
        match call.faults.error {
            Some(code) => code,
            None if group.is_empty() => codes::INVALID_GROUP_ID,
            None if self.coordinator_of(group) != Some(call.node) => codes::NOT_COORDINATOR,
            None if !self.groups.contains_key(group) => codes::UNKNOWN_MEMBER_ID,
            None => codes::NONE,
        }
    }

    fn answer_group(&mut self, now: Now, replies: Vec<Reply>) {
        for reply in replies {
            let conn = match &reply {
                Reply::Join(conn, _) | Reply::Sync(conn, _) => *conn,
            };
            // A client that has gone away misses its answer, as it would with Kafka.
            let Some(call) = self.waiting(conn) else {
                continue;
            };
            let frame = match reply {
                Reply::Join(_, mut join) => {
                    join.error = call.faults.late.unwrap_or(join.error);
                    call.frame(&join_answer(&call, join))
                }
                Reply::Sync(_, mut sync) => {
                    sync.error = call.faults.late.unwrap_or(sync.error);
                    call.frame(&sync_answer(&call, sync))
                }
            };
            self.complete(now, &call, frame);
        }
    }
}

fn join_answer(call: &Call, reply: JoinReply) -> JoinGroupResponse {
    let v = call.version;
    let members = reply.members.into_iter().map(|(id, instance, metadata)| {
        let one = JoinGroupResponseMember::default()
            .with_member_id(id)
            .with_metadata(metadata);
        if v >= 5 {
            one.with_group_instance_id(instance)
        } else {
            one
        }
    });
    let mut resp = JoinGroupResponse::default()
        .with_error_code(reply.error)
        .with_generation_id(reply.generation)
        .with_leader(reply.leader)
        .with_member_id(reply.member_id)
        .with_members(members.collect());
    // An error's protocol is "" up to version 6 and null from 7.
    resp.protocol_name = match reply.protocol {
        None if v < 7 => Some(StrBytes::new()),
        protocol => protocol,
    };
    if v >= 2 {
        resp.throttle_time_ms = call.faults.throttle_ms;
    }
    if v >= 7 {
        resp.protocol_type = reply.protocol_type;
    }
    if v >= 9 {
        resp.skip_assignment = reply.skip_assignment;
    }
    resp
}

fn sync_answer(call: &Call, reply: SyncReply) -> SyncGroupResponse {
    let mut resp = SyncGroupResponse::default()
        .with_error_code(reply.error)
        .with_assignment(reply.assignment);
    if call.version >= 1 {
        resp.throttle_time_ms = call.faults.throttle_ms;
    }
    if call.version >= 5 {
        resp.protocol_type = reply.protocol_type;
        resp.protocol_name = reply.protocol;
    }
    resp
}

/// Metadata, assignment and protocol are told of a stable group only.
fn describe(v: i16, one: DescribedGroup, g: &Group) -> DescribedGroup {
    let is_stable = g.state == GroupState::Stable;
    let members = g.members.iter().map(|(id, m)| {
        let mut member = DescribedGroupMember::default()
            .with_member_id(id.clone())
            .with_client_id(m.client_id.clone())
            .with_client_host(StrBytes::from_static_str("/127.0.0.1"));
        if v >= 4 {
            member.group_instance_id = m.instance.clone();
        }
        if is_stable {
            member.member_metadata = g.metadata_of(m);
            member.member_assignment = m.assignment.clone();
        }
        member
    });
    let protocol = g.protocol.clone().filter(|_| is_stable);
    one.with_group_state(StrBytes::from_static_str(g.state.name()))
        .with_protocol_type(g.protocol_type.clone().unwrap_or_default())
        .with_protocol_data(protocol.unwrap_or_default())
        .with_members(members.collect())
}

fn millis(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A UUID in its usual writing.
fn hyphenated(id: [u8; 16]) -> String {
    let n = u128::from_be_bytes(id);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        n >> 96,
        n >> 80 & 0xffff,
        n >> 64 & 0xffff,
        n >> 48 & 0xffff,
        n & 0xffff_ffff_ffff
    )
}
