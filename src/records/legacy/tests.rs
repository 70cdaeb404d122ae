//! The scenarios of message sets (D, X), and what holds for any bytes.

use bytes::Bytes;
use proptest::prelude::*;

use crate::records::vectors::vector;
use crate::records::{
    Batch, BatchBuilder, Compression, Decoder, Encoder, Fault, Limits, Piece, RawBatch,
    RecordsError, TimestampType, split,
};

const LIMITS: Limits = Limits {
    inflated_max: 1 << 20,
};

/// One message, by the format alone.
#[derive(Clone, Debug)]
struct Msg {
    magic: u8,
    attributes: u8,
    offset: i64,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
}

fn msg(magic: u8, offset: i64, value: &[u8]) -> Msg {
    Msg {
        magic,
        attributes: 0,
        offset,
        timestamp: offset.wrapping_add(1000),
        key: None,
        value: Some(value.to_vec()),
    }
}

impl Msg {
    fn bytes(&self) -> Vec<u8> {
        let mut body = vec![self.magic, self.attributes];
        if self.magic == 1 {
            body.extend(self.timestamp.to_be_bytes());
        }
        for part in [&self.key, &self.value] {
            let len = part.as_ref().map_or(-1, |p| p.len() as i32);
            body.extend(len.to_be_bytes());
            body.extend(part.iter().flatten());
        }
        let mut out = self.offset.to_be_bytes().to_vec();
        out.extend((body.len() as i32 + 4).to_be_bytes());
        out.extend(crc32fast::hash(&body).to_be_bytes());
        out.extend(body);
        out
    }
}

fn set(messages: &[Msg]) -> Vec<u8> {
    messages.iter().flat_map(Msg::bytes).collect()
}

/// `section` compressed, in a message of this format at this offset.
fn wrapper(magic: u8, offset: i64, codec: Compression, section: &[u8]) -> Msg {
    let mut value = Vec::new();
    Encoder::new().deflate(codec, section, &mut value).unwrap();
    Msg {
        attributes: codec.id() as u8,
        ..msg(magic, offset, &value)
    }
}

fn pieces(bytes: impl Into<Bytes>) -> Vec<RawBatch> {
    let whole = split(bytes.into()).map(|piece| match piece.unwrap() {
        Piece::Batch(raw) => raw,
        cut => panic!("{cut:?}"),
    });
    whole.collect()
}

fn decode(bytes: impl Into<Bytes>, from: i64) -> Result<Batch, RecordsError> {
    match split(bytes.into()).next() {
        Some(Ok(Piece::Batch(raw))) => raw.decode(&mut Decoder::new(), from, &LIMITS),
        Some(Err(e)) => Err(e),
        other => panic!("no batch: {other:?}"),
    }
}

fn offsets(batch: &Batch) -> Vec<i64> {
    (0..batch.len()).map(|i| batch.offset(i)).collect()
}

#[track_caller]
fn corrupt(bytes: impl Into<Bytes>, offset: i64, why: &str) {
    let e = decode(bytes, 0).expect_err("refused");
    assert_eq!(e.offset(), offset, "{e}");
    assert!(e.to_string().contains(why), "{e}");
}

/// D35: the inner offsets of format 1 are relative and may have holes: the last one lies at the
/// wrapper's offset, and the others as far below it as they are below the last.
#[test]
fn v1_wrapper_with_holes_counts_back_from_its_own_offset() {
    let batch = decode(vector("D35_v1_gzip_wrapper_20"), 0).unwrap();
    assert_eq!(offsets(&batch), [10, 11, 12, 20]);
    for (i, value) in [b"0", b"1", b"2"].into_iter().enumerate() {
        assert_eq!(batch.value(i), Some(&value[..]));
    }
    assert_eq!(batch.value(3), Some(&b"10"[..]));
    assert_eq!(batch.next_offset(), 21);
    assert!(!batch.offsets_are_dense());
    // From inside: a fetch brings the whole wrapper.
    let part = decode(vector("D35_v1_gzip_wrapper_20"), 12).unwrap();
    assert_eq!(offsets(&part), [12, 20]);
    let part = decode(vector("D35_v1_gzip_wrapper_20"), 13).unwrap();
    assert_eq!(
        (offsets(&part), part.value(0)),
        (vec![20], Some(&b"10"[..]))
    );
}

