//! The embedded broker given the very requests that real Kafka brokers got.
//!
//! Every request of a version it serves is understood; and where the answer does not depend on
//! what the real broker had in store, it is the same, byte for byte or code for code.

mod broker_kit;

use std::time::Duration;

use broker_kit::{Kit, hello};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};
use laneway::broker::{ClusterConfig, ConnId};
use serde_json::Value;

struct Exchange {
    name: String,
    broker: String,
    key: i16,
    version: i16,
    /// Without its length.
    request: Bytes,
    /// With its length.
    response: Option<Bytes>,
    asked: Value,
    answered: Value,
}

const FILES: [&str; 13] = [
    "ApiVersions",
    "Fetch",
    "FindCoordinator",
    "Heartbeat",
    "JoinGroup",
    "LeaveGroup",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
    "Produce",
    "SyncGroup",
];

fn hex(s: &str) -> Bytes {
    let digit = |c: u8| u8::try_from(char::from(c).to_digit(16).unwrap()).unwrap();
    let pairs = s.as_bytes().chunks(2);
    pairs.map(|p| digit(p[0]) << 4 | digit(p[1])).collect()
}

fn exchanges(file: &str) -> Vec<Exchange> {
    let path = format!("{}/frames/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let lines = text.lines().map(|line| {
        let mut v: Value = serde_json::from_str(line).unwrap();
        Exchange {
            name: v["name"].as_str().unwrap().to_owned(),
            broker: v["broker"].as_str().unwrap().to_owned(),
            key: v["api_key"].as_i64().unwrap() as i16,
            version: v["version"].as_i64().unwrap() as i16,
            request: hex(v["request"].as_str().unwrap()).slice(4..),
            response: v["response"].as_str().map(hex),
            asked: v["request_json"].take(),
            answered: v["response_json"].take(),
        }
    });
    lines.collect()
}

fn config() -> ClusterConfig {
    ClusterConfig {
        nodes: 3,
        auto_create: false,
        session_timeout_min: Duration::from_secs(6),
        ..ClusterConfig::default()
    }
}

/// What our answer says, as text, if it is an answer to this request at all.
fn read(e: &Exchange, frame: &Bytes) -> String {
    fn one<R: Request<Response: std::fmt::Debug>>(version: i16, frame: &Bytes) -> String {
        let mut body = frame.slice(4..);
        let header = <R::Response as HeaderVersion>::header_version(version);
        kp::ResponseHeader::decode(&mut body, header).unwrap();
        let answer = R::Response::decode(&mut body, version).unwrap();
        assert!(body.is_empty());
        format!("{answer:?}")
    }
    let v = e.version;
    match e.key {
        0 => one::<kp::ProduceRequest>(v, frame),
        1 => one::<kp::FetchRequest>(v, frame),
        2 => one::<kp::ListOffsetsRequest>(v, frame),
        3 => one::<kp::MetadataRequest>(v, frame),
        8 => one::<kp::OffsetCommitRequest>(v, frame),
        9 => one::<kp::OffsetFetchRequest>(v, frame),
        10 => one::<kp::FindCoordinatorRequest>(v, frame),
        11 => one::<kp::JoinGroupRequest>(v, frame),
        12 => one::<kp::HeartbeatRequest>(v, frame),
        13 => one::<kp::LeaveGroupRequest>(v, frame),
        14 => one::<kp::SyncGroupRequest>(v, frame),
        18 => one::<kp::ApiVersionsRequest>(v, frame),
        23 => one::<kp::OffsetForLeaderEpochRequest>(v, frame),
        key => panic!("no reader for {key}"),
    }
}

/// Lowest and highest version that the broker offers.
fn offered(key: i16) -> (i16, i16) {
    let mut kit = Kit::new(config());
    let conn = kit.connect(1);
    let answer = kit.call(conn, 3, &hello());
    let found = answer.api_keys.iter().find(|k| k.api_key == key).unwrap();
    (found.min_version, found.max_version)
}

