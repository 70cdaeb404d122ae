//! What decoding a batch costs, in ns a record, beside the least that it could: a loop that only
//! computes the CRC-32C and walks the varints of the same records, uncompressed.
//!
//! `cargo bench -p laneway-protocol-tests --bench decode`. All candidates of a table take turns in
//! every round, over many different batches, and the least time of each counts: other work on the
//! machine slows a round down and never speeds one up. The ratio to the bare loop of the same run
//! is what compares between machines and days.

use std::hint::black_box;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use laneway::records::{
    BatchBuilder, Compression, Decoder, Encoder, Limits, Piece, RawBatch, split,
};

const ROUNDS: usize = 60;
const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Lz4,
    Compression::Snappy,
    Compression::Zstd,
    Compression::Gzip,
];

struct Shape {
    name: &'static str,
    batches: usize,
    bytes: usize,
    value: usize,
    headers: usize,
}

fn main() {
    for shape in [
        Shape {
            name: "64 x 16 KB, values of 100 B",
            batches: 64,
            bytes: 16 << 10,
            value: 100,
            headers: 0,
        },
        Shape {
            name: "64 x 16 KB, values of 512 B, 2 headers",
            batches: 64,
            bytes: 16 << 10,
            value: 512,
            headers: 2,
        },
        Shape {
            name: "4 x 1 MB, values of 100 B",
            batches: 4,
            bytes: 1 << 20,
            value: 100,
            headers: 0,
        },
        Shape {
            name: "4 x 1 MB, values of 512 B, 2 headers",
            batches: 4,
            bytes: 1 << 20,
            value: 512,
            headers: 2,
        },
    ] {
        table(&shape);
    }
}

fn table(shape: &Shape) {
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let mut encoder = Encoder::new();
    let builders: Vec<_> = (0..shape.batches)
        .map(|_| fill(shape, &mut random))
        .collect();
    let records: usize = builders.iter().map(BatchBuilder::len).sum();
    let sets: Vec<Vec<RawBatch>> = CODECS
        .iter()
        .map(|codec| {
            builders
                .iter()
                .map(|b| pack(b.clone().compression(*codec), &mut encoder))
                .collect()
        })
        .collect();
    let plain = &sets[0];

    let mut decoder = Decoder::new();
    let mut bare = f64::MAX;
    let mut decode = [f64::MAX; CODECS.len()];
    let mut read = [f64::MAX; CODECS.len()];
    for round in 0..ROUNDS {
        bare = bare.min(timed(|| plain.iter().map(|raw| walk(raw.bytes())).sum()));
        for turn in 0..CODECS.len() {
            let at = (round + turn) % CODECS.len();
            let set = &sets[at];
            decode[at] = decode[at].min(timed(|| {
                set.iter().map(|raw| run(raw, &mut decoder, false)).sum()
            }));
            read[at] = read[at].min(timed(|| {
                set.iter().map(|raw| run(raw, &mut decoder, true)).sum()
            }));
        }
    }

    let each = |ns: f64| ns / records as f64;
    println!("{}: {records} records", shape.name);
    println!(
        "  {:<24} {:>8.2} ns a record",
        "bare CRC and walk",
        each(bare)
    );
    for (at, codec) in CODECS.iter().enumerate() {
        let size: usize = sets[at].iter().map(|raw| raw.bytes().len()).sum();
        let plain_size: usize = plain.iter().map(|raw| raw.bytes().len()).sum();
        println!(
            "  {:<24} {:>8.2} ns a record, {:>6.2} x bare; values and headers read too {:>8.2}; size {:>4.0} %",
            codec.to_string(),
            each(decode[at]),
            decode[at] / bare,
            each(read[at]),
            100.0 * size as f64 / plain_size as f64,
        );
    }
}

fn fill(shape: &Shape, random: &mut u64) -> BatchBuilder {
    let mut b = BatchBuilder::new(0);
    let mut at = 0u64;
    while b.size_bytes() < shape.bytes {
        let key = format!("customer-{:07}", next(random) % 10_000_000);
        let mut value = format!(
            "{{\"id\":{},\"at\":\"2026-11-30T16:",
            next(random) % 1_000_000
        );
        while value.len() < shape.value {
            let r = next(random);
            value.push_str(&format!(
                "{:02}\",\"sum\":{}.{:02},\"kind\":\"{}\",\"to\":\"",
                r % 60,
                r >> 40 & 0xfff,
                r % 100,
                ["paid", "open", "void"][(r >> 8) as usize % 3]
            ));
        }
        value.truncate(shape.value);
        let trace = next(random).to_be_bytes();
        let headers = [
            ("trace-id", Some(&trace[..])),
            ("source", Some(&b"bench"[..])),
        ];
        b.push(
            1_800_000_000_000 + at as i64 * 3,
            Some(key.as_bytes()),
            Some(value.as_bytes()),
            &headers[..shape.headers],
        )
        .expect("fits");
        at += 1;
    }
    b
}

fn pack(b: BatchBuilder, encoder: &mut Encoder) -> RawBatch {
    let bytes = b.build(encoder).expect("fits");
    match split(BytesMut::from(&bytes[..]).freeze()).next() {
        Some(Ok(Piece::Batch(raw))) => raw,
        other => panic!("no batch: {other:?}"),
    }
}

fn run(raw: &RawBatch, decoder: &mut Decoder, read: bool) -> u64 {
    let batch = raw.decode(decoder, 0, &Limits::default()).expect("good");
    if !read {
        return batch.len() as u64;
    }
    let mut sum = 0;
    for i in 0..batch.len() {
        sum += batch
            .value(i)
            .map_or(0, |v| u64::from(v[0]) + v.len() as u64);
        sum += batch
            .headers(i)
            .map(|h| h.key_bytes().len() as u64)
            .sum::<u64>();
    }
    sum
}

/// The bare loop: checksum, then each record's fields by their lengths, headers unread.
fn walk(batch: &Bytes) -> u64 {
    let mut sum = u64::from(crc_fast::crc32_iscsi(&batch[21..]));
    let records = &batch[61..];
    let mut at = 0;
    while at < records.len() {
        let size = varint(records, &mut at);
        let end = at + size as usize;
        at += 1;
        let time = varint(records, &mut at);
        let delta = varint(records, &mut at);
        let key = varint(records, &mut at);
        at += key.max(0) as usize;
        let value = varint(records, &mut at);
        sum = sum.wrapping_add((time + delta + value) as u64);
        at = end;
    }
    sum
}

fn varint(bytes: &[u8], at: &mut usize) -> i64 {
    let mut raw = 0u64;
    let mut shift = 0;
    loop {
        let byte = bytes[*at];
        *at += 1;
        raw |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return (raw >> 1) as i64 ^ -((raw & 1) as i64);
        }
        shift += 7;
    }
}

fn timed(mut f: impl FnMut() -> u64) -> f64 {
    let start = Instant::now();
    black_box(f());
    start.elapsed().as_nanos() as f64
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
