//! Which APIs we speak, in which versions, and what a broker and we have in common.

use std::fmt;

use kafka_protocol::messages as kp;
use kafka_protocol::protocol::HeaderVersion;

use crate::error::{Error, ErrorKind};

/// A range of versions, both ends included. One whose `min` is above its `max` holds nothing.
///
/// ```
/// use laneway::wire::VersionRange;
/// let both = VersionRange::new(0, 9).intersect(VersionRange::new(4, 13));
/// assert_eq!(both, VersionRange::new(4, 9));
/// assert!(both.intersect(VersionRange::new(10, 11)).is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The lowest.
    pub min: i16,
    /// The highest.
    pub max: i16,
}

impl VersionRange {
    /// `min` to `max`.
    #[must_use]
    pub const fn new(min: i16, max: i16) -> Self {
        VersionRange { min, max }
    }

    /// Whether `version` is inside.
    #[must_use]
    pub fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    /// What is in both. Holds nothing where either does or where they are apart.
    #[must_use]
    pub fn intersect(self, other: VersionRange) -> VersionRange {
        if self.is_empty() {
            return self;
        }
        if other.is_empty() {
            return other;
        }
        VersionRange::new(self.min.max(other.min), self.max.min(other.max))
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.min > self.max
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// An API of Kafka that we speak.
///
/// ```
/// use laneway::wire::Api;
/// assert_eq!(Api::from_key(11), Some(Api::JoinGroup));
/// assert_eq!(Api::JoinGroup.to_string(), "JoinGroup");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Api {
    /// Writes records.
    Produce,
    /// Reads records.
    Fetch,
    /// Offsets by time.
    ListOffsets,
    /// Brokers, topics and leaders.
    Metadata,
    /// Commits offsets.
    OffsetCommit,
    /// Reads committed offsets.
    OffsetFetch,
    /// Who coordinates a group.
    FindCoordinator,
    /// Joins a classic group.
    JoinGroup,
    /// Keeps a membership alive.
    Heartbeat,
    /// Leaves a group.
    LeaveGroup,
    /// Hands out or takes the assignment.
    SyncGroup,
    /// What the broker speaks.
    ApiVersions,
    /// Gives a producer its id.
    InitProducerId,
    /// Where leader epochs ended; Kafka calls it `OffsetForLeaderEpoch`.
    EpochEnd,
    /// Opens an exchange of SASL.
    SaslHandshake,
    /// Carries an exchange of SASL.
    SaslAuthenticate,
    /// All that a member of a group with the new protocol (KIP-848) says.
    ConsumerGroupHeartbeat,
}

/// What the code needs to know of an [`Api`].
struct Facts {
    key: i16,
    name: &'static str,
    versions: VersionRange,
    /// From here on the broker answers at once and leaves the silence to us (KIP-219).
    throttled_from: Option<i16>,
}

impl Api {
    /// All of them, by key.
    pub const ALL: [Api; 17] = [
        Api::Produce,
        Api::Fetch,
        Api::ListOffsets,
        Api::Metadata,
        Api::OffsetCommit,
        Api::OffsetFetch,
        Api::FindCoordinator,
        Api::JoinGroup,
        Api::Heartbeat,
        Api::LeaveGroup,
        Api::SyncGroup,
        Api::SaslHandshake,
        Api::ApiVersions,
        Api::InitProducerId,
        Api::EpochEnd,
        Api::SaslAuthenticate,
        Api::ConsumerGroupHeartbeat,
    ];

    /// The API of a key, if we speak it.
    #[must_use]
    pub fn from_key(key: i16) -> Option<Api> {
        Api::ALL.into_iter().find(|api| api.key() == key)
    }

    /// Kafka's number for it.
    #[must_use]
    pub fn key(self) -> i16 {
        self.facts().key
    }

    /// Kafka's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The versions that we write and read. Their upper ends are what Kafka 4.3 speaks, but where
    /// kafka-protocol cannot write it: `OffsetCommit` 10, `OffsetFetch` 10, `ListOffsets` 11.
    #[must_use]
    pub fn versions(self) -> VersionRange {
        self.facts().versions
    }

    /// Whether a throttle time in an answer of this version is ours to keep. Below, the broker
    /// has waited already.
    pub(super) fn is_throttled_by_client(self, version: i16) -> bool {
        self.facts().throttled_from.is_some_and(|v| version >= v)
    }

