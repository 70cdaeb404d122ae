//! What the example programs share: a topic made and filled over one connection a broker.
//!
//! Laneway makes no topics, and its producer is a task where this is a plain function. This is the
//! least that a demonstration needs: blocking, without retries across brokers, and not for anything
//! else.

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, CreateTopicsResponse, ProduceRequest, ProduceResponse,
    RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use laneway::records::{BatchBuilder, Encoder};
use laneway::wire::message::MetadataRequest;
use laneway::wire::{Api, Request, Response, split_header};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The largest answer taken.
const ANSWER_MAX: usize = 64 << 20;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a new topic may take to have leaders.
const LEADERS_WITHIN: Duration = Duration::from_secs(20);
/// Records in one batch.
const BATCH_RECORDS: usize = 500;

const CREATE_TOPICS_VERSION: i16 = 4;
const PRODUCE_VERSION: i16 = 8;
const METADATA_VERSION: i16 = 7;

/// TOPIC_ALREADY_EXISTS.
const EXISTS: i16 = 36;

/// A record to be written: key and value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// One blocking connection.
struct Wire {
    stream: TcpStream,
    correlation: i32,
}

impl Wire {
    fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)
            .map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}")))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Wire {
            stream,
            correlation: 0,
        })
    }

    fn exchange(&mut self, frame: &[u8]) -> io::Result<bytes::Bytes> {
        self.stream.write_all(frame)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length =
            usize::try_from(i32::from_be_bytes(length)).map_err(|_| bad("a length below zero"))?;
        if length > ANSWER_MAX {
            return Err(bad("an answer over 64 MiB"));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer.into())
    }

    /// For requests that the library itself does not send.
    fn ask<Q: Encodable + HeaderVersion, A: Decodable + HeaderVersion>(
        &mut self,
        key: ApiKey,
        version: i16,
        request: &Q,
    ) -> io::Result<A> {
        self.correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(key as i16)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("laneway-examples")));
        let mut body = Vec::new();
        let encode = |e| bad(format!("{e}"));
        header
            .encode(&mut body, Q::header_version(version))
            .map_err(encode)?;
        request.encode(&mut body, version).map_err(encode)?;
        let length = i32::try_from(body.len()).map_err(|_| bad("a request over 2 GiB"))?;
        let mut frame = length.to_be_bytes().to_vec();
        frame.extend(body);
        let mut answer = self.exchange(&frame)?;
        let header = A::header_version(version);
        kafka_protocol::messages::ResponseHeader::decode(&mut answer, header).map_err(encode)?;
        A::decode(&mut answer, version).map_err(encode)
    }

    fn metadata(&mut self, topic: &str) -> io::Result<laneway::wire::message::MetadataResponse> {
        self.correlation += 1;
        let request = Request::Metadata(MetadataRequest {
            topics: Some(vec![topic.into()]),
        });
        let frame = request
            .encode(METADATA_VERSION, self.correlation, "laneway-examples")
            .map_err(|e| bad(e.to_string()))?;
        let answer = self.exchange(&frame)?;
        let (_, body) = split_header(Api::Metadata, METADATA_VERSION, &answer)
            .map_err(|e| bad(e.to_string()))?;
        match Response::decode(Api::Metadata, METADATA_VERSION, body) {
            Ok(Response::Metadata(metadata)) => Ok(metadata),
            Ok(_) => Err(bad("another answer than asked for")),
            Err(e) => Err(bad(e.to_string())),
        }
    }
}

