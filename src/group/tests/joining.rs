//! Getting into a group, and the answers that stand in the way.

use super::*;

/// G42: the coordinator asks for the id that it gave, and gets it.
#[test]
fn g42_member_id_required() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    let mut answer = join_error(79);
    answer.member_id = Arc::from("me-1");
    let first = d.answer_join(answer);
    assert_eq!(&*first.member_id, "");
    assert_eq!(&*d.join_out().unwrap().member_id, "me-1");
    assert!(
        d.member.next_deadline().is_none(),
        "at once, not after a pause"
    );
}

/// G42, I10: a coordinator that asks again and again is not flooded.
#[test]
fn g42_asked_again_and_again() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    let mut joins = 0;
    let start = d.now;
    while d.now.since(start) < Duration::from_secs(60) {
        if d.out(is_join) {
            joins += 1;
            let mut answer = join_error(79);
            answer.member_id = Arc::from(format!("me-{joins}"));
            d.answer_join(answer);
        } else {
            d.after(Duration::from_millis(10));
        }
    }
    assert!((30..=90).contains(&joins), "{joins} joins in a minute");
}

/// G09: REBALANCE_IN_PROGRESS inside the answer to a join: again at once, same id.
#[test]
fn g09_rebalance_inside_join() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.beat(27);
    d.released(&tps([0]));
    let first = d.answer_join(join_error(27));
    assert_eq!(&*first.member_id, "me");
    assert_eq!(&*d.join_out().unwrap().member_id, "me");
}

/// G34: a join that fails leaves the wish to join.
#[test]
fn g34_failed_join_keeps_the_wish() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    for _ in 0..20 {
        assert!(d.out(is_join));
        d.answer(is_join, Err(cut()));
        assert!(d.moved());
        assert!(!d.out(is_join), "not without a pause");
        d.after(Duration::from_secs(2));
    }
    assert!(d.out(is_join));
}

/// G34, G35: the wish that came up during a join survives the join's failure too.
#[test]
fn g34_wish_during_failed_join() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.subscribe(&["t", "u"]);
    d.answer(is_join, Err(cut()));
    d.after(Duration::from_secs(1));
    let topics: Vec<_> = d
        .metadata_out()
        .topics
        .iter()
        .map(|t| t.to_string())
        .collect();
    assert_eq!(topics, ["t", "u"]);
}

/// G35: the subscription changes while join or sync is out: that one ends, then one more join.
#[test]
fn g35_subscription_changes_under_way() {
    for during_sync in [false, true] {
        let mut d = Desk::eager();
        d.subscribe(&["t"]);
        if during_sync {
            d.answer_join(joined("range", 1, "me", "boss"));
        }
        d.subscribe(&["t", "u"]);
        d.subscribe(&["u", "v", "t"]);
        if !during_sync {
            d.answer_join(joined("range", 1, "me", "boss"));
        }
        d.answer_sync(synced(&tps([0, 1])));
        assert_eq!(d.revoked(), tps([0, 1]));
        d.released(&tps([0, 1]));
        let metadata = d.metadata_out();
        let topics: Vec<_> = metadata.topics.iter().map(|t| t.to_string()).collect();
        assert_eq!(topics, ["t", "u", "v"]);
        d.answer_join(joined("range", 2, "me", "boss"));
        d.answer_sync(synced(&tps([0])));
        d.after(Duration::from_secs(2));
        assert_eq!(d.member.state(), Phase::Stable, "once");
    }
}

/// G35: an assignment with topics that are no longer wanted is not taken.
#[test]
fn g35_assignment_of_a_dropped_topic() {
    let mut d = Desk::eager();
    d.subscribe(&["t", "u"]);
    d.answer_join(joined("range", 1, "me", "boss"));
    d.subscribe(&["u"]);
    d.answer_sync(synced(&tps([0])));
    assert!(d.held.is_empty());
    assert!(d.noticed(|e| matches!(e, GroupEvent::NotSubscribed { .. })));
    assert!(d.out(is_join));
}

/// G47: the broker processed a join and the link died: the known id joins again.
#[test]
fn g47_lost_join_reply() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    let mut answer = join_error(79);
    answer.member_id = Arc::from("me-1");
    d.answer_join(answer);
    d.answer(is_join, Err(cut()));
    d.after(Duration::from_secs(1));
    assert_eq!(&*d.join_out().unwrap().member_id, "me-1");
}

/// G16, G44: 14, 15 and 16 on a join: find the coordinator, same member, after a pause.
#[test]
fn g16_coordinator_moves_on_join() {
    for code in [14, 15, 16] {
        let mut d = Desk::cooperative().member_of(4, &tps([0]));
        d.beat(27);
        d.answer_join(join_error(code));
        assert!(d.moved(), "{code}");
        assert!(!d.out(is_join));
        d.after(Duration::from_millis(500));
        assert_eq!(&*d.join_out().unwrap().member_id, "me");
        assert_eq!(d.metadata_out().owned, tps([0]), "nothing is lost by that");
    }
}

