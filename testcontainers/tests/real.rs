//! What is shown on a real Kafka.

use std::process::ExitCode;
use std::time::Duration;

use laneway_testcontainers::kafka::{self, Kafka};
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

/// A Kafka of three nodes takes most of it, on two busy cores.
const TEST_LIMIT: Duration = Duration::from_secs(300);
