//! What becomes of each property of Kafka's own clients and of librdkafka.
//!
//! [`Kafka::from_properties`](crate::Kafka::from_properties) takes them by name; a `.properties` file
//! is read by [`properties::parse`](crate::properties::parse). Each name is set, or ignored with a
//! reason ([`Kafka::ignored_properties`](crate::Kafka::ignored_properties) lists those that were
//! given), or an error that offers the nearest known name. What is called on a builder afterwards
//! wins.
//!
//! ```
//! use laneway::{Kafka, StartOffset, Topics};
//! let kafka = Kafka::from_properties([
//!     ("bootstrap.servers", "kafka-1:9093,kafka-2:9093"),
//!     ("security.protocol", "SASL_SSL"),
//!     ("sasl.mechanism", "SCRAM-SHA-512"),
//!     ("sasl.username", "alice"),
//!     ("sasl.password", "swordfish"),
//!     ("group.id", "billing"),
//!     ("auto.offset.reset", "earliest"),
//! ])?;
//! let subscription = kafka
//!     .subscribe(Topics::named(["payments"])) // of the group `billing`
//!     .start_at(StartOffset::Latest); // wins
//! # Ok::<(), laneway::Error>(())
//! ```
//!
#![doc = include_str!("properties.md")]
