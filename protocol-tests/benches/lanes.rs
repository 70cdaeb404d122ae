//! CPU nanoseconds a record, from its key to its settlement: hash, deal, ship, handler (it does
//! nothing), take back, settle. In one thread, and with the engine on one and executors on two more.
//! Also allocations for each million records; 10,000 are the parcels' own.
//!
//! `cargo bench -p laneway-protocol-tests --bench lanes [-- RECORDS]`

use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use laneway::ids::{ExecutorId, LeaseId};
use laneway::lane::{
    Done, Group, Handler, KeyHash, Keys, LaneHasher, Lanes, LanesConfig, Lease, Mode, Note,
    Outcome, Outcomes, Parcel, Runner, RunnerConfig, Sink, Taken,
};
use laneway::settle::{Offsets, Tracker};
use laneway::time::Now;

const PARTITIONS: usize = 8;
const BATCHES: usize = 64;
const BATCH: usize = 100;
const RECORD_BYTES: usize = 512;
const KEYS: u64 = 10_000;
const IN_FLIGHT_MAX: usize = 16_384;
const RUNS: usize = 5;

/// A batch's bytes: each record's key is its first 16.
type Load = Arc<[u8]>;

struct Noop;

impl Handler<Load> for Noop {
    type Run = Ready<Outcomes>;

    fn run(&self, taken: Taken<Load>) -> Self::Run {
        let (parcel, index) = &taken.first;
        black_box(parcel.load[*index as usize * RECORD_BYTES]);
        ready(Outcomes::All(Outcome::Ack))
    }
}

struct Trackers {
    leases: Vec<(Arc<Lease>, Tracker)>,
    settled: usize,
}

impl Sink for Trackers {
    fn settled(&mut self, lease: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
        let tracker = &mut self.leases[lease.id().0 as usize].1;
        for (first, len) in ranges {
            tracker.settle_range(first, len).expect("settles once");
            self.settled += len as usize;
        }
        tracker.advance();
    }

    fn note(&mut self, note: Note) {
        panic!("{note:?}");
    }
}

/// Everything on the engine's side.
struct Engine {
    lanes: Lanes<Load>,
    trackers: Trackers,
    batches: Vec<Load>,
    hasher: LaneHasher,
    salt: u64,
    hashes: Vec<KeyHash>,
    by_key: bool,
    dealt: usize,
    began: Instant,
}

impl Engine {
    fn new(config: &LanesConfig, by_key: bool) -> Self {
        let hasher = LaneHasher::new(std::array::from_fn(|n| n as u8 ^ 0x5a));
        let leases = (0..PARTITIONS as u64).map(|id| (Lease::new(LeaseId(id)), Tracker::new(0)));
        Engine {
            lanes: Lanes::new(config),
            trackers: Trackers {
                leases: leases.collect(),
                settled: 0,
            },
            batches: batches(),
            salt: hasher.salt("bench"),
            hasher,
            hashes: Vec::new(),
            by_key,
            dealt: 0,
            began: Instant::now(),
        }
    }

    fn now(&self) -> Now {
        Now(self.began.elapsed().as_nanos() as u64)
    }

    /// Deals what is wanted, up to `records` in all.
    fn deal(&mut self, records: usize) {
        while self.dealt < records
            && self.dealt - self.trackers.settled < IN_FLIGHT_MAX
            && self.lanes.wants_more()
        {
            let turn = self.dealt / BATCH;
            let load = Arc::clone(&self.batches[turn % BATCHES]);
            let (lease, tracker) = &mut self.trackers.leases[turn % PARTITIONS];
            let base = tracker.position();
            let len = BATCH as u32;
            let first_ordinal = tracker
                .push(Offsets::Dense { base, len }, base + i64::from(len), 0)
                .expect("offsets rise");
            let parcel = Arc::new(Parcel {
                lease: Arc::clone(lease),
                first_ordinal,
                taken_at: Now(0),
                len,
                load,
            });
            if self.by_key {
                self.hashes.clear();
                let keys = parcel.load.chunks_exact(RECORD_BYTES);
                self.hashes
                    .extend(keys.map(|record| self.hasher.salted(self.salt, &record[..16])));
                self.lanes.deal(&parcel, Keys::Each(&self.hashes));
            } else {
                let key = self.hasher.partition("bench", (turn % PARTITIONS) as i32);
                self.lanes.deal(&parcel, Keys::Same(key));
            }
            self.dealt += BATCH;
        }
    }

