//! What decoding allocates, counted: nothing per record, and never more than its limit allows.

use allocation_counter::{AllocationInfo, measure};
use bytes::{Bytes, BytesMut};
use laneway::records::{
    Batch, BatchBuilder, Compression, Decoder, Encoder, Limits, Piece, RawBatch, RecordsError,
    split,
};

const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

fn batch(codec: Compression, records: usize, value: &[u8]) -> RawBatch {
    let mut b = BatchBuilder::new(0).compression(codec);
    for i in 0..records {
        let key = i.to_string();
        b.push(
            i as i64,
            Some(key.as_bytes()),
            Some(value),
            &[("h", Some(b"v"))],
        )
        .expect("fits");
    }
    let bytes = b.build(&mut Encoder::new()).expect("fits");
    // A frame off a socket is shared already; so is this one.
    raw(BytesMut::from(&bytes[..]).freeze())
}

fn raw(bytes: Bytes) -> RawBatch {
    match split(bytes).next() {
        Some(Ok(Piece::Batch(raw))) => raw,
        other => panic!("no batch: {other:?}"),
    }
}

fn counted(
    raw: &RawBatch,
    decoder: &mut Decoder,
    inflated_max: usize,
) -> (Result<Batch, RecordsError>, AllocationInfo) {
    let mut result = None;
    let info = measure(|| result = Some(raw.decode(decoder, 0, &Limits { inflated_max })));
    (result.expect("it ran"), info)
}

/// A batch costs its index and its output buffer, both of exactly their size, and no more.
#[test]
fn a_warm_decoder_allocates_buffer_and_index_only() {
    for codec in CODECS {
        for records in [1, 10, 1000] {
            let raw = batch(codec, records, &[7; 100]);
            let mut decoder = Decoder::new();
            let (first, _) = counted(&raw, &mut decoder, 64 << 20);
            assert_eq!(first.expect("good").len(), records);
            // The first clone of a Bytes may allocate its count; the frame has seen it by now.
            let (second, info) = counted(&raw, &mut decoder, 64 << 20);
            let second = second.expect("good");
            let expected = if codec == Compression::None { 1 } else { 2 };
            assert_eq!(info.count_total, expected, "{codec}, {records} records");
            let index = (records * Batch::ENTRY_BYTES) as u64;
            let held = if codec == Compression::None {
                index
            } else {
                second.bytes_held() as u64
            };
            assert_eq!(
                info.bytes_current, held as i64,
                "{codec}, {records} records"
            );
        }
    }
}

/// Reading what is in a batch allocates nothing.
#[test]
fn reading_records_allocates_nothing() {
    let raw = batch(Compression::Lz4, 100, b"value");
    let batch = raw
        .decode(&mut Decoder::new(), 0, &Limits::default())
        .expect("good");
    let info = measure(|| {
        for i in 0..batch.len() {
            assert_eq!(batch.offset(i), i as i64);
            assert_eq!(batch.value(i), Some(&b"value"[..]));
            assert!(batch.key(i).is_some());
            assert_eq!(
                batch.headers(i).map(|h| h.key_bytes().len()).sum::<usize>(),
                1
            );
        }
    });
    assert_eq!(info.count_total, 0);
}

/// X06: a bomb takes at most twice the limit while it is being refused, and nothing after; so does
/// a batch that is read.
#[test]
fn bombs_stay_within_twice_the_limit() {
    const LIMIT: usize = 1 << 20;
    // What the codecs' own state may take, and buffers that are not the output.
    const STATE: usize = 512 << 10;
    for codec in &CODECS[1..] {
        for zeros in [LIMIT / 2, 2 * LIMIT, 16 * LIMIT] {
            let raw = batch(*codec, 1, &vec![0; zeros]);
            let mut decoder = Decoder::new();
            for _ in 0..2 {
                let (result, info) = counted(&raw, &mut decoder, LIMIT);
                assert_eq!(result.is_ok(), zeros < LIMIT, "{codec} {zeros}");
                let most = info.bytes_max as usize;
                assert!(most <= 2 * LIMIT + STATE, "{codec} {zeros}: {most} bytes");
                drop(result);
            }
        }
    }
}

