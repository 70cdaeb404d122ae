//! A TLS server in front of the embedded broker, and the certificates of tests.

#![allow(dead_code)] // each test file uses a part of it

use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::rustls::pki_types::pem::PemObject;
use laneway::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use laneway::rustls::server::WebPkiClientVerifier;
use laneway::rustls::{
    HandshakeKind, RootCertStore, ServerConfig, SupportedProtocolVersion, version,
};
use laneway::{Kafka, Subscription, Tls, Topics};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

/// A file of `protocol-tests/certificates`.
pub fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("certificates");
    let file = folder.join(name);
    assert!(file.is_file(), "{} is not there", file.display());
    file
}

pub fn pem(name: &str) -> Vec<u8> {
    std::fs::read(file(name)).unwrap()
}

/// What a server shows and wants.
#[derive(Clone)]
pub struct Shows {
    pub certificate: &'static str,
    pub wants_client: bool,
    pub versions: Vec<&'static SupportedProtocolVersion>,
}

impl Default for Shows {
    fn default() -> Self {
        Shows {
            certificate: "broker.pem",
            wants_client: false,
            versions: vec![&version::TLS13, &version::TLS12],
        }
    }
}

impl Shows {
    pub fn certificate(certificate: &'static str) -> Self {
        Shows {
            certificate,
            ..Shows::default()
        }
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls_graviola::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&self.versions)
            .unwrap();
        let builder = if self.wants_client {
            let mut roots = RootCertStore::empty();
            roots
                .add(CertificateDer::from_pem_file(file("ca.pem")).unwrap())
                .unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let chain = CertificateDer::from_pem_file(file(self.certificate)).unwrap();
        let key = PrivateKeyDer::from_pem_file(file("broker.key")).unwrap();
        Arc::new(builder.with_single_cert(vec![chain], key).unwrap())
    }
}

/// What the front has seen.
#[derive(Default)]
pub struct Counts {
    pub connections: AtomicUsize,
    pub handshakes: AtomicUsize,
    pub resumed: AtomicUsize,
    /// The first bytes of the last client certificate's end, as its place among those seen.
    pub clients: Mutex<Vec<Vec<u8>>>,
    pub cut: Notify,
}

/// TLS at a port of loopback, which passes on what is inside to `upstream`.
pub struct Front {
    pub port: u16,
    pub counts: Arc<Counts>,
    config: Arc<Mutex<Arc<ServerConfig>>>,
}

impl Front {
    /// Listens; serves once `upstream` is known.
    pub async fn bind(shows: &Shows) -> (Front, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let front = Front {
            port: listener.local_addr().unwrap().port(),
            counts: Arc::default(),
            config: Arc::new(Mutex::new(shows.config())),
        };
        (front, listener)
    }

    pub fn serve(&self, listener: TcpListener, upstream: String) {
        let (config, counts) = (self.config.clone(), self.counts.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counts.connections.fetch_add(1, Ordering::Relaxed);
                let acceptor = TlsAcceptor::from(config.lock().unwrap().clone());
                tokio::spawn(through(client, acceptor, upstream.clone(), counts.clone()));
            }
        });
    }

    /// New connections are served so.
    pub fn show(&self, shows: &Shows) {
        *self.config.lock().unwrap() = shows.config();
    }

    /// Every connection ends without a word of TLS.
    pub fn cut(&self) {
        self.counts.cut.notify_waiters();
    }

    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    pub fn localhost(&self) -> String {
        format!("localhost:{}", self.port)
    }
}

async fn through(client: TcpStream, acceptor: TlsAcceptor, upstream: String, counts: Arc<Counts>) {
    let cut = counts.cut.notified();
    tokio::pin!(cut);
    cut.as_mut().enable();
    let Ok(mut client) = acceptor.accept(client).await else {
        return;
    };
    counts.handshakes.fetch_add(1, Ordering::Relaxed);
    let session = client.get_ref().1;
    if session.handshake_kind() == Some(HandshakeKind::Resumed) {
        counts.resumed.fetch_add(1, Ordering::Relaxed);
    }
    if let Some([first, ..]) = session.peer_certificates() {
        counts.clients.lock().unwrap().push(first.to_vec());
    }
    let Ok(mut broker) = TcpStream::connect(&upstream).await else {
        return;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut broker) => {}
        () = cut => {}
    }
}

/// The embedded broker with topic `t` of four partitions, behind TLS.
pub struct Behind {
    pub server: Server,
    pub front: Front,
}

/// The broker advertises `host` and the front's port.
pub async fn behind(shows: &Shows, host: &str) -> Behind {
    let (front, listener) = Front::bind(shows).await;
    let listen = Listen {
        advertised: vec![(host.to_owned(), front.port)],
        ..Listen::default()
    };
    let server = Server::start(ClusterConfig::default(), listen)
        .await
        .unwrap();
    server.cluster().create_topic("t", 4).unwrap();
    front.serve(listener, server.bootstrap()[0].clone());
    Behind { server, front }
}

impl Behind {
    /// `n` more records, by turns over the partitions.
    pub fn fill(&self, n: usize) {
        let mut cluster = self.server.cluster();
        let now = cluster.now();
        for at in 0..n {
            let key = format!("k{}", at % 10);
            let pair = (Some(key.as_bytes()), Some(&b"v"[..]));
            cluster
                .append_records(now, "t", (at % 4) as i32, &[pair])
                .unwrap();
        }
    }

    pub fn kafka(&self, tls: Tls) -> Kafka {
        Kafka::new([self.front.localhost()]).tls(tls)
    }
}

/// Trusts the tests' authority.
pub fn trusting() -> Tls {
    Tls::new().ca_file(file("ca.pem"))
}

/// On `t`; gives up on mute peers after a few seconds.
pub fn reading(kafka: &Kafka) -> Subscription {
    kafka
        .subscribe(Topics::named(["t"]).group("g"))
        .request_timeout(Duration::from_secs(5))
        .workers_by_key(4)
}
