//! One lane is stuck and the others run on: the log is the overflow.
//!
//! `stuck_lane [--bootstrap HOST:PORT] [--records N] [--stuck SECONDS]` fills one partition with
//! records of 512 bytes and reads it twice in eight lanes by key, with 16 MiB of budget: once
//! undisturbed, once with a handler that takes a minute over the first record. It prints what the
//! other lanes did meanwhile, what memory was held, and how the stuck lane caught up; it fails
//! where a record was lost, came twice or out of order. Without `--bootstrap` it brings its own
//! broker.

use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::{Kafka, LaneKey, Record, StartOffset, Topics};
use laneway_examples::{KeyValue, load};
use std::error::Error;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BUDGET: u64 = 16 << 20;
const AHEAD_MAX: u64 = 2_000_000;
const LANES: usize = 8;
const KEYS: u64 = 10_000;
const VALUE_BYTES: usize = 512;
/// Records that are in memory at once while the topic is filled.
const CHUNK: u64 = 100_000;
/// Of the records beside the stuck lane, so many have to pass.
const OTHERS_PART: (u64, u64) = (5, 6);

struct Args {
    bootstrap: Option<String>,
    records: u64,
    stuck: Duration,
}

/// What one reading of the topic said of itself.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Until the wanted number of records beside the stuck lane had run.
    others_s: f64,
    /// Until all had run and were committed.
    all_s: f64,
    records: u64,
    wrong: u64,
    gone_most: u64,
    reread_mib: f64,
    memory_mib: f64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("read") => read(&words[1..]),
        _ => args(&words).and_then(show),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stuck_lane: {error}");
            ExitCode::from(2)
        }
    }
}

fn args(words: &[String]) -> Result<Args, Box<dyn Error>> {
    let mut args = Args {
        bootstrap: None,
        records: 1_200_000,
        stuck: Duration::from_secs(60),
    };
    for pair in words.chunks(2) {
        match pair {
            [name, value] if name == "--bootstrap" => args.bootstrap = Some(value.clone()),
            [name, value] if name == "--records" => args.records = value.parse()?,
            [name, value] if name == "--stuck" => {
                args.stuck = Duration::from_secs(value.parse()?);
            }
            other => {
                let usage =
                    "usage: stuck_lane [--bootstrap HOST:PORT] [--records N] [--stuck SECONDS]";
                return Err(format!("{other:?}? {usage}").into());
            }
        }
    }
    Ok(args)
}

fn show(args: Args) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let server = match args.bootstrap {
        Some(_) => None,
        None => Some(runtime.block_on(Server::start(ClusterConfig::default(), Listen::default()))?),
    };
    let bootstrap = match (&args.bootstrap, &server) {
        (Some(bootstrap), _) => bootstrap.clone(),
        (None, Some(server)) => server.bootstrap().join(","),
        (None, None) => return Err("no broker".into()),
    };
    let topic = format!("stuck-{}", std::process::id());
    println!("writing {} records of {VALUE_BYTES} bytes", args.records);
    let mut written = 0;
    while written < args.records {
        let end = (written + CHUNK).min(args.records);
        load(&bootstrap, &topic, &[(written..end).map(record).collect()])?;
        written = end;
    }
    let records = args.records.to_string();
    let plain = child(&bootstrap, &topic, "plain", &records, "0")?;
    let stuck = args.stuck.as_secs().to_string();
    let stuck = child(&bootstrap, &topic, "stuck", &records, &stuck)?;
    let others = args.records / OTHERS_PART.1 * OTHERS_PART.0;
    let rate = |seen: &Seen| others as f64 / seen.others_s;
    println!("\n                       undisturbed   one lane stuck");
    println!(
        "records a second      {:12.0} {:16.0}",
        rate(&plain),
        rate(&stuck)
    );
    println!(
        "most let go           {:12} {:16}",
        plain.gone_most, stuck.gone_most
    );
    println!(
        "read again, MiB       {:12.1} {:16.1}",
        plain.reread_mib, stuck.reread_mib
    );
    println!(
        "memory, MiB           {:12.1} {:16.1}",
        plain.memory_mib, stuck.memory_mib
    );
    println!(
        "all done after, s     {:12.2} {:16.2}",
        plain.all_s, stuck.all_s
    );
    println!(
        "lost                  {:12} {:16}",
        lost(&args, &plain),
        lost(&args, &stuck)
    );
    println!(
        "twice or out of order {:12} {:16}",
        plain.wrong, stuck.wrong
    );
    println!(
        "\n{others} records beside the stuck lane ran at {:.2} of the undisturbed rate",
        rate(&stuck) / rate(&plain)
    );
    let right = |seen: &Seen| seen.wrong == 0 && seen.records == args.records;
    Ok(right(&plain) && right(&stuck) && rate(&stuck) * 2.0 >= rate(&plain))
}

