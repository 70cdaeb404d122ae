//! TCP to a broker: every address of its name, IPv6 and IPv4 side by side (RFC 8305).
//!
//! The name is looked up for every connection, so a name that has moved is followed.

use crate::error::{Error, ErrorKind};
use socket2::{SockRef, TcpKeepalive};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// The next address is tried beside one that has not answered for so long.
const STAGGER: Duration = Duration::from_millis(250);

/// After so long without a byte the peer's system is asked whether it is still there, and again at
/// this interval.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);

/// The first connection that comes up.
pub(super) async fn connect(host: &str, port: u16, until: Instant) -> Result<TcpStream, Error> {
    let transport = |text: String| Error::new(ErrorKind::Transport, text).retriable();
    let name = host.trim_matches(['[', ']']);
    let found = timeout_at(until, lookup_host((name, port)))
        .await
        .map_err(|_| transport("the name was not resolved in time".to_owned()))?
        .map_err(|e| transport(format!("the name cannot be resolved: {e}")))?;
    let addresses = by_turns(found.take(ADDRESSES_MAX).collect());
    race(addresses, until, connect_one).await.map_err(|failed| {
        let all = match &failed[..] {
            [] => "the name has no address".to_owned(),
            some => some.join("; "),
        };
        transport(format!(
            "cannot connect ({all}); is the broker up and reachable?"
        ))
    })
}

/// The families by turns, beginning with the resolver's first; its order within each.
fn by_turns(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut these, mut those): (VecDeque<_>, VecDeque<_>) = addresses
        .into_iter()
        .partition(|a| a.is_ipv6() == first_is_v6);
    let mut mixed = Vec::new();
    while let Some(address) = these.pop_front() {
        mixed.push(address);
        if those.is_empty() {
            continue;
        }
        std::mem::swap(&mut these, &mut those);
    }
    mixed
}

/// Tries the addresses in turn: the next when one has failed, or has not answered for a while. The
/// first that connects wins, the others are dropped. Gives what each came to if none does.
async fn race<S, Fut>(
    addresses: Vec<SocketAddr>,
    until: Instant,
    connect: impl Fn(SocketAddr) -> Fut,
) -> Result<S, Vec<String>>
where
    Fut: Future<Output = io::Result<S>>,
{
    let mut waiting = addresses.into_iter();
    let mut running: Vec<(SocketAddr, Pin<Box<Fut>>)> = Vec::new();
    let mut failed = Vec::new();
    let mut next = Box::pin(sleep_until(Instant::now()));
    let mut end = Box::pin(sleep_until(until));
    poll_fn(move |cx| {
        loop {
            let before = failed.len();
            let mut i = 0;
            while let Some((address, connecting)) = running.get_mut(i) {
                match connecting.as_mut().poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Poll::Ready(Err(e)) => {
                        failed.push(format!("{address}: {e}"));
                        drop(running.remove(i));
                    }
                    Poll::Pending => i += 1,
                }
            }
            let due =
                running.is_empty() || failed.len() > before || next.as_mut().poll(cx).is_ready();
            if due && let Some(address) = waiting.next() {
                running.push((address, Box::pin(connect(address))));
                next.as_mut().reset(Instant::now() + STAGGER);
                continue;
            }
            if running.is_empty() {
                return Poll::Ready(Err(std::mem::take(&mut failed)));
            }
            if end.as_mut().poll(cx).is_ready() {
                let silent = running
                    .iter()
                    .map(|(a, _)| format!("{a}: no answer in time"));
                failed.extend(silent);
                failed.extend(
                    waiting
                        .by_ref()
                        .map(|a| format!("{a}: no time left to try it")),
                );
                return Poll::Ready(Err(std::mem::take(&mut failed)));
            }
            return Poll::Pending;
        }
    })
    .await
}

