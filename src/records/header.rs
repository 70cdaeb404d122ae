//! The 61 bytes in front of a batch's records.

use std::fmt;

use super::{Fault, RecordsError};

/// How a batch's records are compressed.
///
/// ```
/// use laneway::records::Compression;
/// assert_eq!(Compression::Lz4.to_string(), "lz4");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Gzip.
    Gzip,
    /// Snappy, in xerial's framing or bare.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard (KIP-110).
    Zstd,
}

/// Who set the records' timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer, record by record.
    #[default]
    Create,
    /// The broker, when it appended the batch: one time for all of its records.
    LogAppend,
}

/// What a [`BatchHeader`] takes of a run of messages of format 0 or 1, or of a compressed one.
pub(super) struct Messages {
    pub magic: u8,
    pub compression: Compression,
    pub timestamp_type: TimestampType,
    pub base_offset: i64,
    pub last_offset: i64,
    pub size: usize,
    pub crc: u32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub count: i32,
}

/// A batch's header, already known to be consistent: its offsets fit and its codec is known.
///
/// What it says is only to be believed once
/// [`RawBatch::check_crc`](super::RawBatch::check_crc) has held; even then base offset, length
/// and leader epoch lie outside the checksum, since brokers rewrite them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    magic: u8,
    base_offset: i64,
    size: u32,
    leader_epoch: i32,
    crc: u32,
    attributes: u16,
    compression: Compression,
    last_offset_delta: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    count: i32,
}

impl BatchHeader {
    /// Reads the header of a whole batch of format 2, of `bytes.len()` bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, RecordsError> {
        let fixed: &[u8; HEADER_BYTES] = match bytes.first_chunk() {
            Some(fixed) => fixed,
            None => return Err(RecordsError::new(-1, Fault::Frame("shorter than a header"))),
        };
        let base_offset = i64::from_be_bytes(field(fixed, 0));
        let refuse = |fault| Err(RecordsError::new(base_offset, fault));
        let attributes = u16::from_be_bytes(field(fixed, ATTRIBUTES_AT));
        let compression = match Compression::from_id(attributes & 0x07) {
            Some(compression) => compression,
            None => return refuse(Fault::UnknownCodec((attributes & 0x07) as u8)),
        };
        let header = BatchHeader {
            magic: 2,
            base_offset,
            size: bytes.len().try_into().unwrap_or(u32::MAX),
            leader_epoch: i32::from_be_bytes(field(fixed, LEADER_EPOCH_AT)),
            crc: u32::from_be_bytes(field(fixed, CRC_AT)),
            attributes,
            compression,
            last_offset_delta: i32::from_be_bytes(field(fixed, 23)),
            base_timestamp: i64::from_be_bytes(field(fixed, 27)),
            max_timestamp: i64::from_be_bytes(field(fixed, MAX_TIMESTAMP_AT)),
            producer_id: i64::from_be_bytes(field(fixed, 43)),
            producer_epoch: i16::from_be_bytes(field(fixed, 51)),
            base_sequence: i32::from_be_bytes(field(fixed, 53)),
            count: i32::from_be_bytes(field(fixed, 57)),
        };
        if base_offset < 0 {
            return refuse(Fault::Frame("its base offset is negative"));
        }
        if header.last_offset_delta < 0 {
            return refuse(Fault::Frame("its last offset lies before its first"));
        }
        if base_offset
            .checked_add(i64::from(header.last_offset_delta) + 1)
            .is_none()
        {
            return refuse(Fault::Frame("its offsets leave no room for a next one"));
        }
        if header.count < 0 {
            return refuse(Fault::Frame("it counts a negative number of records"));
        }
        if header.count > 0 && header.last_offset_delta < header.count - 1 {
            return refuse(Fault::Frame("it counts more records than it has offsets"));
        }
        Ok(header)
    }

    /// A header for messages of format 0 or 1, whose offsets fit and rise.
    pub(super) fn of_messages(messages: &Messages) -> Self {
        let append = match messages.timestamp_type {
            TimestampType::Create => 0,
            TimestampType::LogAppend => TIMESTAMP_BIT,
        };
        BatchHeader {
            magic: messages.magic,
            base_offset: messages.base_offset,
            size: messages.size.try_into().unwrap_or(u32::MAX),
            leader_epoch: -1,
            crc: messages.crc,
            attributes: messages.compression.id() | append,
            compression: messages.compression,
            // A run spreads over less than 2^31 offsets.
            last_offset_delta: (messages.last_offset - messages.base_offset) as i32,
            base_timestamp: messages.base_timestamp,
            max_timestamp: messages.max_timestamp,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            count: messages.count,
        }
    }

    /// The message format: 2, or 0 or 1 for a message set.
    #[must_use]
    pub fn magic(&self) -> u8 {
        self.magic
    }

    /// The offset of the first record that the batch was written with. Of a compressed message of
    /// format 0 or 1 it is the last one's: where the first lies shows when it is decompressed.
    #[must_use]
    pub fn base_offset(&self) -> i64 {
        self.base_offset
    }

    /// The last offset that the batch covers, whether or not a record there survived compaction.
    #[must_use]
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// One past [`last_offset`](Self::last_offset): where reading goes on. It always fits.
    #[must_use]
    pub fn next_offset(&self) -> i64 {
        self.last_offset() + 1
    }

    /// [`last_offset`](Self::last_offset) counted from the base offset.
    #[must_use]
    pub fn last_offset_delta(&self) -> i32 {
        self.last_offset_delta
    }

    /// The whole batch's size in bytes, header included, as it came.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// The leader's epoch when it appended the batch; -1 in a produce request, and in message
    /// sets, which do not say.
    #[must_use]
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// The checksum that the batch carries; of a run of messages the first one's.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// How the records are compressed.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Who set the timestamps.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        match self.attributes & TIMESTAMP_BIT {
            0 => TimestampType::Create,
            _ => TimestampType::LogAppend,
        }
    }

    /// Whether the batch belongs to a transaction.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_BIT != 0
    }

    /// Whether the batch is a marker of the broker's own, not for users.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL_BIT != 0
    }

    /// The time that record times are counted from: the first record's, or the delete horizon.
    #[must_use]
    pub fn base_timestamp(&self) -> i64 {
        self.base_timestamp
    }

    /// The latest time of the batch; with [`TimestampType::LogAppend`] that of every record.
    #[must_use]
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    /// When compaction may drop the batch's tombstones (KIP-534), where that is set.
    #[must_use]
    pub fn delete_horizon(&self) -> Option<i64> {
        (self.attributes & DELETE_HORIZON_BIT != 0).then_some(self.base_timestamp)
    }

    /// The producer's id; -1 without idempotence.
    #[must_use]
    pub fn producer_id(&self) -> i64 {
        self.producer_id
    }

    /// The producer's epoch; -1 without idempotence.
    #[must_use]
    pub fn producer_epoch(&self) -> i16 {
        self.producer_epoch
    }

    /// The first record's sequence number; -1 without idempotence.
    #[must_use]
    pub fn base_sequence(&self) -> i32 {
        self.base_sequence
    }

    /// How many records the batch says it has; 0 once compaction has emptied it. A compressed
    /// message of format 0 or 1 does not say and counts as one.
    #[must_use]
    pub fn count(&self) -> usize {
        // `parse` refused negative counts.
        self.count.unsigned_abs() as usize
    }
}

