//! Judges a run by what its members logged and by every commit that Kafka stored.
//!
//! 1. Every record was handled, and all of it is committed at the end.
//! 2. No commit ever covered a record that had not been handled by then (promise 1), and no commit
//!    went back.
//! 3. Within a grant a key's records run one at a time, in order, and each grant goes on where all
//!    before was done, by whomever.
//! 4. Two runs of a key overlap only where the first ran under a lease that its member lost.
//! 5. A member starts nothing in a partition that another one has begun to work on; but for what
//!    was between the look at the clock and the handler when it was frozen: at most a lane's record
//!    for each lane and freeze.
//! 6. What ran again was not covered by the last commit before the grant under which it did, and
//!    had settled after that commit was made.

use std::collections::{BTreeMap, HashMap};

use laneway::settle::Map;

use crate::handlings::{Grant, Handling, Life};
use crate::judge::{self, Done};

/// A life, and what was done to it.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// For messages.
    pub name: String,
    /// What it logged.
    pub life: Life,
    /// From when to when it stood still.
    pub frozen: Vec<(u128, u128)>,
}

/// A commit as Kafka has stored it.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Of which partition.
    pub partition: i32,
    /// The offset, and what had settled above it.
    pub map: Map,
    /// When: nanoseconds of the machine's clock, cut to milliseconds.
    pub time: u128,
}

/// The figures of a group, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Distinct records that were handled to their end.
    pub handled: usize,
    /// Handlings beyond the first of a record.
    pub repeated: usize,
    /// Of these, where the first run had not ended when the commit was made: in flight.
    pub in_flight: usize,
    /// The longest that a repeated record had been settled before the last commit was stored.
    pub stale: u128,
    /// Runs of a key that overlapped an earlier one under a lost lease.
    pub overlaps: usize,
    /// Starts under a lease that was another's already.
    pub late: usize,
    /// Commits looked at.
    pub commits: usize,
    /// What must not be.
    pub errors: Vec<String>,
}

impl Verdict {
    fn wrong(&mut self, what: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(what);
        }
    }
}

/// Of our group. `expected` is what the producer counted of each key, `ends` each partition's end.
pub fn of_ours(
    traces: &[Trace],
    commits: &[Commit],
    expected: &[(u32, u32)],
    ends: &BTreeMap<i32, i64>,
    lanes: usize,
) -> Verdict {
    let done = Done::of(traces.iter().map(|trace| &trace.life));
    let mut verdict = Verdict {
        handled: done.offsets.len(),
        commits: commits.len(),
        ..Verdict::default()
    };
    if let Err(lost) = judge::nothing_lost(traces.iter().map(|trace| &trace.life), expected) {
        verdict.wrong(lost);
    }
    let below = Below::of(&done, ends);
    commits_are_true(&mut verdict, commits, &below);
    all_is_committed(&mut verdict, commits, ends);
    grants_go_on(&mut verdict, traces, &done, &below);
    let all = Run::all(traces);
    overlaps(&mut verdict, &all);
    late_starts(&mut verdict, &all, lanes);
    repeats(&mut verdict, &all, commits);
    verdict
}

/// How many handlings were not the first of their record, whoever's they are.
pub fn repeated(lives: &[Life]) -> usize {
    let mut seen = std::collections::HashSet::new();
    let all = lives.iter().flat_map(|life| &life.handlings);
    all.filter(|h| !seen.insert((h.partition, h.offset)))
        .count()
}

/// By which time each offset, and all below it, had been handled.
struct Below(BTreeMap<i32, Vec<(u128, u128)>>);

impl Below {
    fn of(done: &Done, ends: &BTreeMap<i32, i64>) -> Self {
        let of = |(&partition, &end): (&i32, &i64)| {
            let mut all = 0;
            let times = (0..end).map(|offset| {
                let this = done.offsets.get(&(partition, offset));
                let this = this.copied().unwrap_or(u128::MAX);
                all = this.max(all);
                (this, all)
            });
            (partition, times.collect())
        };
        Self(ends.iter().map(of).collect())
    }

    fn at(&self, partition: i32, offset: i64) -> (u128, u128) {
        let times = self.0.get(&partition);
        let found = times.and_then(|times| times.get(usize::try_from(offset).ok()?));
        found.copied().unwrap_or((u128::MAX, u128::MAX))
    }

    /// When all below this offset had been handled.
    fn all_below(&self, partition: i32, offset: i64) -> u128 {
        match offset.checked_sub(1) {
            Some(last) if last >= 0 => self.at(partition, last).1,
            _ => 0,
        }
    }
}

