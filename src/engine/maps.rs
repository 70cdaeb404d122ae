//! The offset map of each lease: given when a commit is made, taken over when a lease begins, and
//! obeyed when records are read again that had settled before.

use super::{Config, Engine, MapFull, OffsetMap};
use crate::commit::{Answer, Committed, Progress};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, TopicPartition};
use crate::lane::Parcel;
use crate::record::Delivery;
use crate::settle::{Map, MapWriter, Restored};
use crate::time::Now;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What the leases' maps share.
pub(super) struct Maps {
    writer: MapWriter,
    /// Characters that a map may take: the setting, or what the broker has taught us.
    chars_max: usize,
    was_refused: bool,
    /// Records that a map kept from running again.
    pub settled_before: u64,
    /// Maps that could not be used.
    pub unused: u64,
    /// Reused: the parts of a parcel that are dealt, and those that are not.
    open: Vec<Range<u32>>,
    settled: Vec<Range<u32>>,
}

/// How long a lease's map was found to be, for [`MapFull::Wait`].
#[derive(Debug, Default)]
pub(super) struct Measure {
    /// No more records, until it is shorter.
    pub is_full: bool,
    /// Where the lease stood when the map was measured.
    position: i64,
    watermark: i64,
    at: Option<Now>,
}

impl Maps {
    pub(super) fn new(config: &Config) -> Self {
        Maps {
            writer: MapWriter::new(),
            chars_max: config.metadata_max,
            was_refused: false,
            settled_before: 0,
            unused: 0,
            open: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// The broker has refused metadata of this length. Says whether that is the first time.
    ///
    /// The limit is its own setting and the same for all partitions. It is halved until the broker
    /// is content: ten tries at most from the default, each at the price of a round trip.
    pub(super) fn refused_at(&mut self, chars: usize) -> bool {
        let is_first = !std::mem::replace(&mut self.was_refused, true);
        self.chars_max = self.chars_max.min(chars / 2 / 4 * 4);
        is_first
    }

    /// From here on a map makes its partition wait, where that is wanted.
    fn chars_full(&self) -> usize {
        self.chars_max / 4 * 3
    }
}

impl Engine {
    /// A commit is about to be made: offset and map of each lease, of this moment.
    pub(super) fn answer_ask(&mut self, now: Now, leases: &[LeaseId]) {
        let mut answers = Vec::with_capacity(leases.len());
        let mut work = 0;
        for id in leases {
            answers.push((*id, self.standing(now, *id, &mut work)));
            self.hold_if_ahead(now, *id);
            if work >= WORK_MAX {
                break; // the others follow with the next commit
            }
        }
        if let Some(commit) = &mut self.commit {
            commit.answer(now, answers);
        }
    }

    fn standing(&mut self, now: Now, id: LeaseId, work: &mut usize) -> Answer {
        let Some(tenure) = self.leases.get_mut(id) else {
            return Answer::Nothing;
        };
        let Some(tracker) = &mut tenure.tracker else {
            return Answer::Nothing;
        };
        tracker.advance();
        let restored = tenure.restored.as_ref();
        let chars_max = self.maps.chars_max;
        let standing = self.maps.writer.standing(tracker, restored, chars_max);
        *work += standing.map.work;
        if self.config.map_full == MapFull::Wait {
            let is_full = standing.map.whole_chars > self.maps.chars_full();
            tenure
                .measure
                .taken(now, is_full, (tracker.position(), tracker.watermark()));
            // Less than was committed before must not take its place.
            if !standing.map.is_whole && !tenure.draining {
                return Answer::Later;
            }
        }
        match Progress::new(standing.offset, standing.epoch) {
            Some(progress) => Answer::Progress(progress.with_metadata(standing.map.text)),
            None => Answer::Nothing,
        }
    }

    /// Under [`MapFull::Wait`]: looks at how long the map is, now and then. What has been dealt in
    /// between may settle in any pattern; the quarter of the limit that is left has room for it.
    pub(super) fn measure_map(&mut self, now: Now, id: LeaseId) {
        if !self.config.writes_maps() {
            return;
        }
        let Some(tenure) = self.leases.get_mut(id) else {
            return;
        };
        let Some(tracker) = &tenure.tracker else {
            return;
        };
        let measure = &mut tenure.measure;
        let stands = (tracker.position(), tracker.watermark());
        let chars = self.maps.chars_full();
        // As plain bits it fits for sure.
        let span = stands.0.abs_diff(stands.1);
        if span <= (chars as u64 / 4 * 3).saturating_sub(BITS_OVERHEAD) * 8 {
            measure.taken(now, false, stands);
            return;
        }
        let is_due = match measure.is_full {
            true => {
                let rested = measure.at.is_none_or(|at| now.since(at) >= MEASURE_PAUSE);
                rested && stands.1 > measure.watermark
            }
            false => stands.0.abs_diff(measure.position) >= chars as u64 * 2,
        };
        if is_due {
            let restored = tenure.restored.as_ref();
            let standing = self.maps.writer.standing(tracker, restored, chars);
            measure.taken(now, !standing.map.is_whole, stands);
        }
    }

    /// The lease begins at a committed offset: what stood beside it says which records above had
    /// settled.
    pub(super) fn inherit(&mut self, id: LeaseId, committed: &Committed) {
        let (Some(text), false) = (
            &committed.metadata,
            self.config.offset_map == OffsetMap::Off,
        ) else {
            return;
        };
        let Some(tenure) = self.leases.get_mut(id) else {
            return;
        };
        match Map::read(committed.offset, text) {
            Ok(map) => tenure.restored = Restored::new(map),
            Err(error) => {
                let partition = tenure.partition.clone();
                let why =
                    format!("the metadata beside the committed offset is no offset map: {error}");
                self.unused(partition, committed.offset, &why);
            }
        }
    }

    fn unused(&mut self, partition: TopicPartition, offset: i64, why: &str) {
        self.maps.unused += 1;
        let words = format!(
            "{why}; every record from the committed offset on runs, also those that had settled \
             before"
        );
        let error = Error::new(ErrorKind::Peer, words);
        self.warn(
            error
                .at(partition.topic, partition.partition)
                .offset_at(offset),
        );
    }

    /// Deals the records of a parcel that had not settled before, and settles the others. The
    /// tracker has taken the parcel in.
    pub(super) fn deal_what_is_open(&mut self, id: LeaseId, parcel: &Arc<Parcel<Delivery>>) {
        self.drop_map_of_another_log(id, parcel.load.batch.offset(0));
        let mut open = std::mem::take(&mut self.maps.open);
        let mut settled = std::mem::take(&mut self.maps.settled);
        open.clear();
        settled.clear();
        self.part(id, parcel, &mut open, &mut settled);
        if let Some(tracker) = self.leases.get_mut(id).and_then(|t| t.tracker.as_mut()) {
            for part in &settled {
                let (first, len) = (parcel.first_ordinal + u64::from(part.start), part.len());
                // The tracker has just numbered them, and nobody else has heard of them.
                let result = tracker.settle_range(first, len as u64);
                debug_assert_eq!(result, Ok(()));
                self.maps.settled_before += len as u64;
            }
        }
        self.deal_parts(parcel, open.drain(..));
        (self.maps.open, self.maps.settled) = (open, settled);
    }

    /// Parts a parcel by whether the records had settled, and forgets what the map said of them.
    fn part(
        &mut self,
        id: LeaseId,
        parcel: &Parcel<Delivery>,
        open: &mut Vec<Range<u32>>,
        settled: &mut Vec<Range<u32>>,
    ) {
        let batch = &parcel.load.batch;
        let Some(tenure) = self.leases.get_mut(id) else {
            return;
        };
        let Some(restored) = &mut tenure.restored else {
            open.push(0..parcel.len);
            return;
        };
        let mut at = 0;
        while at < parcel.len {
            let is_settled = restored.is_settled(batch.offset(at as usize));
            let mut end = at + 1;
            while end < parcel.len && restored.is_settled(batch.offset(end as usize)) == is_settled
            {
                end += 1;
            }
            match is_settled {
                true => settled.push(at..end),
                false => open.push(at..end),
            }
            at = end;
        }
        let position = tenure.tracker.as_ref().map_or(i64::MAX, |t| t.position());
        if !restored.pass(position) {
            tenure.restored = None;
        }
    }

    /// A map speaks of one log. Where that is not the one that we read, none of it counts.
    fn drop_map_of_another_log(&mut self, id: LeaseId, first: i64) {
        let log_end = self.fetch.view(id).map_or(-1, |view| view.high_watermark);
        let Some(tenure) = self.leases.get_mut(id) else {
            return;
        };
        let Some(restored) = &mut tenure.restored else {
            return;
        };
        let why = if !restored.meets(first) {
            "the offset map says that the first record had settled, so it is of another log"
        } else if log_end < restored.end() {
            "the log ends before its offset map does, so it is of another log"
        } else {
            return;
        };
        tenure.restored = None;
        let partition = tenure.partition.clone();
        self.unused(partition, first, why);
    }
}

impl Measure {
    fn taken(&mut self, now: Now, is_full: bool, (position, watermark): (i64, i64)) {
        self.is_full = is_full;
        self.position = position;
        self.watermark = watermark;
        self.at = Some(now);
    }
}

/// Work on maps that one commit may cost: about what two of the longest take.
const WORK_MAX: usize = 1 << 20;

/// A map that is full is looked at again no sooner.
const MEASURE_PAUSE: Duration = Duration::from_millis(10);

/// Bytes of a map's plain bits beside the bits.
const BITS_OVERHEAD: u64 = 6;
