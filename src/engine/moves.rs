//! Moves what one machine says to the machines that need to hear it.

use super::hooks::Load;
use super::links::{News, Purpose};
use super::notices::Leaderless;
use super::{Action, Engine, Event, Phase, Recreated};
use crate::cluster::{ClusterAction, Peer};
use crate::commit::{CommitAction, MemberRef};
use crate::error::{Error, ErrorKind};
use crate::fetch::{FetchAction, FetchLink, Loss, Start};
use crate::group::{GroupAction, GroupLink};
use crate::ids::{LeaseId, Token, TopicId, TopicPartition};
use crate::settle::Tracker;
use crate::time::Now;
use crate::wire::Request;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The machine that a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Cluster,
    Group,
    Commit,
    Fetch,
    /// What was let go is read again.
    Again,
    Produce,
}

/// A request to the coordinator, which is not known yet.
pub(super) struct Waiting {
    pub deadline: Now,
    owner: Owner,
    token: Token,
    purpose: Purpose,
    request: Request,
}

/// Requests that may wait for a coordinator; the machines have a handful out at most.
const WAITING_MAX: usize = 64;

impl Engine {
    pub(super) fn pump_cluster(&mut self, now: Now) -> bool {
        let mut moved = false;
        while let Some(action) = self.cluster.poll_action() {
            moved = true;
            match action {
                ClusterAction::Send {
                    token,
                    to,
                    request,
                    timeout,
                } => {
                    let global = self.route(Owner::Cluster, token);
                    let key = (to, Purpose::Control);
                    self.links
                        .send(now, key, global, request, timeout, &self.cluster);
                }
                ClusterAction::Changed => self.view_changed(now),
                ClusterAction::Coordinator(node) => {
                    if let Some(commit) = &mut self.commit {
                        commit.set_coordinator(now, true);
                    }
                    self.release_waiting(now);
                    // The join will need a moment; committed offsets are asked for right after.
                    let key = (Peer::Node(node), Purpose::Group);
                    self.links.warm(now, key, &self.cluster);
                }
                ClusterAction::TopicRecreated { topic, .. } => {
                    self.topic_recreated(now, &topic);
                }
                ClusterAction::TopicGone { topic } => {
                    self.first_counts.insert(topic.clone(), 0);
                    self.notice(format!(
                        "topic {topic} is no longer in the cluster's metadata"
                    ));
                }
                ClusterAction::Relocated(node) => {
                    self.links.close_peer(Peer::Node(node), &mut self.actions);
                }
                ClusterAction::Fatal(error) => self.fail(now, error),
                ClusterAction::Notice(notice) => self.cluster_notice(now, &notice),
            }
        }
        moved
    }

    pub(super) fn pump_group(&mut self, now: Now) -> bool {
        let mut moved = false;
        while let Some(action) = self.group.as_mut().and_then(|g| g.poll_action()) {
            moved = true;
            match action {
                GroupAction::Send {
                    token,
                    link,
                    request,
                    timeout,
                } => {
                    let purpose = match link {
                        GroupLink::Join => Purpose::Join,
                        GroupLink::Group => Purpose::Group,
                    };
                    self.send_to_coordinator(now, (Owner::Group, token), purpose, request, timeout);
                }
                GroupAction::CoordinatorMoved => self.coordinator_moved(now),
                GroupAction::Refresh => {
                    self.cluster.refresh(now);
                    // It may be known since before the group spoke of it.
                    self.view_changed(now);
                }
                GroupAction::Watch { topics } => self.watch(now, topics),
                GroupAction::Granted { partitions } => {
                    self.grant(now, partitions);
                    self.expect_held(now);
                }
                GroupAction::Revoke {
                    partitions,
                    deadline,
                } => {
                    self.revoke(now, partitions, deadline);
                }
                GroupAction::Lost { partitions } => {
                    self.lose(now, &partitions);
                    self.expect_held(now);
                }
                GroupAction::Joined { .. } => {
                    let member = self.group.as_ref().and_then(|g| g.member());
                    let member = member.map(|m| MemberRef {
                        member_id: m.member_id,
                        generation: m.generation,
                        instance_id: m.instance_id,
                    });
                    if let Some(commit) = &mut self.commit {
                        commit.set_member(now, member);
                    }
                }
                GroupAction::Fatal(error) => self.fail(now, error),
                GroupAction::Left => self.left(),
                GroupAction::Notice(event) => self.group_notice(now, event),
            }
        }
        moved
    }

