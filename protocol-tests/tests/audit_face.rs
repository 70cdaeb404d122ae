//! What a user may give wrongly, and what the face makes of it; deliveries and results at bad
//! moments. Against the embedded broker over TCP.

mod face_kit;

use face_kit::filled;
use laneway::broker::Server;
use laneway::lane::{Exhausted, TimedOut};
use laneway::{
    Error, ErrorKind, Event, GroupProtocol, Kafka, LaneKey, Outcome, Partitions, Record, Retry,
    Subscription, Topics,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn subscription(server: &Server) -> Subscription {
    Kafka::new(server.bootstrap())
        .subscribe(Topics::named(["t"]).group("g"))
        .retry(Retry::fixed(Duration::from_millis(2)))
}

fn committed(server: &Server, partition: i32) -> Option<i64> {
    server
        .cluster()
        .committed("g", "t", partition)
        .map(|c| c.offset)
}

async fn refused(subscription: Subscription) -> String {
    let run = subscription.run(|_record: Record| async {});
    let error: Error = timeout(PATIENCE, run).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    error.to_string()
}

/// What cannot be is refused in words that name the setting and what would do, before anything is
/// asked of a broker: nothing answers at this address.
#[tokio::test]
async fn what_cannot_be_is_refused_by_its_setting() {
    let kafka = || Kafka::new(["localhost:1"]);
    let of = || kafka().subscribe(Topics::named(["t"]).group("g"));
    let by = |pattern: &str| kafka().subscribe(Topics::pattern(pattern).group("g"));
    let reserved = |tp: Partitions| kafka().subscribe(tp.group("g").reserved());
    let cases: Vec<(Subscription, &[&str])> = vec![
        (of().metadata_max(0), &["metadata_max(0)", "OffsetMap::Off"]),
        (
            of().metadata_max(1 << 20),
            &["metadata_max(1048576)", "32767"],
        ),
        (
            by("orders-("),
            &["orders-(", "Topics::pattern", "look-around"],
        ),
        (by("(?=x)a"), &["Topics::pattern"]),
        (by(""), &["empty", "Topics::pattern"]),
        (
            kafka().subscribe(Topics::named(["a/b"]).group("g")),
            &["a/b", "a-z A-Z 0-9 . _ -"],
        ),
        (
            kafka().subscribe(Topics::named(["x".repeat(250)]).group("g")),
            &["1 to 249"],
        ),
        (
            kafka().subscribe(Topics::named(["t", "t"]).group("g")),
            &["twice", "Topics::named"],
        ),
        (
            reserved(Partitions::of("t", [-1])),
            &["negative", "Partitions::of"],
        ),
        (
            reserved(Partitions::of("t", [4])).group_protocol(GroupProtocol::Consumer),
            &["reserve", "GroupProtocol::Classic"],
        ),
        (
            kafka().subscribe(Partitions::of("t", [4]).reserved()),
            &["reserved", ".group("],
        ),
        (
            of().reserve("t", [1])
                .group_protocol(GroupProtocol::Consumer),
            &["reserve", "GroupProtocol::Classic"],
        ),
        (
            kafka()
                .subscribe(Partitions::of("t", [0]).offsets_in("g"))
                .instance_id("a"),
            &["instance_id", "Topics::named"],
        ),
        (
            of().dead_letter("t"),
            &["dead_letter(\"t\")", "name another"],
        ),
        (of().dead_letter("no way"), &["dead_letter(\"no way\")"]),
        (
            of().retry(Retry::none()),
            &["Retry::none", "Exhausted::Drop", ".dead_letter(topic)"],
        ),
        (
            of().retry(Retry::none().then(Exhausted::DeadLetter)),
            &[".dead_letter(topic)"],
        ),
        (
            of().metadata_age_max(Duration::ZERO),
            &["metadata_age_max", "a second"],
        ),
        (of().ahead_max(0), &["ahead_max(0)"]),
        (of().parked_max(0), &["parked_max(0)"]),
        (of().budget(1000), &["budget", "1 MiB"]),
        (
            of().handler_timeout(Duration::ZERO),
            &["handler_timeout", "1 ms"],
        ),
        (of().stall_after(Duration::ZERO), &["stall_after"]),
        (
            of().commit_interval(Duration::ZERO),
            &["commit_interval", "commit_every"],
        ),
        (
            of().session_timeout(Duration::from_millis(10)),
            &["session_timeout"],
        ),
        (
            of().rebalance_timeout(Duration::from_secs(1)),
            &["rebalance_timeout", "session_timeout"],
        ),
        (
            of().server_assignor("uniform"),
            &["GroupProtocol::Consumer"],
        ),
    ];
    for (subscription, words) in cases {
        let told = refused(subscription).await;
        for word in words {
            assert!(told.contains(word), "{word:?} is not in {told:?}");
        }
    }
}

/// A topic that is not there, and a partition that is not: said in words, and waited for; what the
/// group has committed stays.
#[tokio::test]
async fn what_is_not_there_is_said() {
    let server = filled(2, 20, 4).await;
    let running = subscription(&server).start(|_record| async {}).unwrap();
    while committed(&server, 0) != Some(10) || committed(&server, 1) != Some(10) {
        timeout(PATIENCE, running.commit_now())
            .await
            .unwrap()
            .unwrap();
    }
    let warned = |subscription: Subscription| async move {
        let (told, mut warnings) = mpsc::unbounded_channel();
        let running = subscription
            .on_event(move |event| {
                if let Event::Warning { error } = event {
                    // The test may have heard enough.
                    let _ = told.send(error.to_string());
                }
            })
            .start(|_record| async {})
            .unwrap();
        let words = timeout(PATIENCE, warnings.recv()).await.unwrap().unwrap();
        running.close(PATIENCE).await.unwrap();
        words
    };
    let kafka = Kafka::new(server.bootstrap());
    let words = warned(kafka.subscribe(Topics::named(["nowhere"]).group("h"))).await;
    assert!(words.contains("nowhere"), "{words}");
    let words = warned(kafka.subscribe(Partitions::of("t", [0, 7]).offsets_in("i"))).await;
    assert!(words.contains("t-7"), "{words}");
    let reserve = kafka.subscribe(Partitions::of("t", [7]).group("g").reserved());
    let run = reserve.run(|_record: Record| async {});
    let error = timeout(PATIENCE, run).await.unwrap().unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("reserve") && told.contains("0 to 1"),
        "{told}"
    );
    assert_eq!(
        (committed(&server, 0), committed(&server, 1)),
        (Some(10), Some(10))
    );
    running.close(PATIENCE).await.unwrap();
}