fn lost(args: &Args, seen: &Seen) -> i64 {
    args.records as i64 - seen.records as i64
}

/// Record `n`: its key in turn, and the key's number in front of the value.
fn record(n: u64) -> KeyValue {
    let key = n % KEYS;
    let mut value = vec![b'x'; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    (format!("key-{key}").into_bytes(), value)
}

/// Reads the topic in a process of its own, so that its memory can be told from the broker's.
fn child(
    bootstrap: &str,
    topic: &str,
    group: &str,
    records: &str,
    stuck: &str,
) -> Result<Seen, Box<dyn Error>> {
    let group = format!("{topic}-{group}");
    let out = Command::new(std::env::current_exe()?)
        .args(["read", bootstrap, topic, &group, records, stuck])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(out.stdout)?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    match numbers?[..] {
        [
            others_s,
            all_s,
            records,
            wrong,
            gone_most,
            reread_mib,
            memory_mib,
        ] => Ok(Seen {
            others_s,
            all_s,
            records: records as u64,
            wrong: wrong as u64,
            gone_most: gone_most as u64,
            reread_mib,
            memory_mib,
        }),
        _ => Err("the reading process did not end well".into()),
    }
}

struct Counts {
    /// The highest offset that ran of each key.
    last: Vec<AtomicI64>,
    all: AtomicU64,
    wrong: AtomicU64,
}

#[tokio::main]
async fn read(words: &[String]) -> Result<bool, Box<dyn Error>> {
    let [bootstrap, topic, group, records, stuck] = words else {
        return Err("read BOOTSTRAP TOPIC GROUP N SECONDS".into());
    };
    let (records, stuck): (u64, u64) = (records.parse()?, stuck.parse()?);
    let counts = Arc::new(Counts {
        last: (0..KEYS).map(|_| AtomicI64::new(-1)).collect(),
        all: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
    });
    let handler = counts.clone();
    let began = Instant::now();
    let running = Kafka::new(bootstrap.split(','))
        .client_id("stuck-lane")
        .subscribe(Topics::named([topic.clone()]).group(group.clone()))
        .start_at(StartOffset::Earliest)
        .workers_by_key(LANES)
        .lane_key(LaneKey::RecordKey)
        .budget(BUDGET)
        .ahead_max(AHEAD_MAX)
        .start(move |record: Record| {
            let first = record.offset() == 0 && stuck > 0;
            if !first {
                note(&handler, &record);
            }
            let handler = handler.clone();
            async move {
                if first {
                    tokio::time::sleep(Duration::from_secs(stuck)).await;
                    note(&handler, &record);
                }
            }
        })?;
    let others = records / OTHERS_PART.1 * OTHERS_PART.0;
    let (mut others_s, mut gone_most, mut reread) = (0.0, 0, 0);
    loop {
        let seen = counts.all.load(Ordering::Relaxed);
        if others_s == 0.0 && seen >= others {
            others_s = began.elapsed().as_secs_f64();
        }
        let now = running.snapshot().await?;
        gone_most = now
            .partitions
            .iter()
            .map(|p| p.gone)
            .sum::<u64>()
            .max(gone_most);
        reread = now
            .partitions
            .iter()
            .map(|p| p.reread_bytes)
            .sum::<u64>()
            .max(reread);
        if seen >= records {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.drain().await?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{others_s} {} {} {} {gone_most} {} {}",
        began.elapsed().as_secs_f64(),
        counts.all.load(Ordering::Relaxed),
        counts.wrong.load(Ordering::Relaxed),
        mib(reread),
        mib(memory_most_bytes()),
    );
    Ok(true)
}

fn note(counts: &Counts, record: &Record) {
    let key = record.value().and_then(|v| v.first_chunk::<8>());
    let key = key.map_or(0, |k| u64::from_le_bytes(*k));
    let last = counts.last.get(key as usize);
    let in_order =
        last.is_some_and(|last| last.swap(record.offset(), Ordering::Relaxed) < record.offset());
    counts
        .wrong
        .fetch_add(u64::from(!in_order), Ordering::Relaxed);
    counts.all.fetch_add(1, Ordering::Relaxed);
}

/// The most memory that this process ever held; 0 where the system does not say.
fn memory_most_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
