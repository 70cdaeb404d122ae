//! Brings dead letters back: `redrive BOOTSTRAP DEAD_LETTER_TOPIC GROUP [TOPIC]`.
//!
//! Reads the dead-letter topic under the group, writes each letter to the topic and partition that
//! its headers name (or to TOPIC), as it was before it died, and ends when it has caught up. A letter
//! is committed once its record is written, so a redrive that is killed goes on where it was; the one
//! it was at may then come twice. Letters that were cut, or that say nothing of where they are from,
//! stay where they are and are told of.

use laneway::{Error, Kafka, LaneKey, Outcome, Outgoing, Producer, Record, Topics};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the last commit may take, and what is still on its way.
const CLOSE_MAX: Duration = Duration::from_secs(30);
/// How often it looks whether it has caught up.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Headers that a dead letter was given; all of ours begin alike.
const OURS: &str = "laneway.dlq.";
const CONNECTS: [&str; 5] = [
    "__connect.errors.topic",
    "__connect.errors.partition",
    "__connect.errors.offset",
    "__connect.errors.exception.message",
    "__connect.errors.connector.name",
];

/// The last header of either name, as text: the newest death counts.
fn said(record: &Record, name: &str) -> Option<String> {
    let (ours, connects) = (format!("{OURS}{name}"), format!("__connect.errors.{name}"));
    let named = record
        .headers()
        .filter(|h| h.key() == Some(&ours) || h.key() == Some(&connects));
    let value = named.last()?.value()?;
    String::from_utf8(value.to_vec()).ok()
}

/// The record as it was before it died; else why it cannot be.
fn alive(record: &Record, to: Option<&str>) -> Result<Outgoing, &'static str> {
    let cut = |h: laneway::records::Header<'_>| {
        h.key()
            .is_some_and(|k| k.starts_with("laneway.dlq.truncated."))
    };
    if record.headers().any(cut) {
        return Err("it was cut: the whole record is in its source, if it is still there");
    }
    let topic = said(record, "topic").ok_or("no header says where it is from")?;
    let partition = said(record, "partition").and_then(|p| p.parse().ok());
    let mut out = record.to_outgoing(to.unwrap_or(&topic));
    // Another topic has partitions of its own.
    out.partition = partition.filter(|_| to.is_none_or(|to| to == topic));
    out.headers.retain(|(key, _)| {
        let added = |name: &str| name.as_bytes() == &key[..];
        !key.starts_with(OURS.as_bytes()) && !CONNECTS.iter().any(|name| added(name))
    });
    Ok(out)
}

#[derive(Default)]
struct Counts {
    back: AtomicU64,
    left: AtomicU64,
}

async fn redrive(
    record: Record,
    to: Option<Arc<str>>,
    producer: Arc<Producer>,
    counts: Arc<Counts>,
) -> Outcome {
    let mut out = match alive(&record, to.as_deref()) {
        Ok(out) => out,
        Err(why) => {
            eprintln!(
                "{}-{} @{} stays: {why}",
                record.topic(),
                record.partition(),
                record.offset()
            );
            counts.left.fetch_add(1, Ordering::Relaxed);
            return Outcome::Drop;
        }
    };
    let mut sent = producer.send(out.clone()).await;
    if out.partition.is_some()
        && sent
            .as_ref()
            .is_err_and(|e| e.kind() == laneway::ErrorKind::Misuse)
    {
        // The source has fewer partitions than it had.
        out.partition = None;
        sent = producer.send(out).await;
    }
    match sent {
        Ok(_) => {
            counts.back.fetch_add(1, Ordering::Relaxed);
            Outcome::Ack
        }
        // It runs again: nothing is passed over.
        Err(error) => Outcome::failed(error.to_string()),
    }
}

async fn run(
    bootstrap: &str,
    letters: &str,
    group: &str,
    to: Option<Arc<str>>,
) -> Result<(), Error> {
    let kafka = Kafka::new([bootstrap]).client_id("laneway-redrive");
    let producer = Arc::new(kafka.producer()?);
    let counts = Arc::new(Counts::default());
    let running = {
        let (producer, counts) = (producer.clone(), counts.clone());
        kafka
            .subscribe(Topics::named([letters]).group(group))
            .workers_by_key(64)
            .lane_key(LaneKey::RecordKey) // letters of a key go back in order
            .start(move |record| redrive(record, to.clone(), producer.clone(), counts.clone()))?
    };
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let look = tokio::time::sleep(LOOK_EVERY);
        tokio::select! {
            _ = &mut interrupted => break,
            () = look => {}
        }
        let partitions = running.snapshot().await?.partitions;
        let caught_up = |p: &laneway::PartitionSnapshot| p.lag() == Some(0);
        if !partitions.is_empty() && partitions.iter().all(caught_up) {
            break;
        }
    }
    running.close(CLOSE_MAX).await?;
    if let Some(producer) = Arc::into_inner(producer) {
        producer.close(CLOSE_MAX).await?;
    }
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "{} brought back, {} left where they are",
        count(&counts.back),
        count(&counts.left)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (bootstrap, letters, group, to) = match &args[..] {
        [bootstrap, letters, group] => (bootstrap, letters, group, None),
        [bootstrap, letters, group, to] => {
            (bootstrap, letters, group, Some(Arc::from(to.as_str())))
        }
        _ => {
            eprintln!("redrive BOOTSTRAP DEAD_LETTER_TOPIC GROUP [TOPIC]");
            return ExitCode::from(64);
        }
    };
    match run(bootstrap, letters, group, to).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
