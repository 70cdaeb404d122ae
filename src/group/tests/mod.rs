//! Scenarios of family G: one member, exact answers, virtual time.

mod custom;
mod joining;
mod leading;
mod random;
mod rebalance;
mod session;
mod statics;

#[cfg(fuzzing)]
pub(crate) use random::fuzz;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::ids::{Token, TopicPartition};
use crate::time::Now;
use crate::wire::message::*;
use crate::wire::{Request, Response};

/// A member and everything it has asked for and not got.
struct Desk {
    member: Membership,
    now: Now,
    /// What the member asked to be sent, oldest first.
    sent: Vec<(Token, GroupLink, Request, Now)>,
    /// Everything else, oldest first.
    seen: Vec<GroupAction>,
    /// What the granted, revoked and lost actions add up to.
    held: std::collections::BTreeSet<TopicPartition>,
    draining: std::collections::BTreeSet<TopicPartition>,
    over: bool,
}

impl Desk {
    fn new(cfg: GroupConfig) -> Desk {
        cfg.check().unwrap();
        let now = Now(1_000_000_000_000);
        Desk {
            member: Membership::new(cfg, now),
            now,
            sent: Vec::new(),
            seen: Vec::new(),
            held: Default::default(),
            draining: Default::default(),
            over: false,
        }
    }

    /// Eager, as by default.
    fn eager() -> Desk {
        Desk::new(config())
    }

    fn cooperative() -> Desk {
        let mut cfg = config();
        cfg.assignors = vec![AssignorKind::CooperativeSticky];
        Desk::new(cfg)
    }

    /// A member "me" of generation `generation` of a group that somebody else leads.
    fn member_of(mut self, generation: i32, partitions: &[TopicPartition]) -> Desk {
        self.subscribe(&["t"]);
        self.answer_join(joined(self.assignor(), generation, "me", "boss"));
        self.answer_sync(synced(partitions));
        assert_eq!(self.member.state(), Phase::Stable);
        self.seen.clear();
        self
    }

