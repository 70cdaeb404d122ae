//! One member of the new protocol, exact answers, virtual time.

use super::*;
use crate::group::{GroupEvent, OnClose};
use crate::wire::Request;
use crate::wire::message::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};

const INTERVAL: Duration = Duration::from_secs(5);
const SESSION: Duration = Duration::from_secs(45);
const T: TopicId = TopicId([1; 16]);

struct Desk {
    member: ConsumerMembership,
    now: Now,
    sent: Vec<(Token, ConsumerGroupHeartbeatRequest)>,
    seen: Vec<GroupAction>,
    over: bool,
}

fn config() -> GroupConfig {
    let mut cfg = GroupConfig::new("g");
    cfg.session_timeout = SESSION;
    cfg.rebalance_timeout = Duration::from_secs(60);
    cfg.drain_timeout = Duration::from_secs(30);
    cfg
}

fn statically() -> GroupConfig {
    let mut cfg = config();
    cfg.instance_id = Some(Arc::from("till-7"));
    cfg
}

fn tps<const N: usize>(ps: [i32; N]) -> Vec<TopicPartition> {
    ps.into_iter()
        .map(|p| TopicPartition::new("t", p))
        .collect()
}

fn ok(epoch: i32, assigned: Option<&[i32]>) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        throttle: Duration::ZERO,
        code: Code::NONE,
        message: None,
        member_id: None,
        member_epoch: epoch,
        interval: INTERVAL,
        assignment: assigned.map(|a| vec![(T, a.to_vec())]),
    }
}

fn error(code: i16) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        code: Code(code),
        member_epoch: 0,
        interval: Duration::ZERO,
        ..ok(0, None)
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::Transport, "cut").retriable()
}

impl Desk {
    fn new(cfg: GroupConfig) -> Desk {
        cfg.check().unwrap();
        let now = Now(1_000_000_000_000);
        let mut desk = Desk {
            member: ConsumerMembership::new(cfg, now),
            now,
            sent: Vec::new(),
            seen: Vec::new(),
            over: false,
        };
        desk.member.set_subscription(now, vec![Arc::from("t")]);
        desk.pump();
        desk
    }

    /// In the group at epoch 3, with these partitions, and the coordinator knows it.
    fn member_with(cfg: GroupConfig, partitions: &[i32]) -> Desk {
        let mut desk = Desk::new(cfg);
        desk.answer(ok(3, Some(partitions)));
        desk.names();
        desk.answer(ok(3, None));
        assert!(desk.sent.is_empty());
        desk.seen.clear();
        desk
    }

    fn names(&mut self) {
        let name = |id: TopicId| (id == T).then(|| Arc::from("t"));
        self.member.set_names(self.now, name);
        self.pump();
    }

    fn pump(&mut self) {
        while let Some(action) = self.member.poll_action() {
            assert!(!self.over, "{action:?} after the end");
            match action {
                GroupAction::Send {
                    token,
                    request: Request::ConsumerGroupHeartbeat(request),
                    ..
                } => self.sent.push((token, request)),
                GroupAction::Fatal(_) | GroupAction::Left => {
                    self.over = true;
                    self.seen.push(action);
                }
                other => self.seen.push(other),
            }
        }
        let waits = !self.sent.is_empty() || self.member.next_deadline().is_some();
        let over = matches!(self.member.state(), Phase::Left | Phase::Failed);
        assert!(over || waits, "waits for nothing");
    }

