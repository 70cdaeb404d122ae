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
    /// Counts the requests: entries of an older round are not wanted any more.
    round: u64,
    /// What the request that is being made has to say, reused.
    news: Vec<LeaseId>,
    /// Under which ids partitions were known that now have another.
    renamed: Vec<(TopicPartition, TopicId)>,
}

/// Partitions that a request, or a session, asked for. By lease, since numbers compare faster
/// than names: a session over many quiet partitions is gone through for every answer.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub entries: BTreeMap<LeaseId, Entry>,
    names: BTreeMap<TopicId, Arc<str>>,
}

/// What was last sent for a partition.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub tp: TopicPartition,
    pub place: Place,
    round: u64,
}

/// Where a partition is to be read. The topic's id stays with it, since the forget list needs the
/// id that the session was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
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
    pub fn insert(&mut self, lease: LeaseId, tp: &TopicPartition, place: Place) {
        self.put(lease, tp, place, 0);
    }

    fn put(&mut self, lease: LeaseId, tp: &TopicPartition, place: Place, round: u64) {
        self.names
            .entry(place.id)
            .or_insert_with(|| tp.topic.clone());
        let entry = Entry {
            tp: tp.clone(),
            place,
            round,
        };
        self.entries.insert(lease, entry);
    }

    /// The topic of an answer, which has a name or an id.
    pub fn topic(&self, name: &Arc<str>, id: TopicId) -> Option<Arc<str>> {
        if name.is_empty() {
            self.names.get(&id).cloned()
        } else {
            Some(name.clone())
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.names.clear();
    }
}

impl Session {
    /// A request is being made that speaks of topics by their ids, or by their names.
    pub fn begin(&mut self, by_id: bool) {
        if self.epoch != 0 && by_id != self.by_id {
            // A session speaks names or ids for its whole life.
            self.epoch = 0;
        }
        if self.epoch == 0 {
            self.asked.clear();
        }
        self.by_id = by_id;
        self.round += 1;
    }

    /// The request is for this partition too.
    pub fn want(&mut self, lease: LeaseId, tp: &TopicPartition, place: Place) {
        match self.asked.entries.get_mut(&lease) {
            Some(sent) if sent.place == place => sent.round = self.round,
            Some(sent) if sent.place.id == place.id => {
                sent.place = place;
                sent.round = self.round;
                self.news.push(lease);
            }
            old => {
                if let Some(sent) = old
                    && self.by_id
                {
                    self.renamed.push((sent.tp.clone(), sent.place.id));
                }
                self.asked.put(lease, tp, place, self.round);
                self.news.push(lease);
            }
        }
    }

    /// What to send so that the session holds exactly what was wanted since `begin`; it is then
    /// taken to.
    pub fn end(&mut self, wanted: usize) -> SessionRequest {
        let mut forgotten = Vec::new();
        for (tp, id) in self.renamed.drain(..) {
            forget(&mut forgotten, &tp, id);
        }
        // Each wanted lease has an entry of this round, so more entries are older ones.
        if self.asked.entries.len() > wanted {
            self.forget_older(&mut forgotten);
        }
        let entries = &self.asked.entries;
        let mut news: Vec<&Entry> = self.news.iter().filter_map(|l| entries.get(l)).collect();
        news.sort_unstable_by(|a, b| a.tp.cmp(&b.tp));
        let topics = topics(news.into_iter());
        self.news.clear();
        SessionRequest {
            id: self.id,
            epoch: self.epoch,
            topics,
            forgotten,
            by_id: self.by_id,
        }
    }

    fn forget_older(&mut self, forgotten: &mut Vec<(Arc<str>, TopicId, Vec<i32>)>) {
        let (round, by_id) = (self.round, self.by_id);
        let mut older = Vec::new();
        self.asked.entries.retain(|_, entry| {
            let kept = entry.round == round;
            if !kept {
                older.push((entry.tp.clone(), entry.place.id));
            }
            kept
        });
        // A broker forgets last, so a partition that goes on under another lease is not named.
        let entries = self.asked.entries.values();
        let kept: BTreeMap<_, _> = entries.map(|e| (&e.tp, e.place.id)).collect();
        older.sort_unstable();
        for (tp, id) in &older {
            if kept.get(tp).is_none_or(|now| by_id && now != id) {
                forget(forgotten, tp, *id);
            }
        }
        let names = self.asked.entries.values();
        self.asked.names = names.map(|e| (e.place.id, e.tp.topic.clone())).collect();
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
pub(super) fn topics<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<FetchTopic> {
    let mut out: Vec<FetchTopic> = Vec::new();
    for Entry {
        tp, place: entry, ..
    } in entries
    {
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
