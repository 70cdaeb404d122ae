//! Partitions granted, given back, and granted again.

use super::*;

/// G01, G24: eager: all partitions drain before the join; the join goes when the last is back.
#[test]
fn g01_eager_drains_before_the_join() {
    let mut d = Desk::eager().member_of(4, &tps([0, 1]));
    d.beat(27);
    assert_eq!(d.revoked(), tps([0, 1]));
    assert_eq!(d.member.state(), Phase::Draining);
    d.released(&tps([1]));
    assert!(!d.out(is_join));
    let member = d.member.member().unwrap();
    assert_eq!(
        (&*member.member_id, member.generation),
        ("me", 4),
        "the last commit's"
    );
    d.released(&tps([0]));
    assert!(d.out(is_join));
    assert_eq!(d.metadata_out().owned, []);
    d.answer_join(joined("range", 5, "me", "boss"));
    d.answer_sync(synced(&tps([1, 2])));
    assert_eq!(d.member.member().unwrap().generation, 5);
    assert_eq!(d.granted(), tps([1, 2]));
}

/// G24: a revoke with nothing held is over at once.
#[test]
fn g24_nothing_to_drain() {
    let mut d = Desk::eager().member_of(4, &[]);
    d.beat(27);
    assert!(d.revoked().is_empty());
    assert!(d.out(is_join));
}

/// G01, G19, C29: heartbeats go on through the drain, their 27 changes nothing, and the drain
/// keeps its deadline.
#[test]
fn g01_heartbeats_through_a_drain() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.beat(27);
    let deadline = d.seen.iter().find_map(|a| match a {
        GroupAction::Revoke { deadline, .. } => Some(*deadline),
        _ => None,
    });
    assert_eq!(deadline, Some(d.now + DRAIN));
    for _ in 0..9 {
        let beat = d.beat(27);
        assert_eq!((beat.generation, &*beat.member_id), (4, "me"));
        assert_eq!(d.held.len(), 1, "still ours: results of the drain count");
    }
    assert_eq!(d.revoked(), tps([0]), "revoked once");
    d.released(&tps([0]));
    assert!(d.out(is_join));
}

/// E29, I8: an engine that never releases does not hang the membership: past the deadline and
/// half of what is left the partitions count as lost.
#[test]
fn e29_release_never_comes() {
    let mut d = Desk::eager().member_of(4, &tps([0, 1]));
    d.beat(27);
    d.released(&tps([0]));
    for _ in 0..14 {
        d.beat(27);
    }
    assert_eq!(d.now.since(Now(1_000_000_000_000)), Duration::from_secs(45));
    assert!(!d.out(is_join));
    d.after(HEARTBEAT);
    assert_eq!(d.lost(), tps([1]));
    assert!(d.noticed(|e| matches!(e, GroupEvent::RevokeOverdue { .. })));
    assert!(d.out(is_join));
    assert_eq!(d.metadata_out().owned, []);
}

/// G02: what was granted under a generation is committed under it; after a rebalance under the
/// next; never in between without one.
#[test]
fn g02_commits_name_the_generation_of_their_lease() {
    let mut d = Desk::cooperative().member_of(4, &tps([0]));
    let generation = |d: &Desk| d.member.member().map(|m| m.generation);
    assert_eq!(generation(&d), Some(4));
    d.beat(27);
    assert_eq!(generation(&d), Some(4));
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    assert_eq!(
        generation(&d),
        Some(4),
        "not before the assignment is known"
    );
    d.answer_sync(synced(&tps([0])));
    assert_eq!(generation(&d), Some(5));
    assert!(d.revoked().is_empty() && d.lost().is_empty());
    d.beat(25);
    assert_eq!(generation(&d), None);
}

/// KIP-429: a cooperative member joins at once with what it has, keeps what it keeps, gives back
/// the rest, and joins again when that is back.
#[test]
fn cooperative_keeps_and_gives_back() {
    let mut d = Desk::cooperative().member_of(4, &tps([0, 1, 2]));
    d.beat(27);
    assert!(d.revoked().is_empty());
    assert_eq!(d.metadata_out().owned, tps([0, 1, 2]));
    assert_eq!(d.metadata_out().generation, 4);
    assert_eq!(
        d.metadata_out().user_data.as_deref(),
        Some(&[0, 0, 0, 4][..])
    );
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.answer_sync(synced(&tps([1])));
    assert_eq!(d.revoked(), tps([0, 2]));
    let at = |d: &Desk, is: fn(&GroupAction) -> bool| d.seen.iter().position(is);
    let joined_at = at(&d, |a| {
        matches!(a, GroupAction::Joined { generation: 5, .. })
    });
    assert!(joined_at < at(&d, |a| matches!(a, GroupAction::Revoke { .. })));
    d.released(&tps([0]));
    assert!(!d.out(is_join), "2 still drains");
    d.beat(0);
    d.released(&tps([2]));
    assert_eq!(d.metadata_out().owned, tps([1]));
    assert_eq!(d.metadata_out().generation, 5);
    d.answer_join(joined("cooperative-sticky", 6, "me", "boss"));
    d.answer_sync(synced(&tps([1])));
    d.after(Duration::from_secs(2));
    assert_eq!(d.member.state(), Phase::Stable, "no third join");
}

