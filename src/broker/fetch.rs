//! Fetch: reads, sessions and the long poll.

use bytes::Bytes;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint,
    PartitionData,
};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse, ProducerId, TopicName};
use kafka_protocol::protocol::{Decodable, StrBytes};
use std::time::Duration;

use super::codes;
use super::core::{Call, Cluster, ConnId, Outcome};
use super::log::Span;
use super::session::{Context, Key, Said, Wanted};
use super::topics::check_epoch;
use crate::time::Now;

/// A Fetch that waits for more records.
#[derive(Debug)]
pub(crate) struct ParkedFetch {
    pub until: Now,
    ask: Ask,
}

/// What a Fetch asks for, sessions resolved.
#[derive(Clone, Debug)]
struct Ask {
    context: Context,
    by_id: bool,
    wanted: Vec<Wanted>,
    bytes_min: usize,
    bytes_max: usize,
    committed_only: bool,
}

/// What reading one partition came to.
#[derive(Debug, Default)]
struct Found {
    error: i16,
    name: Option<StrBytes>,
    high_watermark: i64,
    stable: i64,
    log_start: i64,
    span: Span,
    diverging: Option<(i32, i64)>,
    leader: Option<(i32, i32)>,
}

impl Cluster {
    pub(crate) fn fetch(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = FetchRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        if let Some(code) = call.faults.top {
            return call.answer(&top_error(call, code));
        }
        let wait = Duration::from_millis(u64::try_from(req.max_wait_ms).unwrap_or(0));
        let cap = self.cfg.fetch_bytes_max;
        let ask = match self.open_fetch(now, call, &req) {
            Ok((context, wanted)) => Ask {
                context,
                by_id: call.version >= 13,
                wanted,
                bytes_min: usize::try_from(req.min_bytes).unwrap_or(0),
                bytes_max: usize::try_from(req.max_bytes).unwrap_or(0).min(cap),
                committed_only: req.isolation_level == 1,
            },
            Err(code) => return call.answer(&top_error(call, code)),
        };
        let found = self.read_all(call, &ask, true);
        if wait.is_zero() || ask.wanted.is_empty() || enough(&ask, &found) {
            return Outcome::Frame(self.fetch_answer(now, call, &ask, found));
        }
        let until = now + wait;
        self.parked.insert(call.conn, ParkedFetch { until, ask });
        Outcome::Parked
    }

    /// Records came to a partition: fetches that wait for it may be done.
    pub(crate) fn records_came(&mut self, now: Now, topic: &str, partition: i32) {
        let id = self.topics.get(topic.as_bytes()).map(|t| t.id);
        let waits = |w: &Wanted| match &w.key {
            Key::Name(name, p) => *p == partition && **name == *topic,
            Key::Id(i, p) => *p == partition && Some(*i) == id,
        };
        let parked = self.parked.iter();
        let ready: Vec<ConnId> = parked
            .filter(|(_, f)| f.ask.wanted.iter().any(waits))
            .map(|(conn, _)| *conn)
            .collect();
        self.try_fetches(now, ready);
    }

    /// Leaders or topics changed: every waiting fetch looks again.
    pub(crate) fn wake_fetches(&mut self, now: Now) {
        let all = self.parked.keys().copied().collect();
        self.try_fetches(now, all);
    }

    pub(crate) fn expire_fetches(&mut self, now: Now) {
        let due = self.parked.iter().filter(|(_, f)| f.until <= now);
        let due: Vec<ConnId> = due.map(|(conn, _)| *conn).collect();
        for conn in due {
            let (Some(f), Some(call)) = (self.parked.remove(&conn), self.waiting(conn)) else {
                continue;
            };
            let found = self.read_all(&call, &f.ask, false);
            let frame = self.fetch_answer(now, &call, &f.ask, found);
            self.complete(now, &call, frame);
        }
    }

    fn try_fetches(&mut self, now: Now, conns: Vec<ConnId>) {
        for conn in conns {
            let (Some(f), Some(call)) = (self.parked.remove(&conn), self.waiting(conn)) else {
                continue;
            };
            let found = self.read_all(&call, &f.ask, false);
            if enough(&f.ask, &found) {
                let frame = self.fetch_answer(now, &call, &f.ask, found);
                self.complete(now, &call, frame);
            } else {
                self.parked.insert(conn, f);
            }
        }
    }

