//! Compression: one decoder and one encoder for all codecs, each with a hard bound on what comes
//! out.
//!
//! The framings of gzip, xerial's snappy and LZ4 are ours: that takes their allocations away, gives
//! one place for limits, and lets a declared size be doubted by what its codec can do at best.

mod gzip;
mod lz4;
mod snappy;
mod zstd;

use bytes::Bytes;

use super::{Compression, Fault};
use crate::error::Error;

/// Bounds on decoding.
///
/// ```
/// assert_eq!(laneway::records::Limits::default().inflated_max, 64 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many bytes the records of one batch may take once decompressed; their index may take
    /// as many again. Decoding never has more than twice this in use, and its own state.
    pub inflated_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            inflated_max: 64 << 20,
        }
    }
}

/// The state that decompression reuses from batch to batch. Keep one for each thread of decoding:
/// then a batch costs its output buffer and its index, and no other allocation.
///
/// It keeps at most 4 MiB of scratch, and about 100 KiB for the codecs once they have been used.
#[derive(Default)]
pub struct Decoder {
    scratch: Vec<u8>,
    zstd: zstd::Inflater,
    gzip: gzip::Inflater,
}

/// The state that compression reuses from batch to batch.
#[derive(Default)]
pub struct Encoder {
    zstd: zstd::Deflater,
    gzip: gzip::Deflater,
    lz4: lz4::Deflater,
    snappy: snappy::Deflater,
}

/// How an inflater ends without output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Corrupt(&'static str),
    TooLarge,
}

impl Decoder {
    /// A decoder that has reserved nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decompresses a records section into a buffer of exactly its size. An uncompressed one is
    /// handed through; an empty one is empty under any codec, as brokers that compact write it.
    pub(crate) fn inflate(
        &mut self,
        codec: Compression,
        section: Bytes,
        limits: &Limits,
    ) -> Result<Bytes, Fault> {
        self.inflate_with(codec, section, limits, lz4::HeaderChecksum::Exact)
    }

    /// As [`inflate`](Self::inflate), for the value of a compressed message of format 0 or 1:
    /// LZ4's frame header may have the checksum that Kafka wrote before 0.10 (KAFKA-3160).
    pub(crate) fn inflate_messages(
        &mut self,
        codec: Compression,
        value: Bytes,
        limits: &Limits,
    ) -> Result<Bytes, Fault> {
        self.inflate_with(codec, value, limits, lz4::HeaderChecksum::OrHistoric)
    }

    fn inflate_with(
        &mut self,
        codec: Compression,
        section: Bytes,
        limits: &Limits,
        lz4_header: lz4::HeaderChecksum,
    ) -> Result<Bytes, Fault> {
        let limit = limits.inflated_max.min(SECTION_MAX);
        let refuse = |refusal| match refusal {
            Refusal::Corrupt(why) => Fault::Decompress { codec, why },
            Refusal::TooLarge => Fault::TooLarge { codec, limit },
        };
        if codec == Compression::None || section.is_empty() {
            return match section.len() {
                len if len > limit => Err(refuse(Refusal::TooLarge)),
                _ => Ok(section),
            };
        }
        // Snappy declares its size, so it needs no scratch.
        if codec == Compression::Snappy {
            return snappy::inflate(&section, limit)
                .map(Bytes::from)
                .map_err(refuse);
        }
        let scratch = &mut self.scratch;
        let inflated = match codec {
            Compression::None | Compression::Snappy => Ok(0),
            Compression::Gzip => self.gzip.inflate(&section, scratch, limit),
            Compression::Lz4 => lz4::inflate(&section, scratch, limit, lz4_header),
            Compression::Zstd => self.zstd.inflate(&section, scratch, limit),
        };
        // The copy is what makes the buffer fit: codecs overshoot, by eight times for small
        // batches, and a batch may be held for long.
        let exact = inflated
            .map(|len| Bytes::copy_from_slice(self.scratch.get(..len).unwrap_or_default()))
            .map_err(refuse);
        if self.scratch.capacity() > SCRATCH_KEPT_MAX {
            self.scratch = Vec::new();
        }
        exact
    }
}

impl Encoder {
    /// An encoder that has reserved nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `section`, compressed, to `out`.
    pub(crate) fn deflate(
        &mut self,
        codec: Compression,
        section: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match codec {
            Compression::None => out.extend_from_slice(section),
            Compression::Gzip => self.gzip.deflate(section, out)?,
            Compression::Snappy => self.snappy.deflate(section, out)?,
            Compression::Lz4 => self.lz4.deflate(section, out)?,
            Compression::Zstd => self.zstd.deflate(section, out)?,
        }
        Ok(())
    }
}

/// At most what `section` inflates to, as far as it tells.
pub(super) fn inflated_hint(codec: Compression, section: &[u8]) -> Option<usize> {
    match codec {
        Compression::None => Some(section.len()),
        _ if section.is_empty() => Some(0),
        Compression::Gzip => None,
        Compression::Snappy => snappy::inflated_len(section, usize::MAX).ok(),
        Compression::Lz4 => lz4::inflated_bound(section, lz4::HeaderChecksum::Exact),
        Compression::Zstd => zstd::inflated_bound(section).ok(),
    }
}

/// As [`inflated_hint`], for the value of a compressed message of format 0 or 1.
pub(super) fn inflated_hint_of_messages(codec: Compression, value: &[u8]) -> Option<usize> {
    match codec {
        Compression::Lz4 if !value.is_empty() => {
            lz4::inflated_bound(value, lz4::HeaderChecksum::OrHistoric)
        }
        _ => inflated_hint(codec, value),
    }
}

/// Scratch of at least `len` bytes to write to. What was in it stays in it: callers give on only
/// what they have overwritten.
fn room(scratch: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if scratch.len() < len {
        scratch.reserve_exact(len - scratch.len());
        scratch.resize(len, 0);
    }
    scratch
}

/// No section is longer, whatever the limit says: positions in it are 32 bits wide.
pub(super) const SECTION_MAX: usize = i32::MAX as usize;
const SCRATCH_KEPT_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests;
