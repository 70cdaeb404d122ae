//! A man in the middle: the embedded broker behind a proxy that makes of each answer what a test
//! wants, and peers that are no broker at all.

#![allow(dead_code)] // each test file uses a part of it

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable};
use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::{Error, Event, Kafka, Record, Running, Subscription, Topics};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// For what must come at all.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub api: i16,
    pub version: i16,
    pub correlation: i32,
    /// Answers of this API before this one.
    pub nth: usize,
}

/// What the peer does with an answer.
pub enum Op {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends what it gives, piece by piece, without holding it.
    Pour(Box<dyn Iterator<Item = Vec<u8>> + Send>),
    /// Sends one byte now and then.
    Dribble(Vec<u8>),
    /// Closes the connection.
    Close,
    /// Sends nothing any more.
    Hang,
}

/// Takes what was asked and the honest answer with its length.
pub type Mangle = Arc<dyn Fn(Asked, Vec<u8>) -> Vec<Op> + Send + Sync>;

/// The embedded broker, and who stands before it.
pub struct Hostile {
    pub server: Server,
    pub address: String,
    pub connections: Arc<AtomicUsize>,
    pub asked: Arc<Mutex<BTreeMap<i16, usize>>>,
}

impl Hostile {
    /// A broker with topic `t` of `partitions`, whose answers all go through `mangle`.
    pub async fn start(partitions: i32, mangle: Mangle) -> Hostile {
        Self::start_behind(partitions, mangle, None).await
    }

    /// The same behind something else, which is what the broker advertises.
    pub async fn start_behind(
        partitions: i32,
        mangle: Mangle,
        advertised: Option<(&str, u16)>,
    ) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (host, told) = advertised.unwrap_or(("127.0.0.1", port));
        let listen = Listen {
            advertised: vec![(host.to_owned(), told)],
            ..Listen::default()
        };
        let server = Server::start(ClusterConfig::default(), listen)
            .await
            .unwrap();
        server.cluster().create_topic("t", partitions).unwrap();
        let upstream = server.bootstrap()[0].clone();
        let (connections, asked) = stand_before(listener, upstream, mangle);
        Hostile {
            server,
            address: format!("127.0.0.1:{port}"),
            connections,
            asked,
        }
    }

    /// `records` records of keys in turn in each partition.
    pub fn fill(&self, partitions: i32, records: usize) {
        let mut cluster = self.server.cluster();
        let now = cluster.now();
        for partition in 0..partitions {
            for at in 0..records {
                let key = format!("k{}", at % 10);
                let pair = (Some(key.as_bytes()), Some(&b"v"[..]));
                cluster
                    .append_records(now, "t", partition, &[pair])
                    .unwrap();
            }
        }
    }

    pub fn subscribe(&self) -> Subscription {
        subscribe(&self.address)
    }

    /// Connections made to the peer so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Requests of this API so far.
    pub fn asked(&self, api: ApiKey) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.get(&(api as i16)).copied().unwrap_or(0)
    }
}

/// Connections made to a man in the middle, and requests of each API.
pub type Counts = (Arc<AtomicUsize>, Arc<Mutex<BTreeMap<i16, usize>>>);

/// Whoever connects to `listener` speaks with `upstream`, whose answers all go through `mangle`.
pub fn stand_before(listener: TcpListener, upstream: String, mangle: Mangle) -> Counts {
    let connections = Arc::new(AtomicUsize::new(0));
    let asked = Arc::new(Mutex::new(BTreeMap::new()));
    let (count, log) = (connections.clone(), asked.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let Ok(broker) = TcpStream::connect(&upstream).await else {
                continue;
            };
            tokio::spawn(between(client, broker, mangle.clone(), log.clone()));
        }
    });
    (connections, asked)
}

/// A subscription on `t` that gives up on mute peers after a second.
pub fn subscribe(address: &str) -> Subscription {
    Kafka::new([address])
        .subscribe(Topics::named(["t"]).group("g"))
        .request_timeout(Duration::from_secs(1))
        .workers_by_key(4)
}

/// A peer that is no broker: `play` gets every connection.
pub async fn peer<F, Fut>(play: F) -> (String, Arc<AtomicUsize>)
where
    F: Fn(TcpStream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(play(stream));
        }
    });
    (address, connections)
}

