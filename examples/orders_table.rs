//! The table: 10,000 records of 0 to 4 ms in one partition, sixteen at once, under one order after
//! another. Beside the time that each took stands its floor: the least that any client could take,
//! from what the handlers themselves measured.

use crate::{LANES, ORDERS, PATIENCE, scatter, work_of};
use laneway::{Kafka, LaneKey, Record, StartOffset, Topics};
use laneway_examples::{KeyValue, load};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// What must run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The whole partition.
    Partition,
    /// The records of each key.
    Key,
    /// Nothing.
    None,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub order: Order,
    pub keys: u64,
    /// One of the keys has a fifth of the records.
    pub skew: bool,
}

impl Row {
    /// Those of the Java Parallel Consumer's README, and one more.
    pub fn all() -> Vec<Row> {
        let row = |order, keys, skew| Row { order, keys, skew };
        let mut rows = vec![row(Order::Partition, 10_000, false)];
        for keys in [10_000, 1_000, 100, 50, 20, 10, 5, 2, 1] {
            rows.push(row(Order::Key, keys, false));
        }
        rows.push(row(Order::None, 10_000, false));
        rows.push(row(Order::Key, 1_000, true));
        rows
    }

    fn name(self) -> String {
        match (self.order, self.skew) {
            (Order::Partition, _) => "partition order".to_owned(),
            (Order::None, _) => "no order".to_owned(),
            (Order::Key, false) => format!("{} keys", self.keys),
            (Order::Key, true) => format!("{} keys, one has 20 %", self.keys),
        }
    }

    /// Keys take turns, so each has as many records as another; with skew every fifth record is
    /// the first key's.
    fn key_of(self, order: u64) -> u64 {
        match self.skew && scatter(order).is_multiple_of(5) {
            true => 0,
            false if self.skew && self.keys > 1 => 1 + order % (self.keys - 1),
            false => order % self.keys,
        }
    }

    fn orders(self) -> Vec<KeyValue> {
        let key = |order| format!("customer-{}", self.key_of(order)).into_bytes();
        (0..ORDERS)
            .map(|order| (key(order), order.to_string().into_bytes()))
            .collect()
    }
}

/// What was measured of a row.
pub struct Measured {
    row: Row,
    floor: Duration,
    took: Duration,
    lost: usize,
    twice: usize,
    out_of_order: u64,
}

impl Measured {
    /// Nothing lost, nothing out of order, nothing twice.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.twice == 0 && self.out_of_order == 0
    }

    /// How much longer it took than it had to, in percent.
    pub fn over(&self) -> f64 {
        (self.took.as_secs_f64() / self.floor.as_secs_f64().max(1e-9) - 1.0) * 100.0
    }

    pub fn print_head() {
        println!(
            "{:<26}{:>9}{:>9}{:>8}{:>6}{:>14}{:>7}",
            "", "floor", "took", "over", "lost", "out of order", "twice"
        );
    }

    pub fn print(&self) {
        println!(
            "{:<26}{:>8.3}s{:>8.3}s{:>7.1}%{:>6}{:>14}{:>7}",
            self.row.name(),
            self.floor.as_secs_f64(),
            self.took.as_secs_f64(),
            self.over(),
            self.lost,
            self.out_of_order,
            self.twice
        );
    }
}

#[derive(Default)]
struct Ledger {
    handled: Vec<u32>,
    /// Of each key (with partition order: of all): the order that runs or ran last, whether it
    /// runs, and the handlers' time.
    keys: BTreeMap<u64, (u64, bool, Duration)>,
    out_of_order: u64,
    done: u64,
    began: Option<Instant>,
    ended: Option<Instant>,
}

struct Shared {
    row: Row,
    ledger: Mutex<Ledger>,
    all: Notify,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(&self, record: Record) -> Result<(), String> {
        let started = Instant::now();
        let text = std::str::from_utf8(record.value().unwrap_or_default());
        let order = text.map_err(|e| e.to_string())?.parse::<u64>();
        let order = order.map_err(|e| e.to_string())?;
        let key = match self.row.order {
            Order::Partition => 0,
            _ => self.row.key_of(order),
        };
        let ordered = self.row.order != Order::None;
        {
            let mut ledger = self.ledger();
            ledger.began.get_or_insert(started);
            if let Some((last, runs, _)) = ledger.keys.get(&key).copied()
                && ordered
                && (runs || last >= order)
            {
                ledger.out_of_order += 1;
            }
            let entry = ledger.keys.entry(key).or_default();
            (entry.0, entry.1) = (order, true);
        }
        tokio::time::sleep(work_of(order)).await;
        let mut ledger = self.ledger();
        ledger.done += 1;
        if let Some(times) = usize::try_from(order)
            .ok()
            .and_then(|n| ledger.handled.get_mut(n))
        {
            *times += 1;
        }
        let ended = Instant::now();
        if let Some(entry) = ledger.keys.get_mut(&key) {
            entry.1 = false;
            entry.2 += ended.duration_since(started);
        }
        if ledger.done >= ORDERS {
            ledger.ended = Some(ended);
            self.all.notify_one();
        }
        Ok(())
    }
}

/// Runs one row on a topic of its own.
pub async fn measure(row: Row, bootstrap: &str, topic: String) -> Result<Measured, String> {
    let (to, name) = (bootstrap.to_owned(), topic.clone());
    tokio::task::spawn_blocking(move || load(&to, &name, &[row.orders()]))
        .await
        .map_err(|e| e.to_string())?
        .map_err(|e| format!("the orders were not written: {e}"))?;
    let shared = Arc::new(Shared {
        row,
        ledger: Mutex::default(),
        all: Notify::new(),
    });
    shared.ledger().handled = vec![0; usize::try_from(ORDERS).unwrap_or(0)];
    let group = format!("{topic}-readers");
    let subscription = Kafka::new(bootstrap.split(','))
        .subscribe(Topics::named([topic]).group(group))
        .start_at(StartOffset::Earliest);
    let subscription = match row.order {
        Order::Partition => subscription.lanes_per_key(LANES),
        Order::Key => subscription
            .lanes_per_key(LANES)
            .lane_key(LaneKey::RecordKey),
        Order::None => subscription.workers(LANES),
    };
    let handler = shared.clone();
    let running = subscription
        .start(move |record| {
            let shared = handler.clone();
            async move { shared.handle(record).await }
        })
        .map_err(|e| e.to_string())?;
    let in_time = tokio::time::timeout(PATIENCE, shared.all.notified()).await;
    running
        .close(Duration::from_secs(10))
        .await
        .map_err(|e| e.to_string())?;
    if in_time.is_err() {
        return Err(format!("{}: stuck", row.name()));
    }
    let ledger = shared.ledger();
    let sum: Duration = ledger.keys.values().map(|k| k.2).sum();
    let busiest = ledger.keys.values().map(|k| k.2).max().unwrap_or_default();
    let spread = sum / u32::try_from(LANES).unwrap_or(1);
    let floor = match row.order {
        Order::Partition => sum,
        Order::Key => busiest.max(spread),
        Order::None => spread,
    };
    let took = match (ledger.began, ledger.ended) {
        (Some(began), Some(ended)) => ended.duration_since(began),
        _ => Duration::ZERO,
    };
    Ok(Measured {
        row,
        floor,
        took,
        lost: ledger.handled.iter().filter(|n| **n == 0).count(),
        twice: ledger.handled.iter().filter(|n| **n > 1).count(),
        out_of_order: ledger.out_of_order,
    })
}
