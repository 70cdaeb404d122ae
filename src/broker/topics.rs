//! Topics, partitions and who leads them; what tests look at and do to them.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;

use super::codes;
use super::core::{Call, Cluster};
use super::log::{HEADER_BYTES, Header, Log, Stored, message_size};
use crate::time::Now;

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub id: [u8; 16],
    pub partitions: Vec<Partition>,
    pub configs: Vec<(StrBytes, StrBytes)>,
}

/// A partition, the same on all its replicas: replication takes no time here.
#[derive(Debug)]
pub(crate) struct Partition {
    pub log: Log,
    /// -1 where no replica is up.
    pub leader: i32,
    pub epoch: i32,
    pub replicas: Vec<i32>,
}

/// Why a test's own call on the cluster did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Kafka's error code for it.
    pub code: i16,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ResponseError::try_from_code(self.code) {
            Some(error) => write!(f, "refused: {error}"),
            None => f.write_str("refused"),
        }
    }
}

impl std::error::Error for Refused {}

/// A record's key and value, null or not.
pub type KeyValue<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// What there is of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// The node that leads, -1 if none.
    pub leader: i32,
    /// The leader's epoch.
    pub epoch: i32,
    /// The log's first offset.
    pub log_start: i64,
    /// The offset that comes next.
    pub log_end: i64,
    /// Where `read_committed` ends.
    pub last_stable: i64,
}

impl Cluster {
    /// Makes a topic; leaders are spread over the nodes.
    ///
    /// # Errors
    /// The topic exists, its name is not allowed, or the number of partitions is not.
    pub fn create_topic(&mut self, name: &str, partitions: i32) -> Result<(), Refused> {
        self.make_topic(&StrBytes::from_string(name.to_owned()), partitions, None)
            .map_err(|code| Refused { code })
    }

    /// Takes a topic away, with its records.
    ///
    /// # Errors
    /// There is no such topic.
    pub fn delete_topic(&mut self, now: Now, name: &str) -> Result<(), Refused> {
        let code = self.drop_topic(now, name);
        self.pump(now);
        match code {
            codes::NONE => Ok(()),
            code => Err(Refused { code }),
        }
    }

    /// Deletes a topic and makes it again under the same name: it has another id and no records.
    ///
    /// # Errors
    /// There is no such topic.
    pub fn recreate_topic(&mut self, now: Now, name: &str, partitions: i32) -> Result<(), Refused> {
        self.delete_topic(now, name)?;
        self.create_topic(name, partitions)
    }

    /// Gives a topic more partitions: `total` of them.
    ///
    /// # Errors
    /// There is no such topic, it has as many or more, or the number is not allowed.
    pub fn add_partitions(&mut self, name: &str, total: i32) -> Result<(), Refused> {
        match self.grow(&StrBytes::from_string(name.to_owned()), total, false) {
            codes::NONE => Ok(()),
            code => Err(Refused { code }),
        }
    }

    /// Appends batches as a leader does, giving them offsets, without checking them: the bytes
    /// may be control batches or broken ones. Each keeps a base offset above the log's end, so
    /// that gaps can be made.
    ///
    /// # Errors
    /// There is no such partition, or the bytes do not begin with whole v2 batches.
    pub fn append(
        &mut self,
        now: Now,
        topic: &str,
        partition: i32,
        batches: Bytes,
    ) -> Result<i64, Refused> {
        let found = self.partition_mut(topic, partition);
        let p = found.ok_or(Refused {
            code: codes::UNKNOWN_TOPIC_OR_PARTITION,
        })?;
        let mut rest = batches;
        let mut first = p.log.end();
        let mut is_first = true;
        while !rest.is_empty() {
            let header = Header::parse(&rest).map_err(|code| Refused { code })?;
            let base = p.log.force(rest.split_to(header.size), &header, p.epoch);
            if is_first {
                first = base;
                is_first = false;
            }
        }
        self.records_came(now, topic, partition);
        self.pump(now);
        Ok(first)
    }

    /// Appends a message set of format 0 or 1 as it stands, unchecked: what a log from before
    /// Kafka 0.11 holds. Offsets may leave gaps; below the log's end they may not lie.
    ///
    /// # Errors
    /// There is no such partition, or the bytes are not whole messages above its end. What came
    /// before a bad one stays.
    pub fn append_messages(
        &mut self,
        now: Now,
        topic: &str,
        partition: i32,
        messages: Bytes,
    ) -> Result<(), Refused> {
        let found = self.partition_mut(topic, partition);
        let p = found.ok_or(Refused {
            code: codes::UNKNOWN_TOPIC_OR_PARTITION,
        })?;
        let mut rest = messages;
        while !rest.is_empty() {
            let size = message_size(&rest).map_err(|code| Refused { code })?;
            let forced = p.log.force_message(rest.split_to(size), p.epoch);
            forced.map_err(|code| Refused { code })?;
        }
        self.records_came(now, topic, partition);
        self.pump(now);
        Ok(())
    }

