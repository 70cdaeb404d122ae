//! What the user steers while it runs: pauses, seeks, how many run at once; and the watch over
//! what runs for long.

use super::leases::{After, Drain};
use super::{Action, Command, Engine, Event, Phase};
use crate::error::{Error, ErrorKind};
use crate::fetch::{Hold, Start, StartOffset};
use crate::ids::{CommandId, LeaseId, TopicPartition};
use crate::lane::{LaneId, Mode, Running};
use crate::settle::Tracker;
use crate::time::Now;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Topics and partitions that pauses and resumes may name at once.
const PAUSES_MAX: usize = 10_000;

/// Seeks that may wait for what runs to end.
const SEEKS_MAX: usize = 64;

/// Which partitions a pause, a resume or a seek is about.
///
/// ```
/// use laneway::Scope;
/// assert_eq!(Scope::from("payments"), Scope::Topic("payments".into()));
/// let partition = Scope::from(("payments", 3));
/// assert!(matches!(partition, Scope::Partition(p) if p.partition == 3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole subscription.
    All,
    /// One topic.
    Topic(Arc<str>),
    /// One partition.
    Partition(TopicPartition),
}

impl Scope {
    fn holds(&self, partition: &TopicPartition) -> bool {
        match self {
            Scope::All => true,
            Scope::Topic(topic) => *topic == partition.topic,
            Scope::Partition(one) => one == partition,
        }
    }
}

impl From<&str> for Scope {
    fn from(topic: &str) -> Self {
        Scope::Topic(topic.into())
    }
}

impl From<(&str, i32)> for Scope {
    fn from((topic, partition): (&str, i32)) -> Self {
        Scope::Partition(TopicPartition::new(topic, partition))
    }
}

impl From<TopicPartition> for Scope {
    fn from(partition: TopicPartition) -> Self {
        Scope::Partition(partition)
    }
}

impl From<&TopicPartition> for Scope {
    fn from(partition: &TopicPartition) -> Self {
        Scope::Partition(partition.clone())
    }
}

/// Where a seek leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// This offset. One that the log does not have is a loss, under the subscription's
    /// [`LossPolicy`](crate::fetch::LossPolicy).
    Offset(i64),
    /// The first record of this time or later, in milliseconds since the Unix epoch; the end where
    /// there is none.
    Timestamp(i64),
    /// The first record that the log still has.
    Beginning,
    /// Behind the last record.
    End,
}

impl SeekTo {
    fn start(self) -> Start {
        match self {
            SeekTo::Offset(offset) => Start::At { offset, epoch: -1 },
            SeekTo::Timestamp(at) => Start::By(StartOffset::Timestamp(at)),
            SeekTo::Beginning => Start::By(StartOffset::Earliest),
            SeekTo::End => Start::By(StartOffset::Latest),
        }
    }
}

/// What a seek does about records that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// They end first, up to the subscription's `drain_max`, and what they settle is committed
    /// where it belongs; then the seek takes place. The default.
    #[default]
    Drain,
    /// The seek takes place at once. They are told, dropped where they can be, and what they
    /// return counts for nothing.
    Drop,
}

/// What the user has said so far.
#[derive(Default)]
pub(super) struct Steering {
    pauses: Pauses,
    seeks: Vec<Seek>,
    /// When to look for a record that runs too long; never, while nothing runs.
    pub(super) stall_at: Now,
    /// The record that was last told of: lease, ordinal, and when.
    stalled: Option<(LeaseId, u64, Now)>,
}

impl Steering {
    pub(super) fn new() -> Self {
        Steering {
            stall_at: Now::NEVER,
            ..Steering::default()
        }
    }

    /// Everyone who waits for a seek.
    pub(super) fn take_waiting(&mut self) -> Vec<CommandId> {
        let seeks = std::mem::take(&mut self.seeks);
        seeks.into_iter().map(|s| s.id).collect()
    }

    fn target(&self, partition: &TopicPartition) -> Option<(LeaseId, SeekTo)> {
        let mut of_seeks = self.seeks.iter().filter_map(|s| s.open.get(partition));
        of_seeks.next().copied()
    }

    /// The partition needs no seek any more.
    fn close(&mut self, partition: &TopicPartition) {
        for seek in &mut self.seeks {
            seek.open.remove(partition);
        }
    }
}

