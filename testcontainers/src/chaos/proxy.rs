//! Between members and brokers: what is said passes through here, late, or not at all.
//!
//! The nodes advertise this in their own place, so it works alike for every client: nothing in a
//! member knows of it, and Java's consumer suffers the same as ours.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// One way for each node. Its threads end with the process.
#[derive(Debug)]
pub struct Proxy {
    ways: Vec<Arc<Way>>,
}

#[derive(Debug)]
struct Way {
    node: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    delay: Duration,
    is_mute: bool,
    /// Both ends of each connection; bounded by what its clients open.
    pairs: BTreeMap<u64, [TcpStream; 2]>,
    next: u64,
}

impl Proxy {
    /// Listens for each node: its id, the port to listen at, the port that it leads to.
    pub fn start(ways: &[(usize, u16, u16)]) -> Result<Self, String> {
        let start = |&(node, from, to): &(usize, u16, u16)| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, from))
                .map_err(|e| format!("the proxy's port {from}: {e}"))?;
            let way = Arc::new(Way {
                node,
                state: Mutex::default(),
                changed: Condvar::new(),
            });
            let serves = Arc::clone(&way);
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let way = Arc::clone(&serves);
                    thread::spawn(move || way.serve(client, to));
                }
            });
            Ok(way)
        };
        let ways: Result<_, String> = ways.iter().map(start).collect();
        Ok(Self { ways: ways? })
    }

    /// Breaks every connection; returns how many.
    pub fn cut(&self) -> usize {
        self.ways.iter().map(|way| way.cut()).sum()
    }

    /// From now on everything takes so much longer, each way.
    pub fn delay(&self, by: Duration) {
        for way in &self.ways {
            way.change(|state| state.delay = by);
        }
    }

    /// Nothing passes to or from this node any more; connections stand.
    pub fn mute(&self, node: usize) {
        if let Some(way) = self.way(node) {
            way.change(|state| state.is_mute = true);
        }
    }

    /// It passes again, or is cut first: then what was said meanwhile is lost.
    pub fn unmute(&self, node: usize, cuts: bool) {
        if let Some(way) = self.way(node) {
            if cuts {
                way.cut();
            }
            way.change(|state| state.is_mute = false);
        }
    }

    fn way(&self, node: usize) -> Option<&Arc<Way>> {
        self.ways.iter().find(|way| way.node == node)
    }
}

impl Way {
    fn serve(self: Arc<Self>, client: TcpStream, to: u16) {
        // A node that is down: the client is hung up on.
        let Ok(node) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = node.set_nodelay(true);
        let (Ok(client_out), Ok(node_out)) = (client.try_clone(), node.try_clone()) else {
            return;
        };
        let (Ok(client_end), Ok(node_end)) = (client.try_clone(), node.try_clone()) else {
            return;
        };
        let id = {
            let mut state = self.lock();
            state.next += 1;
            let id = state.next;
            state.pairs.insert(id, [client_end, node_end]);
            id
        };
        let back = Arc::clone(&self);
        let backwards = thread::spawn(move || back.pump(node, client_out, id));
        self.pump(client, node_out, id);
        // A thread that panicked has nothing to say either.
        let _ = backwards.join();
        self.lock().pairs.remove(&id);
    }

    /// Until one side ends, or is cut: then both do.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, id: u64) {
        let mut buffer = vec![0; PIECE];
        loop {
            match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    let Some(piece) = buffer.get(..n) else { break };
                    if self.passes(id, &mut to, piece).is_err() {
                        break;
                    }
                }
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    fn passes(&self, id: u64, to: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
        let delay = self.lock().delay;
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        let mut state = self.lock();
        while state.is_mute && state.pairs.contains_key(&id) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let stands = state.pairs.contains_key(&id);
        drop(state);
        if stands {
            to.write_all(piece)
        } else {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }

    fn cut(&self) -> usize {
        let pairs = std::mem::take(&mut self.lock().pairs);
        self.changed.notify_all();
        for end in pairs.values().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
        pairs.len()
    }

    fn change(&self, f: impl FnOnce(&mut State)) {
        f(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passed on at once.
const PIECE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets, a way to it, and a client on that way.
    fn echo() -> (Proxy, u16) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in server.incoming().flatten() {
                thread::spawn(move || io::copy(&mut &stream, &mut &stream));
            }
        });
        let ports = crate::node::free_ports(1).unwrap();
        (Proxy::start(&[(1, ports[0], to)]).unwrap(), ports[0])
    }

    fn ask(stream: &mut TcpStream, text: &[u8]) -> io::Result<()> {
        stream.write_all(text)?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back)?;
        assert_eq!(back, text);
        Ok(())
    }

    #[test]
    fn it_passes_and_cuts() {
        let (proxy, port) = echo();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        ask(&mut client, b"one").unwrap();
        assert_eq!(proxy.cut(), 1);
        assert!(
            ask(&mut client, b"two").is_err(),
            "a cut connection answers"
        );
        let mut again = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        ask(&mut again, b"three").unwrap();
    }

    #[test]
    fn what_is_said_to_a_mute_node_arrives_later_or_never() {
        let (proxy, port) = echo();
        for cuts in [false, true] {
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            ask(&mut client, b"before").unwrap();
            proxy.mute(1);
            client.write_all(b"while it is mute").unwrap();
            client
                .set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            let mut back = [0; 16];
            assert!(client.read_exact(&mut back).is_err(), "a mute node answers");
            client.set_read_timeout(None).unwrap();
            proxy.unmute(1, cuts);
            assert_eq!(client.read_exact(&mut back).is_err(), cuts);
        }
    }
}
