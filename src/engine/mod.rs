//! A whole subscription as one machine.
//!
//! The engine owns the cluster's view, the membership, fetching, the lanes, settlement and
//! commits, and moves what one of them says to the others; none of them knows another. Whoever
//! drives it sees only this contract: call a `handle_*`, take every [`Action`] with
//! [`Engine::poll_action`], sleep until [`Engine::next_deadline`] or the next event.
//!
//! Invariants:
//! 1. Every result carries the lease it was born under, and that is compared before anything else.
//! 2. What is committed is the watermark of a lease that stands or is being drained; `end` of a
//!    lease takes it out of the commit machine in the same turn.
//! 3. A call does bounded work: after a slice it says [`Action::Again`].
//! 4. After [`Action::Finished`] nothing follows.

mod action;
mod closing;
mod config;
mod deadletters;
mod deal;
mod hooks;
mod leases;
mod letter;
mod links;
mod login;
mod maps;
mod moves;
mod notices;
mod overflow;
mod parts;
mod patterns;
mod reach;
mod results;
mod snapshot;
mod steering;
mod writing;

pub use action::{Action, Command, Done, Event, Group, LinkEvent, PartitionSnapshot, Snapshot};
pub use config::{
    Commit as CommitMode, Config, LaneFn, LaneKey, MapFull, OffsetMap, Recreated, Source,
};
#[cfg(feature = "runtime")]
pub(crate) use deadletters::is_topic_name;
pub use hooks::{Hook, HookId, HookSet};
pub use letter::{DeadLetterFn, DeadLetterHeaders, DeadLetterTopic, TooLarge};
pub use snapshot::{Holdup, HoldupState, LaneSnapshot, RunningRecord, SNAPSHOT_LANES_MAX};
pub use steering::{InFlight, Scope, SeekTo};

use crate::cluster::Cluster;
use crate::commit::Commit;
use crate::error::Error;
use crate::fetch::Fetch;
use crate::group::{GroupProtocol, Member};
use crate::ids::{CommandId, LinkId, Token};
use crate::lane::{KeyHash, LaneHasher, Lanes, Note, RunnerConfig};
use crate::record::Delivery;
use crate::records::Decoder;
use crate::time::{Now, earliest};
use hooks::Hooks;
use leases::{Drain, Leases};
use links::Links;
use maps::Maps;
use moves::{Owner, Waiting};
use overflow::Overflow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use steering::Steering;
use writing::Writer;

/// Turns of moving actions between the machines in one call.
const TURNS_MAX: usize = 64;

/// How long the rest of a turn may wait for the first results of the records it has dealt.
const RESUME_AFTER: Duration = Duration::from_micros(200);

/// One subscription. See the [module](self).
pub struct Engine {
    config: Config,
    cluster: Cluster,
    group: Option<Member>,
    commit: Option<Commit>,
    fetch: Fetch,
    /// Where blocked lanes may let records go and read them again.
    overflow: Option<Overflow>,
    lanes: Lanes<Delivery>,
    runner: RunnerConfig,
    links: Links,
    leases: Leases,
    drains: Vec<Drain>,
    /// Whose each outstanding request is, and its number there.
    routes: BTreeMap<Token, (Owner, Token)>,
    next_token: u64,
    /// Requests to a coordinator that is not known yet.
    waiting: VecDeque<Waiting>,
    decoder: Decoder,
    maps: Maps,
    hasher: LaneHasher,
    /// Reused by `deal`: one batch's hashes.
    hashes: Vec<KeyHash>,
    /// Reused by `deal`: the offsets of a batch with holes.
    deltas: Vec<u32>,
    /// When a turn that was cut short for the handlers' sake goes on; mostly never.
    resume_at: Now,
    /// Bytes decoded in this call.
    slice_used: usize,
    phase: Phase,
    /// When closing is over, however far it is; never, while nobody closes.
    over_at: Now,
    /// Commands that wait for the next acknowledged commit.
    commit_waiters: Vec<CommandId>,
    closers: Vec<CommandId>,
    /// Until when records may start, by our own clock.
    fence: Arc<AtomicU64>,
    actions: VecDeque<Action>,
    counters: Counters,
    /// The topics whose partitions the group counts: ours, and while we lead those of the others.
    watched: Vec<Arc<str>>,
    first_counts: BTreeMap<Arc<str>, i32>,
    /// The topics that a pattern has led to; none before metadata came.
    matched: Option<Vec<Arc<str>>>,
    /// Whether metadata has come.
    looked: bool,
    /// Whether a flush since the last answer to `CommitNow` was given up.
    flush_failed: bool,
    /// The last warning, and when.
    said: Option<(String, Now)>,
    /// When a failing record was last told of.
    failure_said: Option<Now>,
    /// Reused by `take_results`.
    notes: Vec<Note>,
    steering: Steering,
    /// Writes dead letters, or what a producer is given.
    writer: Option<Writer>,
    hooks: Hooks,
}

