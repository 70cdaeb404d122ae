//! Tokens of an OAuth 2 token endpoint (KIP-768): a scripted one over TCP and TLS, before the
//! embedded broker, which takes what it gives.

mod hostile_kit;
mod tls_kit;

use hostile_kit::{Seen, assert_closes, until, watched};
use laneway::broker::{ClusterConfig, Listen, SaslConfig, Server};
use laneway::{ClientCredentials, ErrorKind, Kafka, Running, Sasl, Topics, properties};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tls_kit::{Front, Shows, file, trusting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn broker() -> Arc<Server> {
    let config = ClusterConfig {
        sasl: Some(SaslConfig::new([("alice", "swordfish")])),
        ..ClusterConfig::default()
    };
    let server = Server::start(config, Listen::default()).await.unwrap();
    let mut cluster = server.cluster();
    cluster.create_topic("t", 1).unwrap();
    drop(cluster);
    let server = Arc::new(server);
    fill(&server);
    server
}

fn fill(server: &Server) {
    let mut cluster = server.cluster();
    let now = cluster.now();
    for _ in 0..20 {
        let pair = (None, Some(&b"v"[..]));
        cluster.append_records(now, "t", 0, &[pair]).unwrap();
    }
}

/// What an endpoint says to one question.
type Says = Box<dyn Fn(&Server) -> String + Send>;

/// A token of alice's for so long, in an answer of one of the three framings.
fn gives(life: Duration, framing: &'static str) -> Says {
    Box::new(move |server| {
        let cluster = server.cluster();
        let token = cluster.token(cluster.now(), "alice", life);
        let seconds = life.as_secs();
        let body = format!(
            "{{\"access_token\":\"{token}\",\"token_type\":\"bearer\",\"expires_in\":{seconds}}}"
        );
        let length = body.len();
        match framing {
            "length" => format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"),
            "chunks" => format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                10,
                &body[..10],
                length - 10,
                &body[10..]
            ),
            _ => format!("HTTP/1.0 200 OK\r\n\r\n{body}"),
        }
    })
}

fn says(text: &'static str) -> Says {
    Box::new(move |_| text.to_owned())
}

/// An endpoint that says these one after another, the last again and again, and what it was asked.
struct Endpoint {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    async fn start(server: &Arc<Server>, says: impl IntoIterator<Item = Says>) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, server) = (asked.clone(), server.clone());
        let mut says: VecDeque<Says> = says.into_iter().collect();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 16 << 10];
                let n = stream.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..n]).into_owned();
                log.lock().unwrap().push(text);
                let answer = says[0](&server);
                if says.len() > 1 {
                    says.pop_front();
                }
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Endpoint { port, asked }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}/token", self.port)
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn tokens(url: &str) -> ClientCredentials {
    let of = ClientCredentials::new(url, "billing", "swordfish").unwrap();
    of.scope("kafka")
}

