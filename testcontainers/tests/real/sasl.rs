//! Authentication on a real Kafka: every mechanism, refusals in words, sessions that end while
//! records flow.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use laneway::engine::{Config, Source};
use laneway::lane::Mode;
use laneway::sasl::{Mechanism, Password, Token};
use laneway::{
    ClientCredentials, Error, ErrorKind, Event, Kafka as Client, LaneKey, Running, Sasl, Tls,
    Topics,
};
use laneway_testcontainers::kafka::{self, Kafka, Settings};
use laneway_testcontainers::runner::Test;

use crate::{WAIT, blocking, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(every_sasl_mechanism_reads_and_commits),
        test!(a_token_endpoint_gives_what_the_broker_takes),
        test!(refused_credentials_and_wrong_listeners_are_said_in_words),
        test!(sessions_end_every_two_seconds_while_records_flow),
        test!(the_engine_runs_on_blocking_sockets_in_one_thread),
    ]
}

const PASSWORD: &str = "laneway-secret";
const SESSION: Duration = Duration::from_secs(2);

/// One for these tests, whose sessions end every two seconds.
fn secure() -> &'static Kafka {
    static SECURE: OnceLock<Kafka> = OnceLock::new();
    SECURE.get_or_init(|| {
        let users = [("alice", PASSWORD)];
        let mut settings = Settings::new(1)
            .sasl("SASL", "SASL_PLAINTEXT", &users)
            .sasl("SECURE", "SASL_SSL", &users);
        let store = certificate("broker.store.pem").display().to_string();
        settings
            .properties
            .push(("ssl.keystore.type", "PEM".to_owned()));
        settings.properties.push(("ssl.keystore.location", store));
        let session = SESSION.as_millis().to_string();
        settings
            .properties
            .push(("connections.max.reauth.ms", session));
        Kafka::start_with(&settings).unwrap()
    })
}

/// One that the tests of TLS use too.
fn certificate(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.with_file_name("protocol-tests")
        .join("certificates")
        .join(name)
}

/// An unsecured token of alice's, as RFC 7515 has it.
fn token(lifetime: Duration) -> Token {
    Token::new(unsecured(lifetime)).expires_in(lifetime)
}

fn unsecured(lifetime: Duration) -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let expires = (since_1970.unwrap() + lifetime).as_secs();
    let claims = format!("{{\"sub\":\"alice\",\"exp\":{expires}}}");
    format!(
        "{}.{}.",
        base64url("{\"alg\":\"none\"}"),
        base64url(&claims)
    )
}

fn base64url(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut coded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(word);
        for i in 0..=chunk.len() {
            coded.push(char::from(ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]));
        }
    }
    coded
}

fn bearer(lifetime: Duration) -> Sasl {
    Sasl::oauthbearer(move || async move { Ok::<_, String>(token(lifetime)) })
}

/// A subscription to `topic`, what it counts, and what it says.
struct Reading {
    running: Running,
    handled: Arc<AtomicUsize>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Reading {
    fn start(addresses: Vec<String>, sasl: Sasl, topic: &str, group: &str) -> Self {
        Self::of(Client::new(addresses).sasl(sasl), topic, group)
    }

    fn of(client: Client, topic: &str, group: &str) -> Self {
        let handled = Arc::new(AtomicUsize::new(0));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (counter, heard) = (handled.clone(), events.clone());
        let running = client
            .subscribe(Topics::named([topic]).group(group))
            .workers_by_key(8)
            .lane_key(LaneKey::RecordKey)
            .commit_interval(Duration::from_millis(200))
            .on_event(move |event| heard.lock().unwrap().push(event.clone()))
            .start(move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
                async {}
            })
            .unwrap();
        Reading {
            running,
            handled,
            events,
        }
    }

