//! Whether memory stays as it is when records flow at full rate for long: a real Kafka, one member
//! that does nothing with each record, and back to the beginning whenever all is done.
//!
//! ```text
//! cargo run --release -p laneway-testcontainers --bin soak -- --minutes 10
//! ```
//!
//! Prints this process's resident memory minute by minute. From five minutes on it fails where the
//! last third holds more than the second, beyond what an allocator's mood explains.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use laneway::{
    InFlight, Kafka as Client, LaneKey, Record, Running, Scope, SeekTo, StartOffset, Topics,
};
use laneway_testcontainers::kafka::{self, Kafka};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let minutes = asked(&env::args().skip(1).collect::<Vec<_>>())?;
    let kafka = Kafka::start(1)?;
    let topic = kafka.topic("soak", PARTITIONS)?;
    for _ in 0..FILLS {
        kafka.ask(&format!("numbered {topic} {RECORDS} {KEYS} {BYTES} 1"))?;
    }
    let handled = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&handled);
    let running = Client::new(kafka.addresses())
        .subscribe(Topics::named([topic.as_str()]).group(kafka::unique("soak")))
        .start_at(StartOffset::Earliest)
        .workers_by_key(64)
        .lane_key(LaneKey::RecordKey)
        .start(move |_: Record| {
            counts.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        })?;
    println!(
        "{PARTITIONS} partitions, {} records of {BYTES} bytes",
        FILLS * RECORDS
    );
    let mut samples = Vec::new();
    let mut rounds = 0;
    for minute in 1..=minutes {
        let (began, before) = (Instant::now(), handled.load(Ordering::Relaxed));
        let mut most = 0;
        while began.elapsed() < MINUTE {
            tokio::time::sleep(LOOK).await;
            rounds += u64::from(begins_anew(&running).await?);
            most = most.max(resident()?);
            samples.push(most);
        }
        let rate =
            (handled.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
        println!(
            "minute {minute:3}: {most:7} kB resident at most, {rate:9.0} records a second, round {rounds}"
        );
    }
    running.close(CLOSE).await?;
    judge(minutes, &samples)?;
    Ok(())
}

/// Back to the beginning, if all is done.
async fn begins_anew(running: &Running) -> Result<bool, Box<dyn Error>> {
    let lag = running.lag().await?;
    if lag.records > 0 || lag.unknown > 0 {
        return Ok(false);
    }
    match running
        .seek(Scope::All, SeekTo::Beginning, InFlight::Drain)
        .await
    {
        Ok(()) => Ok(true),
        // Nothing was granted yet.
        Err(e) if e.kind() == laneway::ErrorKind::Misuse => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn judge(minutes: u64, samples: &[u64]) -> Result<(), String> {
    let third = samples.len() / 3;
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    let second = mean(samples.get(third..2 * third).unwrap_or_default());
    let last = mean(samples.get(2 * third..).unwrap_or_default());
    println!("resident, mean of the second third {second} kB, of the last {last} kB");
    if minutes >= JUDGED_FROM && last > second + second / 20 + 4096 {
        return Err(format!("memory grows: {second} kB, then {last} kB"));
    }
    Ok(())
}

/// Of this process, in kB.
fn resident() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmRSS")?.parse()?)
}

fn asked(args: &[String]) -> Result<u64, String> {
    match args {
        [] => Ok(10),
        [name, value] if name == "--minutes" => {
            value.parse().map_err(|_| format!("{value} is no number"))
        }
        _ => Err("usage: soak [--minutes M]".to_owned()),
    }
}

const PARTITIONS: u32 = 4;
const FILLS: u32 = 3;
const RECORDS: u32 = 200_000;
const KEYS: u32 = 1000;
const BYTES: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
const CLOSE: Duration = Duration::from_secs(20);
/// The first minutes are the buffers' way to their size.
const JUDGED_FROM: u64 = 5;
