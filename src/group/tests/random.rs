//! One member and a coordinator that answers anything, in any order that chance makes; then all is
//! well, and the member must have its place and its share.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Subscribe(u8),
    Counts(u8),
    /// The newest join is answered: a generation that we lead or another does.
    Join {
        leads: bool,
        others: u8,
        odd: u8,
    },
    /// It is answered with an error, which may bring a member id.
    JoinError(u8),
    Sync {
        share: u8,
        odd: u8,
    },
    SyncError(u8),
    Beat(u8),
    Leave(u8),
    /// The oldest request of all gets no answer.
    Cut,
    Release(u8),
    Pass(u16),
    GoodBye,
}

/// Codes that a coordinator gives, and one that it never does.
const CODES: [i16; 12] = [14, 15, 16, 22, 23, 24, 25, 26, 27, 79, 81, 999];

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0u8..8).prop_map(Op::Subscribe),
        2 => any::<u8>().prop_map(Op::Counts),
        10 => (any::<bool>(), any::<u8>(), any::<u8>())
            .prop_map(|(leads, others, odd)| Op::Join { leads, others, odd }),
        3 => any::<u8>().prop_map(Op::JoinError),
        10 => (any::<u8>(), any::<u8>()).prop_map(|(share, odd)| Op::Sync { share, odd }),
        3 => any::<u8>().prop_map(Op::SyncError),
        8 => any::<u8>().prop_map(Op::Beat),
        1 => any::<u8>().prop_map(Op::Leave),
        3 => Just(Op::Cut),
        6 => any::<u8>().prop_map(Op::Release),
        6 => any::<u16>().prop_map(Op::Pass),
        1 => Just(Op::GoodBye),
    ]
}

fn code(n: u8) -> i16 {
    CODES[usize::from(n) % CODES.len()]
}

fn topics(mask: u8) -> Vec<&'static str> {
    let all = [(1, "t"), (2, "u"), (4, "v")];
    all.into_iter()
        .filter(|(bit, _)| mask & bit != 0)
        .map(|(_, t)| t)
        .collect()
}

/// Partitions 0 to 7 of "t", by bit.
fn share(mask: u8) -> Vec<TopicPartition> {
    (0..8).filter(|p| mask & (1 << p) != 0).map(tp).collect()
}

fn assignor_of(request: &JoinGroupRequest, odd: u8) -> Arc<str> {
    match odd {
        0..230 => request.protocols[usize::from(odd) % request.protocols.len()]
            .0
            .clone(),
        _ => Arc::from("no-such"),
    }
}

struct Life {
    desk: Desk,
    generation: i32,
    me: u32,
    gone: bool,
}

impl Life {
    fn new(cooperative: bool) -> Life {
        let desk = if cooperative {
            Desk::cooperative()
        } else {
            Desk::eager()
        };
        Life {
            desk,
            generation: 1,
            me: 0,
            gone: false,
        }
    }

    fn id(&self) -> String {
        format!("me-{}", self.me)
    }

    fn step(&mut self, op: &Op) {
        match op.clone() {
            Op::Subscribe(mask) => self.desk.subscribe(&topics(mask.max(1))),
            Op::Counts(n) => self.desk.partitions(&[
                ("t", i32::from(n % 9)),
                ("u", i32::from(n / 64)),
                ("v", i32::from(n / 16 % 4)),
            ]),
            Op::Join { leads, others, odd } => self.join(leads, others, odd),
            Op::JoinError(n) => {
                let mut answer = join_error(code(n));
                if n & 0x80 != 0 || answer.code == Code(79) {
                    self.me += 1;
                    answer.member_id = self.id().into();
                }
                self.give(is_join, Ok(Response::JoinGroup(answer)));
            }
            Op::Sync { share: mask, odd } => {
                let mut answer = synced(&share(mask));
                match odd {
                    0..220 => {}
                    220..235 => answer.assignment = Bytes::from(vec![odd; usize::from(mask) % 9]),
                    235..245 => answer.assignment = Bytes::new(),
                    _ => {
                        let strange = [TopicPartition::new("stranger", 1)];
                        answer.assignment = encode_assignment(&strange).unwrap();
                    }
                }
                self.give(is_sync, Ok(Response::SyncGroup(answer)));
            }
            Op::SyncError(n) => {
                self.give(is_sync, Ok(Response::SyncGroup(sync_error(code(n)))));
            }
            Op::Beat(n) => {
                let code = if n < 160 { 0 } else { code(n) };
                let answer = HeartbeatResponse {
                    throttle: Duration::ZERO,
                    code: Code(code),
                };
                self.give(is_heartbeat, Ok(Response::Heartbeat(answer)));
            }
            Op::Leave(n) => {
                let code = if n < 128 { 0 } else { code(n) };
                let answer = LeaveGroupResponse {
                    throttle: Duration::ZERO,
                    code: Code(code),
                };
                self.give(is_leave, Ok(Response::LeaveGroup(answer)));
            }
            Op::Cut => {
                if !self.desk.sent.is_empty() {
                    let (token, ..) = self.desk.sent.remove(0);
                    self.desk
                        .member
                        .handle_response(self.desk.now, token, Err(cut()));
                    self.desk.pump();
                }
            }
            Op::Release(mask) => {
                // What is due now comes first, as with a driver.
                self.desk.after(Duration::ZERO);
                let chosen = share(mask);
                let draining = self.desk.draining.iter().filter(|p| chosen.contains(p));
                let draining: Vec<_> = draining.cloned().collect();
                self.desk.released(&draining);
            }
            Op::Pass(ms) => self.pass(Duration::from_millis(u64::from(ms) * 4)),
            Op::GoodBye => {
                self.gone = true;
                self.desk.leave();
            }
        }
        self.desk.seen.clear();
    }

