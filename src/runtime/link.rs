//! One connection: connect, cut frames, write frames, say how it ended.

use super::Clock;
use super::connector::{Stream, Way};
use super::driver::LinkInput;
use crate::engine::LinkEvent;
use crate::error::{Error, ErrorKind};
use crate::ids::LinkId;
use crate::time::Now;
use crate::wire::Framer;
use bytes::Bytes;
use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// How long what was sent before a link was closed may still take to leave.
const LINGER: Duration = Duration::from_secs(2);

/// Where to connect, and until when.
pub(super) struct Dial {
    pub host: Arc<str>,
    pub port: u16,
    pub until: Now,
    pub frame_max: u32,
    /// Set by the driver with each request: what its answer may take.
    pub expected: Arc<AtomicUsize>,
}

/// Lives until the connection ends or the driver drops `frames`.
pub(super) async fn run(
    id: LinkId,
    dial: Dial,
    way: Way,
    clock: Clock,
    inbox: mpsc::Sender<LinkInput>,
    frames: mpsc::UnboundedReceiver<Bytes>,
) {
    let place = format!("{}:{}", dial.host, dial.port);
    let error = match caught(live(id, &dial, &way, clock, &inbox, frames)).await {
        Ok(error) => error,
        Err(what) => {
            let text = format!("the connector or its stream panicked: {what}");
            Error::new(ErrorKind::Transport, text)
        }
    };
    let event = LinkEvent::Down(error.from_broker(place));
    // The driver may be gone; then there is nobody to tell.
    let _ = inbox.send(LinkInput { link: id, event }).await;
}

/// Returns what ended the connection, or why it never was.
async fn live(
    id: LinkId,
    dial: &Dial,
    way: &Way,
    clock: Clock,
    inbox: &mpsc::Sender<LinkInput>,
    frames: mpsc::UnboundedReceiver<Bytes>,
) -> Error {
    let until = Instant::from_std(clock.instant(dial.until));
    let stream = match way.open(&dial.host, dial.port, until).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let event = LinkEvent::Up;
    let _ = inbox.send(LinkInput { link: id, event }).await;
    let (reader, writer) = tokio::io::split(stream);
    let writing = tokio::spawn(write(writer, frames));
    let error = read(id, reader, inbox, dial, way).await;
    writing.abort();
    error
}

/// The same, and a panic in what the user has brought is a value.
async fn caught<T>(live: impl Future<Output = T>) -> Result<T, String> {
    let mut live = pin!(live);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| live.as_mut().poll(cx)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(payload) => Poll::Ready(Err(said(payload.as_ref()))),
        }
    })
    .await
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a word".to_owned())
}

/// Writes until the driver drops the other end; says goodbye then. A peer that takes nothing any
/// more holds this up for [`LINGER`] at most.
async fn write(mut writer: WriteHalf<Stream>, mut frames: mpsc::UnboundedReceiver<Bytes>) {
    while let Some(frame) = frames.recv().await {
        let mut writing = pin!(write_one(&mut writer, &frame));
        let written = loop {
            match timeout(LINGER, &mut writing).await {
                Ok(written) => break written,
                Err(_) if frames.is_closed() => return,
                Err(_) => {}
            }
        };
        if written.is_err() {
            // The reader sees the same broken connection and says so.
            break;
        }
    }
    let _ = timeout(LINGER, writer.shutdown()).await;
}

/// Flushed too: what TLS or a connector's stream may hold back must leave.
async fn write_one(writer: &mut WriteHalf<Stream>, frame: &Bytes) -> io::Result<()> {
    writer.write_all(frame).await?;
    writer.flush().await
}

