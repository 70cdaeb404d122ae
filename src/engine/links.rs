//! The connections of one subscription: which there are, what each carries, when each is opened.
//!
//! A connection is named by its peer and its purpose. JoinGroup and SyncGroup have one of their
//! own (the broker parks them for up to the rebalance time-out and serves one request at a time);
//! heartbeats, commits and offset look-ups share another; each of the two fetches has its own.
//! None is opened before something must be sent, none twice for the same purpose.
//!
//! Invariants:
//! 1. A request is answered exactly once: by the broker, or with the error that ended its link.
//! 2. A [`LinkId`] is never used again, so what comes late for an ended link finds nothing.
//! 3. A peer is not dialled before its back-off is over.

use super::login::{LoginSlot, Logins};
use super::{Action, LinkEvent};
use crate::cluster::{Cluster, Peer};
use crate::error::{Error, ErrorKind};
use crate::ids::{LinkId, Token};
use crate::time::{Now, earliest};
use crate::wire::{Link, LinkAction, LinkConfig, Request, Response};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The largest fetch that is taken, unless the user's own limits are larger. Brokers cap a fetch
/// far below; a first batch alone may be larger than what was asked for, and is then refused by
/// its name and offset rather than by its frame.
const FETCH_FRAME_MAX: u32 = 256 << 20;

/// The largest answer to anything else: metadata of a million partitions.
const FRAME_MAX: u32 = 96 << 20;

/// What a fetch's answer holds beside the records.
const FETCH_AROUND: u32 = 16 << 20;

/// A connection that ends with nothing to do after so long was idle. One that ends sooner each time
/// is cut, and making another is paced.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Metadata, coordinators, offsets by time, leader epochs.
    Control,
    /// JoinGroup and SyncGroup.
    Join,
    /// Heartbeats, commits, committed offsets, leaving.
    Group,
    /// The long poll.
    Waiting,
    /// The fetch of what is there already.
    Prompt,
    /// The fetch of what was let go.
    Again,
    /// Records that are written.
    Produce,
}

type Key = (Peer, Purpose);

/// How a connection fares.
pub(super) enum News {
    /// It is up and the broker has said what it speaks.
    Up,
    /// A request was answered: the peer really works.
    Proven,
    /// It ended, or never came up.
    Down(Error),
    /// It ended after a while without anything to do, which is no failure of the peer's.
    Idle(Error),
}

/// An answer for the machine that asked.
pub(super) struct Answer {
    pub token: Token,
    pub result: Result<Response, Error>,
}

struct Slot {
    link: Link,
    /// `None` until the peer's back-off lets us dial.
    dialled: Option<LinkId>,
    /// When it may be dialled, while it is not.
    not_before: Now,
    proven: bool,
    login: LoginSlot,
    /// Whether the connection has been there at all.
    was_up: bool,
    /// Whether it ended with nothing to do: brokers and balancers close what is idle.
    was_idle: bool,
}

pub(super) struct Links {
    config: Arc<LinkConfig>,
    connect_timeout: Duration,
    idle_max: Duration,
    fetch_frame_max: u32,
    slots: BTreeMap<Key, Slot>,
    by_id: BTreeMap<LinkId, Key>,
    next_id: u64,
    /// What to offer first to peers that dropped the connection on a newer `ApiVersions`.
    api_versions_max: BTreeMap<Peer, i16>,
    /// Slots that something happened to since the last `pump`.
    touched: BTreeSet<Key>,
    answers: VecDeque<Answer>,
    /// What became of connections: for the back-off.
    news: VecDeque<(Peer, News)>,
    pub(super) logins: Logins,
}

impl Links {
    pub(super) fn new(config: LinkConfig, limits: &super::Config, now: Now) -> Self {
        let largest = limits.fetch_bytes_max.max(limits.batch_bytes_max);
        Links {
            config: Arc::new(config),
            connect_timeout: limits.connect_timeout,
            idle_max: limits.idle_max,
            fetch_frame_max: largest.saturating_add(FETCH_AROUND).max(FETCH_FRAME_MAX),
            slots: BTreeMap::new(),
            by_id: BTreeMap::new(),
            next_id: 0,
            api_versions_max: BTreeMap::new(),
            touched: BTreeSet::new(),
            answers: VecDeque::new(),
            news: VecDeque::new(),
            logins: Logins::new(limits, now),
        }
    }

    /// Opens the connection for this peer and purpose before there is something to send: a start
    /// waits for one round trip less.
    pub(super) fn warm(&mut self, now: Now, key: Key, cluster: &Cluster) {
        if self.ensure(now, key, cluster).is_ok() {
            self.touched.insert(key);
        }
    }

