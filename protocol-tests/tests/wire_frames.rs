//! Our readers and writers against frames of real brokers, decoded by Kafka's own classes.
//!
//! The values that we read must be those that Kafka's JSON names, for every exchange of our APIs;
//! a body cut anywhere is an error; a damaged one is an error or other values, and never costs
//! more memory than the stated factor of its size.

mod wire_json;

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::{Decodable, Encodable};
use laneway::wire::{ALLOCATION_FACTOR, Api, Request, Response, WireFault, split_header};
use serde_json::Value;

/// One line of a file of frames.
struct Exchange {
    name: String,
    api: Api,
    version: i16,
    /// Of the body of the answer, where it is another.
    response_version: i16,
    header_versions: (Option<i64>, Option<i64>),
    correlation_id: i32,
    client_id: String,
    request: Bytes,
    /// Without its length; none where the broker said nothing.
    response: Option<Bytes>,
    request_json: Value,
    response_json: Value,
}

fn hex(s: &str) -> Vec<u8> {
    let digit = |c: u8| u8::try_from(char::from(c).to_digit(16).unwrap()).unwrap();
    s.as_bytes()
        .chunks(2)
        .map(|p| digit(p[0]) << 4 | digit(p[1]))
        .collect()
}

fn exchanges(api: Api) -> Vec<Exchange> {
    let path = format!("{}/frames/{}.jsonl", env!("CARGO_MANIFEST_DIR"), api.name());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines()
        .map(|line| {
            let mut v: Value = serde_json::from_str(line).unwrap();
            let int = |name: &str| v[name].as_i64();
            let version = i16::try_from(int("version").unwrap()).unwrap();
            let response_version = int("response_version").map(|n| i16::try_from(n).unwrap());
            Exchange {
                api,
                version,
                response_version: response_version.unwrap_or(version),
                header_versions: (
                    int("request_header_version"),
                    int("response_header_version"),
                ),
                correlation_id: i32::try_from(int("correlation_id").unwrap_or(-1)).unwrap(),
                name: v["name"].as_str().unwrap().to_owned(),
                client_id: v["client_id"].as_str().unwrap_or("").to_owned(),
                request: hex(v["request"].as_str().unwrap()).into(),
                response: v["response"]
                    .as_str()
                    .map(|s| Bytes::from(hex(s)).slice(4..)),
                request_json: v["request_json"].take(),
                response_json: v["response_json"].take(),
            }
        })
        .collect()
}

fn decode(e: &Exchange, body: Bytes) -> Result<Response, laneway::wire::WireError> {
    Response::decode(e.api, e.response_version, body)
}

/// Every answer in a version that we read, with its body.
fn answers() -> Vec<(Exchange, Bytes)> {
    let mut answers = Vec::new();
    for exchange in Api::ALL.into_iter().flat_map(exchanges) {
        let Some(frame) = &exchange.response else {
            continue;
        };
        let (id, body) = split_header(exchange.api, exchange.response_version, frame).unwrap();
        assert_eq!(id, exchange.correlation_id, "{}", exchange.name);
        match decode(&exchange, body.clone()) {
            Err(e) if e.fault == WireFault::Version => {}
            _ => answers.push((exchange, body)),
        }
    }
    answers
}

#[test]
fn our_values_are_those_of_kafkas_own_classes() {
    let mut per_api: BTreeMap<Api, BTreeSet<i16>> = BTreeMap::new();
    for (e, body) in answers() {
        let ours = decode(&e, body).unwrap_or_else(|error| panic!("{}: {error}", e.name));
        let theirs = wire_json::response(e.api, e.response_version, &e.response_json);
        assert_eq!(wire_json::without_record_bytes(ours), theirs, "{}", e.name);
        per_api.entry(e.api).or_default().insert(e.response_version);
    }
    // Every version that we may ask for.
    for api in Api::ALL {
        for version in api.versions().min..=api.versions().max {
            assert!(
                per_api[&api].contains(&version),
                "{api} {version} was not checked"
            );
        }
    }
}

