//! Control batches: the broker's markers that end a transaction (KIP-98).

use bytes::Bytes;

use super::varint::Cursor;
use super::{Batch, BatchHeader, Fault, Limits};

/// What a control batch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlKind {
    /// The transaction was aborted: its records are not to be delivered.
    Abort,
    /// The transaction was committed.
    Commit,
    /// A marker of a kind that we do not know, to be skipped as one.
    Unknown(i16),
}

/// The marker of a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRecord {
    /// What it says.
    pub kind: ControlKind,
    /// Whose transaction it ends.
    pub producer_id: i64,
    /// Where it lies.
    pub offset: i64,
}

impl ControlKind {
    pub(super) fn id(self) -> i16 {
        match self {
            ControlKind::Abort => 0,
            ControlKind::Commit => 1,
            ControlKind::Unknown(id) => id,
        }
    }
}

/// Reads the first record's key: version and kind. Versions above the known one only add fields,
/// so they are read alike.
pub(super) fn read(
    header: &BatchHeader,
    section: Bytes,
    limits: &Limits,
) -> Result<ControlRecord, Fault> {
    let batch = Batch::index(header, section, 0, limits)?;
    if batch.is_empty() {
        // Compaction may empty a control batch as any other; then it ends nothing.
        return Ok(ControlRecord {
            kind: ControlKind::Unknown(-1),
            producer_id: header.producer_id(),
            offset: header.base_offset(),
        });
    }
    let key = batch
        .key(0)
        .ok_or(Fault::Corrupt("a control record's key is null"))?;
    let mut cursor = Cursor::new(key, 2);
    let id = cursor
        .take(2)
        .and_then(|b| b.try_into().ok())
        .map(i16::from_be_bytes);
    Ok(ControlRecord {
        kind: match id.ok_or(Fault::Corrupt("a control record's key is too short"))? {
            0 => ControlKind::Abort,
            1 => ControlKind::Commit,
            id => ControlKind::Unknown(id),
        },
        producer_id: header.producer_id(),
        offset: batch.offset(0),
    })
}
