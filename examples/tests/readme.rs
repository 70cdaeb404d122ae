//! README.md is kept true: its program is a file that runs, and the tests that it names exist.

use laneway::broker::{ClusterConfig, Listen, Server};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// From the root of the repository.
fn read(path: &str) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Ends the program with the test, whichever way the test ends.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    profile.join("examples").join(file)
}

#[test]
fn the_program_is_the_example() {
    let program = read("examples/hello.rs");
    let block = format!("```rust,no_run\n{program}```\n");
    assert!(
        read("README.md").contains(&block),
        "README.md differs from examples/hello.rs"
    );
}

/// Against the embedded broker: it joins, and handles all records, those of one key in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_runs() {
    const RECORDS: usize = 300;
    const KEYS: usize = 10;
    let server = Server::start(ClusterConfig::default(), Listen::default())
        .await
        .unwrap();
    {
        let mut cluster = server.cluster();
        cluster.create_topic("payments", 4).unwrap();
        let now = cluster.now();
        for at in 0..RECORDS {
            let (key, value) = (format!("{}", at % KEYS), format!("{at}"));
            let partition = i32::try_from(at % KEYS % 4).unwrap();
            let record = (Some(key.as_bytes()), Some(value.as_bytes()));
            cluster
                .append_records(now, "payments", partition, &[record])
                .unwrap();
        }
    }
    let path = example("hello");
    assert!(
        path.exists(),
        "{path:?} is not built: cargo build -p laneway-examples --examples"
    );
    let mut child = Command::new(path)
        .arg(server.bootstrap().join(","))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    let program = Program(child);
    let lines = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(out).lines().take(RECORDS);
        lines.map(|line| line.unwrap()).collect::<Vec<String>>()
    });
    let lines = lines.await.unwrap();
    drop(program);
    let mut by_key: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for line in &lines {
        // Some([49, 50]): the bytes of "12".
        let bytes: Vec<u8> = line
            .trim_start_matches("Some([")
            .trim_end_matches("])")
            .split(", ")
            .map(|byte| byte.parse().unwrap())
            .collect();
        let value: usize = String::from_utf8(bytes).unwrap().parse().unwrap();
        by_key.entry(value % KEYS).or_default().push(value);
    }
    assert_eq!(lines.len(), RECORDS, "the program ended early");
    assert_eq!(by_key.len(), KEYS);
    for values in by_key.values() {
        assert_eq!(values.len(), RECORDS / KEYS);
        assert!(values.is_sorted(), "{values:?}");
    }
}

/// Each `path::name` of the README is a function of that file.
#[test]
fn the_tests_that_it_names_exist() {
    let readme = read("README.md");
    let mut named = 0;
    for quoted in readme.split('`').skip(1).step_by(2) {
        let Some((path, name)) = quoted.split_once(".rs::") else {
            continue;
        };
        named += 1;
        let source = read(&format!("{path}.rs"));
        assert!(
            source.contains(&format!("fn {name}(")),
            "README.md names {quoted}, which is not there"
        );
    }
    assert!(named >= 16, "only {named} tests are named");
}