    fn assignor(&self) -> &'static str {
        match self.sent.last() {
            Some((_, _, Request::JoinGroup(r), _)) => match &*r.protocols[0].0 {
                "range" => "range",
                "roundrobin" => "roundrobin",
                _ => "cooperative-sticky",
            },
            other => panic!("no join is out but {other:?}"),
        }
    }

    fn subscribe(&mut self, topics: &[&str]) {
        let topics = topics.iter().map(|t| Arc::from(*t)).collect();
        self.member.set_subscription(self.now, topics);
        self.pump();
    }

    fn partitions(&mut self, counts: &[(&str, i32)]) {
        let counts = counts.iter().map(|(t, n)| (Arc::from(*t), *n)).collect();
        self.member.set_partitions(self.now, counts);
        self.pump();
    }

    fn released(&mut self, partitions: &[TopicPartition]) {
        for p in partitions {
            assert!(self.draining.remove(p), "{p} does not drain");
            self.held.remove(p);
        }
        self.member.released(self.now, partitions);
        self.pump();
    }

    fn leave(&mut self) {
        self.member.leave(self.now);
        self.pump();
    }

    /// Time goes on; what is due happens when it is due.
    fn after(&mut self, pass: Duration) {
        let end = self.now + pass;
        let mut turns = 0;
        while let Some(at) = self.member.next_deadline().filter(|at| *at <= end) {
            assert!(at >= self.now || turns == 0, "a deadline in the past stays");
            self.now = self.now.max(at);
            self.member.handle_timeout(self.now);
            self.pump();
            turns += 1;
            assert!(turns < 100_000, "spins");
        }
        self.now = end;
    }

    /// Takes all actions, and asserts what must hold in every scenario (I7, I8).
    fn pump(&mut self) {
        while let Some(action) = self.member.poll_action() {
            assert!(!self.over, "{action:?} after the end");
            match &action {
                GroupAction::Granted { partitions } => {
                    for p in partitions {
                        assert!(self.held.insert(p.clone()), "{p} granted twice");
                    }
                }
                GroupAction::Revoke {
                    partitions,
                    deadline,
                } => {
                    // No time is left where the join itself took all that the rebalance has.
                    assert!(*deadline >= self.now);
                    for p in partitions {
                        assert!(self.held.contains(p), "{p} revoked but not held");
                        assert!(self.draining.insert(p.clone()), "{p} revoked twice");
                    }
                }
                GroupAction::Lost { partitions } => {
                    for p in partitions {
                        assert!(self.held.remove(p), "{p} lost but not held");
                        self.draining.remove(p);
                    }
                }
                GroupAction::Fatal(_) | GroupAction::Left => self.over = true,
                _ => {}
            }
            match action {
                GroupAction::Send {
                    token,
                    link,
                    request,
                    timeout,
                } => {
                    let join = matches!(request, Request::JoinGroup(_) | Request::SyncGroup(_));
                    assert_eq!(link == GroupLink::Join, join);
                    self.sent.push((token, link, request, self.now + timeout));
                }
                other => self.seen.push(other),
            }
        }
        let held: Vec<_> = self.held.iter().collect();
        assert_eq!(held, self.member.owned().collect::<Vec<_>>());
        let quiet = matches!(
            self.member.state(),
            Phase::Idle | Phase::Left | Phase::Failed
        );
        let waits = !self.sent.is_empty() || self.member.next_deadline().is_some();
        assert!(
            quiet || waits,
            "{:?} waits for nothing",
            self.member.state()
        );
        for is in [is_join_or_sync, is_heartbeat, is_leave] {
            let live = self.sent.iter().filter(|(_, _, r, _)| is(r)).count();
            assert!(live <= 3, "requests pile up");
        }
    }

    fn take(&mut self, is: fn(&Request) -> bool) -> Option<(Token, Request)> {
        let at = self.sent.iter().rposition(|(_, _, r, _)| is(r))?;
        let (token, _, request, _) = self.sent.remove(at);
        Some((token, request))
    }

    fn answer(&mut self, is: fn(&Request) -> bool, answer: Result<Response, Error>) -> Request {
        let Some((token, request)) = self.take(is) else {
            panic!("no such request is out: {:?}", self.sent);
        };
        self.member.handle_response(self.now, token, answer);
        self.pump();
        request
    }

    fn answer_join(&mut self, answer: JoinGroupResponse) -> JoinGroupRequest {
        match self.answer(is_join, Ok(Response::JoinGroup(answer))) {
            Request::JoinGroup(request) => request,
            _ => unreachable!(),
        }
    }

    fn answer_sync(&mut self, answer: SyncGroupResponse) -> SyncGroupRequest {
        match self.answer(is_sync, Ok(Response::SyncGroup(answer))) {
            Request::SyncGroup(request) => request,
            _ => unreachable!(),
        }
    }

    fn answer_heartbeat(&mut self, code: i16) -> HeartbeatRequest {
        let answer = HeartbeatResponse {
            throttle: Duration::ZERO,
            code: Code(code),
        };
        match self.answer(is_heartbeat, Ok(Response::Heartbeat(answer))) {
            Request::Heartbeat(request) => request,
            _ => unreachable!(),
        }
    }

    /// Lets the next heartbeat come, and answers it.
    fn beat(&mut self, code: i16) -> HeartbeatRequest {
        if !self.out(is_heartbeat) {
            self.after(HEARTBEAT);
        }
        self.answer_heartbeat(code)
    }

    fn out(&self, is: fn(&Request) -> bool) -> bool {
        self.sent.iter().any(|(_, _, r, _)| is(r))
    }

    fn join_out(&self) -> Option<&JoinGroupRequest> {
        self.sent.iter().rev().find_map(|(_, _, r, _)| match r {
            Request::JoinGroup(r) => Some(r),
            _ => None,
        })
    }

    /// The metadata of the join that is out, of its first assignor.
    fn metadata_out(&self) -> Subscription {
        decode_subscription(&self.join_out().unwrap().protocols[0].1).unwrap()
    }

    fn seen(&mut self) -> Vec<GroupAction> {
        std::mem::take(&mut self.seen)
    }

    fn granted(&mut self) -> Vec<TopicPartition> {
        let mut all = Vec::new();
        for action in self.seen() {
            if let GroupAction::Granted { partitions } = action {
                all.extend(partitions);
            }
        }
        all
    }

    fn moved(&self) -> bool {
        self.seen
            .iter()
            .any(|a| matches!(a, GroupAction::CoordinatorMoved))
    }

    fn lost(&self) -> Vec<TopicPartition> {
        let lost = self.seen.iter().filter_map(|a| match a {
            GroupAction::Lost { partitions } => Some(partitions.clone()),
            _ => None,
        });
        lost.flatten().collect()
    }

    fn revoked(&self) -> Vec<TopicPartition> {
        let revoked = self.seen.iter().filter_map(|a| match a {
            GroupAction::Revoke { partitions, .. } => Some(partitions.clone()),
            _ => None,
        });
        revoked.flatten().collect()
    }

    fn noticed(&self, is: fn(&GroupEvent) -> bool) -> bool {
        self.seen
            .iter()
            .any(|a| matches!(a, GroupAction::Notice(e) if is(e)))
    }

    fn fatal(&self) -> Option<&Error> {
        self.seen.iter().find_map(|a| match a {
            GroupAction::Fatal(e) => Some(e),
            _ => None,
        })
    }
}

