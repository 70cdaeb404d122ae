//! Membership under the new protocol (KIP-848): the coordinator assigns, one heartbeat says all.
//!
//! The member makes its own id and tells what it wants and what it has; the coordinator answers
//! with an epoch and, when that changes, with all that the member should have. What should go is
//! drained and reported gone, and only then anybody else is given it.
//!
//! Invariants, beside those of the [module above](super):
//!
//! 1. At most one heartbeat is out, and an answer counts only for that one.
//! 2. What we report as ours is what is leased, drains included: a partition is not reported gone
//!    before it has been released.
//! 3. After a heartbeat without an answer the next one says everything: the coordinator then takes
//!    our last epoch too, and tells all that is ours.

mod beat;
mod leaving;
mod reconcile;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::action::{GroupAction, GroupEvent, MemberRef, Phase};
use super::config::GroupConfig;
use super::leases::Leases;
use crate::error::{Error, ErrorKind};
use crate::ids::{Token, TopicId, TopicPartition};
use crate::time::{Now, earliest};
use crate::wire::{Code, Response};

/// One member of a group with the new protocol.
///
/// ```
/// use laneway::group::{ConsumerMembership, GroupAction, GroupConfig};
/// use laneway::time::Now;
/// let mut member = ConsumerMembership::new(GroupConfig::new("billing"), Now(0));
/// member.set_subscription(Now(0), vec!["payments".into()]);
/// let sent = std::iter::from_fn(|| member.poll_action())
///     .filter(|action| matches!(action, GroupAction::Send { .. }))
///     .count();
/// assert_eq!(sent, 1);
/// ```
#[derive(Debug)]
pub struct ConsumerMembership {
    cfg: GroupConfig,
    /// Made by us, for life.
    member_id: Arc<str>,
    /// 0 while we are not in the group.
    epoch: i32,
    state: State,
    topics: BTreeSet<Arc<str>>,
    leases: Leases,
    /// Which topic each lease is of: one made anew under its name is another.
    ids: BTreeMap<TopicPartition, TopicId>,
    /// All that the coordinator says we should have.
    target: BTreeSet<(TopicId, i32)>,
    /// The names of the topics in `target`, as far as they are known.
    names: BTreeMap<TopicId, Arc<str>>,
    out: Option<Out>,
    /// What the coordinator has acknowledged; none: the next heartbeat says everything.
    acked: Option<Said>,
    /// When the next heartbeat is due though there is no news.
    next: Now,
    /// Not even news goes out before that.
    pause_until: Now,
    interval: Duration,
    failures: u32,
    /// Joins since the last one that worked.
    joins: u32,
    /// The coordinator may count us in though we have no epoch: a join was not answered, or our
    /// epoch was refused.
    maybe_in: bool,
    /// The first heartbeat since the last one that was answered.
    unheard: Option<Now>,
    /// What was revoked and is not known to be reported gone, and since when the coordinator may
    /// have waited for that.
    revoking: BTreeMap<(TopicId, i32), Now>,
    /// Our session lasts at least `session_timeout` from here.
    alive: Now,
    tokens: u64,
    random: u64,
    actions: VecDeque<GroupAction>,
}

/// ```text
///  Idle --subscription--> Member --leave--> Leaving --> Left
///                         (epoch 0: joining; above: in)
///  any --error--> Failed
/// ```
#[derive(Debug)]
enum State {
    Idle,
    Member,
    Leaving { until: Now, retry_at: Option<Now> },
    Left,
    Failed,
}

/// The heartbeat that is out.
#[derive(Debug)]
struct Out {
    token: Token,
    sent: Now,
    kind: Kind,
    said: Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Under this epoch; 0 joins.
    Beat(i32),
    /// Gives the place of our instance id up, so that we can take it again.
    Release,
    Leave,
}

/// What a heartbeat tells beside that we live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    topics: BTreeSet<Arc<str>>,
    owned: BTreeSet<(TopicId, i32)>,
}