/// Returns why no more can be read.
async fn read(
    id: LinkId,
    mut reader: ReadHalf<Stream>,
    inbox: &mpsc::Sender<LinkInput>,
    dial: &Dial,
    way: &Way,
) -> Error {
    let transport = |text: String| Error::new(ErrorKind::Transport, text).retriable();
    let mut framer = Framer::new(dial.frame_max);
    // Each read is ready at once until the stream is empty: one wake-up for all that has come.
    loop {
        let mid_frame = framer.is_mid_frame();
        let (read, has_rest) = match framer.rest() {
            Some(mut rest) => (reader.read_buf(&mut rest).await, true),
            None => (reader.read(framer.space()).await, false),
        };
        let n = match read {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // TLS without its goodbye: a frame's length says whether something is missing.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(e) => return way.broke(&dial.host, &e),
        };
        if n == 0 {
            let middle = if mid_frame {
                " in the middle of an answer"
            } else {
                ""
            };
            return transport(format!("the broker closed the connection{middle}"));
        }
        framer.expect(dial.expected.load(Ordering::Relaxed));
        let mut cut = match has_rest {
            true => framer.took(),
            false => framer.filled(n),
        };
        loop {
            match cut {
                Ok(Some(frame)) => {
                    let event = LinkEvent::Frame(frame);
                    if inbox.send(LinkInput { link: id, event }).await.is_err() {
                        return transport("the subscription is over".to_owned());
                    }
                    cut = framer.next_frame();
                }
                Ok(None) => break,
                Err(e) => return Error::new(ErrorKind::Peer, e.to_string()),
            }
        }
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;
    use crate::runtime::tls::{Client, Tls};
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::TlsAcceptor;

    fn certificate(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/protocol-tests/certificates");
        format!("{folder}/{name}")
    }

    fn server() -> TlsAcceptor {
        let chain = CertificateDer::from_pem_file(certificate("broker.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(certificate("broker.key")).unwrap();
        let provider = Arc::new(rustls_graviola::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// L33: one wake-up takes all that has come over TLS, not one record of 16 KiB.
    #[tokio::test]
    async fn a_wake_up_takes_all_that_has_come() {
        const FRAMES: usize = 20;
        let client = Arc::new(Client::new(Tls::new().ca_file(certificate("ca.pem"))).unwrap());
        let (near, far) = tokio::io::duplex(1 << 20);
        let server = server();
        let (near, far) = tokio::join!(
            client.secure("localhost", Box::new(near)),
            server.accept(far)
        );
        let (near, mut far) = (near.unwrap(), far.unwrap());
        let mut frame = vec![7; 4 + 40_000];
        frame[..4].copy_from_slice(&40_000_u32.to_be_bytes());
        for _ in 0..FRAMES {
            far.write_all(&frame).await.unwrap();
        }
        far.flush().await.unwrap();

        let (inbox, mut taken) = mpsc::channel(2 * FRAMES);
        let dial = Dial {
            host: "localhost".into(),
            port: 9092,
            until: Now::NEVER,
            frame_max: 1 << 20,
            expected: Arc::default(),
        };
        let (reader, _writer) = tokio::io::split(near);
        let way = Way::tcp();
        let mut reading = pin!(read(LinkId(1), reader, &inbox, &dial, &way));
        tokio::task::yield_now().await;
        poll_fn(|cx| {
            assert!(reading.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let mut frames = 0;
        while let Ok(LinkInput {
            event: LinkEvent::Frame(frame),
            ..
        }) = taken.try_recv()
        {
            assert_eq!(frame.len(), 40_000);
            frames += 1;
        }
        assert_eq!(frames, FRAMES);
    }

    #[tokio::test]
    async fn a_panic_of_what_the_user_brought_is_an_error() {
        let mut way = Way::tcp();
        way.connector(|_: String, _: u16| async {
            if true {
                panic!("no proxy today");
            }
            Ok(tokio::io::empty())
        });
        let (inbox, mut said) = mpsc::channel(4);
        let (_frames, rx) = mpsc::unbounded_channel();
        let dial = Dial {
            host: "broker".into(),
            port: 9092,
            until: Now(1_000_000_000),
            frame_max: 1 << 20,
            expected: Arc::default(),
        };
        run(LinkId(1), dial, way, Clock::new(), inbox, rx).await;
        match said.recv().await.map(|input| input.event) {
            Some(LinkEvent::Down(e)) => assert!(e.message().contains("no proxy today"), "{e}"),
            _ => panic!("the end is not said"),
        }
    }
}