fn commits_are_true(verdict: &mut Verdict, commits: &[Commit], below: &Below) {
    let mut last: HashMap<i32, &Map> = HashMap::new();
    for commit in commits {
        let (partition, map) = (commit.partition, &commit.map);
        let stored = commit.time + MILLISECOND;
        if below.all_below(partition, map.base()) > stored {
            verdict.wrong(format!(
                "{commit:?} covers a record below its offset that was not handled then"
            ));
        }
        let above = (map.base()..map.end()).filter(|&offset| map.is_settled(offset));
        let mut open = above.filter(|&offset| below.at(partition, offset).0 > stored);
        if let Some(open) = open.next() {
            verdict.wrong(format!(
                "{commit:?} covers {open}, which was not handled then"
            ));
        }
        if let Some(before) = last.insert(partition, map)
            && before.base() > map.base()
        {
            verdict.wrong(format!("{commit:?} goes back from {}", before.base()));
        }
    }
}

fn all_is_committed(verdict: &mut Verdict, commits: &[Commit], ends: &BTreeMap<i32, i64>) {
    let last: HashMap<i32, i64> = commits
        .iter()
        .map(|c| (c.partition, c.map.base()))
        .collect();
    for (partition, &end) in ends {
        let at = last.get(partition).copied().unwrap_or(0);
        if at != end {
            verdict.wrong(format!(
                "partition {partition} is committed up to {at}, and ends at {end}"
            ));
        }
    }
}

fn grants_go_on(verdict: &mut Verdict, traces: &[Trace], done: &Done, below: &Below) {
    for trace in traces {
        for grant in &trace.life.grants {
            if below.all_below(grant.partition, grant.offset) > grant.time {
                verdict.wrong(format!(
                    "{}: {grant:?}, but not all below had been handled",
                    trace.name
                ));
            }
        }
        let firsts = judge::firsts_in_order(&trace.life, done);
        let reached = firsts.and_then(|firsts| {
            firsts
                .iter()
                .try_for_each(|&(record, granted)| done.reaches(record, granted))
        });
        if let Err(e) = reached {
            verdict.wrong(format!("{}: {e}", trace.name));
        }
    }
}

/// A handling, whose it was, and under which grant.
struct Run<'a> {
    trace: &'a Trace,
    handling: &'a Handling,
    /// None is an error that is found elsewhere.
    grant: Option<&'a Grant>,
}

impl<'a> Run<'a> {
    /// In the order of their starts.
    fn all(traces: &'a [Trace]) -> Vec<Self> {
        let of = |trace: &'a Trace| {
            trace.life.handlings.iter().map(move |handling| Run {
                trace,
                handling,
                grant: judge::grant_of(&trace.life, handling),
            })
        };
        let mut all: Vec<_> = traces.iter().flat_map(of).collect();
        all.sort_by_key(|run| run.handling.start);
        all
    }

    fn is_of_the_same_life(&self, other: &Self) -> bool {
        std::ptr::eq(self.trace, other.trace)
    }

    /// Its lease ended by itself, or its member did.
    fn lease_was_lost(&self) -> bool {
        let after = |time: u128| time >= self.handling.start;
        let mut leaves = self.trace.life.leaves.iter();
        let left = leaves.find(|l| l.partition == self.handling.partition && after(l.time));
        left.is_none_or(|leave| leave.lost)
    }
}

