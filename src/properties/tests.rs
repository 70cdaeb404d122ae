use super::*;
use crate::fetch::StartOffset;
use crate::group::{AssignorKind, GroupProtocol};
use crate::wire::message::Isolation;
use crate::{Error, ErrorKind, Kafka};
use std::collections::BTreeSet;
use std::time::Duration;
use table::{Of, page};

const WHERE: (&str, &str) = ("bootstrap.servers", "kafka-1:9092");

/// The settings that a subscription begins with.
fn config(pairs: &[(&str, &str)]) -> Result<Config, Error> {
    let draft = read([&[WHERE], pairs].concat())?;
    let source = crate::engine::Source::Partitions {
        partitions: Vec::new(),
        group: None,
    };
    let mut config = Config::new(Vec::new(), source);
    draft.settings.iter().for_each(|set| set(&mut config));
    Ok(config)
}

fn refused(pairs: &[(&str, &str)]) -> String {
    let error = match Kafka::from_properties([&[WHERE], pairs].concat()) {
        Ok(_) => panic!("taken: {pairs:?}"),
        Err(e) => e,
    };
    assert_eq!(error.kind(), ErrorKind::Misuse);
    error.message().to_owned()
}

#[test]
fn what_java_and_librdkafka_call_it_is_set() {
    let secs = Duration::from_secs;
    let java = config(&[
        ("group.instance.id", "billing-1"),
        ("auto.offset.reset", "latest"),
        ("isolation.level", "read_committed"),
        ("auto.commit.interval.ms", "5000"),
        ("heartbeat.interval.ms", "9000"),
        ("session.timeout.ms", "30000"),
        ("max.poll.interval.ms", "600000"),
        (
            "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor, org.apache.kafka.clients.consumer.RangeAssignor",
        ),
        ("client.rack", "eu-1a"),
        ("fetch.max.bytes", "1000"),
        ("max.partition.fetch.bytes", "100"),
        ("fetch.max.wait.ms", "250"),
        ("metadata.max.age.ms", "60000"),
        ("request.timeout.ms", "5000"),
        ("connections.max.idle.ms", "540000"),
    ])
    .unwrap();
    assert_eq!(java.instance_id.as_deref(), Some("billing-1"));
    assert!(matches!(java.start, StartOffset::Latest));
    assert_eq!(java.isolation, Isolation::ReadCommitted);
    assert_eq!(java.commit_interval, secs(5));
    assert_eq!(
        (java.session_timeout, java.heartbeat_interval),
        (secs(30), secs(9))
    );
    assert_eq!(java.rebalance_timeout, secs(600));
    assert_eq!(
        java.assignors,
        [AssignorKind::CooperativeSticky, AssignorKind::Range]
    );
    assert_eq!(&*java.rack, "eu-1a");
    assert_eq!(
        (java.fetch_bytes_max, java.partition_bytes_max),
        (1000, 100)
    );
    assert_eq!(java.fetch_wait_max, Duration::from_millis(250));
    assert_eq!(java.metadata_age_max, secs(60));
    assert_eq!(
        (java.request_timeout, java.connect_timeout),
        (secs(5), secs(5))
    );
    assert_eq!(java.idle_max, secs(540));

    let c = config(&[
        ("group.protocol", "consumer"),
        ("group.remote.assignor", "uniform"),
        ("auto.offset.reset", "error"),
        (
            "partition.assignment.strategy",
            "range,roundrobin,cooperative-sticky",
        ),
        ("fetch.message.max.bytes", "100"),
        ("fetch.wait.max.ms", "250"),
        ("socket.timeout.ms", "20000"),
        ("topic.metadata.refresh.interval.ms", "60000"),
        ("queued.max.messages.kbytes", "65536"),
        ("connections.max.idle.ms", "0"),
    ])
    .unwrap();
    assert!(matches!(c.start, StartOffset::Fail));
    assert_eq!(c.group_protocol, GroupProtocol::Consumer);
    assert_eq!(c.server_assignor.as_deref(), Some("uniform"));
    assert_eq!(c.assignors.len(), 3);
    assert_eq!(c.partition_bytes_max, 100);
    assert_eq!(c.fetch_wait_max, Duration::from_millis(250));
    assert_eq!(c.request_timeout, secs(20));
    assert_eq!(c.metadata_age_max, secs(60));
    assert_eq!(c.budget_bytes, 64 << 20);
    assert!(c.idle_max > secs(86_400 * 365));
}

