//! Topics, leaders and their epochs; when metadata is asked for.

use super::*;

#[test]
fn idle_until_something_is_wanted_and_then_fresh_by_age() {
    let mut b = Bench::new(1);
    assert_eq!(b.cluster.next_deadline(), None);
    b.want(&["t".into()]);
    b.metadata(t(vec![part(0, 1, 3), part(1, 2, 4)]));
    assert_eq!(b.leader(0), Some((1, 3)));
    assert_eq!(b.leader(1), Some((2, 4)));
    assert!(b.changed());
    let counts = b.cluster.partition_counts(&["t".into(), "other".into()]);
    assert_eq!(counts, BTreeMap::from([("t".into(), 2)]));
    assert_eq!(b.cluster.topic_by_id(A).map(|n| &**n), Some("t"));
    // An idle client is idle: the next request is for age alone, and asks a broker by number.
    let age = b.cluster.next_deadline().expect("a refresh").since(b.now);
    assert!(age >= SEC(270) && age <= SEC(300), "{age:?}");
    b.wake();
    b.did.clear();
    b.metadata(t(vec![part(0, 1, 3), part(1, 2, 4)]));
    assert!(!b.changed(), "the same again is no news");
}

/// F22: epoch -1 of a leaderless moment does not overwrite the one that is known.
#[test]
fn f22_epoch_minus_one_keeps_the_known_epoch() {
    let mut b = Bench::settled(t(vec![part(0, 1, 6)]));
    b.refresh();
    b.next_metadata(t(vec![part(0, -1, -1)]));
    assert_eq!(b.leader(0), None);
    let known = b.cluster.topic("t").expect("known").partitions[&0].leader_epoch;
    assert_eq!(known, 6);
    b.next_metadata(t(vec![part(0, 1, 6)]));
    assert_eq!(b.leader(0), Some((1, 6)));
    // Another id is another topic: its epochs begin anew.
    b.refresh();
    b.next_metadata(meta(&[1, 2], vec![topic("t", B, vec![part(0, 2, 0)])]));
    assert_eq!(b.leader(0), Some((2, 0)));
}

/// F23: a broker that lags does not bring an older leader back.
#[test]
fn f23_metadata_does_not_go_back_in_time() {
    let mut b = Bench::settled(t(vec![part(0, 2, 9), part(1, 1, 4)]));
    for _ in 0..20 {
        b.refresh();
        b.next_metadata(t(vec![part(0, 1, 8), part(1, 1, 4)]));
        assert_eq!(
            b.leader(0),
            Some((2, 9)),
            "same id: never back, however often it is said"
        );
        b.pass(SEC(1));
    }
    b.next_metadata(t(vec![part(0, 1, 10), part(1, 1, 4)]));
    assert_eq!(b.leader(0), Some((1, 10)));
}

/// F23: an older answer makes the next request go to someone else.
#[test]
fn f23_the_next_answer_is_asked_of_another_broker() {
    let mut b = Bench::settled(t(vec![part(0, 2, 9)]));
    b.cluster.link_up(b.now, Peer::Node(NodeId(1)));
    b.cluster.link_up(b.now, Peer::Node(NodeId(2)));
    b.cluster.link_down(b.now, Peer::Bootstrap(0));
    b.pass(SEC(1));
    b.refresh();
    b.drain();
    let first = b.asked[0].to;
    b.metadata(t(vec![part(0, 1, 8)]));
    b.wake();
    assert_ne!(b.asked[0].to, first);
}

/// F25: a replica that no answer named has no address; asking again is paced.
#[test]
fn f25_an_unknown_replica_is_told_by_its_missing_address() {
    let mut b = Bench::settled(t(vec![part(0, 1, 1)]));
    let stranger = Peer::Node(NodeId(99));
    assert_eq!(b.cluster.address(stranger), None);
    assert_eq!(b.cluster.may_connect(b.now, stranger), Err(Now::NEVER));
    b.refresh();
    b.next_metadata(meta(&[1, 2, 99], vec![topic("t", A, vec![part(0, 1, 1)])]));
    assert_eq!(b.cluster.address(stranger), Some(("node99".into(), 9092)));
}

