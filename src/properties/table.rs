//! Every name that is known, and what becomes of it. The manual's page is made of this.

use super::Draft;
use super::security::{Pem, Protocol, pem_lines};
use super::values::{at_least, boolean, bytes, iso_duration, list, millis, number};
use crate::fetch::StartOffset;
use crate::group::{AssignorKind, GroupProtocol};
use crate::wire::message::Isolation;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One name that is set, or refused with what to do instead.
pub(super) struct Known {
    pub name: &'static str,
    /// Whose name it is; for the manual.
    #[cfg_attr(not(test), expect(dead_code))]
    pub of: Of,
    /// What it is called here; for the manual.
    #[cfg_attr(not(test), expect(dead_code))]
    pub here: &'static str,
    pub set: Set,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Java,
    Librdkafka,
    Both,
}

pub(super) type Set = fn(&mut Draft, &str) -> Result<(), String>;

const fn set(name: &'static str, of: Of, here: &'static str, set: Set) -> Known {
    Known {
        name,
        of,
        here,
        set,
    }
}

/// Other spellings, all of librdkafka.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("metadata.broker.list", "bootstrap.servers"),
    ("fetch.wait.max.ms", "fetch.max.wait.ms"),
    ("fetch.message.max.bytes", "max.partition.fetch.bytes"),
    ("topic.metadata.refresh.interval.ms", "metadata.max.age.ms"),
    ("socket.timeout.ms", "request.timeout.ms"),
    ("sasl.mechanisms", "sasl.mechanism"),
    (
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.id",
    ),
    (
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
    ),
];

use Of::{Both, Java, Librdkafka};

