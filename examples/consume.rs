//! Reads N records of a topic in a fresh group, for comparison with other clients.
//!
//! `consume [--lanes K] [--properties FILE] BOOTSTRAP TOPIC GROUP N` sums the values' lengths and their first eight
//! bytes, commits, and prints one line of JSON. With `LATENCY=k` in the environment those eight
//! bytes are the time of sending, in nanoseconds, and the line has percentiles over all records
//! but the first k. With `WORK_US=n` every record also takes n microseconds of sleep, so that the
//! handler is slower than the fetch: what the process then holds is the budget's to bound. FILE has
//! Kafka's names for security and the rest, as `Kafka::from_properties` takes them.

use laneway::{Error, Kafka, LaneKey, Record, StartOffset, Topics, properties};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest that the last commit may take.
const CLOSE_MAX: Duration = Duration::from_secs(30);

struct Args {
    lanes: Option<usize>,
    properties: Option<String>,
    bootstrap: String,
    topic: String,
    group: String,
    records: u64,
}

fn args() -> Option<Args> {
    let mut rest: Vec<String> = std::env::args().skip(1).collect();
    let (mut lanes, mut properties) = (None, None);
    while let Some(flag) = rest.first().filter(|a| a.starts_with("--")) {
        match flag.as_str() {
            "--lanes" => lanes = Some(rest.get(1)?.parse().ok()?),
            "--properties" => properties = Some(rest.get(1)?.clone()),
            _ => return None,
        }
        rest.drain(..2);
    }
    let [bootstrap, topic, group, records] = <[String; 4]>::try_from(rest).ok()?;
    Some(Args {
        lanes,
        properties,
        bootstrap,
        topic,
        group,
        records: records.parse().ok()?,
    })
}

/// What the handlers on one thread have seen. Its own cache line; only its thread writes it.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    bytes: AtomicU64,
    sum: AtomicU64,
}

/// Threads that get a shard of their own.
const SHARDS: usize = 64;

static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
}

/// What all handlers have seen.
struct Sums {
    records: AtomicU64,
    shards: [Shard; SHARDS],
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    first_cpu_us: AtomicU64,
    delays_us: Mutex<Vec<u64>>,
}

fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU that this process has used, user and system, from the kernel's own accounting.
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    // utime and stime, in clock ticks of 10 ms.
    (ticks(11) + ticks(12)) * 10_000
}

impl Sums {
    fn new() -> Self {
        Sums {
            records: AtomicU64::new(0),
            shards: std::array::from_fn(|_| Shard::default()),
            first_ns: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            first_cpu_us: AtomicU64::new(0),
            delays_us: Mutex::new(Vec::new()),
        }
    }

    /// Returns whether this was the last one wanted.
    fn take(&self, record: &Record, wanted: u64, latency: bool) -> bool {
        let seen = self.records.fetch_add(1, Ordering::Relaxed) + 1;
        if seen > wanted {
            return false;
        }
        if seen == 1 {
            self.first_ns.store(now_ns(), Ordering::Relaxed);
            self.first_cpu_us.store(cpu_us(), Ordering::Relaxed);
        }
        let value = record.value().unwrap_or_default();
        let shard = &self.shards[SHARD.with(|s| *s)];
        // Only this thread writes its shard, so no locked instruction is needed.
        let add = |to: &AtomicU64, n: u64| {
            to.store(
                to.load(Ordering::Relaxed).wrapping_add(n),
                Ordering::Relaxed,
            );
        };
        add(&shard.bytes, value.len() as u64);
        if let Some(eight) = value.first_chunk::<8>() {
            let number = u64::from_le_bytes(*eight);
            add(&shard.sum, number);
            if latency {
                let delay = now_ns().saturating_sub(number) / 1000;
                self.delays_us
                    .lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .push(delay);
            }
        }
        if seen == wanted {
            self.last_ns.store(now_ns(), Ordering::Relaxed);
        }
        seen == wanted
    }

