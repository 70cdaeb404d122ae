//! The `World` harness: engines, brokers, a network and a clock that are values.

mod checks;
pub mod faults;
pub mod handlers;
pub mod lives;
pub mod setting;
pub mod world;

pub use handlers::{Handled, Plan, Script};
pub use world::World;