/// The policy for errors decides for deliveries and results too: a delivery that nobody settles in
/// time, a handler of results that fails.
#[tokio::test]
async fn the_error_policy_counts_for_streams() {
    let server = filled(1, 10, 10).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let mut deliveries = subscription(&server)
        .workers(4)
        .handler_timeout(Duration::from_millis(50))
        .on_error(move |record, error| {
            assert!(error.downcast_ref::<TimedOut>().is_some(), "{error}");
            count.fetch_add(1, Ordering::SeqCst);
            match record.offset() {
                3 => Outcome::Drop,
                _ => Outcome::Retry,
            }
        })
        .stream()
        .unwrap();
    let mut kept = Vec::new();
    let mut acked = 0;
    while acked < 9 {
        let delivery = timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap();
        match delivery.offset() {
            3 => kept.push(delivery),
            _ => {
                acked += 1;
                delivery.ack();
            }
        }
    }
    let all_is_committed = async {
        while committed(&server, 0) != Some(10) {
            deliveries.running().commit_now().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, all_is_committed).await.unwrap();
    assert_eq!(kept.len(), 1, "what was dropped does not come again");
    assert!(asked.load(Ordering::SeqCst) >= 1);
    deliveries.close(PATIENCE).await.unwrap();

    let server = filled(1, 10, 10).await;
    #[derive(Debug)]
    struct Closed;
    impl std::fmt::Display for Closed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("closed")
        }
    }
    let mut results = subscription(&server)
        .on_error(|_record, error| match error.downcast_ref::<Closed>() {
            Some(_) => Outcome::Drop,
            None => Outcome::failed("of another kind"),
        })
        .run_stream(|record: Record| async move {
            match record.offset() {
                4 => Err(Closed),
                offset => Ok(offset),
            }
        })
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 9 {
        seen.push(
            timeout(PATIENCE, results.next())
                .await
                .unwrap()
                .unwrap()
                .value,
        );
    }
    assert_eq!(seen, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    results.close(PATIENCE).await.unwrap();
    assert_eq!(committed(&server, 0), Some(10));
}

