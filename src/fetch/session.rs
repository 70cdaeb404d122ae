//! One broker: its fetch session (KIP-227) and what is out for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{LeaseId, Token, TopicId, TopicPartition};
use crate::time::Now;
use crate::wire::message::{Code, FetchPartition, FetchTopic};

/// A broker that partitions are read from.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub waiting: Option<Token>,
    pub prompt: Option<Token>,
    pub offsets: Option<Token>,
    pub epoch_ends: Option<Token>,
    pub session: Session,
    /// Not asked for records before.
    pub retry_at: Now,
    pub failures: u32,
    /// When its last prompt fetch was sent: brokers take turns for what is left of the budget.
    pub prompt_at: Now,
    /// The partition that the last prompt answer ended with; the next request begins behind it.
    pub rotate_after: Option<TopicPartition>,
}

/// What the broker is believed to remember.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// 0: none.
    pub id: i32,
    /// The epoch to send next; 0 opens a session, and closes the one named by `id`.
    pub epoch: i32,
    pub by_id: bool,
    pub asked: Asked,
    /// Answers in a row that came at once and empty.
    pub hasty: u32,
    pub retry_at: Now,
}

/// Partitions that a request, or a session, asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub entries: BTreeMap<TopicPartition, Entry>,
    names: BTreeMap<TopicId, Arc<str>>,
}

/// What was last sent for a partition. The topic's id stays with it, since the forget list needs
/// the id that the session was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub lease: LeaseId,
    pub id: TopicId,
    pub offset: i64,
    pub leader_epoch: i32,
    pub last_fetched_epoch: i32,
    pub max_bytes: i32,
}

/// The part of a request that a session decides.
pub(super) struct SessionRequest {
    pub id: i32,
    pub epoch: i32,
    pub topics: Vec<FetchTopic>,
    pub forgotten: Vec<(Arc<str>, TopicId, Vec<i32>)>,
    pub by_id: bool,
}

impl Node {
    /// Whether an answer may still come.
    pub fn is_busy(&self) -> bool {
        let out = [self.waiting, self.prompt, self.offsets, self.epoch_ends];
        out.iter().any(Option::is_some)
    }
}

impl Asked {
    pub fn new(entries: BTreeMap<TopicPartition, Entry>) -> Self {
        let mut asked = Asked {
            entries,
            names: BTreeMap::new(),
        };
        asked.name_ids();
        asked
    }

    /// The topic of an answer, which has a name or an id.
    pub fn topic(&self, name: &Arc<str>, id: TopicId) -> Option<Arc<str>> {
        if name.is_empty() {
            self.names.get(&id).cloned()
        } else {
            Some(name.clone())
        }
    }

    /// Whether every topic's id is known.
    pub fn has_ids(&self) -> bool {
        self.entries.values().all(|e| !e.id.is_zero())
    }

    fn name_ids(&mut self) {
        self.names = self
            .entries
            .iter()
            .map(|(tp, entry)| (entry.id, tp.topic.clone()))
            .collect();
    }
}

impl Session {
    /// What to send so that the session holds exactly `wanted`; it is then taken to.
    pub fn request(&mut self, wanted: BTreeMap<TopicPartition, Entry>) -> SessionRequest {
        let wanted = Asked::new(wanted);
        let by_id = wanted.has_ids();
        if self.epoch != 0 && by_id != self.by_id {
            // A session speaks names or ids for its whole life.
            self.epoch = 0;
        }
        let mut forgotten = Vec::new();
        let topics = if self.epoch == 0 {
            topics(wanted.entries.iter())
        } else {
            for (tp, entry) in &self.asked.entries {
                let kept = wanted
                    .entries
                    .get(tp)
                    .is_some_and(|now| !by_id || now.id == entry.id);
                if !kept {
                    forget(&mut forgotten, tp, entry.id);
                }
            }
            let old = &self.asked.entries;
            topics(wanted.entries.iter().filter(|(tp, entry)| {
                old.get(*tp).is_none_or(|sent| {
                    // Another lease at the same place is nothing new to the broker.
                    Entry {
                        lease: entry.lease,
                        ..*sent
                    } != **entry
                })
            }))
        };
        self.asked = wanted;
        self.by_id = by_id;
        SessionRequest {
            id: self.id,
            epoch: self.epoch,
            topics,
            forgotten,
            by_id,
        }
    }

    /// A good answer, which names a session. False: it is another one than ours, so that ours is
    /// lost.
    pub fn answered(&mut self, id: i32) -> bool {
        if self.epoch == 0 {
            // Id 0: the broker's cache is full. Then every request is a full one.
            self.id = id;
            self.epoch = i32::from(id != 0);
            return true;
        }
        if id != self.id {
            self.lost(Code::NONE);
            return false;
        }
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        true
    }

    /// The broker does not know the session, or nobody can tell what it knows: the next request
    /// is a full one.
    pub fn lost(&mut self, code: Code) {
        if code == Code::FETCH_SESSION_ID_NOT_FOUND {
            self.id = 0;
        }
        self.epoch = 0;
    }
}

/// Groups partitions by topic. Neighbours share one entry.
pub(super) fn topics<'a>(
    entries: impl Iterator<Item = (&'a TopicPartition, &'a Entry)>,
) -> Vec<FetchTopic> {
    let mut out: Vec<FetchTopic> = Vec::new();
    for (tp, entry) in entries {
        let partition = FetchPartition {
            partition: tp.partition,
            current_leader_epoch: entry.leader_epoch,
            offset: entry.offset,
            last_fetched_epoch: entry.last_fetched_epoch,
            max_bytes: entry.max_bytes,
        };
        match out.last_mut() {
            Some(topic) if topic.name == tp.topic && topic.id == entry.id => {
                topic.partitions.push(partition);
            }
            _ => out.push(FetchTopic {
                name: tp.topic.clone(),
                id: entry.id,
                partitions: vec![partition],
            }),
        }
    }
    out
}

fn forget(out: &mut Vec<(Arc<str>, TopicId, Vec<i32>)>, tp: &TopicPartition, id: TopicId) {
    match out.last_mut() {
        Some((name, topic_id, partitions)) if *name == tp.topic && *topic_id == id => {
            partitions.push(tp.partition);
        }
        _ => out.push((tp.topic.clone(), id, vec![tp.partition])),
    }
}
