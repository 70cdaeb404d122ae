//! Where byte streams to brokers come from: TCP, or whatever the user brings.

use super::tcp;
use crate::error::{Error, ErrorKind};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

/// Opens byte streams to brokers: through a SOCKS5 proxy, a Unix socket, vsock, inside a process.
/// [`Kafka::connector`](crate::Kafka::connector) takes one.
///
/// A broker is asked for by the host and port that it advertises, or by a bootstrap address; what
/// these mean is up to the connector. Each call opens a new stream. One that is not ready when the
/// time to connect is over is dropped. TLS, where [`Kafka::tls`](crate::Kafka::tls) asks for it,
/// runs over the stream, and checks the host's name.
///
/// A function or closure that returns a future of a stream is one:
///
/// ```
/// use laneway::Kafka;
/// # #[cfg(unix)]
/// let kafka = Kafka::new(["broker:9092"]).connector(|_host: String, _port: u16| {
///     tokio::net::UnixStream::connect("/run/kafka.sock")
/// });
/// ```
///
/// Runs on the thread that keeps every subscription's session, inside a tokio runtime of its own:
/// it must not block.
pub trait Connector: Send + Sync + 'static {
    /// What it opens.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Opens a stream to the broker that is known as `host` and `port`.
    ///
    /// # Errors
    /// Why it cannot; the broker is tried again later, at the pace of brokers that fail.
    fn connect(
        &self,
        host: String,
        port: u16,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl<F, Fut, S> Connector for F
where
    F: Fn(String, u16) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = io::Result<S>> + Send,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = S;

    fn connect(&self, host: String, port: u16) -> impl Future<Output = io::Result<S>> + Send {
        self(host, port)
    }
}

/// A stream of bytes to a broker, wherever it comes from.
pub(crate) type Stream = Box<dyn ByteStream>;

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Stream, Error>> + Send + 'a>>;

/// A [`Connector`] whose type is forgotten.
pub(crate) trait Opener: Send + Sync {
    fn open<'a>(&'a self, host: &'a str, port: u16, until: Instant) -> Opening<'a>;
}

struct Given<C>(C);

impl<C: Connector> Opener for Given<C> {
    fn open<'a>(&'a self, host: &'a str, port: u16, until: Instant) -> Opening<'a> {
        Box::pin(async move {
            let connecting = self.0.connect(host.to_owned(), port);
            let failed = |why: String| {
                let text = format!("the connector opened no stream: {why}");
                Error::new(ErrorKind::Transport, text).retriable()
            };
            match timeout_at(until, connecting).await {
                Ok(Ok(stream)) => Ok(Box::new(stream) as Stream),
                Ok(Err(e)) => Err(failed(e.to_string())),
                Err(_) => Err(failed("not ready in time".to_owned())),
            }
        })
    }
}

struct Tcp;

impl Opener for Tcp {
    fn open<'a>(&'a self, host: &'a str, port: u16, until: Instant) -> Opening<'a> {
        Box::pin(async move {
            let stream = tcp::connect(host, port, until).await?;
            Ok(Box::new(stream) as Stream)
        })
    }
}

/// How brokers are reached.
#[derive(Clone)]
pub(crate) struct Way {
    opener: Arc<dyn Opener>,
    is_given: bool,
    #[cfg(feature = "tls-custom")]
    pub(crate) tls: Option<Arc<super::tls::Client>>,
}

impl Way {
    /// TCP, without TLS.
    pub(crate) fn tcp() -> Self {
        Way {
            opener: Arc::new(Tcp),
            is_given: false,
            #[cfg(feature = "tls-custom")]
            tls: None,
        }
    }

    pub(crate) fn connector(&mut self, connector: impl Connector) {
        self.opener = Arc::new(Given(connector));
        self.is_given = true;
    }

    /// A stream that Kafka's frames can be written to.
    pub(crate) async fn open(
        &self,
        host: &str,
        port: u16,
        until: Instant,
    ) -> Result<Stream, Error> {
        let stream = self.opener.open(host, port, until).await?;
        #[cfg(feature = "tls-custom")]
        if let Some(tls) = &self.tls {
            let secured = timeout_at(until, tls.secure(host, stream)).await;
            return secured.unwrap_or_else(|_| {
                let text = "the TLS handshake was not over in time: does this port speak TLS?";
                Err(Error::new(ErrorKind::Transport, text).retriable())
            });
        }
        Ok(stream)
    }

    /// Why no more can be read.
    pub(super) fn broke(&self, host: &str, e: &io::Error) -> Error {
        #[cfg(feature = "tls-custom")]
        if let Some(tls) = &self.tls
            && let Some(error) = super::tls::failure(e, &tls.peer(host))
        {
            return error;
        }
        #[cfg(not(feature = "tls-custom"))]
        let _ = host;
        let text = format!("the connection broke: {e}");
        Error::new(ErrorKind::Transport, text).retriable()
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.is_given { "a connector" } else { "TCP" };
        let mut shown = f.debug_struct("Way");
        shown.field("by", &by);
        #[cfg(feature = "tls-custom")]
        shown.field("tls", &self.tls);
        shown.finish()
    }
}
