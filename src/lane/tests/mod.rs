//! Lanes and Runners together, against a naive model that watches every start and every result.

mod batches;
mod dealing;
mod ends;
mod model;
mod outcomes;
mod per_key;
mod scenarios;
mod world;

#[cfg(fuzzing)]
pub(crate) use model::fuzz;
