//! TLS on a real Kafka: what it shows and what it wants, and the words for what does not fit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use laneway::{Event, Kafka as Client, Running, Tls, TlsVersion, Topics};
use laneway_testcontainers::kafka::{self, Kafka, Settings};
use laneway_testcontainers::process;
use laneway_testcontainers::runner::Test;

use crate::lanes::runtime;
use crate::{WAIT, test};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        test!(records_are_read_and_committed_over_tls),
        test!(a_real_brokers_refusals_are_told_apart),
        test!(idle_connections_that_the_broker_closes_cost_nothing),
    ];
    // `.ci/musl` builds it.
    if static_binary().is_some() {
        tests.push(test!(
            a_static_binary_reads_over_tls_and_sasl_in_an_empty_folder
        ));
    }
    tests
}

const PASSWORD: &str = "laneway-secret";

/// Of `protocol-tests/certificates`.
fn certificate(name: &str) -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    root.join("protocol-tests/certificates").join(name)
}

/// A listener's name, what it shows, and properties of its own.
type Listener = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// One listener for each way of showing and wanting certificates.
fn secure() -> &'static Kafka {
    static SECURE: OnceLock<Kafka> = OnceLock::new();
    SECURE.get_or_init(|| {
        let mut settings = Settings::new(1).sasl("SASL_TLS", "SASL_SSL", &[("alice", PASSWORD)]);
        let listeners: [Listener; 6] = [
            ("SASL_TLS", "broker", &[]),
            ("TLS", "broker", &[]),
            ("MUTUAL", "broker", &[("ssl.client.auth", "required")]),
            ("EXPIRED", "expired", &[]),
            ("OTHER", "other-name", &[]),
            ("OLD", "broker", &[("ssl.enabled.protocols", "TLSv1.2")]),
        ];
        for (name, store, more) in listeners {
            if name != "SASL_TLS" {
                settings.listeners.push((name, "SSL"));
            }
            let store = certificate(&format!("{store}.store.pem"));
            let stores = [
                ("ssl.keystore.type", "PEM".to_owned()),
                ("ssl.keystore.location", store.display().to_string()),
                ("ssl.truststore.type", "PEM".to_owned()),
                (
                    "ssl.truststore.location",
                    certificate("ca.pem").display().to_string(),
                ),
            ];
            let more = more
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()));
            for (property, value) in stores.into_iter().chain(more) {
                let property = format!("listener.name.{}.{property}", name.to_ascii_lowercase());
                settings.properties.push((property.leak(), value));
            }
        }
        let idle = IDLE.as_millis().to_string();
        settings.properties.push(("connections.max.idle.ms", idle));
        Kafka::start_with(&settings).unwrap()
    })
}

/// What the broker lets a connection be idle.
const IDLE: Duration = Duration::from_secs(3);

fn trusting() -> Tls {
    Tls::new().ca_file(certificate("ca.pem"))
}

