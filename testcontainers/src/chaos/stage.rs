//! Plays a schedule on three nodes of its own.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::proxy::Proxy;
use super::report::{Account, Entry, Report};
use super::schedule::{Fault, Protocol, Schedule, Step};
use super::troupe::{Make, Troupe};
use super::verdict::Commit;
use crate::Kafka;
use crate::handlings::nanos;
use crate::jars;
use crate::kafka::Settings;
use crate::member::{Member, unhex};
use crate::process;
use laneway::settle::Map;

/// One run. Says whether all was as it must be.
pub fn play(seed: u64, lasts: Duration, schedule: &Schedule) -> Result<bool, String> {
    let kafka = Kafka::start_with(&settings())?;
    let proxy = Proxy::start(&kafka.ways(WAY))?;
    let topic = kafka.topic("chaos", PARTITIONS)?;
    let compacted = kafka.topic_with("compacted", COMPACTED_PARTITIONS, &COMPACTION)?;
    let ways = kafka.ways(WAY);
    let addresses: Vec<String> = ways
        .iter()
        .map(|(_, port, _)| format!("127.0.0.1:{port}"))
        .collect();
    let bootstrap = addresses.join(",");
    let troupe =
        |make, topic: &str, protocol| Troupe::new(&kafka, make, (topic, &bootstrap), protocol);
    let mut stage = Stage {
        kafka: &kafka,
        proxy,
        producer: Mutex::new(producer(&kafka, &topic, &compacted, seed)?),
        topic: topic.clone(),
        partitions: PARTITIONS,
        nodes: NODES,
        journal: Mutex::default(),
    };
    let mut ours = troupe(Make::Ours, &topic, schedule.protocol);
    let mut java = troupe(Make::Java, &topic, schedule.protocol);
    let mut reader = troupe(Make::Ours, &compacted, Protocol::Consumer);
    for troupe in [&mut ours, &mut java] {
        for _ in 0..MEMBERS {
            troupe.enter()?;
        }
    }
    reader.enter()?;
    until("every group has its partitions", READY_LIMIT, || {
        let all = PARTITIONS as usize;
        ours.has_been_granted(all)
            && java.has_been_granted(all)
            && reader.has_been_granted(COMPACTED_PARTITIONS as usize)
    })?;
    println!(
        "seed {seed}: {} groups, {NODES} nodes, {PARTITIONS} partitions, {} and {} faults in {lasts:?}",
        schedule.protocol.name(),
        schedule.members.len(),
        schedule.brokers.len()
    );
    let (began, from) = (Instant::now(), nanos());
    stage.run(schedule, began, (&mut ours, &mut java), &mut reader)?;
    if let Some(rest) = (began + lasts).checked_duration_since(Instant::now()) {
        thread::sleep(rest);
    }
    ours.look()?;
    java.look()?;
    reader.look()?;
    let until = nanos();
    let produced = stage.produced()?;
    let drained = stage.drained(&ours, &java, &reader, &produced);
    let account = Account {
        seed,
        from,
        until,
        partitions: (PARTITIONS, stage.partitions),
        journal: stage.entries(),
        commits: commits(&kafka, &ours)?,
        ends: ends(&kafka, &topic)?,
        expected: counts(&produced, &topic)?,
        kept: counts(&produced, &compacted)?,
        ours: ours.end()?,
        java: java.end()?,
        reader: reader.end()?,
        survivors: survivors(&kafka, &compacted)?,
        reader_done: is_done(&kafka, &reader),
        errors: {
            let mut errors = ours.errors.split_off(0);
            errors.extend(reader.errors.split_off(0));
            errors.extend(drained.err());
            errors
        },
        java_errors: java.errors.split_off(0),
    };
    Ok(Report::of(account).print())
}

struct Stage<'a> {
    kafka: &'a Kafka,
    proxy: Proxy,
    producer: Mutex<Member>,
    topic: String,
    partitions: u32,
    nodes: usize,
    journal: Mutex<Vec<Entry>>,
}

