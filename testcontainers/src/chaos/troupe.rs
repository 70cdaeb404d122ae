//! The members of one group, ours or Java's: who plays now, and who has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::schedule::{Protocol, SESSION};
use super::verdict::Trace;
use crate::Kafka;
use crate::handlings::{Life, nanos};
use crate::jars;
use crate::kafka::unique;
use crate::member::Member;
use crate::process;

/// Whose members these are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Make {
    /// This process, run as one: see [`super::main`].
    Ours,
    /// `java/Chaos.java`.
    Java,
}

/// A group's members.
#[derive(Debug)]
pub struct Troupe<'a> {
    kafka: &'a Kafka,
    make: Make,
    /// Its name.
    pub group: String,
    /// What it reads.
    pub topic: String,
    /// Where its members find the brokers.
    bootstrap: String,
    protocol: Protocol,
    playing: Vec<Player>,
    past: Vec<Player>,
    /// What went wrong with a member.
    pub errors: Vec<String>,
}

#[derive(Debug)]
struct Player {
    name: String,
    process: Member,
    log: PathBuf,
    frozen: Vec<(u128, u128)>,
}

impl<'a> Troupe<'a> {
    /// Nobody yet.
    pub fn new(
        kafka: &'a Kafka,
        make: Make,
        (topic, bootstrap): (&str, &str),
        protocol: Protocol,
    ) -> Self {
        let hint = if make == Make::Ours { "ours" } else { "java" };
        Self {
            kafka,
            make,
            group: unique(hint),
            topic: topic.to_owned(),
            bootstrap: bootstrap.to_owned(),
            protocol,
            playing: Vec::new(),
            past: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// How many play.
    pub fn members(&self) -> usize {
        self.playing.len()
    }

    /// One more; half of ours drain when they leave, the others drop what has not started.
    pub fn enter(&mut self) -> Result<(), String> {
        let number = self.past.len() + self.playing.len();
        let name = format!("{}-{number}", self.group);
        let log = process::scratch_folder("lives")?.join(&name);
        let session = SESSION.as_millis().to_string();
        let process = match self.make {
            Make::Ours => {
                let program = std::env::current_exe().map_err(|e| e.to_string())?;
                let mut command = Command::new(program);
                let settings = [
                    format!("lanes={LANES}"),
                    format!("work-us={WORK_US}"),
                    "commit-ms=200".to_owned(),
                    format!("session-ms={session}"),
                    format!(
                        "end={}",
                        if number.is_multiple_of(2) {
                            "drain"
                        } else {
                            "close"
                        }
                    ),
                    self.protocol.setting().to_owned(),
                ];
                command
                    .args(["member", &self.bootstrap, &self.group, &self.topic])
                    .arg(&log)
                    .args(settings);
                Member::other(&name, command)?
            }
            Make::Java => {
                let mut command = jars::chaos(self.kafka.jars())?;
                command
                    .args(["consume", &self.bootstrap, &self.group, &self.topic])
                    .arg(&log)
                    .args([self.protocol.name(), &session]);
                Member::other(&name, command)?
            }
        };
        self.playing.push(Player {
            name,
            process,
            log,
            frozen: Vec::new(),
        });
        Ok(())
    }

    /// Asks one to leave; [`Troupe::left`] waits for it.
    pub fn leave(&mut self, pick: usize) {
        if self.playing.is_empty() {
            return;
        }
        let mut player = self.playing.remove(pick % self.playing.len());
        player.process.leave();
        self.past.push(player);
    }

    /// Waits for the one that was asked last.
    pub fn left(&mut self) {
        let Some(player) = self.past.last_mut() else {
            return;
        };
        let error = match player.process.wait(LEAVE_LIMIT) {
            Ok(status) if status.success() => return,
            Ok(status) => format!("left with {status}"),
            Err(e) => {
                let _ = player.process.kill();
                e
            }
        };
        let log = process::tail(player.process.log());
        self.errors.push(format!("{}: {error}\n{log}", player.name));
    }

    /// `kill -9` of one.
    pub fn kill(&mut self, pick: usize) -> Result<(), String> {
        if self.playing.is_empty() {
            return Ok(());
        }
        let mut player = self.playing.remove(pick % self.playing.len());
        let killed = player.process.kill();
        self.past.push(player);
        killed
    }

    /// One stands still from now on.
    pub fn freeze(&mut self, pick: usize) -> Result<(), String> {
        let n = self.playing.len();
        match self.playing.get_mut(pick % n.max(1)) {
            Some(player) => {
                player.frozen.push((nanos(), u128::MAX));
                player.process.signal("STOP")
            }
            None => Ok(()),
        }
    }

    /// Whoever stands still goes on.
    pub fn thaw(&mut self) -> Result<(), String> {
        for player in &mut self.playing {
            if let Some((_, until)) = player.frozen.last_mut()
                && *until == u128::MAX
            {
                *until = nanos();
                player.process.signal("CONT")?;
            }
        }
        Ok(())
    }

    /// Whether those that play have been granted so many partitions in all, ever.
    pub fn has_been_granted(&self, partitions: usize) -> bool {
        let grants = self.playing.iter().map(|player| grants(&player.log));
        grants.sum::<usize>() >= partitions
    }

    /// Waits until the one that entered last has been given something.
    pub fn last_has_work(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            match self.playing.last() {
                Some(player) if grants(&player.log) == 0 => {}
                _ => return true,
            }
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(POLL);
        }
    }

    /// Those that ended without being told to, and the one that a new one is put in its place.
    pub fn look(&mut self) -> Result<(), String> {
        let mut gone = Vec::new();
        for (i, player) in self.playing.iter_mut().enumerate() {
            if player.process.has_ended()? {
                gone.push(i);
            }
        }
        for i in gone.into_iter().rev() {
            let player = self.playing.remove(i);
            let log = process::tail(player.process.log());
            self.errors
                .push(format!("{} ended by itself\n{log}", player.name));
            self.past.push(player);
            self.enter()?;
        }
        Ok(())
    }

    /// All leave in order; every life of the group, in the order of entering.
    pub fn end(&mut self) -> Result<Vec<Trace>, String> {
        let first = self.past.len();
        while !self.playing.is_empty() {
            self.leave(0);
        }
        let all = self.past.len();
        // One by one, though all are leaving by now.
        for i in first..all {
            self.past.swap(i, all - 1);
            self.left();
            self.past.swap(i, all - 1);
        }
        let stopped = |player: &Player| {
            let lines = player.process.lines();
            let stops = lines.iter().filter(|line| line.starts_with("stopped"));
            let stops = stops.map(|line| format!("{}: {line}", player.name));
            let said = fs::read_to_string(player.process.log()).unwrap_or_default();
            let bad = said
                .lines()
                .filter(|line| line.contains("DataLoss") || line.contains("panicked"));
            let bad = bad.map(|line| format!("{}: {line}", player.name));
            stops.chain(bad).collect::<Vec<_>>()
        };
        let stopped = self.past.iter().flat_map(stopped).collect::<Vec<_>>();
        self.errors.extend(stopped);
        let trace = |player: &Player| {
            // One that was killed while it started has left nothing.
            let life = match fs::exists(&player.log) {
                Ok(true) => Life::read(&player.log)?,
                _ => Life::default(),
            };
            Ok(Trace {
                name: player.name.clone(),
                life,
                frozen: player.frozen.clone(),
            })
        };
        self.past.iter().map(trace).collect()
    }
}

/// How many partitions a member has been granted since it began.
fn grants(log: &Path) -> usize {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("grant "))
        .count()
}

/// Of each of our members.
pub const LANES: usize = 16;
/// A handling takes up to so long.
const WORK_US: u32 = 2000;
/// A member that drains while its brokers are away waits for them.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