    /// The version of the request's header.
    #[must_use]
    pub fn request_header(self, version: i16) -> i16 {
        match self {
            Api::Produce => kp::ProduceRequest::header_version(version),
            Api::Fetch => kp::FetchRequest::header_version(version),
            Api::ListOffsets => kp::ListOffsetsRequest::header_version(version),
            Api::Metadata => kp::MetadataRequest::header_version(version),
            Api::OffsetCommit => kp::OffsetCommitRequest::header_version(version),
            Api::OffsetFetch => kp::OffsetFetchRequest::header_version(version),
            Api::FindCoordinator => kp::FindCoordinatorRequest::header_version(version),
            Api::JoinGroup => kp::JoinGroupRequest::header_version(version),
            Api::Heartbeat => kp::HeartbeatRequest::header_version(version),
            Api::LeaveGroup => kp::LeaveGroupRequest::header_version(version),
            Api::SyncGroup => kp::SyncGroupRequest::header_version(version),
            Api::ApiVersions => kp::ApiVersionsRequest::header_version(version),
            Api::InitProducerId => kp::InitProducerIdRequest::header_version(version),
            Api::EpochEnd => kp::OffsetForLeaderEpochRequest::header_version(version),
            Api::SaslHandshake => kp::SaslHandshakeRequest::header_version(version),
            Api::SaslAuthenticate => kp::SaslAuthenticateRequest::header_version(version),
            Api::ConsumerGroupHeartbeat => {
                kp::ConsumerGroupHeartbeatRequest::header_version(version)
            }
        }
    }

    /// The version of the answer's header: 0 has the correlation id alone, 1 also tagged fields.
    /// `ApiVersions` is always answered with 0, since whoever asks cannot know more yet.
    #[must_use]
    pub fn response_header(self, version: i16) -> i16 {
        match self {
            Api::ApiVersions => 0,
            _ => self.request_header(version) - 1,
        }
    }

    fn facts(self) -> Facts {
        let facts = |key, name, min, max, throttled_from| Facts {
            key,
            name,
            versions: VersionRange::new(min, max),
            throttled_from,
        };
        match self {
            // Below 3 batches are of an older format.
            Api::Produce => facts(0, "Produce", 3, 13, Some(6)),
            Api::Fetch => facts(1, "Fetch", 4, 18, Some(8)),
            Api::ListOffsets => facts(2, "ListOffsets", 1, 10, Some(3)),
            // Below 4 a broker makes the topics that it is asked about.
            Api::Metadata => facts(3, "Metadata", 4, 13, Some(6)),
            Api::OffsetCommit => facts(8, "OffsetCommit", 2, 9, Some(4)),
            // Version 1 says what is wrong with the group in its partitions.
            Api::OffsetFetch => facts(9, "OffsetFetch", 2, 9, Some(4)),
            Api::FindCoordinator => facts(10, "FindCoordinator", 0, 6, Some(2)),
            Api::JoinGroup => facts(11, "JoinGroup", 0, 9, Some(3)),
            Api::Heartbeat => facts(12, "Heartbeat", 0, 4, Some(2)),
            Api::LeaveGroup => facts(13, "LeaveGroup", 0, 5, Some(2)),
            Api::SyncGroup => facts(14, "SyncGroup", 0, 5, Some(2)),
            Api::ApiVersions => facts(18, "ApiVersions", 0, 4, Some(2)),
            Api::InitProducerId => facts(22, "InitProducerId", 0, 5, Some(1)),
            Api::EpochEnd => facts(23, "OffsetForLeaderEpoch", 2, 4, None),
            // Version 0 is followed by bare tokens instead of requests.
            Api::SaslHandshake => facts(17, "SaslHandshake", 1, 1, None),
            Api::SaslAuthenticate => facts(36, "SaslAuthenticate", 0, 2, None),
            Api::ConsumerGroupHeartbeat => facts(68, "ConsumerGroupHeartbeat", 0, 1, Some(0)),
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a broker speaks: every API it listed, also those we do not know.
///
/// ```
/// use laneway::wire::{Api, ApiRanges, VersionRange};
/// let ranges = ApiRanges::new([(Api::Fetch.key(), VersionRange::new(0, 13))]);
/// assert_eq!(ranges.pick(Api::Fetch, VersionRange::new(4, 12)), Ok(12));
/// assert!(ranges.pick(Api::Metadata, Api::Metadata.versions()).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRanges {
    /// Sorted by key; each key once.
    ranges: Vec<(i16, VersionRange)>,
}

impl ApiRanges {
    /// From (key, range) in any order; where a key comes twice the last one counts.
    #[must_use]
    pub fn new(listed: impl IntoIterator<Item = (i16, VersionRange)>) -> Self {
        let mut ranges: Vec<(i16, VersionRange)> = listed.into_iter().collect();
        // The sort is stable, so of equal keys the last listed is the last of its run.
        ranges.reverse();
        ranges.sort_by_key(|(key, _)| *key);
        ranges.dedup_by_key(|(key, _)| *key);
        ApiRanges { ranges }
    }

    /// What the broker listed for a key.
    #[must_use]
    pub fn of_key(&self, key: i16) -> Option<VersionRange> {
        let i = self.ranges.binary_search_by_key(&key, |(k, _)| *k).ok()?;
        Some(self.ranges[i].1)
    }

    /// What the broker listed for one of our APIs.
    #[must_use]
    pub fn of(&self, api: Api) -> Option<VersionRange> {
        self.of_key(api.key())
    }

    /// Whether some version of `api` is known to both sides.
    #[must_use]
    pub fn has(&self, api: Api) -> bool {
        self.pick(api, api.versions()).is_ok()
    }

    /// The highest version that both sides know and that is in `wanted`.
    ///
    /// # Errors
    ///
    /// The broker lists none, a flipped range, or nothing that meets ours.
    pub fn pick(&self, api: Api, wanted: VersionRange) -> Result<i16, VersionError> {
        let ours = api.versions().intersect(wanted);
        let theirs = self.of(api);
        let both = theirs.map(|theirs| ours.intersect(theirs));
        match both {
            Some(both) if !both.is_empty() => Ok(both.max),
            _ => Err(VersionError { api, ours, theirs }),
        }
    }

    /// All of it, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (i16, VersionRange)> + '_ {
        self.ranges.iter().copied()
    }
}

/// The broker and we have no version of an API in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionError {
    /// The API.
    pub api: Api,
    /// What we can send, given what the request holds.
    pub ours: VersionRange,
    /// What the broker listed, if it did.
    pub theirs: Option<VersionRange>,
}

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VersionError { api, ours, theirs } = self;
        match theirs {
            None => write!(
                f,
                "the broker does not offer {api}, of which {ours} is needed: \
                 is this a KRaft controller, or another kind of server?"
            ),
            Some(theirs) if theirs.is_empty() => write!(
                f,
                "the broker's range of {api} is upside down ({theirs}); {ours} is needed"
            ),
            Some(theirs) => write!(
                f,
                "no version of {api} in common: the broker has {theirs}, {ours} is needed"
            ),
        }
    }
}

