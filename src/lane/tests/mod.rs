//! Lanes and Runners together, against a naive model that watches every start and every result.

mod dealing;
mod model;
mod scenarios;
mod world;
