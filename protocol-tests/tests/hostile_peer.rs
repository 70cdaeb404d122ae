//! The tokio shell and the engine against peers that send what no broker should.
//!
//! For each: a typed error or a bounded wait, no panic, no spin, memory within bounds; the
//! subscription goes on once the peer behaves, and closing ends within its deadline all the same.

mod hostile_kit;

use bytes::{Bytes, BytesMut};
use hostile_kit::{
    Asked, Hostile, Mangle, Op, assert_closes, honest, peer, remake, subscribe, until, watched,
};
use kafka_protocol::messages::{
    ApiKey, BrokerId, FetchResponse, JoinGroupResponse, MetadataResponse, SyncGroupResponse,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;
use laneway::ErrorKind;
use laneway::records::{BatchBuilder, Compression, Encoder};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn say(mut stream: TcpStream, bytes: Vec<u8>) {
    let mut request = [0; 256];
    // Not before it was asked something.
    let _ = stream.read(&mut request).await;
    let _ = stream.write_all(&bytes).await;
    // The client ends it.
    let _ = stream.read(&mut request).await;
}

/// L06, L07: what is no Kafka at all is named, tried again at growing distances, and costs
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_speak_something_else_are_named_and_paced() {
    let cases: [(&'static [u8], &str); 8] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (&[0x15, 3, 3, 0, 2, 2, 70, 0, 0], "TLS"),
        (&[0x16, 3, 1, 0, 100, 1, 0, 0], "TLS"),
        (&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], "-1 bytes"),
        (&[0, 0, 0, 0, 0, 0, 0, 0], "0 bytes"),
        (&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0], "over the cap"),
        (&[0, 0, 0, 4, 0, 0, 0, 77], "correlation id"),
        (&[0, 0, 0, 100, 0], "TLS port"), // and then it closes: see below
    ];
    let all = cases.map(|(bytes, word)| tokio::spawn(assert_named(bytes, word)));
    for one in all {
        one.await.unwrap();
    }
}

async fn assert_named(bytes: &'static [u8], word: &'static str) {
    let short = bytes.len() == 5;
    let (address, connections) = peer(move |mut stream| async move {
        if short {
            let _ = stream.write_all(bytes).await;
        } else {
            say(stream, bytes.to_vec()).await;
        }
    })
    .await;
    let (running, seen) = watched(subscribe(&address));
    let named = || seen.warnings().iter().any(|e| e.to_string().contains(word));
    until(&seen, word, named).await;
    for error in seen.warnings() {
        let blame = matches!(error.kind(), ErrorKind::Peer | ErrorKind::Transport);
        assert!(blame, "{error:?}");
        assert_eq!(error.broker(), Some(&*address), "{error}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let tried = connections.load(Ordering::Relaxed);
    assert!(tried < 30, "{word}: {tried} connections");
    assert_closes(running, &seen).await;
}

/// L08, L31: a peer that accepts and closes is tried again at growing distances, and said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_closes_at_once_is_paced() {
    let (address, connections) = peer(|stream| async move { drop(stream) }).await;
    let (running, seen) = watched(subscribe(&address));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!seen.warnings().is_empty(), "{}", seen.story());
    let tried = connections.load(Ordering::Relaxed);
    assert!((3..40).contains(&tried), "{tried} connections");
    assert_closes(running, &seen).await;
}

/// Nobody listens: the user hears of it, with the address and the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_without_a_listener_is_said() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (running, seen) = watched(subscribe(&address));
    until(&seen, "a warning", || {
        let warnings = seen.warnings();
        warnings.iter().any(|e| {
            e.kind() == ErrorKind::Transport
                && e.broker() == Some(&address)
                && e.to_string().contains("refused")
        })
    })
    .await;
    assert_closes(running, &seen).await;
}

