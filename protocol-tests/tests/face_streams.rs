//! Deliveries, results, hooks and workers of the tokio shell, against the embedded broker over TCP.

mod face_kit;

use face_kit::filled;
use laneway::broker::Server;
use laneway::{
    ErrorKind, Event, Kafka, LaneKey, Outcome, RESULTS_MAX, Record, Retry, Scope, Subscription,
    TopicPartition, Topics,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn subscription(server: &Server) -> Subscription {
    Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .retry(Retry::exponential(
            Duration::from_millis(1),
            Duration::from_millis(5),
        ))
}

fn committed(server: &Server, partition: i32) -> Option<i64> {
    server
        .cluster()
        .committed("g", "t", partition)
        .map(|c| c.offset)
}

/// E08: deliveries are settled by whoever has them, also on plain threads: one of a lane is out at
/// a time, in order; one that fails or is dropped without a word comes again before the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_settled_from_anywhere_in_lane_order() {
    let server = filled(2, 400, 8).await;
    let mut deliveries = subscription(&server)
        .workers_by_key(16)
        .lane_key(LaneKey::RecordKey)
        .stream()
        .unwrap();
    let (seen, out) = (
        Arc::new(Mutex::new(BTreeMap::<Vec<u8>, Vec<usize>>::new())),
        Arc::new(Mutex::new(BTreeMap::<u32, usize>::new())),
    );
    let (to_threads, jobs) = std::sync::mpsc::channel::<laneway::Delivery>();
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..3 {
        let (jobs, seen, out) = (jobs.clone(), seen.clone(), out.clone());
        std::thread::spawn(move || {
            loop {
                let job = jobs.lock().unwrap().recv();
                let Ok(delivery) = job else { return };
                let lane = delivery.lane().unwrap();
                let value: usize = std::str::from_utf8(delivery.value().unwrap())
                    .unwrap()
                    .parse()
                    .unwrap();
                let key = delivery.key().unwrap().to_vec();
                out.lock().unwrap().remove(&lane);
                match (value % 10, delivery.attempt()) {
                    (3, 1) => drop(delivery),
                    (4, 1) => delivery.nack("not yet"),
                    (5, 1) => delivery.retry_after(Duration::from_millis(2)),
                    _ => {
                        seen.lock().unwrap().entry(key).or_default().push(value);
                        delivery.ack();
                    }
                }
            }
        });
    }
    let work = async {
        while seen.lock().unwrap().values().map(Vec::len).sum::<usize>() < 400 {
            let delivery = tokio::select! {
                next = deliveries.next() => next.expect("it goes on"),
                () = tokio::time::sleep(Duration::from_millis(20)) => continue,
            };
            let lane = delivery.lane().unwrap();
            let before = out.lock().unwrap().insert(lane, 1);
            assert_eq!(before, None, "two of lane {lane} are out");
            to_threads.send(delivery).unwrap();
        }
    };
    timeout(PATIENCE, work).await.unwrap();
    deliveries.close(PATIENCE).await.unwrap();
    for values in seen.lock().unwrap().values() {
        assert!(values.is_sorted(), "{values:?}");
        assert_eq!(values.len(), 50);
    }
    assert_eq!(
        (committed(&server, 0), committed(&server, 1)),
        (Some(200), Some(200))
    );
}

/// E08: a stream that is drained gives what had been dealt and ends; one that is dropped gives the
/// partition up at once and leaves nothing running.
#[tokio::test]
async fn a_stream_ends_when_it_is_drained_and_when_it_is_dropped() {
    let server = filled(1, 50, 5).await;
    let mut deliveries = subscription(&server).workers(4).stream().unwrap();
    let first = timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap();
    assert!(first.lease_stands());
    drop(deliveries);
    // Its word comes too late for anyone.
    let mut first = first;
    timeout(PATIENCE, first.given_up()).await.unwrap();
    first.ack();
    let mut deliveries = subscription(&server).workers(4).stream().unwrap();
    let mut taken = 0;
    while let Some(delivery) = timeout(PATIENCE, deliveries.next()).await.unwrap() {
        delivery.ack();
        taken += 1;
        if taken == 50 {
            deliveries.drain().await.unwrap();
        }
    }
    deliveries.join().await.unwrap();
    assert_eq!((taken, committed(&server, 0)), (50, Some(50)));
}

/// E08: results that are not taken hold the handlers up, with their records unsettled, and nothing
/// is lost when they are taken at last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_bounded_and_none_is_missed() {
    let records = 2 * RESULTS_MAX;
    let server = filled(1, records, 50).await;
    let began = Arc::new(AtomicUsize::new(0));
    let count = began.clone();
    let mut results = subscription(&server)
        .workers(8)
        .commit_interval(Duration::from_millis(10))
        .run_stream(move |record: Record| {
            count.fetch_add(1, Ordering::Relaxed);
            let fails = record.offset() % 100 == 7 && record.attempt() == 1;
            async move {
                match fails {
                    true => Err("not yet"),
                    false => Ok(record.offset()),
                }
            }
        })
        .unwrap();
    let full = async {
        while began.load(Ordering::Relaxed) < RESULTS_MAX + 8 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, full).await.unwrap();
    let snapshot = results.running().snapshot().await.unwrap();
    assert!(snapshot.settled <= RESULTS_MAX as u64, "{snapshot:?}");
    let mut seen = Vec::new();
    while seen.len() < records {
        let result = timeout(PATIENCE, results.next()).await.unwrap().unwrap();
        assert_eq!(result.partition, TopicPartition::new("t", 0));
        assert_eq!(
            (result.value, result.offset % 100 == 7),
            (result.offset, result.attempt == 2)
        );
        seen.push(result.offset);
    }
    results.close(PATIENCE).await.unwrap();
    seen.sort_unstable();
    assert_eq!(seen, (0..records as i64).collect::<Vec<_>>());
    assert_eq!(committed(&server, 0), Some(records as i64));
}

