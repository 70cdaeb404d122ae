//! One broker of a secure cluster is hostile, over plain connections and over TLS, and the other is
//! not: each attack costs that broker's partitions at most, a bounded pace, and bounded memory.
//!
//! One test alone, since it measures what the process takes: the highest that its resident memory
//! has been, above what it was at first. The cluster and the hostile peer live in the same process, so
//! what they need counts too; what they send at length they make on the way.

mod hostile_kit;
mod tls_kit;

use bytes::{Bytes, BytesMut};
use hostile_kit::{
    Asked, Mangle, Op, Seen, assert_closes, honest, remake, stand_before, until, watched,
};
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    ApiKey, MetadataResponse, ResponseHeader, SaslAuthenticateResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use laneway::broker::{ClusterConfig, Listen, SaslConfig, Server};
use laneway::records::{BatchBuilder, Compression, Encoder};
use laneway::sasl::Token;
use laneway::{ErrorKind, Kafka, Partitions, Running, Sasl};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tls_kit::{Front, Shows, trusting};
use tokio::net::TcpListener;

const PARTITIONS: i32 = 6;
const RECORDS: usize = 20;

/// What an attack may take that sends little: sockets, TLS, the cluster itself, a megabyte here
/// and there.
const SMALL: usize = 32 << 20;

/// One that sends all that a frame may hold: the buffer as it doubles, and what the peer has on its
/// way.
const WHOLE_FRAME: usize = (96 << 20) * 2 + SMALL;

/// What becomes of the hostile broker's own partitions.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// They are read: it was strange, not wrong.
    Read,
    /// They are not, and it is said why; the connection is made again at its pace.
    Named,
    /// They stop at the record, by themselves.
    Stopped,
}

#[derive(Clone)]
struct Attack {
    name: String,
    mangle: Mangle,
    bomb: Option<Bytes>,
    then: Then,
}

fn attack(
    name: &str,
    then: Then,
    apis: &'static [ApiKey],
    spoil: impl Fn(Asked, Vec<u8>) -> Vec<Op> + Send + Sync + 'static,
) -> Attack {
    let mangle = move |asked: Asked, frame| match apis.iter().any(|a| *a as i16 == asked.api) {
        true => spoil(asked, frame),
        false => honest(asked, frame),
    };
    Attack {
        name: name.to_owned(),
        mangle: Arc::new(mangle),
        bomb: None,
        then,
    }
}

fn attacks() -> Vec<Attack> {
    use Then::{Named, Read, Stopped};
    const DATA: &[ApiKey] = &[ApiKey::Metadata, ApiKey::Fetch, ApiKey::ListOffsets];
    const METADATA: &[ApiKey] = &[ApiKey::Metadata];
    const LOGIN: &[ApiKey] = &[ApiKey::SaslAuthenticate];
    let bytes = |name, bytes: &'static [u8]| {
        attack(name, Named, DATA, move |_, _| {
            vec![Op::Send(bytes.to_vec())]
        })
    };
    let login = |name, edit: fn(&mut SaslAuthenticateResponse)| {
        attack(name, Named, LOGIN, move |asked, frame| {
            vec![Op::Send(remake::<SaslAuthenticateResponse>(
                asked, &frame, edit,
            ))]
        })
    };
    let mut all = vec![
        bytes("a length of -1", &[0xff; 8]),
        bytes("a length of 0", &[0; 8]),
        bytes("a length of 2^31-1", &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        attack("arrays of 2^31", Named, DATA, |_, mut frame| {
            frame.iter_mut().skip(12).for_each(|b| *b = 0x7f);
            vec![Op::Send(frame)]
        }),
        attack("arrays of 2^32-1", Named, DATA, |_, mut frame| {
            for (at, byte) in frame.iter_mut().skip(12).enumerate() {
                *byte = [0xff, 0xff, 0xff, 0xff, 0x0f][at % 5];
            }
            vec![Op::Send(frame)]
        }),
        attack("truncated", Named, DATA, |_, frame| {
            vec![Op::Send(frame[..frame.len() / 2].to_vec()), Op::Close]
        }),
        attack("trailing bytes", Named, DATA, |_, mut frame| {
            frame.extend([0; 16]);
            let len = u32::try_from(frame.len() - 4).unwrap();
            frame[..4].copy_from_slice(&len.to_be_bytes());
            vec![Op::Send(frame)]
        }),
        attack("an answer nobody asked for", Named, DATA, |_, frame| {
            let stray = vec![0, 0, 0, 8, 0x7f, 0, 0, 1, 0, 0, 0, 0];
            vec![Op::Send(stray), Op::Send(frame)]
        }),
        attack("another correlation id", Named, DATA, |_, mut frame| {
            frame[7] ^= 0x55;
            vec![Op::Send(frame)]
        }),
        attack(
            "unknown tags by the thousand",
            Read,
            METADATA,
            |asked, frame| {
                let tagged = remake::<MetadataResponse>(asked, &frame, |body| {
                    for tag in 1000..6000 {
                        let value = Bytes::from_static(&[7; 20]);
                        body.unknown_tagged_fields.insert(tag, value);
                    }
                });
                vec![Op::Send(tagged)]
            },
        ),
        attack("a byte at a time", Read, DATA, |asked, frame| {
            match asked.nth < 2 && frame.len() < 500 {
                true => vec![Op::Dribble(frame)],
                false => honest(asked, frame),
            }
        }),
        login("2^31 rounds of SCRAM", |body| {
            let said = String::from_utf8_lossy(&body.auth_bytes).into_owned();
            if let Some((before, _)) = said.split_once(",i=") {
                body.auth_bytes = Bytes::from(format!("{before},i=2147483648"));
            }
        }),
        login("a challenge of a megabyte", |body| {
            body.auth_bytes = Bytes::from(vec![b'r'; 1 << 20]);
        }),
        login("words of a megabyte", |body| {
            body.error_code = 15; // loading: it may pass
            body.error_message = Some(StrBytes::from_string("x".repeat(1 << 20)));
        }),
    ];
    all.extend(
        [
            Compression::Gzip,
            Compression::Snappy,
            Compression::Lz4,
            Compression::Zstd,
        ]
        .map(|codec| Attack {
            name: format!("a bomb of {codec}"),
            mangle: Arc::new(honest),
            bomb: Some(bomb(codec)),
            then: Stopped,
        }),
    );
    all
}

