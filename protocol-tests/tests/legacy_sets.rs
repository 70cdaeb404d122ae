//! Message sets of formats 0 and 1 all the way to a handler: bytes that a Kafka 2.8.2 stored and
//! answered (`frames/Fetch.jsonl`), in the logs of the embedded broker.

use bytes::Bytes;
use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::engine::Event;
use laneway::records::TimestampType;
use laneway::{Kafka, Outcome, Record, Topics};
use laneway_protocol_tests::setting::MINUTE;
use laneway_protocol_tests::{Plan, Script, World};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(30);
/// A record, as Kafka's own classes read it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    offset: i64,
    timestamp: i64,
    append_time: bool,
    key: Option<String>,
    value: Option<String>,
}

/// The stored set and what Kafka reads in it.
struct Stored {
    bytes: Bytes,
    records: Vec<Seen>,
}

/// Sets that 2.8.2 answered whole and that begin at offset 0, as it stores them: format 0, format 1,
/// plain messages and wrappers of every codec.
fn stored() -> Vec<Stored> {
    let path = format!("{}/frames/Fetch.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect(&path);
    let mut all = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        if line["broker"] != "2.8.2" || line["version"].as_i64() < Some(4) {
            continue; // below 4 the broker converts what it stores
        }
        let frame = unhex(line["response"].as_str().unwrap());
        let mut at = 0;
        for field in line["records"].as_array().into_iter().flatten() {
            let Some(first) = field["batches"].as_array().and_then(|b| b.first()) else {
                continue;
            };
            let whole = field["trailing_bytes"] == 0 && first["base_offset"] == 0;
            if first["magic"].as_i64() == Some(2) || !whole {
                continue;
            }
            let mut sign = first["last_offset"]
                .as_i64()
                .unwrap()
                .to_be_bytes()
                .to_vec();
            sign.extend((first["size"].as_u64().unwrap() as u32 - 12).to_be_bytes());
            let rest = &frame[at..];
            at += rest
                .windows(12)
                .position(|w| w == sign)
                .expect("in the frame");
            let size = field["size"].as_u64().unwrap() as usize;
            let bytes = frame.slice(at..at + size);
            at += size;
            let records = seen(field);
            all.push(Stored { bytes, records });
        }
    }
    all
}

fn seen(field: &Value) -> Vec<Seen> {
    let mut all = Vec::new();
    for batch in field["batches"].as_array().unwrap() {
        for record in batch["records"].as_array().unwrap() {
            all.push(Seen {
                offset: record["offset"].as_i64().unwrap(),
                timestamp: record["timestamp"].as_i64().unwrap(),
                append_time: batch["timestamp_type"] == "LogAppendTime",
                key: record["key"].as_str().map(str::to_owned),
                value: record["value"].as_str().map(str::to_owned),
            });
        }
    }
    all
}

fn unhex(text: &str) -> Bytes {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|p| digit(p[0]) << 4 | digit(p[1]))
        .collect::<Vec<u8>>()
        .into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Old logs of a real broker, with batches of format 2 behind them as an upgrade leaves them, are
/// handled as the same `Record`s as any, value by value, and committed to the end.
#[tokio::test]
async fn message_sets_reach_the_handler_and_are_committed() {
    let sets = stored();
    assert!(sets.len() >= 10, "{} sets", sets.len());
    let partitions = sets.len() as i32;
    let server = Server::start(ClusterConfig::default(), Listen::default());
    let server = server.await.unwrap();
    server.cluster().create_topic("old", partitions).unwrap();
    let mut wanted = Vec::new();
    {
        let mut cluster = server.cluster();
        let now = cluster.now();
        for (partition, set) in (0..).zip(&sets) {
            let bytes = set.bytes.clone();
            cluster
                .append_messages(now, "old", partition, bytes)
                .unwrap();
            let pair: (Option<&[u8]>, Option<&[u8]>) = (Some(b"k"), Some(b"new"));
            let offset = cluster
                .append_records(now, "old", partition, &[pair])
                .unwrap();
            let old = set.records.iter().map(|r| (partition, r.offset, r.clone()));
            wanted.extend(old.map(|(p, o, r)| (p, o, Some(r))));
            wanted.push((partition, offset, None));
        }
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, enough) = (seen.clone(), Arc::new(Notify::new()));
    let (count, notify) = (wanted.len(), enough.clone());
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["old"]).group("g"))
        .start(move |record: Record| {
            let mut log = log.lock().unwrap();
            assert_eq!(record.headers().count(), usize::default());
            let old = (record.value() != Some(b"new")).then(|| Seen {
                offset: record.offset(),
                timestamp: record.timestamp(),
                append_time: record.timestamp_type() == TimestampType::LogAppend,
                key: record.key().map(hex),
                value: record.value().map(hex),
            });
            log.push((record.partition(), record.offset(), old));
            if log.len() == count {
                notify.notify_one();
            }
            async {}
        })
        .unwrap();
    if tokio::time::timeout(PATIENCE, enough.notified())
        .await
        .is_err()
    {
        panic!("not all came: {:?}", running.snapshot().await);
    }
    running.close(PATIENCE).await.unwrap();
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_by_key(|(partition, offset, _)| (*partition, *offset));
    assert_eq!(seen, wanted);
    let cluster = server.cluster();
    for partition in 0..partitions {
        let end = cluster.partition_view("old", partition).unwrap().log_end;
        let committed = cluster.committed("g", "old", partition).unwrap();
        assert_eq!((committed.offset, committed.leader_epoch), (end, 0));
    }
}