#[test]
fn every_request_of_a_version_we_serve_is_understood() {
    let mut seen = 0;
    for e in FILES.into_iter().flat_map(exchanges) {
        let (min, max) = offered(e.key);
        let serves = (min..=max).contains(&e.version);
        let mut kit = Kit::new(config());
        for (topic, partitions) in topics_of(&e) {
            let _ = kit.cluster.create_topic(&topic, partitions);
        }
        let conn = kit.connect(1);
        kit.raw(conn, e.request.clone());
        kit.advance(Duration::from_secs(700));
        let is_closed = kit.closed.contains(&conn);
        let frame = kit.frame(conn);
        if e.key == 18 && !serves {
            let frame = frame.expect("version 0, with error 35");
            assert_eq!(frame[8..10], [0, 35], "{}", e.name);
            assert!(!is_closed, "{}: the connection stays", e.name);
        } else if serves {
            // Null records: 2.8.2 closed or said -1 where later ones are silent.
            let silent = e.response.is_none() || e.name.contains("UNKNOWN_SERVER_ERROR");
            assert!(!is_closed || silent, "{}: closed", e.name);
            assert!(frame.is_some() || silent, "{}: no answer", e.name);
            if let Some(frame) = frame {
                read(&e, &frame);
                seen += 1;
            }
        } else {
            assert!(
                is_closed && frame.is_none(),
                "{}: closed without a byte",
                e.name
            );
        }
        // Cut anywhere it is refused or, where only tags are missing, never answered wrongly: at
        // least it does no harm.
        for cut in (8..e.request.len()).step_by(7) {
            let conn = kit.connect(1);
            kit.raw(conn, e.request.slice(..cut));
        }
    }
    assert!(seen > 300, "{seen}");
}

/// Topics that the request names, each with as many partitions as the real one seems to have had.
fn topics_of(e: &Exchange) -> Vec<(String, i32)> {
    let mut found: Vec<(String, i32)> = Vec::new();
    let lists = ["topics", "responses"];
    for topic in lists
        .iter()
        .flat_map(|l| e.answered[l].as_array().into_iter().flatten())
    {
        let name = ["name", "topic"].iter().find_map(|k| topic[k].as_str());
        let lists = ["partitions", "partitionResponses"];
        let partitions = lists
            .iter()
            .flat_map(|l| topic[l].as_array().into_iter().flatten());
        let most = partitions
            .filter(|p| p["errorCode"].as_i64() != Some(3))
            .filter_map(|p| {
                let index = ["partitionIndex", "partition", "index"];
                index.iter().find_map(|k| p[k].as_i64())
            })
            .max();
        if let (Some(name), Some(most)) = (name, most) {
            found.push((name.to_owned(), most as i32 + 1));
        }
    }
    found
}

fn first_topic(e: &Exchange) -> String {
    let topic = &e.asked["topics"][0];
    let name = ["name", "topic"].iter().find_map(|k| topic[k].as_str());
    name.unwrap_or("moved").to_owned()
}

/// Makes the cluster what the answer needs it to be, and picks the node to ask.
fn prepare(kit: &mut Kit, e: &Exchange) -> Option<ConnId> {
    let is = |code: &str| e.name.contains(code);
    for (topic, partitions) in topics_of(e) {
        let _ = kit.cluster.create_topic(&topic, partitions);
    }
    if is("NOT_COORDINATOR") {
        let group = e.asked["groupId"].as_str().map(str::to_owned);
        let groups = group.into_iter().chain(
            e.asked["groups"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|g| g["groupId"].as_str().map(str::to_owned)),
        );
        for group in groups {
            kit.cluster.move_coordinator(kit.now, &group, 2);
        }
        return Some(kit.connect(1));
    }
    if let Some(group) = e.asked["groupId"].as_str() {
        kit.cluster.move_coordinator(kit.now, group, 1);
    }
    for (topic, partitions) in topics_of(e) {
        for p in 0..partitions {
            // A spread of leaders would be in the way.
            let leader = kit.cluster.partition_view(&topic, p)?.leader;
            if leader != 1 && !is("EPOCH") && !is("NOT_LEADER") {
                kit.cluster.move_leader(kit.now, &topic, p, 1);
            }
        }
    }
    let mut node = 1;
    if is("REPLICA_NOT_AVAILABLE") {
        kit.cluster.crash(kit.now, 3);
    }
    if is("FENCED_LEADER_EPOCH") {
        // As the real one was: led by node 3 at epoch 2.
        let topic = first_topic(e);
        let _ = kit.cluster.create_topic(&topic, 1);
        kit.cluster.set_advertised(3, "127.0.0.1", 27124);
        kit.cluster.set_rack(3, Some("rack-3"));
        kit.cluster.move_leader(kit.now, &topic, 0, 1);
        kit.cluster.move_leader(kit.now, &topic, 0, 3);
        node = 3;
    } else if is("UNKNOWN_LEADER_EPOCH") {
        let topic = first_topic(e);
        let _ = kit.cluster.create_topic(&topic, 1);
        node = kit.cluster.partition_view(&topic, 0)?.leader;
    } else if is("NOT_LEADER") {
        let leader = kit.cluster.partition_view(&first_topic(e), 0)?.leader;
        node = if leader == 1 { 2 } else { 1 };
    }
    Some(kit.connect(node))
}

