//! Any bytes as a `records` field: batches or an error, positions that only go forward, memory
//! within twice the limit.
//!
//! The first byte says what is done to the rest before it is read: as it is, with right
//! checksums, or as one section behind a right header, so that codecs and records are reached.
//! The corpus begins with the scenario vectors and sections that other libraries compressed.
#![no_main]

use bytes::Bytes;
use laneway::records::{
    AbortedFilter, AbortedTransaction, Batch, Decoder, Limits, Piece, RawBatch, Verdict, split,
};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 256 << 10;
const LIMITS: Limits = Limits {
    inflated_max: LIMIT,
};
/// The codecs' own state and the buffers of the walk itself.
const STATE: usize = 512 << 10;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else {
        return;
    };
    let field = match mode % 3 {
        0 => rest.to_vec(),
        1 => with_checksums(rest.to_vec()),
        _ => with_checksums(behind_header(mode / 3, rest)),
    };
    let len = field.len();
    let field = Bytes::from(field);
    let used = allocation_counter::measure(|| read(field));
    let most = used.bytes_max as usize;
    assert!(
        most <= 2 * LIMIT + STATE + 2 * len,
        "{most} bytes for {len}"
    );
});

fn read(field: Bytes) {
    let mut decoder = Decoder::new();
    let mut filter = AbortedFilter::read_committed(vec![
        AbortedTransaction {
            producer_id: 1,
            first_offset: 100,
        },
        AbortedTransaction {
            producer_id: 0,
            first_offset: 0,
        },
    ]);
    let mut position = 0;
    let mut pieces = split(field.clone());
    let mut taken = 0;
    for piece in &mut pieces {
        match piece {
            Ok(Piece::Batch(raw)) => {
                taken += raw.bytes().len();
                assert!(raw.header().base_offset() >= position);
                assert!(raw.header().next_offset() > raw.header().base_offset());
                let verdict = filter.judge(&raw, &mut decoder, &LIMITS);
                position = raw.header().next_offset();
                if verdict == Ok(Verdict::Control) {
                    assert!(
                        raw.decode(&mut decoder, 0, &LIMITS)
                            .is_ok_and(|b| b.is_empty())
                    );
                }
                if let Ok(batch) = raw.decode(&mut decoder, 0, &LIMITS) {
                    check(&raw, &batch);
                }
            }
            Ok(Piece::Cut { needed, .. }) => {
                assert!(needed.is_none_or(|n| n > field.len() - taken));
            }
            Err(e) => {
                let _ = e.to_string();
            }
        }
    }
    assert!(pieces.next().is_none());
    assert!(taken <= field.len());
}

fn check(raw: &RawBatch, batch: &Batch) {
    let header = raw.header();
    assert!(raw.check_crc().is_ok());
    match batch.refused() {
        // Of a message set the messages before a bad one are given.
        Some(_) => assert!(header.magic() < 2 && batch.next_offset() <= header.next_offset()),
        None => assert_eq!(batch.next_offset(), header.next_offset()),
    }
    // A wrapper of format 1 names the last of its messages, not the first.
    let mut last = match header.magic() {
        2 => header.base_offset() - 1,
        _ => -1,
    };
    for i in 0..batch.len() {
        assert!(batch.offset(i) > last);
        last = batch.offset(i);
        let headers = batch.headers(i);
        let claimed = headers.len();
        assert_eq!(headers.count(), claimed);
        assert_eq!(batch.value_bytes(i).as_deref(), batch.value(i));
        assert_eq!(batch.key_bytes(i).as_deref(), batch.key(i));
    }
    assert!(last < header.next_offset());
    assert!(batch.bytes_held() <= 2 * LIMIT);
}

/// Sets the checksum of every batch that is whole.
fn with_checksums(mut field: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(length) = field.get(at + 8..at + 12) {
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let Some(batch) = field
            .get_mut(at..at + 12 + length)
            .filter(|b| b.len() >= 61)
        else {
            break;
        };
        let crc = crc_fast::crc32_iscsi(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        at += 12 + length;
    }
    field
}

/// One batch from offset 100 on, of up to 15 records, with any codec.
fn behind_header(bits: u8, section: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(61 + section.len());
    out.extend(100i64.to_be_bytes());
    out.extend((49 + section.len() as u32).to_be_bytes());
    out.extend([0, 0, 0, 3, 2, 0, 0, 0, 0, 0, bits % 5]);
    out.extend(30i32.to_be_bytes());
    out.extend(1000i64.to_be_bytes());
    out.extend(1000i64.to_be_bytes());
    out.extend([0xff; 14]);
    out.extend(i32::from(bits / 5).to_be_bytes());
    out.extend_from_slice(section);
    out
}
