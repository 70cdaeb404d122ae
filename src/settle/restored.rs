//! What a map said of offsets that have not been read again yet.

use super::map::{Map, MapWriter, Written};
use super::{Run, Tracker};

/// The part of an inherited [`Map`] that lies at or above a lease's position: records that had
/// settled before, under whichever owner.
///
/// 1. It is never asked about an offset below the position: as records come they go to the
///    tracker, the settled ones too, and this is told to forget them.
/// 2. It ends on an offset that had settled.
///
/// ```
/// use laneway::settle::{Map, Restored};
/// // Runs of one open and two settled.
/// let mut restored = Restored::new(Map::read(10, "bgABAAI=")?).expect("something had settled");
/// assert!(restored.meets(10), "10 is open, so the log may go on with it");
/// assert!(!restored.is_settled(10) && restored.is_settled(11));
/// assert!(!restored.pass(13), "and that is all of it");
/// # Ok::<(), laneway::settle::MapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    open: Vec<Run>,
    /// Those before it end below the position.
    at: usize,
    end: i64,
    /// Whether the log's first record was looked at.
    met: bool,
}

/// What may be committed of a lease, all of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The lowest offset that has not settled.
    pub offset: i64,
    /// The leader's epoch of the record before it; -1 not known.
    pub epoch: i32,
    /// What has settled above it.
    pub map: Written,
}

impl Restored {
    /// Nothing where the map knows of no settled offset.
    #[must_use]
    pub fn new(map: Map) -> Option<Self> {
        let Map {
            base,
            mut end,
            mut open,
        } = map;
        if open.last().is_some_and(|last| last.end == end) {
            end = open.pop().map_or(end, |last| last.first);
        }
        // One that is all open ends where it began.
        (end > base).then_some(Restored {
            open,
            at: 0,
            end,
            met: false,
        })
    }

    /// Whether the log can be the one that the map was made for, `first` being the record that
    /// reading begins with: where it has a record that counts as settled before the first open
    /// one, it is another. Asked again it says yes.
    pub fn meets(&mut self, first: i64) -> bool {
        let lowest = self.open.get(self.at).map_or(self.end, |run| run.first);
        std::mem::replace(&mut self.met, true) || first >= lowest
    }

    /// One past the last offset that had settled.
    #[must_use]
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Whether the record at `offset` had settled. Asked with offsets that rise.
    pub fn is_settled(&mut self, offset: i64) -> bool {
        self.pass(offset) && self.open.get(self.at).is_none_or(|run| offset < run.first)
    }

    /// Forgets what lies below `position`. False: nothing is left.
    pub fn pass(&mut self, position: i64) -> bool {
        while self
            .open
            .get(self.at)
            .is_some_and(|run| run.end <= position)
        {
            self.at += 1;
        }
        position < self.end
    }

    /// The lowest offset from `position` on that has not settled.
    fn first_open(&self, position: i64) -> i64 {
        self.open_from(position)
            .next()
            .map_or(self.end.max(position), |run| run.first)
    }

    fn open_from(&self, position: i64) -> impl Iterator<Item = Run> {
        let rest = self.open[self.at..]
            .iter()
            .filter(move |run| run.end > position);
        rest.map(move |run| Run {
            first: run.first.max(position),
            end: run.end,
        })
    }
}

impl MapWriter {
    /// Offset and map of one moment: whatever settles later belongs to the next commit. The
    /// tracker has been advanced.
    pub fn standing(
        &mut self,
        tracker: &Tracker,
        restored: Option<&Restored>,
        chars_max: usize,
    ) -> Standing {
        let (offset, epoch) = (tracker.watermark(), tracker.watermark_epoch());
        let position = tracker.position();
        let Some(restored) = restored.filter(|r| r.end > position) else {
            let end = tracker.last_settled().map_or(offset, |last| last + 1);
            let map = self.write(offset, end, tracker.open_runs(), chars_max);
            return Standing { offset, epoch, map };
        };
        // What was settled before and follows the position at once counts already.
        let (offset, epoch) = match (tracker.open(), restored.first_open(position)) {
            (0, first) if first > position => (first, -1),
            _ => (offset, epoch),
        };
        let open = tracker.open_runs().chain(restored.open_from(position));
        let map = self.write(offset, restored.end, open, chars_max);
        Standing { offset, epoch, map }
    }
}
