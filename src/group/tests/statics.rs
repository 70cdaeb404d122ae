//! Static members (KIP-345): who they are outlives the process.

use super::*;

fn static_config() -> GroupConfig {
    let mut cfg = config();
    cfg.instance_id = Some(Arc::from("till-7"));
    cfg
}

fn instance_of(request: &Request) -> (Option<&str>, &str) {
    let (instance, id) = match request {
        Request::JoinGroup(r) => (&r.instance_id, &r.member_id),
        Request::SyncGroup(r) => (&r.instance_id, &r.member_id),
        Request::Heartbeat(r) => (&r.instance_id, &r.member_id),
        other => panic!("{other:?}"),
    };
    (instance.as_deref(), id)
}

/// Every request names the instance, in a version that can.
#[test]
fn every_request_carries_the_instance_id() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    let join = desk.answer(
        is_join,
        Ok(Response::JoinGroup(joined("range", 3, "me", "boss"))),
    );
    assert_eq!(instance_of(&join), (Some("till-7"), ""));
    assert!(join.versions().min >= 5);
    let sync = desk.answer(is_sync, Ok(Response::SyncGroup(synced(&tps([0])))));
    assert_eq!(instance_of(&sync), (Some("till-7"), "me"));
    desk.after(HEARTBEAT);
    let (_, beat) = desk.take(is_heartbeat).unwrap();
    assert_eq!(instance_of(&beat), (Some("till-7"), "me"));
}

/// G15: a commit names instance and member id, or neither.
#[test]
fn g15_the_instance_id_comes_with_a_member_id_or_not_at_all() {
    let mut desk = Desk::new(static_config());
    assert_eq!(desk.member.member(), None);
    desk.subscribe(&["t"]);
    assert_eq!(desk.member.member(), None);
    desk.answer_join(joined("range", 3, "me", "boss"));
    assert_eq!(desk.member.member(), None, "not before the assignment");
    desk.answer_sync(synced(&tps([0])));
    let member = desk.member.member().unwrap();
    assert_eq!((&*member.member_id, member.generation), ("me", 3));
    assert_eq!(member.instance_id.as_deref(), Some("till-7"));
    // Counted out: no member id any more, so no instance id either.
    desk.beat(25);
    assert_eq!(desk.member.member(), None);
}

/// A static member that closes says nothing; its next life takes over.
#[test]
fn a_static_member_stays_when_it_closes() {
    let mut desk = Desk::new(static_config()).member_of(3, &tps([0]));
    desk.leave();
    assert!(!desk.out(is_leave));
    assert_eq!(desk.member.state(), Phase::Left);
}

/// KIP-1092: either kind may be told to do what the other does.
#[test]
fn whether_closing_leaves_can_be_chosen() {
    let mut cfg = static_config();
    cfg.on_close = Some(OnClose::Leave);
    let mut desk = Desk::new(cfg).member_of(3, &tps([0]));
    desk.leave();
    let Some((_, Request::LeaveGroup(leave))) = desk.take(is_leave) else {
        panic!("it leaves");
    };
    assert_eq!(&*leave.member_id, "me");
    let mut cfg = config();
    cfg.on_close = Some(OnClose::Stay);
    let mut desk = Desk::new(cfg).member_of(3, &tps([0]));
    desk.leave();
    assert!(!desk.out(is_leave));
    assert_eq!(desk.member.state(), Phase::Left);
}

/// G14: the name belongs to another process: that is an error with its remedy, and nothing more
/// is ours.
#[test]
fn g14_fenced_by_a_twin() {
    let mut desk = Desk::new(static_config()).member_of(3, &tps([0]));
    desk.beat(82);
    let error = desk.fatal().unwrap();
    assert_eq!(error.code(), Some(82));
    let words = error.to_string();
    assert!(
        words.contains("till-7") && words.contains("instance_id"),
        "{words}"
    );
    assert_eq!(desk.lost(), tps([0]));
}

