//! How leases and the subscription end: drains, losses, commands, the way out.

use super::leases::{After, Drain, DrainStep};
use super::{Action, Command, Engine, Event, Phase};
use crate::commit::Progress;
use crate::error::{Error, ErrorKind};
use crate::ids::{CommandId, LeaseId, TopicPartition};
use crate::lane::LeaseState;
use crate::settle::Tracker;
use crate::time::Now;
use std::collections::BTreeSet;
use std::time::Duration;

/// The least time that the last commit of a revoked partition gets; also what closing without a
/// deadline of its own leaves for the last commit and for leaving the group.
const FLUSH_MIN: Duration = Duration::from_secs(5);

/// The most of a close's time that is kept for the last commit and for leaving the group; of a
/// short one a fifth.
const PARTING_MAX: Duration = Duration::from_secs(2);

/// The most that leaving the group may take after an error that ends the subscription.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Commands of one kind that may wait for an answer at once: commits, and ways out.
const COMMANDS_MAX: usize = 64;

impl Drain {
    pub(super) fn next_deadline(&self) -> Now {
        match self.step {
            DrainStep::Running => self.deadline,
            DrainStep::Flushing(_) => self.flush_deadline,
        }
    }
}

impl Engine {
    pub(super) fn obey(&mut self, now: Now, id: CommandId, command: Command) {
        let waiting = match command {
            Command::CommitNow => &self.commit_waiters,
            Command::Drain | Command::Close { .. } => &self.closers,
            Command::Release { partitions } => return self.release_reserved(now, id, &partitions),
            _ => return self.steer(now, id, command),
        };
        let too_many = waiting.len() >= COMMANDS_MAX;
        if too_many {
            let error =
                Error::misuse("too many commands wait for an answer; wait for theirs first");
            self.actions.push_back(Action::Reply {
                id,
                result: Err(error),
            });
        }
        match command {
            Command::CommitNow if too_many => {}
            Command::CommitNow => self.commit_now(now, id),
            // A way out is taken however many wait to hear of it: nobody may be left without one.
            Command::Drain => {
                (!too_many).then(|| self.closers.push(id));
                if matches!(self.phase, Phase::New | Phase::Running) {
                    self.phase = Phase::Draining;
                    for lease in self.leases.ids() {
                        self.unfetch(now, lease);
                    }
                    self.drop_paused();
                }
            }
            Command::Close { deadline } => {
                (!too_many).then(|| self.closers.push(id));
                let left = deadline.since(now);
                if left.is_zero() {
                    self.close(now, now, Ok(()));
                } else {
                    let parting = (left / 5).min(PARTING_MAX);
                    self.close_by(now, now + (left - parting), deadline, Ok(()));
                }
            }
            _ => {}
        }
    }

    fn release_reserved(&mut self, now: Now, id: CommandId, partitions: &[TopicPartition]) {
        let released = match &mut self.group {
            Some(group) => group.release_reserved(now, partitions),
            None => false,
        };
        let result = match released {
            true => Ok(()),
            false => Err(Error::misuse(
                "release: none of these partitions is reserved, as far as this member has heard",
            )),
        };
        self.actions.push_back(Action::Reply { id, result });
    }

    fn commit_now(&mut self, now: Now, id: CommandId) {
        self.note_watermarks(now);
        let deadline = now + self.config.request_timeout;
        let leases = self.leases.ids();
        match &mut self.commit {
            Some(commit) => {
                self.commit_waiters.push(id);
                commit.flush(now, &leases, deadline);
            }
            None => {
                let error =
                    Error::misuse("nothing to commit to: these partitions have no group id");
                self.actions.push_back(Action::Reply {
                    id,
                    result: Err(error),
                });
            }
        }
        self.answer_commit_waiters();
    }

    /// A partition goes back to the group: what runs may end, what settled is committed.
    pub(super) fn revoke(&mut self, now: Now, partitions: Vec<TopicPartition>, deadline: Now) {
        let limit = deadline.since(now);
        let run = self.config.drain_max.min(limit / 2);
        self.drain(now, partitions, (now + run, deadline), After::Group);
    }

