//! Who gets which partitions on a real Kafka: reservations, the idle one of four, and what is given
//! wrongly.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use laneway::{
    AssignorKind, Error, Event, GroupProtocol, Interest, Kafka as Client, OnClose, Partitions,
    Running, StartOffset, Subscription, Topics,
};
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::runner::Test;

use crate::lanes::{eventually, runtime};
use crate::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(five_partitions_two_subscribers_and_a_direct_reader_on_kafka),
        test!(the_fourth_of_four_takes_over_on_kafka),
        test!(patterns_find_what_comes_later_on_kafka),
        test!(bad_input_is_told_and_changes_nothing),
    ]
}

/// A member in this process. Its end without a word is its death, as far as the group can tell.
struct Member {
    running: Option<Running>,
    held: Arc<Mutex<BTreeSet<String>>>,
    handled: Arc<Mutex<BTreeSet<(String, i64)>>>,
}

impl Member {
    fn start(kafka: &Kafka, what: impl Into<Interest>, assignor: AssignorKind) -> Member {
        let held = Arc::new(Mutex::new(BTreeSet::new()));
        let handled = Arc::new(Mutex::new(BTreeSet::new()));
        let (holds, handles) = (held.clone(), handled.clone());
        let running = Client::new(kafka.addresses())
            .subscribe(what)
            .start_at(StartOffset::Earliest)
            .session_timeout(SESSION)
            .commit_interval(Duration::from_millis(100))
            .assignors([assignor])
            .on_close(OnClose::Stay)
            .on_event(move |event| {
                let mut holds = holds.lock().unwrap();
                match event {
                    Event::Granted { partition, .. } => drop(holds.insert(partition.to_string())),
                    Event::Revoked { partition, .. } | Event::Lost { partition } => {
                        holds.remove(&partition.to_string());
                    }
                    Event::Warning { error } => eprintln!("warned: {error}"),
                    _ => {}
                }
            })
            .start(move |record| {
                let at = format!("{}-{}", record.topic(), record.partition());
                handles.lock().unwrap().insert((at, record.offset()));
                async {}
            });
        Member {
            running: Some(running.unwrap()),
            held,
            handled,
        }
    }

    fn held(&self, topic: &str) -> Vec<String> {
        let held = self.held.lock().unwrap();
        let of = held
            .iter()
            .filter(|p| p.rsplit_once('-').unwrap().0 == topic);
        of.cloned().collect()
    }

    fn count(&self, topic: &str) -> usize {
        self.held(topic).len()
    }

    fn handled(&self, partition: &str) -> usize {
        let handled = self.handled.lock().unwrap();
        handled.iter().filter(|(p, _)| p == partition).count()
    }

    /// Its heartbeats end, and nobody is told.
    fn dies(&mut self) {
        drop(self.running.take());
        self.held.lock().unwrap().clear();
    }

    async fn closes(mut self) {
        self.running.take().unwrap().close(CLOSE).await.unwrap();
    }
}

/// G01: five partitions, two subscribers and a direct reader of one: the two get two each. The reader
/// dies: nobody takes its partition. A subscriber dies: the other takes its two. It comes back: spread
/// again. The reader comes back: its partition is its own. Released, it is shared out.
fn five_partitions_two_subscribers_and_a_direct_reader_on_kafka() {
    for assignor in [AssignorKind::Range, AssignorKind::CooperativeSticky] {
        five_partitions(assignor);
    }
}

