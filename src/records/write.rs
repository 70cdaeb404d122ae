//! Writes batches of format 2.

use bytes::{BufMut, Bytes, BytesMut};

use super::header::{
    ATTRIBUTES_AT, CONTROL_BIT, CRC_AT, HEADER_BYTES, LEADER_EPOCH_AT, LENGTH_END,
    MAX_TIMESTAMP_AT, TIMESTAMP_BIT, TRANSACTIONAL_BIT,
};
use super::varint::{put_varlong, varlong_len};
use super::{Compression, ControlKind, Encoder, RawBatch};
use crate::error::Error;

/// Collects records and writes them as one batch.
///
/// ```
/// use laneway::records::{BatchBuilder, Compression, Encoder};
/// let mut batch = BatchBuilder::new(0).compression(Compression::Lz4);
/// batch.push(1_000, None, Some(b"a"), &[("trace", Some(&b"7"[..]))])?;
/// batch.push(1_001, Some(b"k"), None, &[])?;
/// assert_eq!(batch.len(), 2);
/// let bytes = batch.build(&mut Encoder::new())?;
/// assert_eq!(bytes[16], 2); // the message format
/// # Ok::<(), laneway::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    base_offset: i64,
    leader_epoch: i32,
    attributes: u16,
    compression: Compression,
    base_timestamp: Option<i64>,
    max_timestamp: i64,
    append_time: Option<i64>,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    /// One past the last record's delta.
    deltas: i32,
    /// What `covering` asked for, as one past a delta.
    covers: i32,
    count: i32,
    records: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch that begins at `base_offset`; a producer writes 0 and the broker sets it.
    #[must_use]
    pub fn new(base_offset: i64) -> Self {
        BatchBuilder {
            base_offset,
            leader_epoch: -1,
            attributes: 0,
            compression: Compression::None,
            base_timestamp: None,
            max_timestamp: -1,
            append_time: None,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            deltas: 0,
            covers: 0,
            count: 0,
            records: Vec::new(),
        }
    }

    /// Compresses the records.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets the leader's epoch.
    #[must_use]
    pub fn leader_epoch(mut self, epoch: i32) -> Self {
        self.leader_epoch = epoch;
        self
    }

    /// Names an idempotent producer and the first record's sequence number.
    #[must_use]
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        self.producer_id = id;
        self.producer_epoch = epoch;
        self.base_sequence = base_sequence;
        self
    }

    /// Puts the batch into the producer's transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.attributes |= TRANSACTIONAL_BIT;
        self
    }

    /// Gives every record the time at which the broker appended the batch.
    #[must_use]
    pub fn appended_at(mut self, timestamp: i64) -> Self {
        self.attributes |= TIMESTAMP_BIT;
        self.append_time = Some(timestamp);
        self
    }

    /// Makes the batch cover offsets up to and with `offset`, as compaction leaves it when the
    /// last records are gone. One that lies below the last record changes nothing.
    #[must_use]
    pub fn covering(mut self, offset: i64) -> Self {
        if let Ok(delta) = i32::try_from(offset.saturating_sub(self.base_offset)) {
            self.covers = delta.saturating_add(1);
        }
        self
    }

    /// Adds a record at the next offset.
    pub fn push(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> Result<(), Error> {
        let offset = self.base_offset.saturating_add(i64::from(self.deltas));
        self.push_at(offset, timestamp, key, value, headers)
    }

    /// As [`push`](Self::push), for header keys that need not be UTF-8.
    pub fn push_raw(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) -> Result<(), Error> {
        let offset = self.base_offset.saturating_add(i64::from(self.deltas));
        self.put(offset, timestamp, key, value, headers.iter().copied())
    }

    /// Adds a record at `offset`, which must be above the last one's.
    pub fn push_at(
        &mut self,
        offset: i64,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> Result<(), Error> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_bytes(), *value));
        self.put(offset, timestamp, key, value, headers)
    }

    fn put<'a>(
        &mut self,
        offset: i64,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Result<(), Error> {
        let delta = offset
            .checked_sub(self.base_offset)
            .and_then(|d| i32::try_from(d).ok());
        let Some(delta) = delta.filter(|d| *d >= self.deltas && *d < i32::MAX) else {
            return Err(
                Error::misuse("a batch's offsets must rise, by less than 2^31 in all")
                    .offset_at(offset),
            );
        };
        let base = self.base_timestamp.unwrap_or(timestamp);
        // Wraps for times 2^63 apart; the reader's addition wraps back.
        let timestamp_delta = timestamp.wrapping_sub(base);
        let delta_long = i64::from(delta);
        let headers_len = headers.clone().fold(0usize, |sum, (name, value)| {
            sum.saturating_add(blob_len(Some(name)))
                .saturating_add(blob_len(value))
        });
        let size = [
            1 + varlong_len(timestamp_delta) + varlong_len(delta_long),
            blob_len(key),
            blob_len(value),
            varlong_len(headers.len() as i64),
            headers_len,
        ]
        .into_iter()
        .fold(0usize, usize::saturating_add);
        if size.saturating_add(self.size_bytes()) > BATCH_MAX {
            return Err(Error::misuse("a batch cannot exceed 2 GiB").offset_at(offset));
        }
        self.base_timestamp = Some(base);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.deltas = delta + 1;
        self.count += 1;
        let out = &mut self.records;
        put_varlong(out, size as i64);
        out.push(0);
        put_varlong(out, timestamp_delta);
        put_varlong(out, delta_long);
        put_blob(out, key);
        put_blob(out, value);
        put_varlong(out, headers.len() as i64);
        for (name, value) in headers {
            put_blob(out, Some(name));
            put_blob(out, value);
        }
        Ok(())
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.unsigned_abs() as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The batch's size in bytes if it were not compressed.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    /// Writes the batch.
    pub fn build(&self, encoder: &mut Encoder) -> Result<Bytes, Error> {
        // An emptied batch is never compressed: there is nothing to.
        let compression = match self.records.is_empty() {
            true => Compression::None,
            false => self.compression,
        };
        let mut out = Vec::with_capacity(self.size_bytes());
        out.put_i64(self.base_offset);
        out.put_i32(0); // the length, below
        out.put_i32(self.leader_epoch);
        out.put_i8(2);
        out.put_u32(0); // the checksum, below
        out.put_u16(self.attributes | compression.id());
        // A batch covers one offset at least.
        out.put_i32(self.deltas.max(self.covers).max(1) - 1);
        out.put_i64(self.base_timestamp.unwrap_or(-1));
        out.put_i64(self.append_time.unwrap_or(self.max_timestamp));
        out.put_i64(self.producer_id);
        out.put_i16(self.producer_epoch);
        out.put_i32(self.base_sequence);
        out.put_i32(self.count);
        encoder.deflate(compression, &self.records, &mut out)?;
        let Ok(length) = i32::try_from(out.len() - LENGTH_END) else {
            return Err(Error::misuse("a batch cannot exceed 2 GiB").offset_at(self.base_offset));
        };
        out[LENGTH_END - 4..LENGTH_END].copy_from_slice(&length.to_be_bytes());
        seal(&mut out);
        Ok(out.into())
    }
}