/// How the subscription's own life goes.
#[derive(Debug)]
enum Phase {
    /// Before the first call.
    New,
    /// Reading and running.
    Running,
    /// No intake; what was dealt runs to its end.
    Draining,
    /// Leases are being drained; then the group is left.
    Closing(Result<(), Error>),
    /// LeaveGroup is out.
    Leaving(Result<(), Error>),
    /// Nothing follows.
    Finished,
}

#[derive(Debug, Default)]
struct Counters {
    settled: u64,
    retries: u64,
    stalls: u64,
    dead_lettered: u64,
}

impl Engine {
    /// An engine that has done nothing yet: call [`Engine::handle_timeout`] once to start it.
    #[must_use]
    pub fn new(config: Config, now: Now) -> Self {
        let c = &config;
        let cluster = Cluster::new(parts::cluster(c), now);
        let group = match &c.source {
            Source::Topics { group, .. } | Source::Pattern { group, .. } => {
                Some(Member::new(parts::group(c, group.clone()), now))
            }
            Source::Partitions { .. } | Source::Nothing => None,
        };
        let commit = c
            .group()
            .map(|group| Commit::new(parts::commit(c, group.clone()), now));
        let links = Links::new(parts::link(c), c, now);
        let lanes = parts::lanes(c);
        let (runner, lanes) = (lanes.runner(), Lanes::new(&lanes));
        let overflow = Overflow::new(c, now);
        let main_part = Overflow::main_part(c, overflow.is_some());
        Engine {
            fetch: Fetch::new(parts::fetch(c, main_part), now),
            overflow,
            hasher: LaneHasher::new(c.seed),
            cluster,
            group,
            commit,
            lanes,
            runner,
            links,
            leases: Leases::new(),
            drains: Vec::new(),
            routes: BTreeMap::new(),
            next_token: 0,
            waiting: VecDeque::new(),
            decoder: Decoder::new(),
            maps: Maps::new(c),
            hashes: Vec::new(),
            deltas: Vec::new(),
            resume_at: Now::NEVER,
            slice_used: 0,
            phase: Phase::New,
            over_at: Now::NEVER,
            commit_waiters: Vec::new(),
            closers: Vec::new(),
            fence: Arc::new(AtomicU64::new(u64::MAX)),
            actions: VecDeque::new(),
            counters: Counters::default(),
            watched: Vec::new(),
            first_counts: BTreeMap::new(),
            matched: None,
            looked: false,
            flush_failed: false,
            said: None,
            failure_said: None,
            notes: Vec::new(),
            steering: Steering::new(),
            writer: parts::writer(c, now),
            hooks: Hooks::default(),
            config,
        }
    }

    /// Something happened on a connection.
    pub fn handle_link(&mut self, now: Now, link: LinkId, event: LinkEvent) {
        let (event, unreached) = self.in_words(link, event);
        self.links.handle_link(now, link, event);
        self.pump(now);
        if let Some((peer, error)) = unreached {
            self.not_reached(now, peer, &error);
        }
    }

    /// An executor gave something back.
    pub fn handle_done(&mut self, now: Now, done: Done) {
        self.take_results(now, done);
        self.pump(now);
    }

    /// The user asks for something; [`Action::Reply`] answers.
    pub fn handle_command(&mut self, now: Now, id: CommandId, command: Command) {
        self.obey(now, id, command);
        self.pump(now);
    }

    /// The deadline came, or the engine asked for another turn.
    pub fn handle_timeout(&mut self, now: Now) {
        if matches!(self.phase, Phase::New) {
            self.begin(now);
        }
        self.links.handle_timeout(now, &mut self.actions);
        due(self.cluster.next_deadline(), now).then(|| self.cluster.handle_timeout(now));
        if let Some(group) = &mut self.group {
            due(group.next_deadline(), now).then(|| group.handle_timeout(now));
        }
        if let Some(commit) = &mut self.commit {
            due(commit.next_deadline(), now).then(|| commit.handle_timeout(now));
        }
        due(self.fetch.next_deadline(), now).then(|| self.fetch.handle_timeout(now));
        if let Some(overflow) = &mut self.overflow {
            due(overflow.fetch.next_deadline(), now).then(|| overflow.fetch.handle_timeout(now));
        }
        due(self.lanes.next_deadline(), now).then(|| self.lanes.handle_timeout(now));
        if let Some(writer) = &mut self.writer {
            due(writer.produce.next_deadline(), now).then(|| writer.produce.handle_timeout(now));
        }
        self.expire_waiting(now);
        self.watch_progress(now);
        self.expire_close(now);
        self.pump(now);
    }

