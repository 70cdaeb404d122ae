//! Message sets: the formats 0 and 1 of before Kafka 0.11, which brokers up to 3.9 still store where a topic says so.
//!
//! A set is messages one behind the other, each with its offset and a CRC-32 of its own. A
//! compressed message (a wrapper) holds a set in its value. Of it the offset alone is known before
//! it is decompressed: the last inner one. In format 1 the inner offsets are relative, and the
//! last of them lies at the wrapper's (KAFKA-5365: not the count, since compaction leaves holes).
//!
//! [`split`](super::split) gives a wrapper as one batch, and a run of plain messages as one too,
//! so that plain messages cost no more each than records of format 2 do.
//!
//! What a set is made of (sizes, formats, offsets, nesting) is judged as a whole. Checksums and
//! fields are judged message by message: those before a bad one are given, and
//! [`Batch::refused`] says what stands behind them.

use bytes::Bytes;

use super::batch::Entry;
use super::header::{LENGTH_END, Messages};
use super::{
    Batch, BatchHeader, Compression, Decoder, Fault, Limits, RecordsError, TimestampType, compress,
};

/// The header of what [`split`](super::split) gives next: a wrapper, or a run of plain messages.
/// `bytes` begin with a whole message.
pub(super) fn front(bytes: &[u8], offset_min: i64) -> Result<BatchHeader, Fault> {
    let first = Message::at(bytes, 0).map_err(Fault::Frame)?;
    let first = first.ok_or(Fault::Frame(SHORT))?;
    let codec = first.attributes & CODEC_BITS;
    let Some(compression) = Compression::from_id(codec.into()) else {
        return Err(Fault::UnknownCodec(codec));
    };
    if first.offset < 0 {
        return Err(Fault::Frame("its base offset is negative"));
    }
    if first.offset == i64::MAX {
        return Err(Fault::Frame("its offsets leave no room for a next one"));
    }
    if first.offset < offset_min {
        return Err(Fault::Frame("it begins before the last one's end"));
    }
    let mut run = Messages {
        magic: first.magic,
        compression,
        timestamp_type: first.timestamp_type(),
        base_offset: first.offset,
        last_offset: first.offset,
        size: first.size,
        crc: first.crc,
        base_timestamp: first.timestamp(bytes),
        max_timestamp: first.timestamp(bytes),
        count: 1,
    };
    if compression == Compression::None {
        extend(&mut run, bytes);
    }
    Ok(BatchHeader::of_messages(&run))
}

/// Takes in the plain messages that follow and are alike. What is odd ends the run and is looked at
/// when it comes first.
fn extend(run: &mut Messages, bytes: &[u8]) {
    while let Ok(Some(next)) = Message::at(bytes, run.size) {
        let is_alike = next.magic == run.magic
            && next.attributes & CODEC_BITS == 0
            && next.timestamp_type() == run.timestamp_type;
        let fits = next.offset > run.last_offset
            && next.offset - run.base_offset < SPREAD_MAX
            && next.offset < i64::MAX
            && run.size + next.size <= RUN_BYTES_MAX;
        if !is_alike || !fits {
            return;
        }
        run.last_offset = next.offset;
        run.size += next.size;
        run.max_timestamp = run.max_timestamp.max(next.timestamp(bytes));
        run.count += 1;
    }
}

/// Verifies the CRC-32 of each message, wrappers as a whole.
pub(super) fn check_crc(header: &BatchHeader, bytes: &[u8]) -> Result<(), RecordsError> {
    let mut at = 0;
    while at < bytes.len() {
        let message = match Message::at(bytes, at) {
            Ok(Some(message)) => message,
            _ => return Err(RecordsError::new(header.base_offset(), Fault::Frame(SHORT))),
        };
        let checked = message.check_crc(bytes);
        checked.map_err(|fault| RecordsError::new(message.offset, fault))?;
        at += message.size;
    }
    Ok(())
}

/// As [`RawBatch::decode`](super::RawBatch::decode).
pub(super) fn decode(
    header: &BatchHeader,
    bytes: Bytes,
    decoder: &mut Decoder,
    from: i64,
    limits: &Limits,
) -> Result<Batch, RecordsError> {
    let set = match header.compression() {
        Compression::None => Ok(Set {
            section: bytes,
            count: header.count(),
            shift: 0,
            base_offset: header.base_offset(),
            next_offset: header.next_offset(),
            append_time: None,
        }),
        _ => unwrap(header, &bytes, decoder, limits),
    };
    let refuse = |fault| RecordsError::new(header.base_offset(), fault);
    let set = set.map_err(refuse)?;
    if set.count > limits.inflated_max / Batch::ENTRY_BYTES {
        return Err(refuse(Fault::TooLarge {
            codec: header.compression(),
            limit: limits.inflated_max,
        }));
    }
    set.index(header, from)
}