/// D35: in format 0 the inner offsets are absolute.
#[test]
fn v0_wrapper_keeps_its_inner_offsets() {
    let inner = set(&[msg(0, 10, b"a"), msg(0, 11, b"b"), msg(0, 20, b"c")]);
    for codec in [Compression::Gzip, Compression::Snappy, Compression::Lz4] {
        let batch = decode(wrapper(0, 20, codec, &inner).bytes(), 0).unwrap();
        assert_eq!(offsets(&batch), [10, 11, 20], "{codec}");
        assert_eq!(batch.next_offset(), 21);
        assert_eq!(batch.timestamp(0), -1, "format 0 has no times");
    }
    // Compaction took the last one: what the wrapper covers is still covered.
    let batch = decode(wrapper(0, 25, Compression::Gzip, &inner).bytes(), 0).unwrap();
    assert_eq!(
        (offsets(&batch), batch.next_offset()),
        (vec![10, 11, 20], 26)
    );
}

/// D38: a wrapper whose own offset lies below its last inner one.
#[test]
fn wrapper_below_its_last_inner_offset_is_corrupt() {
    corrupt(
        vector("D38_v1_wrapper_below_inner"),
        3,
        "below its last inner",
    );
    let inner = set(&[msg(0, 0, b"a"), msg(0, 9, b"b")]);
    let v0 = wrapper(0, 3, Compression::Gzip, &inner);
    corrupt(v0.bytes(), 3, "below its last inner");
    // A producer's wrapper has offset 0 and the broker sets it: Kafka's reader allows it.
    let inner = set(&[msg(1, 0, b"a"), msg(1, 1, b"b")]);
    let batch = decode(wrapper(1, 0, Compression::Gzip, &inner).bytes(), 0).unwrap();
    assert_eq!((offsets(&batch), batch.next_offset()), (vec![0, 1], 2));
}

/// D38: what no wrapper may hold. Nothing of it is given, and nothing is followed further down
/// than one level.
#[test]
fn impossible_wrappers_are_corrupt() {
    let gzip = |magic, section: &[u8]| wrapper(magic, 20, Compression::Gzip, section);
    corrupt(
        gzip(1, &msg(0, 0, b"x").bytes()).bytes(),
        20,
        "another format",
    );
    corrupt(
        gzip(0, &msg(1, 0, b"x").bytes()).bytes(),
        20,
        "another format",
    );
    let nested = wrapper(1, 0, Compression::Gzip, &msg(1, 0, b"x").bytes());
    corrupt(gzip(1, &nested.bytes()).bytes(), 20, "holds another one");
    let null = Msg {
        value: None,
        ..gzip(1, b"")
    };
    corrupt(null.bytes(), 20, "has no value");
    let empty = Msg {
        value: Some(vec![]),
        ..gzip(1, b"")
    };
    corrupt(empty.bytes(), 20, "holds none");
    corrupt(gzip(1, b"").bytes(), 20, "holds none");
    for at in [0, 1] {
        let falls = set(&[msg(at, 3, b"x"), msg(at, 3, b"y")]);
        corrupt(gzip(at, &falls).bytes(), 20, "do not rise");
        let negative = set(&[msg(at, -1, b"x")]);
        corrupt(gzip(at, &negative).bytes(), 20, "do not rise");
        let far = set(&[msg(at, 0, b"x"), msg(at, i64::from(i32::MAX), b"y")]);
        let far = wrapper(at, i64::from(i32::MAX), Compression::Gzip, &far);
        corrupt(far.bytes(), i64::from(i32::MAX), "too far apart");
    }
    let whole = set(&[msg(1, 0, b"x"), msg(1, 1, b"y")]);
    corrupt(gzip(1, &whole[..whole.len() - 1]).bytes(), 20, "is cut");
    // Zstandard came with format 2.
    let zstd = wrapper(1, 20, Compression::Zstd, &whole);
    corrupt(zstd.bytes(), 20, "older than its codec");
    let unknown = Msg {
        attributes: 5,
        ..msg(1, 20, b"x")
    };
    let e = decode(unknown.bytes(), 0).unwrap_err();
    assert_eq!(*e.fault(), Fault::UnknownCodec(5));
}

