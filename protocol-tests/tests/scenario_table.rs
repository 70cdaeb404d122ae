//! `scenarios.tsv` beside the tests that it names: neither may drift from the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Every id of the catalogue, by family. The list is here too so that a row cannot vanish unseen.
const IDS: [(char, &str); 9] = [
    (
        'D',
        "01 02 04 05 06 07 08 09 10 11 12 13 14 15 17 18 20 22 23 24 25 26 27 28 29 30 31 32 34 35 38 40 41 42 43 44 45",
    ),
    ('X', "01 02 03 04 05 06 08"),
    (
        'F',
        "01 02 03 05 06 07 09 10 11 12 13 14 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 34 35 36 37 38 39 41 42 45 46",
    ),
    (
        'G',
        "01 02 03 04 06 08 09 10 12 14 15 16 17 18 19 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 42 43 44 45 46 47 48",
    ),
    (
        'C',
        "01 02 04 05 06 07 08 09 10 12 13 15 16 17 18 19 20 21 22 23 25 26 28 29 31 32 33",
    ),
    (
        'L',
        "02 03 04 05 06 07 08 09 10 11 12 13 14 15 17 18 21 22 24 25 26 27 28 29 30 31 32 33 35 36",
    ),
    (
        'P',
        "01 02 03 04 06 08 09 12 13 14 15 16 17 19 20 21 22 23 24 25 26 28",
    ),
    ('Q', "01 02 03 04 06 07 09 10 11 12"),
    (
        'E',
        "01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 21 22 23 25 26 27 28 29 30 31 32 33 36 37 38 41 42",
    ),
];

/// A line of the table.
struct Row {
    id: String,
    state: String,
    shown_by: Vec<String>,
    note: String,
}

/// Tests as `path::name`, each with the ids in its doc comment.
type Tests = BTreeMap<String, BTreeSet<String>>;

fn rows(table: &str) -> Vec<Row> {
    let lines = table.lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut cells = line.split('\t').map(str::trim);
            let mut cell = || cells.next().unwrap_or_default().to_owned();
            let (id, _scenario, state) = (cell(), cell(), cell());
            let shown_by = cell().split_whitespace().map(str::to_owned).collect();
            Row {
                id,
                state,
                shown_by,
                note: cell(),
            }
        })
        .collect()
}

fn known_ids() -> BTreeSet<String> {
    let all = IDS.iter();
    all.flat_map(|(family, numbers)| numbers.split(' ').map(move |n| format!("{family}{n}")))
        .collect()
}

/// The ids in a piece of text: a family's letter and two digits, as a word.
fn ids_in(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| {
            let mut chars = word.chars();
            word.len() == 3
                && chars
                    .next()
                    .is_some_and(|c| IDS.iter().any(|(f, _)| *f == c))
                && chars.all(|c| c.is_ascii_digit())
        })
        .map(str::to_owned)
        .collect()
}

/// Finds the tests of one source file: a doc comment, attributes of which one names a test, `fn`. The tests on a
/// real Kafka have a runner of their own and no attribute: there a doc comment with an id makes a test.
fn tests_in(path: &str, source: &str, tests: &mut Tests) {
    let (mut doc, mut is_test) = (String::new(), false);
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text);
            doc.push(' ');
        } else if line.starts_with("#[") {
            is_test |= line.contains("test");
        } else {
            let name = line
                .trim_start_matches("async ")
                .strip_prefix("fn ")
                .and_then(|rest| rest.split(['(', '<']).next());
            is_test |= path.starts_with("testcontainers/tests/real/") && !ids_in(&doc).is_empty();
            if let (true, Some(name)) = (is_test, name) {
                tests.insert(format!("{path}::{name}"), ids_in(&doc));
            }
            (doc, is_test) = (String::new(), false);
        }
    }
}

fn tests_under(root: &Path, dir: &str, tests: &mut Tests) {
    let entries = fs::read_dir(root.join(dir)).expect("the folder is in the repository");
    for entry in entries {
        let entry = entry.expect("the folder can be listed");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let path = format!("{dir}/{name}");
        if entry.path().is_dir() {
            tests_under(root, &path, tests);
        } else if name.ends_with(".rs") {
            let source = fs::read_to_string(entry.path()).expect("sources are UTF-8");
            tests_in(&path, &source, tests);
        }
    }
}

