//! The offset map against what the Confluent Parallel Consumer wrote and read: 80 strings that its
//! released 0.5.3.2 made, 20 malformed ones with what it does to them.

use laneway::settle::{Map, MapWriter, Restored, Run};
use serde_json::Value;

struct Vectors(Value);

impl Vectors {
    fn load() -> Vectors {
        let text = include_str!("../maps/offset_map_vectors.json");
        Vectors(serde_json::from_str(text).unwrap())
    }

    fn of(&self, list: &str) -> &[Value] {
        self.0[list].as_array().unwrap()
    }
}

fn int(v: &Value, field: &str) -> i64 {
    v[field].as_i64().unwrap()
}

fn text<'a>(v: &'a Value, field: &str) -> &'a str {
    v[field].as_str().unwrap()
}

fn is(v: &Value, field: &str) -> bool {
    v[field].as_bool().unwrap_or(false)
}

/// The open offsets of a vector, as stretches.
fn open_of(v: &Value) -> Vec<Run> {
    let base = int(v, "base_offset");
    let mut runs = Vec::new();
    if let Some(each) = v["incompletes"].as_array() {
        for first in each.iter().map(|n| n.as_i64().unwrap()) {
            let end = first + 1;
            runs.push(Run { first, end });
        }
    } else {
        for run in v["incomplete_runs"].as_array().unwrap() {
            let n = |at: usize, none: i64| run.get(at).map_or(none, |n| n.as_i64().unwrap());
            for k in 0..n(3, 1) {
                let first = base + n(0, 0) + k * n(2, 0);
                let end = first + n(1, 0);
                runs.push(Run { first, end });
            }
        }
    }
    runs.sort_by_key(|run| run.first);
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end == run.first => last.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}

/// All that the other make wrote is read as it reads it itself.
#[test]
fn what_java_wrote_is_read() {
    let vectors = Vectors::load();
    assert_eq!(vectors.of("vectors").len(), 80);
    for v in vectors.of("vectors") {
        let name = text(v, "name");
        let base = int(v, "base_offset");
        let map = Map::read(base, text(v, "metadata")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(map.end(), int(v, "highest_seen") + 1, "{name}");
        match is(v, "stripped") {
            true => assert_eq!(map.open(), [], "{name}"),
            false => assert_eq!(map.open(), open_of(v), "{name}"),
        }
        let ties = v["tie"].as_array().cloned().unwrap_or_default();
        for tie in &ties {
            let same = Map::read(base, tie.as_str().unwrap()).unwrap();
            assert_eq!(same, map, "{name}");
        }
    }
}

/// From the same state we write what it wrote, byte for byte where nothing is packed; packed, what
/// we write says the same in a quarter more room at most. Where it gave the map up we keep the lower part.
#[test]
fn we_write_what_java_wrote() {
    let vectors = Vectors::load();
    let mut writer = MapWriter::new();
    let (mut equal, mut packed, mut cut) = (0, 0, 0);
    let states = vectors.of("vectors").iter();
    for v in states.filter(|v| text(v, "made_by") == "commit") {
        let name = text(v, "name");
        let base = int(v, "base_offset");
        let end = (int(v, "highest_succeeded") + 1).max(base);
        let above = v["tracked_above"].as_array().cloned().unwrap_or_default();
        let above = above.iter().map(|n| n.as_i64().unwrap()).map(|first| Run {
            first,
            end: first + 1,
        });
        let open = open_of(v);
        let all = open.iter().copied().chain(above);
        let written = writer.write(base, end, all, 4096);
        let java = text(v, "metadata");
        let map = Map::read(base, &written.text).unwrap();
        if is(v, "stripped") {
            cut += 1;
            assert!(!written.is_whole && written.text.len() > 4000, "{name}");
            let below = open.iter().filter(|run| run.first < map.end()).count();
            assert_eq!(map.open(), &open[..below], "{name}");
            continue;
        }
        assert!(written.is_whole, "{name}");
        if java == "bgAA" {
            assert_eq!(written.text, "", "{name}: the same, said shorter");
            equal += 1;
            continue;
        }
        assert_eq!((map.open(), map.end()), (&open[..], end), "{name}");
        if text(v, "codec").ends_with("Compressed") {
            packed += 1;
            let most = java.len() + 4 + java.len() / 4;
            let len = written.text.len();
            assert!(len <= most, "{name}: {len} characters, not {}", java.len());
        } else {
            let ties = v["tie"].as_array().cloned().unwrap_or_default();
            let tie = ties.iter().any(|t| t.as_str() == Some(&written.text));
            assert!(
                tie || written.text == java,
                "{name}: {} {java}",
                written.text
            );
            equal += 1;
        }
        let blocked = written.whole_chars > 3072;
        assert!(
            blocked == is(v, "blocked") || text(v, "codec").ends_with("Compressed"),
            "{name}"
        );
    }
    assert!(
        equal == 48 && packed == 9 && cut == 1,
        "{equal} {packed} {cut}"
    );
}

/// What kills the other make is no map for us, or a map where it is only odd; nothing is skipped
/// that it would not skip.
#[test]
fn malformed_maps_skip_nothing_that_java_does_not() {
    let vectors = Vectors::load();
    assert_eq!(vectors.of("malformed").len(), 20);
    let mut read = 0;
    for v in vectors.of("malformed") {
        let name = text(v, "name");
        let base = int(v, "base_offset");
        let Ok(map) = Map::read(base, text(v, "metadata")) else {
            // Those that it reads and we do not contradict themselves.
            continue;
        };
        read += 1;
        assert_eq!(text(v, "java"), "decodes", "{name}");
        let mut restored = Restored::new(map);
        if restored.as_mut().is_some_and(|r| !r.meets(10)) {
            restored = None;
        }
        let processed: Vec<i64> = (10..30)
            .filter(|o| !restored.as_mut().is_some_and(|r| r.is_settled(*o)))
            .collect();
        let java: Vec<i64> = v["processed_of_10_to_29"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .collect();
        assert_eq!(processed, java, "{name}");
    }
    assert_eq!(
        read, 5,
        "the spare byte, padding, frames, a settled start, an open end"
    );
}
