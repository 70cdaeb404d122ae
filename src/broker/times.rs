//! Finding records by time.

use super::log::{Header, Log, Stored};
use crate::records::{Decoder, Limits, Piece, split};

impl Log {
    /// Timestamp, offset and epoch of the first record at or after `timestamp`.
    ///
    /// Where a batch cannot be decoded (a test put it there) its first offset is given, with its
    /// greatest timestamp, so that a reader who starts there misses nothing.
    pub(crate) fn first_record_at(&self, timestamp: i64) -> Option<(i64, i64, i32)> {
        let mut decoder = Decoder::new();
        let mut later = self
            .batches()
            .iter()
            .filter(|b| b.max_timestamp >= timestamp);
        later.find_map(|batch| {
            let found = first_in(batch, &mut decoder, timestamp, self.start());
            let blind = || Some((batch.max_timestamp, batch.base.max(self.start())));
            let (at, offset) = found.unwrap_or_else(blind)?;
            Some((at, offset, batch.epoch))
        })
    }

    /// Timestamp, offset and epoch of the record with the greatest timestamp, the first such one;
    /// -1 of each in an empty log.
    pub(crate) fn latest_record(&self) -> (i64, i64, i32) {
        let Some(most) = self.batches().iter().map(|b| b.max_timestamp).max() else {
            return (-1, -1, -1);
        };
        self.first_record_at(most).unwrap_or((-1, -1, -1))
    }
}

/// Timestamp and offset of the batch's first record at or after `timestamp`, if there is one;
/// `None` where the batch cannot be read.
fn first_in(
    batch: &Stored,
    decoder: &mut Decoder,
    timestamp: i64,
    start: i64,
) -> Option<Option<(i64, i64)>> {
    // The bytes of a batch still have the base offset that they came with; those of a message set
    // stand as they are, and the offset of a compressed one is its last.
    let (base, from) = match batch.is_message_set() {
        true => (batch.base, 0),
        false => {
            let base = Header::parse(&batch.bytes).ok()?.base_offset;
            (base, base)
        }
    };
    let Some(Ok(Piece::Batch(raw))) = split(batch.bytes.clone()).next() else {
        return None;
    };
    let records = raw.decode(decoder, from, &Limits::default()).ok()?;
    let mut each = (0..records.len()).map(|i| {
        let offset = records
            .offset(i)
            .wrapping_sub(base)
            .wrapping_add(batch.base);
        (records.timestamp(i), offset)
    });
    Some(each.find(|&(at, offset)| at >= timestamp && offset >= start))
}