    pub(super) fn pump_commit(&mut self, now: Now) -> bool {
        let mut moved = false;
        while let Some(action) = self.commit.as_mut().and_then(|c| c.poll_action()) {
            moved = true;
            match action {
                CommitAction::Send {
                    token,
                    request,
                    timeout,
                } => {
                    let from = (Owner::Commit, token);
                    self.send_to_coordinator(now, from, Purpose::Group, request, timeout);
                }
                CommitAction::Ask { leases } => self.answer_ask(now, &leases),
                CommitAction::CoordinatorMoved => self.coordinator_moved(now),
                CommitAction::Loaded { lease, committed } => match committed {
                    Some(c) => {
                        self.inherit(lease, &c);
                        self.start_lease(
                            now,
                            lease,
                            Start::At {
                                offset: c.offset,
                                epoch: c.leader_epoch,
                            },
                        );
                    }
                    None => self.start_lease(now, lease, Start::Policy),
                },
                CommitAction::Committed { .. } => {}
                CommitAction::Flushed { lease, complete } => {
                    self.flushed(lease, complete);
                }
                // The coordinator's own word to a heartbeat says the same within an interval, and
                // only that may end a membership: a commit can be late, the heartbeat is not.
                CommitAction::Rejoin(code) | CommitAction::Lost(code) => {
                    self.notice(format!(
                        "a commit was refused ({code}); it is sent again under the next generation"
                    ));
                }
                CommitAction::Failed { lease, error } => {
                    let Some(tenure) = self.leases.get(lease) else {
                        continue;
                    };
                    let tp = &tenure.partition;
                    let error = error.at(tp.topic.clone(), tp.partition);
                    match tenure.tracker {
                        Some(_) => self.warn(error),
                        // It may not even be asked where to start: no retry mends that.
                        None => self.fail(now, error),
                    }
                }
                CommitAction::Fatal(error) => self.fail(now, error),
                CommitAction::Notice(notice) => self.commit_notice(now, &notice),
            }
        }
        if moved {
            self.answer_commit_waiters();
        }
        moved
    }

    pub(super) fn pump_fetch(&mut self, now: Now) -> bool {
        let mut moved = false;
        let mut leaders = Leaderless::default();
        while let Some(action) = self.fetch.poll_action() {
            moved = true;
            self.fetch_action(now, Owner::Fetch, action, &mut leaders);
        }
        while let Some(action) = self.overflow.as_mut().and_then(|o| o.fetch.poll_action()) {
            moved = true;
            self.fetch_action(now, Owner::Again, action, &mut leaders);
        }
        self.leaderless(now, leaders);
        moved
    }

    fn fetch_action(
        &mut self,
        now: Now,
        owner: Owner,
        action: FetchAction,
        leaders: &mut Leaderless,
    ) {
        match action {
            FetchAction::Send {
                token,
                node,
                link,
                request,
                timeout,
                ..
            } => {
                let purpose = match (link, owner) {
                    (FetchLink::Lookup, _) => Purpose::Control,
                    (_, Owner::Again) => Purpose::Again,
                    (FetchLink::Waiting, _) => Purpose::Waiting,
                    (FetchLink::Prompt, _) => Purpose::Prompt,
                };
                let global = self.route(owner, token);
                let key = (Peer::Node(node), purpose);
                self.links
                    .send(now, key, global, request, timeout, &self.cluster);
            }
            FetchAction::RefreshMetadata => self.cluster.refresh(now),
            FetchAction::Hint {
                topic,
                partition,
                leader,
                epoch,
                endpoints,
            } => {
                self.cluster
                    .hint_leader(&topic, partition, (leader, epoch), &endpoints);
            }
            FetchAction::Started { lease, offset, .. } => self.started(now, lease, offset),
            FetchAction::Reset {
                lease,
                from,
                to,
                why,
            } => match owner {
                Owner::Again => self.again_lost(now, lease, (from, to), why),
                _ => self.reset(now, lease, (from, to), why),
            },
            FetchAction::Stopped { lease, error } => match owner {
                Owner::Again => self.again_stopped(lease, error),
                _ => self.stopped(now, lease, error),
            },
            FetchAction::Notice(event) => self.fetch_notice(now, event, leaders),
        }
    }

