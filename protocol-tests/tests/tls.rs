//! TLS over the tokio shell: what is trusted, what is refused and in which words, what changes
//! while it runs.

mod hostile_kit;
mod tls_kit;

use hostile_kit::{Op, assert_closes, peer, until, watched};
use laneway::rustls::crypto::CryptoProvider;
use laneway::rustls::version;
use laneway::{ErrorKind, Kafka, Tls, TlsVersion, Topics};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tls_kit::{Behind, Shows, behind, file, pem, reading, trusting};
use tokio::io::AsyncReadExt;

/// All records come and are committed.
async fn assert_reads(kafka: &Kafka, behind: &Behind, n: usize) {
    behind.fill(n);
    let (running, seen) = watched(reading(kafka));
    until(&seen, "every record", || seen.distinct() >= n).await;
    assert_closes(running, &seen).await;
}

/// A warning with these words comes, and it is tried again at a distance.
async fn assert_refused(kafka: &Kafka, connections: impl Fn() -> usize, words: &[&str]) {
    let (running, seen) = watched(reading(kafka));
    let named = || {
        seen.warnings()
            .iter()
            .any(|e| words.iter().all(|word| e.message().contains(word)))
    };
    until(&seen, &words.join(" + "), named).await;
    for error in seen.warnings() {
        let blame = matches!(error.kind(), ErrorKind::Peer | ErrorKind::Transport);
        assert!(blame, "{error:?}");
    }
    let before = connections();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let tried = connections() - before;
    assert!(tried < 30, "{words:?}: {tried} connections within a second");
    assert_closes(running, &seen).await;
}

/// Trusts the file, checks a name and an address, speaks either version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_come_over_tls() {
    let behind = behind(&Shows::default(), "localhost").await;
    assert_reads(&behind.kafka(trusting()), &behind, 200).await;
    let bytes = Tls::new().ca_pem(pem("ca.pem"));
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let kafka = behind.kafka(bytes.clone().versions([version]));
        assert_reads(&kafka, &behind, 100).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_are_checked_as_names_are() {
    let behind = behind(&Shows::default(), "127.0.0.1").await;
    let address = format!("127.0.0.1:{}", behind.front.port);
    assert_reads(&Kafka::new([address]).tls(trusting()), &behind, 50).await;
}

/// What the broker shows is refused, for each reason in its own words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_told_apart() {
    let stranger = Tls::new().ca_file(file("stranger-ca.pem"));
    let old = || Shows {
        versions: vec![&version::TLS12],
        ..Shows::default()
    };
    let new = || Shows {
        versions: vec![&version::TLS13],
        ..Shows::default()
    };
    let wants = || Shows {
        wants_client: true,
        ..Shows::default()
    };
    let wants_old = || Shows {
        wants_client: true,
        ..old()
    };
    let shown = |chain| trusting().identity_files(file(chain), file("client.key"));
    let cases: [(Shows, Tls, &[&str]); 9] = [
        (Shows::default(), stranger, &["unknown CA", "Tls::ca_file"]),
        (
            Shows::certificate("expired.pem"),
            trusting(),
            &["has expired, on 20", "renew"],
        ),
        (
            Shows::certificate("other-name.pem"),
            trusting(),
            &["wrong host name", "localhost", "is of elsewhere.example."],
        ),
        (
            old(),
            trusting().versions([TlsVersion::V1_3]),
            &["no TLS version in common"],
        ),
        (
            new(),
            trusting().versions([TlsVersion::V1_2]),
            &["no TLS version in common"],
        ),
        (
            wants(),
            trusting(),
            &["wants a client certificate", "Tls::identity_files"],
        ),
        (wants_old(), trusting(), &["wants a client certificate"]),
        (
            wants(),
            shown("client-stranger.pem"),
            &["does not take our client certificate", "UnknownCA"],
        ),
        (
            wants(),
            shown("client-expired.pem"),
            &["does not take our client certificate", "Expired"],
        ),
    ];
    let all = cases.map(|(shows, tls, words)| {
        tokio::spawn(async move {
            let behind = behind(&shows, "localhost").await;
            let connections = || behind.front.connections();
            assert_refused(&behind.kafka(tls), connections, words).await;
        })
    });
    for one in all {
        one.await.unwrap();
    }
}