/// F28: a topic deleted and made anew is noticed by its id, and a broker that lags does not undo
/// that.
#[test]
fn f28_a_recreated_topic_is_noticed_by_id() {
    let mut b = Bench::settled(t(vec![part(0, 1, 30), part(1, 1, 30)]));
    b.refresh();
    b.next_metadata(meta(&[1, 2], vec![topic("t", B, vec![part(0, 2, 0)])]));
    let told = |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { topic, old: A, new: B } if &**topic == "t");
    assert!(b.has(told));
    assert_eq!(b.leader(0), Some((2, 0)));
    assert_eq!(b.cluster.partition_counts(&["t".into()])["t"], 1);
    assert_eq!(b.cluster.topic_by_id(A), None);
    assert_eq!(b.cluster.topic_by_id(B).map(|n| &**n), Some("t"));
    b.did.clear();
    // A stale broker still tells the old id, four times and for a while.
    for _ in 0..4 {
        b.refresh();
        b.next_metadata(t(vec![part(0, 1, 31), part(1, 1, 31)]));
        b.pass(SEC(3));
    }
    assert!(
        !b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })),
        "{:?}",
        b.did
    );
    assert_eq!(b.leader(0), Some((2, 0)));
    assert_eq!(b.cluster.topic_by_id(B).map(|n| &**n), Some("t"));
}

/// F28: whichever of two ids we saw first, the one that lasts wins.
#[test]
fn f28_an_id_that_lasts_is_believed_even_if_it_was_replaced_before() {
    let mut b = Bench::settled(meta(&[1], vec![topic("t", B, vec![part(0, 1, 0)])]));
    // A broker that lags makes us believe in A for a moment.
    b.refresh();
    b.next_metadata(meta(&[1], vec![topic("t", A, vec![part(0, 1, 9)])]));
    assert_eq!(b.cluster.topic("t").map(|t| t.id), Some(A));
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(meta(
            &[1],
            vec![topic("t", B, vec![part(0, 1, 0)])],
        )))
    });
    assert_eq!(b.cluster.topic("t").map(|t| t.id), Some(B));
}

/// F28: brokers without ids: numbers that stay lower are a new topic; a moment of them is not.
#[test]
fn f28_without_ids_lower_epochs_that_last_are_a_new_topic() {
    let zero = |epoch| {
        meta(
            &[1],
            vec![topic("t", TopicId::ZERO, vec![part(0, 1, epoch)])],
        )
    };
    let mut b = Bench::settled(zero(30));
    b.refresh();
    b.next_metadata(zero(0));
    assert_eq!(b.leader(0), Some((1, 30)));
    b.play(SEC(30), |_, _| Ok(Response::Metadata(zero(0))));
    assert_eq!(b.leader(0), Some((1, 0)));
    let told = |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { old, new, .. } if old.is_zero() && new.is_zero());
    assert!(b.has(told));
}

/// F28: a topic that is gone for good is told once, and stays wanted.
#[test]
fn f28_a_deleted_topic_is_told_after_a_while_and_may_come_back() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.next_metadata(meta(&[1, 2], vec![broken("t", 3)]));
    assert_eq!(b.leader(0), Some((1, 3)), "one answer is not enough");
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(meta(&[1, 2], vec![broken("t", 3)])))
    });
    let gone = |a: &&ClusterAction| matches!(a, ClusterAction::TopicGone { .. });
    assert_eq!(b.did.iter().filter(gone).count(), 1);
    assert!(b.cluster.topic("t").is_none());
    assert!(b.cluster.topic_by_id(A).is_none());
    // Another topic of its name is another topic, also for whoever held offsets of the first.
    b.play(SEC(2), |_, _| {
        Ok(Response::Metadata(meta(
            &[1, 2],
            vec![topic("t", B, vec![part(0, 2, 0)])],
        )))
    });
    assert_eq!(b.leader(0), Some((2, 0)));
    let told =
        |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { old: A, new: B, .. });
    assert!(b.has(told));
}

/// F28: the same topic after a long absence (a right that was taken and given back) is the same.
#[test]
fn f28_the_same_id_after_an_absence_is_no_new_topic() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(meta(&[1, 2], vec![broken("t", 3)])))
    });
    assert!(b.cluster.topic("t").is_none());
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(t(vec![part(0, 1, 3)])))
    });
    assert_eq!(b.leader(0), Some((1, 3)));
    assert!(!b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })));
}