async fn connect_one(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A peer that vanishes without a word is found by the request time-out; keep-alive finds it
    // on a link that has nothing to ask, and keeps balancers from forgetting that link.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
    #[cfg(any(
        target_os = "linux",
        target_os = "macos",
        target_os = "freebsd",
        windows
    ))]
    let keepalive = keepalive.with_interval(KEEPALIVE_EVERY);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::future::pending;
    use tokio::time::sleep;

    fn address(text: &str) -> SocketAddr {
        format!("{text}:9092").parse().unwrap()
    }

    fn all(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|t| address(t)).collect()
    }

    /// L15: IPv6 and IPv4 stand side by side, the resolver's first in front.
    #[test]
    fn families_take_turns() {
        let mixed = by_turns(all(&["[::1]", "[::2]", "[::3]", "1.1.1.1", "2.2.2.2"]));
        assert_eq!(
            mixed,
            all(&["[::1]", "1.1.1.1", "[::2]", "2.2.2.2", "[::3]"])
        );
        assert_eq!(
            by_turns(all(&["1.1.1.1", "2.2.2.2"])),
            all(&["1.1.1.1", "2.2.2.2"])
        );
        assert_eq!(
            by_turns(all(&["1.1.1.1", "[::1]"])),
            all(&["1.1.1.1", "[::1]"])
        );
        assert_eq!(by_turns(Vec::new()), Vec::new());
    }

    /// L15: an address that is dead in silence costs a quarter of a second, one that refuses
    /// nothing.
    #[tokio::test(start_paused = true)]
    async fn a_dead_address_does_not_hold_up_the_next() {
        let began = Instant::now();
        let tried = RefCell::new(Vec::new());
        let connect = |a: SocketAddr| {
            tried.borrow_mut().push((a, began.elapsed()));
            async move {
                match a.is_ipv6() {
                    true => pending().await,
                    false if a == address("1.1.1.1") => {
                        Err(io::Error::from(io::ErrorKind::ConnectionRefused))
                    }
                    false => Ok(a),
                }
            }
        };
        let addresses = all(&["[::1]", "1.1.1.1", "2.2.2.2"]);
        let won = race(addresses, began + Duration::from_secs(10), connect).await;
        assert_eq!(won, Ok(address("2.2.2.2")));
        let times: Vec<u128> = tried.borrow().iter().map(|(_, t)| t.as_millis()).collect();
        assert_eq!(times, [0, 250, 250]);
    }

    /// L15: a slow first address may still win.
    #[tokio::test(start_paused = true)]
    async fn the_first_that_answers_wins() {
        let began = Instant::now();
        let connect = |a: SocketAddr| async move {
            let takes = if a.is_ipv6() { 400 } else { 300 };
            sleep(Duration::from_millis(takes)).await;
            Ok::<_, io::Error>(a)
        };
        let addresses = all(&["[::1]", "1.1.1.1"]);
        let won = race(addresses, began + Duration::from_secs(10), connect).await;
        assert_eq!(won, Ok(address("[::1]")));
        assert_eq!(began.elapsed().as_millis(), 400);
    }

    /// L15: when the time is over, each address says what became of it.
    #[tokio::test(start_paused = true)]
    async fn every_address_is_accounted_for() {
        let began = Instant::now();
        let connect = |_| pending::<io::Result<()>>();
        let addresses = all(&["1.1.1.1", "2.2.2.2", "3.3.3.3"]);
        let lost = race(addresses, began + Duration::from_millis(300), connect).await;
        let lost = lost.unwrap_err().join("; ");
        assert_eq!(
            lost,
            "1.1.1.1:9092: no answer in time; 2.2.2.2:9092: no answer in time; 3.3.3.3:9092: no time left to try it"
        );
        assert_eq!(began.elapsed().as_millis(), 300);
        let none = race(Vec::new(), began, connect).await;
        assert_eq!(none, Err(Vec::new()));
    }

    /// L02: keep-alive asks after a minute, and small frames leave at once.
    #[tokio::test]
    async fn sockets_are_kept_alive_and_do_not_wait() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let stream = connect("localhost", at.port(), until).await.unwrap();
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
    }
}
