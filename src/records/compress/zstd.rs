//! Zstandard (KIP-110), by zrip: any number of frames, with or without their size.

use super::Refusal;
use crate::error::Error;

/// Boxed inside and made at first use: it is 64 KiB.
#[derive(Default)]
pub(super) struct Inflater(Option<zrip::DecompressContext>);

impl Inflater {
    /// Inflates into `scratch` from its front and gives the length.
    pub(super) fn inflate(
        &mut self,
        input: &[u8],
        scratch: &mut Vec<u8>,
        limit: usize,
    ) -> Result<usize, Refusal> {
        // What the blocks can hold at best bounds what is reserved, whatever the header claims;
        // and reserved at once, the buffer does not grow by doubling.
        let bound = inflated_bound(input)?;
        scratch.clear();
        scratch.reserve_exact(bound.min(limit) + OVERSHOOT);
        self.0
            .get_or_insert_default()
            .decompress_into_with_limit(input, scratch, limit.min(bound))
            .map_err(|e| match e {
                zrip::DecompressError::OutputTooSmall if limit < bound => Refusal::TooLarge,
                zrip::DecompressError::OutputTooSmall => Refusal::Corrupt(OVER_BOUND),
                zrip::DecompressError::WindowTooLarge { .. } => {
                    Refusal::Corrupt("its window is above 128 MiB")
                }
                zrip::DecompressError::ChecksumMismatch { .. } => {
                    Refusal::Corrupt("a frame's checksum does not match")
                }
                zrip::DecompressError::DictRequired
                | zrip::DecompressError::DictMismatch { .. } => {
                    Refusal::Corrupt("it needs a dictionary")
                }
                _ => Refusal::Corrupt("a frame is malformed"),
            })
    }
}

/// Walks frames and blocks by their headers alone: raw and run-length blocks say their size, the
/// others hold at most 128 KiB. A frame that declares its size lowers the bound to that.
pub(super) fn inflated_bound(input: &[u8]) -> Result<usize, Refusal> {
    let mut rest = input;
    let mut total = 0usize;
    while !rest.is_empty() {
        let (magic, after) = rest.split_first_chunk().ok_or(CUT)?;
        let magic = u32::from_le_bytes(*magic);
        if magic & !0x0f == SKIPPABLE {
            let (len, after) = after.split_first_chunk().ok_or(CUT)?;
            rest = after.get(u32::from_le_bytes(*len) as usize..).ok_or(CUT)?;
            continue;
        }
        if magic != MAGIC {
            return Err(Refusal::Corrupt("what follows is no frame"));
        }
        let (frame, after) = frame_bound(after)?;
        total = total.saturating_add(frame);
        rest = after;
    }
    Ok(total)
}

/// The bound of one frame behind its magic, and what follows the frame.
fn frame_bound(input: &[u8]) -> Result<(usize, &[u8]), Refusal> {
    let (&descriptor, after) = input.split_first().ok_or(CUT)?;
    let single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(single_segment),
        flag => 1 << flag,
    };
    let after = after.get(window + dictionary..).ok_or(CUT)?;
    let (size, mut rest) = after.split_at_checked(size_bytes).ok_or(CUT)?;
    let mut declared = [0; 8];
    declared[..size_bytes].copy_from_slice(size);
    // The two-byte form counts from 256.
    let declared = u64::from_le_bytes(declared) + if size_bytes == 2 { 256 } else { 0 };
    let mut total = 0usize;
    loop {
        let (header, after) = rest.split_first_chunk::<3>().ok_or(CUT)?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let size = (header >> 3) as usize;
        let (holds, takes) = match (header >> 1) & 3 {
            0 => (size, size),
            1 => (size, 1),
            2 => (BLOCK_MAX, size),
            _ => return Err(Refusal::Corrupt("a block is of no known type")),
        };
        if size > BLOCK_MAX {
            return Err(Refusal::Corrupt("a block is above 128 KiB"));
        }
        total = total.saturating_add(holds);
        rest = after.get(takes..).ok_or(CUT)?;
        if header & 1 != 0 {
            break;
        }
    }
    let checksum = if descriptor & 4 != 0 { 4 } else { 0 };
    let rest = rest.get(checksum..).ok_or(CUT)?;
    if size_bytes == 0 {
        return Ok((total, rest));
    }
    match usize::try_from(declared) {
        Ok(declared) if declared <= total => Ok((declared, rest)),
        _ => Err(Refusal::Corrupt(OVER_BOUND)),
    }
}

/// Made at first use: it is more than a megabyte.
#[derive(Default)]
pub(super) struct Deflater(Option<zrip::CompressContext>);

impl Deflater {
    pub(super) fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let context = match &mut self.0 {
            Some(context) => context,
            none => {
                let mut context = zrip::CompressContext::new(LEVEL)
                    .map_err(|e| Error::bug(format!("zstd: {e}")))?;
                // The batch's own CRC-32C covers the bytes; Java writes none either.
                context.set_content_checksum(false);
                none.insert(context)
            }
        };
        let at = out.len();
        out.resize(at + zrip::compress_bound(input.len()), 0);
        let written = context
            .compress_into(input, &mut out[at..])
            .map_err(|e| Error::bug(format!("zstd: {e}")))?;
        out.truncate(at + written);
        Ok(())
    }
}

const MAGIC: u32 = 0xfd2f_b528;
const SKIPPABLE: u32 = 0x184d_2a50;
const BLOCK_MAX: usize = 128 << 10;
/// zrip writes in strides and wants this much behind the output.
const OVERSHOOT: usize = 64;
/// Kafka's default.
const LEVEL: i32 = 3;
const CUT: Refusal = Refusal::Corrupt("a frame is cut");
const OVER_BOUND: &str = "a frame declares more than its blocks can hold";