fn start(server: &Server, tokens: ClientCredentials) -> (Running, Arc<Seen>) {
    let kafka = Kafka::new(server.bootstrap()).sasl(Sasl::oauthbearer(tokens));
    watched(kafka.subscribe(Topics::named(["t"]).group("g")))
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn tokens_in_each_framing_open_the_broker() {
    for framing in ["length", "chunks", "to the end"] {
        let server = broker().await;
        let endpoint = Endpoint::start(&server, [gives(MINUTE, framing)]).await;
        let (running, seen) = start(&server, tokens(&endpoint.url("http")));
        until(&seen, framing, || seen.distinct() == 20).await;
        assert_closes(running, &seen).await;
        assert_eq!(endpoint.asked(), 1);
        let asked = endpoint.asked.lock().unwrap();
        assert!(
            asked[0].starts_with("POST /token HTTP/1.1\r\n"),
            "{}",
            asked[0]
        );
        assert!(asked[0].ends_with("\r\n\r\ngrant_type=client_credentials&scope=kafka"));
    }
}

/// L24: asked again before a token ends, and no connection is made anew for it.
#[tokio::test]
async fn l24_the_endpoint_is_asked_again_in_time() {
    let server = broker().await;
    let life = Duration::from_secs(3);
    let endpoint = Endpoint::start(&server, [gives(life, "length")]).await;
    let (running, seen) = start(&server, tokens(&endpoint.url("http")));
    until(&seen, "renewed twice", || endpoint.asked() >= 3).await;
    fill(&server);
    until(&seen, "read on", || seen.distinct() == 40).await;
    // The one warning is of tokens without TLS.
    let warned = seen.warnings();
    assert!(
        warned.iter().all(|e| e.message().contains("without TLS")),
        "{warned:?}"
    );
    assert!(endpoint.asked() < 6, "{} questions", endpoint.asked());
    assert_closes(running, &seen).await;
}

/// L24: refusals, nonsense and silence of the endpoint are warned of in words and paced; once it
/// gives a token the subscription reads.
#[tokio::test]
async fn l24_an_endpoint_in_trouble_is_asked_until_it_gives() {
    for (said, words) in [
        (
            "HTTP/1.1 401 Unauthorized\r\n\r\n{\"error\":\"invalid_client\",\"error_description\":\"no such client\"}",
            "invalid_client: no such client",
        ),
        (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
            "503",
        ),
        (
            "HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n",
            "not followed",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2147483647\r\n\r\n",
            "too long",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n{\"access_token\":", "no JSON"),
        ("", "without an answer"),
        ("\u{15}\u{3}\u{3}\u{0}\u{2}\u{2}F", "answers in TLS"),
    ] {
        let server = broker().await;
        let endpoint = Endpoint::start(&server, [says(said), gives(MINUTE, "length")]).await;
        let (running, seen) = start(&server, tokens(&endpoint.url("http")));
        until(&seen, words, || seen.distinct() == 20).await;
        let warned: Vec<String> = seen.warnings().iter().map(ToString::to_string).collect();
        assert!(
            warned.iter().any(|w| w.contains(words)),
            "{words}: {warned:?}"
        );
        assert!(
            !warned.iter().any(|w| w.contains("swordfish")),
            "{warned:?}"
        );
        assert_eq!(endpoint.asked(), 2, "{words}");
        assert_closes(running, &seen).await;
    }
}

/// A token of a megabyte is not read to its end: a typed error, and another question.
#[tokio::test]
async fn a_token_of_a_megabyte_is_too_long() {
    let server = broker().await;
    let huge = || -> Says {
        Box::new(|_| {
            let token = "x".repeat(1 << 20);
            format!("HTTP/1.1 200 OK\r\n\r\n{{\"access_token\":\"{token}\"}}")
        })
    };
    let endpoint = Endpoint::start(&server, [huge(), gives(MINUTE, "length")]).await;
    let (running, seen) = start(&server, tokens(&endpoint.url("http")));
    until(&seen, "the next token", || seen.distinct() == 20).await;
    let told = |e: &laneway::Error| e.kind() == ErrorKind::Peer && e.message().contains("too long");
    assert!(seen.warnings().iter().any(told), "{}", seen.story());
    assert_closes(running, &seen).await;
}

/// Over TLS, with the authority that is named; one that is not known is refused before anything
/// is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_endpoint_over_tls() {
    let server = broker().await;
    let endpoint = Endpoint::start(&server, [gives(MINUTE, "to the end")]).await;
    let (front, listener) = Front::bind(&Shows::default()).await;
    front.serve(listener, format!("127.0.0.1:{}", endpoint.port));
    let url = format!("https://{}/token", front.localhost());
    let (running, seen) = start(&server, tokens(&url).tls(trusting()));
    until(&seen, "every record", || seen.distinct() == 20).await;
    assert_closes(running, &seen).await;
    assert_eq!(endpoint.asked(), 1);

    let stranger = laneway::Tls::new().ca_file(file("stranger-ca.pem"));
    let (running, seen) = start(&server, tokens(&url).tls(stranger));
    let refused = || {
        seen.warnings()
            .iter()
            .any(|e| e.message().contains("unknown CA"))
    };
    until(&seen, "a refusal", refused).await;
    assert_closes(running, &seen).await;
    assert_eq!(endpoint.asked(), 1, "a stranger heard of the secret");
}

/// Properties as librdkafka has them make a whole client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_name_the_endpoint() {
    let server = broker().await;
    let endpoint = Endpoint::start(&server, [gives(MINUTE, "length")]).await;
    let (front, listener) = Front::bind(&Shows::default()).await;
    front.serve(listener, format!("127.0.0.1:{}", endpoint.port));
    let text = format!(
        "bootstrap.servers = {}\n\
         security.protocol = SASL_PLAINTEXT\n\
         sasl.mechanisms = OAUTHBEARER\n\
         sasl.oauthbearer.method = oidc\n\
         sasl.oauthbearer.token.endpoint.url = https://{}/token\n\
         sasl.oauthbearer.client.id = billing\n\
         sasl.oauthbearer.client.secret = swordfish\n\
         https.ca.location = {}\n",
        server.bootstrap()[0],
        front.localhost(),
        file("ca.pem").display()
    );
    let kafka = Kafka::from_properties(properties::parse(&text)).unwrap();
    assert_eq!(kafka.ignored_properties(), []);
    let (running, seen) = watched(kafka.subscribe(Topics::named(["t"]).group("g")));
    until(&seen, "every record", || seen.distinct() == 20).await;
    assert_closes(running, &seen).await;
}
