//! The cluster as one value: connections, requests in their order, answers and time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use super::auth::{Auth, ScramKeys};
use super::commits::{CommitEntry, Committed};
use super::config::ClusterConfig;
use super::consumer::ConsumerGroup;
use super::fetch::ParkedFetch;
use super::group::Group;
use super::script::{Fault, Script, Seen};
use super::session::Sessions;
use super::topics::Topic;
use super::{shape, versions};
use crate::time::{Now, earliest};

/// One client's connection to one node. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// What the cluster wants of whoever carries its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerAction {
    /// Send these bytes (the length prefix is among them).
    Send {
        /// Where to.
        conn: ConnId,
        /// What.
        frame: Bytes,
    },
    /// Close this connection, after what was sent on it before.
    Close {
        /// Which.
        conn: ConnId,
    },
}

/// A Kafka cluster of several nodes in one value, without I/O or a clock.
///
/// ```
/// use bytes::Bytes;
/// use laneway::broker::{BrokerAction, Cluster, ClusterConfig};
/// use laneway::time::Now;
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// let conn = cluster.connect(Now(0), 1).expect("node 1 is up");
/// // ApiVersions, version 0, correlation id 7, no client id.
/// cluster.handle_frame(Now(0), conn, Bytes::from_static(&[0, 18, 0, 0, 0, 0, 0, 7, 255, 255]));
/// let Some(BrokerAction::Send { frame, .. }) = cluster.poll_action() else { panic!() };
/// assert_eq!(frame[4..10], [0, 0, 0, 7, 0, 0]);
/// ```
#[derive(Debug)]
pub struct Cluster {
    pub(crate) cfg: ClusterConfig,
    pub(crate) nodes: BTreeMap<i32, Node>,
    pub(crate) topics: BTreeMap<StrBytes, Topic>,
    pub(crate) topic_ids: BTreeMap<[u8; 16], StrBytes>,
    pub(crate) groups: BTreeMap<StrBytes, Group>,
    pub(crate) consumers: BTreeMap<StrBytes, ConsumerGroup>,
    pub(crate) coordinators: BTreeMap<StrBytes, i32>,
    pub(crate) committed: BTreeMap<StrBytes, BTreeMap<(StrBytes, i32), Committed>>,
    pub(crate) commit_history: VecDeque<CommitEntry>,
    pub(crate) script: Script,
    pub(crate) parked: BTreeMap<ConnId, ParkedFetch>,
    pub(crate) next_producer_id: i64,
    pub(crate) cold: bool,
    pub(crate) auths: BTreeMap<ConnId, Auth>,
    pub(crate) scram_keys: ScramKeys,
    conns: BTreeMap<ConnId, Conn>,
    actions: VecDeque<BrokerAction>,
    runnable: VecDeque<ConnId>,
    delayed: BTreeMap<(Now, u64), Delayed>,
    requests: BTreeMap<(i32, i16), u64>,
    next_conn: u64,
    next_delayed: u64,
    random: u64,
}

/// A node of the cluster.
#[derive(Debug)]
pub(crate) struct Node {
    pub host: StrBytes,
    pub port: i32,
    pub rack: Option<StrBytes>,
    pub up: bool,
    pub sessions: Sessions,
}

/// A request being answered.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub conn: ConnId,
    pub node: i32,
    pub api: ApiKey,
    pub version: i16,
    pub client_id: StrBytes,
    pub faults: Faults,
    correlation: i32,
}

/// What a script does to one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub error: Option<i16>,
    pub late: Option<i16>,
    pub top: Option<i16>,
    pub throttle_ms: i32,
    answer_delay: Option<Duration>,
    answer: Option<Fault>,
}

/// How a handler ended.
pub(crate) enum Outcome {
    /// The whole answer.
    Frame(Option<Bytes>),
    /// Nothing is answered (`acks=0`); the connection goes on.
    Silent,
    /// The answer comes later.
    Parked,
    /// Nothing is ever answered, and nothing behind it is served.
    Never,
    /// The request makes no sense.
    Close,
}

#[derive(Debug)]
struct Conn {
    node: i32,
    queue: VecDeque<Bytes>,
    busy: Option<Call>,
}

#[derive(Debug)]
enum Delayed {
    Begin(Call, Bytes),
    Send(Call, Option<Bytes>),
}