/// D40: where the broker set the time, the outer one counts for all, whatever the inner bits say.
#[test]
fn append_time_of_the_wrapper_counts_for_all() {
    let batch = decode(vector("D40_v1_log_append_bit"), 0).unwrap();
    assert_eq!(batch.timestamp_type(), TimestampType::LogAppend);
    assert_eq!((batch.offset(0), batch.timestamp(0)), (1, 1000));
    let inner = set(&[msg(1, 0, b"a"), msg(1, 1, b"b")]);
    let mut outer = wrapper(1, 8, Compression::Snappy, &inner);
    outer.attributes |= 0x08;
    outer.timestamp = 7777;
    let batch = decode(outer.bytes(), 0).unwrap();
    assert_eq!(batch.timestamp_type(), TimestampType::LogAppend);
    assert_eq!((batch.timestamp(0), batch.timestamp(1)), (7777, 7777));
    // The other way round: the producer's times stand.
    let inner = [msg(1, 0, b"a"), msg(1, 1, b"b")].map(|m| Msg {
        attributes: 0x08,
        ..m
    });
    let batch = decode(wrapper(1, 8, Compression::Gzip, &set(&inner)).bytes(), 0).unwrap();
    assert_eq!(batch.timestamp_type(), TimestampType::Create);
    assert_eq!((batch.timestamp(0), batch.timestamp(1)), (1000, 1001));
    // Format 0 knows no such bit, no format the bits of format 2.
    for (magic, bits) in [(0, 0x08), (0, 0xf8), (1, 0xf0)] {
        let odd = Msg {
            attributes: bits,
            ..msg(magic, 5, b"x")
        };
        let raws = pieces(odd.bytes());
        let header = raws[0].header();
        assert!(!header.is_control() && !header.is_transactional());
        assert_eq!(header.timestamp_type(), TimestampType::Create);
        assert_eq!(header.delete_horizon(), None);
    }
}

/// X01: under formats 0 and 1 LZ4's frame header may have the historic checksum, which covers the
/// magic number too, or the right one; any other is refused, and so is damage further on.
#[test]
fn lz4_historic_header_checksum_is_read_in_message_sets() {
    for magic in [0, 1] {
        let inner = set(&[msg(magic, 0, b"a"), msg(magic, 1, b"b")]);
        let right = wrapper(magic, 1, Compression::Lz4, &inner);
        let value = right.value.clone().unwrap();
        assert_eq!(value[4..7], [0x60, 0x40, 0x82]);
        for (checksum, good) in [(0x82, true), (0x1a, true), (0x1b, false), (0x83, false)] {
            let mut value = value.clone();
            value[6] = checksum;
            let raw = Msg {
                value: Some(value),
                ..right.clone()
            };
            let raw = pieces(raw.bytes()).remove(0);
            let read = raw.decode(&mut Decoder::new(), 0, &LIMITS);
            match read {
                Ok(batch) => assert!(good && offsets(&batch) == [0, 1]),
                Err(e) => assert!(!good && e.to_string().contains("header's checksum"), "{e}"),
            }
            // Both forms tell what they may grow to.
            assert_eq!(raw.inflated_hint().is_some(), good, "{checksum:x}");
        }
    }
}

/// D14: a message set is judged message by message: those before a bad one are given, the position
/// is the bad one's offset, and from behind it the rest is read.
#[test]
fn messages_before_a_bad_one_are_given() {
    for magic in [0, 1] {
        let messages: Vec<Msg> = (0..5).map(|i| msg(magic, 100 + i, b"value")).collect();
        let size = messages[0].bytes().len();
        let mut plain = set(&messages);
        plain[2 * size + size - 1] ^= 1;
        let inner: Vec<Msg> = (0..5).map(|i| msg(1, i, b"value")).collect();
        let inner_size = inner[0].bytes().len();
        let mut inner = set(&inner);
        inner[2 * inner_size + inner_size - 1] ^= 1;
        let wrapped = wrapper(1, 104, Compression::Gzip, &inner).bytes();
        for bytes in [plain, wrapped] {
            let before = decode(bytes.clone(), 0).unwrap();
            assert_eq!(
                (offsets(&before), before.next_offset()),
                (vec![100, 101], 102)
            );
            let refused = before.refused().expect("said why it ends");
            assert_eq!(refused.offset(), 102);
            assert!(matches!(refused.fault(), Fault::Checksum { .. }));
            let at = decode(bytes.clone(), 102).unwrap_err();
            assert_eq!(&at, refused);
            let behind = decode(bytes, 103).unwrap();
            assert_eq!(
                (offsets(&behind), behind.next_offset()),
                (vec![103, 104], 105)
            );
            assert!(behind.refused().is_none());
        }
    }
}

