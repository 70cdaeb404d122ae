//! Dead letters on a real Kafka; Java's consumer says what stands in their topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use laneway::lane::Exhausted;
use laneway::{
    Event, Kafka as Client, LaneKey, Outcome, Outgoing, Record, Retry, Running, StartOffset, Topics,
};
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::runner::Test;

use crate::lanes::{eventually, runtime};
use crate::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(a_poison_record_with_five_attempts_while_the_rest_flow),
        // Once, beside others, 26 of 600 letters that were told of were not there when they were read.
        // Alone it has not been seen; should it be, the test now says which.
        Test {
            alone: true,
            ..test!(dead_letters_are_their_records_byte_for_byte)
        },
        test!(the_dead_letter_topic_is_removed_and_made_anew_under_load),
        Test {
            limit: Duration::from_secs(600),
            ..test!(a_broker_killed_under_load_makes_no_second_dead_letter)
        },
        test!(a_dead_letter_that_is_too_large_is_cut),
        test!(what_the_producer_writes_is_what_java_reads),
    ]
}

/// A record of a dead-letter topic, as `java/Agent.java` prints it.
#[derive(Clone, Debug)]
struct Letter {
    /// Time, key and value.
    content: String,
    /// The record's own headers, as text.
    own: String,
    /// Those that were added, by name.
    added: BTreeMap<String, String>,
    partition: i32,
}

impl Letter {
    fn parse(line: &str) -> Letter {
        let fields: Vec<&str> = line.split(' ').collect();
        let [partition, _, time, key, value, headers] = fields[..] else {
            panic!("{line}");
        };
        let (mut own, mut added) = (Vec::new(), BTreeMap::new());
        for header in headers.split(',').filter(|h| *h != "-") {
            let (name, value) = header.split_once('=').unwrap();
            let name = text(name);
            match name.strip_prefix("laneway.dlq.") {
                Some(ours) => {
                    assert!(
                        added.insert(ours.to_owned(), text(value)).is_none(),
                        "{name}"
                    );
                }
                None => own.push(header),
            }
        }
        if own.is_empty() {
            own.push("-");
        }
        Letter {
            content: format!("{time} {key} {value}"),
            own: own.join(","),
            added,
            partition: partition.parse().unwrap(),
        }
    }

    fn source(&self) -> (i32, i64) {
        let number = |name: &str| self.added[name].parse::<i64>().unwrap();
        (
            i32::try_from(number("partition")).unwrap(),
            number("offset"),
        )
    }
}

fn text(hex: &str) -> String {
    let digits = hex.strip_prefix('x').unwrap_or_default();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let bytes = (0..digits.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes).unwrap()
}

fn letters(kafka: &Kafka, topic: &str) -> Vec<Letter> {
    let lines = kafka
        .ask(&format!("read {topic} read_uncommitted"))
        .unwrap();
    lines.iter().map(|line| Letter::parse(line)).collect()
}

/// What has become a dead letter, by the events: partition and offset of each source.
type Told = Arc<Mutex<Vec<(i32, i64)>>>;

fn start(
    kafka: &Kafka,
    (topic, dlq, group): (&str, &str, &str),
    told: &Told,
    handler: impl Fn(&Record) -> Outcome + Send + Sync + 'static,
) -> Running {
    let told = told.clone();
    Client::new(kafka.addresses())
        .subscribe(Topics::named([topic]).group(group))
        .start_at(StartOffset::Earliest)
        .workers_by_key(64)
        .lane_key(LaneKey::RecordKey)
        .commit_interval(Duration::from_millis(100))
        .retry(
            Retry::fixed(Duration::from_millis(200))
                .max_attempts(5)
                .then(Exhausted::DeadLetter),
        )
        .dead_letter(dlq)
        .on_event(move |event| match event {
            Event::DeadLettered {
                partition, offset, ..
            } => told.lock().unwrap().push((partition.partition, *offset)),
            Event::Warning { error } => eprintln!("warned: {error}"),
            _ => {}
        })
        .start(move |record: Record| std::future::ready(handler(&record)))
        .unwrap()
}

