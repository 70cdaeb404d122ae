//! Why records were refused, and at which offset.

use std::fmt;
use std::sync::Arc;

use super::Compression;
use crate::error::{Error, ErrorKind};

/// What is wrong with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes do not match their checksum.
    Checksum {
        /// The checksum in the batch.
        stored: u32,
        /// The checksum of the bytes that came.
        computed: u32,
    },
    /// A message format that nobody has defined yet.
    UnknownFormat(i8),
    /// Compression bits that name no codec.
    UnknownCodec(u8),
    /// The batch's own frame makes no sense: found before its checksum could be verified.
    Frame(&'static str),
    /// The checksum holds, and yet what is inside breaks the format.
    Corrupt(&'static str),
    /// The checksum holds, and yet the compressed bytes do not decompress.
    Decompress {
        /// The codec that refused them.
        codec: Compression,
        /// What it found.
        why: &'static str,
    },
    /// The batch's records or their index pass
    /// [`Limits::inflated_max`](super::Limits::inflated_max).
    TooLarge {
        /// The codec.
        codec: Compression,
        /// The limit that was hit, in bytes.
        limit: usize,
    },
}

/// A batch that was refused: what is wrong with it, and the first offset that it covers.
///
/// ```
/// use laneway::records::{Fault, Piece, split};
/// let mut bytes = vec![0; 61];
/// bytes[7] = 9; // base offset
/// bytes[11] = 49; // length
/// bytes[16] = 3; // format
/// let refused = split(bytes.into()).next().unwrap().unwrap_err();
/// assert_eq!(refused.offset(), 9);
/// assert_eq!(*refused.fault(), Fault::UnknownFormat(3));
/// let error = refused.into_error("payments", 0);
/// assert!(error.to_string().contains("payments-0, offset 9"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsError {
    offset: i64,
    fault: Fault,
}

impl RecordsError {
    pub(super) fn new(offset: i64, fault: Fault) -> Self {
        RecordsError { offset, fault }
    }

    /// Names the topic and partition, which only the caller knows.
    #[must_use]
    pub fn into_error(self, topic: impl Into<Arc<str>>, partition: i32) -> Error {
        Error::new(ErrorKind::Peer, self.fault.to_string())
            .at(topic, partition)
            .offset_at(self.offset)
    }

    /// The first offset of the refused batch, as its header has it.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// What is wrong.
    #[must_use]
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Whether the bytes may have been damaged on the way, so that one more fetch may heal it.
    /// Once a checksum has held, the broker stores these very bytes and asking again is idle.
    #[must_use]
    pub fn may_heal(&self) -> bool {
        matches!(
            self.fault,
            Fault::Checksum { .. } | Fault::Frame(_) | Fault::UnknownFormat(_)
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Checksum { stored, computed } => write!(
                f,
                "corrupt batch: its checksum is {stored:08x} and its bytes have {computed:08x}"
            ),
            Fault::UnknownFormat(magic) => {
                write!(
                    f,
                    "unsupported format: message format v{magic} is not known"
                )
            }
            Fault::UnknownCodec(id) => {
                write!(f, "unsupported format: compression codec {id} is not known")
            }
            Fault::Frame(why) | Fault::Corrupt(why) => write!(f, "corrupt batch: {why}"),
            Fault::Decompress { codec, why } => {
                write!(f, "corrupt batch: {codec} does not decompress: {why}")
            }
            Fault::TooLarge { codec, limit } => write!(
                f,
                "batch too large: its records take more than {limit} bytes (codec {codec}); \
                 raise the limit to read it"
            ),
        }
    }
}

impl fmt::Display for RecordsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (offset {})", self.fault, self.offset)
    }
}

impl std::error::Error for RecordsError {}