impl Compression {
    pub(super) fn from_id(id: u16) -> Option<Self> {
        Some(match id {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Snappy,
            3 => Compression::Lz4,
            4 => Compression::Zstd,
            _ => return None,
        })
    }

    pub(super) fn id(self) -> u16 {
        match self {
            Compression::None => 0,
            Compression::Gzip => 1,
            Compression::Snappy => 2,
            Compression::Lz4 => 3,
            Compression::Zstd => 4,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        })
    }
}

/// `N` bytes at `at`; the callers' positions are constants inside the header.
fn field<const N: usize>(fixed: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&fixed[at..at + N]);
    out
}

/// Everything in front of the records.
pub(super) const HEADER_BYTES: usize = 61;
/// Base offset and length: the length counts from here on.
pub(super) const LENGTH_END: usize = 12;
pub(super) const LEADER_EPOCH_AT: usize = 12;
pub(super) const MAGIC_AT: usize = 16;
pub(super) const CRC_AT: usize = 17;
/// The checksum covers everything from here to the batch's end.
pub(super) const ATTRIBUTES_AT: usize = 21;
pub(super) const MAX_TIMESTAMP_AT: usize = 35;

pub(super) const TIMESTAMP_BIT: u16 = 1 << 3;
pub(super) const TRANSACTIONAL_BIT: u16 = 1 << 4;
pub(super) const CONTROL_BIT: u16 = 1 << 5;
pub(super) const DELETE_HORIZON_BIT: u16 = 1 << 6;
