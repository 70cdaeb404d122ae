//! What a dead letter looks like: the record as it was, and headers that say where it is from.

use crate::lane::DeadLetter;
use crate::produce::Outgoing;
use crate::record::{Delivery, Record};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// The function of [`DeadLetterTopic::By`].
pub type DeadLetterFn = Arc<dyn Fn(&Record) -> Arc<str> + Send + Sync>;

/// Where dead letters go.
#[derive(Clone)]
pub enum DeadLetterTopic {
    /// All to one topic.
    Named(Arc<str>),
    /// A function of the record names it.
    By(DeadLetterFn),
}

impl fmt::Debug for DeadLetterTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeadLetterTopic::Named(name) => write!(f, "Named({name:?})"),
            DeadLetterTopic::By(_) => f.write_str("By(..)"),
        }
    }
}

/// What becomes of a dead letter that its topic does not take because it is too large.
///
/// ```
/// # use laneway::*;
/// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
/// let subscription = subscription.dead_letter("t.dlq").dead_letter_too_large(TooLarge::Stop);
/// assert_eq!(TooLarge::default(), TooLarge::Truncate);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TooLarge {
    /// Its value is cut until it fits, and a header `laneway.dlq.truncated.value` says how long it
    /// was; then its own headers go, then its key. The whole record is where the other headers say,
    /// for as long as its topic keeps it. The default.
    #[default]
    Truncate,
    /// The subscription ends with an error that names the record, which stays open.
    Stop,
}

/// How the headers that are added to a dead letter are named.
///
/// | says | `Laneway` | `Connect` |
/// |---|---|---|
/// | source topic | `laneway.dlq.topic` | `__connect.errors.topic` |
/// | source partition | `laneway.dlq.partition` | `__connect.errors.partition` |
/// | source offset | `laneway.dlq.offset` | `__connect.errors.offset` |
/// | the last error | `laneway.dlq.error` | `__connect.errors.exception.message` |
/// | group | `laneway.dlq.group` | `__connect.errors.connector.name` |
/// | source timestamp | `laneway.dlq.timestamp` | as `Laneway` |
/// | attempts | `laneway.dlq.attempts` | as `Laneway` |
/// | lengths before a cut | `laneway.dlq.truncated.value`, `.key`, `.headers` | as `Laneway` |
///
/// Every value is text in UTF-8, numbers in decimal, in both; the timestamp is in milliseconds since
/// 1970, or -1. They follow the record's own headers: where a name is there twice, the last one is
/// the newest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterHeaders {
    /// Names of our own.
    #[default]
    Laneway,
    /// Those of Kafka Connect, where it has one.
    Connect,
}

/// The dead letter of `letter` for `topic`, after so many cuts; `None`: there is nothing left to cut.
pub(super) fn compose(
    letter: &DeadLetter<Delivery>,
    topic: Arc<str>,
    group: Option<&str>,
    names: DeadLetterHeaders,
    cuts: u32,
) -> Option<Outgoing> {
    let tried = Some(letter.tried.clone());
    let record = Record::new(letter.parcel.clone(), letter.index, tried, letter.lane);
    let mut out = record.to_outgoing(topic);
    let cut = cut(&mut out, cuts)?;
    let error = letter.tried.error().unwrap_or("the handler asked for it");
    let mut add = |laneway: &'static str, connect: &'static str, value: String| {
        let name = match names {
            DeadLetterHeaders::Laneway => laneway,
            DeadLetterHeaders::Connect => connect,
        };
        let header = (Bytes::from_static(name.as_bytes()), Some(value.into()));
        out.headers.push(header);
    };
    add(TOPIC, CONNECT_TOPIC, record.topic().to_owned());
    add(PARTITION, CONNECT_PARTITION, record.partition().to_string());
    add(OFFSET, CONNECT_OFFSET, record.offset().to_string());
    add(TIMESTAMP, TIMESTAMP, record.timestamp().to_string());
    add(ATTEMPTS, ATTEMPTS, letter.tried.attempts().to_string());
    add(ERROR, CONNECT_ERROR, shortened(error).to_owned());
    if let Some(group) = group {
        add(GROUP, CONNECT_GROUP, group.to_owned());
    }
    for (name, was) in cut {
        add(name, name, was.to_string());
    }
    Some(out)
}