impl ConsumerMembership {
    /// A member-to-be that does nothing until it has a subscription.
    #[must_use]
    pub fn new(cfg: GroupConfig, now: Now) -> Self {
        let mut random = cfg.seed ^ 0x6b61_666b_6138_3438;
        let member_id = format!("{:016x}{:016x}", mix(&mut random), mix(&mut random));
        ConsumerMembership {
            interval: cfg.heartbeat_interval,
            cfg,
            member_id: Arc::from(member_id),
            epoch: 0,
            state: State::Idle,
            topics: BTreeSet::new(),
            leases: Leases::default(),
            ids: BTreeMap::new(),
            target: BTreeSet::new(),
            names: BTreeMap::new(),
            out: None,
            acked: None,
            next: now,
            pause_until: now,
            failures: 0,
            joins: 0,
            maybe_in: false,
            unheard: None,
            revoking: BTreeMap::new(),
            alive: now,
            tokens: 0,
            random,
            actions: VecDeque::new(),
        }
    }

    /// The topics wanted from now on; of no meaning where the settings hold a pattern for the
    /// broker to read. The first call joins the group.
    pub fn set_subscription(&mut self, now: Now, topics: Vec<Arc<str>>) {
        self.expire(now);
        self.topics = topics.into_iter().collect();
        if matches!(self.state, State::Idle) {
            self.state = State::Member;
        }
        self.drive(now);
    }

    /// Metadata has changed: `name_of` knows the names of topic ids.
    pub fn set_names(&mut self, now: Now, name_of: impl Fn(TopicId) -> Option<Arc<str>>) {
        self.expire(now);
        let unnamed: BTreeSet<TopicId> = self.unnamed().collect();
        let mut news = false;
        for id in unnamed {
            if let Some(name) = name_of(id) {
                self.names.insert(id, name);
                news = true;
            }
        }
        if news && matches!(self.state, State::Member) {
            self.reconcile(now, now);
        }
        self.drive(now);
    }

    /// The answer to a [`GroupAction::Send`], or a retriable error where none came.
    pub fn handle_response(&mut self, now: Now, token: Token, result: Result<Response, Error>) {
        // First: after a freeze an old answer must not bring an old session back.
        self.expire(now);
        let Some(out) = self.out.take_if(|out| out.token == token) else {
            return; // of a heartbeat that is no longer wanted
        };
        match out.kind {
            Kind::Beat(epoch) => self.beat_answered(now, epoch, out, result),
            Kind::Release => self.release_answered(now, result),
            Kind::Leave => self.leave_answered(now, result),
        }
        self.drive(now);
    }

    /// These were revoked, have drained, and what could be committed for them is; or their
    /// deadline passed.
    pub fn released(&mut self, now: Now, partitions: &[TopicPartition]) {
        self.expire(now);
        let done = partitions.iter().filter(|tp| self.leases.release(tp));
        let done: Vec<_> = done.cloned().collect();
        self.given_back(&done);
        self.drive(now);
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
        self.begin_leaving(now);
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
            self.given_back(&overdue);
        }
        self.leaving_timeout(now);
        self.drive(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        let of_state = match &self.state {
            State::Member if self.out.is_none() => Some(self.due()),
            State::Leaving { until, retry_at } => {
                Some(retry_at.map_or(*until, |at| at.min(*until)))
            }
            _ => None,
        };
        let deadline = earliest(of_state, self.leases.next_overdue());
        earliest(deadline, self.session_until())
    }

    /// What to do next, oldest first.
    pub fn poll_action(&mut self) -> Option<GroupAction> {
        self.actions.pop_front()
    }

    /// Whom commits name: none while we are not in the group.
    #[must_use]
    pub fn member(&self) -> Option<MemberRef> {
        (self.epoch > 0).then(|| MemberRef {
            member_id: self.member_id.clone(),
            generation: self.epoch,
            instance_id: self.cfg.instance_id.clone(),
        })
    }