/// Everything in which table and tests disagree, a line each.
fn complaints(rows: &[Row], known: &BTreeSet<String>, tests: &Tests) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    let mut shown = BTreeSet::new();
    for row in rows {
        let id = &row.id;
        if !known.contains(id) {
            wrong.push(format!("{id} is not an id of the catalogue"));
        }
        if !seen.insert(id.clone()) {
            wrong.push(format!("{id} has two rows"));
        }
        match row.state.as_str() {
            "tested" | "part" => {
                shown.insert(id.clone());
                if row.shown_by.is_empty() {
                    wrong.push(format!("{id} is {} by nothing", row.state));
                }
                if row.state == "part" && row.note.is_empty() {
                    wrong.push(format!("{id} is shown in part: the note must say which"));
                }
                for test in &row.shown_by {
                    match tests.get(test) {
                        None => wrong.push(format!("{id}: there is no test {test}")),
                        Some(ids) if !ids.contains(id) => {
                            wrong.push(format!("{id}: the doc comment of {test} lacks the id"));
                        }
                        Some(_) => {}
                    }
                }
            }
            "later" | "n/a" => {
                if row.note.is_empty() || !row.shown_by.is_empty() {
                    wrong.push(format!("{id} is {}: only a note that says why", row.state));
                }
            }
            "see" => {
                for other in &row.shown_by {
                    if other == id || !known.contains(other) {
                        wrong.push(format!("{id} refers to {other}"));
                    }
                }
                if row.shown_by.is_empty() {
                    wrong.push(format!("{id} refers to nothing"));
                }
            }
            state => wrong.push(format!("{id}: there is no state {state:?}")),
        }
    }
    for id in known.difference(&seen) {
        wrong.push(format!("{id} has no row"));
    }
    for (test, ids) in tests {
        for id in ids.difference(&shown) {
            wrong.push(format!(
                "{test} says that it shows {id}, whose row says nothing of it: make the row `tested` or `part`"
            ));
        }
    }
    wrong
}

#[test]
fn the_table_and_the_tests_agree() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let table = fs::read_to_string(root.join("protocol-tests/scenarios.tsv")).expect("is there");
    let mut tests = Tests::new();
    for dir in [
        "src",
        "protocol-tests/src",
        "protocol-tests/tests",
        "testcontainers/src",
        "testcontainers/tests",
    ] {
        tests_under(root, dir, &mut tests);
    }
    // This file's own samples are no tests of scenarios.
    tests.retain(|test, _| !test.starts_with("protocol-tests/tests/scenario_table.rs"));
    assert!(tests.len() > 400, "only {} tests were found", tests.len());
    let wrong = complaints(&rows(&table), &known_ids(), &tests);
    assert!(
        wrong.is_empty(),
        "scenarios.tsv and the tests disagree:\n{}",
        wrong.join("\n")
    );
}

/// The checker is checked: each way to rot is told.
#[test]
fn disagreements_are_told() {
    let known: BTreeSet<String> = ["D01", "D02", "D04", "F11"].map(str::to_owned).into();
    let mut tests = Tests::new();
    let source = "/// D01: shown.\n#[test]\nfn good() {}\n\n/// D02, F11.\n#[tokio::test(x)]\nasync fn other() {}\n\n/// D04\nfn no_test() {}";
    tests_in("src/a.rs", source, &mut tests);
    assert_eq!(tests.len(), 2);
    let told = |table: &str| complaints(&rows(table), &known, &tests).join("\n");

    let good = "D01\ta\ttested\tsrc/a.rs::good\nD02\tb\tpart\tsrc/a.rs::other\tthe rest\n\
                D04\tc\tlater\t\twhy\nF11\td\ttested\tsrc/a.rs::other\n";
    assert_eq!(told(good), "");
    for (from, to, expected) in [
        ("D01\ta\ttested\tsrc/a.rs::good\n", "", "D01 has no row"),
        ("F11\td", "D01\td", "D01 has two rows"),
        ("F11\td", "F12\td", "F12 is not an id"),
        ("::good", "::gone", "there is no test src/a.rs::gone"),
        ("::good", "::other", "lacks the id"),
        ("\tthe rest", "", "the note must say which"),
        ("\t\twhy", "", "only a note that says why"),
        (
            "tested\tsrc/a.rs::other",
            "later\t\twhy",
            "src/a.rs::other says that it shows F11",
        ),
        ("later\t\twhy", "see\tD99", "D04 refers to D99"),
        ("later", "done", "no state \"done\""),
    ] {
        assert!(good.contains(from));
        let told = told(&good.replace(from, to));
        assert!(told.contains(expected), "{from:?} -> {to:?}: {told}");
    }
}
