//! What members leave behind about each record they handled, and the judge of it.
//!
//! A life is one run of a member process. It writes a file of its own, a line before and a line
//! after each handling, each with one unbuffered write, so the lines survive `kill -9`:
//!
//! ```text
//! start NANOS PARTITION OFFSET KEY SEQUENCE
//! end NANOS PARTITION OFFSET
//! ```
//!
//! Records are those of the agent's `numbered`: the value says `KEY SEQUENCE`, and the sequence of
//! a key counts from 0 without gaps. Times are the machine's clock, so lives that run side by side
//! compare.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes one life's lines.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

/// One record of the agent's `numbered`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Numbered {
    /// Whose records stay in order.
    pub key: u32,
    /// Which of the key's records, from 0.
    pub sequence: u32,
}

/// One run of the handler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Handling {
    /// Where the record came from.
    pub partition: i32,
    /// Where the record came from.
    pub offset: i64,
    /// What the record said.
    pub record: Numbered,
    /// Nanoseconds of the machine's clock.
    pub start: u128,
    /// None: the life ended first.
    pub end: Option<u128>,
}

/// One run of a member process, its handlings in the order of their starts.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// In the order of the `start` lines.
    pub handlings: Vec<Handling>,
}

/// What Kafka said was committed once a life was over: partition to offset.
pub type Committed = BTreeMap<i32, i64>;

impl Writer {
    /// A new file; one that exists belongs to another life, which is an error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create_new(true).open(path)?;
        Ok(Self { file })
    }

    /// The handler was entered.
    pub fn start(&self, partition: i32, offset: i64, record: Numbered) -> io::Result<()> {
        let Numbered { key, sequence } = record;
        self.line(format!(
            "start {} {partition} {offset} {key} {sequence}\n",
            nanos()
        ))
    }

    /// The handler is about to say that it is done.
    pub fn end(&self, partition: i32, offset: i64) -> io::Result<()> {
        self.line(format!("end {} {partition} {offset}\n", nanos()))
    }

    /// One write: in append mode lines of several threads do not mix.
    fn line(&self, line: String) -> io::Result<()> {
        (&self.file).write_all(line.as_bytes())
    }
}

impl Numbered {
    /// Out of a value of the agent's `numbered`.
    pub fn of(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (key, sequence) = text.trim_end_matches(' ').split_once(' ')?;
        Some(Self {
            key: key.parse().ok()?,
            sequence: sequence.parse().ok()?,
        })
    }
}

impl Life {
    /// Reads what a life wrote.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut life = Self::default();
        // Where the running handling of an offset stands in `handlings`.
        let mut running = HashMap::new();
        for line in text.split_inclusive('\n') {
            // Cut off by the kill.
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            life.take(line, &mut running)
                .ok_or_else(|| format!("the log says {line:?}"))?;
        }
        Ok(life)
    }

    fn take(&mut self, line: &str, running: &mut HashMap<(i32, i64), usize>) -> Option<()> {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["start", time, partition, offset, key, sequence] => {
                let record = Numbered {
                    key: key.parse().ok()?,
                    sequence: sequence.parse().ok()?,
                };
                let (partition, offset) = (partition.parse().ok()?, offset.parse().ok()?);
                let start = time.parse().ok()?;
                running.insert((partition, offset), self.handlings.len());
                self.handlings.push(Handling {
                    partition,
                    offset,
                    record,
                    start,
                    end: None,
                });
            }
            ["end", time, partition, offset] => {
                let at = (partition.parse().ok()?, offset.parse().ok()?);
                let handling = self.handlings.get_mut(running.remove(&at)?)?;
                handling.end = Some(time.parse().ok()?);
            }
            _ => return None,
        }
        Some(())
    }

    fn ended(&self) -> impl Iterator<Item = &Handling> {
        self.handlings
            .iter()
            .filter(|handling| handling.end.is_some())
    }
}

