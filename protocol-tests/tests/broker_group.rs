//! The embedded broker's group coordinator, driven by raw requests.

mod broker_kit;

use std::time::Duration;

use broker_kit::{Kit, text};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DescribeGroupsRequest, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use laneway::broker::{ClusterConfig, ConnId, Fault, GroupState, Rule};

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(60);

/// One member with the two connections that a client has: one for joins, one for the rest.
struct Member {
    join: ConnId,
    other: ConnId,
    id: StrBytes,
    generation: i32,
    leads: bool,
    members: Vec<StrBytes>,
}

fn group() -> GroupId {
    GroupId(text("g"))
}

fn join_request(id: &StrBytes, protocols: &[&str]) -> JoinGroupRequest {
    let each = protocols.iter().map(|name| {
        JoinGroupRequestProtocol::default()
            .with_name(text(name))
            .with_metadata(Bytes::from_static(b"meta"))
    });
    JoinGroupRequest::default()
        .with_group_id(group())
        .with_session_timeout_ms(SESSION.as_millis() as i32)
        .with_rebalance_timeout_ms(REBALANCE.as_millis() as i32)
        .with_member_id(id.clone())
        .with_protocol_type(text("consumer"))
        .with_protocols(each.collect())
}

impl Member {
    /// Gets an id, as members from version 4 must.
    fn new(kit: &mut Kit) -> Member {
        let (join, other) = (kit.connect(1), kit.connect(1));
        let answer = kit.call(join, 9, &join_request(&StrBytes::new(), &["range"]));
        assert_eq!(answer.error_code, 79);
        assert!(answer.member_id.starts_with("kit-"));
        Member {
            join,
            other,
            id: answer.member_id,
            generation: -1,
            leads: false,
            members: Vec::new(),
        }
    }

    fn join(&self, kit: &mut Kit) {
        kit.send(self.join, 9, &join_request(&self.id, &["range"]));
    }

    fn joined(&mut self, kit: &mut Kit) -> JoinGroupResponse {
        let answer = kit.take::<JoinGroupRequest>(self.join, 9).expect("joined");
        assert_eq!(answer.error_code, 0);
        self.generation = answer.generation_id;
        self.leads = answer.leader == self.id;
        self.members = answer.members.iter().map(|m| m.member_id.clone()).collect();
        answer
    }

    fn sync(&self, kit: &mut Kit) {
        let each = self.members.iter().map(|id| {
            SyncGroupRequestAssignment::default()
                .with_member_id(id.clone())
                .with_assignment(id.clone().into_bytes())
        });
        let req = SyncGroupRequest::default()
            .with_group_id(group())
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone())
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")))
            .with_assignments(each.collect());
        kit.send(self.join, 5, &req);
    }

    fn synced(&self, kit: &mut Kit) -> (i16, Bytes) {
        let answer = kit.take::<SyncGroupRequest>(self.join, 5).expect("synced");
        (answer.error_code, answer.assignment)
    }

    fn heartbeat(&self, kit: &mut Kit) -> i16 {
        let req = HeartbeatRequest::default()
            .with_group_id(group())
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone());
        kit.call(self.other, 4, &req).error_code
    }

    fn commit(&self, kit: &mut Kit, offset: i64, metadata: &str) -> i16 {
        commit(
            kit,
            self.other,
            (&self.id, self.generation),
            offset,
            metadata,
        )
    }

    fn leave(&self, kit: &mut Kit) -> i16 {
        let member = MemberIdentity::default().with_member_id(self.id.clone());
        let req = LeaveGroupRequest::default()
            .with_group_id(group())
            .with_members(vec![member]);
        let answer = kit.call(self.other, 5, &req);
        assert_eq!(
            answer.error_code, 0,
            "the outer code says nothing of a member"
        );
        answer.members[0].error_code
    }
}

