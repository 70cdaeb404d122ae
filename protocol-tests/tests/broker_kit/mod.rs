//! A client of the embedded broker that says exactly what a test wants, in virtual time.

#![allow(dead_code)] // Each test file uses a part of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes};
use laneway::broker::{BrokerAction, Cluster, ClusterConfig, ConnId};
use laneway::time::Now;

pub struct Kit {
    pub cluster: Cluster,
    pub now: Now,
    pub closed: BTreeSet<ConnId>,
    inbox: BTreeMap<ConnId, VecDeque<Bytes>>,
    correlation: i32,
}

impl Kit {
    pub fn new(cfg: ClusterConfig) -> Kit {
        Kit {
            cluster: Cluster::new(cfg),
            now: Now(0),
            closed: BTreeSet::new(),
            inbox: BTreeMap::new(),
            correlation: 0,
        }
    }

    pub fn with_topic(topic: &str, partitions: i32) -> Kit {
        let mut kit = Kit::new(ClusterConfig::default());
        kit.cluster.create_topic(topic, partitions).unwrap();
        kit
    }

    pub fn connect(&mut self, node: i32) -> ConnId {
        self.cluster
            .connect(self.now, node)
            .expect("the node is up")
    }

    /// Sends without waiting for an answer.
    pub fn send<R: Request>(&mut self, conn: ConnId, version: i16, body: &R) {
        self.correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("kit")));
        let mut out = BytesMut::new();
        kafka_protocol::protocol::Encodable::encode(&header, &mut out, R::header_version(version))
            .unwrap();
        body.encode(&mut out, version).unwrap();
        self.raw(conn, out.freeze());
    }

    /// Sends a frame as it is, without its length.
    pub fn raw(&mut self, conn: ConnId, frame: Bytes) {
        self.cluster.handle_frame(self.now, conn, frame);
        self.drain();
    }

    /// The oldest answer not yet taken, whole, with its length.
    pub fn frame(&mut self, conn: ConnId) -> Option<Bytes> {
        self.drain();
        self.inbox.get_mut(&conn)?.pop_front()
    }

    pub fn take<R: Request>(&mut self, conn: ConnId, version: i16) -> Option<R::Response> {
        let mut frame = self.frame(conn)?.slice(4..);
        let header = <R::Response as HeaderVersion>::header_version(version);
        ResponseHeader::decode(&mut frame, header).unwrap();
        let body = R::Response::decode(&mut frame, version).unwrap();
        assert!(frame.is_empty(), "bytes left over after the answer");
        Some(body)
    }

    /// Sends, and takes the answer that must be there at once.
    pub fn call<R: Request>(&mut self, conn: ConnId, version: i16, body: &R) -> R::Response {
        self.send(conn, version, body);
        self.take::<R>(conn, version).expect("an answer at once")
    }

    /// Lets time go by, with every deadline met on the way.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.cluster.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.cluster.handle_timeout(self.now);
        }
        self.now = end;
        self.drain();
    }

    pub fn drain(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Send { conn, frame } => {
                    self.inbox.entry(conn).or_default().push_back(frame);
                }
                BrokerAction::Close { conn } => {
                    self.closed.insert(conn);
                }
            }
        }
    }
}

/// A batch to write.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub base_offset: i64,
    pub count: i32,
    pub attributes: i16,
    pub producer: (i64, i16, i32),
    pub timestamp: i64,
    pub value_bytes: usize,
}

impl Batch {
    pub fn of(count: i32) -> Batch {
        Batch {
            base_offset: 0,
            count,
            attributes: 0,
            producer: (-1, -1, -1),
            timestamp: 1000,
            value_bytes: 10,
        }
    }

    pub fn producer(self, id: i64, epoch: i16, sequence: i32) -> Batch {
        Batch {
            producer: (id, epoch, sequence),
            ..self
        }
    }

    pub fn transactional(self) -> Batch {
        Batch {
            attributes: self.attributes | 0x10,
            ..self
        }
    }

    /// Record i has timestamp `timestamp + i` and value i, padded.
    pub fn bytes(&self) -> Bytes {
        let mut body = BytesMut::new();
        for i in 0..self.count {
            let mut one = BytesMut::new();
            one.put_u8(0);
            varint(&mut one, i64::from(i));
            varint(&mut one, i64::from(i));
            varint(&mut one, -1);
            varint(&mut one, self.value_bytes as i64);
            one.put_bytes(b'v', self.value_bytes);
            varint(&mut one, 0);
            varint(&mut body, one.len() as i64);
            body.put_slice(&one);
        }
        self.seal(&body)
    }

    /// The batch that ends a transaction.
    pub fn control(self, is_commit: bool) -> Bytes {
        let mut body = BytesMut::new();
        let mut one = BytesMut::new();
        one.put_slice(&[0, 0, 0, 8, 0, 0, 0, u8::from(is_commit)]);
        // The value: version and coordinator epoch.
        one.put_slice(&[12, 0, 0, 0, 0, 0, 0, 0]);
        varint(&mut body, one.len() as i64);
        body.put_slice(&one);
        let batch = Batch {
            count: 1,
            attributes: 0x30,
            ..self
        };
        batch.seal(&body)
    }

    fn seal(&self, body: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i64(self.base_offset);
        out.put_i32(49 + body.len() as i32);
        out.put_i32(-1);
        out.put_u8(2);
        out.put_u32(0);
        out.put_i16(self.attributes);
        out.put_i32(self.count - 1);
        out.put_i64(self.timestamp);
        out.put_i64(self.timestamp + i64::from(self.count) - 1);
        out.put_i64(self.producer.0);
        out.put_i16(self.producer.1);
        out.put_i32(self.producer.2);
        out.put_i32(self.count);
        out.put_slice(body);
        let crc = crc32c(&out[21..]);
        out[17..21].copy_from_slice(&crc.to_be_bytes());
        out.freeze()
    }
}

/// ApiVersions as a client that names itself, as it must from version 3.
pub fn hello() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(text("kit"))
        .with_client_software_version(text("1.0"))
}

pub fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

fn varint(out: &mut BytesMut, value: i64) {
    let mut z = ((value << 1) ^ (value >> 63)) as u64;
    while z >= 0x80 {
        out.put_u8(z as u8 | 0x80);
        z >>= 7;
    }
    out.put_u8(z as u8);
}

/// Bit by bit, so that it shares nothing with the broker's.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