/// D14: fields that leave their message, or do not fill it, are of that message alone too.
#[test]
fn message_length_must_match_its_fields() {
    for magic in [0u8, 1] {
        let fields_at = if magic == 0 { 18 } else { 26 };
        for (at, len) in [
            (0, 1),
            (0, i32::MAX),
            (4, 6),
            (4, 4),
            (4, -1),
            (4, i32::MAX),
        ] {
            let mut bad = msg(magic, 1, b"value").bytes();
            bad[fields_at + at..fields_at + at + 4].copy_from_slice(&i32::to_be_bytes(len));
            let crc = crc32fast::hash(&bad[16..]);
            bad[12..16].copy_from_slice(&crc.to_be_bytes());
            let both = [msg(magic, 0, b"good").bytes(), bad].concat();
            let batch = decode(both, 0).unwrap();
            assert_eq!(
                (offsets(&batch), batch.next_offset()),
                (vec![0], 1),
                "{at} {len}"
            );
            let refused = batch.refused().unwrap();
            assert!(matches!(refused.fault(), Fault::Corrupt(_)), "{refused}");
            assert!(!refused.may_heal());
        }
    }
}

/// D17: null and empty differ, in keys and in values.
#[test]
fn null_and_empty_differ_in_message_sets() {
    let parts = [None, Some(vec![]), Some(b"x".to_vec())];
    let mut messages = Vec::new();
    for key in &parts {
        for value in &parts {
            messages.push(Msg {
                key: key.clone(),
                value: value.clone(),
                ..msg(1, messages.len() as i64, b"")
            });
        }
    }
    let plain = set(&messages);
    let wrapped = wrapper(1, 8, Compression::Lz4, &plain).bytes();
    for bytes in [plain, wrapped] {
        let batch = decode(bytes, 0).unwrap();
        assert_eq!(batch.len(), 9);
        for (i, m) in messages.iter().enumerate() {
            assert_eq!(batch.key(i), m.key.as_deref());
            assert_eq!(batch.value(i), m.value.as_deref());
            assert_eq!(batch.value_bytes(i).as_deref(), m.value.as_deref());
            assert_eq!(batch.headers(i).count(), 0);
            assert_eq!(batch.timestamp(i), m.timestamp);
        }
    }
}

/// D01, D02: a message that is cut tells its offset and size, in the middle of a run too.
#[test]
fn cut_messages_tell_what_they_need() {
    let first = msg(1, 7, b"abc").bytes();
    let second = msg(1, 9, b"defgh").bytes();
    let both = [&first[..], &second[..]].concat();
    for cut in 1..second.len() {
        let mut found = split(Bytes::copy_from_slice(&both[..first.len() + cut]));
        let Some(Ok(Piece::Batch(raw))) = found.next() else {
            panic!("the whole one");
        };
        assert_eq!(
            (raw.bytes().len(), raw.header().next_offset()),
            (first.len(), 8)
        );
        let Some(Ok(Piece::Cut { offset, needed })) = found.next() else {
            panic!("{cut}: the cut one");
        };
        assert_eq!(offset, (cut >= 8).then_some(9));
        assert_eq!(needed, (cut >= 12).then_some(second.len()));
        assert!(found.next().is_none());
    }
}

/// D11, D42: lengths and offsets that cannot be.
#[test]
fn impossible_message_lengths_and_offsets_are_corrupt() {
    for (magic, least) in [(0, 14), (1, 22)] {
        for length in [i32::MIN, -1, 0, 13, least - 1] {
            let mut bytes = msg(magic, 100, b"value and more of it").bytes();
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            let e = decode(bytes, 0).unwrap_err();
            assert!(matches!(e.fault(), Fault::Frame(_)), "{e}");
            assert_eq!(e.offset(), 100);
        }
        corrupt(msg(magic, -1, b"x").bytes(), -1, "negative");
        corrupt(msg(magic, i64::MAX, b"x").bytes(), i64::MAX, "no room");
        let last = decode(msg(magic, i64::MAX - 1, b"x").bytes(), 0).unwrap();
        assert_eq!(last.next_offset(), i64::MAX);
        let inner = set(&[msg(0, i64::MAX, b"x")]);
        corrupt(
            wrapper(0, 0, Compression::Gzip, &inner).bytes(),
            0,
            "no room",
        );
    }
}

