//! The scenarios of compression (X) that concern format 2, over sections that other libraries
//! compressed.

use super::*;
use crate::records::varint::{put_varlong, varlong_len};
use crate::records::vectors::{unhex, vector};
use crate::records::{Batch, Piece, RecordsError, split};

const LIMIT: usize = 1 << 20;
const LIMITS: Limits = Limits {
    inflated_max: LIMIT,
};
const CODECS: [Compression; 4] = [
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

/// The lines of the file: what was compressed, by what, and the bytes.
fn foreign() -> impl Iterator<Item = (&'static str, &'static str, Bytes)> {
    include_str!("../testdata/compressed.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().expect("three words");
            (word(), word(), unhex(word()))
        })
}

fn named(name: &str) -> Bytes {
    foreign()
        .find(|(_, n, _)| *n == name)
        .unwrap_or_else(|| panic!("no section {name}"))
        .2
}

fn codec_of(name: &str) -> Compression {
    match name.split('/').next() {
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        Some("gzip") => Compression::Gzip,
        Some("snappy") => Compression::Snappy,
        _ => Compression::None,
    }
}

/// What the lines were made of: see their first word.
fn original(what: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0..3u8 {
        let key = [b"key-".as_slice(), &[b'0' + i]].concat();
        match what {
            "section" => {
                let value = [b"lane 00".as_slice(), &[b'0' + i], b" "]
                    .concat()
                    .repeat(7000);
                put_record(&mut out, i, i, &key, &value, &[(b"h", &[b'0' + i])]);
            }
            "small" => {
                let value = [b"value ".as_slice(), &[b'0' + i]].concat();
                put_record(&mut out, i, 0, &key, &value, &[]);
            }
            _ => {}
        }
    }
    out
}

fn put_record(
    out: &mut Vec<u8>,
    delta: u8,
    time: u8,
    key: &[u8],
    value: &[u8],
    headers: &[(&[u8], &[u8])],
) {
    let mut body = vec![0, time * 2, delta * 2];
    let mut blob = |bytes: &[u8]| {
        put_varlong(&mut body, bytes.len() as i64);
        body.extend_from_slice(bytes);
    };
    blob(key);
    blob(value);
    body.push(headers.len() as u8 * 2);
    for (name, value) in headers {
        for part in [name, value] {
            body.push(part.len() as u8 * 2);
            body.extend_from_slice(part);
        }
    }
    put_varlong(out, body.len() as i64);
    out.extend(body);
}

