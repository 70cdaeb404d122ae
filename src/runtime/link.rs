//! One connection: connect, cut frames, write frames, say how it ended.

use super::Clock;
use super::driver::LinkInput;
use crate::engine::LinkEvent;
use crate::error::{Error, ErrorKind};
use crate::ids::LinkId;
use crate::time::Now;
use crate::wire::Framer;
use bytes::Bytes;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

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
    clock: Clock,
    inbox: mpsc::Sender<LinkInput>,
    frames: mpsc::UnboundedReceiver<Bytes>,
) {
    let place = format!("{}:{}", dial.host, dial.port);
    let say = async |event| {
        // The driver may be gone; then there is nobody to tell.
        let _ = inbox.send(LinkInput { link: id, event }).await;
    };
    let stream = match connect(&dial, clock).await {
        Ok(stream) => stream,
        Err(error) => return say(LinkEvent::Down(error.from_broker(place))).await,
    };
    say(LinkEvent::Up).await;
    let (reader, writer) = stream.into_split();
    let writing = tokio::spawn(write(writer, frames));
    let error = read(id, reader, &inbox, &dial).await;
    writing.abort();
    say(LinkEvent::Down(error.from_broker(place))).await;
}

/// Tries every address of the name, in the resolver's order, sharing out the time that is left.
async fn connect(dial: &Dial, clock: Clock) -> Result<TcpStream, Error> {
    let transport = |text: String| Error::new(ErrorKind::Transport, text).retriable();
    let until = Instant::from_std(clock.instant(dial.until));
    let name = dial.host.trim_matches(['[', ']']).to_owned();
    let found = timeout_at(until, lookup_host((name.as_str(), dial.port)))
        .await
        .map_err(|_| transport("the name was not resolved in time".to_owned()))?
        .map_err(|e| transport(format!("the name cannot be resolved: {e}")))?;
    let addresses: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
    let mut failures = Vec::new();
    for (i, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - i).unwrap_or(1);
        match tokio::time::timeout(share, connect_one(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => failures.push(format!("{address}: {e}")),
            Err(_) => failures.push(format!("{address}: no answer in time")),
        }
    }
    let all = if failures.is_empty() {
        "the name has no address".to_owned()
    } else {
        failures.join("; ")
    };
    Err(transport(format!(
        "cannot connect ({all}); is the broker up and reachable?"
    )))
}

async fn connect_one(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A peer that vanishes without a word is found by the request time-out; keep-alive finds it
    // on a link that has nothing to ask.
    socket.set_keepalive(true)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn write(mut writer: OwnedWriteHalf, mut frames: mpsc::UnboundedReceiver<Bytes>) {
    while let Some(frame) = frames.recv().await {
        if writer.write_all(&frame).await.is_err() {
            // The reader sees the same broken connection and says so.
            let _ = writer.shutdown().await;
            return;
        }
    }
}

/// Returns why no more can be read.
async fn read(
    id: LinkId,
    reader: OwnedReadHalf,
    inbox: &mpsc::Sender<LinkInput>,
    dial: &Dial,
) -> Error {
    let transport = |text: String| Error::new(ErrorKind::Transport, text).retriable();
    let mut framer = Framer::new(dial.frame_max);
    loop {
        if let Err(e) = reader.readable().await {
            return transport(format!("the connection broke: {e}"));
        }
        framer.expect(dial.expected.load(Ordering::Relaxed));
        // Until the socket is empty: one wake-up for all that has come.
        loop {
            let mid_frame = framer.is_mid_frame();
            let (read, has_rest) = match framer.rest() {
                Some(mut rest) => (reader.try_read_buf(&mut rest), true),
                None => (reader.try_read(framer.space()), false),
            };
            let n = match read {
                Ok(0) => {
                    let middle = if mid_frame {
                        " in the middle of an answer"
                    } else {
                        ""
                    };
                    return transport(format!("the broker closed the connection{middle}"));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return transport(format!("the connection broke: {e}")),
            };
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
}