/// Makes `topic` with this many partitions, or leaves it as it is, and appends to partition `i`
/// the records of `partitions[i]`, in order.
///
/// # Errors
/// What the brokers or the network refuse, in words.
pub fn load(bootstrap: &str, topic: &str, partitions: &[Vec<KeyValue>]) -> io::Result<()> {
    let first = bootstrap.split(',').next().unwrap_or(bootstrap);
    let mut wire = Wire::connect(first)?;
    let count = i32::try_from(partitions.len()).map_err(|_| bad("too many partitions"))?;
    let new = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
        .with_num_partitions(count)
        .with_replication_factor(-1);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![new])
        .with_timeout_ms(30_000);
    // Any broker takes it: since 2.x those that do not control pass it on, or say who does.
    let made: CreateTopicsResponse =
        wire.ask(ApiKey::CreateTopics, CREATE_TOPICS_VERSION, &request)?;
    for topic in &made.topics {
        if topic.error_code != 0 && topic.error_code != EXISTS {
            let why = topic
                .error_message
                .as_ref()
                .map(|m| m.to_string())
                .unwrap_or_default();
            return Err(bad(format!(
                "the topic was not made: code {} {why}",
                topic.error_code
            )));
        }
    }
    let leaders = leaders(&mut wire, topic, partitions.len())?;
    let mut wires: BTreeMap<&str, Wire> = BTreeMap::new();
    let mut encoder = Encoder::new();
    for (partition, (records, leader)) in partitions.iter().zip(&leaders).enumerate() {
        if !wires.contains_key(leader.as_str()) {
            wires.insert(leader, Wire::connect(leader)?);
        }
        let Some(wire) = wires.get_mut(leader.as_str()) else {
            continue;
        };
        for chunk in records.chunks(BATCH_RECORDS) {
            append(wire, topic, partition, chunk, &mut encoder)?;
        }
    }
    Ok(())
}

/// The leader's address for each partition, once all have one.
fn leaders(wire: &mut Wire, topic: &str, partitions: usize) -> io::Result<Vec<String>> {
    let began = std::time::Instant::now();
    loop {
        let metadata = wire.metadata(topic)?;
        let address = |node: i32| {
            let broker = metadata.brokers.iter().find(|b| b.node.0 == node)?;
            Some(format!("{}:{}", broker.host, broker.port))
        };
        let found: Option<Vec<String>> = metadata.topics.first().and_then(|t| {
            let of = |i: usize| {
                t.partitions
                    .iter()
                    .find(|p| usize::try_from(p.partition) == Ok(i))
            };
            (0..partitions).map(|i| address(of(i)?.leader)).collect()
        });
        if let Some(found) = found {
            return Ok(found);
        }
        if began.elapsed() > LEADERS_WITHIN {
            return Err(bad(format!(
                "topic {topic} has no leader for each of {partitions} partitions; does it exist with fewer?"
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn append(
    wire: &mut Wire,
    topic: &str,
    partition: usize,
    records: &[KeyValue],
    encoder: &mut Encoder,
) -> io::Result<()> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = i64::try_from(since.as_millis()).unwrap_or(0);
    let mut batch = BatchBuilder::new(0);
    for (key, value) in records {
        batch
            .push(now, Some(key), Some(value), &[])
            .map_err(|e| bad(e.to_string()))?;
    }
    let batch = batch.build(encoder).map_err(|e| bad(e.to_string()))?;
    let index = i32::try_from(partition).map_err(|_| bad("too many partitions"))?;
    let data = PartitionProduceData::default()
        .with_index(index)
        .with_records(Some(batch));
    let topic_data = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic_data]);
    let began = std::time::Instant::now();
    loop {
        let answer: ProduceResponse = wire.ask(ApiKey::Produce, PRODUCE_VERSION, &request)?;
        let code = answer
            .responses
            .first()
            .and_then(|t| t.partition_responses.first())
            .map_or(-1, |p| p.error_code);
        match code {
            0 => return Ok(()),
            // Not leader yet, just after the topic was made.
            3 | 6 if began.elapsed() < LEADERS_WITHIN => {
                std::thread::sleep(Duration::from_millis(50));
            }
            code => {
                return Err(bad(format!(
                    "{topic}-{partition} was not written: code {code}"
                )));
            }
        }
    }
}