/// L07: a plaintext broker behind a TLS client, whatever it does with what it takes for a length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plaintext_broker_is_named() {
    let answers = [
        &b""[..],
        b"\0\0\0\x0c hello kafka",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    for answer in answers {
        let (address, connections) = peer(move |mut stream| async move {
            let mut hello = [0; 512];
            let _ = stream.read(&mut hello).await;
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        })
        .await;
        let kafka = Kafka::new([address]).tls(trusting());
        let count = || connections.load(Ordering::Relaxed);
        assert_refused(&kafka, count, &["plaintext listener"]).await;
    }
}

/// L07: a TLS broker before a client that speaks plain, and no other advice than to switch it on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_broker_is_named_to_a_plain_client() {
    let behind = behind(&Shows::default(), "localhost").await;
    let kafka = Kafka::new([behind.front.localhost()]);
    let connections = || behind.front.connections();
    assert_refused(&kafka, connections, &["the peer speaks TLS and we do not"]).await;
}

/// A peer that takes everything and answers nothing costs the time to connect and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mute_handshake_ends() {
    let (address, connections) = peer(|mut stream| async move {
        let mut sink = [0; 1024];
        while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let kafka = Kafka::new([address]).tls(trusting());
    let subscription = reading(&kafka).request_timeout(Duration::from_secs(1));
    let (running, seen) = watched(subscription);
    let named = || {
        let warnings = seen.warnings();
        warnings
            .iter()
            .any(|e| e.message().contains("not over in time"))
    };
    until(&seen, "a warning", named).await;
    assert!(connections.load(Ordering::Relaxed) < 6);
    assert_closes(running, &seen).await;
}

/// Mutual TLS with a key in each of its three forms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_key_is_read() {
    let shows = Shows {
        wants_client: true,
        ..Shows::default()
    };
    let behind = behind(&shows, "localhost").await;
    for (chain, key) in [
        ("client.pem", "client.key"),
        ("client.pem", "client-pkcs1.key"),
        ("client-ec.pem", "client-sec1.key"),
    ] {
        let files = trusting().identity_files(file(chain), file(key));
        assert_reads(&behind.kafka(files), &behind, 50).await;
        let bytes = trusting().identity_pem(pem(chain), pem(key));
        assert_reads(&behind.kafka(bytes), &behind, 50).await;
    }
}

/// What cannot be is refused before anything is opened, with what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_cannot_be_are_refused_at_once() {
    let (address, connections) = peer(|stream| async move { drop(stream) }).await;
    let identity = |chain: &[u8], key: &[u8]| trusting().identity_pem(chain, key);
    let chain = pem("client.pem");
    let encrypted = file("client-encrypted.key");
    let command = format!("openssl pkey -in {}", encrypted.display());
    let cases: [(Tls, &[&str]); 11] = [
        (
            trusting().identity_files(file("client.pem"), encrypted),
            &["encrypted", &command],
        ),
        (
            identity(&chain, &pem("client-old-encrypted.key")),
            &["encrypted", "openssl pkey"],
        ),
        (
            identity(&chain, &pem("broker.key")),
            &["not that of the first certificate"],
        ),
        (identity(&chain, &chain), &["no key in it", "mixed up"]),
        (
            identity(&pem("client.key"), &pem("client.key")),
            &["no certificate in it", "mixed up"],
        ),
        (
            identity(&chain, b"-----BEGIN PRIVATE KEY-----\nAAAA"),
            &["not well-formed PEM"],
        ),
        (
            Tls::new().ca_file("no/such.pem"),
            &["cannot read no/such.pem"],
        ),
        (
            Tls::new().ca_pem([0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2]),
            &["JKS", "keytool"],
        ),
        (
            Tls::new().ca_pem([0x30, 0x82, 1, 1, 2, 1, 3]),
            &["PKCS#12", "openssl"],
        ),
        (Tls::new().ca_pem(""), &["no certificate in PEM"]),
        (trusting().server_name("no name"), &["no host name"]),
    ];
    for (tls, words) in cases {
        let kafka = Kafka::new([address.clone()]).tls(tls);
        let refused = reading(&kafka).start(|_| async {}).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
        for word in words {
            assert!(refused.message().contains(word), "{word}: {refused}");
        }
    }
    assert_eq!(connections.load(Ordering::Relaxed), 0);
}

