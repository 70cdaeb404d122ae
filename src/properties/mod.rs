//! Settings by the names that Kafka's own clients and librdkafka give them.
//!
//! For programs that have such a list already: [`Kafka::from_properties`](crate::Kafka::from_properties)
//! reads it, and every subscription of that `Kafka` begins with what it says. What is called on a
//! builder afterwards wins. All names and what becomes of each: [`manual::properties`](crate::manual::properties).
//!
//! Invariants:
//! 1. No name is passed over in silence: it is set, listed as ignored with the reason, or an error
//!    that offers the nearest known name.
//! 2. No value of a name that may hold a secret is shown.

mod ignored;
mod oauth;
mod security;
mod table;
mod text;
mod values;

pub(crate) use security::Login;
pub use text::parse;

use crate::engine::Config;
use crate::error::Error;
use ignored::IGNORED;
use std::collections::BTreeMap;
use std::sync::Arc;
use table::{ALIASES, KNOWN};

/// A property that was given and changes nothing here.
///
/// ```
/// use laneway::Kafka;
/// let kafka = Kafka::from_properties([
///     ("bootstrap.servers", "kafka-1:9092"),
///     ("max.poll.records", "500"),
/// ])?;
/// let ignored = &kafka.ignored_properties()[0];
/// assert_eq!(ignored.name, "max.poll.records");
/// assert!(ignored.why.contains("batch"));
/// # Ok::<(), laneway::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ignored {
    /// Its name, as it was given.
    pub name: String,
    /// Why it changes nothing.
    pub why: &'static str,
}

/// A change to the settings that a subscription begins with.
pub(crate) type Setting = Arc<dyn Fn(&mut Config) + Send + Sync>;

/// What a list of properties comes to.
#[derive(Default)]
pub(crate) struct Draft {
    pub bootstrap: String,
    pub client_id: Option<String>,
    pub group: Option<String>,
    pub settings: Vec<Setting>,
    pub ignored: Vec<Ignored>,
    pub security: security::Security,
}

impl Draft {
    fn set(&mut self, setting: impl Fn(&mut Config) + Send + Sync + 'static) {
        self.settings.push(Arc::new(setting));
    }
}

/// Reads the whole list, or says what is wrong with the first that is.
pub(crate) fn read<I, K, V>(pairs: I) -> Result<Draft, Error>
where
    I: IntoIterator<Item = (K, V)>,
    K: AsRef<str>,
    V: AsRef<str>,
{
    // By the name in the table: the name as it was given, and the value.
    let mut given: BTreeMap<&'static str, (String, String)> = BTreeMap::new();
    for (name, value) in pairs {
        let (name, value) = (name.as_ref().trim(), value.as_ref().trim());
        let known = canonical(name).ok_or_else(|| unknown(name))?;
        let before = given.insert(known, (name.to_owned(), value.to_owned()));
        // The same name again replaces the value, as everywhere; another spelling of it does not.
        if let Some((other, old)) = before
            && other != name
            && old != value
        {
            return Err(Error::misuse(format!(
                "`{other}` and `{name}` are one setting, and their values differ; keep one of them"
            )));
        }
    }
    let mut draft = Draft::default();
    for known in KNOWN {
        let Some((name, value)) = given.remove(known.name) else {
            continue;
        };
        (known.set)(&mut draft, &value).map_err(|why| {
            let shown = match may_be_secret(&name) {
                true => String::new(),
                false => format!("={value}"),
            };
            Error::misuse(format!("property `{name}`{shown}: {why}"))
        })?;
    }
    for (known, _, why) in IGNORED {
        if let Some((name, _)) = given.remove(known) {
            draft.ignored.push(Ignored { name, why });
        }
    }
    if draft.bootstrap.is_empty() {
        return Err(Error::misuse(
            "no `bootstrap.servers` (librdkafka: `metadata.broker.list`) among the properties: where is the cluster?",
        ));
    }
    Ok(draft)
}

/// The name in the table.
fn canonical(name: &str) -> Option<&'static str> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name, |(_, name)| name);
    names().find(|known| *known == name)
}

fn names() -> impl Iterator<Item = &'static str> {
    let set = KNOWN.iter().map(|k| k.name);
    set.chain(IGNORED.iter().map(|(name, ..)| *name))
}

fn unknown(name: &str) -> Error {
    let all = names().chain(ALIASES.iter().map(|(alias, _)| *alias));
    let lower = name.to_ascii_lowercase();
    let nearest = all.min_by_key(|known| edits(&lower, known));
    Error::misuse(format!(
        "unknown property `{name}`; the nearest known one is `{}`. All of them are in laneway::manual::properties",
        nearest.unwrap_or_default()
    ))
}

/// How many letters must be put in, taken out, changed or swapped with their neighbour.
fn edits(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let changed = usize::from(a[i - 1] != b[j - 1]);
                    let mut least = (rows[i - 1][j] + 1)
                        .min(rows[i][j - 1] + 1)
                        .min(rows[i - 1][j - 1] + changed);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        least = least.min(rows[i - 2][j - 2] + 1);
                    }
                    least
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

fn may_be_secret(name: &str) -> bool {
    [
        "password", "jaas", "key", "secret", "pem", "token", "username",
    ]
    .iter()
    .any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