/// I4: a message below the one before it is refused, for the position never moves back.
#[test]
fn messages_that_go_back_are_corrupt() {
    let bytes = set(&[
        msg(1, 5, b"a"),
        msg(1, 6, b"b"),
        msg(1, 6, b"c"),
        msg(1, 7, b"d"),
    ]);
    let mut found = split(bytes.into());
    assert!(matches!(found.next(), Some(Ok(Piece::Batch(raw))) if raw.header().next_offset() == 7));
    let e = found.next().unwrap().unwrap_err();
    assert_eq!(e.offset(), 6);
    assert!(found.next().is_none());
}

/// One field may hold all three formats: a log from before an upgrade and after it.
#[test]
fn one_field_may_hold_every_format() {
    let mut v2 = BatchBuilder::new(9).compression(Compression::Zstd);
    v2.push(5, None, Some(b"new"), &[("h", None)]).unwrap();
    let field = [
        set(&[msg(0, 0, b"a"), msg(0, 1, b"b"), msg(1, 2, b"c")]),
        wrapper(
            1,
            4,
            Compression::Snappy,
            &set(&[msg(1, 0, b"d"), msg(1, 1, b"e")]),
        )
        .bytes(),
        set(&[msg(1, 5, b"f")]),
        v2.build(&mut Encoder::new()).unwrap().to_vec(),
        set(&[msg(0, 10, b"g")]),
    ]
    .concat();
    let raws = pieces(field);
    let formats: Vec<_> = raws.iter().map(|r| r.header().magic()).collect();
    assert_eq!(formats, [0, 1, 1, 1, 2, 0]);
    let mut decoder = Decoder::new();
    let (mut seen, mut from) = (Vec::new(), 0);
    for raw in raws {
        let batch = raw.decode(&mut decoder, from, &LIMITS).unwrap();
        from = batch.next_offset();
        for i in 0..batch.len() {
            seen.push((batch.offset(i), batch.value(i).unwrap().to_vec()));
        }
    }
    let values = [&b"a"[..], b"b", b"c", b"d", b"e", b"f", b"new", b"g"];
    let at = [0, 1, 2, 3, 4, 5, 9, 10];
    let expected: Vec<_> = at.into_iter().zip(values.map(<[u8]>::to_vec)).collect();
    assert_eq!(seen, expected);
}

/// A run of plain messages is one batch, and as long as a step may take.
#[test]
fn runs_of_plain_messages_are_bounded() {
    let messages: Vec<Msg> = (0..1000).map(|i| msg(1, i, &[7; 1000])).collect();
    let raws = pieces(set(&messages));
    assert_eq!(raws.len(), 4);
    assert!(raws.iter().all(|r| r.bytes().len() <= super::RUN_BYTES_MAX));
    assert_eq!(raws.iter().map(|r| r.header().count()).sum::<usize>(), 1000);
    let max = |r: &RawBatch| r.header().max_timestamp();
    assert_eq!(max(&raws[0]), 1000 + raws[0].header().last_offset());
    // A single larger one is still read.
    let large = msg(1, 0, &vec![7; 2 * super::RUN_BYTES_MAX]).bytes();
    assert_eq!(decode(large, 0).unwrap().len(), 1);
    // Times of both kinds do not share a batch, nor do offsets too far apart.
    let mixed = [
        msg(1, 0, b"x"),
        Msg {
            attributes: 8,
            ..msg(1, 1, b"x")
        },
        msg(1, 2, b"x"),
        msg(1, 2 + i64::from(i32::MAX), b"x"),
    ];
    assert_eq!(pieces(set(&mixed)).len(), 4);
}

/// X06: a bomb is refused at its offset, by its bytes or by the index that it would take.
#[test]
fn wrappers_are_bounded() {
    for codec in [Compression::Gzip, Compression::Snappy, Compression::Lz4] {
        let inner = msg(1, 0, &vec![0; 2 << 20]).bytes();
        let e = decode(wrapper(1, 30, codec, &inner).bytes(), 0).unwrap_err();
        assert!(matches!(e.fault(), Fault::TooLarge { .. }), "{e}");
        assert_eq!(e.offset(), 30);
        let most = LIMITS.inflated_max / Batch::ENTRY_BYTES;
        for (count, good) in [(most, true), (most + 1, false)] {
            let small: Vec<Msg> = (0..count as i64).map(|i| msg(0, i, b"")).collect();
            let wrapped = wrapper(0, count as i64 - 1, codec, &set(&small));
            assert_eq!(decode(wrapped.bytes(), 0).is_ok(), good, "{codec} {count}");
        }
    }
}

