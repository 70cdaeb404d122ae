//! Runs named tests and can say "ignored" at run time, which libtest cannot.
//!
//! Its lines and its flags are libtest's, so that `cargo test NAME`, `--list`, `--exact`, `--skip`,
//! `--test-threads` and the programs that read such output work as usual. A few run at once: most
//! of their time they wait for a broker's timers, each on topics and groups of its own.

use std::any::Any;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, panic};

use crate::kafka;

/// One test.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// As `cargo test NAME` finds it.
    pub name: &'static str,
    /// What it cannot do without; the reason is printed where it is missing.
    pub needs: fn() -> Result<(), Missing>,
    /// It fails when it takes longer.
    pub limit: Duration,
    /// No other runs meanwhile: it asks for things that only time can break. Such tests come last.
    pub alone: bool,
    /// It fails by a panic.
    pub run: fn(),
}

/// What this machine lacks for a test, and why.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Missing {
    /// A failure under `LANEWAY_REQUIRE_KAFKA=1`.
    Kafka(String),
    /// A program that not everybody has (its name, the reason): a failure under `LANEWAY_REQUIRE_ALL=1`.
    Program(&'static str, String),
}

/// The `main` of a test binary with `harness = false`.
pub fn main(tests: &[Test]) -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let set = |name| env::var(name).is_ok_and(|value| value == "1");
    let required = Required {
        kafka: set("LANEWAY_REQUIRE_KAFKA") || set("LANEWAY_REQUIRE_ALL"),
        programs: set("LANEWAY_REQUIRE_ALL"),
    };
    let passed = run(tests, &args, required, &mut io::stdout());
    kafka::stop_shared();
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(FAILED)
        }
    }
}

/// Which missing things are failures.
#[derive(Clone, Copy, Debug)]
struct Required {
    kafka: bool,
    programs: bool,
}

#[derive(Debug, Default)]
struct Flags {
    list: bool,
    exact: bool,
    only_ignored: bool,
    threads: Option<usize>,
    filters: Vec<String>,
    skips: Vec<String>,
}

impl Flags {
    fn of(args: &[String]) -> Result<Self, String> {
        let mut flags = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, mut value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            match name {
                "--list" => flags.list = true,
                "--exact" => flags.exact = true,
                // Nothing here is ignored by choice, so a run of only those is empty.
                "--ignored" => flags.only_ignored = true,
                "--skip" => {
                    let value = value.take().or_else(|| args.next().cloned());
                    flags.skips.push(value.ok_or("--skip needs a name")?);
                }
                "--test-threads" => {
                    let value = value.take().or_else(|| args.next().cloned());
                    let number = value.and_then(|value| value.parse().ok());
                    flags.threads = Some(number.ok_or("--test-threads needs a number")?);
                }
                // Output is never caught: these change nothing.
                "--color" | "--format" | "--logfile" => {
                    if value.is_none() {
                        args.next();
                    }
                }
                "--include-ignored" | "--nocapture" | "--no-capture" | "--show-output"
                | "--quiet" | "-q" | "--test" => {}
                _ if name.starts_with('-') => return Err(format!("unknown flag {arg}")),
                _ => flags.filters.push(arg.clone()),
            }
        }
        Ok(flags)
    }

    fn chooses(&self, name: &str) -> bool {
        let fits = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        !self.only_ignored
            && (self.filters.is_empty() || self.filters.iter().any(fits))
            && !self.skips.iter().any(fits)
    }
}

fn run(
    tests: &[Test],
    args: &[String],
    required: Required,
    out: &mut (dyn Write + Send),
) -> Result<bool, String> {
    let flags = Flags::of(args)?;
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|test| flags.chooses(test.name))
        .collect();
    let left_out = tests.len() - chosen.len();
    let printed = if flags.list {
        list(&chosen, out).map(|()| true)
    } else {
        let threads = flags.threads.unwrap_or(THREADS).max(1);
        run_chosen(&chosen, threads, left_out, required, out)
    };
    printed.map_err(|e| format!("standard output: {e}"))
}

