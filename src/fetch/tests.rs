//! Scenarios of fetching, each a script of answers.

mod budget;
mod positions;
mod requests;
mod rig;