/// X06: so does a compressed message of format 0 or 1, by its bytes and by the index of its many
/// small messages, which is the greater part.
#[test]
fn wrappers_stay_within_twice_the_limit() {
    const LIMIT: usize = 1 << 20;
    const STATE: usize = 512 << 10;
    // Null key and value: 26 bytes a message, fewer than its entry in the index.
    let small = |count: usize| -> Vec<u8> {
        let each = (0..count as i64).flat_map(|offset| message(0, offset, None));
        each.collect()
    };
    let most = LIMIT / Batch::ENTRY_BYTES;
    let bomb = message(0, 0, Some(&vec![0; 16 * LIMIT]));
    for (inner, good) in [(small(most), true), (small(most + 1), false), (bomb, false)] {
        let value = snap::raw::Encoder::new()
            .compress_vec(&inner)
            .expect("fits");
        let raw = raw(message(2, 99_999, Some(&value)).into());
        let mut decoder = Decoder::new();
        for _ in 0..2 {
            let (result, info) = counted(&raw, &mut decoder, LIMIT);
            assert_eq!(result.is_ok(), good);
            let bytes = info.bytes_max as usize;
            assert!(bytes <= 2 * LIMIT + STATE, "{bytes} bytes");
        }
    }
}

/// A message of format 0 without a key.
fn message(attributes: u8, offset: i64, value: Option<&[u8]>) -> Vec<u8> {
    let mut body = vec![0, attributes];
    body.extend((-1i32).to_be_bytes());
    body.extend(value.map_or(-1, |v| v.len() as i32).to_be_bytes());
    body.extend_from_slice(value.unwrap_or_default());
    let mut out = offset.to_be_bytes().to_vec();
    out.extend((body.len() as i32 + 4).to_be_bytes());
    out.extend(crc(0xedb8_8320, &body).to_be_bytes());
    out.extend(body);
    out
}

/// X06: a size that is only claimed reserves nothing near it.
#[test]
fn claims_reserve_what_the_bytes_can_hold() {
    let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    zstd.extend((60u32 << 20).to_le_bytes());
    zstd.extend([0x01, 0, 0]);
    let snappy = [&[0x80, 0x80, 0x80, 0x1e][..], &[0; 16]].concat(); // 60 MiB
    // One frame of one block, its content size said to be 60 MiB.
    let gzip = [
        &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0][..],
        &[0x03, 0, 0, 0, 0, 0],
        &[0, 0, 0, 4],
    ]
    .concat();
    for (id, section) in [(4, zstd), (2, snappy), (1, gzip)] {
        let raw = forged(id, &section);
        let (result, info) = counted(&raw, &mut Decoder::new(), 64 << 20);
        assert!(result.is_err());
        assert!(
            info.bytes_max < 256 << 10,
            "codec {id}: {} bytes",
            info.bytes_max
        );
    }
}

/// An index counts too: a batch of more records than the limit has room for is refused before it
/// is made.
#[test]
fn the_index_is_within_the_limit() {
    const LIMIT: usize = 1 << 20;
    let most = LIMIT / Batch::ENTRY_BYTES;
    for (records, fits) in [(most, true), (most + 1, false)] {
        let mut b = BatchBuilder::new(0).compression(Compression::Zstd);
        for _ in 0..records {
            b.push(0, None, None, &[]).expect("fits");
        }
        let raw = raw(b.build(&mut Encoder::new()).expect("fits"));
        let (result, info) = counted(&raw, &mut Decoder::new(), LIMIT);
        assert_eq!(result.is_ok(), fits);
        assert!(info.bytes_max < 3 << 20, "{} bytes", info.bytes_max);
    }
}

/// D10: a count that its bytes cannot hold reserves nothing.
#[test]
fn huge_count_reserves_nothing() {
    let mut bytes = batch(Compression::None, 1, b"x").bytes().to_vec();
    bytes[23..27].copy_from_slice(&(i32::MAX - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&i32::MAX.to_be_bytes());
    seal(&mut bytes);
    let raw = raw(bytes.into());
    let (result, info) = counted(&raw, &mut Decoder::new(), 64 << 20);
    assert!(result.is_err());
    assert!(info.bytes_max < 1024, "{} bytes", info.bytes_max);
}

/// A batch of one record with codec bits and a section of its own.
fn forged(codec: u8, section: &[u8]) -> RawBatch {
    let mut bytes = batch(Compression::None, 1, b"x").bytes()[..61].to_vec();
    bytes.extend_from_slice(section);
    let length = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[22] = codec;
    seal(&mut bytes);
    raw(bytes.into())
}

fn seal(bytes: &mut [u8]) {
    let crc = crc(0x82f6_3b78, &bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
}

fn crc(polynomial: u32, bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (polynomial & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