impl Stage<'_> {
    /// Both lists side by side, to their ends.
    fn run<'t>(
        &mut self,
        schedule: &Schedule,
        began: Instant,
        troupes: (&mut Troupe<'t>, &mut Troupe<'t>),
        reader: &mut Troupe<'_>,
    ) -> Result<(), String> {
        let group = troupes.0.group.clone();
        let partitions = Mutex::new(self.partitions);
        let stage = &*self;
        let results = thread::scope(|scope| {
            let members = scope.spawn(|| -> Result<(), String> {
                let (ours, java) = troupes;
                for step in &schedule.members {
                    stage.step(began, step, || stage.on_members(step, ours, java))?;
                    ours.look()?;
                    java.look()?;
                }
                Ok(())
            });
            let brokers = scope.spawn(|| -> Result<(), String> {
                for step in &schedule.brokers {
                    stage.step(began, step, || {
                        stage.on_brokers(step, &group, &partitions, reader)
                    })?;
                    reader.look()?;
                }
                Ok(())
            });
            [members.join(), brokers.join()]
        });
        for result in results {
            result.map_err(|_| "a list of faults panicked".to_owned())??;
        }
        self.partitions = partitions
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(())
    }

    /// Waits for its time, does it, and writes it down.
    fn step(
        &self,
        began: Instant,
        step: &Step,
        act: impl FnOnce() -> Result<String, String>,
    ) -> Result<(), String> {
        if let Some(early) = (began + step.at).checked_duration_since(Instant::now()) {
            thread::sleep(early);
        }
        let (from, at) = (nanos(), began.elapsed());
        let name = step.fault.name();
        let detail = act().map_err(|e| format!("{name}: {e}"))?;
        let until = nanos();
        let took = Duration::from_nanos((until - from) as u64);
        println!(
            "  +{:6.1} s  {:6.1} s  {name}: {detail}",
            at.as_secs_f64(),
            took.as_secs_f64()
        );
        let entry = Entry { name, from, until };
        self.journal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry);
        Ok(())
    }

    fn on_members<'t>(
        &self,
        step: &Step,
        ours: &mut Troupe<'t>,
        java: &mut Troupe<'t>,
    ) -> Result<String, String> {
        let pick = step.pick;
        let mut both = [ours, java];
        match step.fault {
            Fault::Join if both[0].members() < MEMBERS_MAX => {
                both.iter_mut().try_for_each(|troupe| troupe.enter())?;
            }
            // Full, or too few: the other way round.
            Fault::Leave if both[0].members() <= MEMBERS_MIN => {
                both.iter_mut().try_for_each(|troupe| troupe.enter())?;
                return Ok(format!("joined instead, now {}", both[0].members()));
            }
            Fault::Join | Fault::Leave => {
                both.iter_mut().for_each(|troupe| troupe.leave(pick));
                both.iter_mut().for_each(|troupe| troupe.left());
            }
            Fault::Kill => {
                for troupe in &mut both {
                    troupe.kill(pick)?;
                    troupe.enter()?;
                }
            }
            Fault::Freeze(lasts) => {
                both.iter_mut().try_for_each(|troupe| troupe.freeze(pick))?;
                thread::sleep(lasts);
                both.iter_mut().try_for_each(|troupe| troupe.thaw())?;
                return Ok(format!("{lasts:?}"));
            }
            Fault::Roll => {
                let mut slow = 0;
                for _ in 0..both[0].members() {
                    // The oldest stands first, and new ones come last.
                    both.iter_mut().for_each(|troupe| troupe.leave(0));
                    both.iter_mut().for_each(|troupe| troupe.left());
                    both.iter_mut().try_for_each(|troupe| troupe.enter())?;
                    let works = |troupe: &mut &mut Troupe<'t>| troupe.last_has_work(WORK_LIMIT);
                    slow += both.iter_mut().map(works).filter(|works| !works).count();
                }
                return Ok(format!("{} each, {slow} without work", both[0].members()));
            }
            Fault::Cut => return Ok(format!("{} connections", self.proxy.cut())),
            Fault::Delay { by, lasts } => {
                self.proxy.delay(by);
                thread::sleep(lasts);
                self.proxy.delay(Duration::ZERO);
                return Ok(format!("{by:?} each way for {lasts:?}"));
            }
            Fault::Mute { lasts, cuts } => {
                let node = 1 + pick % self.nodes;
                self.proxy.mute(node);
                thread::sleep(lasts);
                self.proxy.unmute(node, cuts);
                return Ok(format!("node {node} for {lasts:?}"));
            }
            _ => return Err("not done to members".to_owned()),
        }
        Ok(format!("now {}", both[0].members()))
    }

    fn on_brokers(
        &self,
        step: &Step,
        group: &str,
        partitions: &Mutex<u32>,
        reader: &mut Troupe<'_>,
    ) -> Result<String, String> {
        let node = 1 + step.pick % self.nodes;
        match step.fault {
            Fault::KillNode { coordinator, down } => {
                let node = self.chosen(coordinator, group).unwrap_or(node);
                self.kafka.kill(node)?;
                thread::sleep(down);
                self.kafka.up(node)?;
                self.in_step(&format!("node {node}, down for {down:?}"))
            }
            Fault::FreezeNode { coordinator, lasts } => {
                let node = self.chosen(coordinator, group).unwrap_or(node);
                self.kafka.freeze(node)?;
                thread::sleep(lasts);
                self.kafka.thaw(node)?;
                self.in_step(&format!("node {node} for {lasts:?}"))
            }
            Fault::RestartNode => self.restarted(node),
            Fault::RollNodes => {
                let all: Result<Vec<String>, String> =
                    (1..=self.nodes).map(|node| self.restarted(node)).collect();
                Ok(all?.join("; "))
            }
            Fault::Grow => {
                let mut now = partitions.lock().unwrap_or_else(PoisonError::into_inner);
                let more = (*now + 1 + step.pick as u32 % 2).min(PARTITIONS_MAX);
                if more > *now {
                    self.kafka.ask(&format!("grow {} {more}", self.topic))?;
                    // As in `Kafka::topic_with`: each leader must have answered first.
                    until("new partitions have leaders", READY_LIMIT, || {
                        let ends = self.kafka.ends(&self.topic);
                        ends.is_ok_and(|ends| ends.len() == more as usize)
                    })?;
                    self.lock_producer().tell(&more.to_string())?;
                    *now = more;
                }
                Ok(format!("now {more}"))
            }
            Fault::Move => {
                self.kafka.ask(&format!("move {}", self.topic))?;
                self.in_step("every one")
            }
            Fault::Compact => self.compacted(reader),
            _ => Err("not done to brokers".to_owned()),
        }
    }

    fn chosen(&self, coordinator: bool, group: &str) -> Option<usize> {
        let lines = self.kafka.ask(&format!("coordinator {group}"));
        let lines = coordinator.then_some(lines)?.ok()?;
        lines.first()?.parse().ok()
    }

    fn restarted(&self, node: usize) -> Result<String, String> {
        self.kafka.stop(node)?;
        self.kafka.up(node)?;
        self.in_step(&format!("node {node}"))
    }

    /// No second node is hurt before every copy is in step again: then nothing could be written.
    fn in_step(&self, detail: &str) -> Result<String, String> {
        until("every copy is in step", IN_STEP_LIMIT, || {
            let behind = self.kafka.ask("behind");
            behind.is_ok_and(|lines| lines.first().is_some_and(|n| n == "0"))
        })?;
        Ok(detail.to_owned())
    }

    /// The reader stands still while all that is in the topic now is compacted: it goes on in what
    /// has become holes.
    fn compacted(&self, reader: &mut Troupe<'_>) -> Result<String, String> {
        let began = Instant::now();
        reader.freeze(0)?;
        let ends = self.kafka.ends(&reader.topic)?;
        let cleaned = until("the topic is compacted", COMPACT_LIMIT, || {
            (1..=self.nodes).all(|node| self.cleaned(node, &reader.topic, &ends))
        });
        reader.thaw()?;
        Ok(match cleaned {
            Ok(()) => format!("all of it, in {:.1?}", began.elapsed()),
            Err(e) => e,
        })
    }

    /// Whether a node's cleaner has passed these ends.
    fn cleaned(&self, node: usize, topic: &str, ends: &[(i32, i64, i64)]) -> bool {
        let data = self.kafka.folder().join(format!("data-{node}"));
        let text = fs::read_to_string(data.join("cleaner-offset-checkpoint")).unwrap_or_default();
        let passed = |&(partition, _, end): &(i32, i64, i64)| {
            let line = format!("{topic} {partition} ");
            let found = text.lines().find_map(|l| l.strip_prefix(&line));
            found.is_some_and(|offset| offset.parse::<i64>().is_ok_and(|at| at >= end))
        };
        ends.iter().all(passed)
    }

    /// Ends the producer; its lines: topic, key, count.
    fn produced(&self) -> Result<Vec<String>, String> {
        let mut producer = self.lock_producer();
        producer.leave();
        let status = producer.wait(PRODUCED_LIMIT)?;
        let log = process::tail(producer.log());
        if !status.success() {
            return Err(format!("the producer ended with {status}\n{log}"));
        }
        // The lines' reader may be a moment behind the process.
        until("the producer's last line", PRODUCED_LIMIT, || {
            producer.lines().last().is_some_and(|line| line == "all")
        })?;
        let mut lines = producer.lines();
        lines.pop();
        Ok(lines)
    }

    /// Ours must be done in time; Java's may be.
    fn drained(
        &self,
        ours: &Troupe<'_>,
        java: &Troupe<'_>,
        reader: &Troupe<'_>,
        produced: &[String],
    ) -> Result<(), String> {
        let began = Instant::now();
        let what = format!("{} keys' records are committed", produced.len());
        let result = until(&what, DRAIN_LIMIT, || {
            is_done(self.kafka, ours) && is_done(self.kafka, reader)
        });
        let took = began.elapsed();
        let theirs = until("java", DRAIN_LIMIT.saturating_sub(took), || {
            is_done(self.kafka, java)
        });
        println!(
            "  drained in {took:.1?}; Java's {}",
            match theirs {
                Ok(()) => format!("in {:.1?}", began.elapsed()),
                Err(_) => "not".to_owned(),
            }
        );
        result
    }

    fn entries(&self) -> Vec<Entry> {
        let journal = self.journal.lock();
        journal.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock_producer(&self) -> std::sync::MutexGuard<'_, Member> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn settings() -> Settings {
    let mut settings = Settings::new(NODES);
    settings.listeners.push((WAY, "PLAINTEXT"));
    settings.apart.push(WAY);
    for (name, value) in [
        ("group.consumer.min.session.timeout.ms", "1000"),
        ("group.consumer.session.timeout.ms", "6000"),
        ("group.consumer.min.heartbeat.interval.ms", "500"),
        ("group.consumer.heartbeat.interval.ms", "1000"),
        // A dead node is noticed within a run's patience.
        ("broker.session.timeout.ms", "4000"),
        ("broker.heartbeat.interval.ms", "1000"),
        ("replica.lag.time.max.ms", "6000"),
    ] {
        settings.properties.push((name, value.to_owned()));
    }
    settings
}