    fn ensure(&mut self, now: Now, key: Key, cluster: &Cluster) -> Result<(), Error> {
        if self.slots.contains_key(&key) {
            return Ok(());
        }
        let Some((host, port)) = cluster.address(key.0) else {
            let gone = format!("{} is not in the cluster's metadata now", key.0);
            return Err(Error::new(ErrorKind::Transport, gone).retriable());
        };
        let address = format!("{host}:{port}").into();
        let config = self.config.clone();
        let mut link = match self.api_versions_max.get(&key.0) {
            Some(max) => Link::new_with_api_versions_max(config, address, now, *max),
            None => Link::new(config, address, now),
        };
        link = self.logins.prepare(link);
        if matches!(key.1, Purpose::Join | Purpose::Group) {
            // A quota on reading must not cost the membership (KIP-219).
            link = link.ignoring_throttle();
        }
        let not_before = cluster.may_connect(now, key.0).err().unwrap_or(now);
        let slot = Slot {
            link,
            dialled: None,
            not_before,
            proven: false,
            login: LoginSlot::new(host),
            was_up: false,
            was_idle: false,
        };
        self.slots.insert(key, slot);
        Ok(())
    }

    /// Sends on the connection for this peer and purpose, which is made if there is none.
    pub(super) fn send(
        &mut self,
        now: Now,
        key: Key,
        token: Token,
        request: Request,
        timeout: Duration,
        cluster: &Cluster,
    ) {
        if let Err(error) = self.ensure(now, key, cluster) {
            let result = Err(error);
            self.answers.push_back(Answer { token, result });
            return;
        }
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.link.send(now, token, request, timeout);
            self.touched.insert(key);
        }
    }

    /// Whom this link would lead to, while it has never come up.
    pub(super) fn never_up(&self, id: LinkId) -> Option<Peer> {
        let key = self.by_id.get(&id)?;
        let slot = self.slots.get(key)?;
        (!slot.was_up).then_some(key.0)
    }

    pub(super) fn handle_link(&mut self, now: Now, id: LinkId, event: LinkEvent) {
        // Step 1: we close a link and forget it. Step 2: what the driver read from it before that
        // arrives. There is no slot for it any more, and that is all that needs to be checked.
        let Some(key) = self.by_id.get(&id).copied() else {
            return;
        };
        let Some(slot) = self.slots.get_mut(&key) else {
            return;
        };
        match event {
            LinkEvent::Up => {
                slot.was_up = true;
                slot.link.handle_up(now);
            }
            LinkEvent::Frame(frame) => slot.link.handle_frame(now, frame),
            // The link answers what it owes and says Close, which `pump` turns into the rest.
            LinkEvent::Down(error) => {
                slot.was_idle = slot.proven
                    && slot.link.pending() == 0
                    && now.since(slot.link.idle_since()) >= IDLE_MIN;
                slot.dialled = None;
                slot.not_before = Now::NEVER;
                self.by_id.remove(&id);
                slot.link.handle_down(now, error);
            }
        }
        self.touched.insert(key);
    }

    pub(super) fn handle_timeout(&mut self, now: Now, actions: &mut VecDeque<Action>) {
        self.logins.handle_timeout(now);
        let may_dial = self.logins.update(now);
        let mut idle = Vec::new();
        for (key, slot) in &mut self.slots {
            if slot.link.next_deadline().is_some_and(|at| at <= now) {
                slot.link.handle_timeout(now);
                self.touched.insert(*key);
            } else if slot.dialled.is_none() && slot.not_before <= now && may_dial {
                self.touched.insert(*key);
            } else if slot.link.in_flight() == 0
                && now.since(slot.link.idle_since()) >= self.idle_max
            {
                idle.push(*key);
            }
        }
        for key in idle {
            self.close(key, actions);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Now> {
        let mut next = self.logins.next_deadline();
        let may_dial = self.logins.may_dial();
        for slot in self.slots.values() {
            next = earliest(next, slot.link.next_deadline());
            if slot.dialled.is_none() && may_dial {
                next = earliest(next, Some(slot.not_before));
            }
            if slot.link.in_flight() == 0 {
                next = earliest(next, Some(slot.link.idle_since() + self.idle_max));
            }
        }
        next
    }

    /// Turns what the links want into actions; answers and outcomes wait to be taken.
    pub(super) fn pump(&mut self, now: Now, cluster: &Cluster, actions: &mut VecDeque<Action>) {
        let may_dial = self.logins.update(now);
        if self.logins.take_renewed() {
            self.serve_late_logins(now);
        }
        while let Some(key) = self.touched.pop_first() {
            let Some(slot) = self.slots.get_mut(&key) else {
                continue;
            };
            if slot.dialled.is_none() && slot.not_before <= now && may_dial {
                if let Some((host, port)) = cluster.address(key.0) {
                    let link = LinkId(self.next_id);
                    self.next_id += 1;
                    slot.dialled = Some(link);
                    self.by_id.insert(link, key);
                    let until = now + self.connect_timeout;
                    let frame_max = match key.1 {
                        Purpose::Waiting | Purpose::Prompt | Purpose::Again => self.fetch_frame_max,
                        Purpose::Control | Purpose::Join | Purpose::Group | Purpose::Produce => {
                            FRAME_MAX
                        }
                    };
                    actions.push_back(Action::Open {
                        link,
                        host,
                        port,
                        until,
                        frame_max,
                    });
                } else {
                    let gone = format!("{} has left the cluster", key.0);
                    let gone = Error::new(ErrorKind::Transport, gone).retriable();
                    slot.link.handle_down(now, gone);
                    self.forget(key);
                    continue;
                }
            }
            self.pump_slot(now, key, actions);
        }
    }

    /// There are other credentials: whoever waits for some is served.
    fn serve_late_logins(&mut self, now: Now) {
        for (key, slot) in &mut self.slots {
            self.touched.insert(*key);
            self.logins.serve_late(now, &mut slot.link, &mut slot.login);
        }
    }

    fn pump_slot(&mut self, now: Now, key: Key, actions: &mut VecDeque<Action>) {
        let Some(slot) = self.slots.get_mut(&key) else {
            return;
        };
        while let Some(action) = slot.link.poll_action() {
            match (action, slot.dialled) {
                (LinkAction::Answer { token, result }, _) => {
                    if result.is_ok() && !slot.proven {
                        slot.proven = true;
                        self.news.push_back((key.0, News::Proven));
                    }
                    self.answers.push_back(Answer { token, result });
                }
                (LinkAction::Ready, _) => self.news.push_back((key.0, News::Up)),
                (LinkAction::Login, _) => {
                    self.logins.serve(now, &mut slot.link, &mut slot.login);
                }
                (LinkAction::LoggedIn, _) => self.logins.accepted(&slot.login),
                (LinkAction::Refused(error), _) => self.logins.refused(now, &slot.login, error),
                (LinkAction::Send(frame), Some(link)) => {
                    let answer_bytes = slot.link.answer_bytes();
                    actions.push_back(Action::Send {
                        link,
                        frame,
                        answer_bytes,
                    });
                }
                (LinkAction::Send(_), None) => {}
                (
                    LinkAction::Close {
                        error,
                        api_versions_max,
                    },
                    _,
                ) => {
                    if let Some(version) = api_versions_max {
                        self.api_versions_max.insert(key.0, version);
                    }
                    let news = match slot.was_idle {
                        true => News::Idle(error),
                        false => News::Down(error),
                    };
                    self.news.push_back((key.0, news));
                    self.close(key, actions);
                    return;
                }
            }
        }
    }

    fn close(&mut self, key: Key, actions: &mut VecDeque<Action>) {
        if let Some(link) = self.slots.get(&key).and_then(|slot| slot.dialled) {
            actions.push_back(Action::Close { link });
        }
        self.forget(key);
    }

    /// Takes what the link still owes and drops it.
    fn forget(&mut self, key: Key) {
        let Some(mut slot) = self.slots.remove(&key) else {
            return;
        };
        if let Some(link) = slot.dialled {
            self.by_id.remove(&link);
        }
        let closed = Error::new(ErrorKind::Transport, "the connection was closed by us");
        slot.link
            .handle_down(slot.link.idle_since(), closed.retriable());
        while let Some(action) = slot.link.poll_action() {
            if let LinkAction::Answer { token, result } = action {
                self.answers.push_back(Answer { token, result });
            }
        }
    }

    /// Closes what leads to this peer.
    pub(super) fn close_peer(&mut self, peer: Peer, actions: &mut VecDeque<Action>) {
        let keys: Vec<_> = self
            .slots
            .keys()
            .filter(|key| key.0 == peer)
            .copied()
            .collect();
        for key in keys {
            self.close(key, actions);
        }
    }

    /// Closes every link; what they owe is answered with an error.
    pub(super) fn close_all(&mut self, actions: &mut VecDeque<Action>) {
        while let Some(key) = self.slots.keys().next().copied() {
            self.close(key, actions);
        }
    }

    pub(super) fn poll_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    pub(super) fn poll_news(&mut self) -> Option<(Peer, News)> {
        self.news.pop_front()
    }
}
