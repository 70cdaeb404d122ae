//! What happened in lives, and how often.

use std::collections::BTreeMap;

/// Everything that a life may have, do or meet. What stays at zero tests nothing.
pub const KINDS: [&str; 89] = [
    "user writes",
    "user commits now",
    "user pauses",
    "user resumes",
    "user resizes",
    "user seeks",
    "user drains",
    "user closes",
    "member joins",
    "member is killed",
    "member freezes",
    "member thaws",
    "clock jumps",
    "network is cut",
    "network is mute",
    "network is mute one way",
    "network speaks again",
    "network is slow",
    "network is quick again",
    "broker crashes",
    "broker restarts",
    "broker loses its tail",
    "broker hands a group over",
    "broker hands a partition over",
    "topic grows",
    "topic is compacted",
    "topic loses its head",
    "topic is made anew",
    "answer is an error",
    "answer is a late error",
    "answer is late",
    "answer is cut off",
    "answer never comes",
    "request is late",
    "request is cut off",
    "request vanishes",
    "client is throttled",
    "handler acks",
    "handler fails",
    "handler panics",
    "handler retries",
    "handler retries later",
    "handler drops",
    "handler gives up",
    "handler stops",
    "handler is slow",
    "handler is too slow",
    "life is gentle",
    "life with broken logs",
    "group is eager",
    "group is cooperative",
    "group is both",
    "group is KIP-848",
    "group by pattern",
    "group of static members",
    "partitions by hand",
    "lanes in turn",
    "lanes of none",
    "lanes fixed",
    "lanes per key",
    "lanes by partition",
    "lanes by record key",
    "lanes by function",
    "handlers take batches",
    "handlers have a time-out",
    "handlers block a thread",
    "commits are automatic",
    "map is written",
    "map is read",
    "map is off",
    "map that is full waits",
    "map is short",
    "dead letters",
    "hooks",
    "read committed",
    "told granted",
    "told revoked",
    "told lost",
    "told abandoned",
    "told data loss",
    "told sought",
    "told retrying",
    "told panicked",
    "told dead-lettered",
    "told stalled",
    "seen map spares a record",
    "seen map unused",
    "seen lane lets records go",
    "seen budget full",
];

/// How often what of [`KINDS`] happened.
#[derive(Clone, Debug)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Default for Tally {
    fn default() -> Self {
        Tally(KINDS.iter().map(|kind| (*kind, 0)).collect())
    }
}

impl Tally {
    /// It happened `n` times more.
    ///
    /// # Panics
    /// There is no such kind.
    pub fn add(&mut self, kind: &str, n: u64) {
        let count = self.0.get_mut(kind);
        *count.unwrap_or_else(|| panic!("no kind {kind:?}")) += n;
    }

    /// All of another one more.
    pub fn add_all(&mut self, other: &Tally) {
        for (kind, n) in &other.0 {
            self.add(kind, *n);
        }
    }

    /// Each kind with its number, in the order of [`KINDS`].
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.iter().map(|kind| (*kind, self.0[kind]))
    }
}