struct Reading {
    running: Running,
    handled: Arc<AtomicUsize>,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Reading {
    fn start(client: &Client, topic: &str, group: &str) -> Self {
        let handled = Arc::new(AtomicUsize::new(0));
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let (counter, heard) = (handled.clone(), warnings.clone());
        let running = client
            .subscribe(Topics::named([topic]).group(group))
            .workers_by_key(4)
            .on_event(move |event| {
                if let Event::Warning { error } = event {
                    heard.lock().unwrap().push(error.to_string());
                }
            })
            .start(move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
                async {}
            })
            .unwrap();
        Reading {
            running,
            handled,
            warnings,
        }
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + WAIT;
        while !is_so() {
            let heard = self.warnings.lock().unwrap().clone();
            assert!(Instant::now() < end, "not in time: {what}: {heard:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn records(&self, wanted: usize) {
        let all = || self.handled.load(Ordering::SeqCst) >= wanted;
        self.until(&format!("{wanted} records"), all).await;
    }
}

/// Both versions, and mutual TLS with each form of key.
fn records_are_read_and_committed_over_tls() {
    let kafka = secure();
    let topic = kafka.topic("tls", 3).unwrap();
    kafka.ask(&format!("numbered {topic} 300 20 20 1")).unwrap();
    let shown = |chain: &str, key| trusting().identity_files(certificate(chain), certificate(key));
    let ways = [
        ("TLS", trusting().versions([TlsVersion::V1_3])),
        ("TLS", trusting().versions([TlsVersion::V1_2])),
        ("OLD", trusting()),
        ("MUTUAL", shown("client.pem", "client.key")),
        ("MUTUAL", shown("client.pem", "client-pkcs1.key")),
        ("MUTUAL", shown("client-ec.pem", "client-sec1.key")),
        ("OTHER", trusting().dangerously_skip_host_name_check()),
        ("EXPIRED", trusting().dangerously_trust_anyone()),
    ];
    for (listener, tls) in ways {
        let group = kafka::unique("tls");
        let client = Client::new(kafka.addresses_of(listener)).tls(tls.clone());
        runtime().block_on(async {
            let reading = Reading::start(&client, &topic, &group);
            reading.records(300).await;
            assert_eq!(*reading.warnings.lock().unwrap(), [""; 0]);
            reading.running.drain().await.unwrap();
        });
        let committed = kafka.committed_records(&group, &topic).unwrap();
        assert_eq!(committed, 300, "{listener} {tls:?}");
    }
}

/// L07: each in its own words, the plain listener behind TLS and the reverse too.
fn a_real_brokers_refusals_are_told_apart() {
    let kafka = secure();
    let topic = kafka.topic("refusals", 1).unwrap();
    let of = |listener: &str| kafka.addresses_of(listener);
    let with = |addresses: Vec<String>, tls: Tls| Client::new(addresses).tls(tls);
    let stranger = Tls::new().ca_file(certificate("stranger-ca.pem"));
    let foreign = trusting().identity_files(
        certificate("client-stranger.pem"),
        certificate("client.key"),
    );
    let cases: [(Client, &str); 10] = [
        (with(of("TLS"), stranger), "unknown CA"),
        (with(of("EXPIRED"), trusting()), "has expired"),
        (with(of("OTHER"), trusting()), "wrong host name"),
        (
            with(of("OLD"), trusting().versions([TlsVersion::V1_3])),
            "no TLS version in common",
        ),
        (with(of("MUTUAL"), trusting()), "wants a client certificate"),
        (
            with(of("MUTUAL"), trusting().versions([TlsVersion::V1_2])),
            "wants a client certificate",
        ),
        (
            with(of("MUTUAL"), foreign),
            "does not take our client certificate",
        ),
        (with(kafka.addresses(), trusting()), "plaintext listener"),
        (Client::new(of("TLS")), "TLS"),
        (with(of("SASL_TLS"), trusting()), "SASL"),
    ];
    for (client, words) in cases {
        runtime().block_on(async {
            let reading = Reading::start(&client, &topic, &kafka::unique("refusals"));
            let named = || {
                let warnings = reading.warnings.lock().unwrap();
                warnings.iter().any(|w| w.contains(words))
            };
            reading.until(words, named).await;
            println!("{words}: {:?}", reading.warnings.lock().unwrap().first());
            reading.running.close(Duration::from_secs(1)).await.unwrap();
        });
    }
}

/// L02: the broker closes what is idle; what is sent afterwards goes over a new connection, and the
/// user hears nothing of it.
fn idle_connections_that_the_broker_closes_cost_nothing() {
    let kafka = secure();
    let topic = kafka.topic("idle", 2).unwrap();
    let client = Client::new(kafka.addresses_of("TLS")).tls(trusting());
    let group = kafka::unique("idle");
    runtime().block_on(async {
        let reading = Reading::start(&client, &topic, &group);
        let mut written = 0;
        for _ in 0..2 {
            written += 50;
            let ask = format!("numbered {topic} 50 20 20 {written}");
            tokio::task::block_in_place(|| kafka.ask(&ask)).unwrap();
            reading.records(written).await;
            // Longer than the broker lets the connections for metadata and joining be idle.
            tokio::time::sleep(IDLE * 2).await;
        }
        assert_eq!(*reading.warnings.lock().unwrap(), [""; 0]);
        let snapshot = reading.running.snapshot().await.unwrap();
        assert_eq!(snapshot.generation, Some(1));
        reading.running.drain().await.unwrap();
        assert_eq!(kafka.committed_records(&group, &topic).unwrap(), written);
    });
}

fn static_binary() -> Option<PathBuf> {
    std::env::var_os("LANEWAY_STATIC").map(PathBuf::from)
}

/// Who may change the root of a process.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| out.stdout.starts_with(b"0"))
}

/// Nothing is there but the program, the CA's certificate and its settings: no libraries, no
/// resolver's files, no list of authorities.
fn a_static_binary_reads_over_tls_and_sasl_in_an_empty_folder() {
    let kafka = secure();
    let topic = kafka.topic("static", 2).unwrap();
    // One codec after another.
    kafka.ask(&format!("every-codec {topic} 20 7")).unwrap();
    let folder = process::scratch_folder("chroot").unwrap();
    let binary = static_binary().expect("it was asked for above");
    std::fs::copy(&binary, folder.join("consume")).unwrap();
    std::fs::copy(certificate("ca.pem"), folder.join("ca.pem")).unwrap();
    let is_root = is_root();
    let at = |name: &str| match is_root {
        true => format!("/{name}"),
        false => folder.join(name).display().to_string(),
    };
    let properties = format!(
        "security.protocol = SASL_SSL\n\
         ssl.truststore.type = PEM\n\
         ssl.truststore.location = {}\n\
         sasl.mechanism = SCRAM-SHA-512\n\
         sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \\\n\
         username=\"alice\" password=\"{PASSWORD}\";\n",
        at("ca.pem")
    );
    std::fs::write(folder.join("consume.properties"), properties).unwrap();
    let mut command = match is_root {
        true => {
            let mut command = Command::new("chroot");
            command.arg(&folder).arg("/consume");
            command
        }
        false => {
            println!("not root: it runs outside of its empty folder");
            Command::new(folder.join("consume"))
        }
    };
    let group = kafka::unique("static");
    let out = command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(["--properties", &at("consume.properties")])
        .arg(kafka.addresses_of("SASL_TLS").join(","))
        .args([&topic, &group, "100"])
        .output()
        .unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{said}{wrong}");
    assert!(said.contains("\"records\":100"), "{said}{wrong}");
    println!("{said}");
    assert_eq!(kafka.committed_records(&group, &topic).unwrap(), 100);
}
