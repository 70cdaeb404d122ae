//! The cluster behind TCP: one listener a node, on loopback unless told otherwise.
//!
//! The shell is thin: it cuts frames, moves bytes and keeps time. All nodes share one lock, which
//! is held for one request at a time.
//!
//! Bounds: a frame's buffer grows only as its bytes come, up to `frame_bytes_max`; a connection
//! whose client does not read is not read from either while more than [`OUTPUT_BYTES_MAX`] wait
//! for it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use super::config::ClusterConfig;
use super::core::{BrokerAction, Cluster, ConnId};
use crate::time::Now;

/// Where a [`Server`] listens and what it tells clients of that.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address to bind; loopback by default.
    pub host: String,
    /// A port for each node; 0, or none named, takes any that is free.
    pub ports: Vec<u16>,
    /// What clients are told, for each node, in place of where it listens.
    pub advertised: Vec<(String, u16)>,
}

impl Default for Listen {
    fn default() -> Self {
        Listen {
            host: "127.0.0.1".to_owned(),
            ports: Vec::new(),
            advertised: Vec::new(),
        }
    }
}

/// A running broker. It stops when it is dropped.
///
/// ```
/// # async fn run() -> std::io::Result<()> {
/// use laneway::broker::{ClusterConfig, Listen, Server};
///
/// let server = Server::start(ClusterConfig::default(), Listen::default()).await?;
/// server.cluster().create_topic("payments", 3).expect("it is not there yet");
/// println!("clients find it at {}", server.bootstrap().join(","));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
    /// Connections inside the process; they end with the server, as the others do.
    inside: Mutex<JoinSet<()>>,
    runtime: Handle,
}

impl Server {
    /// Binds a port for each node and serves in tasks of the current tokio runtime.
    ///
    /// # Errors
    /// A port could not be bound.
    pub async fn start(mut cfg: ClusterConfig, listen: Listen) -> io::Result<Server> {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall = since_1970.map_or(0, |d| d.as_millis());
        cfg.wall_ms_at_zero = i64::try_from(wall).unwrap_or(0);
        let (nodes, frame_bytes_max) = (cfg.nodes.max(1), cfg.frame_bytes_max);
        let mut cluster = Cluster::new(cfg);
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for (node, nth) in (1..=nodes).zip(0..) {
            let port = listen.ports.get(nth).copied().unwrap_or(0);
            let listener = TcpListener::bind((listen.host.as_str(), port))
                .await
                .map_err(|e| io::Error::new(e.kind(), format!("{}:{port}: {e}", listen.host)))?;
            let address = listener.local_addr()?;
            match listen.advertised.get(nth) {
                Some((host, port)) => cluster.set_advertised(node, host, *port),
                None => cluster.set_advertised(node, &address.ip().to_string(), address.port()),
            }
            listeners.push((node, listener));
            addresses.push(address);
        }
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner {
                cluster,
                outputs: BTreeMap::new(),
                armed: None,
            }),
            began: Instant::now(),
            wake: Notify::new(),
            frame_bytes_max,
        });
        let mut tasks = vec![tokio::spawn(keep_time(Arc::clone(&shared)))];
        for (node, listener) in listeners {
            tasks.push(tokio::spawn(accept(Arc::clone(&shared), node, listener)));
        }
        Ok(Server {
            shared,
            addresses,
            tasks,
            inside: Mutex::default(),
            runtime: Handle::current(),
        })
    }

    /// A connection to this node inside the process, for
    /// [`Kafka::connector`](crate::Kafka::connector). A node that is down closes it at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use laneway::broker::Server;
    /// use laneway::{Kafka, Topics};
    /// use std::sync::Arc;
    ///
    /// let server = Arc::new(Server::holding("payments", [("alice", "12 EUR")]).await?);
    /// let broker = server.clone();
    /// let kafka = Kafka::new(["inside:1"]).connector(move |_host: String, _port: u16| {
    ///     let stream = broker.connect(1);
    ///     async { Ok(stream) }
    /// });
    /// let (done, mut one) = tokio::sync::mpsc::unbounded_channel();
    /// let running = kafka
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .start(move |record| std::future::ready(done.send(record.offset()).map_err(|e| e.to_string())))?;
    /// assert_eq!(one.recv().await, Some(0));
    /// running.drain().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(&self, node: i32) -> DuplexStream {
        let (near, far) = tokio::io::duplex(READ_BYTES);
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        while inside.try_join_next().is_some() {}
        inside.spawn_on(serve(Arc::clone(&self.shared), node, far), &self.runtime);
        near
    }

    /// A cluster of one node whose one topic, of one partition, holds these keys and values: what
    /// an example or a quick test starts from.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use laneway::broker::Server;
    /// let server = Server::holding("payments", [("alice", "12 EUR"), ("bob", "7 EUR")]).await?;
    /// assert_eq!(server.cluster().partition_view("payments", 0).map(|p| p.log_end), Some(2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A port could not be bound, or the broker refuses the topic's name or a record.
    pub async fn holding<K, V>(
        topic: &str,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> io::Result<Server>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let server = Server::start(ClusterConfig::default(), Listen::default()).await?;
        {
            let mut cluster = server.cluster();
            let now = cluster.now();
            cluster.create_topic(topic, 1).map_err(io::Error::other)?;
            for (key, value) in records {
                let record = (Some(key.as_ref()), Some(value.as_ref()));
                cluster
                    .append_records(now, topic, 0, &[record])
                    .map_err(io::Error::other)?;
            }
        }
        Ok(server)
    }

    /// `host:port` of every node.
    #[must_use]
    pub fn bootstrap(&self) -> Vec<String> {
        self.addresses.iter().map(SocketAddr::to_string).collect()
    }

    /// The cluster, locked: nothing is served while it is held. What was done to it takes effect
    /// when it is let go.
    #[must_use]
    pub fn cluster(&self) -> ClusterGuard<'_> {
        ClusterGuard {
            now: self.shared.now(),
            inner: self.shared.lock(),
            shared: &self.shared,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The locked cluster.
#[derive(Debug)]
pub struct ClusterGuard<'a> {
    inner: MutexGuard<'a, Inner>,
    shared: &'a Shared,
    now: Now,
}

