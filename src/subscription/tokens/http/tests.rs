use super::*;
use tokio::io::{DuplexStream, duplex};

/// What the client makes of `pieces`, written one after another; then the server closes.
async fn answered(pieces: &[&[u8]]) -> Result<Answer, Error> {
    let (near, mut far) = duplex(16);
    let request = Secret::from("POST / HTTP/1.1\r\n\r\nx=y");
    let serve = async {
        let mut asked = vec![0; request.as_bytes().len()];
        far.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, request.as_bytes());
        for piece in pieces {
            // A client that has had enough is gone.
            if far.write_all(piece).await.is_err() {
                break;
            }
        }
        drop(far);
    };
    let (answer, ()) = tokio::join!(exchange(near, &request), serve);
    answer
}

async fn body_of(pieces: &[&[u8]]) -> (u16, Vec<u8>) {
    let answer = answered(pieces).await.unwrap();
    (answer.status, answer.body.to_vec())
}

#[tokio::test]
async fn bodies_end_in_each_of_the_three_ways() {
    let ok = |body: &str| (200, body.as_bytes().to_vec());
    for (whole, wanted) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more",
            ok("hello"),
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", ok("")),
        (
            "HTTP/1.0 200 OK\r\nServer: x\r\n\r\nto the end",
            ok("to the end"),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, and more\r\n0\r\nX: y\r\n\r\n",
            ok("hello, and more"),
        ),
        // A length beside chunks does not count.
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            ok("hi"),
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            ok("hi"),
        ),
        ("HTTP/1.1 204 \r\n\r\n", (204, Vec::new())),
        (
            "HTTP/1.1 401\r\nContent-Length: 2\r\n\r\nno",
            (401, b"no".to_vec()),
        ),
    ] {
        assert_eq!(body_of(&[whole.as_bytes()]).await, wanted, "{whole}");
        // However it is cut.
        let bytes: Vec<&[u8]> = whole.as_bytes().chunks(1).collect();
        assert_eq!(body_of(&bytes).await, wanted, "{whole}");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_named() {
    for (whole, words) in [
        (&b""[..], "without an answer"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            "cut short",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-", "cut short"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "cut short",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x46", "answers in TLS"),
        (b"SSH-2.0-OpenSSH\r\n", "does not answer in HTTP"),
        (b"\0\0\0\x04\0\0\0\x01", "does not answer in HTTP"),
        (b"HTTP/2 200\r\n\r\n", "HTTP/1.1"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nno field\r\n\r\n", "HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "transfer coding",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "do not fit",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            "do not fit",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "do not fit",
        ),
    ] {
        let told = answered(&[whole]).await.unwrap_err();
        assert!(told.message().contains(words), "{words}: {told}");
    }
}

/// Answers that never end, or that only claim to be long: an end to each, and no more is taken
/// than the bound.
#[tokio::test]
async fn endless_answers_end() {
    let claims = |head: &'static str| async move {
        let told = answered(&[head.as_bytes()]).await.unwrap_err();
        assert!(told.message().contains("too long"), "{head}: {told}");
    };
    claims("HTTP/1.1 200 OK\r\nContent-Length: 2147483647\r\n\r\n").await;
    claims("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n").await;
    claims("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n").await;
    claims("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n").await;
    for (head, again) in [
        ("HTTP/1.1 200 OK\r\n", "X: yyyyyyyyyyyyyyyy\r\n"),
        ("HTTP/1.1 200 OK\r\n\r\n", "yyyyyyyyyyyyyyyyyyyyyyyy"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "1\r\ny\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1",
            ";yyyyyyyyyyyyyy",
        ),
    ] {
        let taken = flood(head, again).await;
        let most = ANSWER_BYTES_MAX + 1024;
        assert!(taken < most, "{again:?}: {taken} bytes taken");
    }
}

/// How much of an endless answer is taken before the client hangs up.
async fn flood(head: &str, again: &str) -> usize {
    let (near, mut far): (DuplexStream, _) = duplex(512);
    let request = Secret::from("x");
    let serve = async {
        let mut taken = 0;
        let mut piece = head.as_bytes();
        while far.write_all(piece).await.is_ok() {
            taken += piece.len();
            piece = again.as_bytes();
        }
        taken
    };
    let (answer, taken) = tokio::join!(exchange(near, &request), serve);
    answer.unwrap_err();
    taken
}
