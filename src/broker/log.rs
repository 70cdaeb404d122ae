//! One partition's log: whole batches in offset order, epochs, producers and transactions.
//!
//! Batches are slices of the frames that brought them. What a broker changes in a batch (base
//! offset and leader epoch) is not covered by the batch's checksum, so it is kept beside the slice
//! and written when the batch is read; nothing is decoded or encoded again.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use super::codes;

/// What the header of a v2 batch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub base_offset: i64,
    pub size: usize,
    pub leader_epoch: i32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub count: i32,
}

impl Header {
    /// Reads the header of the batch at the front of `bytes`; the error is Kafka's code.
    pub fn parse(bytes: &[u8]) -> Result<Header, i16> {
        if bytes.len() < HEADER_BYTES {
            return Err(codes::CORRUPT_MESSAGE);
        }
        let length = int(bytes, 8);
        let size = usize::try_from(length).map_or(0, |n| n + LOG_OVERHEAD);
        if size < HEADER_BYTES || size > bytes.len() {
            return Err(codes::CORRUPT_MESSAGE);
        }
        if bytes[16] != 2 {
            return Err(codes::INVALID_RECORD);
        }
        Ok(Header {
            base_offset: long(bytes, 0),
            size,
            leader_epoch: int(bytes, 12),
            attributes: short(bytes, 21),
            last_offset_delta: int(bytes, 23),
            base_timestamp: long(bytes, 27),
            max_timestamp: long(bytes, 35),
            producer_id: long(bytes, 43),
            producer_epoch: short(bytes, 51),
            base_sequence: int(bytes, 53),
            count: int(bytes, 57),
        })
    }

    pub fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }

    fn last_sequence(&self) -> i32 {
        // Sequences wrap from i32::MAX to 0.
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        i32::try_from(last % (i64::from(i32::MAX) + 1)).unwrap_or(0)
    }
}

/// Checks the CRC-32C that covers everything after itself.
pub(crate) fn checksum_holds(batch: &[u8]) -> bool {
    batch.len() >= HEADER_BYTES
        && crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &batch[21..])
            == u64::from(u32::from_be_bytes([
                batch[17], batch[18], batch[19], batch[20],
            ]))
}

/// A batch in the log.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub base: i64,
    pub last: i64,
    pub epoch: i32,
    pub max_timestamp: i64,
    /// The whole batch; its first 16 bytes may be out of date.
    pub bytes: Bytes,
}

impl Stored {
    /// Formats 0 and 1 keep nothing beside the bytes: where format 2 has the leader's epoch they
    /// have their checksum.
    pub fn is_message_set(&self) -> bool {
        self.bytes.get(16).is_some_and(|magic| *magic < 2)
    }

    fn put(&self, out: &mut BytesMut, most: usize) {
        if self.is_message_set() {
            out.put_slice(&self.bytes[..most.min(self.bytes.len())]);
            return;
        }
        let mut head = [0; 16];
        head[..8].copy_from_slice(&self.base.to_be_bytes());
        head[8..12].copy_from_slice(&self.bytes[8..12]);
        head[12..].copy_from_slice(&self.epoch.to_be_bytes());
        out.put_slice(&head[..most.min(16)]);
        if most > 16 {
            out.put_slice(&self.bytes[16..most.min(self.bytes.len())]);
        }
    }
}

/// What `append` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub base_offset: i64,
    /// The batch was here already: its timestamp, which a broker gives as the append time.
    pub duplicate: Option<i64>,
}

/// Which batches a read takes: an index range, and the bytes of the last that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: usize,
    pub end: usize,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub producer_id: i64,
    pub first_offset: i64,
    pub last_offset: i64,
}

#[derive(Clone, Debug)]
struct Producer {
    epoch: i16,
    /// The newest batches: first and last sequence, base offset, timestamp.
    recent: VecDeque<(i32, i32, i64, i64)>,
}