/// Puts our topic's id where the request and its answer have the real one's.
fn with_our_id(kit: &Kit, e: &Exchange, frame: &Bytes) -> Bytes {
    let real = e.asked["topics"][0]["topicId"].as_str();
    let (Some(real), Some(ours)) = (real, kit.cluster.topic_id("moved")) else {
        return frame.clone();
    };
    let real = base64(real);
    let mut out = BytesMut::from(&frame[..]);
    for at in 0..out.len().saturating_sub(15) {
        if out[at..at + 16] == real[..] {
            out[at..at + 16].copy_from_slice(&ours);
        }
    }
    out.freeze()
}

fn base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut out, mut bits, mut n) = (Vec::new(), 0u32, 0);
    for c in text.bytes() {
        let six = alphabet.iter().position(|a| *a == c).unwrap();
        bits = bits << 6 | six as u32;
        n += 6;
        if n >= 8 {
            n -= 8;
            out.push((bits >> n) as u8);
        }
    }
    out
}

/// Where the answer depends on nothing but what `prepare` sets.
fn same_bytes(name: &str) -> bool {
    let (api, rest) = name.split_once('-').unwrap();
    let has = |codes: &[&str]| codes.iter().any(|c| rest.contains(c));
    match api {
        "ApiVersions" => has(&["UNSUPPORTED_VERSION", "INVALID_REQUEST"]),
        "Fetch" => has(&["SESSION_ID_NOT_FOUND", "UNKNOWN_TOPIC_ID", "_LEADER_EPOCH"]),
        "FindCoordinator" => has(&["INVALID_REQUEST"]) && !rest.contains("NOT_AVAILABLE"),
        "Heartbeat" => has(&["UNKNOWN_MEMBER_ID", "NOT_COORDINATOR"]),
        "JoinGroup" => has(&[
            "INVALID_SESSION_TIMEOUT",
            "INVALID_GROUP_ID",
            "NOT_COORDINATOR",
            "UNKNOWN_MEMBER_ID",
            "v9-INCONSISTENT_GROUP_PROTOCOL",
        ]),
        "LeaveGroup" => has(&["v0-UNKNOWN_MEMBER_ID", "v2-UNKNOWN_MEMBER_ID"]),
        "SyncGroup" => has(&["v0-UNKNOWN_MEMBER_ID", "v1-UNKNOWN_MEMBER_ID"]),
        "ListOffsets" => has(&["FENCED_LEADER_EPOCH"]),
        "OffsetCommit" => has(&["NOT_COORDINATOR", "v5-ILLEGAL", "v7-ILLEGAL"]),
        "OffsetFetch" => has(&["NOT_COORDINATOR"]),
        "OffsetForLeaderEpoch" => has(&["FENCED", "NOT_LEADER"]) && !rest.contains("UNKNOWN"),
        _ => false,
    }
}