fn config() -> GroupConfig {
    let mut cfg = GroupConfig::new("g");
    cfg.session_timeout = SESSION;
    cfg.rebalance_timeout = Duration::from_secs(60);
    cfg.drain_timeout = DRAIN;
    cfg.heartbeat_interval = HEARTBEAT;
    cfg
}

fn is_join(r: &Request) -> bool {
    matches!(r, Request::JoinGroup(_))
}

fn is_sync(r: &Request) -> bool {
    matches!(r, Request::SyncGroup(_))
}

fn is_join_or_sync(r: &Request) -> bool {
    is_join(r) || is_sync(r)
}

fn is_heartbeat(r: &Request) -> bool {
    matches!(r, Request::Heartbeat(_))
}

fn is_leave(r: &Request) -> bool {
    matches!(r, Request::LeaveGroup(_))
}

fn tp(p: i32) -> TopicPartition {
    TopicPartition::new("t", p)
}

fn tps<const N: usize>(ps: [i32; N]) -> Vec<TopicPartition> {
    ps.into_iter().map(tp).collect()
}

fn join_error(code: i16) -> JoinGroupResponse {
    JoinGroupResponse {
        throttle: Duration::ZERO,
        code: Code(code),
        generation: -1,
        protocol_type: None,
        protocol_name: None,
        leader: Arc::from(""),
        skip_assignment: false,
        member_id: Arc::from(""),
        members: Vec::new(),
    }
}

fn joined(assignor: &str, generation: i32, me: &str, leader: &str) -> JoinGroupResponse {
    JoinGroupResponse {
        code: Code(0),
        generation,
        protocol_name: Some(Arc::from(assignor)),
        leader: Arc::from(leader),
        member_id: Arc::from(me),
        ..join_error(0)
    }
}

/// A member of the group that we lead.
fn member(id: &str, topics: &[&str], owned: &[TopicPartition], generation: i32) -> JoinGroupMember {
    let topics: Vec<_> = topics.iter().map(|t| Arc::from(*t)).collect();
    JoinGroupMember {
        member_id: Arc::from(id),
        instance_id: None,
        metadata: encode_subscription(&topics, owned, generation, None).unwrap(),
    }
}

fn leads(assignor: &str, generation: i32, members: Vec<JoinGroupMember>) -> JoinGroupResponse {
    let mut answer = joined(assignor, generation, "me", "me");
    answer.members = members;
    answer
}

fn sync_error(code: i16) -> SyncGroupResponse {
    SyncGroupResponse {
        throttle: Duration::ZERO,
        code: Code(code),
        protocol_type: None,
        protocol_name: None,
        assignment: Bytes::new(),
    }
}

fn synced(partitions: &[TopicPartition]) -> SyncGroupResponse {
    SyncGroupResponse {
        assignment: encode_assignment(partitions).unwrap(),
        ..sync_error(0)
    }
}

fn shares(request: &SyncGroupRequest) -> BTreeMap<String, Vec<TopicPartition>> {
    let share = |(id, bytes): &(Arc<str>, Bytes)| {
        (id.to_string(), decode_assignment(bytes).unwrap().partitions)
    };
    request.assignments.iter().map(share).collect()
}

fn cut() -> Error {
    Error::new(ErrorKind::Transport, "the connection was cut").retriable()
}

const HEARTBEAT: Duration = Duration::from_secs(3);
const SESSION: Duration = Duration::from_secs(45);
const DRAIN: Duration = Duration::from_secs(30);
