//! Three ways: what Java's producer sent, what Java's consumer reads and what our handler sees are
//! the same, byte for byte.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use laneway::{Isolation, Kafka as Client, Partitions, Record, Running, StartOffset, Topics};
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::runner::Test;

use crate::group::until;
use crate::lanes::{eventually, runtime};
use crate::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(every_codec_header_null_and_time_arrives_as_java_sent_it),
        test!(a_topic_that_the_broker_compresses_again_arrives_whole),
        test!(times_of_the_log_are_the_brokers),
        test!(aborted_records_are_left_out_under_read_committed),
        test!(a_compacted_topics_gaps_hold_nothing_up),
        Test {
            needs: kafka::with_2_8,
            ..test!(message_sets_of_an_old_broker_arrive_as_java_reads_them)
        },
        test!(partitions_by_hand_read_the_same),
    ]
}

/// D17: nulls stay nulls and empty stays empty, in keys, values and headers, under every codec.
fn every_codec_header_null_and_time_arrives_as_java_sent_it() {
    three_ways(&[]);
}

/// One codec in, another stored: these batches were made by the broker.
fn a_topic_that_the_broker_compresses_again_arrives_whole() {
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        three_ways(&[&format!("compression.type={codec}")]);
    }
}

fn times_of_the_log_are_the_brokers() {
    three_ways(&["message.timestamp.type=LogAppendTime"]);
}

fn three_ways(properties: &[&str]) {
    let kafka = Kafka::shared();
    let topic = kafka.topic_with("bytes", 3, properties).unwrap();
    let sent = sorted(kafka.ask(&format!("every-codec {topic} 120 7")).unwrap());
    let read = sorted(
        kafka
            .ask(&format!("read {topic} read_uncommitted"))
            .unwrap(),
    );
    assert_eq!(sent.len(), 600);
    same(&sent, &read, "Java's consumer");
    let group = kafka::unique("bytes");
    let ours = handled(
        &kafka.addresses(),
        &topic,
        &group,
        Isolation::ReadUncommitted,
        sent.len(),
    );
    same(&sent, &ours, "our handler");
    assert_all_committed(kafka, &group, &topic);
}

/// D26, D32: neither markers nor aborted records, compressed ones here, reach the handler; the
/// commit passes them.
fn aborted_records_are_left_out_under_read_committed() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("aborted", 2).unwrap();
    let committed = sorted(
        kafka
            .ask(&format!("transactions {topic} 40 cacaac"))
            .unwrap(),
    );
    assert_eq!(committed.len(), 120);
    let read = sorted(kafka.ask(&format!("read {topic} read_committed")).unwrap());
    same(&committed, &read, "Java's consumer");
    let group = kafka::unique("aborted");
    let ours = handled(
        &kafka.addresses(),
        &topic,
        &group,
        Isolation::ReadCommitted,
        committed.len(),
    );
    same(&committed, &ours, "our handler");
    // Past the control records at the end, which nobody handles.
    assert_all_committed(kafka, &group, &topic);
    let all = sorted(
        kafka
            .ask(&format!("read {topic} read_uncommitted"))
            .unwrap(),
    );
    assert_eq!(all.len(), 240);
    let group = kafka::unique("uncommitted");
    let ours = handled(
        &kafka.addresses(),
        &topic,
        &group,
        Isolation::ReadUncommitted,
        all.len(),
    );
    same(&all, &ours, "our handler of all");
}

/// D04, D05: offsets that compaction took away are settled by definition.
fn a_compacted_topics_gaps_hold_nothing_up() {
    let kafka = Kafka::shared();
    let properties = [
        "cleanup.policy=compact",
        "segment.ms=100",
        "min.cleanable.dirty.ratio=0.01",
        "max.compaction.lag.ms=100",
    ];
    let topic = kafka.topic_with("compacted", 1, &properties).unwrap();
    for _ in 0..3 {
        // Each call starts a segment; all but the last are compacted.
        kafka.ask(&format!("numbered {topic} 400 10 60 5")).unwrap();
        thread::sleep(Duration::from_millis(300));
    }
    let read = || {
        sorted(
            kafka
                .ask(&format!("read {topic} read_uncommitted"))
                .unwrap(),
        )
    };
    let mut left = read();
    until("the log is compacted", || {
        thread::sleep(Duration::from_secs(2));
        let before = std::mem::replace(&mut left, read());
        left.len() < 700 && left == before
    });
    let group = kafka::unique("compacted");
    let ours = handled(
        &kafka.addresses(),
        &topic,
        &group,
        Isolation::ReadUncommitted,
        left.len(),
    );
    same(&left, &ours, "our handler");
    assert_all_committed(kafka, &group, &topic);
}

