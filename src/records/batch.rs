//! A decoded batch: one buffer, one index.

use std::ops::Range;

use bytes::Bytes;

use super::varint::Cursor;
use super::{BatchHeader, Fault, Limits, RecordsError, TimestampType};

/// The records of one batch at and above the offset it was decoded from.
///
/// Records are named by their place, from 0. What a record has is read from the batch's one
/// buffer: asking costs no allocation, except for the `_bytes` forms, which take a reference
/// count.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The records section: a slice of the fetch answer's frame, or the inflated bytes.
    section: Bytes,
    entries: Box<[Entry]>,
    base_offset: i64,
    next_offset: i64,
    leader_epoch: i32,
    timestamp_type: TimestampType,
    refused: Option<Box<RecordsError>>,
}

/// Where one record's parts lie in the section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    timestamp: i64,
    offset_delta: u32,
    key_at: u32,
    /// Negative is null, here and below.
    key_len: i32,
    value_at: u32,
    value_len: i32,
    /// How many headers; they begin behind the value and the varint that says the same.
    headers: u32,
}

impl Entry {
    /// A message of format 0 or 1: it has no headers. Both parts come as place and length.
    pub(super) fn of_message(
        timestamp: i64,
        offset_delta: u32,
        (key_at, key_len): (usize, i32),
        (value_at, value_len): (usize, i32),
    ) -> Self {
        Entry {
            timestamp,
            offset_delta,
            // Sections are shorter than SECTION_MAX, so positions fit.
            key_at: key_at as u32,
            key_len,
            value_at: value_at as u32,
            value_len,
            headers: 0,
        }
    }
}

impl Batch {
    /// What the index takes for one record.
    pub const ENTRY_BYTES: usize = size_of::<Entry>();

    /// Indexes `section`, which must be used up exactly. Positions fit in `u32`: sections are
    /// bounded by [`SECTION_MAX`](super::compress::SECTION_MAX).
    pub(super) fn index(
        header: &BatchHeader,
        section: Bytes,
        from: i64,
        limits: &Limits,
    ) -> Result<Batch, Fault> {
        // The count is the writer's word: believe it no further than bytes for it have come.
        if header.count() > section.len() / RECORD_BYTES_MIN {
            return Err(Fault::Corrupt(
                "it counts more records than its bytes can hold",
            ));
        }
        if header.count() > limits.inflated_max / Self::ENTRY_BYTES {
            return Err(Fault::TooLarge {
                codec: header.compression(),
                limit: limits.inflated_max,
            });
        }
        let mut entries = Vec::with_capacity(header.count());
        let mut cursor = Cursor::new(&section, 0);
        let mut lowest = 0;
        for _ in 0..header.count() {
            let entry = read_record(&mut cursor, header).map_err(Fault::Corrupt)?;
            let delta = i64::from(entry.offset_delta);
            if delta < lowest {
                return Err(Fault::Corrupt("its records' offsets do not rise"));
            }
            lowest = delta + 1;
            if header.base_offset() + delta >= from {
                entries.push(entry);
            }
        }
        if cursor.remaining() != 0 {
            return Err(Fault::Corrupt("bytes follow its last record"));
        }
        Ok(Batch {
            entries: entries.into_boxed_slice(),
            section,
            ..Batch::empty(header)
        })
    }

    /// A batch without records, which still moves the position.
    pub(super) fn empty(header: &BatchHeader) -> Batch {
        Batch {
            section: Bytes::new(),
            entries: Box::default(),
            base_offset: header.base_offset(),
            next_offset: header.next_offset(),
            leader_epoch: header.leader_epoch(),
            timestamp_type: header.timestamp_type(),
            refused: None,
        }
    }

    /// Messages of format 0 or 1 whose parts lie in `section`.
    pub(super) fn of_messages(
        header: &BatchHeader,
        section: Bytes,
        base_offset: i64,
        next_offset: i64,
        entries: Vec<Entry>,
        refused: Option<RecordsError>,
    ) -> Batch {
        Batch {
            section,
            entries: entries.into_boxed_slice(),
            base_offset,
            next_offset,
            refused: refused.map(Box::new),
            ..Batch::empty(header)
        }
    }

    /// How many records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The offset of record `i`.
    ///
    /// # Panics
    ///
    /// Like all that take a place: if `i` is not below [`len`](Self::len).
    #[must_use]
    pub fn offset(&self, i: usize) -> i64 {
        self.base_offset + i64::from(self.entries[i].offset_delta)
    }

    /// The time of record `i`, in milliseconds since 1970; -1 where the producer set none.
    #[must_use]
    pub fn timestamp(&self, i: usize) -> i64 {
        self.entries[i].timestamp
    }

