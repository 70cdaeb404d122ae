//! What a run comes to: the verdict, and the table of figures.

use std::collections::{BTreeMap, HashSet};

use super::figures::{Progress, Stall, percentile};
use super::troupe::LANES;
use super::verdict::{self, Commit, Trace};
use crate::handlings::{Life, Numbered};
use crate::judge;

/// A fault that was.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is called in the table.
    pub name: &'static str,
    /// When it began: nanoseconds of the machine's clock.
    pub from: u128,
    /// When it was over.
    pub until: u128,
}

/// All that was written down.
pub struct Account {
    /// Of the schedule.
    pub seed: u64,
    /// When the faults began.
    pub from: u128,
    /// When the producer was told to end.
    pub until: u128,
    /// At the start, and in the end.
    pub partitions: (u32, u32),
    /// The faults.
    pub journal: Vec<Entry>,
    /// Of our group.
    pub commits: Vec<Commit>,
    /// Of the topic.
    pub ends: BTreeMap<i32, i64>,
    /// Of each key.
    pub expected: Vec<(u32, u32)>,
    /// Of each key of the compacted topic.
    pub kept: Vec<(u32, u32)>,
    /// Lives.
    pub ours: Vec<Trace>,
    /// Lives.
    pub java: Vec<Trace>,
    /// Lives of the compacted topic's reader.
    pub reader: Vec<Trace>,
    /// What is left in the compacted topic.
    pub survivors: Vec<(i32, i64)>,
    /// All of the compacted topic was committed.
    pub reader_done: bool,
    /// What went wrong with our members on the way.
    pub errors: Vec<String>,
    /// The same of Java's.
    pub java_errors: Vec<String>,
}

/// What is printed.
pub struct Report {
    lines: Vec<String>,
    errors: Vec<String>,
}

impl Report {
    /// Judges a run.
    pub fn of(account: Account) -> Self {
        let mut report = Report {
            lines: Vec::new(),
            errors: account.errors.clone(),
        };
        report.stalls(&account);
        report.ours(&account);
        report.java(&account);
        report.reader(&account);
        report
    }

    /// Says whether all was as it must be.
    pub fn print(self) -> bool {
        for line in &self.lines {
            println!("{line}");
        }
        for error in &self.errors {
            println!("WRONG: {error}");
        }
        println!(
            "{}",
            match self.errors.len() {
                0 => "all is as it must be".to_owned(),
                n => format!("{n} things are wrong"),
            }
        );
        self.errors.is_empty()
    }

    fn stalls(&mut self, account: &Account) {
        let (ours, java) = (progress(&account.ours), progress(&account.java));
        let mut of: BTreeMap<&str, Vec<[Stall; 2]>> = BTreeMap::new();
        let mut all = Vec::new();
        for entry in &account.journal {
            let to = (entry.until + AFTER).min(account.until);
            let stalls = [ours.stall(entry.from, to), java.stall(entry.from, to)];
            of.entry(entry.name).or_default().push(stalls);
            all.push(stalls);
        }
        self.lines.push(format!(
            "\nseconds without a record done, from the fault to {} s after it: 50 and 99 of 100, most",
            AFTER / SECOND
        ));
        self.lines.push(format!(
            "{:30} {:>3}  {:^23}  {:^23}  {:^23}  {:^23}",
            "", "n", "ours, group", "Java, group", "ours, worst partition", "Java, worst partition"
        ));
        for (name, stalls) in of.iter().chain([(&"all faults", &all)]) {
            let picks: [fn(&[Stall; 2]) -> u128; 4] = [
                |s| s[0].group,
                |s| s[1].group,
                |s| s[0].partition,
                |s| s[1].partition,
            ];
            let cells = picks.map(|pick| {
                let mut values: Vec<u128> = stalls.iter().map(pick).collect();
                values.sort_unstable();
                let of = |percent| seconds(percentile(&values, percent));
                format!("{:7.2} {:7.2} {:7.2}", of(50), of(99), of(100))
            });
            self.lines.push(format!(
                "{name:30} {:3}  {}",
                stalls.len(),
                cells.join("  ")
            ));
        }
    }