/// What is paused: the last word on each name counts, and says the same for all below it.
#[derive(Default)]
struct Pauses {
    all: bool,
    topics: BTreeMap<Arc<str>, bool>,
    partitions: BTreeMap<TopicPartition, bool>,
}

impl Pauses {
    fn set(&mut self, what: &Scope, on: bool) -> Result<(), Error> {
        if self.topics.len() + self.partitions.len() >= PAUSES_MAX && *what != Scope::All {
            return Err(Error::misuse(
                "too many topics and partitions were paused one by one; resume some, or all",
            ));
        }
        match what {
            Scope::All => {
                self.all = on;
                self.topics.clear();
                self.partitions.clear();
            }
            Scope::Topic(topic) => {
                self.partitions.retain(|p, _| p.topic != *topic);
                self.topics.insert(topic.clone(), on);
                if on == self.all {
                    self.topics.remove(topic);
                }
            }
            Scope::Partition(partition) => {
                self.partitions.insert(partition.clone(), on);
                if on == self.covers_topic(&partition.topic) {
                    self.partitions.remove(partition);
                }
            }
        }
        Ok(())
    }

    fn covers_topic(&self, topic: &str) -> bool {
        self.topics.get(topic).copied().unwrap_or(self.all)
    }

    fn covers(&self, partition: &TopicPartition) -> bool {
        let own = self.partitions.get(partition).copied();
        own.unwrap_or_else(|| self.covers_topic(&partition.topic))
    }
}

/// One seek whose partitions still have records running.
struct Seek {
    id: CommandId,
    open: BTreeMap<TopicPartition, (LeaseId, SeekTo)>,
    failed: Option<Error>,
}

impl Engine {
    pub(super) fn steer(&mut self, now: Now, id: CommandId, command: Command) {
        let result = match command {
            // The driver's own word: it waits for no answer.
            Command::HookDone { id, result } => return self.hook_done(now, id, result),
            Command::Pause { what } => self.pause(now, &what, true),
            Command::Resume { what } => self.pause(now, &what, false),
            Command::SetWorkers { n } => self.set_workers(n),
            Command::Seek { what, to, running } => match self.seek(now, id, &what, to, running) {
                // It answers once it has taken place.
                Ok(()) => return self.settle_seeks(),
                Err(error) => Err(error),
            },
            _ => Err(Error::bug("a command of another kind")),
        };
        self.actions.push_back(Action::Reply { id, result });
    }

    fn pause(&mut self, now: Now, what: &Scope, on: bool) -> Result<(), Error> {
        self.steering.pauses.set(what, on)?;
        for id in self.leases.ids() {
            self.pause_lease(now, id);
        }
        Ok(())
    }

    /// Puts a lease to rest, or lets it go on, as the pauses say.
    pub(super) fn pause_lease(&mut self, now: Now, id: LeaseId) {
        let Some(tenure) = self.leases.get_mut(id) else {
            return;
        };
        let on = self.steering.pauses.covers(&tenure.partition);
        if std::mem::replace(&mut tenure.paused, on) == on {
            return;
        }
        self.fetch.hold(id, Hold::Paused, on);
        if let Some(overflow) = self.overflow.as_mut().filter(|_| on) {
            overflow.rest(now, id);
        }
        match on {
            true => self.lanes.rest(&tenure.lease),
            false => self.lanes.go_on(&tenure.lease),
        }
    }

    /// What is paused will not run, so a drain of the whole subscription does not wait for it.
    pub(super) fn drop_paused(&mut self) {
        for (_, tenure) in self.leases.iter().filter(|(_, t)| t.paused) {
            let draining = crate::lane::LeaseState::Draining;
            self.lanes.end_lease(&tenure.lease, draining);
        }
    }

    fn set_workers(&mut self, n: u32) -> Result<(), Error> {
        if n == 0 {
            return Err(Error::misuse(
                "set_workers(0) would let nothing run: pause(Scope::All) does that",
            ));
        }
        let threads = self.config.executors;
        if self.config.one_lane_groups && n > threads {
            return Err(Error::misuse(format!(
                "set_workers({n}): this subscription has {threads} threads; start it with as many \
                 as it may ever need"
            )));
        }
        let Some(permits) = &self.runner.permits else {
            return Err(Error::misuse(
                "set_workers: one record runs at a time here; start with workers(n) or \
                 workers_by_key(n)",
            ));
        };
        permits.set_limit(match self.config.mode {
            // Each Runner takes a moment's permit of its own while it starts records.
            Mode::Fixed { lanes } if n >= lanes => lanes.saturating_add(threads),
            _ => n,
        });
        Ok(())
    }