    /// Who set the timestamps.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        self.timestamp_type
    }

    /// The key of record `i`; null is `None` and differs from empty.
    #[must_use]
    pub fn key(&self, i: usize) -> Option<&[u8]> {
        let e = &self.entries[i];
        part(&self.section, e.key_at, e.key_len)
    }

    /// The value of record `i`; null (a tombstone) is `None` and differs from empty.
    #[must_use]
    pub fn value(&self, i: usize) -> Option<&[u8]> {
        let e = &self.entries[i];
        part(&self.section, e.value_at, e.value_len)
    }

    /// The key of record `i`, sharing the batch's buffer: it keeps all of it alive.
    #[must_use]
    pub fn key_bytes(&self, i: usize) -> Option<Bytes> {
        self.key(i).map(|key| self.section.slice_ref(key))
    }

    /// The value of record `i`, sharing the batch's buffer: it keeps all of it alive.
    #[must_use]
    pub fn value_bytes(&self, i: usize) -> Option<Bytes> {
        self.value(i).map(|value| self.section.slice_ref(value))
    }

    /// The headers of record `i`, in the order written, duplicates kept.
    #[must_use]
    pub fn headers(&self, i: usize) -> Headers<'_> {
        let e = &self.entries[i];
        let mut cursor = Cursor::new(&self.section, e.value_at as usize + length(e.value_len));
        // The count itself; `index` has read the very same bytes.
        cursor.varint();
        Headers {
            cursor,
            left: e.headers,
        }
    }

    /// One past the last offset that the batch covers, gaps at its end included: where reading
    /// goes on. Behind what was [refused](Self::refused) it does not reach.
    #[must_use]
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// What is wrong with the record at [`next_offset`](Self::next_offset), if it was that which
    /// ended the batch. Only message sets (formats 0 and 1) are judged record by record; a batch
    /// of format 2 is refused whole.
    #[must_use]
    pub fn refused(&self) -> Option<&RecordsError> {
        self.refused.as_deref()
    }

    /// The leader's epoch when it appended the batch; -1 in message sets, which do not say.
    #[must_use]
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// Bytes of heap that the batch pins: its part of the frame or its inflated buffer, and its
    /// index.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.section.len() + self.entries.len() * Self::ENTRY_BYTES
    }

    /// The records `first..=last`, those that `keeps` says copied out into memory of their own and
    /// the others empty, so that one record does not pin a whole answer. Places count from `first`
    /// on.
    #[must_use]
    pub fn copied_out(&self, first: usize, last: usize, keeps: impl Fn(usize) -> bool) -> Batch {
        let kept = |i: usize| keeps(i).then(|| self.record_at(i));
        let bytes = (first..=last).filter_map(kept).map(|at| at.len()).sum();
        let mut section = Vec::with_capacity(bytes);
        let mut entries = Vec::with_capacity(last - first + 1);
        for i in first..=last {
            let mut entry = self.entries[i];
            match kept(i) {
                Some(at) => {
                    // No more is copied than was there, so positions still fit.
                    entry.value_at = entry.value_at - entry.key_at + section.len() as u32;
                    entry.key_at = section.len() as u32;
                    section.extend_from_slice(&self.section[at]);
                }
                None => {
                    (entry.key_at, entry.key_len) = (0, -1);
                    (entry.value_at, entry.value_len) = (0, -1);
                    entry.headers = 0;
                }
            }
            entries.push(entry);
        }
        Batch {
            section: section.into(),
            entries: entries.into_boxed_slice(),
            refused: None,
            ..*self
        }
    }

    /// What [`copied_out`](Self::copied_out) takes for one record, in bytes.
    #[must_use]
    pub fn copied_bytes(&self, i: usize) -> usize {
        self.record_at(i).len() + Self::ENTRY_BYTES
    }

    /// Where record `i` lies, from its key to its headers' end.
    fn record_at(&self, i: usize) -> Range<usize> {
        let mut headers = self.headers(i);
        headers.by_ref().for_each(drop);
        self.entries[i].key_at as usize..headers.cursor.at()
    }

    /// Whether every record's offset is one more than the one before it.
    #[must_use]
    pub fn offsets_are_dense(&self) -> bool {
        match (self.entries.first(), self.entries.last()) {
            (Some(first), Some(last)) => {
                (last.offset_delta - first.offset_delta) as usize == self.entries.len() - 1
            }
            _ => true,
        }
    }
}

/// The headers of one record; made by [`Batch::headers`].
pub struct Headers<'a> {
    cursor: Cursor<'a>,
    left: u32,
}

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    key: &'a [u8],
    value: Option<&'a [u8]>,
}

