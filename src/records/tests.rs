//! The scenarios of record decoding (D) that concern format 2, and what holds for any bytes.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::vectors::{VECTORS, unhex, vector};
use super::*;

const LIMITS: Limits = Limits {
    inflated_max: 1 << 20,
};

/// What a user would see of a record.
type Seen = (
    i64,
    i64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(Vec<u8>, Option<Vec<u8>>)>,
);

fn raw(bytes: Bytes) -> RawBatch {
    match split(bytes).next() {
        Some(Ok(Piece::Batch(raw))) => raw,
        other => panic!("no batch: {other:?}"),
    }
}

fn decode(bytes: Bytes, from: i64) -> Result<Batch, RecordsError> {
    match split(bytes).next() {
        Some(Ok(Piece::Batch(raw))) => raw.decode(&mut Decoder::new(), from, &LIMITS),
        Some(Err(e)) => Err(e),
        other => panic!("no batch: {other:?}"),
    }
}

fn seen(batch: &Batch) -> Vec<Seen> {
    (0..batch.len())
        .map(|i| {
            let headers = batch
                .headers(i)
                .map(|h| (h.key_bytes().to_vec(), h.value().map(<[u8]>::to_vec)))
                .collect();
            let owned = |part: Option<&[u8]>| part.map(<[u8]>::to_vec);
            (
                batch.offset(i),
                batch.timestamp(i),
                owned(batch.key(i)),
                owned(batch.value(i)),
                headers,
            )
        })
        .collect()
}

fn offsets(batch: &Batch) -> Vec<i64> {
    (0..batch.len()).map(|i| batch.offset(i)).collect()
}

/// The batch is refused as corrupt, at the offset given.
#[track_caller]
fn refused(bytes: Bytes, offset: i64) -> RecordsError {
    let e = decode(bytes, 0).expect_err("refused");
    assert_eq!(e.offset(), offset, "{e}");
    let text = e.clone().into_error("t", 0);
    assert_eq!(text.kind(), crate::ErrorKind::Peer);
    assert_eq!(text.offset(), Some(offset));
    assert_eq!((text.topic(), text.partition()), (Some("t"), Some(0)));
    e
}

/// A reference writer: Kafka's varints by a route of its own.
fn zigzag(n: i64) -> Vec<u8> {
    let mut raw = ((n as i128) * 2).unsigned_abs() - u128::from(n < 0);
    let mut out = Vec::new();
    loop {
        let byte = (raw % 128) as u8;
        raw /= 128;
        if raw == 0 {
            out.push(byte);
            return out;
        }
        out.push(byte + 128);
    }
}

