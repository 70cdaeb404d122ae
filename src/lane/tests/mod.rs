//! Lanes and Runners together, against a naive model that watches every start and every result.

mod dealing;
mod model;
mod outcomes;
mod scenarios;
mod world;