    /// Appends one plain batch of these (key, value) pairs, all of one time.
    ///
    /// # Errors
    /// There is no such partition.
    pub fn append_records(
        &mut self,
        now: Now,
        topic: &str,
        partition: i32,
        records: &[KeyValue<'_>],
    ) -> Result<i64, Refused> {
        let batch = plain_batch(self.wall_ms(now), records);
        self.append(now, topic, partition, batch)
    }

    /// What there is of a partition.
    #[must_use]
    pub fn partition_view(&self, topic: &str, partition: i32) -> Option<PartitionView> {
        let p = self.partition_ref(topic, partition)?;
        Some(PartitionView {
            leader: p.leader,
            epoch: p.epoch,
            log_start: p.log.start(),
            log_end: p.log.end(),
            last_stable: p.log.stable(),
        })
    }

    /// All batches of a partition as a Fetch would give them.
    #[must_use]
    pub fn batches(&self, topic: &str, partition: i32) -> Option<Bytes> {
        let log = &self.partition_ref(topic, partition)?.log;
        let all = log.span(log.start(), log.end(), usize::MAX, true);
        Some(log.read(all))
    }

    /// Names of all topics with how many partitions each has.
    #[must_use]
    pub fn topics(&self) -> Vec<(String, usize)> {
        let each = self.topics.iter();
        each.map(|(name, t)| (name.to_string(), t.partitions.len()))
            .collect()
    }

    /// A topic's id.
    #[must_use]
    pub fn topic_id(&self, topic: &str) -> Option<[u8; 16]> {
        self.topics.get(topic.as_bytes()).map(|t| t.id)
    }

    /// How many fetch sessions a node holds.
    #[must_use]
    pub fn fetch_sessions(&self, node: i32) -> usize {
        self.nodes.get(&node).map_or(0, |n| n.sessions.len())
    }

    /// Sets where clients are told to find `node`.
    pub fn set_advertised(&mut self, node: i32, host: &str, port: u16) {
        if let Some(n) = self.nodes.get_mut(&node) {
            n.host = StrBytes::from_string(host.to_owned());
            n.port = i32::from(port);
        }
    }

    /// Sets the rack that `node` says it is in.
    pub fn set_rack(&mut self, node: i32, rack: Option<&str>) {
        if let Some(n) = self.nodes.get_mut(&node) {
            n.rack = rack.map(|r| StrBytes::from_string(r.to_owned()));
        }
    }

    /// A node dies: its connections close, what it led and coordinated moves to others.
    pub fn crash(&mut self, now: Now, node: i32) {
        let Some(n) = self.nodes.get_mut(&node) else {
            return;
        };
        n.up = false;
        n.sessions.clear();
        self.close_node(node);
        let names: Vec<(StrBytes, usize)> = self
            .topics
            .iter()
            .map(|(n, t)| (n.clone(), t.partitions.len()))
            .collect();
        for (name, count) in names {
            for index in 0..i32::try_from(count).unwrap_or(0) {
                if self
                    .partition_ref(&name, index)
                    .is_some_and(|p| p.leader == node)
                {
                    self.elect(&name, index);
                }
            }
        }
        let kinds = self.groups.keys().chain(self.consumers.keys());
        let moved: Vec<StrBytes> = kinds.cloned().collect();
        for group in moved {
            if self.coordinators.get(&group) == Some(&node) {
                self.coordinators.remove(&group);
            }
            self.reload_group(now, &group);
        }
        self.wake_fetches(now);
        self.pump(now);
    }

    /// A dead node comes back, and leads what nobody else could.
    pub fn restart(&mut self, now: Now, node: i32) {
        if let Some(n) = self.nodes.get_mut(&node) {
            n.up = true;
        }
        let names: Vec<(StrBytes, usize)> = self
            .topics
            .iter()
            .map(|(n, t)| (n.clone(), t.partitions.len()))
            .collect();
        for (name, count) in names {
            for index in 0..i32::try_from(count).unwrap_or(0) {
                if self
                    .partition_ref(&name, index)
                    .is_some_and(|p| p.leader < 0)
                {
                    self.elect(&name, index);
                }
            }
        }
        self.wake_fetches(now);
        self.pump(now);
    }

    /// Moves a partition's leadership to `node`, which becomes a replica if it is none, and raises
    /// the leader epoch.
    pub fn move_leader(&mut self, now: Now, topic: &str, partition: i32, node: i32) {
        if let Some(p) = self.partition_mut(topic, partition) {
            if !p.replicas.contains(&node) {
                p.replicas.retain(|&r| r != p.leader);
                p.replicas.push(node);
            }
            p.leader = node;
            p.epoch += 1;
            p.log.begin_epoch(p.epoch);
        }
        self.wake_fetches(now);
        self.pump(now);
    }

    /// An unclean election: a new leader epoch begins, and records from `offset` on are lost.
    pub fn truncate(&mut self, now: Now, topic: &str, partition: i32, offset: i64) {
        if let Some(p) = self.partition_mut(topic, partition) {
            p.log.truncate(offset);
            p.epoch += 1;
            p.log.begin_epoch(p.epoch);
        }
        self.wake_fetches(now);
        self.pump(now);
    }

    /// Moves the log's start, as DeleteRecords and retention do.
    pub fn delete_records(&mut self, now: Now, topic: &str, partition: i32, before: i64) {
        if let Some(p) = self.partition_mut(topic, partition) {
            p.log.delete_before(before);
        }
        self.wake_fetches(now);
        self.pump(now);
    }

    /// Replaces the log's bytes, offsets as they stand in the batches: what compaction leaves. The
    /// log's start and end stay where they are (the end moves up if the batches reach further).
    ///
    /// # Errors
    /// There is no such partition, or the bytes are not whole v2 batches.
    pub fn replace_log(
        &mut self,
        topic: &str,
        partition: i32,
        batches: Bytes,
    ) -> Result<(), Refused> {
        let found = self.partition_mut(topic, partition);
        let p = found.ok_or(Refused {
            code: codes::UNKNOWN_TOPIC_OR_PARTITION,
        })?;
        let mut rest = batches;
        let mut all = Vec::new();
        while !rest.is_empty() {
            let header = Header::parse(&rest).map_err(|code| Refused { code })?;
            all.push(Stored {
                base: header.base_offset,
                last: header.base_offset + i64::from(header.last_offset_delta),
                epoch: header.leader_epoch,
                max_timestamp: header.max_timestamp,
                bytes: rest.split_to(header.size),
            });
        }
        let (start, end) = (p.log.start(), p.log.end());
        p.log.replace(all, start, end);
        Ok(())
    }

    pub(crate) fn make_topic(
        &mut self,
        name: &StrBytes,
        partitions: i32,
        replicas: Option<Vec<Vec<i32>>>,
    ) -> Result<(), i16> {
        if !name_allowed(name) {
            return Err(codes::INVALID_TOPIC_EXCEPTION);
        }
        if self.topics.contains_key(name) {
            return Err(codes::TOPIC_ALREADY_EXISTS);
        }
        if partitions < 1 || partitions > self.cfg.partitions_max {
            return Err(codes::INVALID_PARTITIONS);
        }
        let id = self.uuid();
        let first = i32::try_from(self.topics.len()).unwrap_or(0);
        let mut all = Vec::new();
        for index in 0..partitions {
            let given = replicas
                .as_ref()
                .and_then(|r| r.get(index as usize).cloned());
            all.push(self.make_partition(first.wrapping_add(index), given));
        }
        let topic = Topic {
            id,
            partitions: all,
            configs: Vec::new(),
        };
        self.topics.insert(name.clone(), topic);
        self.topic_ids.insert(id, name.clone());
        Ok(())
    }

    /// A partition whose leader is the `nth` node, in turn, unless its replicas are given.
    pub(crate) fn make_partition(&self, nth: i32, given: Option<Vec<i32>>) -> Partition {
        let nodes = self.cfg.nodes.max(1);
        let copies = self.cfg.replication_factor.clamp(1, nodes);
        let spread = || {
            (0..copies)
                .map(|i| nth.wrapping_add(i).rem_euclid(nodes) + 1)
                .collect()
        };
        let replicas: Vec<i32> = given.unwrap_or_else(spread);
        let mut log = Log::default();
        log.begin_epoch(0);
        let up = |node: &i32| self.nodes.get(node).is_some_and(|n| n.up);
        let leader = replicas.iter().copied().find(up).unwrap_or(-1);
        Partition {
            log,
            leader,
            epoch: 0,
            replicas,
        }
    }

    pub(crate) fn drop_topic(&mut self, now: Now, name: &str) -> i16 {
        let Some(topic) = self.topics.remove(name.as_bytes()) else {
            return codes::UNKNOWN_TOPIC_OR_PARTITION;
        };
        self.topic_ids.remove(&topic.id);
        for offsets in self.committed.values_mut() {
            offsets.retain(|(t, _), _| **t != *name);
        }
        self.wake_fetches(now);
        codes::NONE
    }

    pub(crate) fn partition_ref(&self, topic: &str, partition: i32) -> Option<&Partition> {
        let index = usize::try_from(partition).ok()?;
        self.topics.get(topic.as_bytes())?.partitions.get(index)
    }

    pub(crate) fn partition_mut(&mut self, topic: &str, partition: i32) -> Option<&mut Partition> {
        let index = usize::try_from(partition).ok()?;
        self.topics
            .get_mut(topic.as_bytes())?
            .partitions
            .get_mut(index)
    }

    /// The partition if the node asked leads it under the epoch that the client knows.
    pub(crate) fn led(
        &mut self,
        call: &Call,
        topic: &str,
        partition: i32,
        client_epoch: i32,
    ) -> Result<&mut Partition, i16> {
        let node = call.node;
        let p = self
            .partition_mut(topic, partition)
            .ok_or(codes::UNKNOWN_TOPIC_OR_PARTITION)?;
        if p.replicas.contains(&node) {
            check_epoch(p, client_epoch)?;
        }
        if p.leader != node {
            return Err(codes::NOT_LEADER_OR_FOLLOWER);
        }
        Ok(p)
    }

    /// Wall time in milliseconds since 1970: the time of what is appended now.
    #[must_use]
    pub fn wall_ms(&self, now: Now) -> i64 {
        let since = i64::try_from(now.0 / 1_000_000).unwrap_or(i64::MAX);
        self.cfg.wall_ms_at_zero.saturating_add(since)
    }

    fn elect(&mut self, topic: &str, partition: i32) {
        let up: Vec<i32> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.up)
            .map(|(id, _)| *id)
            .collect();
        if let Some(p) = self.partition_mut(topic, partition) {
            p.leader = p
                .replicas
                .iter()
                .copied()
                .find(|r| up.contains(r))
                .unwrap_or(-1);
            p.epoch += 1;
            p.log.begin_epoch(p.epoch);
        }
    }
}