impl Cluster {
    /// Makes a cluster without topics, all nodes up.
    #[must_use]
    pub fn new(cfg: ClusterConfig) -> Self {
        let node = |id: i32| Node {
            host: StrBytes::from_string(format!("node-{id}")),
            port: 9092,
            rack: None,
            up: true,
            sessions: Sessions::new(cfg.fetch_sessions_max),
        };
        Cluster {
            nodes: (1..=cfg.nodes.max(1)).map(|id| (id, node(id))).collect(),
            topics: BTreeMap::new(),
            topic_ids: BTreeMap::new(),
            groups: BTreeMap::new(),
            consumers: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            committed: BTreeMap::new(),
            commit_history: VecDeque::new(),
            script: Script::default(),
            parked: BTreeMap::new(),
            next_producer_id: 1000,
            cold: cfg.coordinator_starts_cold,
            auths: BTreeMap::new(),
            scram_keys: BTreeMap::new(),
            conns: BTreeMap::new(),
            actions: VecDeque::new(),
            runnable: VecDeque::new(),
            delayed: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_conn: 1,
            next_delayed: 0,
            random: cfg.seed,
            cfg,
        }
    }

    /// A client connects to `node`; `None` where that node is down or does not exist.
    pub fn connect(&mut self, _now: Now, node: i32) -> Option<ConnId> {
        if !self.nodes.get(&node)?.up {
            return None;
        }
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let conn = Conn {
            node,
            queue: VecDeque::new(),
            busy: None,
        };
        self.conns.insert(id, conn);
        self.auths.insert(id, Auth::default());
        Some(id)
    }

    /// The client's end of `conn` is gone. A group does not notice that: a member is out when its
    /// session is over, as with Kafka.
    pub fn disconnect(&mut self, _now: Now, conn: ConnId) {
        self.conns.remove(&conn);
        self.auths.remove(&conn);
        self.parked.remove(&conn);
    }

    /// One whole request frame, without its length.
    pub fn handle_frame(&mut self, now: Now, conn: ConnId, frame: Bytes) {
        let (bytes_max, frames_max) = (self.cfg.frame_bytes_max, self.cfg.conn_frames_max);
        let Some(c) = self.conns.get_mut(&conn) else {
            return;
        };
        if frame.len() > bytes_max || c.queue.len() >= frames_max {
            return self.close(conn);
        }
        c.queue.push_back(frame);
        self.runnable.push_back(conn);
        self.pump(now);
    }