    fn ours(&mut self, account: &Account) {
        let verdict = verdict::of_ours(
            &account.ours,
            &account.commits,
            &account.expected,
            &account.ends,
            LANES,
        );
        let produced: u32 = account.expected.iter().map(|(_, count)| count).sum();
        let (first, last) = account.partitions;
        self.lines.push(format!(
            "\nseed {}: {} faults in {:.0} s, {first} to {last} partitions, {produced} records produced",
            account.seed,
            account.journal.len(),
            seconds(account.until - account.from)
        ));
        self.lines.push(format!(
            "ours: {} lives, {} handled, lost {}, handled twice {} (in flight {}, else settled since the last \
             commit; at most {} ms before it was stored)",
            account.ours.len(),
            verdict.handled,
            produced as usize - verdict.handled.min(produced as usize),
            verdict.repeated,
            verdict.in_flight,
            verdict.stale / MILLISECOND
        ));
        self.lines.push(format!(
            "      {} commits; under lost leases: {} runs overlapped a newer one, {} began after a newer owner's",
            verdict.commits, verdict.overlaps, verdict.late
        ));
        self.errors.extend(verdict.errors);
    }

    fn java(&mut self, account: &Account) {
        let lives: Vec<Life> = account.java.iter().map(|t| t.life.clone()).collect();
        let lost = judge::nothing_lost(&lives, &account.expected);
        self.lines.push(format!(
            "Java: {} lives, {}, handled twice {}",
            lives.len(),
            match lost {
                Ok(()) => "lost 0".to_owned(),
                Err(e) => format!("LOST: {e}"),
            },
            verdict::repeated(&lives)
        ));
        for error in &account.java_errors {
            self.lines.push(format!("      {error}"));
        }
    }

    /// Every record that is left was handled, each key's newest too, and each grant's in order.
    fn reader(&mut self, account: &Account) {
        let mut wrong = Vec::new();
        let lives = || account.reader.iter().map(|trace| &trace.life);
        let places: HashSet<(i32, i64)> = lives()
            .flat_map(Life::ended)
            .map(|h| (h.partition, h.offset))
            .collect();
        let records: HashSet<Numbered> = lives().flat_map(Life::ended).map(|h| h.record).collect();
        let left_out = account.survivors.iter().filter(|at| !places.contains(at));
        let left_out: Vec<_> = left_out.take(SHOWN_MAX).collect();
        if !left_out.is_empty() {
            wrong.push(format!("compacted: not handled: {left_out:?}"));
        }
        for &(key, count) in &account.kept {
            let sequence = count.saturating_sub(1);
            if !records.contains(&Numbered { key, sequence }) {
                wrong.push(format!("compacted: key {key} has {sequence}, not handled"));
            }
        }
        for life in lives() {
            let mut last: BTreeMap<(u128, u32), u32> = BTreeMap::new();
            for handling in &life.handlings {
                let grant = judge::grant_of(life, handling).map_or(0, |grant| grant.time);
                let Numbered { key, sequence } = handling.record;
                if let Some(before) = last.insert((grant, key), sequence)
                    && before >= sequence
                {
                    wrong.push(format!("compacted: {before}, then {handling:?}"));
                }
            }
        }
        if !account.reader_done {
            wrong.push("compacted: not all of it is committed".to_owned());
        }
        let produced: u32 = account.kept.iter().map(|(_, count)| count).sum();
        self.lines.push(format!(
            "compacted topic: {produced} produced, {} left, {} handled, lost {}",
            account.survivors.len(),
            places.len(),
            left_out.len()
        ));
        wrong.truncate(SHOWN_MAX);
        self.errors.append(&mut wrong);
    }
}

fn progress(traces: &[Trace]) -> Progress {
    let done = traces.iter().flat_map(|trace| trace.life.ended());
    Progress::of(done.filter_map(|h| Some((h.partition, h.end?))))
}

fn seconds(nanos: u128) -> f64 {
    nanos as f64 / SECOND as f64
}

const MILLISECOND: u128 = 1_000_000;
const SECOND: u128 = 1000 * MILLISECOND;
/// A fault may take effect so late: a session ends after 6 s.
const AFTER: u128 = 10 * SECOND;
/// Of each kind of error.
const SHOWN_MAX: usize = 5;
