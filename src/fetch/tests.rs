//! Scenarios of fetching, each a script of answers.

mod batches;
mod budget;
mod model;
mod positions;
mod random;
mod requests;
mod rig;
