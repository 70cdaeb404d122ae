//! Subscriptions and assignments inside the frames of real clients, against Kafka's own reading.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use laneway::group::{
    Assignment, Subscription, decode_assignment, decode_subscription, encode_assignment,
    encode_subscription,
};
use laneway::ids::TopicPartition;
use serde_json::Value;

/// Bytes of a client, and what Kafka's `ConsumerProtocol...` classes read in them.
struct Embedded {
    name: String,
    bytes: Bytes,
    version: i16,
    json: Value,
    subscription: bool,
}

/// All of them; every one of `JoinGroup` is a subscription, every one of `SyncGroup` an
/// assignment.
fn embedded() -> Vec<Embedded> {
    let mut all = Vec::new();
    for (file, subscription) in [("JoinGroup", true), ("SyncGroup", false)] {
        let path = format!("{}/frames/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        for line in text.lines() {
            let v: Value = serde_json::from_str(line).unwrap();
            for part in v["embedded"].as_array().into_iter().flatten() {
                let path = part["path"].as_str().unwrap();
                let bytes = base64(at(&v, path).as_str().unwrap());
                assert_eq!(Some(bytes.len() as u64), part["size"].as_u64(), "{path}");
                all.push(Embedded {
                    name: format!("{} {path}", v["name"]),
                    bytes,
                    version: part["version"]
                        .as_i64()
                        .map_or(0, |n| n.try_into().unwrap()),
                    json: part["json"].clone(),
                    subscription,
                });
            }
        }
    }
    all
}

/// `request.protocols[0].metadata` in the JSON of an exchange.
fn at<'a>(v: &'a Value, path: &str) -> &'a Value {
    let (side, rest) = path.split_once('.').unwrap();
    let mut v = &v[format!("{side}_json")];
    for step in rest.split('.') {
        v = match step.strip_suffix(']').and_then(|s| s.split_once('[')) {
            Some((name, i)) => &v[name][i.parse::<usize>().unwrap()],
            None => &v[step],
        };
    }
    v
}

