//! Heartbeats, the session's clock, and the ends of a membership.

use super::*;

/// G04, G23: 25 on a heartbeat: lost at once, no drain, and a new member joins.
#[test]
fn g04_unknown_member() {
    let mut d = Desk::eager().member_of(4, &tps([0, 1]));
    d.beat(25);
    assert_eq!(d.lost(), tps([0, 1]));
    assert!(d.revoked().is_empty());
    assert_eq!(&*d.join_out().unwrap().member_id, "");
    assert!(d.member.member().is_none(), "nothing may be committed");
}

/// G04: 22 on a heartbeat: lost at once; the id is kept.
#[test]
fn g04_illegal_generation() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.beat(22);
    assert_eq!(d.lost(), tps([0]));
    assert_eq!(&*d.join_out().unwrap().member_id, "me");
}

/// G23: lost in the middle of a drain: what drains is lost too, and its release changes nothing.
#[test]
fn g23_lost_while_draining() {
    let mut d = Desk::eager().member_of(4, &tps([0, 1]));
    d.beat(27);
    d.released(&tps([0]));
    d.beat(25);
    assert_eq!(d.lost(), tps([1]));
    assert!(d.out(is_join));
    d.member.released(d.now, &tps([1]));
    d.pump();
    assert_eq!(d.sent.iter().filter(|s| is_join(&s.2)).count(), 1);
}

/// G04, I7: the answer to a heartbeat of an earlier generation says nothing about this one.
#[test]
fn g04_stale_heartbeat_answer() {
    for code in [22, 25, 27] {
        let mut d = Desk::cooperative().member_of(4, &tps([0]));
        d.after(HEARTBEAT);
        assert!(d.out(is_heartbeat));
        d.subscribe(&["t", "u"]);
        d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
        d.answer_sync(synced(&tps([0])));
        d.answer_heartbeat(code);
        assert!(d.lost().is_empty(), "{code}");
        assert_eq!(d.member.state(), Phase::Stable, "{code}");
    }
}

/// G04: 22 while the join is out: its own answer decides, since it was answered.
#[test]
fn g04_illegal_generation_while_joining() {
    let mut d = Desk::cooperative().member_of(4, &tps([0]));
    d.beat(27);
    d.beat(22);
    assert!(d.lost().is_empty());
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    assert!(d.lost().is_empty());
}

/// G04: 25 while the join is out: the coordinator does not hold it, so nothing is ours; the join
/// ends as it may, and says nothing of what is owned.
#[test]
fn g04_unknown_member_while_joining() {
    let mut d = Desk::cooperative().member_of(4, &tps([0]));
    d.beat(27);
    d.beat(25);
    assert_eq!(d.lost(), tps([0]));
    assert_eq!(
        d.sent.iter().filter(|s| is_join(&s.2)).count(),
        1,
        "that one goes on"
    );
    d.answer_join(join_error(25));
    assert_eq!(&*d.join_out().unwrap().member_id, "");
    assert_eq!(d.metadata_out().owned, []);
}

/// G16, G44: 14, 15, 16 and a cut link on a heartbeat: look the coordinator up, stay a member,
/// and beat again soon.
#[test]
fn g16_coordinator_moves_on_heartbeat() {
    for code in [14, 15, 16, 0] {
        let mut d = Desk::eager().member_of(4, &tps([0]));
        d.after(HEARTBEAT);
        match code {
            0 => drop(d.answer(is_heartbeat, Err(cut()))),
            code => drop(d.answer_heartbeat(code)),
        }
        assert!(d.moved());
        assert!(d.lost().is_empty() && d.revoked().is_empty());
        d.after(Duration::from_millis(200));
        let beat = d.answer_heartbeat(0);
        assert_eq!((beat.generation, &*beat.member_id), (4, "me"));
        assert_eq!(d.member.state(), Phase::Stable);
    }
}

