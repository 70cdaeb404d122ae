//! The tools of these tests themselves behave as the other tests take for granted.

use std::thread;
use std::time::{Duration, Instant};

use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::member::Member;
use laneway_testcontainers::runner::Test;

use crate::{WAIT, test, with_kcat};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(kafka_starts_and_its_tools_agree_with_the_agent),
        test!(a_killed_node_comes_back_with_its_data),
        with_kcat(test!(java_and_librdkafka_share_a_group)),
    ]
}

fn kafka_starts_and_its_tools_agree_with_the_agent() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("agree", 3).unwrap();
    let mut told = kafka.ask(&format!("every-codec {topic} 30 1")).unwrap();
    assert_eq!(told.len(), 150);
    let mut read = kafka
        .ask(&format!("read {topic} read_uncommitted"))
        .unwrap();
    told.sort();
    read.sort();
    assert_eq!(read, told);
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

fn java_and_librdkafka_share_a_group() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("foreign", 4).unwrap();
    let group = kafka::unique("foreign");
    kafka
        .ask(&format!("numbered {topic} 1000 20 20 1"))
        .unwrap();
    let mut java = Member::java(kafka, &group, &topic, "range").unwrap();
    java.wait_for("all records", WAIT, |lines| {
        lines.iter().filter(|l| l.starts_with("record")).count() == 1000
    })
    .unwrap();
    let mut kcat = Member::kcat(kafka, &group, &topic, "range").unwrap();
    java.wait_for("half the partitions", WAIT, |lines| {
        lines
            .iter()
            .any(|line| line == "assigned 0 1" || line == "assigned 2 3")
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
    assert!(java.java_life().unwrap().handlings.len() >= 1000);
    assert!(java.close().unwrap().iter().any(|line| line == "closed"));
    let ends: Vec<(i32, i64)> = kafka
        .ends(&topic)
        .unwrap()
        .iter()
        .map(|&(p, _, high)| (p, high))
        .collect();
    assert_eq!(kafka.committed(&group, &topic).unwrap(), ends);
}
