//! Kafka's error codes: their names, and what to do about each.

use std::fmt;

use super::message::Code;
use crate::error::{Error, ErrorKind};

impl Code {
    /// 0: no error.
    pub const NONE: Code = Code(0);
    /// The offset asked for is not in the log.
    pub const OFFSET_OUT_OF_RANGE: Code = Code(1);
    /// The broker found a batch corrupt.
    pub const CORRUPT_MESSAGE: Code = Code(2);
    /// The broker does not host the partition, or nobody does.
    pub const UNKNOWN_TOPIC_OR_PARTITION: Code = Code(3);
    /// An election is under way.
    pub const LEADER_NOT_AVAILABLE: Code = Code(5);
    /// Another broker leads.
    pub const NOT_LEADER_OR_FOLLOWER: Code = Code(6);
    /// The broker gave up waiting.
    pub const REQUEST_TIMED_OUT: Code = Code(7);
    /// A record, or its batch, is larger than the topic allows.
    pub const MESSAGE_TOO_LARGE: Code = Code(10);
    /// The commit's metadata is longer than the broker allows.
    pub const OFFSET_METADATA_TOO_LARGE: Code = Code(12);
    /// The coordinator is loading its log.
    pub const COORDINATOR_LOAD_IN_PROGRESS: Code = Code(14);
    /// There is no coordinator now.
    pub const COORDINATOR_NOT_AVAILABLE: Code = Code(15);
    /// Another broker coordinates.
    pub const NOT_COORDINATOR: Code = Code(16);
    /// No topic may have that name.
    pub const INVALID_TOPIC: Code = Code(17);
    /// The batch is larger than a segment of the log.
    pub const RECORD_LIST_TOO_LARGE: Code = Code(18);
    /// The group is at another generation.
    pub const ILLEGAL_GENERATION: Code = Code(22);
    /// The members have no assignor in common.
    pub const INCONSISTENT_GROUP_PROTOCOL: Code = Code(23);
    /// The group id is empty or too long.
    pub const INVALID_GROUP_ID: Code = Code(24);
    /// The group does not know the member.
    pub const UNKNOWN_MEMBER_ID: Code = Code(25);
    /// The session time-out is outside the broker's limits.
    pub const INVALID_SESSION_TIMEOUT: Code = Code(26);
    /// The group is rebalancing.
    pub const REBALANCE_IN_PROGRESS: Code = Code(27);
    /// Not allowed on the topic.
    pub const TOPIC_AUTHORIZATION_FAILED: Code = Code(29);
    /// Not allowed on the group.
    pub const GROUP_AUTHORIZATION_FAILED: Code = Code(30);
    /// Not allowed on the cluster.
    pub const CLUSTER_AUTHORIZATION_FAILED: Code = Code(31);
    /// The version is not known.
    pub const UNSUPPORTED_VERSION: Code = Code(35);
    /// The broker did not understand the request.
    pub const INVALID_REQUEST: Code = Code(42);
    /// The topic does not take a record's time.
    pub const INVALID_TIMESTAMP: Code = Code(32);
    /// The producer's batch does not follow the one before it.
    pub const OUT_OF_ORDER_SEQUENCE_NUMBER: Code = Code(45);
    /// The producer's batch is there already, and its place is forgotten.
    pub const DUPLICATE_SEQUENCE_NUMBER: Code = Code(46);
    /// The producer's epoch is old.
    pub const INVALID_PRODUCER_EPOCH: Code = Code(47);
    /// A disk of the broker failed.
    pub const KAFKA_STORAGE_ERROR: Code = Code(56);
    /// The credentials were refused.
    pub const SASL_AUTHENTICATION_FAILED: Code = Code(58);
    /// The broker knows nothing of the producer.
    pub const UNKNOWN_PRODUCER_ID: Code = Code(59);
    /// The broker forgot the fetch session.
    pub const FETCH_SESSION_ID_NOT_FOUND: Code = Code(70);
    /// The fetch session is at another epoch.
    pub const INVALID_FETCH_SESSION_EPOCH: Code = Code(71);
    /// The leader has no listener of our kind.
    pub const LISTENER_NOT_FOUND: Code = Code(72);
    /// Our leader epoch is old.
    pub const FENCED_LEADER_EPOCH: Code = Code(74);
    /// Our leader epoch is newer than the broker's.
    pub const UNKNOWN_LEADER_EPOCH: Code = Code(75);
    /// The broker cannot give the records in a form that we read.
    pub const UNSUPPORTED_COMPRESSION_TYPE: Code = Code(76);
    /// The leader's high watermark is not known yet.
    pub const OFFSET_NOT_AVAILABLE: Code = Code(78);
    /// Join again with the member id of the answer.
    pub const MEMBER_ID_REQUIRED: Code = Code(79);
    /// There is no such group, or it is of another kind.
    pub const GROUP_ID_NOT_FOUND: Code = Code(69);
    /// Another member still holds our instance id.
    pub const UNRELEASED_INSTANCE_ID: Code = Code(111);
    /// The broker has no such assignor.
    pub const UNSUPPORTED_ASSIGNOR: Code = Code(112);
    /// The broker cannot read the regular expression.
    pub const INVALID_REGULAR_EXPRESSION: Code = Code(128);
    /// The group has as many members as it may.
    pub const GROUP_MAX_SIZE_REACHED: Code = Code(81);
    /// Another member took our instance id.
    pub const FENCED_INSTANCE_ID: Code = Code(82);
    /// The broker refuses a record of the batch.
    pub const INVALID_RECORD: Code = Code(87);
    /// Open transactions hide the committed offset.
    pub const UNSTABLE_OFFSET_COMMIT: Code = Code(88);
    /// No topic has that id.
    pub const UNKNOWN_TOPIC_ID: Code = Code(100);
    /// The topic was made anew under its name.
    pub const INCONSISTENT_TOPIC_ID: Code = Code(103);
    /// The fetch session mixes ids and names.
    pub const FETCH_SESSION_TOPIC_ID_ERROR: Code = Code(106);
    /// The group's epoch for us is another.
    pub const FENCED_MEMBER_EPOCH: Code = Code(110);
    /// Our member epoch is old.
    pub const STALE_MEMBER_EPOCH: Code = Code(113);
    /// What we know of the cluster is too old (KIP-1102).
    pub const REBOOTSTRAP_REQUIRED: Code = Code(129);