/// One partition's log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    batches: Vec<Stored>,
    start: i64,
    end: i64,
    /// Leader epochs with the offset each began at, oldest first.
    epochs: Vec<(i32, i64)>,
    producers: BTreeMap<i64, Producer>,
    /// First offset of each producer's open transaction.
    open: BTreeMap<i64, i64>,
    aborted: Vec<Aborted>,
}

impl Log {
    pub fn start(&self) -> i64 {
        self.start
    }

    pub fn end(&self) -> i64 {
        self.end
    }

    /// Up to where `read_committed` may read: the first offset of the oldest open transaction.
    pub fn stable(&self) -> i64 {
        self.open.values().copied().min().unwrap_or(self.end)
    }

    pub fn batches(&self) -> &[Stored] {
        &self.batches
    }

    /// A leader begins: whatever is written from here on is of `epoch`.
    pub fn begin_epoch(&mut self, epoch: i32) {
        if self.epochs.last().is_none_or(|&(last, _)| epoch > last) {
            self.epochs.push((epoch, self.end));
        }
    }

    /// Appends one batch that a client produced: checks it as a leader does and gives it offsets.
    pub fn produce(&mut self, bytes: Bytes, header: &Header, epoch: i32) -> Result<Appended, i16> {
        if header.is_control() {
            return Err(codes::INVALID_RECORD);
        }
        if header.count <= 0 || header.last_offset_delta != header.count - 1 {
            return Err(codes::INVALID_RECORD);
        }
        if header.producer_id >= 0 {
            if header.producer_epoch < 0 || header.base_sequence < 0 {
                return Err(codes::INVALID_RECORD);
            }
            if let Some(earlier) = self.duplicate_of(header) {
                return Ok(earlier);
            }
            self.check_sequence(header)?;
        }
        let base_offset = self.end;
        self.push(bytes, header, base_offset, epoch);
        Ok(Appended {
            base_offset,
            duplicate: None,
        })
    }

    /// Puts a batch at the log's end without a leader's checks: control batches and the broken
    /// ones of tests. It keeps its own base offset if that is at or above the end.
    pub fn force(&mut self, bytes: Bytes, header: &Header, epoch: i32) -> i64 {
        let base = header.base_offset.max(self.end);
        self.push(bytes, header, base, epoch);
        base
    }

    /// Puts a message of format 0 or 1 at the log's end, unless its offset lies below that.
    pub fn force_message(&mut self, bytes: Bytes, epoch: i32) -> Result<(), i16> {
        let offset = long(&bytes, 0);
        if offset < self.end || offset == i64::MAX {
            return Err(codes::INVALID_RECORD);
        }
        self.begin_epoch(epoch);
        self.batches.push(Stored {
            base: offset,
            last: offset,
            epoch,
            max_timestamp: match bytes[16] {
                1 => long(&bytes, 18),
                _ => -1,
            },
            bytes,
        });
        self.end = offset + 1;
        Ok(())
    }

    /// Puts `batches` in the place of the whole log, offsets as they stand: what compaction leaves.
    pub fn replace(&mut self, batches: Vec<Stored>, start: i64, end: i64) {
        self.batches = batches;
        self.start = start;
        self.end = end.max(self.batches.last().map_or(start, |b| b.last + 1));
    }

    /// Cuts everything from `offset` on.
    pub fn truncate(&mut self, offset: i64) {
        let offset = offset.max(self.start).min(self.end);
        self.batches.retain(|b| b.base < offset);
        // A batch is whole or gone: a cut inside one takes it away.
        while self.batches.last().is_some_and(|b| b.last >= offset) {
            self.batches.pop();
        }
        self.end = offset;
        self.epochs
            .retain(|&(_, start)| start < offset || start == 0);
        self.open.retain(|_, first| *first < offset);
        self.aborted.retain(|a| a.last_offset < offset);
        for producer in self.producers.values_mut() {
            producer.recent.retain(|r| r.2 < offset);
        }
    }