/// At most how many bytes a wrapper's messages take; see
/// [`RawBatch::inflated_hint`](super::RawBatch::inflated_hint).
pub(super) fn inflated_hint(header: &BatchHeader, bytes: &[u8]) -> Option<usize> {
    if header.compression() == Compression::None {
        return Some(bytes.len());
    }
    let wrapper = Message::at(bytes, 0).ok()??;
    let fields = wrapper.fields(bytes).ok()?;
    let value = fields.value(bytes)?;
    compress::inflated_hint_of_messages(header.compression(), value)
}

/// Decompresses a wrapper and looks at what its set is made of.
fn unwrap(
    header: &BatchHeader,
    bytes: &Bytes,
    decoder: &mut Decoder,
    limits: &Limits,
) -> Result<Set, Fault> {
    let wrapper = Message::at(bytes, 0).map_err(Fault::Frame)?;
    let wrapper = wrapper.ok_or(Fault::Frame(SHORT))?;
    wrapper.check_crc(bytes)?;
    let codec = header.compression();
    if codec == Compression::Zstd {
        return Err(Fault::Corrupt(
            "its message format is older than its codec (zstd)",
        ));
    }
    let fields = wrapper.fields(bytes).map_err(Fault::Corrupt)?;
    let value = fields.value(bytes);
    let value = value.ok_or(Fault::Corrupt("a compressed message has no value"))?;
    let section = decoder.inflate_messages(codec, bytes.slice_ref(value), limits)?;

    let (mut at, mut count, mut first, mut last) = (0, 0, 0, -1);
    while at < section.len() {
        let inner = Message::at(&section, at).map_err(Fault::Corrupt)?;
        let inner = inner.ok_or(Fault::Corrupt("an inner message is cut"))?;
        if inner.magic != wrapper.magic {
            return Err(Fault::Corrupt(
                "an inner message is of another format than its wrapper",
            ));
        }
        if inner.attributes & CODEC_BITS != 0 {
            return Err(Fault::Corrupt("a compressed message holds another one"));
        }
        if inner.offset <= last {
            return Err(Fault::Corrupt("its inner offsets do not rise"));
        }
        if count == 0 {
            first = inner.offset;
        }
        last = inner.offset;
        count += 1;
        at += inner.size;
    }
    if count == 0 {
        return Err(Fault::Corrupt("a compressed message holds none"));
    }
    if last - first >= SPREAD_MAX {
        return Err(Fault::Corrupt("its inner offsets lie too far apart"));
    }
    // Producers leave the wrapper's offset at 0 and the broker sets it: with 0 the inner offsets
    // stand as they are, which Kafka's reader allows too.
    let outer = header.base_offset();
    if outer != 0 && outer < last {
        return Err(Fault::Corrupt(
            "a compressed message's offset lies below its last inner one",
        ));
    }
    let shift = match (wrapper.magic, outer) {
        (0, _) | (_, 0) => 0,
        _ => outer - last,
    };
    // `last` is below `i64::MAX` where the wrapper's offset bounds it, and is held to that here.
    let end = (last + shift).checked_add(1);
    let end = end.ok_or(Fault::Corrupt("its inner offsets leave no room"))?;
    let append_time = match wrapper.timestamp_type() {
        TimestampType::Create => None,
        TimestampType::LogAppend => Some(wrapper.timestamp(bytes)),
    };
    Ok(Set {
        section,
        count,
        shift,
        base_offset: first + shift,
        next_offset: end.max(header.next_offset()),
        append_time,
    })
}

/// Plain messages whose frames have been walked.
struct Set {
    section: Bytes,
    count: usize,
    /// What makes the offsets absolute.
    shift: i64,
    base_offset: i64,
    next_offset: i64,
    /// The wrapper's time, where the broker set it: it counts for all.
    append_time: Option<i64>,
}

impl Set {
    fn index(self, header: &BatchHeader, from: i64) -> Result<Batch, RecordsError> {
        let mut entries = Vec::with_capacity(self.count);
        let (mut next_offset, mut refused) = (self.next_offset, None);
        let mut at = 0;
        while let Ok(Some(message)) = Message::at(&self.section, at) {
            at += message.size;
            let offset = message.offset + self.shift;
            // Not even its checksum is looked at: a position past a bad message gets past it.
            if offset < from {
                continue;
            }
            match self.entry(&message, offset) {
                Ok(entry) => entries.push(entry),
                Err(fault) if entries.is_empty() => return Err(RecordsError::new(offset, fault)),
                Err(fault) => {
                    next_offset = offset;
                    refused = Some(RecordsError::new(offset, fault));
                    break;
                }
            }
        }
        Ok(Batch::of_messages(
            header,
            self.section,
            self.base_offset,
            next_offset,
            entries,
            refused,
        ))
    }

    fn entry(&self, message: &Message, offset: i64) -> Result<Entry, Fault> {
        message.check_crc(&self.section)?;
        let fields = message.fields(&self.section).map_err(Fault::Corrupt)?;
        let timestamp = self.append_time;
        Ok(Entry::of_message(
            timestamp.unwrap_or_else(|| message.timestamp(&self.section)),
            // The set's spread is below 2^31.
            (offset - self.base_offset) as u32,
            (fields.key_at, fields.key_len),
            (fields.value_at, fields.value_len),
        ))
    }
}