/// F28: also where every topic is wanted; and nobody waits for what is gone.
#[test]
fn f28_a_topic_of_a_pattern_that_comes_back_is_another() {
    let mut b = Bench::new(1);
    b.cluster.want_all(b.now);
    b.drain();
    let u = || topic("u", TopicId([7; 16]), vec![part(0, 1, 0)]);
    b.metadata(meta(&[1], vec![u(), topic("t", A, vec![part(0, 1, 3)])]));
    b.refresh();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(&[1], vec![u()])))
    });
    assert!(b.has(|a| matches!(a, ClusterAction::TopicGone { .. })));
    let sent = b.sent.len();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(&[1], vec![u()])))
    });
    assert_eq!(b.sent.len(), sent, "nobody waits for it");
    b.refresh();
    b.next_metadata(meta(&[1], vec![u(), topic("t", B, vec![part(0, 1, 0)])]));
    let told =
        |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { old: A, new: B, .. });
    assert!(b.has(told));
}

/// F29: an id that nobody knows yet is a reason to ask again, paced, and no error.
#[test]
fn f29_a_topic_just_made_is_waited_for() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    for code in [5, 3, 100] {
        b.next_metadata(meta(&[1], vec![broken("t", code)]));
        assert!(b.cluster.topic("t").is_none());
        assert!(!b.has(|a| matches!(a, ClusterAction::Fatal(_))));
        assert!(b.asked.is_empty(), "asking again is paced");
    }
    b.next_metadata(t(vec![part(0, 1, 0)]));
    assert_eq!(b.leader(0), Some((1, 0)));
}

/// Q01, F30: a broker without ids in a cluster with ids takes none away.
#[test]
fn f30_a_zero_id_does_not_replace_a_known_one() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.next_metadata(meta(
        &[1, 2],
        vec![topic("t", TopicId::ZERO, vec![part(0, 2, 4)])],
    ));
    assert_eq!(b.leader(0), Some((2, 4)));
    assert_eq!(b.cluster.topic("t").map(|t| t.id), Some(A));
    assert!(!b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })));
    // And where none was known, the first one is taken without a word.
    let mut b = Bench::settled(meta(
        &[1],
        vec![topic("t", TopicId::ZERO, vec![part(0, 1, 4)])],
    ));
    b.refresh();
    b.next_metadata(meta(&[1], vec![topic("t", A, vec![part(0, 1, 4)])]));
    assert_eq!(b.cluster.topic_by_id(A).map(|n| &**n), Some("t"));
    assert!(!b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })));
}

/// F34: a leader without an address is none, and is asked for again.
#[test]
fn f34_a_leader_without_an_entry_is_no_leader() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.metadata(meta(
        &[1],
        vec![topic("t", A, vec![part(0, 7, 3), part(1, 1, 2)])],
    ));
    assert_eq!(b.leader(0), None);
    assert_eq!(b.leader(1), Some((1, 2)));
    let wait = b.cluster.next_deadline().expect("a refresh").since(b.now);
    assert!(wait <= MS(120), "{wait:?}");
    b.next_metadata(meta(
        &[1, 7],
        vec![topic("t", A, vec![part(0, 7, 3), part(1, 1, 2)])],
    ));
    assert_eq!(b.leader(0), Some((7, 3)));
}

/// F35: a partition that appears later is noticed, and told.
#[test]
fn f35_a_new_partition_is_noticed() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0), part(1, 2, 0)]));
    b.wake();
    b.metadata(t(vec![part(0, 1, 0), part(1, 2, 0), part(2, 1, 0)]));
    assert!(b.changed());
    assert_eq!(b.cluster.partition_counts(&["t".into()])["t"], 3);
    assert_eq!(b.leader(2), Some((1, 0)));
}

/// F41: a leader hint adds a broker; it does not replace those that we know.
#[test]
fn f41_a_hint_is_merged() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3), part(1, 2, 3)]));
    b.cluster.hint_leader("t", 0, (NodeId(4), 5), &[node(4)]);
    b.drain();
    assert!(b.changed());
    assert_eq!(b.leader(0), Some((4, 5)));
    assert_eq!(b.leader(1), Some((2, 3)));
    let known: Vec<i32> = b.cluster.brokers().map(|e| e.node.0).collect();
    assert_eq!(known, [1, 2, 4]);
    // An older hint is none, and so is one for what we do not know.
    b.did.clear();
    b.cluster.hint_leader("t", 0, (NodeId(1), 4), &[node(1)]);
    b.cluster.hint_leader("t", 9, (NodeId(1), 4), &[node(1)]);
    b.cluster.hint_leader("u", 0, (NodeId(1), 4), &[node(1)]);
    b.drain();
    assert!(!b.changed());
    // Metadata that is older than the hint takes neither the leader nor its address away.
    b.refresh();
    b.next_metadata(t(vec![part(0, 1, 3), part(1, 2, 3)]));
    assert_eq!(b.leader(0), Some((4, 5)));
    // Newer metadata does.
    b.next_metadata(t(vec![part(0, 2, 6), part(1, 2, 3)]));
    assert_eq!(b.leader(0), Some((2, 6)));
    b.next_metadata_by_age(t(vec![part(0, 2, 6), part(1, 2, 3)]));
    assert_eq!(b.cluster.address(Peer::Node(NodeId(4))), None);
}