    /// Runs what is due at `now`.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Delayed::Begin(call, body) => self.run(now, &call, body),
                Delayed::Send(call, frame) => self.deliver(&call, frame),
            }
        }
        self.expire_groups(now);
        self.expire_consumers(now);
        self.expire_fetches(now);
        self.pump(now);
    }

    /// When `handle_timeout` is wanted next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        let delayed = self.delayed.keys().next().map(|k| k.0);
        let groups = self.groups.values().filter_map(Group::next_deadline).min();
        let consumers = self.consumers.values();
        let consumers = consumers.filter_map(ConsumerGroup::next_deadline).min();
        let groups = earliest(groups, consumers);
        let fetches = self.parked.values().map(|p| p.until).min();
        earliest(delayed, earliest(groups, fetches))
    }

    /// What to do next; ask after each call until there is nothing.
    pub fn poll_action(&mut self) -> Option<BrokerAction> {
        self.actions.pop_front()
    }

    /// The faults in force.
    pub fn script(&mut self) -> &mut Script {
        &mut self.script
    }

    /// How many requests of an API all nodes have got so far.
    #[must_use]
    pub fn requests(&self, api: i16) -> u64 {
        let all = self.requests.iter();
        all.filter(|((_, key), _)| *key == api)
            .map(|(_, n)| n)
            .sum()
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    pub(crate) fn close(&mut self, conn: ConnId) {
        self.parked.remove(&conn);
        self.auths.remove(&conn);
        if self.conns.remove(&conn).is_some() {
            self.actions.push_back(BrokerAction::Close { conn });
        }
    }

    pub(crate) fn close_node(&mut self, node: i32) {
        let ids = self.conns.iter().filter(|(_, c)| c.node == node);
        let ids: Vec<ConnId> = ids.map(|(id, _)| *id).collect();
        for id in ids {
            self.close(id);
        }
    }

    /// The request that `conn` waits to have answered.
    pub(crate) fn waiting(&self, conn: ConnId) -> Option<Call> {
        self.conns.get(&conn)?.busy.clone()
    }

    /// Answers the request that `conn` waits for.
    pub(crate) fn complete(&mut self, now: Now, call: &Call, frame: Option<Bytes>) {
        if let Some(delay) = call.faults.answer_delay {
            self.delay(now + delay, Delayed::Send(call.clone(), frame));
        } else {
            self.deliver(call, frame);
        }
    }

    /// Runs whatever can run, so that a handler's consequences are done when it returns.
    pub(crate) fn pump(&mut self, now: Now) {
        while let Some(id) = self.runnable.pop_front() {
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            if conn.busy.is_some() {
                continue;
            }
            if let Some(frame) = conn.queue.pop_front() {
                let node = conn.node;
                if !conn.queue.is_empty() {
                    self.runnable.push_back(id);
                }
                self.begin(now, id, node, frame);
            }
        }
    }

    /// Errors planned for one partition: in place of handling it, and after it.
    pub(crate) fn planned(
        &mut self,
        call: &Call,
        topic: &str,
        partition: i32,
    ) -> (Option<i16>, Option<i16>) {
        let (mut before, mut late) = (call.faults.error, call.faults.late);
        match self.script.partition(&call.seen(None), topic, partition) {
            Some(Fault::Error(code)) => before = Some(code),
            Some(Fault::LateError(code)) => late = Some(code),
            _ => {}
        }
        (before, late)
    }

    /// The next of the seed's numbers (splitmix64).
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random UUID of version 4.
    pub(crate) fn uuid(&mut self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.random().to_be_bytes());
        id[8..].copy_from_slice(&self.random().to_be_bytes());
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        id
    }

    fn begin(&mut self, now: Now, conn: ConnId, node: i32, frame: Bytes) {
        let Some((key, version, correlation)) = prelude(&frame) else {
            return self.close(conn);
        };
        *self.requests.entry((node, key)).or_default() += 1;
        let Ok(api) = ApiKey::try_from(key) else {
            return self.close(conn);
        };
        if !self
            .auths
            .get(&conn)
            .is_some_and(|auth| self.admits(now, auth, api))
        {
            // As Kafka: who does not say who they are, or asks in the middle of saying it, is out.
            return self.close(conn);
        }
        let mut call = Call {
            conn,
            node,
            api,
            version,
            client_id: StrBytes::new(),
            faults: Faults::default(),
            correlation,
        };
        if !versions::offered(&self.cfg, api, version) {
            if api != ApiKey::ApiVersions {
                // As Kafka: no answer, the connection ends.
                return self.close(conn);
            }
            self.set_busy(&call);
            let frame = versions::refused(&self.cfg, &call);
            return self.complete(now, &call, frame);
        }
        let mut body = frame;
        let header = RequestHeader::decode(&mut body, api.request_header_version(version));
        let fits = shape::fits(api, version, &body);
        let (Ok(header), true) = (header, fits) else {
            return self.close(conn);
        };
        call.client_id = header.client_id.unwrap_or_default();
        let group = shape::group_of(api, version, &body);
        let faults = self.script.whole(&call.seen(group.as_deref()));
        let mut delay = None;
        self.set_busy(&call);
        for fault in faults {
            match fault {
                Fault::Error(code) => call.faults.error = Some(code),
                Fault::LateError(code) => call.faults.late = Some(code),
                Fault::TopError(code) => call.faults.top = Some(code),
                Fault::Throttle(d) => {
                    call.faults.throttle_ms = i32::try_from(d.as_millis()).unwrap_or(i32::MAX);
                }
                Fault::Delay(d) => delay = Some(d),
                Fault::DelayAnswer(d) => call.faults.answer_delay = Some(d),
                Fault::CutBefore => return self.close(conn),
                Fault::Bytes(bytes) => return self.deliver(&call, Some(bytes)),
                Fault::Swallow => return,
                Fault::CutAfter
                | Fault::CutAnswer(_)
                | Fault::AnswerBytes(_)
                | Fault::SwallowAnswer => call.faults.answer = Some(fault),
            }
        }
        self.set_busy(&call);
        match delay {
            Some(d) => self.delay(now + d, Delayed::Begin(call, body)),
            None => self.run(now, &call, body),
        }
    }

    fn run(&mut self, now: Now, call: &Call, body: Bytes) {
        if !self.conns.contains_key(&call.conn) {
            return;
        }
        match self.handle(now, call, body) {
            Outcome::Frame(frame) => self.complete(now, call, frame),
            Outcome::Silent => self.deliver(call, None),
            Outcome::Parked | Outcome::Never => {}
            Outcome::Close => self.close(call.conn),
        }
    }

    fn handle(&mut self, now: Now, call: &Call, mut body: Bytes) -> Outcome {
        let body = &mut body;
        match call.api {
            ApiKey::Produce => self.produce(now, call, body),
            ApiKey::Fetch => self.fetch(now, call, body),
            ApiKey::ListOffsets => self.list_offsets(call, body),
            ApiKey::Metadata => self.metadata(now, call, body),
            ApiKey::OffsetCommit => self.offset_commit(now, call, body),
            ApiKey::OffsetFetch => self.offset_fetch(call, body),
            ApiKey::FindCoordinator => self.find_coordinator(call, body),
            ApiKey::JoinGroup => self.join_group(now, call, body),
            ApiKey::Heartbeat => self.heartbeat(now, call, body),
            ApiKey::ConsumerGroupHeartbeat => self.consumer_heartbeat(now, call, body),
            ApiKey::LeaveGroup => self.leave_group(now, call, body),
            ApiKey::SyncGroup => self.sync_group(now, call, body),
            ApiKey::DescribeGroups => self.describe_groups(call, body),
            ApiKey::ListGroups => self.list_groups(call, body),
            ApiKey::SaslHandshake => self.sasl_handshake(now, call, body),
            ApiKey::SaslAuthenticate => self.sasl_authenticate(now, call, body),
            ApiKey::ApiVersions => versions::api_versions(&self.cfg, call, body),
            ApiKey::CreateTopics => self.create_topics(call, body),
            ApiKey::DeleteTopics => self.delete_topics(now, call, body),
            ApiKey::DeleteRecords => self.delete_records_api(now, call, body),
            ApiKey::InitProducerId => self.init_producer_id(call, body),
            ApiKey::OffsetForLeaderEpoch => self.offset_for_leader_epoch(call, body),
            ApiKey::DescribeConfigs => self.describe_configs(call, body),
            ApiKey::CreatePartitions => self.create_partitions(call, body),
            ApiKey::DeleteGroups => self.delete_groups(call, body),
            ApiKey::OffsetDelete => self.offset_delete(call, body),
            ApiKey::DescribeCluster => self.describe_cluster(call, body),
            _ => Outcome::Close,
        }
    }

    fn set_busy(&mut self, call: &Call) {
        if let Some(conn) = self.conns.get_mut(&call.conn) {
            conn.busy = Some(call.clone());
        }
    }

    fn delay(&mut self, at: Now, what: Delayed) {
        let n = self.next_delayed;
        self.next_delayed += 1;
        self.delayed.insert((at, n), what);
    }

    /// Sends an answer, or what the script puts in its place, and lets the next request in.
    fn deliver(&mut self, call: &Call, frame: Option<Bytes>) {
        let conn = call.conn;
        let Some(c) = self.conns.get_mut(&conn) else {
            return;
        };
        let frame = match (&call.faults.answer, frame) {
            (Some(Fault::SwallowAnswer), _) => return,
            (Some(Fault::CutAfter), _) => return self.close(conn),
            (Some(Fault::CutAnswer(n)), Some(mut frame)) => {
                frame.truncate(*n);
                self.actions.push_back(BrokerAction::Send { conn, frame });
                return self.close(conn);
            }
            (Some(Fault::AnswerBytes(bytes)), _) => Some(bytes.clone()),
            (_, frame) => frame,
        };
        c.busy = None;
        if !c.queue.is_empty() {
            self.runnable.push_back(conn);
        }
        if let Some(frame) = frame {
            self.actions.push_back(BrokerAction::Send { conn, frame });
        }
    }
}

