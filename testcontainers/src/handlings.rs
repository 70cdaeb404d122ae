//! What members leave behind about each record they handled; [`crate::judge`] reads it.
//!
//! A life is one run of a member process. It writes a file of its own: a line for each partition
//! that it is granted, with the offset that it starts at, and for each that it has given back or
//! lost, and a line before and a line after each handling, each with one unbuffered write, so the
//! lines survive `kill -9`:
//!
//! ```text
//! grant NANOS PARTITION OFFSET
//! start NANOS PARTITION OFFSET KEY SEQUENCE
//! end NANOS PARTITION OFFSET
//! revoke NANOS PARTITION
//! lost NANOS PARTITION
//! ```
//!
//! Records are those of the agent's `numbered`: the value says `KEY SEQUENCE`, and the sequence of
//! a key counts from 0 without gaps. Times are the machine's clock, so lives that run side by side
//! compare.

use std::collections::HashMap;
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
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
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

/// A partition came to a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    /// Which.
    pub partition: i32,
    /// The first offset to be handled.
    pub offset: i64,
    /// Nanoseconds of the machine's clock.
    pub time: u128,
}

/// A partition went away from a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leave {
    /// Which.
    pub partition: i32,
    /// Nanoseconds of the machine's clock.
    pub time: u128,
    /// Its lease was over before the member could give it back.
    pub lost: bool,
}

/// One run of a member process, its handlings in the order of their starts.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// In the order of their times.
    pub grants: Vec<Grant>,
    /// In the order of their times.
    pub leaves: Vec<Leave>,
    /// In the order of the `start` lines.
    pub handlings: Vec<Handling>,
}

impl Writer {
    /// A new file; one that exists belongs to another life, which is an error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create_new(true).open(path)?;
        Ok(Self { file })
    }

    /// A partition came; `offset` is the first to be handled.
    pub fn grant(&self, partition: i32, offset: i64) -> io::Result<()> {
        self.line(&format!("grant {} {partition} {offset}\n", nanos()))
    }

    /// A partition went, in order or not.
    pub fn leave(&self, partition: i32, lost: bool) -> io::Result<()> {
        let word = if lost { "lost" } else { "revoke" };
        self.line(&format!("{word} {} {partition}\n", nanos()))
    }

    /// The handler was entered.
    pub fn start(&self, partition: i32, offset: i64, record: Numbered) -> io::Result<()> {
        let Numbered { key, sequence } = record;
        self.line(&format!(
            "start {} {partition} {offset} {key} {sequence}\n",
            nanos()
        ))
    }

    /// The handler is about to say that it is done.
    pub fn end(&self, partition: i32, offset: i64) -> io::Result<()> {
        self.line(&format!("end {} {partition} {offset}\n", nanos()))
    }

    /// One write: in append mode lines of several threads do not mix.
    fn line(&self, line: &str) -> io::Result<()> {
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
            ["grant", time, partition, offset] => {
                let (partition, offset) = (partition.parse().ok()?, offset.parse().ok()?);
                self.grants.push(Grant {
                    partition,
                    offset,
                    time: time.parse().ok()?,
                });
            }
            [word @ ("revoke" | "lost"), time, partition] => self.leaves.push(Leave {
                partition: partition.parse().ok()?,
                time: time.parse().ok()?,
                lost: word == "lost",
            }),
            ["end", time, partition, offset] => {
                let at = (partition.parse().ok()?, offset.parse().ok()?);
                let handling = self.handlings.get_mut(running.remove(&at)?)?;
                handling.end = Some(time.parse().ok()?);
            }
            _ => return None,
        }
        Some(())
    }

    /// Those that were handled to their end.
    pub fn ended(&self) -> impl Iterator<Item = &Handling> {
        self.handlings
            .iter()
            .filter(|handling| handling.end.is_some())
    }
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

/// Nanoseconds of the machine's clock, as the lines have them.
pub fn nanos() -> u128 {
    // A clock before 1970 would compare all the same, as long as it stands still there.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_read_back_even_if_cut_off() {
        let text = "grant 1 0 7\nstart 5 0 7 3 0\nstart 6 1 9 4 2\nend 8 0 7\nend 9 1";
        let life = Life::parse(text).unwrap();
        assert_eq!(
            life.grants,
            [Grant {
                partition: 0,
                offset: 7,
                time: 1
            }]
        );
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
        writer.leave(2, true).unwrap();
        let life = Life::read(&path).unwrap();
        assert_eq!(
            life.handlings[0].record,
            Numbered {
                key: 17,
                sequence: 4
            }
        );
        assert!(life.handlings[0].end.unwrap() >= life.handlings[0].start);
        assert!(life.leaves[0].partition == 2 && life.leaves[0].lost);
        assert_eq!(Numbered::of(b"17"), None);
    }
}
