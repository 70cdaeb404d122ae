//! Lanes, keys and batches; what settles, what is committed, what repeats.
//!
//! # Lanes
//!
//! Without a `workers` call one record runs at a time. `workers(n)` runs up to `n` at once in any
//! order. `workers_by_key(n)` runs `n` lanes: records of one lane run one at a time, in offset
//! order; lanes run side by side. The lane key picks the lane:
//!
//! * [`LaneKey::Partition`](crate::LaneKey::Partition), the default: Kafka's own order. Where there
//!   are fewer lanes than partitions a lane serves several.
//! * [`LaneKey::RecordKey`](crate::LaneKey::RecordKey): topic and key. Two keys may share a lane and
//!   then wait for each other. Records without a key rotate over the lanes, in no order.
//! * [`LaneKey::by`](crate::LaneKey::by): a number that you make of the record.
//!
//! ```
//! use laneway::{Kafka, LaneKey, Topics};
//! let by_customer = LaneKey::by(|record| {
//!     let id = record.value()?.get(..8)?;
//!     Some(u64::from_be_bytes(id.try_into().ok()?))
//! });
//! let subscription = Kafka::new(["localhost:9092"])
//!     .subscribe(Topics::named(["orders"]).group("shipping"))
//!     .workers_by_key(64)
//!     .lane_key(by_customer);
//! ```
//!
//! Which key falls on which lane is decided by a seed that is new in every life: nobody can choose
//! keys that crowd one lane, and a lane's number means nothing outside.
//!
//! # Outcomes
//!
//! A record *settles* when its outcome is final: acked or dropped. Whatever else happens, it stays
//! open and its lane waits for it:
//!
//! | the handler | then |
//! |---|---|
//! | returns `()`, `Ok(..)`, `Outcome::Ack` | settled |
//! | returns `Outcome::Drop` | settled, counted apart |
//! | returns an error, `Outcome::Retry`, `Outcome::failed(..)` | runs again, after a wait that grows |
//! | returns `Outcome::RetryAfter(d)` | runs again after `d` |
//! | panics | as an error, with an event |
//! | never ends | open; its lane waits; closing has a deadline |
//!
//! ```
//! use laneway::{IntoOutcome, Outcome};
//! assert_eq!(().into_outcome(), Outcome::Ack);
//! assert_eq!(Err::<(), _>("no route").into_outcome(), Outcome::failed("no route"));
//! ```
//!
//! A waiting record parks its own lane and holds no executor. Nothing newer of its lane starts
//! before it has settled: across retries, rebalances, and the same partition granted anew.
//!
//! # Batches
//!
//! `batch(max)` hands over the next record and whatever has already arrived behind it, up to `max`;
//! it never waits for more. With lanes a batch is one lane's records. One outcome stands for all,
//! or a list has one for each: the acked ones settle, the failed ones run again before anything
//! newer of the lane. A record that failed before leads its batch.
//!
//! # Commits and what repeats
//!
//! [`Commit::Tracked`](crate::Commit::Tracked), the default, commits the watermark: the lowest
//! offset that has not settled. It is written every second, or after so many records, when asked,
//! and at the end of a drain. After a crash a partition resumes there: what had settled above it
//! runs again, so a handler sees a record *at least once*.
//!
//! * One slow record holds its partition's watermark back while thousands settle above it. They are
//!   safe in this life; in the next they would repeat.
//! * When a partition is revoked, nothing new starts, what is queued is dropped, what runs may end
//!   (`drain_max`), the result is committed, and only then is the partition given back. In lanes by
//!   partition nothing is settled above the watermark then, so nothing repeats. In lanes by key what
//!   settled above it repeats at the new owner.
//! * When a partition is lost (the session expired) nothing is committed and results count for
//!   nothing: another member may be at work. A handler can ask
//!   [`Record::lease_stands`](crate::Record::lease_stands).
//! * [`Commit::Auto`](crate::Commit::Auto) commits what has been handed out, settled or not. It
//!   promises nothing.