fn five_partitions(assignor: AssignorKind) {
    let kafka = Kafka::shared();
    let topic = kafka.topic("five", 5).unwrap();
    let group = kafka::unique("five");
    let own = format!("{topic}-4");
    let shared = || Topics::named([topic.as_str()]).group(group.as_str());
    let reserved = || {
        Partitions::of(topic.as_str(), [4])
            .group(group.as_str())
            .reserved()
    };
    let numbered = format!("numbered {topic} 500 50 60 1");
    runtime().block_on(async {
        let a = Member::start(kafka, shared(), assignor);
        let mut r = Member::start(kafka, reserved(), assignor);
        let mut b = Member::start(kafka, shared(), assignor);
        let spread = |a: &Member, b: &Member| a.count(&topic) == 2 && b.count(&topic) == 2;
        eventually("two each, and one for the reader", || {
            spread(&a, &b) && r.held(&topic) == [own.clone()]
        })
        .await;
        kafka.ask(&numbered).unwrap();
        let all = kafka.ends(&topic).unwrap()[4].2;
        eventually("the reader has read its own", || {
            r.handled(&own) == all as usize
        })
        .await;
        r.dies();
        tokio::time::sleep(SESSION * 2).await;
        assert!(spread(&a, &b), "somebody took the dead reader's partition");
        b.dies();
        eventually("the other takes its two", || a.count(&topic) == 4).await;
        assert!(!a.held(&topic).contains(&own));
        let b = Member::start(kafka, shared(), assignor);
        eventually("spread again", || spread(&a, &b)).await;
        kafka.ask(&numbered).unwrap();
        let before = kafka.committed(&group, &topic).unwrap();
        tokio::time::sleep(SESSION).await;
        let of_reader = |c: &[(i32, i64)]| c.iter().find(|(p, _)| *p == 4).copied();
        let after = kafka.committed(&group, &topic).unwrap();
        assert_eq!(
            of_reader(&before),
            of_reader(&after),
            "nobody reads what is reserved"
        );
        let mut r = Member::start(kafka, reserved(), assignor);
        eventually("its own again", || {
            r.held(&topic) == [own.clone()] && spread(&a, &b)
        })
        .await;
        let ends = || kafka.ends(&topic).unwrap();
        eventually("all is committed", || {
            let ends: Vec<_> = ends().iter().map(|&(p, _, end)| (p, end)).collect();
            kafka.committed(&group, &topic).unwrap() == ends
        })
        .await;
        r.dies();
        tokio::time::sleep(SESSION * 2).await;
        a.running
            .as_ref()
            .unwrap()
            .release(topic.as_str(), [4])
            .await
            .unwrap();
        eventually("shared out", || a.count(&topic) + b.count(&topic) == 5).await;
        a.closes().await;
        b.closes().await;
    });
}

/// G01: a group of four over topic A (3 partitions) and topic B (8): the fourth is idle on A and busy
/// on B; an owner of A dies: the fourth takes over.
fn the_fourth_of_four_takes_over_on_kafka() {
    let kafka = Kafka::shared();
    let (a, b) = (kafka.topic("a", 3).unwrap(), kafka.topic("b", 8).unwrap());
    let group = kafka::unique("four");
    let both = || Topics::named([a.as_str(), b.as_str()]).group(group.as_str());
    runtime().block_on(async {
        let mut four: Vec<Member> = (0..4)
            .map(|_| Member::start(kafka, both(), AssignorKind::Range))
            .collect();
        eventually("each has two of B and three have one of A", || {
            four.iter().all(|m| m.count(&b) == 2)
                && four.iter().filter(|m| m.count(&a) == 1).count() == 3
        })
        .await;
        let idle = four.iter().position(|m| m.count(&a) == 0).unwrap();
        let owner = four.iter().position(|m| m.count(&a) == 1).unwrap();
        let was = four[owner].held(&a);
        four[owner].dies();
        eventually("the fourth takes over", || four[idle].count(&a) == 1).await;
        println!(
            "{was:?} is its owner's no more, the fourth has {:?}",
            four[idle].held(&a)
        );
        for (at, member) in four.into_iter().enumerate() {
            if at != owner {
                member.closes().await;
            }
        }
    });
}

/// F35: a pattern finds a topic and a partition that come later, within the metadata's age where we
/// match it ourselves and by the broker's own pace under the new protocol, and reads them from their
/// first record though the policy is the latest.
fn patterns_find_what_comes_later_on_kafka() {
    let kafka = Kafka::shared();
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let prefix = kafka::unique("pattern");
        let old = kafka.topic(&prefix, 1).unwrap();
        kafka.ask(&format!("numbered {old} 50 5 60 1")).unwrap();
        let (told, mut read) = tokio::sync::mpsc::unbounded_channel();
        let held = Arc::new(Mutex::new(BTreeSet::new()));
        let holds = held.clone();
        runtime().block_on(async {
            let running = Client::new(kafka.addresses())
                .subscribe(Topics::pattern(format!("{prefix}.*")).group(kafka::unique("pattern")))
                .start_at(StartOffset::Latest)
                .group_protocol(protocol)
                .metadata_age_max(AGE)
                .on_event(move |event| {
                    if let Event::Granted { partition, .. } = event {
                        holds.lock().unwrap().insert(partition.to_string());
                    }
                })
                .start(move |record| {
                    let topic = record.topic().to_owned();
                    std::future::ready(told.send(topic).map_err(|e| e.to_string()))
                })
                .unwrap();
            eventually("it has the old one", || held.lock().unwrap().len() == 1).await;
            let from = Instant::now();
            let new = kafka.topic(&prefix, 2).unwrap();
            kafka.ask(&format!("numbered {new} 50 5 60 1")).unwrap();
            for _ in 0..50 {
                let topic = tokio::time::timeout(crate::WAIT, read.recv()).await;
                assert_eq!(topic.unwrap().unwrap(), new);
            }
            println!(
                "{protocol:?}: a new topic was read after {:?}",
                from.elapsed()
            );
            if protocol == GroupProtocol::Classic {
                assert!(from.elapsed() < AGE + Duration::from_secs(20));
            }
            running.close(CLOSE).await.unwrap();
        });
    }
}