/// G44: no other answer sends us looking for the coordinator.
#[test]
fn g44_other_errors_do_not_move_the_coordinator() {
    for code in [27, 22, 25, 7, 30] {
        let mut d = Desk::eager().member_of(4, &tps([0]));
        d.beat(code);
        assert!(!d.moved(), "{code}");
    }
}

/// G18, I10: a coordinator that is always elsewhere is asked at a bounded rate.
#[test]
fn g18_bounded_rate() {
    let mut d = Desk::eager().member_of(4, &[]);
    let start = d.now;
    let mut beats = 0;
    while d.now.since(start) < Duration::from_secs(60) {
        if d.out(is_heartbeat) {
            beats += 1;
            d.answer_heartbeat(16);
        }
        d.after(Duration::from_millis(10));
    }
    assert!((40..=90).contains(&beats), "{beats} heartbeats in a minute");
}

/// G21: the coordinator holds the join longer than the session time-out: no self-expiry, since
/// heartbeats are answered meanwhile.
#[test]
fn g21_join_longer_than_the_session() {
    let mut d = Desk::cooperative().member_of(4, &tps([0]));
    d.beat(27);
    assert!(d.out(is_join));
    let start = d.now;
    while d.now.since(start) < SESSION + SESSION / 2 {
        d.beat(27);
    }
    assert!(d.lost().is_empty());
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    assert!(d.lost().is_empty());
    assert_eq!(d.held.len(), 1);
}

/// G21: an eager member holds nothing while it joins: there is nothing to expire, and no
/// heartbeat to send.
#[test]
fn g21_eager_join_held_long() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.beat(27);
    d.released(&tps([0]));
    d.after(Duration::from_secs(64));
    assert!(!d.out(is_heartbeat));
    assert!(!d.noticed(|e| *e == GroupEvent::SessionExpired));
    d.answer_join(joined("range", 5, "me", "boss"));
    d.answer_sync(synced(&tps([0])));
    assert_eq!(d.granted(), tps([0]));
    assert!(d.member.session_until().unwrap() >= d.now + SESSION);
}

/// G22: no heartbeat gets through for the session time-out: lost by our own clock, counted from
/// the last heartbeat *sent* that was answered.
#[test]
fn g22_session_expires_unreachable() {
    let mut d = Desk::cooperative().member_of(4, &tps([0]));
    d.after(HEARTBEAT);
    let sent_at = d.now;
    d.after(Duration::from_secs(2));
    d.answer_heartbeat(0);
    assert_eq!(d.member.session_until(), Some(sent_at + SESSION));
    d.after(HEARTBEAT);
    while d.now.0 + 1_000_000_000 < (sent_at + SESSION).0 {
        if d.out(is_heartbeat) {
            d.answer(is_heartbeat, Err(cut()));
        }
        d.after(Duration::from_secs(1));
    }
    assert!(d.lost().is_empty());
    d.after(Duration::from_secs(1));
    assert_eq!(d.lost(), tps([0]));
    assert!(d.noticed(|e| *e == GroupEvent::SessionExpired));
    assert_eq!(
        &*d.join_out().unwrap().member_id,
        "me",
        "perhaps we were not expelled"
    );
    assert!(d.member.session_until().is_none());
}

/// G22: heartbeats that are never answered at all expire the session too; a late answer to one of
/// them does not bring it back.
#[test]
fn g22_silence() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.after(SESSION);
    assert_eq!(d.lost(), tps([0]));
    let joins = d.sent.iter().filter(|s| is_join(&s.2)).count();
    d.answer_heartbeat(0);
    assert!(d.held.is_empty());
    assert_eq!(d.sent.iter().filter(|s| is_join(&s.2)).count(), joins);
}

/// G22: the session ends while the sync is out: its answer grants anew.
#[test]
fn g22_expires_during_sync() {
    let mut d = Desk::cooperative().member_of(4, &tps([0]));
    d.beat(27);
    d.answer_join(joined("cooperative-sticky", 5, "me", "boss"));
    d.after(SESSION);
    assert_eq!(d.lost(), tps([0]));
    assert_eq!(d.member.state(), Phase::Syncing);
    d.answer_sync(synced(&tps([0])));
    assert_eq!(d.granted(), tps([0]));
}

