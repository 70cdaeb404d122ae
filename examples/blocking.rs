//! A second shell: the same engine on the standard library's sockets, in one thread, without a
//! runtime.
//!
//! `blocking BOOTSTRAP TOPIC GROUP N` joins the group, runs N records in eight lanes by key, drains
//! (runs what was dealt, commits, leaves), and prints what it saw. A driver decides nothing: it
//! moves bytes, runs handlers and keeps time; all that is Kafka is in the engine.
//!
//! Engine and handlers share the thread, so a handler must end well within the session time-out.

use laneway::engine::{Action, Command, Config, Done, Engine, LaneKey, LinkEvent, Source};
use laneway::handler::one_by_one;
use laneway::ids::{CommandId, ExecutorId, LinkId};
use laneway::lane::{Handler, Mode, Runner};
use laneway::record::Delivery;
use laneway::time::Now;
use laneway::wire::Framer;
use laneway::{Error, ErrorKind, Event, Record};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind as Io, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The longest sleep where nothing has come: the standard library cannot wait for several sockets.
const NAP_MAX: Duration = Duration::from_micros(500);

/// What handlers have seen.
#[derive(Default)]
pub struct Seen {
    /// How many.
    pub records: u64,
    /// Of those, before an older one of their key.
    pub out_of_order: u64,
    last: BTreeMap<Vec<u8>, (i32, i64)>,
}

impl Seen {
    fn take(&mut self, record: &Record) {
        self.records += 1;
        let key = record.key().unwrap_or_default().to_vec();
        let at = (record.partition(), record.offset());
        if let Some((partition, offset)) = self.last.insert(key, at) {
            self.out_of_order += u64::from(partition == at.0 && offset >= at.1);
        }
    }
}

/// One connection: what is cut from it, and what could not be written yet.
struct Socket {
    stream: TcpStream,
    framer: Framer,
    unsent: Vec<u8>,
}

