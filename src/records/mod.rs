//! Record batches: what a fetch answer's `records` field holds and a produce request carries.
//!
//! It reads and writes batches of message format v2 (KIP-98), and reads message sets of formats 0
//! and 1, which logs from before Kafka 0.11 and topics that were never raised from it still hold;
//! one field may hold all three. It knows no topic, no position and no session: `fetch` asks, this
//! module answers.
//!
//! What holds:
//!
//! 1. A batch is decoded whole or refused whole; nothing of a refused one is ever seen. A message
//!    set, whose messages have checksums of their own, is judged message by message.
//! 2. A batch's checksum is verified before anything in it is believed, compressed or not.
//! 3. Offsets inside a batch rise, end at its last offset and fit in an `i64`; batches of one field
//!    rise too.
//! 4. No bytes panic, loop without consuming, or make us take more than twice
//!    [`Limits::inflated_max`] and the codecs' own state. Sizes that are only claimed reserve no
//!    more than the bytes that came could hold.
//! 5. A record costs no allocation and no reference count of its own: one buffer and one index for
//!    the batch.
//!
//! ```
//! use laneway::records::{BatchBuilder, Compression, Decoder, Encoder, Limits, Piece, split};
//!
//! let mut batch = BatchBuilder::new(100).compression(Compression::Zstd);
//! batch.push(1_000, Some(b"key"), Some(b"value"), &[])?;
//! let bytes = batch.build(&mut Encoder::new())?;
//!
//! let mut decoder = Decoder::new();
//! for piece in split(bytes) {
//!     let Piece::Batch(raw) = piece.map_err(|e| e.into_error("payments", 0))? else { break };
//!     let batch = raw
//!         .decode(&mut decoder, 100, &Limits::default())
//!         .map_err(|e| e.into_error("payments", 0))?;
//!     assert_eq!(batch.offset(0), 100);
//!     assert_eq!(batch.value(0), Some(&b"value"[..]));
//!     assert_eq!(batch.next_offset(), 101);
//! }
//! # Ok::<(), laneway::Error>(())
//! ```

mod aborted;
mod batch;
mod compress;
mod control;
mod error;
mod header;
mod legacy;
mod split;
mod varint;
mod write;

pub use aborted::{AbortedFilter, AbortedTransaction, Verdict};
pub use batch::{Batch, Header, Headers};
pub use compress::{Decoder, Encoder, Limits};
pub use control::{ControlKind, ControlRecord};
pub use error::{Fault, RecordsError};
pub use header::{BatchHeader, Compression, TimestampType};
pub use split::{Batches, Piece, RawBatch, split};
pub use write::{BatchBuilder, control_batch, rebase};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
