//! The tracker of one lease.

use std::collections::VecDeque;

use super::SettleError;
use super::ring::BitRing;

/// The offsets of a batch's records, in order.
#[derive(Clone, Copy, Debug)]
pub enum Offsets<'a> {
    /// `base`, `base + 1` and so on, `len` of them.
    Dense {
        /// The first record's offset.
        base: i64,
        /// How many.
        len: u32,
    },
    /// `base + delta` for each delta; the deltas rise strictly.
    Sparse {
        /// What the deltas count from.
        base: i64,
        /// One a record.
        deltas: &'a [u32],
    },
}

/// Which records of one lease have settled, and how far a commit may go.
///
/// ```
/// use laneway::settle::{Offsets, Tracker};
/// let mut tracker = Tracker::new(40);
/// // Records 40, 41, 42; then a control record at 43.
/// let first = tracker.push(Offsets::Dense { base: 40, len: 3 }, 44, -1)?;
/// tracker.settle(first + 1)?;
/// tracker.advance();
/// assert_eq!(tracker.watermark(), 40);
/// tracker.settle(first)?;
/// tracker.advance();
/// assert_eq!(tracker.watermark(), 42);
/// tracker.settle(first + 2)?;
/// tracker.advance();
/// assert_eq!(tracker.watermark(), 44);
/// # Ok::<(), laneway::settle::SettleError>(())
/// ```
#[derive(Debug)]
pub struct Tracker {
    ring: BitRing,
    /// Cover the ring's ordinals without a hole; the front one holds the lowest open ordinal.
    segments: VecDeque<Segment>,
    /// One past the last offset that was pushed or covered.
    position: i64,
    open: u64,
    /// The epoch of the last record below the ring's low end.
    epoch_below: i32,
    /// Where the watermark stood at the last `advance`.
    seen: i64,
    deltas_held: usize,
}

/// Offsets `first..end`: of settled records and whatever gaps lie between them, or of open ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first record's offset.
    pub first: i64,
    /// One past the last record's offset.
    pub end: i64,
}

#[derive(Debug)]
struct Segment {
    first: u64,
    len: u64,
    base: i64,
    /// None where the offsets have no holes.
    deltas: Option<Box<[u32]>>,
    epoch: i32,
}

impl Tracker {
    /// A tracker whose position is `start`: nothing is open, and the watermark is `start`.
    #[must_use]
    pub fn new(start: i64) -> Self {
        Tracker {
            ring: BitRing::new(),
            segments: VecDeque::new(),
            position: start,
            open: 0,
            epoch_below: -1,
            seen: start,
            deltas_held: 0,
        }
    }

    /// Takes a batch in: its records are open from now on. Returns the ordinal of the first; the
    /// others follow. `covered_to` is the offset after the batch, with everything in it that is no
    /// record; `epoch` is the leader's, -1 where none is known.
    ///
    /// # Errors
    /// When the offsets do not rise, from the position on and inside the batch.
    pub fn push(
        &mut self,
        batch: Offsets<'_>,
        covered_to: i64,
        epoch: i32,
    ) -> Result<u64, SettleError> {
        let (base, len, deltas) = self.check(batch, covered_to)?;
        let first = self.ring.next();
        if len > 0 {
            self.ring.extend(len);
            self.open += len;
            match self.segments.back_mut() {
                // Adjoining batches make one segment: an ordinary topic holds a handful of them.
                Some(last)
                    if deltas.is_none()
                        && last.deltas.is_none()
                        && last.epoch == epoch
                        && last.end() == base =>
                {
                    last.len += len;
                }
                _ => {
                    self.deltas_held += deltas.as_ref().map_or(0, |d| d.len());
                    self.segments.push_back(Segment {
                        first,
                        len,
                        base,
                        deltas,
                        epoch,
                    });
                }
            }
        }
        self.position = covered_to;
        Ok(first)
    }

    /// The ordinal that the next record will have.
    #[must_use]
    pub fn next_ordinal(&self) -> u64 {
        self.ring.next()
    }

    /// A stretch without records up to `to`, not counting it. Nothing happens where the position
    /// is past it.
    pub fn cover(&mut self, to: i64) {
        self.position = self.position.max(to);
    }

    /// One record has settled.
    ///
    /// # Errors
    /// When it had settled before, or was never pushed.
    #[inline]
    pub fn settle(&mut self, ordinal: u64) -> Result<(), SettleError> {
        self.settle_range(ordinal, 1)
    }