/// A batch of three records around a compressed section.
fn batch_of(codec: Compression, section: &[u8], limits: &Limits) -> Result<Batch, RecordsError> {
    let mut out = vector("good_100_102")[..61].to_vec();
    out.extend_from_slice(section);
    let length = (out.len() - 12) as i32;
    out[8..12].copy_from_slice(&length.to_be_bytes());
    out[22] = codec.id() as u8;
    let crc = crc_fast::crc32_iscsi(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    let Some(Ok(Piece::Batch(raw))) = split(out.into()).next() else {
        panic!("a whole batch");
    };
    raw.decode(&mut Decoder::new(), 0, limits)
}

fn inflate(codec: Compression, section: &[u8], limit: usize) -> Result<Bytes, Fault> {
    let limits = Limits {
        inflated_max: limit,
    };
    Decoder::new().inflate(codec, Bytes::copy_from_slice(section), &limits)
}

fn deflate(codec: Compression, section: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Encoder::new().deflate(codec, section, &mut out).unwrap();
    out
}

#[track_caller]
fn corrupt(codec: Compression, section: &[u8], why: &str) {
    let e = batch_of(codec, section, &LIMITS).expect_err("refused");
    assert_eq!(e.offset(), 100);
    assert!(matches!(e.fault(), Fault::Decompress { .. }), "{e}");
    assert!(e.to_string().contains(why), "{e}");
}

/// X02, X03, X04, X05: everything that the C libraries write under legal flags is read, exactly,
/// by a decoder that is new and by one that has done all of the others before.
#[test]
fn foreign_sections_inflate_to_what_was_compressed() {
    let mut used = Decoder::new();
    let mut seen = 0;
    for (what, name, bytes) in foreign() {
        let expected = original(what);
        let codec = codec_of(name);
        let got = inflate(codec, &bytes, LIMIT).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(got == expected, "{name}");
        let got = used.inflate(codec, bytes.clone(), &LIMITS).unwrap();
        assert!(got == expected, "{name}, reused");
        if let Some(hint) = inflated_hint(codec, &bytes) {
            assert!(hint >= expected.len(), "{name}: {hint}");
        }
        if what != "empty" {
            let batch = batch_of(codec, &bytes, &LIMITS).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(batch.len(), 3, "{name}");
            assert_eq!(batch.key(2), Some(&b"key-2"[..]), "{name}");
            assert_eq!(batch.bytes_held(), expected.len() + 3 * Batch::ENTRY_BYTES);
        }
        seen += 1;
    }
    assert_eq!(seen, 29);
}

/// A stream of any codec that is cut anywhere is refused, and none that is damaged panics.
#[test]
fn cut_and_damaged_sections_are_refused() {
    let mut decoder = Decoder::new();
    let mut whole_by_chance = 0;
    for (what, name, bytes) in foreign() {
        let codec = codec_of(name);
        if codec == Compression::None || what == "empty" {
            continue;
        }
        let expected = original(what);
        // All of the headers and trailers, and a sample between: 200 KB take their time here.
        let edge = |at: &usize| *at < 20 || *at + 20 > bytes.len() || at.is_multiple_of(97);
        for cut in (1..bytes.len()).filter(edge) {
            // A cut between two frames, members or chunks leaves a whole stream of less.
            if let Ok(got) = decoder.inflate(codec, bytes.slice(..cut), &LIMITS) {
                let aside = name.contains("skippable");
                assert!(got.len() < expected.len() || aside, "{name} cut at {cut}");
                assert!(expected.starts_with(&got), "{name} cut at {cut}");
                whole_by_chance += 1;
            }
        }
        for at in (0..bytes.len()).filter(edge) {
            let mut bad = bytes.to_vec();
            bad[at] ^= [0x01, 0x80, 0xff, 0x10][at % 4];
            if let Ok(got) = decoder.inflate(codec, bad.into(), &LIMITS) {
                assert!(got.len() <= LIMIT, "{name} byte {at}");
            }
        }
        // After all of that the decoder still works.
        assert!(
            decoder.inflate(codec, bytes, &LIMITS).unwrap() == expected,
            "{name}"
        );
    }
    assert!((1..40).contains(&whole_by_chance), "{whole_by_chance}");
}

/// X02: the checksums that cover headers, blocks and content are verified.
#[test]
fn lz4_checksums_are_verified() {
    let whole = named("lz4/256k-all-checksums-and-size").to_vec();
    let mut bad = whole.clone();
    bad[14] ^= 1; // behind magic, flags, sizes and content size
    corrupt(Compression::Lz4, &bad, "header's checksum");
    let mut bad = whole.clone();
    let at = bad.len() - 12; // before end mark and content checksum
    bad[at] ^= 1;
    corrupt(Compression::Lz4, &bad, "block's checksum");
    for back in 1..=4 {
        let mut bad = whole.clone();
        let at = bad.len() - back;
        bad[at] ^= 1;
        corrupt(Compression::Lz4, &bad, "a frame's checksum");
    }
}

/// X02: what no reader knows how to read is refused by name.
#[test]
fn lz4_reserved_bits_and_dictionaries_are_refused() {
    // Flags, sizes; the checksum that fits follows.
    let header = |flags: u8, sizes: u8| {
        let mut out = vec![0x04, 0x22, 0x4d, 0x18, flags, sizes];
        if flags & 0x01 != 0 {
            out.extend([0; 4]);
        }
        out.extend([0, 0, 0, 0, 0]);
        out
    };
    for (flags, sizes, why) in [
        (0x62, 0x40, "reserved bits"),
        (0xa0, 0x40, "reserved bits"),
        (0x60, 0xc0, "reserved bits"),
        (0x60, 0x41, "reserved bits"),
        (0x61, 0x40, "dictionary"),
        (0x60, 0x30, "block size"),
    ] {
        corrupt(Compression::Lz4, &header(flags, sizes), why);
    }
    let whole = named("lz4/independent-64k");
    for junk in [&b"\0"[..], b"junk", b"\x04\x22\x4d"] {
        corrupt(Compression::Lz4, &[&whole[..], junk].concat(), "");
    }
    let sized = named("lz4/256k-all-checksums-and-size");
    assert_eq!(
        inflated_hint(Compression::Lz4, &sized),
        Some(original("section").len())
    );
}

/// X01, the part that concerns format 2: the historic checksum, over the magic number as well, was
/// only ever written under formats 0 and 1. Under 2 it is refused, and the right one is read.
#[test]
fn lz4_historic_header_checksum_is_refused() {
    let mut out = deflate(Compression::Lz4, &original("section"));
    assert_eq!(out[4..7], [0x60, 0x40, 0x82]);
    assert!(inflate(Compression::Lz4, &out, LIMIT).unwrap() == original("section"));
    out[6] = 0x1a;
    corrupt(Compression::Lz4, &out, "header's checksum");
}

/// X02: what we write is what every reader reads: independent 64 KiB blocks, no checksums.
#[test]
fn lz4_is_written_in_independent_blocks() {
    let section = original("section");
    let out = deflate(Compression::Lz4, &section);
    // Header: version 1, independent, nothing else; 64 KiB; and the checksum that the format's
    // own example has for it.
    assert_eq!(out[..7], [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82]);
    assert_eq!(out[out.len() - 4..], [0; 4]);
    // Bytes that do not compress are stored.
    let mut state = 1u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(1000)
    .collect();
    let out = deflate(Compression::Lz4, &noise);
    assert_eq!(out[7..11], (1000u32 | 1 << 31).to_le_bytes());
    assert_eq!(inflate(Compression::Lz4, &out, LIMIT).unwrap(), noise);
}

/// X03: bounds are checked chunk by chunk, and the versions in the header say nothing.
#[test]
fn snappy_chunks_are_bounded() {
    let whole = named("snappy/xerial-chunks-of-10").to_vec();
    for length in [u32::MAX, 0x7fff_ffff, 0, whole.len() as u32] {
        let mut bad = whole.clone();
        bad[16..20].copy_from_slice(&length.to_be_bytes());
        corrupt(Compression::Snappy, &bad, "chunk's length");
    }
    // Ten bytes that claim four gigabytes.
    let bare = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0];
    corrupt(Compression::Snappy, &bare, "declares more than it can hold");
    // A header that is cut short, and one with nothing behind it.
    assert_eq!(
        inflate(Compression::Snappy, &whole[..12], LIMIT)
            .unwrap()
            .len(),
        0
    );
}