/// F46: a broker that lags does not make a partition disappear, and one that an assignment names
/// is waited for, paced and aloud.
#[test]
fn f46_a_partition_that_metadata_omits_is_pending() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0), part(1, 2, 0)]));
    let p2 = TopicPartition::new("t", 2);
    b.cluster
        .expect_partitions(b.now, &[TopicPartition::new("t", 0), p2.clone()]);
    b.drain();
    let start = b.sent.len();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(t(vec![part(0, 1, 0), part(1, 2, 0)])))
    });
    let asked = b.sent.len() - start;
    assert!((10..=80).contains(&asked), "{asked} requests in a minute");
    let alarms: Vec<_> = b
        .did
        .iter()
        .filter(|a| {
            matches!(a, ClusterAction::Notice(ClusterNotice::PartitionMissing { partition, .. })
                if *partition == p2)
        })
        .collect();
    assert_eq!(alarms.len(), 2, "after five seconds and after fifty");
    b.play(SEC(2), |_, _| {
        Ok(Response::Metadata(t(vec![
            part(0, 1, 0),
            part(1, 2, 0),
            part(2, 2, 0),
        ])))
    });
    assert_eq!(b.leader(2), Some((2, 0)));
    // A broker that lags says two partitions again.
    b.refresh();
    b.next_metadata(t(vec![part(0, 1, 0), part(1, 2, 0)]));
    assert_eq!(b.leader(2), Some((2, 0)));
    assert_eq!(b.cluster.partition_counts(&["t".into()])["t"], 3);
}

/// L36: an error for one topic leaves the others, and what is known of it, as they are.
#[test]
fn l36_errors_are_merged_per_topic() {
    let mut b = Bench::settled(meta(
        &[1, 2],
        vec![
            topic("t", A, vec![part(0, 1, 3)]),
            topic("u", B, vec![part(0, 1, 1)]),
        ],
    ));
    b.refresh();
    b.next_metadata(meta(
        &[1, 2],
        vec![broken("t", -1), topic("u", B, vec![part(0, 2, 2)])],
    ));
    assert_eq!(b.leader(0), Some((1, 3)));
    assert_eq!(b.cluster.topic("t").and_then(|t| t.error), Some(Code(-1)));
    assert_eq!(b.cluster.leader("u", 0), Some((NodeId(2), 2)));
    b.next_metadata(meta(
        &[1, 2],
        vec![
            topic("t", A, vec![part(0, 1, 3)]),
            topic("u", B, vec![part(0, 2, 2)]),
        ],
    ));
    assert_eq!(b.cluster.topic("t").and_then(|t| t.error), None);
}

/// L36: an answer without brokers (Metadata 10 refusing a request) is no picture of the cluster.
#[test]
fn l36_an_empty_answer_teaches_nothing() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.next_metadata(MetadataResponse {
        topics: vec![broken("", 42)],
        ..MetadataResponse::default()
    });
    assert_eq!(b.leader(0), Some((1, 3)));
    assert_eq!(b.cluster.brokers().count(), 2);
}

#[test]
fn only_names_and_rights_are_fatal() {
    for (code, kind) in [(17, ErrorKind::Misuse), (29, ErrorKind::Broker)] {
        let mut b = Bench::new(1);
        b.want(&["t".into()]);
        b.metadata(meta(&[1], vec![broken("t", code)]));
        let error = b.did.iter().find_map(|a| match a {
            ClusterAction::Fatal(e) => Some(e),
            _ => None,
        });
        let error = error.expect("fatal");
        assert_eq!((error.kind(), error.code()), (kind, Some(code)));
        assert!(error.to_string().contains("`t`"), "{error}");
        assert_eq!(b.cluster.next_deadline(), None);
    }
}

