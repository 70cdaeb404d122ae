//! The engine without a runtime: blocking sockets of the standard library, one thread, one loop.
//! It shows how little a driver decides, and is the cheapest judge of the seam.

use laneway::broker::{ClusterConfig, Listen, Server};
use laneway::engine::{Action, Command, Config, Done, Engine, LaneKey, LinkEvent, Source};
use laneway::handler::one_by_one;
use laneway::ids::{CommandId, ExecutorId, LinkId};
use laneway::lane::{Mode, Runner};
use laneway::time::Now;
use laneway::wire::Framer;
use laneway::{Error, ErrorKind, Record};
use std::collections::BTreeMap;
use std::io::{ErrorKind as Io, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How long the loop sleeps where nothing has come.
const NAP: Duration = Duration::from_micros(500);

struct Socket {
    stream: TcpStream,
    framer: Framer,
    unsent: Vec<u8>,
}

fn broken(e: &std::io::Error) -> LinkEvent {
    LinkEvent::Down(Error::new(ErrorKind::Transport, e.to_string()).retriable())
}

impl Socket {
    fn open(host: &str, port: u16, frame_max: u32) -> std::io::Result<Self> {
        let address = (host, port).to_socket_addrs()?.next();
        let address = address.ok_or(std::io::Error::from(Io::NotFound))?;
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let framer = Framer::new(frame_max);
        Ok(Socket {
            stream,
            framer,
            unsent: Vec::new(),
        })
    }

    /// Writes what can be written, reads what has come.
    fn turn(&mut self, events: &mut Vec<LinkEvent>) -> std::io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == Io::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        loop {
            let n = match self.stream.read(self.framer.space()) {
                Ok(0) => return Err(std::io::Error::from(Io::UnexpectedEof)),
                Ok(n) => n,
                Err(e) if e.kind() == Io::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            let mut cut = self.framer.filled(n);
            while let Some(frame) = cut.map_err(std::io::Error::other)? {
                events.push(LinkEvent::Frame(frame));
                cut = self.framer.next_frame();
            }
        }
    }
}

/// Runs one subscription until `enough` says so, then closes it.
fn drive(
    config: &Config,
    handler: impl Fn(&Record),
    enough: impl Fn() -> bool,
) -> Result<(), Error> {
    let began = Instant::now();
    let now = || Now(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut engine = Engine::new(config.clone(), now());
    let records = Arc::new(Mutex::new(Vec::<Record>::new()));
    let inbox = records.clone();
    let mut runner = Runner::new(
        one_by_one(move |record: Record| {
            inbox.lock().unwrap().push(record);
            std::future::ready(())
        }),
        engine.runner_config(),
    );
    let mut sockets: BTreeMap<LinkId, Socket> = BTreeMap::new();
    let mut cx = Context::from_waker(Waker::noop());
    let mut closing = false;
    loop {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            engine.snapshot(now())
        );
        if engine.next_deadline().is_some_and(|at| at <= now()) {
            engine.handle_timeout(now());
        }
        if enough() && !closing {
            closing = true;
            let deadline = now() + Duration::from_secs(5);
            engine.handle_command(now(), CommandId(1), Command::Close { deadline });
        }
        let mut idle = true;
        let links: Vec<LinkId> = sockets.keys().copied().collect();
        for link in links {
            let mut events = Vec::new();
            let Some(socket) = sockets.get_mut(&link) else {
                continue;
            };
            if let Err(e) = socket.turn(&mut events) {
                sockets.remove(&link);
                events.push(broken(&e));
            }
            for event in events {
                idle = false;
                engine.handle_link(now(), link, event);
            }
        }
        while let Some(action) = engine.poll_action() {
            idle = false;
            match action {
                Action::Open {
                    link,
                    host,
                    port,
                    frame_max,
                    ..
                } => match Socket::open(&host, port, frame_max) {
                    Ok(socket) => {
                        sockets.insert(link, socket);
                        engine.handle_link(now(), link, LinkEvent::Up);
                    }
                    Err(e) => engine.handle_link(now(), link, broken(&e)),
                },
                Action::Send { link, frame, .. } => {
                    if let Some(socket) = sockets.get_mut(&link) {
                        socket.unsent.extend_from_slice(&frame);
                    }
                }
                Action::Close { link } => drop(sockets.remove(&link)),
                Action::Run { group, .. } => runner.give(group),
                Action::Recall { lease, what, .. } => runner.recall(lease, what),
                Action::Again => engine.handle_timeout(now()),
                Action::Finished(result) => return result,
                Action::Reply { .. } | Action::Event(_) => {}
                other => panic!("an action that this driver does not know: {other:?}"),
            }
        }
        while let Poll::Ready(done) = runner.poll(&mut cx, now(), &mut || true) {
            idle = false;
            engine.handle_done(
                now(),
                Done {
                    executor: ExecutorId(0),
                    done,
                },
            );
        }
        records
            .lock()
            .unwrap()
            .drain(..)
            .for_each(|record| handler(&record));
        if idle {
            std::thread::sleep(NAP);
        }
    }
}

#[test]
fn a_blocking_loop_in_one_thread_runs_the_same_client() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(ClusterConfig::default(), Listen::default()));
    let server = server.unwrap();
    {
        let mut cluster = server.cluster();
        cluster.create_topic("t", 3).unwrap();
        let now = cluster.now();
        for n in 0..300 {
            let value = n.to_string();
            let pair = (Some(value.as_bytes()), Some(value.as_bytes()));
            cluster.append_records(now, "t", n % 3, &[pair]).unwrap();
        }
    }
    let bootstrap = server.bootstrap();
    let (host, port) = bootstrap[0].rsplit_once(':').unwrap();
    let source = Source::Topics {
        topics: vec!["t".into()],
        group: "g".into(),
    };
    let mut config = Config::new(vec![(host.into(), port.parse().unwrap())], source);
    config.mode = Mode::Fixed { lanes: 4 };
    config.lane_key = LaneKey::RecordKey;
    let count = Mutex::new(0);
    drive(
        &config,
        |_| *count.lock().unwrap() += 1,
        || *count.lock().unwrap() == 300,
    )
    .unwrap();
    for partition in 0..3 {
        assert_eq!(
            server
                .cluster()
                .committed("g", "t", partition)
                .unwrap()
                .offset,
            100
        );
    }
}