fn list(chosen: &[&Test], out: &mut (dyn Write + Send)) -> io::Result<()> {
    for test in chosen {
        writeln!(out, "{}: test", test.name)?;
    }
    writeln!(out, "\n{} tests, 0 benchmarks", chosen.len())
}

/// What became of the tests so far.
struct Tally<'a> {
    out: &'a mut (dyn Write + Send),
    passed: usize,
    ignored: usize,
    failures: Vec<(&'static str, String)>,
}

impl Tally<'_> {
    /// One test's line. It stands when the test has ended, since others run beside it.
    fn take(&mut self, name: &'static str, took: Duration, end: End) -> io::Result<()> {
        let took = took.as_secs_f64();
        match end {
            End::Ok => {
                self.passed += 1;
                writeln!(self.out, "test {name} ... ok <{took:.1}s>")?;
            }
            End::Ignored(reason) => {
                self.ignored += 1;
                writeln!(self.out, "test {name} ... ignored, {reason}")?;
            }
            End::Failed(reason) => {
                writeln!(self.out, "test {name} ... FAILED <{took:.1}s>")?;
                self.failures.push((name, reason));
            }
        }
        self.out.flush()
    }
}

enum End {
    Ok,
    Ignored(String),
    Failed(String),
}

fn run_chosen(
    chosen: &[&Test],
    threads: usize,
    left_out: usize,
    required: Required,
    out: &mut (dyn Write + Send),
) -> io::Result<bool> {
    let start = Instant::now();
    writeln!(out, "\nrunning {} tests", chosen.len())?;
    let tally = Mutex::new(Tally {
        out,
        passed: 0,
        ignored: 0,
        failures: Vec::new(),
    });
    let (alone, beside): (Vec<&Test>, Vec<&Test>) = chosen.iter().partition(|test| test.alone);
    let work = |tests: &[&Test], next: &AtomicUsize| -> io::Result<()> {
        while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            let end = match (test.needs)() {
                Ok(()) => run_one(test).map_or_else(End::Failed, |()| End::Ok),
                Err(missing) if missing.is_failure(required) => End::Failed(missing.reason()),
                Err(missing) => End::Ignored(missing.reason()),
            };
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.take(test.name, began.elapsed(), end)?;
        }
        Ok(())
    };
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(beside.len()))
            .map(|_| scope.spawn(|| work(&beside, &next)))
            .collect();
        // A worker catches its tests' panics and has none of its own.
        let ends = workers.into_iter().map(|w| w.join().unwrap_or(Ok(())));
        ends.collect::<io::Result<Vec<()>>>()
    })?;
    work(&alone, &AtomicUsize::new(0))?;
    let Tally {
        out,
        passed,
        ignored,
        failures,
    } = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        writeln!(out, "\nfailures:")?;
        for (name, reason) in &failures {
            writeln!(out, "    {name}: {reason}")?;
        }
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    let failed = failures.len();
    let seconds = start.elapsed().as_secs_f64();
    writeln!(
        out,
        "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         {left_out} filtered out; finished in {seconds:.2}s\n"
    )?;
    Ok(failures.is_empty())
}

/// On a thread of its own, which is left behind when it overstays: the guard of
/// [`crate::process`] ends what it started when this process ends.
fn run_one(test: &Test) -> Result<(), String> {
    let (done, ended) = mpsc::sync_channel(1);
    let run = test.run;
    let spawned = thread::Builder::new()
        .name(test.name.to_owned())
        .spawn(move || {
            let result = panic::catch_unwind(run).map_err(|payload| said(payload.as_ref()));
            // Nobody listens after the limit.
            let _ = done.send(result);
        });
    spawned.map_err(|e| e.to_string())?;
    match ended.recv_timeout(test.limit) {
        Ok(result) => result,
        Err(_) => Err(format!("not done after {:?}", test.limit)),
    }
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked".to_owned())
}

