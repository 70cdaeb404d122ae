use super::*;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const URL: &str = "http://localhost:8080/oauth2/token?tenant=a";

/// An endpoint in memory, which gives `answer` to every question, and what it was asked.
fn scripted(
    of: ClientCredentials,
    answer: &'static str,
) -> (ClientCredentials, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let of = of.connector(move |host: String, port: u16| {
        assert_eq!((&host[..], port), ("localhost", 8080));
        let (near, mut far) = duplex(64 << 10);
        let log = log.clone();
        tokio::spawn(async move {
            let mut request = vec![0; 16 << 10];
            let n = far.read(&mut request).await.unwrap();
            let text = String::from_utf8(request[..n].to_vec()).unwrap();
            log.lock().unwrap().push(text);
            far.write_all(answer.as_bytes()).await.unwrap();
        });
        std::future::ready(io::Result::Ok(near))
    });
    (of, asked)
}

const GIVEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 75\r\n\r\n\
     {\"access_token\":\"abc.def.ghi\",\"token_type\":\"Bearer\",\"expires_in\":\"3600\"   }";

#[tokio::test]
async fn the_question_is_that_of_the_standard() {
    let of = ClientCredentials::new(URL, "billing app", "sword:fish&+ä").unwrap();
    let (of, asked) = scripted(of.scope("kafka read"), GIVEN);
    let of = of.extension("logicalCluster", "lkc-1").unwrap();
    let token = of.provide().await.unwrap();
    let wanted = Token::new("abc.def.ghi").expires_in(Duration::from_secs(3600));
    assert_eq!(token, wanted.extension("logicalCluster", "lkc-1").unwrap());
    let asked = asked.lock().unwrap().remove(0);
    let (head, body) = asked.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n");
    assert_eq!(lines.next(), Some("POST /oauth2/token?tenant=a HTTP/1.1"));
    let coded = basic(b"billing+app:sword%3Afish%26%2B%C3%A4");
    let length = format!("Content-Length: {}", body.len());
    for wanted in [
        "Host: localhost:8080",
        &format!("Authorization: Basic {coded}"),
        "Content-Type: application/x-www-form-urlencoded",
        &length,
    ] {
        assert!(
            head.split("\r\n").any(|line| line == wanted),
            "{wanted}: {head}"
        );
    }
    assert_eq!(body, "grant_type=client_credentials&scope=kafka+read");
}

#[tokio::test]
async fn the_secret_goes_in_the_body_where_it_is_wanted_there() {
    let of = ClientCredentials::new(URL, "billing", "sword fish").unwrap();
    let of = of.parameter("audience", "https://kafka").secret_in_body();
    let shown = format!("{of:?}");
    assert!(
        !shown.contains("sword") && !shown.contains("https://kafka"),
        "{shown}"
    );
    assert!(
        shown.contains("audience") && shown.contains("billing"),
        "{shown}"
    );
    let (of, asked) = scripted(of, GIVEN);
    of.provide().await.unwrap();
    let asked = asked.lock().unwrap().remove(0);
    assert!(!asked.contains("Authorization"), "{asked}");
    let (_, body) = asked.split_once("\r\n\r\n").unwrap();
    let wanted = "grant_type=client_credentials&audience=https%3A%2F%2Fkafka&client_id=billing&client_secret=sword+fish";
    assert_eq!(body, wanted);
}

#[tokio::test]
async fn refusals_name_the_endpoint_and_hold_no_secret() {
    let answer =
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 26\r\n\r\n{\"error\":\"invalid_client\"}";
    let of = ClientCredentials::new(URL, "billing", "swordfish").unwrap();
    let (of, _) = scripted(of, answer);
    let told = of.provide().await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Misuse);
    let wanted = "the token endpoint at localhost:8080: it refuses (401): invalid_client";
    assert!(told.message().starts_with(wanted), "{told}");
    assert!(!format!("{told:?}").contains("swordfish"));
}

#[test]
fn secrets_do_not_go_over_the_network_in_the_clear() {
    let far = "http://login.example.com/token";
    let told = ClientCredentials::new(far, "a", "b").unwrap_err();
    assert!(
        told.message().contains("dangerously_in_the_clear"),
        "{told}"
    );
    assert!(ClientCredentials::dangerously_in_the_clear(far, "a", "b").is_ok());
    let secure = ClientCredentials::new("https://login.example.com/token", "a", "b");
    assert_eq!(secure.is_ok(), cfg!(feature = "tls-custom"));
}

#[test]
fn extensions_are_checked_when_they_are_given() {
    let of = ClientCredentials::new(URL, "a", "b").unwrap();
    assert!(of.clone().extension("auth", "x").is_err());
    assert!(of.extension("a", "\u{1}").is_err());
}

/// A connection that never comes up, and an endpoint that takes the question and says nothing, or
/// a byte now and then: 20 seconds each.
#[tokio::test(start_paused = true)]
async fn a_mute_endpoint_is_given_up() {
    let never = |_: String, _: u16| std::future::pending::<io::Result<DuplexStream>>();
    let of = || ClientCredentials::new(URL, "a", "b").unwrap();
    let began = Instant::now();
    let told = of().connector(never).provide().await.unwrap_err();
    assert!(told.is_retriable(), "{told}");
    assert_eq!(began.elapsed(), ASKED_MAX);

    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let of = of().connector(move |_: String, _: u16| {
        let drips = count.fetch_add(1, Ordering::Relaxed) == 1;
        let (near, mut far) = duplex(4096);
        tokio::spawn(async move {
            let mut piece = &b"HTTP/1.1 200 OK\r\nX:"[..];
            while drips && far.write_all(piece).await.is_ok() {
                piece = b" x";
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let mut request = [0; 1024];
            while far.read(&mut request).await.is_ok_and(|n| n > 0) {}
        });
        std::future::ready(io::Result::Ok(near))
    });
    for what in ["silence", "drips"] {
        let began = Instant::now();
        let told = of.provide().await.unwrap_err();
        assert!(told.message().contains("within 20s"), "{what}: {told}");
        assert_eq!(began.elapsed(), ASKED_MAX, "{what}");
    }
    assert_eq!(opened.load(Ordering::Relaxed), 2);
}
