//! The redrive program against the embedded broker: what died comes back as it was, once.

use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::records::{Decoder, Limits, Piece, split};
use laneway::{Event, Kafka, Outcome, Outgoing, Record, Topics};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = profile.join("examples").join(file);
    assert!(
        path.exists(),
        "{path:?} is not built: cargo build -p laneway-examples --examples"
    );
    path
}

async fn program(args: Vec<String>) -> Output {
    let run = move || {
        Command::new(example("redrive"))
            .args(args)
            .output()
            .unwrap()
    };
    let run = tokio::task::spawn_blocking(run);
    tokio::time::timeout(PATIENCE, run)
        .await
        .expect("it ends")
        .unwrap()
}

/// Key, value, timestamp, headers.
type Whole = (
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    i64,
    Vec<(Vec<u8>, Option<Vec<u8>>)>,
);

fn log(server: &Server, topic: &str, partition: i32) -> Vec<Whole> {
    let bytes = server.cluster().batches(topic, partition).unwrap();
    let mut records = Vec::new();
    for piece in split(bytes) {
        let Ok(Piece::Batch(raw)) = piece else {
            panic!("no batch");
        };
        let batch = raw
            .decode(&mut Decoder::new(), 0, &Limits::default())
            .unwrap();
        for i in 0..batch.len() {
            let owned = |b: Option<&[u8]>| b.map(<[u8]>::to_vec);
            let headers = batch
                .headers(i)
                .map(|h| (h.key_bytes().to_vec(), owned(h.value())));
            let headers = headers.collect();
            records.push((
                owned(batch.key(i)),
                owned(batch.value(i)),
                batch.timestamp(i),
                headers,
            ));
        }
    }
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_come_back_as_they_were_and_once() {
    let server = Server::start(ClusterConfig::default(), Listen::default())
        .await
        .unwrap();
    server.cluster().create_topic("payments", 3).unwrap();
    server.cluster().create_topic("payments.dlq", 2).unwrap();
    let kafka = Kafka::new(server.bootstrap());
    let producer = kafka.producer().unwrap();
    for n in 0..30 {
        let mut record = Outgoing::new("payments")
            .timestamp(1000 + n)
            .header("trace", vec![n as u8, 0xff]);
        record.partition = Some((n % 3) as i32);
        record.key = (n % 4 != 0).then(|| format!("k{}", n % 5).into());
        record.value = (n % 7 != 0).then(|| format!("v{n}").into());
        record.headers.push(("trace".into(), None));
        producer.send(record).await.unwrap();
    }
    let before: Vec<_> = (0..3).map(|p| log(&server, "payments", p)).collect();
    let (died, mut deaths) = tokio::sync::mpsc::unbounded_channel();
    let running = kafka
        .subscribe(Topics::named(["payments"]).group("billing"))
        .dead_letter("payments.dlq")
        .on_event(move |event| {
            if let Event::DeadLettered { .. } = event {
                died.send(()).unwrap();
            }
        })
        .start(|_: Record| async { Outcome::dead_letter("no such account") })
        .unwrap();
    for _ in 0..30 {
        let death = tokio::time::timeout(PATIENCE, deaths.recv());
        death
            .await
            .expect("it dies in time")
            .expect("the subscription runs");
    }
    running.drain().await.unwrap();

    let args = |group: &str| {
        let args = [
            server.bootstrap().join(","),
            "payments.dlq".to_owned(),
            group.to_owned(),
        ];
        args.to_vec()
    };
    for round in ["first", "again"] {
        let out = program(args("redrive")).await;
        let told = String::from_utf8(out.stdout).unwrap();
        assert!(
            out.status.success(),
            "{told} {}",
            String::from_utf8_lossy(&out.stderr)
        );
        // What is committed does not come again.
        let back = if round == "first" { 30 } else { 0 };
        assert_eq!(
            told.trim(),
            format!("{back} brought back, 0 left where they are")
        );
    }
    for (partition, before) in (0..3).zip(before) {
        let mut after = log(&server, "payments", partition);
        let mut back = after.split_off(before.len());
        assert_eq!(after, before);
        // Those without a key keep no order between them.
        back.sort_by_key(|record| record.2);
        assert_eq!(back, before, "partition {partition}");
    }

    // What says nothing of where it is from stays.
    producer
        .send(Outgoing::new("payments.dlq").value("who knows"))
        .await
        .unwrap();
    producer.close(Duration::from_secs(10)).await.unwrap();
    let out = program(args("redrive")).await;
    let told = String::from_utf8(out.stdout).unwrap();
    assert_eq!(told.trim(), "0 brought back, 1 left where they are");
}
