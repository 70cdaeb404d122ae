//! What a subscription reads.

use crate::engine::Source;
use crate::error::Error;
use crate::group::TopicPattern;
use crate::ids::TopicPartition;
use std::sync::Arc;

/// Topics that the members of a group share.
///
/// ```
/// use laneway::Topics;
/// let topics = Topics::named(["payments", "refunds"]).group("billing");
/// ```
#[derive(Clone, Debug)]
pub struct Topics {
    names: Vec<Arc<str>>,
    pattern: Option<Arc<str>>,
    group: Option<Arc<str>>,
}

impl Topics {
    /// These topics, by name.
    pub fn named<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        Topics {
            names: names.into_iter().map(Into::into).collect(),
            pattern: None,
            group: None,
        }
    }

    /// All topics whose whole name matches the regular expression `pattern`, also those that come
    /// later: they are found within
    /// [`metadata_age_max`](super::Subscription::metadata_age_max), and begin at their first record whatever
    /// [`Subscription::start_at`](super::Subscription::start_at) says, since they were born after
    /// us. Topics that are deleted end quietly; one that is made anew under its name begins afresh.
    ///
    /// The expression has no look-around and no back references. With
    /// [`GroupProtocol::Classic`](crate::GroupProtocol) it is matched here, and Kafka's internal
    /// topics never match; with [`GroupProtocol::Consumer`](crate::GroupProtocol) the broker
    /// matches it, as RE2 does.
    ///
    /// ```
    /// use laneway::Topics;
    /// let topics = Topics::pattern("orders-(eu|us)-.*").group("shipping");
    /// ```
    pub fn pattern(pattern: impl Into<Arc<str>>) -> Self {
        Topics {
            names: Vec::new(),
            pattern: Some(pattern.into()),
            group: None,
        }
    }

    /// The group whose members share the topics' partitions, and under which offsets are kept.
    #[must_use]
    pub fn group(mut self, id: impl Into<Arc<str>>) -> Self {
        self.group = Some(id.into());
        self
    }
}

/// Partitions chosen by hand: no group is joined, nothing is ever taken away.
///
/// ```
/// # #[cfg(not(feature = "broker"))] fn main() {}
/// # #[cfg(feature = "broker")] #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
/// # let brokers = server.bootstrap();
/// use laneway::{Kafka, Partitions};
///
/// let (offsets, mut read) = tokio::sync::mpsc::unbounded_channel();
/// let audit = Kafka::new(brokers)
///     .subscribe(Partitions::of("payments", [0]).offsets_in("billing-audit"))
///     .start(move |record| std::future::ready(offsets.send(record.offset()).map_err(|e| e.to_string())))?;
/// for n in 0..10 {
///     assert_eq!(read.recv().await, Some(n));
/// }
/// audit.drain().await?;
/// assert_eq!(server.cluster().committed("billing-audit", "payments", 0).map(|c| c.offset), Some(10));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Partitions {
    partitions: Vec<TopicPartition>,
    group: Option<Arc<str>>,
    reserved: bool,
}

impl Partitions {
    /// These partitions of one topic.
    pub fn of(topic: impl Into<Arc<str>>, partitions: impl IntoIterator<Item = i32>) -> Self {
        let topic = topic.into();
        let partitions = partitions
            .into_iter()
            .map(|p| TopicPartition::new(topic.clone(), p))
            .collect();
        Partitions {
            partitions,
            group: None,
            reserved: false,
        }
    }

    /// As [`Partitions::offsets_in`]; with [`Partitions::reserved`] also the group that is joined.
    #[must_use]
    pub fn group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Joins the group as a member that is given exactly these partitions: the others share out
    /// the rest, and take none of these, also when this reader dies, until
    /// [`Running::release`](super::Running::release) or until the whole group has stopped. All
    /// members must be Laneway's, with its own assignors and the classic protocol: a leader of
    /// another make does not know of it, which is warned of.
    ///
    /// ```
    /// use laneway::{Kafka, Partitions};
    /// let direct = Kafka::new(["localhost:9092"])
    ///     .subscribe(Partitions::of("payments", [4]).group("billing").reserved());
    /// ```
    #[must_use]
    pub fn reserved(mut self) -> Self {
        self.reserved = true;
        self
    }

