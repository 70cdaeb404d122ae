//! Frames, headers, API versions, bounded readers of answers, and one connection as a machine.
//!
//! What comes in: bytes of a socket, cut into frames by a [`Framer`]. A [`Link`] is one
//! connection: it learns what the broker speaks, numbers requests, matches answers and keeps
//! time. [`Request`] and [`Response`] are free of versions; the version lives only between
//! [`Request::encode`] and [`Response::decode`].
//!
//! It is not a client: it knows no cluster, opens no socket and tries nothing again.
//!
//! Invariants:
//!
//! 1. No bytes of a peer panic a reader or make it spin: every loop takes bytes or ends.
//! 2. A frame's buffer grows only as its bytes come, and never past the cap. Reading an answer
//!    allocates at most [`ALLOCATION_FACTOR`] times its frame; record bytes and member metadata
//!    are slices of the frame.
//! 3. Every request given to a [`Link`] is answered exactly once.
//! 4. Answers are matched in the order of the requests; anything else ends the link.
//!
//! KIP-35 and KIP-511 (versions), KIP-219 (throttling), KIP-482 (tagged fields), KIP-516 (topic
//! ids).

mod api;
mod code;
mod consumer_group;
mod fetch_reader;
mod frame;
mod link;
pub mod message;
mod produce;
mod reader;
mod request;
mod response;

pub use api::{Api, ApiRanges, VersionError, VersionRange};
pub use frame::{FrameError, Framer};
pub use link::{Link, LinkAction, LinkConfig};
pub use message::Code;
pub use reader::{WireError, WireFault};
pub use request::Request;
pub use response::{Response, split_header};

/// How many times its body an answer may take, counting what the reader allocates beside the
/// frame. The worst whole list is one of topics named by one letter: 4 bytes become a topic of 56
/// and a shared string of 24, 20 times. Lists inside lists each reserve what they claim before the
/// innermost turns out to be wrong: in a fetch of version 12 that adds up to 31 times. Record bytes
/// are slices and cost nothing.
pub const ALLOCATION_FACTOR: usize = 32;
