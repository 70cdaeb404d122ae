//! Finding records by time.

use super::log::{HEADER_BYTES, Header, Log, Stored};

impl Log {
    /// Timestamp, offset and epoch of the first record at or after `timestamp`.
    ///
    /// Inside a compressed batch the record is not looked for: the batch's first offset is given,
    /// with its greatest timestamp, so that a reader who starts there misses nothing.
    pub(crate) fn first_record_at(&self, timestamp: i64) -> Option<(i64, i64, i32)> {
        let mut later = self
            .batches()
            .iter()
            .filter(|b| b.max_timestamp >= timestamp);
        later.find_map(|batch| {
            let (at, offset) = first_in(batch, |t| t >= timestamp, self.start())?;
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

fn first_in(batch: &Stored, fits: impl Fn(i64) -> bool, start: i64) -> Option<(i64, i64)> {
    let header = Header::parse(&batch.bytes).ok()?;
    let is_compressed = header.attributes & 0x07 != 0;
    if is_compressed {
        return Some((batch.max_timestamp, batch.base.max(start)));
    }
    let is_append_time = header.attributes & 0x08 != 0;
    let mut rest = &batch.bytes[HEADER_BYTES..header.size];
    for _ in 0..header.count {
        let length = usize::try_from(varint(&mut rest)?).ok()?;
        let (mut record, after) = rest.split_at_checked(length)?;
        rest = after;
        record = record.get(1..)?;
        let timestamp = header.base_timestamp.wrapping_add(varint(&mut record)?);
        let timestamp = if is_append_time {
            header.max_timestamp
        } else {
            timestamp
        };
        let offset = batch.base.wrapping_add(varint(&mut record)?);
        if fits(timestamp) && offset >= start {
            return Some((timestamp, offset));
        }
    }
    None
}

/// A zigzag varint; `None` where the bytes end or it is longer than 64 bits.
fn varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}