fn base64(text: &str) -> Bytes {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => u32::from(c - b'A'),
        b'a'..=b'z' => u32::from(c - b'a') + 26,
        b'0'..=b'9' => u32::from(c - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{c} in base64"),
    };
    let mut bytes = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = chunk.iter().fold(0, |bits, c| bits << 6 | digit(*c)) << (6 * (4 - chunk.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    bytes.into()
}

fn partitions(v: &Value) -> Vec<TopicPartition> {
    let mut all = Vec::new();
    for topic in v.as_array().into_iter().flatten() {
        for p in topic["partitions"].as_array().unwrap() {
            let p = p.as_i64().unwrap().try_into().unwrap();
            all.push(TopicPartition::new(topic["topic"].as_str().unwrap(), p));
        }
    }
    all
}

fn bytes_or_null(v: &Value) -> Option<Bytes> {
    v.as_str().map(base64)
}

fn subscription(e: &Embedded) -> Subscription {
    let v = &e.json;
    let topics = v["topics"].as_array().unwrap().iter();
    Subscription {
        version: e.version,
        topics: topics.map(|t| Arc::from(t.as_str().unwrap())).collect(),
        user_data: bytes_or_null(&v["userData"]),
        owned: partitions(&v["ownedPartitions"]),
        generation: v["generationId"]
            .as_i64()
            .map_or(-1, |n| n.try_into().unwrap()),
        rack: v["rackId"].as_str().map(Arc::from),
        cut: false,
    }
}

fn assignment(e: &Embedded) -> Assignment {
    Assignment {
        version: e.version,
        partitions: partitions(&e.json["assignedPartitions"]),
        user_data: bytes_or_null(&e.json["userData"]),
    }
}

/// We read in every subscription and assignment of Java, librdkafka, franz-go, sarama, kafka-go
/// and kafka-python clients what Kafka reads. G29: no bytes are nothing assigned.
#[test]
fn reads_what_kafka_reads() {
    let mut seen = BTreeSet::new();
    for e in embedded() {
        if e.subscription {
            assert_eq!(
                decode_subscription(&e.bytes),
                Ok(subscription(&e)),
                "{}",
                e.name
            );
        } else {
            assert_eq!(
                decode_assignment(&e.bytes),
                Ok(assignment(&e)),
                "{}",
                e.name
            );
        }
        seen.insert((e.subscription, e.version, e.bytes.is_empty()));
    }
    for version in [0, 1, 3] {
        assert!(
            seen.contains(&(true, version, false)),
            "no subscription of version {version}"
        );
    }
    assert!(seen.contains(&(false, 0, false)) && seen.contains(&(false, 0, true)));
}

/// What Java wrote in version 3, and librdkafka or Java in an assignment, we write byte for byte.
#[test]
fn writes_what_kafka_writes() {
    let mut same = (0, 0);
    for e in embedded().iter().filter(|e| !e.bytes.is_empty()) {
        if e.subscription {
            let s = subscription(e);
            if s.version != 3 || s.rack.is_some() {
                continue;
            }
            let bytes = encode_subscription(&s.topics, &s.owned, s.generation, s.user_data);
            assert_eq!(bytes.unwrap(), e.bytes, "{}", e.name);
            same.0 += 1;
        } else {
            let a = assignment(e);
            if a.version != 0 || a.user_data.is_some() {
                continue;
            }
            assert_eq!(
                encode_assignment(&a.partitions).unwrap(),
                e.bytes,
                "{}",
                e.name
            );
            same.1 += 1;
        }
    }
    assert!(same.0 >= 10 && same.1 >= 5, "{same:?}");
}

/// G27: a subscription cut before its topics end is an error; later it is read up to the cut,
/// and says so. An assignment cut anywhere is an error, but where only its user data is missing.
#[test]
fn every_cut_is_noticed() {
    for e in embedded() {
        for len in 0..e.bytes.len() {
            let cut = e.bytes.slice(..len);
            if e.subscription {
                let whole = subscription(&e);
                let topics: usize = whole.topics.iter().map(|t| 2 + t.len()).sum();
                match decode_subscription(&cut) {
                    Err(_) => assert!(len < 6 + topics, "{} at {len}", e.name),
                    Ok(read) => {
                        assert!(len >= 6 + topics && read.cut, "{} at {len}", e.name);
                        assert_eq!(read.topics, whole.topics);
                    }
                }
            } else if len > 0 {
                let data = assignment(&e).user_data.map_or(0, |data| data.len());
                let at_data = len + 4 + data == e.bytes.len();
                assert_eq!(
                    decode_assignment(&cut).is_ok(),
                    at_data,
                    "{} at {len}",
                    e.name
                );
            }
        }
    }
}

/// G27, I9: a flipped byte anywhere gives an error or other values, never a panic, and takes no
/// more memory than the stated factor.
#[test]
fn damage_is_bounded() {
    for e in embedded() {
        for i in 0..e.bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = e.bytes.to_vec();
                bytes[i] ^= flip;
                read_bounded(&bytes.into());
            }
        }
    }
}

/// I9: the worst for memory: as many empty things as the bytes can hold, and counts that lie.
#[test]
fn the_worst_lists_are_bounded() {
    let list = |version: i16, count: i32, element: &[u8], before: &[u8]| {
        let mut bytes = version.to_be_bytes().to_vec();
        bytes.extend_from_slice(before);
        bytes.extend_from_slice(&count.to_be_bytes());
        for _ in 0..count.clamp(0, 20_000) {
            bytes.extend_from_slice(element);
        }
        Bytes::from(bytes)
    };
    let no_topics_no_data = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    for count in [20_000, 20_001, i32::MAX, -2, -1] {
        read_bounded(&list(0, count, &[0, 0], &[]));
        read_bounded(&list(3, count, &[0, 0, 0, 0, 0, 0], &no_topics_no_data));
        read_bounded(&list(
            3,
            count,
            &[0, 0, 0, 0, 0, 1, 0, 0, 0, 9],
            &no_topics_no_data,
        ));
        read_bounded(&list(0, count, &[0, 0, 0, 0, 0, 0], &[]));
    }
}

fn read_bounded(bytes: &Bytes) {
    let most = bytes.len() as u64 * 32 + 1024;
    let used = allocation_counter::measure(|| {
        let _ = decode_subscription(bytes);
    });
    assert!(
        used.bytes_max <= most,
        "{} bytes for {}",
        used.bytes_max,
        bytes.len()
    );
    let used = allocation_counter::measure(|| {
        let _ = decode_assignment(bytes);
    });
    assert!(
        used.bytes_max <= most,
        "{} bytes for {}",
        used.bytes_max,
        bytes.len()
    );
}
