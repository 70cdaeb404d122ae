//! LZ4 frames around lz4_flex's blocks: every legal flag is read, and what is written is what
//! every Kafka client reads.

use lz4_flex::block::{self, CompressTable, DecompressError};

use super::{Refusal, room};
use crate::error::Error;

/// Which checksum of a frame's header is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderChecksum {
    /// LZ4's own: it covers the descriptor.
    Exact,
    /// That, or the one that Kafka's clients wrote before 0.10 and write in format 0 to this day:
    /// it covers the magic number as well (KAFKA-3160).
    OrHistoric,
}

/// Inflates every frame into `scratch`, one behind the other, and gives the length.
pub(super) fn inflate(
    input: &[u8],
    scratch: &mut Vec<u8>,
    limit: usize,
    checksum: HeaderChecksum,
) -> Result<usize, Refusal> {
    // What the blocks can hold at best bounds what is reserved.
    let bound = bound(input, checksum)?;
    let out = room(scratch, bound.min(limit));
    let cap = out.len().min(limit);
    let out = out.get_mut(..cap).unwrap_or_default();
    let mut filled = 0;
    let mut rest = input;
    while let Some((frame, blocks)) = next_frame(rest, checksum)? {
        let start = filled;
        rest = blocks;
        while let Some((block, after)) = frame.next_block(rest)? {
            filled = block.inflate(&frame, out, start, filled)?;
            rest = after;
        }
        let content = out.get(start..filled).unwrap_or_default();
        frame.check_content(rest, content)?;
        rest = frame.after_blocks(rest)?;
        if frame
            .content_size
            .is_some_and(|size| size != (filled - start) as u64)
        {
            return Err(Refusal::Corrupt("a frame's size does not match"));
        }
    }
    Ok(filled)
}

/// At most what `input` inflates to, by its frame and block headers alone.
pub(super) fn inflated_bound(input: &[u8], checksum: HeaderChecksum) -> Option<usize> {
    bound(input, checksum).ok()
}

fn bound(input: &[u8], checksum: HeaderChecksum) -> Result<usize, Refusal> {
    let mut rest = input;
    let mut total = 0usize;
    while let Some((frame, blocks)) = next_frame(rest, checksum)? {
        let mut holds = 0usize;
        rest = blocks;
        while let Some((block, after)) = frame.next_block(rest)? {
            holds = holds.saturating_add(if block.stored {
                block.bytes.len()
            } else {
                frame
                    .block_max
                    .min(block.bytes.len().saturating_mul(RATIO_MAX))
            });
            rest = after;
        }
        rest = frame.after_blocks(rest)?;
        let declared = frame
            .content_size
            .and_then(|size| usize::try_from(size).ok());
        total = total.saturating_add(declared.map_or(holds, |size| size.min(holds)));
    }
    Ok(total)
}

/// What a frame's header says.
struct Frame {
    linked: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_size: Option<u64>,
    block_max: usize,
}

struct Block<'a> {
    bytes: &'a [u8],
    /// As it is, because it does not compress.
    stored: bool,
    checksum: Option<u32>,
}

/// The next frame of `input` and its blocks, skippable frames passed over; `None` at the end.
fn next_frame(
    mut input: &[u8],
    checksum: HeaderChecksum,
) -> Result<Option<(Frame, &[u8])>, Refusal> {
    loop {
        if input.is_empty() {
            return Ok(None);
        }
        let (magic, after) = input.split_first_chunk().ok_or(CUT)?;
        let magic = u32::from_le_bytes(*magic);
        if magic == MAGIC {
            return Frame::read(after, checksum).map(Some);
        }
        if magic & !0x0f != SKIPPABLE {
            return Err(Refusal::Corrupt("what follows is no frame"));
        }
        let (len, after) = after.split_first_chunk().ok_or(CUT)?;
        input = after.get(u32::from_le_bytes(*len) as usize..).ok_or(CUT)?;
    }
}