impl Call {
    /// The whole answer frame, length first. `None` (our own mistake: a field that this version
    /// does not have) leaves the request unanswered, and debug builds stop at it.
    pub fn frame<M: Encodable>(&self, body: &M) -> Option<Bytes> {
        self.frame_as(body, self.version)
    }

    pub fn frame_as<M: Encodable>(&self, body: &M, version: i16) -> Option<Bytes> {
        let size = body.compute_size(version).unwrap_or(0);
        let mut out = BytesMut::with_capacity(size + 9);
        out.put_i32(0);
        out.put_i32(self.correlation);
        if self.api.response_header_version(version) >= 1 {
            out.put_u8(0);
        }
        if let Err(e) = body.encode(&mut out, version) {
            debug_assert!(false, "{:?} version {version}: {e}", self.api);
            return None;
        }
        let length = u32::try_from(out.len() - 4).ok()?;
        out[..4].copy_from_slice(&length.to_be_bytes());
        Some(out.freeze())
    }

    /// [`Call::frame`] as a handler's end.
    pub fn answer<M: Encodable>(&self, body: &M) -> Outcome {
        Outcome::Frame(self.frame(body))
    }

    pub fn seen<'a>(&'a self, group: Option<&'a str>) -> Seen<'a> {
        Seen {
            api: self.api as i16,
            node: self.node,
            client_id: &self.client_id,
            group,
        }
    }
}

/// API key, version and correlation id.
fn prelude(frame: &[u8]) -> Option<(i16, i16, i32)> {
    let b = frame.get(..8)?;
    Some((
        i16::from_be_bytes([b[0], b[1]]),
        i16::from_be_bytes([b[2], b[3]]),
        i32::from_be_bytes([b[4], b[5], b[6], b[7]]),
    ))
}