/// Turning checks off turns off what its name says and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_go_off_one_by_one() {
    let other = behind(&Shows::certificate("other-name.pem"), "localhost").await;
    let stranger = || Tls::new().ca_file(file("stranger-ca.pem"));
    assert_reads(
        &other.kafka(trusting().server_name("elsewhere.example")),
        &other,
        20,
    )
    .await;
    assert_reads(
        &other.kafka(trusting().dangerously_skip_host_name_check()),
        &other,
        20,
    )
    .await;
    assert_reads(
        &other.kafka(stranger().dangerously_trust_anyone()),
        &other,
        20,
    )
    .await;
    let connections = || other.front.connections();
    let kafka = other.kafka(stranger().dangerously_skip_host_name_check());
    assert_refused(&kafka, connections, &["unknown CA"]).await;
    let expired = behind(&Shows::certificate("expired.pem"), "localhost").await;
    let connections = || expired.front.connections();
    let kafka = expired.kafka(trusting().dangerously_skip_host_name_check());
    assert_refused(&kafka, connections, &["has expired"]).await;
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// As secrets are mounted: written beside, then moved over.
    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let (file, new) = (self.0.join(name), self.0.join("new"));
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(&new, &file).unwrap();
        file
    }
}

/// L25: certificate, key and CA are exchanged while it runs. Connections that are up stay, new ones
/// use what the files hold then; files that do not fit change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_reread_for_new_connections() {
    let shows = Shows {
        wants_client: true,
        ..Shows::default()
    };
    let behind = behind(&shows, "localhost").await;
    let folder = Folder::new("reread");
    let tls = Tls::new()
        .ca_file(folder.put("ca.pem", &pem("ca.pem")))
        .identity_files(
            folder.put("client.pem", &pem("client.pem")),
            folder.put("client.key", &pem("client.key")),
        );
    let kafka = behind.kafka(tls);
    behind.fill(20);
    let (running, seen) = watched(reading(&kafka));
    until(&seen, "the first records", || seen.distinct() >= 20).await;
    let shown = |at: usize| behind.front.counts.clients.lock().unwrap().get(at).cloned();
    let last = || behind.front.counts.clients.lock().unwrap().len();
    let rsa = shown(0).unwrap();

    // The certificate is there, its key is not yet: what was loaded before stays in use.
    folder.put("client.pem", &pem("client-ec.pem"));
    let before = last();
    behind.front.cut();
    until(&seen, "connections with the old certificate", || {
        last() > before
    })
    .await;
    assert_eq!(shown(before).unwrap(), rsa);

    folder.put("client.key", &pem("client-sec1.key"));
    let fresh = last();
    behind.front.cut();
    let exchanged = || (fresh..last()).any(|at| shown(at).unwrap() != rsa);
    until(&seen, "connections with the new certificate", exchanged).await;

    // The brokers' authority changes: what it signs is refused until the file follows.
    folder.put("ca.pem", &pem("stranger-ca.pem"));
    behind.front.cut();
    let refused = || seen.story().contains("unknown CA");
    until(&seen, "a refusal", refused).await;
    folder.put("ca.pem", &pem("ca.pem"));
    behind.fill(20);
    until(&seen, "the other records", || seen.distinct() >= 40).await;
    assert_closes(running, &seen).await;
}

/// L26: TLS that ends without close_notify is a connection that ended: nothing is lost, nothing is
/// said to the user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_without_goodbye_is_an_end() {
    let behind = behind(&Shows::default(), "localhost").await;
    let kafka = behind.kafka(trusting());
    let (running, seen) = watched(reading(&kafka));
    for round in 1..=3 {
        behind.fill(100);
        until(&seen, "the round's records", || {
            seen.distinct() >= 100 * round
        })
        .await;
        behind.front.cut();
    }
    behind.fill(1);
    until(&seen, "the last record", || seen.distinct() >= 301).await;
    assert!(seen.stopped().is_empty(), "{}", seen.story());
    let fatal = seen.warnings().iter().any(|e| e.message().contains("TLS"));
    assert!(!fatal, "{}", seen.story());
    assert_closes(running, &seen).await;
}

/// Sessions are resumed: by the connections of one subscription, and by the next one's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_resumed() {
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let behind = behind(&Shows::default(), "localhost").await;
        let kafka = behind.kafka(trusting().versions([version]));
        assert_reads(&kafka, &behind, 50).await;
        let before = behind.front.counts.resumed.load(Ordering::Relaxed);
        assert_reads(&kafka, &behind, 50).await;
        let resumed = behind.front.counts.resumed.load(Ordering::Relaxed);
        assert!(resumed > before, "{version:?}: {resumed} resumed");
    }
}

