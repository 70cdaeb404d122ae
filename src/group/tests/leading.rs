//! The leader's part.

use super::*;

/// A leader gives everyone their share, and takes its own from the answer.
#[test]
fn leads_a_group() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 5)]);
    d.subscribe(&["t"]);
    let members = vec![member("me", &["t"], &[], -1), member("b", &["t"], &[], -1)];
    d.answer_join(leads("range", 1, members));
    let sync = d.answer_sync(synced(&tps([3, 4])));
    assert_eq!(sync.generation, 1);
    assert_eq!(&*sync.protocol_name, "range");
    let shares = shares(&sync);
    assert_eq!(shares["b"], tps([0, 1, 2]));
    assert_eq!(shares["me"], tps([3, 4]));
    let leader = d
        .seen
        .iter()
        .any(|a| matches!(a, GroupAction::Joined { leader: true, .. }));
    assert!(leader);
}

/// G27: a member with random bytes gets nothing, one with a version of the future is read by the
/// fields known; both are named, and the group goes on.
#[test]
fn g27_malformed_metadata() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 4)]);
    d.subscribe(&["t"]);
    let mut noise = member("noise", &[], &[], -1);
    noise.metadata = Bytes::from_static(&[7, 7, 7]);
    let mut future = member("future", &["t"], &tps([3]), 5);
    let mut bytes = future.metadata.to_vec();
    bytes[..2].copy_from_slice(&i16::MAX.to_be_bytes());
    bytes.extend_from_slice(b"what comes then");
    future.metadata = bytes.into();
    let mut old = member("old", &["t"], &[], -1);
    let mut bytes = old.metadata.to_vec();
    bytes[..2].copy_from_slice(&1i16.to_be_bytes());
    bytes.truncate(2 + 4 + 2 + 1 + 4); // version 1 that ends after its user data (librdkafka 1.9)
    old.metadata = bytes.into();
    let members = vec![member("me", &["t"], &[], -1), noise, future, old];
    d.answer_join(leads("range", 1, members));
    for (who, how) in [("noise", Unreadable::All), ("old", Unreadable::Tail)] {
        let seen = d.seen.iter().any(|a| {
            matches!(a, GroupAction::Notice(GroupEvent::MetadataUnread { member_id, why })
                if &**member_id == who && *why == how)
        });
        assert!(seen, "{who}");
    }
    let sync = d.answer_sync(synced(&[]));
    let shares = shares(&sync);
    assert_eq!(shares["noise"], []);
    assert_eq!(shares["future"], tps([0, 1]));
    assert_eq!(shares["me"], tps([2]));
    assert_eq!(shares["old"], tps([3]));
}

/// G28: a member listed twice counts once.
#[test]
fn g28_duplicate_member_ids() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let twice = member("b", &["t"], &[], -1);
    let members = vec![member("me", &["t"], &[], -1), twice.clone(), twice];
    d.answer_join(leads("range", 1, members));
    assert!(d.noticed(|e| matches!(e, GroupEvent::MemberTwice { .. })));
    let sync = d.answer_sync(synced(&tps([1])));
    assert_eq!(sync.assignments.len(), 2);
    assert_eq!(shares(&sync)["b"], tps([0]));
}

/// G10: two members claim one partition: the newer generation has it.
#[test]
fn g10_newest_claim_wins() {
    let mut d = Desk::cooperative();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let members = vec![
        member("a", &["t"], &tps([0]), 7),
        member("b", &["t"], &tps([0]), 6),
    ];
    d.answer_join(leads("cooperative-sticky", 8, members));
    let shares = shares(&d.answer_sync(synced(&[])));
    assert_eq!(shares["a"], tps([0]));
    assert_eq!(shares["b"], tps([1]));
}

/// G10: claims of one generation cancel each other: nobody gets it this round.
#[test]
fn g10_equal_claims_cancel() {
    let mut d = Desk::cooperative();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let members = vec![
        member("a", &["t"], &tps([0]), 7),
        member("b", &["t"], &tps([0]), 7),
    ];
    d.answer_join(leads("cooperative-sticky", 8, members));
    let shares = shares(&d.answer_sync(synced(&[])));
    let all: Vec<_> = shares.values().flatten().cloned().collect();
    assert_eq!(all, tps([1]));
}

/// Java before 2.4 metadata (v1) keeps the generation in the assignor's data.
#[test]
fn g10_generation_in_user_data() {
    let mut d = Desk::cooperative();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let v1 = |id: &str, generation: i32| {
        let mut m = member(id, &["t"], &tps([0]), -1);
        let data = Bytes::copy_from_slice(&generation.to_be_bytes());
        let topics = [Arc::from("t")];
        let bytes = encode_subscription(&topics, &tps([0]), -1, Some(data)).unwrap();
        let mut bytes = bytes.to_vec();
        bytes[..2].copy_from_slice(&1i16.to_be_bytes());
        bytes.truncate(bytes.len() - 6); // generation and rack
        m.metadata = bytes.into();
        m
    };
    d.answer_join(leads("cooperative-sticky", 8, vec![v1("a", 3), v1("b", 4)]));
    let shares = shares(&d.answer_sync(synced(&[])));
    assert_eq!(shares["b"], tps([0]));
}