fn producer(kafka: &Kafka, topic: &str, compacted: &str, seed: u64) -> Result<Member, String> {
    let mut command = jars::chaos(kafka.jars())?;
    command.args(["produce", kafka.bootstrap(), topic, compacted]);
    let numbers = [PARTITIONS, COMPACTED_PARTITIONS, KEYS, RATE];
    command.args(numbers.map(|n| n.to_string()));
    command.arg(seed.to_string());
    Member::other("producer", command)
}

/// Whether all of its topic is committed.
fn is_done(kafka: &Kafka, troupe: &Troupe<'_>) -> bool {
    let (Ok(ends), Ok(committed)) = (
        kafka.ends(&troupe.topic),
        kafka.committed(&troupe.group, &troupe.topic),
    ) else {
        return false;
    };
    let committed: BTreeMap<i32, i64> = committed.into_iter().collect();
    let at = |partition| committed.get(&partition).copied().unwrap_or(0);
    ends.iter().all(|&(partition, _, end)| at(partition) == end)
}

fn ends(kafka: &Kafka, topic: &str) -> Result<BTreeMap<i32, i64>, String> {
    let ends = kafka.ends(topic)?;
    Ok(ends.iter().map(|&(p, _, end)| (p, end)).collect())
}

/// Key and count, of one topic.
fn counts(produced: &[String], topic: &str) -> Result<Vec<(u32, u32)>, String> {
    let of = produced.iter().filter_map(|line| line.split_once(' '));
    let lines: Vec<String> = of
        .filter(|(name, _)| *name == topic)
        .map(|(_, rest)| rest.to_owned())
        .collect();
    crate::handlings::expected(&lines)
}