/// L12: the header's version is the one that real brokers use.
#[test]
fn l12_header_versions_are_those_of_real_brokers() {
    let mut checked = 0;
    for e in Api::ALL.into_iter().flat_map(exchanges) {
        if !e.api.versions().contains(e.version) {
            continue;
        }
        if let Some(theirs) = e.header_versions.0 {
            assert_eq!(
                i64::from(e.api.request_header(e.version)),
                theirs,
                "{}",
                e.name
            );
        }
        if let Some(theirs) = e.header_versions.1 {
            assert_eq!(
                i64::from(e.api.response_header(e.version)),
                theirs,
                "{}",
                e.name
            );
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
}

/// L14: a body that ends early is an error, wherever it ends, and so is one that goes on.
#[test]
fn l14_every_cut_is_an_error() {
    for (e, body) in answers() {
        for cut in 0..body.len() {
            let read = decode(&e, body.slice(..cut));
            assert!(read.is_err(), "{} cut at {cut} of {}", e.name, body.len());
        }
        let mut longer = BytesMut::from(&body[..]);
        longer.extend_from_slice(&[0]);
        let read = decode(&e, longer.freeze());
        assert_eq!(
            read.unwrap_err().fault,
            WireFault::Trailing(1),
            "{}",
            e.name
        );
    }
}

/// What a reader may allocate whatever the size: the shared half of the body's reference count,
/// the empty string, an error.
const FIXED_BYTES: usize = 512;

/// Reads `body`, and holds the reader to the stated bound. Gives the bytes it allocated.
fn bounded(api: Api, version: i16, body: Bytes, name: &str) -> u64 {
    let size = body.len();
    let mut read = None;
    let info = allocation_counter::measure(|| read = Some(Response::decode(api, version, body)));
    let bound = u64::try_from(size * ALLOCATION_FACTOR + FIXED_BYTES).unwrap();
    assert!(
        info.bytes_total <= bound,
        "{name}: {} bytes for {size}",
        info.bytes_total
    );
    info.bytes_total
}

/// L14: any byte changed is an error or other values: no panic, no spin, and no more memory than
/// the stated factor of the body, whatever the lengths now say.
#[test]
fn l14_damage_is_bounded() {
    let mut reads = 0;
    for (e, body) in answers() {
        // The big ones are big for their records, which no reader here looks at.
        let step = 1 + body.len() / 250;
        for at in (0..body.len()).step_by(step) {
            for damage in [0xff, 0x80, 0x7f, 0x01] {
                let mut bad = body.to_vec();
                bad[at] ^= damage;
                let name = format!("{} byte {at} ^ {damage:x}", e.name);
                bounded(e.api, e.response_version, bad.into(), &name);
                reads += 1;
            }
        }
    }
    assert!(reads > 40_000, "{reads}");
}

/// Lists as long as they claim, of elements as small as they come: the worst that a body can make
/// us allocate.
#[test]
fn the_worst_lists_keep_to_the_stated_factor() {
    // For each API the highest version's body up to a list, and one element of it.
    let cases: [(Api, &[u8], &[u8]); 10] = [
        (Api::Produce, &[], &[1; 16]),
        (Api::ApiVersions, &[0, 0], &[0, 1, 0, 0, 0, 1, 0]),
        (
            Api::Metadata,
            &[0, 0, 0, 0],
            &[0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0],
        ),
        (Api::OffsetCommit, &[0; 4], &[1, 1, 0]),
        (Api::OffsetCommit, &[0; 4], &[2, b'a', 1, 0]),
        (
            Api::Fetch,
            &[0; 10],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        ),
        (Api::ListOffsets, &[0; 4], &[1, 1, 0]),
        (Api::EpochEnd, &[0; 4], &[2, b'a', 1, 0]),
        (
            Api::ConsumerGroupHeartbeat,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        ),
        (
            Api::JoinGroup,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1],
            &[1, 0, 1, 0],
        ),
    ];
    let count = 20_000u32;
    for (api, head, element) in cases {
        let mut body = head.to_vec();
        // A compact length: one more, in three groups of seven bits.
        let group = |shift: u32| u8::try_from((count + 1) >> shift & 0x7f).unwrap();
        body.extend([group(0) | 0x80, group(7) | 0x80, group(14)]);
        for _ in 0..count {
            body.extend_from_slice(element);
        }
        let least = u64::from(count) * 4;
        let name = format!("{api} of {element:?}");
        let spent = bounded(api, api.versions().max, body.into(), &name);
        assert!(
            spent > least,
            "{name}: the list was not read, {spent} bytes"
        );
    }
}

/// Each level of nested lists reserves what it claims before the one inside turns out to be wrong.
#[test]
fn nested_claims_keep_to_the_stated_factor() {
    let claim = |n: usize| {
        let group = |shift: usize| u8::try_from((n + 1) >> shift & 0x7f).unwrap();
        [group(0) | 0x80, group(7) | 0x80, group(14)]
    };
    let zeros = 60_000;
    // Fetch 12: as many topics as fit, in the first as many partitions, then aborted transactions.
    let mut body = vec![0; 10];
    body.extend(claim(zeros / 3));
    body.extend([2, b'a']);
    body.extend(claim(zeros / 24));
    body.extend([0; 30]);
    body.extend(claim(zeros / 16 - 2));
    body.extend(vec![0xff; zeros]);
    let spent = bounded(Api::Fetch, 12, body.into(), "Fetch 12");
    assert!(spent > 20 * 60_000, "the claims were not believed: {spent}");
}

/// In these those clients ask for topics by id, or for several groups at once. We do neither.
const NOT_COMPARED: [(Api, i16); 3] = [
    (Api::Metadata, 13),
    (Api::FindCoordinator, 4),
    (Api::FindCoordinator, 5),
];

/// What Java, franz-go, sarama and others asked, asked by us: the very same bytes, wherever our
/// request can hold what theirs did.
#[test]
fn our_requests_are_the_bytes_of_other_clients() {
    let mut per_api: BTreeMap<Api, BTreeSet<i16>> = BTreeMap::new();
    for e in Api::ALL.into_iter().flat_map(exchanges) {
        if !e.api.versions().contains(e.version) {
            continue;
        }
        let Some(request) = wire_json::request(e.api, e.version, &e.request_json, &e.request)
        else {
            continue;
        };
        assert_eq!(request.api(), e.api);
        assert!(request.versions().contains(e.version), "{}", e.name);
        let ours = request
            .encode(e.version, e.correlation_id, &e.client_id)
            .unwrap();
        assert_eq!(ours, e.request, "{}", e.name);
        per_api.entry(e.api).or_default().insert(e.version);
    }
    for api in Api::ALL {
        let missing: Vec<i16> = (api.versions().min..=api.versions().max)
            .filter(|v| !per_api.get(&api).is_some_and(|seen| seen.contains(v)))
            .filter(|v| !NOT_COMPARED.contains(&(api, *v)))
            .collect();
        assert!(
            missing.is_empty(),
            "{api}: no request of versions {missing:?} was compared"
        );
    }
}

/// What no frame shows: kafka-protocol reads our requests back, in every version.
#[test]
fn kafka_protocol_reads_our_requests_in_every_version() {
    for request in wire_json::samples() {
        let range = request.versions();
        assert!(!range.is_empty(), "{request:?}");
        for version in range.min..=range.max {
            let mut frame = request.encode(version, 7, "me").unwrap();
            let len = i32::from_be_bytes(frame.split_to(4)[..].try_into().unwrap());
            assert_eq!(usize::try_from(len).unwrap(), frame.len());
            let api = request.api();
            let head = kp::RequestHeader::decode(&mut frame, api.request_header(version)).unwrap();
            assert_eq!(
                (head.request_api_key, head.request_api_version),
                (api.key(), version)
            );
            assert_eq!(
                (head.correlation_id, head.client_id.as_deref()),
                (7, Some("me"))
            );
            wire_json::assert_says(&request, version, &mut frame);
            assert!(frame.is_empty(), "{api} {version}");
        }
        for version in [range.min - 1, range.max + 1] {
            let refused = request.encode(version, 7, "me").unwrap_err();
            assert_eq!(refused.fault, WireFault::Version);
        }
    }
}

/// L13: tagged fields that we do not know are skipped, at every depth.
#[test]
fn l13_unknown_tagged_fields_are_skipped_at_every_depth() {
    let tags = || {
        [
            (100, Bytes::from_static(b"who knows")),
            (9_999, Bytes::new()),
        ]
        .into()
    };
    let mut seen = 0;
    for (e, body) in answers() {
        if e.api != Api::Fetch || e.response_version < 12 {
            continue;
        }
        let mut tagged = kp::FetchResponse::decode(&mut body.clone(), e.response_version).unwrap();
        tagged.unknown_tagged_fields = tags();
        for topic in &mut tagged.responses {
            topic.unknown_tagged_fields = tags();
            for partition in &mut topic.partitions {
                partition.unknown_tagged_fields = tags();
                for aborted in partition.aborted_transactions.iter_mut().flatten() {
                    aborted.unknown_tagged_fields = tags();
                }
                seen += 1;
            }
        }
        let mut out = BytesMut::new();
        tagged.encode(&mut out, e.response_version).unwrap();
        assert!(out.len() > body.len());
        let with = decode(&e, out.freeze()).unwrap();
        assert_eq!(with, decode(&e, body.clone()).unwrap(), "{}", e.name);
    }
    assert!(seen > 10, "{seen}");
}

/// Records are slices of the frame, not copies of it.
#[test]
fn records_are_not_copied() {
    let mut slices = 0;
    for (e, body) in answers() {
        let range = body.as_ptr_range();
        let Ok(Response::Fetch(fetch)) = decode(&e, body.clone()) else {
            continue;
        };
        for partition in fetch.topics.iter().flat_map(|t| &t.partitions) {
            if !partition.records.is_empty() {
                assert!(range.contains(&partition.records.as_ptr()), "{}", e.name);
                slices += 1;
            }
        }
    }
    assert!(slices > 10, "{slices}");
}

/// A request that an old version could only say wrongly is held to newer ones, and one that a new
/// version would say wrongly to older ones.
#[test]
fn requests_are_held_to_versions_that_carry_them() {
    let mut checked = 0;
    for request in wire_json::samples() {
        let range = (request.versions().min, request.versions().max);
        let wanted = match &request {
            Request::Produce(r) if !r.by_id => (3, 12),
            Request::Fetch(r) if !r.by_id => (4, 12),
            Request::Fetch(r) if r.session_epoch >= 0 => (7, 18),
            Request::Heartbeat(r) if r.instance_id.is_some() => (3, 4),
            Request::JoinGroup(r) if r.instance_id.is_some() => (5, 9),
            Request::SyncGroup(r) if r.instance_id.is_some() => (3, 5),
            Request::LeaveGroup(r) if r.instance_id.is_some() => (3, 5),
            Request::OffsetCommit(r) if r.instance_id.is_some() => (7, 9),
            Request::ConsumerGroupHeartbeat(r) if r.topic_regex.is_some() => (1, 1),
            _ => continue,
        };
        assert_eq!(range, wanted, "{request:?}");
        checked += 1;
    }
    assert_eq!(checked, 9);
}