    fn after(&mut self, pass: Duration) {
        let end = self.now + pass;
        let mut turns = 0;
        while let Some(at) = self.member.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.member.handle_timeout(self.now);
            self.pump();
            turns += 1;
            assert!(turns < 10_000, "spins");
        }
        self.now = end;
    }

    fn take(&mut self) -> (Token, ConsumerGroupHeartbeatRequest) {
        assert!(!self.sent.is_empty(), "nothing is out");
        self.sent.remove(0)
    }

    fn answer(&mut self, with: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatRequest {
        self.answered(Ok(Response::ConsumerGroupHeartbeat(with)))
    }

    fn answered(&mut self, with: Result<Response, Error>) -> ConsumerGroupHeartbeatRequest {
        let (token, request) = self.take();
        self.member.handle_response(self.now, token, with);
        self.pump();
        request
    }

    /// The next heartbeat, whenever it comes.
    fn next(&mut self) -> &ConsumerGroupHeartbeatRequest {
        for _ in 0..100 {
            if self.sent.is_empty() {
                self.after(Duration::from_millis(200));
            }
        }
        &self.sent[0].1
    }

    fn released(&mut self, partitions: &[TopicPartition]) {
        self.member.released(self.now, partitions);
        self.pump();
    }

    fn owned(&self) -> Vec<TopicPartition> {
        self.member.owned().cloned().collect()
    }

    fn noticed(&self, event: &GroupEvent) -> bool {
        let is = |a: &GroupAction| matches!(a, GroupAction::Notice(e) if e == event);
        self.seen.iter().any(is)
    }

    fn fatal(&self) -> Option<&Error> {
        self.seen.iter().find_map(|a| match a {
            GroupAction::Fatal(e) => Some(e),
            _ => None,
        })
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
}

/// The join says everything; what follows says only what is new.
#[test]
fn joins_in_full_and_then_says_what_is_new() {
    let mut cfg = config();
    cfg.server_assignor = Some(Arc::from("range"));
    cfg.rack = Some(Arc::from("r1"));
    let mut desk = Desk::new(cfg);
    let join = desk.answer(ok(3, Some(&[0, 2])));
    assert_eq!(join.member_epoch, 0);
    assert!(!join.member_id.is_empty());
    assert_eq!(join.topics.as_deref(), Some(&[Arc::from("t")][..]));
    assert_eq!(join.owned, Some(Vec::new()));
    assert_eq!(join.rebalance_timeout, Some(Duration::from_secs(60)));
    assert_eq!(join.assignor.as_deref(), Some("range"));
    assert_eq!(join.rack.as_deref(), Some("r1"));
    // Topics without a name are asked for, and reported only once they are leased.
    assert!(desk.seen.iter().any(|a| matches!(a, GroupAction::Refresh)));
    assert!(desk.owned().is_empty() && desk.sent.is_empty());
    desk.names();
    assert_eq!(desk.owned(), tps([0, 2]));
    let ack = desk.answer(ok(3, None));
    assert_eq!(ack.member_id, join.member_id);
    assert_eq!(
        (ack.member_epoch, ack.owned),
        (3, Some(vec![(T, vec![0, 2])]))
    );
    assert_eq!(
        (ack.topics, ack.rebalance_timeout, ack.assignor),
        (None, None, None)
    );
    assert!(desk.sent.is_empty(), "no news, no heartbeat");
    desk.after(INTERVAL);
    let beat = desk.answer(ok(3, None));
    assert_eq!(
        (beat.member_epoch, beat.owned, beat.topics),
        (3, None, None)
    );
}

/// What goes is drained first, reported gone once it is released, and until then still ours.
#[test]
fn what_goes_is_given_back_first() {
    let mut desk = Desk::member_with(config(), &[0, 1, 2]);
    desk.after(INTERVAL);
    desk.answer(ok(3, Some(&[0])));
    assert_eq!(desk.revoked(), tps([1, 2]));
    assert_eq!(desk.owned(), tps([0, 1, 2]));
    desk.after(INTERVAL);
    let beat = desk.answer(ok(3, None));
    assert_eq!(
        beat.owned, None,
        "heartbeats go on through the drain, and claim no end of it"
    );
    desk.released(&tps([1, 2]));
    let ack = desk.answer(ok(4, Some(&[0, 3])));
    assert_eq!((ack.member_epoch, ack.owned), (3, Some(vec![(T, vec![0])])));
    assert_eq!(desk.owned(), tps([0, 3]));
    assert_eq!(desk.member.member().unwrap().generation, 4);
    // Part of a drain may end before the rest.
    desk.answer(ok(4, None));
    desk.after(INTERVAL);
    desk.answer(ok(4, Some(&[])));
    desk.released(&tps([3]));
    let ack = desk.answer(ok(4, None));
    assert_eq!(ack.owned, Some(vec![(T, vec![0])]));
}

/// G25: given back and given again while it drains: another lease, after the drain.
#[test]
fn g25_given_again_while_it_drains() {
    let mut desk = Desk::member_with(config(), &[0, 1]);
    desk.after(INTERVAL);
    desk.answer(ok(3, Some(&[0])));
    desk.after(INTERVAL);
    desk.answer(ok(4, Some(&[0, 1])));
    assert_eq!(desk.owned(), tps([0, 1]));
    let granted = |a: &GroupAction| matches!(a, GroupAction::Granted { .. });
    assert!(!desk.seen.iter().any(granted));
    desk.released(&tps([1]));
    assert!(desk.seen.iter().any(granted));
    assert_eq!(desk.owned(), tps([0, 1]));
}

/// F28: a topic made anew has another id: its partitions are other leases.
#[test]
fn f28_another_id_is_another_lease() {
    let mut desk = Desk::member_with(config(), &[0]);
    desk.after(INTERVAL);
    let anew = TopicId([9; 16]);
    let mut answer = ok(4, Some(&[]));
    answer.assignment = Some(vec![(anew, vec![0])]);
    desk.answer(answer);
    assert_eq!(desk.revoked(), tps([0]));
    desk.member.set_names(desk.now, |_| Some(Arc::from("t")));
    desk.pump();
    desk.released(&tps([0]));
    assert_eq!(desk.owned(), tps([0]));
    assert_eq!(desk.take().1.owned, Some(vec![(anew, vec![0])]));
}

/// After a heartbeat that nobody answered the next one says everything, under the same epoch: so
/// the coordinator takes it though it may have moved on.
#[test]
fn after_a_lost_answer_everything_is_said() {
    let mut desk = Desk::member_with(config(), &[0, 1]);
    desk.after(INTERVAL);
    desk.answered(Err(cut()));
    assert!(
        desk.seen
            .iter()
            .any(|a| matches!(a, GroupAction::CoordinatorMoved))
    );
    assert_eq!(desk.owned(), tps([0, 1]), "nothing is lost by that");
    let full = desk.next().clone();
    assert_eq!(full.member_epoch, 3);
    assert_eq!(full.owned, Some(vec![(T, vec![0, 1])]));
    assert!(full.topics.is_some() && full.rebalance_timeout.is_some());
}

/// G16: no coordinator, a loading one, another one: the same member at the same epoch.
#[test]
fn g16_the_coordinator_moves() {
    for code in [14, 15, 16] {
        let mut desk = Desk::member_with(config(), &[0]);
        desk.after(INTERVAL);
        let said = desk.answer(error(code));
        assert!(
            desk.seen
                .iter()
                .any(|a| matches!(a, GroupAction::CoordinatorMoved))
        );
        let again = desk.next().clone();
        assert_eq!((again.member_epoch, again.member_id), (3, said.member_id));
        assert_eq!(desk.owned(), tps([0]));
    }
}

/// G23: fenced, unknown, or the group is gone: lost at once, and back under the same id.
#[test]
fn g23_fenced_is_lost() {
    for code in [110, 25, 69] {
        let mut desk = Desk::member_with(config(), &[0, 1]);
        desk.after(INTERVAL);
        let said = desk.answer(error(code));
        assert_eq!(desk.lost(), tps([0, 1]));
        assert_eq!(desk.member.member(), None);
        let join = desk.answer(ok(7, Some(&[1])));
        assert_eq!((join.member_epoch, &join.member_id), (0, &said.member_id));
        assert_eq!(join.owned, Some(Vec::new()));
        desk.names();
        assert_eq!(desk.owned(), tps([1]));
    }
}

/// G18: a coordinator that fences every join is not stormed.
#[test]
fn g18_joins_are_paced() {
    let mut desk = Desk::new(config());
    let mut joins = 0;
    let end = desk.now + Duration::from_secs(60);
    while desk.now < end {
        if desk.sent.is_empty() {
            desk.after(Duration::from_millis(50));
        } else {
            desk.answer(error(110));
            joins += 1;
        }
    }
    assert!((10..100).contains(&joins), "{joins}");
}

/// G37: an epoch that cannot be is passed over; an interval of nothing has a floor, and one
/// without end a ceiling.
#[test]
fn g37_epochs_and_intervals_that_cannot_be() {
    for epoch in [0, -1, -2, i32::MIN, 2] {
        let mut desk = Desk::member_with(config(), &[0]);
        desk.after(INTERVAL);
        desk.answer(ok(epoch, Some(&[])));
        assert!(desk.noticed(&GroupEvent::EpochRefused { epoch }));
        assert_eq!(desk.owned(), tps([0]));
        assert_eq!(desk.member.member().unwrap().generation, 3);
        assert_eq!(desk.next().member_epoch, 3);
    }
    for (interval, least, most) in [
        (Duration::ZERO, 5, 120),
        (Duration::from_secs(1_000_000), 3, 6),
    ] {
        let mut desk = Desk::member_with(config(), &[0]);
        let mut beats = 0;
        let end = desk.now + SESSION;
        while desk.now < end {
            if desk.sent.is_empty() {
                desk.after(Duration::from_millis(20));
                continue;
            }
            let mut answer = ok(3, None);
            answer.interval = interval;
            desk.answer(answer);
            beats += 1;
        }
        let most = if interval.is_zero() { 460 } else { most };
        assert!((least..=most).contains(&beats), "{interval:?}: {beats}");
        assert_eq!(desk.owned(), tps([0]), "the session lasts");
    }
}

/// G22: nothing heard for a session: nothing is ours. The coordinator may still count us in, and
/// is told that we have nothing.
#[test]
fn g22_the_session_ends_by_our_own_clock() {
    let mut desk = Desk::member_with(config(), &[0, 1]);
    desk.after(INTERVAL);
    let (late, _) = desk.take();
    desk.after(SESSION);
    assert_eq!(desk.lost(), tps([0, 1]));
    assert!(desk.noticed(&GroupEvent::SessionExpired));
    // An answer to the old heartbeat brings nothing back.
    let answer = Response::ConsumerGroupHeartbeat(ok(3, Some(&[0, 1])));
    desk.member.handle_response(desk.now, late, Ok(answer));
    desk.pump();
    assert!(desk.owned().is_empty());
    let full = desk.answer(ok(3, Some(&[0, 1])));
    assert_eq!((full.member_epoch, full.owned), (3, Some(Vec::new())));
    desk.names();
    assert_eq!(desk.owned(), tps([0, 1]), "new leases");
}

/// Not released in time: lost, and reported gone.
#[test]
fn a_revoke_that_takes_too_long_is_lost() {
    let mut desk = Desk::member_with(config(), &[0, 1]);
    desk.after(INTERVAL);
    desk.answer(ok(3, Some(&[0])));
    for _ in 0..12 {
        desk.after(INTERVAL);
        while !desk.sent.is_empty() {
            desk.answer(ok(3, None));
        }
    }
    assert_eq!(desk.lost(), tps([1]));
    assert_eq!(desk.owned(), tps([0]));
}

/// G22: the coordinator puts out whoever does not report in time that it has given back, with all
/// that it has. Released and not reported is not enough: our own clock must know.
#[test]
fn g22_a_report_that_gets_lost_ends_the_session() {
    let mut desk = Desk::member_with(config(), &[0, 1]);
    desk.after(INTERVAL);
    let asked = desk.now;
    // The coordinator has asked here already; we hear of it with the next answer.
    desk.answered(Err(cut()));
    desk.next();
    desk.answer(ok(3, Some(&[0])));
    desk.after(INTERVAL);
    desk.answer(ok(3, None));
    desk.released(&tps([1]));
    let until = desk.member.session_until().unwrap();
    assert!(until <= asked + Duration::from_secs(60));
    while desk.now < asked + Duration::from_secs(60) {
        if desk.sent.is_empty() {
            desk.after(Duration::from_millis(500));
        } else {
            desk.answered(Err(cut()));
        }
    }
    assert_eq!(desk.lost(), tps([0]));
    // With the report heard the session is as long as any.
    let mut desk = Desk::member_with(config(), &[0, 1]);
    desk.after(INTERVAL);
    desk.answer(ok(3, Some(&[0])));
    desk.released(&tps([1]));
    let told = desk.now;
    desk.answer(ok(4, None));
    assert_eq!(desk.member.session_until(), Some(told + SESSION));
}

/// G43: leaving says so, with -1; and tries again where the coordinator moves, within its time.
#[test]
fn g43_leaves() {
    let mut desk = Desk::member_with(config(), &[0]);
    desk.member.leave(desk.now);
    desk.pump();
    assert_eq!(desk.lost(), tps([0]));
    let leave = desk.answer(error(16));
    assert_eq!((leave.member_epoch, leave.instance_id), (-1, None));
    desk.after(Duration::from_secs(1));
    desk.answer(ok(-1, None));
    assert_eq!(desk.member.state(), Phase::Left);
    // Nobody answers.
    let mut desk = Desk::member_with(config(), &[0]);
    desk.member.leave(desk.now);
    desk.pump();
    desk.after(Duration::from_secs(5));
    assert_eq!(desk.member.state(), Phase::Left);
    assert!(desk.noticed(&GroupEvent::LeaveAbandoned));
}

/// A join that is out may have made us a member: it is taken back.
#[test]
fn a_join_that_is_out_is_taken_back() {
    let mut desk = Desk::new(config());
    desk.member.leave(desk.now);
    desk.pump();
    desk.take();
    assert_eq!(desk.take().1.member_epoch, -1);
}

/// KIP-1092: a static member leaves its place open (-2) unless told to leave; a dynamic one that
/// is told to stay says nothing.
#[test]
fn whether_closing_leaves_can_be_chosen() {
    let leave = |desk: &mut Desk| {
        desk.member.leave(desk.now);
        desk.pump();
        desk.sent.first().map(|(_, r)| r.member_epoch)
    };
    let mut cfg = statically();
    assert_eq!(leave(&mut Desk::member_with(cfg.clone(), &[0])), Some(-2));
    cfg.on_close = Some(OnClose::Leave);
    assert_eq!(leave(&mut Desk::member_with(cfg, &[0])), Some(-1));
    let mut cfg = config();
    cfg.on_close = Some(OnClose::Stay);
    let mut desk = Desk::member_with(cfg, &[0]);
    assert_eq!(leave(&mut desk), None);
    assert_eq!(desk.member.state(), Phase::Left);
}

/// G14: our own join got lost, and the coordinator takes us for a stranger with our name: the
/// place is given up and taken again, at once and under the same id.
#[test]
fn g14_a_lost_join_is_no_twin() {
    let mut desk = Desk::new(statically());
    let first = desk.answered(Err(cut()));
    desk.next();
    desk.answer(error(111));
    let release = desk.answer(ok(-2, None));
    assert_eq!(
        (release.member_epoch, &release.member_id),
        (-2, &first.member_id)
    );
    assert_eq!(release.instance_id.as_deref(), Some("till-7"));
    let join = desk.answer(ok(3, Some(&[0])));
    assert_eq!((join.member_epoch, join.member_id), (0, first.member_id));
    assert!(!desk.noticed(&GroupEvent::InstanceTaken));
}

/// G14: the name is somebody else's: no release of what is not ours, and the join is tried until
/// the old session is over.
#[test]
fn g14_a_name_that_is_taken_is_waited_for() {
    let mut desk = Desk::new(statically());
    for _ in 0..20 {
        assert_eq!(desk.next().member_epoch, 0);
        desk.answer(error(111));
    }
    assert!(desk.noticed(&GroupEvent::InstanceTaken));
    desk.next();
    desk.answer(ok(3, Some(&[0])));
    desk.names();
    assert_eq!(desk.owned(), tps([0]));
    // The same where our own join may have been served, and was not.
    let mut desk = Desk::new(statically());
    desk.answered(Err(cut()));
    desk.next();
    desk.answer(error(111));
    desk.answer(error(82));
    assert!(desk.fatal().is_none());
    assert!(desk.noticed(&GroupEvent::InstanceTaken));
    assert_eq!(desk.next().member_epoch, 0);
}

/// G14: our name was given to another process: an error, with its remedy.
#[test]
fn g14_fenced_by_a_twin() {
    let mut desk = Desk::member_with(statically(), &[0]);
    desk.after(INTERVAL);
    desk.answer(error(82));
    let words = desk.fatal().unwrap().to_string();
    assert!(words.contains("till-7"), "{words}");
    assert_eq!(desk.lost(), tps([0]));
}

/// Two members never make the same id, and one makes the same from the same seed.
#[test]
fn ids_come_from_the_seed() {
    let id = |seed: u64| {
        let mut cfg = config();
        cfg.seed = seed;
        Desk::new(cfg).take().1.member_id
    };
    assert_eq!(id(1), id(1));
    let ids: BTreeSet<_> = (0..1000).map(id).collect();
    assert_eq!(ids.len(), 1000);
}

/// A pattern for the broker goes in place of names.
#[test]
fn a_pattern_is_the_brokers_to_read() {
    let mut cfg = config();
    cfg.topic_regex = Some(Arc::from("t.*"));
    let mut desk = Desk::new(cfg);
    let join = desk.answer(error(128));
    assert_eq!(
        (join.topics, join.topic_regex.as_deref()),
        (None, Some("t.*"))
    );
    assert!(
        desk.fatal()
            .unwrap()
            .to_string()
            .contains("Topics::pattern")
    );
}