/// L02: a peer that accepts and never says a word is given up at the time-out, and closing does
/// not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mute_peer_is_given_up() {
    let (address, connections) = peer(|mut stream| async move {
        let mut sink = [0; 1024];
        while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let (running, seen) = watched(subscribe(&address));
    until(&seen, "a warning", || !seen.warnings().is_empty()).await;
    let tried = connections.load(Ordering::Relaxed);
    assert!((1..6).contains(&tried), "{tried} connections");
    assert_closes(running, &seen).await;
}

/// L06: a length that is only claimed reserves nothing, however slowly its bytes come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimed_length_reserves_nothing() {
    let before = resident();
    let (address, _) = peer(|mut stream| async move {
        let mut request = [0; 256];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(&(100i32 << 20).to_be_bytes()).await;
        while stream.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut all = Vec::new();
    for _ in 0..20 {
        all.push(watched(subscribe(&address)));
    }
    tokio::time::sleep(Duration::from_millis(800)).await;
    let grown = resident().saturating_sub(before);
    // 20 times 100 MB were claimed. Other tests of this process run beside this one.
    assert!(grown < 400 << 20, "{} MB more", grown >> 20);
    let close = |(running, seen): (_, Arc<_>)| async move { assert_closes(running, &seen).await };
    let closing: Vec<_> = all
        .into_iter()
        .map(|one| tokio::spawn(close(one)))
        .collect();
    for one in closing {
        one.await.unwrap();
    }
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Misbehaves at some answers, then never again: all 60 records are handled and committed.
async fn assert_recovers(name: &str, mangle: Mangle) {
    let hostile = Hostile::start(3, mangle).await;
    hostile.fill(3, 20);
    let (running, seen) = watched(hostile.subscribe());
    until(&seen, name, || seen.distinct() == 60).await;
    let committed = || {
        let cluster = hostile.server.cluster();
        let of = |p| cluster.committed("g", "t", p).map_or(-1, |c| c.offset);
        (0..3).all(|p| of(p) == 20)
    };
    until(&seen, name, committed).await;
    assert!(
        hostile.connections() < 40,
        "{name}: {} connections",
        hostile.connections()
    );
    assert_closes(running, &seen).await;
}

/// Every API of a subscription's life.
const APIS: [ApiKey; 8] = [
    ApiKey::ApiVersions,
    ApiKey::Metadata,
    ApiKey::FindCoordinator,
    ApiKey::JoinGroup,
    ApiKey::SyncGroup,
    ApiKey::OffsetFetch,
    ApiKey::Fetch,
    ApiKey::OffsetCommit,
];

/// L03, L05, L06: the first two answers of each API damaged in one way; the life goes on.
async fn damage_each(name: &'static str, damage: fn(Asked, Vec<u8>) -> Vec<Op>) {
    let mut all = Vec::new();
    for api in APIS {
        let mangle: Mangle = Arc::new(move |asked, frame| match asked.api == api as i16 {
            true if asked.nth < 2 => damage(asked, frame),
            _ => honest(asked, frame),
        });
        all.push(tokio::spawn(async move {
            assert_recovers(&format!("{name}, {api:?}"), mangle).await;
        }));
    }
    for one in all {
        one.await.unwrap();
    }
}

/// L03: the connection ends in the middle of an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_cut_in_the_middle_cost_a_connection() {
    damage_each("cut", |_, frame| {
        vec![Op::Send(frame[..frame.len() / 2].to_vec()), Op::Close]
    })
    .await;
}

/// L05: an answer under another number is nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_under_another_number_cost_a_connection() {
    damage_each("other number", |_, mut frame| {
        frame[7] ^= 0x55;
        vec![Op::Send(frame)]
    })
    .await;
}

/// L05: an answer that comes twice has nobody waiting for it, or somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_twice_cost_a_connection() {
    damage_each("twice", |_, frame| {
        vec![Op::Send(frame.clone()), Op::Send(frame)]
    })
    .await;
}

