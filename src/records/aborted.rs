//! Keeps records of aborted transactions from a reader of committed ones.

use std::collections::BTreeSet;

use super::{BatchHeader, ControlKind, Decoder, Limits, RawBatch, RecordsError};

/// One entry of a fetch answer's list of aborted transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Whose transaction.
    pub producer_id: i64,
    /// The first offset that it wrote; it may lie before the fetch.
    pub first_offset: i64,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Its records are to be delivered.
    Keep,
    /// Its transaction was aborted: its offsets are settled, its records are not delivered.
    Aborted,
    /// It is a marker: its offset is settled, nothing in it is delivered.
    Control,
}

/// Tells the batches of one fetch answer's partition apart. It must see all of them, in order.
///
/// An entry of the list begins to count when a batch reaches its first offset, and ends with the
/// first abort marker of the same producer after that. A marker that no entry waits for (of an
/// empty transaction, or met twice) ends nothing.
#[derive(Clone, Debug, Default)]
pub struct AbortedFilter {
    /// Entries not reached yet, the lowest offset last.
    ahead: Vec<AbortedTransaction>,
    /// Producers inside an aborted transaction.
    open: BTreeSet<i64>,
}

impl AbortedFilter {
    /// For a reader of committed records, from the answer's list in any order (brokers other than
    /// Kafka do not sort it).
    #[must_use]
    pub fn read_committed(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.first_offset));
        AbortedFilter {
            ahead: aborted,
            open: BTreeSet::new(),
        }
    }

    /// For a reader of all records, whatever list the answer may carry.
    #[must_use]
    pub fn read_uncommitted() -> Self {
        AbortedFilter::default()
    }

    /// Judges the next batch by its header, before it is decompressed; of a control batch it reads
    /// the marker. A batch is only turned away once its checksum has held, so that damage to a
    /// header cannot hide records; [`RawBatch::decode`] checks the ones kept.
    pub fn judge(
        &mut self,
        batch: &RawBatch,
        decoder: &mut Decoder,
        limits: &Limits,
    ) -> Result<Verdict, RecordsError> {
        let header = batch.header();
        if header.is_control() {
            let marker = batch.control(decoder, limits)?;
            return Ok(self.next(header, Some(marker.kind)));
        }
        let verdict = self.next(header, None);
        if verdict == Verdict::Aborted {
            batch.check_crc()?;
        }
        Ok(verdict)
    }

    fn next(&mut self, header: &BatchHeader, marker: Option<ControlKind>) -> Verdict {
        while let Some(entry) = self
            .ahead
            .pop_if(|e| e.first_offset <= header.last_offset())
        {
            self.open.insert(entry.producer_id);
        }
        match marker {
            Some(kind) => {
                if kind == ControlKind::Abort {
                    self.open.remove(&header.producer_id());
                }
                Verdict::Control
            }
            None if header.is_transactional() && self.open.contains(&header.producer_id()) => {
                Verdict::Aborted
            }
            None => Verdict::Keep,
        }
    }
}
