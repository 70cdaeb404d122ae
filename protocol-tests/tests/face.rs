//! The tokio shell and the face, against the embedded broker over TCP.

use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::{Error, ErrorKind, Kafka, LaneKey, Outcome, Record, Topics};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(30);

async fn broker(topic: &str, partitions: i32) -> Server {
    let server = Server::start(ClusterConfig::default(), Listen::default())
        .await
        .unwrap();
    server.cluster().create_topic(topic, partitions).unwrap();
    server
}

fn fill(server: &Server, topic: &str, partitions: i32, records: usize, keys: usize) {
    let mut cluster = server.cluster();
    let now = cluster.now();
    for at in 0..records {
        let key = format!("k{}", at % keys);
        let value = at.to_string();
        let partition = (at % keys) as i32 % partitions;
        let pair = (Some(key.as_bytes()), Some(value.as_bytes()));
        cluster
            .append_records(now, topic, partition, &[pair])
            .unwrap();
    }
}

/// Runs until `wanted` records were acked, then closes; returns values by key, in order.
async fn run_keyed(server: &Server, wanted: usize) -> BTreeMap<Vec<u8>, Vec<usize>> {
    let seen = Arc::new(Mutex::new(BTreeMap::<Vec<u8>, Vec<usize>>::new()));
    let enough = Arc::new(Notify::new());
    let (handler_seen, handler_enough) = (seen.clone(), enough.clone());
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .workers_by_key(8)
        .lane_key(LaneKey::RecordKey)
        .start(move |record: Record| {
            let (seen, enough) = (handler_seen.clone(), handler_enough.clone());
            async move {
                if record.offset() % 7 == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let value: usize = std::str::from_utf8(record.value().unwrap())
                    .unwrap()
                    .parse()
                    .unwrap();
                let mut seen = seen.lock().unwrap();
                seen.entry(record.key().unwrap().to_vec())
                    .or_default()
                    .push(value);
                if seen.values().map(Vec::len).sum::<usize>() == wanted {
                    enough.notify_one();
                }
            }
        })
        .unwrap();
    if tokio::time::timeout(PATIENCE, enough.notified())
        .await
        .is_err()
    {
        panic!("not all came: {:?}", running.snapshot().await);
    }
    running.close(PATIENCE).await.unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_run_in_key_order_and_what_settled_is_committed() {
    let server = broker("t", 4).await;
    fill(&server, "t", 4, 2000, 50);
    let seen = run_keyed(&server, 2000).await;
    assert_eq!(seen.len(), 50);
    for values in seen.values() {
        assert_eq!(values.len(), 40);
        assert!(values.is_sorted(), "{values:?}");
    }
    let cluster = server.cluster();
    for partition in 0..4 {
        let end = cluster.partition_view("t", partition).unwrap().log_end;
        let committed = cluster.committed("g", "t", partition).unwrap().offset;
        assert_eq!(committed, end, "partition {partition}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_resumes_at_the_watermark() {
    let server = broker("t", 2).await;
    fill(&server, "t", 2, 500, 10);
    run_keyed(&server, 500).await;
    fill(&server, "t", 2, 300, 10);
    let seen = run_keyed(&server, 300).await;
    assert_eq!(seen.values().map(Vec::len).sum::<usize>(), 300);
}

#[tokio::test]
async fn a_failing_record_is_tried_again_until_it_is_acked() {
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 1, 1);
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let done = Arc::new(Notify::new());
    let (log, finished) = (attempts.clone(), done.clone());
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .start(move |record: Record| {
            log.lock().unwrap().push(record.attempt());
            let third = record.attempt() == 3;
            if third {
                finished.notify_one();
            }
            async move {
                if third {
                    Outcome::Ack
                } else {
                    Outcome::failed("not yet")
                }
            }
        })
        .unwrap();
    tokio::time::timeout(PATIENCE, done.notified())
        .await
        .unwrap();
    running.close(PATIENCE).await.unwrap();
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
    assert_eq!(server.cluster().committed("g", "t", 0).unwrap().offset, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_functions_run_on_threads() {
    let server = broker("t", 2).await;
    fill(&server, "t", 2, 200, 8);
    let count = Arc::new(Mutex::new(0));
    let done = Arc::new(Notify::new());
    let (counter, finished) = (count.clone(), done.clone());
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .workers_by_key(4)
        .lane_key(LaneKey::RecordKey)
        .start_blocking(move |_record: Record| {
            std::thread::sleep(Duration::from_micros(100));
            let mut count = counter.lock().unwrap();
            *count += 1;
            if *count == 200 {
                finished.notify_one();
            }
        })
        .unwrap();
    tokio::time::timeout(PATIENCE, done.notified())
        .await
        .unwrap();
    running.close(PATIENCE).await.unwrap();
    assert_eq!(*count.lock().unwrap(), 200);
}

#[tokio::test]
async fn batches_are_handed_over_whole() {
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 1000, 1);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let done = Arc::new(Notify::new());
    let (log, finished) = (sizes.clone(), done.clone());
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .batch(64)
        .start(move |batch: Vec<Record>| {
            let mut sizes = log.lock().unwrap();
            sizes.push(batch.len());
            if sizes.iter().sum::<usize>() == 1000 {
                finished.notify_one();
            }
            std::future::ready(())
        })
        .unwrap();
    tokio::time::timeout(PATIENCE, done.notified())
        .await
        .unwrap();
    running.close(PATIENCE).await.unwrap();
    let sizes = sizes.lock().unwrap();
    assert!(sizes.iter().all(|n| *n <= 64));
    assert!(
        sizes.iter().any(|n| *n > 1),
        "what has arrived comes together: {sizes:?}"
    );
}

async fn refused(kafka: Kafka, topics: Topics) -> Error {
    kafka
        .subscribe(topics)
        .run(|_record| async {})
        .await
        .unwrap_err()
}

#[tokio::test]
async fn misuse_is_refused_before_any_io() {
    let kafka = || Kafka::new(["localhost:1"]);
    let none: [&str; 0] = [];
    for (error, word) in [
        (
            refused(kafka(), Topics::named(none).group("g")).await,
            "Topics::named",
        ),
        (refused(kafka(), Topics::named(["t"])).await, ".group("),
        (
            refused(kafka(), Topics::named(["a b"]).group("g")).await,
            "a b",
        ),
        (
            refused(Kafka::new(none), Topics::named(["t"]).group("g")).await,
            "bootstrap",
        ),
        (
            refused(Kafka::new(["nowhere"]), Topics::named(["t"]).group("g")).await,
            "host:port",
        ),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.to_string().contains(word), "{error}");
    }
    let zero = kafka()
        .subscribe(Topics::named(["t"]).group("g"))
        .workers_by_key(0);
    assert_eq!(
        zero.run(|_r| async {}).await.unwrap_err().kind(),
        ErrorKind::Misuse
    );
    let unused = kafka()
        .subscribe(Topics::named(["t"]).group("g"))
        .lane_key(LaneKey::RecordKey);
    let error = unused.run(|_r| async {}).await.unwrap_err();
    assert!(error.to_string().contains("workers_by_key"), "{error}");
    let both = kafka()
        .subscribe(Topics::named(["t"]).group("g"))
        .workers(2)
        .workers_by_key(3);
    assert!(
        both.run(|_r| async {})
            .await
            .unwrap_err()
            .to_string()
            .contains("both")
    );
    let endless = laneway::Retry::default().max_attempts(8);
    let cap = kafka()
        .subscribe(Topics::named(["t"]).group("g"))
        .retry(endless);
    let told = cap.run(|_r| async {}).await.unwrap_err().to_string();
    assert!(told.contains("Exhausted::Stop"), "{told}");
}

#[tokio::test]
async fn dropping_the_handle_blocks_nobody_and_leaves_the_group() {
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 10, 1);
    let started = Arc::new(Notify::new());
    let notify = started.clone();
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .start(move |_record: Record| {
            notify.notify_one();
            std::future::pending::<()>()
        })
        .unwrap();
    tokio::time::timeout(PATIENCE, started.notified())
        .await
        .unwrap();
    drop(running);
    // The next member gets the partition without waiting for a session to expire.
    let again = Arc::new(Notify::new());
    let notify = again.clone();
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .start(move |_record: Record| {
            notify.notify_one();
            std::future::ready(())
        })
        .unwrap();
    tokio::time::timeout(Duration::from_secs(20), again.notified())
        .await
        .unwrap();
    running.close(PATIENCE).await.unwrap();
}

/// E28: a panic in the user's event function takes nothing down.
#[tokio::test]
async fn a_panic_in_the_event_function_takes_nothing_down() {
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 20, 2);
    let (done, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .on_event(|event| panic!("told of {event:?}"))
        .start(move |_record: Record| {
            // The receiver is gone once the test has seen enough.
            let _ = done.send(());
            std::future::ready(())
        })
        .unwrap();
    for _ in 0..20 {
        let record = tokio::time::timeout(PATIENCE, seen.recv()).await;
        record.unwrap().unwrap();
    }
    running.close(PATIENCE).await.unwrap();
    assert_eq!(server.cluster().committed("g", "t", 0).unwrap().offset, 20);
}

/// Waits until `done` says so of the cluster.
async fn until(server: &Server, mut done: impl FnMut(&laneway::broker::Cluster) -> bool) {
    let begun = std::time::Instant::now();
    while !done(&server.cluster()) {
        assert!(begun.elapsed() < PATIENCE, "it does not come to pass");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// G19: every thread of `run_blocking` is stuck in a handler: heartbeats go on, the handle
/// answers, and closing ends in its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_handlers_do_not_hold_the_client_up() {
    const HEARTBEAT: i16 = 12;
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 100, 10);
    let (let_go, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let stuck = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = stuck.clone();
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .session_timeout(Duration::from_secs(6))
        .lanes_per_key(2)
        .lane_key(LaneKey::RecordKey)
        .start_blocking(move |_record: Record| {
            counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            // Until the test drops its end; both threads, one behind the other.
            let _ = gate.lock().unwrap().recv();
        })
        .unwrap();
    until(&server, |_| {
        stuck.load(std::sync::atomic::Ordering::SeqCst) == 2
    })
    .await;
    let before = server.cluster().requests(HEARTBEAT);
    until(&server, |cluster| cluster.requests(HEARTBEAT) >= before + 3).await;
    assert_eq!(running.snapshot().await.unwrap().settled, 0);
    assert_eq!(stuck.load(std::sync::atomic::Ordering::SeqCst), 2);
    let begun = std::time::Instant::now();
    running.close(Duration::from_secs(1)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(let_go);
}

/// What `run_blocking` returns too late counts for nothing and is counted; its lane waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_handler_that_is_late_has_failed() {
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 2, 1);
    let (seen, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .handler_timeout(Duration::from_millis(20))
        .retry(laneway::Retry::fixed(Duration::from_millis(1)))
        .workers_by_key(1)
        .start_blocking(move |record: Record| {
            let (offset, attempt) = (record.offset(), record.attempt());
            if (offset, attempt) == (0, 1) {
                std::thread::sleep(Duration::from_millis(60));
            }
            let error = record.last_error().map(str::to_owned);
            seen.send((offset, attempt, error)).unwrap();
        })
        .unwrap();
    assert_eq!(runs.recv().await, Some((0, 1, None)));
    let words = "the handler took longer than 20ms".to_owned();
    assert_eq!(runs.recv().await, Some((0, 2, Some(words))));
    // A busy machine may be late more than once; order holds all the same.
    let mut next = runs.recv().await.unwrap();
    while next.0 == 0 {
        next = runs.recv().await.unwrap();
    }
    assert_eq!((next.0, next.1), (1, 1));
    assert!(running.snapshot().await.unwrap().timed_out >= 1);
    running.close(PATIENCE).await.unwrap();
}

/// A future that never ends is dropped at its time-out; the error policy sees what it was and says
/// what comes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_ends_is_dropped_and_the_policy_decides() {
    use laneway::lane::TimedOut;
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 3, 1);
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .handler_timeout(Duration::from_millis(20))
        .on_error(|record, error| match error.downcast_ref::<TimedOut>() {
            Some(TimedOut(_)) if record.attempt() > 1 => Outcome::Drop,
            _ => Outcome::RetryAfter(Duration::from_millis(1)),
        })
        .commit_interval(Duration::from_millis(10))
        .start(|record: Record| async move {
            if record.offset() == 1 {
                std::future::pending::<()>().await;
            }
        })
        .unwrap();
    until(&server, |cluster| {
        cluster
            .committed("g", "t", 0)
            .is_some_and(|c| c.offset == 3)
    })
    .await;
    assert!(running.snapshot().await.unwrap().timed_out >= 2);
    running.close(PATIENCE).await.unwrap();
}

/// A handler is told when its partition is about to go: here since the subscription closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_is_told_when_its_lease_ends() {
    let server = broker("t", 1).await;
    fill(&server, "t", 1, 2, 1);
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let running = Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .start(move |record: Record| {
            let told = told.clone();
            async move {
                let lease = record.lease();
                told.send(lease.is_current()).unwrap();
                record.cancelled().await;
                lease.cancelled().await;
                assert!(lease.counts());
                told.send(lease.is_current()).unwrap();
            }
        })
        .unwrap();
    assert_eq!(heard.recv().await, Some(true));
    running.close(PATIENCE).await.unwrap();
    assert_eq!(heard.recv().await, Some(false));
    let committed = server.cluster().committed("g", "t", 0).map(|c| c.offset);
    assert_eq!(committed, Some(1), "what it returned while draining counts");
}
