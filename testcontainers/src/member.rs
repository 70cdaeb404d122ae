//! Members of a group as processes: Kafka's own Java consumer, librdkafka through kcat, and ours.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Kafka;
use crate::handlings::{Grant, Handling, Life, Numbered};
use crate::jars;
use crate::kafka::unique;
use crate::process::{self, Process};
use crate::runner::Missing;

/// A member process and the lines that it has printed.
///
/// librdkafka's prints `record PARTITION OFFSET KEY VALUE` for what it was given; Java's puts the
/// machine's nanoseconds before the partition, and says `granted NANOS PARTITION OFFSET` for where
/// it starts. Java's and ours print `assigned`, `revoked` and
/// `lost` with partitions too, and `closed` when they have left in order. What ours handled stands
/// in its log.
#[derive(Debug)]
pub struct Member {
    process: Process,
    /// Java's and ours: they close when this does.
    stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    log: PathBuf,
}

impl Member {
    /// Any other program that ends when its standard input does.
    pub fn other(name: &str, command: Command) -> Result<Self, String> {
        Self::spawn(name, command)
    }

    /// Kafka's own consumer; `assignors` by name, joined by commas.
    pub fn java(kafka: &Kafka, group: &str, topic: &str, assignors: &str) -> Result<Self, String> {
        let mut command = kafka
            .jars()
            .java("256m", &["-XX:TieredStopAtLevel=1"], "Agent")?;
        command.args(["consume", kafka.bootstrap(), group, topic, assignors]);
        Self::spawn("java-member", command)
    }

    /// The Confluent Parallel Consumer, ordered by key. Records of the keys in `held` fail again and
    /// again; for all others it says `record`, as Java's consumer does, when they are done.
    pub fn parallel(kafka: &Kafka, group: &str, topic: &str, held: &[u32]) -> Result<Self, String> {
        let held: Vec<String> = held.iter().map(u32::to_string).collect();
        let mut command = jars::parallel_consumer()?;
        command.args([kafka.bootstrap(), group, topic, &held.join(",")]);
        Self::spawn("parallel-consumer", command)
    }

    /// librdkafka's consumer. It prints key and value as they are.
    pub fn kcat(kafka: &Kafka, group: &str, topic: &str, assignors: &str) -> Result<Self, String> {
        let mut command = Command::new("kcat");
        command.args(["-b", kafka.bootstrap(), "-u", "-f", "record %p %o %k %s\\n"]);
        for setting in [
            "auto.offset.reset=earliest",
            "session.timeout.ms=6000",
            "heartbeat.interval.ms=500",
            "client.id=kcat-member",
            &format!("partition.assignment.strategy={assignors}"),
        ] {
            command.args(["-X", setting]);
        }
        command.args(["-G", group, topic]);
        Self::spawn("kcat-member", command)
    }

    /// Ours: `program` is `src/bin/member.rs`, `log` a new file for [`crate::handlings`], and the
    /// settings are `name=value` as its documentation lists them.
    pub fn ours(
        program: &str,
        kafka: &Kafka,
        group: &str,
        topic: &str,
        log: &Path,
        settings: &[String],
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command
            .args([kafka.bootstrap(), group, topic])
            .arg(log)
            .args(settings);
        Self::spawn("our-member", command)
    }

    /// The lines until now.
    pub fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How many records it was given until now.
    pub fn records(&self) -> usize {
        self.lines()
            .iter()
            .filter(|line| line.starts_with("record "))
            .count()
    }