    fn open_fetch(
        &mut self,
        now: Now,
        call: &Call,
        req: &FetchRequest,
    ) -> Result<(Context, Vec<Wanted>), i16> {
        let by_id = call.version >= 13;
        let key = |name: &TopicName, id: &[u8; 16], partition: i32| match by_id {
            true => Key::Id(*id, partition),
            false => Key::Name(name.0.clone(), partition),
        };
        let mut named = Vec::new();
        for topic in &req.topics {
            for p in &topic.partitions {
                named.push(Wanted {
                    key: key(&topic.topic, topic.topic_id.as_bytes(), p.partition),
                    offset: p.fetch_offset,
                    leader_epoch: p.current_leader_epoch,
                    last_epoch: p.last_fetched_epoch,
                    bytes_max: usize::try_from(p.partition_max_bytes).unwrap_or(0),
                });
            }
        }
        if call.version < 7 {
            return Ok((Context::None, named));
        }
        let mut forgotten = Vec::new();
        for topic in &req.forgotten_topics_data {
            let keys = topic.partitions.iter();
            forgotten.extend(keys.map(|&p| key(&topic.topic, topic.topic_id.as_bytes(), p)));
        }
        let node = self.nodes.get_mut(&call.node);
        let sessions = &mut node.ok_or(codes::NOT_LEADER_OR_FOLLOWER)?.sessions;
        sessions.open(
            now,
            req.session_id,
            req.session_epoch,
            by_id,
            named,
            &forgotten,
        )
    }

    /// Reads what is asked, in order, as far as the bytes allow. Scripted faults are looked up on
    /// the first reading only, so that each request counts once.
    fn read_all(&mut self, call: &Call, ask: &Ask, is_first: bool) -> Vec<Found> {
        let mut left = ask.bytes_max;
        let mut whole_first = true;
        let mut all = Vec::with_capacity(ask.wanted.len());
        for wanted in &ask.wanted {
            let mut found = self.read_one(call, ask, wanted, left, whole_first);
            if is_first && found.error == codes::NONE {
                let name = found.name.clone().unwrap_or_default();
                let (planned, _) = self.planned(call, &name, wanted.key.partition());
                if let Some(code) = planned {
                    found = Found::error(code, found.name);
                    self.hint(&name, wanted.key.partition(), &mut found);
                }
            }
            if found.span.bytes > 0 {
                whole_first = false;
                left = left.saturating_sub(found.span.bytes);
            }
            all.push(found);
        }
        all
    }

    fn read_one(
        &self,
        call: &Call,
        ask: &Ask,
        wanted: &Wanted,
        left: usize,
        whole_first: bool,
    ) -> Found {
        let partition = wanted.key.partition();
        let name = match &wanted.key {
            Key::Name(name, _) => name.clone(),
            Key::Id(id, _) => match self.topic_ids.get(id) {
                Some(name) => name.clone(),
                None => return Found::error(codes::UNKNOWN_TOPIC_ID, None),
            },
        };
        let Some(p) = self.partition_ref(&name, partition) else {
            return Found::error(codes::UNKNOWN_TOPIC_OR_PARTITION, Some(name));
        };
        let mut found = Found {
            high_watermark: p.log.end(),
            stable: p.log.stable(),
            log_start: p.log.start(),
            name: Some(name.clone()),
            ..Found::default()
        };
        // From version 11 any replica serves a consumer.
        let serves = p.leader == call.node
            || call.version >= 11 && p.leader >= 0 && p.replicas.contains(&call.node);
        let error = match check_epoch(p, wanted.leader_epoch) {
            Err(code) if p.replicas.contains(&call.node) => code,
            _ if !serves => codes::NOT_LEADER_OR_FOLLOWER,
            _ => codes::NONE,
        };
        if error != codes::NONE {
            found = Found::error(error, Some(name.clone()));
            self.hint(&name, partition, &mut found);
            return found;
        }
        if call.version >= 12 && wanted.last_epoch >= 0 {
            let (epoch, end) = p.log.end_of_epoch(wanted.last_epoch);
            if end < 0 {
                return Found::error(codes::OFFSET_OUT_OF_RANGE, Some(name));
            }
            if epoch < wanted.last_epoch || end < wanted.offset {
                found.diverging = Some((epoch, end));
                return found;
            }
        }
        if wanted.offset < p.log.start() || wanted.offset > p.log.end() {
            return Found::error(codes::OFFSET_OUT_OF_RANGE, Some(name));
        }
        let limit = if ask.committed_only {
            p.log.stable()
        } else {
            p.log.end()
        };
        let most = wanted.bytes_max.min(left);
        found.span = p.log.span(wanted.offset, limit, most, whole_first);
        found
    }

    /// Who leads now (KIP-951), with the errors that say so.
    fn hint(&self, topic: &str, partition: i32, found: &mut Found) {
        let tells = matches!(
            found.error,
            codes::NOT_LEADER_OR_FOLLOWER | codes::FENCED_LEADER_EPOCH
        );
        if let (true, Some(p)) = (tells, self.partition_ref(topic, partition)) {
            found.leader = Some((p.leader, p.epoch));
        }
    }

