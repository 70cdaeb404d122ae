//! Where a record goes that no run will do for, and how it comes back.
//!
//! A record becomes a dead letter when its attempts or its age run out
//! ([`Retry`](crate::Retry)), or when its handler says so
//! ([`Outcome::DeadLetter`](crate::Outcome)). [`Subscription::dead_letter`] names the topic.
//!
//! [`Subscription::dead_letter`]: crate::Subscription::dead_letter
//!
//! # What is promised
//!
//! * The record settles because every replica in sync has its dead letter, for no other reason. Until
//!   then its offset is not committed and its lane waits; all other lanes go on.
//! * Key, value, headers and timestamp are those of the record, byte for byte; null stays null and
//!   empty stays empty. What is added stands behind its own headers
//!   ([`DeadLetterHeaders`](crate::DeadLetterHeaders)). In a topic with LogAppendTime the broker sets
//!   the timestamp; a header has the record's own.
//! * The key picks the partition as Java's producer does, so the letters of a key stay together, in
//!   order. Records without a key go anywhere.
//! * The write is idempotent: answers that are lost, leaders that move and brokers that come back
//!   make no second letter. A second one comes to be where a lease ended between the write and its
//!   acknowledgement (whoever gets the partition runs the record again), after a crash in that
//!   moment, and where a leader has lost what it knew of us (an unclean election).
//!
//! # What may go wrong
//!
//! | | what happens | what is said |
//! |---|---|---|
//! | the topic is missing | records that need it wait; it is never made | a warning at the start, or when it vanishes |
//! | it is forbidden | they wait, and the write is tried again, from every second to every minute | a warning at the start where metadata tells, else at the first write |
//! | its leader is away, replicas are missing, a disk is full | they wait, and it is tried every second | a warning once it lasts |
//! | the letter is too large | it is cut, and headers say so; or the subscription ends ([`TooLarge`](crate::TooLarge)) | a warning, or the error |
//! | the topic is deleted and made anew | what was acknowledged is gone with it, the rest is written to the new one | a warning |
//! | the subscription is drained | it waits for the letters that are out | |
//! | it is closed, or the partition is taken away | they have the time that running handlers have | an event counts those that were not in time |
//!
//! So a record is never lost for want of a dead-letter topic, and never tried without a pause. What
//! it costs is progress: the lanes of such records stand, their partitions' watermarks with them, and
//! in the end the partitions.
//!
//! Dead letters hold their batch's memory, which the budget counts, and their lanes are bounded like
//! those of retries. Beside that at most 4 MiB of them (or one larger one) are copied for sending.
//!
//! [`Event::DeadLettered`](crate::Event) tells of each, [`Snapshot`](crate::Snapshot) counts them.
//!
//! # Bringing them back
//!
//! `examples/redrive.rs` writes each letter to where its headers say it is from, without the added
//! headers, in order for each key; what it has brought back it commits. It is a subscription like any
//! other, with a [`Producer`](crate::Producer).
//!
//! # How it writes
//!
//! One batch of a partition is in flight, and what is sent again is the same bytes under the same
//! sequence number. Where a leader answers that it does not know what came before (codes 45, 47, 59),
//! the epoch is raised and writing goes on from sequence 0, as Kafka's own client does (KIP-360). A
//! batch that is refused for one of its records is halved until that record is alone.
