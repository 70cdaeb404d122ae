//! Any bytes as a message set of format 0 or 1: what a plain reading finds, message by message, or
//! an error at its offset, and memory within the limit.
//!
//! The first byte says what is done to the rest before it is read: as it is, with right checksums,
//! or as the value of a wrapper of any codec, compressed first or not.
#![no_main]

use bytes::Bytes;
use laneway::fuzzing::deflate;
use laneway::records::{Batch, Compression, Decoder, Encoder, Limits, Piece, RawBatch, split};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 256 << 10;
const LIMITS: Limits = Limits {
    inflated_max: LIMIT,
};
/// The codecs' own state and the buffers of the walk itself.
const STATE: usize = 512 << 10;
const CODECS: [Compression; 3] = [Compression::Gzip, Compression::Snappy, Compression::Lz4];

fuzz_target!(|input: &[u8]| {
    let [mode, outer, rest @ ..] = input else {
        return;
    };
    let codec = CODECS[usize::from(*outer) % 3];
    let magic = outer >> 7;
    let field = match mode % 4 {
        0 => rest.to_vec(),
        1 => with_checksums(rest.to_vec()),
        2 => wrapper(magic, *outer, codec, rest),
        _ => {
            let inner = with_checksums(rest.to_vec());
            wrapper(
                magic,
                *outer,
                codec,
                &deflate(&mut Encoder::new(), codec, &inner),
            )
        }
    };
    let len = field.len();
    let field = Bytes::from(field);
    let from = i64::from(mode / 4) - 2;
    let used = allocation_counter::measure(|| read(&field, from));
    let most = used.bytes_max as usize;
    assert!(
        most <= 2 * LIMIT + STATE + 2 * len,
        "{most} bytes for {len}"
    );
    if mode % 4 < 2 {
        compare(&field, from);
    }
});

fn read(field: &Bytes, from: i64) {
    let mut decoder = Decoder::new();
    let (mut position, mut taken) = (0, 0);
    let mut pieces = split(field.clone());
    for piece in &mut pieces {
        match piece {
            Ok(Piece::Batch(raw)) => {
                taken += raw.bytes().len();
                assert!(raw.header().base_offset() >= position);
                position = raw.header().next_offset();
                let _ = (raw.inflated_hint(), raw.control(&mut decoder, &LIMITS));
                if let Ok(batch) = raw.decode(&mut decoder, from, &LIMITS) {
                    check(&raw, &batch, from);
                }
            }
            Ok(Piece::Cut { needed, .. }) => {
                assert!(needed.is_none_or(|n| n > field.len() - taken))
            }
            Err(e) => drop(e.to_string()),
        }
    }
    assert!(pieces.next().is_none());
    assert!(taken <= field.len());
}

fn check(raw: &RawBatch, batch: &Batch, from: i64) {
    let mut last = from.max(0) - 1;
    for i in 0..batch.len() {
        assert!(batch.offset(i) > last);
        last = batch.offset(i);
        assert_eq!(batch.value_bytes(i).as_deref(), batch.value(i));
        assert_eq!(batch.key_bytes(i).as_deref(), batch.key(i));
        if raw.header().magic() < 2 {
            assert_eq!(batch.headers(i).count(), 0);
        }
    }
    assert!(batch.is_empty() || last < batch.next_offset());
    match batch.refused() {
        Some(refused) => assert_eq!(refused.offset(), batch.next_offset()),
        None => assert!(batch.next_offset() >= raw.header().next_offset()),
    }
    assert!(batch.bytes_held() <= 2 * LIMIT);
}