/// G33: the leader waits (for a bounded time) until it knows the partitions of every topic that
/// any member wants, and assigns from one view.
#[test]
fn g33_waits_for_the_view() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let members = || vec![member("me", &["t"], &[], -1), member("b", &["u"], &[], -1)];
    d.answer_join(leads("range", 1, members()));
    assert_eq!(d.member.state(), Phase::Assigning);
    let watch = d.seen.iter().find_map(|a| match a {
        GroupAction::Watch { topics } => Some(topics.iter().map(|t| t.to_string()).collect()),
        _ => None,
    });
    assert_eq!(watch, Some(vec!["t".to_string(), "u".to_string()]));
    d.beat(0);
    d.partitions(&[("t", 2), ("u", 3)]);
    let shares = shares(&d.answer_sync(synced(&tps([0, 1]))));
    assert_eq!(shares["b"].len(), 3);
}

/// G33, I8: the view never comes: the leader assigns what it knows, and joins again when it does.
#[test]
fn g33_view_never_comes() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let members = vec![member("me", &["t"], &[], -1), member("b", &["u"], &[], -1)];
    d.answer_join(leads("range", 1, members));
    d.after(Duration::from_secs(5));
    assert!(d.noticed(|e| matches!(e, GroupEvent::TopicsUnknown { .. })));
    d.answer_sync(synced(&tps([0, 1])));
    assert_eq!(d.member.state(), Phase::Stable);
    d.partitions(&[("t", 2), ("u", 3)]);
    assert_eq!(d.revoked(), tps([0, 1]));
}

/// G33: the cluster changes between the assignment and its answer: taken, then one join more.
#[test]
fn g33_changes_between_join_and_assignment() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    d.answer_join(leads("range", 1, vec![member("me", &["t"], &[], -1)]));
    d.partitions(&[("t", 3)]);
    let sync = d.answer_sync(synced(&tps([0, 1])));
    assert_eq!(shares(&sync)["me"], tps([0, 1]), "from one view");
    assert_eq!(d.revoked(), tps([0, 1]));
    d.released(&tps([0, 1]));
    d.answer_join(leads("range", 2, vec![member("me", &["t"], &[], -1)]));
    let sync = d.answer_sync(synced(&tps([0, 1, 2])));
    assert_eq!(shares(&sync)["me"], tps([0, 1, 2]));
    d.after(Duration::from_secs(2));
    assert_eq!(d.member.state(), Phase::Stable);
}

/// G48: only the leader joins again when the cluster changes.
#[test]
fn g48_only_the_leader_minds_the_cluster() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    let mut d = d_with(d, &tps([0]));
    d.partitions(&[("t", 9)]);
    assert!(d.revoked().is_empty());
    assert_eq!(d.member.state(), Phase::Stable);
}

fn d_with(d: Desk, partitions: &[TopicPartition]) -> Desk {
    d.member_of(4, partitions)
}

/// G48: nor does a leader mind a topic that nobody in the group wants, or a view told twice.
#[test]
fn g48_topics_of_others_do_not_matter() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    d.answer_join(leads("range", 1, vec![member("me", &["t"], &[], -1)]));
    d.answer_sync(synced(&tps([0, 1])));
    d.partitions(&[("t", 2), ("other", 7)]);
    d.partitions(&[("t", 2)]);
    assert_eq!(d.member.state(), Phase::Stable);
    assert!(d.revoked().is_empty());
}

/// Who led and leads no more tells the engine that it need not watch other topics.
#[test]
fn watch_ends_with_the_lead() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    d.answer_join(leads("range", 1, vec![member("me", &["t"], &[], -1)]));
    d.answer_sync(synced(&[]));
    d.beat(27);
    d.seen.clear();
    d.answer_join(joined("range", 2, "me", "boss"));
    let end = |a: &GroupAction| matches!(a, GroupAction::Watch { topics } if topics.is_empty());
    assert!(d.seen.iter().any(end));
}

/// KIP-814: a leader that is told not to assign sends no shares, but watches.
#[test]
fn leader_that_must_not_assign() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 2)]);
    d.subscribe(&["t"]);
    let mut answer = leads("range", 3, vec![member("me", &["t"], &[], -1)]);
    answer.skip_assignment = true;
    d.answer_join(answer);
    let sync = d.answer_sync(synced(&tps([0, 1])));
    assert!(sync.assignments.is_empty());
    d.partitions(&[("t", 3)]);
    assert_eq!(d.revoked(), tps([0, 1]));
}

/// G32: shares that no request can carry are a typed error.
#[test]
fn g32_shares_too_large() {
    let mut cfg = config();
    cfg.request_bytes_max = 10_000;
    let mut d = Desk::new(cfg);
    d.partitions(&[("t", 5_000)]);
    d.subscribe(&["t"]);
    d.answer_join(leads("range", 1, vec![member("me", &["t"], &[], -1)]));
    assert_eq!(d.fatal().unwrap().kind(), ErrorKind::Misuse);
}
