//! Lanes, keys and batches; what settles, what is committed, what repeats.
//!
//! # Lanes
//!
//! Without a `workers` call one record runs at a time. `workers(n)` runs up to `n` at once in any
//! order. `workers_by_key(n)` runs `n` lanes: records of one lane run one at a time, in offset
//! order; lanes run side by side. The lane key picks the lane:
//!
//! * [`LaneKey::Partition`](crate::LaneKey::Partition), the default: Kafka's own order. A partition's
//!   lane is picked by a hash, so that some lanes serve several, also where there are more lanes than
//!   partitions; with `lanes_per_key` each partition has a lane of its own.
//! * [`LaneKey::RecordKey`](crate::LaneKey::RecordKey): topic and key. Two keys may share a lane and
//!   then wait for each other. Records without a key rotate over the lanes, in no order.
//! * [`LaneKey::by`](crate::LaneKey::by): a number that you make of the record.
//!
//! `lanes_per_key(n)` has no fixed lanes: every live key has a lane of its own, and at most `n`
//! records run at once over all of them. A key is live while a record of it is held; two keys never
//! wait for each other, but for the cap and the one chance in 2^64 that their hashes agree. Records
//! without a key run in any order. A hot key takes one place of the `n`: with a million records of
//! it beside 1,000 cold keys, those start within one handler's time of what they would alone.
//!
//! Where more could run than may, what was read first starts first, over all lanes and keys. So none
//! starves, and a lane that fell behind catches up before the others are done.
//!
//! A lane by key that does not move (a handler that takes a minute, a record that waits for its
//! retry) must not fill the memory that the others need. When the byte budget has refused the next
//! fetch for a tenth of a second and nothing else flowed, the longest queue lets go of what lies
//! beyond its share, an eighth of the budget over all lanes (under `lanes_per_key`: a 512th for each
//! key). The log still has those records: they stay open in watermark, commits and lag, and are
//! read again, in order, when the lane is free. The snapshot counts them, and the bytes read twice.
//! How far this may go is `ahead_max`. It needs `Commit::Tracked`, and a lane key that depends on
//! nothing but the record.
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
//! | returns an error, `Outcome::Retry`, `Outcome::failed(..)` | runs again, as [`Retry`](crate::Retry) says |
//! | returns `Outcome::RetryAfter(d)` | runs again after `d` |
//! | returns `Outcome::dead_letter(..)` | written to the dead-letter topic, then settled; see [`dead_letters`](super::dead_letters) |
//! | returns `Outcome::Stop` | open; the subscription ends with an error that names it |
//! | panics | as an error, with an event |
//! | takes longer than `handler_timeout` | its future is dropped; as an error |
//! | hands out a delivery (`stream`) that is dropped without a word | as an error |
//! | never ends, without a time-out | open; its lane waits; closing has a deadline |
//!
//! `on_error` replaces what errors, panics and time-outs mean, by their type. A plain function of
//! `run_blocking` cannot be dropped: its lane waits until it returns, and what it returns too late
//! counts as failed.
//!
//! ```
//! use laneway::{IntoOutcome, Outcome};
//! assert_eq!(().into_outcome(), Outcome::Ack);
//! assert_eq!(Err::<(), _>("no route").into_outcome(), Outcome::failed("no route"));
//! ```
//!
//! A waiting record parks its own lane and holds no executor. Nothing newer of its lane starts
//! before it has settled: across retries, rebalances, and the same partition granted anew. The
//! handler sees which run it is ([`Record::attempt`](crate::Record::attempt)) and what the last one
//! failed with ([`Record::last_error`](crate::Record::last_error)).
//!
//! [`Retry`](crate::Retry) is none, fixed, exponential with jitter (the default, from 100 ms to 30 s,
//! without an end) or a function. A cap on attempts or age must name its end: a dead letter, drop,
//! stop, or keep trying. What waits for a retry or for a dead letter's write is bounded: by
//! `parked_max` lanes, 10,000 by default, and by the byte budget. At either bound no more is read
//! until something that waits has gone on; what had been read runs.
//!
//! # Batches
//!
//! `batch(max)` hands over the next record and whatever has already arrived behind it, up to `max`.
//! It does not wait for more, but for as long as `batch_wait` says; not at all where the budget has
//! stopped intake. With lanes a batch is one lane's records. One outcome stands for all,
//! or a list has one for each: the acked ones settle, the failed ones run again before anything
//! newer of the lane. A record that failed before leads its batch.
//!
//! # Commits and what repeats
//!
//! [`Commit::Tracked`](crate::Commit::Tracked), the default, commits the watermark: the lowest
//! offset that has not settled. It is written every second, or after so many records, when asked,
//! and at the end of a drain. Beside it stands the *offset map*: what has settled above the watermark
//! ([`OffsetMap::On`](crate::OffsetMap), the default). After a crash a partition resumes at the
//! watermark and passes over what the map covers; what had settled since the last acknowledged
//! commit, or did not fit the map, runs again, so a handler sees a record *at least once*.
//!
//! * One slow record holds its partition's watermark back while thousands settle above it: the map
//!   has them. Where it does not fit what a commit may carry, its lower part is kept, and a crash in
//!   that state repeats the rest; [`MapFull::Wait`](crate::MapFull) takes in no more instead.
//! * When a partition is revoked, nothing new starts, what is queued is dropped, what runs may end
//!   (`drain_max`), the result is committed with its map, and only then is the partition given back:
//!   nothing that settled repeats at the new owner, unless the map did not fit, or the new owner
//!   does not read it (another client).
//! * When a partition is lost (the session expired) nothing is committed and results count for
//!   nothing: another member may be at work. A handler can ask
//!   [`Record::lease_stands`](crate::Record::lease_stands), and wait for the end with
//!   [`Record::cancelled`](crate::Record::cancelled).
//! * [`Commit::Auto`](crate::Commit::Auto) commits what has been handed out, settled or not. It
//!   promises nothing.
