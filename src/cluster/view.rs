//! What we know of topics, and how an answer changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{NodeId, TopicId};
use crate::time::Now;
use crate::wire::message::{Code, PartitionMetadata, TopicMetadata};

/// A topic, as the newest metadata has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topic {
    /// [`TopicId::ZERO`] where no broker told us one.
    pub id: TopicId,
    /// By index. Never loses one while the topic is the same.
    pub partitions: BTreeMap<i32, Partition>,
    /// The last answer's error; what is known from before it stands.
    pub error: Option<Code>,
    /// Made by Kafka for itself.
    pub internal: bool,
}

/// A partition of a [`Topic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// `None`: no leader, or one whose address we do not know.
    pub leader: Option<NodeId>,
    /// -1 where no answer had one. Never goes back while the topic is the same.
    pub leader_epoch: i32,
    /// Brokers with a copy.
    pub replicas: Vec<NodeId>,
    /// The last answer's error for this partition; 0 mostly.
    pub code: Code,
    /// The leader as it was named, known to us or not; below 0 there was none.
    named: i32,
    /// The answer that `named` is from.
    as_of: u64,
}

/// What an answer about one topic did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// The view is another one now.
    pub(super) changed: bool,
    /// The topic is a new one under its old name: the ids, old and new.
    pub(super) recreated: Option<(TopicId, TopicId)>,
    /// The topic has been unknown for so long that it is taken to be deleted.
    pub(super) gone: bool,
    /// The answer, or a part of it, is older than what we know.
    pub(super) stale: bool,
}

/// All topics that are wanted.
#[derive(Debug, Default)]
pub(super) struct View {
    entries: BTreeMap<Arc<str>, Entry>,
    by_id: BTreeMap<TopicId, Arc<str>>,
    partitions: usize,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// `None`: wanted, never seen.
    topic: Option<Topic>,
    /// Ids that this name had before; a stale broker may still tell one of them.
    past: Vec<TopicId>,
    /// Answers in a row that contradict what we know, and when the first came.
    contradicted: Option<(Now, u32)>,
    /// Answers in a row that do not know the topic, and when the first came.
    unknown: Option<(Now, u32)>,
    /// The id of the topic that was here and is gone. Whoever still holds something of it must
    /// hear when another one takes its name.
    gone: Option<TopicId>,
}

impl View {
    pub(super) fn topic(&self, name: &str) -> Option<&Topic> {
        self.entries.get(name)?.topic.as_ref()
    }

