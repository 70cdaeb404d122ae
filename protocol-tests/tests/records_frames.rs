//! Records that real brokers and other clients wrote, against what Kafka's own classes read in
//! them. The frames and what is in them: `frames/Fetch.jsonl`, `frames/Produce.jsonl`.

use bytes::Bytes;
use laneway::records::{
    Batch, BatchHeader, ControlKind, Decoder, Fault, Limits, Piece, RawBatch, TimestampType, split,
};
use serde_json::Value;

/// Every batch and every message set in both files reads as Kafka reads it, those of releases that
/// still store formats 0 and 1 among them.
#[test]
fn batches_of_real_brokers_read_as_kafkas_own_classes_read_them() {
    let mut tally = Tally::default();
    for line in exchanges() {
        let mut at = 0;
        for field in line["records"].as_array().into_iter().flatten() {
            check_field(&line, field, &mut at, &mut tally);
        }
    }
    // Numbers of the files as they are: a test that silently checks nothing is worse than none.
    assert_eq!(
        tally,
        Tally {
            batches: 440,
            records: 852,
            control: 39,
            cut: 13,
            legacy: 196,
            legacy_records: 376,
            damaged: 2
        }
    );
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    batches: usize,
    records: usize,
    control: usize,
    cut: usize,
    legacy: usize,
    legacy_records: usize,
    damaged: usize,
}

