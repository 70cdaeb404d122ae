//! The engine in a sandbox: a WebAssembly module (WASI) that can open nothing, whose host gives
//! it bytes and the time over standard input and output.
//!
//! `sandbox.mjs` beside this is a host in Node. One message each way:
//!
//! ```text
//! to us:    length u32, kind u8, now u64, link u64, bytes     0 tick, 1 up, 2 bytes, 3 down
//! from us:  length u32, kind u8, number u64, bytes            0 open, 1 send, 2 close (a link),
//!                                                             3 rest until (nanoseconds), 4 record, 5 said, 6 over
//! ```
//!
//! After each message of the host's come ours, the last of them a rest: the host speaks next when
//! something has happened, or when that time has come. Big-endian, as Kafka is.

use laneway::engine::{Action, Command, Config, Done, Engine, Event, LaneKey, LinkEvent, Source};
use laneway::handler::one_by_one;
use laneway::ids::{CommandId, ExecutorId, LinkId};
use laneway::lane::{Mode, Runner};
use laneway::time::Now;
use laneway::wire::Framer;
use laneway::{Error, ErrorKind, Record};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The longest message taken from the host.
const MESSAGE_MAX: usize = 1 << 20;

/// What the host says.
struct Message {
    kind: u8,
    now: Now,
    link: LinkId,
    bytes: Vec<u8>,
}

impl Message {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 21];
        from.read_exact(&mut head)?;
        let number = |at: usize| {
            head[at..at + 8]
                .iter()
                .fold(0, |n, b| n << 8 | u64::from(*b))
        };
        let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let len = len.checked_sub(17).filter(|len| *len <= MESSAGE_MAX);
        let mut bytes = vec![0; len.ok_or(io::ErrorKind::InvalidData)?];
        from.read_exact(&mut bytes)?;
        Ok(Message {
            kind: head[4],
            now: Now(number(5)),
            link: LinkId(number(13)),
            bytes,
        })
    }
}

/// To the host.
struct Out(io::StdoutLock<'static>);

impl Out {
    fn say(&mut self, kind: u8, number: u64, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len() + 9).map_err(io::Error::other)?;
        self.0.write_all(&len.to_be_bytes())?;
        self.0.write_all(&[kind])?;
        self.0.write_all(&number.to_be_bytes())?;
        self.0.write_all(bytes)
    }
}

fn run(config: Config, wanted: u64) -> io::Result<Result<(), Error>> {
    let (mut input, mut out) = (io::stdin().lock(), Out(io::stdout().lock()));
    let records = Rc::new(RefCell::new(Vec::<Record>::new()));
    let handled = records.clone();
    let mut engine = Engine::new(config, Now(0));
    let handler = one_by_one(move |record: Record| {
        handled.borrow_mut().push(record);
        std::future::ready(())
    });
    let mut runner = Runner::new(handler, engine.runner_config());
    let mut framers: BTreeMap<LinkId, Framer> = BTreeMap::new();
    let mut context = Context::from_waker(Waker::noop());
    let (mut count, mut draining) = (0, false);
    loop {
        let Message {
            kind,
            now,
            link,
            bytes,
        } = Message::read(&mut input)?;
        match kind {
            1 => engine.handle_link(now, link, LinkEvent::Up),
            2 => {
                let mut rest = &bytes[..];
                while let Some(framer) = framers.get_mut(&link).filter(|_| !rest.is_empty()) {
                    let space = framer.space();
                    let n = space.len().min(rest.len());
                    space[..n].copy_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    let mut cut = framer.filled(n);
                    let mut events = Vec::new();
                    while let Ok(Some(frame)) = cut {
                        events.push(LinkEvent::Frame(frame));
                        cut = framer.next_frame();
                    }
                    if let Err(e) = cut {
                        framers.remove(&link);
                        let e = Error::new(ErrorKind::Peer, e.to_string());
                        events.push(LinkEvent::Down(e));
                    }
                    for event in events {
                        engine.handle_link(now, link, event);
                    }
                }
            }
            3 => {
                framers.remove(&link);
                let why = String::from_utf8_lossy(&bytes);
                let why = Error::new(ErrorKind::Transport, why).retriable();
                engine.handle_link(now, link, LinkEvent::Down(why));
            }
            _ => {}
        }
        if engine.next_deadline().is_some_and(|at| at <= now) {
            engine.handle_timeout(now);
        }
        loop {
            let mut quiet = true;
            while let Some(action) = engine.poll_action() {
                quiet = false;
                match action {
                    Action::Open {
                        link,
                        host,
                        port,
                        frame_max,
                        ..
                    } => {
                        framers.insert(link, Framer::new(frame_max));
                        out.say(0, link.0, format!("{host}:{port}").as_bytes())?;
                    }
                    Action::Send { link, frame, .. } => out.say(1, link.0, &frame)?,
                    Action::Close { link } => {
                        framers.remove(&link);
                        out.say(2, link.0, b"")?;
                    }
                    Action::Run { group, .. } => runner.give(group),
                    Action::Recall { lease, what, .. } => runner.recall(lease, what),
                    Action::Again => engine.handle_timeout(now),
                    Action::Event(Event::Notice { .. }) | Action::Reply { .. } => {}
                    Action::Event(event) => out.say(5, 0, format!("{event:?}").as_bytes())?,
                    Action::Finished(result) => return Ok(result),
                    other => out.say(5, 0, format!("not done here: {other:?}").as_bytes())?,
                }
            }
            while let Poll::Ready(done) = runner.poll(&mut context, now, &mut || true) {
                quiet = false;
                let executor = ExecutorId(0);
                engine.handle_done(now, Done { executor, done });
            }
            for record in records.borrow_mut().drain(..) {
                count += 1;
                let value = String::from_utf8_lossy(record.value().unwrap_or_default());
                let line = format!("{}-{} {value}", record.partition(), record.offset());
                out.say(4, count, line.as_bytes())?;
            }
            if count >= wanted && !draining {
                (quiet, draining) = (false, true);
                engine.handle_command(now, CommandId(1), Command::Drain);
            }
            if quiet {
                break;
            }
        }
        out.say(3, engine.next_deadline().unwrap_or(Now::NEVER).0, b"")?;
        out.0.flush()?;
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, group, records] = &args[..] else {
        eprintln!("usage: sandbox HOST:PORT TOPIC GROUP RECORDS, under a host that speaks with it");
        return ExitCode::from(64);
    };
    let address = bootstrap.rsplit_once(':');
    let address = address.and_then(|(host, port)| Some((host.into(), port.parse().ok()?)));
    let (Some(address), Ok(wanted)) = (address, records.parse()) else {
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
    let ended = match run(config, wanted) {
        Ok(Ok(())) => String::new(),
        Ok(Err(error)) => error.to_string(),
        Err(e) => format!("the host: {e}"),
    };
    let mut out = Out(io::stdout().lock());
    let told = out.say(6, 0, ended.as_bytes()).and_then(|()| out.0.flush());
    ExitCode::from(u8::from(!ended.is_empty() || told.is_err()))
}