/// The good batch's header with other numbers and records, its length and checksum right.
fn forge(base: i64, count: i32, last_delta: i32, attributes: u16, section: &[u8]) -> Bytes {
    let mut out = vector("good_100_102")[..61].to_vec();
    out.extend_from_slice(section);
    out[..8].copy_from_slice(&base.to_be_bytes());
    let length = (out.len() - 12) as i32;
    out[8..12].copy_from_slice(&length.to_be_bytes());
    out[21..23].copy_from_slice(&attributes.to_be_bytes());
    out[23..27].copy_from_slice(&last_delta.to_be_bytes());
    out[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    out.into()
}

fn record(delta: i64, tail: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(zigzag(delta));
    body.extend_from_slice(tail);
    let mut out = zigzag(body.len() as i64);
    out.extend(body);
    out
}

/// Null key, null value, no headers.
const BARE: &[u8] = &[1, 1, 0];

fn joined(names: &[&str]) -> Bytes {
    let mut all = BytesMut::new();
    for name in names {
        all.extend_from_slice(&vector(name));
    }
    all.freeze()
}

#[test]
fn a_good_batch_reads_as_written() {
    let raw = raw(vector("good_100_102"));
    let h = raw.header();
    assert_eq!(
        (h.base_offset(), h.last_offset(), h.next_offset()),
        (100, 102, 103)
    );
    assert_eq!((h.leader_epoch(), h.count(), h.size()), (3, 3, 88));
    assert_eq!(
        (h.compression(), h.timestamp_type()),
        (Compression::None, TimestampType::Create)
    );
    assert_eq!(
        (h.is_transactional(), h.is_control(), h.delete_horizon()),
        (false, false, None)
    );
    assert_eq!(
        (h.producer_id(), h.producer_epoch(), h.base_sequence()),
        (-1, -1, -1)
    );
    assert_eq!((h.base_timestamp(), h.max_timestamp()), (1000, 1000));
    assert_eq!(raw.inflated_hint(), Some(27));
    let batch = raw.decode(&mut Decoder::new(), 0, &LIMITS).unwrap();
    let some = |s: &str| Some(s.as_bytes().to_vec());
    assert_eq!(
        seen(&batch),
        [
            (100, 1000, some("a"), some("0"), vec![]),
            (101, 1000, some("b"), some("1"), vec![]),
            (102, 1000, some("c"), some("2"), vec![]),
        ]
    );
    assert_eq!((batch.next_offset(), batch.leader_epoch()), (103, 3));
    assert!(batch.offsets_are_dense());
    assert_eq!(batch.bytes_held(), 27 + 3 * Batch::ENTRY_BYTES);
}

#[test]
fn an_uncompressed_batch_is_not_copied() {
    let bytes = vector("good_100_102");
    let batch = decode(bytes.clone(), 0).unwrap();
    let value = batch.value_bytes(1).unwrap();
    assert_eq!(&value[..], b"1");
    assert!(bytes.as_ptr_range().contains(&value.as_ptr()));
    assert_eq!(&batch.key_bytes(2).unwrap()[..], b"c");
}

/// D01: a batch cut off at the end of an answer is no error, and its header is not believed.
#[test]
fn partial_batch_at_the_end_is_left_for_the_next_fetch() {
    let mut pieces = split(vector("D01_partial_tail_40"));
    let Some(Ok(Piece::Batch(whole))) = pieces.next() else {
        panic!("the whole batch comes first");
    };
    assert_eq!(whole.header().next_offset(), 103);
    let cut = pieces.next().unwrap().unwrap();
    assert_eq!(
        cut,
        Piece::Cut {
            offset: Some(103),
            needed: Some(88)
        }
    );
    assert!(pieces.next().is_none());
}

/// D02: when the only batch does not fit the limit, its fragment says what it needs.
#[test]
fn lone_fragment_tells_the_size_needed() {
    let whole = vector("good_100_102");
    for cut in 1..whole.len() {
        let pieces: Vec<_> = split(whole.slice(..cut)).collect();
        let offset = (cut >= 8).then_some(100);
        let needed = (cut >= 12).then_some(88);
        assert_eq!(pieces, [Ok(Piece::Cut { offset, needed })], "cut at {cut}");
    }
    assert_eq!(split(Bytes::new()).count(), 0);
}

/// D04: a batch that compaction has emptied moves the position to its end.
#[test]
fn batch_emptied_by_compaction_advances() {
    let batch = decode(vector("D04_empty_compacted_0_49"), 0).unwrap();
    assert!(batch.is_empty());
    assert_eq!(batch.next_offset(), 50);
    assert!(batch.offsets_are_dense());
}

/// D04, with codec bits that some broker may leave standing.
#[test]
fn emptied_batch_with_codec_bits_has_nothing_to_decompress() {
    for attributes in 1..=4 {
        let batch = decode(forge(0, 0, 49, attributes, &[]), 0).unwrap();
        assert_eq!((batch.len(), batch.next_offset()), (0, 50));
    }
}

/// D05: the last records are compacted away and the batch still covers their offsets.
#[test]
fn last_offset_delta_beyond_the_last_record_advances() {
    let batch = decode(vector("D05_last_delta_9_records_0_2"), 105).unwrap();
    assert!(batch.is_empty());
    assert_eq!(batch.next_offset(), 110);
    let batch = decode(vector("D05_last_delta_9_records_0_2"), 101).unwrap();
    assert_eq!(offsets(&batch), [101, 102]);
    assert_eq!(batch.next_offset(), 110);
}

/// D06: a fetch from inside a batch gets all of it; what lies below is left out.
#[test]
fn records_below_the_fetch_offset_are_skipped() {
    let mut b = BatchBuilder::new(100);
    for i in 0..11 {
        b.push(i, None, Some(&[i as u8]), &[]).unwrap();
    }
    let bytes = b.build(&mut Encoder::new()).unwrap();
    let batch = decode(bytes, 105).unwrap();
    assert_eq!(offsets(&batch), (105..=110).collect::<Vec<_>>());
    assert_eq!(batch.value(0), Some(&[5][..]));
}

/// D07: the answer ends exactly at the asked offset, which compaction took.
#[test]
fn reply_that_ends_at_the_asked_offset_moves_past_it() {
    let mut b = BatchBuilder::new(32).covering(41);
    for i in 32..=40 {
        b.push_at(i, 0, None, None, &[]).unwrap();
    }
    let batch = decode(b.build(&mut Encoder::new()).unwrap(), 41).unwrap();
    assert!(batch.is_empty());
    assert_eq!(batch.next_offset(), 42);
}

/// D08: records are claimed and none is there.
#[test]
fn claimed_records_without_bytes_are_corrupt() {
    let e = refused(vector("D08_claims_3_no_bytes"), 100);
    assert!(matches!(e.fault(), Fault::Corrupt(_)), "{e}");
}

/// D09: a negative count.
#[test]
fn negative_record_count_is_corrupt() {
    refused(vector("D09_count_minus_1"), 100);
    refused(forge(7, i32::MIN, 2, 0, &[]), 7);
}

/// D10: a huge count in a few bytes is refused before anything is reserved for it.
#[test]
fn huge_record_count_is_corrupt() {
    let e = refused(vector("D10_count_1m_in_few_bytes"), 100);
    assert!(
        e.to_string()
            .contains("more records than its bytes can hold"),
        "{e}"
    );
}

/// D11: lengths that no batch has.
#[test]
fn impossible_batch_lengths_are_corrupt() {
    refused(vector("D11_len_min_i32"), 100);
    refused(vector("D11_len_48"), 100);
    for length in [0i32, 1, 13, -1] {
        let mut bytes = vector("good_100_102").to_vec();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let e = refused(bytes.into(), 100);
        assert!(e.may_heal());
    }
}

/// D12: offsets that do not add up.
#[test]
fn offsets_that_do_not_add_up_are_corrupt() {
    refused(vector("D12_last_delta_minus_1"), 100);
    refused(vector("D12_record_delta_5_past_last_2"), 100);
    let section = |deltas: &[i64]| {
        deltas
            .iter()
            .flat_map(|d| record(*d, BARE))
            .collect::<Vec<_>>()
    };
    refused(forge(100, 3, 2, 0, &section(&[0, 2, 1])), 100);
    refused(forge(100, 2, 2, 0, &section(&[1, 1])), 100);
    refused(forge(100, 1, 2, 0, &section(&[-1])), 100);
    refused(forge(100, 3, 1, 0, &section(&[0, 1, 2])), 100); // last delta < count - 1
    refused(forge(-5, 1, 0, 0, &section(&[0])), -5);
    let batch = decode(forge(100, 2, 9, 0, &section(&[3, 7])), 0).unwrap();
    assert_eq!(offsets(&batch), [103, 107]);
    assert!(!batch.offsets_are_dense());
}

/// Batches of one field that begin before the last one's end would move a position back (I4).
#[test]
fn batches_that_go_back_are_corrupt() {
    let mut pieces = split(joined(&["D26_commit_marker_103", "good_100_102"]));
    assert!(matches!(pieces.next(), Some(Ok(Piece::Batch(_)))));
    assert_eq!(pieces.next().unwrap().unwrap_err().offset(), 100);
    assert!(pieces.next().is_none());
}

/// D13: a flipped bit is told at its offset; the batches around it stand.
#[test]
fn checksum_mismatch_is_refused_alone() {
    let mut first = BatchBuilder::new(90);
    for _ in 0..10 {
        first.push(0, None, Some(b"x"), &[]).unwrap();
    }
    let mut field = BytesMut::from(&first.build(&mut Encoder::new()).unwrap()[..]);
    field.extend_from_slice(&vector("D13_bit_flip"));
    field.extend_from_slice(&rebase(&raw(vector("good_100_102")), 103, 3, None));
    let results: Vec<_> = split(field.freeze())
        .map(|p| match p.unwrap() {
            Piece::Batch(raw) => raw
                .decode(&mut Decoder::new(), 0, &LIMITS)
                .map(|b| b.next_offset()),
            cut => panic!("{cut:?}"),
        })
        .collect();
    assert_eq!(results[0], Ok(100));
    let e = results[1].clone().unwrap_err();
    assert_eq!(e.offset(), 100);
    assert!(matches!(
        e.fault(),
        Fault::Checksum {
            stored: 0x5035_aad4,
            ..
        }
    ));
    assert!(e.may_heal());
    assert_eq!(results[2], Ok(106));
}

/// D14: a batch is refused whole, however many of its records are good.
#[test]
fn a_bad_last_record_refuses_the_whole_batch() {
    let mut section: Vec<u8> = (0..2).flat_map(|d| record(d, BARE)).collect();
    section.extend(record(2, &[1, 1, 2])); // claims a header that is not there
    let e = refused(forge(100, 3, 2, 0, &section), 100);
    assert!(!e.may_heal());
    section.truncate(section.len() - 1);
    refused(forge(100, 3, 2, 0, &section), 100);
    let mut section: Vec<u8> = (0..3).flat_map(|d| record(d, BARE)).collect();
    section.push(0);
    let e = refused(forge(100, 3, 2, 0, &section), 100);
    assert!(e.to_string().contains("bytes follow"), "{e}");
}

/// D15: random bytes under codec bits are an error, at their offset.
#[test]
fn decompression_errors_are_not_swallowed() {
    for attributes in 1..=4 {
        let e = refused(forge(100, 3, 2, attributes, &[0x5a; 40]), 100);
        assert!(matches!(e.fault(), Fault::Decompress { .. }), "{e}");
        assert!(!e.may_heal());
    }
    let e = refused(forge(100, 3, 2, 5, &[0x5a; 40]), 100);
    assert_eq!(*e.fault(), Fault::UnknownCodec(5));
}

/// D17: null and empty stay apart, in keys and values.
#[test]
fn null_and_empty_differ() {
    let batch = decode(vector("D17_null_empty_matrix"), 0).unwrap();
    let got: Vec<_> = (0..4).map(|i| (batch.key(i), batch.value(i))).collect();
    let empty = Some(&b""[..]);
    assert_eq!(
        got,
        [(None, None), (empty, None), (None, empty), (empty, empty)]
    );
    assert_eq!(batch.value_bytes(0), None);
    assert_eq!(batch.value_bytes(3), Some(Bytes::new()));
}

/// D18: a header's value may be null; duplicates and order are kept.
#[test]
fn null_header_value_is_harmless() {
    let batch = decode(vector("D18_null_header_value"), 0).unwrap();
    let headers = batch.headers(0);
    assert_eq!(headers.len(), 2);
    let got: Vec<_> = headers.map(|h| (h.key(), h.value())).collect();
    assert_eq!(got, [(Some("h"), None), (Some("h"), Some(&b""[..]))]);
}

/// D20: a header's key may not be null.
#[test]
fn null_header_key_is_corrupt() {
    let e = refused(vector("D20_null_header_key"), 0);
    assert!(e.to_string().contains("header's key is null"), "{e}");
}

#[test]
fn a_header_key_that_is_not_utf8_is_given_as_bytes() {
    let section = record(0, &[1, 1, 2, 4, 0xff, 0xfe, 2, b'x']);
    let batch = decode(forge(0, 1, 0, 0, &section), 0).unwrap();
    let header = batch.headers(0).next().unwrap();
    assert_eq!(
        (header.key(), header.key_bytes()),
        (None, &[0xff, 0xfe][..])
    );
    assert_eq!(header.value(), Some(&b"x"[..]));
}

/// D22: a record's length and its content must agree.
#[test]
fn record_length_must_match_its_content() {
    refused(vector("D22_record_len_too_long"), 0);
    refused(vector("D22_record_len_too_short"), 0);
    // A first record whose headers are its neighbour's bytes.
    let mut section = record(0, &[1, 1, 2]);
    section.extend(record(1, BARE));
    refused(forge(0, 2, 1, 0, &section), 0);
    // A billion headers in a record of a few bytes.
    let mut tail = vec![1, 1];
    tail.extend(zigzag(1_000_000_000));
    refused(forge(0, 1, 0, 0, &record(0, &tail)), 0);
    refused(forge(0, 1, 0, 0, &record(0, &[1, 1, 1])), 0); // -1 headers
}

/// D23: a timestamp delta may need more than 32 bits.
#[test]
fn timestamp_deltas_are_64_bits() {
    let batch = decode(vector("D23_ts_delta_40_days"), 0).unwrap();
    assert_eq!(
        (batch.timestamp(0), batch.timestamp(1)),
        (0, 40 * 86_400_000)
    );
    let mut b = BatchBuilder::new(0);
    for t in [i64::MIN, i64::MAX, -1] {
        b.push(t, None, None, &[]).unwrap();
    }
    let batch = decode(b.build(&mut Encoder::new()).unwrap(), 0).unwrap();
    let got: Vec<_> = (0..3).map(|i| batch.timestamp(i)).collect();
    assert_eq!(got, [i64::MIN, i64::MAX, -1]);
}

/// D24: times are base plus delta, whatever the base is.
#[test]
fn base_timestamp_need_not_be_the_first_records() {
    let batch = decode(vector("D24_negative_ts_delta"), 0).unwrap();
    assert_eq!(batch.timestamp(0), 993);
    let mut b = BatchBuilder::new(0);
    b.push(500, None, None, &[]).unwrap();
    let bytes = b.build(&mut Encoder::new()).unwrap();
    assert_eq!(raw(bytes.clone()).header().delete_horizon(), None);
    // The cleaner's horizon becomes the base, and the delta turns negative.
    let horizon = forge(0, 1, 0, 1 << 6, &[14, 0, 13, 0, 1, 1, 0, 0][..]);
    let raw = raw(horizon.clone());
    assert_eq!(raw.header().delete_horizon(), Some(1000));
    refused(horizon, 0); // one byte too many
    let horizon = forge(0, 1, 0, 1 << 6, &[12, 0, 13, 0, 1, 1, 0]);
    assert_eq!(decode(horizon, 0).unwrap().timestamp(0), 993);
    let mut b = BatchBuilder::new(0);
    b.push(-1, None, None, &[]).unwrap();
    assert_eq!(
        decode(b.build(&mut Encoder::new()).unwrap(), 0)
            .unwrap()
            .timestamp(0),
        -1
    );
}

/// D25: with append time every record has the batch's.
#[test]
fn log_append_time_is_the_batchs() {
    let batch = decode(vector("D25_log_append_time"), 0).unwrap();
    assert_eq!(batch.timestamp(0), 7777);
    assert_eq!(batch.timestamp_type(), TimestampType::LogAppend);
    let appended = rebase(&raw(vector("D23_ts_delta_40_days")), 7, 4, Some(55));
    let batch = decode(appended, 0).unwrap();
    assert_eq!((batch.timestamp(0), batch.timestamp(1)), (55, 55));
    assert_eq!((batch.offset(0), batch.leader_epoch()), (7, 4));
}

/// D26: a marker is never delivered, and moves the position.
#[test]
fn control_batch_is_not_delivered_and_advances() {
    let marker = raw(vector("D26_commit_marker_103"));
    assert!(marker.header().is_control());
    let control = marker.control(&mut Decoder::new(), &LIMITS).unwrap();
    assert_eq!(
        control,
        ControlRecord {
            kind: ControlKind::Commit,
            producer_id: 4001,
            offset: 103
        }
    );
    let batch = marker.decode(&mut Decoder::new(), 0, &LIMITS).unwrap();
    assert!(batch.is_empty());
    assert_eq!(batch.next_offset(), 104);
}

/// D34: kinds of marker from the future are skipped; a marker without its kind is corrupt.
#[test]
fn control_records_of_unknown_kind_are_skipped() {
    let unknown = raw(vector("D34_control_type_7"));
    let control = unknown.control(&mut Decoder::new(), &LIMITS).unwrap();
    assert_eq!(control.kind, ControlKind::Unknown(7));
    assert_eq!(
        decode(vector("D34_control_type_7"), 0)
            .unwrap()
            .next_offset(),
        6
    );
    let e = refused(vector("D34_control_null_key"), 5);
    assert!(e.to_string().contains("key is null"), "{e}");
    let short = record(0, &[6, 0, 0, 0, 1, 0]);
    let e = refused(forge(5, 1, 0, 0x30, &short), 5);
    assert!(e.to_string().contains("too short"), "{e}");
    let emptied = forge(5, 0, 0, 0x30, &[]);
    assert_eq!(decode(emptied, 0).unwrap().next_offset(), 6);
}

/// D41: a format that we do not know is typed as such, at its offset.
#[test]
fn other_message_formats_are_named() {
    let e = refused(vector("D41_magic_3"), 100);
    assert_eq!(*e.fault(), Fault::UnknownFormat(3));
    assert!(e.to_string().contains("unsupported format"), "{e}");
    let mut negative = vector("good_100_102").to_vec();
    negative[16] = 0xff;
    assert_eq!(
        *refused(negative.into(), 100).fault(),
        Fault::UnknownFormat(-1)
    );
}

/// D42: an offset with no next one.
#[test]
fn offset_at_the_end_of_i64_is_corrupt() {
    refused(vector("D42_base_max_i64"), i64::MAX);
    refused(forge(i64::MAX - 2, 0, 2, 0, &[]), i64::MAX - 2);
    let last = decode(forge(i64::MAX - 3, 0, 2, 0, &[]), 0).unwrap();
    assert_eq!(last.next_offset(), i64::MAX);
}

/// Every cut of a batch is seen as one; every flipped bit is refused, unless it lies in what the
/// checksum leaves out and reads as another value there.
#[test]
fn every_cut_and_every_flip_is_noticed() {
    let mut checked = 0;
    for (name, hex) in VECTORS {
        let good = unhex(hex);
        if !matches!(split(good.clone()).next(), Some(Ok(Piece::Batch(_)))) {
            continue;
        }
        let decoded = |bytes: &[u8]| {
            split(Bytes::copy_from_slice(bytes))
                .map(|p| match p? {
                    Piece::Batch(raw) => raw
                        .decode(&mut Decoder::new(), 0, &LIMITS)
                        .map(|b| Some((seen(&b), b.next_offset(), b.leader_epoch()))),
                    Piece::Cut { .. } => Ok(None),
                })
                .collect::<Vec<_>>()
        };
        let before = decoded(&good);
        if !matches!(before[..], [Ok(Some(_))]) {
            continue;
        }
        checked += 1;
        for at in 0..good.len() {
            assert_ne!(decoded(&good[..at]), before, "{name} cut at {at}");
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                assert_ne!(decoded(&bad), before, "{name} bit {bit} of byte {at}");
            }
        }
    }
    assert!(checked > 10, "only {checked} good vectors");
}