impl std::error::Error for VersionError {}

impl From<VersionError> for Error {
    fn from(e: VersionError) -> Error {
        Error::new(ErrorKind::Peer, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_the_highest_that_both_know_and_the_request_allows() {
        let ranges = ApiRanges::new([(1, VersionRange::new(0, 13)), (3, VersionRange::new(0, 7))]);
        assert_eq!(ranges.pick(Api::Fetch, Api::Fetch.versions()), Ok(13));
        assert_eq!(ranges.pick(Api::Fetch, VersionRange::new(4, 12)), Ok(12));
        assert_eq!(ranges.pick(Api::Metadata, Api::Metadata.versions()), Ok(7));
    }

    /// L11: ranges flipped or disjoint are an error that names the API and both ranges.
    #[test]
    fn l11_flipped_and_disjoint_ranges_are_named() {
        let ranges = ApiRanges::new([
            (1, VersionRange::new(5, 2)),
            (2, VersionRange::new(0, 0)),
            (3, VersionRange::new(14, 20)),
        ]);
        let pick = |api: Api| ranges.pick(api, api.versions()).unwrap_err();
        let flipped = pick(Api::Fetch).to_string();
        assert!(
            flipped.contains("Fetch") && flipped.contains("5 to 2"),
            "{flipped}"
        );
        assert!(flipped.contains("4 to 18"), "{flipped}");
        let old = pick(Api::ListOffsets).to_string();
        assert!(
            old.contains("ListOffsets") && old.contains("0 to 0"),
            "{old}"
        );
        assert!(old.contains("1 to 10"), "{old}");
        let new = pick(Api::Metadata);
        assert_eq!(new.theirs, Some(VersionRange::new(14, 20)));
        let none = pick(Api::Heartbeat);
        assert_eq!(none.theirs, None);
        assert!(none.to_string().contains("Heartbeat"));
        let error = Error::from(new);
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert!(!error.is_retriable());
    }

    #[test]
    fn a_flipped_range_meets_nothing_even_where_its_ends_would() {
        // max(5, 4) = 5, min(2, 18) = 2: empty. But flipped on our side of a wide range must
        // not turn into a range either.
        let flipped = VersionRange::new(5, 2);
        assert!(flipped.intersect(VersionRange::new(0, 9)).is_empty());
        assert!(VersionRange::new(0, 9).intersect(flipped).is_empty());
    }

    #[test]
    fn of_equal_keys_the_last_counts() {
        let ranges = ApiRanges::new([(1, VersionRange::new(0, 1)), (1, VersionRange::new(0, 11))]);
        assert_eq!(ranges.of(Api::Fetch), Some(VersionRange::new(0, 11)));
        assert_eq!(ranges.iter().count(), 1);
    }

    #[test]
    fn keys_and_headers_agree_with_kafka_protocol() {
        for api in Api::ALL {
            let key = kp::ApiKey::try_from(api.key()).unwrap();
            assert_eq!(Api::from_key(api.key()), Some(api));
            assert_eq!(format!("{key:?}"), api.name());
            for v in api.versions().min..=api.versions().max {
                assert_eq!(api.request_header(v), key.request_header_version(v));
                assert_eq!(
                    api.response_header(v),
                    key.response_header_version(v),
                    "{api} {v}"
                );
            }
        }
    }
}