    pub(super) fn drain(
        &mut self,
        now: Now,
        partitions: Vec<TopicPartition>,
        (deadline, flush_deadline): (Now, Now),
        after: After,
    ) {
        let mut leases = Vec::new();
        for partition in &partitions {
            let Some(id) = self.leases.of(partition) else {
                continue;
            };
            let Some(tenure) = self.leases.get_mut(id) else {
                continue;
            };
            // An earlier drain may have it already: this one waits for it all the same, or the
            // group would hear that it is free while handlers still run. Whichever is over first
            // ends the lease, also in the other.
            leases.push(id);
            if !std::mem::replace(&mut tenure.draining, true) {
                self.lanes.end_lease(&tenure.lease, LeaseState::Draining);
                self.unfetch(now, id);
            }
        }
        let step = DrainStep::Running;
        self.drains.push(Drain {
            leases,
            partitions,
            deadline,
            flush_deadline,
            step,
            after,
        });
    }

    /// Not ours any more, and no time to commit: what runs counts for nothing.
    pub(super) fn lose(&mut self, now: Now, partitions: &[TopicPartition]) {
        let mut lost = Vec::new();
        for partition in partitions {
            if let Some(id) = self.leases.of(partition) {
                self.end_lease(now, id);
                self.event(Event::Lost {
                    partition: partition.clone(),
                });
                lost.push(partition.clone());
            }
        }
        self.tell_lost(now, lost);
    }

    /// Ends a lease at once, without a commit.
    pub(super) fn end_lease(&mut self, now: Now, id: LeaseId) {
        let Some(tenure) = self.leases.end(id) else {
            return;
        };
        self.unfetch(now, id);
        self.lanes.end_lease(&tenure.lease, LeaseState::Lost);
        self.forget_letters(id);
        if let Some(commit) = &mut self.commit {
            commit.end(id);
        }
        for drain in &mut self.drains {
            drain.leases.retain(|l| *l != id);
            if let DrainStep::Flushing(open) = &mut drain.step {
                open.remove(&id);
            }
        }
    }

    /// Nothing more is read under this lease, anew or again.
    fn unfetch(&mut self, now: Now, lease: LeaseId) {
        self.fetch.remove(now, lease);
        if let Some(overflow) = &mut self.overflow {
            overflow.end(now, lease);
        }
    }

    pub(super) fn pump_drains(&mut self, now: Now) -> bool {
        let ran = matches!(self.phase, Phase::Draining) && self.lanes_are_empty();
        if ran && self.sends_are_done() {
            // Everything that had been dealt has run.
            let deadline = now + self.config.drain_max;
            self.close(now, deadline, Ok(()));
            return true;
        }
        let mut moved = false;
        let mut at = 0;
        while at < self.drains.len() {
            moved |= self.step_drain(now, at);
            if self.drain_over(now, at) {
                self.finish_drain(now, at);
                moved = true;
            } else {
                at += 1;
            }
        }
        self.settle_seeks();
        let is_done = self.drains.is_empty() && self.hooks.is_idle() && self.sends_are_done();
        if is_done && matches!(self.phase, Phase::Closing(_)) {
            self.leave(now);
            moved = true;
        }
        moved
    }

    fn lanes_are_empty(&self) -> bool {
        let load = self.lanes.load();
        let waits = load.ready + load.queued + load.parked + load.held;
        waits == 0 && load.out == 0
    }

    /// From running to flushing, once nothing runs or the deadline has come.
    fn step_drain(&mut self, now: Now, at: usize) -> bool {
        let drain = &self.drains[at];
        if drain.step != DrainStep::Running {
            return false;
        }
        let leases = drain.leases.clone();
        let out: u64 = leases.iter().map(|id| self.running_of(*id)).sum();
        if out > 0 && now < drain.deadline {
            return false;
        }
        if out > 0 {
            self.abandon(&leases);
        }
        self.note_watermarks(now);
        let mut until = self.drains[at].flush_deadline;
        if matches!(self.phase, Phase::Running | Phase::Draining) {
            until = until.max(now + FLUSH_MIN);
        }
        self.drains[at].flush_deadline = until;
        let mut open = BTreeSet::new();
        if let Some(commit) = &mut self.commit {
            // What has not begun has nothing to commit, and the commit machine may not know it.
            let begun = |id: &LeaseId| self.leases.get(*id).is_some_and(|t| t.tracker.is_some());
            let begun: Vec<_> = leases.iter().copied().filter(begun).collect();
            open.extend(begun.iter().copied());
            commit.flush(now, &begun, until);
        }
        self.drains[at].step = DrainStep::Flushing(open);
        true
    }

