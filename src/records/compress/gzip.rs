//! Gzip (RFC 1952): our own framing around a raw inflate that is reused.

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

use super::{Refusal, room};
use crate::error::Error;

#[derive(Default)]
pub(super) struct Inflater(Option<Decompress>);

impl Inflater {
    /// Inflates every member into `scratch`, one behind the other, and gives the length.
    pub(super) fn inflate(
        &mut self,
        input: &[u8],
        scratch: &mut Vec<u8>,
        limit: usize,
    ) -> Result<usize, Refusal> {
        let mut rest = input;
        let mut filled = 0;
        while !rest.is_empty() {
            let body = skip_header(rest)?;
            let start = filled;
            let (after, end) = self.member(body, scratch, start, limit)?;
            let (trailer, after) = after.split_first_chunk::<8>().ok_or(CUT)?;
            let [c0, c1, c2, c3, s0, s1, s2, s3] = *trailer;
            let member = scratch.get(start..end).unwrap_or_default();
            if u32::from_le_bytes([c0, c1, c2, c3]) != crc32fast::hash(member) {
                return Err(Refusal::Corrupt("a member's checksum does not match"));
            }
            if u32::from_le_bytes([s0, s1, s2, s3]) != member.len() as u32 {
                return Err(Refusal::Corrupt("a member's size does not match"));
            }
            filled = end;
            rest = after;
        }
        Ok(filled)
    }

    /// Inflates one deflate stream to `scratch[filled..]`; gives what follows it and where its
    /// output ends. Scratch grows as output comes, by doubling, up to the limit and no further.
    fn member<'a>(
        &mut self,
        body: &'a [u8],
        scratch: &mut Vec<u8>,
        mut filled: usize,
        limit: usize,
    ) -> Result<(&'a [u8], usize), Refusal> {
        let state = self.0.get_or_insert_with(|| Decompress::new(false));
        state.reset(false);
        let mut rest = body;
        let mut want = filled
            .saturating_add(body.len().saturating_mul(FIRST_GUESS))
            .max(ROOM_MIN);
        loop {
            let out = room(scratch, want.min(limit));
            let out_len = out.len().min(limit);
            let (before_in, before_out) = (state.total_in(), state.total_out());
            let status = state
                .decompress(
                    rest,
                    out.get_mut(filled..out_len).unwrap_or_default(),
                    FlushDecompress::None,
                )
                .map_err(|_| Refusal::Corrupt("a deflate stream is malformed"))?;
            let (took, gave) = (state.total_in() - before_in, state.total_out() - before_out);
            filled += gave as usize;
            rest = rest.get(took as usize..).unwrap_or_default();
            if status == Status::StreamEnd {
                return Ok((rest, filled));
            }
            if filled < out_len {
                // There was room, so it is input that ran out; without progress it never ends.
                if rest.is_empty() || (took == 0 && gave == 0) {
                    return Err(CUT);
                }
                continue;
            }
            if out_len < limit {
                want = out_len.saturating_mul(2);
                continue;
            }
            // Room for one byte more tells a stream that fits exactly from one that does not.
            return match self.ends_here(rest) {
                Some(after) => Ok((after, filled)),
                None => Err(Refusal::TooLarge),
            };
        }
    }

    /// Whether the stream ends without another byte of output; if so, what follows it.
    fn ends_here<'a>(&mut self, rest: &'a [u8]) -> Option<&'a [u8]> {
        let state = self.0.as_mut()?;
        let (before_in, before_out) = (state.total_in(), state.total_out());
        let status = state
            .decompress(rest, &mut [0], FlushDecompress::None)
            .ok()?;
        let took = (state.total_in() - before_in) as usize;
        (status == Status::StreamEnd && state.total_out() == before_out)
            .then(|| rest.get(took..).unwrap_or_default())
    }
}

/// Steps over a member's header, with all of its optional fields.
fn skip_header(input: &[u8]) -> Result<&[u8], Refusal> {
    let (fixed, mut rest) = input.split_first_chunk::<10>().ok_or(CUT)?;
    let [0x1f, 0x8b, 8, flags, ..] = *fixed else {
        return Err(Refusal::Corrupt("what follows is no member"));
    };
    if flags & 0xe0 != 0 {
        return Err(Refusal::Corrupt("a member's header has reserved flags"));
    }
    if flags & EXTRA != 0 {
        let (len, after) = rest.split_first_chunk().ok_or(CUT)?;
        rest = after
            .get(usize::from(u16::from_le_bytes(*len))..)
            .ok_or(CUT)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let end = rest.iter().position(|b| *b == 0).ok_or(CUT)?;
            rest = rest.get(end + 1..).ok_or(CUT)?;
        }
    }
    if flags & HEADER_CRC != 0 {
        rest = rest.get(2..).ok_or(CUT)?;
    }
    Ok(rest)
}

#[derive(Default)]
pub(super) struct Deflater(Option<Compress>);

impl Deflater {
    pub(super) fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        out.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
        // Taken out, and put back only when it ended well: after a compress that ran out of room
        // a reset zlib-rs 0.6.8 is not a clean slate, and its next use panics.
        let mut state = match self.0.take() {
            Some(state) => state,
            None => Compress::new(flate2::Compression::new(LEVEL), false),
        };
        state.reset();
        let at = out.len();
        out.resize(at + input.len() + input.len() / 4 + 64, 0);
        let status = state
            .compress(input, &mut out[at..], FlushCompress::Finish)
            .map_err(|e| Error::bug(format!("gzip: {e}")))?;
        if status != Status::StreamEnd {
            return Err(Error::bug("gzip: the output outgrew its bound"));
        }
        out.truncate(at + state.total_out() as usize);
        self.0 = Some(state);
        out.extend_from_slice(&crc32fast::hash(input).to_le_bytes());
        out.extend_from_slice(&(input.len() as u32).to_le_bytes());
        Ok(())
    }
}

const HEADER_CRC: u8 = 1 << 1;
const EXTRA: u8 = 1 << 2;
const NAME: u8 = 1 << 3;
const COMMENT: u8 = 1 << 4;
/// Text of records deflates to a quarter or so; a wrong guess costs one growth.
const FIRST_GUESS: usize = 4;
const ROOM_MIN: usize = 4 << 10;
/// Kafka's default.
const LEVEL: u32 = 6;
const CUT: Refusal = Refusal::Corrupt("a member is cut");