    /// The next thing to do, until `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Engine::handle_timeout`] is due if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        if matches!(self.phase, Phase::Finished) {
            return None;
        }
        if matches!(self.phase, Phase::New) {
            return Some(Now(0));
        }
        let mut next = self.links.next_deadline();
        next = earliest(next, self.cluster.next_deadline());
        next = earliest(next, self.group.as_ref().and_then(Member::next_deadline));
        next = earliest(next, self.commit.as_ref().and_then(Commit::next_deadline));
        next = earliest(next, self.fetch.next_deadline());
        let overflow = self.overflow.as_ref();
        next = earliest(next, overflow.and_then(Overflow::next_deadline));
        next = earliest(next, self.lanes.next_deadline());
        let writer = self.writer.as_ref();
        next = earliest(next, writer.and_then(|w| w.produce.next_deadline()));
        next = earliest(next, self.hooks.next_deadline());
        next = earliest(next, self.drains.iter().map(Drain::next_deadline).min());
        next = earliest(next, Some(self.resume_at).filter(|at| *at != Now::NEVER));
        next = earliest(
            next,
            Some(self.steering.stall_at).filter(|at| *at != Now::NEVER),
        );
        next = earliest(next, Some(self.over_at).filter(|at| *at != Now::NEVER));
        earliest(next, self.waiting.iter().map(|w| w.deadline).min())
    }

    /// What each executor's [`Runner`](crate::lane::Runner) is built from: one value for all of
    /// them, since the permits in it are shared.
    #[must_use]
    pub fn runner_config(&self) -> &RunnerConfig {
        &self.runner
    }

    /// Until when records may start, as [`Now`]'s number: past it, by our own clock, the group
    /// has surely given our partitions to others. Executors read it before they start a record.
    #[must_use]
    pub fn fence(&self) -> Arc<AtomicU64> {
        self.fence.clone()
    }

    fn begin(&mut self, now: Now) {
        self.phase = Phase::Running;
        match self.config.source.clone() {
            Source::Topics { topics, group } => {
                self.cluster.want_topics(now, &topics);
                self.cluster.want_coordinator(now, &group);
                self.watched.clone_from(&topics);
                if let Some(membership) = &mut self.group {
                    membership.set_subscription(now, topics);
                }
            }
            Source::Pattern { group, .. } => {
                self.cluster.want_all(now);
                self.cluster.want_coordinator(now, &group);
                if let (GroupProtocol::Consumer, Some(member)) =
                    (self.config.group_protocol, &mut self.group)
                {
                    member.set_subscription(now, Vec::new()); // the broker reads the pattern
                }
            }
            Source::Partitions { partitions, group } => {
                let mut topics: Vec<_> = partitions.iter().map(|p| p.topic.clone()).collect();
                topics.sort();
                topics.dedup();
                self.cluster.want_topics(now, &topics);
                if let Some(group) = group {
                    self.cluster.want_coordinator(now, &group);
                }
                self.grant(now, partitions);
                // A partition that is not there is said, as one that a group assigns.
                self.expect_held(now);
            }
            Source::Nothing => {}
        }
    }

    /// Moves actions between the machines until there are none, or the slice is used up.
    fn pump(&mut self, now: Now) {
        if matches!(self.phase, Phase::Finished) {
            return self.say_no_more();
        }
        self.slice_used = 0;
        self.resume_at = Now::NEVER;
        let mut turns = 0;
        loop {
            let mut moved = self.pump_cluster(now);
            moved |= self.pump_group(now);
            moved |= self.pump_commit(now);
            moved |= self.pump_fetch(now);
            moved |= self.pump_writer(now);
            moved |= self.pump_links(now);
            moved |= self.pump_hooks(now);
            moved |= self.pump_drains(now);
            moved |= self.let_go(now);
            moved |= self.read_again(now);
            moved |= self.deal(now);
            let dealt = self.send_groups(now);
            moved |= dealt;
            if matches!(self.phase, Phase::Finished) {
                return self.say_no_more();
            }
            turns += 1;
            if !moved {
                break;
            }
            if dealt && turns < TURNS_MAX && self.slice_used < deal::SLICE_BYTES {
                // Records go to their handlers before the next fetch is planned. What executors
                // give back brings us here again, or the deadline does.
                self.resume_at = now + RESUME_AFTER;
                break;
            }
            if turns == TURNS_MAX || self.slice_used >= deal::SLICE_BYTES {
                self.actions.push_back(Action::Again);
                break;
            }
        }
        let until = self.group.as_ref().and_then(Member::session_until);
        self.fence
            .store(until.unwrap_or(Now::NEVER).0, Ordering::Release);
    }

    /// No action follows [`Action::Finished`], whichever machine still had one.
    fn say_no_more(&mut self) {
        let mut all = self.actions.iter();
        let last = all.position(|a| matches!(a, Action::Finished(_)));
        self.actions.truncate(last.map_or(0, |at| at + 1));
    }
}

fn due(deadline: Option<Now>, now: Now) -> bool {
    deadline.is_some_and(|at| at <= now)
}