impl Frame {
    /// Reads the header behind the magic.
    fn read(input: &[u8], right: HeaderChecksum) -> Result<(Frame, &[u8]), Refusal> {
        let (&[flags, sizes], mut rest) = input.split_first_chunk::<2>().ok_or(CUT)?;
        if flags >> 6 != 1 || flags & RESERVED_FLAG != 0 || sizes & 0x8f != 0 {
            return Err(Refusal::Corrupt("a frame's header has reserved bits"));
        }
        if flags & DICTIONARY != 0 {
            return Err(Refusal::Corrupt("it needs a dictionary"));
        }
        let block_max = match sizes >> 4 {
            size @ 4..=7 => 1 << (8 + 2 * size),
            _ => return Err(Refusal::Corrupt("a frame's block size is not known")),
        };
        let mut content_size = None;
        if flags & CONTENT_SIZE != 0 {
            let (size, after) = rest.split_first_chunk().ok_or(CUT)?;
            content_size = Some(u64::from_le_bytes(*size));
            rest = after;
        }
        let described = input.get(..input.len() - rest.len()).unwrap_or_default();
        let (&checksum, rest) = rest.split_first().ok_or(CUT)?;
        let exact = checksum == (xxh32(described) >> 8) as u8;
        if !exact && (right == HeaderChecksum::Exact || checksum != historic_checksum(described)) {
            return Err(Refusal::Corrupt("a frame header's checksum does not match"));
        }
        let frame = Frame {
            linked: flags & INDEPENDENT == 0,
            block_checksums: flags & BLOCK_CHECKSUMS != 0,
            content_checksum: flags & CONTENT_CHECKSUM != 0,
            content_size,
            block_max,
        };
        Ok((frame, rest))
    }

    /// The next block of the frame; `None` at its end mark, which [`after_blocks`] steps over.
    ///
    /// [`after_blocks`]: Self::after_blocks
    fn next_block<'a>(&self, input: &'a [u8]) -> Result<Option<(Block<'a>, &'a [u8])>, Refusal> {
        let (size, after) = input.split_first_chunk().ok_or(CUT)?;
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            return Ok(None);
        }
        let len = (size & !STORED) as usize;
        if len > self.block_max {
            return Err(Refusal::Corrupt("a block is above its frame's block size"));
        }
        let (bytes, mut rest) = after.split_at_checked(len).ok_or(CUT)?;
        let mut checksum = None;
        if self.block_checksums {
            let (stored, after) = rest.split_first_chunk().ok_or(CUT)?;
            checksum = Some(u32::from_le_bytes(*stored));
            rest = after;
        }
        let block = Block {
            bytes,
            stored: size & STORED != 0,
            checksum,
        };
        Ok(Some((block, rest)))
    }

    /// Verifies the checksum of what the frame's blocks inflated to, which follows the end mark at
    /// the front of `input`. Kafka's own writers have never set one; other libraries' do.
    fn check_content(&self, input: &[u8], content: &[u8]) -> Result<(), Refusal> {
        if !self.content_checksum {
            return Ok(());
        }
        let stored = input.get(4..).and_then(<[u8]>::first_chunk).ok_or(CUT)?;
        match u32::from_le_bytes(*stored) == xxh32(content) {
            true => Ok(()),
            false => Err(Refusal::Corrupt("a frame's checksum does not match")),
        }
    }

    /// Steps over the end mark and the content checksum.
    fn after_blocks<'a>(&self, input: &'a [u8]) -> Result<&'a [u8], Refusal> {
        input
            .get(if self.content_checksum { 8 } else { 4 }..)
            .ok_or(CUT)
    }
}

impl Block<'_> {
    /// Inflates to `out[filled..]`, in a frame whose output began at `start`; gives the new end.
    /// `out` is as long as the limit and the blocks' own bound allow.
    fn inflate(
        &self,
        frame: &Frame,
        out: &mut [u8],
        start: usize,
        filled: usize,
    ) -> Result<usize, Refusal> {
        if self
            .checksum
            .is_some_and(|stored| stored != xxh32(self.bytes))
        {
            return Err(Refusal::Corrupt("a block's checksum does not match"));
        }
        let (done, room) = out.split_at_mut(filled);
        let room_len = room.len().min(frame.block_max);
        let room = &mut room[..room_len];
        let over = if room_len < frame.block_max {
            Refusal::TooLarge
        } else {
            Refusal::Corrupt("a block inflates past its frame's block size")
        };
        if self.stored {
            let Some(to) = room.get_mut(..self.bytes.len()) else {
                return Err(over);
            };
            to.copy_from_slice(self.bytes);
            return Ok(filled + self.bytes.len());
        }
        let written = if frame.linked && filled > start {
            let history = &done[start.max(filled.saturating_sub(HISTORY_BYTES))..];
            block::decompress_into_with_dict(self.bytes, room, history)
        } else {
            block::decompress_into(self.bytes, room)
        };
        match written {
            Ok(written) => Ok(filled + written),
            Err(DecompressError::OutputTooSmall { .. }) => Err(over),
            Err(_) => Err(Refusal::Corrupt("a block is malformed")),
        }
    }
}

