//! Fetch sessions (KIP-227): what a client need not say again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::codes;
use crate::time::Now;

/// A partition as a Fetch names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub key: Key,
    pub offset: i64,
    pub leader_epoch: i32,
    pub last_epoch: i32,
    pub bytes_max: usize,
}

/// Topic (by name or, from version 13, by id) and partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Name(kafka_protocol::protocol::StrBytes, i32),
    Id([u8; 16], i32),
}

impl Key {
    pub fn partition(&self) -> i32 {
        match self {
            Key::Name(_, p) | Key::Id(_, p) => *p,
        }
    }
}

/// What was last said of a partition: only changes are said again.
#[derive(Clone, Debug)]
struct Cached {
    wanted: Wanted,
    high_watermark: i64,
    log_start: i64,
}

#[derive(Debug)]
struct Session {
    /// The epoch that the next request must carry.
    epoch: i32,
    by_id: bool,
    used: Now,
    /// In the order they are read; those that gave records move to the end, so that all get a turn.
    order: Vec<Key>,
    partitions: BTreeMap<Key, Cached>,
}

/// How the request at hand stands to sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// No session: everything is answered.
    None,
    /// A session is made with the answer if there is room.
    Full,
    /// Only what has changed is answered.
    Incremental(i32),
}

/// All sessions of a node.
#[derive(Debug)]
pub(crate) struct Sessions {
    all: BTreeMap<i32, Session>,
    max: usize,
    next: i32,
}

impl Sessions {
    pub fn new(max: usize) -> Self {
        Sessions {
            all: BTreeMap::new(),
            max,
            next: 1,
        }
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes in a request; gives what is to be read, in order.
    pub fn open(
        &mut self,
        now: Now,
        id: i32,
        epoch: i32,
        by_id: bool,
        named: Vec<Wanted>,
        forgotten: &[Key],
    ) -> Result<(Context, Vec<Wanted>), i16> {
        if epoch == INITIAL || epoch == FINAL {
            self.all.remove(&id);
            let context = if epoch == INITIAL {
                Context::Full
            } else {
                Context::None
            };
            return Ok((context, named));
        }
        let session = self
            .all
            .get_mut(&id)
            .ok_or(codes::FETCH_SESSION_ID_NOT_FOUND)?;
        if session.epoch != epoch {
            return Err(codes::INVALID_FETCH_SESSION_EPOCH);
        }
        if session.by_id != by_id {
            return Err(codes::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        for key in forgotten {
            session.partitions.remove(key);
        }
        if !forgotten.is_empty() {
            let left = &session.partitions;
            session.order.retain(|k| left.contains_key(k));
        }
        for wanted in named {
            session.put(wanted);
        }
        session.epoch = after(epoch);
        session.used = now;
        if session.partitions.is_empty() {
            self.all.remove(&id);
            return Ok((Context::None, Vec::new()));
        }
        let each = session
            .order
            .iter()
            .filter_map(|k| session.partitions.get(k));
        let wanted = each.map(|c| c.wanted.clone()).collect();
        Ok((Context::Incremental(id), wanted))
    }

    /// Makes a session of a full request's partitions, with what was said of each; 0 if there is
    /// no room.
    pub fn make(&mut self, now: Now, by_id: bool, said: Vec<(Wanted, i64, i64)>) -> i32 {
        if self.all.len() >= self.max {
            // One that was not used for long makes room.
            let oldest = self.all.iter().min_by_key(|(_, s)| s.used);
            let stale = oldest.filter(|(_, s)| now.since(s.used) > EVICTION);
            if let Some(id) = stale.map(|(id, _)| *id) {
                self.all.remove(&id);
            }
        }
        if self.all.len() >= self.max || said.is_empty() {
            return 0;
        }
        let id = self.next;
        self.next = after(self.next);
        let mut session = Session {
            epoch: 1,
            by_id,
            used: now,
            order: Vec::with_capacity(said.len()),
            partitions: BTreeMap::new(),
        };
        for (wanted, high_watermark, log_start) in said {
            let key = wanted.key.clone();
            session.put(wanted);
            if let Some(cached) = session.partitions.get_mut(&key) {
                cached.high_watermark = high_watermark;
                cached.log_start = log_start;
            }
        }
        self.all.insert(id, session);
        id
    }

    /// Whether an incremental answer must name this partition; notes what is said.
    pub fn says(&mut self, id: i32, said: &Said<'_>) -> bool {
        let Some(session) = self.all.get_mut(&id) else {
            return true;
        };
        let Some(cached) = session.partitions.get_mut(said.key) else {
            return true;
        };
        let changed =
            said.high_watermark != cached.high_watermark || said.log_start != cached.log_start;
        cached.high_watermark = said.high_watermark;
        cached.log_start = said.log_start;
        if said.error != codes::NONE {
            // So that it is said again until it is over.
            cached.high_watermark = -1;
            return true;
        }
        if said.has_records {
            session.order.retain(|k| k != said.key);
            session.order.push(said.key.clone());
        }
        changed || said.has_records || said.diverges
    }
}

/// What an answer is about to say of a partition.
pub(crate) struct Said<'a> {
    pub key: &'a Key,
    pub error: i16,
    pub high_watermark: i64,
    pub log_start: i64,
    pub has_records: bool,
    pub diverges: bool,
}

impl Session {
    fn put(&mut self, wanted: Wanted) {
        match self.partitions.get_mut(&wanted.key) {
            Some(cached) => cached.wanted = wanted,
            None => {
                self.order.push(wanted.key.clone());
                let cached = Cached {
                    wanted,
                    high_watermark: -1,
                    log_start: -1,
                };
                self.partitions.insert(cached.wanted.key.clone(), cached);
            }
        }
    }
}

fn after(n: i32) -> i32 {
    n.checked_add(1).unwrap_or(1)
}

/// Kafka's `fetch.session.cache` lets nobody push out a session younger than this.
const EVICTION: Duration = Duration::from_secs(120);
const INITIAL: i32 = 0;
const FINAL: i32 = -1;