#[test]
fn the_builder_refuses_offsets_that_fall() {
    let mut b = BatchBuilder::new(10);
    b.push_at(12, 0, None, None, &[]).unwrap();
    for offset in [9, 12, 10 + i64::from(i32::MAX), i64::MIN] {
        let e = b.push_at(offset, 0, None, None, &[]).unwrap_err();
        assert_eq!(e.kind(), crate::ErrorKind::Misuse);
    }
    b.push(0, None, None, &[]).unwrap();
    let batch = decode(b.build(&mut Encoder::new()).unwrap(), 0).unwrap();
    assert_eq!(offsets(&batch), [12, 13]);
}

#[test]
fn our_batches_are_byte_for_byte_those_of_the_vectors() {
    let mut e = Encoder::new();
    let mut good = BatchBuilder::new(100).leader_epoch(3);
    for (k, v) in [(b"a", b"0"), (b"b", b"1"), (b"c", b"2")] {
        good.push(1000, Some(k), Some(v), &[]).unwrap();
    }
    assert_eq!(good.build(&mut e).unwrap(), vector("good_100_102"));
    let gap = good.clone().covering(109);
    assert_eq!(
        gap.build(&mut e).unwrap(),
        vector("D05_last_delta_9_records_0_2")
    );
    let mut headers = BatchBuilder::new(0).leader_epoch(3);
    headers
        .push(
            1000,
            Some(b"k"),
            Some(b"v"),
            &[("h", None), ("h", Some(b""))],
        )
        .unwrap();
    assert_eq!(
        headers.build(&mut e).unwrap(),
        vector("D18_null_header_value")
    );
    let marker = control_batch(103, ControlKind::Commit, 4001, 0, 1000, 0);
    let marker = rebase(&raw(marker), 103, 3, None);
    assert_eq!(marker, vector("D26_commit_marker_103"));
}