pub(super) struct Deflater(CompressTable);

impl Default for Deflater {
    fn default() -> Self {
        Deflater(CompressTable::small())
    }
}

impl Deflater {
    /// One frame of independent 64 KiB blocks without checksums: readers in Java refuse linked
    /// blocks, and disagree on what a content checksum is.
    pub(super) fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let descriptor = [1 << 6 | INDEPENDENT, 4 << 4];
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&descriptor);
        out.push((xxh32(&descriptor) >> 8) as u8);
        for block in input.chunks(BLOCK_BYTES) {
            let size_at = out.len();
            let at = size_at + 4;
            out.resize(at + block::get_maximum_output_size(block.len()), 0);
            let written = block::compress_into_with_table(block, &mut out[at..], &mut self.0)
                .map_err(|e| Error::bug(format!("lz4: {e}")))?;
            let size = if written < block.len() {
                out.truncate(at + written);
                written as u32
            } else {
                out.truncate(at);
                out.extend_from_slice(block);
                block.len() as u32 | STORED
            };
            out[size_at..at].copy_from_slice(&size.to_le_bytes());
        }
        out.extend_from_slice(&0u32.to_le_bytes());
        Ok(())
    }
}

/// The checksum of a frame's header that covers the magic number too.
fn historic_checksum(described: &[u8]) -> u8 {
    // Flags, sizes and a content size at most.
    let mut covered = [0; 4 + 2 + 8];
    let len = (4 + described.len()).min(covered.len());
    covered[..4].copy_from_slice(&MAGIC.to_le_bytes());
    covered[4..len].copy_from_slice(&described[..len - 4]);
    (xxh32(&covered[..len]) >> 8) as u8
}

/// XXH32 with seed 0: LZ4's checksum of headers, blocks and content.
fn xxh32(input: &[u8]) -> u32 {
    let mut stripes = input.chunks_exact(16);
    let mut hash = if input.len() < 16 {
        PRIME_5
    } else {
        let mut lanes = [
            PRIME_1.wrapping_add(PRIME_2),
            PRIME_2,
            0,
            0u32.wrapping_sub(PRIME_1),
        ];
        for stripe in &mut stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
                *lane = lane
                    .wrapping_add(word_of(word).wrapping_mul(PRIME_2))
                    .rotate_left(13)
                    .wrapping_mul(PRIME_1);
            }
        }
        let [a, b, c, d] = lanes;
        a.rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18))
    };
    hash = hash.wrapping_add(input.len() as u32);
    let mut words = stripes.remainder().chunks_exact(4);
    for word in &mut words {
        hash = hash
            .wrapping_add(word_of(word).wrapping_mul(PRIME_3))
            .rotate_left(17)
            .wrapping_mul(PRIME_4);
    }
    for byte in words.remainder() {
        hash = hash
            .wrapping_add(u32::from(*byte).wrapping_mul(PRIME_5))
            .rotate_left(11)
            .wrapping_mul(PRIME_1);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIME_2);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIME_3);
    hash ^ (hash >> 16)
}

fn word_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().copied().map_or(0, u32::from_le_bytes)
}

const MAGIC: u32 = 0x184d_2204;
const SKIPPABLE: u32 = 0x184d_2a50;
const STORED: u32 = 1 << 31;
const DICTIONARY: u8 = 1;
const RESERVED_FLAG: u8 = 1 << 1;
const CONTENT_CHECKSUM: u8 = 1 << 2;
const CONTENT_SIZE: u8 = 1 << 3;
const BLOCK_CHECKSUMS: u8 = 1 << 4;
const INDEPENDENT: u8 = 1 << 5;
/// What we write.
const BLOCK_BYTES: usize = 64 << 10;
/// How far back a linked block may copy from.
const HISTORY_BYTES: usize = 64 << 10;
/// A byte of a match's length stands for 255 bytes at most.
const RATIO_MAX: usize = 255;
const CUT: Refusal = Refusal::Corrupt("a frame is cut");
const PRIME_1: u32 = 0x9e37_79b1;
const PRIME_2: u32 = 0x85eb_ca77;
const PRIME_3: u32 = 0xc2b2_ae3d;
const PRIME_4: u32 = 0x27d4_eb2f;
const PRIME_5: u32 = 0x1656_67b1;