/// L14: bytes behind an answer are damage, not padding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailing_bytes_cost_a_connection() {
    damage_each("trailing", |_, mut frame| {
        frame.extend([0; 16]);
        let len = i32::try_from(frame.len() - 4).unwrap();
        frame[..4].copy_from_slice(&len.to_be_bytes());
        vec![Op::Send(frame)]
    })
    .await;
}

/// L14: every byte behind the correlation id is 0x7f: lists of 2^31 elements and the like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_two_billion_reserve_nothing() {
    damage_each("lists", |_, mut frame| {
        frame.iter_mut().skip(12).for_each(|b| *b = 0x7f);
        vec![Op::Send(frame)]
    })
    .await;
}

/// L02: never answered; the time-out of a second ends the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_never_come_are_given_up() {
    // A join is parked by design, for as long as a rebalance may take.
    let parked = [ApiKey::JoinGroup as i16, ApiKey::SyncGroup as i16];
    let mut all = Vec::new();
    for api in APIS.into_iter().filter(|a| !parked.contains(&(*a as i16))) {
        let mangle: Mangle =
            Arc::new(
                move |asked, frame| match asked.api == api as i16 && asked.nth < 1 {
                    true => vec![Op::Hang],
                    false => honest(asked, frame),
                },
            );
        all.push(tokio::spawn(async move {
            assert_recovers(&format!("never, {api:?}"), mangle).await;
        }));
    }
    for one in all {
        one.await.unwrap();
    }
}

/// Closing while answers of one kind never come: whatever it waits for, it ends in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_no_mute_peer() {
    let mut all = Vec::new();
    for api in [
        ApiKey::JoinGroup,
        ApiKey::SyncGroup,
        ApiKey::OffsetFetch,
        ApiKey::Fetch,
        ApiKey::OffsetCommit,
        ApiKey::LeaveGroup,
    ] {
        all.push(tokio::spawn(async move {
            let mangle: Mangle = Arc::new(move |asked, frame| match asked.api == api as i16 {
                true => vec![Op::Hang],
                false => honest(asked, frame),
            });
            let hostile = Hostile::start(3, mangle).await;
            hostile.fill(3, 20);
            let (running, seen) = watched(hostile.subscribe());
            let begun = || hostile.asked(api) > 0 || api == ApiKey::LeaveGroup;
            until(&seen, "asked", begun).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_closes(running, &seen).await;
        }));
    }
    for one in all {
        one.await.unwrap();
    }
}

/// Unknown tagged fields by the thousand are passed over (KIP-482).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_unknown_tags_are_passed_over() {
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::Metadata as i16 {
            return honest(asked, frame);
        }
        let tagged = remake::<MetadataResponse>(asked, &frame, |body| {
            for tag in 1000..6000 {
                body.unknown_tagged_fields
                    .insert(tag, Bytes::from_static(&[7; 20]));
            }
        });
        vec![Op::Send(tagged)]
    });
    assert_recovers("tags", mangle).await;
}

/// L36: a hundred thousand topics and partitions that nobody asked for are not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_a_hundred_thousand_strangers_is_dropped() {
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::Metadata as i16 || asked.nth >= 3 {
            return honest(asked, frame);
        }
        let grown = remake::<MetadataResponse>(asked, &frame, |body| {
            let one = body.topics[0].clone();
            for n in 0..100_000 {
                let name = TopicName(StrBytes::from_string(format!("stranger-{n}")));
                let mut topic = one.clone();
                topic.name = Some(name);
                topic.topic_id = uuid(n);
                topic.partitions.truncate(1);
                body.topics.push(topic);
            }
        });
        vec![Op::Send(grown)]
    });
    assert_recovers("strangers", mangle).await;
}

