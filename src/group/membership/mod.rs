//! The machine itself.

mod beat;
mod join;
mod leader;
mod leaving;
mod reserving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::action::{GroupAction, GroupEvent, GroupLink, MemberRef, Phase};
use super::assign::AssignMember;
use super::config::{AssignorKind, GroupConfig};
use super::leases::Leases;
use super::protocol::PROTOCOL_TYPE;
use super::reserve::Reservations;
use crate::error::{Error, ErrorKind};
use crate::ids::{Token, TopicPartition};
use crate::time::{Now, earliest};
use crate::wire::{Code, Request, Response};

/// One member of a classic group.
///
/// ```
/// use laneway::group::{GroupAction, GroupConfig, Membership};
/// use laneway::time::Now;
/// let mut member = Membership::new(GroupConfig::new("billing"), Now(0));
/// member.set_subscription(Now(0), vec!["payments".into()]);
/// let joins = std::iter::from_fn(|| member.poll_action())
///     .filter(|action| matches!(action, GroupAction::Send { .. }))
///     .count();
/// assert_eq!(joins, 1);
/// ```
#[derive(Debug)]
pub struct Membership {
    cfg: GroupConfig,
    /// KIP-429: partitions are kept through a rebalance.
    cooperative: bool,
    state: State,
    /// Empty until the coordinator gives one.
    member_id: Arc<str>,
    topics: BTreeSet<Arc<str>>,
    /// The cluster as last seen.
    counts: BTreeMap<Arc<str>, i32>,
    leases: Leases,
    /// What the last assignment gave us, less what has been revoked since.
    assigned: BTreeSet<TopicPartition>,
    /// The generation under which the leases live.
    current: Option<Current>,
    /// What the JoinGroup that is (or was last) out said.
    said: Said,
    /// Join again once nothing drains any more (KIP-429: given up, so others can have it).
    after_drain: bool,
    /// What the next JoinGroup gives as its reason (KIP-800).
    reason: Option<&'static str>,
    /// Partitions that are kept out of the sharing, as far as we have heard.
    reservations: Reservations,
    /// Leaders: who reads which of them directly.
    direct: BTreeMap<Arc<str>, BTreeSet<TopicPartition>>,
    /// Whether the engine counts partitions for us as leader.
    watching: bool,
    /// A wish that came up while a join was out (KAFKA-9815: it must not get lost).
    wish: Option<&'static str>,
    /// Leaders: when to join again because partitions that were to change hands have not.
    ///
    /// 1. A static member says what it owns, and we give some of that to another: nobody has it
    ///    until the member has given it up and joined again.
    /// 2. Before that its process dies and is started anew. It takes up the membership as it is, with
    ///    its part of our assignment; it owns nothing, gives nothing up, and has no reason to join
    ///    again.
    ///
    /// So those partitions would be nobody's until something else happened.
    hand_over_until: Option<Now>,
    beat: Beat,
    /// Our session lasts at least `session_timeout` from here.
    alive: Now,
    /// No rebalance was under way then: what began later waits for us for `rebalance_timeout`.
    calm: Now,
    /// Joins since the group was last calm.
    tries: u32,
    last_join: Option<Now>,
    /// Until then the coordinator may still serve a join of ours that nobody answered, and so
    /// take us for our own twin.
    ghost_until: Now,
    /// How many such joins there were.
    ghosts: u32,
    /// Whether a generation was completed with our member id: then the coordinator has written it
    /// down.
    id_is_kept: bool,
    /// Whether we have taken our name back since the last one that was.
    took_back: bool,
    tokens: u64,
    random: u64,
    actions: VecDeque<GroupAction>,
}

/// ```text
///  Idle --subscription--> Draining <----------------------------------+
///                            | nothing is left that must go first     |
///                            v                                        |
///                         Waiting (pause between tries) <--failure--+ |
///                            |                                      | |
///                            v                                      | |
///                         Joining --leader--> Assigning ------------+ |
///                            |                    |                 | |
///                            +----> Syncing <-----+ ----------------+ |
///                                      |                              |
///                                      v                              |
///                                   Stable --rebalance, a wish, lost--+
///  any --leave--> Leaving --> Left          any --error--> Failed
/// ```
#[derive(Debug)]
enum State {
    Idle,
    Draining,
    Waiting {
        until: Now,
    },
    Joining {
        token: Token,
    },
    Assigning {
        round: Round,
        members: Vec<AssignMember>,
        until: Now,
    },
    Syncing {
        token: Token,
        sent: Now,
        round: Round,
    },
    Stable,
    Leaving {
        until: Now,
        leave: Leave,
    },
    Left,
    Failed,
}