/// Every commit of ours that Kafka stored.
fn commits(kafka: &Kafka, troupe: &Troupe<'_>) -> Result<Vec<Commit>, String> {
    let mut command = jars::chaos(kafka.jars())?;
    command.args(["commits", kafka.bootstrap(), &troupe.group]);
    let output = command.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the commits could not be read: {why}"));
    }
    let commit = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_topic, partition, offset, millis, metadata] = fields[..] else {
            return None;
        };
        let metadata = String::from_utf8(unhex(metadata)?).ok()?;
        Some(Commit {
            partition: partition.parse().ok()?,
            map: Map::read(offset.parse().ok()?, &metadata).ok()?,
            time: millis.parse::<u128>().ok()? * 1_000_000,
        })
    };
    text.lines()
        .map(|line| commit(line).ok_or_else(|| format!("a commit says {line:?}")))
        .collect()
}

/// What is left in a compacted topic: partition and offset.
fn survivors(kafka: &Kafka, topic: &str) -> Result<Vec<(i32, i64)>, String> {
    let parse = |line: &String| {
        let mut fields = line.split(' ');
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let lines = kafka.ask(&format!("read {topic} read_uncommitted"))?;
    lines
        .iter()
        .map(|line| parse(line).ok_or_else(|| format!("read answered {line:?}")))
        .collect()
}

fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + limit;
    while !is_so() {
        if Instant::now() >= end {
            return Err(format!("not in {limit:?}: {what}"));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

const NODES: usize = 3;
const PARTITIONS: u32 = 12;
/// As many as the topic grows to.
const PARTITIONS_MAX: u32 = 24;
const COMPACTED_PARTITIONS: u32 = 2;
/// Of each partition.
const KEYS: u32 = 20;
/// Records a second, of which every fifth goes to the compacted topic.
const RATE: u32 = 600;
const MEMBERS: usize = 3;
const MEMBERS_MIN: usize = 2;
const MEMBERS_MAX: usize = 4;
/// The listener that members are told of.
const WAY: &str = "WAY";
const COMPACTION: [&str; 4] = [
    "cleanup.policy=compact",
    "segment.ms=1000",
    "min.cleanable.dirty.ratio=0.01",
    "max.compaction.lag.ms=1000",
];
const READY_LIMIT: Duration = Duration::from_secs(90);
/// A member that has come is given something.
const WORK_LIMIT: Duration = Duration::from_secs(20);
const IN_STEP_LIMIT: Duration = Duration::from_secs(90);
const COMPACT_LIMIT: Duration = Duration::from_secs(30);
const PRODUCED_LIMIT: Duration = Duration::from_secs(60);
/// From the last fault to the last commit.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
