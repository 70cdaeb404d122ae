//! The main job: 10,000 keyed orders on 16 ordered lanes, each with 0 to 4 ms of work.
//!
//! Starts a Kafka broker in this process (or uses the one that `--bootstrap HOST:PORT` names),
//! writes the orders, handles them, shows a line of progress, and ends with a table in which
//! every number was counted: what was lost, what came out of order, what ran twice. The program
//! fails where one of those is not zero.
//!
//! `--table` runs 10,000 records in one partition under one order after another, sixteen at once,
//! and prints what each took beside the least that it could take; `--order partition|key|none`,
//! with `--keys K` and `--skew` (one key has 20 % of the records), runs one row of it. `--within
//! PERCENT` fails where a row takes so much longer than its floor.

mod orders_table;

use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::{Kafka, LaneKey, Record, Running, StartOffset, Topics};
use laneway_examples::{KeyValue, load};
use orders_table::{Measured, Order, Row, measure};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

const LANES: usize = 16;
const ORDERS: u64 = 10_000;
const KEYS: u64 = 1_000;
const PARTITIONS: u64 = 4;
/// How long the whole may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Args {
    bootstrap: Option<String>,
    rows: Vec<Row>,
    within: Option<f64>,
}

const USAGE: &str = "usage: orders [--bootstrap HOST:PORT] \
    [--table | --order partition|key|none [--keys K] [--skew]] [--within PERCENT]";

fn args() -> Result<Args, String> {
    let mut args = Args::default();
    let (mut order, mut keys, mut skew) = (None, None, false);
    let mut rest = std::env::args().skip(1);
    while let Some(arg) = rest.next() {
        let mut value = || {
            let value = rest.next();
            value.ok_or_else(|| format!("{arg} needs a value behind it; {USAGE}"))
        };
        let number = |n: String| format!("{n:?} is not a number that can be; {USAGE}");
        match arg.as_str() {
            "--bootstrap" => args.bootstrap = Some(value()?),
            "--table" => args.rows = Row::all(),
            "--skew" => skew = true,
            "--keys" => {
                let n = value()?;
                let parsed = n.parse::<u64>().ok().filter(|n| *n > 0);
                keys = Some(parsed.ok_or_else(|| number(n))?);
            }
            "--within" => {
                let n = value()?;
                args.within = Some(n.parse().map_err(|_| number(n))?);
            }
            "--order" => {
                order = Some(match value()?.as_str() {
                    "partition" => Order::Partition,
                    "key" => Order::Key,
                    "none" => Order::None,
                    other => return Err(format!("there is no order {other:?}; {USAGE}")),
                });
            }
            other => return Err(format!("{other:?} is not known; {USAGE}")),
        }
    }
    if order.is_some() || keys.is_some() || skew {
        let order = order.unwrap_or(Order::Key);
        let keys = keys.unwrap_or(KEYS);
        args.rows.push(Row { order, keys, skew });
    }
    Ok(args)
}