/// X04: all frames are read, and a size in the header is needed for none of them.
#[test]
fn zstd_reads_every_frame() {
    let frames = named("zstd/many-frames");
    assert!(inflate(Compression::Zstd, &frames, LIMIT).unwrap() == original("section"));
    corrupt(
        Compression::Zstd,
        &[&frames[..], b"junk"].concat(),
        "no frame",
    );
    let mut bad = named("zstd/size-and-checksum").to_vec();
    let at = bad.len() - 1;
    bad[at] ^= 1;
    corrupt(Compression::Zstd, &bad, "checksum");
}

/// X05: every member is read, and what follows the last one must be another.
#[test]
fn gzip_reads_every_member_and_refuses_junk() {
    let Some(Ok(Piece::Batch(raw))) = split(vector("X05_gzip_two_members")).next() else {
        panic!("a whole batch");
    };
    let batch = raw.decode(&mut Decoder::new(), 0, &LIMITS).unwrap();
    assert_eq!(
        (batch.key(0), batch.key(1)),
        (Some(&b"a"[..]), Some(&b"b"[..]))
    );
    let whole = named("gzip/level-6").to_vec();
    corrupt(
        Compression::Gzip,
        &[&whole[..], b"more than ten bytes"].concat(),
        "no member",
    );
    corrupt(Compression::Gzip, &[&whole[..], &[0]].concat(), "cut");
    let mut bad = whole.clone();
    let at = bad.len() - 8;
    bad[at] ^= 1;
    corrupt(Compression::Gzip, &bad, "checksum");
    let mut bad = whole.clone();
    let at = bad.len() - 4;
    bad[at] ^= 1;
    corrupt(Compression::Gzip, &bad, "size");
    let mut bad = whole;
    bad[3] = 0x20;
    corrupt(Compression::Gzip, &bad, "reserved flags");
}