impl Socket {
    /// Tries every address of the name, each for its share of the time.
    fn open(host: &str, port: u16, frame_max: u32, within: Duration) -> io::Result<Self> {
        let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
        let share = within / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut failed = io::Error::from(Io::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, share.max(Duration::from_millis(1))) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    return Ok(Socket {
                        stream,
                        framer: Framer::new(frame_max),
                        unsent: Vec::new(),
                    });
                }
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// Writes what can be written.
    fn write(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == Io::WouldBlock => break,
                Err(e) if e.kind() == Io::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads what has come, frame by frame.
    fn read(&mut self, frames: &mut Vec<LinkEvent>) -> io::Result<()> {
        loop {
            let n = match self.stream.read(self.framer.space()) {
                Ok(0) => return Err(io::Error::from(Io::UnexpectedEof)),
                Ok(n) => n,
                Err(e) if e.kind() == Io::WouldBlock => return Ok(()),
                Err(e) if e.kind() == Io::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let mut cut = self.framer.filled(n);
            while let Some(frame) = cut.map_err(io::Error::other)? {
                frames.push(LinkEvent::Frame(frame));
                cut = self.framer.next_frame();
            }
        }
    }
}

fn down(e: &io::Error) -> LinkEvent {
    LinkEvent::Down(Error::new(ErrorKind::Transport, e.to_string()).retriable())
}

/// The sockets, the clock and the engine.
struct Driver {
    engine: Engine,
    began: Instant,
    sockets: BTreeMap<LinkId, Socket>,
    finished: Option<Result<(), Error>>,
}

impl Driver {
    fn now(&self) -> Now {
        Now(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What has come from the network; whether anything has.
    fn listen(&mut self) -> bool {
        let mut heard = false;
        let links: Vec<LinkId> = self.sockets.keys().copied().collect();
        for link in links {
            let mut events = Vec::new();
            let Some(socket) = self.sockets.get_mut(&link) else {
                continue;
            };
            let turn = socket.write().and_then(|()| socket.read(&mut events));
            if let Err(e) = turn {
                self.sockets.remove(&link);
                events.push(down(&e));
            }
            for event in events {
                heard = true;
                let now = self.now();
                self.engine.handle_link(now, link, event);
            }
        }
        heard
    }

    /// Does what the engine says; whether it said anything.
    fn act<H: Handler<Delivery>>(&mut self, runner: &mut Runner<Delivery, H>) -> bool {
        let mut acted = false;
        while let Some(action) = self.engine.poll_action() {
            acted = true;
            let now = self.now();
            match action {
                Action::Open {
                    link,
                    host,
                    port,
                    until,
                    frame_max,
                } => match Socket::open(&host, port, frame_max, until.since(now)) {
                    Ok(socket) => {
                        self.sockets.insert(link, socket);
                        self.engine.handle_link(now, link, LinkEvent::Up);
                    }
                    Err(e) => self.engine.handle_link(now, link, down(&e)),
                },
                Action::Send { link, frame, .. } => {
                    if let Some(socket) = self.sockets.get_mut(&link) {
                        socket.unsent.extend_from_slice(&frame);
                    }
                }
                Action::Close { link } => drop(self.sockets.remove(&link)),
                Action::Run { group, .. } => runner.give(group),
                Action::Recall { lease, what, .. } => runner.recall(lease, what),
                Action::Again => self.engine.handle_timeout(now),
                Action::Event(Event::Notice { .. }) | Action::Reply { .. } => {}
                Action::Event(event) => eprintln!("{event:?}"),
                Action::Finished(result) => self.finished = Some(result),
                other => eprintln!("not done here: {other:?}"),
            }
        }
        acted
    }

    /// Lets handlers run; whether they gave anything back.
    fn run<H: Handler<Delivery>>(&mut self, runner: &mut Runner<Delivery, H>) -> bool {
        let (fence, began) = (self.engine.fence(), self.began);
        // Past the fence the group has given our partitions to others, by our own clock.
        let mut may_start =
            || began.elapsed().as_nanos() < u128::from(fence.load(Ordering::Acquire));
        let mut ran = false;
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(done) = runner.poll(&mut context, self.now(), &mut may_start) {
            ran = true;
            let executor = ExecutorId(0);
            self.engine.handle_done(self.now(), Done { executor, done });
        }
        ran
    }
}

/// Runs the subscription until `wanted` records were handled, then drains it.
pub fn drive(config: Config, wanted: u64) -> Result<Seen, Error> {
    let began = Instant::now();
    let engine = Engine::new(config, Now(0));
    let seen = Rc::new(RefCell::new(Seen::default()));
    let handled = seen.clone();
    let handler = one_by_one(move |record: Record| {
        handled.borrow_mut().take(&record);
        std::future::ready(())
    });
    let mut runner = Runner::new(handler, engine.runner_config());
    let mut driver = Driver {
        engine,
        began,
        sockets: BTreeMap::new(),
        finished: None,
    };
    let mut draining = false;
    loop {
        if seen.borrow().records >= wanted && !draining {
            draining = true;
            let now = driver.now();
            driver
                .engine
                .handle_command(now, CommandId(1), Command::Drain);
        }
        let now = driver.now();
        if driver.engine.next_deadline().is_some_and(|at| at <= now) {
            driver.engine.handle_timeout(now);
        }
        let busy = [
            driver.listen(),
            driver.act(&mut runner),
            driver.run(&mut runner),
        ];
        if let Some(result) = driver.finished.take() {
            return result.map(|()| seen.take());
        }
        if busy == [false; 3] {
            let next = driver.engine.next_deadline().unwrap_or(Now::NEVER);
            std::thread::sleep(next.since(driver.now()).min(NAP_MAX));
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, group, records] = &args[..] else {
        eprintln!("usage: blocking HOST:PORT TOPIC GROUP RECORDS");
        return ExitCode::from(64);
    };
    let address = bootstrap.rsplit_once(':');
    let address = address.and_then(|(host, port)| Some((host.into(), port.parse().ok()?)));
    let (Some(address), Ok(wanted)) = (address, records.parse()) else {
        eprintln!("BOOTSTRAP is host:port, RECORDS a number");
        return ExitCode::from(64);
    };
    let source = Source::Topics {
        topics: vec![topic.as_str().into()],
        group: group.as_str().into(),
    };
    let mut config = Config::new(vec![address], source);
    config.mode = Mode::Fixed { lanes: 8 };
    config.lane_key = LaneKey::RecordKey;
    for (i, eight) in config.seed.chunks_mut(8).enumerate() {
        eight.copy_from_slice(&RandomState::new().hash_one(i).to_le_bytes());
    }
    match drive(config, wanted) {
        Ok(seen) => {
            println!(
                "{} records, {} out of order",
                seen.records, seen.out_of_order
            );
            ExitCode::from(u8::from(seen.out_of_order > 0))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
