//! Judges what members handled, by the logs of their lives ([`crate::handlings`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use laneway::settle::Map;

use crate::handlings::{Grant, Handling, Life, Numbered};

/// What Kafka said was committed once a life was over: for each partition the offset, and what had
/// settled above it.
pub type Committed = BTreeMap<i32, Map>;

/// Every record of every key, from the lines that `numbered` answered with, was handled to its end
/// in some life.
pub fn nothing_lost<'a>(
    lives: impl IntoIterator<Item = &'a Life>,
    expected: &[(u32, u32)],
) -> Result<(), String> {
    let handled: HashSet<Numbered> = lives
        .into_iter()
        .flat_map(Life::ended)
        .map(|h| h.record)
        .collect();
    let mut lost = Vec::new();
    for &(key, count) in expected {
        for sequence in 0..count {
            let record = Numbered { key, sequence };
            if !handled.contains(&record) {
                lost.push(record);
            }
        }
    }
    let total: usize = expected.iter().map(|&(_, count)| count as usize).sum();
    if lost.is_empty() && handled.len() == total {
        return Ok(());
    }
    let strangers = handled.len() + lost.len() - total;
    lost.truncate(SHOWN_MAX);
    Err(format!(
        "{} of {total} records handled, {strangers} unknown; lost: {lost:?}",
        handled.len()
    ))
}

/// Within a life, since each grant of a partition, each key's records ran one at a time, each the
/// next of the one before, but for those that this life or one `before` it had settled by then:
/// the offset map may know of them.
pub fn in_order_within(life: &Life, before: &[Life]) -> Result<(), String> {
    let done = Done::of(before.iter().chain([life]));
    firsts_in_order(life, &done).map(|_| ())
}

/// Judges lives side by side that hand partitions to each other in order. A partition starts at an
/// offset below which all had been handled; from there on its keys run in order, without gaps but for
/// what had settled by then; no key runs in two places at once. Returns how many ran again.
pub fn handed_over(lives: &[Life]) -> Result<usize, String> {
    let done = Done::of(lives.iter());
    let mut distinct = BTreeSet::new();
    let mut all = Vec::new();
    for (number, life) in lives.iter().enumerate() {
        let name = |e: String| format!("life {number}: {e}");
        life.grants
            .iter()
            .try_for_each(|grant| done.has_all_below(grant))
            .map_err(name)?;
        let firsts = firsts_in_order(life, &done).map_err(name)?;
        firsts
            .iter()
            .try_for_each(|&(record, granted)| done.reaches(record, granted))
            .map_err(name)?;
        all.extend(life.handlings.iter().copied());
        distinct.extend(life.handlings.iter().map(|h| (h.partition, h.offset)));
    }
    all.sort_by_key(|handling| handling.start);
    let mut last: HashMap<u32, Handling> = HashMap::new();
    for handling in &all {
        if let Some(before) = last.insert(handling.record.key, *handling)
            && before.end.is_none_or(|end| end > handling.start)
        {
            return Err(format!(
                "a key in two places at once: {before:?} and {handling:?}"
            ));
        }
    }
    Ok(all.len() - distinct.len())
}

/// As [`in_order_within`]; returns with which record each key began since each grant, and when that was.
pub(crate) fn firsts_in_order(life: &Life, done: &Done) -> Result<Vec<(Numbered, u128)>, String> {
    let mut last: HashMap<(u128, u32), &Handling> = HashMap::new();
    let mut firsts = Vec::new();
    for handling in &life.handlings {
        let grant =
            grant_of(life, handling).ok_or_else(|| format!("never granted: {handling:?}"))?;
        if handling.offset < grant.offset {
            return Err(format!("{handling:?} is below {grant:?}"));
        }
        match last.insert((grant.time, handling.record.key), handling) {
            Some(before) => follows(before, handling, done, grant.time)?,
            None => firsts.push((handling.record, grant.time)),
        }
    }
    Ok(firsts)
}

/// Under which grant it ran.
pub(crate) fn grant_of<'a>(life: &'a Life, handling: &Handling) -> Option<&'a Grant> {
    let came =
        |grant: &&Grant| grant.partition == handling.partition && grant.time <= handling.start;
    life.grants.iter().rev().find(came)
}

/// When each record's first handling ended, over all lives.
pub(crate) struct Done {
    pub(crate) offsets: BTreeMap<(i32, i64), u128>,
    records: HashMap<Numbered, u128>,
}