    /// `len` records have settled, from ordinal `first` on. All or nothing.
    ///
    /// # Errors
    /// When one of them had settled before, or was never pushed.
    #[inline]
    pub fn settle_range(&mut self, first: u64, len: u64) -> Result<(), SettleError> {
        if len == 0 {
            return Ok(());
        }
        let next = self.ring.next();
        if first.checked_add(len).is_none_or(|end| end > next) {
            return Err(SettleError::Unknown {
                ordinal: first,
                next,
            });
        }
        if first < self.ring.low() || !self.ring.set(first, len) {
            return Err(SettleError::Twice { ordinal: first });
        }
        self.open -= len;
        Ok(())
    }

    /// Moves the watermark over what has settled. Call it once for a group of settlements. Says
    /// whether the watermark has moved since the last call.
    pub fn advance(&mut self) -> bool {
        self.ring.advance();
        let low = self.ring.low();
        while let Some(front) = self.segments.front() {
            if front.first < low {
                self.epoch_below = front.epoch;
            }
            if front.first + front.len > low {
                break;
            }
            self.deltas_held -= front.deltas.as_ref().map_or(0, |d| d.len());
            self.segments.pop_front();
        }
        let watermark = self.watermark();
        let moved = watermark > self.seen;
        self.seen = watermark;
        moved
    }

    /// The lowest offset that has not settled, as of the last [`advance`](Self::advance): what may
    /// be committed. Where nothing is open it is the position.
    #[must_use]
    pub fn watermark(&self) -> i64 {
        let low = self.ring.low();
        match self.segments.front() {
            Some(front) if low < self.ring.next() => front.offset(low),
            _ => self.position,
        }
    }

    /// The leader's epoch of the last settled record below the watermark, -1 where there is none.
    #[must_use]
    pub fn watermark_epoch(&self) -> i32 {
        self.epoch_below
    }

    /// One past the last offset that was pushed or covered: where fetching goes on.
    #[must_use]
    pub fn position(&self) -> i64 {
        self.position
    }

    /// Records that have not settled.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Records from the watermark on, settled or not: what `ahead_max` bounds.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        self.ring.next() - self.ring.low()
    }

    /// Whether the record with this ordinal has settled. False for one that was never pushed.
    #[must_use]
    pub fn is_settled(&self, ordinal: u64) -> bool {
        ordinal < self.ring.low() || self.ring.is_set(ordinal)
    }

    /// The offset of a record from the watermark on.
    #[must_use]
    pub fn offset_of(&self, ordinal: u64) -> Option<i64> {
        if ordinal < self.ring.low() || ordinal >= self.ring.next() {
            return None;
        }
        let after = self.segments.partition_point(|s| s.first <= ordinal);
        Some(self.segments[after.checked_sub(1)?].offset(ordinal))
    }

    /// The lowest ordinal, from the watermark on, whose offset is not below `offset`; the next
    /// ordinal to be handed out where there is none.
    #[must_use]
    pub fn first_at_or_after(&self, offset: i64) -> u64 {
        let after = self.segments.partition_point(|s| s.last() < offset);
        let Some(segment) = self.segments.get(after) else {
            return self.ring.next();
        };
        let ordinal = match &segment.deltas {
            _ if offset <= segment.base => segment.first,
            None => segment.first + (offset - segment.base) as u64,
            Some(deltas) => {
                let below = |d: &u32| segment.base + i64::from(*d) < offset;
                segment.first + deltas.partition_point(below) as u64
            }
        };
        ordinal.max(self.ring.low())
    }

    /// The lowest record that was open at the last [`advance`](Self::advance), by ordinal and
    /// offset.
    #[must_use]
    pub fn lowest_open(&self) -> Option<(u64, i64)> {
        let low = self.ring.low();
        Some((low, self.offset_of(low)?))
    }

    /// What is settled above the watermark, in order. Two runs are parted by an open record.
    #[must_use]
    pub fn settled_runs(&self) -> SettledRuns<'_> {
        SettledRuns {
            tracker: self,
            at: self.ring.low(),
        }
    }

    /// The records that are open, in stretches without a hole between their offsets, in order. As
    /// of the last [`advance`](Self::advance) the first begins at the watermark.
    #[must_use]
    pub fn open_runs(&self) -> OpenRuns<'_> {
        OpenRuns {
            tracker: self,
            at: self.ring.low(),
            open_to: self.ring.low(),
            segment: 0,
        }
    }

    /// The highest offset that has settled above an open one, if any has.
    #[must_use]
    pub fn last_settled(&self) -> Option<i64> {
        self.offset_of(self.ring.last_set()?)
    }

    /// Memory held, in bytes: what the subscription's budget is charged for.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        size_of::<Self>()
            + self.ring.bytes_held()
            + self.segments.capacity() * size_of::<Segment>()
            + self.deltas_held * size_of::<u32>()
    }

    /// The batch in the segment's own form, if it may follow what is here.
    #[allow(clippy::type_complexity)]
    fn check(
        &self,
        batch: Offsets<'_>,
        covered_to: i64,
    ) -> Result<(i64, u64, Option<Box<[u32]>>), SettleError> {
        let (base, len, deltas) = match batch {
            Offsets::Dense { base, len } => (base, u64::from(len), None),
            Offsets::Sparse { base, deltas } => (base, deltas.len() as u64, Some(deltas)),
        };
        let uncovered = SettleError::Uncovered { covered_to };
        if len == 0 {
            return match covered_to < self.position {
                true => Err(uncovered),
                false => Ok((base, 0, None)),
            };
        }
        let first_delta = deltas.map_or(0, |d| i64::from(d[0]));
        let last_delta = deltas.map_or(len as i64 - 1, |d| i64::from(d[d.len() - 1]));
        let first = base.checked_add(first_delta).ok_or(uncovered)?;
        let last = base.checked_add(last_delta).ok_or(uncovered)?;
        if first < self.position {
            return Err(SettleError::Backwards {
                offset: first,
                position: self.position,
            });
        }
        if let Some(fall) = deltas.and_then(|d| d.windows(2).find(|w| w[1] <= w[0])) {
            return Err(SettleError::Backwards {
                offset: base + i64::from(fall[1]),
                position: base + i64::from(fall[0]) + 1,
            });
        }
        if covered_to <= last {
            return Err(uncovered);
        }
        // Deltas that only count up say no more than the first offset does.
        let holes = (last_delta - first_delta) as u64 != len - 1;
        match deltas {
            Some(deltas) if holes => Ok((base, len, Some(deltas.into()))),
            _ => Ok((first, len, None)),
        }
    }
}