fn overlaps(verdict: &mut Verdict, all: &[Run<'_>]) {
    let mut last: HashMap<u32, &Run<'_>> = HashMap::new();
    for run in all {
        let key = run.handling.record.key;
        if let Some(before) = last.get(&key)
            && before
                .handling
                .end
                .is_none_or(|end| end > run.handling.start)
            && !run.is_of_the_same_life(before)
        {
            // One that never ended died with its member, or was dropped with its lease.
            if before.lease_was_lost() {
                verdict.overlaps += usize::from(before.handling.end.is_some());
            } else {
                verdict.wrong(format!(
                    "a key in two places at once: {}: {:?} and {}: {:?}",
                    before.trace.name, before.handling, run.trace.name, run.handling
                ));
            }
        }
        last.insert(key, run);
    }
}

fn late_starts(verdict: &mut Verdict, all: &[Run<'_>], lanes: usize) {
    // Of each partition: the latest grant under which work has begun.
    let mut current: HashMap<i32, &Run<'_>> = HashMap::new();
    let mut excused: HashMap<(&str, u128), usize> = HashMap::new();
    for run in all {
        let Some(grant) = run.grant else { continue };
        let partition = run.handling.partition;
        let Some(owner) = current.get(&partition) else {
            current.insert(partition, run);
            continue;
        };
        let owns = owner.grant.map_or(0, |grant| grant.time);
        if owns <= grant.time {
            current.insert(partition, run);
            continue;
        }
        if run.is_of_the_same_life(owner) {
            continue;
        }
        verdict.late += 1;
        let start = run.handling.start;
        let thawed = run.trace.frozen.iter().map(|&(_, until)| until);
        let thawed = thawed.filter(|&t| t <= start && start - t < THAW).max();
        let count = thawed.map(|thawed| {
            let count = excused
                .entry((run.trace.name.as_str(), thawed))
                .or_default();
            *count += 1;
            *count
        });
        if count.is_none_or(|count| count > lanes) {
            verdict.wrong(format!(
                "{}: {:?} started under {grant:?}, after {} had begun under {:?}",
                run.trace.name, run.handling, owner.trace.name, owner.grant
            ));
        }
    }
}

fn repeats(verdict: &mut Verdict, all: &[Run<'_>], commits: &[Commit]) {
    let mut of: BTreeMap<i32, Vec<&Commit>> = BTreeMap::new();
    for commit in commits {
        of.entry(commit.partition).or_default().push(commit);
    }
    // When each record's first run ended, or None while it runs.
    let mut first: HashMap<(i32, i64), Option<u128>> = HashMap::new();
    for run in all {
        let at = (run.handling.partition, run.handling.offset);
        let Some(&ended) = first.get(&at) else {
            first.insert(at, run.handling.end);
            continue;
        };
        verdict.repeated += 1;
        if ended.is_none() {
            first.insert(at, run.handling.end);
        }
        let Some(grant) = run.grant else { continue };
        let known = of.get(&at.0).map_or(&[][..], Vec::as_slice);
        let before = known.partition_point(|commit| commit.time + MILLISECOND <= grant.time);
        let last = before.checked_sub(1).and_then(|i| known.get(i));
        if let Some(commit) = last
            && judge::says_settled(&commit.map, at.1)
        {
            verdict.wrong(format!(
                "{}: {:?} ran again though {commit:?} covered it before {grant:?}",
                run.trace.name, run.handling
            ));
        }
        let made = last.map_or(0, |commit| commit.time);
        match ended {
            Some(end) if end < made => verdict.stale = verdict.stale.max(made - end),
            Some(_) if last.is_some() => {}
            _ => verdict.in_flight += 1,
        }
    }
    if verdict.stale > STALE_MAX {
        verdict.wrong(format!(
            "a record ran again that had settled {} ms before the last commit was stored",
            verdict.stale / MILLISECOND
        ));
    }
}

/// Shown, of those that are found.
const ERRORS_MAX: usize = 10;
const MILLISECOND: u128 = 1_000_000;
/// From a thaw to the end of what it let through.
const THAW: u128 = 1_000 * MILLISECOND;
/// How long a commit may take from its making to its storing: it waits for a node that is frozen or
/// mute, and is sent again.
const STALE_MAX: u128 = 20_000 * MILLISECOND;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlings::{Leave, Numbered};

    const MS: u128 = MILLISECOND;

    /// Records `from..to` of key 1 in partition 0, offset = sequence: granted at `at` ms, each a
    /// millisecond, two apart.
    fn trace(name: &str, from: u32, to: u32, at: u128) -> Trace {
        let mut life = Life::default();
        life.grants.push(Grant {
            partition: 0,
            offset: from.into(),
            time: at * MS,
        });
        for sequence in from..to {
            let start = (at + 1 + 2 * u128::from(sequence - from)) * MS;
            life.handlings.push(Handling {
                partition: 0,
                offset: sequence.into(),
                record: Numbered { key: 1, sequence },
                start,
                end: Some(start + MS),
            });
        }
        Trace {
            name: name.to_owned(),
            life,
            frozen: Vec::new(),
        }
    }

    fn left(mut trace: Trace, at: u128, lost: bool) -> Trace {
        trace.life.leaves.push(Leave {
            partition: 0,
            time: at * MS,
            lost,
        });
        trace
    }

    fn commit(offset: i64, at: u128) -> Commit {
        Commit {
            partition: 0,
            map: Map::read(offset, "").unwrap(),
            time: at * MS,
        }
    }

    fn judge(traces: &[Trace], commits: &[Commit], n: u32) -> Verdict {
        let ends = BTreeMap::from([(0, i64::from(n))]);
        of_ours(traces, commits, &[(1, n)], &ends, 1)
    }

    fn clean(traces: &[Trace], commits: &[Commit], n: u32) -> Verdict {
        let verdict = judge(traces, commits, n);
        assert_eq!(verdict.errors, Vec::<String>::new());
        verdict
    }

    fn wrong(traces: &[Trace], commits: &[Commit], n: u32, what: &str) {
        let errors = judge(traces, commits, n).errors;
        assert!(errors.iter().any(|e| e.contains(what)), "{errors:?}");
    }

    #[test]
    fn an_orderly_run_is_clean() {
        let a = left(trace("a", 0, 5, 0), 15, false);
        let verdict = clean(
            &[a, trace("b", 5, 10, 20)],
            &[commit(3, 9), commit(5, 15), commit(10, 40)],
            10,
        );
        assert_eq!((verdict.handled, verdict.repeated), (10, 0));
    }

    #[test]
    fn what_is_lost_or_never_committed_is_found() {
        wrong(&[trace("a", 0, 4, 0)], &[commit(4, 9)], 5, "lost");
        wrong(&[trace("a", 0, 5, 0)], &[commit(4, 9)], 5, "ends at 5");
    }

    #[test]
    fn a_commit_that_runs_ahead_or_back_is_found() {
        let a = [trace("a", 0, 5, 0)];
        // Offset 3 is done at 8.
        clean(&a, &[commit(4, 8), commit(5, 30)], 5);
        wrong(&a, &[commit(4, 5), commit(5, 30)], 5, "below its offset");
        let ahead = Commit {
            map: Map::read(1, "bgABAAI=").unwrap(),
            ..commit(1, 5)
        };
        wrong(&a, &[ahead, commit(5, 30)], 5, "which was not handled then");
        wrong(
            &a,
            &[commit(4, 20), commit(3, 21), commit(5, 30)],
            5,
            "goes back",
        );
    }

    #[test]
    fn a_repeat_must_not_be_covered() {
        let a = left(trace("a", 0, 5, 0), 15, true);
        let all = [a, trace("b", 3, 10, 20)];
        let verdict = clean(&all, &[commit(3, 9), commit(10, 60)], 10);
        assert_eq!(verdict.repeated, 2);
        wrong(&all, &[commit(4, 12), commit(10, 60)], 10, "ran again");
        let stale = [commit(3, 25_000), commit(10, 60_000)];
        let late = [all[0].clone(), trace("b", 3, 10, 30_000)];
        wrong(&late, &stale, 10, "before the last commit was stored");
    }

    #[test]
    fn two_places_at_once_only_when_a_lease_was_lost() {
        let commits = [commit(3, 7), commit(10, 60)];
        let b = trace("b", 3, 10, 6);
        let lost = [left(trace("a", 0, 4, 0), 20, true), b.clone()];
        assert_eq!(clean(&lost, &commits, 10).overlaps, 1);
        let held = [left(trace("a", 0, 4, 0), 20, false), b];
        wrong(&held, &commits, 10, "two places at once");
    }

    #[test]
    fn a_start_under_an_old_lease_is_found() {
        let commits = [commit(3, 7), commit(10, 60)];
        // Its last record starts at 9, when the other has begun.
        let mut a = left(trace("a", 0, 5, 0), 20, true);
        let b = trace("b", 3, 10, 7);
        wrong(&[a.clone(), b.clone()], &commits, 10, "after b had begun");
        a.frozen.push((5 * MS, 8 * MS));
        let verdict = clean(&[a.clone(), b.clone()], &commits, 10);
        assert_eq!(
            verdict.late, 1,
            "between its look at the clock and the handler"
        );
        let mut more = a.life.handlings[4];
        (more.offset, more.record.sequence) = (5, 5);
        (more.start, more.end) = (more.start + 2 * MS, Some(more.start + 3 * MS));
        a.life.handlings.push(more);
        wrong(&[a, b], &commits, 10, "after b had begun");
    }

    #[test]
    fn disorder_within_a_grant_is_found() {
        let mut a = trace("a", 0, 5, 0);
        a.life.handlings.swap(1, 2);
        wrong(&[a], &[commit(5, 30)], 5, "then");
        let mut skips = trace("b", 6, 10, 20);
        skips.life.grants[0].offset = 5;
        let a = left(trace("a", 0, 5, 0), 15, false);
        wrong(&[a, skips], &[commit(5, 15)], 10, "had not been handled");
    }
}