fn commit(kit: &mut Kit, conn: ConnId, who: (&StrBytes, i32), offset: i64, metadata: &str) -> i16 {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text(metadata)));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text("t")))
        .with_partitions(vec![partition]);
    let req = OffsetCommitRequest::default()
        .with_group_id(group())
        .with_member_id(who.0.clone())
        .with_generation_id_or_member_epoch(who.1)
        .with_topics(vec![topic]);
    kit.call(conn, 8, &req).topics[0].partitions[0].error_code
}

/// A stable group of `n`.
fn stable(kit: &mut Kit, n: usize) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..n {
        members.push(Member::new(kit));
        for m in &members {
            m.join(kit);
        }
        for m in &mut members {
            m.joined(kit);
        }
        for m in &members {
            m.sync(kit);
        }
        for m in &members {
            assert_eq!(m.synced(kit), (0, m.id.clone().into_bytes()));
        }
    }
    assert_eq!(
        kit.cluster.group_view("g").unwrap().state,
        GroupState::Stable
    );
    members
}

#[test]
fn three_members_come_and_go() {
    let mut kit = Kit::with_topic("t", 3);
    let mut members = stable(&mut kit, 2);
    assert_eq!(members[0].generation, 2);
    assert_eq!(members.iter().filter(|m| m.leads).count(), 1);

    // A third asks: the two are told by their heartbeats, and nobody gets an answer before all
    // have joined.
    let third = Member::new(&mut kit);
    assert_eq!(
        members[0].heartbeat(&mut kit),
        0,
        "an id given out changes nothing yet"
    );
    third.join(&mut kit);
    assert_eq!(members[0].heartbeat(&mut kit), 27);
    assert_eq!(members[1].heartbeat(&mut kit), 27);
    members[0].join(&mut kit);
    assert!(kit.frame(members[0].join).is_none());
    assert_eq!(
        members[1].commit(&mut kit, 5, ""),
        0,
        "commits go on while others join"
    );
    members[1].join(&mut kit);
    members.push(third);
    for m in &mut members {
        let answer = m.joined(&mut kit);
        assert_eq!(answer.generation_id, 3);
        assert_eq!(answer.members.len(), if m.leads { 3 } else { 0 });
        assert_eq!(answer.protocol_name.as_deref(), Some("range"));
    }

    // Between join and sync: heartbeats are well, commits are not.
    assert_eq!(members[0].heartbeat(&mut kit), 0);
    assert_eq!(members[0].commit(&mut kit, 6, ""), 27);
    for m in members.iter().filter(|m| !m.leads) {
        m.sync(&mut kit);
        assert!(kit.frame(m.join).is_none(), "followers wait for the leader");
    }
    members.iter().find(|m| m.leads).unwrap().sync(&mut kit);
    for m in &members {
        assert_eq!(m.synced(&mut kit), (0, m.id.clone().into_bytes()));
    }

    // One leaves: the others join again, into a new generation.
    let gone = members.pop().unwrap();
    assert_eq!(gone.leave(&mut kit), 0);
    assert_eq!(gone.leave(&mut kit), 25);
    assert_eq!(gone.heartbeat(&mut kit), 25);
    for m in &mut members {
        assert_eq!(m.heartbeat(&mut kit), 27);
        m.join(&mut kit);
    }
    for m in &mut members {
        assert_eq!(m.joined(&mut kit).generation_id, 4);
    }

    // All leave: the group is empty, its offsets stay.
    for m in &members {
        assert_eq!(m.leave(&mut kit), 0);
    }
    let view = kit.cluster.group_view("g").unwrap();
    assert_eq!((view.state, view.generation), (GroupState::Empty, 5));
    assert_eq!(kit.cluster.committed("g", "t", 0).unwrap().offset, 5);
}

#[test]
fn a_silent_member_is_out_when_its_session_is_over() {
    let mut kit = Kit::with_topic("t", 1);
    let members = stable(&mut kit, 2);
    kit.advance(SESSION / 2);
    assert_eq!(members[0].heartbeat(&mut kit), 0);
    kit.advance(SESSION / 2);
    // The second has said nothing for a whole session.
    assert_eq!(members[1].heartbeat(&mut kit), 25);
    assert_eq!(members[0].heartbeat(&mut kit), 27);
    assert_eq!(members[0].commit(&mut kit, 1, ""), 0);
    assert_eq!(members[1].commit(&mut kit, 1, ""), 25);
}