impl Segment {
    /// The caller has found that the segment holds `ordinal`.
    fn offset(&self, ordinal: u64) -> i64 {
        let index = ordinal - self.first;
        match &self.deltas {
            None => self.base + index as i64,
            Some(deltas) => self.base + i64::from(deltas[index as usize]),
        }
    }

    /// How many ordinals from `from` on, below `to`, have offsets without a hole between them.
    fn without_hole(&self, from: u64, to: u64) -> u64 {
        let Some(deltas) = &self.deltas else {
            return to - from;
        };
        let some = &deltas[(from - self.first) as usize..(to - self.first) as usize];
        let joined = some.windows(2).take_while(|pair| pair[1] == pair[0] + 1);
        1 + joined.count() as u64
    }

    /// Its last offset; no segment is empty.
    fn last(&self) -> i64 {
        self.offset(self.first + self.len - 1)
    }

    /// One past the last offset of a segment without holes.
    fn end(&self) -> i64 {
        self.base + self.len as i64
    }
}

/// See [`Tracker::settled_runs`].
#[derive(Debug)]
pub struct SettledRuns<'a> {
    tracker: &'a Tracker,
    at: u64,
}

impl Iterator for SettledRuns<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let ring = &self.tracker.ring;
        while self.at < ring.next() {
            let first = self.at;
            let (len, set) = ring.stretch(first);
            self.at += len;
            if set {
                return Some(Run {
                    first: self.tracker.offset_of(first)?,
                    end: self.tracker.offset_of(first + len - 1)? + 1,
                });
            }
        }
        None
    }
}

/// See [`Tracker::open_runs`].
#[derive(Debug)]
pub struct OpenRuns<'a> {
    tracker: &'a Tracker,
    /// The next ordinal to look at.
    at: u64,
    /// Up to here the records from `at` on are open.
    open_to: u64,
    /// One that does not end below `at`.
    segment: usize,
}

impl Iterator for OpenRuns<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let Tracker { ring, segments, .. } = self.tracker;
        while self.at == self.open_to {
            if self.at == ring.next() {
                return None;
            }
            let (len, settled) = ring.stretch(self.at);
            self.open_to += len;
            if settled {
                self.at = self.open_to;
            }
        }
        let mut run: Option<Run> = None;
        while self.at < self.open_to {
            let segment = segments.get(self.segment)?;
            let end = (segment.first + segment.len).min(self.open_to);
            if segment.first + segment.len <= self.at {
                self.segment += 1;
                continue;
            }
            let first = segment.offset(self.at);
            if run.is_some_and(|run| run.end != first) {
                break;
            }
            let len = segment.without_hole(self.at, end);
            let start = run.map_or(first, |run| run.first);
            run = Some(Run {
                first: start,
                end: first + len as i64,
            });
            self.at += len;
        }
        run
    }
}