    pub(super) fn pump_links(&mut self, now: Now) -> bool {
        self.links.pump(now, &self.cluster, &mut self.actions);
        let mut moved = self.pump_logins(now);
        // A login may have ended the subscription; what was asked for is answered all the same, or
        // the room that was kept for it would stay taken.
        let is_over = matches!(self.phase, Phase::Finished);
        while let Some((peer, news)) = self.links.poll_news().filter(|_| !is_over) {
            moved = true;
            match news {
                News::Up => self.cluster.link_up(now, peer),
                News::Proven => self.cluster.proven(peer),
                News::Down(error) => {
                    self.cluster.link_down(now, peer);
                    self.notice(format!("a connection ended: {error}"));
                }
                News::Idle(error) => {
                    self.notice(format!("an idle connection was closed: {error}"));
                }
            }
        }
        while let Some(answer) = self.links.poll_answer() {
            moved = true;
            let Some((owner, token)) = self.routes.remove(&answer.token) else {
                continue;
            };
            match owner {
                Owner::Cluster => self.cluster.handle_response(now, token, answer.result),
                Owner::Fetch => self.fetch.handle_response(now, token, answer.result),
                Owner::Again => {
                    if let Some(overflow) = &mut self.overflow {
                        overflow.fetch.handle_response(now, token, answer.result);
                    }
                }
                Owner::Produce => {
                    if let Some(writer) = &mut self.writer {
                        writer.produce.handle_response(now, token, answer.result);
                    }
                }
                Owner::Group => {
                    if let Some(group) = &mut self.group {
                        group.handle_response(now, token, answer.result);
                    }
                }
                Owner::Commit => {
                    if let Some(commit) = &mut self.commit {
                        commit.handle_response(now, token, answer.result);
                    }
                }
            }
        }
        moved
    }

    pub(super) fn route(&mut self, owner: Owner, token: Token) -> Token {
        let global = Token(self.next_token);
        self.next_token += 1;
        self.routes.insert(global, (owner, token));
        global
    }

    fn send_to_coordinator(
        &mut self,
        now: Now,
        (owner, token): (Owner, Token),
        purpose: Purpose,
        request: Request,
        timeout: Duration,
    ) {
        if let Some(node) = self.cluster.coordinator() {
            let global = self.route(owner, token);
            let key = (Peer::Node(node), purpose);
            self.links
                .send(now, key, global, request, timeout, &self.cluster);
        } else if self.waiting.len() < WAITING_MAX {
            let deadline = now + timeout;
            self.waiting.push_back(Waiting {
                deadline,
                owner,
                token,
                purpose,
                request,
            });
        } else {
            self.answer_unsent(now, owner, token);
        }
    }

    /// As its leader we must know the topics of the whole group; an empty list: we lead no more.
    fn watch(&mut self, now: Now, topics: Vec<Arc<str>>) {
        let mut all = self.own_topics();
        all.extend(topics);
        all.sort();
        all.dedup();
        if matches!(self.config.source, super::Source::Topics { .. }) {
            self.cluster.want_topics(now, &all);
        }
        self.watched = all;
        self.view_changed(now);
    }

    fn coordinator_moved(&mut self, now: Now) {
        self.cluster.coordinator_failed(now);
        let known = self.cluster.coordinator().is_some();
        if let Some(commit) = &mut self.commit {
            commit.set_coordinator(now, known);
        }
    }

    /// The coordinator is known: what waited for it goes out.
    fn release_waiting(&mut self, now: Now) {
        for w in std::mem::take(&mut self.waiting) {
            let timeout = w.deadline.since(now).max(Duration::from_millis(1));
            self.send_to_coordinator(now, (w.owner, w.token), w.purpose, w.request, timeout);
        }
    }

    pub(super) fn expire_waiting(&mut self, now: Now) {
        while let Some(at) = self.waiting.iter().position(|w| w.deadline <= now) {
            if let Some(w) = self.waiting.remove(at) {
                self.answer_unsent(now, w.owner, w.token);
            }
        }
    }

    /// Joins that wait for a coordinator wait no more.
    pub(super) fn expire_unsent_joins(&mut self, now: Now) {
        while let Some(at) = self.waiting.iter().position(|w| w.purpose == Purpose::Join) {
            if let Some(w) = self.waiting.remove(at) {
                self.answer_unsent(now, w.owner, w.token);
            }
        }
    }

    fn answer_unsent(&mut self, now: Now, owner: Owner, token: Token) {
        let error = Error::new(
            ErrorKind::Transport,
            "the group's coordinator was not found in time",
        );
        let result = Err(error.retriable());
        match (owner, &mut self.group, &mut self.commit) {
            (Owner::Group, Some(group), _) => group.handle_response(now, token, result),
            (Owner::Commit, _, Some(commit)) => commit.handle_response(now, token, result),
            _ => {}
        }
    }