/// G14: a join of ours that was given up and served later is no twin: the name is taken back,
/// with a new member id. After that, or much later, it is one.
#[test]
fn g14_a_lost_join_is_no_twin() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    desk.answer(is_join, Err(cut()));
    desk.after(Duration::from_secs(1));
    desk.answer_join(joined("range", 3, "a", "boss"));
    desk.answer_sync(synced(&tps([0])));
    desk.seen();
    desk.beat(82);
    assert!(desk.fatal().is_none());
    assert_eq!(desk.lost(), tps([0]));
    assert!(desk.noticed(|e| *e == GroupEvent::FencedByOurself));
    desk.after(Duration::from_secs(1));
    let join = desk.answer_join(joined("range", 3, "c", "boss"));
    assert_eq!(&*join.member_id, "", "the old id is somebody else's");
    desk.answer_sync(synced(&tps([0])));
    desk.beat(82);
    assert!(desk.fatal().is_some(), "twice is a twin");
}

/// G14: we come back in the midst of a rebalance, and before the generation is complete the group
/// moves to a coordinator that knows our name's old id only. That is no twin; the second time it is.
#[test]
fn g14_an_id_that_was_never_written_down_may_be_forgotten() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    desk.answer_join(joined("range", 3, "b", "boss"));
    desk.answer_sync(sync_error(27));
    desk.after(Duration::from_secs(1));
    let join = desk.answer_join(join_error(82));
    assert_eq!(&*join.member_id, "b");
    assert!(desk.fatal().is_none());
    assert!(desk.noticed(|e| *e == GroupEvent::FencedByOurself));
    desk.after(Duration::from_secs(1));
    let join = desk.answer_join(joined("range", 3, "c", "boss"));
    assert_eq!(&*join.member_id, "", "the old id is nobody's");
    desk.answer_sync(sync_error(82));
    assert!(desk.fatal().is_some(), "twice is a twin");
}

/// G14: once a generation is complete the coordinator knows us for good.
#[test]
fn g14_after_a_generation_a_fence_is_a_twins() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    desk.answer_join(joined("range", 3, "b", "boss"));
    desk.answer_sync(synced(&tps([])));
    desk.beat(27);
    desk.answer_join(join_error(82));
    assert!(desk.fatal().is_some());
}

/// G14: long after the lost join, a fence is a twin's.
#[test]
fn g14_a_late_fence_is_a_twin() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    desk.answer(is_join, Err(cut()));
    desk.after(Duration::from_secs(1));
    desk.answer_join(joined("range", 3, "a", "boss"));
    desk.answer_sync(synced(&tps([0])));
    for _ in 0..40 {
        desk.beat(0);
    }
    desk.beat(82);
    assert!(desk.fatal().is_some());
}

/// G14: a join with an id that is known already is told from a new process: the same id again.
#[test]
fn g14_a_retried_rejoin_keeps_its_id() {
    let mut desk = Desk::new(static_config()).member_of(3, &[]);
    desk.beat(27);
    desk.answer(is_join, Err(cut()));
    desk.after(Duration::from_secs(2));
    assert_eq!(&*desk.join_out().unwrap().member_id, "me");
}

/// KIP-814: a static leader that comes back finds the shares as they were. What it learns of the
/// group's topics after that is no news, and no reason to disturb anyone.
#[test]
fn a_leader_that_comes_back_disturbs_nobody() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    let mut answer = leads(
        "range",
        3,
        vec![member("me", &["t"], &[], -1), member("b", &["u"], &[], -1)],
    );
    answer.skip_assignment = true;
    desk.answer_join(answer);
    let sync = desk.answer_sync(synced(&tps([0])));
    assert!(sync.assignments.is_empty());
    desk.partitions(&[("t", 2)]);
    desk.partitions(&[("t", 2), ("u", 5)]);
    assert_eq!(desk.member.state(), Phase::Stable);
    assert!(!desk.out(is_join));
    // What changes later does count.
    desk.partitions(&[("t", 2), ("u", 6)]);
    assert!(desk.revoked() == tps([0]) || desk.out(is_join));
}