    /// Moves the log's start up to `offset` (DeleteRecords, retention).
    pub fn delete_before(&mut self, offset: i64) {
        self.start = self.start.max(offset.min(self.end));
        let start = self.start;
        self.batches.retain(|b| b.last >= start);
        self.aborted.retain(|a| a.last_offset >= start);
        if let Some(at) = self.epochs.iter().rposition(|&(_, first)| first <= start) {
            self.epochs.drain(..at);
            if let Some(first) = self.epochs.first_mut() {
                first.1 = start;
            }
        }
    }

    /// Where `epoch` ended (KIP-101): the newest epoch at or below it and its end offset; (-1, -1)
    /// where nothing is known of it.
    pub fn end_of_epoch(&self, epoch: i32) -> (i32, i64) {
        match self.epochs.last() {
            Some(&(latest, _)) if latest == epoch => return (epoch, self.end),
            _ if epoch < 0 => return (-1, -1),
            _ => {}
        }
        let above = self.epochs.partition_point(|&(e, _)| e <= epoch);
        match (above.checked_sub(1), self.epochs.get(above)) {
            (_, None) => (-1, -1),
            (None, Some(&(_, next))) => (epoch, next),
            (Some(floor), Some(&(_, next))) => (self.epochs[floor].0, next),
        }
    }

    /// The leader epoch that `offset` was or would be written under.
    pub fn epoch_at(&self, offset: i64) -> i32 {
        let above = self.epochs.partition_point(|&(_, start)| start <= offset);
        above.checked_sub(1).map_or(-1, |i| self.epochs[i].0)
    }

    /// What a read from `offset` to below `limit` takes: at most `most` bytes, but the first batch
    /// whole where `whole_first`.
    pub fn span(&self, offset: i64, limit: i64, most: usize, whole_first: bool) -> Span {
        let first = self.batches.partition_point(|b| b.last < offset);
        let mut span = Span {
            first,
            end: first,
            bytes: 0,
        };
        for batch in &self.batches[first..] {
            if batch.base >= limit {
                break;
            }
            let size = batch.bytes.len();
            if span.bytes + size > most {
                if span.end == first {
                    if !whole_first {
                        break;
                    }
                    span.bytes = size;
                } else {
                    // A later batch may be cut: clients must cope, so we do as Kafka does.
                    span.bytes = most;
                }
                span.end += 1;
                break;
            }
            span.bytes += size;
            span.end += 1;
        }
        span
    }

    /// The bytes of `span`.
    pub fn read(&self, span: Span) -> Bytes {
        let mut out = BytesMut::with_capacity(span.bytes);
        for batch in &self.batches[span.first..span.end] {
            let room = span.bytes - out.len();
            batch.put(&mut out, room.min(batch.bytes.len()));
        }
        out.freeze()
    }

    /// Aborted transactions that reach into `offset..limit`.
    pub fn aborted_in(&self, offset: i64, limit: i64) -> impl Iterator<Item = &Aborted> {
        self.aborted
            .iter()
            .filter(move |a| a.last_offset >= offset && a.first_offset < limit)
    }

    fn push(&mut self, bytes: Bytes, header: &Header, base: i64, epoch: i32) {
        let last = base + i64::from(header.last_offset_delta);
        if self.epochs.last().is_none_or(|&(e, _)| epoch > e) {
            self.epochs.push((epoch, base));
        }
        if header.producer_id >= 0 {
            if header.is_control() {
                self.end_transaction(header.producer_id, last, &bytes);
            } else {
                self.remember(header, base);
            }
            if header.is_transactional() && !header.is_control() {
                self.open.entry(header.producer_id).or_insert(base);
            }
        }
        self.batches.push(Stored {
            base,
            last,
            epoch,
            max_timestamp: header.max_timestamp,
            bytes,
        });
        self.end = last + 1;
    }