    fn fetch_answer(
        &mut self,
        now: Now,
        call: &Call,
        ask: &Ask,
        found: Vec<Found>,
    ) -> Option<Bytes> {
        let v = call.version;
        let mut resp = FetchResponse::default().with_throttle_time_ms(call.faults.throttle_ms);
        let mut said = Vec::new();
        for (wanted, found) in ask.wanted.iter().zip(&found) {
            if let Context::Full = ask.context {
                let watermark = if found.error == codes::NONE {
                    found.high_watermark
                } else {
                    -1
                };
                said.push((wanted.clone(), watermark, found.log_start));
            }
            if let Context::Incremental(id) = ask.context {
                let said = Said {
                    key: &wanted.key,
                    error: found.error,
                    high_watermark: found.high_watermark,
                    log_start: found.log_start,
                    has_records: found.span.bytes > 0,
                    diverges: found.diverging.is_some(),
                };
                let sessions = self.nodes.get_mut(&call.node).map(|n| &mut n.sessions);
                if !sessions.is_some_and(|s| s.says(id, &said)) {
                    continue;
                }
            }
            if let (true, Some((leader, _))) = (v >= 16, found.leader) {
                let listed = resp.node_endpoints.iter().any(|e| e.node_id.0 == leader);
                if let (false, Some(n)) = (listed, self.nodes.get(&leader)) {
                    let endpoint = NodeEndpoint::default()
                        .with_node_id(BrokerId(leader))
                        .with_host(n.host.clone())
                        .with_port(n.port)
                        .with_rack(n.rack.clone());
                    resp.node_endpoints.push(endpoint);
                }
            }
            let data = self.partition_data(v, ask, wanted, found);
            add_partition(&mut resp, &wanted.key, data);
        }
        if v >= 7 {
            resp.session_id = match ask.context {
                Context::None => 0,
                Context::Incremental(id) => id,
                Context::Full => {
                    let node = self.nodes.get_mut(&call.node);
                    node.map_or(0, |n| n.sessions.make(now, ask.by_id, said))
                }
            };
        }
        call.frame(&resp)
    }

    fn partition_data(&self, v: i16, ask: &Ask, wanted: &Wanted, found: &Found) -> PartitionData {
        let partition = wanted.key.partition();
        let mut data = PartitionData::default()
            .with_partition_index(partition)
            .with_error_code(found.error)
            .with_high_watermark(found.high_watermark)
            .with_last_stable_offset(found.stable)
            .with_aborted_transactions(None);
        if v >= 5 {
            data.log_start_offset = found.log_start;
        }
        if let (true, Some((id, epoch))) = (v >= 16, found.leader) {
            data.current_leader = LeaderIdAndEpoch::default()
                .with_leader_id(BrokerId(id))
                .with_leader_epoch(epoch);
        }
        if let (true, Some((epoch, end))) = (v >= 12, found.diverging) {
            data.diverging_epoch = EpochEndOffset::default()
                .with_epoch(epoch)
                .with_end_offset(end);
        }
        let name = found.name.as_deref().unwrap_or_default();
        let Some(p) = self.partition_ref(name, partition) else {
            // Kafka makes this answer elsewhere, with an empty list for no list.
            return data.with_aborted_transactions(Some(Vec::new()));
        };
        if found.error != codes::NONE || found.diverging.is_some() {
            return data;
        }
        if ask.committed_only {
            // Aborted transactions up to the end of what is read.
            let read = found.span.first..found.span.end;
            let reach = p
                .log
                .batches()
                .get(read)
                .and_then(<[_]>::last)
                .map(|b| b.last + 1);
            let upto = reach.unwrap_or(wanted.offset);
            let each = p.log.aborted_in(wanted.offset, upto).map(|a| {
                AbortedTransaction::default()
                    .with_producer_id(ProducerId(a.producer_id))
                    .with_first_offset(a.first_offset)
            });
            data.aborted_transactions = Some(each.collect());
        }
        data.records = Some(p.log.read(found.span));
        data
    }
}

impl Found {
    fn error(error: i16, name: Option<StrBytes>) -> Self {
        Found {
            error,
            name,
            high_watermark: -1,
            stable: -1,
            log_start: -1,
            ..Found::default()
        }
    }
}

/// Whether an answer goes out at once: enough bytes, or something that will not wait.
fn enough(ask: &Ask, found: &[Found]) -> bool {
    let bytes: usize = found.iter().map(|f| f.span.bytes).sum();
    bytes >= ask.bytes_min
        || found
            .iter()
            .any(|f| f.error != codes::NONE || f.diverging.is_some())
}

/// Puts a partition under its topic, which is the last one named or a new one.
fn add_partition(resp: &mut FetchResponse, key: &Key, data: PartitionData) {
    let same = |t: &FetchableTopicResponse| match key {
        Key::Name(name, _) => t.topic.0 == *name,
        Key::Id(id, _) => t.topic_id.as_bytes() == id,
    };
    if let Some(last) = resp.responses.last_mut().filter(|t| same(t)) {
        return last.partitions.push(data);
    }
    let topic = FetchableTopicResponse::default().with_partitions(vec![data]);
    resp.responses.push(match key {
        Key::Name(name, _) => topic.with_topic(TopicName(name.clone())),
        Key::Id(id, _) => topic.with_topic_id(uuid::Uuid::from_bytes(*id)),
    });
}

fn top_error(call: &Call, code: i16) -> FetchResponse {
    let resp = FetchResponse::default().with_throttle_time_ms(call.faults.throttle_ms);
    if call.version >= 7 {
        resp.with_error_code(code)
    } else {
        resp
    }
}