    /// What still runs at a drain's deadline is told, dropped, and counts for nothing.
    pub(super) fn abandon(&mut self, leases: &[LeaseId]) {
        for id in leases {
            let records = self.running_of(*id);
            let Some(tenure) = self.leases.get(*id) else {
                continue;
            };
            self.lanes.end_lease(&tenure.lease, LeaseState::Lost);
            if records > 0 {
                let partition = tenure.partition.clone();
                self.event(Event::Abandoned { partition, records });
            }
        }
    }

    fn running_of(&self, id: LeaseId) -> u64 {
        self.leases
            .get(id)
            .map_or(0, |tenure| self.lanes.in_executors(&tenure.lease))
    }

    fn drain_over(&self, now: Now, at: usize) -> bool {
        match &self.drains[at].step {
            DrainStep::Running => false,
            DrainStep::Flushing(open) => open.is_empty() || now >= self.drains[at].flush_deadline,
        }
    }

    fn finish_drain(&mut self, now: Now, at: usize) {
        let drain = self.drains.remove(at);
        if drain.after == After::Seek {
            for (id, partition) in drain.leases.iter().zip(&drain.partitions) {
                self.sought(now, *id, partition);
            }
            return self.settle_seeks();
        }
        let mut gone = Vec::new();
        for id in drain.leases {
            let committed = self.commit.as_ref().and_then(|c| c.committed(id));
            if let Some(tenure) = self.leases.get(id) {
                let partition = tenure.partition.clone();
                gone.push(partition.clone());
                self.event(Event::Revoked {
                    partition,
                    committed,
                });
            }
            self.end_lease(now, id);
        }
        self.expect_held(now);
        let mut until = drain.flush_deadline.max(now);
        if self.over_at != Now::NEVER {
            // Leaving needs time as well.
            until = now + self.over_at.since(now) / 2;
        }
        let release = match drain.after {
            After::Group => drain.partitions,
            _ => Vec::new(),
        };
        self.tell_revoked(now, gone, release, until);
    }

    /// The commit machine is done with this lease's flush.
    pub(super) fn flushed(&mut self, lease: LeaseId, complete: bool) {
        self.flush_failed |= !complete;
        for drain in &mut self.drains {
            if let DrainStep::Flushing(open) = &mut drain.step {
                open.remove(&lease);
            }
        }
    }

    pub(super) fn answer_commit_waiters(&mut self) {
        if self.commit_waiters.is_empty() {
            self.flush_failed = false;
            return;
        }
        let idle = self.commit.as_ref().is_none_or(|c| !c.is_flushing());
        if idle {
            let failed = std::mem::take(&mut self.flush_failed);
            for id in std::mem::take(&mut self.commit_waiters) {
                let result = match failed {
                    false => Ok(()),
                    true => Err(Error::new(
                        ErrorKind::Broker,
                        "the commit was not acknowledged in time; it is tried again by itself",
                    )
                    .retriable()),
                };
                self.actions.push_back(Action::Reply { id, result });
            }
        }
    }

    /// Begins the way out: what runs may end until `deadline`, and all is over a little later.
    pub(super) fn close(&mut self, now: Now, deadline: Now, result: Result<(), Error>) {
        self.close_by(now, deadline, deadline + FLUSH_MIN, result);
    }

    /// Drains every lease, by `run_until`, then leaves; finished at `over`, however far it is.
    fn close_by(&mut self, now: Now, run_until: Now, over: Now, result: Result<(), Error>) {
        match &mut self.phase {
            Phase::New | Phase::Running | Phase::Draining => {
                self.phase = Phase::Closing(result);
                let all: Vec<_> = self
                    .leases
                    .iter()
                    .map(|(_, t)| t.partition.clone())
                    .collect();
                self.drain(now, all, (run_until, over), After::Nothing);
            }
            // A second close can only shorten the first.
            Phase::Closing(_) | Phase::Leaving(_) => {}
            Phase::Finished => return,
        }
        self.over_at = self.over_at.min(over);
        // Leaving comes after the last commit and needs time as well.
        let flushed_by = run_until + over.since(run_until) / 2;
        self.hooks.hurry(flushed_by);
        // Also what was being drained for the group before.
        for drain in &mut self.drains {
            drain.deadline = drain.deadline.min(run_until);
            drain.flush_deadline = drain.flush_deadline.min(flushed_by);
        }
    }

