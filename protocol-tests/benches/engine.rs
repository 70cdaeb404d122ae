//! Records a second through a whole subscription, from frames in memory to settled, one thread.
//!
//! The broker's core answers, but only the time inside the engine and its runner is counted.
//! Beside it, in the same rounds, a bare loop that checks the CRC of the same batches and walks
//! their records: what a client could cost if handing over a record were free.
//!
//! `cargo bench -p laneway-protocol-tests --bench engine [-- RECORDS]`

use bytes::{Buf, Bytes};
use laneway::Record;
use laneway::broker::{BrokerAction, Cluster, ClusterConfig, ConnId};
use laneway::engine::{Action, Config, Done, Engine, LaneKey, LinkEvent, Source};
use laneway::handler::one_by_one;
use laneway::ids::{ExecutorId, LinkId};
use laneway::lane::{Mode, Runner};
use laneway::records::{BatchBuilder, Compression, Decoder, Encoder, Limits, Piece, split};
use laneway::time::Now;
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 8;
const ROUNDS: usize = 5;
const BATCH_RECORDS: usize = 110;

fn filled(records: usize, value_bytes: usize, compression: Compression) -> Cluster {
    let mut cluster = Cluster::new(ClusterConfig::default());
    cluster.create_topic("t", PARTITIONS).unwrap();
    cluster.set_advertised(1, "broker", 9092);
    let mut encoder = Encoder::new();
    let value: Vec<u8> = (0..value_bytes)
        .map(|i| b"{\"order\":12345,"[i % 15])
        .collect();
    let mut made = 0;
    while made < records {
        let partition = i32::try_from(made / BATCH_RECORDS).unwrap() % PARTITIONS;
        let mut batch = BatchBuilder::new(0).compression(compression);
        for i in 0..BATCH_RECORDS {
            let key = format!("key-{:012}", (made + i) % 10_000);
            batch
                .push(1000, Some(key.as_bytes()), Some(&value), &[])
                .unwrap();
        }
        made += BATCH_RECORDS;
        cluster
            .append(Now(0), "t", partition, batch.build(&mut encoder).unwrap())
            .unwrap();
    }
    cluster
}

/// Nanoseconds a record that the bare loop takes.
fn bare(cluster: &Cluster) -> f64 {
    let (mut records, mut sum) = (0u64, 0u64);
    let mut decoder = Decoder::new();
    let logs: Vec<Bytes> = (0..PARTITIONS)
        .map(|p| cluster.batches("t", p).unwrap())
        .collect();
    let began = Instant::now();
    for log in &logs {
        for piece in split(log.clone()) {
            let Ok(Piece::Batch(raw)) = piece else { break };
            let batch = raw.decode(&mut decoder, 0, &Limits::default()).unwrap();
            for i in 0..batch.len() {
                sum = sum.wrapping_add(batch.value(i).map_or(0, |v| u64::from(v[0])));
            }
            records += batch.len() as u64;
        }
    }
    black_box(sum);
    began.elapsed().as_nanos() as f64 / records as f64
}