/// A topic that says it has thousands of partitions, led by nodes that are not there, goes
/// on with those that are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_leaders_that_are_not_there_do_not_stop_the_others() {
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::Metadata as i16 {
            return honest(asked, frame);
        }
        let grown = remake::<MetadataResponse>(asked, &frame, |body| {
            let Some(topic) = body.topics.first_mut().filter(|t| !t.partitions.is_empty()) else {
                return;
            };
            for n in 3..5_000 {
                let mut partition = topic.partitions[0].clone();
                partition.partition_index = n;
                partition.leader_id = BrokerId(n);
                topic.partitions.push(partition);
            }
        });
        vec![Op::Send(grown)]
    });
    let hostile = Hostile::start(3, mangle).await;
    hostile.fill(3, 20);
    let (running, seen) = watched(hostile.subscribe());
    until(&seen, "the partitions with a leader", || {
        seen.distinct() == 60
    })
    .await;
    let before = hostile.asked(ApiKey::Metadata);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = hostile.asked(ApiKey::Metadata) - before;
    assert!(asked < 10, "{asked} metadata requests in two seconds");
    assert_closes(running, &seen).await;
}

fn uuid(n: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(n + (1 << 100))
}

/// D43: partitions never asked for, and one named twice, give nothing twice and make no state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_and_repeated_partitions_of_a_fetch_are_dropped() {
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::Fetch as i16 {
            return honest(asked, frame);
        }
        let grown = remake::<FetchResponse>(asked, &frame, |body| {
            let Some(topic) = body.responses.first_mut() else {
                return;
            };
            let Some(first) = topic.partitions.first().cloned() else {
                return;
            };
            topic.partitions.push(first.clone());
            let mut foreign = first;
            for n in 1000..1100 {
                foreign.partition_index = n;
                topic.partitions.push(foreign.clone());
            }
            let mut other = topic.clone();
            other.topic = TopicName(StrBytes::from_static_str("other"));
            other.topic_id = uuid(7);
            body.responses.push(other);
        });
        vec![Op::Send(grown)]
    });
    let hostile = Hostile::start(3, mangle).await;
    hostile.fill(3, 20);
    let (running, seen) = watched(hostile.subscribe());
    until(&seen, "all", || seen.distinct() == 60).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(seen.handled.lock().unwrap().len(), 60);
    let snapshot = running.snapshot().await.unwrap();
    assert_eq!(snapshot.partitions.len(), 3);
    assert_closes(running, &seen).await;
}

/// X06: a small batch that inflates beyond the limit stops its partition with a typed error at
/// its offset; the others run, whatever the codec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compression_bombs_stop_their_partition_alone() {
    let before = resident();
    for codec in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let hostile = Hostile::start(2, Arc::new(honest)).await;
        hostile.fill(2, 20);
        {
            let mut bomb = BatchBuilder::new(0).compression(codec);
            bomb.push(0, Some(b"k"), Some(&vec![0; 16 << 20]), &[])
                .unwrap();
            let bomb = bomb.build(&mut Encoder::new()).unwrap();
            let mut cluster = hostile.server.cluster();
            let now = cluster.now();
            let bomb = BytesMut::from(&bomb[..]).freeze();
            assert_eq!(cluster.append(now, "t", 0, bomb).unwrap(), 20);
        }
        let (running, seen) = watched(hostile.subscribe().batch_bytes_max(1 << 20).budget(4 << 20));
        until(&seen, "the stop", || !seen.stopped().is_empty()).await;
        let error = seen.stopped().remove(0);
        let at = (error.topic(), error.partition(), error.offset());
        assert_eq!(at, (Some("t"), Some(0), Some(20)), "{codec}: {error}");
        until(&seen, "the others", || seen.distinct() == 40).await;
        hostile.fill(2, 20);
        until(&seen, "what came later", || seen.distinct() == 60).await;
        let held = running.snapshot().await.unwrap().budget_used;
        assert!(held < 8 << 20, "{codec}: {held} bytes held");
        assert_closes(running, &seen).await;
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 400 << 20, "{} MB more", grown >> 20);
}