    /// Leaders, partition counts or ids may be other than before.
    fn view_changed(&mut self, now: Now) {
        self.note_first_counts();
        self.match_topics(now);
        let nodes: Vec<_> = self.cluster.brokers().map(|b| b.node).collect();
        if let Some(overflow) = &mut self.overflow {
            overflow.fetch.set_nodes(now, nodes.iter().copied());
        }
        self.fetch.set_nodes(now, nodes);
        for id in self.leases.ids() {
            self.tell_leader(now, id);
        }
        if let Some(group) = &mut self.group {
            let (cluster, watched) = (&self.cluster, &self.watched);
            let counts = || cluster.partition_counts(watched);
            group.set_view(now, counts, |id| cluster.topic_by_id(id).cloned());
        }
        self.tell_writer(now);
    }

    /// Metadata must have what we hold, and need not have anything else.
    pub(super) fn expect_held(&mut self, now: Now) {
        let held = self.leases.iter().map(|(_, t)| t.partition.clone());
        self.cluster
            .expect_partitions(now, &held.collect::<Vec<_>>());
    }

    /// The fetch machine hears who leads the lease's partition.
    fn tell_leader(&mut self, now: Now, lease: LeaseId) {
        let Some(tenure) = self.leases.get(lease) else {
            return;
        };
        let tp = &tenure.partition;
        let Some(topic) = self.cluster.topic(&tp.topic) else {
            return;
        };
        let (id, leader) = (topic.id, self.cluster.leader(&tp.topic, tp.partition));
        let (node, epoch) = leader.map_or((None, -1), |(node, epoch)| (Some(node), epoch));
        self.fetch.set_leader(now, tp, node, epoch, id);
        if let Some(overflow) = &mut self.overflow {
            overflow.fetch.set_leader(now, tp, node, epoch, id);
        }
    }

    /// New leases on these partitions. Their start is the committed offset, or the policy's.
    pub(super) fn grant(&mut self, now: Now, partitions: Vec<TopicPartition>) {
        if !matches!(self.phase, Phase::Running) {
            return; // we are on our way out; leaving gives them back
        }
        let mut loads = Vec::with_capacity(partitions.len());
        for partition in partitions {
            if let Some(old) = self.leases.of(&partition) {
                // The group says it is ours anew, so what we held of it is over.
                self.end_lease(now, old);
            }
            let topic_id = self
                .cluster
                .topic(&partition.topic)
                .map(|t| t.id)
                .unwrap_or_default();
            let lease = self.leases.grant(partition.clone(), topic_id);
            loads.push((lease, partition, topic_id));
        }
        self.warm_leaders(now, &loads);
        self.begin_granted(now, loads);
    }

    /// Leases begin where their group left off, but for those that have ended meanwhile.
    pub(super) fn begin_leases(&mut self, now: Now, mut loads: Vec<Load>) {
        let stands = |id| self.leases.get(id).is_some_and(|t| !t.draining);
        loads.retain(|(lease, ..)| stands(*lease));
        match &mut self.commit {
            Some(commit) => commit.load(now, loads),
            None => {
                for (lease, ..) in loads {
                    self.start_lease(now, lease, Start::Policy);
                }
            }
        }
    }

    /// While the committed offsets are asked for, the connections that fetch them can be opened.
    fn warm_leaders(&mut self, now: Now, granted: &[Load]) {
        let leader = |tp: &TopicPartition| self.cluster.leader(&tp.topic, tp.partition);
        let leaders = granted.iter().filter_map(|(_, tp, _)| leader(tp));
        let nodes: BTreeSet<_> = leaders.map(|(node, _)| node).collect();
        for node in nodes {
            let key = (Peer::Node(node), Purpose::Prompt);
            self.links.warm(now, key, &self.cluster);
        }
    }

    /// Gives the partition to the fetch machine.
    pub(super) fn start_lease(&mut self, now: Now, lease: LeaseId, start: Start) {
        let Some(tenure) = self.leases.get(lease) else {
            return;
        };
        if tenure.draining || !matches!(self.phase, Phase::Running) {
            return; // no intake any more
        }
        let (partition, id) = (tenure.partition.clone(), tenure.topic_id);
        let born_after_us = self.is_new(&partition);
        self.fetch
            .add(now, lease, partition, id, start, born_after_us);
        self.pause_lease(now, lease);
        self.tell_leader(now, lease);
        if let Start::At { offset, .. } = start {
            self.started(now, lease, offset);
        }
    }