    /// An answer for the newest such request, if one is out.
    fn give(&mut self, is: fn(&Request) -> bool, answer: Result<Response, Error>) {
        if self.desk.out(is) {
            self.desk.answer(is, answer);
        }
    }

    fn join(&mut self, leads: bool, others: u8, odd: u8) {
        let Some(request) = self.desk.join_out().cloned() else {
            return;
        };
        self.generation += 1;
        if request.member_id.is_empty() {
            self.me += 1;
        }
        let me = match &*request.member_id {
            "" => self.id(),
            id => id.to_owned(),
        };
        let assignor = assignor_of(&request, odd);
        let leader = if leads { me.clone() } else { "boss".to_owned() };
        let mut answer = joined(&assignor, self.generation, &me, &leader);
        if leads {
            let metadata = request.protocols[0].1.clone();
            answer.members.push(JoinGroupMember {
                member_id: me.into(),
                instance_id: None,
                metadata,
            });
            for n in 0..others % 4 {
                let owned = share(others.rotate_left(u32::from(n)));
                answer.members.push(member(
                    &format!("other-{n}"),
                    &topics(others >> n),
                    &owned,
                    self.generation - 1,
                ));
            }
            if odd % 16 == 15 {
                let last = answer.members.len() - 1;
                answer.members[last].metadata = Bytes::from(vec![odd; usize::from(others) % 12]);
            }
        }
        self.give(is_join, Ok(Response::JoinGroup(answer)));
    }

    /// Time goes on; a request that gets no answer in time is answered by its time-out.
    fn pass(&mut self, time: Duration) {
        let end = self.desk.now + time;
        loop {
            let late = |(_, _, _, until): &(Token, GroupLink, Request, Now)| *until <= end;
            let Some(at) = self.desk.sent.iter().position(late) else {
                break;
            };
            let (token, _, _, until) = self.desk.sent[at];
            let until = until.max(self.desk.now);
            // It is out until its time is up: what is due before that finds it waited for.
            self.desk.after(until.since(self.desk.now));
            self.desk.sent.retain(|(t, ..)| *t != token);
            self.desk
                .member
                .handle_response(self.desk.now, token, Err(cut()));
            self.desk.pump();
        }
        self.desk.after(end.since(self.desk.now));
    }

    /// A coordinator without faults from now on.
    fn finish(&mut self) {
        if !self.desk.over && !self.gone {
            // A topic that it had not: whatever it is at, it joins once more.
            self.desk.subscribe(&["t", "w"]);
        }
        for _ in 0..200 {
            if self.desk.over {
                return;
            }
            self.desk.after(Duration::ZERO);
            let draining: Vec<_> = self.desk.draining.iter().cloned().collect();
            self.desk.released(&draining);
            // Answers to requests that the member has given up on come too, oldest first.
            let beat = HeartbeatResponse {
                throttle: Duration::ZERO,
                code: Code(0),
            };
            self.give(is_heartbeat, Ok(Response::Heartbeat(beat)));
            let left = LeaveGroupResponse {
                throttle: Duration::ZERO,
                code: Code(0),
            };
            self.give(is_leave, Ok(Response::LeaveGroup(left)));
            if self.desk.out(is_join) {
                self.join(false, 0, 0);
            }
            self.give(is_sync, Ok(Response::SyncGroup(synced(&share(0b101)))));
            self.pass(Duration::from_millis(500));
            self.desk.seen.clear();
        }
        assert!(!self.gone, "it leaves, or gives leaving up");
        assert_eq!(self.desk.member.state(), Phase::Stable);
        let held: Vec<_> = self.desk.held.iter().cloned().collect();
        assert_eq!(held, share(0b101));
    }
}

fn live(cooperative: bool, ops: &[Op]) {
    let mut life = Life::new(cooperative);
    life.desk.subscribe(&["t"]);
    for op in ops {
        if life.desk.over {
            break;
        }
        life.step(op);
    }
    life.finish();
}

/// The same by the fuzzer's bytes.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    let strategy = (any::<bool>(), prop::collection::vec(op(), 1..100));
    if let Some((cooperative, ops)) = crate::fuzzing::draw(bytes, &strategy) {
        live(cooperative, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256), failure_persistence: None, ..ProptestConfig::default() })]

    /// I7, I8: whatever the coordinator says, leases are granted, revoked and lost once each, nothing
    /// is waited for in vain, and once it answers well the member has its share.
    #[test]
    fn any_coordinator_is_outlived(
        cooperative in any::<bool>(),
        ops in prop::collection::vec(op(), 1..100),
    ) {
        live(cooperative, &ops);
    }
}
