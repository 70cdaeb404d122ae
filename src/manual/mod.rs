//! The long explanations.
//!
//! * [`architecture`]: the two worlds, the way of a record, which thread does what.
//! * [`ordering`]: lanes, keys and batches; what settles, what is committed, what repeats.
//! * [`invariants`]: rules that are easy to break without noticing, each with what happens then.
//! * [`dead_letters`]: where a record goes that no run will do for, and how it comes back.
//! * [`connections`]: names, addresses, TLS, streams of your own, and what goes wrong.
//! * [`authentication`]: SASL: mechanisms, credentials that change, sessions, refusals.
//! * [`steering`]: pauses, seeks, hooks, streams; what holds a commit back; the end.
//! * [`tuning`]: the numbers you may set, and how to write a handler that runs well.
//! * [`properties`](mod@properties): what becomes of each property of Kafka's own clients.
//! * [`simulation`]: how whole groups are lived through by seeds, and what that has been seen to notice.
//! * [`quirks`]: what brokers do that one would not guess.
//!
//! The pages hold no code of the library; their examples are compiled and run by its tests.

pub mod architecture;
#[cfg(feature = "runtime")]
pub mod authentication;
#[cfg(feature = "runtime")]
pub mod connections;
pub mod dead_letters;
pub mod invariants;
pub mod ordering;
#[cfg(feature = "runtime")]
pub mod properties;
pub mod quirks;
pub mod simulation;
#[cfg(feature = "runtime")]
pub mod steering;
pub mod tuning;