/// One message, by its fixed fields. It is whole: all of it lies in the bytes that it was found in.
struct Message {
    at: usize,
    size: usize,
    offset: i64,
    crc: u32,
    magic: u8,
    attributes: u8,
}

/// Where a message's key and value lie. Negative lengths are null.
struct Fields {
    key_at: usize,
    key_len: i32,
    value_at: usize,
    value_len: i32,
}

impl Message {
    /// The message at `at`; `None` where the bytes end inside it, or begin none.
    fn at(bytes: &[u8], at: usize) -> Result<Option<Message>, &'static str> {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(front) = rest.first_chunk::<LENGTH_END>() else {
            return Ok(None);
        };
        let [o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = *front;
        let length = i32::from_be_bytes([l0, l1, l2, l3]);
        if length < LENGTH_MIN {
            return Err(SHORT);
        }
        let size = LENGTH_END + length.unsigned_abs() as usize;
        let Some(&[c0, c1, c2, c3, magic, attributes]) = rest
            .get(..size)
            .and_then(|message| message.get(LENGTH_END..)?.first_chunk())
        else {
            return Ok(None);
        };
        match magic {
            0 => {}
            1 if length >= LENGTH_MIN + TIMESTAMP_BYTES as i32 => {}
            1 => return Err(SHORT),
            _ => return Err("a message is of another format than its set"),
        }
        Ok(Some(Message {
            at,
            size,
            offset: i64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            crc: u32::from_be_bytes([c0, c1, c2, c3]),
            magic,
            attributes,
        }))
    }

    fn end(&self) -> usize {
        self.at + self.size
    }

    fn check_crc(&self, bytes: &[u8]) -> Result<(), Fault> {
        let covered = bytes.get(self.at + MAGIC_AT..self.end());
        let computed = crc32fast::hash(covered.unwrap_or_default());
        match computed == self.crc {
            true => Ok(()),
            false => Err(Fault::Checksum {
                stored: self.crc,
                computed,
            }),
        }
    }

    fn timestamp_type(&self) -> TimestampType {
        match self.magic != 0 && self.attributes & APPEND_TIME_BIT != 0 {
            true => TimestampType::LogAppend,
            false => TimestampType::Create,
        }
    }

    /// -1 in format 0, which has none.
    fn timestamp(&self, bytes: &[u8]) -> i64 {
        let at = self.at + FIELDS_AT;
        let stored = bytes.get(at..).and_then(<[u8]>::first_chunk);
        match (self.magic, stored) {
            (1, Some(stored)) => i64::from_be_bytes(*stored),
            _ => -1,
        }
    }

    /// Finds key and value, which must use the message up exactly.
    fn fields(&self, bytes: &[u8]) -> Result<Fields, &'static str> {
        let stamp = if self.magic == 0 { 0 } else { TIMESTAMP_BYTES };
        let (key_at, key_len) = self.blob(bytes, self.at + FIELDS_AT + stamp)?;
        let after_key = key_at + key_len.max(0).unsigned_abs() as usize;
        let (value_at, value_len) = self.blob(bytes, after_key)?;
        if value_at + value_len.max(0).unsigned_abs() as usize != self.end() {
            return Err("a message's length disagrees with its fields");
        }
        Ok(Fields {
            key_at,
            key_len,
            value_at,
            value_len,
        })
    }

    /// Where the bytes behind a length begin, and the length.
    fn blob(&self, bytes: &[u8], at: usize) -> Result<(usize, i32), &'static str> {
        let inside = bytes.get(at..self.end()).unwrap_or_default();
        let (len, rest) = inside.split_first_chunk().ok_or(CUT)?;
        let len = i32::from_be_bytes(*len);
        match usize::try_from(len) {
            Ok(size) if size > rest.len() => Err(CUT),
            _ => Ok((at + size_of::<i32>(), len)),
        }
    }
}

impl Fields {
    fn value<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let len = usize::try_from(self.value_len).ok()?;
        bytes.get(self.value_at..self.value_at + len)
    }
}

/// From the message's start; the checksum covers everything from here to its end.
const MAGIC_AT: usize = 16;
/// Timestamp (format 1), key, value.
const FIELDS_AT: usize = 18;
const TIMESTAMP_BYTES: usize = 8;
/// Checksum, magic, attributes, two lengths.
pub(super) const LENGTH_MIN: i32 = 14;
const CODEC_BITS: u8 = 0x07;
const APPEND_TIME_BIT: u8 = 0x08;
/// What one run of plain messages may take, a first message apart: as much as a batch of format 2
/// may usually have, so that dealing it stays a short step.
const RUN_BYTES_MAX: usize = 256 << 10;
/// Offsets of one batch are 32 bits wide.
const SPREAD_MAX: i64 = i32::MAX as i64;
const SHORT: &str = "its length is less than a header's";
const CUT: &str = "a message's fields pass its end";

#[cfg(test)]
mod tests;