/// D35, D40, X01: a Kafka 2.8.2 stores formats 0 and 1, and Java's consumer and our handler read the
/// same in them; behind them, once the topic is raised, lie batches of format 2.
fn message_sets_of_an_old_broker_arrive_as_java_reads_them() {
    let kafka = Kafka::start_2_8().unwrap();
    for properties in [
        &["message.format.version=0.9.0"][..],
        &["message.format.version=0.10.2"],
        &[
            "message.format.version=0.10.2",
            "message.timestamp.type=LogAppendTime",
        ],
    ] {
        let topic = kafka.topic_with("old", 2, properties).unwrap();
        let sent = kafka
            .ask(&format!("every-old-codec {topic} 120 7"))
            .unwrap();
        assert_eq!(sent.len(), 480);
        let raised = "message.format.version=2.8";
        let name = format!("--entity-name={topic}");
        let configs = [
            "--alter",
            "--entity-type=topics",
            &name,
            "--add-config",
            raised,
        ];
        let output = kafka.tool("configs", &configs).unwrap();
        assert!(output.status.success(), "{output:?}");
        kafka.ask(&format!("every-codec {topic} 120 8")).unwrap();
        let read = sorted(
            kafka
                .ask(&format!("read {topic} read_uncommitted"))
                .unwrap(),
        );
        assert_eq!(read.len(), 480 + 600);
        // Format 0 has no times, which tells that it was stored.
        let timeless = read.iter().filter(|l| l.split(' ').nth(2) == Some("-1"));
        let stored = if properties[0].ends_with("0.9.0") {
            480
        } else {
            0
        };
        assert_eq!(timeless.count(), stored);
        let group = kafka::unique("old");
        let ours = handled(
            &kafka.addresses(),
            &topic,
            &group,
            Isolation::ReadUncommitted,
            read.len(),
        );
        same(&read, &ours, "our handler");
        assert_all_committed(&kafka, &group, &topic);
    }
}

fn partitions_by_hand_read_the_same() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("by-hand", 3).unwrap();
    let sent = kafka.ask(&format!("every-codec {topic} 30 3")).unwrap();
    let sent = sorted(
        sent.into_iter()
            .filter(|line| !line.starts_with("1 "))
            .collect(),
    );
    let client = Client::new(kafka.addresses());
    let of = Partitions::of(topic.as_str(), [0, 2]);
    let ours = collect(sent.len(), |see| client.subscribe(of).start(see).unwrap());
    same(&sent, &ours, "our handler");
}

fn handled(
    addresses: &[String],
    topic: &str,
    group: &str,
    isolation: Isolation,
    n: usize,
) -> Vec<String> {
    let client = Client::new(addresses);
    collect(n, |see| {
        client
            .subscribe(Topics::named([topic]).group(group))
            .start_at(StartOffset::Earliest)
            .isolation(isolation)
            .workers(4)
            .start(see)
            .unwrap()
    })
}

type See = Box<dyn Fn(Record) -> std::future::Ready<()> + Send + Sync>;

/// Lets a subscription run until `n` records were handled and it is drained; more than that would
/// be seen too.
fn collect(n: usize, start: impl FnOnce(See) -> Running) -> Vec<String> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    runtime().block_on(async move {
        let running = start(Box::new(move |record| {
            sink.lock().unwrap().push(line(&record));
            std::future::ready(())
        }));
        eventually("all records are handled", || {
            lines.lock().unwrap().len() >= n
        })
        .await;
        running.drain().await.unwrap();
        sorted(lines.lock().unwrap().clone())
    })
}

fn assert_all_committed(kafka: &Kafka, group: &str, topic: &str) {
    let ends: Vec<(i32, i64)> = kafka
        .ends(topic)
        .unwrap()
        .iter()
        .map(|&(p, _, high)| (p, high))
        .collect();
    assert_eq!(kafka.committed(group, topic).unwrap(), ends);
}

/// As `java/Agent.java` prints a record.
fn line(record: &Record) -> String {
    let mut headers = String::new();
    for header in record.headers() {
        let comma = if headers.is_empty() { "" } else { "," };
        let (key, value) = (hex(Some(header.key_bytes())), hex(header.value()));
        write!(headers, "{comma}{key}={value}").unwrap();
    }
    if headers.is_empty() {
        headers.push('-');
    }
    let (key, value) = (hex(record.key()), hex(record.value()));
    format!(
        "{} {} {} {key} {value} {headers}",
        record.partition(),
        record.offset(),
        record.timestamp()
    )
}

fn hex(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else {
        return "-".to_owned();
    };
    let mut text = String::with_capacity(1 + 2 * bytes.len());
    text.push('x');
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// Records are up to 900 kB: says only which one differs, and where.
fn same(sent: &[String], got: &[String], who: &str) {
    for (sent, got) in sent.iter().zip(got) {
        if sent != got {
            let at = sent
                .bytes()
                .zip(got.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            let near =
                |line: &str| line[at.saturating_sub(60)..(at + 60).min(line.len())].to_owned();
            panic!(
                "{who} differs at byte {at}:\n sent {}\n got  {}",
                near(sent),
                near(got)
            );
        }
    }
    assert_eq!(sent.len(), got.len(), "{who}: how many records");
}
