//! Lanes, retries and watermarks for a source that is not Kafka: the lines of a file.
//!
//! `other_source FILE` handles the lines of FILE, each `KEY TEXT`: those of one key in order, many
//! keys at once. A line that fails is tried again while its lane waits and the others go on. How
//! far all lines are done is kept in `FILE.done`, so that the next run goes on from there; a line
//! is handled again rather than lost. Without FILE it makes one and shows what happens.
//!
//! `lane` runs the records and `settle` says what is done. Neither knows Kafka; what is here beside
//! them is the source, the file with the watermark, and a loop that moves values between them.

use laneway::ids::LeaseId;
use laneway::lane::{
    Done, Keys, LaneHasher, Lanes, LanesConfig, Lease, Mode, Note, Outcome, Parcel, Runner, Sink,
    each,
};
use laneway::settle::{Offsets, Tracker};
use laneway::time::Now;
use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, BufRead, BufReader};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Lines in one parcel.
const PARCEL_LINES: usize = 64;

/// A few lines of the file, already cut into key and text.
type Lines = Vec<(String, String)>;

/// What is done with one line. A text of `again` fails at its first two runs.
async fn handle(lines: Arc<Parcel<Lines>>, at: u32, attempt: u32) -> Outcome {
    let (key, text) = &lines.load[at as usize];
    tokio::time::sleep(Duration::from_millis(5)).await;
    if text == "again" && attempt < 3 {
        return Outcome::failed("not yet");
    }
    println!("{key:>4} {text} (attempt {attempt})");
    Outcome::Ack
}

/// Where results go.
struct Settled<'a>(&'a mut Tracker);

impl Sink for Settled<'_> {
    fn settled(&mut self, _lease: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
        for (first, len) in ranges {
            // Each record comes back once, so this cannot fail.
            self.0.settle_range(first, len).expect("settled once");
        }
    }

    fn note(&mut self, note: Note) {
        if let Note::Retrying { attempts, .. } = note {
            println!("     a line failed {attempts} times; its lane waits");
        }
    }
}

/// The next lines of the file, in a parcel of their own.
fn next_lines(from: &mut impl BufRead) -> io::Result<Lines> {
    let mut lines = Vec::new();
    for line in from.lines().take(PARCEL_LINES) {
        let line = line?;
        let (key, text) = line.split_once(' ').unwrap_or((&line, ""));
        lines.push((key.to_owned(), text.to_owned()));
    }
    Ok(lines)
}

async fn run(path: &str) -> io::Result<()> {
    let done_path = format!("{path}.done");
    let start = fs::read_to_string(&done_path).ok();
    let start: i64 = start.and_then(|s| s.trim().parse().ok()).unwrap_or(0);
    println!("{path} from line {start} on");
    let mut file = BufReader::new(fs::File::open(path)?);
    for line in (&mut file)
        .lines()
        .take(usize::try_from(start).unwrap_or(0))
    {
        line?;
    }

    let config = LanesConfig::new(Mode::Fixed { lanes: 8 });
    let mut lanes: Lanes<Lines> = Lanes::new(&config);
    let mut runner = Runner::new(each(handle), &config.runner());
    let hasher = LaneHasher::new([7; 32]);
    // The file is ours for as long as we run: one lease, and one tracker for it.
    let lease = Lease::new(LeaseId(1));
    let mut tracker = Tracker::new(start);
    let began = Instant::now();
    let now = || Now(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut more = true;
    loop {
        while more && lanes.wants_more() {
            let load = next_lines(&mut file)?;
            more = !load.is_empty();
            let len = u32::try_from(load.len()).unwrap_or(0);
            let base = tracker.position();
            let offsets = Offsets::Dense { base, len };
            let first = tracker.push(offsets, base + i64::from(len), -1);
            let keys: Vec<_> = load
                .iter()
                .map(|(k, _)| hasher.key("", k.as_bytes()))
                .collect();
            let parcel = Arc::new(Parcel {
                lease: lease.clone(),
                first_ordinal: first.map_err(io::Error::other)?,
                taken_at: now(),
                len,
                load,
            });
            lanes.deal(&parcel, Keys::Each(&keys));
        }
        while let Some((_, group)) = lanes.poll_run(now()) {
            runner.give(group);
        }
        if !more && tracker.open() == 0 {
            return Ok(());
        }
        // Whatever comes first: something from the runner, or the time of the next retry.
        let due = lanes
            .next_deadline()
            .map(|at| began + Duration::from_nanos(at.0));
        let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(60));
        let mut due = pin!(tokio::time::sleep_until(due.into()));
        let done = poll_fn(|cx| match runner.poll(cx, now(), &mut || true) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => due.as_mut().poll(cx).map(|()| None),
        });
        let executor = laneway::ids::ExecutorId(0);
        match done.await {
            Some(Done::Group(group)) => {
                lanes.take_back(now(), executor, group, &mut Settled(&mut tracker));
            }
            Some(Done::Late(lates)) => {
                lanes.late(now(), executor, lates, &mut Settled(&mut tracker));
            }
            None => lanes.handle_timeout(now()),
        }
        if tracker.advance() {
            // Everything below is done. A crash right after this runs nothing below again.
            fs::write(&done_path, tracker.watermark().to_string())?;
        }
    }
}

/// A file to show it with: five keys in turn, and now and then a line that fails at first.
fn sample() -> io::Result<String> {
    let path = std::env::temp_dir().join(format!("lines-{}.txt", std::process::id()));
    let lines = (0..40).map(|n| match n % 13 {
        5 => format!("k{} again\n", n % 5),
        _ => format!("k{} line-{n}\n", n % 5),
    });
    fs::write(&path, lines.collect::<String>())?;
    Ok(path.to_string_lossy().into_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let path = std::env::args().nth(1).map_or_else(sample, Ok);
    let ran = match path {
        Ok(path) => run(&path).await,
        Err(error) => Err(error),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