fn committed_is_the_end(kafka: &Kafka, group: &str, topic: &str) {
    let ends: Vec<(i32, i64)> = kafka
        .ends(topic)
        .unwrap()
        .iter()
        .map(|&(p, _, high)| (p, high))
        .collect();
    assert_eq!(kafka.committed(group, topic).unwrap(), ends);
}

/// P21, P02: a record that fails five times becomes one dead letter; nobody waits for it but its
/// lane, and the commit waits for the write.
fn a_poison_record_with_five_attempts_while_the_rest_flow() {
    const POISON: i64 = 7;
    let kafka = Kafka::shared();
    let topic = kafka.topic("poison", 1).unwrap();
    let dlq = kafka.topic("poison.dlq", 2).unwrap();
    kafka
        .ask(&format!("numbered {topic} 5000 200 60 1"))
        .unwrap();
    let group = kafka::unique("poison");
    let (told, runs, others) = (
        Told::default(),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let at_last_run = Arc::new(AtomicUsize::new(0));
    runtime().block_on(async {
        let (attempts, passed, at_last) = (runs.clone(), others.clone(), at_last_run.clone());
        let running = start(kafka, (&topic, &dlq, &group), &told, move |record| {
            if record.offset() == POISON {
                attempts.fetch_add(1, Ordering::SeqCst);
                at_last.store(passed.load(Ordering::SeqCst), Ordering::SeqCst);
                return Outcome::failed("poison");
            }
            passed.fetch_add(1, Ordering::SeqCst);
            Outcome::Ack
        });
        eventually("all the others and the letter are done", || {
            others.load(Ordering::SeqCst) == 4999 && !told.lock().unwrap().is_empty()
        })
        .await;
        running.drain().await.unwrap();
    });
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    let before = at_last_run.load(Ordering::SeqCst);
    println!("{before} of 4999 others had passed when the poison ran for the last time");
    assert!(before > 4500, "the rest waited for it");
    let letters = letters(kafka, &dlq);
    assert_eq!(letters.len(), 1);
    let said = |name: &str| letters[0].added[name].as_str();
    assert_eq!((said("attempts"), said("error")), ("5", "poison"));
    assert_eq!((said("topic"), said("group")), (&*topic, &*group));
    assert_eq!(letters[0].source(), (0, POISON));
    committed_is_the_end(kafka, &group, &topic);
}

/// D17: what Java wrote of every shape is in the dead-letter topic as it was, and Java's own
/// producer would have put each key into the same partition.
fn dead_letters_are_their_records_byte_for_byte() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("whole", 3).unwrap();
    let dlq = kafka.topic("whole.dlq", 5).unwrap();
    kafka.ask(&format!("every-codec {topic} 120 11")).unwrap();
    let sent = kafka
        .ask(&format!("read {topic} read_uncommitted"))
        .unwrap();
    let group = kafka::unique("whole");
    let told = Told::default();
    runtime().block_on(async {
        let running = start(kafka, (&topic, &dlq, &group), &told, |_| {
            Outcome::dead_letter("to be seen")
        });
        eventually("all are dead", || told.lock().unwrap().len() == 600).await;
        running.drain().await.unwrap();
    });
    let mut written = BTreeMap::new();
    for letter in letters(kafka, &dlq) {
        let source = letter.source();
        assert!(written.insert(source, letter).is_none(), "{source:?} twice");
    }
    // Not the number alone: who is missing, and whether it was said to be written.
    let said: BTreeSet<(i32, i64)> = told.lock().unwrap().iter().copied().collect();
    let missing: Vec<_> = said.iter().filter(|at| !written.contains_key(at)).collect();
    assert!(missing.is_empty(), "told and not there: {missing:?}");
    assert_eq!((said.len(), written.len()), (600, 600));
    for line in &sent {
        let fields: Vec<&str> = line.splitn(3, ' ').collect();
        let source = (fields[0].parse().unwrap(), fields[1].parse().unwrap());
        let letter = &written[&source];
        let now = format!("{} {}", letter.content, letter.own);
        assert_eq!(now, fields[2], "{source:?}");
        let time = letter.content.split(' ').next().unwrap();
        assert_eq!(letter.added["timestamp"], time);
    }
    committed_is_the_end(kafka, &group, &topic);
    // "numbered" leaves the choice to Java's partitioner.
    let (java, ours) = (
        kafka.topic("java", 5).unwrap(),
        kafka.topic("java.dlq", 5).unwrap(),
    );
    kafka.ask(&format!("numbered {java} 500 100 20 3")).unwrap();
    let group = kafka::unique("java");
    let told = Told::default();
    runtime().block_on(async {
        let running = start(kafka, (&java, &ours, &group), &told, |_| {
            Outcome::dead_letter("to be placed")
        });
        eventually("all are dead", || told.lock().unwrap().len() == 500).await;
        running.drain().await.unwrap();
    });
    for letter in letters(kafka, &ours) {
        assert_eq!(letter.partition, letter.source().0, "{letter:?}");
    }
}

