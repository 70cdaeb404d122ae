//! The offset map: which offsets above a commit had settled, as text that stands beside it.
//!
//! The format is that of the Confluent Parallel Consumer, so that a group may move between it and
//! us: base64 of a letter that names the form and a body, relative to the committed offset.
//!
//! | letter | form | body |
//! |---|---|---|
//! | `l`, `o` | bits | how many, as `i16` (`o`: `i32`); a bit an offset, lowest first, 1 where it is settled; a spare zero byte |
//! | `n`, `e` | runs | lengths as `i16` (`e`: `i32`), unsettled and settled in turn, unsettled first |
//! | `a`, `s`, `J`, `p` | the same four | one zstd frame of the body |
//!
//! It is not the tracker and does not decide what is committed: it turns stretches of open offsets
//! into text and back.
//!
//! What is written:
//!
//! 1. begins with an offset that is open, which is the committed one, and ends with one that is
//!    settled: a reader of the other make would take an open one at the end for settled;
//! 2. keeps within the characters that it is given: where all of it does not fit it is the lower
//!    part, which says less and nothing wrong;
//! 3. is the smallest of the forms; zstd is tried where no plain one is under 200 bytes, as the
//!    other make does, in one frame without a dictionary;
//! 4. costs a bounded time, however many stretches there are ([`MapWriter::write`]).
//!
//! What is read:
//!
//! 1. any of the eight forms, whoever chose it, in at most [`BODY_MAX`] decompressed bytes and
//!    [`OPEN_RUNS_MAX`] stretches; offsets are never spread out one by one;
//! 2. nothing that contradicts itself. Whatever is not a map says so, and then nothing at or above
//!    the committed offset counts as settled.

mod read;
#[cfg(test)]
mod tests;
mod text;
mod write;

use std::fmt;

use super::Run;
pub use write::{MapWriter, Written};

/// What a commit's metadata says of the offsets from the committed one on.
///
/// ```
/// use laneway::settle::{Map, MapWriter, Run};
/// // 100, 103 and 107 are open, everything else up to 110 has settled.
/// let open = [100, 103, 107].map(|first| Run { first, end: first + 1 });
/// let written = MapWriter::new().write(100, 111, open.into_iter(), 4096);
/// assert_eq!(written.text, "bAALdgcA");
///
/// let map = Map::read(100, &written.text)?;
/// assert_eq!((map.open(), map.end()), (&open[..], 111));
/// assert!(map.is_settled(101) && !map.is_settled(103));
/// # Ok::<(), laneway::settle::MapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub(super) base: i64,
    pub(super) end: i64,
    pub(super) open: Vec<Run>,
}

/// Why metadata is not a map that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// It is text of another kind.
    NotBase64,
    /// It begins with a byte that stands for no form of the map.
    Foreign {
        /// That byte.
        first: u8,
    },
    /// It has a map's first byte, and what follows contradicts it.
    Malformed {
        /// What.
        why: &'static str,
    },
    /// Decompressed it is longer than [`BODY_MAX`].
    TooLarge,
}

impl Map {
    /// Reads the metadata that stood beside the committed offset `base`. An empty one is a map
    /// that knows of nothing.
    ///
    /// # Errors
    /// When it is something else, or broken.
    pub fn read(base: i64, metadata: &str) -> Result<Map, MapError> {
        read::read(base, metadata)
    }

    /// The committed offset that it stood beside.
    #[must_use]
    pub fn base(&self) -> i64 {
        self.base
    }

    /// One past the last offset that it speaks of.
    #[must_use]
    pub fn end(&self) -> i64 {
        self.end
    }

    /// The offsets that had not settled, in stretches that rise and do not touch.
    #[must_use]
    pub fn open(&self) -> &[Run] {
        &self.open
    }

    /// Whether it says that this offset, at or above the committed one, had settled.
    #[must_use]
    pub fn is_settled(&self, offset: i64) -> bool {
        let after = self.open.partition_point(|run| run.end <= offset);
        offset < self.end && self.open.get(after).is_none_or(|run| offset < run.first)
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::NotBase64 => write!(f, "it is not base64"),
            MapError::Foreign { first: 1 | 2 } => write!(
                f,
                "it looks like that of Kafka Streams, which may use the same group id"
            ),
            MapError::Foreign { first } => {
                write!(
                    f,
                    "its first byte, {first:#04x}, stands for no form of the map"
                )
            }
            MapError::Malformed { why } => write!(f, "it is broken: {why}"),
            MapError::TooLarge => write!(f, "it inflates to more than {BODY_MAX} bytes"),
        }
    }
}

impl std::error::Error for MapError {}

/// What encodes and what a letter says: bits or runs, in integers of which width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    kind: Kind,
    /// The bytes of an integer: 2 or 4.
    width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bits,
    Runs,
}

impl Form {
    const BITS: Form = Form {
        kind: Kind::Bits,
        width: 2,
    };
    const RUNS: Form = Form {
        kind: Kind::Runs,
        width: 2,
    };
    const BITS_WIDE: Form = Form {
        kind: Kind::Bits,
        width: 4,
    };
    const RUNS_WIDE: Form = Form {
        kind: Kind::Runs,
        width: 4,
    };

    /// The letters of the plain form and of the compressed one.
    fn letters(self) -> (u8, u8) {
        match (self.kind, self.width) {
            (Kind::Bits, 2) => (b'l', b'a'),
            (Kind::Runs, 2) => (b'n', b'J'),
            (Kind::Bits, _) => (b'o', b's'),
            (Kind::Runs, _) => (b'e', b'p'),
        }
    }

    /// The form that a letter names, and whether it is compressed.
    fn of(letter: u8) -> Option<(Form, bool)> {
        let all = [Form::BITS, Form::RUNS, Form::BITS_WIDE, Form::RUNS_WIDE];
        all.into_iter().find_map(|form| {
            let (plain, packed) = form.letters();
            (letter == plain || letter == packed).then_some((form, letter == packed))
        })
    }

    /// The largest number that its integers hold.
    fn number_max(self) -> u64 {
        match self.width {
            2 => i16::MAX as u64,
            _ => i32::MAX as u64,
        }
    }
}

/// What a map's body may inflate to, in bytes: eight million offsets as bits.
pub const BODY_MAX: usize = 1 << 20;

/// Open stretches that are kept of a map that is read; of a longer one it is the lower part.
pub const OPEN_RUNS_MAX: usize = 1 << 16;