    /// Keeps offsets under this group id. The group must have no members: brokers refuse such
    /// commits while it does.
    #[must_use]
    pub fn offsets_in(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// What a subscription reads: [`Topics`] or [`Partitions`].
///
/// ```
/// use laneway::{Interest, Kafka, Partitions, Topics};
/// let by_hand = std::env::args().len() > 99;
/// let what: Interest = match by_hand {
///     true => Partitions::of("payments", [0, 2]).into(),
///     false => Topics::named(["payments"]).group("billing").into(),
/// };
/// let subscription = Kafka::new(["localhost:9092"]).subscribe(what);
/// ```
#[derive(Clone, Debug)]
pub enum Interest {
    /// Shared with a group.
    Topics(Topics),
    /// Chosen by hand.
    Partitions(Partitions),
}

impl From<Topics> for Interest {
    fn from(topics: Topics) -> Self {
        Interest::Topics(topics)
    }
}

impl From<Partitions> for Interest {
    fn from(partitions: Partitions) -> Self {
        Interest::Partitions(partitions)
    }
}

impl Interest {
    /// The group where none was named.
    pub(super) fn default_group(&mut self, group: &Arc<str>) {
        let named = match self {
            Interest::Topics(t) => &mut t.group,
            Interest::Partitions(p) => &mut p.group,
        };
        named.get_or_insert_with(|| group.clone());
    }

    pub(super) fn source(&self) -> Source {
        match self.clone() {
            Interest::Topics(t) => {
                let group = t.group.unwrap_or_default();
                // One that cannot be read is refused by `check`, before the source counts.
                let pattern = t.pattern.map(TopicPattern::new);
                match pattern {
                    Some(Ok(pattern)) => Source::Pattern { pattern, group },
                    _ => Source::Topics {
                        topics: t.names,
                        group,
                    },
                }
            }
            Interest::Partitions(p) if p.reserved => {
                let mut topics: Vec<_> = p.partitions.iter().map(|p| p.topic.clone()).collect();
                topics.sort();
                topics.dedup();
                Source::Topics {
                    topics,
                    group: p.group.unwrap_or_default(),
                }
            }
            Interest::Partitions(p) => Source::Partitions {
                partitions: p.partitions,
                group: p.group,
            },
        }
    }

    /// What a direct reader reserves.
    pub(super) fn reserved(&self) -> &[TopicPartition] {
        match self {
            Interest::Partitions(p) if p.reserved => &p.partitions,
            _ => &[],
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let legal = |name: &str| {
            !name.is_empty()
                && name.len() <= 249
                && name != "."
                && name != ".."
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let topic = |name: &str| match legal(name) {
            true => Ok(()),
            false => Err(Error::misuse(format!(
                "{name:?} cannot be a topic's name: use 1 to 249 of a-z A-Z 0-9 . _ -"
            ))),
        };
        match self {
            Interest::Topics(t) => {
                if let Some(pattern) = &t.pattern {
                    TopicPattern::new(pattern.clone())?;
                } else if t.names.is_empty() {
                    return Err(Error::misuse(
                        "no topics: name at least one in Topics::named",
                    ));
                }
                if t.group.as_ref().is_none_or(|g| g.is_empty()) {
                    return Err(Error::misuse(
                        "no group: add .group(\"name\") to Topics, or choose partitions by hand with Partitions::of",
                    ));
                }
                let mut names: Vec<_> = t.names.iter().collect();
                names.sort();
                if names.windows(2).any(|w| w[0] == w[1]) {
                    return Err(Error::misuse("a topic is named twice in Topics::named"));
                }
                t.names.iter().try_for_each(|n| topic(n))
            }
            Interest::Partitions(p) => {
                if p.partitions.is_empty() {
                    return Err(Error::misuse(
                        "no partitions: give Partitions::of at least one",
                    ));
                }
                if p.reserved && p.group.as_ref().is_none_or(|g| g.is_empty()) {
                    return Err(Error::misuse(
                        "no group: Partitions::of(..).reserved() joins one; add .group(\"name\")",
                    ));
                }
                if p.partitions.iter().any(|p| p.partition < 0) {
                    return Err(Error::misuse(
                        "a partition's number is negative in Partitions::of",
                    ));
                }
                let mut all = p.partitions.clone();
                all.sort();
                if all.windows(2).any(|w| w[0] == w[1]) {
                    return Err(Error::misuse(
                        "a partition is named twice in Partitions::of",
                    ));
                }
                p.partitions.iter().try_for_each(|p| topic(&p.topic))
            }
        }
    }
}
