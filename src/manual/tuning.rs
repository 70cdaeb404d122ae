//! The numbers you may set, and how to write a handler that runs well.
//!
//! | setting | default | raise it when | lower it when |
//! |---|---|---|---|
//! | `workers`, `workers_by_key`, `lanes_per_key` | 1 | handlers wait (network, disk) | what they call cannot take it |
//! | `budget` | 64 MiB | many partitions, large batches, bursts | memory is scarce |
//! | `ahead_max` | 1,000,000 records | slow records among very many small ones | a crash should repeat less |
//! | `batch_bytes_max` | 64 MiB | a producer's batches inflate to more | a bomb should cost less |
//! | `commit_interval`, `commit_every` | 1 s, off | commits load the coordinator | a crash should repeat less |
//! | `session_timeout` | 45 s | long pauses of the whole process | a dead member should be noticed sooner |
//! | `drain_max` | 60 s | handlers run long and should end in a rebalance | rebalances should be quick |
//! | `parked_max` | 10,000 lanes | many keys may fail at once, the rest is to flow | what waits should stop intake sooner |
//! | `handler_timeout` | none | | what handlers call can hang |
//! | `stall_after` | 5 min | handlers run for hours | a record that hangs should be told of sooner |
//! | `metadata_max` | 4,096 characters | the brokers' `offset.metadata.max.bytes` is larger | |
//! | `fetch_wait_max` | 500 ms | idle clients should be idler | |
//!
//! # Memory
//!
//! The budget counts bytes from the moment a fetch is sent to the last use of the batch: what is on
//! its way, buffered, inflated, queued, running or parked. With nothing else held one batch may go
//! over it, so the bound is budget plus one batch. A [`Record`](crate::Record) shares its batch's
//! memory: keeping one keeps the batch, and counts. Copy what you want to keep for long;
//! `value_bytes()` shares too but no longer counts.
//!
//! An answer is held whole before it is read, as far as it has come: a length that is only claimed
//! reserves nothing. One of more than 96 MiB (256 MiB, or what `batch_bytes_max` needs, for a
//! fetch) costs its connection. That is what a hostile broker can take, for each connection to it.
//!
//! A partition is left out of fetches while it holds more than is free, so that one slow partition
//! never takes it all. A lane by key that does not move lets its queued records go and reads them
//! again from the log when it is free: see [`ordering`](super::ordering). A lane by partition that is
//! stuck fills its partition's part, and its partition waits.
//!
//! # Handlers
//!
//! * **A future that is large is moved and kept.** Each executor holds one slot for each lane whose
//!   record is pending, as large as the future. Box large state (`Box::pin(async move { .. })` around
//!   the rare branch that needs a 64 KiB buffer) instead of keeping it in every slot.
//! * **A future that is ready at once is the cheapest:** no allocation, no wake-up. Handlers of pure
//!   computation cost tens of nanoseconds of ours.
//! * **Computation of more than a millisecond belongs in `run_blocking`,** which gives each lane a
//!   thread. In `run` it delays the other lanes of its executor, though never heartbeats.
//! * **A lane function must be pure:** the same record, read again after a retry or a rebalance, must
//!   give the same number, or order means nothing. It runs on the I/O thread. A panic in it stops
//!   the partition at that record.
//! * **Panics are caught**, unless the program is built with `panic = "abort"`: then one ends the
//!   process, and the records that were open run again in the next life.
//! * **A handler that never ends** holds its lane, its partition's watermark and, once the partition
//!   is `ahead_max` above it, its partition. Put a time-out around what can hang, or set
//!   `handler_timeout`; `stall_after` says of such a record, `stop_when_stalled` ends the
//!   subscription for it.
//!
//! ```
//! use laneway::Outcome;
//! use std::time::Duration;
//!
//! async fn charge() -> Result<(), String> {
//!     Ok(())
//! }
//!
//! async fn handle() -> Outcome {
//!     match tokio::time::timeout(Duration::from_secs(5), charge()).await {
//!         Ok(Ok(())) => Outcome::Ack,
//!         Ok(Err(why)) => Outcome::failed(why),
//!         Err(_late) => Outcome::RetryAfter(Duration::from_secs(1)),
//!     }
//! }
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # assert_eq!(runtime.block_on(handle()), Outcome::Ack);
//! ```
//!
//! # Batches
//!
//! `batch(n)` pays where the work has a price for each call: a database transaction, a request. A
//! batch does not wait for more, unless `batch_wait` says so: under little load it is small and quick,
//! under much load large.
//!
//! # Ending
//!
//! `drain()` takes no more, runs what was dealt, commits, leaves. `close(deadline)` drops what has
//! not started and waits for what runs, no longer than the deadline. Dropping the handle closes at
//! once. None of them blocks a thread.