/// In the order in which they are applied: what limits another comes after it.
pub(super) const KNOWN: &[Known] = &[
    set("bootstrap.servers", Both, "`Kafka::new`", |d, v| {
        d.bootstrap = v.to_owned();
        Ok(())
    }),
    set("client.id", Both, "`Kafka::client_id`", |d, v| {
        d.client_id = Some(v.to_owned());
        Ok(())
    }),
    set(
        "group.id",
        Both,
        "`Topics::group`, `Partitions::offsets_in`, where none is called",
        |d, v| {
            d.group = Some(v.to_owned()).filter(|v| !v.is_empty());
            Ok(())
        },
    ),
    set(
        "group.instance.id",
        Both,
        "`Subscription::instance_id`",
        |d, v| {
            let id: Arc<str> = v.into();
            d.set(move |c| c.instance_id = Some(id.clone()));
            Ok(())
        },
    ),
    set(
        "group.protocol",
        Both,
        "`Subscription::group_protocol`",
        |d, v| {
            let protocol = match v.to_ascii_lowercase().as_str() {
                "classic" => GroupProtocol::Classic,
                "consumer" => GroupProtocol::Consumer,
                _ => return Err("neither classic nor consumer".to_owned()),
            };
            d.set(move |c| c.group_protocol = protocol);
            Ok(())
        },
    ),
    set(
        "group.remote.assignor",
        Both,
        "`Subscription::server_assignor`",
        |d, v| {
            let name: Arc<str> = v.into();
            d.set(move |c| c.server_assignor = Some(name.clone()));
            Ok(())
        },
    ),
    set(
        "auto.offset.reset",
        Both,
        "`Subscription::start_at`",
        |d, v| {
            let start = start(v)?;
            d.set(move |c| c.start = start);
            Ok(())
        },
    ),
    set(
        "isolation.level",
        Both,
        "`Subscription::isolation`",
        |d, v| {
            let isolation = match v.to_ascii_lowercase().as_str() {
                "read_committed" => Isolation::ReadCommitted,
                "read_uncommitted" => Isolation::ReadUncommitted,
                _ => return Err("neither read_committed nor read_uncommitted".to_owned()),
            };
            d.set(move |c| c.isolation = isolation);
            Ok(())
        },
    ),
    set(
        "auto.commit.interval.ms",
        Both,
        "`Subscription::commit_interval`",
        |d, v| {
            let every = at_least(10, v)?;
            d.set(move |c| c.commit_interval = every);
            Ok(())
        },
    ),
    set(
        "session.timeout.ms",
        Both,
        "`Subscription::session_timeout`",
        |d, v| {
            let timeout = at_least(1000, v)?;
            d.set(move |c| {
                c.session_timeout = timeout;
                c.heartbeat_interval = c.heartbeat_interval.min(timeout / 3);
            });
            Ok(())
        },
    ),
    set(
        "heartbeat.interval.ms",
        Both,
        "between heartbeats; a third of the session's time at most",
        |d, v| {
            let interval = at_least(1, v)?;
            d.set(move |c| c.heartbeat_interval = interval.min(c.session_timeout / 3));
            Ok(())
        },
    ),
    set(
        "max.poll.interval.ms",
        Both,
        "`Subscription::rebalance_timeout`: no handler loses its partition for being slow",
        |d, v| {
            let timeout = at_least(1000, v)?;
            d.set(move |c| c.rebalance_timeout = timeout.max(c.session_timeout));
            Ok(())
        },
    ),
    set(
        "partition.assignment.strategy",
        Both,
        "`Subscription::assignors`",
        |d, v| {
            let kinds = list(v).map(assignor).collect::<Result<Vec<_>, _>>()?;
            if kinds.is_empty() {
                return Err("names no assignor".to_owned());
            }
            d.set(move |c| c.assignors = kinds.clone());
            Ok(())
        },
    ),
    set("client.rack", Both, "`Subscription::rack`", |d, v| {
        let rack: Arc<str> = v.into();
        d.set(move |c| c.rack = rack.clone());
        Ok(())
    }),
    set(
        "fetch.max.bytes",
        Both,
        "bytes that one fetch asks for",
        |d, v| {
            let most = bytes(v)?;
            d.set(move |c| c.fetch_bytes_max = most);
            Ok(())
        },
    ),
    set(
        "max.partition.fetch.bytes",
        Both,
        "bytes that one fetch asks for of a partition",
        |d, v| {
            let most = bytes(v)?;
            d.set(move |c| c.partition_bytes_max = most);
            Ok(())
        },
    ),
    set(
        "fetch.max.wait.ms",
        Both,
        "`Subscription::fetch_wait_max`",
        |d, v| {
            let wait = millis(v)?;
            d.set(move |c| c.fetch_wait_max = wait);
            Ok(())
        },
    ),
    set(
        "queued.max.messages.kbytes",
        Librdkafka,
        "`Subscription::budget`, 1 MiB at least",
        |d, v| {
            let kilobytes: u64 = number(v)?;
            let budget = kilobytes.saturating_mul(1024).max(1 << 20);
            d.set(move |c| c.budget_bytes = budget);
            Ok(())
        },
    ),
    set(
        "metadata.max.age.ms",
        Both,
        "metadata is read anew at this age",
        |d, v| {
            let age = at_least(1000, v)?;
            d.set(move |c| c.metadata_age_max = age);
            Ok(())
        },
    ),
    set(
        "request.timeout.ms",
        Both,
        "`Subscription::request_timeout`",
        |d, v| {
            let timeout = at_least(100, v)?;
            d.set(move |c| {
                c.request_timeout = timeout;
                c.connect_timeout = c.connect_timeout.min(timeout);
            });
            Ok(())
        },
    ),
    set(
        "socket.connection.setup.timeout.ms",
        Both,
        "the time for a connection to come up, TLS with it",
        |d, v| {
            let timeout = at_least(100, v)?;
            d.set(move |c| c.connect_timeout = timeout);
            Ok(())
        },
    ),
    set(
        "connections.max.idle.ms",
        Both,
        "idle connections are closed after this; 0 and -1: never",
        |d, v| {
            let idle: i64 = number(v)?;
            let idle = match u64::try_from(idle) {
                Ok(0) | Err(_) => NEVER,
                Ok(ms) => Duration::from_millis(ms.max(1000)),
            };
            d.set(move |c| c.idle_max = idle);
            Ok(())
        },
    ),
    // Security.
    set(
        "security.protocol",
        Both,
        "`Kafka::tls`, `Kafka::sasl`",
        |d, v| {
            d.security.protocol = Protocol::read(v)?;
            Ok(())
        },
    ),
    set("ssl.truststore.type", Java, "PEM alone", |d, v| {
        pem_type(d, "ssl.truststore.type", v)
    }),
    set("ssl.truststore.location", Java, "`Tls::ca_file`", |d, v| {
        tls(d, "ssl.truststore.location").ca = Some(Pem::File(v.to_owned()));
        Ok(())
    }),
    set(
        "ssl.truststore.certificates",
        Java,
        "`Tls::ca_pem`",
        |d, v| {
            tls(d, "ssl.truststore.certificates").ca = Some(Pem::Text(pem_lines(v)));
            Ok(())
        },
    ),
    set(
        "ssl.ca.location",
        Librdkafka,
        "`Tls::ca_file`; `probe` is the default here",
        |d, v| {
            let tls = tls(d, "ssl.ca.location");
            if v != "probe" {
                tls.ca = Some(Pem::File(v.to_owned()));
            }
            Ok(())
        },
    ),
    set("ssl.ca.pem", Librdkafka, "`Tls::ca_pem`", |d, v| {
        tls(d, "ssl.ca.pem").ca = Some(Pem::Text(pem_lines(v)));
        Ok(())
    }),
    set("ssl.keystore.type", Java, "PEM alone", |d, v| {
        pem_type(d, "ssl.keystore.type", v)
    }),
    set(
        "ssl.keystore.location",
        Both,
        "`Tls::identity_files`, a PEM file with the certificate and its key",
        |d, v| {
            let tls = tls(d, "ssl.keystore.location");
            tls.chain = Some(Pem::File(v.to_owned()));
            tls.key = Some(Pem::File(v.to_owned()));
            Ok(())
        },
    ),
    set(
        "ssl.keystore.certificate.chain",
        Java,
        "`Tls::identity_pem`",
        |d, v| {
            tls(d, "ssl.keystore.certificate.chain").chain = Some(Pem::Text(pem_lines(v)));
            Ok(())
        },
    ),
    set("ssl.keystore.key", Java, "`Tls::identity_pem`", |d, v| {
        tls(d, "ssl.keystore.key").key = Some(Pem::Text(pem_lines(v)));
        Ok(())
    }),
    set(
        "ssl.certificate.location",
        Librdkafka,
        "`Tls::identity_files`",
        |d, v| {
            tls(d, "ssl.certificate.location").chain = Some(Pem::File(v.to_owned()));
            Ok(())
        },
    ),
    set(
        "ssl.key.location",
        Librdkafka,
        "`Tls::identity_files`",
        |d, v| {
            tls(d, "ssl.key.location").key = Some(Pem::File(v.to_owned()));
            Ok(())
        },
    ),
    set(
        "ssl.certificate.pem",
        Librdkafka,
        "`Tls::identity_pem`",
        |d, v| {
            tls(d, "ssl.certificate.pem").chain = Some(Pem::Text(pem_lines(v)));
            Ok(())
        },
    ),
    set("ssl.key.pem", Librdkafka, "`Tls::identity_pem`", |d, v| {
        tls(d, "ssl.key.pem").key = Some(Pem::Text(pem_lines(v)));
        Ok(())
    }),
    set(
        "ssl.key.password",
        Both,
        "refused: decrypt the key",
        |_, _| no_passphrase(),
    ),
    set(
        "ssl.keystore.password",
        Both,
        "refused: decrypt the key",
        |_, _| no_passphrase(),
    ),
    set("ssl.enabled.protocols", Java, "`Tls::versions`", |d, v| {
        let mut versions = Vec::new();
        for name in list(v) {
            versions.push(match name {
                "TLSv1.2" => "TLSv1.2",
                "TLSv1.3" => "TLSv1.3",
                _ => return Err("TLSv1.2 and TLSv1.3 are spoken, and no other".to_owned()),
            });
        }
        tls(d, "ssl.enabled.protocols").versions = versions;
        Ok(())
    }),
    set(
        "ssl.endpoint.identification.algorithm",
        Both,
        "`https` is the default; empty or `none` is `Tls::dangerously_skip_host_name_check`",
        |d, v| {
            let any_name = match v.to_ascii_lowercase().as_str() {
                "https" => false,
                "" | "none" => true,
                _ => return Err("neither https nor none".to_owned()),
            };
            tls(d, "ssl.endpoint.identification.algorithm").any_name = any_name;
            Ok(())
        },
    ),
    set(
        "enable.ssl.certificate.verification",
        Librdkafka,
        "`false` is `Tls::dangerously_trust_anyone`",
        |d, v| {
            tls(d, "enable.ssl.certificate.verification").trust_anyone = !boolean(v)?;
            Ok(())
        },
    ),
    set(
        "ssl.cipher.suites",
        Both,
        "refused: `Tls::provider`",
        |_, _| by_provider(),
    ),
    set(
        "ssl.curves.list",
        Librdkafka,
        "refused: `Tls::provider`",
        |_, _| by_provider(),
    ),
    set(
        "ssl.sigalgs.list",
        Librdkafka,
        "refused: `Tls::provider`",
        |_, _| by_provider(),
    ),
    set(
        "ssl.crl.location",
        Librdkafka,
        "refused: no lists of revoked certificates are read",
        |_, _| {
            Err("no lists of revoked certificates are read; use certificates that live for a short time".to_owned())
        },
    ),
    set(
        "ssl.engine.factory.class",
        Java,
        "refused: `Tls::provider`",
        |_, _| by_provider(),
    ),
    set(
        "sasl.mechanism",
        Both,
        "`Sasl`; AWS_MSK_IAM, and OAUTHBEARER without an endpoint, want `Kafka::sasl` too",
        |d, v| {
            sasl(d, "sasl.mechanism").mechanism = Some(v.to_owned());
            Ok(())
        },
    ),
    set(
        "sasl.jaas.config",
        Java,
        "user and password of `Sasl`; id, secret, scope and extensions of `ClientCredentials`",
        |d, v| sasl(d, "sasl.jaas.config").jaas(v),
    ),
    set("sasl.username", Librdkafka, "user of `Sasl`", |d, v| {
        sasl(d, "sasl.username").user = Some(v.to_owned());
        Ok(())
    }),
    set("sasl.password", Librdkafka, "password of `Sasl`", |d, v| {
        sasl(d, "sasl.password").password = Some(v.to_owned());
        Ok(())
    }),
    set(
        "sasl.oauthbearer.token.endpoint.url",
        Both,
        "`ClientCredentials::new`",
        |d, v| {
            oauth(d, "sasl.oauthbearer.token.endpoint.url").url = Some(v.to_owned());
            Ok(())
        },
    ),
    set(
        "sasl.oauthbearer.client.credentials.client.id",
        Both,
        "`ClientCredentials::new`",
        |d, v| {
            oauth(d, "sasl.oauthbearer.client.credentials.client.id").id = Some(v.to_owned());
            Ok(())
        },
    ),
    set(
        "sasl.oauthbearer.client.credentials.client.secret",
        Both,
        "`ClientCredentials::new`",
        |d, v| {
            oauth(d, "sasl.oauthbearer.client.credentials.client.secret").secret =
                Some(v.to_owned());
            Ok(())
        },
    ),
    set(
        "sasl.oauthbearer.scope",
        Both,
        "`ClientCredentials::scope`",
        |d, v| {
            oauth(d, "sasl.oauthbearer.scope").scope = Some(v.to_owned());
            Ok(())
        },
    ),
    set(
        "sasl.oauthbearer.extensions",
        Librdkafka,
        "`ClientCredentials::extension`",
        |d, v| oauth(d, "sasl.oauthbearer.extensions").read_extensions(v),
    ),
    set(
        "sasl.oauthbearer.method",
        Librdkafka,
        "what else is given says it",
        |d, v| {
            sasl(d, "sasl.oauthbearer.method");
            match v {
                "oidc" | "default" => Ok(()),
                _ => Err("neither oidc nor default".to_owned()),
            }
        },
    ),
    set(
        "https.ca.location",
        Librdkafka,
        "`ClientCredentials::tls`; `probe` is the default, this machine's authorities",
        |d, v| {
            oauth(d, "https.ca.location").ca = Some(v.to_owned()).filter(|v| v != "probe");
            Ok(())
        },
    ),
];