    /// The first offset of a lease is known.
    fn started(&mut self, _now: Now, lease: LeaseId, offset: i64) {
        let Some(tenure) = self.leases.get_mut(lease) else {
            return;
        };
        if tenure.tracker.is_none() {
            tenure.tracker = Some(Tracker::new(offset));
            let partition = tenure.partition.clone();
            self.event(Event::Granted { partition, offset });
        }
    }

    /// Reading goes on elsewhere: a new lease, since what runs belongs to another past. It begins
    /// no higher than the watermark where records below may still be read again: those that had
    /// been handed out and not settled are not skipped.
    pub(super) fn reset(&mut self, now: Now, lease: LeaseId, (from, to): (i64, i64), why: Loss) {
        let Some(tenure) = self.leases.get(lease) else {
            return;
        };
        let (partition, id) = (tenure.partition.clone(), tenure.topic_id);
        let (watermark, draining) = match &tenure.tracker {
            Some(tracker) => (tracker.watermark(), tenure.draining),
            None => (to, tenure.draining),
        };
        let to = why.resume_at(to, watermark);
        self.event(Event::DataLoss {
            partition: partition.clone(),
            from,
            to,
            why: why.to_string(),
        });
        self.end_lease(now, lease);
        if matches!(why, Loss::Recreated { .. }) && self.config.recreated == Recreated::Stop {
            return self.stop_for_recreated(now, partition);
        }
        if !draining && matches!(self.phase, Phase::Running) {
            let lease = self.regrant(now, partition, id);
            let epoch = -1;
            self.start_lease(now, lease, Start::At { offset: to, epoch });
        }
    }

    /// The topic was deleted and made anew: nothing of the old one applies.
    fn topic_recreated(&mut self, now: Now, topic: &str) {
        self.first_counts.insert(Arc::from(topic), 0);
        let held: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, t)| &*t.partition.topic == topic)
            .map(|(id, t)| {
                let position = t.tracker.as_ref().map(Tracker::position);
                (id, t.partition.clone(), position, self.goes_away(id))
            })
            .collect();
        let stops = self.config.recreated == Recreated::Stop;
        let begun = |(_, _, position, _): &&(_, _, Option<i64>, _)| position.is_some();
        let first = held.iter().find(begun).map(|(_, tp, ..)| tp.clone());
        let stops = first.filter(|_| stops);
        for (lease, partition, position, draining) in held {
            if self.hooks.waits(lease) {
                continue; // it has not begun
            }
            self.end_lease(now, lease);
            let id = self.cluster.topic(topic).map(|t| t.id).unwrap_or_default();
            let from = position.unwrap_or(-1);
            let why = "the topic was deleted and made anew".to_owned();
            self.event(Event::DataLoss {
                partition: partition.clone(),
                from,
                to: 0,
                why,
            });
            // What was on its way out stays there: the group is about to hear that it is free.
            if !draining && stops.is_none() && matches!(self.phase, Phase::Running) {
                let lease = self.regrant(now, partition, id);
                self.start_lease(now, lease, Start::Policy);
            }
        }
        if let Some(partition) = stops {
            self.stop_for_recreated(now, partition);
        }
    }

    fn stop_for_recreated(&mut self, now: Now, partition: TopicPartition) {
        let words = "the topic was deleted and made anew, and Recreated::Stop ends the subscription \
                     then: see whether the new one is to be read, and start again";
        let error = Error::new(ErrorKind::Broker, words).at(partition.topic, partition.partition);
        self.close(now, now + self.config.drain_max, Err(error));
    }

    /// A new lease on a partition that stays ours, at a place that the group need not be asked for.
    pub(super) fn regrant(&mut self, now: Now, partition: TopicPartition, id: TopicId) -> LeaseId {
        let lease = self.leases.grant(partition.clone(), id);
        if let Some(commit) = &mut self.commit {
            commit.begin(now, lease, partition, id);
        }
        lease
    }

    fn stopped(&mut self, now: Now, lease: LeaseId, error: Error) {
        let Some(tenure) = self.leases.get(lease) else {
            return;
        };
        let error = error.at(tenure.partition.topic.clone(), tenure.partition.partition);
        if tenure.tracker.is_none() {
            // It never started: the start policy says to fail, and that is the user's to see.
            self.fail(now, error);
        } else {
            self.event(Event::Stopped { error });
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        self.actions.push_back(Action::Event(event));
    }

    pub(super) fn notice(&mut self, text: String) {
        self.event(Event::Notice { text });
    }

    pub(super) fn warn(&mut self, error: Error) {
        self.event(Event::Warning { error });
    }
}
