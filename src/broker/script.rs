//! Faults by script: which requests meet what instead of, or before, their plain answer.

use std::time::Duration;

use bytes::Bytes;

/// What happens to a request that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not handled, and the answer carries this code wherever it can: in every partition,
    /// topic or group asked for, else at the top.
    Error(i16),
    /// It is handled, and the answer is then given this code (Produce, OffsetCommit and the group
    /// calls): the answer that says "failed" although it was done.
    LateError(i16),
    /// The answer's outermost code (Fetch): session errors.
    TopError(i16),
    /// It waits this long before it is handled. What follows on the connection waits behind it.
    Delay(Duration),
    /// It is handled at once, and the answer waits this long.
    DelayAnswer(Duration),
    /// The connection is closed; the request was not handled.
    CutBefore,
    /// The connection is closed; the request was handled.
    CutAfter,
    /// The connection is closed after so many bytes of the answer (its length field counts).
    CutAnswer(usize),
    /// Not handled: these bytes are sent as they are.
    Bytes(Bytes),
    /// Handled, and these bytes are sent in the answer's place, as they are.
    AnswerBytes(Bytes),
    /// Not handled, never answered: the connection stays open and silent, as does all behind it.
    Swallow,
    /// Handled, never answered.
    SwallowAnswer,
    /// The answer says that the client was throttled so long. The broker does not wait.
    Throttle(Duration),
}

/// One rule of a script. What is `None` matches anything.
///
/// ```
/// use laneway::broker::{Fault, Rule};
/// let rule = Rule::new(Fault::Error(6)).api(1).topic("payments", Some(0)).times(2);
/// assert_eq!(rule.fault, Fault::Error(6));
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    /// The fault.
    pub fault: Fault,
    /// The API's key.
    pub api: Option<i16>,
    /// The node asked.
    pub node: Option<i32>,
    /// The client id in the request's header.
    pub client_id: Option<String>,
    /// The group asked about (group calls, OffsetCommit, OffsetFetch).
    pub group: Option<String>,
    /// A topic and perhaps one of its partitions. Such a rule knows only [`Fault::Error`] and
    /// [`Fault::LateError`], and meets the partitions it names, not the whole request; the topic
    /// itself (Metadata, CreateTopics) only where it names no partition.
    pub topic: Option<(String, Option<i32>)>,
    /// How many matches go by untouched first.
    pub skip: u32,
    /// How many matches it meets; `None` means all.
    pub times: Option<u32>,
    met: u32,
}

impl Rule {
    /// A rule that meets every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Rule {
            fault,
            api: None,
            node: None,
            client_id: None,
            group: None,
            topic: None,
            skip: 0,
            times: None,
            met: 0,
        }
    }

    /// Only requests of this API key.
    #[must_use]
    pub fn api(mut self, key: i16) -> Self {
        self.api = Some(key);
        self
    }

    /// Only requests to this node.
    #[must_use]
    pub fn node(mut self, node: i32) -> Self {
        self.node = Some(node);
        self
    }

    /// Only requests with this client id.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Only requests about this group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Only this topic, or this partition of it.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>, partition: Option<i32>) -> Self {
        self.topic = Some((topic.into(), partition));
        self
    }

    /// Lets `n` matches go by first.
    #[must_use]
    pub fn skip(mut self, n: u32) -> Self {
        self.skip = n;
        self
    }

    /// Meets `n` matches, then no more.
    #[must_use]
    pub fn times(mut self, n: u32) -> Self {
        self.times = Some(n);
        self
    }

    /// Whether it takes this match; counts it.
    fn takes(&mut self) -> bool {
        let n = self.met;
        self.met = self.met.saturating_add(1);
        let from = self.skip;
        n >= from && self.times.is_none_or(|times| n - from < times)
    }

    fn fits(&self, seen: &Seen<'_>) -> bool {
        self.api.is_none_or(|api| api == seen.api)
            && self.node.is_none_or(|node| node == seen.node)
            && self
                .client_id
                .as_deref()
                .is_none_or(|id| id == seen.client_id)
            && self.group.as_deref().is_none_or(|g| Some(g) == seen.group)
    }
}

/// What a rule is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub api: i16,
    pub node: i32,
    pub client_id: &'a str,
    pub group: Option<&'a str>,
}

/// All rules in force, tried in the order they were added.
#[derive(Debug, Default)]
pub struct Script {
    rules: Vec<Rule>,
}

impl Script {
    /// Adds a rule.
    pub fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Forgets all rules.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// How many requests (or partitions, for rules with a topic) each rule has matched so far.
    #[must_use]
    pub fn matches(&self) -> Vec<u32> {
        self.rules.iter().map(|r| r.met).collect()
    }

    /// Faults for a whole request.
    pub(crate) fn whole(&mut self, seen: &Seen<'_>) -> Vec<Fault> {
        let rules = self.rules.iter_mut();
        rules
            .filter(|r| r.topic.is_none() && r.fits(seen))
            .filter_map(|r| r.takes().then(|| r.fault.clone()))
            .collect()
    }

    /// The fault for one partition.
    pub(crate) fn partition(
        &mut self,
        seen: &Seen<'_>,
        topic: &str,
        partition: i32,
    ) -> Option<Fault> {
        let rules = self.rules.iter_mut();
        rules
            .filter(|r| {
                r.fits(seen)
                    && r.topic
                        .as_ref()
                        .is_some_and(|(name, p)| name == topic && p.is_none_or(|p| p == partition))
            })
            .find_map(|r| r.takes().then(|| r.fault.clone()))
    }
}
