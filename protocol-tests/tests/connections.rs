//! Connections as the world has them: brokers that advertise what cannot be reached, streams that
//! the user brings, peers that close what is idle.

mod hostile_kit;
mod tls_kit;

use hostile_kit::{Hostile, assert_closes, honest, until, watched};
use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::{Connector, ErrorKind, Kafka, Outgoing};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tls_kit::{Shows, behind, reading, trusting};
use tokio::net::{TcpListener, TcpStream};

async fn filled(listen: Listen, records: usize) -> Server {
    let server = Server::start(ClusterConfig::default(), listen)
        .await
        .unwrap();
    let mut cluster = server.cluster();
    let now = cluster.now();
    cluster.create_topic("t", 1).unwrap();
    for _ in 0..records {
        let pair = (Some(&b"k"[..]), Some(&b"v"[..]));
        cluster.append_records(now, "t", 0, &[pair]).unwrap();
    }
    drop(cluster);
    server
}

/// The bootstrap address answers, and the address that the broker gives of itself leads nowhere:
/// the warning names both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advertised_address_that_leads_nowhere_is_named() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = nobody.local_addr().unwrap().port();
    drop(nobody);
    let listen = Listen {
        advertised: vec![("127.0.0.1".to_owned(), port)],
        ..Listen::default()
    };
    let server = filled(listen, 1).await;
    let bootstrap = server.bootstrap()[0].clone();
    let (running, seen) = watched(reading(&Kafka::new([bootstrap.clone()])));
    let advertised = format!("127.0.0.1:{port}");
    let named = || {
        seen.warnings().iter().any(|e| {
            let words = e.message();
            e.kind() == ErrorKind::Transport
                && words.contains(&advertised)
                && words.contains(&bootstrap)
                && words.contains("advertised.listeners")
        })
    };
    until(&seen, "both addresses", named).await;
    assert_closes(running, &seen).await;
}

/// A connector is asked for each broker by the address it has in the cluster, and TCP is not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_the_user_brings() {
    let listen = Listen {
        advertised: vec![("kafka.inside".to_owned(), 1)],
        ..Listen::default()
    };
    let server = Arc::new(filled(listen, 100).await);
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (log, broker) = (asked.clone(), server.clone());
    let connector = move |host: String, port: u16| {
        log.lock().unwrap().push(format!("{host}:{port}"));
        std::future::ready(io::Result::Ok(broker.connect(1)))
    };
    let kafka = Kafka::new(["the.way.in:7"]).connector(connector);
    let (running, seen) = watched(reading(&kafka));
    until(&seen, "every record", || seen.distinct() >= 100).await;
    assert_closes(running, &seen).await;
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], "the.way.in:7");
    assert!(asked.contains(&"kafka.inside:1".to_owned()), "{asked:?}");
}

/// Passes bytes on in memory: a stand-in for a proxy.
#[derive(Clone)]
struct Tunnel {
    to: String,
    opened: Arc<AtomicUsize>,
    /// So many times at first.
    refuses: usize,
}

impl Connector for Tunnel {
    type Stream = tokio::io::DuplexStream;

    async fn connect(&self, _host: String, _port: u16) -> io::Result<Self::Stream> {
        if self.opened.fetch_add(1, Ordering::Relaxed) < self.refuses {
            return Err(io::Error::other("the proxy is out of office"));
        }
        let (near, mut far) = tokio::io::duplex(4096);
        let mut broker = TcpStream::connect(&self.to).await?;
        tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut far, &mut broker).await;
        });
        Ok(near)
    }
}

/// TLS runs over a stream that the user brings, and checks the name of the broker, which is not
/// where the stream leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_over_a_stream_that_the_user_brings() {
    let behind = behind(&Shows::default(), "localhost").await;
    behind.fill(100);
    let tunnel = Tunnel {
        to: format!("127.0.0.1:{}", behind.front.port),
        opened: Arc::default(),
        refuses: 2,
    };
    let kafka = Kafka::new(["localhost:1"])
        .connector(tunnel.clone())
        .tls(trusting());
    let (running, seen) = watched(reading(&kafka));
    until(&seen, "every record", || seen.distinct() >= 100).await;
    assert!(
        seen.story().contains("the proxy is out of office"),
        "{}",
        seen.story()
    );
    assert_closes(running, &seen).await;
    assert!(tunnel.opened.load(Ordering::Relaxed) > 3);
    let other = Kafka::new(["elsewhere.example:1"])
        .connector(tunnel)
        .tls(trusting());
    let (running, seen) = watched(reading(&other));
    let refused = || {
        seen.warnings()
            .iter()
            .any(|e| e.message().contains("wrong host name"))
    };
    until(&seen, "a refusal of the name", refused).await;
    assert_closes(running, &seen).await;
}

/// `connections.max.idle.ms` on our side, for a producer of the same properties: what has been idle is
/// closed, and opened again for the next record; what is used stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_ours_are_closed_and_opened_again() {
    for (idle_ms, closes) in [("1000", true), ("600000", false)] {
        let hostile = Hostile::start(1, Arc::new(honest)).await;
        let kafka = Kafka::from_properties([
            ("bootstrap.servers", &*hostile.address),
            ("connections.max.idle.ms", idle_ms),
        ]);
        let producer = kafka.unwrap().producer().unwrap();
        let send = || producer.send(Outgoing::new("t").value("v"));
        assert_eq!(send().await.unwrap().offset, 0);
        assert_eq!(send().await.unwrap().offset, 1);
        // Time for those that are opened beside the first, and for all to be idle.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let before = hostile.connections();
        assert_eq!(send().await.unwrap().offset, 2);
        assert_eq!(hostile.connections() > before, closes, "{idle_ms}");
        producer.close(Duration::from_secs(5)).await.unwrap();
    }
}