/// The honest answer with a million topics more, made on the way: 60 MB.
fn million_topics(asked: Asked, frame: Vec<u8>) -> Vec<Op> {
    const STRANGERS: u32 = 1_000_000;
    if asked.nth >= 2 || asked.version < 12 {
        return honest(asked, frame);
    }
    let header = ApiKey::Metadata.response_header_version(asked.version);
    let mut rest = Bytes::from(frame).split_off(4);
    let head = ResponseHeader::decode(&mut rest, header).unwrap();
    let mut body = MetadataResponse::decode(&mut rest, asked.version).unwrap();
    let topics = std::mem::take(&mut body.topics);
    let encoded = |topic: &MetadataResponseTopic| {
        let mut out = BytesMut::new();
        topic.encode(&mut out, asked.version).unwrap();
        out.to_vec()
    };
    let own: Vec<u8> = topics.iter().flat_map(encoded).collect();
    let named = |name: &str| MetadataResponseTopic::default().with_name(Some(named_topic(name)));
    let stranger = encoded(&named("stranger-0000000"));
    let digits = stranger.windows(7).position(|w| w == b"0000000").unwrap();
    // Where the number of topics stands: what two bodies with other numbers differ in first.
    let whole = |body: &MetadataResponse| {
        let mut out = BytesMut::new();
        head.encode(&mut out, header).unwrap();
        body.encode(&mut out, asked.version).unwrap();
        out.to_vec()
    };
    let without = whole(&body);
    body.topics.push(named("x"));
    let with = whole(&body);
    let at = without.iter().zip(&with).position(|(a, b)| a != b).unwrap();
    let mut count = Vec::new();
    let mut left = STRANGERS + u32::try_from(topics.len()).unwrap() + 1;
    while left >= 0x80 {
        count.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    count.push(left as u8);
    let tail = without[at + 1..].to_vec();
    let begin = [&without[..at], &count, &own].concat();
    let len = begin.len() + STRANGERS as usize * stranger.len() + tail.len();
    assert!(len < 96 << 20, "{len} bytes are no frame that is read");
    let len = u32::try_from(len).unwrap().to_be_bytes();
    let strangers = (0..STRANGERS / 1000).map(move |thousand| {
        let mut piece = Vec::with_capacity(1000 * stranger.len());
        let mut name = String::new();
        for n in thousand * 1000..(thousand + 1) * 1000 {
            name.clear();
            write!(name, "{n:07}").unwrap();
            piece.extend_from_slice(&stranger[..digits]);
            piece.extend_from_slice(name.as_bytes());
            piece.extend_from_slice(&stranger[digits + 7..]);
        }
        piece
    });
    let begin = std::iter::once([&len[..], &begin].concat());
    let all = begin.chain(strangers).chain(std::iter::once(tail));
    vec![Op::Pour(Box::new(all))]
}

/// 32 MiB of zeros in a few kilobytes.
fn bomb(codec: Compression) -> Bytes {
    let mut bomb = BatchBuilder::new(0).compression(codec);
    let zeros = vec![0; 32 << 20];
    bomb.push(0, Some(b"k"), Some(&zeros), &[]).unwrap();
    let bomb = bomb.build(&mut Encoder::new()).unwrap();
    BytesMut::from(&bomb[..]).freeze()
}

fn named_topic(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// Two brokers, of which the first goes through `mangle`.
struct Cluster {
    server: Server,
    kafka: Kafka,
    hostile: String,
    connections: Arc<AtomicUsize>,
}

async fn cluster(mangle: Mangle, secure: bool) -> Cluster {
    let config = ClusterConfig {
        nodes: 2,
        sasl: Some(SaslConfig::new([("alice", "swordfish")])),
        ..ClusterConfig::default()
    };
    let (mut listeners, mut fronts, mut advertised) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        advertised.push((
            "localhost".to_owned(),
            listener.local_addr().unwrap().port(),
        ));
        listeners.push(listener);
    }
    if secure {
        for told in &mut advertised {
            let (front, listener) = Front::bind(&Shows::default()).await;
            front.serve(listener, format!("127.0.0.1:{}", told.1));
            told.1 = front.port;
            fronts.push(front);
        }
    }
    let listen = Listen {
        advertised: advertised.clone(),
        ..Listen::default()
    };
    let server = Server::start(config, listen).await.unwrap();
    let upstream = server.bootstrap();
    let mangles: [Mangle; 2] = [mangle, Arc::new(honest)];
    let mut counts = Vec::new();
    for ((listener, upstream), mangle) in listeners.into_iter().zip(upstream).zip(mangles) {
        counts.push(stand_before(listener, upstream, mangle).0);
    }
    let names: Vec<String> = advertised.iter().map(|(h, p)| format!("{h}:{p}")).collect();
    let kafka = Kafka::new(names.clone()).sasl(Sasl::scram_sha_256("alice", "swordfish"));
    Cluster {
        server,
        kafka: match secure {
            true => kafka.tls(trusting()),
            false => kafka,
        },
        hostile: names[0].clone(),
        connections: counts.swap_remove(0),
    }
}

impl Cluster {
    fn fill(&self) {
        let mut cluster = self.server.cluster();
        let now = cluster.now();
        cluster.create_topic("t", PARTITIONS).unwrap();
        for partition in 0..PARTITIONS {
            for _ in 0..RECORDS {
                let pair = (Some(&b"k"[..]), Some(&b"v"[..]));
                cluster
                    .append_records(now, "t", partition, &[pair])
                    .unwrap();
            }
        }
    }

    /// Behind the records of each of the hostile broker's partitions.
    fn plant(&self, bomb: &Bytes) {
        for partition in self.led_by(1) {
            let mut cluster = self.server.cluster();
            let now = cluster.now();
            cluster.append(now, "t", partition, bomb.clone()).unwrap();
        }
    }

    fn led_by(&self, node: i32) -> Vec<i32> {
        let cluster = self.server.cluster();
        let leader = |p: &i32| cluster.partition_view("t", *p).unwrap().leader;
        (0..PARTITIONS).filter(|p| leader(p) == node).collect()
    }

    fn read(&self, kafka: &Kafka) -> (Running, Arc<Seen>) {
        let partitions = Partitions::of("t", 0..PARTITIONS);
        let subscription = kafka.subscribe(partitions).workers_by_key(4);
        watched(
            subscription
                .request_timeout(Duration::from_secs(5))
                .batch_bytes_max(1 << 20)
                .budget(4 << 20),
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attack_over_plain_and_tls_is_bounded() {
    // What every life needs is there before anything is measured.
    endure(&attack("nothing", Then::Read, &[], honest), false, false).await;
    endure(&attack("nothing", Then::Read, &[], honest), true, false).await;
    let attacks = attacks();
    let before = Resident::now().bytes;
    let measured = |way: &str, name: &str, began: Instant, most: usize| {
        let grown = Resident::highest().bytes.saturating_sub(before);
        let took = began.elapsed().as_millis();
        println!("{way:5} {name:32} {:>7} KiB {took:>5} ms", grown >> 10);
        assert!(grown < most, "{way}, {name}: {} MiB", grown >> 20);
        Resident::forget_highest();
    };
    Resident::forget_highest();
    for (way, secure) in [("plain", false), ("TLS", true)] {
        for attack in &attacks {
            let began = Instant::now();
            endure(attack, secure, false).await;
            measured(way, &attack.name, began, SMALL);
        }
        let began = Instant::now();
        tokens_of_a_megabyte(secure).await;
        measured(way, "our own token of a megabyte", began, SMALL);
    }
    // What they have taken may stay with the process.
    for (way, secure) in [("plain", false), ("TLS", true)] {
        let attack = attack(
            "a million topics",
            Then::Read,
            &[ApiKey::Metadata],
            million_topics,
        );
        let began = Instant::now();
        endure(&attack, secure, false).await;
        measured(way, &attack.name, began, WHOLE_FRAME);
    }
    // Those that go on failing come to a typed warning in the end; all at once, since that takes a
    // while.
    let mut all = Vec::new();
    for secure in [false, true] {
        for attack in attacks.iter().filter(|a| a.then == Then::Named) {
            let attack = attack.clone();
            all.push(tokio::spawn(
                async move { endure(&attack, secure, true).await },
            ));
        }
    }
    for one in all {
        one.await.unwrap();
    }
}

async fn endure(attack: &Attack, secure: bool, until_typed: bool) {
    let cluster = cluster(attack.mangle.clone(), secure).await;
    cluster.fill();
    if let Some(bomb) = &attack.bomb {
        cluster.plant(bomb);
    }
    let (own, others) = (cluster.led_by(1), cluster.led_by(2));
    assert!(!own.is_empty() && !others.is_empty());
    let (running, seen) = cluster.read(&cluster.kafka);
    let read = |partitions: &[i32]| {
        let handled = seen.handled.lock().unwrap();
        let of = |p: &i32| handled.iter().filter(|(at, _)| at == p).count();
        partitions.iter().map(of).sum::<usize>()
    };
    let name = &attack.name;
    until(&seen, name, || read(&others) == others.len() * RECORDS).await;
    match attack.then {
        Then::Read => until(&seen, name, || read(&own) == own.len() * RECORDS).await,
        Then::Named => {
            let words = || seen.story().contains(&cluster.hostile);
            until(&seen, name, words).await;
            if until_typed {
                // At the tenth failure in a row.
                until(&seen, name, || is_typed(&seen, &cluster.hostile)).await;
            }
        }
        Then::Stopped => {
            until(&seen, name, || seen.stopped().len() == own.len()).await;
            for error in seen.stopped() {
                assert_eq!(error.offset(), Some(RECORDS as i64), "{name}: {error}");
                assert!(own.contains(&error.partition().unwrap()), "{name}: {error}");
            }
            assert_eq!(read(&own), own.len() * RECORDS, "{name}");
        }
    }
    // It lives, and what comes now at the honest broker is read.
    for partition in &others {
        let mut cluster = cluster.server.cluster();
        let now = cluster.now();
        let pair = (Some(&b"k"[..]), Some(&b"v"[..]));
        cluster
            .append_records(now, "t", *partition, &[pair])
            .unwrap();
    }
    until(&seen, name, || {
        read(&others) == others.len() * (RECORDS + 1)
    })
    .await;
    let connections = cluster.connections.load(Ordering::Relaxed);
    assert!(connections < 40, "{name}: {connections} connections");
    let handled = seen.handled.lock().unwrap().len();
    assert_eq!(handled, seen.distinct(), "{name}: nothing comes twice");
    assert_closes(running, &seen).await;
}

fn is_typed(seen: &Seen, hostile: &str) -> bool {
    let typed = |e: &laneway::Error| {
        let kinds = [ErrorKind::Peer, ErrorKind::Transport, ErrorKind::Broker];
        kinds.contains(&e.kind()) && e.broker() == Some(hostile)
    };
    seen.warnings().iter().any(typed)
}

/// A provider whose tokens have a megabyte: no broker takes them, and that is said.
async fn tokens_of_a_megabyte(secure: bool) {
    let cluster = cluster(Arc::new(honest), secure).await;
    cluster.fill();
    let token = || async { Ok::<_, String>(Token::new("x".repeat(1 << 20))) };
    let kafka = cluster.kafka.clone().sasl(Sasl::oauthbearer(token));
    let (running, seen) = cluster.read(&kafka);
    let ended = tokio::time::timeout(hostile_kit::PATIENCE, running.join()).await;
    let error = ended.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broker, "{error}");
    assert!(
        error.to_string().len() < 1000,
        "{} bytes",
        error.to_string().len()
    );
    assert_eq!(seen.distinct(), 0);
}

/// Memory of this process that is in RAM.
struct Resident {
    bytes: usize,
}

impl Resident {
    fn now() -> Self {
        Self::read("VmRSS:")
    }

    fn highest() -> Self {
        Self::read("VmHWM:")
    }

    fn read(name: &str) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
        Resident { bytes: kib << 10 }
    }

    /// The highest begins anew, at what is there now.
    fn forget_highest() {
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
    }
}