async fn between(
    client: TcpStream,
    broker: TcpStream,
    mangle: Mangle,
    log: Arc<Mutex<BTreeMap<i16, usize>>>,
) {
    let (from_client, to_client) = client.into_split();
    let (from_broker, to_broker) = broker.into_split();
    let (tx, rx) = mpsc::unbounded_channel();
    let forward = tokio::spawn(requests(from_client, to_broker, tx, log));
    answers(from_broker, to_client, rx, mangle).await;
    forward.abort();
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    asked: mpsc::UnboundedSender<Asked>,
    log: Arc<Mutex<BTreeMap<i16, usize>>>,
) {
    while let Some(frame) = read_frame(&mut from).await {
        let two = |at: usize| i16::from_be_bytes([frame[at], frame[at + 1]]);
        let correlation = i32::from_be_bytes([frame[8], frame[9], frame[10], frame[11]]);
        let nth = {
            let mut log = log.lock().unwrap();
            let count = log.entry(two(4)).or_default();
            *count += 1;
            *count - 1
        };
        let one = Asked {
            api: two(4),
            version: two(6),
            correlation,
            nth,
        };
        if asked.send(one).is_err() || to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut asked: mpsc::UnboundedReceiver<Asked>,
    mangle: Mangle,
) {
    while let Some(frame) = read_frame(&mut from).await {
        let Some(one) = asked.recv().await else {
            return;
        };
        for op in mangle(one, frame) {
            match op {
                Op::Send(bytes) => {
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Op::Pour(pieces) => {
                    for piece in pieces {
                        if to.write_all(&piece).await.is_err() {
                            return;
                        }
                    }
                }
                Op::Dribble(bytes) => {
                    for byte in bytes {
                        if to.write_all(&[byte]).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
                Op::Close => return,
                Op::Hang => std::future::pending().await,
            }
        }
    }
}

/// With its length.
async fn read_frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut head = [0; 4];
    from.read_exact(&mut head).await.ok()?;
    let len = usize::try_from(i32::from_be_bytes(head)).ok()?;
    let mut frame = vec![0; 4 + len];
    frame[..4].copy_from_slice(&head);
    from.read_exact(&mut frame[4..]).await.ok()?;
    Some(frame)
}

/// Everything as it came.
pub fn honest(_: Asked, frame: Vec<u8>) -> Vec<Op> {
    vec![Op::Send(frame)]
}

/// The answer, read, changed and written again.
pub fn remake<R: Decodable + Encodable>(
    asked: Asked,
    frame: &[u8],
    edit: impl FnOnce(&mut R),
) -> Vec<u8> {
    let api = ApiKey::try_from(asked.api).unwrap();
    let header = api.response_header_version(asked.version);
    let mut rest = Bytes::copy_from_slice(&frame[4..]);
    let head = ResponseHeader::decode(&mut rest, header).unwrap();
    let mut body = R::decode(&mut rest, asked.version).unwrap();
    edit(&mut body);
    let mut out = BytesMut::from(&[0; 4][..]);
    head.encode(&mut out, header).unwrap();
    body.encode(&mut out, asked.version).unwrap();
    framed(out)
}

/// A frame of these bytes, which leave room for the length.
pub fn framed(mut out: BytesMut) -> Vec<u8> {
    let len = i32::try_from(out.len() - 4).unwrap();
    out[..4].copy_from_slice(&len.to_be_bytes());
    out.to_vec()
}

/// What a subscription said and did.
#[derive(Default)]
pub struct Seen {
    pub handled: Mutex<Vec<(i32, i64)>>,
    pub events: Mutex<Vec<Event>>,
}

impl Seen {
    /// Distinct records handled.
    pub fn distinct(&self) -> usize {
        let mut all = self.handled.lock().unwrap().clone();
        all.sort_unstable();
        all.dedup();
        all.len()
    }

    pub fn warnings(&self) -> Vec<Error> {
        let events = self.events.lock().unwrap();
        let warnings = events.iter().filter_map(|e| match e {
            Event::Warning { error } => Some(error.clone()),
            _ => None,
        });
        warnings.collect()
    }

    pub fn stopped(&self) -> Vec<Error> {
        let events = self.events.lock().unwrap();
        let stopped = events.iter().filter_map(|e| match e {
            Event::Stopped { error } => Some(error.clone()),
            _ => None,
        });
        stopped.collect()
    }

    /// All that was said, a line each.
    pub fn story(&self) -> String {
        let events = self.events.lock().unwrap();
        let lines = events.iter().take(60).map(|e| format!("{e:?}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

pub fn watched(subscription: Subscription) -> (Running, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let (log, events) = (seen.clone(), seen.clone());
    let running = subscription
        .on_event(move |e| events.events.lock().unwrap().push(e.clone()))
        .start(move |record: Record| {
            let at = (record.partition(), record.offset());
            log.handled.lock().unwrap().push(at);
            async {}
        })
        .unwrap();
    (running, seen)
}

/// Waits until `done` holds.
pub async fn until(seen: &Seen, what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(
            began.elapsed() < PATIENCE,
            "not in time: {what}\n{}",
            seen.story()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Closing ends within its deadline, whatever the peer does.
pub async fn assert_closes(running: Running, seen: &Seen) {
    const WITHIN: Duration = Duration::from_secs(2);
    // The exact deadline is held in virtual time (`hostile_codes.rs`); a machine that is busy with
    // other things may be late by much, one that waits for an hour is not.
    const LATE: Duration = Duration::from_secs(30);
    let began = Instant::now();
    let closed = tokio::time::timeout(PATIENCE, running.close(WITHIN)).await;
    let took = began.elapsed();
    assert!(
        took < WITHIN + LATE,
        "closing took {took:?}\n{}",
        seen.story()
    );
    closed.unwrap().unwrap();
}