    fn seek(
        &mut self,
        now: Now,
        id: CommandId,
        what: &Scope,
        to: SeekTo,
        running: InFlight,
    ) -> Result<(), Error> {
        if let SeekTo::Offset(..0) = to {
            return Err(Error::misuse(
                "a seek to a negative offset: name the record, or SeekTo::Beginning",
            ));
        }
        if !matches!(self.phase, Phase::New | Phase::Running) {
            return Err(Error::misuse(
                "the subscription is ending and seeks no more",
            ));
        }
        if self.steering.seeks.len() >= SEEKS_MAX {
            return Err(Error::misuse(
                "too many seeks wait for what runs; wait for theirs first",
            ));
        }
        let held = self.leases.iter().filter(|(_, t)| what.holds(&t.partition));
        let chosen: Vec<_> = held
            .filter(|(id, _)| !self.goes_away(*id) && !self.hooks.waits(*id))
            .map(|(id, t)| (id, t.partition.clone(), t.draining))
            .collect();
        if chosen.is_empty() {
            return Err(Error::misuse(
                "nothing to seek in: this subscription holds no such partition now",
            ));
        }
        let mut open = BTreeMap::new();
        for (lease, partition, draining) in chosen {
            // The last word counts; whoever said the one before has nothing to wait for.
            self.steering.close(&partition);
            match running {
                InFlight::Drop => self.move_lease(now, lease, to),
                InFlight::Drain => {
                    open.insert(partition.clone(), (lease, to));
                    if !draining {
                        let until = now + self.config.drain_max;
                        self.drain(now, vec![partition], (until, until), After::Seek);
                    }
                }
            }
        }
        let failed = None;
        self.steering.seeks.push(Seek { id, open, failed });
        Ok(())
    }

    /// Whether a lease is on its way back to the group, or out with the subscription.
    pub(super) fn goes_away(&self, lease: LeaseId) -> bool {
        let away = |d: &&Drain| d.after != After::Seek;
        let mut drains = self.drains.iter().filter(away);
        drains.any(|d| d.leases.contains(&lease))
    }

    /// What ran of a partition that is to be sought in has ended.
    pub(super) fn sought(&mut self, now: Now, lease: LeaseId, partition: &TopicPartition) {
        if self.goes_away(lease) || !matches!(self.phase, Phase::Running) {
            return; // its end will be told to who waits
        }
        if let Some((of, to)) = self.steering.target(partition)
            && of == lease
        {
            self.steering.close(partition);
            self.move_lease(now, lease, to);
        }
    }

    /// Ends a lease and begins another on the same partition, elsewhere.
    fn move_lease(&mut self, now: Now, lease: LeaseId, to: SeekTo) {
        let Some(tenure) = self.leases.get(lease) else {
            return;
        };
        let (partition, topic_id) = (tenure.partition.clone(), tenure.topic_id);
        let from = tenure.tracker.as_ref().map(Tracker::position);
        self.abandon(&[lease]);
        self.end_lease(now, lease);
        self.event(Event::Sought {
            partition: partition.clone(),
            from,
        });
        let lease = self.regrant(now, partition, topic_id);
        self.start_lease(now, lease, to.start());
    }

    /// Answers the seeks that have taken place, and those that cannot any more.
    pub(super) fn settle_seeks(&mut self) {
        if self.steering.seeks.is_empty() {
            return;
        }
        let (leases, drains) = (&self.leases, &self.drains);
        // A lease that is drained for a seek stays until it moves; another end took it away.
        let stands = |lease: LeaseId| {
            let waits = |d: &Drain| d.after == After::Seek && d.leases.contains(&lease);
            leases.get(lease).is_some() && drains.iter().any(waits)
        };
        for seek in &mut self.steering.seeks {
            let before = seek.open.len();
            seek.open.retain(|_, (lease, _)| stands(*lease));
            if seek.open.len() < before {
                let words = "a partition was taken away before the seek took place; seek again \
                             once it is granted";
                seek.failed = Some(Error::new(ErrorKind::Broker, words).retriable());
            }
        }
        let mut at = 0;
        while at < self.steering.seeks.len() {
            if !self.steering.seeks[at].open.is_empty() {
                at += 1;
                continue;
            }
            let Seek { id, failed, .. } = self.steering.seeks.remove(at);
            let result = failed.map_or(Ok(()), Err);
            self.actions.push_back(Action::Reply { id, result });
        }
    }

