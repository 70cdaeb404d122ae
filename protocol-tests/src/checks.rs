//! What must hold at every step, read off what the handlers did and what the broker stored.
//!
//! Nothing here asks an engine how it thinks it stands: the book is written by the handlers and
//! by whoever appends records, and the commits are the broker's own history.

use crate::handlers::Handled;
use laneway::broker::Cluster;
use laneway::ids::TopicPartition;
use laneway::settle::Map;
use laneway::time::Now;
use std::collections::{BTreeMap, BTreeSet};

/// Violations that are kept: the first ones tell.
const VIOLATIONS_MAX: usize = 8;

/// Where a record's order is kept: who may not run beside it, and after whom it comes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane(pub Vec<u8>);

/// A run that has begun.
struct Run {
    handled: Handled,
    lane: Option<Lane>,
    is_over: bool,
}

/// The last start in a lane, of one partition.
struct Last {
    offset: i64,
    grant: u64,
    settled: bool,
}

/// The plain reference: what was written, what ran, what has been finished.
#[derive(Default)]
pub(crate) struct Book {
    runs: Vec<Run>,
    /// Records that nobody has finished. A committed offset may not pass one.
    open: BTreeMap<TopicPartition, BTreeSet<i64>>,
    settled: BTreeMap<TopicPartition, BTreeSet<i64>>,
    running: BTreeMap<(usize, Lane), usize>,
    last: BTreeMap<(usize, Lane, TopicPartition), Last>,
    grants: BTreeMap<(usize, TopicPartition), u64>,
    /// What had settled when a member was given a partition, by the commit that it began with.
    covered: BTreeMap<(usize, TopicPartition), Map>,
    /// Partitions in which somebody seeks: what is sought runs again.
    sought: BTreeSet<TopicPartition>,
    violations: Vec<String>,
    /// Runs that settled their record, the same record's again too.
    settlings: usize,
    /// Runs that settled what had settled before.
    settled_again: Vec<Handled>,
    /// Members that may be out of touch: for them an overlap with others is no error.
    pub adrift: BTreeSet<usize>,
    /// Whether every hand-over is drained, so that runs of a lane never overlap anywhere.
    pub strict: bool,
}

impl Book {
    pub(crate) fn wrote(&mut self, partition: &TopicPartition, offset: i64) {
        self.open
            .entry(partition.clone())
            .or_default()
            .insert(offset);
    }

    /// Another log stands in the place of this one.
    pub(crate) fn forget(&mut self, partition: &TopicPartition) {
        self.open.remove(partition);
        self.settled.remove(partition);
    }

    /// Somebody settled this before anyone here.
    pub(crate) fn settled_elsewhere(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(open) = self.open.get_mut(partition) {
            open.remove(&offset);
        }
        let settled = self.settled.entry(partition.clone()).or_default();
        settled.insert(offset);
    }

    /// Nobody is to read what lies below.
    pub(crate) fn skip_below(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(open) = self.open.get_mut(partition) {
            *open = open.split_off(&offset);
        }
    }

    /// These were cut off the log.
    pub(crate) fn cut_from(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(open) = self.open.get_mut(partition) {
            open.split_off(&offset);
        }
        if let Some(settled) = self.settled.get_mut(partition) {
            settled.split_off(&offset);
        }
    }

    pub(crate) fn granted(&mut self, member: usize, partition: &TopicPartition) {
        *self.grants.entry((member, partition.clone())).or_default() += 1;
    }

    /// Somebody seeks in this partition.
    pub(crate) fn is_sought(&mut self, partition: &TopicPartition) {
        self.sought.insert(partition.clone());
        self.covered.retain(|(_, tp), _| tp != partition);
    }

    /// A member begins with this commit, or with one that says nothing.
    pub(crate) fn covers(&mut self, member: usize, partition: &TopicPartition, map: Option<Map>) {
        let key = (member, partition.clone());
        match map {
            Some(map) if !self.sought.contains(partition) => self.covered.insert(key, map),
            _ => self.covered.remove(&key),
        };
    }

    /// C05, C31: what the offset map says had settled does not run again.
    fn check_covered(&mut self, run: &Handled) {
        let map = self.covered.get(&(run.member, run.partition.clone()));
        if map.is_some_and(|map| run.offset >= map.base() && map.is_settled(run.offset)) {
            let words = format!("the offset map covers {run:?}: {map:?}");
            self.violation(words);
        }
    }

    pub(crate) fn begin(&mut self, handled: Handled, lane: Option<Lane>) -> usize {
        let index = self.runs.len();
        let tp = handled.partition.clone();
        self.check_covered(&handled);
        let is_settled = self.settled.get(&tp);
        if !is_settled.is_some_and(|s| s.contains(&handled.offset)) {
            self.wrote(&tp, handled.offset);
        }
        if let Some(lane) = &lane {
            self.check_order(&handled, lane);
            self.running.insert((handled.member, lane.clone()), index);
        }
        self.runs.push(Run {
            handled,
            lane,
            is_over: false,
        });
        index
    }