    fn take(&mut self, executor: ExecutorId, done: Done<Load>) {
        let now = self.now();
        match done {
            Done::Group(group) => self
                .lanes
                .take_back(now, executor, group, &mut self.trackers),
            Done::Late(lates) => self.lanes.late(now, executor, lates, &mut self.trackers),
        }
    }
}

fn batches() -> Vec<Load> {
    let mut random = 1u64;
    let batch = |_| {
        let mut bytes = vec![0; BATCH * RECORD_BYTES];
        for record in bytes.chunks_exact_mut(RECORD_BYTES) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let key = format!("key-{:012}", (random >> 33) % KEYS);
            record[..16].copy_from_slice(key.as_bytes());
        }
        bytes.into()
    };
    (0..BATCHES).map(batch).collect()
}

/// CPU time of this thread so far, where the system tells it; else nothing.
fn thread_nanos() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

/// CPU nanoseconds (or those of the clock) and allocations of `work` in this thread.
fn measured(work: impl FnOnce()) -> (u64, u64) {
    let (cpu, clock) = (thread_nanos(), Instant::now());
    let allocations = allocation_counter::measure(work).count_total;
    let nanos = match (cpu, thread_nanos()) {
        (Some(before), Some(after)) => after - before,
        _ => clock.elapsed().as_nanos() as u64,
    };
    (nanos, allocations)
}

fn one_thread(config: &LanesConfig, by_key: bool, records: usize) -> (u64, u64) {
    let mut engine = Engine::new(config, by_key);
    let mut runner = Runner::new(Noop, &config.runner());
    let mut cx = Context::from_waker(Waker::noop());
    measured(|| {
        while engine.trackers.settled < records {
            engine.deal(records);
            let now = engine.now();
            while let Some((_, group)) = engine.lanes.poll_run(now) {
                runner.give(group);
            }
            while let Poll::Ready(done) = runner.poll(&mut cx, now, &mut || true) {
                engine.take(ExecutorId(0), done);
            }
        }
    })
}

fn executor(
    number: u32,
    config: &RunnerConfig,
    groups: &Receiver<Group<Load>>,
    back: &Sender<(ExecutorId, Done<Load>)>,
) -> (u64, u64) {
    let mut runner = Runner::new(Noop, config);
    let mut cx = Context::from_waker(Waker::noop());
    measured(|| {
        while let Ok(group) = groups.recv() {
            runner.give(group);
            while let Poll::Ready(done) = runner.poll(&mut cx, Now(0), &mut || true) {
                if back.send((ExecutorId(number), done)).is_err() {
                    return;
                }
            }
        }
    })
}

fn three_threads(config: &LanesConfig, by_key: bool, records: usize) -> (u64, u64) {
    let mut engine = Engine::new(config, by_key);
    let runner = config.runner();
    thread::scope(|scope| {
        let (back, done) = channel();
        let mut to = Vec::new();
        let mut executors = Vec::new();
        for number in 0..config.executors {
            let (sender, groups) = channel();
            let (back, runner) = (back.clone(), &runner);
            to.push(sender);
            executors.push(scope.spawn(move || executor(number, runner, &groups, &back)));
        }
        let (mut nanos, mut allocations) = measured(|| {
            while engine.trackers.settled < records {
                engine.deal(records);
                let now = engine.now();
                while let Some((executor, group)) = engine.lanes.poll_run(now) {
                    to[executor.0 as usize]
                        .send(group)
                        .expect("the executor lives");
                }
                let (executor, first) = done.recv().expect("executors live");
                engine.take(executor, first);
                while let Ok((executor, next)) = done.try_recv() {
                    engine.take(executor, next);
                }
            }
        });
        to.clear();
        for executor in executors {
            let (more, others) = executor.join().expect("no panic");
            nanos += more;
            allocations += others;
        }
        (nanos, allocations)
    })
}