/// Every record of every key, from the lines that `numbered` answered with, was handled to its end
/// in some life.
pub fn nothing_lost(lives: &[Life], expected: &[(u32, u32)]) -> Result<(), String> {
    let handled: BTreeSet<Numbered> = lives
        .iter()
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

/// No record was handled more than once over all lives.
pub fn nothing_twice(lives: &[Life]) -> Result<(), String> {
    let mut seen = HashMap::new();
    for (number, life) in lives.iter().enumerate() {
        for handling in &life.handlings {
            if let Some(before) = seen.insert((handling.partition, handling.offset), number) {
                return Err(format!(
                    "handled in life {before}, and in {number}: {handling:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Within a life each key's records ran one at a time, each the next of the one before.
pub fn in_order_within(life: &Life) -> Result<(), String> {
    let mut last: HashMap<u32, &Handling> = HashMap::new();
    for handling in &life.handlings {
        if let Some(before) = last.insert(handling.record.key, handling) {
            follows(before, handling)?;
        }
    }
    Ok(())
}

/// The same over lives side by side that hand partitions over when they are drained: nothing runs
/// twice, and no key runs in two places at once.
pub fn in_order_overall(lives: &[Life]) -> Result<(), String> {
    let mut all: Vec<Handling> = lives
        .iter()
        .flat_map(|life| life.handlings.clone())
        .collect();
    all.sort_by_key(|handling| handling.start);
    in_order_within(&Life { handlings: all })
}

fn follows(before: &Handling, handling: &Handling) -> Result<(), String> {
    let next =
        before.record.sequence + 1 == handling.record.sequence && before.offset < handling.offset;
    let apart = before.end.is_some_and(|end| end <= handling.start);
    if next && apart {
        Ok(())
    } else {
        Err(format!("{before:?}, then {handling:?}"))
    }
}

/// Judges what was handled twice over lives one after another, each killed but the last.
///
/// `committed[i]` is what Kafka had when life `i` was over. What a later life handles again must
/// lie at or above it; below it everything must have been handled; and it may lag what was settled
/// by at most `stale` nanoseconds. Returns how many records ran more than once.
pub fn repeated_only_since_commit(
    lives: &[Life],
    committed: &[Committed],
    stale: u128,
) -> Result<usize, String> {
    // Of all lives so far: offset to the earliest end.
    let mut done: BTreeMap<(i32, i64), u128> = BTreeMap::new();
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
            let floor = before.get(&handling.partition).copied().unwrap_or(0);
            if handling.offset < floor {
                return Err(format!(
                    "life {number} started below the committed {floor}: {handling:?}"
                ));
            }
            if done.contains_key(&at) {
                repeated.insert(at);
            }
        }
        for handling in life.ended() {
            let end = handling.end.unwrap_or(u128::MAX);
            let earliest = done
                .entry((handling.partition, handling.offset))
                .or_insert(end);
            *earliest = end.min(*earliest);
        }
        let Some(after) = committed.get(number) else {
            continue;
        };
        let over = life
            .handlings
            .iter()
            .map(|h| h.end.unwrap_or(h.start))
            .max()
            .unwrap_or(0);
        commit_is_honest(number, &done, after, over.saturating_sub(stale))?;
    }
    Ok(repeated.len())
}

/// Everything below the commit is done, and everything done without a gap by `fresh` is below it.
fn commit_is_honest(
    number: usize,
    done: &BTreeMap<(i32, i64), u128>,
    committed: &Committed,
    fresh: u128,
) -> Result<(), String> {
    for (&partition, &offset) in committed {
        if let Some(open) = (0..offset).find(|&offset| !done.contains_key(&(partition, offset))) {
            return Err(format!(
                "after life {number} {offset} was committed in partition {partition}, but {open} was never handled"
            ));
        }
    }
    let partitions: BTreeSet<i32> = done.keys().map(|&(partition, _)| partition).collect();
    for partition in partitions {
        let watermark = (0..).find(|&offset| {
            done.get(&(partition, offset))
                .is_none_or(|&end| end > fresh)
        });
        let (watermark, offset) = (
            watermark.unwrap_or(0),
            committed.get(&partition).copied().unwrap_or(0),
        );
        if offset < watermark {
            return Err(format!(
                "after life {number} only {offset} was committed in partition {partition}, though {watermark} \
                 had settled long before"
            ));
        }
    }
    Ok(())
}

/// The lines of `numbered`: key and count.
pub fn expected(lines: &[String]) -> Result<Vec<(u32, u32)>, String> {
    let parse = |line: &String| {
        let (key, count) = line.split_once(' ')?;
        Some((key.parse().ok()?, count.parse().ok()?))
    };
    lines
        .iter()
        .map(|line| parse(line).ok_or_else(|| format!("numbered answered {line:?}")))
        .collect()
}

fn nanos() -> u128 {
    // A clock before 1970 would compare all the same, as long as it stands still there.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

const SHOWN_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// One key in partition 0, offset = sequence, each handled from `10 n` to `10 n + 5`.
    fn life(from: u32, to: u32) -> Life {
        let handlings = (from..to).map(|sequence| handling(1, sequence, 10 * u128::from(sequence)));
        Life {
            handlings: handlings.collect(),
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
        Committed::from([(0, offset)])
    }

    #[test]
    fn a_life_is_read_back_even_if_cut_off() {
        let text = "start 5 0 7 3 0\nstart 6 1 9 4 2\nend 8 0 7\nend 9 1";
        let life = Life::parse(text).unwrap();
        assert_eq!(life.handlings.len(), 2);
        assert_eq!(
            (life.handlings[0].start, life.handlings[0].end),
            (5, Some(8))
        );
        assert_eq!(life.handlings[1].end, None);
        assert_eq!(
            life.handlings[1].record,
            Numbered {
                key: 4,
                sequence: 2
            }
        );
        assert!(
            Life::parse("end 8 0 7\n").is_err(),
            "an end without a start"
        );
        assert!(Life::parse("started 5 0 7 3 0\n").is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        let path = crate::process::scratch_folder("handlings")
            .unwrap()
            .join("life");
        let writer = Writer::create(&path).unwrap();
        assert!(Writer::create(&path).is_err(), "another life's file");
        let record = Numbered::of(b"17 4    ").unwrap();
        writer.start(2, 40, record).unwrap();
        writer.end(2, 40).unwrap();
        let life = Life::read(&path).unwrap();
        assert_eq!(
            life.handlings[0].record,
            Numbered {
                key: 17,
                sequence: 4
            }
        );
        assert!(life.handlings[0].end.unwrap() >= life.handlings[0].start);
        assert_eq!(Numbered::of(b"17"), None);
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
    fn a_repeated_record_is_found() {
        nothing_twice(&[life(0, 3), life(3, 6)]).unwrap();
        assert!(
            nothing_twice(&[life(0, 4), life(3, 6)])
                .unwrap_err()
                .contains("life 0, and in 1")
        );
    }

    #[test]
    fn disorder_within_a_life_is_found() {
        in_order_within(&life(0, 5)).unwrap();
        let mut swapped = life(0, 5);
        swapped.handlings.swap(1, 2);
        assert!(in_order_within(&swapped).is_err());
        let mut skipped = life(0, 5);
        skipped.handlings.remove(2);
        assert!(in_order_within(&skipped).is_err());
        let mut overlapping = life(0, 5);
        overlapping.handlings[2].end = Some(31);
        assert!(in_order_within(&overlapping).is_err());
        let mut others = life(0, 2);
        others.handlings.push(handling(2, 0, 1));
        in_order_within(&others).unwrap();
    }

    #[test]
    fn a_key_in_two_places_at_once_is_found() {
        in_order_overall(&[life(0, 3), life(3, 6)]).unwrap();
        in_order_overall(&[life(3, 6), life(0, 3)]).unwrap();
        let mut early = life(3, 6);
        early.handlings[0].start = 24; // sequence 2 runs until 25
        assert!(in_order_overall(&[life(0, 3), early]).is_err());
        assert!(
            in_order_overall(&[life(0, 3), life(2, 6)]).is_err(),
            "handled twice"
        );
    }

    #[test]
    fn repetition_is_bounded_by_the_commit() {
        let lives = [life(0, 6), life(4, 10)];
        assert_eq!(repeated_only_since_commit(&lives, &[at(4)], 1000), Ok(2));
        let below = repeated_only_since_commit(&lives, &[at(5)], 1000).unwrap_err();
        assert!(below.contains("below the committed 5"), "{below}");
    }

    #[test]
    fn a_commit_past_an_unhandled_record_is_found() {
        let mut gap = life(0, 6);
        gap.handlings[3].end = None;
        let past = repeated_only_since_commit(&[gap.clone()], &[at(5)], 1000).unwrap_err();
        assert!(past.contains("3 was never handled"), "{past}");
        repeated_only_since_commit(&[gap], &[at(3)], 1000).unwrap();
    }

    #[test]
    fn a_commit_that_lags_is_found() {
        // 0 to 9 end at 5, 15, .. 95; with 30 to spare what ended by 65 must be committed.
        repeated_only_since_commit(&[life(0, 10)], &[at(7)], 30).unwrap();
        let lags = repeated_only_since_commit(&[life(0, 10)], &[at(6)], 30).unwrap_err();
        assert!(lags.contains("only 6 was committed"), "{lags}");
    }
}