/// How far leaving has come.
#[derive(Debug)]
enum Leave {
    /// The first join is out: only its answer tells who we are.
    AfterJoin(Token),
    Out(Token),
    RetryAt(Now),
}

/// How many partitions each topic of the group had when they were shared out. None: somebody who
/// knew shared them out, so that the first number we hear counts.
type View = BTreeMap<Arc<str>, Option<i32>>;

/// A generation on its way from JoinGroup to SyncGroup.
#[derive(Clone, Debug)]
struct Round {
    generation: i32,
    assignor: Arc<str>,
    /// None: the user's own.
    kind: Option<AssignorKind>,
    leader: bool,
    /// Leaders: the partition counts that they assign (or assigned) from.
    view: Option<View>,
    /// Leaders: whether partitions are to change hands, and are nobody's until their owners have
    /// given them up and joined again.
    hand_over: bool,
}

/// A complete generation.
#[derive(Debug)]
struct Current {
    generation: i32,
    /// Leaders: the partition counts that they assigned from.
    view: Option<View>,
}

/// What a JoinGroup told the group.
#[derive(Debug, Default)]
struct Said {
    topics: BTreeSet<Arc<str>>,
    owned: BTreeSet<TopicPartition>,
}

/// Heartbeats: at most one out.
#[derive(Debug)]
struct Beat {
    out: Option<(Token, Now, i32)>,
    next: Now,
    failures: u32,
}

impl Membership {
    /// A member-to-be that does nothing until it has a subscription.
    #[must_use]
    pub fn new(cfg: GroupConfig, now: Now) -> Self {
        Membership {
            cooperative: cfg.cooperative(),
            random: cfg.seed ^ 0x9e37_79b9_7f4a_7c15,
            cfg,
            state: State::Idle,
            member_id: Arc::from(""),
            topics: BTreeSet::new(),
            counts: BTreeMap::new(),
            leases: Leases::default(),
            assigned: BTreeSet::new(),
            current: None,
            said: Said::default(),
            after_drain: false,
            reason: None,
            reservations: Reservations::default(),
            direct: BTreeMap::new(),
            watching: false,
            wish: None,
            hand_over_until: None,
            beat: Beat {
                out: None,
                next: now,
                failures: 0,
            },
            alive: now,
            calm: now,
            tries: 0,
            last_join: None,
            ghost_until: now,
            ghosts: 0,
            id_is_kept: false,
            took_back: false,
            tokens: 0,
            actions: VecDeque::new(),
        }
    }

    /// The topics wanted from now on. The first call joins the group; later ones join again if
    /// something changed, after the join that may be under way.
    pub fn set_subscription(&mut self, now: Now, topics: Vec<Arc<str>>) {
        let topics: BTreeSet<_> = topics.into_iter().collect();
        self.expire(now);
        if topics == self.topics {
            return;
        }
        self.topics = topics;
        match self.state {
            State::Draining => self.try_join(now),
            State::Idle | State::Stable => self.rejoin(now, "the subscription changed"),
            // Under way: `complete` compares with what the join said.
            _ => {}
        }
    }

    /// The partition counts of all topics subscribed and [watched](GroupAction::Watch), from one
    /// view of the cluster; 0 for a topic that does not exist.
    pub fn set_partitions(&mut self, now: Now, counts: BTreeMap<Arc<str>, i32>) {
        self.expire(now);
        if counts == self.counts {
            return;
        }
        self.counts = counts;
        if let Err(e) = self.check_reserved() {
            return self.fail(e);
        }
        self.fill_view();
        match &self.state {
            State::Assigning { .. } => self.try_assign(now, false),
            State::Stable if self.view_is_old() => self.rejoin(now, "the cluster changed"),
            _ => {}
        }
    }

    /// The answer to a [`GroupAction::Send`], or a retriable error where none came.
    pub fn handle_response(&mut self, now: Now, token: Token, result: Result<Response, Error>) {
        // First: after a freeze an old answer must not bring an old session back.
        self.expire(now);
        if let Some((out, sent, generation)) = self.beat.out
            && out == token
        {
            self.beat.out = None;
            return self.heartbeat_answered(now, sent, generation, result);
        }
        match &self.state {
            State::Joining { token: out } if *out == token => match result {
                Ok(Response::JoinGroup(answer)) => self.joined(now, answer),
                Ok(_) => self.fail(Error::bug("JoinGroup got the answer to another request")),
                Err(e) => self.unanswered(now, e),
            },
            State::Syncing {
                token: out,
                sent,
                round,
            } if *out == token => {
                let (sent, round) = (*sent, round.clone());
                match result {
                    Ok(Response::SyncGroup(answer)) => self.synced(now, sent, round, answer),
                    Ok(_) => self.fail(Error::bug("SyncGroup got the answer to another request")),
                    Err(e) => self.unanswered(now, e),
                }
            }
            State::Leaving { .. } => self.leave_answered(now, token, result),
            // Of a request that is no longer wanted.
            _ => {}
        }
    }