    /// Waits until its lines are as wanted.
    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&[String]) -> bool,
    ) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !wanted(&self.lines()) {
            if let Some(status) = self.process.ended()? {
                return Err(format!(
                    "{what}: it ended ({status})\n{}",
                    process::tail(&self.log)
                ));
            }
            if Instant::now() >= end {
                return Err(format!(
                    "{what}: not after {limit:?}\n{}",
                    process::tail(&self.log)
                ));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// What Java's was given, as a life: each record starts and ends when it is printed, which is
    /// before its commit.
    pub fn java_life(&self) -> Result<Life, String> {
        let record = |line: &String| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [
                "record",
                nanos,
                partition,
                offset,
                _time,
                _key,
                value,
                _headers,
            ] = fields[..]
            else {
                return None;
            };
            let start = nanos.parse().ok()?;
            Some(Handling {
                partition: partition.parse().ok()?,
                offset: offset.parse().ok()?,
                record: Numbered::of(&unhex(value)?)?,
                start,
                end: Some(start),
            })
        };
        self.life("Java", record)
    }

    /// What librdkafka's was given. kcat does not say when: only what is there counts.
    pub fn kcat_life(&self) -> Result<Life, String> {
        let record = |line: &String| {
            let mut fields = line.splitn(5, ' ');
            let (_record, partition, offset, _key) = (
                fields.next()?,
                fields.next()?,
                fields.next()?,
                fields.next()?,
            );
            Some(Handling {
                partition: partition.parse().ok()?,
                offset: offset.parse().ok()?,
                record: Numbered::of(fields.next()?.as_bytes())?,
                start: 0,
                end: Some(0),
            })
        };
        self.life("kcat", record)
    }

    fn life(
        &self,
        who: &str,
        record: impl Fn(&String) -> Option<Handling>,
    ) -> Result<Life, String> {
        let mut life = Life::default();
        for line in self.lines() {
            if line.starts_with("record ") {
                life.handlings
                    .push(record(&line).ok_or_else(|| format!("{who} says {line:?}"))?);
            } else if line.starts_with("granted ") {
                life.grants
                    .push(granted(&line).ok_or_else(|| format!("{who} says {line:?}"))?);
            }
        }
        Ok(life)
    }

    /// One line to its standard input.
    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("its input has ended")?;
        writeln!(stdin, "{line}").map_err(|e| e.to_string())
    }

    /// Ends its standard input, so that it leaves; does not wait.
    pub fn leave(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal by its name without "SIG".
    pub fn signal(&self, signal: &str) -> Result<(), String> {
        self.process.signal(signal)
    }

    /// Whether it runs no more.
    pub fn has_ended(&mut self) -> Result<bool, String> {
        Ok(self.process.ended()?.is_some())
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        self.process.wait(limit)
    }

    /// What it has said on standard error.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Leaves the group in order; returns all of its lines.
    pub fn close(&mut self) -> Result<Vec<String>, String> {
        match self.stdin.take() {
            Some(stdin) => drop(stdin),
            None => self.process.signal("TERM")?,
        }
        self.process.wait(CLOSE_LIMIT)?;
        Ok(self.lines())
    }

    /// What it wrote beside its lines: warnings, and what ended its connections.
    #[must_use]
    pub fn remarks(&self) -> String {
        process::tail(&self.log)
    }

    /// `kill -9`: the group learns of it by the session's end.
    pub fn kill(&mut self) -> Result<(), String> {
        self.process.kill().map(|_| ())
    }

    fn spawn(name: &str, mut command: Command) -> Result<Self, String> {
        let log = process::scratch_folder("members")?.join(unique(name));
        let stderr = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut process = Process::spawn(name, &mut command)?;
        let stdin = process.take_stdin().filter(|_| name != "kcat-member");
        let stdout = process.take_stdout().ok_or("a member without output")?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        // Ends with the process; bounded by what a test produces.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                sink.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        Ok(Self {
            process,
            stdin,
            lines,
            log,
        })
    }
}

/// What a test with the Parallel Consumer needs.
pub fn parallel_consumer_is_there() -> Result<(), Missing> {
    crate::kafka::any()?;
    match jars::parallel_consumer() {
        Ok(_) => Ok(()),
        Err(why) => Err(Missing::Program("the Parallel Consumer", why)),
    }
}

/// What a test with a librdkafka member needs.
pub fn kcat_is_there() -> Result<(), Missing> {
    crate::kafka::any()?;
    match Command::new("kcat")
        .arg("-V")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
    {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Missing::Program("kcat", format!("kcat -V: {status}"))),
        Err(_) => Err(Missing::Program(
            "kcat",
            "not on the PATH (Debian package kcat)".to_owned(),
        )),
    }
}

/// Java's `granted NANOS PARTITION OFFSET`.
fn granted(line: &str) -> Option<Grant> {
    let mut fields = line.split(' ').skip(1);
    let time = fields.next()?.parse().ok()?;
    let partition = fields.next()?.parse().ok()?;
    Some(Grant {
        partition,
        offset: fields.next()?.parse().ok()?,
        time,
    })
}

/// The agent's bytes: `x` and hex digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix('x')?;
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|i| u8::from_str_radix(digits.get(i..i + 2)?, 16).ok())
        .collect()
}

const CLOSE_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