/// Writes the control batch that ends a transaction of `producer_id` at `offset`.
#[must_use]
pub fn control_batch(
    offset: i64,
    kind: ControlKind,
    producer_id: i64,
    producer_epoch: i16,
    timestamp: i64,
    coordinator_epoch: i32,
) -> Bytes {
    let [k0, k1] = kind.id().to_be_bytes();
    let key = [0, 0, k0, k1];
    let mut value = [0; 6];
    value[2..].copy_from_slice(&coordinator_epoch.to_be_bytes());
    let mut batch = BatchBuilder::new(offset)
        .producer(producer_id, producer_epoch, -1)
        .transactional();
    batch.attributes |= CONTROL_BIT;
    // One record of 10 bytes, uncompressed: neither step has anything to refuse.
    batch
        .push(timestamp, Some(&key), Some(&value), &[])
        .and_then(|()| batch.build(&mut Encoder::new()))
        .unwrap_or_default()
}

/// What a broker does to a batch when it appends it: sets its base offset and leader epoch and,
/// where the topic says so, the time of appending. A message set comes back as it is: its offsets
/// are in each message.
#[must_use]
pub fn rebase(
    batch: &RawBatch,
    base_offset: i64,
    leader_epoch: i32,
    append_time: Option<i64>,
) -> Bytes {
    if batch.header().magic() < 2 {
        return batch.bytes().clone();
    }
    let mut out = BytesMut::from(batch.bytes().as_ref());
    out[..8].copy_from_slice(&base_offset.to_be_bytes());
    out[LEADER_EPOCH_AT..LEADER_EPOCH_AT + 4].copy_from_slice(&leader_epoch.to_be_bytes());
    if let Some(timestamp) = append_time {
        out[ATTRIBUTES_AT + 1] |= TIMESTAMP_BIT as u8;
        out[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&timestamp.to_be_bytes());
        seal(&mut out);
    }
    out.freeze()
}

/// Sets the checksum.
fn seal(batch: &mut [u8]) {
    let crc = crc_fast::crc32_iscsi(&batch[ATTRIBUTES_AT..]);
    batch[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
}

fn blob_len(bytes: Option<&[u8]>) -> usize {
    match bytes {
        Some(bytes) => bytes.len().saturating_add(varlong_len(bytes.len() as i64)),
        None => 1,
    }
}

fn put_blob(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            put_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
        None => put_varlong(out, -1),
    }
}

/// Lengths are `i32`, and a codec may add a little to what does not compress.
const BATCH_MAX: usize = (1 << 31) - (64 << 20);