fn blob() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200))
}

fn codec() -> impl Strategy<Value = Compression> {
    (0u16..5).prop_map(|id| Compression::from_id(id).expect("known"))
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        base in 0i64..1 << 50,
        codec in codec(),
        records in proptest::collection::vec(
            (1i64..50, any::<i64>(), blob(), blob(),
             proptest::collection::vec(("[a-z]{0,9}", blob()), 0..4)),
            1..40,
        ),
    ) {
        let mut b = BatchBuilder::new(base).compression(codec).producer(7, 2, 5).transactional();
        let mut offset = base - 1;
        let mut expected: Vec<Seen> = Vec::new();
        for (step, time, key, value, headers) in &records {
            offset += step;
            let given: Vec<_> = headers.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
            b.push_at(offset, *time, key.as_deref(), value.as_deref(), &given).unwrap();
            let headers = headers.iter().map(|(k, v)| (k.clone().into_bytes(), v.clone())).collect();
            expected.push((offset, *time, key.clone(), value.clone(), headers));
        }
        let bytes = b.build(&mut Encoder::new()).unwrap();
        let raw = raw(bytes.clone());
        let h = raw.header();
        prop_assert_eq!((h.producer_id(), h.producer_epoch(), h.base_sequence()), (7, 2, 5));
        prop_assert!(h.is_transactional());
        prop_assert!(raw.inflated_hint().is_none_or(|n| n >= b.size_bytes() - 61));
        let batch = decode(bytes, 0).unwrap();
        prop_assert_eq!(seen(&batch), expected);
        prop_assert_eq!(batch.next_offset(), offset + 1);
    }

    #[test]
    fn any_section_is_read_or_refused(
        count in 0i32..20,
        attributes in 0u16..64,
        section in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        // A right checksum, so that the bytes reach the codecs and the records.
        if let Ok(batch) = decode(forge(100, count, 30, attributes, &section), 0) {
            prop_assert!(batch.len() <= count as usize);
            prop_assert_eq!(batch.next_offset(), 131);
            let _ = seen(&batch);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn copied_out_records_are_the_same_and_hold_no_more(
        keep in prop::collection::vec(any::<bool>(), 12),
        first in 0usize..12,
        len in 1usize..12,
    ) {
        let mut builder = BatchBuilder::new(40);
        for n in 0..12i64 {
            let bytes = vec![n as u8; 9 * n as usize];
            let part = |salt: i64| match (n * 7 + salt) % 4 {
                0 => None,
                1 => Some(&b""[..]),
                _ => Some(&*bytes),
            };
            let headers: Vec<_> = ["h0", "h1"][..(n % 3) as usize].iter().map(|h| (*h, part(n))).collect();
            builder.push_at(40 + n * 2, 1_000 + n, part(1), part(2), &headers).unwrap();
        }
        let batch = decode(builder.build(&mut Encoder::new()).unwrap(), 0).unwrap();
        let last = (first + len - 1).min(11);
        let copy = batch.copied_out(first, last, |i| keep[i]);
        prop_assert_eq!(copy.len(), last - first + 1);
        let (all, copied) = (seen(&batch), seen(&copy));
        let mut bytes = 0;
        for i in first..=last {
            let is = &copied[i - first];
            prop_assert_eq!(is.0, all[i].0);
            if keep[i] {
                prop_assert_eq!(is, &all[i]);
                bytes += batch.copied_bytes(i);
            } else {
                prop_assert_eq!((&is.2, &is.3, is.4.len()), (&None, &None, 0));
                bytes += Batch::ENTRY_BYTES;
            }
        }
        prop_assert_eq!(copy.bytes_held(), bytes);
    }
}