impl ClusterGuard<'_> {
    /// The time, as the cluster's calls want it.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }
}

impl Deref for ClusterGuard<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.inner.cluster
    }
}

impl DerefMut for ClusterGuard<'_> {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.inner.cluster
    }
}

impl Drop for ClusterGuard<'_> {
    fn drop(&mut self) {
        self.inner.flush(&self.shared.wake);
    }
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    began: Instant,
    /// The timer's deadline moved.
    wake: Notify,
    frame_bytes_max: usize,
}

impl Shared {
    fn now(&self) -> Now {
        Now(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked while it held the cluster fails by itself; the others go on.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    outputs: BTreeMap<ConnId, Output>,
    /// The deadline that the timer sleeps for.
    armed: Option<Now>,
}

/// A connection's way out.
#[derive(Clone, Debug)]
struct Output {
    /// Bounded by the reader, which stops while too many bytes wait.
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    fell: Notify,
}

impl Inner {
    /// Carries out what the cluster wants, and has the timer look again if it must.
    fn flush(&mut self, wake: &Notify) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Send { conn, frame } => {
                    if let Some(output) = self.outputs.get(&conn) {
                        output
                            .waiting
                            .bytes
                            .fetch_add(frame.len(), Ordering::Relaxed);
                        // The writer may be gone already: its reader will say so.
                        let _ = output.frames.send(frame);
                    }
                }
                // The writer sends what it has and closes.
                BrokerAction::Close { conn } => drop(self.outputs.remove(&conn)),
            }
        }
        let next = self.cluster.next_deadline();
        if next != self.armed {
            self.armed = next;
            wake.notify_one();
        }
    }
}

async fn keep_time(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut inner = shared.lock();
            let now = shared.now();
            if inner.cluster.next_deadline().is_some_and(|at| at <= now) {
                inner.cluster.handle_timeout(now);
                inner.flush(&shared.wake);
            }
            inner.armed = inner.cluster.next_deadline();
            inner.armed
        };
        let Some(at) = next else {
            shared.wake.notified().await;
            continue;
        };
        let wait = at.since(shared.now()).max(TICK);
        // Either way we look again.
        let _ = tokio::time::timeout(wait, shared.wake.notified()).await;
    }
}

async fn accept(shared: Arc<Shared>, node: i32, listener: TcpListener) {
    // Dropped with this task: then every connection ends as well.
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without it small answers would wait for acknowledgements; where it fails they do.
                let _ = stream.set_nodelay(true);
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(Arc::clone(&shared), node, stream));
            }
            // Out of file descriptors, say: let others end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve<S>(shared: Arc<Shared>, node: i32, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(stream);
    let (frames, rest) = mpsc::unbounded_channel();
    let waiting = Arc::new(Waiting::default());
    let conn = {
        let mut inner = shared.lock();
        // A node that is down accepts and closes at once.
        let Some(conn) = inner.cluster.connect(shared.now(), node) else {
            return;
        };
        let output = Output {
            frames,
            waiting: Arc::clone(&waiting),
        };
        inner.outputs.insert(conn, output);
        conn
    };
    // Whichever ends first ends the other: the reader where the client goes, the writer where the
    // cluster closes the connection, after what was sent before.
    let mut ways = JoinSet::new();
    let reader = BufReader::with_capacity(READ_BYTES, reader);
    ways.spawn(read(
        Arc::clone(&shared),
        conn,
        Arc::clone(&waiting),
        reader,
    ));
    ways.spawn(write(writer, rest, waiting));
    ways.join_next().await;
    drop(ways);
    let mut inner = shared.lock();
    inner.outputs.remove(&conn);
    inner.cluster.disconnect(shared.now(), conn);
    inner.flush(&shared.wake);
}