    fn print(&self, wanted: u64, skip: Option<usize>) {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let mut more = String::new();
        if let Some(skip) = skip {
            let mut delays = self
                .delays_us
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .clone();
            delays.drain(..skip.min(delays.len()));
            delays.sort_unstable();
            let at = |q: usize| delays.get((delays.len() * q / 100).min(delays.len().max(1) - 1));
            let (p50, p99) = (at(50).unwrap_or(&0), at(99).unwrap_or(&0));
            let max = delays.last().unwrap_or(&0);
            more = format!(
                ",\"samples\":{},\"p50_us\":{p50},\"p99_us\":{p99},\"max_us\":{max}",
                delays.len()
            );
        }
        println!(
            "{{\"client\":\"laneway\",\"version\":\"{}\",\"records\":{},\"bytes\":{},\"sum\":{},\"first_ns\":{},\"first_cpu_s\":{:.2},\"last_ns\":{}{more}}}",
            env!("CARGO_PKG_VERSION"),
            get(&self.records).min(wanted),
            self.shards.iter().map(|s| get(&s.bytes)).sum::<u64>(),
            self.shards
                .iter()
                .fold(0u64, |n, s| n.wrapping_add(get(&s.sum))),
            get(&self.first_ns),
            get(&self.first_cpu_us) as f64 / 1e6,
            get(&self.last_ns),
        );
    }
}

fn main() -> ExitCode {
    let Some(args) = args() else {
        eprintln!("usage: consume [--lanes K] [--properties FILE] BOOTSTRAP TOPIC GROUP N");
        return ExitCode::from(2);
    };
    // One loop over the records needs one thread; lanes run beside each other.
    let mut runtime = match args.lanes {
        None => tokio::runtime::Builder::new_current_thread(),
        Some(_) => tokio::runtime::Builder::new_multi_thread(),
    };
    // No sockets here, those have a thread of their own: so this one can sleep without a poller,
    // and wakes a little sooner.
    match runtime.enable_time().build() {
        Ok(runtime) => runtime.block_on(consume(args)),
        Err(error) => {
            eprintln!("consume: {error}");
            ExitCode::FAILURE
        }
    }
}

fn kafka(args: &Args) -> Result<Kafka, Error> {
    let text = match &args.properties {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|e| Error::misuse(format!("{file} cannot be read: {e}")))?,
        None => String::new(),
    };
    let mut properties = properties::parse(&text);
    properties.push(("client.id".to_owned(), "consume".to_owned()));
    properties.push(("bootstrap.servers".to_owned(), args.bootstrap.clone()));
    Kafka::from_properties(properties)
}

async fn consume(args: Args) -> ExitCode {
    let latency = std::env::var("LATENCY")
        .ok()
        .and_then(|k| k.parse::<usize>().ok());
    let work = std::env::var("WORK_US").ok().and_then(|n| n.parse().ok());
    let work = work.map(Duration::from_micros);
    let sums = Arc::new(Sums::new());
    let done = Arc::new(tokio::sync::Notify::new());
    let kafka = match kafka(&args) {
        Ok(kafka) => kafka,
        Err(error) => {
            eprintln!("consume: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut subscription = kafka
        .subscribe(Topics::named([args.topic]).group(args.group))
        .start_at(StartOffset::Earliest);
    if let Some(lanes) = args.lanes {
        subscription = subscription
            .workers_by_key(lanes)
            .lane_key(LaneKey::RecordKey);
    }
    let (wanted, handler_sums, handler_done) = (args.records, sums.clone(), done.clone());
    let running = subscription.start(move |record: Record| {
        if handler_sums.take(&record, wanted, latency.is_some()) {
            handler_done.notify_one();
        }
        async move {
            if let Some(work) = work {
                tokio::time::sleep(work).await;
                drop(record);
            }
        }
    });
    let running = match running {
        Ok(running) => running,
        Err(error) => {
            eprintln!("consume: {error}");
            return ExitCode::FAILURE;
        }
    };
    done.notified().await;
    if let Err(error) = running.close(CLOSE_MAX).await {
        eprintln!("consume: {error}");
        return ExitCode::FAILURE;
    }
    sums.print(args.records, latency);
    ExitCode::SUCCESS
}