#[test]
fn a_start_by_duration_lies_in_the_past() {
    let config = config(&[("auto.offset.reset", "by_duration:PT1H")]).unwrap();
    let StartOffset::Timestamp(at) = config.start else {
        panic!("{:?}", config.start);
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let back = i64::try_from(now.unwrap().as_millis()).unwrap() - at;
    assert!((3_590_000..3_700_000).contains(&back), "{back}");
}

#[test]
fn an_unknown_name_offers_the_nearest() {
    for (wrong, right) in [
        ("sesion.timeout.ms", "session.timeout.ms"),
        ("bootstrap.server", "bootstrap.servers"),
        ("group_id", "group.id"),
        ("auto.offset.rest", "auto.offset.reset"),
        ("GROUP.ID", "group.id"),
        ("ssl.ca.locatoin", "ssl.ca.location"),
        ("sasl.user", "sasl.username"),
    ] {
        let told = refused(&[(wrong, "1")]);
        assert!(
            told.contains(&format!("`{wrong}`")) && told.contains(&format!("`{right}`")),
            "{told}"
        );
    }
    let told = Kafka::from_properties([("group.id", "g")]).unwrap_err();
    assert!(told.message().contains("bootstrap.servers"), "{told}");
}

#[test]
fn two_spellings_of_one_setting_must_agree() {
    let told = refused(&[("metadata.broker.list", "kafka-2:9092")]);
    assert!(told.contains("one setting"), "{told}");
    config(&[("metadata.broker.list", "kafka-1:9092")]).unwrap();
    // The same name again: the last one counts.
    let last = config(&[("client.rack", "a"), ("client.rack", "b")]).unwrap();
    assert_eq!(&*last.rack, "b");
}

#[test]
fn values_that_cannot_be_are_named_unless_they_are_secret() {
    for (name, value, word) in [
        ("session.timeout.ms", "soon", "whole number"),
        ("session.timeout.ms", "10", "1000 milliseconds"),
        ("auto.offset.reset", "middle", "earliest"),
        ("isolation.level", "serializable", "read_committed"),
        (
            "partition.assignment.strategy",
            "com.example.Mine",
            "none of RangeAssignor",
        ),
        (
            "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.StickyAssignor",
            "Cooperative",
        ),
        ("partition.assignment.strategy", "", "no assignor"),
        ("fetch.max.bytes", "-1", "whole number"),
        ("security.protocol", "TLS", "SASL_SSL"),
        ("ssl.truststore.type", "JKS", "keytool"),
        ("ssl.enabled.protocols", "TLSv1.1", "no other"),
        (
            "ssl.cipher.suites",
            "TLS_AES_128_GCM_SHA256",
            "Tls::provider",
        ),
    ] {
        let told = refused(&[(name, value)]);
        assert!(
            told.contains(name) && told.contains(word) && told.contains(value),
            "{told}"
        );
    }
    for (name, value) in [
        ("ssl.key.password", "hunter2"),
        (
            "sasl.jaas.config",
            "com.example.Mine required password=\"hunter2\";",
        ),
        (
            "sasl.jaas.config",
            "PlainLoginModule required password=\"hunter2\"",
        ),
    ] {
        let told = refused(&[(name, value)]);
        assert!(told.contains(name) && !told.contains("hunter2"), "{told}");
    }
}

#[test]
fn what_means_nothing_is_listed_with_the_reason() {
    let kafka = Kafka::from_properties([
        WHERE,
        (
            "key.deserializer",
            "org.apache.kafka.common.serialization.StringDeserializer",
        ),
        ("socket.keepalive.enable", "true"),
        ("ssl.ca.location", "/etc/ca.pem"),
        ("sasl.username", "alice"),
    ])
    .unwrap();
    let listed: BTreeSet<(&str, &str)> = kafka
        .ignored_properties()
        .iter()
        .map(|i| (i.name.as_str(), i.why))
        .collect();
    let expected = [
        ("socket.keepalive.enable", "always on"),
        ("key.deserializer", "handlers get bytes"),
        (
            "ssl.ca.location",
            "security.protocol has no TLS (SSL or SASL_SSL does)",
        ),
        (
            "sasl.username",
            "security.protocol has no SASL (SASL_PLAINTEXT or SASL_SSL does)",
        ),
    ];
    assert_eq!(listed, BTreeSet::from(expected));
}

#[cfg(feature = "tls-custom")]
#[test]
fn tls_by_either_spelling() {
    let tls = |pairs: &[(&str, &str)]| {
        let pairs = [&[WHERE, ("security.protocol", "ssl")], pairs].concat();
        let draft = read(pairs).unwrap();
        format!("{:?}", draft.security.tls().unwrap().unwrap())
    };
    let default = tls(&[]);
    assert!(
        default.contains("system_roots: true") && default.contains("checks: All"),
        "{default}"
    );
    let java = tls(&[
        ("ssl.truststore.type", "PEM"),
        ("ssl.truststore.location", "/etc/ca.pem"),
        ("ssl.keystore.location", "/etc/both.pem"),
        ("ssl.enabled.protocols", "TLSv1.3"),
    ]);
    for part in [
        "ca: [/etc/ca.pem]",
        "chain: Some(/etc/both.pem)",
        "key: Some(/etc/both.pem)",
        "versions: [V1_3]",
    ] {
        assert!(java.contains(part), "{part}: {java}");
    }
    let c = tls(&[
        ("ssl.ca.location", "/etc/ca.pem"),
        ("ssl.certificate.location", "/etc/client.pem"),
        ("ssl.key.location", "/etc/client.key"),
        ("ssl.endpoint.identification.algorithm", "none"),
    ]);
    for part in [
        "ca: [/etc/ca.pem]",
        "chain: Some(/etc/client.pem)",
        "key: Some(/etc/client.key)",
        "checks: NotTheName",
    ] {
        assert!(c.contains(part), "{part}: {c}");
    }
    let open = tls(&[("enable.ssl.certificate.verification", "false")]);
    assert!(open.contains("checks: None"), "{open}");
    let told = refused(&[
        ("security.protocol", "SSL"),
        ("ssl.certificate.location", "c.pem"),
    ]);
    assert!(told.contains("needs its key"), "{told}");
    let mixed = [
        ("security.protocol", "SSL"),
        ("ssl.certificate.location", "c.pem"),
        ("ssl.key.pem", "x"),
    ];
    assert!(refused(&mixed).contains("both as files"));
}

#[test]
fn pem_in_one_line_gets_its_lines_back() {
    let one =
        "-----BEGIN A B----- aGVs bG8= -----END A B----- -----BEGIN C----- eA== -----END C-----";
    let lines = "-----BEGIN A B-----\naGVs\nbG8=\n-----END A B-----\n-----BEGIN C-----\neA==\n-----END C-----\n";
    assert_eq!(security::pem_lines(one), lines);
    assert_eq!(security::pem_lines(lines), lines);
    assert_eq!(security::pem_lines("no pem"), "no pem");
}

#[test]
fn sasl_by_either_spelling() {
    let by = |pairs: &[(&str, &str)]| {
        let pairs = [&[("security.protocol", "SASL_PLAINTEXT")], pairs].concat();
        let kafka = Kafka::from_properties([&[WHERE], &pairs[..]].concat()).unwrap();
        let shown = format!("{kafka:?}");
        assert!(!shown.contains("hunter"), "{shown}");
        shown
    };
    let java = by(&[
        ("sasl.mechanism", "SCRAM-SHA-512"),
        (
            "sasl.jaas.config",
            "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" password=\"hun\\\"ter;2\";",
        ),
    ]);
    assert!(java.contains("ScramSha512"), "{java}");
    let c = by(&[
        ("sasl.mechanisms", "PLAIN"),
        ("sasl.username", "alice"),
        ("sasl.password", "hunter2"),
    ]);
    assert!(c.contains("Plain"), "{c}");
    let protocol = ("security.protocol", "SASL_SSL");
    assert!(refused(&[protocol]).contains("sasl.mechanism"));
    assert!(refused(&[protocol, ("sasl.mechanism", "GSSAPI")]).contains("Kerberos"));
    assert!(refused(&[protocol, ("sasl.mechanism", "DIGEST")]).contains("not known"));
    assert!(refused(&[protocol, ("sasl.mechanism", "PLAIN")]).contains("a user and a password"));
}

#[test]
fn jaas_is_read_as_java_reads_it() {
    let mut security = security::Security::default();
    let text = "a.b.PlainLoginModule   required\n username=\"a \\\"b\\\\\"  password='x';";
    security.jaas(text).unwrap();
    assert_eq!(security.user.as_deref(), Some("a \"b\\"));
    assert_eq!(security.password.as_deref(), Some("'x'"));
    for wrong in [
        "a.b.PlainLoginModule required username=\"a\"",
        "a.b.PlainLoginModule optional username=\"a\";",
        "a.b.PlainLoginModule required username;",
        "a.b.PlainLoginModule required username=a; another required;",
        "a.b.Krb5LoginModule required;",
        "",
        ";",
    ] {
        assert!(security.jaas(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_mechanism_that_wants_a_provider_is_asked_for_at_the_start() {
    let kafka = || {
        Kafka::from_properties([
            WHERE,
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "OAUTHBEARER"),
        ])
    };
    let topics = || crate::Topics::named(["t"]).group("g");
    let told = kafka()
        .unwrap()
        .subscribe(topics())
        .start(|_| async {})
        .unwrap_err();
    assert!(told.message().contains("Kafka::sasl"), "{told}");
    let given = kafka().unwrap().sasl(crate::Sasl::plain("alice", "x"));
    let told = given.subscribe(topics()).start(|_| async {}).unwrap_err();
    assert!(told.message().contains("tokio runtime"), "{told}");
}

#[test]
fn a_token_endpoint_by_every_spelling() {
    let url = (
        "sasl.oauthbearer.token.endpoint.url",
        "http://localhost:8080/token",
    );
    let of = |pairs: &[(&'static str, &'static str)]| {
        let first = [
            WHERE,
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "OAUTHBEARER"),
        ];
        Kafka::from_properties([&first, pairs].concat())
    };
    let c = of(&[
        url,
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.client.id", "billing"),
        ("sasl.oauthbearer.client.secret", "hunter2"),
        ("sasl.oauthbearer.scope", "kafka"),
        (
            "sasl.oauthbearer.extensions",
            "logicalCluster=lkc-1, identityPoolId=p",
        ),
        ("https.ca.location", "probe"),
    ]);
    let java = of(&[
        url,
        (
            "sasl.login.callback.handler.class",
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        ),
        (
            "sasl.jaas.config",
            "a.OAuthBearerLoginModule required clientId=\"billing\" clientSecret=\"hunter2\" scope=\"kafka\" extension_a=\"b\";",
        ),
    ]);
    let newer = of(&[
        url,
        ("sasl.oauthbearer.client.credentials.client.id", "billing"),
        (
            "sasl.oauthbearer.client.credentials.client.secret",
            "hunter2",
        ),
    ]);
    for kafka in [c, java, newer] {
        let kafka = kafka.unwrap();
        let shown = format!("{kafka:?}");
        assert!(
            shown.contains("OAuthBearer") && !shown.contains("hunter2"),
            "{shown}"
        );
        // Nothing else has to be called: what is missing is a runtime.
        let topics = crate::Topics::named(["t"]).group("g");
        let told = kafka.subscribe(topics).start(|_| async {}).unwrap_err();
        assert!(told.message().contains("tokio runtime"), "{told}");
    }
    for (pairs, words) in [
        (&[url][..], "id and secret"),
        (
            &[url, ("sasl.oauthbearer.client.id", "billing")],
            "id and secret",
        ),
        (&[("sasl.oauthbearer.method", "azure")], "neither oidc"),
        (&[("sasl.oauthbearer.extensions", "a")], "NAME=VALUE"),
        (
            &[
                (
                    "sasl.oauthbearer.token.endpoint.url",
                    "http://login.example.com/",
                ),
                ("sasl.oauthbearer.client.id", "billing"),
                ("sasl.oauthbearer.client.secret", "hunter2"),
            ],
            "https",
        ),
    ] {
        let told = of(pairs).unwrap_err();
        assert!(told.message().contains(words), "{told}");
        assert!(!told.message().contains("hunter2"), "{told}");
    }
}

#[test]
fn no_name_stands_twice() {
    let mut seen = BTreeSet::new();
    for name in names().chain(ALIASES.iter().map(|a| a.0)) {
        assert!(seen.insert(name), "{name} stands twice");
    }
    for (alias, name) in ALIASES {
        assert!(canonical(alias) == Some(name) && !name.is_empty());
    }
    assert!(KNOWN.iter().any(|k| k.of == Of::Librdkafka));
}

/// The manual has the table as it is: `LANEWAY_WRITE_MANUAL=1` writes it.
#[test]
fn the_manual_has_every_name() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/manual/properties.md");
    let page = page();
    if std::env::var("LANEWAY_WRITE_MANUAL").is_ok_and(|v| v == "1") {
        std::fs::write(file, &page).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        written == page,
        "src/manual/properties.md is old: run this test with LANEWAY_WRITE_MANUAL=1"
    );
}