    /// Records have gone to executors: one of them may run for too long.
    pub(super) fn expect_progress(&mut self, now: Now) {
        if self.steering.stall_at == Now::NEVER
            && let Some(after) = self.config.stall_after
        {
            self.steering.stall_at = now + after;
        }
    }

    /// Tells of the record that has run for longest, where that is too long.
    pub(super) fn watch_progress(&mut self, now: Now) {
        let Some(after) = self.config.stall_after else {
            return;
        };
        if now < self.steering.stall_at {
            return;
        }
        // What outlived its lease was told of when that ended.
        let mut running = self.runner.watch.running();
        running.retain(|run| self.leases.get(run.lease).is_some());
        let Some(oldest) = running.iter().min_by_key(|run| run.since).copied() else {
            // What is with executors may have ended just now, or may begin in a moment.
            self.steering.stall_at = match self.lanes.load().out {
                0 => Now::NEVER,
                _ => now + after,
            };
            return;
        };
        if now.since(oldest.since) < after {
            self.steering.stall_at = oldest.since + after;
            return;
        }
        self.steering.stall_at = now + after;
        let long = |run: &&Running| now.since(run.since) >= after;
        let records = running.iter().filter(long).count();
        let Some((partition, offset)) = self.address(oldest.lease, oldest.ordinal) else {
            return;
        };
        let running_for = now.since(oldest.since);
        // Of one record at twice the age that it had the last time, and no sooner.
        if let Some((lease, ordinal, at)) = self.steering.stalled
            && (lease, ordinal) == (oldest.lease, oldest.ordinal)
            && running_for < 2 * at.since(oldest.since)
        {
            return;
        }
        self.steering.stalled = Some((oldest.lease, oldest.ordinal, now));
        self.counters.stalls += 1;
        let lane = (oldest.lane != LaneId::NONE).then_some(oldest.lane.0);
        self.event(Event::Stalled {
            partition: partition.clone(),
            offset,
            lane,
            attempt: oldest.attempt,
            running_for,
            records: records as u64,
        });
        if self.config.stall_stops {
            let words = format!(
                "a record has run for {running_for:?}, which is more than the subscription allows; \
                 see what its handler waits for"
            );
            let error = Error::new(ErrorKind::Handler, words)
                .at(partition.topic, partition.partition)
                .offset_at(offset);
            self.close(now, now + STALL_GRACE, Err(error));
        }
    }
}

/// How long what runs beside a stalled record may go on once that ends the subscription.
const STALL_GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_name_counts() {
        let mut pauses = Pauses::default();
        let tp = TopicPartition::new("a", 1);
        let other = TopicPartition::new("b", 1);
        pauses.set(&"a".into(), true).unwrap();
        assert!(pauses.covers(&tp) && !pauses.covers(&other));
        pauses.set(&(&tp).into(), false).unwrap();
        assert!(!pauses.covers(&tp));
        assert!(pauses.covers(&TopicPartition::new("a", 2)));
        pauses.set(&Scope::All, true).unwrap();
        assert!(pauses.covers(&tp) && pauses.covers(&other));
        pauses.set(&"b".into(), false).unwrap();
        assert!(pauses.covers(&tp) && !pauses.covers(&other));
        pauses.set(&"b".into(), true).unwrap();
        assert_eq!(pauses.topics.len(), 0, "what says nothing new is forgotten");
        pauses.set(&Scope::All, false).unwrap();
        assert!(!pauses.covers(&tp) && !pauses.covers(&other));
    }

    #[test]
    fn names_that_are_paused_are_bounded() {
        let mut pauses = Pauses::default();
        for p in 0..PAUSES_MAX as i32 {
            pauses.set(&("t", p).into(), true).unwrap();
        }
        let error = pauses.set(&("t", -1).into(), true).unwrap_err();
        assert!(error.to_string().contains("resume"), "{error}");
        pauses.set(&Scope::All, true).unwrap();
        assert!(pauses.covers(&TopicPartition::new("t", 7)));
    }
}
