//! Any text as the metadata beside a commit, and any settled offsets written as such: what is read
//! keeps its own rules and its bounds, what was written whole is read as it was, and a part of it
//! never calls a record settled that is not.
#![no_main]

use laneway::settle::{Map, MapWriter, OPEN_RUNS_MAX, Run};
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((mode, rest)) = input.split_first() else {
        return;
    };
    let base = [0, 1, 1_000_000, i64::MAX - 100][usize::from(mode >> 2 & 3)];
    match mode & 3 {
        0 => read(base, &String::from_utf8_lossy(rest)),
        1 => read(base, &base64(rest)),
        _ => write(base.min(1_000_000), &mut Script::new(rest)),
    }
});

fn read(base: i64, text: &str) {
    let mut found = None;
    let used = allocation_counter::measure(|| found = Some(Map::read(base, text)));
    assert!(used.bytes_max <= BYTES_MAX, "{} bytes", used.bytes_max);
    let Some(Ok(map)) = found else {
        return;
    };
    check(&map, base);
    // Written anew by us it says the same, as far as it may be written: a map begins with its base.
    if map.open().first().is_some_and(|run| run.first == base) {
        let end = map.open().last().filter(|run| run.end >= map.end());
        let end = end.map_or(map.end(), |run| run.first);
        let written = MapWriter::new().write(base, end, map.open().iter().copied(), 4096);
        let again = Map::read(base, &written.text).expect("what we write we read");
        if written.is_whole {
            for run in map.open() {
                for at in [run.first - 1, run.first, run.end - 1, run.end] {
                    if at >= base {
                        assert_eq!(again.is_settled(at), map.is_settled(at), "{at}");
                    }
                }
            }
        }
    }
}

fn check(map: &Map, base: i64) {
    assert_eq!(map.base(), base);
    assert!(map.end() >= base);
    assert!(map.open().len() <= OPEN_RUNS_MAX);
    let mut last = base - 1;
    for run in map.open() {
        assert!(run.first > last || (run.first == base && last == base - 1));
        assert!(run.end > run.first);
        last = run.end;
    }
    assert!(!map.is_settled(map.end()));
}

/// Stretches of open and settled offsets, in turn.
fn write(base: i64, script: &mut Script<'_>) {
    let chars_max = [0, 3, 20, 100, 4096][script.below(5)];
    let (mut open, mut at) = (Vec::new(), base);
    while !script.is_over() && open.len() < 5_000 {
        let length = |script: &mut Script<'_>| match script.byte() {
            n @ 0..200 => i64::from(n % 20) + 1,
            n => i64::from(n - 199) * i64::from(script.byte()) * 97 + 1,
        };
        let first = at;
        let end = first + length(script);
        open.push(Run { first, end });
        at = end + length(script);
    }
    let written = MapWriter::new().write(base, at, open.iter().copied(), chars_max);
    assert!(written.text.len() <= chars_max);
    let map = Map::read(base, &written.text).expect("what we write we read");
    check(&map, base);
    if written.is_whole {
        assert_eq!((map.open(), map.end()), (&open[..], at.max(map.end())));
        assert!(open.is_empty() || map.end() == at);
    }
    for run in &open {
        assert!(!map.is_settled(run.first) && !map.is_settled(run.end - 1));
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for i in 0..4 {
            let six = (number >> (18 - 6 * i)) as usize & 63;
            out.push(if i <= chunk.len() {
                char::from(ALPHABET[six])
            } else {
                '='
            });
        }
    }
    out
}

/// The body, what it is read from, the stretches, and zstd's own state.
const BYTES_MAX: u64 = 8 << 20;