/// G19: a heartbeat goes out every interval whatever the rest does, and never two at once.
#[test]
fn g19_heartbeats_keep_their_pace() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    let start = d.now;
    for _ in 0..20 {
        d.beat(0);
    }
    assert_eq!(d.now.since(start), HEARTBEAT * 20);
    d.after(Duration::from_secs(10));
    assert_eq!(d.sent.iter().filter(|s| is_heartbeat(&s.2)).count(), 1);
}

/// G43: leaving says so to the coordinator, and ends.
#[test]
fn g43_leaves() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    d.leave();
    assert_eq!(d.lost(), tps([0]), "the engine had not drained");
    let answer = LeaveGroupResponse {
        throttle: Duration::ZERO,
        code: Code(0),
    };
    let request = d.answer(is_leave, Ok(Response::LeaveGroup(answer)));
    assert!(matches!(request, Request::LeaveGroup(r) if &*r.member_id == "me"));
    assert!(d.seen.iter().any(|a| matches!(a, GroupAction::Left)));
    assert_eq!(d.member.state(), Phase::Left);
    d.after(Duration::from_secs(600));
    assert!(!d.out(is_heartbeat));
}

/// G43: the coordinator is elsewhere: the leave is sent again.
#[test]
fn g43_leave_is_retried() {
    let mut d = Desk::eager().member_of(4, &[]);
    d.leave();
    let answer = LeaveGroupResponse {
        throttle: Duration::ZERO,
        code: Code(16),
    };
    d.answer(is_leave, Ok(Response::LeaveGroup(answer)));
    assert!(d.moved());
    d.after(Duration::from_millis(200));
    d.answer(is_leave, Err(cut()));
    d.after(Duration::from_millis(500));
    let answer = LeaveGroupResponse {
        throttle: Duration::ZERO,
        code: Code(25),
    };
    d.answer(is_leave, Ok(Response::LeaveGroup(answer)));
    assert_eq!(d.member.state(), Phase::Left, "25: we are out");
}

/// G43: no coordinator at all: leaving ends within its bound all the same.
#[test]
fn g43_no_coordinator() {
    let mut d = Desk::eager().member_of(4, &[]);
    d.leave();
    for _ in 0..100 {
        if d.out(is_leave) {
            d.answer(is_leave, Err(cut()));
        }
        d.after(Duration::from_millis(50));
    }
    assert_eq!(d.member.state(), Phase::Left);
    assert!(d.noticed(|e| *e == GroupEvent::LeaveAbandoned));

    let mut d = Desk::eager().member_of(4, &[]);
    d.leave();
    d.after(config().leave_timeout);
    assert_eq!(d.member.state(), Phase::Left, "nor does silence hold it up");
}

/// G43, G47: leaving while the first join is out: only its answer tells who must leave.
#[test]
fn g43_leaves_during_the_first_join() {
    let mut d = Desk::eager();
    d.subscribe(&["t"]);
    d.leave();
    assert!(!d.out(is_leave));
    d.answer_join(joined("range", 1, "me", "boss"));
    assert!(d.out(is_leave), "no ghost stays behind");
    d.after(config().leave_timeout);
    assert_eq!(d.member.state(), Phase::Left);
}

/// Who never joined leaves without a word.
#[test]
fn leaves_before_joining() {
    let mut d = Desk::eager();
    d.leave();
    assert_eq!(d.member.state(), Phase::Left);
    assert!(d.sent.is_empty());
}

/// I7: answers to requests that are no longer wanted change nothing.
#[test]
fn answers_to_nobody() {
    let mut d = Desk::eager().member_of(4, &tps([0]));
    let answer = Response::JoinGroup(join_error(25));
    d.member.handle_response(d.now, Token(999), Ok(answer));
    d.pump();
    assert_eq!(d.member.state(), Phase::Stable);
    assert!(d.seen.is_empty());
}
