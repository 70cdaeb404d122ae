//! What brokers do that one would not guess.
//!
//! Seen in frames of Kafka 4.3.1, 3.9.2 and 2.8.2, and in the reports of other clients' users. The
//! readers are tested on such frames (`protocol-tests/frames`), the embedded broker answers alike.
//!
//! # Versions
//!
//! * A request in a version that the broker does not know closes the connection without a byte.
//!   Only ApiVersions gets error 35, in a version 0 body under header 0, whatever was asked.
//! * Azure Event Hubs resets the connection on ApiVersions 4: the next try offers 3, then 0.
//! * A listed version is not always served: 4.3.1 lists Produce from 0 and closes on 0 to 2.
//!
//! # Answers
//!
//! * Topics and partitions come in another order than asked. Only Fetch kept it.
//! * Metadata 10 and 11 cannot be asked by topic id: the refusal is an *empty* cluster, which must not
//!   be taken for the cluster's state.
//! * Just after CreateTopics a leader may deny that it leads, for some tens of milliseconds.
//! * The first FindCoordinator of a cluster answers COORDINATOR_NOT_AVAILABLE and makes the topic.
//! * Throttled answers come at once; the broker then does not read for the named time.
//!
//! # Fetch
//!
//! * A batch comes whole even from its middle: records below the position are skipped. The first
//!   batch comes whole even above the limit; a later one may be cut.
//! * Compaction leaves gaps in batches, gaps between them, and batches without records.
//! * A batch with a delete horizon has it as base timestamp: deltas are then negative.
//! * With LogAppendTime every record has the batch's largest timestamp.
//! * `read_committed` answers end at the last stable offset: empty below the high watermark.
//! * Aborted batches and markers are in the answer of both isolations; the list of aborted
//!   transactions may come unsorted (Redpanda).
//! * A follower serves a consumer's fetch; only a broker without a replica says NOT_LEADER.
//! * Session id 0 in an answer means that there is no session, also to a request that asked for one.
//!
//! # Groups and offsets
//!
//! * MEMBER_ID_REQUIRED carries the id to come back with; another new id would leave a ghost.
//! * A commit is accepted while the others rejoin, though the heartbeat says 27.
//! * "Nothing committed" is offset -1 with error 0. Metadata that was null comes back as "".
//! * LeaveGroup from 3: the outer error is 0 while the member's own is 25.
//! * ListOffsets by time: -1 with error 0 means that no record is so late.
//! * An idle connection is cut after 10 minutes by Kafka, after 4 by some balancers, without a word
//!   from the latter: ours close after 235 s.