impl Done {
    pub(crate) fn of<'a>(lives: impl Iterator<Item = &'a Life>) -> Self {
        let mut done = Self {
            offsets: BTreeMap::new(),
            records: HashMap::new(),
        };
        for handling in lives.flat_map(Life::ended) {
            let end = handling.end.unwrap_or(u128::MAX);
            let first = done
                .offsets
                .entry((handling.partition, handling.offset))
                .or_insert(end);
            *first = end.min(*first);
            let first = done.records.entry(handling.record).or_insert(end);
            *first = end.min(*first);
        }
        done
    }

    fn has_all_below(&self, grant: &Grant) -> Result<(), String> {
        let open = |&offset: &i64| {
            let end = self.offsets.get(&(grant.partition, offset));
            end.is_none_or(|&end| end > grant.time)
        };
        match (0..grant.offset).find(open) {
            None => Ok(()),
            Some(offset) => Err(format!("{grant:?}, but {offset} had not been handled")),
        }
    }

    /// The first of a key's records after a grant follows those that were done before.
    pub(crate) fn reaches(&self, record: Numbered, time: u128) -> Result<(), String> {
        let Some(sequence) = record.sequence.checked_sub(1) else {
            return Ok(());
        };
        let before = Numbered { sequence, ..record };
        match self.has(before, time) {
            true => Ok(()),
            false => Err(format!(
                "{record:?} came first, but {before:?} had not been handled"
            )),
        }
    }

    fn has(&self, record: Numbered, time: u128) -> bool {
        self.records.get(&record).is_some_and(|&end| end <= time)
    }
}

fn follows(before: &Handling, handling: &Handling, done: &Done, time: u128) -> Result<(), String> {
    let record = handling.record;
    let mut between = before.record.sequence + 1..record.sequence;
    let known = between.all(|sequence| done.has(Numbered { sequence, ..record }, time));
    let next = before.record.sequence < record.sequence && before.offset < handling.offset;
    let apart = before.end.is_some_and(|end| end <= handling.start);
    if next && known && apart {
        Ok(())
    } else {
        Err(format!("{before:?}, then {handling:?}"))
    }
}

/// Judges what was handled twice over lives one after another, each killed but the last.
///
/// `committed[i]` is what Kafka had when life `i` was over. A later life handles nothing of it again,
/// neither below the offset nor above it where the offset map says that it had settled; all of that
/// must have been handled; and it may lag what the life had settled by at most `stale` nanoseconds.
/// Returns how many records ran more than once: they were in flight, or settled since the last
/// commit that was acknowledged.
pub fn repeated_only_since_commit(
    lives: &[Life],
    committed: &[Committed],
    stale: u128,
) -> Result<usize, String> {
    let mut done = BTreeSet::new();
    let mut repeated = BTreeSet::new();
    let none = Committed::new();
    for (number, life) in lives.iter().enumerate() {
        let before = if number == 0 {
            &none
        } else {
            &committed[number - 1]
        };
        for handling in &life.handlings {
            let at = (handling.partition, handling.offset);
            if covers(before, at) {
                let map = before.get(&handling.partition);
                return Err(format!(
                    "life {number} handled what was committed: {handling:?}, {map:?}"
                ));
            }
            if done.contains(&at) {
                repeated.insert(at);
            }
        }
        done.extend(
            life.ended()
                .map(|handling| (handling.partition, handling.offset)),
        );
        if let Some(after) = committed.get(number) {
            all_committed_is_done(after, &done, number)?;
            commit_is_fresh(after, life, stale, number)?;
        }
    }
    Ok(repeated.len())
}

/// Whether the commit says that this record had settled.
fn covers(committed: &Committed, (partition, offset): (i32, i64)) -> bool {
    let map = committed.get(&partition);
    map.is_some_and(|map| says_settled(map, offset))
}

pub(crate) fn says_settled(map: &Map, offset: i64) -> bool {
    offset < map.base() || map.is_settled(offset)
}

/// Everything that the commit covers was handled in this life or before.
fn all_committed_is_done(
    committed: &Committed,
    done: &BTreeSet<(i32, i64)>,
    number: usize,
) -> Result<(), String> {
    for (&partition, map) in committed {
        let covered = (0..map.end()).filter(|&offset| covers(committed, (partition, offset)));
        let mut open = covered.filter(|&offset| !done.contains(&(partition, offset)));
        if let Some(open) = open.next() {
            return Err(format!(
                "after life {number} {map:?} was committed in partition {partition}, but {open} was never handled"
            ));
        }
    }
    Ok(())
}