impl<'a> Header<'a> {
    /// The key as it came. Kafka means UTF-8; producers have been seen to write other bytes.
    #[must_use]
    pub fn key_bytes(&self) -> &'a [u8] {
        self.key
    }

    /// The key, if it is UTF-8.
    #[must_use]
    pub fn key(&self) -> Option<&'a str> {
        std::str::from_utf8(self.key).ok()
    }

    /// The value; null is `None` and differs from empty.
    #[must_use]
    pub fn value(&self) -> Option<&'a [u8]> {
        self.value
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        self.left = self.left.checked_sub(1)?;
        // `index` has walked these bytes, so none of this fails; if it did, the headers end.
        let key_len = self.cursor.varint()?;
        let key = self.cursor.take(length(key_len))?;
        let value_len = self.cursor.varint()?;
        let value = match value_len {
            ..0 => None,
            len => Some(self.cursor.take(length(len))?),
        };
        Some(Header { key, value })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Headers<'_> {}

/// Reads one record, which must use up exactly the bytes that it declares.
#[inline]
fn read_record(cursor: &mut Cursor<'_>, header: &BatchHeader) -> Result<Entry, &'static str> {
    let size = cursor.varint().ok_or("a record's length is cut")?;
    let size = usize::try_from(size).map_err(|_| "a record's length is negative")?;
    if size > cursor.remaining() {
        return Err("a record's length passes the batch's end");
    }
    let end = cursor.at() + size;
    let entry = read_fields(cursor, header)?;
    for _ in 0..entry.headers {
        // However many are claimed, the first one past the record's end is the last one read.
        if cursor.at() >= end {
            return Err(DISAGREES);
        }
        walk_header(cursor)?;
    }
    // Nothing above moves back, so a field that left the record shows here.
    if cursor.at() != end {
        return Err(DISAGREES);
    }
    Ok(entry)
}

#[inline]
fn read_fields(cursor: &mut Cursor<'_>, header: &BatchHeader) -> Result<Entry, &'static str> {
    cursor.skip(1).ok_or(CUT)?; // attributes, of which none is in use
    let timestamp_delta = cursor.varlong().ok_or(CUT)?;
    let offset_delta = cursor.varint().ok_or(CUT)?;
    if offset_delta < 0 || offset_delta > header.last_offset_delta() {
        return Err("a record's offset lies outside the batch");
    }
    let key_len = cursor.varint().ok_or(CUT)?;
    let key_at = cursor.skip(length(key_len)).ok_or(CUT)?;
    let value_len = cursor.varint().ok_or(CUT)?;
    let value_at = cursor.skip(length(value_len)).ok_or(CUT)?;
    let headers = cursor.varint().ok_or(CUT)?;
    Ok(Entry {
        timestamp: match header.timestamp_type() {
            // Wraps, as the writer's subtraction did: the sum is right for any two times.
            TimestampType::Create => header.base_timestamp().wrapping_add(timestamp_delta),
            TimestampType::LogAppend => header.max_timestamp(),
        },
        offset_delta: offset_delta.unsigned_abs(),
        // Sections are shorter than SECTION_MAX, so positions fit.
        key_at: key_at as u32,
        key_len,
        value_at: value_at as u32,
        value_len,
        headers: u32::try_from(headers).map_err(|_| "a record counts negative headers")?,
    })
}

#[inline]
fn walk_header(cursor: &mut Cursor<'_>) -> Result<(), &'static str> {
    let key_len = cursor.varint().ok_or(CUT)?;
    let key_len = usize::try_from(key_len).map_err(|_| "a header's key is null")?;
    cursor.skip(key_len).ok_or(CUT)?;
    let value_len = cursor.varint().ok_or(CUT)?;
    cursor.skip(length(value_len)).ok_or(CUT)?;
    Ok(())
}

/// The bytes that a nullable field of that length takes. Any negative length is null, as Kafka's
/// own reader has it.
#[inline]
fn length(len: i32) -> usize {
    len.max(0).unsigned_abs() as usize
}

#[inline]
fn part(section: &[u8], at: u32, len: i32) -> Option<&[u8]> {
    let at = at as usize;
    // `index` has checked both ends.
    (len >= 0).then(|| section.get(at..at + length(len)).unwrap_or_default())
}

/// Length, attributes, two deltas, null key, null value, no headers.
const RECORD_BYTES_MIN: usize = 7;
const CUT: &str = "a record's fields pass the batch's end";
const DISAGREES: &str = "a record's length disagrees with its fields";
