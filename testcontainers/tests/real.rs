//! What is shown on a real Kafka.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use laneway_testcontainers::handlings;
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::member::{self, Member};
use laneway_testcontainers::runner::{self, Test};

fn main() -> ExitCode {
    runner::main(&[
        test(
            "kafka_starts_and_its_tools_agree_with_the_agent",
            kafka_starts_and_its_tools_agree_with_the_agent,
        ),
        test(
            "a_killed_node_comes_back_with_its_data",
            a_killed_node_comes_back_with_its_data,
        ),
        Test {
            needs: member::kcat_is_there,
            ..test(
                "members_of_java_and_librdkafka_share_a_group",
                members_of_java_and_librdkafka_share_a_group,
            )
        },
    ])
}

fn test(name: &'static str, run: fn()) -> Test {
    Test {
        name,
        needs: kafka::any,
        limit: TEST_LIMIT,
        run,
    }
}

fn kafka_starts_and_its_tools_agree_with_the_agent() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("agree", 3).unwrap();
    let told = kafka.ask(&format!("every-codec {topic} 30 1")).unwrap();
    let mut read = kafka
        .ask(&format!("read {topic} read_uncommitted"))
        .unwrap();
    assert_eq!(told.len(), 150);
    read.sort();
    let mut sorted = told.clone();
    sorted.sort();
    assert_eq!(read, sorted);
    let offsets = kafka.tool("get-offsets", &["--topic", &topic]).unwrap();
    let offsets = String::from_utf8_lossy(&offsets.stdout).into_owned();
    for (partition, low, high) in kafka.ends(&topic).unwrap() {
        assert_eq!((low, high), (0, 50));
        assert!(
            offsets
                .lines()
                .any(|line| line == format!("{topic}:{partition}:{high}")),
            "{offsets}"
        );
    }
}

fn a_killed_node_comes_back_with_its_data() {
    let kafka = Kafka::start(3).unwrap();
    let topic = kafka.topic("killed", 3).unwrap();
    kafka.ask(&format!("numbered {topic} 300 10 20 1")).unwrap();
    kafka.freeze(1).unwrap();
    kafka.thaw(1).unwrap();
    kafka.kill(2).unwrap();
    assert!(kafka.kill(2).is_err());
    kafka.ask(&format!("numbered {topic} 300 10 20 2")).unwrap();
    kafka.up(2).unwrap();
    let records: i64 = kafka
        .ends(&topic)
        .unwrap()
        .iter()
        .map(|(_, low, high)| high - low)
        .sum();
    assert_eq!(records, 600);
}

/// The foreign members behave as the mixed-group tests take for granted.
fn members_of_java_and_librdkafka_share_a_group() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("foreign", 4).unwrap();
    let group = kafka::unique("foreign");
    let expected = handlings::expected(
        &kafka
            .ask(&format!("numbered {topic} 1000 20 20 1"))
            .unwrap(),
    )
    .unwrap();
    assert_eq!(expected.iter().map(|(_, count)| count).sum::<u32>(), 1000);
    let mut java = Member::java(kafka, &group, &topic, "range").unwrap();
    java.wait_for("all records", WAIT, |lines| {
        lines.iter().filter(|l| l.starts_with("record")).count() == 1000
    })
    .unwrap();
    let mut kcat = Member::kcat(kafka, &group, &topic, "range").unwrap();
    java.wait_for("half the partitions", WAIT, |lines| {
        lines
            .iter()
            .any(|l| l == "assigned 0 1" || l == "assigned 2 3")
    })
    .unwrap();
    kafka
        .ask(&format!("numbered {topic} 1000 20 20 2"))
        .unwrap();
    kcat.wait_for("records", WAIT, |lines| !lines.is_empty())
        .unwrap();
    let end = Instant::now() + WAIT;
    while java.records() + kcat.records() < 2000 {
        assert!(
            Instant::now() < end,
            "{} and {} records",
            java.records(),
            kcat.records()
        );
        thread::sleep(Duration::from_millis(50));
    }
    kcat.close().unwrap();
    assert!(java.close().unwrap().iter().any(|line| line == "closed"));
    let ends: Vec<(i32, i64)> = kafka
        .ends(&topic)
        .unwrap()
        .iter()
        .map(|&(p, _, high)| (p, high))
        .collect();
    assert_eq!(kafka.committed(&group, &topic).unwrap(), ends);
}

/// One step of a group: a join, a rebalance, some records.
const WAIT: Duration = Duration::from_secs(60);
/// A Kafka of three nodes takes most of it, on two busy cores.
const TEST_LIMIT: Duration = Duration::from_secs(300);