/// Nanoseconds a record inside the engine and the runner, until all have settled.
fn through(cluster: &mut Cluster, records: u64, mode: Mode, lane_key: LaneKey) -> f64 {
    let source = Source::Topics {
        topics: vec!["t".into()],
        group: "g".into(),
    };
    let mut config = Config::new(vec![("broker".into(), 9092)], source);
    config.mode = mode;
    config.lane_key = lane_key;
    let mut now = Now(1);
    let mut engine = Engine::new(config, now);
    let sum = Arc::new(AtomicU64::new(0));
    let total = sum.clone();
    let mut runner = Runner::new(
        one_by_one(move |record: Record| {
            let first = record.value().map_or(0, |v| u64::from(v[0]));
            total.store(
                total.load(Ordering::Relaxed).wrapping_add(first),
                Ordering::Relaxed,
            );
            std::future::ready(())
        }),
        engine.runner_config(),
    );
    let mut cx = Context::from_waker(Waker::noop());
    let mut conns: BTreeMap<LinkId, ConnId> = BTreeMap::new();
    let mut links: BTreeMap<ConnId, LinkId> = BTreeMap::new();
    let mut inputs: VecDeque<(LinkId, LinkEvent)> = VecDeque::new();
    let mut spent = Duration::ZERO;
    let mut timed = |f: &mut dyn FnMut()| {
        let began = Instant::now();
        f();
        spent += began.elapsed();
    };
    timed(&mut || engine.handle_timeout(now));
    let mut settled = 0;
    while settled < records {
        now = now + Duration::from_micros(100);
        while let Some(action) = engine.poll_action() {
            match action {
                Action::Open { link, .. } => {
                    let conn = cluster.connect(now, 1).unwrap();
                    conns.insert(link, conn);
                    links.insert(conn, link);
                    inputs.push_back((link, LinkEvent::Up));
                }
                Action::Send {
                    link, mut frame, ..
                } => {
                    frame.advance(4);
                    cluster.handle_frame(now, conns[&link], frame);
                }
                Action::Run { group, .. } => runner.give(group),
                Action::Recall { lease, what, .. } => runner.recall(lease, what),
                Action::Again => timed(&mut || engine.handle_timeout(now)),
                _ => {}
            }
        }
        if cluster.next_deadline().is_some_and(|at| at <= now) {
            cluster.handle_timeout(now);
        }
        while let Some(action) = cluster.poll_action() {
            if let BrokerAction::Send { conn, mut frame } = action {
                frame.advance(4);
                inputs.push_back((links[&conn], LinkEvent::Frame(frame)));
            }
        }
        let mut worked = false;
        loop {
            let mut done = None;
            timed(&mut || {
                if let Poll::Ready(d) = runner.poll(&mut cx, now, &mut || true) {
                    done = Some(d);
                }
            });
            let Some(d) = done.take() else { break };
            worked = true;
            let mut d = Some(d);
            timed(&mut || {
                if let Some(done) = d.take() {
                    engine.handle_done(
                        now,
                        Done {
                            executor: ExecutorId(0),
                            done,
                        },
                    );
                }
            });
        }
        if let Some((link, event)) = inputs.pop_front() {
            let mut event = Some(event);
            timed(&mut || {
                if let Some(event) = event.take() {
                    engine.handle_link(now, link, event);
                }
            });
            worked = true;
        }
        if !worked && engine.next_deadline().is_some_and(|at| at <= now) {
            timed(&mut || engine.handle_timeout(now));
        }
        settled = engine.snapshot(now).settled;
    }
    black_box(sum.load(Ordering::Relaxed));
    spent.as_nanos() as f64 / records as f64
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let records: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(220_000);
    println!("ns a record, smallest of {ROUNDS} rounds; {records} records");
    println!(
        "{:<24}{:>10}{:>10}{:>12}{:>14}",
        "", "bare", "in turn", "8 by key", "64 by key"
    );
    for (name, bytes, compression) in [
        ("100 B", 100, Compression::None),
        ("512 B", 512, Compression::None),
        ("512 B lz4", 512, Compression::Lz4),
        ("512 B zstd", 512, Compression::Zstd),
    ] {
        let mut best = [f64::MAX; 4];
        for _ in 0..ROUNDS {
            let fresh = || filled(records, bytes, compression);
            let n = records.next_multiple_of(BATCH_RECORDS) as u64;
            best[0] = best[0].min(bare(&fresh()));
            let modes = [
                (Mode::InTurn, LaneKey::Partition),
                (Mode::Fixed { lanes: 8 }, LaneKey::RecordKey),
                (Mode::Fixed { lanes: 64 }, LaneKey::RecordKey),
            ];
            for (at, (mode, key)) in modes.into_iter().enumerate() {
                best[at + 1] = best[at + 1].min(through(&mut fresh(), n, mode, key));
            }
        }
        let [a, b, c, d] = best;
        println!("{name:<24}{a:>10.1}{b:>10.1}{c:>12.1}{d:>14.1}");
    }
}
