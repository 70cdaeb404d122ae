//! The two worlds, the way of a record, which thread does what.
//!
//! # Two worlds
//!
//! The *core* computes: it takes bytes, values and the time, and gives back values, actions and
//! deadlines. It names no socket, no clock, no task and no source of randomness, so it can be
//! fuzzed, simulated and built for targets without any of these. The *shell* (`runtime`) moves
//! bytes, runs handlers and keeps time, and decides nothing. A test reads the tree and refuses a
//! core module that names what belongs to the shell.
//!
//! [`group`](crate::group), [`cluster`](crate::cluster), [`fetch`](crate::fetch),
//! [`commit`](crate::commit) and each connection ([`wire::Link`](crate::wire::Link)) are machines
//! with one contract: `handle_*(now, input)`, `poll_action()`, `next_deadline()`. They never call
//! each other. [`lane`](crate::lane) and [`settle`](crate::settle) are plain structures that know
//! no Kafka. One machine, the [`Engine`](crate::engine::Engine), is a whole subscription: it owns
//! the rest and moves what one says to the others. Whoever drives it (the tokio shell, a simulator,
//! a blocking loop) drives the very same client.
//!
//! # The way of a record
//!
//! ```text
//! socket -> wire (frame, header, answer) -> fetch (buffer per partition, one byte budget)
//!   -> records (checksum, decompress, index; no copy of a record)
//!   -> lane key -> lane queue -> group for an executor -> handler
//!   -> outcome -> (parked for a retry | settled) -> tracker -> watermark -> commit -> socket
//! ```
//!
//! * A frame is one allocation; uncompressed records stay slices of it, a compressed batch gets one
//!   buffer of its own when it is dealt. One reference count a batch, none a record.
//! * What has been fetched waits compressed. It is decoded in slices of a few MiB, so that
//!   heartbeats never wait for a backlog.
//! * Records travel to executors in *groups* and outcomes travel back in the same groups, so a
//!   record costs no allocation, lock, task or wake-up of its own. A record that is pending when its
//!   group is done is reported later, by itself.
//! * A [`Tracker`](crate::settle::Tracker) keeps one bit for each record above the watermark, the
//!   lowest offset that has not settled. That is the only thing that is ever committed.
//!
//! Control flows the other way: the group grants, drains and takes partitions; each such right is
//! a *lease* with an id that is never used again, and everything in flight carries the id it was
//! born under.
//!
//! # Threads
//!
//! * Engines and their sockets live on one thread of their own for each [`Kafka`](crate::Kafka)
//!   (clones share it). Handlers that block every worker of your runtime delay no heartbeat.
//! * Handlers run as tasks of the tokio runtime in which you called `run` or `start`, one *executor*
//!   task for each of its workers at most. Inside an executor the futures of many lanes are polled
//!   side by side.
//! * `run_blocking` starts a thread for each worker or lane.
//! * Functions that pick a lane ([`LaneKey::by`](crate::LaneKey::by)) and
//!   `on_event` run on the I/O thread: keep them quick.
//!
//! # Connections
//!
//! For a broker: JoinGroup and SyncGroup have a connection of their own, since the broker parks
//! them; heartbeats and commits share another, look-ups and metadata a third; fetches have up to two:
//! a *waiting* one (a session and a long poll, for partitions that are caught up) and a *prompt* one
//! (no session, no wait, for those with a backlog), and a third where records that were let go are
//! read again; dead letters have one of their own. None is opened before something must be sent.