async fn read(
    shared: Arc<Shared>,
    conn: ConnId,
    waiting: Arc<Waiting>,
    mut reader: BufReader<impl AsyncRead + Unpin>,
) -> io::Result<()> {
    loop {
        while waiting.bytes.load(Ordering::Relaxed) > OUTPUT_BYTES_MAX {
            waiting.fell.notified().await;
        }
        let length = usize::try_from(reader.read_i32().await?).unwrap_or(usize::MAX);
        if length > shared.frame_bytes_max {
            return Ok(());
        }
        let mut frame = BytesMut::with_capacity(length.min(READ_BYTES));
        let mut body = (&mut reader).take(length as u64);
        while frame.len() < length {
            if body.read_buf(&mut frame).await? == 0 {
                return Ok(());
            }
        }
        let mut inner = shared.lock();
        inner
            .cluster
            .handle_frame(shared.now(), conn, frame.freeze());
        inner.flush(&shared.wake);
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<Waiting>,
) -> io::Result<()> {
    while let Some(frame) = frames.recv().await {
        writer.write_all(&frame).await?;
        waiting.bytes.fetch_sub(frame.len(), Ordering::Relaxed);
        waiting.fell.notify_one();
    }
    writer.shutdown().await
}

/// Bytes that may wait for a client that does not read before we stop reading from it. One answer
/// more than that may come to wait (`fetch_bytes_max`).
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// The timer's least sleep.
const TICK: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Fault, Rule};
    use tokio::net::TcpStream;

    /// ApiVersions, version 0, with this correlation id.
    fn ask(correlation: u8) -> [u8; 14] {
        [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, correlation, 255, 255]
    }

    fn run<F: Future<Output = ()>>(test: F) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(test);
    }

    async fn answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        let length = stream.read_i32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut body).await?;
        Ok(body)
    }

    #[test]
    fn answers_come_in_order_and_time_goes_by() {
        run(async {
            let server = Server::start(ClusterConfig::default(), Listen::default());
            let server = server.await.unwrap();
            let delay = Fault::Delay(Duration::from_millis(1));
            server.cluster().script().add(Rule::new(delay).skip(1));
            let mut stream = TcpStream::connect(&server.bootstrap()[0]).await.unwrap();
            for i in 0..5 {
                stream.write_all(&ask(i)).await.unwrap();
            }
            for i in 0..5 {
                assert_eq!(answer(&mut stream).await.unwrap()[..4], [0, 0, 0, i]);
            }
        });
    }

    #[test]
    fn a_crash_closes_and_a_dead_node_lets_nobody_in() {
        run(async {
            let cfg = ClusterConfig {
                nodes: 2,
                ..ClusterConfig::default()
            };
            let server = Server::start(cfg, Listen::default()).await.unwrap();
            let mut stream = TcpStream::connect(&server.bootstrap()[1]).await.unwrap();
            stream.write_all(&ask(1)).await.unwrap();
            answer(&mut stream).await.unwrap();
            {
                let mut cluster = server.cluster();
                let now = cluster.now();
                cluster.crash(now, 2);
            }
            assert!(answer(&mut stream).await.is_err());
            let mut late = TcpStream::connect(&server.bootstrap()[1]).await.unwrap();
            assert!(answer(&mut late).await.is_err());
            let mut other = TcpStream::connect(&server.bootstrap()[0]).await.unwrap();
            other.write_all(&ask(2)).await.unwrap();
            assert!(answer(&mut other).await.is_ok());
        });
    }

    #[test]
    fn a_frame_too_long_and_a_dropped_server_end_the_connection() {
        run(async {
            let server = Server::start(ClusterConfig::default(), Listen::default());
            let server = server.await.unwrap();
            let mut stream = TcpStream::connect(&server.bootstrap()[0]).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            assert!(answer(&mut stream).await.is_err());
            let mut stream = TcpStream::connect(&server.bootstrap()[0]).await.unwrap();
            stream.write_all(&ask(1)).await.unwrap();
            answer(&mut stream).await.unwrap();
            drop(server);
            assert!(answer(&mut stream).await.is_err());
        });
    }
}