    /// I3.
    fn check_order(&mut self, run: &Handled, lane: &Lane) {
        let mut found = Vec::new();
        for ((member, other), index) in &self.running {
            let is_same = *member == run.member;
            let counts = is_same
                || self.strict
                    && self.runs[*index].handled.partition == run.partition
                    && !self.adrift.contains(member)
                    && !self.adrift.contains(&run.member);
            if other == lane && counts {
                let before = &self.runs[*index].handled;
                found.push(format!(
                    "I3: {run:?} begins while {before:?} of its lane runs"
                ));
            }
        }
        let grant = self
            .grants
            .get(&(run.member, run.partition.clone()))
            .copied();
        let grant = grant.unwrap_or(0);
        let key = (run.member, lane.clone(), run.partition.clone());
        if let Some(last) = self.last.get(&key)
            && last.grant == grant
        {
            let follows = match last.settled {
                true => run.offset > last.offset,
                // What has not settled runs again before anything newer of its lane.
                false => run.offset == last.offset,
            };
            if !follows {
                let (offset, settled) = (last.offset, last.settled);
                found.push(format!(
                    "I3: {run:?} follows offset {offset} (settled: {settled}) under the same lease"
                ));
            }
        }
        let offset = run.offset;
        let settled = false;
        self.last.insert(
            key,
            Last {
                offset,
                grant,
                settled,
            },
        );
        found.into_iter().for_each(|words| self.violation(words));
    }

    pub(crate) fn end(&mut self, index: usize, now: Now, settles: bool) {
        let run = &mut self.runs[index];
        run.handled.ended = Some(now);
        let (tp, offset) = (run.handled.partition.clone(), run.handled.offset);
        if settles {
            self.settlings += 1;
            if let Some(lane) = &run.lane {
                let key = (run.handled.member, lane.clone(), tp.clone());
                if let Some(last) = self.last.get_mut(&key)
                    && last.offset == offset
                {
                    last.settled = true;
                }
            }
            if let Some(open) = self.open.get_mut(&tp) {
                open.remove(&offset);
            }
            if !self.settled.entry(tp).or_default().insert(offset) {
                let run = self.runs[index].handled.clone();
                self.settled_again.push(run);
            }
        }
    }

    /// A dead letter of this record stands in its topic's log: it is finished, whoever says so.
    pub(crate) fn dead_lettered(&mut self, tp: &TopicPartition, offset: i64) {
        for ((_, _, partition), last) in &mut self.last {
            last.settled |= partition == tp && last.offset == offset;
        }
        if let Some(open) = self.open.get_mut(tp) {
            open.remove(&offset);
        }
        self.settled.entry(tp.clone()).or_default().insert(offset);
    }

    pub(crate) fn over(&mut self, index: usize, _now: Now) {
        let run = &mut self.runs[index];
        run.is_over = true;
        if let Some(lane) = &run.lane {
            let key = (run.handled.member, lane.clone());
            if self.running.get(&key) == Some(&index) {
                self.running.remove(&key);
            }
        }
    }

    pub(crate) fn settlings(&self) -> usize {
        self.settlings
    }

    pub(crate) fn settled_again(&self) -> Vec<Handled> {
        self.settled_again.clone()
    }

    pub(crate) fn violation(&mut self, words: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(words);
        }
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    pub(crate) fn handled(&self) -> Vec<Handled> {
        self.runs.iter().map(|run| run.handled.clone()).collect()
    }

    pub(crate) fn handled_last(&self) -> Option<Handled> {
        self.runs.last().map(|run| run.handled.clone())
    }

    pub(crate) fn ended(&self) -> usize {
        let ended = self.runs.iter().filter(|r| r.handled.ended.is_some());
        ended.count()
    }

    /// Written, and finished by nobody.
    pub(crate) fn open(&self) -> Vec<(TopicPartition, i64)> {
        let each = self.open.iter();
        each.flat_map(|(tp, offsets)| offsets.iter().map(|o| (tp.clone(), *o)))
            .collect()
    }

    fn lowest_open(&self, partition: &TopicPartition, from: i64) -> Option<i64> {
        let open = self.open.get(partition)?;
        open.range(from..).next().copied()
    }
}

/// What the broker's history of commits must keep to.
#[derive(Default)]
pub(crate) struct Commits {
    seen: usize,
    last: BTreeMap<(String, TopicPartition), i64>,
    /// Partitions that are sought in: their commits may go back.
    sought: BTreeSet<TopicPartition>,
    /// Whether positions are committed as records are handed out.
    pub auto: bool,
}

impl Commits {
    /// Positions of this partition may go back: its log is not what it was.
    pub(crate) fn forget(&mut self, partition: &TopicPartition) {
        self.last.retain(|(_, tp), _| tp != partition);
    }

    /// Somebody seeks in this partition.
    pub(crate) fn may_go_back(&mut self, partition: TopicPartition) {
        self.sought.insert(partition);
    }

    /// I1 and I2 over what was committed since the last look.
    pub(crate) fn check(&mut self, cluster: &Cluster, book: &mut Book) {
        for entry in cluster.commits().skip(self.seen) {
            self.seen += 1;
            let tp = TopicPartition::new(entry.topic.as_str(), entry.partition);
            let offset = entry.committed.offset;
            let key = (entry.group.clone(), tp);
            if let Some(before) = self.last.get(&key)
                && *before > offset
                && !self.sought.contains(&key.1)
            {
                book.violation(format!("I2: {entry:?} after {before}"));
            }
            let view = cluster.partition_view(&entry.topic, entry.partition);
            let from = view.map_or(0, |v| v.log_start);
            if !self.auto
                && let Some(open) = book.lowest_open(&key.1, from)
                && open < offset
            {
                book.violation(format!("I1: {entry:?} passes the open record {open}"));
            }
            self.last.insert(key, offset);
        }
    }
}