/// G16: the same on a sync: the member joins again with what it has.
#[test]
fn g16_coordinator_moves_on_sync() {
    for code in [14, 15, 16] {
        let mut d = Desk::cooperative().member_of(4, &tps([0]));
        d.beat(27);
        d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
        d.answer_sync(sync_error(code));
        assert!(d.moved(), "{code}");
        d.after(Duration::from_millis(500));
        assert_eq!(&*d.join_out().unwrap().member_id, "me");
        assert_eq!(d.metadata_out().owned, tps([0]));
        assert_eq!(
            d.metadata_out().generation,
            4,
            "the generation that gave it"
        );
    }
}

/// G31: no common assignor is fatal, and the error says what we offer.
#[test]
fn g31_no_common_protocol() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.answer_join(join_error(23));
    let error = d.fatal().unwrap();
    assert_eq!(error.code(), Some(23));
    assert!(
        error.to_string().contains("range, cooperative-sticky"),
        "{error}"
    );
    assert_eq!(d.member.state(), Phase::Failed);
}

/// G31: the sync's answer names another assignor than the join's: join again, take nothing.
#[test]
fn g31_names_differ() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.answer_join(joined("range", 1, "me", "boss"));
    let mut answer = synced(&tps([0]));
    answer.protocol_name = Some(Arc::from("roundrobin"));
    d.answer_sync(answer);
    assert!(d.held.is_empty());
    d.after(Duration::from_secs(1));
    assert!(d.out(is_join));
}

/// G31: the join's answer names an assignor that we did not offer.
#[test]
fn g31_assignor_not_offered() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.answer_join(joined("roundrobin", 1, "me", "me"));
    assert!(d.noticed(|e| matches!(e, GroupEvent::ProtocolMismatch { .. })));
    d.after(Duration::from_secs(1));
    assert!(d.out(is_join));
}

/// G32: a subscription that no request can carry is a typed error, before anything is sent.
#[test]
fn g32_subscription_too_large() {
    let mut cfg = config();
    cfg.request_bytes_max = 100_000;
    let mut d = Desk::new(cfg);
    let topics = (0..10_000)
        .map(|i| Arc::from(format!("topic-{i:05}")))
        .collect();
    d.member.set_subscription(d.now, topics);
    d.pump();
    assert!(!d.out(is_join));
    let error = d.fatal().unwrap();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.to_string().contains("request_bytes_max"), "{error}");
}

/// G32: a topic name that the format cannot carry, likewise.
#[test]
fn g32_topic_name_too_long() {
    let mut d = Desk::eager();
    let name: Arc<str> = Arc::from("x".repeat(40_000));
    d.member.set_subscription(d.now, vec![name]);
    d.pump();
    assert_eq!(d.fatal().unwrap().kind(), ErrorKind::Misuse);
}

/// G32: every reason that we give fits in what the broker takes.
#[test]
fn g32_reason_is_short() {
    let mut d = Desk::eager().member_of(1, &[]);
    d.subscribe(&["t", "u"]);
    let reason = d.join_out().unwrap().reason.clone().unwrap();
    assert!(!reason.is_empty() && reason.chars().count() <= 255);
}

/// What no retry can heal ends the membership with the broker's code.
#[test]
fn refusals_are_fatal() {
    for code in [24, 26, 30, 81, 82, 35, -1] {
        let mut d = Desk::eager();
        d.subscribe(&["t"]);
        d.answer_join(join_error(code));
        assert_eq!(d.fatal().map(|e| e.code()), Some(Some(code)));
    }
    for code in [30, 82] {
        let mut d = Desk::cooperative().member_of(3, &tps([1]));
        d.beat(code);
        assert_eq!(d.lost(), tps([1]));
        assert_eq!(d.fatal().map(|e| e.code()), Some(Some(code)));
    }
}

/// An answer of another kind is our own mistake, and says so.
#[test]
fn answer_of_another_kind() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.answer(is_join, Ok(Response::SyncGroup(sync_error(0))));
    assert_eq!(d.fatal().unwrap().kind(), ErrorKind::Bug);
}

/// Before any subscription nothing is sent, and nothing is waited for.
#[test]
fn idle_is_idle() {
    let mut d = Desk::eager();
    d.partitions(&[("t", 3)]);
    d.after(Duration::from_secs(600));
    assert!(d.sent.is_empty() && d.seen.is_empty());
    assert_eq!(d.member.state(), Phase::Idle);
}

/// Settings that cannot work are refused in words.
#[test]
fn config_is_checked() {
    let refused = |change: fn(&mut GroupConfig)| {
        let mut cfg = GroupConfig::new("g");
        change(&mut cfg);
        cfg.check().unwrap_err().to_string()
    };
    assert!(refused(|c| c.group = Arc::from("")).contains("group id"));
    assert!(refused(|c| c.assignors.clear()).contains("assignors"));
    assert!(refused(|c| c.heartbeat_interval = Duration::ZERO).contains("heartbeat_interval"));
    assert!(refused(|c| c.heartbeat_interval = c.session_timeout).contains("third"));
    assert!(refused(|c| c.drain_timeout = c.rebalance_timeout).contains("drain_timeout"));
    assert!(refused(|c| c.retry_backoff = Duration::ZERO).contains("retry_backoff"));
}