/// A partition that came while the leader was away is shared out when it is back: its own
/// assignment says from what the shares were made.
#[test]
fn a_leader_that_comes_back_sees_what_it_missed() {
    let mut desk = Desk::new(static_config());
    desk.subscribe(&["t"]);
    desk.partitions(&[("t", 2)]);
    let others = || vec![member("me", &["t"], &[], -1)];
    desk.answer_join(leads("range", 3, others()));
    let Some((token, Request::SyncGroup(sync))) = desk.take(is_sync) else {
        panic!("it shares out");
    };
    let mine = sync.assignments[0].1.clone();
    assert!(decode_assignment(&mine).unwrap().user_data.is_some());
    let _ = token;
    for (count, again, early) in [
        (2, false, false),
        (3, true, false),
        (2, false, true),
        (3, true, true),
    ] {
        let mut desk = Desk::new(static_config());
        desk.subscribe(&["t"]);
        if early {
            desk.partitions(&[("t", count)]);
        }
        let mut answer = leads("range", 3, others());
        answer.skip_assignment = true;
        desk.answer_join(answer);
        desk.partitions(&[("t", count)]);
        let mut answer = synced(&[]);
        answer.assignment = mine.clone();
        desk.answer_sync(answer);
        assert_eq!(desk.revoked() == tps([0, 1]), again, "{count}");
    }
}

/// A static member dies before it has given up what is to be another's, and takes up its place
/// again without a join that others would hear of. The leader looks after those partitions, and so
/// does its own next life: nobody else would.
#[test]
fn what_was_to_change_hands_does_not_stay_nobodys() {
    let config = || {
        let mut cfg = static_config();
        cfg.assignors = vec![AssignorKind::CooperativeSticky];
        cfg
    };
    let waits = |desk: &mut Desk| {
        let mut waited = Duration::ZERO;
        while !desk.out(is_join) && waited < Duration::from_secs(300) {
            desk.beat(0);
            desk.after(HEARTBEAT);
            waited += HEARTBEAT;
        }
        waited
    };
    for (owned, hands_over) in [(tps([0, 1]), true), (tps([]), false)] {
        let mut desk = Desk::new(config());
        desk.partitions(&[("t", 2)]);
        desk.subscribe(&["t"]);
        let others = || {
            let owner = member("b", &["t"], &owned, 1);
            vec![member("me", &["t"], &[], -1), owner]
        };
        desk.answer_join(leads("cooperative-sticky", 2, others()));
        let Some((token, Request::SyncGroup(sync))) = desk.take(is_sync) else {
            panic!("it shares out");
        };
        let mine = sync.assignments.iter().find(|(who, _)| &**who == "me");
        let mut answer = synced(&[]);
        answer.assignment = mine.expect("its own").1.clone();
        let response = Ok(Response::SyncGroup(answer.clone()));
        desk.member.handle_response(desk.now, token, response);
        desk.pump();
        let waited = waits(&mut desk);
        assert_eq!(waited < Duration::from_secs(90), hands_over, "{waited:?}");
        assert!(
            !hands_over || waited > Duration::from_secs(50),
            "not at once"
        );

        let mut next_life = Desk::new(config());
        next_life.partitions(&[("t", 2)]);
        next_life.subscribe(&["t"]);
        let mut join = leads("cooperative-sticky", 2, others());
        join.skip_assignment = true;
        next_life.answer_join(join);
        next_life.answer_sync(answer);
        assert_eq!(waits(&mut next_life) < Duration::from_secs(90), hands_over);
    }
}

/// What cannot be an instance id is refused before anything is sent.
#[test]
fn illegal_instance_ids_are_refused() {
    for id in ["", ".", "..", "a b", "ä", &"x".repeat(250)] {
        let mut cfg = config();
        cfg.instance_id = Some(Arc::from(id));
        let told = cfg.check().unwrap_err().to_string();
        assert!(told.contains("instance_id"), "{told}");
    }
    let mut cfg = config();
    cfg.instance_id = Some(Arc::from("a.b_c-9"));
    cfg.check().unwrap();
}