/// What no lanes can save: each record's first bytes are looked at, and the key is hashed.
fn bare(records: usize, hashed: bool) -> (u64, u64) {
    let batches = batches();
    let hasher = LaneHasher::new([1; 32]);
    let salt = hasher.salt("bench");
    measured(|| {
        for turn in 0..records / BATCH {
            let load = &batches[turn % BATCHES];
            if hashed {
                for record in load.chunks_exact(RECORD_BYTES) {
                    black_box(hasher.salted(salt, &record[..16]));
                }
            }
            for record in load.chunks_exact(RECORD_BYTES) {
                black_box(record[0]);
            }
        }
    })
}

/// The longest that dealing 100 records took while the table of live keys grew to a million: none
/// of them ran, so that none let its lane go.
fn longest_pause() -> u64 {
    const LIVE: u64 = 1_000_000;
    let mut config = LanesConfig::new(Mode::PerKey { at_once: 16 });
    config.queued_max = usize::MAX;
    let mut lanes: Lanes<()> = Lanes::new(&config);
    let lease = Lease::new(LeaseId(1));
    let hasher = LaneHasher::new([3; 32]);
    let mut longest = 0;
    for first_ordinal in (0..LIVE).step_by(BATCH) {
        let began = Instant::now();
        let len = BATCH as u32;
        let keys: Vec<KeyHash> = (first_ordinal..first_ordinal + BATCH as u64)
            .map(|n| hasher.number(n))
            .collect();
        let lease = Arc::clone(&lease);
        let parcel = Arc::new(Parcel {
            lease,
            first_ordinal,
            taken_at: Now(0),
            len,
            load: (),
        });
        lanes.deal(&parcel, Keys::Each(&keys));
        longest = longest.max(began.elapsed().as_micros() as u64);
    }
    assert_eq!(lanes.load().keys, LIVE as usize);
    longest
}

fn main() {
    let given = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let records: usize = given.unwrap_or(2_000_000) / BATCH * BATCH;
    println!("{records} records, least of {RUNS} runs: CPU ns a record, allocations a million");
    let report = |name: &str, run: &dyn Fn() -> (u64, u64)| {
        let (nanos, allocations) = (0..RUNS).map(|_| run()).min().expect("runs");
        let per = nanos as f64 / records as f64;
        let allocations = allocations * 1_000_000 / records as u64;
        println!("{name:<44}{per:>8.1}{allocations:>9}");
    };
    report("bare: touch each record", &|| bare(records, false));
    report("bare: touch each record, hash its key", &|| {
        bare(records, true)
    });
    let mut modes = vec![("in turn, by partition".to_owned(), Mode::InTurn, false)];
    modes.push((
        "any order, 8 workers".to_owned(),
        Mode::Any { workers: 8 },
        true,
    ));
    for lanes in [1, 8, 64] {
        modes.push((format!("{lanes} lanes by key"), Mode::Fixed { lanes }, true));
    }
    modes.push((
        "8 lanes by partition".to_owned(),
        Mode::Fixed { lanes: 8 },
        false,
    ));
    modes.push((
        "a lane for each of 10,000 keys, 16 at once".to_owned(),
        Mode::PerKey { at_once: 16 },
        true,
    ));
    for (name, mode, by_key) in modes {
        let mut config = LanesConfig::new(mode);
        report(&format!("{name}, one thread"), &|| {
            one_thread(&config, by_key, records)
        });
        if mode != Mode::InTurn {
            config.executors = 2;
            report(&format!("{name}, engine and 2 executors"), &|| {
                three_threads(&config, by_key, records)
            });
        }
    }
    let pause = (0..RUNS).map(|_| longest_pause()).min().expect("runs");
    println!("longest pause while the table of keys grows to a million: {pause} us");
}
