//! House rules that the compiler does not know, checked over the source tree: which module may
//! name which, what the core may not name, how long a file may be, words that stay out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What each module may name of the others. A module that is not listed may name any.
const MAY_NAME: [(&str, &[&str]); 18] = [
    ("error", &[]),
    ("ids", &[]),
    ("time", &[]),
    ("pace", &["time"]),
    // These two know no Kafka.
    ("lane", &["ids", "time"]),
    ("settle", &["ids", "time"]),
    ("records", &["error"]),
    ("sasl", &["error", "pace", "time"]),
    ("wire", &["error", "ids", "sasl", "time"]),
    // The machines never name one another: the engine moves what one says to the others.
    ("cluster", &["error", "ids", "pace", "time", "wire"]),
    ("commit", &["error", "ids", "pace", "time", "wire"]),
    (
        "fetch",
        &["error", "ids", "pace", "records", "time", "wire"],
    ),
    ("group", &["error", "ids", "pace", "time", "wire"]),
    (
        "produce",
        &["error", "ids", "pace", "records", "time", "wire"],
    ),
    ("record", &["fetch", "ids", "lane", "produce", "records"]),
    ("handler", &["lane", "record"]),
    (
        "engine",
        &[
            "cluster", "commit", "error", "fetch", "group", "ids", "lane", "pace", "produce",
            "record", "records", "sasl", "settle", "time", "wire",
        ],
    ),
    (
        "broker",
        &["error", "ids", "pace", "records", "sasl", "time", "wire"],
    ),
];

/// The modules that may name clocks, sockets, threads and a runtime; and the one such file of
/// `broker`.
const SHELL: [&str; 6] = [
    "runtime",
    "subscription",
    "producer",
    "lib",
    "manual",
    "properties",
];
const BROKER_SHELL: &str = "src/broker/serve.rs";

/// What the core does not name, word by word.
const NOT_IN_CORE: [&str; 22] = [
    "tokio",
    "tracing",
    "std::net",
    "std::thread",
    "std::process",
    "std::fs",
    "std::env",
    "std::time::Instant",
    "Instant::now",
    "SystemTime",
    "UNIX_EPOCH",
    "mpsc",
    "oneshot",
    "Condvar",
    "async fn",
    "async move",
    "RandomState",
    // These two exist for maps with random state alone.
    "HashMap::new",
    "HashSet::new",
    "thread_rng",
    "getrandom",
    "println!",
];

/// What no file says.
const NOWHERE: [&str; 9] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("db", "g!"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
];

/// Names that say nothing about what a module is for.
const NO_NAMES: [&str; 5] = ["util", "helpers", "common", "misc", "manager"];

/// What stands at the top of the tree, beside files that begin with a dot and what Cargo builds.
const TOP: [&str; 11] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "examples",
    "fuzz",
    "protocol-tests",
    "src",
    "target",
    "testcontainers",
];

/// Lines of a file; and what is longer, for now.
const LINES_MAX: usize = 800;
const LONGER: [(&str, usize); 1] = [("protocol-tests/src/world.rs", 920)];

/// A source file.
struct Source {
    /// From the root, with `/`.
    path: String,
    text: String,
    /// Whether all of it is compiled for tests only.
    is_test: bool,
}

impl Source {
    /// The top-level module that it belongs to, for files of `src`.
    fn module(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        Some(match inside.split_once('/') {
            Some((folder, _)) => folder,
            None => inside.strip_suffix(".rs").unwrap_or(inside),
        })
    }

    /// How many `super` lead from this file to the root of the crate.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count() - 1;
        parts - usize::from(self.path.ends_with("/mod.rs"))
    }

    /// What is compiled outside of tests, line by line and without comments.
    fn code(&self) -> Vec<(usize, &str)> {
        let mut code = Vec::new();
        let mut lines = self.text.lines().enumerate().peekable();
        while let Some((at, line)) = lines.next() {
            let next = lines.peek().map_or("", |(_, next)| next);
            // Inline tests stand at the end of a file.
            if line == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
                break;
            }
            let bare = match line.find("//") {
                Some(0) => "",
                Some(i) if line[..i].ends_with(' ') => &line[..i],
                _ => line,
            };
            code.push((at + 1, bare));
        }
        code
    }
}

