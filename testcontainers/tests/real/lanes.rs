//! Lanes in this process, on a real Kafka: what waits and what flows.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use laneway::{Event, Kafka as Client, LaneKey, Running, StartOffset, Topics};
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::runner::Test;

use crate::{WAIT, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(ten_thousand_records_flow_past_a_slow_lane_and_the_commit_waits_for_it),
        test!(handlers_that_block_every_worker_delay_no_heartbeat),
        test!(draining_handles_what_was_dealt_once_and_leaves_the_group),
        test!(closing_commits_what_had_settled_and_leaves_the_group),
        test!(a_stuck_handler_does_not_hold_up_closing),
    ]
}

/// C, E: one record takes 5 s. Its lane waits, all others flow past it; the commit waits at it and
/// jumps to the end once it has settled.
fn ten_thousand_records_flow_past_a_slow_lane_and_the_commit_waits_for_it() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("slow", 1).unwrap();
    // A 64th of them shares the slow record's lane; more than 10,000 do not.
    kafka
        .ask(&format!("numbered {topic} 12000 500 30 1"))
        .unwrap();
    let group = kafka::unique("slow");
    let passed = Arc::new(AtomicUsize::new(0));
    let slow_is_over = Arc::new(AtomicBool::new(false));
    let passed_at_end = Arc::new(AtomicUsize::new(0));
    runtime().block_on(async {
        let (counter, over, at_end) = (passed.clone(), slow_is_over.clone(), passed_at_end.clone());
        let running = Client::new(kafka.addresses())
            .subscribe(Topics::named([topic.as_str()]).group(group.as_str()))
            .start_at(StartOffset::Earliest)
            .workers_by_key(64)
            .lane_key(LaneKey::RecordKey)
            .commit_interval(COMMIT)
            .start(move |record| {
                let (counter, over, at_end) = (counter.clone(), over.clone(), at_end.clone());
                async move {
                    if record.offset() == SLOW_OFFSET {
                        tokio::time::sleep(SLOW).await;
                        at_end.store(counter.load(Ordering::SeqCst), Ordering::SeqCst);
                        over.store(true, Ordering::SeqCst);
                    } else {
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
            .unwrap();
        eventually("10,000 records flow past", || {
            passed.load(Ordering::SeqCst) >= 10_000
        })
        .await;
        tokio::time::sleep(3 * COMMIT).await;
        let waiting = kafka.committed(&group, &topic).unwrap();
        assert!(
            !slow_is_over.load(Ordering::SeqCst),
            "the slow record ended before the commit was looked at"
        );
        assert_eq!(
            waiting,
            [(0, SLOW_OFFSET)],
            "the commit waits at the slow record"
        );
        eventually("the slow record ends", || {
            slow_is_over.load(Ordering::SeqCst)
        })
        .await;
        eventually("the commit jumps to the end", || {
            kafka.committed(&group, &topic).unwrap() == [(0, 12_000)]
        })
        .await;
        assert!(passed_at_end.load(Ordering::SeqCst) >= 10_000);
        assert_eq!(
            passed.load(Ordering::SeqCst),
            11_999,
            "each of the others once"
        );
        running.drain().await.unwrap();
    });
}

/// G19: every worker of the runtime is blocked for longer than the session time-out.
fn handlers_that_block_every_worker_delay_no_heartbeat() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("blocked", 2).unwrap();
    kafka.ask(&format!("numbered {topic} 4 4 20 1")).unwrap();
    let group = kafka::unique("blocked");
    let events = Arc::new(Mutex::new(Vec::new()));
    let handled = Arc::new(AtomicUsize::new(0));
    runtime().block_on(async {
        let (sink, counter) = (events.clone(), handled.clone());
        let running = Client::new(kafka.addresses())
            .subscribe(Topics::named([topic.as_str()]).group(group.as_str()))
            .start_at(StartOffset::Earliest)
            .session_timeout(session())
            .workers(4)
            .on_event(move |event| {
                if matches!(
                    event,
                    Event::Lost { .. } | Event::Revoked { .. } | Event::Stopped { .. }
                ) {
                    sink.lock().unwrap().push(format!("{event:?}"));
                }
            })
            .start(move |_| {
                let counter = counter.clone();
                async move {
                    thread::sleep(2 * session()); // not the runtime's: the worker stands still
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            })
            .unwrap();
        eventually("all four are handled", || {
            handled.load(Ordering::SeqCst) >= 4
        })
        .await;
        assert_eq!(
            *events.lock().unwrap(),
            Vec::<String>::new(),
            "the group knew nothing of it"
        );
        running.drain().await.unwrap();
    });
    assert_eq!(handled.load(Ordering::SeqCst), 4, "once each");
    let committed = kafka.committed_records(&group, &topic).unwrap();
    assert_eq!(committed, 4);
}

/// C18, E21: draining stops intake, runs what was dealt, commits it and leaves the group; the next
/// subscription goes on right behind, so each record is handled once.
fn draining_handles_what_was_dealt_once_and_leaves_the_group() {
    let (kafka, topic, group) = backlog("drain");
    let seen = Arc::new(Mutex::new(Vec::new()));
    runtime().block_on(async {
        for enough in [500, 2000] {
            let running = handle_slowly(kafka, &topic, &group, &seen);
            eventually("enough is handled", || seen.lock().unwrap().len() >= enough).await;
            running.drain().await.unwrap();
            let handled = seen.lock().unwrap().len();
            assert_eq!(
                kafka.committed_records(&group, &topic).unwrap(),
                handled,
                "handled and committed"
            );
            assert_no_members(kafka, &group);
        }
    });
    let distinct: BTreeSet<_> = seen.lock().unwrap().iter().copied().collect();
    assert_eq!(
        (seen.lock().unwrap().len(), distinct.len()),
        (2000, 2000),
        "once each"
    );
}

/// C18: closing drops what has not started, lets what runs end, commits and leaves, within its
/// deadline. What had settled above the commit runs again, and nothing is lost.
fn closing_commits_what_had_settled_and_leaves_the_group() {
    let (kafka, topic, group) = backlog("close");
    let seen = Arc::new(Mutex::new(Vec::new()));
    runtime().block_on(async {
        let running = handle_slowly(kafka, &topic, &group, &seen);
        eventually("enough is handled", || seen.lock().unwrap().len() >= 500).await;
        let start = Instant::now();
        running.close(CLOSE).await.unwrap();
        assert!(
            start.elapsed() < CLOSE,
            "closing took {:?}",
            start.elapsed()
        );
        assert_no_members(kafka, &group);
        let before: BTreeSet<(i32, i64)> = seen.lock().unwrap().iter().copied().collect();
        let committed = kafka.committed(&group, &topic).unwrap();
        for &(partition, offset) in &committed {
            let open = (0..offset).find(|&offset| !before.contains(&(partition, offset)));
            assert_eq!(open, None, "below the commit of {offset} in {partition}");
        }
        seen.lock().unwrap().clear();
        let running = handle_slowly(kafka, &topic, &group, &seen);
        eventually("the rest is handled", || {
            let all: BTreeSet<_> = seen.lock().unwrap().iter().copied().collect();
            all.union(&before).count() == 2000
        })
        .await;
        running.drain().await.unwrap();
        for &(partition, offset) in &committed {
            let again = seen
                .lock()
                .unwrap()
                .iter()
                .any(|&(p, o)| p == partition && o < offset);
            assert!(
                !again,
                "{partition} did not start at its commit of {offset}"
            );
        }
        assert_eq!(kafka.committed_records(&group, &topic).unwrap(), 2000);
    });
}

fn backlog(hint: &str) -> (&'static Kafka, String, String) {
    let kafka = Kafka::shared();
    let topic = kafka.topic(hint, 4).unwrap();
    kafka
        .ask(&format!("numbered {topic} 2000 50 30 1"))
        .unwrap();
    (kafka, topic, kafka::unique(hint))
}

type Seen = Arc<Mutex<Vec<(i32, i64)>>>;

fn handle_slowly(kafka: &Kafka, topic: &str, group: &str, seen: &Seen) -> Running {
    let seen = seen.clone();
    Client::new(kafka.addresses())
        .subscribe(Topics::named([topic]).group(group))
        .start_at(StartOffset::Earliest)
        .workers_by_key(8)
        .lane_key(LaneKey::RecordKey)
        .start(move |record| {
            let seen = seen.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                seen.lock()
                    .unwrap()
                    .push((record.partition(), record.offset()));
            }
        })
        .unwrap()
}

fn assert_no_members(kafka: &Kafka, group: &str) {
    assert_eq!(
        kafka.ask(&format!("group {group}")).unwrap(),
        Vec::<String>::new(),
        "members left behind"
    );
}

/// E23: a handler that never returns does not keep the subscription open past the deadline, and the
/// commit stays below its record.
fn a_stuck_handler_does_not_hold_up_closing() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("stuck", 1).unwrap();
    kafka.ask(&format!("numbered {topic} 300 20 30 1")).unwrap();
    let group = kafka::unique("stuck");
    let passed = Arc::new(AtomicUsize::new(0));
    runtime().block_on(async {
        let counter = passed.clone();
        let running = Client::new(kafka.addresses())
            .subscribe(Topics::named([topic.as_str()]).group(group.as_str()))
            .start_at(StartOffset::Earliest)
            .workers(8)
            .start(move |record| {
                let counter = counter.clone();
                async move {
                    if record.offset() == SLOW_OFFSET {
                        std::future::pending::<()>().await;
                    }
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            })
            .unwrap();
        eventually("all others are handled", || {
            passed.load(Ordering::SeqCst) == 299
        })
        .await;
        let start = Instant::now();
        // Whether it is an error that something was abandoned is not what is asked here.
        let _ = running.close(STUCK_CLOSE).await;
        assert!(
            start.elapsed() < 3 * STUCK_CLOSE,
            "closing took {:?}",
            start.elapsed()
        );
    });
    assert_eq!(kafka.committed(&group, &topic).unwrap(), [(0, SLOW_OFFSET)]);
    assert_no_members(kafka, &group);
}

/// The shortest that the broker allows: ours a second, others 6 by default.
fn session() -> Duration {
    Duration::from_secs(if kafka::is_ours() { 3 } else { 6 })
}

/// Two workers: as many as CI has cores.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < end, "not in {WAIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const SLOW: Duration = Duration::from_secs(5);
const SLOW_OFFSET: i64 = 100;
const COMMIT: Duration = Duration::from_millis(200);
const CLOSE: Duration = Duration::from_secs(20);
const STUCK_CLOSE: Duration = Duration::from_secs(3);