    pub(super) fn name_of(&self, id: TopicId) -> Option<&Arc<str>> {
        self.by_id.get(&id)
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = (&Arc<str>, &Topic)> {
        self.entries
            .iter()
            .filter_map(|(name, e)| Some((name, e.topic.as_ref()?)))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.keys()
    }

    /// How many answers in a row did not know the topic.
    pub(super) fn unknown_answers(&self, name: &str) -> u32 {
        let entry = self.entries.get(name);
        entry.and_then(|e| e.unknown).map_or(0, |(_, n)| n)
    }

    /// Remembers that `name` is wanted. False: there is no room.
    pub(super) fn want(&mut self, name: &Arc<str>) -> bool {
        if !self.entries.contains_key(name) {
            if self.entries.len() >= TOPICS_MAX {
                self.entries
                    .retain(|_, e| e.topic.is_some() || e.gone.is_none());
            }
            if self.entries.len() >= TOPICS_MAX {
                return false;
            }
            self.entries.insert(name.clone(), Entry::default());
        }
        true
    }

    /// Forgets every topic that `wanted` refuses. True: something known went.
    pub(super) fn retain(&mut self, mut wanted: impl FnMut(&str) -> bool) -> bool {
        let mut changed = false;
        let (by_id, count) = (&mut self.by_id, &mut self.partitions);
        self.entries.retain(|name, entry| {
            let keep = wanted(name);
            if let (false, Some(topic)) = (keep, &entry.topic) {
                by_id.remove(&topic.id);
                *count -= topic.partitions.len();
                changed = true;
            }
            keep
        });
        changed
    }

    /// Takes a topic that the answer numbered `round` describes without an error.
    pub(super) fn merge(&mut self, now: Now, answer: &TopicMetadata, round: u64) -> Merged {
        let room = PARTITIONS_MAX.saturating_sub(self.partitions);
        let Some(name) = &answer.name else {
            return Merged::default();
        };
        let Some(entry) = self.entries.get_mut(name) else {
            return Merged::default();
        };
        let before = entry.topic.as_ref().map_or(0, |t| t.partitions.len());
        let was = entry.topic.as_ref().map(|t| t.id);
        let merged = entry.merge(now, answer, round, room + before);
        let (after, is) = match &entry.topic {
            Some(topic) => (topic.partitions.len(), topic.id),
            None => (0, TopicId::ZERO),
        };
        self.partitions = self.partitions + after - before;
        if was != Some(is) {
            if let Some(old) = was {
                self.by_id.remove(&old);
            }
            if !is.is_zero() {
                self.by_id.insert(is, name.clone());
            }
        }
        merged
    }

    /// The answer had an error for this topic: what we know stays, with the error beside it.
    pub(super) fn note_error(&mut self, name: &str, code: Code) -> bool {
        let Some(topic) = self.entries.get_mut(name).and_then(|e| e.topic.as_mut()) else {
            return false;
        };
        let changed = topic.error != Some(code);
        topic.error = Some(code);
        changed
    }

    /// The answer does not know this topic. A stale broker says so too, so it takes several
    /// answers over some time until a topic that we know is taken to be deleted.
    pub(super) fn note_unknown(&mut self, now: Now, name: &str) -> Merged {
        let Some(entry) = self.entries.get_mut(name) else {
            return Merged::default();
        };
        let first = entry.unknown.is_none();
        let lasting = count(&mut entry.unknown, now);
        let Some(topic) = &mut entry.topic else {
            // From "not asked yet" to "not there": a group's leader waits for that word.
            return Merged {
                changed: first,
                ..Merged::default()
            };
        };
        if !lasting {
            let changed = topic.error.is_none();
            topic.error = Some(Code::UNKNOWN_TOPIC_OR_PARTITION);
            return Merged {
                changed,
                ..Merged::default()
            };
        }
        let id = topic.id;
        self.by_id.remove(&id);
        self.partitions -= topic.partitions.len();
        entry.topic = None;
        entry.gone = Some(id);
        entry.remember(id);
        Merged {
            changed: true,
            gone: true,
            ..Merged::default()
        }
    }

    /// KIP-951: an answer of another kind named a leader. True: it was news.
    pub(super) fn hint(&mut self, name: &str, partition: i32, leader: NodeId, epoch: i32) -> bool {
        let topic = self.entries.get_mut(name).and_then(|e| e.topic.as_mut());
        let Some(known) = topic.and_then(|t| t.partitions.get_mut(&partition)) else {
            return false;
        };
        if epoch <= known.leader_epoch || leader.0 < 0 {
            return false;
        }
        known.named = leader.0;
        known.leader_epoch = epoch;
        known.as_of = u64::MAX; // newer than every answer until the next one agrees
        true
    }

    /// Nodes that lead by what is newer than the answer numbered `round`: that answer may not
    /// know them yet.
    pub(super) fn leaders_beside(&self, round: u64) -> BTreeSet<NodeId> {
        self.topics()
            .flat_map(|(_, t)| t.partitions.values())
            .filter(|p| p.as_of != round && p.named >= 0)
            .map(|p| NodeId(p.named))
            .collect()
    }

    /// Leaders are those named that have an address. True: something changed.
    pub(super) fn resolve(&mut self, known: impl Fn(NodeId) -> bool) -> bool {
        let mut changed = false;
        for entry in self.entries.values_mut() {
            for p in entry
                .topic
                .iter_mut()
                .flat_map(|t| t.partitions.values_mut())
            {
                let named = Some(NodeId(p.named));
                let leader = named.filter(|node| node.0 >= 0 && known(*node));
                changed |= p.leader != leader;
                p.leader = leader;
            }
        }
        changed
    }

    /// Whether something wanted is unknown, in error, contradicted or without a leader, so that
    /// metadata should be asked for again before it is old. Where every topic is wanted, nobody
    /// waits for one that is not there.
    pub(super) fn unsettled(&self, all: bool) -> bool {
        let waited_for = |e: &&Entry| !all || e.topic.is_some();
        self.entries.values().filter(waited_for).any(|e| {
            e.contradicted.is_some()
                || e.unknown.is_some()
                || e.topic.as_ref().is_none_or(|t| {
                    t.error.is_some() || t.partitions.values().any(|p| p.leader.is_none())
                })
        })
    }
}

impl Entry {
    fn merge(&mut self, now: Now, answer: &TopicMetadata, round: u64, room: usize) -> Merged {
        self.unknown = None;
        let Some(known) = &mut self.topic else {
            if self.past.contains(&answer.id) && !count(&mut self.contradicted, now) {
                return Merged {
                    stale: true,
                    ..Merged::default()
                };
            }
            self.contradicted = None;
            self.past.retain(|id| *id != answer.id);
            self.topic = Some(Topic::read(answer, round, room));
            let old = self.gone.take();
            let same = |old: &TopicId| *old == answer.id && !old.is_zero();
            return Merged {
                changed: true,
                recreated: old.filter(|old| !same(old)).map(|old| (old, answer.id)),
                ..Merged::default()
            };
        };
        let another = !known.id.is_zero() && !answer.id.is_zero() && known.id != answer.id;
        let older = if another {
            self.past.contains(&answer.id)
        } else {
            known.is_newer_than(answer)
        };
        // Without ids nothing but older numbers, again and again, tells a topic that was made
        // anew from a broker that lags; with ids the same id never goes back.
        let may_replace = another || known.id.is_zero();
        let replace = if older {
            let lasting = count(&mut self.contradicted, now);
            lasting && may_replace
        } else {
            self.contradicted = None;
            another
        };
        if replace {
            let ids = (known.id, answer.id);
            self.contradicted = None;
            self.topic = Some(Topic::read(answer, round, room));
            self.past.retain(|id| *id != answer.id);
            self.remember(ids.0);
            return Merged {
                changed: true,
                recreated: Some(ids),
                ..Merged::default()
            };
        }
        let changed = !another && known.merge(answer, round, room);
        Merged {
            changed,
            stale: older,
            ..Merged::default()
        }
    }