    /// The time for closing is up: what is not done by now is not waited for.
    pub(super) fn expire_close(&mut self, now: Now) {
        if now < self.over_at {
            return;
        }
        if let Phase::Closing(result) | Phase::Leaving(result) =
            std::mem::replace(&mut self.phase, Phase::Finished)
        {
            for id in self.leases.ids() {
                self.end_lease(now, id);
            }
            self.finish(result);
        }
    }

    fn leave(&mut self, now: Now) {
        let Phase::Closing(result) = std::mem::replace(&mut self.phase, Phase::Finished) else {
            return;
        };
        self.phase = Phase::Leaving(result);
        match &mut self.group {
            Some(group) => {
                group.leave(now);
                // A first join that was never sent makes nobody a member: there is nothing to wait
                // for where no coordinator was found.
                self.expire_unsent_joins(now);
            }
            None => self.left(),
        }
    }

    /// We are out of the group, or were never in one.
    pub(super) fn left(&mut self) {
        if let Phase::Leaving(result) | Phase::Closing(result) =
            std::mem::replace(&mut self.phase, Phase::Finished)
        {
            self.finish(result);
        }
    }

    /// Something that no retry mends: every lease is given up and the subscription ends. Whoever
    /// waits hears of it at once; a member of a group first says that it goes, or the group would
    /// wait for its session to run out.
    pub(super) fn fail(&mut self, now: Now, error: Error) {
        for id in self.leases.ids() {
            self.end_lease(now, id);
        }
        self.recall();
        self.drains.clear();
        let result = Err(error);
        let group = self.group.as_mut().filter(|g| g.member().is_some());
        let Some(group) = group else {
            return self.finish(result);
        };
        self.over_at = self.over_at.min(now + FAREWELL_MAX);
        match &mut self.phase {
            // It is on its way out already: the first error counts.
            Phase::Leaving(first) => {
                if first.is_ok() {
                    first.clone_from(&result);
                }
            }
            phase => *phase = Phase::Leaving(result.clone()),
        }
        group.leave(now);
        self.answer_all(&result);
    }

    fn finish(&mut self, result: Result<(), Error>) {
        self.phase = Phase::Finished;
        // What runs was abandoned, perhaps just now: its executors hear of it before the end.
        self.recall();
        self.give_up_sends();
        self.links.close_all(&mut self.actions);
        self.answer_all(&result);
        self.actions.push_back(Action::Finished(result));
    }

    /// Answers everyone who waits with how the subscription ends.
    fn answer_all(&mut self, result: &Result<(), Error>) {
        let closers = std::mem::take(&mut self.closers);
        let waiters = std::mem::take(&mut self.commit_waiters);
        let seekers = self.steering.take_waiting();
        for id in closers.into_iter().chain(waiters).chain(seekers) {
            self.actions.push_back(Action::Reply {
                id,
                result: result.clone(),
            });
        }
    }

    /// Where each touched lease's watermark stands now.
    pub(super) fn note_watermarks(&mut self, now: Now) {
        let touched = self.leases.take_touched();
        for id in touched {
            let Some(tenure) = self.leases.get_mut(id) else {
                continue;
            };
            let Some(tracker) = &mut tenure.tracker else {
                continue;
            };
            let rose = tracker.advance();
            if rose {
                tenure.moved_at = now;
            }
            let settled = std::mem::take(&mut tenure.settled_new);
            if !rose && settled == 0 {
                continue;
            }
            let (watermark, epoch) = (tracker.watermark(), tracker.watermark_epoch());
            if self.config.commit == super::CommitMode::Tracked
                && let Some(commit) = &mut self.commit
            {
                if self.config.writes_maps() {
                    commit.touch(now, id, settled);
                } else if let Some(progress) = Progress::new(watermark, epoch) {
                    commit.note(now, id, progress, settled);
                }
            }
            self.hold_if_ahead(now, id);
        }
    }

    /// Holds a partition that ran too far above its watermark, by records or by what its map takes,
    /// and lets it go on later.
    pub(super) fn hold_if_ahead(&mut self, now: Now, id: LeaseId) {
        if self.config.map_full == super::MapFull::Wait {
            self.measure_map(now, id);
        }
        let Some(tenure) = self.leases.get_mut(id) else {
            return;
        };
        let ahead = tenure.tracker.as_ref().map_or(0, Tracker::ahead);
        let hold = ahead >= self.config.ahead_max || tenure.measure.is_full;
        if hold != tenure.ahead_held {
            tenure.ahead_held = hold;
            self.fetch.hold(id, crate::fetch::Hold::Ahead, hold);
        }
    }
}