fn at_once() -> Script {
    Arc::new(|_, _| Plan::at_once(Outcome::Ack))
}

/// D14, D13: a bad message in a set holds its partition at its own offset, with an error that names
/// it; those before it, of the same set, are handled and committed, other partitions run.
#[test]
fn a_bad_message_holds_its_partition_at_its_own_offset() {
    let set = stored().into_iter().find(|s| s.records.len() > 18).unwrap();
    let mut world = World::with_topic(1, 2, 41);
    let mut bytes = set.bytes.to_vec();
    // The third message: it and those around it are plain.
    let size_at =
        |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap());
    let mut at = 0;
    for _ in 0..2 {
        at += 12 + size_at(&bytes, at) as usize;
    }
    let last = at + 11 + size_at(&bytes, at) as usize;
    bytes[last] ^= 1;
    let now = world.now();
    world
        .cluster
        .append_messages(now, "t", 0, bytes.into())
        .unwrap();
    let good = set.bytes.clone();
    world.cluster.append_messages(now, "t", 1, good).unwrap();
    let end = world.log_end(1);
    let config = world.config();
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.committed(0) == 2 && w.committed(1) == end);
    world.run_for(Duration::from_secs(5));
    let stops = world.events(0).iter().filter_map(|e| match e {
        Event::Stopped { error } => Some(error),
        _ => None,
    });
    let stopped: Vec<_> = stops.collect();
    assert_eq!(stopped.len(), 1, "said once: {stopped:?}");
    assert_eq!(stopped[0].offset(), Some(2));
    assert!(stopped[0].to_string().contains("checksum"), "{stopped:?}");
    let of = |p: i32| {
        let runs = world
            .handled()
            .into_iter()
            .filter(move |h| h.partition.partition == p);
        runs.map(|h| h.offset).collect::<Vec<_>>()
    };
    assert_eq!(of(0), [0, 1]);
    let mut all = of(1);
    all.sort_unstable();
    assert_eq!(
        all,
        set.records.iter().map(|r| r.offset).collect::<Vec<_>>()
    );
    assert_eq!(world.committed(0), 2, "not past the bad message");
}

/// D35, D06: a commit inside a wrapper is gone on from there: what lies below it is not run again.
#[test]
fn a_commit_inside_a_wrapper_is_gone_on_from() {
    let set = stored().into_iter().find(|s| s.records.len() > 18).unwrap();
    let mut world = World::with_topic(1, 1, 42);
    let now = world.now();
    world
        .cluster
        .append_messages(now, "t", 0, set.bytes)
        .unwrap();
    // Wrappers cover 3 to 5, 6 to 8 and so on.
    let stuck: Script = Arc::new(|_, record| match record.offset() {
        4 => Plan::ack(Duration::from_secs(3600)),
        _ => Plan::at_once(Outcome::Ack),
    });
    let mut config = world.config();
    config.mode = laneway::lane::Mode::Fixed { lanes: 1 };
    config.lane_key = laneway::engine::LaneKey::Partition;
    let first = world.join(config.clone(), stuck);
    world.run_until(MINUTE, |w| w.committed(0) == 4);
    world.kill(first);
    let second = world.join(config, at_once());
    let end = world.log_end(0);
    world.run_until(MINUTE, |w| w.committed(0) == end);
    let runs = world.handled().into_iter().filter(|h| h.member == second);
    assert_eq!(
        runs.map(|h| h.offset).collect::<Vec<_>>(),
        (4..end).collect::<Vec<_>>()
    );
}