/// Damage anywhere behind offset and length is noticed.
#[test]
fn every_flip_of_a_message_is_noticed() {
    let inner = set(&[msg(1, 0, b"abc"), msg(1, 1, b"def")]);
    for good in [
        msg(0, 5, b"value").bytes(),
        msg(1, 5, b"value").bytes(),
        wrapper(1, 6, Compression::Gzip, &inner).bytes(),
    ] {
        assert!(decode(good.clone(), 0).is_ok());
        for at in 12..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let e = decode(bad, 0).expect_err("noticed");
                assert!(
                    e.may_heal() || matches!(e.fault(), Fault::UnknownCodec(_)),
                    "{e}"
                );
            }
        }
    }
}

/// A message set is what a broker stores as it is: `rebase` leaves it alone.
#[test]
fn rebase_leaves_message_sets_alone() {
    let bytes = msg(1, 5, b"value").bytes();
    let raw = pieces(bytes.clone()).remove(0);
    assert_eq!(crate::records::rebase(&raw, 9, 3, Some(1))[..], bytes[..]);
}

fn part() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20))
}

fn any_message() -> impl Strategy<Value = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>, bool)> {
    (1..5i64, any::<i64>(), part(), part(), any::<bool>())
}

proptest! {
    /// Any set reads as it was written: plain, or wrapped by any codec, from any offset on.
    #[test]
    fn what_is_written_is_read(
        magic in 0..2u8,
        codec in 0..4u16,
        start in 0..1_000_000i64,
        drawn in proptest::collection::vec(any_message(), 1..30),
        skip in 0..40i64,
    ) {
        let codec = Compression::from_id(codec).unwrap();
        let mut offset = start;
        let mut messages = Vec::new();
        for (step, timestamp, key, value, append) in drawn {
            let append = append && codec == Compression::None && magic == 1;
            offset += step;
            messages.push(Msg { magic, attributes: u8::from(append) << 3, offset, timestamp, key, value });
        }
        let bytes = match codec {
            Compression::None => set(&messages),
            _ => {
                let base = messages[0].offset - 1;
                let relative = |m: &Msg| Msg { offset: m.offset - base, ..m.clone() };
                let inner: Vec<Msg> = match magic {
                    0 => messages.clone(),
                    _ => messages.iter().map(relative).collect(),
                };
                wrapper(magic, offset, codec, &set(&inner)).bytes()
            }
        };
        let from = start + skip;
        let mut seen = Vec::new();
        for raw in pieces(bytes) {
            raw.check_crc().unwrap();
            let batch = raw.decode(&mut Decoder::new(), from, &LIMITS).unwrap();
            prop_assert!(batch.refused().is_none());
            for i in 0..batch.len() {
                seen.push((
                    batch.offset(i),
                    batch.timestamp(i),
                    batch.key(i).map(<[u8]>::to_vec),
                    batch.value(i).map(<[u8]>::to_vec),
                ));
            }
            prop_assert!(batch.next_offset() <= offset + 1);
        }
        let expected: Vec<_> = messages
            .into_iter()
            .filter(|m| m.offset >= from)
            .map(|m| (m.offset, if magic == 0 { -1 } else { m.timestamp }, m.key, m.value))
            .collect();
        prop_assert_eq!(seen, expected);
    }

    /// Any section behind a good wrapper is read or refused, offsets rising either way.
    #[test]
    fn any_inner_set_is_read_or_refused(
        magic in 0..2u8,
        codec in 1..4u16,
        section in proptest::collection::vec(any::<u8>(), 0..200),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        good in any::<bool>(),
    ) {
        let mut section = match good {
            true => set(&[msg(magic, 0, b"a"), msg(magic, 1, b"b"), msg(magic, 5, b"c")]),
            false => section,
        };
        for (at, byte) in flips {
            if !section.is_empty() {
                let at = at.index(section.len());
                section[at] = byte;
            }
        }
        let codec = Compression::from_id(codec).unwrap();
        if let Ok(batch) = decode(wrapper(magic, 50, codec, &section).bytes(), 0) {
            let at = offsets(&batch);
            prop_assert!(!at.is_empty() && at.is_sorted_by(|a, b| a < b));
            prop_assert!(at[0] >= 0 && at[at.len() - 1] < batch.next_offset());
        }
    }
}