/// P01: the topic is deleted while letters are on their way, and made anew some seconds later: what
/// was not acknowledged before is in the new one, and all is committed.
fn the_dead_letter_topic_is_removed_and_made_anew_under_load() {
    const RECORDS: usize = 20_000;
    let kafka = Kafka::shared();
    let topic = kafka.topic("removed", 2).unwrap();
    let dlq = kafka.topic("removed.dlq", 3).unwrap();
    kafka
        .ask(&format!("numbered {topic} {RECORDS} 500 60 1"))
        .unwrap();
    let group = kafka::unique("removed");
    let told = Told::default();
    let before = runtime().block_on(async {
        let running = start(kafka, (&topic, &dlq, &group), &told, |_| {
            Outcome::dead_letter("under load")
        });
        eventually("letters flow", || told.lock().unwrap().len() > 1000).await;
        kafka.ask(&format!("delete {dlq}")).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Acknowledged by the topic that is gone: those went with it.
        let before: BTreeSet<(i32, i64)> = told.lock().unwrap().iter().copied().collect();
        assert!(before.len() < RECORDS, "it was over before it began");
        let copies = kafka.addresses().len().min(3);
        kafka.ask(&format!("create {dlq} 2 {copies}")).unwrap();
        let began = Instant::now();
        eventually("all are dead", || told.lock().unwrap().len() == RECORDS).await;
        println!(
            "{} letters went with the old topic; the rest took {:?}",
            before.len(),
            began.elapsed()
        );
        running.drain().await.unwrap();
        before
    });
    let written: BTreeSet<(i32, i64)> = letters(kafka, &dlq).iter().map(Letter::source).collect();
    let all: BTreeSet<(i32, i64)> = told.lock().unwrap().iter().copied().collect();
    assert_eq!(all.len(), RECORDS, "each record once");
    let lost: Vec<_> = all
        .difference(&before)
        .filter(|s| !written.contains(s))
        .collect();
    assert!(lost.is_empty(), "{} lost: {:?}", lost.len(), lost.first());
    committed_is_the_end(kafka, &group, &topic);
}

/// P02: a broker dies with answers on their way, and comes back: every letter is there, once, those
/// of a key in order.
fn a_broker_killed_under_load_makes_no_second_dead_letter() {
    const RECORDS: usize = 6000;
    let kafka = Kafka::start(3).unwrap();
    let topic = kafka.topic("killed", 4).unwrap();
    let dlq = kafka
        .topic_with("killed.dlq", 6, &["min.insync.replicas=2"])
        .unwrap();
    kafka
        .ask(&format!("numbered {topic} {RECORDS} 300 60 1"))
        .unwrap();
    let group = kafka::unique("killed");
    let told = Told::default();
    runtime().block_on(async {
        let running = start(&kafka, (&topic, &dlq, &group), &told, |_| {
            Outcome::dead_letter("under fire")
        });
        let dead = || told.lock().unwrap().len();
        for node in 1..=2 {
            let enough = dead() + 500;
            eventually("letters flow", || dead() >= enough.min(RECORDS)).await;
            kafka.kill(node).unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
            kafka.up(node).unwrap();
        }
        // Three nodes on a busy machine take their time.
        for left in [RECORDS / 2, 1] {
            eventually("half are dead, then all", || dead() + left > RECORDS).await;
        }
        running.drain().await.unwrap();
    });
    let written = letters(&kafka, &dlq);
    let each: BTreeSet<(i32, i64)> = written.iter().map(Letter::source).collect();
    println!(
        "{} letters of {} records, {} distinct",
        written.len(),
        RECORDS,
        each.len()
    );
    assert_eq!(each.len(), RECORDS, "lost");
    assert_eq!(written.len(), RECORDS, "twice");
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for letter in &written {
        let key = letter.content.split(' ').nth(1).unwrap().to_owned();
        let (_, offset) = letter.source();
        let before = last.insert(key, offset);
        assert!(before.is_none_or(|before| before < offset), "{letter:?}");
    }
    committed_is_the_end(&kafka, &group, &topic);
}

