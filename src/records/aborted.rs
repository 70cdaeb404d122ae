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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::vectors::vector;
    use crate::records::{BatchBuilder, Compression, Encoder, Fault, Piece, control_batch, split};
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    const PID: i64 = 4001;

    fn list(entries: &[(i64, i64)]) -> Vec<AbortedTransaction> {
        entries
            .iter()
            .map(|(producer_id, first_offset)| AbortedTransaction {
                producer_id: *producer_id,
                first_offset: *first_offset,
            })
            .collect()
    }

    /// Offsets `first..=last` of a producer's transaction, in one batch.
    fn data(pid: i64, epoch: i16, first: i64, last: i64, codec: Compression) -> Bytes {
        let mut b = BatchBuilder::new(first)
            .producer(pid, epoch, 0)
            .transactional()
            .compression(codec);
        for offset in first..=last {
            b.push_at(offset, 0, None, Some(b"x"), &[]).unwrap();
        }
        b.build(&mut Encoder::new()).unwrap()
    }

    fn marker(pid: i64, offset: i64, kind: ControlKind) -> Bytes {
        control_batch(offset, kind, pid, 0, 0, 0)
    }

    /// The verdict on each batch, by its base offset.
    fn judge(mut filter: AbortedFilter, log: &[Bytes]) -> Vec<(i64, Verdict)> {
        let mut field = BytesMut::new();
        for batch in log {
            field.extend_from_slice(batch);
        }
        let mut decoder = Decoder::new();
        split(field.freeze())
            .map(|piece| match piece.unwrap() {
                Piece::Batch(raw) => {
                    let verdict = filter
                        .judge(&raw, &mut decoder, &Limits::default())
                        .unwrap();
                    (raw.header().base_offset(), verdict)
                }
                cut => panic!("{cut:?}"),
            })
            .collect()
    }

    /// D27: a marker of a producer that no entry names ends nothing, also at the very start.
    #[test]
    fn abort_marker_without_entry_is_ignored() {
        let log = [
            vector("D28_abort_marker_7501"),
            data(PID, 0, 7502, 7503, Compression::None),
            marker(PID, 7504, ControlKind::Commit),
        ];
        let expected = [
            (7501, Verdict::Control),
            (7502, Verdict::Keep),
            (7504, Verdict::Control),
        ];
        assert_eq!(judge(AbortedFilter::read_committed(vec![]), &log), expected);
        assert_eq!(
            judge(AbortedFilter::read_committed(list(&[(9, 0)])), &log),
            expected
        );
    }

    /// D28: the marker of an empty transaction does not use up the entry of a later one.
    #[test]
    fn empty_aborted_transaction_does_not_pop_a_later_entry() {
        let log = [
            vector("D28_abort_marker_7501"),
            data(PID, 0, 7702, 7703, Compression::None),
            marker(PID, 7704, ControlKind::Abort),
            data(PID, 0, 7705, 7706, Compression::None),
            marker(PID, 7707, ControlKind::Commit),
        ];
        assert_eq!(
            judge(AbortedFilter::read_committed(list(&[(PID, 7702)])), &log),
            [
                (7501, Verdict::Control),
                (7702, Verdict::Aborted),
                (7704, Verdict::Control),
                (7705, Verdict::Keep),
                (7707, Verdict::Control),
            ]
        );
    }

    /// D29: a second abort marker in a row changes nothing.
    #[test]
    fn second_abort_marker_is_a_no_op() {
        let log = [
            data(PID, 0, 10, 11, Compression::None),
            marker(PID, 12, ControlKind::Abort),
            marker(PID, 13, ControlKind::Abort),
            data(PID, 0, 14, 14, Compression::None),
        ];
        let verdicts = judge(AbortedFilter::read_committed(list(&[(PID, 10)])), &log);
        assert_eq!(verdicts[0].1, Verdict::Aborted);
        assert_eq!(verdicts[3].1, Verdict::Keep);
    }

    /// D30: the list may come in any order.
    #[test]
    fn unsorted_list_is_sorted() {
        let log = [
            data(1, 0, 100, 101, Compression::None),
            marker(1, 102, ControlKind::Abort),
            data(2, 0, 500, 501, Compression::None),
            marker(2, 502, ControlKind::Abort),
            data(1, 0, 503, 503, Compression::None),
        ];
        let verdicts = judge(
            AbortedFilter::read_committed(list(&[(2, 500), (1, 100)])),
            &log,
        );
        let kept: Vec<_> = verdicts.iter().filter(|v| v.1 == Verdict::Keep).collect();
        assert_eq!(kept, [&(503, Verdict::Keep)]);
    }

    /// D31: a reader of everything filters nothing, and still never sees markers.
    #[test]
    fn read_uncommitted_keeps_aborted_records() {
        let log = [
            data(PID, 0, 10, 11, Compression::None),
            marker(PID, 12, ControlKind::Abort),
        ];
        assert_eq!(
            judge(AbortedFilter::read_uncommitted(), &log),
            [(10, Verdict::Keep), (12, Verdict::Control)]
        );
    }

    /// D32: an aborted batch is turned away whatever its codec, and without being decompressed.
    #[test]
    fn aborted_and_compressed_is_aborted() {
        for codec in [
            Compression::Gzip,
            Compression::Snappy,
            Compression::Lz4,
            Compression::Zstd,
        ] {
            let log = [
                data(PID, 0, 10, 11, codec),
                marker(PID, 12, ControlKind::Abort),
            ];
            let verdicts = judge(AbortedFilter::read_committed(list(&[(PID, 10)])), &log);
            assert_eq!(verdicts[0].1, Verdict::Aborted, "{codec}");
        }
        // Nothing that fits could be decompressed under this limit.
        let batch = data(PID, 0, 10, 11, Compression::Gzip);
        let Some(Ok(Piece::Batch(raw))) = split(batch).next() else {
            panic!("a batch");
        };
        let none = Limits { inflated_max: 0 };
        let verdict = AbortedFilter::read_committed(list(&[(PID, 10)])).judge(
            &raw,
            &mut Decoder::new(),
            &none,
        );
        assert_eq!(verdict, Ok(Verdict::Aborted));
    }

    /// D44: a transaction that began before the fetch; then its producer's id under a new epoch.
    #[test]
    fn transaction_begun_before_the_fetch_is_aborted() {
        let log = [
            data(PID, 0, 120, 129, Compression::None),
            marker(PID, 130, ControlKind::Abort),
            data(PID, 1, 131, 135, Compression::None),
            marker(PID, 136, ControlKind::Commit),
        ];
        assert_eq!(
            judge(AbortedFilter::read_committed(list(&[(PID, 80)])), &log),
            [
                (120, Verdict::Aborted),
                (130, Verdict::Control),
                (131, Verdict::Keep),
                (136, Verdict::Control),
            ]
        );
    }

    /// Records outside of transactions are delivered whoever wrote them.
    #[test]
    fn batches_outside_transactions_are_kept() {
        let mut b = BatchBuilder::new(10).producer(PID, 0, 0);
        b.push(0, None, None, &[]).unwrap();
        let log = [b.build(&mut Encoder::new()).unwrap()];
        let verdicts = judge(AbortedFilter::read_committed(list(&[(PID, 0)])), &log);
        assert_eq!(verdicts, [(10, Verdict::Keep)]);
    }

    /// A flipped bit in a header must not hide the records behind it.
    #[test]
    fn a_damaged_batch_is_not_turned_away() {
        let mut bytes = data(5, 0, 10, 11, Compression::None).to_vec();
        bytes[50] ^= 5 ^ 7; // the producer's id
        let Some(Ok(Piece::Batch(raw))) = split(bytes.into()).next() else {
            panic!("a batch");
        };
        let e = AbortedFilter::read_committed(list(&[(7, 0)]))
            .judge(&raw, &mut Decoder::new(), &Limits::default())
            .unwrap_err();
        assert!(matches!(e.fault(), Fault::Checksum { .. }));
    }

    proptest! {
        /// Against a model that knows how every transaction ended.
        #[test]
        fn exactly_the_aborted_records_are_turned_away(
            steps in proptest::collection::vec((0i64..4, 0u8..8), 1..60),
            shuffle in any::<u64>(),
        ) {
            let mut log: Vec<(Bytes, i64)> = Vec::new();
            let mut open: Vec<Vec<i64>> = vec![Vec::new(); 4]; // offsets of the open transaction
            let mut aborted_offsets = BTreeSet::new();
            let mut entries = Vec::new();
            let mut offset = 0;
            for (pid, step) in steps {
                let p = pid as usize;
                match step {
                    0..5 => {
                        log.push((data(pid, 0, offset, offset, Compression::None), offset));
                        open[p].push(offset);
                    }
                    5 => {
                        log.push((marker(pid, offset, ControlKind::Commit), offset));
                        open[p].clear();
                    }
                    _ => {
                        log.push((marker(pid, offset, ControlKind::Abort), offset));
                        if let Some(first) = open[p].first() {
                            entries.push((pid, *first));
                        }
                        aborted_offsets.extend(open[p].drain(..));
                    }
                }
                offset += 1;
            }
            // Fetch from anywhere, the list in any order.
            let from = (shuffle % (offset as u64)) as usize;
            let turn = (shuffle >> 32) as usize % entries.len().max(1);
            entries.rotate_left(turn);
            let entries: Vec<_> = entries
                .into_iter()
                .filter(|(pid, first)| {
                    // Brokers list what reaches into the fetch.
                    let end = log.iter().find(|(b, o)| {
                        *o > *first && b[22] & 0x20 != 0 && b[43..51] == pid.to_be_bytes()
                    });
                    end.is_some_and(|(_, o)| *o >= from as i64)
                })
                .collect();
            let field: Vec<Bytes> = log[from..].iter().map(|(b, _)| b.clone()).collect();
            for (at, verdict) in judge(AbortedFilter::read_committed(list(&entries)), &field) {
                prop_assert_eq!(verdict == Verdict::Aborted, aborted_offsets.contains(&at), "{}", at);
            }
        }
    }
}