/// Plain messages at the front, by a reading that knows nothing of batches: each with a right
/// checksum and offsets that rise. Ours must give the same ones, up to where this one ends.
fn compare(field: &Bytes, from: i64) {
    let mut wanted = Vec::new();
    let (mut rest, mut last) = (&field[..], -1);
    while let Some((offset, message, after)) = plain_message(rest) {
        if offset <= last || offset == i64::MAX {
            break;
        }
        last = offset;
        rest = after;
        if offset < from {
            continue;
        }
        match message {
            Some((key, value)) => wanted.push((offset, key, value)),
            None => break,
        }
    }
    let mut decoder = Decoder::new();
    let mut found = Vec::new();
    for piece in split(field.clone()) {
        let Ok(Piece::Batch(raw)) = piece else { break };
        let plain = raw.header().magic() < 2 && raw.header().compression() == Compression::None;
        if !plain {
            break;
        }
        let Ok(batch) = raw.decode(&mut decoder, from, &LIMITS) else {
            break;
        };
        for i in 0..batch.len() {
            let owned = |part: Option<&[u8]>| part.map(<[u8]>::to_vec);
            found.push((batch.offset(i), owned(batch.key(i)), owned(batch.value(i))));
        }
        if batch.refused().is_some() {
            break;
        }
    }
    assert_eq!(found, wanted);
}

/// Key and value.
type Parts = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The uncompressed message at the front: its offset, what is in it (`None`: it is damaged), and
/// what follows it. `None`: there is no such message.
fn plain_message(bytes: &[u8]) -> Option<(i64, Option<Parts>, &[u8])> {
    let offset = i64::from_be_bytes(*bytes.first_chunk()?);
    let size = i32::from_be_bytes(*bytes.get(8..)?.first_chunk()?);
    let magic = *bytes.get(16)?;
    let least = match magic {
        0 => 14,
        1 => 22,
        _ => return None,
    };
    let size = usize::try_from(size).ok().filter(|n| *n >= least)?;
    let message = bytes.get(12..12 + size)?;
    if offset < 0 || message[5] & 7 != 0 {
        return None;
    }
    let stored = u32::from_be_bytes([message[0], message[1], message[2], message[3]]);
    let mut parts = message.get(if magic == 0 { 6 } else { 14 }..)?;
    let mut part = || -> Option<Option<Vec<u8>>> {
        let (len, rest) = parts.split_first_chunk()?;
        let len = i32::from_be_bytes(*len);
        parts = rest;
        let Ok(len) = usize::try_from(len) else {
            return Some(None);
        };
        let (part, rest) = parts.split_at_checked(len)?;
        parts = rest;
        Some(Some(part.to_vec()))
    };
    let found = part().zip(part());
    let whole = parts.is_empty() && stored == crc32fast::hash(&message[4..]);
    Some((offset, found.filter(|_| whole), &bytes[12 + size..]))
}

/// Sets the checksum of every message that is whole.
fn with_checksums(mut field: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(length) = field.get(at + 8..at + 12) {
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let Some(message) = field
            .get_mut(at + 12..at + 12 + length)
            .filter(|m| m.len() > 4)
        else {
            break;
        };
        let crc = crc32fast::hash(&message[4..]);
        message[..4].copy_from_slice(&crc.to_be_bytes());
        at += 12 + length;
    }
    field
}

/// A wrapper around `value`, at an offset from 0 to 15 times 4.
fn wrapper(magic: u8, bits: u8, codec: Compression, value: &[u8]) -> Vec<u8> {
    let id = match codec {
        Compression::Gzip => 1,
        Compression::Snappy => 2,
        _ => 3,
    };
    let mut body = vec![magic, id | bits & 8];
    if magic == 1 {
        body.extend(1000i64.to_be_bytes());
    }
    body.extend((-1i32).to_be_bytes());
    body.extend((value.len() as u32).to_be_bytes());
    body.extend_from_slice(value);
    let mut out = (i64::from(bits >> 3 & 15) * 4).to_be_bytes().to_vec();
    out.extend((body.len() as u32 + 4).to_be_bytes());
    out.extend(crc32fast::hash(&body).to_be_bytes());
    out.extend(body);
    out
}
