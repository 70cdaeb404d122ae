//! The `World` harness: engines, brokers, a network and a clock that are values.

mod checks;
pub mod handlers;
pub mod setting;
pub mod world;

pub use handlers::{Handled, Plan, Script};
pub use world::World;
