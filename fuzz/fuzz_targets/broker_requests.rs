//! Any bytes as requests to the embedded broker: it answers or closes, what it answers reads whole by
//! the rules of the version asked, and nothing that is merely claimed takes memory.
//!
//! Each request is an API and a version by a byte each, and so many of the bytes that follow as the
//! next one says; or a whole frame as it is.
#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf, Bytes};
use kafka_protocol::messages::{ApiKey, ResponseHeader, ResponseKind};
use kafka_protocol::protocol::Decodable;
use laneway::broker::{BrokerAction, Cluster, ClusterConfig, ConnId};
use laneway::time::Now;
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

/// The APIs that the broker offers, and one that it does not.
const APIS: [ApiKey; 21] = [
    ApiKey::Produce,
    ApiKey::Fetch,
    ApiKey::ListOffsets,
    ApiKey::Metadata,
    ApiKey::OffsetCommit,
    ApiKey::OffsetFetch,
    ApiKey::FindCoordinator,
    ApiKey::JoinGroup,
    ApiKey::Heartbeat,
    ApiKey::LeaveGroup,
    ApiKey::SyncGroup,
    ApiKey::DescribeGroups,
    ApiKey::ListGroups,
    ApiKey::ApiVersions,
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::DeleteRecords,
    ApiKey::InitProducerId,
    ApiKey::OffsetForLeaderEpoch,
    ApiKey::DescribeConfigs,
    ApiKey::CreateAcls,
];

fuzz_target!(|input: &[u8]| {
    let mut life = Life::new();
    let mut script = Script::new(input);
    let mut steps = 0;
    while !script.is_over() && steps < STEPS_MAX {
        steps += 1;
        life.step(&mut script);
    }
    life.pass(Duration::from_secs(3600));
});

struct Life {
    cluster: Cluster,
    now: Now,
    conns: BTreeMap<ConnId, Vec<(i32, ApiKey, i16)>>,
    correlation: i32,
}

impl Life {
    fn new() -> Life {
        let config = ClusterConfig {
            nodes: 2,
            partitions_max: 100,
            group_size_max: 20,
            fetch_sessions_max: 10,
            commit_history_max: 100,
            frame_bytes_max: 1 << 20,
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(config);
        let now = Now(1_000_000);
        cluster.create_topic("t", 2).expect("new");
        let pair: (Option<&[u8]>, Option<&[u8]>) = (Some(b"k"), Some(b"v"));
        cluster
            .append_records(now, "t", 0, &[pair, pair])
            .expect("there");
        Life {
            cluster,
            now,
            conns: BTreeMap::new(),
            correlation: 0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let how = script.byte();
        if how >= 250 {
            let wait = Duration::from_millis(u64::from(script.byte()) * 100);
            return self.pass(wait);
        }
        let nth = usize::from(how & 3);
        while self.conns.len() <= nth {
            let node = self.conns.len() as i32 % 2 + 1;
            let conn = self.cluster.connect(self.now, node).expect("up");
            self.conns.insert(conn, Vec::new());
        }
        let conn = *self.conns.keys().nth(nth).expect("made");
        let frame = match how {
            240.. => {
                let n = script.below(512);
                Bytes::copy_from_slice(script.bytes(n))
            }
            _ => self.request(conn, script),
        };
        let len = frame.len();
        let used = allocation_counter::measure(|| {
            self.cluster.handle_frame(self.now, conn, frame);
        });
        let most = (len * FACTOR + FIXED_BYTES) as u64;
        assert!(used.bytes_max <= most, "{} bytes for {len}", used.bytes_max);
        self.answers();
    }

    /// A frame with a right header, and anything behind it.
    fn request(&mut self, conn: ConnId, script: &mut Script<'_>) -> Bytes {
        let api = APIS[script.below(APIS.len())];
        let span = api.valid_versions();
        let version = span.min + i16::from(script.byte()) % (span.max - span.min + 2);
        self.correlation += 1;
        let mut out = (api as i16).to_be_bytes().to_vec();
        out.extend(version.to_be_bytes());
        out.extend(self.correlation.to_be_bytes());
        out.extend([0, 1, b'c']);
        if api.request_header_version(version) >= 2 {
            out.push(0);
        }
        let n = script.below(1024);
        out.extend_from_slice(script.bytes(n));
        if let Some(asked) = self.conns.get_mut(&conn) {
            asked.push((self.correlation, api, version));
        }
        out.into()
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while let Some(at) = self.cluster.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.cluster.handle_timeout(self.now);
            self.answers();
            steps += 1;
            assert!(steps < 100_000, "it spins");
        }
        self.now = end;
    }

    fn answers(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Close { conn } => {
                    assert!(self.conns.remove(&conn).is_some(), "closed once");
                }
                BrokerAction::Send { conn, frame } => {
                    let asked = self.conns.get_mut(&conn).expect("an open connection");
                    read(frame, asked);
                }
            }
        }
    }
}

/// An answer names a request of its connection and reads whole.
fn read(mut frame: Bytes, asked: &mut Vec<(i32, ApiKey, i16)>) {
    let len = frame.get_i32();
    assert_eq!(len as usize, frame.len());
    let correlation = frame.slice(..4).get_i32();
    let Some(at) = asked.iter().position(|(id, ..)| *id == correlation) else {
        return; // a frame that was made up whole
    };
    let (_, api, version) = asked.remove(at);
    // An unknown version of ApiVersions is answered in version 0.
    let known = api != ApiKey::ApiVersions || frame.get(4..6) != Some(&[0, 35]);
    let version = if known { version } else { 0 };
    let header = api.response_header_version(version);
    ResponseHeader::decode(&mut frame, header).expect("a header");
    let body = ResponseKind::decode(api, &mut frame, version);
    body.unwrap_or_else(|e| panic!("{api:?} {version}: {e}"));
    assert!(
        frame.is_empty(),
        "{api:?} {version}: {} bytes left",
        frame.len()
    );
}

const STEPS_MAX: usize = 200;
/// What a request may make the broker hold for each of its bytes; answers list all there is, within
/// what the cluster's settings allow.
const FACTOR: usize = 256;
const FIXED_BYTES: usize = 256 << 10;