    /// These were revoked, have drained, and what could be committed for them is; or their
    /// deadline passed.
    pub fn released(&mut self, now: Now, partitions: &[TopicPartition]) {
        self.expire(now);
        let done = partitions.iter().filter(|tp| self.leases.release(tp));
        let done: Vec<_> = done.cloned().collect();
        self.given_back(now, &done);
    }

    /// Leaves the group; what is still ours is lost. Ends in [`GroupAction::Left`] within
    /// [`leave_timeout`](GroupConfig::leave_timeout).
    pub fn leave(&mut self, now: Now) {
        if matches!(
            self.state,
            State::Leaving { .. } | State::Left | State::Failed
        ) {
            return;
        }
        self.lose_leases();
        self.beat.out = None;
        let until = now + self.cfg.leave_timeout;
        let known = !self.member_id.is_empty();
        match self.state {
            // A static member keeps its place for its next life.
            _ if !self.cfg.leaves() => self.end(),
            _ if known => self.send_leave(now, until),
            State::Joining { token } => {
                let leave = Leave::AfterJoin(token);
                self.state = State::Leaving { until, leave };
            }
            _ => self.end(),
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {
        self.expire(now);
        let overdue = self.leases.overdue(now);
        if !overdue.is_empty() {
            self.notice(GroupEvent::RevokeOverdue {
                partitions: overdue.clone(),
            });
            self.actions.push_back(GroupAction::Lost {
                partitions: overdue.clone(),
            });
            self.given_back(now, &overdue);
        }
        match &self.state {
            State::Waiting { until } if *until <= now => self.send_join(now),
            State::Assigning { until, .. } if *until <= now => self.try_assign(now, true),
            State::Stable if self.hand_over_until.is_some_and(|until| until <= now) => {
                self.rejoin(now, "partitions that were to change hands are nobody's");
            }
            State::Leaving { until, .. } if *until <= now => {
                self.notice(GroupEvent::LeaveAbandoned);
                self.end();
            }
            State::Leaving {
                until,
                leave: Leave::RetryAt(at),
            } if *at <= now => {
                self.send_leave(now, *until);
            }
            _ => {}
        }
        if self.beat.out.is_none() && self.beat.next <= now && self.beat_generation().is_some() {
            self.send_heartbeat(now);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        let of_state = match &self.state {
            State::Waiting { until } | State::Assigning { until, .. } => Some(*until),
            State::Stable => self.hand_over_until,
            State::Leaving {
                until,
                leave: Leave::RetryAt(at),
            } => Some(*at.min(until)),
            State::Leaving { until, .. } => Some(*until),
            _ => None,
        };
        let beats = self.beat.out.is_none() && self.beat_generation().is_some();
        let deadline = earliest(of_state, beats.then_some(self.beat.next));
        let deadline = earliest(deadline, self.leases.next_overdue());
        earliest(deadline, self.session_until())
    }

    /// What to do next, oldest first.
    pub fn poll_action(&mut self) -> Option<GroupAction> {
        self.actions.pop_front()
    }

    /// Whom commits name: none before the first assignment and after a loss.
    #[must_use]
    pub fn member(&self) -> Option<MemberRef> {
        let current = self.current.as_ref()?;
        Some(MemberRef {
            member_id: self.member_id.clone(),
            generation: current.generation,
            instance_id: self.cfg.instance_id.clone(),
        })
    }

    /// Until when, by our own clock, the coordinator surely still counts us in. None while
    /// nothing is ours.
    #[must_use]
    pub fn session_until(&self) -> Option<Now> {
        let held = self.current.is_some() && !self.leases.is_empty();
        held.then(|| self.alive + self.cfg.session_timeout)
    }

    /// What is ours, in order: also what drains.
    pub fn owned(&self) -> impl Iterator<Item = &TopicPartition> {
        self.leases.all()
    }

    /// Where the membership stands.
    #[must_use]
    pub fn state(&self) -> Phase {
        match self.state {
            State::Idle => Phase::Idle,
            State::Draining => Phase::Draining,
            State::Waiting { .. } => Phase::Waiting,
            State::Joining { .. } => Phase::Joining,
            State::Assigning { .. } => Phase::Assigning,
            State::Syncing { .. } => Phase::Syncing,
            State::Stable => Phase::Stable,
            State::Leaving { .. } => Phase::Leaving,
            State::Left => Phase::Left,
            State::Failed => Phase::Failed,
        }
    }

    /// Joins again, now or after what is out.
    fn rejoin(&mut self, now: Now, reason: &'static str) {
        match self.state {
            State::Idle | State::Stable => {}
            _ => {
                self.wish = Some(reason);
                return;
            }
        }
        self.wish = None;
        if self.last_join.is_some() {
            self.notice(GroupEvent::Rejoining { reason });
            self.reason = Some(reason);
        }
        let topics = self.topics.clone();
        let cooperative = self.cooperative;
        self.revoke(now, |tp| !cooperative || !topics.contains(&tp.topic));
        self.try_join(now);
    }

    /// These are no longer ours, and nobody else's yet.
    fn given_back(&mut self, now: Now, partitions: &[TopicPartition]) {
        // Assigned to us again while they drained: leases of their own (KAFKA-14639).
        let ours = |tp: &&TopicPartition| self.assigned.contains(*tp);
        let again: Vec<_> = partitions.iter().filter(ours).cloned().collect();
        self.grant(&again);
        self.drained(now);
    }

    /// Goes on where a drain held something up.
    fn drained(&mut self, now: Now) {
        match self.state {
            State::Draining => self.try_join(now),
            State::Stable if self.after_drain && self.leases.draining().next().is_none() => {
                self.rejoin(now, "revoked partitions were given back");
            }
            _ => {}
        }
    }

    fn grant(&mut self, partitions: &[TopicPartition]) {
        let partitions = self.leases.grant(partitions);
        if !partitions.is_empty() {
            self.actions.push_back(GroupAction::Granted { partitions });
        }
    }

    fn revoke(&mut self, now: Now, goes: impl Fn(&TopicPartition) -> bool) {
        self.assigned.retain(|tp| !goes(tp));
        // What is left of the rebalance's time: half for the last commit past the deadline, then
        // we go on without; the rest for the join to arrive.
        let drain = self.cfg.drain_timeout;
        let rest = self.cfg.rebalance_timeout.saturating_sub(drain);
        // The rebalance may have begun when we last heard of none: a cut link hid it from us.
        let hard = (now + drain + rest / 2).min(self.calm + drain + rest / 4 * 3);
        let deadline = Now((now + drain)
            .0
            .min(hard.0.saturating_sub(nanos(rest / 4)))
            .max(now.0));
        let partitions = self.leases.revoke(hard.max(deadline), goes);
        if !partitions.is_empty() {
            self.actions.push_back(GroupAction::Revoke {
                partitions,
                deadline,
            });
        }
    }

    /// The coordinator does not count us in: all is lost, and we come back as if new.
    fn expelled(&mut self, now: Now, code: Code) {
        self.notice(GroupEvent::Expelled { code });
        let forgotten = matches!(code, Code::UNKNOWN_MEMBER_ID | Code::FENCED_INSTANCE_ID);
        if let State::Joining { .. } | State::Assigning { .. } | State::Syncing { .. } = self.state
        {
            self.state = State::Stable; // that round is over
        }
        self.lose(now, forgotten);
    }

    /// Our instance id is another member's now. Either somebody was given the same name, or it is
    /// we ourselves (KAFKA-20985):
    ///
    /// 1. our join, which has no member id yet, is not answered in time; the connection is given up;
    /// 2. we join again over another one, and get the id A;
    /// 3. the coordinator reads the first join, which had been waiting in its socket, takes it for
    ///    a new process of our name and gives it the id B. A is fenced, B is nobody.
    ///
    /// So within some time after a join that was not answered we take our name back, once for each
    /// such join. Or the coordinator has forgotten us:
    ///
    /// 1. our process was started anew, and the coordinator gives us the id B in place of A, in the
    ///    midst of a rebalance: it writes that down when the generation is complete;
    /// 2. before it is, another node takes the group over, from what was written: A has our name.
    ///
    /// So with an id under which no generation was completed we take our name back too, once. A real
    /// twin does no worse for it than fencing us a second time.
    fn fenced(&mut self, now: Now, what: &str) {
        let ghost = now < self.ghost_until && self.ghosts > 0;
        let forgotten = !self.member_id.is_empty() && !self.id_is_kept && !self.took_back;
        if ghost || forgotten {
            match ghost {
                true => self.ghosts -= 1,
                false => self.took_back = true,
            }
            self.notice(GroupEvent::FencedByOurself);
            self.expelled(now, Code::FENCED_INSTANCE_ID);
        } else {
            self.fail(self.refusal(Code::FENCED_INSTANCE_ID, what));
        }
    }

    /// Past the session nothing is ours.
    fn expire(&mut self, now: Now) {
        if self.session_until().is_some_and(|until| until <= now) {
            self.notice(GroupEvent::SessionExpired);
            self.lose(now, false);
        }
    }

    /// All is lost; joins again unless a join is out, whose answer will tell.
    fn lose(&mut self, now: Now, forget_id: bool) {
        self.lose_leases();
        self.beat.out = None;
        if forget_id {
            self.id_is_kept = false;
            self.member_id = Arc::from("");
        }
        match self.state {
            State::Stable | State::Draining | State::Waiting { .. } => self.try_join(now),
            _ => {}
        }
    }

    fn lose_leases(&mut self) {
        let partitions = self.leases.clear();
        self.assigned.clear();
        self.current = None;
        self.after_drain = false;
        if !partitions.is_empty() {
            self.actions.push_back(GroupAction::Lost { partitions });
        }
    }

    fn refusal(&self, code: Code, what: &str) -> Error {
        let group = &self.cfg.group;
        let custom = self.cfg.custom.iter().filter_map(|c| c.name().ok());
        let ours = self.cfg.assignors.iter().map(|a| Arc::from(a.name()));
        let ours: Vec<Arc<str>> = custom.chain(ours).collect();
        let hint = match code {
            Code::INCONSISTENT_GROUP_PROTOCOL => format!(
                "; we offer the assignors [{}] of type {PROTOCOL_TYPE}, the group's members offer \
                 others: list one that all of them have with .assignors, or choose another group \
                 id where this one is a group of another kind (Kafka Connect's, say)",
                ours.join(", ")
            ),
            Code::FENCED_INSTANCE_ID => format!(
                "; another member has the instance_id {:?} too: give each member its own, and end \
                 the old process before the new one starts",
                self.cfg.instance_id.as_deref().unwrap_or_default()
            ),
            _ => String::new(),
        };
        let message = format!("{what} {group} failed with {}{hint}", code.describe());
        Error::new(ErrorKind::Broker, message).with_code(code.0)
    }

    fn fail(&mut self, error: Error) {
        self.lose_leases();
        self.beat.out = None;
        self.state = State::Failed;
        self.actions.push_back(GroupAction::Fatal(error));
    }

    fn send(&mut self, link: GroupLink, request: Request, timeout: Duration) -> Token {
        let token = Token(self.tokens);
        self.tokens += 1;
        self.actions.push_back(GroupAction::Send {
            token,
            link,
            request,
            timeout,
        });
        token
    }

    fn notice(&mut self, event: GroupEvent) {
        self.actions.push_back(GroupAction::Notice(event));
    }

    /// How long the coordinator may park a join or a sync, and a little for the way.
    fn parked_timeout(&self) -> Duration {
        self.cfg.rebalance_timeout.saturating_add(PARKED_MARGIN)
    }

    /// The pause after `failures` earlier ones: doubled each time, give or take a fifth.
    fn pause(&mut self, failures: u32) -> Duration {
        let doubled = self.cfg.retry_backoff.saturating_mul(1 << failures.min(16));
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let percent = 80 + u32::try_from((z >> 33) % 41).unwrap_or(0);
        doubled.min(self.cfg.retry_backoff_max) / 100 * percent
    }
}

/// Whether the coordinator is (or may be) elsewhere: only these say so, whatever else an answer
/// complains of.
fn moved(code: Code) -> bool {
    matches!(
        code,
        Code::COORDINATOR_LOAD_IN_PROGRESS
            | Code::COORDINATOR_NOT_AVAILABLE
            | Code::NOT_COORDINATOR
    )
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn too_large(request: &str, size: usize, max: usize) -> Error {
    Error::misuse(format!(
        "{request} would take {size} bytes, above request_bytes_max of {max}: subscribe fewer \
         topics, or raise it here and socket.request.max.bytes on the brokers"
    ))
}

/// As in Kafka's own client: answers to parked requests may come that late.
const PARKED_MARGIN: Duration = Duration::from_secs(5);
