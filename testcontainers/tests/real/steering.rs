//! A subscription in this process is steered while a real Kafka's records flow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use laneway::{
    Event, InFlight, Kafka as Client, LaneKey, Record, Running, Scope, SeekTo, StartOffset, Topics,
};
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::runner::Test;

use crate::lanes::{eventually, runtime};
use crate::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(pauses_seeks_and_workers_under_load),
        test!(a_broker_that_is_down_for_20_seconds_costs_nothing_but_time),
    ]
}

/// One run of a handler.
#[derive(Clone)]
struct Run {
    partition: i32,
    offset: i64,
    key: Vec<u8>,
    began: Instant,
    ended: Instant,
}

type Runs = Arc<Mutex<Vec<Run>>>;

fn handle(kafka: &Kafka, topic: &str, group: &str, takes: Duration, runs: &Runs) -> Running {
    let runs = runs.clone();
    Client::new(kafka.addresses())
        .subscribe(Topics::named([topic]).group(group))
        .start_at(StartOffset::Earliest)
        .workers_by_key(LANES)
        .lane_key(LaneKey::RecordKey)
        .commit_interval(Duration::from_millis(200))
        .start(move |record: Record| {
            let runs = runs.clone();
            async move {
                let began = Instant::now();
                tokio::time::sleep(takes).await;
                runs.lock().unwrap().push(Run {
                    partition: record.partition(),
                    offset: record.offset(),
                    key: record.key().unwrap_or_default().to_vec(),
                    began,
                    ended: Instant::now(),
                });
            }
        })
        .unwrap()
}

/// E30, F12, F36: partitions are paused and resumed, sought in, and the cap on workers changed,
/// while 30,000 records flow: nothing begins in a pause, a seek goes where it should, every key
/// keeps its order, and what nobody sought in is handled once.
fn pauses_seeks_and_workers_under_load() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("steer", 3).unwrap();
    kafka
        .ask(&format!("numbered {topic} 30000 300 100 1"))
        .unwrap();
    let group = kafka::unique("steer");
    let runs = Runs::default();
    let mut sought = (0, Instant::now());
    let (mut pauses, mut capped) = (Vec::new(), Instant::now()..Instant::now());
    runtime().block_on(async {
        let running = handle(kafka, &topic, &group, Duration::from_millis(2), &runs);
        eventually("it runs", || runs.lock().unwrap().len() > 2000).await;
        for round in 0..6 {
            let at = round % 2;
            running.pause((topic.as_str(), at)).await.unwrap();
            let from = Instant::now();
            tokio::time::sleep(Duration::from_millis(150)).await;
            pauses.push((at, from..Instant::now()));
            running.resume((topic.as_str(), at)).await.unwrap();
        }
        running.set_workers(3).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        capped.start = Instant::now();
        tokio::time::sleep(Duration::from_millis(300)).await;
        capped.end = Instant::now();
        running.set_workers(LANES).await.unwrap();

        let seen = |p: i32| {
            let runs = runs.lock().unwrap();
            runs.iter().filter(|r| r.partition == p).count() as i64
        };
        eventually("a third of partition 2", || seen(2) > 3000).await;
        let (to, what) = (SeekTo::Offset(1000), (topic.as_str(), 2));
        running.seek(what, to, InFlight::Drain).await.unwrap();
        sought = (seen(2), Instant::now());

        let ends = kafka.ends(&topic).unwrap();
        eventually("all is committed", || {
            let committed = kafka.committed(&group, &topic).unwrap();
            committed.len() == 3
                && ends
                    .iter()
                    .all(|(p, _, end)| committed.contains(&(*p, *end)))
        })
        .await;
        assert_eq!(running.lag().await.unwrap().records, 0);
        running.pause(Scope::All).await.unwrap();
        running.close(CLOSE).await.unwrap();
    });
    let runs = runs.lock().unwrap();
    for (partition, during) in &pauses {
        let begun = runs
            .iter()
            .filter(|r| r.partition == *partition && during.contains(&r.began));
        // One that was about to begin when it was said may have.
        let begun = begun.filter(|r| r.began > during.start + Duration::from_millis(20));
        assert_eq!(
            begun.count(),
            0,
            "began while partition {partition} was paused"
        );
    }
    let at_once = |at: Instant| {
        runs.iter()
            .filter(|r| r.began <= at && at < r.ended)
            .count()
    };
    let most = (0..30).map(|i| at_once(capped.start + Duration::from_millis(i * 10)));
    assert!(most.max().unwrap() <= 3, "more ran than the cap says");
    let mut counts: BTreeMap<(i32, i64), usize> = BTreeMap::new();
    let mut last: BTreeMap<&[u8], (i64, Instant)> = BTreeMap::new();
    let mut in_order = runs.clone();
    in_order.sort_by_key(|r| r.began);
    for run in runs.iter() {
        *counts.entry((run.partition, run.offset)).or_default() += 1;
    }
    for run in &in_order {
        if let Some((offset, ended)) = last.get(&run.key[..]) {
            assert!(run.began >= *ended, "two of a key at once");
            let back = run.partition == 2 && run.began + Duration::from_millis(20) > sought.1;
            assert!(run.offset > *offset || back, "a key went back");
        }
        last.insert(&run.key, (run.offset, run.ended));
    }
    let lost = 30_000 - counts.len();
    let twice = counts.iter().filter(|(_, n)| **n > 1);
    let outside = twice.clone().filter(|((p, o), _)| *p != 2 || *o < 1000);
    println!(
        "30,000 records: lost {lost}; again after the seek {}, elsewhere {}",
        twice.count(),
        outside.clone().count()
    );
    assert_eq!((lost, outside.count()), (0, 0));
}

/// E27, F17: the only broker is down for 20 s in the middle of the work, and comes back: nothing is
/// lost, nothing is handled twice, and the membership lives on.
fn a_broker_that_is_down_for_20_seconds_costs_nothing_but_time() {
    let kafka = Kafka::start(1).unwrap();
    let topic = kafka.topic("down", 4).unwrap();
    kafka
        .ask(&format!("numbered {topic} 20000 200 100 1"))
        .unwrap();
    let group = kafka::unique("down");
    let runs = Runs::default();
    let mut lost_leases = 0;
    let mut down = Duration::ZERO;
    runtime().block_on(async {
        let running = handle(&kafka, &topic, &group, Duration::from_millis(4), &runs);
        let mut events = running.events();
        eventually("it runs", || runs.lock().unwrap().len() > 3000).await;
        let from = Instant::now();
        kafka.kill(1).unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        kafka.up(1).unwrap();
        down = from.elapsed();
        eventually("all is committed", || {
            kafka.committed_records(&group, &topic).unwrap() == 20_000
        })
        .await;
        running.close(CLOSE).await.unwrap();
        while let Some(event) = events.next().await {
            lost_leases += usize::from(matches!(event, Event::Lost { .. }));
        }
    });
    let runs = runs.lock().unwrap();
    let mut counts: BTreeMap<(i32, i64), usize> = BTreeMap::new();
    for run in runs.iter() {
        *counts.entry((run.partition, run.offset)).or_default() += 1;
    }
    let lost = 20_000 - counts.len();
    let twice = counts.values().filter(|n| **n > 1).count();
    println!(
        "broker away for {down:?}: lost {lost}, handled twice {twice}, leases lost {lost_leases}"
    );
    assert_eq!((lost, twice, lost_leases), (0, 0, 0));
}

const LANES: usize = 16;
const CLOSE: Duration = Duration::from_secs(20);