/// By default cooperative-sticky is offered beside range, and the member is eager, as in Java.
#[test]
fn default_list_is_eager() {
    let mut d = Desk::new(config());
    assert_eq!(config().assignors, GroupConfig::new("g").assignors);
    d.subscribe(&["t"]);
    let join = d.join_out().unwrap();
    let names: Vec<_> = join.protocols.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["range", "cooperative-sticky"]);
    d.answer_join(joined("cooperative-sticky", 1, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    d.beat(27);
    assert_eq!(d.revoked(), tps([0]));
}

/// G08: a member that missed a sync says under which generation it owns what it owns.
#[test]
fn g08_missed_sync_keeps_the_old_generation() {
    let mut d = Desk::cooperative().member_of(6, &tps([0]));
    d.beat(27);
    d.answer_join(joined("cooperative-sticky", 7, "me", "boss"));
    d.answer_sync(sync_error(27));
    assert_eq!(d.metadata_out().owned, tps([0]));
    assert_eq!(d.metadata_out().generation, 6);
    assert_eq!(&*d.join_out().unwrap().member_id, "me");
    assert_eq!(d.member.member().unwrap().generation, 6);
}

/// G08: 22 and 25 clear the owned list.
#[test]
fn g08_owned_list_is_reset() {
    for (code, id) in [(22, "me"), (25, "")] {
        for in_sync in [false, true] {
            let mut d = Desk::cooperative().member_of(6, &tps([0]));
            if in_sync {
                d.beat(27);
                d.answer_join(joined("cooperative-sticky", 7, "me", "boss"));
                d.answer_sync(sync_error(code));
            } else {
                d.beat(code);
            }
            assert_eq!(d.lost(), tps([0]));
            let metadata = d.metadata_out();
            assert_eq!((metadata.owned, metadata.generation), (vec![], -1));
            assert_eq!(&*d.join_out().unwrap().member_id, id, "{code}");
        }
    }
}

/// G08 (KAFKA-14639): a partition that drains and is assigned to us again in the next step comes
/// back as a new lease, after it was released.
#[test]
fn g08_revoked_and_assigned_again() {
    let mut d = Desk::cooperative().member_of(4, &tps([0, 1]));
    d.beat(27);
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    assert_eq!(d.revoked(), tps([1]));
    d.beat(27);
    assert_eq!(
        d.metadata_out().owned,
        tps([0, 1]),
        "what drains is still ours"
    );
    d.answer_join(joined("cooperative-sticky", 6, "me", "boss"));
    d.answer_sync(synced(&tps([0, 1])));
    assert!(d.granted().is_empty(), "not while the old lease drains");
    d.released(&tps([1]));
    assert_eq!(d.granted(), tps([1]));
    d.after(Duration::from_secs(2));
    assert_eq!(d.member.state(), Phase::Stable);
}

/// G08: what was released while the join was out had been claimed in it; if the assignment
/// lacks it, the group must hear that it is free.
#[test]
fn g08_released_while_joining() {
    let mut d = Desk::cooperative().member_of(4, &tps([0, 1]));
    d.beat(27);
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    d.beat(27);
    d.released(&tps([1]));
    d.answer_join(joined("cooperative-sticky", 6, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    d.after(Duration::from_millis(200));
    assert!(d.out(is_join), "joins again");
    assert_eq!(d.metadata_out().owned, tps([0]));
}

/// A cooperative member gives back a dropped topic before it joins, and nothing else.
#[test]
fn cooperative_dropped_topic_goes_first() {
    let mut d = Desk::cooperative();
    d.subscribe(&["t", "u"]);
    let u0 = TopicPartition::new("u", 0);
    d.answer_join(joined("cooperative-sticky", 1, "me", "boss"));
    d.answer_sync(synced(&[tp(0), u0.clone()]));
    d.subscribe(&["t"]);
    assert_eq!(d.revoked(), std::slice::from_ref(&u0));
    assert!(!d.out(is_join));
    d.released(&[u0]);
    assert_eq!(d.metadata_out().owned, tps([0]));
}

/// G25: assigned and revoked before anyone looked: the events come in order.
#[test]
fn g25_events_in_order() {
    let mut d = Desk::cooperative();
    d.subscribe(&["t"]);
    d.answer_join(joined("cooperative-sticky", 1, "me", "boss"));
    let (token, _) = d.take(is_sync).unwrap();
    let answer = Response::SyncGroup(synced(&tps([0])));
    d.member.handle_response(d.now, token, Ok(answer));
    d.now = d.now + SESSION;
    d.member.handle_timeout(d.now);
    let mut kinds = Vec::new();
    while let Some(action) = d.member.poll_action() {
        match action {
            GroupAction::Granted { .. } => kinds.push("granted"),
            GroupAction::Lost { .. } => kinds.push("lost"),
            GroupAction::Joined { .. } => kinds.push("joined"),
            GroupAction::Send {
                request: Request::JoinGroup(_),
                ..
            } => kinds.push("join"),
            _ => {}
        }
    }
    assert_eq!(kinds, ["joined", "granted", "lost", "join"]);
}

/// G29: no bytes mean nothing assigned; unreadable bytes too, and loudly.
#[test]
fn g29_empty_assignment() {
    for (bytes, loud) in [(&b""[..], false), (&b"\0\0\xff"[..], true)] {
        let mut d = Desk::eager();
        d.subscribe(&["t"]);
        d.answer_join(joined("range", 1, "me", "boss"));
        let mut answer = sync_error(0);
        answer.assignment = Bytes::from_static(bytes);
        d.answer_sync(answer);
        assert_eq!(d.member.state(), Phase::Stable);
        assert!(d.held.is_empty());
        assert_eq!(d.noticed(|e| *e == GroupEvent::AssignmentUnread), loud);
        assert!(d.member.member().is_some());
    }
}

/// G36: a topic deleted while it drains: the join does not wait for more than `released`.
#[test]
fn g36_topic_deleted_during_rebalance() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.partitions(&[("t", 1)]);
    d.beat(27);
    d.partitions(&[("t", 0)]);
    d.released(&tps([0]));
    d.answer_join(leads("range", 5, vec![member("me", &["t"], &[], -1)]));
    let sync = d.answer_sync(synced(&[]));
    assert_eq!(shares(&sync)["me"], []);
    assert_eq!(d.member.state(), Phase::Stable);
}

/// Partitions named twice or below zero are taken once or not at all.
#[test]
fn assignment_with_nonsense() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.answer_join(joined("range", 1, "me", "boss"));
    d.answer_sync(synced(&tps([1, 1, -1, 0])));
    assert_eq!(d.granted(), tps([0, 1]));
}

/// G08, E29: what drains and was assigned to us again comes back as a new lease also when the
/// engine never released the old one.
#[test]
fn g08_assigned_again_and_never_released() {
    let mut d = Desk::cooperative().member_of(4, &tps([0, 1]));
    d.beat(27);
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    d.beat(27);
    d.answer_join(joined("cooperative-sticky", 6, "me", "boss"));
    d.answer_sync(synced(&tps([0, 1])));
    for _ in 0..15 {
        d.beat(0);
    }
    assert_eq!(d.lost(), tps([1]));
    assert_eq!(d.granted(), tps([1]));
    assert_eq!(d.member.state(), Phase::Stable);
}

/// G01: a cut link hid the beginning of the rebalance: the drain ends before the coordinator
/// goes on without us, counted from when it last said that all was calm.
#[test]
fn g01_rebalance_noticed_late() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.beat(0);
    let calm = d.now;
    d.after(HEARTBEAT);
    for _ in 0..25 {
        if d.out(is_heartbeat) {
            d.answer(is_heartbeat, Err(cut()));
        }
        d.after(Duration::from_secs(1));
    }
    d.beat(27);
    let late = d.now.since(calm);
    assert!(late > Duration::from_secs(25));
    let deadline = d.seen.iter().find_map(|a| match a {
        GroupAction::Revoke { deadline, .. } => Some(*deadline),
        _ => None,
    });
    assert_eq!(
        deadline,
        Some(calm + Duration::from_secs(45)),
        "not 30 s from now"
    );
    while d.now < calm + Duration::from_millis(52_400) {
        if d.out(is_heartbeat) {
            d.answer_heartbeat(27);
        }
        d.after(Duration::from_millis(100));
    }
    assert!(d.lost().is_empty());
    d.after(Duration::from_millis(200));
    assert_eq!(d.lost(), tps([0]));
    assert!(d.out(is_join));
}

/// A leader of another make shares out what is reserved and tells nothing of it: that is said at
/// each such generation, and the reservation is told again with the next join.
#[test]
fn reservations_that_a_leader_ignores_are_told_each_time() {
    let mut cfg = config();
    cfg.reserve = tps([1]);
    let mut d = Desk::new(cfg);
    d.subscribe(&["t"]);
    for generation in 1..4 {
        let note = d.metadata_out().user_data;
        assert!(note.is_some_and(|n| !n.is_empty()), "it is told");
        d.answer_join(joined("range", generation, "me", "boss"));
        d.answer_sync(synced(&tps([0, 1])));
        assert!(
            d.noticed(|e| matches!(
                e,
                GroupEvent::ReservationsIgnored { partitions } if *partitions == tps([1])
            )),
            "generation {generation}"
        );
        d.seen();
        d.beat(27);
        d.released(&tps([0, 1]));
        d.seen();
    }
}
