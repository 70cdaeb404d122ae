//! Snappy, in the two shapes that Kafka's clients write: xerial's framing (Java), and one bare
//! block (others).

use super::Refusal;
use crate::error::Error;

/// How many bytes the chunks of `input` declare, if their sum is at most `limit`. Looks at each
/// chunk's size before anything is reserved.
pub(super) fn inflated_len(input: &[u8], limit: usize) -> Result<usize, Refusal> {
    let mut total = 0;
    for chunk in Chunks::of(input) {
        let chunk = chunk?;
        let len = snap::raw::decompress_len(chunk).map_err(|_| CORRUPT)?;
        if len / RATIO_MAX > chunk.len() {
            return Err(Refusal::Corrupt("a block declares more than it can hold"));
        }
        total += len;
        if total > limit {
            return Err(Refusal::TooLarge);
        }
    }
    Ok(total)
}

pub(super) fn inflate(input: &[u8], limit: usize) -> Result<Vec<u8>, Refusal> {
    let mut out = vec![0; inflated_len(input, limit)?];
    let mut filled = 0;
    let mut decoder = snap::raw::Decoder::new();
    for chunk in Chunks::of(input) {
        let room = out.get_mut(filled..).unwrap_or_default();
        filled += decoder.decompress(chunk?, room).map_err(|_| CORRUPT)?;
    }
    if filled != out.len() {
        return Err(CORRUPT);
    }
    Ok(out)
}

/// The raw blocks of a section.
enum Chunks<'a> {
    Bare(Option<&'a [u8]>),
    Xerial(&'a [u8]),
}

impl<'a> Chunks<'a> {
    fn of(input: &'a [u8]) -> Self {
        // A bare block cannot begin like this: its first tag would copy from before its start.
        // The two versions are not looked at: Java accepts whatever newer ones its own do, and
        // writers have been seen with odd ones.
        match input.strip_prefix(MAGIC) {
            Some(rest) => Chunks::Xerial(rest.get(VERSIONS_BYTES..).unwrap_or_default()),
            None => Chunks::Bare(Some(input)),
        }
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<&'a [u8], Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = match self {
            Chunks::Bare(block) => return block.take().map(Ok),
            Chunks::Xerial([]) => return None,
            Chunks::Xerial(rest) => rest,
        };
        let chunk = rest.split_first_chunk().and_then(|(len, after)| {
            let len = usize::try_from(i32::from_be_bytes(*len)).ok()?;
            after.split_at_checked(len)
        });
        match chunk {
            Some((chunk, after)) if !chunk.is_empty() => {
                *rest = after;
                Some(Ok(chunk))
            }
            _ => {
                *rest = &[];
                Some(Err(Refusal::Corrupt("a chunk's length passes the end")))
            }
        }
    }
}

pub(super) struct Deflater(snap::raw::Encoder);

impl Default for Deflater {
    fn default() -> Self {
        Deflater(snap::raw::Encoder::new())
    }
}

impl Deflater {
    pub(super) fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&1i32.to_be_bytes());
        out.extend_from_slice(&1i32.to_be_bytes());
        for block in input.chunks(BLOCK_BYTES) {
            let length_at = out.len();
            let at = length_at + 4;
            out.resize(at + snap::raw::max_compress_len(block.len()), 0);
            let written = self
                .0
                .compress(block, &mut out[at..])
                .map_err(|e| Error::bug(format!("snappy: {e}")))?;
            out.truncate(at + written);
            // At most BLOCK_BYTES and a sixth.
            out[length_at..at].copy_from_slice(&(written as u32).to_be_bytes());
        }
        Ok(())
    }
}

const MAGIC: &[u8] = b"\x82SNAPPY\0";
const VERSIONS_BYTES: usize = 8;
/// As snappy-java writes it.
const BLOCK_BYTES: usize = 32 << 10;
/// A copy of three bytes gives at most 64.
const RATIO_MAX: usize = 64;
const CORRUPT: Refusal = Refusal::Corrupt("a block is malformed");
