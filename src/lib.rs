//! Laneway: a Kafka client in pure Rust that processes records in ordered lanes and commits
//! exactly what has settled.
//!
//! Records of one key run one at a time and in order, records of different keys run side by side.
//! A record whose handler failed, crashed or never ended is read again, and a finished one beside
//! it holds nothing up.
//!
//! ```
//! # #[cfg(not(feature = "broker"))] fn main() {}
//! # #[cfg(feature = "broker")]
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     use laneway::broker::Server;
//!     use laneway::{Kafka, LaneKey, Record, Topics};
//!
//!     // A broker inside this program. With a real Kafka: Kafka::new(["host:9092"]).
//!     let orders = (0..100).map(|n| (format!("customer-{}", n % 7), format!("order {n}")));
//!     let server = Server::holding("orders", orders).await?;
//!
//!     let (done, mut handled) = tokio::sync::mpsc::unbounded_channel();
//!     let running = Kafka::new(server.bootstrap())
//!         .subscribe(Topics::named(["orders"]).group("shipping"))
//!         .workers_by_key(16)
//!         .lane_key(LaneKey::RecordKey)
//!         .start(move |record: Record| {
//!             let done = done.clone();
//!             // An error would run the record again; `Ok` settles it.
//!             async move { done.send(record.offset()).map_err(|e| e.to_string()) }
//!         })?;
//!
//!     for _ in 0..100 {
//!         handled.recv().await.expect("the subscription runs");
//!     }
//!     running.drain().await?; // runs what was dealt, commits, leaves the group
//!     let committed = server.cluster().committed("shipping", "orders", 0).map(|c| c.offset);
//!     assert_eq!(committed, Some(100));
//!     Ok(())
//! }
//! ```
//!
//! Start at [`Kafka`], [`Subscription`] and [`Running`]; the explanations are in the
//! [`manual`]. The features: `runtime` (default) is the tokio shell and the face; `tls` (default)
//! adds `Tls` with cryptography in pure Rust, `tls-aws-lc` and `tls-ring` with another one,
//! `tls-custom` with none but yours, `webpki-roots` authorities of its own; `broker` adds an
//! in-process Kafka broker for tests and demonstrations (`broker-core` without sockets); `msk-iam`
//! adds AWS's way to authenticate, `saslprep` RFC 4013 for passwords. Without features the crate is the core,
//! which a driver of your own can run: see [`engine`].

#[cfg(feature = "broker-core")]
pub mod broker;
pub mod cluster;
pub mod commit;
pub mod engine;
pub mod error;
pub mod fetch;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
pub mod handler;
pub mod ids;
pub mod lane;
pub mod manual;
pub mod pace;
pub mod produce;
#[cfg(feature = "runtime")]
mod producer;
#[cfg(feature = "runtime")]
pub mod properties;
pub mod record;
pub mod records;
#[cfg(feature = "runtime")]
mod runtime;
pub mod sasl;
pub mod settle;
#[cfg(feature = "runtime")]
mod subscription;
#[cfg(test)]
mod tidy;
pub mod time;
pub mod wire;

pub use engine::{
    CommitMode as Commit, DeadLetterHeaders, Event, Holdup, HoldupState, InFlight, LaneKey,
    LaneSnapshot, MapFull, OffsetMap, PartitionSnapshot, Recreated, RunningRecord,
    SNAPSHOT_LANES_MAX, Scope, SeekTo, Snapshot, TooLarge,
};
pub use error::{Error, ErrorKind};
pub use fetch::{LossPolicy, StartOffset};
pub use group::{Assignor, AssignorKind, GroupProtocol, OnClose};
pub use ids::TopicPartition;
pub use lane::{Exhausted, HandlerError, IntoOutcome, IntoOutcomes, Outcome, Retry};
pub use produce::{Outgoing, Written};
#[cfg(feature = "runtime")]
pub use producer::Producer;
pub use record::{Record, RecordLease};
#[cfg(feature = "tls-custom")]
pub use runtime::tls::{Tls, TlsVersion};
#[cfg(feature = "runtime")]
pub use runtime::{Connector, EVENTS_MAX, Events};
#[cfg(feature = "tls-custom")]
pub use rustls;
#[cfg(feature = "runtime")]
pub use subscription::stream::{Deliveries, Delivery, Handled, RESULTS_MAX, Results};
#[cfg(feature = "runtime")]
pub use subscription::{
    BatchSubscription, ClientCredentials, CredentialProvider, Interest, Kafka, Lag, Partitions,
    Running, Sasl, Subscription, Topics,
};
pub use wire::message::Isolation;

/// The README's program compiles.
#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
mod readme {}