    fn end_transaction(&mut self, producer_id: i64, last: i64, bytes: &[u8]) {
        let first = self.open.remove(&producer_id);
        // The control record's key: two bytes of version, two of type, 0 for abort. Control
        // batches are never compressed and their record is short, so each varint before the key
        // (length, timestamp delta, offset delta, key length) is one byte, after the attributes.
        let is_abort = bytes
            .get(HEADER_BYTES + 5..HEADER_BYTES + 9)
            .is_some_and(|k| k[3] == 0);
        if let (Some(first_offset), true) = (first, is_abort) {
            self.aborted.push(Aborted {
                producer_id,
                first_offset,
                last_offset: last,
            });
        }
    }

    fn duplicate_of(&self, header: &Header) -> Option<Appended> {
        let producer = self.producers.get(&header.producer_id)?;
        if producer.epoch != header.producer_epoch {
            return None;
        }
        let &(_, _, base_offset, timestamp) =
            producer.recent.iter().find(|&&(first, last, _, _)| {
                first == header.base_sequence && last == header.last_sequence()
            })?;
        Some(Appended {
            base_offset,
            duplicate: Some(timestamp),
        })
    }

    fn check_sequence(&self, header: &Header) -> Result<(), i16> {
        let Some(producer) = self.producers.get(&header.producer_id) else {
            return Ok(());
        };
        if header.producer_epoch < producer.epoch {
            return Err(codes::INVALID_PRODUCER_EPOCH);
        }
        if header.producer_epoch > producer.epoch {
            return match header.base_sequence {
                0 => Ok(()),
                _ => Err(codes::OUT_OF_ORDER_SEQUENCE_NUMBER),
            };
        }
        match producer.recent.back() {
            Some(&(_, i32::MAX, _, _)) if header.base_sequence == 0 => Ok(()),
            Some(&(_, last, _, _)) if last.checked_add(1) != Some(header.base_sequence) => {
                Err(codes::OUT_OF_ORDER_SEQUENCE_NUMBER)
            }
            _ => Ok(()),
        }
    }

    fn remember(&mut self, header: &Header, base: i64) {
        let producer = self
            .producers
            .entry(header.producer_id)
            .or_insert(Producer {
                epoch: header.producer_epoch,
                recent: VecDeque::new(),
            });
        if producer.epoch != header.producer_epoch {
            producer.epoch = header.producer_epoch;
            producer.recent.clear();
        }
        producer.recent.push_back((
            header.base_sequence,
            header.last_sequence(),
            base,
            header.max_timestamp,
        ));
        if producer.recent.len() > RECENT_BATCHES_MAX {
            producer.recent.pop_front();
        }
    }
}

/// The size of the message of format 0 or 1 at the front of `bytes`.
pub(crate) fn message_size(bytes: &[u8]) -> Result<usize, i16> {
    if bytes.len() < MESSAGE_BYTES_MIN {
        return Err(codes::CORRUPT_MESSAGE);
    }
    let size = usize::try_from(int(bytes, 8)).map_or(0, |n| n + LOG_OVERHEAD);
    let least = match bytes[16] {
        0 => MESSAGE_BYTES_MIN,
        1 => MESSAGE_BYTES_MIN + 8,
        _ => return Err(codes::INVALID_RECORD),
    };
    match size >= least && size <= bytes.len() {
        true => Ok(size),
        false => Err(codes::CORRUPT_MESSAGE),
    }
}

fn short(b: &[u8], at: usize) -> i16 {
    i16::from_be_bytes([b[at], b[at + 1]])
}

fn int(b: &[u8], at: usize) -> i32 {
    i32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn long(b: &[u8], at: usize) -> i64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&b[at..at + 8]);
    i64::from_be_bytes(raw)
}

/// Base offset and length.
const LOG_OVERHEAD: usize = 12;
/// A message of format 0 with null key and value.
const MESSAGE_BYTES_MIN: usize = 26;
/// A v2 batch without records.
pub(crate) const HEADER_BYTES: usize = 61;
/// How many of a producer's batches a broker knows again.
const RECENT_BATCHES_MAX: usize = 5;