#[test]
fn an_unknown_topic_is_waited_for_paced_and_told() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(&[1], vec![broken("t", 3)])))
    });
    assert!(
        (30..=80).contains(&b.sent.len()),
        "{} in a minute",
        b.sent.len()
    );
    let told = b
        .did
        .iter()
        .filter(|a| matches!(a, ClusterAction::Notice(ClusterNotice::TopicUnknown { .. })));
    let told = told.count();
    assert!((1..=6).contains(&told), "{told} lines");
    assert!(
        !b.has(|a| matches!(a, ClusterAction::TopicGone { .. })),
        "it was never there"
    );
}

#[test]
fn every_topic_is_kept_fresh_for_patterns_and_absent_ones_go() {
    let mut b = Bench::new(1);
    b.cluster.want_all(b.now);
    b.drain();
    assert!(matches!(&b.asked[0].request, Request::Metadata(m) if m.topics.is_none()));
    let both = vec![
        topic("t", A, vec![part(0, 1, 0)]),
        topic("u", B, vec![part(0, 1, 0)]),
    ];
    b.metadata(meta(&[1], both));
    assert_eq!(b.cluster.topics().count(), 2);
    b.refresh();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(
            &[1],
            vec![topic("t", A, vec![part(0, 1, 0)])],
        )))
    });
    let names: Vec<&str> = b.cluster.topics().map(|(n, _)| &**n).collect();
    assert_eq!(names, ["t"]);
    assert!(b.has(|a| matches!(a, ClusterAction::TopicGone { topic } if &**topic == "u")));
    // One topic without rights does not stop a pattern.
    b.refresh();
    b.next_metadata(meta(
        &[1],
        vec![topic("t", A, vec![part(0, 1, 0)]), broken("x", 29)],
    ));
    assert!(!b.has(|a| matches!(a, ClusterAction::Fatal(_))));
}

#[test]
fn topics_wanted_while_a_request_is_out_are_asked_for_next() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.want(&["t".into(), "u".into()]);
    assert_eq!(b.asked.len(), 1);
    b.metadata(t(vec![part(0, 1, 0)]));
    let next = &b.asked[0].request;
    assert!(
        matches!(next, Request::Metadata(m) if m.topics.as_ref().is_some_and(|t| t.len() == 2))
    );
    assert!(!b.has(|a| matches!(a, ClusterAction::Notice(_))));
    // And forgetting them leaves nothing to ask.
    b.metadata(meta(
        &[1],
        vec![topic("t", A, vec![part(0, 1, 0)]), topic("u", B, vec![])],
    ));
    b.want(&[]);
    assert_eq!(b.cluster.next_deadline(), None);
    assert!(b.cluster.topic("t").is_none());
}

#[test]
fn a_refresh_that_changes_nothing_is_paced() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    let start = b.sent.len();
    let end = b.now + SEC(60);
    while b.now < end {
        b.refresh(); // every fetch fails with "not the leader"
        b.drain();
        match b.asked.is_empty() {
            true => b.wake(),
            false => b.metadata(t(vec![part(0, 1, 0)])),
        }
    }
    let asked = b.sent.len() - start;
    assert!((50..=90).contains(&asked), "{asked} requests in a minute");
}

#[test]
fn the_first_refresh_after_a_calm_time_goes_out_at_once() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.pass(SEC(20));
    b.refresh();
    b.drain();
    assert_eq!(b.asked.len(), 1);
}

/// Answers that nobody waits for, of a kind that nobody asked, or full of nonsense do no harm.
#[test]
fn nonsense_is_survived() {
    let mut b = Bench::new(1);
    b.cluster.handle_response(
        b.now,
        Token(77),
        Ok(Response::Metadata(t(vec![part(0, 1, 0)]))),
    );
    assert!(b.cluster.topic("t").is_none());
    b.want(&["t".into()]);
    let asked = b.asked.pop_front().expect("asked");
    b.answer(&asked, Ok(Response::FindCoordinator(coordinator(1))));
    let mut answer = t(vec![
        part(-5, 1, 0),
        part(0, -9, -9),
        part(0, 1, 2),
        part(i32::MAX, 1, 0),
    ]);
    answer.brokers.push(BrokerEndpoint { port: 0, ..node(3) });
    answer.brokers.push(node(-4));
    answer
        .topics
        .push(topic("never asked for", B, vec![part(0, 1, 0)]));
    b.next_metadata(answer);
    assert_eq!(b.leader(0), Some((1, 2)));
    assert!(b.cluster.topic("never asked for").is_none());
    assert_eq!(b.cluster.brokers().count(), 2);
}