/// Where `word` stands in `line` as a word of its own.
fn names(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let (first, last) = (word.chars().next(), word.chars().next_back());
        // `tokio` in `my_tokio` is another word; what ends in `!` or `:` may be followed by any.
        let joined_left = before.is_some_and(part) && first.is_some_and(part);
        let joined_right = after.is_some_and(part) && last.is_some_and(part);
        !joined_left && !joined_right
    })
}

/// The modules that a line names by `crate::`.
fn modules_named(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("crate::") {
        let before = rest[..at].chars().next_back();
        rest = &rest[at + "crate::".len()..];
        if before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        found.push(&rest[..end.unwrap_or(rest.len())]);
    }
    found
}

/// Whether a hash map or set is named with its default state, which is random.
fn has_random_state(line: &str) -> bool {
    ["HashMap<", "HashSet<"].into_iter().any(|open| {
        line.match_indices(open).any(|(at, _)| {
            let (mut depth, mut commas) = (1, 0);
            for c in line[at + open.len()..].chars() {
                match c {
                    '<' | '(' | '[' => depth += 1,
                    '>' | ')' | ']' => depth -= 1,
                    ',' if depth == 1 => commas += 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            depth == 0 && commas < if open == "HashMap<" { 2 } else { 1 }
        })
    })
}

/// Every rule over every file; a line for each breach.
fn breaches(files: &[Source]) -> Vec<String> {
    let layers: BTreeMap<&str, &[&str]> = MAY_NAME.into();
    let mut wrong = Vec::new();
    for file in files {
        let path = &file.path;
        let lines = file.text.lines().count();
        let longer = LONGER.iter().find(|(long, _)| long == path);
        let max = longer.map_or(LINES_MAX, |(_, max)| *max);
        if lines > max && path.ends_with(".rs") {
            wrong.push(format!("{path}: {lines} lines, {max} at most"));
        }
        for part in path.trim_end_matches(".rs").split('/') {
            if NO_NAMES.contains(&part) {
                wrong.push(format!("{path}: {part:?} says nothing"));
            }
        }
        for (at, line) in file.text.lines().enumerate() {
            for word in NOWHERE.iter().filter(|word| names(line, word)) {
                wrong.push(format!("{path}:{}: {word}", at + 1));
            }
        }
        let Some(module) = file.module().filter(|_| !file.is_test) else {
            continue;
        };
        let may = layers.get(module);
        let core = !SHELL.contains(&module) && path != BROKER_SHELL;
        for (at, line) in file.code() {
            if let Some(may) = may {
                for other in modules_named(line) {
                    if other.is_empty() || (other != module && !may.contains(&other)) {
                        wrong.push(format!("{path}:{at}: {module} names crate::{other}"));
                    }
                }
                if line.contains(&"super::".repeat(file.depth())) {
                    wrong.push(format!("{path}:{at}: {module} leaves itself by super"));
                }
            }
            if core {
                for word in NOT_IN_CORE.iter().filter(|word| names(line, word)) {
                    wrong.push(format!("{path}:{at}: the core names {word}"));
                }
                if has_random_state(line) {
                    wrong.push(format!("{path}:{at}: a map in an order of chance"));
                }
            }
        }
    }
    wrong
}

/// Marks the files that are declared `#[cfg(test)] mod name;` (or for tests and fuzzing), and all in
/// their folders.
fn mark_tests(files: &mut [Source]) {
    let mut tests = BTreeSet::new();
    for file in files.iter().filter(|f| f.path.starts_with("src/")) {
        let own = file.path.trim_end_matches(".rs");
        let folder = match own.rsplit_once('/') {
            Some((folder, "mod" | "lib")) => folder,
            _ => own,
        };
        let mut gated = false;
        for line in file.text.lines() {
            let name = line
                .strip_prefix("mod ")
                .and_then(|rest| rest.strip_suffix(';'));
            if let (true, Some(name)) = (gated, name) {
                tests.insert(format!("{folder}/{name}"));
            }
            // Other attributes may stand between the gate and the module.
            gated = (line.starts_with("#[cfg(") && line.contains("test"))
                || (gated && line.starts_with("#["));
        }
    }
    for file in files {
        let own = file.path.trim_end_matches(".rs");
        let in_src = tests
            .iter()
            .any(|t| own == t || own.starts_with(&format!("{t}/")));
        file.is_test = in_src || !file.path.starts_with("src/");
    }
}

fn read_under(root: &Path, dir: &str, files: &mut Vec<Source>) {
    for entry in fs::read_dir(root.join(dir)).expect("the folder is in the repository") {
        let entry = entry.expect("the folder can be listed");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let path = match dir {
            "" => name.clone(),
            _ => format!("{dir}/{name}"),
        };
        if entry.path().is_dir() {
            if name != "target" && !name.starts_with('.') {
                read_under(root, &path, files);
            }
        } else if [".rs", ".md", ".toml", ".tsv"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            let text = fs::read_to_string(entry.path()).expect("sources are UTF-8");
            let is_test = false;
            files.push(Source {
                path,
                text,
                is_test,
            });
        }
    }
}

#[test]
fn the_tree_keeps_the_house_rules() {
    let mut files = Vec::new();
    read_under(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut files);
    mark_tests(&mut files);
    let core = files.iter().filter(|f| f.module().is_some());
    assert!(core.count() > 100, "the sources were not found");
    let wrong = breaches(&files);
    assert!(wrong.is_empty(), "house rules:\n{}", wrong.join("\n"));
}

#[test]
fn the_top_of_the_tree_is_as_agreed() {
    let root = fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("the root can be listed");
    for entry in root {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("names are UTF-8");
        assert!(name.starts_with('.') || TOP.contains(&name), "{name}");
    }
}

/// The checker is checked: every rule can fail, and does not fire beside the mark.
#[test]
fn breaches_are_told() {
    let told = |path: &str, text: &str| {
        let mut files = [Source {
            path: path.to_owned(),
            text: text.to_owned(),
            is_test: false,
        }];
        mark_tests(&mut files);
        breaches(&files).join("\n")
    };
    let long = "\n".repeat(LINES_MAX + 1);
    for (path, text, expected) in [
        (
            "src/lane/mod.rs",
            "use crate::wire::Api;",
            "lane names crate::wire",
        ),
        (
            "src/settle/ring.rs",
            "let x: crate::records::Batch;",
            "settle names crate::records",
        ),
        (
            "src/group/join.rs",
            "use crate::cluster::View;",
            "group names crate::cluster",
        ),
        (
            "src/fetch/mod.rs",
            "use crate::{ids, time};",
            "fetch names crate::",
        ),
        (
            "src/fetch/plan.rs",
            "use super::super::commit::X;",
            "leaves itself by super",
        ),
        (
            "src/fetch/mod.rs",
            "use super::commit::X;",
            "leaves itself by super",
        ),
        (
            "src/wire/link.rs",
            "let now = Instant::now();",
            "the core names Instant::now",
        ),
        (
            "src/engine/mod.rs",
            "    std::thread::spawn(f);",
            "the core names std::thread",
        ),
        (
            "src/engine/mod.rs",
            "tracing::info!(\"x\");",
            "the core names tracing",
        ),
        (
            "src/commit/mod.rs",
            "a: HashMap<u32, (u8, u8)>,",
            "order of chance",
        ),
        ("src/commit/mod.rs", "a: HashSet<u32>,", "order of chance"),
        (
            "src/broker/log.rs",
            "use tokio::net::TcpStream;",
            "the core names tokio",
        ),
        (
            "src/runtime/mod.rs",
            concat!("// TO", "DO: later"),
            concat!("TO", "DO"),
        ),
        (
            "protocol-tests/tests/a.rs",
            concat!("/ho", "me/me/x"),
            concat!("/ho", "me/"),
        ),
        ("src/lane/util.rs", "", "says nothing"),
        ("src/lane/mod.rs", long.as_str(), "lines"),
    ] {
        let told = told(path, text);
        assert!(told.contains(expected), "{path}: {text:?}: {told:?}");
    }
    for (path, text) in [
        (
            "src/lane/mod.rs",
            "use crate::time::Now; // not crate::wire, nor tokio",
        ),
        (
            "src/lane/mod.rs",
            "#[cfg(test)]\nmod tests {\n use crate::wire::Api;\n}",
        ),
        ("src/lane/lanes/exec.rs", "use super::super::group::Cut;"),
        (
            "src/lane/runner.rs",
            "lanes: HashMap<u32, Blocked, FixedState>,",
        ),
        (
            "src/lane/runner.rs",
            "struct InstantOats; let my_tokio = 1;",
        ),
        ("src/broker/serve.rs", "use tokio::net::TcpStream;"),
        ("src/runtime/mod.rs", "use std::time::Instant;"),
    ] {
        assert_eq!(told(path, text), "", "{path}: {text:?}");
    }
}