#[test]
fn who_does_not_join_in_time_is_left_behind() {
    let mut kit = Kit::with_topic("t", 1);
    let mut members = stable(&mut kit, 2);
    members[0].leads = true;
    let mut third = Member::new(&mut kit);
    third.join(&mut kit);
    members[0].join(&mut kit);
    // The second keeps its session alive and yet never joins.
    for _ in 0..13 {
        kit.advance(Duration::from_secs(5));
        let answer = members[1].heartbeat(&mut kit);
        assert!(answer == 27 || answer == 25, "{answer}");
    }
    assert_eq!(third.joined(&mut kit).generation_id, 3);
    assert_eq!(members[1].heartbeat(&mut kit), 25);
}

#[test]
fn who_does_not_sync_in_time_is_left_behind() {
    let mut kit = Kit::with_topic("t", 1);
    let mut member = Member::new(&mut kit);
    member.join(&mut kit);
    member.joined(&mut kit);
    for _ in 0..13 {
        kit.advance(Duration::from_secs(5));
        member.heartbeat(&mut kit);
    }
    assert_eq!(member.heartbeat(&mut kit), 25);
    assert_eq!(
        kit.cluster.group_view("g").unwrap().state,
        GroupState::Empty
    );
}

#[test]
fn a_rejoin_counts_only_where_it_changes_something() {
    let mut kit = Kit::with_topic("t", 1);
    let members = stable(&mut kit, 2);
    let (leader, follower) = match members[0].leads {
        true => (&members[0], &members[1]),
        false => (&members[1], &members[0]),
    };
    // A follower with the same metadata: it lost the answer, and gets it once more.
    follower.join(&mut kit);
    let answer = kit.take::<JoinGroupRequest>(follower.join, 9).unwrap();
    assert_eq!((answer.error_code, answer.generation_id), (0, 2));
    assert_eq!(leader.heartbeat(&mut kit), 0);
    // The leader: it wants to assign anew.
    leader.join(&mut kit);
    assert!(kit.frame(leader.join).is_none());
    assert_eq!(follower.heartbeat(&mut kit), 27);
    // While all join again, a sync is told to join.
    follower.sync(&mut kit);
    assert_eq!(follower.synced(&mut kit).0, 27);
}

#[test]
fn joins_are_refused_as_kafka_does() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let nobody = StrBytes::new();
    let mut short = join_request(&nobody, &["range"]);
    short.session_timeout_ms = 1;
    assert_eq!(kit.call(conn, 9, &short).error_code, 26);
    let mut unnamed = join_request(&nobody, &["range"]);
    unnamed.group_id = GroupId(StrBytes::new());
    assert_eq!(kit.call(conn, 9, &unnamed).error_code, 24);
    let stranger = join_request(&text("who-is-this"), &["range"]);
    let answer = kit.call(conn, 9, &stranger);
    assert_eq!((answer.error_code, answer.generation_id), (25, -1));
    assert_eq!(answer.protocol_name, None);
    let answer = kit.call(conn, 6, &stranger);
    assert_eq!(
        answer.protocol_name.as_deref(),
        Some(""),
        "up to version 6 it is not null"
    );
    assert_eq!(
        kit.call(conn, 9, &join_request(&nobody, &[])).error_code,
        23
    );
    stable(&mut kit, 1);
    assert_eq!(
        kit.call(conn, 9, &join_request(&nobody, &["other"]))
            .error_code,
        23
    );
}

