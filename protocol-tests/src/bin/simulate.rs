//! Random lives of whole groups, by the thousand.
//!
//! ```text
//! simulate --seeds A..B [--minutes M] [--jobs J] [--may-fail N] [--until-failure yes]
//! ```
//!
//! Each seed is one life in virtual time: members, brokers, a network and users that misbehave, then
//! all is well again and everything must have been handled and committed. Every fourth is a gentle
//! one, in which every hand-over has to be a drained one. It tells how many lives a second there
//! were, what happened in them how often (what never happened tests nothing: with enough lives that
//! is a failure too), and for seeds that failed what happened and the shortest beginning that still
//! fails. It fails itself when more than N in a thousand did; without the flag, when any did.

use laneway_protocol_tests::lives::{Tally, Told, live};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Failing seeds that are told in full.
const TOLD_MAX: usize = 5;

/// Deeds of a failing life that are shown: the last ones.
const DEEDS_MAX: usize = 60;

/// After so many lives everything should have happened.
const LIVES_FOR_ALL: u64 = 20_000;

struct Args {
    from: u64,
    to: u64,
    minutes: Option<f64>,
    jobs: usize,
    /// Of a thousand.
    may_fail: usize,
    until_failure: bool,
}

#[derive(Default)]
struct Lives {
    took: Vec<Duration>,
    tally: Tally,
    failed: Vec<Told>,
}

fn main() -> ExitCode {
    let args = match args() {
        Ok(args) => args,
        Err(error) => {
            eprintln!(
                "simulate: {error}\nusage: simulate --seeds A..B [--minutes M] [--jobs J] \
                 [--may-fail N] [--until-failure yes]"
            );
            return ExitCode::from(2);
        }
    };
    // Handlers panic as planned, thousands of times; what fails is told below.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let ends = args
        .minutes
        .map(|m| began + Duration::from_secs_f64(60.0 * m));
    let next = AtomicU64::new(args.from);
    let lives = Mutex::new(Lives::default());
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while ends.is_none_or(|ends| Instant::now() < ends) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= args.to || args.until_failure && has_failed(&lives) {
                        break;
                    }
                    let start = Instant::now();
                    let told = live(seed, is_gentle(seed), u64::MAX);
                    note(&lives, told, start.elapsed());
                }
            });
        }
    });
    let lives = lives.into_inner().unwrap_or_else(|e| e.into_inner());
    match args.until_failure {
        true => first_failure(&lives),
        false => report(lives, began.elapsed(), args.may_fail),
    }
}

fn is_gentle(seed: u64) -> bool {
    seed % 4 == 3
}

fn has_failed(lives: &Mutex<Lives>) -> bool {
    let lives = lives.lock().unwrap_or_else(|e| e.into_inner());
    !lives.failed.is_empty()
}

fn note(lives: &Mutex<Lives>, told: Told, took: Duration) {
    let mut lives = lives.lock().unwrap_or_else(|e| e.into_inner());
    lives.took.push(took);
    lives.tally.add_all(&told.tally);
    if told.failure.is_some() {
        eprintln!("seed {} failed", told.seed);
        lives.failed.push(told);
    }
}

/// One line: how many lives it took, and what did not hold.
fn first_failure(lives: &Lives) -> ExitCode {
    let count = lives.took.len();
    let Some(told) = lives.failed.first() else {
        println!("{count}\t-\tnothing");
        return ExitCode::SUCCESS;
    };
    let words: Vec<_> = words_of(told).take(12).collect();
    println!("{count}\t{}\t{}", told.seed, words.join(" "));
    ExitCode::FAILURE
}

fn words_of(told: &Told) -> impl Iterator<Item = &str> {
    let failure = told.failure.as_deref().unwrap_or_default();
    failure
        .split(&[' ', '\n', '[', '"'][..])
        .filter(|w| !w.is_empty())
}

fn report(mut lives: Lives, took: Duration, may_fail: usize) -> ExitCode {
    lives.took.sort_unstable();
    let count = lives.took.len();
    let at = |part: usize| {
        let took = lives.took.get(count.saturating_sub(1) * part / 100);
        took.map_or(0.0, |took| took.as_secs_f64() * 1e3)
    };
    println!(
        "{count} lives in {:.1} s: {:.1} a second, {:.0} a minute; a life takes {:.1} ms (median), {:.1} ms (99 %)",
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64(),
        count as f64 / took.as_secs_f64() * 60.0,
        at(50),
        at(99),
    );
    let mut never = Vec::new();
    for (kind, n) in lives.tally.each() {
        println!("{n:>10}  {kind}");
        if n == 0 {
            never.push(kind);
        }
    }
    lives.failed.sort_by_key(|told| told.seed);
    for told in &lives.failed {
        let words: Vec<_> = words_of(told).take(40).collect();
        println!("seed {}: {}", told.seed, words.join(" "));
    }
    for told in lives.failed.iter().take(TOLD_MAX) {
        tell(told, &shortest(told));
    }
    if !lives.failed.is_empty() {
        let seeds: Vec<_> = lives.failed.iter().map(|told| told.seed).collect();
        println!("\n{} of {count} lives failed: seeds {seeds:?}", seeds.len());
    }
    if lives.failed.len() * 1000 > may_fail * count {
        return ExitCode::FAILURE;
    }
    if count as u64 >= LIVES_FOR_ALL && !never.is_empty() {
        println!("\nno life had: {never:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn tell(told: &Told, shortest: &Told) {
    let (seed, deeds) = (told.seed, shortest.deeds_max);
    println!(
        "\nseed {seed}: fails within the first {deeds} of {} deeds",
        told.deeds_max
    );
    println!("  with {}", shortest.settings);
    let from = shortest.deeds.len().saturating_sub(DEEDS_MAX);
    for deed in &shortest.deeds[from..] {
        println!("  {deed}");
    }
    println!("  {}", shortest.failure.as_deref().unwrap_or_default());
}

/// The life with the fewest deeds, of those that begin as this one does, that fails.
fn shortest(told: &Told) -> Told {
    for deeds_max in 0..told.deeds_max {
        let again = live(told.seed, is_gentle(told.seed), deeds_max);
        if again.failure.is_some() {
            return again;
        }
    }
    told.clone()
}

fn args() -> Result<Args, Box<dyn Error>> {
    let mut args = Args {
        from: 0,
        to: 0,
        minutes: None,
        jobs: thread::available_parallelism().map_or(1, usize::from),
        may_fail: 0,
        until_failure: false,
    };
    let words: Vec<String> = std::env::args().skip(1).collect();
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} lacks a value", pair[0]).into());
        };
        match name.as_str() {
            "--seeds" => {
                let (from, to) = value.split_once("..").ok_or("--seeds A..B")?;
                (args.from, args.to) = (from.parse()?, to.parse()?);
            }
            "--minutes" => args.minutes = Some(value.parse()?),
            "--jobs" => args.jobs = value.parse::<usize>()?.max(1),
            "--may-fail" => args.may_fail = value.parse()?,
            "--until-failure" => args.until_failure = value == "yes",
            other => return Err(format!("{other}?").into()),
        }
    }
    if args.from >= args.to {
        return Err("no seeds: give --seeds A..B".into());
    }
    Ok(args)
}
