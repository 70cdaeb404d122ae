//! The example of another source: the lines of a file, those of a key in order, and how far all are
//! done kept beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = profile.join("examples").join(file);
    assert!(
        path.exists(),
        "{path:?} is not built: cargo build -p laneway-examples --examples"
    );
    path
}

#[test]
fn lines_run_in_order_by_key_and_the_next_run_goes_on() {
    let name = format!("other-source-{}.txt", std::process::id());
    let path = std::env::temp_dir().join(name);
    let done = path.with_extension("txt.done");
    // A line cannot be left half done by an earlier life under the same id.
    let _ = fs::remove_file(&done);
    let lines = |from: usize, to: usize| -> String {
        let line = |n: usize| match n % 13 {
            5 => format!("k{} again\n", n % 5),
            _ => format!("k{} {n:03}\n", n % 5),
        };
        (from..to).map(line).collect()
    };
    let mut all = lines(0, 150);
    for (so_far, wanted) in [(0, 150), (150, 60)] {
        if so_far > 0 {
            all.push_str(&lines(150, 210));
        }
        fs::write(&path, &all).unwrap();
        let out = Command::new(example("other_source"))
            .arg(&path)
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        let told = String::from_utf8(out.stdout).unwrap();
        let mut last: BTreeMap<String, String> = BTreeMap::new();
        let mut handled = 0;
        for line in told.lines().filter(|l| l.contains("(attempt ")) {
            handled += 1;
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (key, text, attempt) = (fields[0], fields[1], fields[3]);
            if text == "again" {
                assert_eq!(attempt, "3)", "{line}");
                continue;
            }
            let before = last.insert(key.to_owned(), text.to_owned());
            assert!(before.is_none_or(|b| *b < *text), "{key} goes back: {told}");
        }
        assert_eq!(handled, wanted, "{told}");
        let stands = fs::read_to_string(&done).unwrap();
        assert_eq!(stands.trim(), (so_far + wanted).to_string());
    }
    fs::remove_file(path).unwrap();
    fs::remove_file(done).unwrap();
}
