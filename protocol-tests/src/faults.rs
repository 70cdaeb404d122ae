//! Mistakes that can be planted in a copy of the library (`faults.txt`), to see that the lives of
//! [`simulate`](crate::lives) notice them.

use std::fs;
use std::path::Path;

/// What stands in `faults.txt`.
const TABLE: &str = include_str!("../faults.txt");

/// The library's own switch: which fault is planted in this run, if any.
const SWITCH: &str = r#"
/// Which mistake is in force.
pub mod planted {
    /// Whether it is this one.
    pub fn is(name: &str) -> bool {
        static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let named = NAME.get_or_init(|| std::env::var("LANEWAY_PLANTED").ok());
        named.as_deref() == Some(name)
    }
}
"#;

/// A mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// What it is called.
    pub name: String,
    /// The file that it is made in, from the root of the repository.
    pub file: String,
    /// A piece of one line there.
    pub old: String,
    /// What takes its place.
    pub new: String,
}

/// All of them, in the table's order.
///
/// # Panics
/// The table cannot be read.
#[must_use]
pub fn all() -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for line in TABLE
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
    {
        let (kind, rest) = line.split_once(' ').expect("a word and the rest");
        if kind == "fault" {
            faults.push(Fault::default());
        }
        let fault = faults.last_mut().expect("a fault comes first");
        let place = match kind {
            "fault" => &mut fault.name,
            "in" => &mut fault.file,
            "-" => &mut fault.old,
            "+" => &mut fault.new,
            _ => panic!("{line:?}"),
        };
        rest.clone_into(place);
    }
    faults
}

impl Fault {
    /// The text with both: what is right, and the mistake while it is planted.
    ///
    /// # Errors
    /// The piece is not there, or more than once.
    pub fn plant(&self, text: &str) -> Result<String, String> {
        let Fault {
            name,
            file,
            old,
            new,
        } = self;
        let times = text.matches(old.as_str()).count();
        if times != 1 {
            return Err(format!("{name}: {file} has {old:?} {times} times"));
        }
        let condition = format!("crate::planted::is({name:?})");
        let both = if new.contains("FAULT") {
            new.replace("FAULT", &condition)
        } else if old.ends_with(';') {
            format!("if {condition} {{ {new} }} else {{ {old} }}")
        } else {
            format!("(if {condition} {{ {new} }} else {{ {old} }})")
        };
        Ok(text.replacen(old.as_str(), &both, 1))
    }
}

/// Plants all of them in the library that stands in `root`, a copy. Which one is in force says the
/// environment variable `LANEWAY_PLANTED`.
///
/// # Errors
/// A file is not there, or a piece of it.
pub fn plant_all(root: &Path) -> Result<(), String> {
    let change = |file: &str, to: &dyn Fn(String) -> Result<String, String>| {
        let path = root.join(file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
        fs::write(&path, to(text)?).map_err(|e| format!("{file}: {e}"))
    };
    for fault in all() {
        change(&fault.file, &|text| fault.plant(&text))?;
    }
    change("src/lib.rs", &|text| Ok(text + SWITCH))
}
