//! The `World` harness: engines, brokers, a network and a clock that are values.

pub mod world;

pub use world::{Handled, Plan, Script, World};