    async fn until(&self, handled: usize) {
        let end = Instant::now() + WAIT;
        while self.handled.load(Ordering::SeqCst) < handled {
            let so_far = self.handled.load(Ordering::SeqCst);
            assert!(
                Instant::now() < end,
                "{so_far} of {handled}: {:?}",
                self.events.lock().unwrap()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Warnings, and connections that ended.
    fn troubles(&self) -> Vec<String> {
        let events = self.events.lock().unwrap();
        let troubles = events.iter().filter_map(|event| match event {
            Event::Warning { error } => Some(error.to_string()),
            Event::Notice { text } if text.contains("connection ended") => Some(text.clone()),
            Event::Lost { partition } => Some(format!("lost {partition}")),
            _ => None,
        });
        troubles.collect()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

fn every_sasl_mechanism_reads_and_commits() {
    let kafka = secure();
    let topic = kafka.topic("sasl", 3).unwrap();
    kafka.ask(&format!("numbered {topic} 600 20 20 1")).unwrap();
    for (name, sasl) in [
        ("PLAIN", Sasl::plain("alice", PASSWORD)),
        ("SCRAM-SHA-256", Sasl::scram_sha_256("alice", PASSWORD)),
        ("SCRAM-SHA-512", Sasl::scram_sha_512("alice", PASSWORD)),
        ("OAUTHBEARER", bearer(Duration::from_secs(60))),
    ] {
        let group = kafka::unique("sasl");
        runtime().block_on(async {
            let reading = Reading::start(kafka.addresses_of("SASL"), sasl, &topic, &group);
            reading.until(600).await;
            let warned = reading.troubles();
            let expected = if name == "PLAIN" || name == "OAUTHBEARER" {
                1
            } else {
                0
            };
            assert_eq!(warned.len(), expected, "{name}: {warned:?}");
            assert!(
                warned.iter().all(|w| w.contains("without TLS")),
                "{warned:?}"
            );
            reading.running.drain().await.unwrap();
        });
        assert_eq!(
            kafka.committed_records(&group, &topic).unwrap(),
            600,
            "{name}"
        );
    }
    plain_over_tls_warns_of_nothing(kafka, &topic);
}

/// The client-credentials grant: a scripted endpoint gives tokens that say themselves how long they
/// live, ten seconds, as Kafka's own client wants them; they are renewed while records flow.
fn a_token_endpoint_gives_what_the_broker_takes() {
    const LIFE: Duration = Duration::from_secs(10);
    let kafka = secure();
    let topic = kafka.topic("granted", 3).unwrap();
    let group = kafka::unique("granted");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let n = stream.read(&mut request).unwrap();
            assert!(request[..n].starts_with(b"POST /token HTTP/1.1\r\n"));
            count.fetch_add(1, Ordering::SeqCst);
            let body = format!("{{\"access_token\":\"{}\"}}", unsecured(LIFE));
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    let url = format!("http://localhost:{port}/token");
    let tokens = ClientCredentials::new(&url, "billing", PASSWORD).unwrap();
    kafka.ask(&format!("numbered {topic} 300 20 20 1")).unwrap();
    runtime().block_on(async {
        let sasl = Sasl::oauthbearer(tokens.scope("kafka"));
        let reading = Reading::start(kafka.addresses_of("SASL"), sasl, &topic, &group);
        reading.until(300).await;
        tokio::time::sleep(LIFE * 2).await;
        let more = format!("numbered {topic} 300 20 20 301");
        tokio::task::block_in_place(|| kafka.ask(&more)).unwrap();
        reading.until(600).await;
        let mut troubles = reading.troubles();
        troubles.retain(|trouble| !trouble.contains("without TLS"));
        assert!(troubles.is_empty(), "{troubles:?}");
        reading.running.drain().await.unwrap();
    });
    assert!(
        (3..8).contains(&asked.load(Ordering::SeqCst)),
        "{asked:?} questions"
    );
    assert_eq!(kafka.committed_records(&group, &topic).unwrap(), 600);
}

/// The password itself, where nobody listens.
fn plain_over_tls_warns_of_nothing(kafka: &Kafka, topic: &str) {
    let group = kafka::unique("sasl");
    let tls = Tls::new().ca_file(certificate("ca.pem"));
    let secure = Client::new(kafka.addresses_of("SECURE")).tls(tls);
    runtime().block_on(async {
        let reading = Reading::of(secure.sasl(Sasl::plain("alice", PASSWORD)), topic, &group);
        reading.until(600).await;
        assert_eq!(reading.troubles(), [""; 0]);
        reading.running.drain().await.unwrap();
    });
}

fn refused_credentials_and_wrong_listeners_are_said_in_words() {
    let kafka = secure();
    let topic = kafka.topic("refused", 1).unwrap();
    let end_of = |addresses: Vec<String>, sasl: Sasl| -> Error {
        let began = Instant::now();
        let group = kafka::unique("refused");
        let ended = runtime().block_on(async {
            let reading = Reading::start(addresses, sasl, &topic, &group);
            tokio::time::timeout(WAIT, reading.running.join()).await
        });
        let error = ended.expect("it ends").unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20), "{error}");
        assert!(!error.to_string().contains("marlin"), "{error}");
        error
    };
    for sasl in [
        Sasl::plain("alice", "marlin"),
        Sasl::scram_sha_256("alice", "marlin"),
        Sasl::scram_sha_512("bob", "marlin"),
        Sasl::oauthbearer(|| async { Ok::<_, String>(Token::new("marlin")) }),
        Sasl::password_from(Mechanism::ScramSha256, || async {
            Ok::<_, String>(Password::new("alice", "marlin"))
        }),
    ] {
        let error = end_of(kafka.addresses_of("SASL"), sasl);
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Broker, Some(58)),
            "{error}"
        );
        assert!(!error.is_retriable());
    }
    let plain_listener = end_of(kafka.addresses(), Sasl::plain("alice", PASSWORD));
    assert_eq!(plain_listener.code(), Some(34));
    assert!(
        plain_listener.to_string().contains("does not do SASL"),
        "{plain_listener}"
    );
}

/// L21: connections.max.reauth.ms of two seconds, for twenty: no connection ends, no record is
/// lost, the membership stands. Tokens that live ten seconds are renewed on the way.
fn sessions_end_every_two_seconds_while_records_flow() {
    let kafka = secure();
    for sasl in [
        Sasl::scram_sha_512("alice", PASSWORD),
        bearer(Duration::from_secs(10)),
    ] {
        let topic = kafka.topic("sessions", 3).unwrap();
        let group = kafka::unique("sessions");
        runtime().block_on(async {
            let reading = Reading::start(kafka.addresses_of("SASL"), sasl, &topic, &group);
            let began = Instant::now();
            let mut written = 0;
            while began.elapsed() < SESSION * 10 {
                written += 100;
                let ask = format!("numbered {topic} 100 20 20 {written}");
                tokio::task::block_in_place(|| kafka.ask(&ask)).unwrap();
                reading.until(written).await;
                tokio::task::block_in_place(|| thread::sleep(Duration::from_millis(100)));
            }
            let mut troubles = reading.troubles();
            troubles.retain(|trouble| !trouble.contains("without TLS"));
            assert!(troubles.is_empty(), "{troubles:?}");
            assert_eq!(
                reading.running.snapshot().await.unwrap().generation,
                Some(1)
            );
            reading.running.drain().await.unwrap();
            assert_eq!(reading.handled.load(Ordering::SeqCst), written);
            assert_eq!(kafka.committed_records(&group, &topic).unwrap(), written);
        });
    }
}

/// The seam: no runtime, one thread, the standard library's sockets. It joins a group, runs lanes,
/// drains and commits.
fn the_engine_runs_on_blocking_sockets_in_one_thread() {
    let kafka = secure();
    let topic = kafka.topic("blocking", 6).unwrap();
    let group = kafka::unique("blocking");
    kafka
        .ask(&format!("numbered {topic} 5000 100 20 1"))
        .unwrap();
    let address = kafka.addresses().remove(0);
    let (host, port) = address.rsplit_once(':').unwrap();
    let source = Source::Topics {
        topics: vec![topic.as_str().into()],
        group: group.as_str().into(),
    };
    let mut config = Config::new(vec![(host.into(), port.parse().unwrap())], source);
    config.mode = Mode::Fixed { lanes: 8 };
    config.lane_key = LaneKey::RecordKey;
    let seen = blocking::drive(config, 5000).unwrap();
    assert_eq!((seen.records, seen.out_of_order), (5000, 0));
    assert_eq!(kafka.committed_records(&group, &topic).unwrap(), 5000);
}