/// P22: Kafka's own word for what is too large leads to a cut, and the topic takes it then.
fn a_dead_letter_that_is_too_large_is_cut() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("large", 1).unwrap();
    let dlq = kafka
        .topic_with("large.dlq", 1, &["max.message.bytes=3000"])
        .unwrap();
    kafka
        .ask(&format!("numbered {topic} 20 5 20000 1"))
        .unwrap();
    let group = kafka::unique("large");
    let told = Told::default();
    runtime().block_on(async {
        let running = start(kafka, (&topic, &dlq, &group), &told, |record| {
            match record.offset() % 4 {
                0 => Outcome::dead_letter("too large"),
                _ => Outcome::Ack,
            }
        });
        eventually("five are dead", || told.lock().unwrap().len() == 5).await;
        running.drain().await.unwrap();
    });
    let letters = letters(kafka, &dlq);
    assert_eq!(letters.len(), 5);
    for letter in letters {
        assert_eq!(letter.added["truncated.value"], "20000");
        let value = letter.content.split(' ').nth(2).unwrap();
        assert_eq!(value.len(), 1 + 2 * 1250, "a sixteenth of it");
    }
    committed_is_the_end(kafka, &group, &topic);
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// The public producer: Java's consumer reads what it wrote, where it said that it was, in order.
fn what_the_producer_writes_is_what_java_reads() {
    const RECORDS: usize = 5000;
    let kafka = Kafka::shared();
    let topic = kafka.topic("written", 3).unwrap();
    let places = runtime().block_on(async {
        let producer = Client::new(kafka.addresses()).producer().unwrap();
        let producer = Arc::new(producer);
        let sends: Vec<_> = (0..RECORDS)
            .map(|n| {
                let record = Outgoing::new(topic.as_str())
                    .key(format!("key-{}", n % 50))
                    .value(n.to_string())
                    // What is old is deleted by retention.
                    .timestamp(wall_ms());
                let producer = producer.clone();
                async move { producer.send(record).await.unwrap() }
            })
            .collect();
        let mut places = Vec::new();
        // In order, and many at once: the first poll of each counts.
        let mut waiting = std::collections::VecDeque::new();
        for send in sends {
            let mut send = Box::pin(send);
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(match send.as_mut().poll(cx) {
                    std::task::Poll::Ready(written) => Some(written),
                    std::task::Poll::Pending => None,
                })
            })
            .await;
            match polled {
                Some(written) => waiting.push_back(Ok(written)),
                None => waiting.push_back(Err(send)),
            }
            if waiting.len() > 200 {
                places.push(match waiting.pop_front().unwrap() {
                    Ok(written) => written,
                    Err(send) => send.await,
                });
            }
        }
        for one in waiting {
            places.push(match one {
                Ok(written) => written,
                Err(send) => send.await,
            });
        }
        let producer = Arc::into_inner(producer).unwrap();
        producer.close(Duration::from_secs(20)).await.unwrap();
        places
    });
    let read = kafka.ask(&format!("read {topic} read_committed")).unwrap();
    assert_eq!(read.len(), RECORDS);
    let mut by_place = BTreeMap::new();
    for line in &read {
        let fields: Vec<&str> = line.split(' ').collect();
        let place: (i32, i64) = (fields[0].parse().unwrap(), fields[1].parse().unwrap());
        by_place.insert(place, text(fields[4]));
    }
    for (n, place) in places.iter().enumerate() {
        assert_eq!(by_place[&(place.partition, place.offset)], n.to_string());
    }
    let mut last = BTreeMap::new();
    for line in &read {
        let fields: Vec<&str> = line.split(' ').collect();
        let n: usize = text(fields[4]).parse().unwrap();
        let before = last.insert(fields[3].to_owned(), n);
        assert!(before.is_none_or(|before| before < n), "{line}");
    }
}