fn exchanges() -> Vec<Value> {
    let mut all = Vec::new();
    for file in ["Fetch", "Produce"] {
        let path = format!("{}/frames/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect(&path);
        all.extend(
            text.lines()
                .map(|l| serde_json::from_str::<Value>(l).expect("JSON")),
        );
    }
    all
}

/// One partition's records, found in the frame by the first batch's own header.
fn check_field(line: &Value, field: &Value, at: &mut usize, tally: &mut Tally) {
    let name = line["name"].as_str().unwrap();
    let Some(batches) = field["batches"].as_array().filter(|b| !b.is_empty()) else {
        return;
    };
    if batches[0]["magic"] != 2 {
        check_legacy(name, line, field, batches, (at, tally));
        return;
    }
    let frame = unhex(&line[field["in"].as_str().unwrap()]);
    let start = find(&frame, &signature(&batches[0]));
    let end = start + field["size"].as_u64().unwrap() as usize;
    let mut pieces = split(frame.slice(start..end));
    let mut decoder = Decoder::new();
    let mut at = start;
    for expected in batches {
        let mut piece = pieces.next();
        if name.ends_with("-INVALID_RECORD") && at > start {
            // Two batches that both begin at 0: the broker refused them too.
            assert!(matches!(piece, Some(Err(_))), "{name}");
            piece = split(frame.slice(at..end)).next();
        }
        at += expected["size"].as_u64().unwrap() as usize;
        let Some(Ok(Piece::Batch(raw))) = piece else {
            panic!("{name}: no batch where Kafka finds {expected}");
        };
        tally.batches += 1;
        check_batch(name, &raw, expected, &mut decoder, tally);
    }
    if field["trailing_bytes"] != 0 {
        tally.cut += 1;
        assert!(
            matches!(pieces.next(), Some(Ok(Piece::Cut { .. }))),
            "{name}"
        );
    }
    assert!(pieces.next().is_none(), "{name}");
}

/// A message set: Kafka's batches are its outer messages, ours are wrappers and runs of plain ones.
fn check_legacy(
    name: &str,
    line: &Value,
    field: &Value,
    batches: &[Value],
    (at, tally): (&mut usize, &mut Tally),
) {
    let frame = unhex(&line[field["in"].as_str().unwrap()]);
    // What starts it: offset (of a wrapper the last one) and length, then the format behind the
    // checksum. Partitions come in order, so the search goes on behind the last one.
    let number = |value: &Value| value.as_i64().unwrap();
    let mut sign = number(&batches[0]["last_offset"]).to_be_bytes().to_vec();
    sign.extend((number(&batches[0]["size"]) as u32 - 12).to_be_bytes());
    let start = *at + find(&frame.slice(*at..), &sign);
    let end = start + number(&field["size"]) as usize;
    *at = end;
    let (mut batches, mut decoder) = (batches.iter(), Decoder::new());
    let (mut size, mut cut) = (0, false);
    for piece in split(frame.slice(start..end)) {
        let raw = match piece {
            Ok(Piece::Batch(raw)) => raw,
            Ok(Piece::Cut { .. }) => {
                cut = true;
                continue;
            }
            Err(e) => panic!("{name}: {e}"),
        };
        raw.check_crc().unwrap();
        let batch = raw.decode(&mut decoder, 0, &Limits::default()).unwrap();
        assert!(batch.refused().is_none(), "{name}");
        let (header, mut seen, mut last) = (raw.header(), 0, -1);
        for expected in batches.by_ref().take(header.count()) {
            let same =
                |ours: i64, field: &str| assert_eq!(ours, expected[field], "{name}: {field}");
            same(header.magic().into(), "magic");
            assert_eq!(
                header.compression().to_string(),
                expected["compression"],
                "{name}"
            );
            let kind = match (header.magic(), header.timestamp_type()) {
                (0, _) => "NoTimestampType",
                (_, TimestampType::Create) => "CreateTime",
                (_, TimestampType::LogAppend) => "LogAppendTime",
            };
            assert_eq!(kind, expected["timestamp_type"], "{name}");
            last = number(&expected["last_offset"]);
            size += number(&expected["size"]);
            for record in expected["records"].as_array().unwrap() {
                check_record(name, &batch, seen, record);
                seen += 1;
            }
            tally.legacy += 1;
        }
        tally.legacy_records += seen;
        assert_eq!((header.last_offset(), batch.len()), (last, seen), "{name}");
        check_from_inside(name, &raw, &batch, &mut decoder);
    }
    assert!(batches.next().is_none(), "{name}: Kafka finds more");
    let trailing = number(&field["trailing_bytes"]);
    assert_eq!(
        (trailing != 0, number(&field["size"])),
        (cut, size + trailing),
        "{name}"
    );
    tally.cut += usize::from(cut);
}

fn check_batch(
    name: &str,
    raw: &RawBatch,
    expected: &Value,
    decoder: &mut Decoder,
    tally: &mut Tally,
) {
    check_header(name, raw.header(), expected);
    assert_eq!(
        raw.check_crc().is_ok(),
        expected["valid"].as_bool().unwrap(),
        "{name}"
    );
    let decoded = raw.decode(decoder, 0, &Limits::default());
    if expected["valid"] == false {
        tally.damaged += 1;
        assert!(matches!(
            decoded.unwrap_err().fault(),
            Fault::Checksum { .. }
        ));
        return;
    }
    let batch = decoded.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(batch.next_offset() - 1, expected["last_offset"], "{name}");
    let records = expected["records"].as_array().unwrap();
    if raw.header().is_control() {
        tally.control += 1;
        assert!(batch.is_empty(), "{name}: markers are never delivered");
        let marker = raw.control(decoder, &Limits::default()).unwrap();
        let kind = match records[0]["control"].as_str().unwrap() {
            "ABORT" => ControlKind::Abort,
            "COMMIT" => ControlKind::Commit,
            other => panic!("{name}: {other}"),
        };
        assert_eq!(marker.kind, kind, "{name}");
        assert_eq!(marker.offset, records[0]["offset"], "{name}");
        assert_eq!(marker.producer_id, expected["producer_id"], "{name}");
        return;
    }
    assert_eq!(batch.len(), records.len(), "{name}");
    for (i, record) in records.iter().enumerate() {
        tally.records += 1;
        check_record(name, &batch, i, record);
    }
    check_from_inside(name, raw, &batch, decoder);
}

fn check_header(name: &str, h: &BatchHeader, expected: &Value) {
    let same = |ours: i64, field: &str| assert_eq!(ours, expected[field], "{name}: {field}");
    same(h.base_offset(), "base_offset");
    same(h.last_offset(), "last_offset");
    same(h.size() as i64, "size");
    same(i64::from(h.crc()), "crc");
    same(i64::from(h.leader_epoch()), "partition_leader_epoch");
    same(h.producer_id(), "producer_id");
    same(i64::from(h.producer_epoch()), "producer_epoch");
    same(i64::from(h.base_sequence()), "base_sequence");
    same(h.max_timestamp(), "max_timestamp");
    same(h.count() as i64, "count");
    assert_eq!(h.is_transactional(), expected["transactional"], "{name}");
    assert_eq!(h.is_control(), expected["control"], "{name}");
    assert_eq!(
        h.compression().to_string(),
        expected["compression"],
        "{name}"
    );
    assert_eq!(
        h.delete_horizon(),
        expected["delete_horizon_ms"].as_i64(),
        "{name}"
    );
    let kind = match h.timestamp_type() {
        TimestampType::Create => "CreateTime",
        TimestampType::LogAppend => "LogAppendTime",
    };
    assert_eq!(kind, expected["timestamp_type"], "{name}");
}

fn check_record(name: &str, batch: &Batch, i: usize, record: &Value) {
    assert_eq!(batch.offset(i), record["offset"], "{name}");
    assert_eq!(batch.timestamp(i), record["timestamp"], "{name}");
    assert_eq!(batch.key(i).map(hex), text(&record["key"]), "{name}");
    match record["value_len"].as_u64() {
        // Long values come by their length; the checksum covers what is in them.
        Some(len) => assert_eq!(
            batch.value(i).map(<[u8]>::len),
            Some(len as usize),
            "{name}"
        ),
        None => assert_eq!(batch.value(i).map(hex), text(&record["value"]), "{name}"),
    }
    assert_eq!(batch.value_bytes(i).as_deref(), batch.value(i), "{name}");
    let headers: Vec<_> = batch
        .headers(i)
        .map(|h| (h.key().map(str::to_owned), h.value().map(hex)))
        .collect();
    let expected: Vec<_> = record["headers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect();
    assert_eq!(headers, expected, "{name}");
}

/// From any offset of the batch on, the rest is the same.
fn check_from_inside(name: &str, raw: &RawBatch, whole: &Batch, decoder: &mut Decoder) {
    for from in raw.header().base_offset()..=raw.header().next_offset() {
        let part = raw.decode(decoder, from, &Limits::default()).unwrap();
        let left_out = whole.len() - part.len();
        assert!((0..left_out).all(|i| whole.offset(i) < from), "{name}");
        for i in 0..part.len() {
            assert!(part.offset(i) >= from, "{name}");
            assert_eq!(part.offset(i), whole.offset(left_out + i), "{name}");
            assert_eq!(part.value(i), whole.value(left_out + i), "{name}");
        }
        assert_eq!(part.next_offset(), whole.next_offset(), "{name}");
    }
}

/// What starts a batch: base offset, length, leader epoch, magic, checksum.
fn signature(batch: &Value) -> Vec<u8> {
    let mut out = batch["base_offset"]
        .as_i64()
        .unwrap()
        .to_be_bytes()
        .to_vec();
    out.extend((batch["size"].as_u64().unwrap() as u32 - 12).to_be_bytes());
    out.extend((batch["partition_leader_epoch"].as_i64().unwrap() as i32).to_be_bytes());
    out.push(2);
    out.extend((batch["crc"].as_u64().unwrap() as u32).to_be_bytes());
    out
}

fn find(frame: &[u8], what: &[u8]) -> usize {
    frame
        .windows(what.len())
        .position(|w| w == what)
        .expect("the batch is in the frame")
}

fn unhex(value: &Value) -> Bytes {
    let text = value.as_str().unwrap().as_bytes();
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    text.chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect::<Vec<u8>>()
        .into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}
