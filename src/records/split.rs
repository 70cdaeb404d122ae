//! Cuts a `records` field into its batches, without looking into them.

use bytes::Bytes;

use super::header::{ATTRIBUTES_AT, HEADER_BYTES, LENGTH_END, MAGIC_AT};
use super::{
    Batch, BatchHeader, ControlRecord, Decoder, Fault, Limits, RecordsError, compress, control,
    legacy,
};

/// Walks the batches of one partition's `records` field, in order and without a copy.
///
/// The first error is the last item: what follows a batch of unknown length cannot be found, and
/// what follows a refused batch must wait for it.
pub fn split(records: Bytes) -> Batches {
    Batches {
        rest: records,
        next_offset: 0,
    }
}

/// The iterator of [`split`].
#[derive(Clone, Debug)]
pub struct Batches {
    rest: Bytes,
    /// Where the next batch may begin at the earliest.
    next_offset: i64,
}

/// What [`split`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole batch, or of a message set a compressed message or some plain ones.
    Batch(RawBatch),
    /// The field ends inside a batch, as brokers do to keep to a size limit. Not an error: the
    /// batch comes whole when it is asked for first, or with a limit of `needed`.
    Cut {
        /// The batch's base offset, where so much of it is there.
        offset: Option<i64>,
        /// The whole batch's size in bytes, where so much of it is there.
        needed: Option<usize>,
    },
}

/// One whole batch, still compressed: its header, and a slice of the frame it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl RawBatch {
    /// The header.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch as it came.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Verifies the CRC-32C; in message sets the CRC-32 of each message.
    pub fn check_crc(&self) -> Result<(), RecordsError> {
        if self.is_legacy() {
            return legacy::check_crc(&self.header, &self.bytes);
        }
        let covered = self.bytes.get(ATTRIBUTES_AT..).unwrap_or_default();
        let (stored, computed) = (self.header.crc(), crc_fast::crc32_iscsi(covered));
        if stored == computed {
            return Ok(());
        }
        Err(self.refuse(Fault::Checksum { stored, computed }))
    }

    /// Verifies the checksum, decompresses, and indexes the records at offset `from` and above.
    ///
    /// All of the batch is looked at, also what lies below `from`; if any of it breaks the format
    /// nothing of it is given. A control batch is checked and comes back without records.
    ///
    /// A message set alone is judged message by message, and only from `from` on: those before a
    /// bad one are given, and [`Batch::refused`] says what follows.
    ///
    /// The batch may end below `from`: take the greater of `from` and [`Batch::next_offset`] to
    /// go on.
    pub fn decode(
        &self,
        decoder: &mut Decoder,
        from: i64,
        limits: &Limits,
    ) -> Result<Batch, RecordsError> {
        if self.is_legacy() {
            return legacy::decode(&self.header, self.bytes.clone(), decoder, from, limits);
        }
        if self.header.is_control() {
            self.control(decoder, limits)?;
            return Ok(Batch::empty(&self.header));
        }
        let section = self.inflate(decoder, limits)?;
        Batch::index(&self.header, section, from, limits).map_err(|fault| self.refuse(fault))
    }

    /// Reads the marker of a control batch; the checksum is verified first.
    pub fn control(
        &self,
        decoder: &mut Decoder,
        limits: &Limits,
    ) -> Result<ControlRecord, RecordsError> {
        if self.is_legacy() {
            return Err(self.refuse(Fault::Corrupt("a message set holds no markers")));
        }
        let section = self.inflate(decoder, limits)?;
        control::read(&self.header, section, limits).map_err(|fault| self.refuse(fault))
    }

    /// At most how many bytes the records take once decompressed, as far as the compressed bytes
    /// tell; what inflating them may reserve. `None` where they do not tell. Not verified.
    #[must_use]
    pub fn inflated_hint(&self) -> Option<usize> {
        if self.is_legacy() {
            return legacy::inflated_hint(&self.header, &self.bytes);
        }
        compress::inflated_hint(self.header.compression(), self.section())
    }

    /// The records section, decompressed. A batch that says it has no records has nothing to
    /// decompress.
    fn inflate(&self, decoder: &mut Decoder, limits: &Limits) -> Result<Bytes, RecordsError> {
        self.check_crc()?;
        let section = self.bytes.slice(HEADER_BYTES.min(self.bytes.len())..);
        decoder
            .inflate(self.header.compression(), section, limits)
            .map_err(|fault| self.refuse(fault))
    }

    fn is_legacy(&self) -> bool {
        self.header.magic() < 2
    }

    fn section(&self) -> &[u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }

    fn refuse(&self, fault: Fault) -> RecordsError {
        RecordsError::new(self.header.base_offset(), fault)
    }
}

impl Batches {
    fn cut(&mut self) -> Piece {
        let rest = std::mem::take(&mut self.rest);
        let length = rest
            .get(8..LENGTH_END)
            .and_then(|b| b.try_into().ok())
            .map(i32::from_be_bytes);
        Piece::Cut {
            offset: rest.first_chunk().copied().map(i64::from_be_bytes),
            needed: length.and_then(|n| usize::try_from(n).ok()?.checked_add(LENGTH_END)),
        }
    }

    /// The front of a message set; `bytes` begin with a whole message, of `offset`.
    fn messages(&mut self, offset: i64) -> Result<Piece, RecordsError> {
        match legacy::front(&self.rest, self.next_offset) {
            Ok(header) => {
                let bytes = self.rest.split_to(header.size());
                self.next_offset = header.next_offset();
                Ok(Piece::Batch(RawBatch { header, bytes }))
            }
            Err(fault) => self.refuse(offset, fault),
        }
    }

    fn refuse(&mut self, offset: i64, fault: Fault) -> Result<Piece, RecordsError> {
        self.rest = Bytes::new();
        Err(RecordsError::new(offset, fault))
    }
}

impl Iterator for Batches {
    type Item = Result<Piece, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some(front) = self.rest.first_chunk::<LENGTH_END>() else {
            return Some(Ok(self.cut()));
        };
        let [o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = *front;
        let offset = i64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let length = i32::from_be_bytes([l0, l1, l2, l3]);
        if length < legacy::LENGTH_MIN {
            return Some(self.refuse(offset, Fault::Frame(SHORT)));
        }
        let size = LENGTH_END + length.unsigned_abs() as usize;
        if size > self.rest.len() {
            return Some(Ok(self.cut()));
        }
        match self.rest.get(MAGIC_AT).map(|b| *b as i8) {
            Some(2) => {}
            Some(0 | 1) => return Some(self.messages(offset)),
            Some(magic) => return Some(self.refuse(offset, Fault::UnknownFormat(magic))),
            None => return Some(self.refuse(offset, Fault::Frame(SHORT))),
        }
        if size < HEADER_BYTES {
            return Some(self.refuse(offset, Fault::Frame(SHORT)));
        }
        let bytes = self.rest.split_to(size);
        let header = match BatchHeader::parse(&bytes) {
            Ok(header) => header,
            Err(e) => return Some(self.refuse(e.offset(), e.fault().clone())),
        };
        if offset < self.next_offset {
            return Some(self.refuse(offset, Fault::Frame("it begins before the last one's end")));
        }
        self.next_offset = header.next_offset();
        Some(Ok(Piece::Batch(RawBatch { header, bytes })))
    }
}

impl std::iter::FusedIterator for Batches {}

const SHORT: &str = "its length is less than a header's";