/// D12, I4: a fetch answered from offset 0 again and again: nothing is delivered twice, the
/// position never goes back, and it does not spin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_go_backwards_are_not_delivered_again() {
    let first = Arc::new(std::sync::Mutex::new(Bytes::new()));
    let mangle: Mangle = Arc::new(move |asked, frame| {
        if asked.api != ApiKey::Fetch as i16 {
            return honest(asked, frame);
        }
        let again = remake::<FetchResponse>(asked, &frame, |body| {
            for p in body.responses.iter_mut().flat_map(|t| &mut t.partitions) {
                let mut first = first.lock().unwrap();
                let records = p.records.clone().unwrap_or_default();
                if first.is_empty() {
                    *first = records;
                } else if p.partition_index == 0 {
                    p.records = Some(first.clone());
                }
            }
        });
        vec![Op::Send(again)]
    });
    let hostile = Hostile::start(1, mangle).await;
    hostile.fill(1, 20);
    let (running, seen) = watched(hostile.subscribe());
    until(&seen, "all", || seen.distinct() == 20).await;
    hostile.fill(1, 20);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let handled = seen.handled.lock().unwrap().clone();
    assert!(handled.is_sorted_by(|a, b| a < b), "{handled:?}");
    let fetches = hostile.asked(ApiKey::Fetch);
    assert!(fetches < 100, "{fetches} fetches");
    assert_closes(running, &seen).await;
}

/// An assignor that was not offered makes no generation; the member tries again, paced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignor_that_was_not_offered_is_refused_and_paced() {
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::JoinGroup as i16 || asked.nth >= 4 {
            return honest(asked, frame);
        }
        let renamed = remake::<JoinGroupResponse>(asked, &frame, |body| {
            body.protocol_name = Some(StrBytes::from_static_str("evil"));
        });
        vec![Op::Send(renamed)]
    });
    assert_recovers("assignor", mangle).await;
}

/// An assignment of two billion partitions reserves nothing and gives nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assignments_of_two_billion_partitions_reserve_nothing() {
    let before = resident();
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::SyncGroup as i16 {
            return honest(asked, frame);
        }
        let huge = remake::<SyncGroupResponse>(asked, &frame, |body| {
            let claims = [
                &[0, 0, 0, 0, 0, 1, 0, 1, b't'][..],
                &[0x7f, 0xff, 0xff, 0xff],
            ];
            body.assignment = claims.concat().into();
        });
        vec![Op::Send(huge)]
    });
    let hostile = Hostile::start(3, mangle).await;
    hostile.fill(3, 20);
    let (running, seen) = watched(hostile.subscribe());
    until(&seen, "a word", || {
        seen.warnings()
            .iter()
            .any(|e| e.to_string().contains("assignment"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(seen.distinct(), 0);
    assert!(hostile.asked(ApiKey::JoinGroup) < 20);
    assert!(resident().saturating_sub(before) < 500 << 20);
    assert_closes(running, &seen).await;
}

/// An assignment of partitions that do not exist makes no storm of look-ups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assignments_of_partitions_that_do_not_exist_are_paced() {
    let mangle: Mangle = Arc::new(|asked, frame| {
        if asked.api != ApiKey::SyncGroup as i16 {
            return honest(asked, frame);
        }
        let grown = remake::<SyncGroupResponse>(asked, &frame, |body| {
            let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, 1, b't'];
            bytes.extend(5000i32.to_be_bytes());
            (0..5000i32).for_each(|p| bytes.extend(p.to_be_bytes()));
            bytes.extend([0xff; 4]);
            body.assignment = bytes.into();
        });
        vec![Op::Send(grown)]
    });
    let hostile = Hostile::start(3, mangle).await;
    hostile.fill(3, 20);
    let (running, seen) = watched(hostile.subscribe());
    until(&seen, "those that exist", || seen.distinct() == 60).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (api, most) in [
        (ApiKey::Metadata, 60),
        (ApiKey::OffsetFetch, 60),
        (ApiKey::ListOffsets, 60),
        (ApiKey::Fetch, 100),
    ] {
        let asked = hostile.asked(api);
        assert!(asked < most, "{api:?}: {asked}\n{}", seen.story());
    }
    assert_closes(running, &seen).await;
}
