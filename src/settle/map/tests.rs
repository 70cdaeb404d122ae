use std::collections::BTreeSet;

use proptest::prelude::*;

use super::text;
use super::{Form, Map, MapError, MapWriter, OPEN_RUNS_MAX, Run, Written};
use crate::settle::{Offsets, Restored, Tracker};

/// Open offsets as stretches.
fn stretches(open: &[i64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &first in open {
        match runs.last_mut() {
            Some(last) if last.end == first => last.end += 1,
            _ => runs.push(Run {
                first,
                end: first + 1,
            }),
        }
    }
    runs
}

fn write(base: i64, highest: i64, open: &[i64], chars_max: usize) -> Written {
    let open = stretches(open).into_iter();
    MapWriter::new().write(base, highest + 1, open, chars_max)
}

/// The twelve worked examples of the format's page: commit, highest settled, open, and what may be written.
#[test]
fn the_worked_examples_are_written_as_the_other_make_does() {
    let alternating: Vec<i64> = (0..63).step_by(2).map(|n| (1 << 40) + n).collect();
    let sparse = [1, 9000, 9002, 9004, 9006, 20000];
    let examples: [(i64, i64, &[i64], &str); 11] = [
        (100, 110, &[100, 103, 107], "bAALdgcA"),
        (10, 12, &[10], "bAADBgA="),
        (1000, 2000, &[1000], "bgABA+g="),
        (5, 50_000, &[5], "ZQAAAAEAAMNL"),
        // Java writes "bgAA", which says the same.
        (42, 41, &[42, 43, 44], ""),
        (0, 4, &[0, 2, 3], "bAAFEgA="),
        (0, 200, &[0, 2, 3], "bgABAAEAAgDF"),
        (10, 600, &[10, 500], "bgABAekAAQBk"),
        (1 << 40, (1 << 40) + 63, &alternating, "bABAqqqqqqqqqqoA"),
        (1, 32_767, &sparse, "bgABIyYAAQABAAEAAQABAAEAASrxAAEx3w=="),
        (1, 32_768, &[1], "bgABf/8="),
    ];
    for (base, highest, open, text) in examples {
        let written = write(base, highest, open, 4096);
        assert_eq!(written.text, text);
        assert!(written.is_whole);
        let map = Map::read(base, text).unwrap();
        let below: Vec<i64> = open.iter().copied().filter(|o| *o < highest).collect();
        assert_eq!(map.open(), stretches(&below), "{text}");
        assert_eq!(map.end(), (highest + 1).max(base), "{text}");
    }
    // E10: ten thousand in turn. Another zstd writes other bytes, and hardly more of them.
    let open: Vec<i64> = (0..9999).step_by(2).map(|n| n + 7).collect();
    let written = write(7, 10_006, &open, 4096);
    assert!(written.text.len() <= 48, "{}", written.text);
    for text in [&written.text[..], "Sii1L/0AWFUAABAAAQEAG067wwI="] {
        let map = Map::read(7, text).unwrap();
        assert_eq!((map.open(), map.end()), (&stretches(&open)[..], 10_007));
    }
}

/// C32: what is no map is none, and says why; what only looks odd is read.
#[test]
fn odd_metadata_is_read_or_refused_by_name() {
    let reads: [(&str, i64, &[i64]); 11] = [
        ("", 10, &[]),
        ("bgAA", 10, &[]),
        ("bgAAAAU=", 15, &[]),
        ("bgABAAI", 13, &[10]),
        ("bgABAAI=", 13, &[10]),
        ("bgABAAIAAw==", 16, &[10, 13, 14, 15]),
        ("bAADBg==", 13, &[10]),
        ("bAADBgDerb7v", 13, &[10]),
        ("bAAD/gA=", 13, &[10]),
        ("Sii1L/0AWBEAAAABKLUv/QBYEQAAAAI=", 13, &[10]),
        // A skippable frame before the one that counts.
        ("SlAqTRgCAAAAAAAotS/9AFghAAAAAQAC", 13, &[10]),
    ];
    for (text, end, open) in reads {
        let map = Map::read(10, text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((map.base(), map.end()), (10, end), "{text}");
        assert_eq!(map.open(), stretches(open), "{text}");
    }
    for text in [
        "m",
        "hello",
        "consumer-1",
        "{\"a\":1}",
        "YQ=",
        "bgABAAI==",
        "====",
        "bg AA",
        "bgAA\n",
        "bgA_",
        "=bgA",
        "b=gA",
        "bgABAAI=A",
        "%bgAA",
        "bg\u{c4}A",
    ] {
        assert_eq!(Map::read(10, text), Err(MapError::NotBase64), "{text}");
    }
    for (text, first) in [
        ("none", 0x9e),
        ("NULL", 0x35),
        ("1234", 0xd7),
        ("abcd", 0x69),
        ("egA=", b'z'),
        ("TAABAQ==", b'L'),
        ("7gAB", 0xee),
        ("AQAAAYvP5WgA", 1),
        ("AgAA", 2),
        ("ZAAA", b'd'),
    ] {
        assert_eq!(
            Map::read(10, text),
            Err(MapError::Foreign { first }),
            "{text}"
        );
    }
    for text in [
        "bAA=",
        "bA==",
        "bP//AA==",
        "bAAQ/g==",
        "bg==",
        "bgABAAKZ",
        "bgAB//8=",
        "bv//AAM=",
        "ZQAAAA==",
        "Sg==",
        "YQ==",
        "YSi1L/0AWA==",
        "Sii1L/0AWCEAAAABAAIA",
        "Sii1L/0AkCEAAAABAAI=",
        // A frame cut by its last byte, and a frame that names a dictionary.
        "Sii1L/0AWCEAAAABAA==",
        "Sii1L/0BWAEhAAAAAQAC",
        "sAAA",
        "oAAA",
    ] {
        let found = Map::read(10, text);
        let refused = matches!(
            found,
            Err(MapError::Malformed { .. } | MapError::Foreign { .. })
        );
        assert!(refused, "{text}: {found:?}");
    }
}

/// Two billion offsets in twelve characters take one stretch; numbers beyond an i64 are refused;
/// what inflates too far is refused, and of too many stretches the lower ones stay.
#[test]
fn a_small_text_makes_nothing_large() {
    let map = Map::read(10, "ZX////8=").unwrap();
    assert_eq!((map.open().len(), map.end()), (1, 10 + i64::from(i32::MAX)));
    assert_eq!(Restored::new(map), None, "it knows of nothing settled");
    let why = "it ends above the highest offset";
    let high = Map::read(i64::MAX - 1, "ZX////8=");
    assert_eq!(high, Err(MapError::Malformed { why }));

    let packed = |form: Form, body: &[u8]| {
        let mut payload = vec![form.letters().1];
        payload.extend(zrip::compress(body, 3).unwrap());
        text::encode(&payload)
    };
    let long = packed(Form::RUNS, &vec![0; super::BODY_MAX + 2]);
    assert!(long.len() < 4096, "{}", long.len());
    assert_eq!(Map::read(0, &long), Err(MapError::TooLarge));

    let offsets = 1i32 << 20;
    let mut body = offsets.to_be_bytes().to_vec();
    body.resize(body.len() + offsets as usize / 8 + 1, 0b1010_1010);
    let map = Map::read(0, &packed(Form::BITS_WIDE, &body)).unwrap();
    assert_eq!(map.open().len(), OPEN_RUNS_MAX);
    assert_eq!(map.end(), 2 * OPEN_RUNS_MAX as i64, "the lower part");
    assert!(map.is_settled(1) && !map.is_settled(2) && !map.is_settled(map.end() + 1));
}

/// W7: zrip writes one plain frame: magic, no dictionary, no checksum, a window that fits, and
/// nothing behind its last block.
#[test]
fn packed_maps_are_one_plain_frame() {
    let open: Vec<i64> = (0..40_000).filter(|n| n * n % 7 < 3).collect();
    let written = write(0, 39_999, &open, 4096);
    let payload = text::decode(&written.text).unwrap();
    assert!(b"aJsp".contains(&payload[0]), "{}", payload[0]);
    let frame = &payload[1..];
    assert_eq!(frame[..4], 0xfd2f_b528_u32.to_le_bytes());
    assert_eq!(frame[4] & 0b0000_0111, 0, "no dictionary, no checksum");
    let single = frame[4] & 0x20 != 0;
    let size_bytes = [usize::from(single), 2, 4, 8][usize::from(frame[4] >> 6)];
    if !single {
        assert!(frame[5] >> 3 <= 17, "a window of at most 2^27");
    }
    let mut rest = &frame[5 + usize::from(!single) + size_bytes..];
    loop {
        let header = u32::from_le_bytes([rest[0], rest[1], rest[2], 0]);
        let size = match header >> 1 & 3 {
            1 => 1,
            _ => (header >> 3) as usize,
        };
        rest = &rest[3 + size..];
        if header & 1 == 1 {
            break;
        }
    }
    assert_eq!(rest, [0u8; 0], "nothing follows");
}

/// C09: three thousand gaps in turn, at a broker that takes 4096, 100, or next to nothing.
#[test]
fn what_does_not_fit_keeps_its_lower_part() {
    // Gaps at irregular places, which nothing packs well.
    let mut seed = 7u64;
    let mut open = vec![500];
    while open.len() < 12_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        open.push(open[open.len() - 1] + 1 + (seed >> 33) as i64 % 9);
    }
    let highest = open[open.len() - 1] + 3;
    let mut reach = 500;
    for chars_max in [0, 3, 4, 8, 12, 100, 1000, 4096] {
        let written = write(500, highest, &open, chars_max);
        assert!(!written.is_whole && written.whole_chars > 4096);
        assert!(written.text.len() <= chars_max);
        assert_eq!(written.text.is_empty(), chars_max < 8, "{chars_max}");
        let map = Map::read(500, &written.text).unwrap();
        assert!(
            map.end() >= reach,
            "{chars_max}: a longer text says no less"
        );
        reach = map.end();
        let below: Vec<i64> = open.iter().copied().filter(|o| *o < reach).collect();
        assert_eq!(map.open(), stretches(&below));
        assert!(reach == 500 || map.is_settled(reach - 1), "W2");
        if chars_max >= 100 {
            let used = written.text.len() as f64 / chars_max as f64;
            assert!(used > 0.9, "{chars_max}: {used}");
        }
    }
    assert!(
        reach > 500 + 24_000,
        "{reach}: packed it holds more than as bits"
    );
}

/// A million open and settled records in turn, regular or not, cost a bounded time and room.
#[test]
fn a_million_stretches_cost_no_more_than_a_few_thousand() {
    let mut writer = MapWriter::new();
    let every = |step: i64| {
        (0..1_000_000).map(move |n| n * step).map(|first| Run {
            first,
            end: first + 1,
        })
    };
    for step in [2, 3, 40_000] {
        let mut looked_at = 0;
        let open = every(step).inspect(|_| looked_at += 1);
        let written = writer.write(0, 1_000_000 * step, open, 4096);
        assert!(looked_at <= 16 * 4096 + 2, "{looked_at}");
        assert!(written.work <= 3_000_000, "{}", written.work);
        assert!(!written.is_whole && written.whole_chars == usize::MAX);
        let map = Map::read(0, &written.text).unwrap();
        let least = if step < 100 { 16 * 4096 } else { 8 * 4096 };
        assert!(map.open().len() >= least, "{step}: {}", map.open().len());
    }
}

/// C05, C31, C06: offset, end and open records are of one look. What is dealt after the last settled
/// record is not part of the map.
#[test]
fn a_standing_is_of_one_moment() {
    let mut tracker = Tracker::new(5);
    let mut writer = MapWriter::new();
    let first = tracker
        .push(Offsets::Dense { base: 5, len: 5 }, 10, 3)
        .unwrap();
    tracker.settle_range(first + 1, 4).unwrap();
    let upper = tracker
        .push(Offsets::Dense { base: 10, len: 4 }, 14, 3)
        .unwrap();
    let read = |offset: i64, text: &str| Map::read(offset, text).unwrap();
    tracker.advance();
    let early = writer.standing(&tracker, None, 4096);
    assert_eq!((early.offset, early.epoch), (5, -1));
    assert_eq!(read(5, &early.map.text).end(), 10);
    tracker.settle(upper + 3).unwrap();
    tracker.advance();
    let late = writer.standing(&tracker, None, 4096);
    let map = read(5, &late.map.text);
    assert_eq!(
        (map.end(), map.open()),
        (14, &stretches(&[5, 10, 11, 12])[..])
    );
    // The offset moves, and the map with it.
    tracker.settle(first).unwrap();
    tracker.advance();
    let moved = writer.standing(&tracker, None, 4096);
    assert_eq!(moved.offset, 10);
    assert_eq!(read(10, &moved.map.text).open(), stretches(&[10, 11, 12]));
    // C06: with nothing settled above there is no map, wherever the markers are.
    tracker.settle_range(upper, 3).unwrap();
    tracker.cover(20);
    tracker.advance();
    let done = writer.standing(&tracker, None, 4096);
    assert_eq!((done.offset, &done.map.text[..]), (20, ""));
}

/// Offsets that hold no record are written as settled: the other make would wait for them for ever.
#[test]
fn holes_between_open_records_are_not_open() {
    let mut tracker = Tracker::new(0);
    let deltas = [0, 1, 4, 5, 9];
    let sparse = Offsets::Sparse {
        base: 0,
        deltas: &deltas,
    };
    tracker.push(sparse, 10, -1).unwrap();
    let next = tracker
        .push(Offsets::Dense { base: 12, len: 2 }, 14, -1)
        .unwrap();
    tracker.settle(next + 1).unwrap();
    tracker.advance();
    let runs: Vec<Run> = tracker.open_runs().collect();
    assert_eq!(runs, stretches(&[0, 1, 4, 5, 9, 12]));
    assert_eq!(tracker.last_settled(), Some(13));
    let standing = MapWriter::new().standing(&tracker, None, 4096);
    let map = Map::read(0, &standing.map.text).unwrap();
    assert_eq!((map.open(), map.end()), (&runs[..], 14));
}

/// C33: what was inherited goes on into the next commits until it has been read, and the commit
/// never passes its end.
#[test]
fn an_inherited_map_is_carried_on() {
    // 10, 13 and 17 open, settled up to 19.
    let map = Map::read(10, &write(10, 19, &[10, 13, 17], 4096).text).unwrap();
    let mut restored = Restored::new(map).unwrap();
    let mut tracker = Tracker::new(10);
    let mut writer = MapWriter::new();
    let start = writer.standing(&tracker, Some(&restored), 4096);
    assert_eq!(
        (start.offset, &start.map.text[..]),
        (10, &write(10, 19, &[10, 13, 17], 4096).text[..])
    );
    let first = tracker
        .push(Offsets::Dense { base: 10, len: 2 }, 12, 7)
        .unwrap();
    assert!(!restored.is_settled(10) && restored.is_settled(11));
    tracker.settle(first + 1).unwrap();
    assert!(restored.pass(12));
    tracker.advance();
    let same = writer.standing(&tracker, Some(&restored), 4096);
    assert_eq!((same.offset, &same.map), (10, &start.map));
    // With 10 done, 12 counts although it has not been read again.
    tracker.settle(first).unwrap();
    tracker.advance();
    let on = writer.standing(&tracker, Some(&restored), 4096);
    assert_eq!((on.offset, on.epoch), (13, -1));
    assert_eq!(on.map.text, write(13, 19, &[13, 17], 4096).text);
    let next = tracker
        .push(Offsets::Dense { base: 12, len: 6 }, 18, 7)
        .unwrap();
    restored.pass(18);
    tracker.settle_range(next, 6).unwrap();
    tracker.advance();
    let last = writer.standing(&tracker, Some(&restored), 4096);
    assert_eq!((last.offset, &last.map.text[..]), (20, ""));
    assert!(!restored.pass(20));
}

/// C08: a log with a record that should have been settled before the first open one is another
/// log. C07: one that begins above it lost what was open, which is settled by definition.
#[test]
fn a_map_fits_the_log_or_does_not() {
    let restored = |text: &str| Restored::new(Map::read(10, text).unwrap()).unwrap();
    assert!(restored("bgABAAI=").meets(10));
    assert!(restored("bgABAAI=").meets(12), "10 was compacted away");
    for (first, meets) in [(10, false), (14, false), (15, true)] {
        assert_eq!(
            restored("bgAAAAU=").meets(first),
            meets,
            "it begins with a settled one"
        );
    }
    assert_eq!(Restored::new(Map::read(10, "").unwrap()), None);
    assert_eq!(Restored::new(Map::read(10, "bgAA").unwrap()), None);
    // Open offsets at the end say nothing.
    let trimmed = restored("bgABAAIAAw==");
    assert_eq!(trimmed.end(), 13);
}

/// Open offsets of every make: sparse, dense, regular, random.
fn pattern() -> impl Strategy<Value = (i64, Vec<i64>, i64)> {
    let steps = prop_oneof![
        prop::collection::vec(1i64..3, 0..400),
        prop::collection::vec(1i64..30, 0..2000),
        prop::collection::vec(prop_oneof![Just(1i64), Just(2), Just(40_000)], 0..60),
        (1i64..5, 0usize..3000).prop_map(|(step, len)| vec![step; len]),
    ];
    let base = prop_oneof![Just(0i64), 0i64..1000, Just(1i64 << 40)];
    (base, steps, 0i64..40).prop_map(|(base, steps, tail)| {
        let mut at = base;
        let mut open = vec![base];
        for step in steps {
            at += step;
            open.push(at);
        }
        (base, open, tail)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is written is read back; of what does not fit it is the lower part, ending settled.
    #[test]
    fn maps_come_back_whole_or_as_their_lower_part(
        (base, open, tail) in pattern(),
        chars_max in prop_oneof![Just(4096usize), 0usize..200, 200usize..5000],
    ) {
        let highest = open[open.len() - 1] + tail;
        let written = write(base, highest, &open, chars_max);
        prop_assert!(written.text.len() <= chars_max);
        let map = Map::read(base, &written.text).unwrap();
        // What is open at the end is not part of any map.
        let tracked: BTreeSet<i64> = open.iter().copied().collect();
        let settled_end = (base..=highest).rev().find(|o| !tracked.contains(o)).map_or(base, |o| o + 1);
        if written.is_whole {
            prop_assert_eq!(map.end(), settled_end);
            prop_assert!(written.whole_chars == written.text.len());
        } else {
            prop_assert!(map.end() < settled_end);
            prop_assert!(written.whole_chars > chars_max);
        }
        let below: Vec<i64> = open.iter().copied().filter(|o| *o < map.end()).collect();
        prop_assert_eq!(map.open(), stretches(&below));
        prop_assert!(map.end() == base || !tracked.contains(&(map.end() - 1)), "W2");
    }

    /// No text makes it panic, and what is read is in order.
    #[test]
    fn any_text_is_read_or_refused(
        base in prop_oneof![Just(0i64), Just(i64::MAX - 40_000), 0i64..1 << 50],
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        letter in prop::sample::select(&b"lanJosepLz"[..]),
    ) {
        let mut payload = bytes;
        if let Some(first) = payload.first_mut() {
            *first = letter;
        }
        if let Ok(map) = Map::read(base, &text::encode(&payload)) {
            prop_assert!(map.end() >= base);
            let open = map.open();
            prop_assert!(open.windows(2).all(|w| w[0].end < w[1].first));
            prop_assert!(open.iter().all(|r| r.first < r.end && r.first >= base && r.end <= map.end()));
        }
    }

    /// The text is RFC 4648's, whatever the bytes.
    #[test]
    fn base64_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
        let encoded = text::encode(&bytes);
        prop_assert_eq!(encoded.len(), text::chars_of(bytes.len()));
        let bare = encoded.trim_end_matches('=');
        prop_assert_eq!(text::decode(bare), Some(bytes.clone()));
        prop_assert_eq!(text::decode(&encoded), Some(bytes));
    }
}
