//! Starts a real Kafka, and the tests that need one.
//!
//! What it is: a launcher of Apache Kafka from its jars ([`Kafka`]), Kafka's own clients as a
//! second opinion (`java/Agent.java`, reached through [`Kafka::ask`]), members of other makes for
//! mixed groups ([`member`]), ours ([`subject`]), the log that it leaves behind ([`handlings`])
//! and its [`judge`], three nodes that are never left alone ([`chaos`]), and a runner that can say "ignored" at run time ([`runner`]), which libtest
//! cannot.
//!
//! What it is not: Docker, or a place for scenarios that need no real broker; those are in
//! `protocol-tests`, in virtual time.
//!
//! Where a Kafka comes from, in this order:
//!
//! 1. `LANEWAY_KAFKA=host:port,...`: one that runs already. Tests that kill or freeze a node still
//!    start their own. `LANEWAY_KAFKA=docker`, or `docker:IMAGE:TAG`, takes it from a container,
//!    with the feature `docker`: that compiles, and has not been seen to run, since no Docker
//!    answered where it was written.
//! 2. Maven Central's jars of `LANEWAY_KAFKA_VERSION` (default 4.3.1), if `java` (17 or later) and
//!    `mvn` are there; jars are kept under `$XDG_CACHE_HOME` (`~/.cache`)`/laneway-kafka`.
//! 3. Nowhere: the tests are listed as ignored, with the reason. `LANEWAY_REQUIRE_KAFKA=1` makes
//!    that a failure.
//!
//! Invariants:
//!
//! 1. Every process started here is gone once the test process is, however that ended
//!    ([`process`] keeps a guard that outlives it).
//! 2. Every wait has a named limit.

pub mod agent;
pub mod chaos;
#[cfg(feature = "docker")]
mod docker;
pub mod handlings;
pub mod jars;
pub mod judge;
pub mod kafka;
pub mod member;
mod node;
pub mod process;
pub mod runner;
pub mod subject;

pub use kafka::Kafka;
