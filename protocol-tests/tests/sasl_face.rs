//! Authentication through the face, against the embedded broker over TCP.

use laneway::broker::{ClusterConfig, Listen, SaslConfig, Server};
use laneway::sasl::{Mechanism, Password, Token};
use laneway::{Error, ErrorKind, Event, Kafka, Record, Sasl, Topics};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

async fn broker(session: Option<Duration>) -> Server {
    let sasl = SaslConfig {
        session,
        ..SaslConfig::new([("alice", "swordfish")])
    };
    let config = ClusterConfig {
        sasl: Some(sasl),
        ..ClusterConfig::default()
    };
    let server = Server::start(config, Listen::default()).await.unwrap();
    let mut cluster = server.cluster();
    cluster.create_topic("t", 1).unwrap();
    let now = cluster.now();
    for at in 0..20 {
        let value = at.to_string();
        let pair = (None, Some(value.as_bytes()));
        cluster.append_records(now, "t", 0, &[pair]).unwrap();
    }
    drop(cluster);
    server
}

/// Reads all twenty, drains; the warnings on the way.
async fn read_all(server: &Server, sasl: Sasl) -> Vec<String> {
    let (done, mut handled) = tokio::sync::mpsc::channel(20);
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = warnings.clone();
    let running = Kafka::new(server.bootstrap())
        .sasl(sasl)
        .subscribe(Topics::named(["t"]).group("g"))
        .on_event(move |event| {
            if let Event::Warning { error } = event {
                heard.lock().unwrap().push(error.to_string());
            }
        })
        .start(move |record: Record| {
            let done = done.clone();
            async move { done.send(record.offset()).await.map_err(|e| e.to_string()) }
        })
        .unwrap();
    for _ in 0..20 {
        let next = tokio::time::timeout(PATIENCE, handled.recv());
        next.await.expect("it reads on").expect("it lives");
    }
    running.drain().await.unwrap();
    let committed = server.cluster().committed("g", "t", 0).map(|c| c.offset);
    assert_eq!(committed, Some(20));
    let warnings = warnings.lock().unwrap();
    warnings.clone()
}

#[tokio::test]
async fn passwords_are_proven_and_plain_ones_warned_of() {
    let server = broker(None).await;
    let warned = read_all(&server, Sasl::plain("alice", "swordfish")).await;
    assert!(
        warned.len() == 1 && warned[0].contains("without TLS"),
        "{warned:?}"
    );
    assert!(!warned[0].contains("swordfish"));
    for sasl in [
        Sasl::scram_sha_256("alice", "swordfish"),
        Sasl::scram_sha_512("alice", String::from("swordfish")),
    ] {
        let server = broker(Some(Duration::from_secs(2))).await;
        assert_eq!(read_all(&server, sasl).await, [""; 0]);
    }
}

/// L24: a provider is asked on the caller's runtime; one that fails or panics is asked again.
#[tokio::test]
async fn l24_providers_are_asked_until_they_give() {
    let server = Arc::new(broker(None).await);
    let asked = Arc::new(AtomicU32::new(0));
    let (count, there) = (asked.clone(), server.clone());
    let sasl = Sasl::oauthbearer(move || {
        let (count, there) = (count.clone(), there.clone());
        async move {
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => Err("no network yet".to_owned()),
                1 => panic!("a mistake of the provider's"),
                _ => {
                    let cluster = there.cluster();
                    let life = Duration::from_secs(60);
                    Ok(Token::new(cluster.token(cluster.now(), "alice", life)).expires_in(life))
                }
            }
        }
    });
    let warned = read_all(&server, sasl).await;
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    assert!(
        warned.iter().any(|w| w.contains("no network yet")),
        "{warned:?}"
    );
}

#[tokio::test]
async fn a_wrong_password_is_an_error_in_words() {
    let server = broker(None).await;
    for sasl in [
        Sasl::scram_sha_256("alice", "marlin"),
        Sasl::password_from(Mechanism::Plain, || async {
            Ok::<_, std::io::Error>(Password::new("alice", "marlin"))
        }),
    ] {
        let run = Kafka::new(server.bootstrap())
            .sasl(sasl)
            .subscribe(Topics::named(["t"]).group("g"))
            .run(|_: Record| async {});
        let ended: Result<(), Error> = tokio::time::timeout(PATIENCE, run).await.unwrap();
        let error = ended.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Broker, Some(58)));
        assert!(!error.to_string().contains("marlin"), "{error}");
    }
}