/// An order's number, spread so that work and keys follow no pattern (splitmix64).
fn scatter(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 0 to 4 ms.
fn work_of(order: u64) -> Duration {
    Duration::from_micros(scatter(order ^ 0xabcd) % 4001)
}

/// The orders by partition: a key always goes to the same one, its orders in order.
fn orders() -> Vec<Vec<KeyValue>> {
    let mut partitions: Vec<Vec<KeyValue>> = (0..PARTITIONS).map(|_| Vec::new()).collect();
    for order in 0..ORDERS {
        let key = scatter(order) % KEYS;
        let to = usize::try_from(scatter(key) % PARTITIONS).unwrap_or(0);
        partitions[to].push((
            format!("customer-{key}").into_bytes(),
            order.to_string().into_bytes(),
        ));
    }
    partitions
}

/// What the handlers have counted.
#[derive(Default)]
struct Ledger {
    /// Times that each order was handled.
    handled: Vec<u32>,
    /// The last order of each key that has begun.
    last_of_key: BTreeMap<Vec<u8>, u64>,
    out_of_order: u64,
    done: u64,
    /// Handlers' time by lane.
    lanes: BTreeMap<u32, Duration>,
    busy: usize,
    began: Option<Instant>,
    ended: Option<Instant>,
}

struct Shared {
    ledger: Mutex<Ledger>,
    all: Notify,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(&self, record: Record) -> Result<(), String> {
        let text = std::str::from_utf8(record.value().unwrap_or_default());
        let order: u64 = text
            .map_err(|e| e.to_string())?
            .parse()
            .map_err(|e| format!("{e}"))?;
        let started = Instant::now();
        {
            let mut ledger = self.ledger();
            ledger.began.get_or_insert(started);
            ledger.busy += 1;
            let key = record.key().unwrap_or_default().to_vec();
            if ledger
                .last_of_key
                .insert(key, order)
                .is_some_and(|last| last >= order)
            {
                ledger.out_of_order += 1;
            }
        }
        tokio::time::sleep(work_of(order)).await;
        let mut ledger = self.ledger();
        ledger.busy -= 1;
        ledger.done += 1;
        if let Some(times) = usize::try_from(order)
            .ok()
            .and_then(|n| ledger.handled.get_mut(n))
        {
            *times += 1;
        }
        let lane = record.lane().unwrap_or(0);
        *ledger.lanes.entry(lane).or_default() += started.elapsed();
        if ledger.done >= ORDERS {
            ledger.ended = Some(Instant::now());
            self.all.notify_one();
        }
        Ok(())
    }
}

/// One line, drawn over and over.
async fn progress(running: &Running, shared: &Shared) {
    let mut before = 0;
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    loop {
        tick.tick().await;
        let (done, busy) = {
            let ledger = shared.ledger();
            (ledger.done, ledger.busy)
        };
        let Ok(snapshot) = running.snapshot().await else {
            return;
        };
        let watermark: i64 = snapshot.partitions.iter().map(|p| p.watermark.max(0)).sum();
        let lag: i64 = snapshot.partitions.iter().filter_map(|p| p.lag()).sum();
        let rate = (done - before) * 5;
        before = done;
        print!(
            "\r{done:>6} of {ORDERS} orders  {rate:>6}/s  {busy:>2} of {LANES} lanes busy  \
             settled below {watermark:>6}  lag {lag:>6} "
        );
        // A terminal that does not take it is no reason to stop.
        let _ = std::io::stdout().flush();
    }
}

async fn run() -> Result<bool, String> {
    let args = args()?;
    let mut server = None;
    let bootstrap = match args.bootstrap.clone() {
        Some(bootstrap) => bootstrap,
        None => {
            let started = Server::start(ClusterConfig::default(), Listen::default()).await;
            let started =
                started.map_err(|e| format!("the embedded broker does not start: {e}"))?;
            server.insert(started).bootstrap().join(",")
        }
    };
    let stamp = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    if !args.rows.is_empty() {
        let sound = rows(&args.rows, args.within, &bootstrap, stamp).await;
        drop(server);
        return sound;
    }
    let topic = format!("laneway-orders-{stamp}");
    println!(
        "{ORDERS} orders of {KEYS} customers, {PARTITIONS} partitions of {topic} on {bootstrap}"
    );
    let (to, name) = (bootstrap.clone(), topic.clone());
    tokio::task::spawn_blocking(move || load(&to, &name, &orders()))
        .await
        .map_err(|e| e.to_string())?
        .map_err(|e| format!("the orders were not written: {e}"))?;

    let shared = Arc::new(Shared {
        ledger: Mutex::default(),
        all: Notify::new(),
    });
    shared.ledger().handled = vec![0; usize::try_from(ORDERS).unwrap_or(0)];
    let handler = shared.clone();
    let running = Kafka::new(bootstrap.split(','))
        .subscribe(Topics::named([topic]).group(format!("laneway-orders-{stamp}")))
        .start_at(StartOffset::Earliest)
        .workers_by_key(LANES)
        .lane_key(LaneKey::RecordKey)
        .start(move |record| {
            let shared = handler.clone();
            async move { shared.handle(record).await }
        })
        .map_err(|e| e.to_string())?;
    let stopped = tokio::select! {
        () = shared.all.notified() => None,
        () = progress(&running, &shared) => Some("the subscription ended early"),
        () = tokio::time::sleep(PATIENCE) => Some("stuck: not all orders were handled in time"),
        _ = tokio::signal::ctrl_c() => Some("interrupted; what settled is committed"),
    };
    running
        .close(Duration::from_secs(10))
        .await
        .map_err(|e| e.to_string())?;
    drop(server);
    println!();
    if let Some(why) = stopped {
        println!("{why}");
    }
    Ok(table(&shared.ledger()) && stopped.is_none())
}

/// One row after the other; false where one of them is not as it should be.
async fn rows(
    rows: &[Row],
    within: Option<f64>,
    bootstrap: &str,
    stamp: u128,
) -> Result<bool, String> {
    println!("{ORDERS} records of 0 to 4 ms in one partition on {bootstrap}, {LANES} at once");
    Measured::print_head();
    let mut good = true;
    for (n, row) in rows.iter().enumerate() {
        let measured = measure(*row, bootstrap, format!("laneway-orders-{stamp}-{n}")).await?;
        measured.print();
        let in_time = within.is_none_or(|percent| measured.over() <= percent);
        if !in_time {
            println!("  that is more than {} % over", within.unwrap_or_default());
        }
        good &= measured.is_sound() && in_time;
    }
    Ok(good)
}

/// Prints what was counted; false where something went wrong.
fn table(ledger: &Ledger) -> bool {
    let lost = ledger.handled.iter().filter(|n| **n == 0).count();
    let twice = ledger.handled.iter().filter(|n| **n > 1).count();
    let busiest = ledger.lanes.values().max().copied().unwrap_or_default();
    let sum: Duration = ledger.lanes.values().sum();
    let lanes = u32::try_from(LANES).unwrap_or(1);
    let took = match (ledger.began, ledger.ended) {
        (Some(began), Some(ended)) => ended.duration_since(began),
        _ => Duration::ZERO,
    };
    println!("  floor: the busiest lane's handler time  {busiest:>10.3?}");
    println!(
        "  all handlers' time / {LANES} lanes          {:>10.3?}",
        sum / lanes
    );
    println!("  time taken, first start to last end     {took:>10.3?}");
    println!("  records lost                            {lost:>10}");
    println!(
        "  out of order within a key               {:>10}",
        ledger.out_of_order
    );
    println!("  handled twice                           {twice:>10}");
    lost == 0 && twice == 0 && ledger.out_of_order == 0
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
    }
}