    /// Until when, by our own clock, the coordinator surely still counts us in. None while
    /// nothing is ours. The session's length is the broker's; ours is taken to be no longer.
    ///
    /// It also puts out whoever has not reported within the rebalance's time that revoked
    /// partitions are gone, and then all partitions of that member are others'.
    #[must_use]
    pub fn session_until(&self) -> Option<Now> {
        if self.leases.is_empty() {
            return None;
        }
        let heard = self.alive + self.cfg.session_timeout;
        let revoked = self.revoking.values().min();
        let reported = revoked.map(|since| *since + self.cfg.rebalance_timeout);
        Some(reported.map_or(heard, |by| by.min(heard)))
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
            State::Member if self.epoch == 0 => Phase::Joining,
            State::Member if self.leases.draining().next().is_some() => Phase::Draining,
            State::Member => Phase::Stable,
            State::Leaving { .. } => Phase::Leaving,
            State::Left => Phase::Left,
            State::Failed => Phase::Failed,
        }
    }

    /// Sends the heartbeat that is due, if one is.
    fn drive(&mut self, now: Now) {
        if matches!(self.state, State::Member) && self.out.is_none() && self.due() <= now {
            self.send_beat(now);
        }
    }

    /// When the next heartbeat is due: at its time, or at once with news.
    fn due(&self) -> Now {
        let news = self.acked.as_ref() != Some(&self.saying());
        match news {
            true => self.pause_until,
            false => self.next.max(self.pause_until),
        }
    }

    fn saying(&self) -> Said {
        let id = |tp: &TopicPartition| Some((*self.ids.get(tp)?, tp.partition));
        Said {
            topics: self.topics.clone(),
            owned: self.leases.all().filter_map(id).collect(),
        }
    }

    /// Past the session nothing is ours. The coordinator may think otherwise, so it is told.
    fn expire(&mut self, now: Now) {
        if self.session_until().is_some_and(|until| until <= now) {
            self.notice(GroupEvent::SessionExpired);
            self.lose_leases();
            self.out = None;
            self.acked = None;
        }
    }

    fn lose_leases(&mut self) {
        let partitions = self.leases.clear();
        self.revoking.clear();
        self.ids.clear();
        self.target.clear();
        self.names.clear();
        if !partitions.is_empty() {
            self.actions.push_back(GroupAction::Lost { partitions });
        }
    }

    fn fail(&mut self, error: Error) {
        self.lose_leases();
        self.out = None;
        self.epoch = 0;
        self.state = State::Failed;
        self.actions.push_back(GroupAction::Fatal(error));
    }

    fn refusal(&self, code: Code, said: Option<&str>) -> Error {
        let instance = self.cfg.instance_id.as_deref().unwrap_or_default();
        let hint = match code {
            Code::FENCED_INSTANCE_ID => format!(
                "; another member has the instance_id {instance:?} too: give each member its own, \
                 and end the old process before the new one starts"
            ),
            Code::UNSUPPORTED_ASSIGNOR => format!(
                "; server_assignor names {:?}: use one that the brokers list in \
                 group.consumer.assignors, or leave it to them",
                self.cfg.server_assignor.as_deref().unwrap_or_default()
            ),
            Code::INVALID_REGULAR_EXPRESSION => format!(
                "; Topics::pattern gives {:?}, which the broker reads as RE2 does: no look-around, \
                 no back references",
                self.cfg.topic_regex.as_deref().unwrap_or_default()
            ),
            Code::GROUP_MAX_SIZE_REACHED => {
                "; raise group.consumer.max.size on the brokers, or start fewer members".to_owned()
            }
            Code::GROUP_ID_NOT_FOUND => {
                "; a group of another kind has this id (a share or streams \
                 group, or one of classic members that may not be migrated): choose another group \
                 id, or GroupProtocol::Classic"
                    .to_owned()
            }
            Code::UNSUPPORTED_VERSION => OLD_BROKER.to_owned(),
            _ => String::new(),
        };
        let said = said.map(|s| format!(" ({s})")).unwrap_or_default();
        let message = format!(
            "the heartbeat to group {} failed with {}{said}{hint}",
            self.cfg.group,
            code.describe()
        );
        Error::new(ErrorKind::Broker, message).with_code(code.0)
    }

    fn notice(&mut self, event: GroupEvent) {
        self.actions.push_back(GroupAction::Notice(event));
    }

    fn token(&mut self) -> Token {
        let token = Token(self.tokens);
        self.tokens += 1;
        token
    }

    /// The pause after `failures` earlier ones: doubled each time, give or take a fifth.
    fn pause(&mut self, failures: u32) -> Duration {
        let doubled = self.cfg.retry_backoff.saturating_mul(1 << failures.min(16));
        let percent = 80 + u32::try_from((mix(&mut self.random) >> 33) % 41).unwrap_or(0);
        doubled.min(self.cfg.retry_backoff_max) / 100 * percent
    }
}

/// splitmix64
fn mix(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const OLD_BROKER: &str = "; GroupProtocol::Consumer needs Kafka 4.0 or newer, with the new group \
     protocol not switched off: use GroupProtocol::Classic with older brokers";