/// G45: a hook's panic ends the subscription in its own words; a hook that waits is waited for.
#[tokio::test]
async fn hooks_are_awaited_and_their_panics_told() {
    let server = filled(1, 10, 1).await;
    let (told, mut order) = mpsc::unbounded_channel();
    let (granted, handled, revoked) = (told.clone(), told.clone(), told);
    let running = subscription(&server)
        .on_granted(move |partitions| {
            let granted = granted.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                granted.send(format!("granted {}", partitions[0])).unwrap();
                Ok::<(), String>(())
            }
        })
        .on_revoked(move |partitions| {
            revoked.send(format!("revoked {}", partitions[0])).unwrap();
            async move {
                match partitions.is_empty() {
                    false => panic!("the disk is full"),
                    true => Ok::<(), String>(()),
                }
            }
        })
        .start(move |record: Record| {
            handled
                .send(format!("handled {}", record.offset()))
                .unwrap();
            std::future::ready(())
        })
        .unwrap();
    let mut events = running.events();
    let mut first = Vec::new();
    for _ in 0..11 {
        first.push(timeout(PATIENCE, order.recv()).await.unwrap().unwrap());
    }
    assert_eq!((&*first[0], &*first[1]), ("granted t-0", "handled 0"));
    let error = running.drain().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Handler);
    assert!(
        error
            .to_string()
            .contains("on_revoked panicked: the disk is full"),
        "{error}"
    );
    assert_eq!(committed(&server, 0), Some(10));
    let mut seen = 0;
    while let Some(event) = timeout(PATIENCE, events.next()).await.unwrap() {
        seen += usize::from(matches!(
            event,
            Event::Granted { .. } | Event::Revoked { .. }
        ));
    }
    assert_eq!(seen, 2, "the events end with the subscription");
}

async fn wait_for(ended: &mut mpsc::UnboundedReceiver<()>, n: usize) {
    for _ in 0..n {
        timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    }
}

/// E31: threads that wait for a permit are woken when more may run, and end with the handle.
#[tokio::test]
async fn threads_follow_set_workers_and_end_with_the_handle() {
    let server = filled(4, 4000, 40).await;
    let (running_now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, most) = (running_now.clone(), peak.clone());
    let (done, mut ended) = mpsc::unbounded_channel();
    let running = subscription(&server)
        .workers_by_key(6)
        .lane_key(LaneKey::RecordKey)
        .start_blocking(move |_record: Record| {
            let at_once = now.fetch_add(1, Ordering::AcqRel) + 1;
            most.fetch_max(at_once, Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(2));
            now.fetch_sub(1, Ordering::AcqRel);
            done.send(()).map_err(|e| e.to_string())
        })
        .unwrap();
    wait_for(&mut ended, 50).await;
    running.set_workers(1).await.unwrap();
    wait_for(&mut ended, 20).await; // what ran when it was said
    peak.store(0, Ordering::Release);
    wait_for(&mut ended, 50).await;
    assert_eq!(peak.load(Ordering::Acquire), 1);
    running.set_workers(6).await.unwrap();
    wait_for(&mut ended, 200).await;
    assert!(peak.load(Ordering::Acquire) > 3);
    let refused = running.set_workers(7).await.unwrap_err();
    assert!(refused.to_string().contains("6 threads"), "{refused}");
    running.pause(Scope::All).await.unwrap();
    drop(running);
    // The handlers' closure, and with it the sender, goes with the last thread.
    let gone = async { while ended.recv().await.is_some() {} };
    timeout(PATIENCE, gone).await.unwrap();
}

/// E31: dropping the handle drops the futures that run and everything that the handler holds.
#[tokio::test]
async fn a_dropped_handle_leaves_nothing_running() {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
    let server = filled(2, 40, 8).await;
    let alive = Arc::new(AtomicUsize::new(0));
    let (count, (begun, mut running_now)) = (alive.clone(), mpsc::unbounded_channel());
    let running = subscription(&server)
        .workers(8)
        .start(move |_record: Record| {
            count.fetch_add(1, Ordering::AcqRel);
            let guard = Guard(count.clone());
            begun.send(()).unwrap();
            async move {
                std::future::pending::<()>().await;
                drop(guard);
                Outcome::Ack
            }
        })
        .unwrap();
    for _ in 0..8 {
        timeout(PATIENCE, running_now.recv()).await.unwrap();
    }
    let mut events = running.events();
    drop(running);
    let gone = async { while running_now.recv().await.is_some() {} };
    timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(alive.load(Ordering::Acquire), 0);
    let over = async { while events.next().await.is_some() {} };
    timeout(PATIENCE, over).await.unwrap();
}