/// The user's provider is the one that is used: here one that knows a single cipher suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_given_provider_is_used() {
    let behind = behind(&Shows::default(), "localhost").await;
    let mut provider: CryptoProvider = rustls_graviola::default_provider();
    provider
        .cipher_suites
        .retain(|s| s.version() == &version::TLS12);
    let tls = trusting().provider(Arc::new(provider));
    assert_reads(
        &behind.kafka(tls.clone().versions([TlsVersion::V1_2])),
        &behind,
        20,
    )
    .await;
    // It can do no TLS 1.3, and says so before anything is opened.
    let kafka = behind.kafka(tls.versions([TlsVersion::V1_3]));
    let refused = reading(&kafka).start(|_| async {}).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
}

/// The roots of the machine do not know the tests' authority; where there are none, that is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_machines_roots_are_the_default() {
    let behind = behind(&Shows::default(), "localhost").await;
    let kafka = behind.kafka(Tls::new());
    match reading(&kafka).start(|_| async {}) {
        Ok(running) => {
            drop(running);
            let connections = || behind.front.connections();
            assert_refused(&kafka, connections, &["unknown CA"]).await;
        }
        Err(e) => assert!(e.message().contains("no list of authorities"), "{e}"),
    }
}

/// Hostile answers inside TLS: what is true of them over TCP is true here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_answers_inside_tls_are_bounded() {
    use kafka_protocol::messages::ApiKey;
    type Answer = fn() -> Vec<u8>;
    let cases: [(&str, Answer); 5] = [
        ("a negative length", || vec![0xff; 8]),
        ("a length of two gigabytes", || {
            vec![0x7f, 0xff, 0xff, 0xff, 0, 0]
        }),
        ("an empty frame", || vec![0; 8]),
        ("an array of two billion", || {
            let mut out = vec![0, 0, 0, 14, 0, 0, 0, 2, 0, 0, 0, 0, 0];
            out.extend([0xff, 0xff, 0xff, 0xff, 7]);
            out
        }),
        ("an answer nobody asked for", || {
            vec![0, 0, 0, 8, 0x7f, 0, 0, 1, 0, 0, 0, 0]
        }),
    ];
    for (what, answer) in cases {
        let (front, listener) = tls_kit::Front::bind(&Shows::default()).await;
        let mangle = Arc::new(move |asked: hostile_kit::Asked, frame| {
            // The first three answers to metadata and fetches are spoilt, the rest is honest.
            let spoilt = asked.api == ApiKey::Fetch as i16 || asked.api == ApiKey::Metadata as i16;
            match spoilt && asked.nth < 3 {
                true => vec![Op::Send(answer())],
                false => vec![Op::Send(frame)],
            }
        });
        let hostile =
            hostile_kit::Hostile::start_behind(4, mangle, Some(("localhost", front.port)));
        let hostile = hostile.await;
        hostile.fill(4, 25);
        front.serve(listener, hostile.address.clone());
        let kafka = Kafka::new([front.localhost()]).tls(trusting());
        let (running, seen) = watched(reading(&kafka));
        until(&seen, what, || seen.distinct() >= 100).await;
        assert!(hostile.asked(ApiKey::Fetch) > 3, "{what}");
        assert_closes(running, &seen).await;
    }
}

/// Answers that come a byte at a time are slow, not broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_byte_by_byte_inside_tls() {
    let (front, listener) = tls_kit::Front::bind(&Shows::default()).await;
    let mangle = Arc::new(|asked: hostile_kit::Asked, frame: Vec<u8>| {
        match frame.len() < 400 && asked.nth < 2 {
            true => vec![Op::Dribble(frame)],
            false => vec![Op::Send(frame)],
        }
    });
    let port = Some(("localhost", front.port));
    let hostile = hostile_kit::Hostile::start_behind(1, mangle, port).await;
    hostile.fill(1, 30);
    front.serve(listener, hostile.address.clone());
    let kafka = Kafka::new([front.localhost()]).tls(trusting());
    let subscription = kafka.subscribe(Topics::named(["t"]).group("g"));
    let (running, seen) = watched(subscription);
    until(&seen, "every record", || seen.distinct() >= 30).await;
    assert_closes(running, &seen).await;
}