/// For ever, as far as a process knows.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

fn tls<'a>(draft: &'a mut Draft, name: &'static str) -> &'a mut super::security::Security {
    draft.security.tls_names.push(name);
    &mut draft.security
}

fn sasl<'a>(draft: &'a mut Draft, name: &'static str) -> &'a mut super::security::Security {
    draft.security.sasl_names.push(name);
    &mut draft.security
}

fn oauth<'a>(draft: &'a mut Draft, name: &'static str) -> &'a mut super::oauth::OAuth {
    &mut sasl(draft, name).oauth
}

fn pem_type(draft: &mut Draft, name: &'static str, value: &str) -> Result<(), String> {
    tls(draft, name);
    match value.eq_ignore_ascii_case("PEM") {
        true => Ok(()),
        false => Err(
            "stores are read as PEM: make PKCS#12 of a JKS with keytool -importkeystore -srckeystore FILE -destkeystore \
             store.p12 -deststoretype PKCS12, and PEM of that with openssl pkcs12 -in store.p12 -nodes -out store.pem"
                .to_owned(),
        ),
    }
}

fn no_passphrase() -> Result<(), String> {
    Err(
        "no passphrases are taken: decrypt the key into a file that only this program can read, (umask 077; openssl pkey \
         -in FILE -out FILE.plain), name that file and leave this out"
            .to_owned(),
    )
}