/// Deliveries that nobody takes in time: each is taken back and given out again, what waits is
/// bounded however often, and what is handed out in the end is live.
#[tokio::test]
async fn deliveries_that_were_given_up_are_not_handed_out() {
    let server = filled(1, 20, 20).await;
    let mut deliveries = subscription(&server)
        .workers(4)
        .handler_timeout(Duration::from_millis(1))
        .retry(Retry::fixed(Duration::from_millis(1)))
        .stream()
        .unwrap();
    // Nobody takes while each of four is given out a hundred times.
    let timed_out = async {
        while deliveries.running().snapshot().await.unwrap().timed_out < 400 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, timed_out).await.unwrap();
    // Whoever looks in later finds what is wanted now, not four hundred ghosts.
    let mut ghosts = 0;
    for _ in 0..20 {
        let mut delivery = timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap();
        let over = timeout(Duration::ZERO, delivery.given_up()).await.is_ok();
        ghosts += usize::from(over);
        drop(delivery);
    }
    assert!(ghosts <= 10, "{ghosts} of 20 had been given up before");
    deliveries.close(PATIENCE).await.unwrap();
}

/// A delivery that is dropped while the stream drains is a retry like any other: the drain waits
/// until it is settled. One that is settled after the end counts for nothing, and says so.
#[tokio::test]
async fn deliveries_dropped_in_a_drain_come_again() {
    let server = filled(1, 6, 6).await;
    let mut deliveries = subscription(&server).workers(6).stream().unwrap();
    let mut first = Vec::new();
    for _ in 0..6 {
        first.push(timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap());
    }
    deliveries.drain().await.unwrap();
    let late = first.pop().unwrap();
    let offset = late.offset();
    first.into_iter().for_each(drop);
    let mut again = 0;
    while again < 5 {
        let delivery = timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap();
        assert_eq!(delivery.attempt(), 2);
        assert_ne!(delivery.offset(), offset);
        again += 1;
        delivery.ack();
    }
    assert!(committed(&server, 0).is_none_or(|c| c <= offset));
    std::thread::spawn(move || late.ack()).join().unwrap();
    assert!(
        timeout(PATIENCE, deliveries.next())
            .await
            .unwrap()
            .is_none()
    );
    deliveries.join().await.unwrap();
    assert_eq!(committed(&server, 0), Some(6));
}

/// E33: a batch whose records end in every way: acked ones settle, dead ones are written, failed ones
/// run again before anything newer of their lane; by a function for the topic and its own headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_every_outcome() {
    let server = filled(2, 400, 8).await;
    server.cluster().create_topic("t.dlq", 2).unwrap();
    let runs = Arc::new(Mutex::new(Vec::<(i32, i64, u32)>::new()));
    let (log, (dead, mut letters)) = (runs.clone(), mpsc::unbounded_channel());
    let running = subscription(&server)
        .on_event(move |event| {
            if let Event::DeadLettered {
                offset, attempts, ..
            } = event
            {
                dead.send((*offset, *attempts)).unwrap();
            }
        })
        .workers_by_key(8)
        .lane_key(LaneKey::RecordKey)
        .batch(16)
        .retry(
            Retry::fixed(Duration::from_millis(1))
                .max_attempts(3)
                .then(Exhausted::DeadLetter),
        )
        .dead_letter_by(|record| format!("{}.dlq", record.topic()))
        .start(move |batch: Vec<Record>| {
            let outcome = |r: &Record| {
                log.lock()
                    .unwrap()
                    .push((r.partition(), r.offset(), r.attempt()));
                match (r.offset() % 10, r.attempt()) {
                    (3, _) => Outcome::dead_letter("no such account"),
                    (4, 1) => Outcome::failed("not yet"),
                    (5, _) => Outcome::Retry,
                    (6, _) => Outcome::Drop,
                    _ => Outcome::Ack,
                }
            };
            std::future::ready(batch.iter().map(outcome).collect::<Vec<_>>())
        })
        .unwrap();
    let mut at_once = 0;
    for _ in 0..80 {
        let (offset, attempts) = timeout(PATIENCE, letters.recv()).await.unwrap().unwrap();
        match offset % 10 {
            3 => assert_eq!(attempts, 1),
            _ => assert_eq!((offset % 10, attempts), (5, 3)),
        }
        at_once += usize::from(offset % 10 == 3);
    }
    assert_eq!(at_once, 40);
    running.drain().await.unwrap();
    assert_eq!(
        (committed(&server, 0), committed(&server, 1)),
        (Some(200), Some(200))
    );
    for p in 0..2 {
        for offset in 0..200 {
            let runs = runs.lock().unwrap();
            let count = runs.iter().filter(|r| (r.0, r.1) == (p, offset)).count();
            let expected = match offset % 10 {
                4 => 2,
                5 => 3,
                _ => 1,
            };
            assert_eq!(count, expected, "{p} @{offset}");
        }
    }
}