/// G31: bad input gets an error that names the setting and the remedy, and nothing that was committed
/// changes: a group id of another kind, a reservation of a partition that is not there, a topic that
/// is not.
fn bad_input_is_told_and_changes_nothing() {
    let kafka = Kafka::shared();
    let topic = kafka.topic("bad", 2).unwrap();
    kafka.ask(&format!("numbered {topic} 200 20 60 1")).unwrap();
    let group = kafka::unique("bad");
    let of = |what: Interest| Client::new(kafka.addresses()).subscribe(what);
    let named = |group: &str| Interest::from(Topics::named([topic.as_str()]).group(group));
    runtime().block_on(async {
        let a = Member::start(kafka, named(&group), AssignorKind::Range);
        eventually("all is committed", || {
            kafka.committed_records(&group, &topic).unwrap() == 200
        })
        .await;
        let before = kafka.committed(&group, &topic).unwrap();
        let reserved = Partitions::of(topic.as_str(), [7])
            .group(group.as_str())
            .reserved();
        let error = ends(of(reserved.into())).await;
        println!("a reservation of a partition that is not there: {error}");
        assert!(error.to_string().contains("reserve"), "{error}");
        assert!(error.to_string().contains("0 to 1"), "{error}");

        let connect = kafka::unique("connect");
        let _member = join_as(&kafka.addresses()[0], &connect, "connect");
        let error = ends(of(named(&connect))).await;
        println!("a classic member in a group of Connect's: {error}");
        assert_eq!(error.code(), Some(23), "{error}");
        assert!(
            error.to_string().contains("choose another group id"),
            "{error}"
        );
        let error = ends(of(named(&connect)).group_protocol(GroupProtocol::Consumer)).await;
        println!("a member of the new protocol in a group of Connect's: {error}");
        assert!(
            error.to_string().contains("choose another group id"),
            "{error}"
        );

        let nowhere = Topics::named([kafka::unique("nowhere")]).group(kafka::unique("none"));
        let (told, mut warned) = tokio::sync::mpsc::unbounded_channel();
        let running = of(nowhere.into())
            .on_event(move |event| {
                if let Event::Warning { error } = event {
                    // The test may have heard enough.
                    let _ = told.send(error.to_string());
                }
            })
            .start(|_record| async {})
            .unwrap();
        let words = tokio::time::timeout(crate::WAIT, warned.recv())
            .await
            .unwrap();
        println!("a topic that is not there: {}", words.as_ref().unwrap());
        assert!(words.unwrap().contains("nowhere"));
        running.close(CLOSE).await.unwrap();

        assert_eq!(kafka.committed(&group, &topic).unwrap(), before);
        assert_eq!(a.count(&topic), 2);
        a.closes().await;
    });
}

async fn ends(subscription: Subscription) -> Error {
    let run = subscription.run(|_record| async {});
    let ended = tokio::time::timeout(crate::WAIT, run).await;
    ended.expect("it ends").unwrap_err()
}

/// Joins a group with a protocol type of another kind, as Kafka Connect does, by JoinGroup 2. The
/// member lives as long as its connection is not closed and its session not over.
fn join_as(address: &str, group: &str, kind: &str) -> TcpStream {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        out.extend(text.as_bytes());
    };
    let mut request = Vec::new();
    request.extend([0, 11, 0, 2, 0, 0, 0, 7]);
    text(&mut request, "test");
    text(&mut request, group);
    request.extend(60_000i32.to_be_bytes());
    request.extend(60_000i32.to_be_bytes());
    text(&mut request, "");
    text(&mut request, kind);
    request.extend(1i32.to_be_bytes());
    text(&mut request, "default");
    request.extend(0i32.to_be_bytes());
    let mut socket = TcpStream::connect(address).unwrap();
    for _ in 0..50 {
        let len = u32::try_from(request.len()).unwrap();
        socket.write_all(&len.to_be_bytes()).unwrap();
        socket.write_all(&request).unwrap();
        let mut len = [0; 4];
        socket.read_exact(&mut len).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        socket.read_exact(&mut answer).unwrap();
        // Correlation id, throttle time, error.
        match i16::from_be_bytes([answer[8], answer[9]]) {
            0 => return socket,
            // The coordinator is not up yet.
            14..=16 => std::thread::sleep(Duration::from_millis(100)),
            code => panic!("JoinGroup: {code}"),
        }
    }
    panic!("no coordinator for {group}");
}

const AGE: Duration = Duration::from_secs(2);
/// The shortest that the broker allows is 6 s by default.
const SESSION: Duration = Duration::from_secs(6);
const CLOSE: Duration = Duration::from_secs(20);