/// Compares the leader epoch that a client knows with ours (KIP-320); -1 is not compared.
pub(crate) fn check_epoch(p: &Partition, client_epoch: i32) -> Result<(), i16> {
    if client_epoch < 0 || client_epoch == p.epoch {
        Ok(())
    } else if client_epoch < p.epoch {
        Err(codes::FENCED_LEADER_EPOCH)
    } else {
        Err(codes::UNKNOWN_LEADER_EPOCH)
    }
}

/// Kafka's rule for topic names.
fn name_allowed(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= 249 && name != "." && name != ".." && name.chars().all(ok)
}

/// One v2 batch without compression.
fn plain_batch(timestamp: i64, records: &[KeyValue<'_>]) -> Bytes {
    let mut body = BytesMut::new();
    for (i, (key, value)) in records.iter().enumerate() {
        let mut one = BytesMut::new();
        one.put_u8(0);
        put_varint(&mut one, 0);
        put_varint(&mut one, i as i64);
        for part in [key, value] {
            put_varint(&mut one, part.map_or(-1, |p| p.len() as i64));
            one.put_slice(part.unwrap_or_default());
        }
        put_varint(&mut one, 0);
        put_varint(&mut body, one.len() as i64);
        body.put_slice(&one);
    }
    let count = records.len() as i32;
    let mut out = BytesMut::with_capacity(HEADER_BYTES + body.len());
    out.put_i64(0);
    out.put_i32((HEADER_BYTES - 12 + body.len()) as i32);
    out.put_i32(0);
    out.put_u8(2);
    out.put_u32(0);
    out.put_i16(0);
    out.put_i32(count - 1);
    out.put_i64(timestamp);
    out.put_i64(timestamp);
    out.put_i64(-1);
    out.put_i16(-1);
    out.put_i32(-1);
    out.put_i32(count);
    out.put_slice(&body);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &out[21..]) as u32;
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    out.freeze()
}

fn put_varint(out: &mut BytesMut, value: i64) {
    let mut z = ((value << 1) ^ (value >> 63)) as u64;
    while z >= 0x80 {
        out.put_u8(z as u8 | 0x80);
        z >>= 7;
    }
    out.put_u8(z as u8);
}