    fn remember(&mut self, id: TopicId) {
        if id.is_zero() {
            return;
        }
        if self.past.len() >= PAST_IDS_MAX {
            self.past.remove(0);
        }
        self.past.push(id);
    }
}

impl Topic {
    fn read(answer: &TopicMetadata, round: u64, room: usize) -> Self {
        let mut topic = Topic {
            id: answer.id,
            internal: answer.internal,
            ..Topic::default()
        };
        topic.merge(answer, round, room);
        topic
    }

    /// Whether a part of `answer` is older than what we know, taking both for one topic.
    fn is_newer_than(&self, answer: &TopicMetadata) -> bool {
        let lower = |p: &PartitionMetadata| {
            let known = self.partitions.get(&p.partition);
            known.is_some_and(|k| p.leader_epoch >= 0 && p.leader_epoch < k.leader_epoch)
        };
        answer.partitions.len() < self.partitions.len() || answer.partitions.iter().any(lower)
    }

    /// Takes what is not older, partition by partition. True: something changed.
    fn merge(&mut self, answer: &TopicMetadata, round: u64, room: usize) -> bool {
        let mut changed = self.error.take().is_some();
        if self.id.is_zero() && !answer.id.is_zero() {
            self.id = answer.id;
            changed = true;
        }
        for p in &answer.partitions {
            if p.partition < 0 {
                continue;
            }
            let room = self.partitions.len() < room;
            match self.partitions.get_mut(&p.partition) {
                Some(known) => changed |= known.merge(p, round),
                None if room => {
                    self.partitions
                        .insert(p.partition, Partition::read(p, round));
                    changed = true;
                }
                None => {}
            }
        }
        changed
    }
}

impl Partition {
    fn read(answer: &PartitionMetadata, round: u64) -> Self {
        let mut p = Partition {
            leader: None,
            leader_epoch: -1,
            replicas: Vec::new(),
            code: Code::NONE,
            named: -1,
            as_of: round,
        };
        p.merge(answer, round);
        p
    }

    /// `leader` itself is set by [`View::resolve`], which tells of its changes.
    fn merge(&mut self, answer: &PartitionMetadata, round: u64) -> bool {
        let epoch = answer.leader_epoch;
        if epoch >= 0 && epoch < self.leader_epoch {
            return false;
        }
        let replicas: Vec<NodeId> = answer.replicas.iter().map(|r| NodeId(*r)).collect();
        let changed =
            epoch > self.leader_epoch || self.code != answer.code || self.replicas != replicas;
        self.named = answer.leader.max(-1);
        self.as_of = round;
        // A moment without a leader has epoch -1; the one that we know stays.
        self.leader_epoch = self.leader_epoch.max(epoch);
        self.code = answer.code;
        self.replicas = replicas;
        changed
    }
}

/// Counts one more answer of a kind; true once there were many over some time.
fn count(run: &mut Option<(Now, u32)>, now: Now) -> bool {
    let (since, answers) = run.get_or_insert((now, 0));
    *answers = answers.saturating_add(1);
    *answers >= LASTING_ANSWERS && now.since(*since) >= LASTING_FOR
}

/// Answers in a row that it takes to believe what contradicts us.
pub(super) const LASTING_ANSWERS: u32 = 5;

/// And for how long.
pub(super) const LASTING_FOR: Duration = Duration::from_secs(10);

/// Topics that we keep metadata of.
pub(super) const TOPICS_MAX: usize = 100_000;

/// Partitions that we keep metadata of, over all topics.
const PARTITIONS_MAX: usize = 2_000_000;

/// Former ids that a name's entry remembers.
const PAST_IDS_MAX: usize = 4;