/// What this life had settled without a gap, since its last grant and a while before it was killed, is
/// committed.
fn commit_is_fresh(
    committed: &Committed,
    life: &Life,
    stale: u128,
    number: usize,
) -> Result<(), String> {
    let killed = life
        .handlings
        .iter()
        .map(|h| h.end.unwrap_or(h.start))
        .max()
        .unwrap_or(0);
    let fresh = killed.saturating_sub(stale);
    let last: BTreeMap<i32, &Grant> = life
        .grants
        .iter()
        .map(|grant| (grant.partition, grant))
        .collect();
    for (partition, grant) in last {
        let settled: BTreeSet<i64> = life
            .ended()
            .filter(|h| h.partition == partition && h.start >= grant.time)
            .filter(|h| h.end.is_some_and(|end| end <= fresh))
            .map(|h| h.offset)
            .collect();
        let open = (grant.offset..).find(|offset| !settled.contains(offset));
        let watermark = open.unwrap_or(grant.offset);
        let offset = committed.get(&partition).map_or(0, Map::base);
        if offset < watermark {
            return Err(format!(
                "after life {number} only {offset} was committed in partition {partition}, though {watermark} \
                 had settled long before"
            ));
        }
    }
    Ok(())
}

/// Records that an error names.
const SHOWN_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// One key in partition 0, offset = sequence, each handled from `10 n` to `10 n + 5`.
    fn life(from: u32, to: u32) -> Life {
        let handlings = (from..to).map(|sequence| handling(1, sequence, 10 * u128::from(sequence)));
        Life {
            handlings: handlings.collect(),
            ..Life::default()
        }
    }

    fn handling(key: u32, sequence: u32, start: u128) -> Handling {
        let record = Numbered { key, sequence };
        Handling {
            partition: 0,
            offset: i64::from(sequence),
            record,
            start,
            end: Some(start + 5),
        }
    }

    fn at(offset: i64) -> Committed {
        Committed::from([(0, Map::read(offset, "").unwrap())])
    }

    fn at_with(offset: i64, map: &str) -> Committed {
        Committed::from([(0, Map::read(offset, map).unwrap())])
    }

    #[test]
    fn a_lost_record_and_a_strange_one_are_found() {
        nothing_lost(&[life(0, 3), life(2, 5)], &[(1, 5)]).unwrap();
        assert!(
            nothing_lost(&[life(0, 3), life(4, 5)], &[(1, 5)])
                .unwrap_err()
                .contains("sequence: 3")
        );
        assert!(
            nothing_lost(&[life(0, 6)], &[(1, 5)])
                .unwrap_err()
                .contains("1 unknown")
        );
        let mut unfinished = life(0, 5);
        unfinished.handlings[4].end = None;
        assert!(nothing_lost(&[unfinished], &[(1, 5)]).is_err());
    }

    #[test]
    fn disorder_within_a_life_is_found() {
        in_order_within(&granted(life(0, 5), 0, 0), &[]).unwrap();
        let mut swapped = granted(life(0, 5), 0, 0);
        swapped.handlings.swap(1, 2);
        assert!(in_order_within(&swapped, &[]).is_err());
        let mut skipped = granted(life(0, 5), 0, 0);
        skipped.handlings.remove(2);
        assert!(in_order_within(&skipped, &[]).is_err());
        let mut overlapping = granted(life(0, 5), 0, 0);
        overlapping.handlings[2].end = Some(31);
        assert!(in_order_within(&overlapping, &[]).is_err());
        let mut others = granted(life(0, 2), 0, 0);
        others.handlings.push(handling(2, 0, 1));
        in_order_within(&others, &[]).unwrap();
    }

    fn granted(mut life: Life, offset: i64, time: u128) -> Life {
        life.grants.push(Grant {
            partition: 0,
            offset,
            time,
        });
        life
    }

    fn later(mut life: Life) -> Life {
        for handling in &mut life.handlings {
            handling.start += 100;
            handling.end = handling.end.map(|end| end + 100);
        }
        life
    }

    #[test]
    fn a_second_grant_may_repeat_from_its_own_offset() {
        let mut twice = granted(life(0, 5), 0, 0);
        twice.handlings.extend(later(life(2, 6)).handlings);
        assert!(in_order_within(&twice, &[]).is_err(), "no second grant");
        in_order_within(&granted(twice.clone(), 2, 60), &[]).unwrap();
        assert!(
            in_order_within(&granted(twice, 3, 60), &[])
                .unwrap_err()
                .contains("is below")
        );
    }

    #[test]
    fn an_orderly_hand_over_repeats_what_had_settled_above_it() {
        let first = granted(life(0, 3), 0, 0);
        assert_eq!(
            handed_over(&[first.clone(), granted(life(3, 6), 3, 26)]),
            Ok(0)
        );
        assert_eq!(
            handed_over(&[granted(life(3, 6), 3, 26), first.clone()]),
            Ok(0)
        );
        let again = granted(later(life(1, 6)), 1, 26);
        assert_eq!(handed_over(&[first, again]), Ok(2));
    }

    #[test]
    fn a_disorderly_hand_over_is_found() {
        let judge = |second: Life| handed_over(&[granted(life(0, 3), 0, 0), second]).unwrap_err();
        let mut early = granted(life(3, 6), 3, 23);
        early.handlings[0].start = 24; // sequence 2 runs until 25
        assert!(judge(early).contains("but 2 had not been handled"));
        let mut early = granted(life(3, 6), 2, 20);
        early.handlings[0].start = 24;
        assert!(judge(early).contains("Numbered { key: 1, sequence: 2 } had not been handled"));
        assert!(
            judge(granted(life(4, 6), 3, 26)).contains("sequence: 3 } had not been handled"),
            "a skip"
        );
        assert!(judge(granted(later(life(2, 6)), 3, 26)).contains("is below"));
        assert!(judge(life(3, 6)).contains("never granted"));
        let mut twice = granted(life(3, 6), 3, 26);
        twice.handlings.push(handling(1, 5, 100));
        assert!(
            judge(twice).contains("then"),
            "the same record twice since one grant"
        );
        // The other's lease began before this one's run had ended.
        let mut both = granted(life(2, 6), 2, 16);
        both.handlings[0].start = 24;
        assert!(judge(both).contains("two places at once"));
    }

    #[test]
    fn repetition_is_bounded_by_the_commit() {
        let lives = [granted(life(0, 6), 0, 0), granted(life(4, 10), 4, 0)];
        assert_eq!(repeated_only_since_commit(&lives, &[at(4)], 1000), Ok(2));
        let below = repeated_only_since_commit(&lives, &[at(5)], 1000).unwrap_err();
        assert!(below.contains("handled what was committed"), "{below}");
    }

    #[test]
    fn what_the_offset_map_covers_may_be_left_out_and_not_repeated() {
        // Life 0 left 1 open and settled the rest; the map says 1 open, then 2 settled.
        let mut gap = granted(life(0, 4), 0, 0);
        gap.handlings[1].end = None;
        let next = granted(later(life(1, 2)), 1, 50);
        in_order_within(&next, std::slice::from_ref(&gap)).unwrap();
        let committed = [at_with(1, "bgABAAI=")];
        let lives = [gap.clone(), next];
        assert_eq!(repeated_only_since_commit(&lives, &committed, 0), Ok(0));
        let again = [gap.clone(), granted(later(life(1, 3)), 1, 50)];
        let error = repeated_only_since_commit(&again, &committed, 0).unwrap_err();
        assert!(error.contains("handled what was committed"), "{error}");
        gap.handlings[2].end = None;
        let lies = repeated_only_since_commit(&[gap], &committed, 0).unwrap_err();
        assert!(lies.contains("2 was never handled"), "{lies}");
        // A hole that nobody had settled is a loss.
        let mut hole = granted(life(0, 4), 0, 0);
        hole.handlings.remove(2);
        assert!(in_order_within(&hole, &[]).is_err());
    }

    #[test]
    fn a_commit_past_an_unhandled_record_is_found() {
        let mut gap = granted(life(0, 6), 0, 0);
        gap.handlings[3].end = None;
        let past = repeated_only_since_commit(&[gap.clone()], &[at(5)], 1000).unwrap_err();
        assert!(past.contains("3 was never handled"), "{past}");
        repeated_only_since_commit(&[gap], &[at(3)], 1000).unwrap();
    }

    #[test]
    fn what_an_earlier_life_settled_above_its_commit_is_not_asked_of_the_next() {
        // Life 0 left 3 open and settled 4 and 5; life 1 does 3 and dies long after.
        let mut gap = granted(life(0, 6), 0, 0);
        gap.handlings[3].end = None;
        let mut next = granted(later(life(3, 4)), 3, 100);
        next.handlings.push(Handling {
            end: None,
            ..handling(2, 6, 900)
        });
        repeated_only_since_commit(&[gap.clone(), next.clone()], &[at(3), at(4)], 100).unwrap();
        assert!(repeated_only_since_commit(&[gap, next], &[at(3), at(3)], 100).is_err());
    }

    #[test]
    fn a_commit_that_lags_is_found() {
        // 0 to 9 end at 5, 15, .. 95; with 30 to spare what ended by 65 must be committed.
        repeated_only_since_commit(&[granted(life(0, 10), 0, 0)], &[at(7)], 30).unwrap();
        let lags =
            repeated_only_since_commit(&[granted(life(0, 10), 0, 0)], &[at(6)], 30).unwrap_err();
        assert!(lags.contains("had settled long before"), "{lags}");
    }
}