/// The bombs of X06, each far above the limit in what it claims or holds.
fn bombs() -> Vec<(Compression, Vec<u8>, &'static str)> {
    let zeros = vec![0; 4 << 20];
    // A GiB of zeros in run-length blocks, its size unsaid.
    let mut runs = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    for block in 0..8192u32 {
        let header = (128 << 10) << 3 | 1 << 1 | u32::from(block == 8191);
        runs.extend(&header.to_le_bytes()[..3]);
        runs.push(0);
    }
    // The same, its size said: 2^30.
    let mut said = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    said.extend((1u32 << 30).to_le_bytes());
    said.extend_from_slice(&runs[6..]);
    // A claim of 2^62 with nothing in it.
    let mut claim = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    claim.extend((1u64 << 62).to_le_bytes());
    claim.extend([0x01, 0, 0]);
    let member = deflate(Compression::Gzip, &zeros);
    let chunk = deflate(Compression::Snappy, &zeros[..LIMIT]);
    let frame = deflate(Compression::Lz4, &zeros);
    vec![
        (Compression::Zstd, runs, "large"),
        (Compression::Zstd, said, "large"),
        (Compression::Zstd, claim, "declares"),
        (
            Compression::Zstd,
            deflate(Compression::Zstd, &zeros).repeat(16),
            "large",
        ),
        (Compression::Gzip, member.clone(), "large"),
        (
            Compression::Gzip,
            deflate(Compression::Gzip, &zeros[..100_000]).repeat(100),
            "large",
        ),
        (
            Compression::Snappy,
            deflate(Compression::Snappy, &zeros),
            "large",
        ),
        (
            Compression::Snappy,
            [&chunk[..], &chunk[16..]].concat(),
            "large",
        ),
        (Compression::Lz4, frame.clone(), "large"),
        (Compression::Lz4, frame.repeat(64), "large"),
    ]
}

/// X06: a bomb is a typed error with its offset. How much memory that takes is counted elsewhere,
/// where allocations can be.
#[test]
fn bombs_are_refused() {
    for (codec, bomb, why) in bombs() {
        let e = batch_of(codec, &bomb, &LIMITS).expect_err("refused");
        assert_eq!(e.offset(), 100);
        match e.fault() {
            Fault::TooLarge { codec: c, limit } if why == "large" => {
                assert_eq!((*c, *limit), (codec, LIMIT));
            }
            Fault::Decompress { .. } => assert!(e.to_string().contains(why), "{e}"),
            other => panic!("{codec}: {other:?}"),
        }
    }
}

/// X06: what fits to the byte is read, and one byte less is refused.
#[test]
fn the_limit_is_exact() {
    for codec in CODECS {
        for len in [1usize, 4096, 65_536, 131_072, 200_000] {
            let section: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
            let packed = deflate(codec, &section);
            let got = inflate(codec, &packed, len).unwrap_or_else(|e| panic!("{codec} {len}: {e}"));
            assert!(got == section, "{codec} {len}");
            let e = inflate(codec, &packed, len - 1).unwrap_err();
            assert_eq!(
                e,
                Fault::TooLarge {
                    codec,
                    limit: len - 1
                },
                "{codec} {len}"
            );
        }
    }
    let plain = inflate(Compression::None, &[0; 9], 8).unwrap_err();
    assert!(matches!(plain, Fault::TooLarge { limit: 8, .. }));
}

/// X08: a reused buffer never shows through.
#[test]
fn reused_scratch_is_not_given_out() {
    let secret = vec![0xaa; 100_000];
    let bomb = bombs().swap_remove(0).1;
    let mut decoder = Decoder::new();
    for codec in CODECS {
        for other in CODECS {
            let got = decoder
                .inflate(codec, deflate(codec, &secret).into(), &LIMITS)
                .unwrap();
            assert_eq!(got.len(), secret.len());
            let small = original("small");
            let got = decoder
                .inflate(other, deflate(other, &small).into(), &LIMITS)
                .unwrap();
            assert!(got == small, "{other} after {codec}");
            let bad = Bytes::from(bomb.clone());
            assert!(decoder.inflate(Compression::Zstd, bad, &LIMITS).is_err());
        }
    }
}

/// An encoder goes on after any codec and size, and what it writes is read.
#[test]
fn a_reused_encoder_writes_what_is_read() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new();
    for round in 0..3 {
        for codec in CODECS {
            for len in [0usize, 1, 50, 70_000, 300_000] {
                let section: Vec<u8> = (0..len as u32)
                    .map(|i| {
                        if round == 0 {
                            7
                        } else {
                            (i.wrapping_mul(2_654_435_761) >> (8 * round)) as u8
                        }
                    })
                    .collect();
                let mut out = b"before".to_vec();
                encoder.deflate(codec, &section, &mut out).unwrap();
                assert_eq!(out[..6], *b"before");
                let got = decoder.inflate(codec, Bytes::copy_from_slice(&out[6..]), &LIMITS);
                assert!(got.unwrap() == section, "{codec} {len}");
            }
        }
    }
}

#[test]
fn varints_and_sections_of_the_file_agree() {
    assert_eq!(named("small/plain"), original("small"));
    assert_eq!(varlong_len(original("section").len() as i64), 3);
}