    /// No error.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Code::NONE
    }

    /// `Ok` where there is no error.
    ///
    /// # Errors
    ///
    /// The code itself.
    pub fn ok(self) -> Result<(), Code> {
        match self.is_none() {
            true => Ok(()),
            false => Err(self),
        }
    }

    /// Whether the same request may succeed later, perhaps elsewhere. As Kafka's own client has
    /// it, and also where only we must find out more first (a member id, the coordinator).
    #[must_use]
    pub fn is_retriable(self) -> bool {
        matches!(
            self.0,
            2 | 3
                | 5..=7
                | 9
                | 13..=16
                | 19
                | 20
                | 41
                | 51
                | 56
                | 70..=72
                | 74
                | 75
                | 78..=80
                | 83
                | 84
                | 88
                | 89
                | 100
                | 103
                | 106
                | 113
                | 122
                | 123
                | 133
        )
    }

    /// Whether what we know of topics and leaders is old: ask for metadata first.
    #[must_use]
    pub fn wants_metadata(self) -> bool {
        matches!(
            self,
            Code::UNKNOWN_TOPIC_OR_PARTITION
                | Code::LEADER_NOT_AVAILABLE
                | Code::NOT_LEADER_OR_FOLLOWER
                | Code(9) // REPLICA_NOT_AVAILABLE
                | Code::KAFKA_STORAGE_ERROR
                | Code::LISTENER_NOT_FOUND
                | Code::FENCED_LEADER_EPOCH
                | Code::UNKNOWN_LEADER_EPOCH
                | Code::UNKNOWN_TOPIC_ID
                | Code::INCONSISTENT_TOPIC_ID
                | Code::REBOOTSTRAP_REQUIRED
        )
    }

    /// Whether another broker coordinates now: look for it first.
    #[must_use]
    pub fn wants_coordinator(self) -> bool {
        matches!(
            self,
            Code::COORDINATOR_NOT_AVAILABLE | Code::NOT_COORDINATOR
        )
    }

    /// Whether the member must join its group again.
    #[must_use]
    pub fn wants_rejoin(self) -> bool {
        matches!(
            self,
            Code::ILLEGAL_GENERATION
                | Code::UNKNOWN_MEMBER_ID
                | Code::REBALANCE_IN_PROGRESS
                | Code::MEMBER_ID_REQUIRED
                | Code::FENCED_MEMBER_EPOCH
        )
    }

    /// Whether the membership is over: its partitions are lost, not revoked. Nothing may be
    /// committed for them.
    #[must_use]
    pub fn ends_membership(self) -> bool {
        matches!(
            self,
            Code::ILLEGAL_GENERATION
                | Code::UNKNOWN_MEMBER_ID
                | Code::FENCED_INSTANCE_ID
                | Code::FENCED_MEMBER_EPOCH
        )
    }

    /// Whether the broker does not know us: credentials or their mechanism.
    #[must_use]
    pub fn is_authentication(self) -> bool {
        matches!(self.0, 33 | 34 | 58 | 61..=66 | 93)
    }

    /// Whether the broker knows us and forbids it.
    #[must_use]
    pub fn is_authorization(self) -> bool {
        matches!(self.0, 29..=31 | 53 | 65)
    }

    /// Whether trying again, unchanged, cannot help: neither retriable nor cured by metadata, a
    /// coordinator or a new join.
    #[must_use]
    pub fn is_fatal(self) -> bool {
        !self.is_none()
            && !self.is_retriable()
            && !self.wants_metadata()
            && !self.wants_coordinator()
            && !self.wants_rejoin()
    }

    /// Kafka's name of it; `UNKNOWN` for a code newer than we are.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self.0 == -1 {
            return "UNKNOWN_SERVER_ERROR";
        }
        let known = usize::try_from(self.0).ok().and_then(|i| NAMES.get(i));
        known.copied().unwrap_or("UNKNOWN")
    }

    /// Its name and number, and where there is something to say, what happened and what the user
    /// can do.
    #[must_use]
    pub fn describe(self) -> String {
        match self.advice() {
            "" => self.to_string(),
            advice => format!("{self}: {advice}"),
        }
    }

    /// As an error of kind [`ErrorKind::Broker`]; `what` says what we asked, such as "commit".
    #[must_use]
    pub fn to_error(self, what: &str) -> Error {
        let message = format!("{what} failed with {}", self.describe());
        let error = Error::new(ErrorKind::Broker, message).with_code(self.0);
        match self.is_fatal() {
            true => error,
            false => error.retriable(),
        }
    }

    fn advice(self) -> &'static str {
        match self.0 {
            -1 => "the broker failed in a way it has no code for; its log says more",
            1 => "the offset is not in the log: deleted by retention, or never written",
            2 => "the broker found a batch corrupt; its log and disk need a look",
            3 => "the topic or partition does not exist, or we may not see it; check its name",
            4 => "the fetch size is not valid",
            5 | 6 => "leadership is moving; this passes by itself",
            7 => "the broker could not do it in time",
            9 => "no replica of the partition is there",
            10 => "a record is larger than max.message.bytes of the topic",
            12 => "the commit's metadata is over offset.metadata.max.bytes of the broker",
            14 => "the coordinator is loading the group's offsets; this passes by itself",
            15 => {
                "no coordinator for the group yet; this passes unless __consumer_offsets has no leader"
            }
            16 => "the group's coordinator has moved; this passes by itself",
            17 => "no topic may have this name",
            22 | 25 => "the member is no longer in its group: it was too slow, or was put out",
            23 => "the members of the group have no assignor in common; give all the same list",
            24 => "the group id is empty or not valid",
            26 => "the session time-out is outside group.min and group.max.session.timeout.ms",
            27 => "the group is rebalancing; this passes by itself",
            29 => "this principal may not read (or describe) the topic; grant it",
            30 => "this principal may not read the group; grant it",
            31 => "this principal may not do that to the cluster; grant it",
            33 => "the broker does not have this SASL mechanism on this listener",
            34 => "the listener does not do SASL, or expected another step of it",
            35 => "the broker does not know this version of the request",
            42 => "the broker did not understand the request; its log says more",
            56 => "a disk of the broker failed",
            58 => "the broker refused the credentials; check user, password and mechanism",
            74 | 75 => "leadership has moved and not all know yet; this passes by itself",
            76 => "the records are compressed in a way that this version of fetch cannot carry",
            79 => "the broker wants us to join with the member id that it gave",
            81 => "the group has group.max.size members",
            82 => "another member uses the same group.instance.id; give each its own",
            88 => "a transaction that commits offsets is open; this passes when it ends",
            89 => "the broker's quota is used up",
            100 => "no topic has this id: it was deleted, or made anew under its name",
            103 => "the topic was deleted and made anew under its name",
            110 | 113 => "the group has another epoch for this member",
            111 => "another member still holds the same group.instance.id",
            112 => "the broker does not have this assignor",
            129 => "what we know of the cluster is too old; we begin from the bootstrap servers",
            _ => "",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Kafka's names by code, from 0.
const NAMES: [&str; 134] = [
    "NONE",
    "OFFSET_OUT_OF_RANGE",
    "CORRUPT_MESSAGE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "INVALID_FETCH_SIZE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "MESSAGE_TOO_LARGE",
    "STALE_CONTROLLER_EPOCH",
    "OFFSET_METADATA_TOO_LARGE",
    "NETWORK_EXCEPTION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "INVALID_TOPIC_EXCEPTION",
    "RECORD_LIST_TOO_LARGE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "INVALID_REQUIRED_ACKS",
    "ILLEGAL_GENERATION",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_GROUP_ID",
    "UNKNOWN_MEMBER_ID",
    "INVALID_SESSION_TIMEOUT",
    "REBALANCE_IN_PROGRESS",
    "INVALID_COMMIT_OFFSET_SIZE",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_TIMESTAMP",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "UNSUPPORTED_VERSION",
    "TOPIC_ALREADY_EXISTS",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_REPLICA_ASSIGNMENT",
    "INVALID_CONFIG",
    "NOT_CONTROLLER",
    "INVALID_REQUEST",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "POLICY_VIOLATION",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "DUPLICATE_SEQUENCE_NUMBER",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_TXN_STATE",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TRANSACTION_TIMEOUT",
    "CONCURRENT_TRANSACTIONS",
    "TRANSACTION_COORDINATOR_FENCED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SECURITY_DISABLED",
    "OPERATION_NOT_ATTEMPTED",
    "KAFKA_STORAGE_ERROR",
    "LOG_DIR_NOT_FOUND",
    "SASL_AUTHENTICATION_FAILED",
    "UNKNOWN_PRODUCER_ID",
    "REASSIGNMENT_IN_PROGRESS",
    "DELEGATION_TOKEN_AUTH_DISABLED",
    "DELEGATION_TOKEN_NOT_FOUND",
    "DELEGATION_TOKEN_OWNER_MISMATCH",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "DELEGATION_TOKEN_EXPIRED",
    "INVALID_PRINCIPAL_TYPE",
    "NON_EMPTY_GROUP",
    "GROUP_ID_NOT_FOUND",
    "FETCH_SESSION_ID_NOT_FOUND",
    "INVALID_FETCH_SESSION_EPOCH",
    "LISTENER_NOT_FOUND",
    "TOPIC_DELETION_DISABLED",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "STALE_BROKER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "MEMBER_ID_REQUIRED",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "GROUP_MAX_SIZE_REACHED",
    "FENCED_INSTANCE_ID",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "ELECTION_NOT_NEEDED",
    "NO_REASSIGNMENT_IN_PROGRESS",
    "GROUP_SUBSCRIBED_TO_TOPIC",
    "INVALID_RECORD",
    "UNSTABLE_OFFSET_COMMIT",
    "THROTTLING_QUOTA_EXCEEDED",
    "PRODUCER_FENCED",
    "RESOURCE_NOT_FOUND",
    "DUPLICATE_RESOURCE",
    "UNACCEPTABLE_CREDENTIAL",
    "INCONSISTENT_VOTER_SET",
    "INVALID_UPDATE_VERSION",
    "FEATURE_UPDATE_FAILED",
    "PRINCIPAL_DESERIALIZATION_FAILURE",
    "SNAPSHOT_NOT_FOUND",
    "POSITION_OUT_OF_RANGE",
    "UNKNOWN_TOPIC_ID",
    "DUPLICATE_BROKER_REGISTRATION",
    "BROKER_ID_NOT_REGISTERED",
    "INCONSISTENT_TOPIC_ID",
    "INCONSISTENT_CLUSTER_ID",
    "TRANSACTIONAL_ID_NOT_FOUND",
    "FETCH_SESSION_TOPIC_ID_ERROR",
    "INELIGIBLE_REPLICA",
    "NEW_LEADER_ELECTED",
    "OFFSET_MOVED_TO_TIERED_STORAGE",
    "FENCED_MEMBER_EPOCH",
    "UNRELEASED_INSTANCE_ID",
    "UNSUPPORTED_ASSIGNOR",
    "STALE_MEMBER_EPOCH",
    "MISMATCHED_ENDPOINT_TYPE",
    "UNSUPPORTED_ENDPOINT_TYPE",
    "UNKNOWN_CONTROLLER_ID",
    "UNKNOWN_SUBSCRIPTION_ID",
    "TELEMETRY_TOO_LARGE",
    "INVALID_REGISTRATION",
    "TRANSACTION_ABORTABLE",
    "INVALID_RECORD_STATE",
    "SHARE_SESSION_NOT_FOUND",
    "INVALID_SHARE_SESSION_EPOCH",
    "FENCED_STATE_EPOCH",
    "INVALID_VOTER_KEY",
    "DUPLICATE_VOTER",
    "VOTER_NOT_FOUND",
    "INVALID_REGULAR_EXPRESSION",
    "REBOOTSTRAP_REQUIRED",
    "STREAMS_INVALID_TOPOLOGY",
    "STREAMS_INVALID_TOPOLOGY_EPOCH",
    "STREAMS_TOPOLOGY_FENCED",
    "SHARE_SESSION_LIMIT_REACHED",
];

#[cfg(test)]
mod tests {
    use kafka_protocol::error::ResponseError;

    use super::*;

    fn all() -> impl Iterator<Item = Code> {
        (-1..i16::try_from(NAMES.len()).unwrap()).map(Code)
    }

    /// `NotLeaderOrFollower` as Kafka writes it.
    fn screaming(name: &str) -> String {
        let mut out = String::new();
        for (i, c) in name.char_indices() {
            if i > 0 && c.is_uppercase() {
                out.push('_');
            }
            out.extend(c.to_uppercase());
        }
        out
    }

    #[test]
    fn names_and_retriability_agree_with_kafka_protocol() {
        for code in all().filter(|c| !c.is_none()) {
            let theirs = ResponseError::try_from_code(code.0).unwrap();
            assert_eq!(code.name(), screaming(&format!("{theirs:?}")), "{code}");
            assert!(code.is_retriable() || !theirs.is_retriable(), "{code}");
            // Where we go further: what must be found out first, and a transaction still ending.
            if code.is_retriable() && !theirs.is_retriable() {
                assert!(matches!(code.0, 51 | 79 | 113), "{code}");
            }
        }
        assert_eq!(Code(500).name(), "UNKNOWN");
        assert_eq!(Code(-7).name(), "UNKNOWN");
    }

    #[test]
    fn every_code_is_in_one_camp() {
        assert!(!Code::NONE.is_fatal() && !Code::NONE.is_retriable() && Code::NONE.ok().is_ok());
        for code in all().filter(|c| !c.is_none()) {
            let curable = code.is_retriable()
                || code.wants_metadata()
                || code.wants_coordinator()
                || code.wants_rejoin();
            assert_eq!(code.is_fatal(), !curable, "{code}");
            if code.is_authentication() || code.is_authorization() {
                assert!(code.is_fatal(), "{code} cannot pass by itself");
            }
        }
        assert!(Code(9_999).is_fatal());
    }

    #[test]
    fn errors_carry_the_code_the_name_and_what_to_do() {
        let error = Code::GROUP_AUTHORIZATION_FAILED.to_error("joining group g");
        assert_eq!((error.kind(), error.code()), (ErrorKind::Broker, Some(30)));
        assert!(!error.is_retriable());
        let words = error.to_string();
        assert!(
            words.contains("GROUP_AUTHORIZATION_FAILED") && words.contains("grant"),
            "{words}"
        );
        assert!(Code::NOT_COORDINATOR.to_error("commit").is_retriable());
        assert_eq!(Code(500).describe(), "UNKNOWN (500)");
    }
}