impl Missing {
    fn reason(&self) -> String {
        match self {
            Self::Kafka(reason) => format!("no Kafka: {reason}"),
            Self::Program(name, reason) => format!("no {name}: {reason}"),
        }
    }

    fn is_failure(&self, required: Required) -> bool {
        match self {
            Self::Kafka(_) => required.kafka,
            Self::Program(..) => required.programs,
        }
    }
}

/// Tests that run at once, unless `--test-threads` says otherwise: two cores and a Kafka are enough
/// for these.
const THREADS: usize = 3;
/// libtest's own exit code for failed tests.
const FAILED: u8 = 101;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn test(name: &'static str, run: fn()) -> Test {
        Test {
            name,
            needs: || Ok(()),
            limit: LIMIT,
            alone: false,
            run,
        }
    }

    fn output(tests: &[Test], args: &[&str], kafka: bool) -> (bool, String) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut out = Vec::new();
        let required = Required {
            kafka,
            programs: false,
        };
        let passed = run(tests, &args, required, &mut out).unwrap();
        (passed, String::from_utf8(out).unwrap())
    }

    fn no_kafka() -> Result<(), Missing> {
        Err(Missing::Kafka("no java".to_owned()))
    }

    #[test]
    fn each_outcome_has_its_line() {
        let tests = [
            test("good", || {}),
            test("bad", || panic!("7 is not 8")),
            Test {
                needs: no_kafka,
                ..test("lonely", || panic!("must not run"))
            },
            Test {
                limit: Duration::from_millis(1),
                ..test("slow", || thread::sleep(LIMIT))
            },
        ];
        let (passed, text) = output(&tests, &[], false);
        assert!(!passed);
        assert!(text.contains("test good ... ok <"), "{text}");
        assert!(text.contains("test bad ... FAILED <"), "{text}");
        assert!(text.contains("    bad: 7 is not 8\n"), "{text}");
        assert!(
            text.contains("test lonely ... ignored, no Kafka: no java\n"),
            "{text}"
        );
        assert!(text.contains("    slow: not done after 1ms\n"), "{text}");
        assert!(text.contains(
            "test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in "
        ));
    }

    #[test]
    fn a_required_kafka_that_is_missing_is_a_failure() {
        let tests = [Test {
            needs: no_kafka,
            ..test("lonely", || {})
        }];
        let (passed, text) = output(&tests, &[], false);
        assert!(
            passed && text.contains("test result: ok. 0 passed; 0 failed; 1 ignored;"),
            "{text}"
        );
        let (passed, text) = output(&tests, &[], true);
        assert!(
            !passed && text.contains("    lonely: no Kafka: no java\n"),
            "{text}"
        );
    }

    #[test]
    fn names_are_filtered_as_libtest_does() {
        let tests = [
            test("one_lane", || {}),
            test("one_lane_slow", || {}),
            test("two", || {}),
        ];
        let listed = |args: &[&str]| output(&tests, args, false).1;
        assert_eq!(
            listed(&["--list", "one"]),
            "one_lane: test\none_lane_slow: test\n\n2 tests, 0 benchmarks\n"
        );
        assert_eq!(
            listed(&["--list", "--exact", "one_lane"]),
            "one_lane: test\n\n1 tests, 0 benchmarks\n"
        );
        assert_eq!(
            listed(&["--list", "--skip", "slow", "one"]),
            "one_lane: test\n\n1 tests, 0 benchmarks\n"
        );
        assert_eq!(
            listed(&["--list", "--format", "terse", "two"]),
            "two: test\n\n1 tests, 0 benchmarks\n"
        );
        let (_, text) = output(&tests, &["--test-threads=1", "two"], false);
        assert!(
            text.contains("1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out;"),
            "{text}"
        );
        assert!(Flags::of(&["--test-threads".to_owned()]).is_err());
        assert_eq!(
            Flags::of(&["--frobnicate".to_owned()]).unwrap_err(),
            "unknown flag --frobnicate"
        );
    }
}
