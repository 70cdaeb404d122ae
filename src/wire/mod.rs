//! Frames, headers, API versions, bounded readers of answers, and one connection as a machine.

pub mod message;