#[test]
fn offsets_are_kept_from_whom_they_must_be() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let nobody = StrBytes::new();
    // A group of its own making: a simple consumer commits while there are no members.
    assert_eq!(commit(&mut kit, conn, (&nobody, -1), 7, "m"), 0);
    assert_eq!(
        commit(&mut kit, conn, (&nobody, -1), 7, &"x".repeat(4096)),
        0
    );
    assert_eq!(
        commit(&mut kit, conn, (&nobody, -1), 8, &"x".repeat(4097)),
        12
    );
    assert_eq!(commit(&mut kit, conn, (&text("who"), 3), 8, ""), 25);
    let members = stable(&mut kit, 1);
    assert_eq!(commit(&mut kit, conn, (&nobody, -1), 9, ""), 25);
    let wrong = (&members[0].id, members[0].generation + 1);
    assert_eq!(commit(&mut kit, conn, wrong, 9, ""), 22);
    assert_eq!(members[0].commit(&mut kit, 9, "map"), 0);
    let got = kit.cluster.committed("g", "t", 0).unwrap();
    assert_eq!((got.offset, got.metadata.as_str()), (9, "map"));
    let history: Vec<i64> = kit.cluster.commits().map(|c| c.committed.offset).collect();
    assert_eq!(history, [7, 7, 9]);

    // What was never committed is -1 with error 0; all topics lists what there is.
    let req = OffsetFetchRequest::default()
        .with_group_id(group())
        .with_topics(None);
    let answer = kit.call(conn, 7, &req);
    assert_eq!(answer.topics.len(), 1);
    assert_eq!(answer.topics[0].partitions[0].committed_offset, 9);
    let mut other = req.clone();
    other.group_id = GroupId(text("never-seen"));
    assert!(kit.call(conn, 7, &other).topics.is_empty());
}

#[test]
fn a_static_member_comes_back_without_a_rebalance() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let mut req = join_request(&StrBytes::new(), &["range"]);
    req.group_instance_id = Some(text("one"));
    let first = kit.call(conn, 9, &req);
    assert_eq!(
        (first.error_code, first.generation_id),
        (0, 1),
        "no id is asked of it first"
    );
    assert!(first.member_id.starts_with("one-"));
    let sync = SyncGroupRequest::default()
        .with_group_id(group())
        .with_generation_id(1)
        .with_member_id(first.member_id.clone())
        .with_group_instance_id(Some(text("one")))
        .with_assignments(vec![
            SyncGroupRequestAssignment::default()
                .with_member_id(first.member_id.clone())
                .with_assignment(Bytes::from_static(b"mine")),
        ]);
    assert_eq!(kit.call(conn, 5, &sync).assignment, "mine");

    let second = kit.call(conn, 9, &req);
    assert_eq!((second.error_code, second.generation_id), (0, 1));
    assert!(second.skip_assignment, "the assignment stands");
    assert_ne!(second.member_id, first.member_id);
    // The old life is fenced.
    let beat = HeartbeatRequest::default()
        .with_group_id(group())
        .with_generation_id(1)
        .with_member_id(first.member_id)
        .with_group_instance_id(Some(text("one")));
    assert_eq!(kit.call(conn, 4, &beat).error_code, 82);
    let mut again = sync;
    again.member_id = second.member_id;
    again.assignments.clear();
    assert_eq!(kit.call(conn, 5, &again).assignment, "mine");
}

#[test]
fn a_moved_coordinator_goes_on_from_what_was_written() {
    let mut kit = Kit::new(ClusterConfig {
        nodes: 2,
        ..ClusterConfig::default()
    });
    kit.cluster.create_topic("t", 1).unwrap();
    kit.cluster.move_coordinator(kit.now, "g", 1);
    let members = stable(&mut kit, 2);
    members[0].join(&mut kit); // The leader, or a follower: either way it may wait or not.
    kit.cluster.move_coordinator(kit.now, "g", 2);
    kit.drain();
    assert_eq!(members[1].heartbeat(&mut kit), 16);
    assert_eq!(members[1].commit(&mut kit, 3, ""), 16);
    if members[0].leads {
        let answer = kit.take::<JoinGroupRequest>(members[0].join, 9).unwrap();
        assert_eq!(answer.error_code, 16, "it waited at the old coordinator");
    }
    let there = kit.connect(2);
    let beat = HeartbeatRequest::default()
        .with_group_id(group())
        .with_generation_id(members[1].generation)
        .with_member_id(members[1].id.clone());
    assert_eq!(kit.call(there, 4, &beat).error_code, 0);
}