#[test]
fn errors_are_those_of_kafka_to_the_byte() {
    let mut same = Vec::new();
    for e in FILES.into_iter().flat_map(exchanges) {
        let (min, max) = offered(e.key);
        let serves = (min..=max).contains(&e.version) || e.key == 18;
        let newest = e.broker == "4.3.1" || e.name == "ApiVersions-v3-INVALID_REQUEST";
        if !newest || !serves || !same_bytes(&e.name) {
            continue;
        }
        let mut kit = Kit::new(config());
        let conn = prepare(&mut kit, &e).unwrap_or_else(|| panic!("{}", e.name));
        kit.raw(conn, with_our_id(&kit, &e, &e.request));
        kit.advance(Duration::from_secs(1));
        let ours = kit
            .frame(conn)
            .unwrap_or_else(|| panic!("{}: no answer", e.name));
        let theirs = with_our_id(&kit, &e, e.response.as_ref().unwrap());
        assert_eq!(
            ours,
            theirs,
            "{}: ours is {}",
            e.name,
            match e.key {
                18 => String::new(),
                _ => read(&e, &ours),
            }
        );
        same.push(e.name);
    }
    assert!(same.len() >= 40, "only {} compared: {same:?}", same.len());
}

/// Error codes in the order of their size, as Kafka's JSON has them and as ours does.
fn codes(v: &Value, out: &mut Vec<i64>) {
    match v {
        Value::Object(map) => {
            for (key, v) in map {
                match v.as_i64() {
                    Some(code) if key == "errorCode" => out.push(code),
                    _ => codes(v, out),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|v| codes(v, out)),
        _ => {}
    }
}

#[test]
fn codes_are_those_of_kafka_where_the_order_differs() {
    let mut seen = 0;
    let wanted = |e: &Exchange| match e.key {
        2 => !e.name.contains("NOT_LEADER") && !e.name.contains("ok"),
        0 => {
            [
                "REQUIRED_ACKS",
                "CORRUPT",
                "INVALID_RECORD_gaps",
                "magic1",
                "INVALID_RECORD",
            ]
            .iter()
            .any(|c| e.name.contains(c))
                && !e.name.contains("TOO_LARGE")
                && e.version < 13
        }
        3 => {
            e.version < 12 && !e.name.contains("UNKNOWN_TOPIC_ID") && !e.name.contains("INVALID_T")
        }
        _ => false,
    };
    for e in FILES.into_iter().flat_map(exchanges) {
        let (min, max) = offered(e.key);
        let serves = (min..=max).contains(&e.version);
        if !serves || !wanted(&e) || e.broker != "4.3.1" || e.response.is_none() {
            continue;
        }
        let mut kit = Kit::new(config());
        let Some(conn) = prepare(&mut kit, &e) else {
            continue;
        };
        if e.key == 3 && e.asked["topics"].is_null() {
            continue;
        }
        // Another cluster had more nodes down or up; what counts is the codes of topics.
        kit.raw(conn, e.request.clone());
        let ours = kit
            .frame(conn)
            .unwrap_or_else(|| panic!("{}: no answer", e.name));
        let text = read(&e, &ours);
        let mut mine: Vec<i64> = text
            .split("error_code: ")
            .skip(1)
            .map(|t| t.split([',', ' ', '}']).next().unwrap().parse().unwrap())
            .collect();
        let mut theirs = Vec::new();
        codes(&e.answered, &mut theirs);
        mine.retain(|c| *c != 0);
        theirs.retain(|c| *c != 0);
        mine.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(mine, theirs, "{}: {text}", e.name);
        seen += 1;
    }
    assert!(seen >= 20, "only {seen} compared");
}

#[test]
fn damaged_requests_do_no_harm_and_cost_no_more_than_their_size() {
    let mut worst = 0;
    for e in FILES.into_iter().flat_map(exchanges) {
        let (min, max) = offered(e.key);
        if !(min..=max).contains(&e.version) {
            continue;
        }
        let mut kit = Kit::new(config());
        for at in (8..e.request.len()).step_by(3) {
            let mut bytes = e.request.to_vec();
            bytes[at] ^= [0xff, 0x80, 0x01][at % 3];
            let conn = kit.connect(1);
            let frame = Bytes::from(bytes);
            let length = frame.len();
            let cost = allocation_counter::measure(|| kit.raw(conn, frame));
            let over = (cost.bytes_max as usize).saturating_sub(ANSWER_BYTES) / length;
            worst = worst.max(over);
            kit.cluster.disconnect(kit.now, conn);
        }
    }
    assert!(worst <= 40, "{worst} bytes for each byte of a request");
}

/// What an answer and the kit's own bookkeeping may cost beside.
const ANSWER_BYTES: usize = 16 * 1024;
