//! Any text as the properties of Kafka's clients: settings, or an error in words that names what is
//! wrong; what is written as a line is read as it was.
//!
//! `{N}` in the text stands for the Nth of the names that are known.
#![no_main]

use laneway::{ErrorKind, Kafka, properties};
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 26] = [
    "bootstrap.servers",
    "metadata.broker.list",
    "group.id",
    "client.id",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "auto.offset.reset",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "isolation.level",
    "partition.assignment.strategy",
    "group.instance.id",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "client.rack",
    "request.timeout.ms",
    "metadata.max.age.ms",
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "max.poll.records",
    "queued.max.messages.kbytes",
];

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mut text = String::new();
    while !script.is_over() {
        match script.byte() {
            n @ 0..128 => {
                text.push_str(NAMES[usize::from(n) % NAMES.len()]);
                text.push('=');
            }
            128..160 => text.push('\n'),
            n => {
                let bytes = script.bytes(usize::from(n - 159));
                text.push_str(&String::from_utf8_lossy(bytes));
            }
        }
    }
    let pairs = properties::parse(&text);
    assert!(pairs.len() <= text.lines().count());
    for (name, value) in &pairs {
        let line = format!("{}={}", escaped(name), escaped(value));
        assert_eq!(properties::parse(&line), [(name.clone(), value.clone())]);
    }
    // No file of this machine is read.
    if text.contains(['/', '\\']) || text.contains("location") {
        return;
    }
    let used = allocation_counter::measure(|| match Kafka::from_properties(pairs_of(&pairs)) {
        Ok(kafka) => drop(kafka),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            assert!(!error.to_string().is_empty());
        }
    });
    assert!(used.bytes_max <= 64 * text.len() as u64 + (256 << 10));
});

fn pairs_of(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(n, v)| (&**n, &**v)).collect()
}

/// So that it is one word of one line.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_alphanumeric() => out.push(c),
            c => {
                out.push('\\');
                out.push(c);
            }
        }
    }
    out
}