/// Makes it smaller by this many steps. Gives what was cut, and how much there was of it.
fn cut(out: &mut Outgoing, cuts: u32) -> Option<Vec<(&'static str, usize)>> {
    let mut cut = Vec::new();
    if cuts == 0 {
        return Some(cut);
    }
    let mut left = cuts;
    if let Some(value) = out.value.as_mut().filter(|value| !value.is_empty()) {
        let was = value.len();
        let steps = (usize::BITS - was.leading_zeros()).div_ceil(CUT_BITS);
        let now = left.min(steps);
        value.truncate(was.checked_shr(now * CUT_BITS).unwrap_or(0));
        cut.push((CUT_VALUE, was));
        left -= now;
    }
    if left > 0 && !out.headers.is_empty() {
        cut.push((CUT_HEADERS, out.headers.len()));
        out.headers.clear();
        left -= 1;
    }
    if left > 0
        && let Some(key) = out.key.take()
    {
        cut.push((CUT_KEY, key.len()));
        left -= 1;
    }
    (left == 0).then_some(cut)
}

/// As much of the error as a header is worth.
fn shortened(error: &str) -> &str {
    let mut end = error.len().min(ERROR_BYTES_MAX);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}

/// A cut leaves a quarter.
const CUT_BITS: u32 = 2;

/// The longest error that a header carries.
const ERROR_BYTES_MAX: usize = 4096;

const TOPIC: &str = "laneway.dlq.topic";
const PARTITION: &str = "laneway.dlq.partition";
const OFFSET: &str = "laneway.dlq.offset";
const TIMESTAMP: &str = "laneway.dlq.timestamp";
const ATTEMPTS: &str = "laneway.dlq.attempts";
const ERROR: &str = "laneway.dlq.error";
const GROUP: &str = "laneway.dlq.group";
const CUT_VALUE: &str = "laneway.dlq.truncated.value";
const CUT_HEADERS: &str = "laneway.dlq.truncated.headers";
const CUT_KEY: &str = "laneway.dlq.truncated.key";
const CONNECT_TOPIC: &str = "__connect.errors.topic";
const CONNECT_PARTITION: &str = "__connect.errors.partition";
const CONNECT_OFFSET: &str = "__connect.errors.offset";
const CONNECT_ERROR: &str = "__connect.errors.exception.message";
const CONNECT_GROUP: &str = "__connect.errors.connector.name";

#[cfg(test)]
mod tests {
    use super::*;

    /// P22: each cut is smaller than the one before it, and the last leaves a pointer.
    #[test]
    fn p22_cuts_end_in_a_pointer() {
        let mut whole = Outgoing::new("dlq");
        whole.key = Some("key".into());
        whole.value = Some(vec![7; 1000].into());
        whole.headers = vec![("h".into(), None)];
        let mut sizes = Vec::new();
        for cuts in 0.. {
            let mut out = whole.clone();
            let Some(what) = cut(&mut out, cuts) else {
                break;
            };
            let bound = what.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            sizes.push((out.size_bytes(), bound));
        }
        assert!(sizes.is_sorted_by(|a, b| a.0 > b.0), "{sizes:?}");
        let last = sizes.last().unwrap();
        assert_eq!(last.1, [CUT_VALUE, CUT_HEADERS, CUT_KEY]);
        assert_eq!(sizes.len(), 1 + 5 + 2);
        // A tombstone without anything has nothing to cut.
        assert!(cut(&mut Outgoing::new("dlq"), 1).is_none());
    }

    #[test]
    fn long_errors_are_cut_between_letters() {
        assert_eq!(shortened("short"), "short");
        let long = "é".repeat(ERROR_BYTES_MAX);
        assert_eq!(shortened(&long).len(), ERROR_BYTES_MAX);
        let odd = format!("x{long}");
        assert_eq!(shortened(&odd).len(), ERROR_BYTES_MAX - 1);
    }
}