fn by_provider() -> Result<(), String> {
    Err("not chosen by name: give Tls::provider one that has what is wanted alone, and leave this out".to_owned())
}

fn start(value: &str) -> Result<StartOffset, String> {
    Ok(match value.to_ascii_lowercase().as_str() {
        "earliest" | "smallest" | "beginning" => StartOffset::Earliest,
        "latest" | "largest" | "end" => StartOffset::Latest,
        "none" | "error" => StartOffset::Fail,
        other => {
            let back = other.strip_prefix("by_duration:").and_then(iso_duration);
            let back = back.ok_or("none of earliest, latest, none and by_duration:PnDTnHnMnS")?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let then = now.unwrap_or_default().saturating_sub(back);
            StartOffset::Timestamp(i64::try_from(then.as_millis()).unwrap_or(i64::MAX))
        }
    })
}

fn assignor(name: &str) -> Result<AssignorKind, String> {
    let class = name.rsplit('.').next().unwrap_or(name);
    Ok(match class {
        "RangeAssignor" | "range" => AssignorKind::Range,
        "RoundRobinAssignor" | "roundrobin" => AssignorKind::RoundRobin,
        "CooperativeStickyAssignor" | "cooperative-sticky" => AssignorKind::CooperativeSticky,
        "StickyAssignor" => {
            return Err(
                "the old StickyAssignor is not there: use CooperativeStickyAssignor".to_owned(),
            );
        }
        _ => {
            return Err(format!(
                "{name} is none of RangeAssignor, RoundRobinAssignor and CooperativeStickyAssignor"
            ));
        }
    })
}

/// The manual's page.
#[cfg(test)]
pub(super) fn page() -> String {
    let of = |of| match of {
        Of::Java => "Java",
        Of::Librdkafka => "librdkafka",
        Of::Both => "both",
    };
    let mut page = String::from("| property | whose | here |\n|---|---|---|\n");
    for known in KNOWN {
        let aliases = ALIASES.iter().filter(|(_, name)| *name == known.name);
        let aliases: String = aliases
            .map(|(alias, _)| format!(", `{alias}` (librdkafka)"))
            .collect();
        let (name, whose, here) = (known.name, of(known.of), known.here);
        page.push_str(&format!("| `{name}`{aliases} | {whose} | {here} |\n"));
    }
    page.push_str(
        "\nThese are known and change nothing:\n\n| property | whose | why |\n|---|---|---|\n",
    );
    for (name, whose, why) in super::ignored::IGNORED {
        page.push_str(&format!("| `{name}` | {} | {why} |\n", of(*whose)));
    }
    page
}