#[test]
fn an_initial_delay_gathers_members() {
    let mut kit = Kit::new(ClusterConfig {
        group_initial_rebalance_delay: Duration::from_secs(3),
        ..ClusterConfig::default()
    });
    let mut members: Vec<Member> = (0..3).map(|_| Member::new(&mut kit)).collect();
    members[0].join(&mut kit);
    kit.advance(Duration::from_secs(2));
    members[1].join(&mut kit);
    kit.advance(Duration::from_secs(2));
    assert!(
        kit.frame(members[0].join).is_none(),
        "a newcomer prolongs the wait"
    );
    members[2].join(&mut kit);
    kit.advance(Duration::from_secs(6));
    for m in &mut members {
        assert_eq!(m.joined(&mut kit).generation_id, 1);
    }
}

#[test]
fn a_group_is_described_by_its_state() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let req = DescribeGroupsRequest::default().with_groups(vec![group()]);
    let answer = kit.call(conn, 5, &req);
    assert_eq!(
        (answer.groups[0].error_code, &*answer.groups[0].group_state),
        (0, "Dead")
    );
    assert_eq!(kit.call(conn, 6, &req).groups[0].error_code, 69);
    let members = stable(&mut kit, 1);
    let answer = kit.call(conn, 6, &req);
    let described = &answer.groups[0];
    assert_eq!(&*described.group_state, "Stable");
    assert_eq!(&*described.protocol_data, "range");
    assert_eq!(
        described.members[0].member_assignment,
        members[0].id.clone().into_bytes()
    );
}

#[test]
fn a_script_speaks_for_one_group() {
    let mut kit = Kit::with_topic("t", 1);
    let members = stable(&mut kit, 1);
    let script = kit.cluster.script();
    script.add(Rule::new(Fault::Error(16)).api(12).group("other"));
    script.add(
        Rule::new(Fault::Error(27))
            .api(12)
            .group("g")
            .skip(1)
            .times(1),
    );
    assert_eq!(members[0].heartbeat(&mut kit), 0);
    assert_eq!(members[0].heartbeat(&mut kit), 27);
    assert_eq!(members[0].heartbeat(&mut kit), 0);
    // Done, and yet the answer says that it was not.
    let topic_rule = Rule::new(Fault::LateError(7))
        .api(8)
        .topic("t", Some(0))
        .times(1);
    kit.cluster.script().add(topic_rule);
    assert_eq!(members[0].commit(&mut kit, 4, ""), 7);
    assert_eq!(kit.cluster.committed("g", "t", 0).unwrap().offset, 4);
}

#[test]
fn a_full_group_takes_nobody_in() {
    let mut kit = Kit::new(ClusterConfig {
        group_size_max: 2,
        ..ClusterConfig::default()
    });
    kit.cluster.create_topic("t", 1).unwrap();
    let members = stable(&mut kit, 2);
    let conn = kit.connect(1);
    let answer = kit.call(conn, 9, &join_request(&StrBytes::new(), &["range"]));
    assert_eq!((answer.error_code, &*answer.member_id), (81, ""));
    assert_eq!(
        members[0].heartbeat(&mut kit),
        0,
        "the others notice nothing"
    );
}

#[test]
fn an_id_given_out_and_not_used_holds_a_rebalance_up_for_a_session_only() {
    let mut kit = Kit::with_topic("t", 1);
    let mut members = stable(&mut kit, 1);
    let other = Member::new(&mut kit);
    other.join(&mut kit);
    let _never_comes_back = Member::new(&mut kit);
    members[0].join(&mut kit);
    assert!(kit.frame(members[0].join).is_none());
    kit.advance(SESSION);
    assert_eq!(members[0].joined(&mut kit).generation_id, 2);
}
