//! Laneway: a Kafka client in pure Rust that processes records in ordered lanes and commits
//! exactly what has settled.

#[cfg(feature = "broker")]
pub mod broker;
pub mod cluster;
pub mod commit;
pub mod error;
pub mod fetch;
pub mod group;
pub mod ids;
pub mod lane;
pub mod pace;
pub mod records;
pub mod settle;
pub mod time;
pub mod wire;

pub use error::{Error, ErrorKind};
